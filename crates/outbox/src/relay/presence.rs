//! Presence: announces that this relay runs, and releases the leases of relays that vanished.
//!
//! A relay announces itself four times in its presence time. A relay that has not announced itself
//! for that time, by the database's clock, has vanished, and each remaining relay releases the
//! leases of those that vanished: a crash delays the events of the crashed relay by that time,
//! however long their leases are.
//!
//! Why that is safe, also if the relay is alive and only could not announce itself:
//!
//! - **It handles nothing more by then.** Its own deadline, on its own monotonic clock and counted
//!   from before the announcement was sent, ends before the database's time does; see `Presence` in
//!   `in_flight`. It takes no events either until it has announced itself again.
//! - **It settles nothing more.** A release increments the claims of the events, as taking over an
//!   expired lease does, and a verdict names its claim.
//! - **It does not come back in between.** A release locks the row of the node, and an announcement
//!   waits for that lock.
//! - **Nothing is released because the database was away.** After an outage that kept all relays
//!   from announcing themselves, the first one to come back would find that all others have
//!   vanished. So a relay releases nothing before it has been present without a gap for its
//!   presence time: by then the relays that are alive have announced themselves as well.
//! - **Order per key is kept**: the store decides which events may be taken, and events that are
//!   still leased hold back their key.
//! - **An event that crashes relays is detected**: a released event is a suspect, as an event with
//!   an expired lease is.
//!
//! A handler that was already running goes on, as with a lease that cannot be renewed: its event
//! may be handled a second time. Relays of older versions do not store their presence time, and
//! owners of work items do not announce themselves: their leases run out. A `single_node` relay
//! holds no leases on events; its leadership runs out after 15 s.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Engine;
use crate::error::Result;
use crate::escape::Escaped;
use crate::store::{Node, NodeOutage, NodeRoutes, NodeState, RelayTask, UnroutedEvents};

/// The longest pause between two measurements of the lag, in announcement intervals.
const LONGEST_LAG_PAUSE: u32 = 6;

/// The longest pause before a failed announcement is retried.
const RETRY: Duration = Duration::from_millis(500);

/// Announces this relay, and measures how long the oldest due event has waited, until the relay has
/// ended.
///
/// Both concurrently: other reads may keep all connections for reads busy for longer than presence
/// lasts.
pub(super) async fn announce(engine: Arc<Engine>) {
    tokio::join!(keep_announcing(&engine), measure_lag(&engine));
}

/// Measures less and less often while nothing is due: a take measures the waiting time of the
/// events that it takes.
async fn measure_lag(engine: &Engine) {
    let every = Node::announces_every(engine.settings.presence);
    let mut known = BTreeSet::new();
    let mut pause = every;
    loop {
        // Read from the table: events that wait for a destination, or behind a dead event, are not
        // taken.
        if let Ok(oldest) = engine.store.oldest_due().await {
            engine.metrics.oldest_lag_ms.set(oldest.unwrap_or_default().as_secs_f64() * 1_000.0);
            pause = if oldest.is_some() { every } else { (pause * 2).min(every * LONGEST_LAG_PAUSE) };
        }
        measure_unrouted(engine, &mut known).await;
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = engine.over.cancelled() => return,
        }
    }
}

/// How many pending events are scanned for those that no running relay routes.
const SCAN_LIMIT: usize = 2_000;

/// Counts pending events that no running relay routes, and logs each of their types once.
async fn measure_unrouted(engine: &Engine, known: &mut BTreeSet<(String, String)>) {
    // While this relay takes all events there are none, and no query is needed.
    let found = if engine.routes.routed().is_some() {
        engine.store.unrouted(SCAN_LIMIT).await
    } else {
        Ok(UnroutedEvents::default())
    };
    let Ok(found) = found else { return };
    engine.metrics.unrouted.set(found.count() as f64);
    let types: BTreeSet<_> =
        found.types.iter().map(|of| (of.event_type.clone(), of.aggregate_type.clone())).collect();
    for (event_type, aggregate_type) in types.difference(known) {
        tracing::warn!(
            store = engine.name(),
            event_type = %Escaped(event_type),
            aggregate_type = %Escaped(aggregate_type),
            "no running relay routes these pending events: they wait for one that does"
        );
    }
    *known = types;
}

/// Announces this relay, with its unavailable destinations and its counters.
async fn keep_announcing(engine: &Engine) {
    let every = Node::announces_every(engine.settings.presence);
    // The first announcement was made before any other task was started.
    let mut pause = every;
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = engine.outages.changed() => {}
            () = counts_changed(engine) => {}
            () = health_changed(engine) => {}
            () = engine.over.cancelled() => return,
        }
        pause = match engine.announce_once().await {
            Ok(()) => every,
            Err(error) => {
                let present = engine.in_flight.present_for(Instant::now()).is_some();
                tracing::warn!(store = engine.name(), node = %engine.node(), %error, present, "could not announce this relay");
                RETRY.min(every)
            }
        };
    }
}

/// Resolves once a counter has changed, but not more often than `Node::COUNTS_INTERVAL`.
async fn counts_changed(engine: &Engine) {
    tokio::time::sleep(Node::COUNTS_INTERVAL).await;
    engine.stats.changed().await;
}

/// Resolves once an error has begun or ended, but not more often than `Node::COUNTS_INTERVAL`.
async fn health_changed(engine: &Engine) {
    tokio::time::sleep(Node::COUNTS_INTERVAL).await;
    engine.monitor.changed().await;
}

/// Releases the leases of relays that vanished, until the relay is stopped.
///
/// Not in the announcing task: a release may have to wait for row locks.
pub(super) async fn take_over(engine: Arc<Engine>) {
    let every = Node::announces_every(engine.settings.presence);
    let taking_over = async {
        loop {
            tokio::time::sleep(every).await;
            let present_for = engine.in_flight.present_for(Instant::now());
            if present_for.is_none_or(|present_for| present_for < engine.settings.presence) {
                continue;
            }
            if !engine.may_take_over.load(Ordering::Relaxed) {
                engine.monitor.idle(RelayTask::Takeover);
                continue;
            }
            match engine.store.release_vanished().await {
                Ok(released) => {
                    engine.monitor.succeeded(RelayTask::Takeover);
                    for (node, events) in &released {
                        tracing::warn!(store = engine.name(), %node, events, "relay vanished: released its leases");
                    }
                    if released.iter().any(|(_, events)| *events > 0) {
                        engine.request_rescan();
                    }
                }
                Err(error) => {
                    tracing::warn!(store = engine.name(), %error, "could not release the leases of vanished relays");
                    engine.monitor.failed(RelayTask::Takeover, &error.to_string());
                }
            }
        }
    };
    tokio::select! {
        () = taking_over => {}
        () = engine.stop.cancelled() => {}
    }
}

impl Engine {
    /// Removes the row of this relay, which holds nothing any more. A relay that could not release
    /// its leases keeps its row: the others find its leases by it.
    pub(super) async fn retire(&self) {
        if let Err(error) = self.store.retire(self.node()).await {
            tracing::debug!(store = self.name(), %error, "could not remove this relay's row");
        }
    }

    /// Announces this relay. If its presence had lapsed, everything that it holds has to be renewed
    /// first.
    pub(super) async fn announce_once(&self) -> Result<()> {
        let asked = Instant::now();
        self.monitor.began(RelayTask::Announce);
        let announced = self.store.announce(self.node(), &self.state()).await;
        let others =
            announced.inspect_err(|error| self.monitor.failed(RelayTask::Announce, &error.to_string()))?;
        self.may_take_over.store(others, Ordering::Relaxed);
        self.monitor.succeeded(RelayTask::Announce);
        if self.in_flight.announced(asked, Instant::now(), self.settings.presence)
            && !self.ownership.is_exclusive()
        {
            tracing::warn!(
                store = self.name(),
                node = %self.node(),
                "could not announce this relay in time: others may have released its leases; renewing them"
            );
            self.key_queues.invalidate();
            self.renew.notify_one();
        }
        Ok(())
    }

    /// Releases leases that an earlier process of the same name has left. A process that was
    /// stopped has left none, and its name is no longer in the table.
    ///
    /// Runs before this relay announces itself, and long before it takes events: all leases of its
    /// name belong to that process.
    pub(super) async fn release_predecessor(&self) -> Result<()> {
        if self.ownership.is_exclusive()
            || !self.store.nodes().await?.iter().any(|node| node.node == *self.node())
        {
            return Ok(());
        }
        let released = self.store.release_node(self.node()).await?;
        if released.events > 0 {
            tracing::warn!(
                store = self.name(),
                node = %self.node(),
                events = released.events,
                "a relay of this name did not stop properly: released its leases"
            );
        }
        Ok(())
    }

    fn state(&self) -> NodeState {
        NodeState {
            mode: self.settings.mode.name().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            active: self.ownership.holder().is_some(),
            outages: self.outages.list(),
            on_dead: self.settings.on_dead,
            routes: NodeRoutes::of(self.routes.routed().as_deref()),
            counts: self.stats.counts(),
            health: self.monitor.health(),
            presence_ms: u64::try_from(self.settings.presence.as_millis()).ok(),
            released: false,
        }
    }
}

impl NodeOutage {
    pub(super) fn new(destination: &str, outage: crate::destination::Outage, types: Vec<String>) -> Self {
        let (destination, since, reason) = (destination.to_owned(), outage.since, outage.reason);
        Self { destination, since, reason, types }
    }
}
