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

pub(crate) use self::sampler::MOST;
use self::sampler::Sampler;
pub(crate) use self::tick::{OverviewView, Point, Tick, milliseconds};
use crate::databases::All;
use crate::problem::{Answer, Kind, Problem};

/// Interval between two samples.
const EVERY: Duration = Duration::from_secs(1);

/// Number of samples kept: 15 minutes.
const KEPT: usize = 15 * 60;

/// Number of seconds without a stream after which sampling stops.
const ALONE: u32 = 5;

/// Age from which the latest sample is no longer used.
const STALE: Duration = Duration::from_secs(10);

/// Maximum number of open streams.
const LISTENERS: usize = 64;

/// Maximum number of open streams per token, including its sessions: one token must not use up the
/// streams of all others.
const LISTENERS_OF_ONE: usize = 16;

/// Live samples, by database.
pub(crate) struct Live {
    channels: Mutex<HashMap<String, Arc<Channel>>>,
    places: Arc<Semaphore>,
    /// Permits of each token that has opened a stream.
    by_caller: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Default for Live {
    fn default() -> Self {
        let places = Arc::new(Semaphore::new(LISTENERS));
        Self { channels: Mutex::default(), places, by_caller: Mutex::default() }
    }
}

/// Samples of one database.
struct Channel {
    state: Mutex<State>,
    sender: broadcast::Sender<Arc<Tick>>,
}

#[derive(Default)]
struct State {
    kept: VecDeque<Arc<Tick>>,
    sampled: bool,
}

/// A stream of samples.
pub(crate) struct Listening {
    pub(crate) history: Vec<Arc<Tick>>,
    pub(crate) ticks: broadcast::Receiver<Arc<Tick>>,
    pub(crate) place: Place,
}

/// Permit for a stream, among all streams and among those of one token. Released on drop.
pub(crate) struct Place {
    _of_all: OwnedSemaphorePermit,
    _of_caller: OwnedSemaphorePermit,
}

impl Live {
    fn channel(&self, database: &str) -> Arc<Channel> {
        let mut channels = self.channels.lock().expect("the lock on the channels is never poisoned");
        let new = || Arc::new(Channel { state: Mutex::default(), sender: broadcast::channel(16).0 });
        channels.entry(database.to_owned()).or_insert_with(new).clone()
    }

    /// Acquires the permit for a stream of the token with this name.
    fn place(&self, caller: &str) -> Answer<Place> {
        let too_many = |detail: String| {
            Problem::new(Kind::TooMany, detail)
                .advice("Close a dashboard that is not in use.")
                .retry_after(Duration::from_secs(10))
        };
        let of_caller = {
            let mut callers = self.by_caller.lock().expect("the lock on the permits is never poisoned");
            let new = || Arc::new(Semaphore::new(LISTENERS_OF_ONE));
            callers.entry(caller.to_owned()).or_insert_with(new).clone()
        };
        let of_caller = of_caller.try_acquire_owned().map_err(|_| {
            too_many(format!("{LISTENERS_OF_ONE} streams with the token `{caller}` are already open"))
        })?;
        let of_all = self.places.clone().try_acquire_owned();
        let of_all = of_all.map_err(|_| too_many(format!("{LISTENERS} streams are already open")))?;
        Ok(Place { _of_all: of_all, _of_caller: of_caller })
    }

    /// Opens a stream. The first stream of a database starts its sampler.
    pub(crate) fn listen(&self, databases: &All, database: &str, caller: &str) -> Answer<Listening> {
        let place = self.place(caller)?;
        let channel = self.channel(database);
        let mut state = channel.lock();
        let (history, ticks) = (state.kept.iter().cloned().collect(), channel.sender.subscribe());
        if !std::mem::replace(&mut state.sampled, true) {
            tokio::spawn(sample(channel.clone(), databases.clone(), database.to_owned()));
        }
        drop(state);
        Ok(Listening { history, ticks, place })
    }

    /// The last 15 minutes, as far as a stream was open.
    pub(crate) fn history(&self, database: &str) -> Vec<Point> {
        self.channel(database).lock().kept.iter().map(|tick| tick.point.clone()).collect()
    }

    /// The latest sample, unless it is stale.
    pub(crate) fn latest(&self, database: &str) -> Option<Arc<Tick>> {
        let latest = self.channel(database).lock().kept.back().cloned()?;
        (latest.heard.elapsed() < STALE).then_some(latest)
    }
}

impl Channel {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("the lock on the samples is never poisoned")
    }

    fn tell(&self, tick: Tick) {
        let tick = Arc::new(tick);
        let mut state = self.lock();
        let oldest = tick.point.at - chrono::Duration::from_std(EVERY * KEPT as u32).unwrap_or_default();
        while state.kept.len() >= KEPT || state.kept.front().is_some_and(|kept| kept.point.at < oldest) {
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
        state.sampled = self.sender.receiver_count() > 0;
        !state.sampled
    }
}

/// Allows the next stream to start a new sampler if this one panics.
struct Sampling(Arc<Channel>);

impl Drop for Sampling {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().sampled = false;
        }
    }
}

async fn sample(channel: Arc<Channel>, databases: All, name: String) {
    let _sampling = Sampling(channel.clone());
    let mut sampler = Sampler::new();
    let mut clock = tokio::time::interval(EVERY);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut alone = 0;
    loop {
        clock.tick().await;
        alone = if channel.sender.receiver_count() == 0 { alone + 1 } else { 0 };
        if alone > ALONE && channel.may_stop() {
            return;
        }
        let store = databases.choose(Some(&name)).ok().map(|chosen| chosen.store);
        channel.tell(sampler.look(store).await);
    }
}
