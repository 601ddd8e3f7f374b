//! Payloads: need the role `operate`, and every read has an audit entry.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outbox::store::{Edit, EventMetadata};
use outbox::{Event, Payload};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

use super::event::{EventPath, find, unknown};
use super::event_actions::{ActionResult, change_event};
use crate::audit::{AuditedChange, Changed};
use crate::auth::Caller;
use crate::extract::{DatabaseQuery, Input, Params};
use crate::problem::{ApiResult, Problem};
use crate::state::Shared;

/// Maximum size of payload and headers that is shown, in bytes. Larger events have to be read in
/// the database.
const MAX_SHOWN_BYTES: u64 = 4 * 1024 * 1024;

/// Number of payloads read at once: limits, together with [`MAX_SHOWN_BYTES`], the memory for
/// showing payloads.
pub(crate) const MAX_CONCURRENT_READS: usize = 4;

/// The payload of an event.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"content_type": "application/json", "size": 13, "text": "{\"total\":995}", "base64": null, "headers": {}}))]
pub(crate) struct PayloadView {
    /// The content type.
    content_type: String,
    /// The size in bytes.
    size: usize,
    /// The payload, if it is UTF-8.
    text: Option<String>,
    /// The payload in base64, if it is not UTF-8.
    base64: Option<String>,
    /// The headers of the event.
    headers: BTreeMap<String, String>,
}

/// New payload of an event: `payload` or `base64`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"payload": "{\"total\":995}"}))]
pub(crate) struct NewPayload {
    /// The payload as text; stored byte for byte.
    payload: Option<String>,
    /// The payload in base64.
    base64: Option<String>,
    /// The content type; unchanged by default.
    #[schema(min_length = 1, max_length = 255)]
    content_type: Option<String>,
    /// Replaces all headers of the event; unchanged by default.
    headers: Option<BTreeMap<String, String>>,
}

/// Get the payload of an event
///
/// Payloads may contain confidential data: this needs the role `operate`, and every read has an
/// audit entry. Payloads larger than 4 MiB, including headers, are not shown.
#[utoipa::path(get, path = "/outbox/events/{id}/payload", tag = "events", params(DatabaseQuery, EventPath),
    responses((status = 200, description = "The payload", body = PayloadView),
              (status = 409, description = "The event cannot be decoded, or is too large to be shown")))]
pub(crate) async fn show(
    State(web): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Params(query): Params<DatabaseQuery>,
) -> ApiResult<Json<PayloadView>> {
    let database = query.resolve(&web)?;
    let found = find(&database, id).await?;
    let EventMetadata { row, headers_bytes, .. } = &found.event;
    let size = row.payload_bytes.saturating_add(*headers_bytes);
    if size > MAX_SHOWN_BYTES {
        return Err(Problem::conflict(format!(
            "payload and headers have {size} bytes; the limit is {MAX_SHOWN_BYTES} bytes"
        ))
        .advice(format!("Read the event in the database: its seq is {}.", row.seq)));
    }
    let _reading = web.payloads.acquire().await.map_err(|_| Problem::internal())?;
    let stored = found.read(&database).await?.ok_or_else(|| unknown(&row.id))?;
    let event = stored
        .event
        .map_err(|error| Problem::conflict(format!("the event cannot be decoded: {}", error.reason)))?;
    let read = AuditedChange::new(&database, &caller, "payload.read", found.name());
    read.carry_out(async { Ok(Changed { count: 1, outcome: () }) }).await?;
    let bytes = event.payload_bytes();
    let text = std::str::from_utf8(bytes).ok().map(str::to_owned);
    Ok(Json(PayloadView {
        content_type: event.content_type().to_owned(),
        size: bytes.len(),
        base64: text.is_none().then(|| STANDARD.encode(bytes)),
        text,
        headers: event.headers().clone(),
    }))
}

/// Replace the payload of a dead event
///
/// The event stays dead until it is replayed. The audit entry has digests of the old and the new
/// payload, not their contents.
#[utoipa::path(put, path = "/outbox/events/{id}/payload", tag = "events", params(DatabaseQuery, EventPath), request_body = NewPayload,
    responses((status = 200, description = "The payload is replaced", body = ActionResult), (status = 409, description = "The event is not dead"),
              (status = 422, description = "The payload or a header is not valid")))]
pub(crate) async fn edit(
    State(web): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Params(query): Params<DatabaseQuery>,
    Input(new): Input<NewPayload>,
) -> ApiResult<Json<ActionResult>> {
    let database = query.resolve(&web)?;
    let found = find(&database, id).await?;
    let id = found.id()?;
    let edit = new.edit(&found.event.content_type)?;
    let after = match edit.payload() {
        Payload::Json(text) => digest(text.as_bytes()),
        Payload::Bytes { data, .. } => digest(data),
    };
    // An event that cannot be read, such as one that is too large, has no digest.
    let stored = found.read(&database).await?.and_then(|stored| stored.event.ok());
    let details = serde_json::json!({
        "before": stored.as_ref().map(Event::payload_bytes).map(digest),
        "after": after,
        "headers": if edit.new_headers().is_some() { "replaced" } else { "kept" },
    });
    let change = AuditedChange::new(&database, &caller, "payload.edit", found.name()).details(&details);
    change_event(change, &found, "edited", "dead", database.store.edit(id, &edit)).await
}

/// Digest of a payload, to compare payloads without showing them.
fn digest(payload: &[u8]) -> String {
    let digest = Sha256::digest(payload);
    digest.iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

impl NewPayload {
    fn edit(self, before: &str) -> ApiResult<Edit> {
        let content_type = self.content_type.as_deref().unwrap_or(before);
        let edit = match (self.payload, self.base64) {
            (Some(text), None) if content_type == outbox::JSON => Edit::json(text),
            (Some(text), None) => Edit::bytes(content_type, text.into_bytes()),
            (None, Some(text)) => {
                let bytes =
                    STANDARD.decode(text).map_err(|_| Problem::invalid("`base64` is not valid base64"))?;
                match String::from_utf8(bytes) {
                    Ok(text) if content_type == outbox::JSON => Edit::json(text),
                    Ok(text) => Edit::bytes(content_type, text.into_bytes()),
                    Err(bytes) => Edit::bytes(content_type, bytes.into_bytes()),
                }
            }
            _ => return Err(Problem::invalid("set exactly one of `payload` and `base64`")),
        };
        // The error does not repeat the payload.
        let wrong = |_| {
            Problem::invalid(format!("invalid payload or headers for the content type `{content_type}`"))
                .advice("JSON must be valid; a payload has at most 1 MiB; headers need names and printable values.")
        };
        match self.headers {
            Some(headers) => edit.and_then(|edit| edit.headers(headers)),
            None => edit,
        }
        .map_err(wrong)
    }
}
