//! Between two passes: sleeping until a row is written.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Engine;
use crate::error::Result;
use crate::store::{RelayTask, Watch};

/// How long a relay stays awake after it was called: under load it polls, and nobody needs to call.
const LULL: Duration = Duration::from_millis(10);

/// The longest time between two looks while somebody writes and has not committed yet.
const UNDECIDED: Duration = Duration::from_millis(100);

/// How often those who do not have the watch ask for it.
const STANDBY: Duration = Duration::from_secs(1);

/// How long to wait before another try after the connection was lost.
const DEAF: Duration = Duration::from_secs(2);

/// Has the taker look when something is written elsewhere. Only hints: the poll interval covers what is missed.
pub(super) async fn doze(engine: Arc<Engine>) {
    let dozing = async {
        loop {
            match engine.store.watch().await {
                // There are no notifications here: what failed before was in vain.
                Ok(None) => return engine.monitor.rests(RelayTask::Watch),
                Ok(Some(mut watch)) => {
                    let Err(error) = keep_watch(&engine, &mut *watch).await else { return };
                    tracing::debug!(store = engine.name(), %error, "lost the line on which writers call: polling");
                    engine.monitor.failed(RelayTask::Watch, &error.to_string());
                }
                Err(error) => {
                    tracing::debug!(store = engine.name(), %error, "writers cannot call: polling");
                    engine.monitor.failed(RelayTask::Watch, &error.to_string());
                }
            }
            tokio::time::sleep(DEAF).await;
        }
    };
    // What is dropped here holds locks that end with its connection, and nothing else.
    tokio::select! {
        () = dozing => {}
        () = engine.stop.cancelled() => {}
    }
}

async fn keep_watch(engine: &Engine, watch: &mut dyn Watch) -> Result<()> {
    let mut undecided = LULL;
    loop {
        // One that stands by has nothing to be woken for, and must not keep the watch from the one who has.
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
            // What was committed before is not called for.
            engine.look_everywhere();
            watch.called().await?;
            watch.get_up().await?;
        } else {
            undecided = (undecided * 3 / 2).min(UNDECIDED);
        }
        engine.look_everywhere();
        // A pass that has to read much, since much waits for a destination, does not come as often.
        let costly = Duration::from_micros(engine.full_pass_micros.load(Ordering::Relaxed)) * 4;
        tokio::time::sleep(undecided.max(costly).min(engine.settings.poll_interval)).await;
    }
}

impl Engine {
    /// Has the taker look at the whole table.
    pub(crate) fn look_everywhere(&self) {
        self.everywhere.store(true, Ordering::Release);
        self.wake.notify_one();
    }
}
