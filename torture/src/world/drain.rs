//! The end: nobody writes any more, everything settles, all processes stop.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use rustix::process::Signal;

use super::World;
use crate::arena::Arena;
use crate::by_url;
use crate::roles::{WRITING_STOPPED, reader};
use crate::state::left;

/// How long nothing may become less of what is left: many times what leases and retries add up to. How long all of it takes depends on
/// how much has piled up behind handlers that are slow, one after another in each key.
const STALL_TIMEOUT: Duration = Duration::from_secs(240);

/// How long all of it may take, however it becomes less.
const MAX_DRAIN: Duration = Duration::from_secs(1_200);

/// After so long without progress it is looked whether the database's own files are whole.
const INTEGRITY_CHECK_AFTER: Duration = Duration::from_secs(30);

/// How long the database may take to say what is left.
const QUERY_TIMEOUT: Duration = Duration::from_secs(20);

impl World {
    /// Waits until nothing is left to do.
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
                Err(_) => Err(anyhow!("no answer within {} s", QUERY_TIMEOUT.as_secs())),
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
            // Writers may have been in the middle of something.
            if idle_polls >= 4 {
                return Ok(());
            }
            if Instant::now() > deadline.min(end) {
                bail!("this is left, and does not become less: {left:?}");
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

    /// Stops everybody by SIGTERM: that is no failure of anybody.
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
