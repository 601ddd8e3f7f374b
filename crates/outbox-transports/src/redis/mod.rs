//! Redis Streams.

mod line;
mod wire;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use outbox::{Failure, Outgoing, PublishError, Publisher, Unavailable};
use serde::Deserialize;

use self::line::{Answer, Dialer, Line, Probed};
use self::wire::Entry;
use crate::link::Link;
use crate::{Encoder, Format, Order, Promises, Repeats, Secret, Template, Text, Tls, Waves, message, time};

/// Publishes to Redis Streams: an entry for each event, by `XADD`.
///
/// ```
/// use outbox_transports::{Redis, RedisSettings};
///
/// let settings = RedisSettings::new("redis://localhost:6379", "orders".parse()?);
/// let publisher = Redis::new("orders", settings)?;
/// # Ok::<(), String>(())
/// ```
///
/// The fields of an entry are the message's headers, `outbox-id` among them, then `content-type`, and `payload` with the body. It
/// connects when it is first used, and anew after the connection was lost. It speaks to one server (a primary, or a proxy), not to
/// the nodes of a Redis Cluster.
pub struct Redis {
    name: String,
    settings: RedisSettings,
    encoder: Encoder,
    link: Link<Dialer>,
}

/// How to publish to Redis.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RedisSettings {
    /// `redis://host:6379/0`, or `rediss://` for TLS. User and password may be in it.
    pub url: Secret,
    /// The key of the stream.
    pub stream: Template,
    /// What messages look like.
    #[serde(default)]
    pub format: Format,
    /// The CloudEvents attribute `source`.
    #[serde(default = "message::source")]
    pub source: Text,
    /// Who to come in as; Redis's user `default` if there is only a password.
    #[serde(default)]
    pub user: Option<Text>,
    /// The password.
    #[serde(default)]
    pub password: Option<Secret>,
    /// How servers are trusted; for `rediss://`. If a `ca_file` is named, it is the only authority.
    #[serde(default)]
    pub tls: Tls,
    /// How long connecting may take.
    #[serde(default = "connect_timeout", deserialize_with = "time::read")]
    pub connect_timeout: Duration,
    /// How long the server may take to answer.
    #[serde(default = "timeout", deserialize_with = "time::read")]
    pub timeout: Duration,
    /// Keep about so many entries of a stream, at least, and let Redis drop older ones. Without it streams grow until somebody else
    /// trims them.
    #[serde(default)]
    pub max_len: Option<u64>,
    /// Whether a stream that is not there is made.
    #[serde(default = "yes")]
    pub create: bool,
    /// Whether to publish only to a server that writes an append-only file. One that does not loses what it confirmed when it
    /// restarts.
    #[serde(default)]
    pub require_persistence: bool,
    /// The size of the greatest entry, names of fields included.
    #[serde(default = "max_bytes")]
    pub max_bytes: usize,
}

fn connect_timeout() -> Duration {
    Duration::from_secs(5)
}

fn timeout() -> Duration {
    Duration::from_secs(10)
}

fn yes() -> bool {
    true
}

/// What Redis takes as one value, unless it is told otherwise.
fn max_bytes() -> usize {
    512 * 1024 * 1024
}

impl RedisSettings {
    /// Everything else as it is when a settings file does not say it.
    pub fn new(url: &str, stream: Template) -> Self {
        Self {
            url: url.into(),
            stream,
            format: Format::default(),
            source: message::source(),
            user: None,
            password: None,
            tls: Tls::default(),
            connect_timeout: connect_timeout(),
            timeout: timeout(),
            max_len: None,
            create: true,
            require_persistence: false,
            max_bytes: max_bytes(),
        }
    }
}

/// A look at the connection takes no longer.
const QUICK: Duration = Duration::from_millis(1_500);

impl Redis {
    /// What Redis Streams promise.
    pub const PROMISES: Promises = Promises {
        order: Order::PerKey,
        repeats: Repeats::Seen,
        confirmed: "the server has it in memory; on disk as soon as its `appendfsync` says",
    };

    /// Checks the settings; connects later.
    pub fn new(name: impl Into<String>, settings: RedisSettings) -> Result<Self, String> {
        if settings.stream.fixed() == Some("") {
            return Err("`stream` is empty".to_owned());
        }
        let link = Link::new(Dialer::new(&settings)?);
        let encoder = Encoder::new(settings.format, settings.source.as_str());
        Ok(Self { name: name.into(), settings, encoder, link })
    }

    fn prepare(&self, event: &Outgoing) -> Result<Entry, Failure> {
        let stream = self.settings.stream.render(event)?;
        let entry = Entry { stream, message: self.encoder.encode(event)? };
        entry.fits(self.settings.max_bytes)?;
        Ok(entry)
    }

    /// Sends part of a wave at once. The reason if the server is no good any more.
    async fn send(&self, line: &Line, part: Part, waves: &mut Waves<'_>) -> Result<(), String> {
        let answers = line.send(part.commands).await?;
        let mut outage = None;
        for ((index, stream), answer) in part.of.into_iter().zip(answers) {
            match Answer::of(&stream, self.settings.stream.fixed().is_some(), answer) {
                Answer::Added => waves.published(index),
                Answer::Refused(failure) => waves.failed(index, failure),
                Answer::Outage(reason) => outage = outage.or(Some(reason)),
            }
        }
        outage.map_or(Ok(()), Err)
    }

    async fn send_wave(
        &self,
        line: &Line,
        events: &[Outgoing],
        wave: Vec<usize>,
        waves: &mut Waves<'_>,
    ) -> Result<(), String> {
        let mut part = Part::default();
        for index in wave {
            match self.prepare(&events[index]) {
                Ok(entry) => {
                    part.add(index, &entry, &self.settings);
                    if part.is_full() {
                        self.send(line, std::mem::take(&mut part), waves).await?;
                    }
                }
                Err(failure) => waves.failed(index, failure),
            }
        }
        if part.of.is_empty() { Ok(()) } else { self.send(line, part, waves).await }
    }
}

/// Commands that go out together.
#[derive(Default)]
struct Part {
    commands: redis::Pipeline,
    /// The place and the stream of each.
    of: Vec<(usize, String)>,
    bytes: usize,
}

impl Part {
    fn add(&mut self, index: usize, entry: &Entry, settings: &RedisSettings) {
        self.commands.add_command(entry.command(settings.max_len, settings.create));
        self.bytes += entry.size();
        self.of.push((index, entry.stream.clone()));
    }

    /// Neither the server's buffers nor what nobody knows after an outage should grow without bounds.
    fn is_full(&self) -> bool {
        self.of.len() >= 500 || self.bytes >= 8 * 1024 * 1024
    }
}

#[async_trait]
impl Publisher for Redis {
    fn name(&self) -> &str {
        &self.name
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        let mut waves = Waves::new(events);
        let line = match self.link.get().await {
            Ok(line) => line,
            Err(reason) => return waves.cut_off(reason),
        };
        while let Some(wave) = waves.next() {
            if let Err(reason) = self.send_wave(&line, events, wave, &mut waves).await {
                line.give_up();
                return waves.cut_off(reason);
            }
        }
        waves.end()
    }

    async fn health(&self) -> Result<(), Unavailable> {
        let probed = Probed { stream: self.settings.stream.fixed(), create: self.settings.create };
        let late = || Unavailable::new(format!("Redis did not answer within {QUICK:?}"));
        let look = async {
            // A connection that broke unnoticed is one that does not answer: then a new one says how things are.
            for _ in 0..2 {
                let line = self.link.within(QUICK).await.map_err(Unavailable::new)?;
                match tokio::time::timeout(QUICK / 2, line.takes_writes(&probed)).await {
                    Ok(Ok(())) => return Ok(()),
                    Ok(Err(Some(reason))) => return Err(Unavailable::new(reason)),
                    Ok(Err(None)) | Err(_) => line.give_up(),
                }
            }
            Err(late())
        };
        tokio::time::timeout(2 * QUICK, look).await.unwrap_or_else(|_| Err(late()))
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("name", &self.name)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
