//! Samples one database every second, for all its streams.

use std::time::{Duration, Instant};

use chrono::Utc;
use outbox::LogAdmin;
use outbox::store::SharedStore;

use super::rates::{Rates, Throughput, WriteRate};
use super::tick::{Point, PublisherLag, Tick, TypeRate, milliseconds};
use crate::routes::nodes::failing;
use crate::routes::publishers::outages_of;

/// Limit of the counts.
pub(crate) const COUNT_LIMIT: u64 = 10_000;

/// Timeout of the queries of a sample.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of event types in a sample.
const MAX_TYPES: usize = 100;

/// State kept between two samples.
pub(crate) struct Sampler {
    began: Instant,
    rates: Rates,
    written: WriteRate,
    is_first: bool,
}

impl Sampler {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), rates: Rates::default(), written: WriteRate::default(), is_first: true }
    }

    /// Takes a sample. Without a store, or if the store does not respond, the sample has an error.
    pub(crate) async fn sample(&mut self, store: Option<SharedStore>) -> Tick {
        let Some(store) = store else { return failed("the database is not open") };
        match tokio::time::timeout(TIMEOUT, self.query(&store)).await {
            Ok(Ok(tick)) => tick,
            Ok(Err(error)) => {
                tracing::debug!(%error, store = store.name(), "cannot sample the database");
                failed("the database does not respond")
            }
            Err(_) => failed("the database did not respond in time"),
        }
    }

    async fn query(&mut self, store: &SharedStore) -> outbox::Result<Tick> {
        let overview = store.overview(COUNT_LIMIT).await?;
        let nodes = store.nodes().await?;
        let lag = if store.log().is_some() { LogAdmin::new(store.clone()).lag().await? } else { Vec::new() };
        let now = self.began.elapsed();
        let throughput = self.rates.update(now, &nodes);
        let written = self.written.update(now, overview.last_seq);
        // Rates are unknown in the first sample.
        let known = !std::mem::replace(&mut self.is_first, false);
        let known = |rate: f64| known.then_some(round(rate));
        let behind = |lag: outbox::Lag| PublisherLag {
            topic: lag.id.topic().to_owned(),
            publisher: lag.id.publisher().to_owned(),
            status: lag.status.as_str(),
            behind: lag.behind,
        };
        let point = Point {
            at: overview.now,
            written: written.map(round),
            delivered: known(throughput.delivered),
            retried: known(throughput.failed),
            dead: known(throughput.dead),
            deferred: known(throughput.deferred),
            p50: throughput.percentile(0.50).map(round),
            p95: throughput.percentile(0.95).map(round),
            p99: throughput.percentile(0.99).map(round),
            oldest: Some(overview.oldest_due.map_or(0, milliseconds)),
            publishers: lag.into_iter().map(behind).collect(),
        };
        Ok(Tick {
            point,
            overview: Some(overview.into()),
            outages: outages_of(&nodes),
            failing: failing(&nodes),
            types: types(&throughput),
            relays: nodes.iter().filter(|node| node.is_running()).count(),
            error: None,
            by_node: self.rates.delivered_by_node(),
            sampled_at: Instant::now(),
        })
    }
}

fn types(throughput: &Throughput) -> Vec<TypeRate> {
    let rate = |(name, [delivered, failed, dead]): (&String, &[f64; 3])| TypeRate {
        event_type: name.clone(),
        delivered: round(*delivered),
        failed: round(*failed),
        dead: round(*dead),
    };
    let mut types: Vec<TypeRate> = throughput.types.iter().map(rate).collect();
    types.sort_by(|a, b| (b.delivered + b.failed).total_cmp(&(a.delivered + a.failed)));
    types.truncate(MAX_TYPES);
    types
}

/// Rounds to two decimal places.
fn round(rate: f64) -> f64 {
    (rate * 100.0).round() / 100.0
}

fn failed(error: &str) -> Tick {
    let point = Point {
        at: Utc::now(),
        written: None,
        delivered: None,
        retried: None,
        dead: None,
        deferred: None,
        p50: None,
        p95: None,
        p99: None,
        oldest: None,
        publishers: Vec::new(),
    };
    Tick {
        point,
        overview: None,
        outages: Vec::new(),
        failing: Vec::new(),
        types: Vec::new(),
        relays: 0,
        error: Some(error.to_owned()),
        by_node: std::collections::HashMap::new(),
        sampled_at: Instant::now(),
    }
}
