//! Lines: every event as one JSON object on a line of its own, to standard output or a file.

use std::io;
use std::path::Path;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outbox::{Cx, Failure, Handler, Outcome, Payload};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::Mutex;

/// Writes every event as one JSON object on a line of its own. An event is done when its line is out: flushed, and for a
/// file on disk.
///
/// Fields that an event does not have are left out. A JSON payload is `payload`, as it was written but for line breaks; any
/// other payload comes with its `content_type`, as `payload` if it is text, else as `payload_base64`.
#[derive(Debug)]
pub struct Lines<S> {
    sink: Mutex<S>,
}

impl Lines<tokio::io::Stdout> {
    /// To standard output.
    pub fn stdout() -> Self {
        Self::to(tokio::io::stdout())
    }
}

impl Lines<tokio::fs::File> {
    /// To the end of a file, made if it is not there.
    pub async fn append(file: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self::to(tokio::fs::OpenOptions::new().append(true).create(true).open(file).await?))
    }
}

impl<S: Sink> Lines<S> {
    /// To anything that takes lines.
    pub fn to(sink: S) -> Self {
        Self { sink: Mutex::new(sink) }
    }
}

/// What takes lines.
#[async_trait]
pub trait Sink: Send + 'static {
    /// Takes a line, its end included; returns when it is out.
    async fn put(&mut self, line: &[u8]) -> io::Result<()>;
}

#[async_trait]
impl Sink for tokio::io::Stdout {
    async fn put(&mut self, line: &[u8]) -> io::Result<()> {
        self.write_all(line).await?;
        self.flush().await
    }
}

#[async_trait]
impl Sink for tokio::fs::File {
    async fn put(&mut self, line: &[u8]) -> io::Result<()> {
        self.write_all(line).await?;
        self.flush().await?;
        self.sync_data().await
    }
}

#[async_trait]
impl<S: Sink> Handler for Lines<S> {
    async fn handle(&self, cx: Cx) -> Result<Outcome, Failure> {
        let mut line = serde_json::to_vec(&Line::of(&cx)?).map_err(Failure::dead)?;
        line.push(b'\n');
        self.sink.lock().await.put(&line).await?;
        Ok(Outcome::Done)
    }
}

/// What stands on a line. The names are a contract.
#[derive(Serialize)]
struct Line<'a> {
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
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<i64>,
}

impl<'a> Line<'a> {
    fn of(cx: &'a Cx) -> Result<Self, Failure> {
        let (content_type, payload, payload_base64) = match cx.raw_payload() {
            // Outside of strings a line break is white space, and inside of them it cannot be.
            Payload::Json(text) => (None, Some(RawValue::from_string(text.replace(['\n', '\r'], " "))), None),
            Payload::Bytes { content_type, data } => match std::str::from_utf8(data) {
                Ok(text) => (Some(content_type.as_str()), Some(serde_json::value::to_raw_value(text)), None),
                Err(_) => (Some(content_type.as_str()), None, Some(STANDARD.encode(data))),
            },
        };
        Ok(Self {
            id: cx.id().as_str(),
            r#type: cx.event_type().as_str(),
            aggregate_type: cx.aggregate_type().as_str(),
            aggregate_id: cx.aggregate_id(),
            key: cx.ordering_key(),
            tenant_id: cx.tenant_id(),
            correlation_id: cx.correlation_id(),
            headers: cx.headers(),
            content_type,
            payload: payload.transpose().map_err(Failure::dead)?,
            payload_base64,
            occurred_at: cx.occurred_at().to_rfc3339(),
            attempt: cx.attempt(),
            position: cx.seq(),
        })
    }
}
