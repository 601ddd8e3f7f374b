//! What is told every second.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use outbox::store::Overview;
use serde::Serialize;
use utoipa::ToSchema;

use crate::routes::nodes::TaskErrorView;
use crate::routes::publishers::OutageView;
use crate::views::Count;

/// One second, as charts show it. Rates are events a second; null: not known.
#[derive(Clone, Serialize, ToSchema)]
#[schema(example = json!({
    "at": "2026-01-31T12:00:00Z", "written": 120.0, "delivered": 118.5, "retried": 1.5, "dead": 0.0, "deferred": 0.0,
    "p50": 6.1, "p95": 14.0, "p99": 30.2, "oldest": 40, "publishers": [],
}))]
pub(crate) struct Point {
    /// When, by the clock of the database.
    pub(crate) at: DateTime<Utc>,
    /// Events written.
    pub(crate) written: Option<f64>,
    /// Events delivered.
    pub(crate) delivered: Option<f64>,
    /// Attempts that failed and are followed by another.
    pub(crate) retried: Option<f64>,
    /// Events given up.
    pub(crate) dead: Option<f64>,
    /// Times that an event was put off without an attempt.
    pub(crate) deferred: Option<f64>,
    /// Half of the events were done within so many milliseconds of being due.
    pub(crate) p50: Option<f64>,
    /// The same of 95 %.
    pub(crate) p95: Option<f64>,
    /// The same of 99 %.
    pub(crate) p99: Option<f64>,
    /// How long the oldest due event has waited, in milliseconds; 0 if none is due.
    pub(crate) oldest: Option<u64>,
    /// How far behind publishers of the log are.
    pub(crate) publishers: Vec<Behind>,
}

/// How far behind a publisher is.
#[derive(Clone, Serialize, ToSchema)]
pub(crate) struct Behind {
    /// The topic.
    pub(crate) topic: String,
    /// The publisher.
    pub(crate) publisher: String,
    /// `ACTIVE`, `PAUSED` or `FAILED`.
    pub(crate) status: &'static str,
    /// How many positions.
    pub(crate) behind: u64,
}

/// One second, with everything that is known.
#[derive(Clone, Serialize, ToSchema)]
pub(crate) struct Tick {
    /// For charts.
    #[serde(flatten)]
    pub(crate) point: Point,
    /// What stands in the table; null if the database does not answer.
    pub(crate) overview: Option<OverviewView>,
    /// What cannot be reached.
    pub(crate) outages: Vec<OutageView>,
    /// Errors that keep relays from delivering.
    pub(crate) failing: Vec<TaskErrorView>,
    /// By event type, those with the most first; at most a hundred.
    pub(crate) types: Vec<TypeRate>,
    /// How many relays run.
    pub(crate) relays: usize,
    /// Why nothing is known this second.
    pub(crate) error: Option<String>,
    #[serde(skip)]
    pub(crate) by_node: HashMap<String, f64>,
    /// By the clock of this process, which may differ from the database's.
    #[serde(skip)]
    pub(crate) heard: Instant,
}

/// How fast events of a type go.
#[derive(Clone, Serialize, ToSchema)]
pub(crate) struct TypeRate {
    /// The type; `…` for all others.
    pub(crate) event_type: String,
    /// Delivered a second.
    pub(crate) delivered: f64,
    /// Failed attempts a second.
    pub(crate) failed: f64,
    /// Given up a second.
    pub(crate) dead: f64,
}

/// What stands in the table, at a glance.
#[derive(Clone, Serialize, ToSchema)]
pub(crate) struct OverviewView {
    /// The clock of the database.
    pub(crate) now: DateTime<Utc>,
    /// To be delivered now, those that somebody holds among them.
    pub(crate) due: Count,
    /// To be delivered later, retries among them.
    pub(crate) delayed: Count,
    /// Failed before, and to be tried again.
    pub(crate) retrying: Count,
    /// Held by a relay.
    pub(crate) held: Count,
    /// Given up.
    pub(crate) dead: Count,
    /// How long the oldest due event has waited.
    pub(crate) oldest_due_ms: Option<u64>,
    /// When something last became DONE or DEAD.
    pub(crate) last_settled: Option<DateTime<Utc>>,
    /// The relay that leads the whole table, if one does.
    pub(crate) leader: Option<String>,
    /// The greatest number that an event was given; 0 if it is not known.
    pub(crate) last_seq: i64,
    /// How many rows the table has, as the database itself estimates.
    pub(crate) rows: Option<u64>,
}

impl From<Overview> for OverviewView {
    fn from(overview: Overview) -> Self {
        Self {
            now: overview.now,
            due: overview.due.into(),
            delayed: overview.delayed.into(),
            retrying: overview.retrying.into(),
            held: overview.held.into(),
            dead: overview.dead.into(),
            oldest_due_ms: overview.oldest_due.map(milliseconds),
            last_settled: overview.last_settled,
            leader: overview.leader.map(|node| node.to_string()),
            last_seq: overview.last_seq,
            rows: overview.rows,
        }
    }
}

pub(crate) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
