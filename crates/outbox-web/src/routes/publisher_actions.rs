//! Pausing, resuming and resetting publishers.

use axum::Json;
use axum::extract::{Path, State};
use chrono::{DateTime, Utc};
use outbox::{LogAdmin, Position};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::publishers::{PublisherPath, TopicPath, unknown};
use crate::audit::{AuditedChange, Changed};
use crate::auth::Caller;
use crate::databases::Database;
use crate::extract::{DatabaseQuery, Input, Params};
use crate::problem::{ApiResult, Problem};
use crate::state::Shared;
use crate::text;

/// Position to reset a publisher to: `position`, `time`, or `to`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"to": "start"}))]
pub(crate) struct ResetRequest {
    /// Publish the events after this position.
    #[schema(minimum = 0)]
    position: Option<i64>,
    /// Publish the events stored since this time.
    time: Option<DateTime<Utc>>,
    /// `start`: publish all events again; `end`: publish new events only.
    to: Option<LogEnd>,
}

/// An end of the log.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogEnd {
    /// Before the first event.
    Start,
    /// After the last event.
    End,
}

/// Number of subscriptions (topic and publisher) changed.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"changed": 2}))]
pub(crate) struct ChangedCount {
    /// The number of subscriptions.
    changed: u64,
}

/// Position after a reset.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"position": 0}))]
pub(crate) struct ResetPosition {
    /// Events after this position are published.
    position: i64,
}

/// Pause a publisher
///
/// In all topics. A batch that is already in flight is still published.
#[utoipa::path(post, path = "/outbox/publishers/{name}/pause", tag = "publishers", params(DatabaseQuery, PublisherPath),
    responses((status = 200, description = "Paused", body = ChangedCount)))]
pub(crate) async fn pause(
    State(web): State<Shared>,
    caller: Caller,
    Path(name): Path<String>,
    Params(query): Params<DatabaseQuery>,
) -> ApiResult<Json<ChangedCount>> {
    let database = query.resolve(&web)?;
    let admin = LogAdmin::new(database.store.clone());
    set_status(&database, &caller, "publisher.pause", &name, None, async { admin.pause(&name).await }).await
}

/// Resume a publisher
///
/// In all topics, from the current positions. Resets the error counts.
#[utoipa::path(post, path = "/outbox/publishers/{name}/resume", tag = "publishers", params(DatabaseQuery, PublisherPath),
    responses((status = 200, description = "Resumed", body = ChangedCount)))]
pub(crate) async fn resume(
    State(web): State<Shared>,
    caller: Caller,
    Path(name): Path<String>,
    Params(query): Params<DatabaseQuery>,
) -> ApiResult<Json<ChangedCount>> {
    let database = query.resolve(&web)?;
    let admin = LogAdmin::new(database.store.clone());
    set_status(&database, &caller, "publisher.resume", &name, None, async { admin.resume(&name).await }).await
}

/// Pause a publisher in one topic
#[utoipa::path(post, path = "/outbox/publishers/{name}/topics/{topic}/pause", tag = "publishers",
    params(DatabaseQuery, PublisherPath, TopicPath), responses((status = 200, description = "Paused", body = ChangedCount)))]
pub(crate) async fn pause_in(
    State(web): State<Shared>,
    caller: Caller,
    Path((name, topic)): Path<(String, String)>,
    Params(query): Params<DatabaseQuery>,
) -> ApiResult<Json<ChangedCount>> {
    let database = query.resolve(&web)?;
    let admin = LogAdmin::new(database.store.clone());
    let pause = async { admin.pause_in(&topic, &name).await.map(|()| 1) };
    set_status(&database, &caller, "publisher.pause", &name, Some(&topic), pause).await
}

/// Resume a publisher in one topic
#[utoipa::path(post, path = "/outbox/publishers/{name}/topics/{topic}/resume", tag = "publishers",
    params(DatabaseQuery, PublisherPath, TopicPath), responses((status = 200, description = "Resumed", body = ChangedCount)))]
pub(crate) async fn resume_in(
    State(web): State<Shared>,
    caller: Caller,
    Path((name, topic)): Path<(String, String)>,
    Params(query): Params<DatabaseQuery>,
) -> ApiResult<Json<ChangedCount>> {
    let database = query.resolve(&web)?;
    let admin = LogAdmin::new(database.store.clone());
    let resume = async { admin.resume_in(&topic, &name).await.map(|()| 1) };
    set_status(&database, &caller, "publisher.resume", &name, Some(&topic), resume).await
}

/// Reset the position of a publisher in a topic
///
/// Backward: events are published again. Forward: events are skipped. A paused publisher stays
/// paused.
#[utoipa::path(post, path = "/outbox/publishers/{name}/topics/{topic}/reset", tag = "publishers",
    params(DatabaseQuery, PublisherPath, TopicPath), request_body = ResetRequest,
    responses((status = 200, description = "The new position", body = ResetPosition),
              (status = 422, description = "The position is beyond the end of the log, or not exactly one of the fields is set")))]
pub(crate) async fn reset(
    State(web): State<Shared>,
    caller: Caller,
    Path((name, topic)): Path<(String, String)>,
    Params(query): Params<DatabaseQuery>,
    Input(reset): Input<ResetRequest>,
) -> ApiResult<Json<ResetPosition>> {
    let database = query.resolve(&web)?;
    check(&name, Some(&topic))?;
    let to = reset.target()?;
    let admin = LogAdmin::new(database.store.clone());
    let change = AuditedChange::new(&database, &caller, "publisher.reset", target(&name, Some(&topic)))
        .details(&serde_json::json!({"to": to.describe()}));
    let position = change
        .carry_out(async {
            let position = match to {
                ResetTarget::Position(position) => position,
                ResetTarget::Time(time) => {
                    let position = admin.reset_to_time(&topic, &name, time).await?;
                    return Ok(Changed { count: 1, outcome: position });
                }
                ResetTarget::End => admin.lag().await?.first().map_or(Position::START, |lag| lag.head),
            };
            admin.reset(&topic, &name, position).await?;
            Ok(Changed { count: 1, outcome: position })
        })
        .await?;
    Ok(Json(ResetPosition { position: position.get() }))
}

enum ResetTarget {
    Position(Position),
    Time(DateTime<Utc>),
    End,
}

impl ResetTarget {
    fn describe(&self) -> String {
        match self {
            ResetTarget::Position(position) => position.to_string(),
            ResetTarget::Time(time) => time.to_rfc3339(),
            ResetTarget::End => "end".to_owned(),
        }
    }
}

impl ResetRequest {
    fn target(&self) -> ApiResult<ResetTarget> {
        match (self.position, self.time, self.to) {
            (Some(position), None, None) if position >= 0 => {
                Ok(ResetTarget::Position(Position::new(position)))
            }
            (None, Some(time), None) => Ok(ResetTarget::Time(time)),
            (None, None, Some(LogEnd::Start)) => Ok(ResetTarget::Position(Position::START)),
            (None, None, Some(LogEnd::End)) => Ok(ResetTarget::End),
            (Some(_), None, None) => Err(Problem::invalid("`position` must not be negative")),
            _ => Err(Problem::invalid("set exactly one of `position`, `time` and `to`")),
        }
    }
}

async fn set_status(
    database: &Database,
    caller: &Caller,
    action: &'static str,
    name: &str,
    topic: Option<&str>,
    work: impl Future<Output = outbox::Result<u64>>,
) -> ApiResult<Json<ChangedCount>> {
    check(name, topic)?;
    let change = AuditedChange::new(database, caller, action, target(name, topic));
    let work = async { work.await.map(|count| Changed { count, outcome: () }).map_err(Problem::from) };
    let count = change.counted(work).await?;
    Ok(Json(ChangedCount { changed: count }))
}

fn target(name: &str, topic: Option<&str>) -> String {
    topic.map_or_else(|| name.to_owned(), |topic| format!("{topic}/{name}"))
}

fn check(name: &str, topic: Option<&str>) -> ApiResult<()> {
    // Text that cannot be a name is not the name of any publisher.
    let is_name = |name: &str| text::check("name", name, 100).is_ok();
    if is_name(name) && topic.is_none_or(is_name) { Ok(()) } else { Err(unknown(name)) }
}
