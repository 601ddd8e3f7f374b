//! Pausing, resuming and resetting publishers.

use axum::Json;
use axum::extract::{Path, State};
use chrono::{DateTime, Utc};
use outbox::{LogAdmin, Position};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::publishers::{Name, TopicName, unknown};
use crate::auth::Caller;
use crate::databases::Chosen;
use crate::deeds::{Deeds, Happened};
use crate::extract::{Input, Params, Place};
use crate::problem::{Answer, Problem};
use crate::state::Shared;
use crate::text;

/// Position to reset a publisher to: `position`, `time`, or `to`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"to": "start"}))]
pub(crate) struct Reset {
    /// Publish the events after this position.
    #[schema(minimum = 0)]
    position: Option<i64>,
    /// Publish the events stored since this time.
    time: Option<DateTime<Utc>>,
    /// `start`: publish all events again; `end`: publish new events only.
    to: Option<Edge>,
}

/// An end of the log.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Edge {
    /// Before the first event.
    Start,
    /// After the last event.
    End,
}

/// Number of subscriptions (topic and publisher) changed.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"changed": 2}))]
pub(crate) struct Changed {
    /// The number of subscriptions.
    changed: u64,
}

/// Position after a reset.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"position": 0}))]
pub(crate) struct ResetTo {
    /// Events after this position are published.
    position: i64,
}

/// Pause a publisher
///
/// In all topics. A batch that is already in flight is still published.
#[utoipa::path(post, path = "/outbox/publishers/{name}/pause", tag = "publishers", params(Place, Name),
    responses((status = 200, description = "Paused", body = Changed)))]
pub(crate) async fn pause(
    State(web): State<Shared>,
    caller: Caller,
    Path(name): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<Changed>> {
    let database = place.choose(&web)?;
    let admin = LogAdmin::new(database.store.clone());
    switch(&database, &caller, "publisher.pause", &name, None, async { admin.pause(&name).await }).await
}

/// Resume a publisher
///
/// In all topics, from the current positions. Resets the error counts.
#[utoipa::path(post, path = "/outbox/publishers/{name}/resume", tag = "publishers", params(Place, Name),
    responses((status = 200, description = "Resumed", body = Changed)))]
pub(crate) async fn resume(
    State(web): State<Shared>,
    caller: Caller,
    Path(name): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<Changed>> {
    let database = place.choose(&web)?;
    let admin = LogAdmin::new(database.store.clone());
    switch(&database, &caller, "publisher.resume", &name, None, async { admin.resume(&name).await }).await
}

/// Pause a publisher in one topic
#[utoipa::path(post, path = "/outbox/publishers/{name}/topics/{topic}/pause", tag = "publishers",
    params(Place, Name, TopicName), responses((status = 200, description = "Paused", body = Changed)))]
pub(crate) async fn pause_in(
    State(web): State<Shared>,
    caller: Caller,
    Path((name, topic)): Path<(String, String)>,
    Params(place): Params<Place>,
) -> Answer<Json<Changed>> {
    let database = place.choose(&web)?;
    let admin = LogAdmin::new(database.store.clone());
    let pause = async { admin.pause_in(&topic, &name).await.map(|()| 1) };
    switch(&database, &caller, "publisher.pause", &name, Some(&topic), pause).await
}

/// Resume a publisher in one topic
#[utoipa::path(post, path = "/outbox/publishers/{name}/topics/{topic}/resume", tag = "publishers",
    params(Place, Name, TopicName), responses((status = 200, description = "Resumed", body = Changed)))]
pub(crate) async fn resume_in(
    State(web): State<Shared>,
    caller: Caller,
    Path((name, topic)): Path<(String, String)>,
    Params(place): Params<Place>,
) -> Answer<Json<Changed>> {
    let database = place.choose(&web)?;
    let admin = LogAdmin::new(database.store.clone());
    let resume = async { admin.resume_in(&topic, &name).await.map(|()| 1) };
    switch(&database, &caller, "publisher.resume", &name, Some(&topic), resume).await
}

/// Reset the position of a publisher in a topic
///
/// Backward: events are published again. Forward: events are skipped. A paused publisher stays
/// paused.
#[utoipa::path(post, path = "/outbox/publishers/{name}/topics/{topic}/reset", tag = "publishers",
    params(Place, Name, TopicName), request_body = Reset,
    responses((status = 200, description = "The new position", body = ResetTo),
              (status = 422, description = "The position is beyond the end of the log, or not exactly one of the fields is set")))]
pub(crate) async fn reset(
    State(web): State<Shared>,
    caller: Caller,
    Path((name, topic)): Path<(String, String)>,
    Params(place): Params<Place>,
    Input(reset): Input<Reset>,
) -> Answer<Json<ResetTo>> {
    let database = place.choose(&web)?;
    check(&name, Some(&topic))?;
    let to = reset.place()?;
    let admin = LogAdmin::new(database.store.clone());
    let deed = Deeds::new(&database, &caller, "publisher.reset", target(&name, Some(&topic)))
        .details(&serde_json::json!({"to": to.told()}));
    let position = deed
        .carry_out(async {
            let position = match to {
                To::Position(position) => position,
                To::Time(time) => {
                    let position = admin.reset_to_time(&topic, &name, time).await?;
                    return Ok(Happened { count: 1, outcome: position });
                }
                To::End => admin.lag().await?.first().map_or(Position::START, |lag| lag.head),
            };
            admin.reset(&topic, &name, position).await?;
            Ok(Happened { count: 1, outcome: position })
        })
        .await?;
    Ok(Json(ResetTo { position: position.get() }))
}

enum To {
    Position(Position),
    Time(DateTime<Utc>),
    End,
}

impl To {
    fn told(&self) -> String {
        match self {
            To::Position(position) => position.to_string(),
            To::Time(time) => time.to_rfc3339(),
            To::End => "end".to_owned(),
        }
    }
}

impl Reset {
    fn place(&self) -> Answer<To> {
        match (self.position, self.time, self.to) {
            (Some(position), None, None) if position >= 0 => Ok(To::Position(Position::new(position))),
            (None, Some(time), None) => Ok(To::Time(time)),
            (None, None, Some(Edge::Start)) => Ok(To::Position(Position::START)),
            (None, None, Some(Edge::End)) => Ok(To::End),
            (Some(_), None, None) => Err(Problem::invalid("`position` must not be negative")),
            _ => Err(Problem::invalid("set exactly one of `position`, `time` and `to`")),
        }
    }
}

async fn switch(
    database: &Chosen,
    caller: &Caller,
    action: &'static str,
    name: &str,
    topic: Option<&str>,
    work: impl Future<Output = outbox::Result<u64>>,
) -> Answer<Json<Changed>> {
    check(name, topic)?;
    let deed = Deeds::new(database, caller, action, target(name, topic));
    let work = async { work.await.map(|count| Happened { count, outcome: () }).map_err(Problem::from) };
    let count = deed.counted(work).await?;
    Ok(Json(Changed { changed: count }))
}

fn target(name: &str, topic: Option<&str>) -> String {
    topic.map_or_else(|| name.to_owned(), |topic| format!("{topic}/{name}"))
}

fn check(name: &str, topic: Option<&str>) -> Answer<()> {
    // Text that cannot be a name is not the name of any publisher.
    let is_name = |name: &str| text::check("name", name, 100).is_ok();
    if is_name(name) && topic.is_none_or(is_name) { Ok(()) } else { Err(unknown(name)) }
}
