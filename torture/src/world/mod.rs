//! The test environment: databases, a broker, processes, and the nemesis that injects faults.

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

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Kind of database.
    pub database: DatabaseKind,
    /// URL of a server that is already running, if the run should use one.
    pub external: Option<String>,
    /// Arenas to run.
    pub arenas: Vec<Arena>,
    /// Faults to inject.
    pub faults: Vec<Fault>,
    /// Seed of the plan.
    pub seed: u64,
    /// How long faults are injected.
    pub length: Duration,
    /// Transactions per second of each writer.
    pub rate: u32,
    /// Duration of leases.
    pub lease: Duration,
    /// Whether some handlers take longer than a lease.
    pub slow: bool,
    /// Folder for histories. Removed after a run without violations, unless `keep` is set.
    pub folder: PathBuf,
    /// Whether to keep the histories in any case.
    pub keep: bool,
    /// The torture program, which each process runs.
    pub program: PathBuf,
    /// The command `outbox`.
    pub outbox: PathBuf,
    /// Path of libfaketime, if installed.
    pub faketime: Option<PathBuf>,
    /// Whether to print progress.
    pub verbose: bool,
}

/// Result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Verdict of the checker for each arena.
    pub verdicts: BTreeMap<Arena, Verdict>,
    /// Number of injections of each fault.
    pub faults: BTreeMap<Fault, usize>,
    /// Damage to the database's own files; empty if they are intact. Damage may explain violations.
    pub damage: Vec<String>,
}

impl Outcome {
    /// Whether there are neither violations nor damage.
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
    /// The pooler between processes and database, if there is one.
    pooler: Mutex<Option<Pooler>>,
    /// The webhook receiver, if there is one.
    receiver: Option<Receiver>,
    /// Number of hostile rows so far.
    foreign: AtomicU64,
    slots: Vec<Arc<Mutex<Slot>>>,
    /// Kinds of the slots, readable while a slot is locked.
    kinds: Vec<ProcessKind>,
    /// The newest generation of event types.
    generation: AtomicU32,
    /// Allows one rolling restart at a time.
    upgrading: Mutex<()>,
    /// Set at the end: no process is started any more.
    stopping: AtomicBool,
    injected: std::sync::Mutex<BTreeMap<Fault, usize>>,
    guard: Guard,
}

/// Runs the torture test from start to end.
pub async fn run(settings: Settings) -> Result<Outcome> {
    if settings.folder.exists() {
        std::fs::remove_dir_all(&settings.folder)?;
    }
    std::fs::create_dir_all(&settings.folder)?;
    let steps = plan(settings.seed, settings.length, &settings.faults);
    let world = Arc::new(World::make(settings).await?);
    world.log(&format!("{} processes started; {} faults planned", world.slots.len(), steps.len()));
    let supervisor = tokio::spawn(world.clone().supervise());
    world.run_plan(steps).await;
    world.log("no more faults; waiting for the remaining work");
    let drained = world.drain().await;
    supervisor.abort();
    world.stop().await;
    let damage = world.damage().await;
    let mut states = BTreeMap::new();
    for arena in &world.settings.arenas {
        let state: State = match read_state(&world.direct, *arena, &world.prefix).await {
            Ok(state) => state,
            // The damage makes a check pointless.
            Err(error) if !damage.is_empty() => {
                world.log(&format!("cannot read the tables of {arena}: {error:#}"));
                continue;
            }
            Err(error) => return Err(error),
        };
        let file = world.settings.folder.join(format!("{arena}.state.json"));
        std::fs::write(file, serde_json::to_vec_pretty(&state)?)?;
        states.insert(*arena, state);
    }
    if let Err(error) = drained {
        world.log(&format!("work is left: {error:#}"));
    }
    let faults = world.injected.lock().expect("no thread panics while it holds the lock").clone();
    let verdicts = check(&world.settings.folder, &states)?;
    let outcome = Outcome { verdicts, faults, damage };
    if world.settings.verbose {
        println!("{}", report::table(&outcome));
    }
    if outcome.is_clean() && !world.settings.keep {
        std::fs::remove_dir_all(&world.settings.folder)?;
        // Fails, as intended, if another database's histories are in the seed's folder.
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
    /// Starts the servers and all processes.
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

    /// Collects damage to the database's own files. A database that does not answer reports none.
    async fn damage(&self) -> Vec<String> {
        use crate::integrity::damage;
        let (url, prefix) = (&self.direct, &self.prefix);
        let mut all = Vec::new();
        for arena in &self.settings.arenas {
            match by_url!(url, damage::<DB>(url, *arena, prefix)) {
                Ok(damage) => all.extend(damage),
                Err(error) => {
                    self.log(&format!("cannot check the tables of {arena} for damage: {error:#}"));
                }
            }
        }
        all.sort();
        all.dedup();
        all
    }

    fn log(&self, message: &str) {
        if self.settings.verbose {
            println!("[{:7.1} s] {message}", since(self.began, now()));
        }
    }

    /// Injects the faults of the plan and waits for the end of the run.
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
                self.log(&format!("cannot inject a fault: {error}"));
            }
        }
    }

    /// Restarts processes that ended by themselves, prints progress, and records the saved
    /// positions of the log.
    async fn supervise(self: Arc<Self>) {
        let mut tail = Tail::default();
        for tick in 1_u64.. {
            tokio::time::sleep(Duration::from_millis(50)).await;
            for slot in &self.slots {
                // A locked slot is being handled by a fault.
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

    /// Records the saved positions, which must never decrease. The query may fail during a fault.
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

    /// Whether the workload aborted the process, which may also happen during a stop.
    fn may_abort(&self, how: &str) -> bool {
        how.ends_with("signal 6") && self.settings.faults.contains(&Fault::Abort)
    }

    fn restart_if_exited(&self, slot: &mut Slot) {
        let Some(status) = slot.ended() else { return };
        let aborted = self.may_abort(&status);
        self.record_exit(slot, &status, aborted);
        if !aborted {
            self.log(&format!("{} ended unexpectedly: {status}", slot.process_name()));
        }
        if !self.stopping.load(Ordering::SeqCst)
            && let Err(error) = self.start(slot)
        {
            self.log(&format!("cannot start {}: {error:#}", slot.process_name()));
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
