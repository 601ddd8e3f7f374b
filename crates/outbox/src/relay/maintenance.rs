//! Maintenance: renews leases or leadership, and purges rows that are no longer needed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Engine, PurgeSettings};
use crate::admin::{purge_all, purge_all_joins, purge_attempts, purge_audits, purge_inbox, purge_log};
use crate::error::{Error, Result};
use crate::store::{EXCLUSIVE, Leadership, NodeId, Purge, Purgeable, RelayTask};

/// How long leadership of the whole table lasts without renewal: the delay of delivery after a
/// crash.
pub(crate) const LEADERSHIP: Duration = Duration::from_secs(15);

/// Renews the leases on this node's events, or the leadership of the table.
pub(crate) struct Renewer {
    engine: Arc<Engine>,
    /// The leader that was last logged as holding the table instead of this node.
    logged_leader: Option<NodeId>,
    /// Pause before the next renewal.
    pause: Duration,
}

impl Renewer {
    /// Requests leadership, where the mode needs it. Standing by is no error.
    pub(crate) async fn new(engine: Arc<Engine>) -> Result<Self> {
        let pause = if engine.ownership.is_exclusive() { LEADERSHIP } else { engine.settings.lease } / 3;
        let mut renewer = Self { engine, logged_leader: None, pause };
        renewer.renew().await?;
        Ok(renewer)
    }

    /// Renews until the relay has ended.
    pub(crate) async fn run(&mut self) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.pause) => {}
                () = self.engine.renew.notified() => {}
                () = self.engine.over.cancelled() => return,
            }
            self.engine.monitor.began(RelayTask::Renew);
            match self.renew().await {
                Ok(()) => self.engine.monitor.succeeded(RelayTask::Renew),
                Err(error) => {
                    tracing::error!(store = self.engine.name(), %error, "could not renew the leases or the leadership of this node");
                    self.engine.monitor.failed(RelayTask::Renew, &error.to_string());
                    self.pause = Duration::from_millis(200);
                }
            }
        }
    }

    async fn renew(&mut self) -> Result<()> {
        if self.engine.ownership.is_exclusive() {
            self.renew_leadership().await
        } else {
            self.renew_leases().await
        }
    }

    /// Requests or renews leadership of the table.
    async fn renew_leadership(&mut self) -> Result<()> {
        let engine = &self.engine;
        let asked = Instant::now();
        match engine.store.lead(EXCLUSIVE, engine.ownership.owner(), LEADERSHIP).await? {
            Leadership::Held { epoch, clean } => {
                let settings = &engine.settings;
                let may_be_held = settings.hot_capacity + settings.cold_capacity + settings.workers;
                if engine.ownership.lead(epoch, asked + LEADERSHIP, if clean { 0 } else { may_be_held }) {
                    engine.reset();
                    engine.wake.notify_one();
                    tracing::info!(store = engine.name(), node = %engine.node(), epoch, clean, "this node holds the outbox");
                }
                self.logged_leader = None;
                self.pause = LEADERSHIP / 3;
            }
            Leadership::HeldBy { holder, remaining } => {
                if engine.ownership.release() {
                    engine.reset();
                    tracing::error!(store = engine.name(), %holder, "another single_node relay has taken over this outbox");
                }
                self.pause = remaining.clamp(Duration::from_millis(50), LEADERSHIP / 15);
                if self.logged_leader.as_ref() != Some(&holder) {
                    tracing::warn!(
                        store = engine.name(), %holder,
                        "standing by: another single_node relay holds this outbox; use multi_node to share the work"
                    );
                    self.logged_leader = Some(holder);
                }
            }
        }
        Ok(())
    }

    /// Renews the leases of all events that are queued or running.
    async fn renew_leases(&mut self) -> Result<()> {
        let engine = &self.engine;
        let lease = engine.settings.lease;
        self.pause = lease / 3;
        for some in engine.in_flight.leases().chunks(1_000) {
            let asked = Instant::now();
            let kept: HashSet<_> =
                engine.store.extend(engine.node(), lease, some).await?.into_iter().collect();
            let lost = engine.in_flight.renewed(some, &kept, asked, lease);
            if lost > 0 {
                engine.key_queues.invalidate();
                tracing::debug!(
                    store = engine.name(),
                    lost,
                    "leases were lost, or their events settled in the meantime"
                );
            }
        }
        Ok(())
    }
}

/// The longest time from the start of a relay to its first purge.
const FIRST_PURGE: Duration = Duration::from_secs(60);

/// The pauses before each purge. The first comes soon after the start: a relay that is restarted
/// every hour would otherwise never purge. `random`, from 0 to 1, spreads the relays that a
/// deployment starts together.
fn pauses(every: Duration, random: f64) -> impl Iterator<Item = Duration> {
    let first = every.min(FIRST_PURGE).mul_f64(0.25 + 0.75 * random);
    std::iter::once(first).chain(std::iter::repeat(every))
}

/// Purges at intervals.
pub(crate) async fn purge(engine: Arc<Engine>) {
    let Some(purge) = engine.settings.purge.clone() else { return };
    let PurgeSettings { every, what, dead, inbox, attempts, log, audit } = purge;
    for pause in pauses(every, rand::random()) {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = engine.stop.cancelled() => return,
        }
        // Errors of the last round no longer matter.
        engine.monitor.idle(RelayTask::Purge);
        purge_events(&engine, what, dead).await;
        match purge_all_joins(&*engine.store, what.older_than, what.limit, &engine.stop).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(store = engine.name(), count, "purged closed joins"),
            Err(error) => report_error(&engine, &error, "could not purge joins"),
        }
        match purge_inbox(&*engine.store, inbox, what.limit, &engine.stop).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(store = engine.name(), count, "purged old inbox entries"),
            Err(error) => report_error(&engine, &error, "could not purge the inbox"),
        }
        match purge_attempts(&*engine.store, attempts, what.limit, &engine.stop).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(store = engine.name(), count, "purged old attempts"),
            Err(error) => report_error(&engine, &error, "could not purge attempts"),
        }
        if let Some(keep) = log {
            match purge_log(&*engine.store, keep, what.limit, &engine.stop).await {
                Ok(0) => {}
                Ok(count) => tracing::info!(store = engine.name(), count, "purged old events of the log"),
                Err(error) => report_error(&engine, &error, "could not purge the log"),
            }
        }
        if let Some(keep) = audit {
            match purge_audits(&*engine.store, keep, what.limit, &engine.stop).await {
                Ok(0) => {}
                Ok(count) => tracing::info!(store = engine.name(), count, "purged old audit entries"),
                Err(error) => report_error(&engine, &error, "could not purge audit entries"),
            }
        }
    }
}

fn report_error(engine: &Engine, error: &Error, what: &str) {
    tracing::error!(store = engine.name(), %error, "{what}");
    engine.monitor.failed(RelayTask::Purge, &error.to_string());
}

/// Purges events, and logs how many of them were DONE and how many DEAD.
async fn purge_events(engine: &Engine, what: Purge, dead: Option<Duration>) {
    let (store, name) = (&*engine.store, engine.name());
    match purge_all(store, what, &engine.stop).await {
        Ok(0) => {}
        Ok(rows) if what.what == Purgeable::Everything => {
            tracing::info!(store = name, rows, "purged old events by age, whatever their status");
        }
        Ok(done) => tracing::info!(store = name, done, "purged old DONE events"),
        Err(error) => report_error(engine, &error, "could not purge DONE events"),
    }
    let Some(older_than) = dead.filter(|_| what.what == Purgeable::Done) else { return };
    match purge_all(store, Purge { what: Purgeable::Dead, older_than, ..what }, &engine.stop).await {
        Ok(0) => {}
        Ok(dead) => tracing::info!(store = name, dead, "purged old DEAD events"),
        Err(error) => report_error(engine, &error, "could not purge DEAD events"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_purge_comes_within_a_minute_of_the_start() {
        let hour = Duration::from_secs(3_600);
        let pauses = |every: Duration, random: f64| pauses(every, random).take(3).collect::<Vec<_>>();
        assert_eq!(pauses(hour, 0.0), [Duration::from_secs(15), hour, hour]);
        assert_eq!(pauses(hour, 1.0), [Duration::from_secs(60), hour, hour]);
        let second = Duration::from_secs(1);
        assert_eq!(pauses(second, 1.0), [second; 3], "never later than the interval");
        assert_eq!(pauses(second, 0.0)[0], second / 4);
        assert_eq!(pauses(Duration::MAX, 1.0)[1], Duration::MAX);
    }
}
