//! A connection to Redis.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outbox::{Failure, Unavailable};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo as _, Pipeline, RedisError, RedisResult, TlsCertificates, Value,
};

use super::RedisSettings;
use crate::probe::ProbeError;
use crate::reconnect::Connect;
use crate::{PublisherSettingsError, Tls, crypto};

/// Result of adding one entry.
pub(super) enum XaddOutcome {
    /// The stream contains the entry.
    Added,
    Refused(Failure),
    /// The server accepts no writes at the moment.
    Outage(String),
}

impl XaddOutcome {
    /// Classifies the reply to `XADD` for this stream. `is_only_stream`: all events of the
    /// publisher go to this stream, so a stream that cannot be written to is an outage.
    pub(super) fn from_reply(stream: &str, is_only_stream: bool, reply: RedisResult<Value>) -> Self {
        let outage_or_refusal = |text: String| {
            if is_only_stream { Self::Outage(text) } else { Self::Refused(Failure::retry(text)) }
        };
        let error = match reply {
            // The reply to NOMKSTREAM if the stream does not exist.
            Ok(Value::Nil) => return outage_or_refusal(no_stream(stream)),
            Ok(_) => return Self::Added,
            Err(error) => error,
        };
        match error.code() {
            Some(
                "OOM" | "READONLY" | "LOADING" | "MISCONF" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN"
                | "NOREPLICAS" | "BUSY" | "NOAUTH",
            ) => Self::Outage(format!("Redis accepts no writes at the moment: {error}")),
            Some("NOPERM") => outage_or_refusal(no_permission(stream, &error)),
            Some("MOVED" | "ASK") => outage_or_refusal(format!(
                "the stream `{stream}` is on another node of a Redis Cluster, which is not supported"
            )),
            Some("WRONGTYPE") => outage_or_refusal(format!("`{stream}` is not a stream: {error}")),
            _ => Self::Refused(Failure::retry(format!("the stream `{stream}` refused the entry: {error}"))),
        }
    }
}

fn no_stream(stream: &str) -> String {
    format!("there is no stream `{stream}`: create it, or set `create = true`")
}

fn no_permission(stream: &str, error: &RedisError) -> String {
    format!("Redis does not permit this user to add to the stream `{stream}`: {error}")
}

/// The key that a probe checks.
pub(super) struct ProbeTarget<'a> {
    /// The stream, if it is the same for all events.
    pub(super) stream: Option<&'a str>,
    /// Whether a missing stream is created.
    pub(super) create: bool,
}

/// A connection that is used until it breaks, and never again. Nothing is sent after that: when the
/// last handle is dropped, the client discards unwritten commands.
pub(super) struct RedisConnection {
    connection: MultiplexedConnection,
    abandoned: AtomicBool,
    server: String,
}

impl RedisConnection {
    /// Marks the connection as unusable.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    /// Sends all commands at once. Returns a reply for each, or the reason why their results are
    /// unknown.
    pub(super) async fn send(&self, mut commands: Pipeline) -> Result<Vec<RedisResult<Value>>, Unavailable> {
        let replies = commands.ignore_errors().query_async(&mut self.connection.clone()).await;
        let replies: Vec<RedisResult<Value>> = replies.map_err(|error| unavailable(&self.server, &error))?;
        if replies.len() != commands.len() {
            return Err(Unavailable::new(format_args!(
                "Redis at {} sent {} replies to {} commands",
                self.server,
                replies.len(),
                commands.len()
            )));
        }
        Ok(replies)
    }

    /// Checks that the server accepts writes, to the stream if it is the same for all events.
    ///
    /// A `PING` is also answered by a replica and by a server without free memory. The id `0-0` is
    /// never valid: this write passes the checks for permission, memory and role, and is then
    /// refused.
    pub(super) async fn check_writable(&self, target: &ProbeTarget<'_>) -> Result<(), ProbeError> {
        let key = target.stream.unwrap_or("outbox:no-such-stream");
        let mut commands = Pipeline::new();
        commands.cmd("XADD").arg(key).arg("NOMKSTREAM").arg("0-0").arg("f").arg("v");
        commands.cmd("TYPE").arg(key);
        let replies = commands.ignore_errors().query_async(&mut self.connection.clone()).await;
        let replies: Vec<RedisResult<Value>> = replies.map_err(|_: RedisError| ProbeError::NoReply)?;
        let mut replies = replies.into_iter();
        let (Some(added), Some(kind)) = (replies.next(), replies.next()) else {
            return Err(ProbeError::NoReply);
        };
        match added {
            Err(error) if error.code().is_none() => return Err(ProbeError::NoReply),
            added => {
                let is_only_stream = target.stream.is_some();
                if let XaddOutcome::Outage(reason) = XaddOutcome::from_reply(key, is_only_stream, added) {
                    return Err(ProbeError::Rejected(reason));
                }
            }
        }
        // A user without permission for `TYPE` passes: publishing shows the error.
        let (Some(stream), Ok(Value::SimpleString(kind))) = (target.stream, kind) else { return Ok(()) };
        match kind.as_str() {
            "none" if !target.create => Err(ProbeError::Rejected(no_stream(stream))),
            "none" | "stream" => Ok(()),
            other => {
                let reason = format!("the key `{stream}` is not a stream: it holds a {other}");
                Err(ProbeError::Rejected(reason))
            }
        }
    }
}

/// Opens connections to one server.
pub(super) struct RedisConnector {
    info: ConnectionInfo,
    server: String,
    tls: Tls,
    connect_timeout: Duration,
    timeout: Duration,
    require_persistence: bool,
}

impl RedisConnector {
    pub(super) fn new(settings: &RedisSettings) -> Result<Self, PublisherSettingsError> {
        // The error of the parser is dropped, since it could repeat a part of the URL.
        let invalid = || PublisherSettingsError::url("not a Redis address: write redis://host:6379");
        let mut info = settings.url.expose().into_connection_info().map_err(|_| invalid())?;
        let (server, encrypted) = match info.addr() {
            ConnectionAddr::Tcp(host, port) => (format!("{host}:{port}"), false),
            ConnectionAddr::TcpTls { host, port, .. } => (format!("{host}:{port}"), true),
            ConnectionAddr::Unix(path) => (path.display().to_string(), false),
            _ => return Err(invalid()),
        };
        if settings.tls.is_used() && !encrypted {
            return Err(PublisherSettingsError::Conflict {
                setting: "tls",
                other: "url",
                reason: "needs a `url` that starts with rediss://",
            });
        }
        settings.tls.check_pair()?;
        let mut redis = info.redis_settings().clone();
        if let Some(user) = &settings.user {
            redis = redis.set_username(user.as_str());
        }
        if let Some(password) = &settings.password {
            redis = redis.set_password(password.expose());
        }
        info = info.set_redis_settings(redis);
        Ok(Self {
            info,
            server,
            tls: settings.tls.clone(),
            connect_timeout: settings.connect_timeout,
            timeout: settings.timeout,
            require_persistence: settings.require_persistence,
        })
    }

    fn client(&self) -> Result<Client, Unavailable> {
        crypto::install_provider();
        let opened = if self.tls.is_used() {
            let pems = self.tls.read().map_err(Unavailable::new)?;
            let certificates = TlsCertificates {
                client_tls: pems.identity.map(|(certificate, key)| ClientTlsConfig {
                    client_cert: certificate.into_bytes(),
                    client_key: key.into_bytes(),
                }),
                root_cert: pems.ca.map(String::into_bytes),
            };
            Client::build_with_tls(self.info.clone(), certificates)
        } else {
            Client::open(self.info.clone())
        };
        opened.map_err(|error| unavailable(&self.server, &error))
    }

    async fn check_persistence(&self, connection: &mut MultiplexedConnection) -> Result<(), Unavailable> {
        let server = &self.server;
        let mut info = redis::cmd("INFO");
        let info_text: String = info.arg("persistence").query_async(connection).await.map_err(|error| {
            Unavailable::new(format_args!(
                "cannot check whether Redis at {server} persists, which `require_persistence` needs: {error}"
            ))
        })?;
        if info_text.lines().any(|line| line.trim() == "aof_enabled:1") {
            return Ok(());
        }
        Err(Unavailable::new(format_args!(
            "Redis at {server} writes no append-only file and would lose confirmed entries: set `appendonly yes` there, or \
             `require_persistence = false` here"
        )))
    }
}

#[async_trait]
impl Connect for RedisConnector {
    type Connection = RedisConnection;

    async fn connect(&self) -> Result<RedisConnection, Unavailable> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.timeout));
        let client = self.client()?;
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connecting.await.map_err(|error| {
            let reason = unavailable(&self.server, &error);
            // A server without TLS on this port waits for the rest of the handshake.
            let is_tls = matches!(self.info.addr(), ConnectionAddr::TcpTls { .. });
            if is_tls && error.is_timeout() {
                Unavailable::new(format_args!("{reason}: is TLS enabled on this port?"))
            } else {
                reason
            }
        })?;
        if self.require_persistence {
            self.check_persistence(&mut connection).await?;
        }
        Ok(RedisConnection { connection, abandoned: AtomicBool::new(false), server: self.server.clone() })
    }

    fn is_usable(connection: &RedisConnection) -> bool {
        !connection.abandoned.load(Ordering::Relaxed)
    }
}

fn unavailable(server: &str, error: &RedisError) -> Unavailable {
    Unavailable::new(match error.kind() {
        ErrorKind::AuthenticationFailed => format!("Redis at {server} refuses user and password: {error}"),
        _ if error.is_timeout() => format!("Redis at {server} did not answer in time"),
        _ if error.is_connection_refusal() => format!("cannot connect to Redis at {server}: {error}"),
        _ => format!("the connection to Redis at {server} failed: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proptests::{SECRET, all_texts, broken_url, percent_encode};

    fn settings(url: &str) -> RedisSettings {
        RedisSettings::new(url, "s".parse().unwrap())
    }

    #[test]
    fn errors_contain_no_secrets() {
        for url in
            ["", "hunter2", "http://ada:hunter2@one", "redis://ada:hunter2@one:port", "redis://:hunter2@"]
        {
            let error =
                RedisConnector::new(&settings(url)).err().unwrap_or_else(|| panic!("{url} was accepted"));
            assert_eq!(error.to_string(), "url: not a Redis address: write redis://host:6379");
            assert!(!all_texts(&error).contains("hunter2"), "{error:?}");
        }
        let mut plain = settings("redis://one");
        plain.tls.ca_file = Some("ca.pem".into());
        let error = RedisConnector::new(&plain).err().unwrap();
        assert_eq!(error.to_string(), "tls: needs a `url` that starts with rediss://");
        assert!(matches!(error, PublisherSettingsError::Conflict { other: "url", .. }), "{error:?}");
    }

    #[test]
    fn a_user_of_the_settings_overrides_the_url() {
        let mut settings = settings("redis://ada:one@host/3");
        settings.password = Some("two".into());
        let connector = RedisConnector::new(&settings).unwrap();
        let redis = connector.info.redis_settings();
        assert_eq!((redis.username(), redis.password(), redis.db()), (Some("ada"), Some("two"), 3));
        assert_eq!(connector.server, "host:6379");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn user_and_password_are_decoded(user in "\\PC{1,8}", password in "\\PC{1,8}") {
            let connector = RedisConnector::new(&settings(&format!("redis://{}:{}@host", percent_encode(&user), percent_encode(&password)))).unwrap();
            let redis = connector.info.redis_settings();
            prop_assert_eq!((redis.username(), redis.password()), (Some(user.as_str()), Some(password.as_str())));
            prop_assert_eq!(connector.server, "host:6379");
        }

        #[test]
        fn neither_a_server_address_nor_an_error_shows_a_password(
            url in prop_oneof![broken_url("redis"), broken_url("rediss"), Just(format!("redis+unix:///run/redis.sock?user=ada&pass={SECRET}")), any::<String>()],
        ) {
            let text = RedisConnector::new(&settings(&url)).map_or_else(|error| all_texts(&error), |connector| connector.server);
            prop_assert!(!text.contains(SECRET), "{}: {}", url, text);
        }
    }

    #[test]
    fn replies_are_classified() {
        let outcome = |code: &str, is_only_stream| {
            let error = redis::make_extension_error(code.to_owned(), Some("details".to_owned()));
            XaddOutcome::from_reply("orders", is_only_stream, Err(error))
        };
        for code in ["OOM", "READONLY", "LOADING", "MISCONF"] {
            assert!(matches!(outcome(code, false), XaddOutcome::Outage(_)), "{code}");
        }
        for code in ["WRONGTYPE", "MOVED", "NOPERM"] {
            let XaddOutcome::Refused(failure) = outcome(code, false) else { panic!("{code}") };
            assert!(failure.to_string().contains("`orders`"), "{failure}");
            let XaddOutcome::Outage(reason) = outcome(code, true) else { panic!("{code}") };
            assert!(reason.contains("`orders`"), "{reason}");
        }
        assert!(matches!(outcome("ERR", true), XaddOutcome::Refused(_)));
        assert!(matches!(XaddOutcome::from_reply("orders", false, Ok(Value::Nil)), XaddOutcome::Refused(_)));
        assert!(matches!(XaddOutcome::from_reply("orders", true, Ok(Value::Nil)), XaddOutcome::Outage(_)));
        assert!(matches!(XaddOutcome::from_reply("orders", true, Ok(Value::Int(1))), XaddOutcome::Added));
    }
}
