//! JSON and table forms of events. The payload is included only on request.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use comfy_table::Cell;
use outbox::store::{StoredEvent, StoredLogEvent};
use outbox::{Event, NodeId, Payload, Status, Tag, split_detail};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{Output, Table, dash, exact_and_relative, short, status};

/// Fields of events of the queue and of the log, named as the columns of the tables.
#[derive(Serialize)]
struct Common {
    event_id: String,
    event_type: Option<String>,
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
    tenant_id: Option<String>,
    ordering_key: Option<String>,
    correlation_id: Option<String>,
    dedup_key: Option<String>,
    headers: BTreeMap<String, String>,
    content_type: Option<String>,
    payload_size: Option<usize>,
    occurred_at: Option<DateTime<Utc>>,
    expires_at: Option<DateTime<Utc>>,
    /// Why the event cannot be decoded, if so.
    problem: Option<String>,
    #[serde(flatten)]
    payload: Option<PayloadView>,
}

#[derive(Serialize)]
enum PayloadView {
    #[serde(rename = "payload")]
    Json(Box<RawValue>),
    #[serde(rename = "payload_base64")]
    Bytes(String),
}

impl PayloadView {
    fn of(payload: &Payload) -> Self {
        match payload {
            Payload::Json(text) => match RawValue::from_string(text.clone()) {
                // A payload of several lines is rewritten as one: each object is one line.
                Ok(raw) if !text.contains('\n') => Self::Json(raw),
                _ => Self::one_line(text),
            },
            Payload::Bytes { data, .. } => Self::Bytes(STANDARD.encode(data)),
        }
    }

    fn one_line(text: &str) -> Self {
        let value = serde_json::from_str::<serde_json::Value>(text);
        let raw = value.and_then(|value| serde_json::value::to_raw_value(&value));
        raw.map_or_else(|_| Self::Bytes(STANDARD.encode(text)), Self::Json)
    }
}

impl Common {
    fn of(event: &Event, payload: bool) -> Self {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Self {
            event_id: event.id().to_string(),
            event_type: Some(event.event_type().to_string()),
            aggregate_type: Some(event.aggregate_type().to_string()),
            aggregate_id: owned(event.aggregate_id()),
            tenant_id: owned(event.tenant_id()),
            ordering_key: owned(event.ordering_key()),
            correlation_id: owned(event.correlation_id()),
            dedup_key: owned(event.dedup_key()),
            headers: event.headers().clone(),
            content_type: Some(event.content_type().to_owned()),
            payload_size: Some(event.payload_bytes().len()),
            occurred_at: Some(event.occurred_at()),
            expires_at: event.expires_at(),
            problem: None,
            payload: payload.then(|| PayloadView::of(event.raw_payload())),
        }
    }

    fn unreadable(id: String, problem: String) -> Self {
        Self {
            event_id: id,
            event_type: None,
            aggregate_type: None,
            aggregate_id: None,
            tenant_id: None,
            ordering_key: None,
            correlation_id: None,
            dedup_key: None,
            headers: BTreeMap::new(),
            content_type: None,
            payload_size: None,
            occurred_at: None,
            expires_at: None,
            problem: Some(problem),
            payload: None,
        }
    }

    fn event_type(&self) -> String {
        self.event_type.clone().unwrap_or_else(|| "(unreadable)".to_owned())
    }

    fn add_fields(&self, table: &mut Table) {
        table.field("type", self.event_type.as_ref());
        let global =
            self.aggregate_type.as_ref().filter(|t| *t != outbox::GLOBAL || self.aggregate_id.is_some());
        let id = self.aggregate_id.as_deref().map(|id| format!(" {id}")).unwrap_or_default();
        table.field("aggregate", global.map(|aggregate| format!("{aggregate}{id}")));
        table.field("tenant", self.tenant_id.as_ref());
        table.field("ordering key", self.ordering_key.as_ref());
        table.field("correlation", self.correlation_id.as_ref());
        table.field("dedup key", self.dedup_key.as_ref());
        for (name, value) in &self.headers {
            table.field("header", Some(format!("{name}: {value}")));
        }
        let size = |bytes: usize| format!("{bytes} bytes, {}", self.content_type.as_deref().unwrap_or("?"));
        table.field("payload", self.payload_size.map(size));
        table.field("occurred", self.occurred_at.map(exact_and_relative));
        table.field("expires", self.expires_at.map(exact_and_relative));
        table.field("problem", self.problem.as_ref());
    }
}

/// Form of an event of the queue.
#[derive(Serialize)]
pub(crate) struct EventView {
    seq: i64,
    status: Status,
    #[serde(flatten)]
    common: Common,
    attempts: u32,
    created_at: DateTime<Utc>,
    available_at: DateTime<Utc>,
    done_at: Option<DateTime<Utc>>,
    done_by: Option<NodeId>,
    locked_by: Option<NodeId>,
    locked_until: Option<DateTime<Utc>>,
    last_error: Option<String>,
}

impl EventView {
    pub(crate) fn of(stored: &StoredEvent, payload: bool) -> Self {
        let common = match &stored.event {
            Ok(event) => Common::of(event, payload),
            Err(error) => Common::unreadable(error.id.to_string(), error.reason.clone()),
        };
        Self {
            seq: stored.seq,
            status: stored.status,
            common,
            attempts: stored.attempts,
            created_at: stored.created_at,
            available_at: stored.available_at,
            done_at: stored.done_at,
            done_by: stored.done_by.clone(),
            locked_by: stored.lease.as_ref().map(|(by, _)| by.clone()),
            locked_until: stored.lease.as_ref().map(|(_, until)| *until),
            last_error: stored.last_error.clone(),
        }
    }

    pub(crate) const HEADERS: [&'static str; 8] =
        ["#SEQ", "EVENT ID", "TYPE", "STATUS", "#ATTEMPTS", "STORED", "DUE", "LAST ERROR"];

    pub(crate) fn cells(&self, output: Output) -> [Cell; 8] {
        let due = match (self.status, &self.locked_by) {
            (Status::Done | Status::Dead, _) => dash(),
            (_, Some(by)) => format!("held by {}", short(by.as_str(), 40)),
            _ => output.time(self.available_at),
        };
        [
            Cell::new(self.seq),
            Cell::new(short(&self.common.event_id, 64)),
            Cell::new(short(&self.common.event_type(), 40)),
            status(&self.status.to_string()),
            Cell::new(self.attempts),
            Cell::new(output.time(self.created_at)),
            Cell::new(due),
            Cell::new(self.error()),
        ]
    }

    pub(crate) const DEAD_HEADERS: [&'static str; 7] =
        ["#SEQ", "EVENT ID", "TYPE", "AGGREGATE", "#ATTEMPTS", "DIED", "REASON"];

    pub(crate) fn dead_cells(&self, output: Output) -> [Cell; 7] {
        [
            Cell::new(self.seq),
            Cell::new(short(&self.common.event_id, 64)),
            Cell::new(short(&self.common.event_type(), 40)),
            Cell::new(short(self.common.aggregate_id.as_deref().unwrap_or("-"), 24)),
            Cell::new(self.attempts),
            Cell::new(output.time_or_dash(self.done_at)),
            Cell::new(self.error()),
        ]
    }

    fn error(&self) -> String {
        self.last_error.as_deref().map_or_else(dash, |error| short(split_detail(error).0, 60))
    }

    /// Prints all fields, one per line.
    pub(crate) fn page(&self) {
        let mut table = Table::bare();
        table.field("event", Some(&self.common.event_id));
        table.row([Cell::new("status"), status(&self.status.to_string())]);
        self.common.add_fields(&mut table);
        table.field("seq", Some(self.seq));
        table.field("stored", Some(exact_and_relative(self.created_at)));
        table.field("due", self.status.is_pending().then(|| exact_and_relative(self.available_at)));
        table.field("attempts", Some(self.attempts));
        let held = self.locked_by.as_ref().zip(self.locked_until);
        table.field("held by", held.map(|(by, until)| format!("{by} until {}", exact_and_relative(until))));
        let settled = if self.status == Status::Dead { "died" } else { "done" };
        table.field(settled, self.done_at.map(exact_and_relative));
        table.field("by", self.done_by.as_ref());
        let (error, detail) = self.last_error.as_deref().map(split_detail).unzip();
        table.field("last error", error);
        table.field("detail", detail.flatten());
        table.print();
    }
}

/// Form of an event of the log.
#[derive(Serialize)]
pub(crate) struct LogEventView {
    position: i64,
    tags: Vec<String>,
    #[serde(flatten)]
    common: Common,
    created_at: Option<DateTime<Utc>>,
}

impl LogEventView {
    pub(crate) fn of(stored: &StoredLogEvent, payload: bool) -> Self {
        match stored {
            Ok(event) => Self {
                position: event.position().get(),
                tags: event.tags().iter().map(Tag::to_string).collect(),
                common: Common::of(event.event(), payload),
                created_at: Some(event.created_at()),
            },
            Err((position, problem)) => Self {
                position: position.get(),
                tags: Vec::new(),
                common: Common::unreadable(dash(), problem.clone()),
                created_at: None,
            },
        }
    }

    pub(crate) const HEADERS: [&'static str; 5] = ["#POSITION", "TYPE", "TAGS", "STORED", "EVENT ID"];

    pub(crate) fn cells(&self, output: Output) -> [Cell; 5] {
        let what = match &self.common.problem {
            Some(problem) => format!("(unreadable: {})", short(problem, 60)),
            None => short(&self.common.event_type(), 40),
        };
        [
            Cell::new(self.position),
            Cell::new(what),
            Cell::new(short(&self.tags.join(" "), 60)),
            Cell::new(output.time_or_dash(self.created_at)),
            Cell::new(short(&self.common.event_id, 64)),
        ]
    }
}
