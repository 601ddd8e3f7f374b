//! Wakes the taker when another process writes events, where the database supports notifications.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Engine;
use crate::error::Result;
use crate::store::{RelayTask, Watch};

/// Pause after a notification: under load the relay polls, and writers need not notify.
const LULL: Duration = Duration::from_millis(10);

/// The longest pause between two passes while a transaction that has written events is open.
const UNDECIDED: Duration = Duration::from_millis(100);

/// How often a relay tries to get the watch lock while another relay holds it.
const STANDBY: Duration = Duration::from_secs(1);

/// Pause before the next try after the connection was lost.
const DEAF: Duration = Duration::from_secs(2);

/// Wakes the taker after a write of another process. Notifications are hints: the poll interval
/// covers those that are missed.
pub(super) async fn doze(engine: Arc<Engine>) {
    let dozing = async {
        loop {
            match engine.store.watch().await {
                // This database has no notifications: earlier errors no longer matter.
                Ok(None) => return engine.monitor.rests(RelayTask::Watch),
                Ok(Some(mut watch)) => {
                    let Err(error) = keep_watch(&engine, &mut *watch).await else { return };
                    tracing::debug!(store = engine.name(), %error, "lost the connection for insert notifications: polling");
                    engine.monitor.failed(RelayTask::Watch, &error.to_string());
                }
                Err(error) => {
                    tracing::debug!(store = engine.name(), %error, "cannot listen for insert notifications: polling");
                    engine.monitor.failed(RelayTask::Watch, &error.to_string());
                }
            }
            tokio::time::sleep(DEAF).await;
        }
    };
    // The dropped future holds locks that end with its connection, and nothing else.
    tokio::select! {
        () = dozing => {}
        () = engine.stop.cancelled() => {}
    }
}

async fn keep_watch(engine: &Engine, watch: &mut dyn Watch) -> Result<()> {
    let mut undecided = LULL;
    loop {
        // A standby relay takes nothing, and must not keep the watch lock from the active relay.
        if engine.station.holder().is_none() {
            tokio::time::sleep(STANDBY).await;
            continue;
        }
        let is_ours = watch.is_ours().await?;
        engine.monitor.succeeded(RelayTask::Watch);
        if !is_ours {
            if let Ok(called) = tokio::time::timeout(STANDBY, watch.called()).await {
                called?;
                engine.look_everywhere();
            }
            continue;
        }
        if watch.lie_down().await? {
            undecided = LULL;
            // Events committed before this moment are not notified of.
            engine.look_everywhere();
            watch.called().await?;
            watch.get_up().await?;
        } else {
            undecided = (undecided * 3 / 2).min(UNDECIDED);
        }
        engine.look_everywhere();
        // While many events wait for a destination, a pass reads much: such passes come less often.
        let costly = Duration::from_micros(engine.full_pass_micros.load(Ordering::Relaxed)) * 4;
        tokio::time::sleep(undecided.max(costly).min(engine.settings.poll_interval)).await;
    }
}

impl Engine {
    /// Wakes the taker for a pass over the whole table.
    pub(crate) fn look_everywhere(&self) {
        self.everywhere.store(true, Ordering::Release);
        self.wake.notify_one();
    }
}
