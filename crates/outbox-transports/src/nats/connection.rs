//! A connection to NATS.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::{
    GetStreamByNameError, GetStreamByNameErrorKind, PublishError, PublishErrorKind, StreamsError,
    StreamsErrorKind,
};
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{AuthError, Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr};
use async_trait::async_trait;
use outbox::{Failure, Unavailable};
use tokio::sync::Notify;

use super::NatsSettings;
use super::credentials::{Credentials, LoadedCredentials, servers};
use super::wire::{self, PreparedMessage};
use crate::reconnect::Connect;
use crate::tls::Pems;
use crate::{PublisherSettingsError, Tls, TlsFileError, crypto};

/// Result of sending one message.
pub(super) enum SendOutcome {
    /// A stream has the message, perhaps since an earlier attempt.
    Stored,
    Refused(Failure),
    /// No event can be published: the stream or the permission is missing. The connection is
    /// usable.
    Unavailable(String),
    /// The result is unknown, since the connection is not usable any more.
    Lost(String),
}

/// A connection that is used until it breaks, and never again.
///
/// async-nats would reconnect by itself and then send its queued messages: messages that this
/// publisher has abandoned, and that have since been sent again, in order, over another connection.
/// So reconnecting is prevented (see [`NatsConnector`]), and all waiting messages fail when the
/// connection breaks. Data in the operating system's buffers may still arrive late. That is at most
/// one message per key, since the next one is not sent before the first is confirmed, and the
/// stream drops it as a duplicate.
pub(super) struct NatsConnection {
    client: Client,
    jetstream: jetstream::Context,
    abandoned: AtomicBool,
    /// Whether a stream is known to accept the subjects of this publisher.
    verified: AtomicBool,
    server_errors: Arc<ServerErrors>,
    ack_timeout: Duration,
    subjects: Subjects,
}

/// The subjects of a publisher.
#[derive(Clone)]
pub(super) struct Subjects {
    /// A subject, or a wildcard that covers all subjects that events can render.
    pub(super) pattern: String,
    /// Whether the subject is the same for every event.
    pub(super) is_fixed: bool,
}

/// Errors that the server reports asynchronously, such as a permissions violation for a subject.
#[derive(Default)]
struct ServerErrors {
    recent: Mutex<VecDeque<String>>,
    changed: Notify,
}

/// Maximum number of errors that are kept, at most those of one batch.
const MAX_SERVER_ERRORS: usize = 1_000;

impl ServerErrors {
    fn add(&self, error: String) {
        let mut recent = self.recent.lock().expect("no panic while the lock is held");
        if recent.len() == MAX_SERVER_ERRORS {
            recent.pop_front();
        }
        recent.push_back(error);
        drop(recent);
        self.changed.notify_waiters();
    }

    /// Waits for an error about this subject. The server sends one for each message.
    async fn wait_for(&self, subject: &str) -> String {
        let quoted = format!("\"{subject}\"");
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut recent = self.recent.lock().expect("no panic while the lock is held");
                let index = recent.iter().position(|error| error.contains(&quoted));
                if let Some(error) = index.and_then(|index| recent.remove(index)) {
                    return error;
                }
            }
            changed.await;
        }
    }
}

impl NatsConnection {
    /// Marks the connection as unusable.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    fn is_usable(&self) -> bool {
        !self.abandoned.load(Ordering::Relaxed) && self.client.connection_state() == State::Connected
    }

    /// Sends a message and waits until a stream has confirmed it.
    pub(super) async fn send(&self, prepared: PreparedMessage) -> SendOutcome {
        if !self.is_usable() {
            return SendOutcome::Lost("the connection to NATS was lost".to_owned());
        }
        if let Err(failure) = prepared.fits(self.client.max_payload(), "the server (its max_payload)") {
            return SendOutcome::Refused(failure);
        }
        let PreparedMessage { subject, message, .. } = prepared;
        let confirmed = async { self.jetstream.send_publish(subject.clone(), message).await?.await };
        let confirmed = tokio::select! {
            biased;
            confirmed = confirmed => confirmed,
            // The server does not reply to a message that it refuses to route.
            error = self.server_errors.wait_for(&subject) => {
                return self.denied(format!("NATS refuses to publish to `{subject}`: {error}"));
            }
        };
        match confirmed {
            Ok(_) => {
                self.verified.store(true, Ordering::Relaxed);
                SendOutcome::Stored
            }
            Err(error) if error.kind() == PublishErrorKind::StreamNotFound => {
                self.stream_missing(&subject).await
            }
            Err(error) => self.classify(&subject, &error),
        }
    }

    /// Result for a subject that may not be published to: an outage of the destination if it is the
    /// only subject, otherwise the event's failure, since other events go to other subjects.
    fn denied(&self, reason: String) -> SendOutcome {
        if self.subjects.is_fixed {
            self.verified.store(false, Ordering::Relaxed);
            return SendOutcome::Unavailable(reason);
        }
        SendOutcome::Refused(Failure::retry(reason))
    }

    /// Result for a subject without a subscriber: no stream accepts it, or the server is shutting
    /// down, since its streams end before its connections.
    async fn stream_missing(&self, subject: &str) -> SendOutcome {
        match self.find_stream(subject).await {
            StreamLookup::Found => {
                return SendOutcome::Lost("NATS is reachable, but JetStream is not".to_owned());
            }
            StreamLookup::Failed(reason) => return SendOutcome::Lost(reason),
            StreamLookup::Missing | StreamLookup::Denied => {}
        }
        // The subject of a single event may be wrong. If no subject of this publisher has a stream,
        // it is an outage.
        if !self.subjects.is_fixed
            && matches!(self.find_stream(&self.subjects.pattern).await, StreamLookup::Missing)
        {
            self.verified.store(false, Ordering::Relaxed);
            return SendOutcome::Unavailable(no_stream(&self.subjects.pattern));
        }
        self.denied(no_stream(subject))
    }

    /// Checks that a stream accepts the subjects of this publisher, unless that is known. A user
    /// without permission to look up streams passes: publishing shows the error.
    pub(super) async fn verify(&self) -> Result<(), Unavailable> {
        if self.verified.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.find_stream(&self.subjects.pattern).await {
            StreamLookup::Found | StreamLookup::Denied => {
                self.verified.store(true, Ordering::Relaxed);
                Ok(())
            }
            StreamLookup::Missing => Err(Unavailable::new(no_stream(&self.subjects.pattern))),
            StreamLookup::Failed(reason) => Err(Unavailable::new(reason)),
        }
    }

    async fn find_stream(&self, subject: &str) -> StreamLookup {
        let found = tokio::select! {
            biased;
            found = self.jetstream.stream_by_subject(subject) => found,
            _ = self.server_errors.wait_for("$JS.API.STREAM.NAMES") => return StreamLookup::Denied,
        };
        match found {
            Ok(_) => StreamLookup::Found,
            Err(error) if error.kind() == GetStreamByNameErrorKind::NotFound => StreamLookup::Missing,
            Err(error) if timed_out(&error) => StreamLookup::Denied,
            Err(error) => StreamLookup::Failed(format!("NATS is reachable, but JetStream is not ({error})")),
        }
    }

    fn classify(&self, subject: &str, error: &PublishError) -> SendOutcome {
        if error.kind() == PublishErrorKind::TimedOut {
            return SendOutcome::Lost(format!("NATS confirmed nothing within {:?}", self.ack_timeout));
        }
        let source = std::error::Error::source(error);
        match source.and_then(|source| source.downcast_ref::<jetstream::Error>()) {
            Some(answer) => classify_stream_error(subject, answer),
            None => SendOutcome::Lost(format!("the connection to NATS was lost ({error})")),
        }
    }
}

/// Result of looking up the stream of a subject.
enum StreamLookup {
    Found,
    Missing,
    /// The user has no permission for the lookup.
    Denied,
    Failed(String),
}

fn no_stream(subject: &str) -> String {
    format!("no stream accepts the subject `{subject}`: create one, or add the subject to an existing one")
}

/// Whether a request timed out, which is how requests without permission end.
fn timed_out(error: &GetStreamByNameError) -> bool {
    let first: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(first), |error| error.source())
        .filter_map(|error| error.downcast_ref::<StreamsError>())
        .any(|error| error.kind() == StreamsErrorKind::TimedOut)
}

/// Classifies the error that a stream returned instead of a confirmation.
fn classify_stream_error(subject: &str, answer: &jetstream::Error) -> SendOutcome {
    let text = format!("the stream of `{subject}` refused the message: {answer}");
    match answer.error_code() {
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => {
            SendOutcome::Refused(Failure::dead(format!("the message has too many bytes: {text}")))
        }
        ErrorCode::CLUSTER_NOT_AVAILABLE
        | ErrorCode::CLUSTER_NOT_LEADER
        | ErrorCode::INSUFFICIENT_RESOURCES
        | ErrorCode::STORAGE_RESOURCES_EXCEEDED
        | ErrorCode::MEMORY_RESOURCES_EXCEEDED => SendOutcome::Lost(text),
        _ => SendOutcome::Refused(Failure::retry(text)),
    }
}

/// Opens connections to one server or cluster.
pub(super) struct NatsConnector {
    name: String,
    /// Addresses without users and passwords, since async-nats logs them.
    servers: Vec<ServerAddr>,
    credentials: Credentials,
    tls: Tls,
    connect_timeout: Duration,
    ack_timeout: Duration,
    subjects: Subjects,
}

impl NatsConnector {
    pub(super) fn new(name: &str, settings: &NatsSettings) -> Result<Self, PublisherSettingsError> {
        let (servers, in_url) = servers(&settings.url)?;
        let credentials = Credentials::from_settings(settings)?.unwrap_or(in_url);
        settings.tls.check_pair()?;
        Ok(Self {
            name: name.to_owned(),
            servers,
            credentials,
            tls: settings.tls.clone(),
            connect_timeout: settings.connect_timeout,
            ack_timeout: settings.ack_timeout,
            subjects: Subjects {
                pattern: wire::pattern(&settings.subject),
                is_fixed: settings.subject.fixed().is_some(),
            },
        })
    }

    fn options(
        &self,
        credentials: LoadedCredentials,
        connected: Arc<AtomicBool>,
        server_errors: Arc<ServerErrors>,
    ) -> Result<ConnectOptions, TlsFileError> {
        // Called at every connection attempt. async-nats has no option to disable reconnecting.
        // When this callback fails and the attempts are used up, async-nats ends and fails
        // everything that waits.
        let mut options = ConnectOptions::with_auth_callback(move |nonce| {
            std::future::ready(if connected.load(Ordering::Relaxed) {
                Err(AuthError::new("a lost connection is not reused: the next batch opens a new one"))
            } else {
                credentials.sign(&nonce)
            })
        })
        .max_reconnects(self.servers.len())
        .reconnect_delay_callback(|_| Duration::ZERO)
        .ignore_discovered_servers()
        .connection_timeout(self.connect_timeout)
        .event_callback(move |event| {
            if let Event::ServerError(error) = event {
                server_errors.add(error.to_string());
            }
            std::future::ready(())
        })
        .name(format!("outbox {}", self.name));
        if self.tls.is_used() {
            options = options.require_tls(true);
        }
        // async-nats reads the files itself, with a less specific error, so they are read here
        // first.
        let Pems { ca, identity } = self.tls.read()?;
        if let Some(file) = ca.and(self.tls.ca_file.as_ref()) {
            options = options.add_root_certificates(file.as_str().into());
        }
        let files = self.tls.cert_file.as_ref().zip(self.tls.key_file.as_ref());
        if let Some((certificate, key)) = identity.and(files) {
            options = options.add_client_certificate(certificate.as_str().into(), key.as_str().into());
        }
        Ok(options)
    }

    fn unavailable(&self, error: &async_nats::ConnectError) -> Unavailable {
        let servers: Vec<String> =
            self.servers.iter().map(|server| format!("{}:{}", server.host(), server.port())).collect();
        let servers = servers.join(", ");
        match error.kind() {
            ConnectErrorKind::AuthorizationViolation => {
                let reason = "refuses these credentials (authorization violation)";
                Unavailable::new(format_args!("NATS at {servers} {reason}"))
            }
            _ => Unavailable::new(format_args!("cannot connect to NATS at {servers}: {error}")),
        }
    }
}

#[async_trait]
impl Connect for NatsConnector {
    type Connection = NatsConnection;

    async fn connect(&self) -> Result<NatsConnection, Unavailable> {
        let credentials = self.credentials.load().await.map_err(Unavailable::new)?;
        crypto::install_provider();
        let connected = Arc::new(AtomicBool::new(false));
        let server_errors = Arc::new(ServerErrors::default());
        let options = self
            .options(credentials, Arc::clone(&connected), Arc::clone(&server_errors))
            .map_err(Unavailable::new)?;
        let connecting = options.connect(self.servers.as_slice());
        // Each server has its own timeout; this limit also covers DNS lookups.
        let limit = self.connect_timeout * u32::try_from(self.servers.len()).unwrap_or(1);
        let client = match tokio::time::timeout(limit, connecting).await {
            Ok(client) => client.map_err(|error| self.unavailable(&error))?,
            Err(_) => return Err(self.unavailable(&ConnectErrorKind::TimedOut.into())),
        };
        // A reconnect before this point is harmless, since nothing was sent yet.
        connected.store(true, Ordering::Relaxed);
        let jetstream =
            jetstream::context::ContextBuilder::new().timeout(self.ack_timeout).build(client.clone());
        Ok(NatsConnection {
            client,
            jetstream,
            abandoned: AtomicBool::new(false),
            verified: AtomicBool::new(false),
            server_errors,
            ack_timeout: self.ack_timeout,
            subjects: self.subjects.clone(),
        })
    }

    fn is_usable(connection: &NatsConnection) -> bool {
        connection.is_usable()
    }
}
