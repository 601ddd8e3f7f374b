//! Samples of each database, once a second.
//!
//! | file | contents |
//! | --- | --- |
//! | `sampler` | queries a database once a second for all streams, and not at all without streams |
//! | `rates` | converts the counters of relays to events per second |
//! | `tick` | the samples |

mod rates;
mod sampler;
mod tick;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};

pub(crate) use self::sampler::COUNT_LIMIT;
use self::sampler::Sampler;
pub(crate) use self::tick::{OverviewView, Point, Tick, milliseconds};
use crate::databases::DatabaseSources;
use crate::problem::{ApiResult, Kind, Problem};

/// Interval between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Number of samples kept: 15 minutes.
const HISTORY_LEN: usize = 15 * 60;

/// Number of seconds without a stream after which sampling stops.
const IDLE_SECONDS: u32 = 5;

/// Age from which the latest sample is no longer used.
const STALE_AFTER: Duration = Duration::from_secs(10);

/// Maximum number of open streams.
const MAX_STREAMS: usize = 64;

/// Maximum number of open streams per caller (a token with its sessions, or a user of the
/// application): one caller must not use up the streams of all others.
const MAX_STREAMS_PER_CALLER: usize = 16;

/// Live samples, by database.
pub(crate) struct Live {
    channels: Mutex<HashMap<String, Arc<Channel>>>,
    permits: Arc<Semaphore>,
    /// Permits of each caller with an open stream, by name.
    by_caller: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Default for Live {
    fn default() -> Self {
        let permits = Arc::new(Semaphore::new(MAX_STREAMS));
        Self { channels: Mutex::default(), permits, by_caller: Mutex::default() }
    }
}

/// Samples of one database.
struct Channel {
    state: Mutex<ChannelState>,
    sender: broadcast::Sender<Arc<Tick>>,
}

#[derive(Default)]
struct ChannelState {
    kept: VecDeque<Arc<Tick>>,
    sampling: bool,
}

/// A stream of samples.
pub(crate) struct LiveStream {
    pub(crate) history: Vec<Arc<Tick>>,
    pub(crate) ticks: broadcast::Receiver<Arc<Tick>>,
    pub(crate) permit: StreamPermit,
}

/// Permit for a stream, among all streams and among those of one caller. Released on drop.
pub(crate) struct StreamPermit {
    _of_all: OwnedSemaphorePermit,
    _of_caller: OwnedSemaphorePermit,
}

impl Live {
    fn channel(&self, database: &str) -> Arc<Channel> {
        let mut channels = self.channels.lock().expect("the lock on the channels is never poisoned");
        let new = || Arc::new(Channel { state: Mutex::default(), sender: broadcast::channel(16).0 });
        channels.entry(database.to_owned()).or_insert_with(new).clone()
    }

    /// Acquires the permit for a stream of the caller with this name.
    fn permit(&self, caller: &str) -> ApiResult<StreamPermit> {
        let too_many = |detail: String| {
            Problem::new(Kind::TooMany, detail)
                .advice("Close a dashboard that is not in use.")
                .retry_after(Duration::from_secs(10))
        };
        let of_caller = {
            let mut callers = self.by_caller.lock().expect("the lock on the permits is never poisoned");
            // An application may name any number of callers over time.
            callers.retain(|_, permits| permits.available_permits() < MAX_STREAMS_PER_CALLER);
            let new = || Arc::new(Semaphore::new(MAX_STREAMS_PER_CALLER));
            callers.entry(caller.to_owned()).or_insert_with(new).clone().try_acquire_owned()
        };
        let of_caller = of_caller.map_err(|_| {
            too_many(format!("{MAX_STREAMS_PER_CALLER} streams of `{caller}` are already open"))
        })?;
        let of_all = self.permits.clone().try_acquire_owned();
        let of_all = of_all.map_err(|_| too_many(format!("{MAX_STREAMS} streams are already open")))?;
        Ok(StreamPermit { _of_all: of_all, _of_caller: of_caller })
    }

    /// Opens a stream. The first stream of a database starts its sampler.
    pub(crate) fn open_stream(
        &self,
        databases: &DatabaseSources,
        database: &str,
        caller: &str,
    ) -> ApiResult<LiveStream> {
        let permit = self.permit(caller)?;
        let channel = self.channel(database);
        let mut state = channel.lock();
        let (history, ticks) = (state.kept.iter().cloned().collect(), channel.sender.subscribe());
        if !std::mem::replace(&mut state.sampling, true) {
            tokio::spawn(sample(channel.clone(), databases.clone(), database.to_owned()));
        }
        drop(state);
        Ok(LiveStream { history, ticks, permit })
    }

    /// The last 15 minutes, as far as a stream was open.
    pub(crate) fn history(&self, database: &str) -> Vec<Point> {
        self.channel(database).lock().kept.iter().map(|tick| tick.point.clone()).collect()
    }

    /// The latest sample, unless it is stale.
    pub(crate) fn latest(&self, database: &str) -> Option<Arc<Tick>> {
        let latest = self.channel(database).lock().kept.back().cloned()?;
        (latest.sampled_at.elapsed() < STALE_AFTER).then_some(latest)
    }
}

impl Channel {
    fn lock(&self) -> std::sync::MutexGuard<'_, ChannelState> {
        self.state.lock().expect("the lock on the samples is never poisoned")
    }

    fn publish(&self, tick: Tick) {
        let tick = Arc::new(tick);
        let mut state = self.lock();
        let oldest = tick.point.at
            - chrono::Duration::from_std(SAMPLE_INTERVAL * HISTORY_LEN as u32).unwrap_or_default();
        while state.kept.len() >= HISTORY_LEN || state.kept.front().is_some_and(|kept| kept.point.at < oldest)
        {
            state.kept.pop_front();
        }
        // A failed sample is sent to the streams, but is not part of the history.
        if tick.error.is_none() {
            state.kept.push_back(tick.clone());
        }
        drop(state);
        // An error means that no stream is open any more.
        let _ = self.sender.send(tick);
    }

    /// Whether to stop sampling. Checked under the lock, since a stream may have been opened in the
    /// meantime.
    fn may_stop(&self) -> bool {
        let mut state = self.lock();
        state.sampling = self.sender.receiver_count() > 0;
        !state.sampling
    }
}

/// Allows the next stream to start a new sampler if this one panics.
struct SamplerGuard(Arc<Channel>);

impl Drop for SamplerGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().sampling = false;
        }
    }
}

async fn sample(channel: Arc<Channel>, databases: DatabaseSources, name: String) {
    let _guard = SamplerGuard(channel.clone());
    let mut sampler = Sampler::new();
    let mut clock = tokio::time::interval(SAMPLE_INTERVAL);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut idle = 0;
    loop {
        clock.tick().await;
        idle = if channel.sender.receiver_count() == 0 { idle + 1 } else { 0 };
        if idle > IDLE_SECONDS && channel.may_stop() {
            return;
        }
        let store = databases.resolve(Some(&name)).ok().map(|database| database.store);
        channel.publish(sampler.sample(store).await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_without_a_stream_are_forgotten() {
        let live = Live::default();
        let kept = live.permit("ada").unwrap();
        for n in 0..1_000 {
            drop(live.permit(&format!("user {n}")).unwrap());
        }
        assert!(live.by_caller.lock().unwrap().len() <= 2);
        let more: Vec<_> = (1..MAX_STREAMS_PER_CALLER).map(|_| live.permit("ada").unwrap()).collect();
        assert!(live.permit("ada").is_err(), "the open stream still counts");
        drop((kept, more));
        assert!(live.permit("ada").is_ok());
    }
}
