//! Metrics of the relay, on the `metrics` facade: install any recorder (Prometheus, OpenTelemetry)
//! to export them.
//!
//! | name | kind | counts |
//! | --- | --- | --- |
//! | `outbox.enqueue.hot` | counter | events handed over after commit |
//! | `outbox.enqueue.hot.dropped` | counter | events that found the hot queue full, and wait for the poller |
//! | `outbox.enqueue.hot.skipped.delayed` | counter | delayed events, which wait in the database |
//! | `outbox.enqueue.cold` | counter | events read by the poller |
//! | `outbox.dispatch.success` | counter | events handled |
//! | `outbox.dispatch.failure` | counter | attempts that failed and will be retried |
//! | `outbox.dispatch.dead` | counter | events dead-lettered |
//! | `outbox.dispatch.deferred` | counter | events that their handler snoozed |
//! | `outbox.settle.stale` | counter | stale verdicts: another node held the event by then |
//! | `outbox.queue.hot.depth`, `outbox.queue.cold.depth` | gauge | events waiting for a worker |
//! | `outbox.lag.oldest.ms` | gauge | how long the oldest due event has waited; measured every 5 s while events are due, at least every 30 s |
//! | `outbox.unrouted` | gauge | of the first 2,000 pending events, those that no running relay routes; measured with the lag, by relays that do not route everything |
//! | `outbox.take.last.seconds` | gauge | when the database last completed a take, in seconds since 1970: `time() - …` is its age |
//! | `outbox.settle.last.seconds` | gauge | the same of the last settlement |
//! | `outbox.task.failing` | gauge | 1 while the task fails: `take`, `settle`, `renew`, `log_relay`, … |
//! | `outbox.task.errors` | counter | errors and panics of the task |
//! | `outbox.destination.unavailable` | gauge | 1 while the destination is not available and its events wait |
//! | `outbox.log.published` | counter | events of the log that a publisher took |
//! | `outbox.log.errors` | counter | batches that a publisher failed to take |
//! | `outbox.log.leading` | gauge | 1 while this node leads the pair of topic and publisher |
//! | `outbox.log.takeovers` | counter | pairs that this node took over from a leader whose lease had run out |
//! | `outbox.log.lag` | gauge | how many positions the pair is behind the end of the log |
//!
//! Each has the label `store`; those of the log also `topic` and `publisher`, that of a destination
//! also `destination`, those of a task also `task`. A [`Fleet`](crate::Fleet) has metrics of its
//! own, without a label:
//!
//! | name | kind | counts |
//! | --- | --- | --- |
//! | `outbox.fleet.databases` | gauge | databases that are part of it |
//! | `outbox.fleet.connections` | gauge | connections that are open, over all databases |
//! | `outbox.fleet.troubled` | gauge | databases that do not answer, or cannot be reached |
//!
//! Ids, keys and tenants of events are never labels.

use metrics::{Counter, Gauge, counter, gauge};

use crate::log::SubscriptionId;
use crate::store::RelayTask;

/// Handles to all metrics of the relay, looked up once.
#[derive(Clone)]
pub(crate) struct Metrics {
    pub(crate) hot_enqueued: Counter,
    pub(crate) hot_dropped: Counter,
    pub(crate) hot_skipped_delayed: Counter,
    pub(crate) cold_enqueued: Counter,
    pub(crate) success: Counter,
    pub(crate) failure: Counter,
    pub(crate) dead: Counter,
    pub(crate) deferred: Counter,
    pub(crate) stale: Counter,
    pub(crate) hot_depth: Gauge,
    pub(crate) cold_depth: Gauge,
    pub(crate) oldest_lag_ms: Gauge,
    pub(crate) unrouted: Gauge,
    pub(crate) last_take: Gauge,
    pub(crate) last_settlement: Gauge,
    prefix: String,
    store: String,
}

impl Metrics {
    pub(crate) fn new(prefix: &str, store: &str) -> Self {
        let counter = |name: &str| counter!(format!("{prefix}.{name}"), "store" => store.to_owned());
        let gauge = |name: &str| gauge!(format!("{prefix}.{name}"), "store" => store.to_owned());
        Self {
            hot_enqueued: counter("enqueue.hot"),
            hot_dropped: counter("enqueue.hot.dropped"),
            hot_skipped_delayed: counter("enqueue.hot.skipped.delayed"),
            cold_enqueued: counter("enqueue.cold"),
            success: counter("dispatch.success"),
            failure: counter("dispatch.failure"),
            dead: counter("dispatch.dead"),
            deferred: counter("dispatch.deferred"),
            stale: counter("settle.stale"),
            hot_depth: gauge("queue.hot.depth"),
            cold_depth: gauge("queue.cold.depth"),
            oldest_lag_ms: gauge("lag.oldest.ms"),
            unrouted: gauge("unrouted"),
            last_take: gauge("take.last.seconds"),
            last_settlement: gauge("settle.last.seconds"),
            prefix: prefix.to_owned(),
            store: store.to_owned(),
        }
    }

    /// Whether a destination is unavailable.
    pub(crate) fn unavailable(&self, destination: &str) -> Gauge {
        let labels = [("store", self.store.clone()), ("destination", destination.to_owned())];
        gauge!(format!("{}.destination.unavailable", self.prefix), &labels)
    }

    /// Whether a task fails.
    pub(crate) fn failing(&self, task: RelayTask) -> Gauge {
        let labels = [("store", self.store.clone()), ("task", task.as_str().to_owned())];
        gauge!(format!("{}.task.failing", self.prefix), &labels)
    }

    /// Errors and panics of a task.
    pub(crate) fn errors(&self, task: RelayTask) -> Counter {
        let labels = [("store", self.store.clone()), ("task", task.as_str().to_owned())];
        counter!(format!("{}.task.errors", self.prefix), &labels)
    }
}

/// Creates the metrics of subscriptions.
pub(crate) struct SubscriptionMetrics<'a> {
    prefix: &'a str,
    store: &'a str,
}

impl<'a> SubscriptionMetrics<'a> {
    pub(crate) fn new(prefix: &'a str, store: &'a str) -> Self {
        Self { prefix, store }
    }

    fn labels(&self, subscription: &SubscriptionId) -> [(&'static str, String); 3] {
        let SubscriptionMetrics { store, .. } = self;
        [
            ("store", (*store).to_owned()),
            ("topic", subscription.topic().to_owned()),
            ("publisher", subscription.publisher().to_owned()),
        ]
    }

    pub(crate) fn counter(&self, name: &str, subscription: &SubscriptionId) -> Counter {
        counter!(format!("{}.{name}", self.prefix), &self.labels(subscription))
    }

    pub(crate) fn gauge(&self, name: &str, subscription: &SubscriptionId) -> Gauge {
        gauge!(format!("{}.{name}", self.prefix), &self.labels(subscription))
    }
}
