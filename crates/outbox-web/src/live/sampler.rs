//! Samples one database every second, for all its streams.

use std::time::{Duration, Instant};

use chrono::Utc;
use outbox::LogAdmin;
use outbox::store::SharedStore;

use super::rates::{Flow, Rates, Written};
use super::tick::{Behind, Point, Tick, TypeRate, milliseconds};
use crate::routes::nodes::failing;
use crate::routes::publishers::outages_of;

/// Limit of the counts.
pub(crate) const MOST: u64 = 10_000;

/// Timeout of the queries of a sample.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum number of event types in a sample.
const TYPES: usize = 100;

/// State kept between two samples.
pub(crate) struct Sampler {
    began: Instant,
    rates: Rates,
    written: Written,
    first: bool,
}

impl Sampler {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), rates: Rates::default(), written: Written::default(), first: true }
    }

    /// Takes a sample. Without a store, or if the store does not respond, the sample has an error.
    pub(crate) async fn look(&mut self, store: Option<SharedStore>) -> Tick {
        let Some(store) = store else { return nothing("the database is not open") };
        match tokio::time::timeout(PATIENCE, self.ask(&store)).await {
            Ok(Ok(tick)) => tick,
            Ok(Err(error)) => {
                tracing::debug!(%error, store = store.name(), "cannot sample the database");
                nothing("the database does not respond")
            }
            Err(_) => nothing("the database did not respond in time"),
        }
    }

    async fn ask(&mut self, store: &SharedStore) -> outbox::Result<Tick> {
        let overview = store.overview(MOST).await?;
        let nodes = store.nodes().await?;
        let lag = if store.log().is_some() { LogAdmin::new(store.clone()).lag().await? } else { Vec::new() };
        let now = self.began.elapsed();
        let flow = self.rates.hear(now, &nodes);
        let written = self.written.hear(now, overview.last_seq);
        // Rates are unknown in the first sample.
        let known = !std::mem::replace(&mut self.first, false);
        let known = |rate: f64| known.then_some(round(rate));
        let behind = |lag: outbox::PairLag| Behind {
            topic: lag.id.topic().to_owned(),
            publisher: lag.id.publisher().to_owned(),
            status: lag.status.as_str(),
            behind: lag.behind,
        };
        let point = Point {
            at: overview.now,
            written: written.map(round),
            delivered: known(flow.delivered),
            retried: known(flow.failed),
            dead: known(flow.dead),
            deferred: known(flow.deferred),
            p50: flow.took(0.50).map(round),
            p95: flow.took(0.95).map(round),
            p99: flow.took(0.99).map(round),
            oldest: Some(overview.oldest_due.map_or(0, milliseconds)),
            publishers: lag.into_iter().map(behind).collect(),
        };
        Ok(Tick {
            point,
            overview: Some(overview.into()),
            outages: outages_of(&nodes),
            failing: failing(&nodes),
            types: types(&flow),
            relays: nodes.iter().filter(|node| node.is_running()).count(),
            error: None,
            by_node: self.rates.delivered_by_node(),
            heard: Instant::now(),
        })
    }
}

fn types(flow: &Flow) -> Vec<TypeRate> {
    let rate = |(name, [delivered, failed, dead]): (&String, &[f64; 3])| TypeRate {
        event_type: name.clone(),
        delivered: round(*delivered),
        failed: round(*failed),
        dead: round(*dead),
    };
    let mut types: Vec<TypeRate> = flow.types.iter().map(rate).collect();
    types.sort_by(|a, b| (b.delivered + b.failed).total_cmp(&(a.delivered + a.failed)));
    types.truncate(TYPES);
    types
}

/// Rounds to two decimal places.
fn round(rate: f64) -> f64 {
    (rate * 100.0).round() / 100.0
}

fn nothing(error: &str) -> Tick {
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
        heard: Instant::now(),
    }
}
