//! Samples, as sent once a second.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use outbox::store::Overview;
use serde::Serialize;
use utoipa::ToSchema;

use crate::routes::nodes::TaskErrorView;
use crate::routes::publishers::OutageView;
use crate::views::Count;

/// One second, for charts. Rates are events per second; null means unknown.
#[derive(Clone, Serialize, ToSchema)]
#[schema(example = json!({
    "at": "2026-01-31T12:00:00Z", "written": 120.0, "delivered": 118.5, "retried": 1.5, "dead": 0.0, "deferred": 0.0,
    "p50": 6.1, "p95": 14.0, "p99": 30.2, "oldest": 40, "publishers": [],
}))]
pub(crate) struct Point {
    /// Time of the sample, by the clock of the database.
    pub(crate) at: DateTime<Utc>,
    /// Events written.
    pub(crate) written: Option<f64>,
    /// Events delivered.
    pub(crate) delivered: Option<f64>,
    /// Failed attempts that are followed by a retry.
    pub(crate) retried: Option<f64>,
    /// Events dead-lettered.
    pub(crate) dead: Option<f64>,
    /// Times that an event was deferred without an attempt.
    pub(crate) deferred: Option<f64>,
    /// Median time from due to settled, in milliseconds.
    pub(crate) p50: Option<f64>,
    /// The 95th percentile of that time.
    pub(crate) p95: Option<f64>,
    /// The 99th percentile of that time.
    pub(crate) p99: Option<f64>,
    /// Age of the oldest due event, in milliseconds; 0 if none is due.
    pub(crate) oldest: Option<u64>,
    /// Lag of the publishers of the log.
    pub(crate) publishers: Vec<PublisherLag>,
}

/// Lag of a publisher in a topic.
#[derive(Clone, Serialize, ToSchema)]
pub(crate) struct PublisherLag {
    /// The topic.
    pub(crate) topic: String,
    /// The publisher.
    pub(crate) publisher: String,
    /// `ACTIVE`, `PAUSED` or `FAILED`.
    pub(crate) status: &'static str,
    /// Number of positions between the publisher and the end of the log.
    pub(crate) behind: u64,
}

/// One complete sample.
#[derive(Clone, Serialize, ToSchema)]
pub(crate) struct Tick {
    /// The values for charts.
    #[serde(flatten)]
    pub(crate) point: Point,
    /// The state of the table; null if the database does not respond.
    pub(crate) overview: Option<OverviewView>,
    /// Destinations that are unavailable.
    pub(crate) outages: Vec<OutageView>,
    /// Errors that prevent relays from delivering.
    pub(crate) failing: Vec<TaskErrorView>,
    /// By event type, the busiest first; at most a hundred.
    pub(crate) types: Vec<TypeRate>,
    /// Number of running relays.
    pub(crate) relays: usize,
    /// Why the sample failed.
    pub(crate) error: Option<String>,
    #[serde(skip)]
    pub(crate) by_node: HashMap<String, f64>,
    /// By the clock of this process, which may differ from the clock of the database.
    #[serde(skip)]
    pub(crate) sampled_at: Instant,
}

/// Rates of an event type.
#[derive(Clone, Serialize, ToSchema)]
pub(crate) struct TypeRate {
    /// The event type; `…` for all other types.
    pub(crate) event_type: String,
    /// Events delivered per second.
    pub(crate) delivered: f64,
    /// Failed attempts per second.
    pub(crate) failed: f64,
    /// Events dead-lettered per second.
    pub(crate) dead: f64,
}

/// Summary of the table.
#[derive(Clone, Serialize, ToSchema)]
pub(crate) struct OverviewView {
    /// The clock of the database.
    pub(crate) now: DateTime<Utc>,
    /// Events that are due, including claimed events.
    pub(crate) due: Count,
    /// Events that are due later, including retries.
    pub(crate) delayed: Count,
    /// Events that have failed and are to be retried.
    pub(crate) retrying: Count,
    /// Events claimed by a relay.
    pub(crate) held: Count,
    /// Dead events.
    pub(crate) dead: Count,
    /// Age of the oldest due event, in milliseconds.
    pub(crate) oldest_due_ms: Option<u64>,
    /// When an event last became DONE or DEAD.
    pub(crate) last_settled: Option<DateTime<Utc>>,
    /// The relay that is the leader of the table, in modes with a leader.
    pub(crate) leader: Option<String>,
    /// The greatest sequence number; 0 if unknown.
    pub(crate) last_seq: i64,
    /// Number of rows in the table, as estimated by the database.
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
