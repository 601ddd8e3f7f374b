//! Payloads: only for those who may see them, and never without a note of who did.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outbox::store::Edit;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::acts::{DoneTo, change};
use super::event::{Which, event_id, unknown};
use crate::auth::Caller;
use crate::deeds::{Deeds, Happened};
use crate::extract::{Input, Params, Place};
use crate::problem::{Answer, Problem};
use crate::state::Shared;

/// The payload of an event.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"content_type": "application/json", "size": 13, "text": "{\"total\":995}", "base64": null, "headers": {}}))]
pub(crate) struct PayloadView {
    /// What it is.
    content_type: String,
    /// How many bytes it has.
    size: usize,
    /// The payload, if it is text.
    text: Option<String>,
    /// The payload, if it is not.
    base64: Option<String>,
    /// The headers of the event.
    headers: BTreeMap<String, String>,
}

/// Another payload: `payload` or `base64`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"payload": "{\"total\":995}"}))]
pub(crate) struct NewPayload {
    /// As text; kept to the byte.
    payload: Option<String>,
    /// As bytes, in base64.
    base64: Option<String>,
    /// What it is; as before if not set.
    #[schema(min_length = 1, max_length = 255)]
    content_type: Option<String>,
    /// In place of all headers that the event has; they stay if not set.
    headers: Option<BTreeMap<String, String>>,
}

/// The payload of an event
///
/// Payloads may hold what not everybody should see: it takes the role `operate`, and the audit says who looked.
#[utoipa::path(get, path = "/outbox/events/{id}/payload", tag = "events", params(Place, Which),
    responses((status = 200, description = "The payload", body = PayloadView),
              (status = 409, description = "The event cannot be read")))]
pub(crate) async fn show(
    State(web): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<PayloadView>> {
    let (database, id) = (place.choose(&web)?, event_id(id)?);
    let stored = database.store.find(&id).await?.ok_or_else(|| unknown(&id))?;
    let event = stored
        .event
        .map_err(|error| Problem::conflict(format!("the event cannot be read: {}", error.reason)))?;
    let look = Deeds::new(&database, &caller, "payload.read", id.to_string());
    look.carry_out(async { Ok(Happened { count: 1, outcome: () }) }).await?;
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

/// Give a dead event another payload
///
/// It stays dead until it is replayed. The audit says who did it, not what was in it.
#[utoipa::path(put, path = "/outbox/events/{id}/payload", tag = "events", params(Place, Which), request_body = NewPayload,
    responses((status = 200, description = "Changed", body = DoneTo), (status = 409, description = "It is not dead"),
              (status = 422, description = "It cannot be the payload of an event")))]
pub(crate) async fn edit(
    State(web): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Params(place): Params<Place>,
    Input(new): Input<NewPayload>,
) -> Answer<Json<DoneTo>> {
    let (database, id) = (place.choose(&web)?, event_id(id)?);
    let stored = database.store.find(&id).await?.ok_or_else(|| unknown(&id))?;
    let before = stored.event.as_ref().map_or(outbox::JSON, |event| event.content_type());
    let edit = new.edit(before)?;
    change(&database, &caller, "payload.edit", &id, "edited", "dead", database.store.edit(&id, &edit)).await
}

impl NewPayload {
    fn edit(self, before: &str) -> Answer<Edit> {
        let content_type = self.content_type.as_deref().unwrap_or(before);
        let edit = match (self.payload, self.base64) {
            (Some(text), None) if content_type == outbox::JSON => Edit::json(text),
            (Some(text), None) => Edit::bytes(content_type, text.into_bytes()),
            (None, Some(text)) => {
                let bytes = STANDARD.decode(text).map_err(|_| Problem::invalid("`base64` is not base64"))?;
                match String::from_utf8(bytes) {
                    Ok(text) if content_type == outbox::JSON => Edit::json(text),
                    Ok(text) => Edit::bytes(content_type, text.into_bytes()),
                    Err(bytes) => Edit::bytes(content_type, bytes.into_bytes()),
                }
            }
            _ => return Err(Problem::invalid("name one of `payload` and `base64`")),
        };
        // What is wrong with it is told without repeating it.
        let wrong = |_| {
            Problem::invalid(format!("that cannot be the payload of an event of type `{content_type}`"))
                .advice("JSON must be valid JSON; a payload has at most 1 MiB, and headers have names and printable values.")
        };
        match self.headers {
            Some(headers) => edit.and_then(|edit| edit.headers(headers)),
            None => edit,
        }
        .map_err(wrong)
    }
}
