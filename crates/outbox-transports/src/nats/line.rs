//! A connection to NATS.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{Auth, AuthError, Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr};
use async_trait::async_trait;
use outbox::Failure;
use percent_encoding::percent_decode_str;

use super::NatsSettings;
use super::wire::Prepared;
use crate::link::Dial;
use crate::tls::Pems;
use crate::{Secret, Tls, crypto};

/// What became of a message.
pub(super) enum Sent {
    /// A stream has it, perhaps since an earlier attempt.
    Stored,
    Refused(Failure),
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
    complaints: Complaints,
    ack_timeout: Duration,
}

/// What the server said without being asked: that it may not be published to a subject, for instance.
type Complaints = Arc<Mutex<Vec<String>>>;

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
        match confirmed.await {
            Ok(_) => Sent::Stored,
            Err(error) => self.judge(&subject, &error),
        }
    }

    fn judge(&self, subject: &str, error: &PublishError) -> Sent {
        let refused = |text: String| Sent::Refused(Failure::retry(text));
        match error.kind() {
            PublishErrorKind::StreamNotFound => refused(format!(
                "no stream takes the subject `{subject}`: create one, or let an existing one take it"
            )),
            PublishErrorKind::TimedOut => match self.complaint_about(subject) {
                Some(complaint) => refused(complaint),
                None => Sent::Lost(format!("NATS confirmed nothing within {:?}", self.ack_timeout)),
            },
            _ => match std::error::Error::source(error)
                .and_then(|source| source.downcast_ref::<jetstream::Error>())
            {
                Some(answer) => of_stream(subject, answer),
                None => Sent::Lost(format!("the connection to NATS was lost ({error})")),
            },
        }
    }

    fn complaint_about(&self, subject: &str) -> Option<String> {
        let complaints = self.complaints.lock().expect("nothing panics while it is held");
        let quoted = format!("\"{subject}\"");
        complaints.iter().find(|complaint| complaint.contains(&quoted)).cloned()
    }
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
}

#[derive(Clone)]
enum Credentials {
    None,
    User { name: String, password: Secret },
    Token(Secret),
    File(String),
}

impl Dialer {
    pub(super) fn new(name: &str, settings: &NatsSettings) -> Result<Self, String> {
        let (servers, in_url) = servers(&settings.url)?;
        let given = [
            settings.user.as_ref().map(|user| Credentials::User {
                name: user.as_str().to_owned(),
                password: settings.password.clone().unwrap_or_default(),
            }),
            settings.token.clone().map(Credentials::Token),
            settings.credentials_file.as_ref().map(|file| Credentials::File(file.as_str().to_owned())),
        ];
        if settings.password.is_some() && settings.user.is_none() {
            return Err("`password` needs `user` as well".to_owned());
        }
        let mut given = given.into_iter().flatten();
        let credentials = given.next().unwrap_or(in_url);
        if given.next().is_some() {
            return Err("use one of `user`, `token` and `credentials_file`".to_owned());
        }
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
        })
    }

    fn options(
        &self,
        credentials: Known,
        connected: Arc<AtomicBool>,
        complaints: Complaints,
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
                let mut complaints = complaints.lock().expect("nothing panics while it is held");
                if complaints.len() < 100 {
                    complaints.push(error.to_string());
                }
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
        let complaints = Complaints::default();
        let options = self.options(credentials, Arc::clone(&connected), Arc::clone(&complaints))?;
        let connecting = options.connect(self.servers.as_slice());
        let client = match tokio::time::timeout(self.connect_timeout, connecting).await {
            Ok(client) => client.map_err(|error| self.explain(&error))?,
            Err(_) => return Err(self.explain(&ConnectErrorKind::TimedOut.into())),
        };
        // Nothing was sent yet: had it reconnected by now, no harm is done.
        connected.store(true, Ordering::Relaxed);
        let jetstream =
            jetstream::context::ContextBuilder::new().timeout(self.ack_timeout).build(client.clone());
        let given_up = AtomicBool::new(false);
        Ok(Line { client, jetstream, given_up, complaints, ack_timeout: self.ack_timeout })
    }

    fn is_up(line: &Line) -> bool {
        line.is_up()
    }
}

/// The servers, and who to come in as.
fn servers(url: &Secret) -> Result<(Vec<ServerAddr>, Credentials), String> {
    let mut credentials = Credentials::None;
    let mut servers = Vec::new();
    for one in url.expose().split(',').map(str::trim) {
        // What is wrong with it is not said with it: there may be a password in it.
        let wrong = || "`url` is no address of a NATS server: write nats://host:4222".to_owned();
        let address: ServerAddr = one.parse().map_err(|_| wrong())?;
        if !matches!(address.scheme(), "nats" | "tls") || address.host().is_empty() {
            return Err(wrong());
        }
        let decoded =
            |text: &str| percent_decode_str(text).decode_utf8().map(String::from).map_err(|_| wrong());
        match (address.username(), address.password()) {
            (Some(name), Some(password)) => {
                let password = decoded(password)?.as_str().into();
                credentials = Credentials::User { name: decoded(name)?, password };
            }
            (Some(token), None) => credentials = Credentials::Token(decoded(token)?.as_str().into()),
            (None, _) => {}
        }
        let mut bare = address.into_inner();
        bare.set_username("").and_then(|()| bare.set_password(None)).map_err(|()| wrong())?;
        servers.push(ServerAddr::from_url(bare).map_err(|_| wrong())?);
    }
    Ok((servers, credentials))
}

/// Credentials with what the file holds.
enum Known {
    Plain(Auth),
    Signed { jwt: String, key: Box<nkeys::KeyPair> },
}

impl Credentials {
    async fn read(&self) -> Result<Known, String> {
        let mut auth = Auth::new();
        match self {
            Self::None => {}
            Self::User { name, password } => {
                auth.username = Some(name.clone());
                auth.password = Some(password.expose().to_owned());
            }
            Self::Token(token) => auth.token = Some(token.expose().to_owned()),
            Self::File(path) => {
                let text = tokio::fs::read_to_string(path).await;
                let text = text.map_err(|error| format!("credentials_file `{path}`: {error}"))?;
                let wrong = || format!("credentials_file `{path}` is no .creds file with a JWT and a seed");
                let jwt = section(&text, "NATS USER JWT").ok_or_else(wrong)?.to_owned();
                let seed = section(&text, "USER NKEY SEED").ok_or_else(wrong)?;
                let key = nkeys::KeyPair::from_seed(seed).map_err(|_| wrong())?;
                return Ok(Known::Signed { jwt, key: Box::new(key) });
            }
        }
        Ok(Known::Plain(auth))
    }
}

impl Known {
    fn sign(&self, nonce: &[u8]) -> Result<Auth, AuthError> {
        match self {
            Self::Plain(auth) => Ok(auth.clone()),
            Self::Signed { jwt, key } => {
                let signature = key.sign(nonce).map_err(|_| AuthError::new("cannot sign"))?;
                let mut auth = Auth::new();
                auth.jwt = Some(jwt.clone());
                auth.signature = Some(signature);
                Ok(auth)
            }
        }
    }
}

/// The line below `-----BEGIN NAME-----`.
fn section<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let begin = format!("BEGIN {name}");
    let mut lines = text.lines().skip_while(|line| !line.contains(&begin)).skip(1);
    lines.next().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialer(url: &str) -> Result<Dialer, String> {
        Dialer::new("n", &NatsSettings::new(url, "s".parse().unwrap()))
    }

    #[test]
    fn users_are_taken_out_of_the_address() {
        let dialer = dialer("nats://ada:p%40ss@one:4222, tls://two").unwrap();
        let shown: Vec<&str> = dialer.servers.iter().map(ServerAddr::as_url_str).collect();
        assert_eq!(shown, ["nats://one:4222", "tls://two"]);
        let Credentials::User { name, password } = dialer.credentials else { panic!("a user") };
        assert_eq!((name.as_str(), password.expose()), ("ada", "p@ss"));
    }

    #[test]
    fn a_user_alone_is_a_token() {
        let Credentials::Token(token) = dialer("nats://t0ken@one").unwrap().credentials else {
            panic!("a token")
        };
        assert_eq!(token.expose(), "t0ken");
    }

    #[test]
    fn what_is_wrong_is_said_without_secrets() {
        for url in
            ["nats://ada:hunter2@", "http://ada:hunter2@one", "nats://ada:hunter2@one:port", "nats://a, "]
        {
            let said = dialer(url).err().unwrap_or_else(|| panic!("{url} was taken"));
            assert!(!said.contains("hunter2") && said.contains("nats://host:4222"), "{said}");
        }
        let mut settings = NatsSettings::new("nats://one", "s".parse().unwrap());
        settings.password = Some("hunter2".into());
        assert_eq!(Dialer::new("n", &settings).err().unwrap(), "`password` needs `user` as well");
        settings.user = Some("ada".into());
        settings.token = Some("t".into());
        assert_eq!(
            Dialer::new("n", &settings).err().unwrap(),
            "use one of `user`, `token` and `credentials_file`"
        );
    }

    #[test]
    fn the_sections_of_a_credentials_file_are_found() {
        let text = "-----BEGIN NATS USER JWT-----\neyJ0\n------END NATS USER JWT------\n\n\
                    -----BEGIN USER NKEY SEED-----\nSUAX\n------END USER NKEY SEED------\n";
        assert_eq!(section(text, "NATS USER JWT"), Some("eyJ0"));
        assert_eq!(section(text, "USER NKEY SEED"), Some("SUAX"));
        assert_eq!(section("", "USER NKEY SEED"), None);
    }
}
