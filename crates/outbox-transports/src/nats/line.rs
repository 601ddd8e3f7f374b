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
use outbox::Failure;
use tokio::sync::Notify;

use super::NatsSettings;
use super::credentials::{Credentials, Known, servers};
use super::wire::{self, Prepared};
use crate::link::Dial;
use crate::tls::Pems;
use crate::{Tls, crypto};

/// What became of a message.
pub(super) enum Sent {
    /// A stream has it, perhaps since an earlier attempt.
    Stored,
    Refused(Failure),
    /// No event can be published for this reason: there is no stream, or no permission. The connection
    /// is good.
    Unavailable(String),
    /// Nobody knows, since the connection is no good any more.
    Lost(String),
}

/// A connection, which is used until it breaks and then never again.
///
/// async-nats would reconnect by itself, and then send what was still waiting to be sent: messages that this publisher has given up
/// and that have since been sent again, in their order, over another connection. So it is kept from reconnecting (see [`Dialer`]), and
/// everything that waits fails when the connection breaks. What the system's own buffers hold may arrive late even so. That is at
/// most one message of each key, since the next one is not sent before the first is confirmed, and the stream drops it as a repeat.
pub(super) struct Line {
    client: Client,
    jetstream: jetstream::Context,
    given_up: AtomicBool,
    /// Whether a stream is known to take the subjects of this publisher.
    verified: AtomicBool,
    complaints: Arc<Complaints>,
    ack_timeout: Duration,
    subjects: Subjects,
}

/// The subjects that a publisher sends to.
#[derive(Clone)]
pub(super) struct Subjects {
    /// A subject, or a wildcard for all that events can render.
    pub(super) pattern: String,
    /// Whether it is the same subject for every event.
    pub(super) is_fixed: bool,
}

/// Errors that the server reports outside of any answer, such as a permissions violation for a subject.
#[derive(Default)]
struct Complaints {
    last: Mutex<VecDeque<String>>,
    changed: Notify,
}

/// How many complaints are kept: of one batch, at most.
const COMPLAINTS: usize = 1_000;

impl Complaints {
    fn add(&self, complaint: String) {
        let mut last = self.last.lock().expect("nothing panics while it is held");
        if last.len() == COMPLAINTS {
            last.pop_front();
        }
        last.push_back(complaint);
        drop(last);
        self.changed.notify_waiters();
    }

    /// Waits for a complaint about this subject. The server sends one for each message.
    async fn about(&self, subject: &str) -> String {
        let quoted = format!("\"{subject}\"");
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut last = self.last.lock().expect("nothing panics while it is held");
                let index = last.iter().position(|complaint| complaint.contains(&quoted));
                if let Some(complaint) = index.and_then(|index| last.remove(index)) {
                    return complaint;
                }
            }
            changed.await;
        }
    }
}

impl Line {
    /// It is not used again.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    fn is_up(&self) -> bool {
        !self.given_up.load(Ordering::Relaxed) && self.client.connection_state() == State::Connected
    }

    /// Sends it and waits until a stream has confirmed it.
    pub(super) async fn send(&self, prepared: Prepared) -> Sent {
        if !self.is_up() {
            return Sent::Lost("the connection to NATS was lost".to_owned());
        }
        if let Err(failure) = prepared.fits(self.client.max_payload(), "the server (its max_payload)") {
            return Sent::Refused(failure);
        }
        let Prepared { subject, message, .. } = prepared;
        let confirmed = async { self.jetstream.send_publish(subject.clone(), message).await?.await };
        let confirmed = tokio::select! {
            biased;
            confirmed = confirmed => confirmed,
            // The server does not answer a message that it refuses to route.
            complaint = self.complaints.about(&subject) => {
                return self.deny(format!("NATS refuses to publish to `{subject}`: {complaint}"));
            }
        };
        match confirmed {
            Ok(_) => {
                self.verified.store(true, Ordering::Relaxed);
                Sent::Stored
            }
            Err(error) if error.kind() == PublishErrorKind::StreamNotFound => {
                self.without_stream(&subject).await
            }
            Err(error) => self.judge(&subject, &error),
        }
    }

    /// A subject that cannot be published to: the destination's outage if it is the only subject, else a
    /// failure of the event, since other events go elsewhere.
    fn deny(&self, reason: String) -> Sent {
        if self.subjects.is_fixed {
            self.verified.store(false, Ordering::Relaxed);
            return Sent::Unavailable(reason);
        }
        Sent::Refused(Failure::retry(reason))
    }

    /// The subject has no subscriber: no stream takes it, or the server is about to stop, since its
    /// streams go before its connections.
    async fn without_stream(&self, subject: &str) -> Sent {
        match self.stream_of(subject).await {
            Lookup::Found => return Sent::Lost("NATS is there, and JetStream is not".to_owned()),
            Lookup::Failed(reason) => return Sent::Lost(reason),
            Lookup::Missing | Lookup::Denied => {}
        }
        // One event's subject may be wrong; that no subject of this publisher has a stream is an outage.
        if !self.subjects.is_fixed && matches!(self.stream_of(&self.subjects.pattern).await, Lookup::Missing)
        {
            self.verified.store(false, Ordering::Relaxed);
            return Sent::Unavailable(no_stream(&self.subjects.pattern));
        }
        self.deny(no_stream(subject))
    }

    /// Checks that a stream takes the subjects of this publisher, unless that is known. A user who may not
    /// ask is let through: publishing will tell.
    pub(super) async fn verify(&self) -> Result<(), String> {
        if self.verified.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.stream_of(&self.subjects.pattern).await {
            Lookup::Found | Lookup::Denied => {
                self.verified.store(true, Ordering::Relaxed);
                Ok(())
            }
            Lookup::Missing => Err(no_stream(&self.subjects.pattern)),
            Lookup::Failed(reason) => Err(reason),
        }
    }

    async fn stream_of(&self, subject: &str) -> Lookup {
        let found = tokio::select! {
            biased;
            found = self.jetstream.stream_by_subject(subject) => found,
            _ = self.complaints.about("$JS.API.STREAM.NAMES") => return Lookup::Denied,
        };
        match found {
            Ok(_) => Lookup::Found,
            Err(error) if error.kind() == GetStreamByNameErrorKind::NotFound => Lookup::Missing,
            Err(error) if is_unanswered(&error) => Lookup::Denied,
            Err(error) => Lookup::Failed(format!("NATS is there, and JetStream is not ({error})")),
        }
    }

    fn judge(&self, subject: &str, error: &PublishError) -> Sent {
        if error.kind() == PublishErrorKind::TimedOut {
            return Sent::Lost(format!("NATS confirmed nothing within {:?}", self.ack_timeout));
        }
        let source = std::error::Error::source(error);
        match source.and_then(|source| source.downcast_ref::<jetstream::Error>()) {
            Some(answer) => of_stream(subject, answer),
            None => Sent::Lost(format!("the connection to NATS was lost ({error})")),
        }
    }
}

/// What the server answers when it is asked for the stream of a subject.
enum Lookup {
    Found,
    Missing,
    /// The user may not ask.
    Denied,
    Failed(String),
}

fn no_stream(subject: &str) -> String {
    format!("no stream takes the subject `{subject}`: create one, or let an existing one take it")
}

/// Whether a question got no answer in time, as those of users who may not ask.
fn is_unanswered(error: &GetStreamByNameError) -> bool {
    let first: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(first), |error| error.source())
        .filter_map(|error| error.downcast_ref::<StreamsError>())
        .any(|error| error.kind() == StreamsErrorKind::TimedOut)
}

/// What a stream said instead of confirming.
fn of_stream(subject: &str, answer: &jetstream::Error) -> Sent {
    let text = format!("the stream of `{subject}` says: {answer}");
    match answer.error_code() {
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => {
            Sent::Refused(Failure::dead(format!("the message has too many bytes: {text}")))
        }
        ErrorCode::CLUSTER_NOT_AVAILABLE
        | ErrorCode::CLUSTER_NOT_LEADER
        | ErrorCode::INSUFFICIENT_RESOURCES
        | ErrorCode::STORAGE_RESOURCES_EXCEEDED
        | ErrorCode::MEMORY_RESOURCES_EXCEEDED => Sent::Lost(text),
        _ => Sent::Refused(Failure::retry(text)),
    }
}

/// How to connect.
pub(super) struct Dialer {
    name: String,
    /// Without users and passwords: async-nats logs them.
    servers: Vec<ServerAddr>,
    credentials: Credentials,
    tls: Tls,
    connect_timeout: Duration,
    ack_timeout: Duration,
    subjects: Subjects,
}

impl Dialer {
    pub(super) fn new(name: &str, settings: &NatsSettings) -> Result<Self, String> {
        let (servers, in_url) = servers(&settings.url)?;
        let credentials = Credentials::of(settings)?.unwrap_or(in_url);
        if settings.tls.cert_file.is_some() != settings.tls.key_file.is_some() {
            return Err("`cert_file` and `key_file` go together".to_owned());
        }
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
        credentials: Known,
        connected: Arc<AtomicBool>,
        complaints: Arc<Complaints>,
    ) -> Result<ConnectOptions, String> {
        // Asked at every attempt to connect. There is no switch against reconnecting; but when this fails, and attempts are
        // used up, async-nats ends, and with it all that waits.
        let mut options = ConnectOptions::with_auth_callback(move |nonce| {
            std::future::ready(if connected.load(Ordering::Relaxed) {
                Err(AuthError::new("a lost connection is not used again: the next batch opens another"))
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
                complaints.add(error.to_string());
            }
            std::future::ready(())
        })
        .name(format!("outbox {}", self.name));
        if self.tls.is_used() {
            options = options.require_tls(true);
        }
        // async-nats reads the files by itself, and says less if it cannot: so they are read here first.
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

    fn explain(&self, error: &async_nats::ConnectError) -> String {
        let servers: Vec<String> =
            self.servers.iter().map(|server| format!("{}:{}", server.host(), server.port())).collect();
        let servers = servers.join(", ");
        match error.kind() {
            ConnectErrorKind::AuthorizationViolation => {
                format!("NATS at {servers} refuses these credentials (authorization violation)")
            }
            _ => format!("cannot connect to NATS at {servers}: {error}"),
        }
    }
}

#[async_trait]
impl Dial for Dialer {
    type Line = Line;

    async fn dial(&self) -> Result<Line, String> {
        let credentials = self.credentials.read().await?;
        crypto::choose_provider();
        let connected = Arc::new(AtomicBool::new(false));
        let complaints = Arc::new(Complaints::default());
        let options = self.options(credentials, Arc::clone(&connected), Arc::clone(&complaints))?;
        let connecting = options.connect(self.servers.as_slice());
        // Each server has its time; this bounds looking for their addresses too.
        let limit = self.connect_timeout * u32::try_from(self.servers.len()).unwrap_or(1);
        let client = match tokio::time::timeout(limit, connecting).await {
            Ok(client) => client.map_err(|error| self.explain(&error))?,
            Err(_) => return Err(self.explain(&ConnectErrorKind::TimedOut.into())),
        };
        // Nothing was sent yet: had it reconnected by now, no harm is done.
        connected.store(true, Ordering::Relaxed);
        let jetstream =
            jetstream::context::ContextBuilder::new().timeout(self.ack_timeout).build(client.clone());
        Ok(Line {
            client,
            jetstream,
            given_up: AtomicBool::new(false),
            verified: AtomicBool::new(false),
            complaints,
            ack_timeout: self.ack_timeout,
            subjects: self.subjects.clone(),
        })
    }

    fn is_up(line: &Line) -> bool {
        line.is_up()
    }
}
