//! Wakes the taker when another process writes events, where the database supports notifications.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Engine;
use crate::error::Result;
use crate::store::{InsertNotifier, RelayTask};

/// Pause after a notification: under load the relay polls, and writers need not notify.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// The longest pause between two passes while a transaction that has written events is open.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// How often a relay tries to get the watch lock while another relay holds it.
const LOCK_RETRY: Duration = Duration::from_secs(1);

/// Pause before the next try after the connection was lost.
const RECONNECT_PAUSE: Duration = Duration::from_secs(2);

/// Wakes the taker after a write of another process. Notifications are hints: the poll interval
/// covers those that are missed.
pub(super) async fn listen(engine: Arc<Engine>) {
    let listening = async {
        loop {
            match engine.store.watch().await {
                // This database has no notifications: earlier errors no longer matter.
                Ok(None) => return engine.monitor.idle(RelayTask::Watch),
                Ok(Some(mut watch)) => {
                    let Err(error) = watch_inserts(&engine, &mut *watch).await else { return };
                    tracing::debug!(store = engine.name(), %error, "lost the connection for insert notifications: polling");
                    engine.monitor.failed(RelayTask::Watch, &error.to_string());
                }
                Err(error) => {
                    tracing::debug!(store = engine.name(), %error, "cannot listen for insert notifications: polling");
                    engine.monitor.failed(RelayTask::Watch, &error.to_string());
                }
            }
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    };
    // The dropped future holds locks that end with its connection, and nothing else.
    tokio::select! {
        () = listening => {}
        () = engine.stop.cancelled() => {}
    }
}

async fn watch_inserts(engine: &Engine, watch: &mut dyn InsertNotifier) -> Result<()> {
    let mut pause = SHORTEST_PAUSE;
    loop {
        // A standby relay takes nothing, and must not keep the watch lock from the active relay.
        if engine.ownership.holder().is_none() {
            tokio::time::sleep(LOCK_RETRY).await;
            continue;
        }
        let is_ours = watch.is_ours().await?;
        engine.monitor.succeeded(RelayTask::Watch);
        if !is_ours {
            if let Ok(called) = tokio::time::timeout(LOCK_RETRY, watch.called()).await {
                called?;
                engine.request_rescan();
            }
            continue;
        }
        if watch.arm().await? {
            pause = SHORTEST_PAUSE;
            // Events committed before this moment are not notified of.
            engine.request_rescan();
            watch.called().await?;
            watch.disarm().await?;
        } else {
            pause = (pause * 3 / 2).min(LONGEST_PAUSE);
        }
        engine.request_rescan();
        // While many events wait for a destination, a pass reads much: such passes come less often.
        let costly = Duration::from_micros(engine.full_pass_micros.load(Ordering::Relaxed)) * 4;
        tokio::time::sleep(pause.max(costly).min(engine.settings.poll_interval)).await;
    }
}

impl Engine {
    /// Wakes the taker for a pass over the whole table.
    pub(crate) fn request_rescan(&self) {
        self.rescan.store(true, Ordering::Release);
        self.wake.notify_one();
    }
}
