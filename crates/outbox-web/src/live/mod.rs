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

/// Everything that is listened to, by database.
pub(crate) struct Live {
    channels: Mutex<HashMap<String, Arc<Channel>>>,
    places: Arc<Semaphore>,
}

impl Default for Live {
    fn default() -> Self {
        Self { channels: Mutex::default(), places: Arc::new(Semaphore::new(LISTENERS)) }
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
    pub(crate) place: OwnedSemaphorePermit,
}

impl Live {
    fn channel(&self, database: &str) -> Arc<Channel> {
        let mut channels = self.channels.lock().expect("no one panics while holding the channels");
        let new = || Arc::new(Channel { state: Mutex::default(), sender: broadcast::channel(16).0 });
        channels.entry(database.to_owned()).or_insert_with(new).clone()
    }

    /// Listens from now on. The first who listens has the database asked.
    pub(crate) fn listen(&self, databases: &All, database: &str) -> Answer<Listening> {
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            Problem::new(Kind::TooMany, format!("{LISTENERS} listen already"))
                .advice("Close a dashboard that nobody looks at.")
                .retry_after(Duration::from_secs(10))
        })?;
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
