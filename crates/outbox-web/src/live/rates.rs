//! Rates: converts the counters of relays, which count from their start, to events per second.
//!
//! A relay announces its counters every other second while they change, and less often while they
//! do not. A difference is spread over the time since the previous announcement, so that charts do
//! not jump. This module uses neither clock nor database.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use chrono::{DateTime, Utc};
use outbox::store::{Counts, Node, TypeCounts};

/// Minimum and maximum time, in seconds, over which a difference is spread.
const SPREAD_SECONDS: (f64, f64) = (0.5, 3.0);

/// Events per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Throughput {
    pub(crate) delivered: f64,
    pub(crate) failed: f64,
    pub(crate) dead: f64,
    pub(crate) deferred: f64,
    /// By event type: delivered, failed, dead.
    pub(crate) types: BTreeMap<String, [f64; 3]>,
    /// Deliveries per second by latency, in the buckets of [`Counts::latency`].
    latency: Vec<f64>,
}

impl Throughput {
    fn of(difference: &Counts, seconds: f64) -> Self {
        let rate = |count: u64| count as f64 / seconds;
        let of_type = |counts: &TypeCounts| [counts.delivered, counts.failed, counts.dead].map(rate);
        let has_rate = |(_, rates): &(String, [f64; 3])| rates.iter().any(|rate| *rate > 0.0);
        Self {
            delivered: rate(difference.delivered),
            failed: rate(difference.failed),
            dead: rate(difference.dead),
            deferred: rate(difference.deferred),
            types: difference
                .types
                .iter()
                .map(|(name, of)| (name.clone(), of_type(of)))
                .filter(has_rate)
                .collect(),
            latency: difference.latency.iter().copied().map(rate).collect(),
        }
    }

    fn add(&mut self, other: &Throughput) {
        self.delivered += other.delivered;
        self.failed += other.failed;
        self.dead += other.dead;
        self.deferred += other.deferred;
        for (name, rates) in &other.types {
            let sum = self.types.entry(name.clone()).or_default();
            sum.iter_mut().zip(rates).for_each(|(sum, rate)| *sum += rate);
        }
        self.latency.resize(self.latency.len().max(other.latency.len()), 0.0);
        self.latency.iter_mut().zip(&other.latency).for_each(|(sum, rate)| *sum += rate);
    }

    /// Latency in milliseconds within which this fraction of the events was settled; `None` without
    /// events.
    pub(crate) fn percentile(&self, fraction: f64) -> Option<f64> {
        let all: f64 = self.latency.iter().sum();
        if all <= 0.0 {
            return None;
        }
        let mut left = all * fraction;
        for (bucket, count) in self.latency.iter().enumerate() {
            if *count > 0.0 && left <= *count {
                let upper = (bucket as f64).exp2();
                let lower = if bucket == 0 { 0.0 } else { upper / 2.0 };
                return Some(lower + (upper - lower) * (left / count));
            }
            left -= count;
        }
        self.latency.iter().rposition(|count| *count > 0.0).map(|bucket| (bucket as f64).exp2())
    }
}

/// Rates of all relays.
#[derive(Default)]
pub(crate) struct Rates {
    nodes: HashMap<String, NodeRate>,
    primed: bool,
}

struct NodeRate {
    started_at: DateTime<Utc>,
    counts: Counts,
    /// When the counters were announced, in seconds.
    announced_at: f64,
    throughput: Throughput,
    /// Until when the rates are valid, unless the counters change.
    valid_until: f64,
}

impl Rates {
    /// Updates the rates from the announcements of relays. `now` is the time since a fixed instant.
    pub(crate) fn update(&mut self, now: Duration, nodes: &[Node]) -> Throughput {
        let now = now.as_secs_f64();
        self.nodes.retain(|name, _| nodes.iter().any(|node| node.node.as_str() == name));
        let primed = std::mem::replace(&mut self.primed, true);
        let mut sum = Throughput::default();
        for node in nodes.iter().filter(|node| node.is_running()) {
            let announced_at = now - node.seen.as_secs_f64();
            let node_rate = self.nodes.entry(node.node.to_string()).or_insert_with(|| NodeRate {
                started_at: node.started_at,
                // A node that was not in the previous sample has started since; for nodes in the
                // first sample it is unknown when their events were counted.
                counts: if primed { Counts::default() } else { node.state.counts.clone() },
                announced_at: if primed { announced_at - SPREAD_SECONDS.1 } else { announced_at },
                throughput: Throughput::default(),
                valid_until: now,
            });
            node_rate.update(now, announced_at, node);
            sum.add(&node_rate.throughput);
        }
        sum
    }

    /// Events delivered per second, by relay.
    pub(crate) fn delivered_by_node(&self) -> HashMap<String, f64> {
        self.nodes.iter().map(|(name, node_rate)| (name.clone(), node_rate.throughput.delivered)).collect()
    }
}

impl NodeRate {
    fn update(&mut self, now: f64, announced_at: f64, node: &Node) {
        if self.counts == node.state.counts {
            self.announced_at = announced_at;
            if now >= self.valid_until {
                self.throughput = Throughput::default();
            }
            return;
        }
        let seconds = (announced_at - self.announced_at).clamp(SPREAD_SECONDS.0, SPREAD_SECONDS.1);
        let restarted = node.started_at != self.started_at;
        self.throughput = Throughput::of(&difference(&self.counts, &node.state.counts, restarted), seconds);
        self.valid_until = now + seconds;
        self.counts = node.state.counts.clone();
        (self.announced_at, self.started_at) = (announced_at, node.started_at);
    }
}

/// Difference of two counters. A counter that has decreased was restarted, and counts from zero.
fn difference(before: &Counts, after: &Counts, restarted: bool) -> Counts {
    let decreased = after.delivered < before.delivered
        || after.failed < before.failed
        || after.dead < before.dead
        || after.deferred < before.deferred;
    if decreased || restarted {
        return after.clone();
    }
    let mut difference = after.clone();
    difference.delivered -= before.delivered;
    difference.failed -= before.failed;
    difference.dead -= before.dead;
    difference.deferred -= before.deferred;
    for (now, then) in difference.latency.iter_mut().zip(&before.latency) {
        *now = now.saturating_sub(*then);
    }
    for (name, then) in &before.types {
        if let Some(now) = difference.types.get_mut(name) {
            now.delivered = now.delivered.saturating_sub(then.delivered);
            now.failed = now.failed.saturating_sub(then.failed);
            now.dead = now.dead.saturating_sub(then.dead);
        }
    }
    difference
}

/// Events written per second, from the greatest sequence number.
#[derive(Default)]
pub(crate) struct WriteRate(Option<(f64, i64)>);

impl WriteRate {
    /// Adds a sample and returns the rate since the previous one. `None` until there are two
    /// samples.
    pub(crate) fn update(&mut self, now: Duration, last_seq: i64) -> Option<f64> {
        let now = now.as_secs_f64();
        if last_seq <= 0 {
            return None;
        }
        let (then, before) = self.0.replace((now, last_seq))?;
        // The number may decrease if the table was emptied.
        let written = u64::try_from(last_seq - before).unwrap_or(0);
        Some(written as f64 / (now - then).max(0.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, seen: f64, delivered: u64) -> Node {
        let mut state: outbox::store::NodeState =
            serde_json::from_str(r#"{"mode": "ordered", "version": "1", "active": true}"#).unwrap();
        state.counts.delivered = delivered;
        state.counts.latency = vec![0, 0, 0, delivered];
        state.counts.types = [("order".to_owned(), TypeCounts::default())].into();
        state.counts.types.get_mut("order").unwrap().delivered = delivered;
        Node {
            node: name.into(),
            started_at: DateTime::UNIX_EPOCH,
            seen: Duration::from_secs_f64(seen),
            state,
        }
    }

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn events_counted_before_the_first_sample_have_no_rate() {
        assert_eq!(Rates::default().update(at(0.0), &[node("a", 0.0, 1_000_000)]).delivered, 0.0);
    }

    #[test]
    fn a_difference_is_spread_over_the_time_since_the_last_announcement() {
        let mut rates = Rates::default();
        rates.update(at(0.0), &[node("a", 0.0, 100)]);
        let throughput = rates.update(at(2.0), &[node("a", 0.0, 300)]);
        assert!((throughput.delivered - 100.0).abs() < 0.01, "{throughput:?}");
        assert_eq!(throughput.types["order"][0], throughput.delivered);
        assert_eq!(rates.delivered_by_node()["a"], throughput.delivered);
        // The counters have not changed: the rates stay until their spread has passed, then drop to
        // zero.
        assert_eq!(rates.update(at(3.0), &[node("a", 1.0, 300)]).delivered, throughput.delivered);
        assert_eq!(rates.update(at(5.0), &[node("a", 3.0, 300)]).delivered, 0.0);
    }

    #[test]
    fn a_difference_after_an_idle_time_is_not_spread_over_that_time() {
        let mut rates = Rates::default();
        rates.update(at(0.0), &[node("a", 0.0, 0)]);
        let throughput = rates.update(at(60.0), &[node("a", 0.0, 300)]);
        assert!((throughput.delivered - 100.0).abs() < 0.01, "{throughput:?}");
    }

    #[test]
    fn a_restart_gives_no_negative_rates() {
        let mut rates = Rates::default();
        rates.update(at(0.0), &[node("a", 0.0, 5_000)]);
        let throughput = rates.update(at(2.0), &[node("a", 0.0, 20)]);
        assert!((throughput.delivered - 10.0).abs() < 0.01, "{throughput:?}");
        let mut again = node("a", 0.0, 40);
        again.started_at = Utc::now();
        let throughput = rates.update(at(4.0), &[again]);
        assert!((throughput.delivered - 20.0).abs() < 0.01, "counted from zero: {throughput:?}");
        assert!(throughput.latency.iter().all(|rate| *rate >= 0.0));
    }

    #[test]
    fn rates_of_relays_are_summed_as_relays_start_and_stop() {
        let mut rates = Rates::default();
        rates.update(at(0.0), &[node("a", 0.0, 0)]);
        let throughput = rates.update(at(2.0), &[node("a", 0.0, 20), node("b", 0.0, 30)]);
        assert!(
            (throughput.delivered - 20.0).abs() < 0.01,
            "10 of a, 30 over 3 s of the new one: {throughput:?}"
        );
        assert_eq!(rates.update(at(10.0), &[]), Throughput::default());
    }

    #[test]
    fn percentiles_are_interpolated_within_buckets() {
        let throughput = Throughput { latency: vec![0.0, 0.0, 50.0, 0.0, 50.0], ..Throughput::default() };
        assert_eq!(throughput.percentile(0.25), Some(3.0), "halfway from 2 to 4");
        assert_eq!(throughput.percentile(0.5), Some(4.0));
        assert_eq!(throughput.percentile(0.75), Some(12.0), "halfway from 8 to 16");
        assert_eq!(throughput.percentile(1.0), Some(16.0));
        assert_eq!(Throughput::default().percentile(0.5), None);
    }

    #[test]
    fn the_write_rate_comes_from_sequence_numbers_that_may_decrease() {
        let mut written = WriteRate::default();
        assert_eq!(written.update(at(0.0), 100), None);
        assert_eq!(written.update(at(2.0), 300), Some(100.0));
        assert_eq!(written.update(at(3.0), 5), Some(0.0));
        assert_eq!(written.update(at(4.0), 0), None, "unknown");
        assert_eq!(written.update(at(5.0), 25), Some(10.0));
    }
}
