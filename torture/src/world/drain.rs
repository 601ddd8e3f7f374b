//! The end of a run: writers stop, relays finish the remaining work, all processes stop.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use rustix::process::Signal;

use super::World;
use crate::arena::Arena;
use crate::by_url;
use crate::roles::{WRITING_STOPPED, reader};
use crate::state::left;

/// Time limit without progress: many times the sum of leases and retries. The total time depends on
/// the backlog behind slow handlers, which run one after another within a key.
const STALL_TIMEOUT: Duration = Duration::from_secs(240);

/// Total time limit, even with progress.
const MAX_DRAIN: Duration = Duration::from_secs(1_200);

/// After this time without progress the database's files are checked for damage.
const INTEGRITY_CHECK_AFTER: Duration = Duration::from_secs(30);

/// Time limit for the query that counts the remaining work.
const QUERY_TIMEOUT: Duration = Duration::from_secs(20);

impl World {
    /// Waits until no work is left.
    pub(super) async fn drain(&self) -> Result<()> {
        std::fs::write(self.settings.folder.join(WRITING_STOPPED), "")?;
        let (mut deadline, mut fewest) = (Instant::now() + STALL_TIMEOUT, u64::MAX);
        let (end, mut check_integrity_at) =
            (Instant::now() + MAX_DRAIN, Instant::now() + INTEGRITY_CHECK_AFTER);
        let mut idle_polls = 0;
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let left = match tokio::time::timeout(QUERY_TIMEOUT, self.left()).await {
                Ok(left) => left,
                Err(_) => Err(anyhow!("the database did not answer within {} s", QUERY_TIMEOUT.as_secs())),
            };
            match &left {
                Ok(left) if left.iter().all(|(_, left)| *left == 0) => idle_polls += 1,
                _ => idle_polls = 0,
            }
            let sum = left.as_ref().map_or(u64::MAX, |left| left.iter().map(|(_, left)| left).sum());
            if sum < fewest {
                (deadline, fewest) = (Instant::now() + STALL_TIMEOUT, sum);
                check_integrity_at = Instant::now() + INTEGRITY_CHECK_AFTER;
            }
            if Instant::now() > check_integrity_at {
                check_integrity_at = Instant::now() + STALL_TIMEOUT;
                let damage = self.damage().await;
                if !damage.is_empty() {
                    bail!("the database is damaged: {}", damage.join("; "));
                }
            }
            // Several polls, since a writer may still be in the middle of a transaction.
            if idle_polls >= 4 {
                return Ok(());
            }
            if Instant::now() > deadline.min(end) {
                bail!("no progress; remaining work: {left:?}");
            }
        }
    }

    async fn left(&self) -> Result<Vec<(Arena, u64)>> {
        let mut all = Vec::new();
        let (url, prefix) = (&self.direct, &self.prefix);
        for arena in &self.settings.arenas {
            all.push((*arena, by_url!(url, left::<DB>(url, *arena, prefix))?));
        }
        if self.settings.arenas.contains(&Arena::Broker) {
            all.push((Arena::Broker, reader::left(&self.broker_url).await?));
        }
        Ok(all)
    }

    /// Stops all processes by SIGTERM; these exits are expected.
    pub(super) async fn stop(&self) {
        self.stopping.store(true, std::sync::atomic::Ordering::SeqCst);
        let ends = self.slots.iter().map(|slot| async {
            let mut slot = slot.lock().await;
            if let Some(how) = slot.end(Signal::TERM).await {
                let expected = how == "exit code 0" || self.may_abort(&how);
                self.record_exit(&mut slot, &how, expected);
            }
        });
        futures_util::future::join_all(ends).await;
    }
}
