//! What goes on, every second.
//!
//! | file | what it is |
//! | --- | --- |
//! | `sampler` | asks a database, once a second for all who listen, and not at all while nobody does |
//! | `rates` | what relays count becomes events a second |
//! | `tick` | what is told |

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

/// How often a database is asked.
const EVERY: Duration = Duration::from_secs(1);

/// How many seconds are remembered: a quarter of an hour.
const KEPT: usize = 15 * 60;

/// How many seconds nobody may listen before it stops asking.
const ALONE: u32 = 5;

/// After how much time what was told last says nothing any more.
const STALE: Duration = Duration::from_secs(10);

/// How many may listen at once.
const LISTENERS: usize = 64;

/// How many of them may be of one token, its sessions included: one token must not take the places of all others.
const LISTENERS_OF_ONE: usize = 16;

/// Everything that is listened to, by database.
pub(crate) struct Live {
    channels: Mutex<HashMap<String, Arc<Channel>>>,
    places: Arc<Semaphore>,
    /// The places of each token that has open streams.
    by_caller: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Default for Live {
    fn default() -> Self {
        let places = Arc::new(Semaphore::new(LISTENERS));
        Self { channels: Mutex::default(), places, by_caller: Mutex::default() }
    }
}

/// One database.
struct Channel {
    state: Mutex<State>,
    sender: broadcast::Sender<Arc<Tick>>,
}

#[derive(Default)]
struct State {
    kept: VecDeque<Arc<Tick>>,
    sampled: bool,
}

/// Somebody who listens.
pub(crate) struct Listening {
    pub(crate) history: Vec<Arc<Tick>>,
    pub(crate) ticks: broadcast::Receiver<Arc<Tick>>,
    pub(crate) place: Place,
}

/// A place among all listeners, and among those of one token. Given back when dropped.
pub(crate) struct Place {
    _of_all: OwnedSemaphorePermit,
    _of_caller: OwnedSemaphorePermit,
}

impl Live {
    fn channel(&self, database: &str) -> Arc<Channel> {
        let mut channels = self.channels.lock().expect("no one panics while holding the channels");
        let new = || Arc::new(Channel { state: Mutex::default(), sender: broadcast::channel(16).0 });
        channels.entry(database.to_owned()).or_insert_with(new).clone()
    }

    /// A place for a listener with the token of this name.
    fn place(&self, caller: &str) -> Answer<Place> {
        let too_many = |detail: String| {
            Problem::new(Kind::TooMany, detail)
                .advice("Close a dashboard that is not looked at.")
                .retry_after(Duration::from_secs(10))
        };
        let of_caller = {
            let mut callers = self.by_caller.lock().expect("no one panics while holding the places");
            let new = || Arc::new(Semaphore::new(LISTENERS_OF_ONE));
            callers.entry(caller.to_owned()).or_insert_with(new).clone()
        };
        let of_caller = of_caller.try_acquire_owned().map_err(|_| {
            too_many(format!("{LISTENERS_OF_ONE} streams with the token `{caller}` are open already"))
        })?;
        let of_all = self.places.clone().try_acquire_owned();
        let of_all = of_all.map_err(|_| too_many(format!("{LISTENERS} streams are open already")))?;
        Ok(Place { _of_all: of_all, _of_caller: of_caller })
    }

    /// Listens from now on. The first who listens has the database asked.
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

    /// The last quarter of an hour, as far as somebody listened.
    pub(crate) fn history(&self, database: &str) -> Vec<Point> {
        self.channel(database).lock().kept.iter().map(|tick| tick.point.clone()).collect()
    }

    /// What was told last, unless that was long ago.
    pub(crate) fn latest(&self, database: &str) -> Option<Arc<Tick>> {
        let latest = self.channel(database).lock().kept.back().cloned()?;
        (latest.heard.elapsed() < STALE).then_some(latest)
    }
}

impl Channel {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no one panics while holding the seconds")
    }

    fn tell(&self, tick: Tick) {
        let tick = Arc::new(tick);
        let mut state = self.lock();
        let oldest = tick.point.at - chrono::Duration::from_std(EVERY * KEPT as u32).unwrap_or_default();
        while state.kept.len() >= KEPT || state.kept.front().is_some_and(|kept| kept.point.at < oldest) {
            state.kept.pop_front();
        }
        // A second in which nothing is known is told, but no part of the history.
        if tick.error.is_none() {
            state.kept.push_back(tick.clone());
        }
        drop(state);
        // Nobody may be listening any more.
        let _ = self.sender.send(tick);
    }

    /// Whether to stop, nobody having come in the last moment.
    fn may_stop(&self) -> bool {
        let mut state = self.lock();
        state.sampled = self.sender.receiver_count() > 0;
        !state.sampled
    }
}

/// Lets the next who listens start anew, should this one panic.
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
