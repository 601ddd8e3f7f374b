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

/// Where a publisher goes on in a topic: `position`, `time`, or `to`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"to": "start"}))]
pub(crate) struct Reset {
    /// What comes after this position is published.
    #[schema(minimum = 0)]
    position: Option<i64>,
    /// What was stored since this time is published.
    time: Option<DateTime<Utc>>,
    /// `start`: everything is published again; `end`: only what comes from now on.
    to: Option<Edge>,
}

/// An end of the log.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Edge {
    /// Its first event.
    Start,
    /// After its last event.
    End,
}

/// How many pairs of topic and publisher were changed.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"changed": 2}))]
pub(crate) struct Changed {
    /// How many.
    changed: u64,
}

/// Where a publisher goes on.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"position": 0}))]
pub(crate) struct ResetTo {
    /// What comes after this position is published.
    position: i64,
}

/// Pause a publisher
///
/// In all topics. What it is being given right now is the last.
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
/// In all topics, from where it stands, with no errors behind it.
#[utoipa::path(post, path = "/outbox/publishers/{name}/resume", tag = "publishers", params(Place, Name),
    responses((status = 200, description = "It goes on", body = Changed)))]
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
    params(Place, Name, TopicName), responses((status = 200, description = "It goes on", body = Changed)))]
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

/// Set a publisher to another place in a topic
///
/// Back: events are published again. Forwards: events are left out. A pause stays.
#[utoipa::path(post, path = "/outbox/publishers/{name}/topics/{topic}/reset", tag = "publishers",
    params(Place, Name, TopicName), request_body = Reset,
    responses((status = 200, description = "It goes on from there", body = ResetTo),
              (status = 422, description = "The position is beyond the end, or not exactly one place was named")))]
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
            _ => Err(Problem::invalid("name one of `position`, `time` and `to`")),
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
    // What cannot be the name of one is the name of none.
    let is_name = |name: &str| text::check("name", name, 100).is_ok();
    if is_name(name) && topic.is_none_or(is_name) { Ok(()) } else { Err(unknown(name)) }
}
