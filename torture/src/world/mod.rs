//! The world: databases, a broker, processes, and what is done to them.

mod command;
mod drain;
mod nemesis;
mod slot;
mod tail;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::sync::Mutex;

use crate::arena::Arena;
use crate::checker::{self, Verdict};
use crate::clock::{now, since};
use crate::faults::Fault;
use crate::guard::Guard;
use crate::history::{self, Op, Writer};
use crate::plan::{Step, plan};
use crate::receiver::{self, Receiver};
use crate::roles::reader;
use crate::servers::{DatabaseKind, Pooler, Server};
use crate::state::{self, State};
use crate::{by_url, report};
use slot::{ProcessKind, Slot};
use tail::Tail;

/// What to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which database.
    pub database: DatabaseKind,
    /// One that somebody else has started.
    pub external: Option<String>,
    /// Which arenas.
    pub arenas: Vec<Arena>,
    /// Which faults.
    pub faults: Vec<Fault>,
    /// What the plan follows from.
    pub seed: u64,
    /// How long faults go on.
    pub length: Duration,
    /// Transactions a second, of each writer.
    pub rate: u32,
    /// How long leases last.
    pub lease: Duration,
    /// Whether some handlers take longer than a lease.
    pub slow: bool,
    /// Where histories go. Removed if all is well, unless they are to be kept.
    pub folder: PathBuf,
    /// Whether to keep them in any case.
    pub keep: bool,
    /// The program that plays the roles.
    pub program: PathBuf,
    /// The command `outbox`.
    pub outbox: PathBuf,
    /// The library that shifts clocks, if it is there.
    pub faketime: Option<PathBuf>,
    /// Whether to say how it goes.
    pub verbose: bool,
}

/// What came out.
#[derive(Debug)]
pub struct Outcome {
    /// What the checker says of each arena.
    pub verdicts: BTreeMap<Arena, Verdict>,
    /// How often each fault was done.
    pub faults: BTreeMap<Fault, usize>,
    /// What the database says of its own files: nothing, if they are whole. What the checker found may follow from it.
    pub damage: Vec<String>,
}

impl Outcome {
    /// Whether nothing happened that must not.
    pub fn is_clean(&self) -> bool {
        self.damage.is_empty() && self.verdicts.values().all(|verdict| verdict.violations.is_empty())
    }
}

pub(crate) struct World {
    settings: Settings,
    began: u64,
    history: Writer,
    server: Mutex<Server>,
    direct: String,
    prefix: String,
    broker: Mutex<Option<outbox_testbed::Server>>,
    broker_url: String,
    /// In between, if there is one.
    pooler: Mutex<Option<Pooler>>,
    /// Where webhooks go, if there are any.
    receiver: Option<Receiver>,
    /// How many hostile rows there were.
    foreign: AtomicU64,
    slots: Vec<Arc<Mutex<Slot>>>,
    /// What each of them is for: known while somebody else has the slot.
    kinds: Vec<ProcessKind>,
    /// The newest type of events that anybody knows.
    generation: AtomicU32,
    /// One rolling restart at a time.
    upgrading: Mutex<()>,
    /// Nobody is started any more.
    stopping: AtomicBool,
    injected: std::sync::Mutex<BTreeMap<Fault, usize>>,
    guard: Guard,
}

/// Runs it from beginning to end.
pub async fn run(settings: Settings) -> Result<Outcome> {
    if settings.folder.exists() {
        std::fs::remove_dir_all(&settings.folder)?;
    }
    std::fs::create_dir_all(&settings.folder)?;
    let steps = plan(settings.seed, settings.length, &settings.faults);
    let world = Arc::new(World::make(settings).await?);
    world.log(&format!("{} processes run; {} faults follow", world.slots.len(), steps.len()));
    let supervisor = tokio::spawn(world.clone().supervise());
    world.run_plan(steps).await;
    world.log("no more faults: everything has time to settle");
    let drained = world.drain().await;
    supervisor.abort();
    world.stop().await;
    let damage = world.damage().await;
    let mut states = BTreeMap::new();
    for arena in &world.settings.arenas {
        let state: State = match read_state(&world.direct, *arena, &world.prefix).await {
            Ok(state) => state,
            // There is nothing to check then.
            Err(error) if !damage.is_empty() => {
                world.log(&format!("the tables of {arena} cannot be read: {error:#}"));
                continue;
            }
            Err(error) => return Err(error),
        };
        let file = world.settings.folder.join(format!("{arena}.state.json"));
        std::fs::write(file, serde_json::to_vec_pretty(&state)?)?;
        states.insert(*arena, state);
    }
    if let Err(error) = drained {
        world.log(&format!("not settled: {error:#}"));
    }
    let faults = world.injected.lock().expect("nobody panics with it").clone();
    let verdicts = check(&world.settings.folder, &states)?;
    let outcome = Outcome { verdicts, faults, damage };
    if world.settings.verbose {
        println!("{}", report::table(&outcome));
    }
    if outcome.is_clean() && !world.settings.keep {
        std::fs::remove_dir_all(&world.settings.folder)?;
        // The seed's own folder, unless another database's histories are in it.
        let _ = world.settings.folder.parent().map(std::fs::remove_dir);
    }
    Ok(outcome)
}

/// Checks the histories of a folder again.
pub fn check_folder(folder: &Path) -> Result<BTreeMap<Arena, Verdict>> {
    let mut states = BTreeMap::new();
    for arena in Arena::ALL {
        let file = folder.join(format!("{arena}.state.json"));
        if file.exists() {
            states.insert(arena, serde_json::from_slice(&std::fs::read(file)?)?);
        }
    }
    check(folder, &states)
}

fn check(folder: &Path, states: &BTreeMap<Arena, State>) -> Result<BTreeMap<Arena, Verdict>> {
    let lines = history::read(folder).context("cannot read the histories")?;
    Ok(states.iter().map(|(arena, state)| (*arena, checker::check(*arena, &lines, state))).collect())
}

async fn read_state(url: &str, arena: Arena, prefix: &str) -> Result<State> {
    use state::read;
    by_url!(url, read::<DB>(url, arena, prefix))
}

impl World {
    /// Starts everything.
    async fn make(settings: Settings) -> Result<Self> {
        let guard = Guard::new()?;
        let server = match &settings.external {
            Some(url) => Server::external(settings.database, url, &guard)?,
            None => Server::start(settings.database, &guard, settings.faults.contains(&Fault::Full)).await?,
        };
        let (direct, prefix) = (server.direct(), server.prefix.clone());
        for arena in &settings.arenas {
            use state::make_tables;
            by_url!(direct, make_tables::<DB>(&direct, *arena, &prefix))?;
        }
        let mut broker = None;
        let mut broker_url = String::new();
        if settings.arenas.contains(&Arena::Broker) {
            let nats = tokio::task::spawn_blocking(outbox_testbed::Server::nats).await?;
            broker_url = nats.url();
            reader::make_stream(&broker_url).await?;
            broker = Some(nats);
        }
        let behind_pooler = settings.faults.contains(&Fault::Pooler) && server.kind == DatabaseKind::Postgres;
        let pooler = match behind_pooler {
            true => Some(Pooler::start(&guard, server.port).await?),
            false => None,
        };
        let port = pooler.as_ref().map_or(server.port, |pooler| pooler.port);
        let hooks = settings.faults.contains(&Fault::Receiver) && settings.arenas.contains(&Arena::Broker);
        let receiver = match hooks {
            true => Some(Receiver::start(Writer::new(&settings.folder, receiver::PROCESS)?).await?),
            false => None,
        };
        let (mut slots, mut kinds) = (Vec::new(), Vec::new());
        for arena in &settings.arenas {
            for (kind, count) in ProcessKind::of(*arena) {
                for n in 1..=*count {
                    kinds.push(*kind);
                    slots.push(Arc::new(Mutex::new(Slot::new(*arena, *kind, n, &server, port))));
                }
            }
        }
        let world = Self {
            began: now(),
            history: Writer::new(&settings.folder, "world")?,
            direct,
            prefix,
            server: Mutex::new(server),
            broker: Mutex::new(broker),
            broker_url,
            pooler: Mutex::new(pooler),
            receiver,
            foreign: AtomicU64::new(0),
            slots,
            kinds,
            generation: AtomicU32::new(1),
            upgrading: Mutex::new(()),
            stopping: AtomicBool::new(false),
            injected: std::sync::Mutex::default(),
            guard,
            settings,
        };
        let lease = u64::try_from(world.settings.lease.as_millis())?;
        let one_writer = world.settings.database == DatabaseKind::Sqlite;
        world.history.record(Op::Setup { lease, one_writer });
        for slot in &world.slots {
            world.start(&mut *slot.lock().await)?;
        }
        Ok(world)
    }

    /// What the database says of its own files. One that cannot be asked says nothing of them.
    async fn damage(&self) -> Vec<String> {
        use crate::integrity::damage;
        let (url, prefix) = (&self.direct, &self.prefix);
        let mut all = Vec::new();
        for arena in &self.settings.arenas {
            match by_url!(url, damage::<DB>(url, *arena, prefix)) {
                Ok(damage) => all.extend(damage),
                Err(error) => {
                    self.log(&format!("{arena}: it is not known whether its tables are whole: {error:#}"));
                }
            }
        }
        all.sort();
        all.dedup();
        all
    }

    fn log(&self, what: &str) {
        if self.settings.verbose {
            println!("[{:7.1} s] {what}", since(self.began, now()));
        }
    }

    /// Does what the plan says, until its end.
    async fn run_plan(self: &Arc<Self>, steps: Vec<Step>) {
        let begin = Instant::now();
        let mut injections = tokio::task::JoinSet::new();
        for step in steps {
            tokio::time::sleep_until((begin + step.at).into()).await;
            injections.spawn(self.clone().inject(step));
        }
        tokio::time::sleep_until((begin + self.settings.length).into()).await;
        while let Some(injected) = injections.join_next().await {
            if let Err(error) = injected {
                self.log(&format!("a fault could not be done: {error}"));
            }
        }
    }

    /// Starts again who ended by itself, says how it goes, and looks where the publishers of the log stand.
    async fn supervise(self: Arc<Self>) {
        let mut tail = Tail::default();
        for tick in 1_u64.. {
            tokio::time::sleep(Duration::from_millis(50)).await;
            for slot in &self.slots {
                // Somebody who does something to it looks after it.
                if let Ok(mut slot) = slot.try_lock() {
                    self.restart_if_exited(&mut slot);
                }
            }
            if tick.is_multiple_of(20) && self.settings.arenas.contains(&Arena::Multi) {
                self.record_positions().await;
            }
            if tick.is_multiple_of(100) && self.settings.verbose {
                match tail.read(&self.settings.folder) {
                    Ok(()) => self.log(&tail.to_string()),
                    Err(error) => self.log(&format!("cannot read the histories: {error:#}")),
                }
            }
        }
    }

    /// Positions may not go back. Not always can they be asked for.
    async fn record_positions(&self) {
        use state::positions;
        let (url, prefix) = (&self.direct, &self.prefix);
        let asked = async { by_url!(url, positions::<DB>(url, Arena::Multi, prefix)) };
        if let Ok(Ok(positions)) = tokio::time::timeout(Duration::from_secs(1), asked).await {
            for (publisher, position) in positions {
                self.history.record(Op::Position { publisher, position });
            }
        }
    }

    /// Whether it is one of our own handlers that ended the process. That may happen while it is told to end, too.
    fn may_abort(&self, how: &str) -> bool {
        how.ends_with("signal 6") && self.settings.faults.contains(&Fault::Abort)
    }

    fn restart_if_exited(&self, slot: &mut Slot) {
        let Some(status) = slot.ended() else { return };
        let aborted = self.may_abort(&status);
        self.record_exit(slot, &status, aborted);
        if !aborted {
            self.log(&format!("{} ended by itself: {status}", slot.process_name()));
        }
        if !self.stopping.load(Ordering::SeqCst)
            && let Err(error) = self.start(slot)
        {
            self.log(&format!("{} does not start: {error:#}", slot.process_name()));
        }
    }

    fn record_exit(&self, slot: &mut Slot, how: &str, expected: bool) {
        let process = slot.process_name();
        self.history.record(Op::Gone { process, how: how.to_owned(), expected });
        slot.forget();
    }

    /// Starts the process of a slot, under a new name.
    fn start(&self, slot: &mut Slot) -> Result<()> {
        let command = self.command(slot)?;
        let log = self.settings.folder.join(format!("{}.log", slot.next_name()));
        let process = self.guard.spawn(command, &log)?;
        let pid = process.id();
        slot.started(process);
        self.history.record(Op::Born { process: slot.process_name(), pid });
        Ok(())
    }
}
