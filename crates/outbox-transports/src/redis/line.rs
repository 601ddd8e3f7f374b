//! A connection to Redis.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outbox::Failure;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo as _, Pipeline, RedisError, RedisResult, TlsCertificates, Value,
};

use super::RedisSettings;
use crate::link::Dial;
use crate::{Tls, crypto};

/// What became of an entry.
pub(super) enum Answer {
    /// The stream has it.
    Added,
    Refused(Failure),
    /// The server takes nothing at the moment.
    Outage(String),
}

impl Answer {
    /// Reads the answer to an entry for this stream. `is_only`: all events of the publisher go to this
    /// stream, so that a stream that nothing can be added to is an outage.
    pub(super) fn of(stream: &str, is_only: bool, answer: RedisResult<Value>) -> Self {
        let for_all = |text: String| {
            if is_only { Self::Outage(text) } else { Self::Refused(Failure::retry(text)) }
        };
        let error = match answer {
            // With NOMKSTREAM.
            Ok(Value::Nil) => return for_all(no_stream(stream)),
            Ok(_) => return Self::Added,
            Err(error) => error,
        };
        match error.code() {
            Some(
                "OOM" | "READONLY" | "LOADING" | "MISCONF" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN"
                | "NOREPLICAS" | "BUSY" | "NOAUTH",
            ) => Self::Outage(format!("Redis takes nothing at the moment: {error}")),
            Some("NOPERM") => for_all(no_permission(stream, &error)),
            Some("MOVED" | "ASK") => for_all(format!(
                "the stream `{stream}` is on another node of a Redis Cluster, which is not supported"
            )),
            Some("WRONGTYPE") => for_all(format!("`{stream}` is no stream: {error}")),
            _ => Self::Refused(Failure::retry(format!("the stream `{stream}` refuses it: {error}"))),
        }
    }
}

fn no_stream(stream: &str) -> String {
    format!("there is no stream `{stream}`: create it, or set `create = true`")
}

fn no_permission(stream: &str, error: &RedisError) -> String {
    format!("Redis does not permit this user to add to the stream `{stream}`: {error}")
}

/// Which key a probe looks at.
pub(super) struct Probed<'a> {
    /// The stream of all events, if it is the same for each.
    pub(super) stream: Option<&'a str>,
    /// Whether a missing stream is created.
    pub(super) create: bool,
}

/// A connection, which is used until it breaks and then never again. Nothing is sent behind our back: when the last use of it ends, the
/// client drops what it has not written yet.
pub(super) struct Line {
    connection: MultiplexedConnection,
    given_up: AtomicBool,
    place: String,
}

impl Line {
    /// It is not used again.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Sends all commands at once. An answer for each, or why nobody knows what became of them.
    pub(super) async fn send(&self, mut commands: Pipeline) -> Result<Vec<RedisResult<Value>>, String> {
        let answers = commands.ignore_errors().query_async(&mut self.connection.clone()).await;
        let answers: Vec<RedisResult<Value>> = answers.map_err(|error| explain(&self.place, &error))?;
        if answers.len() != commands.len() {
            return Err(format!(
                "Redis at {} gave {} answers to {}",
                self.place,
                answers.len(),
                commands.len()
            ));
        }
        Ok(answers)
    }

    /// Checks that the server takes writes: to the stream, if it is the same for all events. `Err(None)`:
    /// the server does not answer.
    ///
    /// `PING` is answered by a replica too, and by a server without memory. The id `0-0` is never valid:
    /// this write passes the checks for permission, memory and role, and is then refused.
    pub(super) async fn takes_writes(&self, probed: &Probed<'_>) -> Result<(), Option<String>> {
        let key = probed.stream.unwrap_or("outbox:no-such-stream");
        let mut commands = Pipeline::new();
        commands.cmd("XADD").arg(key).arg("NOMKSTREAM").arg("0-0").arg("f").arg("v");
        commands.cmd("TYPE").arg(key);
        let answers = commands.ignore_errors().query_async(&mut self.connection.clone()).await;
        let answers: Vec<RedisResult<Value>> = answers.map_err(|_: RedisError| None)?;
        let mut answers = answers.into_iter();
        let (Some(added), Some(kind)) = (answers.next(), answers.next()) else { return Err(None) };
        match added {
            Err(error) if error.code().is_none() => return Err(None),
            added => {
                let is_only = probed.stream.is_some();
                if let Answer::Outage(reason) = Answer::of(key, is_only, added) {
                    return Err(Some(reason));
                }
            }
        }
        // A user who may not ask for the type is let through: publishing will tell.
        let (Some(stream), Ok(Value::SimpleString(kind))) = (probed.stream, kind) else { return Ok(()) };
        match kind.as_str() {
            "none" if !probed.create => Err(Some(no_stream(stream))),
            "none" | "stream" => Ok(()),
            other => Err(Some(format!("the key `{stream}` is no stream: it holds a {other}"))),
        }
    }
}

/// How to connect.
pub(super) struct Dialer {
    info: ConnectionInfo,
    place: String,
    tls: Tls,
    connect_timeout: Duration,
    timeout: Duration,
    require_persistence: bool,
}

impl Dialer {
    pub(super) fn new(settings: &RedisSettings) -> Result<Self, String> {
        // What is wrong with it is not said with it: there may be a password in it.
        let wrong = || "`url` is no address of a Redis server: write redis://host:6379".to_owned();
        let mut info = settings.url.expose().into_connection_info().map_err(|_| wrong())?;
        let (place, encrypted) = match info.addr() {
            ConnectionAddr::Tcp(host, port) => (format!("{host}:{port}"), false),
            ConnectionAddr::TcpTls { host, port, .. } => (format!("{host}:{port}"), true),
            ConnectionAddr::Unix(path) => (path.display().to_string(), false),
            _ => return Err(wrong()),
        };
        if settings.tls.is_used() && !encrypted {
            return Err("`tls` needs a `url` that starts with rediss://".to_owned());
        }
        if settings.tls.cert_file.is_some() != settings.tls.key_file.is_some() {
            return Err("`cert_file` and `key_file` go together".to_owned());
        }
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
            place,
            tls: settings.tls.clone(),
            connect_timeout: settings.connect_timeout,
            timeout: settings.timeout,
            require_persistence: settings.require_persistence,
        })
    }

    fn client(&self) -> Result<Client, String> {
        crypto::choose_provider();
        let opened = if self.tls.is_used() {
            let pems = self.tls.read()?;
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
        opened.map_err(|error| explain(&self.place, &error))
    }

    async fn check_persistence(&self, connection: &mut MultiplexedConnection) -> Result<(), String> {
        let place = &self.place;
        let mut info = redis::cmd("INFO");
        let said: String = info.arg("persistence").query_async(connection).await.map_err(|error| {
            format!("Redis at {place} does not say whether it persists, which `require_persistence` asks for: {error}")
        })?;
        if said.lines().any(|line| line.trim() == "aof_enabled:1") {
            return Ok(());
        }
        Err(format!(
            "Redis at {place} writes no append-only file and would lose what it confirms: set `appendonly yes` there, or \
             `require_persistence = false` here"
        ))
    }
}

#[async_trait]
impl Dial for Dialer {
    type Line = Line;

    async fn dial(&self) -> Result<Line, String> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.timeout));
        let client = self.client()?;
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connecting.await.map_err(|error| {
            let reason = explain(&self.place, &error);
            // A server without TLS on this port waits for more of the handshake.
            let is_tls = matches!(self.info.addr(), ConnectionAddr::TcpTls { .. });
            if is_tls && error.is_timeout() { format!("{reason}: is TLS on at this port?") } else { reason }
        })?;
        if self.require_persistence {
            self.check_persistence(&mut connection).await?;
        }
        Ok(Line { connection, given_up: AtomicBool::new(false), place: self.place.clone() })
    }

    fn is_up(line: &Line) -> bool {
        !line.given_up.load(Ordering::Relaxed)
    }
}

fn explain(place: &str, error: &RedisError) -> String {
    match error.kind() {
        ErrorKind::AuthenticationFailed => format!("Redis at {place} refuses user and password: {error}"),
        _ if error.is_timeout() => format!("Redis at {place} did not answer in time"),
        _ if error.is_connection_refusal() => format!("cannot connect to Redis at {place}: {error}"),
        _ => format!("the connection to Redis at {place} failed: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::any_text::{SECRET, broken, encoded};

    fn settings(url: &str) -> RedisSettings {
        RedisSettings::new(url, "s".parse().unwrap())
    }

    #[test]
    fn what_is_wrong_is_said_without_secrets() {
        for url in
            ["", "hunter2", "http://ada:hunter2@one", "redis://ada:hunter2@one:port", "redis://:hunter2@"]
        {
            let said = Dialer::new(&settings(url)).err().unwrap_or_else(|| panic!("{url} was taken"));
            assert!(!said.contains("hunter2") && said.contains("redis://host:6379"), "{said}");
        }
        let mut plain = settings("redis://one");
        plain.tls.ca_file = Some("ca.pem".into());
        assert_eq!(Dialer::new(&plain).err().unwrap(), "`tls` needs a `url` that starts with rediss://");
    }

    #[test]
    fn a_user_of_the_settings_goes_before_that_of_the_address() {
        let mut settings = settings("redis://ada:one@host/3");
        settings.password = Some("two".into());
        let dialer = Dialer::new(&settings).unwrap();
        let redis = dialer.info.redis_settings();
        assert_eq!((redis.username(), redis.password(), redis.db()), (Some("ada"), Some("two"), 3));
        assert_eq!(dialer.place, "host:6379");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn user_and_password_are_read_as_they_are(user in "\\PC{1,8}", password in "\\PC{1,8}") {
            let dialer = Dialer::new(&settings(&format!("redis://{}:{}@host", encoded(&user), encoded(&password)))).unwrap();
            let redis = dialer.info.redis_settings();
            prop_assert_eq!((redis.username(), redis.password()), (Some(user.as_str()), Some(password.as_str())));
            prop_assert_eq!(dialer.place, "host:6379");
        }

        #[test]
        fn neither_a_place_nor_what_is_wrong_with_it_shows_a_password(
            url in prop_oneof![broken("redis"), broken("rediss"), Just(format!("redis+unix:///run/redis.sock?user=ada&pass={SECRET}")), any::<String>()],
        ) {
            let said = Dialer::new(&settings(&url)).map_or_else(|said| said, |dialer| dialer.place);
            prop_assert!(!said.contains(SECRET), "{}: {}", url, said);
        }
    }

    #[test]
    fn what_a_server_says_is_judged() {
        let judge = |code: &str, is_only| {
            let error = redis::make_extension_error(code.to_owned(), Some("said so".to_owned()));
            Answer::of("orders", is_only, Err(error))
        };
        for code in ["OOM", "READONLY", "LOADING", "MISCONF"] {
            assert!(matches!(judge(code, false), Answer::Outage(_)), "{code}");
        }
        for code in ["WRONGTYPE", "MOVED", "NOPERM"] {
            let Answer::Refused(failure) = judge(code, false) else { panic!("{code}") };
            assert!(failure.to_string().contains("`orders`"), "{failure}");
            let Answer::Outage(reason) = judge(code, true) else { panic!("{code}") };
            assert!(reason.contains("`orders`"), "{reason}");
        }
        assert!(matches!(judge("ERR", true), Answer::Refused(_)));
        assert!(matches!(Answer::of("orders", false, Ok(Value::Nil)), Answer::Refused(_)));
        assert!(matches!(Answer::of("orders", true, Ok(Value::Nil)), Answer::Outage(_)));
        assert!(matches!(Answer::of("orders", true, Ok(Value::Int(1))), Answer::Added));
    }
}
