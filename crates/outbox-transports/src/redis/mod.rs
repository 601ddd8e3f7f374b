//! Redis Streams.

mod connection;
mod wire;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use outbox::{Failure, Outgoing, PublishError, Publisher, Unavailable};
use serde::Deserialize;

use self::connection::{ProbeTarget, RedisConnection, RedisConnector, XaddOutcome};
use self::wire::Entry;
use crate::probe::ProbeError;
use crate::reconnect::Reconnect;
use crate::{
    Duplicates, Encoder, Format, Guarantees, KeyedBatches, Order, PublisherSettingsError, Secret, Template,
    Text, Tls, message, time,
};

/// Publishes to Redis Streams: one entry per event, by `XADD`.
///
/// ```
/// use outbox_transports::{Redis, RedisSettings};
///
/// let settings = RedisSettings::new("redis://localhost:6379", "orders".parse()?);
/// let publisher = Redis::new("orders", settings)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The fields of an entry are the message's headers, including `outbox-id`, then `content-type`,
/// then `payload` with the body. The publisher connects on first use, and again after the
/// connection was lost. It supports a single server (a primary or a proxy), not the nodes of a
/// Redis Cluster.
pub struct Redis {
    name: String,
    settings: RedisSettings,
    encoder: Encoder,
    connection: Reconnect<RedisConnector>,
}

/// Settings of [`Redis`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RedisSettings {
    /// `redis://host:6379/0`, or `rediss://` for TLS. May contain user and password.
    pub url: Secret,
    /// Key of the stream.
    pub stream: Template,
    /// Format of the messages.
    #[serde(default)]
    pub format: Format,
    /// The CloudEvents attribute `source`.
    #[serde(default = "message::source")]
    pub source: Text,
    /// User name. Redis uses `default` if only a password is set.
    #[serde(default)]
    pub user: Option<Text>,
    /// The password.
    #[serde(default)]
    pub password: Option<Secret>,
    /// TLS files, for `rediss://`. If `ca_file` is set, it is the only trusted authority.
    #[serde(default)]
    pub tls: Tls,
    /// Timeout of connecting.
    #[serde(default = "connect_timeout", deserialize_with = "time::read")]
    pub connect_timeout: Duration,
    /// Timeout of a reply.
    #[serde(default = "timeout", deserialize_with = "time::read")]
    pub timeout: Duration,
    /// Trims a stream to approximately this many entries, never fewer. Without it streams grow
    /// until another client trims them.
    #[serde(default)]
    pub max_len: Option<u64>,
    /// Whether a missing stream is created.
    #[serde(default = "yes")]
    pub create: bool,
    /// Whether to publish only to a server with an append-only file. A server without one loses
    /// confirmed entries when it restarts.
    #[serde(default)]
    pub require_persistence: bool,
    /// Maximum size of an entry in bytes, including field names.
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

/// Default maximum size of a value in Redis.
fn max_bytes() -> usize {
    512 * 1024 * 1024
}

impl RedisSettings {
    /// Settings for this URL and stream, with defaults for everything else.
    /// Assign other values to the fields; more fields may be added.
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

/// Timeout of a health check.
const HEALTH_TIMEOUT: Duration = Duration::from_millis(1_500);

impl Redis {
    /// Delivery guarantees of Redis Streams.
    pub const GUARANTEES: Guarantees = Guarantees {
        order: Order::PerKey,
        duplicates: Duplicates::Delivered,
        confirmed: "the server has the entry in memory, and on disk as its `appendfsync` configures",
    };

    /// Creates a publisher called `name`. Checks the settings; does not connect yet.
    pub fn new(name: impl Into<String>, settings: RedisSettings) -> Result<Self, PublisherSettingsError> {
        if settings.stream.fixed() == Some("") {
            return Err(PublisherSettingsError::value("stream", "must not be empty"));
        }
        let connection = Reconnect::new(RedisConnector::new(&settings)?);
        let encoder = Encoder::new(settings.format, settings.source.as_str());
        Ok(Self { name: name.into(), settings, encoder, connection })
    }

    fn prepare(&self, event: &Outgoing) -> Result<Entry, Failure> {
        let stream = self.settings.stream.render(event)?;
        let entry = Entry { stream, message: self.encoder.encode(event)? };
        entry.fits(self.settings.max_bytes)?;
        Ok(entry)
    }

    /// Sends part of a sub-batch in one pipeline.
    async fn send(
        &self,
        connection: &RedisConnection,
        chunk: PipelineChunk,
        batches: &mut KeyedBatches<'_>,
    ) -> Result<(), Unavailable> {
        let replies = connection.send(chunk.commands).await?;
        let mut outage = None;
        for ((index, stream), reply) in chunk.entries.into_iter().zip(replies) {
            match XaddOutcome::from_reply(&stream, self.settings.stream.fixed().is_some(), reply) {
                XaddOutcome::Added => batches.published(index),
                XaddOutcome::Refused(failure) => batches.failed(index, failure),
                XaddOutcome::Outage(reason) => outage = outage.or(Some(Unavailable::new(reason))),
            }
        }
        outage.map_or(Ok(()), Err)
    }

    async fn send_sub_batch(
        &self,
        connection: &RedisConnection,
        events: &[Outgoing],
        sub_batch: Vec<usize>,
        batches: &mut KeyedBatches<'_>,
    ) -> Result<(), Unavailable> {
        let mut chunk = PipelineChunk::default();
        for index in sub_batch {
            match self.prepare(&events[index]) {
                Ok(entry) => {
                    chunk.add(index, &entry, &self.settings);
                    if chunk.is_full() {
                        self.send(connection, std::mem::take(&mut chunk), batches).await?;
                    }
                }
                Err(failure) => batches.failed(index, failure),
            }
        }
        if chunk.entries.is_empty() { Ok(()) } else { self.send(connection, chunk, batches).await }
    }
}

/// Commands that are sent in one pipeline.
#[derive(Default)]
struct PipelineChunk {
    commands: redis::Pipeline,
    /// Batch index and stream of each command.
    entries: Vec<(usize, String)>,
    bytes: usize,
}

impl PipelineChunk {
    fn add(&mut self, index: usize, entry: &Entry, settings: &RedisSettings) {
        self.commands.add_command(entry.command(settings.max_len, settings.create));
        self.bytes += entry.size();
        self.entries.push((index, entry.stream.clone()));
    }

    /// Bounds the server's buffers, and the number of events with an unknown result after an
    /// outage.
    fn is_full(&self) -> bool {
        self.entries.len() >= 500 || self.bytes >= 8 * 1024 * 1024
    }
}

#[async_trait]
impl Publisher for Redis {
    fn name(&self) -> &str {
        &self.name
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        let mut batches = KeyedBatches::new(events);
        let connection = match self.connection.get().await {
            Ok(connection) => connection,
            Err(reason) => return batches.abort(reason),
        };
        while let Some(sub_batch) = batches.next() {
            if let Err(reason) = self.send_sub_batch(&connection, events, sub_batch, &mut batches).await {
                connection.abandon();
                return batches.abort(reason);
            }
        }
        batches.finish()
    }

    async fn health(&self) -> Result<(), Unavailable> {
        let target = ProbeTarget { stream: self.settings.stream.fixed(), create: self.settings.create };
        let timed_out = || Unavailable::new(format!("Redis did not answer within {HEALTH_TIMEOUT:?}"));
        let probe = async {
            // A connection that broke unnoticed does not answer; the second pass uses a new
            // connection.
            for _ in 0..2 {
                let connection = self.connection.get_within(HEALTH_TIMEOUT).await?;
                match tokio::time::timeout(HEALTH_TIMEOUT / 2, connection.check_writable(&target)).await {
                    Ok(Ok(())) => return Ok(()),
                    Ok(Err(ProbeError::Rejected(reason))) => return Err(Unavailable::new(reason)),
                    Ok(Err(ProbeError::NoReply)) | Err(_) => connection.abandon(),
                }
            }
            Err(timed_out())
        };
        tokio::time::timeout(2 * HEALTH_TIMEOUT, probe).await.unwrap_or_else(|_| Err(timed_out()))
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
