//! JSON Lines: each event as one JSON object on its own line, to standard output or a file.

use std::io;
use std::path::Path;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use outbox::{Event, Failure, Outgoing, Payload, Position, PublishError, Publisher, Tag};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};
use tokio::sync::Mutex;

/// Writes each event as one JSON object on its own line. An event is done once its line is flushed,
/// and for a file synced to disk. A [`Publisher`] named `lines`, for the queue and the log, which
/// writes all lines of a batch together.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// use outbox::Topic;
/// use outbox_transports::Lines;
///
/// let pair = Topic::new("wallet-events").required_tags(["wallet_id"]).to(Lines::stdout());
/// assert_eq!(pair.id().publisher(), "lines");
/// # Ok(()) }
/// ```
///
/// Fields that an event does not have are omitted. A JSON payload is written to `payload` unchanged
/// except for line breaks. Any other payload is written with its `content_type`: to `payload` if it
/// is UTF-8 text, otherwise to `payload_base64`.
///
/// A crash or a full disk may interrupt a write in the middle of a line. The next write starts on a
/// new line, so the output may contain a partial line or an empty line.
#[derive(Debug)]
pub struct Lines<S> {
    writer: Mutex<LineWriter<S>>,
}

/// A sink, and whether its last line may be incomplete.
#[derive(Debug)]
struct LineWriter<S> {
    sink: S,
    partial_line: bool,
}

impl<S: Sink> LineWriter<S> {
    async fn put(&mut self, lines: &[u8]) -> io::Result<()> {
        if std::mem::replace(&mut self.partial_line, true) {
            self.sink.put(b"\n").await?;
        }
        self.sink.put(lines).await?;
        self.partial_line = false;
        Ok(())
    }
}

impl Lines<tokio::io::Stdout> {
    /// Writes to standard output.
    pub fn stdout() -> Self {
        Self::to(tokio::io::stdout())
    }
}

impl Lines<tokio::fs::File> {
    /// Appends to a file and creates a missing file: see [`open_to_append`].
    pub async fn append(file: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self::to(open_to_append(file).await?))
    }
}

/// Opens a file for appending lines. An incomplete last line is terminated first.
///
/// A missing file is created for its owner only (mode 0600), since the file will contain payloads.
/// A symbolic link in place of the file is refused: otherwise a user with write access to the
/// directory could have payloads appended to any file. `/dev/stdout` is therefore refused too; use
/// [`Lines::stdout`].
pub async fn open_to_append(file: impl AsRef<Path>) -> io::Result<tokio::fs::File> {
    let mut options = tokio::fs::OpenOptions::new();
    options.read(true).append(true).create(true);
    #[cfg(unix)]
    options.mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let opened = options.open(file).await;
    #[cfg(unix)]
    let opened = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::other("the file is a symbolic link, which is not followed"),
        _ => error,
    });
    let mut file = opened?;
    if file.metadata().await?.len() > 0 {
        let mut last = [0];
        file.seek(io::SeekFrom::End(-1)).await?;
        file.read_exact(&mut last).await?;
        if last != *b"\n" {
            file.write_all(b"\n").await?;
            file.flush().await?;
        }
    }
    Ok(file)
}

impl<S: Sink> Lines<S> {
    /// Writes to any [`Sink`].
    pub fn to(sink: S) -> Self {
        Self { writer: Mutex::new(LineWriter { sink, partial_line: false }) }
    }
}

/// A destination for lines.
#[async_trait]
pub trait Sink: Send + 'static {
    /// Writes one or more whole lines, including their line breaks. Returns once they are flushed.
    async fn put(&mut self, lines: &[u8]) -> io::Result<()>;
}

#[async_trait]
impl Sink for tokio::io::Stdout {
    async fn put(&mut self, lines: &[u8]) -> io::Result<()> {
        self.write_all(lines).await?;
        self.flush().await
    }
}

#[async_trait]
impl Sink for tokio::fs::File {
    async fn put(&mut self, lines: &[u8]) -> io::Result<()> {
        self.write_all(lines).await?;
        self.flush().await?;
        self.sync_data().await
    }
}

#[async_trait]
impl<S: Sink> Publisher for Lines<S> {
    fn name(&self) -> &'static str {
        "lines"
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        let mut lines = Vec::new();
        let mut refused = None;
        for (before, event) in events.iter().enumerate() {
            let position = event.position().map(Position::get).or(event.seq());
            let line = JsonLine::of(event, event.attempt(), position, event.created_at());
            if let Err(failure) = line.and_then(|line| line.write_to(&mut lines)) {
                refused = Some(PublishError::after(before, failure));
                break;
            }
        }
        if !lines.is_empty() {
            self.writer.lock().await.put(&lines).await?;
        }
        refused.map_or(Ok(()), Err)
    }
}

/// The JSON object of one line. The field names are a public contract.
#[derive(Serialize)]
struct JsonLine<'a> {
    id: &'a str,
    r#type: &'a str,
    aggregate_type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    aggregate_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<&'a str>,
    headers: &'a std::collections::BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    occurred_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<String>,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<&'a str>,
}

impl<'a> JsonLine<'a> {
    fn of(
        event: &'a Event,
        attempt: u32,
        position: Option<i64>,
        created_at: Option<DateTime<Utc>>,
    ) -> Result<Self, Failure> {
        let (content_type, payload, payload_base64) = match event.raw_payload() {
            // A line break is white space outside of JSON strings and not allowed inside them.
            Payload::Json(text) => (None, Some(RawValue::from_string(text.replace(['\n', '\r'], " "))), None),
            Payload::Bytes { content_type, data } => match std::str::from_utf8(data) {
                Ok(text) => (Some(content_type.as_str()), Some(serde_json::value::to_raw_value(text)), None),
                Err(_) => (Some(content_type.as_str()), None, Some(STANDARD.encode(data))),
            },
        };
        Ok(Self {
            id: event.id().as_str(),
            r#type: event.event_type().as_str(),
            aggregate_type: event.aggregate_type().as_str(),
            aggregate_id: event.aggregate_id(),
            key: event.ordering_key(),
            tenant_id: event.tenant_id(),
            correlation_id: event.correlation_id(),
            headers: event.headers(),
            content_type,
            payload: payload.transpose().map_err(Failure::dead)?,
            payload_base64,
            occurred_at: event.occurred_at().to_rfc3339(),
            created_at: created_at.map(|at| at.to_rfc3339()),
            attempt,
            position,
            tags: event.tags().iter().map(Tag::as_str).collect(),
        })
    }

    fn write_to(&self, lines: &mut Vec<u8>) -> Result<(), Failure> {
        // Serialized to a buffer of its own, so that an error leaves no partial line.
        lines.extend(serde_json::to_vec(self).map_err(Failure::dead)?);
        lines.push(b'\n');
        Ok(())
    }
}
