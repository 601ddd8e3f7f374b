//! The history in structured form: transactions, runs of handlers, and the faults of each process.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::arena::{Arena, LEASE};
use crate::history::{Commit, HandlerOutcome, Line, Op};
use crate::work::{Kind, Spec};

/// How long after a disruption, in microseconds, an event that the process held may still be
/// affected. A verdict waits some milliseconds to be batched and is then written as soon as the
/// database answers.
pub(super) const GRACE: u64 = 5_000_000;

/// A transaction of a writer.
#[derive(Debug)]
pub struct Tx<'a> {
    /// The line that announces the transaction.
    pub writing: &'a Line,
    /// Its events.
    pub specs: &'a [Spec],
    /// The line that records its result, if there is one.
    pub ended: Option<&'a Line>,
    /// Its result.
    pub how: Option<Commit>,
}

/// A run of a handler.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The line that records its start.
    pub begin: &'a Line,
    /// The line that records its end, if there is one.
    pub finish: Option<&'a Line>,
    /// Name of the process.
    pub process: &'a str,
    /// Number of the attempt.
    pub attempt: u32,
    /// The event's sequence number.
    pub seq: Option<i64>,
    /// Time of the start.
    pub start: u64,
    /// Time of the end, or of the end of its process.
    pub end: u64,
    /// Its outcome; `None` if the run was cut short.
    pub outcome: Option<HandlerOutcome>,
}

impl Run<'_> {
    /// Whether the outcome is done.
    pub fn is_done(&self) -> bool {
        self.outcome == Some(HandlerOutcome::Done)
    }
}

/// Duration of a fault of one process, or of all processes.
#[derive(Debug)]
pub(super) struct Window<'a> {
    pub(super) fault: &'a str,
    process: Option<&'a str>,
    pub(super) from: u64,
    pub(super) until: u64,
}

impl Window<'_> {
    /// Whether the fault prevents a process from renewing its leases for as long as it lasts. Cut
    /// connections are reopened at once.
    fn obstructs(&self) -> bool {
        matches!(self.fault, "stop" | "mute" | "restart" | "full" | "pooler")
    }

    /// Whether the fault can prevent a verdict from being written.
    fn disturbs(&self) -> bool {
        self.obstructs() || matches!(self.fault, "cut" | "terminate")
    }

    fn hits(&self, process: &str) -> bool {
        self.process.is_none_or(|hit| hit == process)
    }
}

/// All facts about an arena.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The arena.
    pub arena: Arena,
    /// How long an event is held without renewal.
    lease: Duration,
    /// The transactions, by name.
    pub txs: BTreeMap<&'a str, Tx<'a>>,
    /// The specs by event id, each with the name of its transaction.
    pub specs: BTreeMap<&'a str, (&'a Spec, &'a str)>,
    /// The runs of each event, ordered by start.
    pub runs: BTreeMap<&'a str, Vec<Run<'a>>>,
    /// All lines of the arena, in order.
    pub lines: Vec<&'a Line>,
    /// Ends of processes by a signal: such a process loses its unsettled events.
    pub(super) deaths: HashMap<&'a str, (u64, &'a Line)>,
    gone: HashMap<&'a str, &'a Line>,
    pub(super) windows: Vec<Window<'a>>,
    /// Rows that are not part of the workload, and the lines that announce them.
    pub(super) foreign: BTreeMap<&'a str, &'a Line>,
    /// Deliveries of those rows.
    pub(super) foreign_deliveries: BTreeMap<&'a str, Vec<&'a Line>>,
    /// Whether a stopped process may block all other writers.
    one_writer: bool,
}

impl<'a> Facts<'a> {
    /// Collects the facts from all lines, which are in order of time.
    pub fn gather(arena: Arena, lines: &'a [Line]) -> Self {
        let mut facts = Self {
            arena,
            lease: arena.lease(LEASE),
            txs: BTreeMap::new(),
            specs: BTreeMap::new(),
            runs: BTreeMap::new(),
            lines: lines.iter().filter(|line| is_of(arena, line)).collect(),
            deaths: HashMap::new(),
            gone: HashMap::new(),
            windows: Vec::new(),
            foreign: BTreeMap::new(),
            foreign_deliveries: BTreeMap::new(),
            one_writer: false,
        };
        let over = lines.last().map_or(0, |line| line.record.t);
        let mut open: HashMap<(&str, u64), (&str, usize)> = HashMap::new();
        for line in facts.lines.clone() {
            let (t, p) = (line.record.t, line.record.p.as_str());
            match &line.record.op {
                Op::Setup { lease, one_writer } => {
                    facts.lease = arena.lease(Duration::from_millis(*lease));
                    facts.one_writer = *one_writer;
                }
                Op::Foreign { id, .. } => {
                    facts.foreign.insert(id, line);
                }
                Op::Started { id, .. } | Op::Arrived { id, .. } | Op::Received { id, .. }
                    if facts.is_foreign(id) =>
                {
                    facts.foreign_deliveries.entry(id).or_default().push(line);
                }
                Op::Writing { tx, events } => {
                    for spec in events {
                        facts.specs.insert(&spec.id, (spec, tx));
                    }
                    facts.txs.insert(tx, Tx { writing: line, specs: events, ended: None, how: None });
                }
                Op::Ended { tx, how, .. } => {
                    if let Some(tx) = facts.txs.get_mut(tx.as_str()) {
                        (tx.ended, tx.how) = (Some(line), Some(*how));
                    }
                }
                Op::Started { run, id, seq, attempt } => {
                    let runs = facts.runs.entry(id).or_default();
                    open.insert((p, *run), (id, runs.len()));
                    runs.push(Run {
                        begin: line,
                        finish: None,
                        process: p,
                        attempt: *attempt,
                        seq: *seq,
                        start: t,
                        end: u64::MAX,
                        outcome: None,
                    });
                }
                Op::Finished { run, how } => {
                    let at = open.remove(&(p, *run));
                    if let Some(run) = at.and_then(|(id, n)| facts.runs.get_mut(id)?.get_mut(n)) {
                        (run.finish, run.end, run.outcome) = (Some(line), t, Some(*how));
                    }
                }
                Op::Gone { process, how, .. } => {
                    facts.gone.insert(process, line);
                    if how.starts_with("signal") {
                        facts.deaths.insert(process, (t, line));
                    }
                }
                Op::Hit { fault, process } => {
                    let Some(process) = facts.affected(fault, process.as_deref()) else { continue };
                    facts.windows.push(Window { fault, process, from: t, until: over });
                }
                Op::Over { fault, process } => {
                    let Some(process) = facts.affected(fault, process.as_deref()) else { continue };
                    let same =
                        |w: &&mut Window<'_>| w.fault == fault && w.process == process && w.until == over;
                    if let Some(window) = facts.windows.iter_mut().rev().find(same) {
                        window.until = t;
                    }
                }
                _ => {}
            }
        }
        // A run without a recorded end ended with its process at the latest.
        let ends: HashMap<&str, u64> = facts.gone.iter().map(|(p, line)| (*p, line.record.t)).collect();
        for run in facts.runs.values_mut().flatten().filter(|run| run.finish.is_none()) {
            run.end = ends.get(run.process).copied().unwrap_or(over);
        }
        facts
    }

    /// The processes that a fault affects: `None` if none of this arena, `Some(None)` if all, or
    /// the one process.
    fn affected(&self, fault: &str, process: Option<&'a str>) -> Option<Option<&'a str>> {
        match process {
            None => Some(None),
            // The process may have been stopped while it held the database's write lock.
            Some(_) if self.one_writer && fault == "stop" => Some(None),
            Some(process) => (Arena::of(process) == Some(self.arena)).then_some(Some(process)),
        }
    }

    /// Whether a row is not part of the workload. Brokers and databases may alter an unusual id
    /// slightly.
    pub(super) fn is_foreign(&self, id: &str) -> bool {
        self.foreign.contains_key(id) || (!self.foreign.is_empty() && id.contains("poison"))
    }

    /// Whether a process may have lost the verdict of a run that finished at this time: the process
    /// was killed, or cut off from the database, around `finished` and before `before`.
    pub(super) fn may_have_lost(&self, process: &str, finished: u64, before: u64) -> bool {
        let dead = self.deaths.get(process).is_some_and(|(t, _)| *t <= finished + GRACE && *t <= before);
        let disturbed = |window: &Window<'_>| {
            window.disturbs()
                && window.hits(process)
                && window.from <= before.min(finished + GRACE)
                && window.until + GRACE >= finished
        };
        dead || self.windows.iter().any(disturbed)
    }

    /// Whether the lease of a process may have expired at this moment: in the preceding lease
    /// duration the process never had enough time to renew it. A process renews at a third of the
    /// lease; one second is added for a busy machine.
    pub(super) fn lease_may_be_over(&self, process: &str, moment: u64) -> bool {
        let lease = u64::try_from(self.lease.as_micros()).unwrap_or(u64::MAX);
        let enough = lease / 3 + 1_000_000;
        let mut free_since = moment.saturating_sub(lease);
        let mut windows: Vec<&Window<'_>> =
            self.windows.iter().filter(|w| w.obstructs() && w.hits(process)).collect();
        windows.sort_by_key(|window| window.from);
        for window in windows {
            if window.from >= moment || window.until <= free_since {
                continue;
            }
            if window.from.saturating_sub(free_since) >= enough {
                return false;
            }
            free_since = free_since.max(window.until);
        }
        moment.saturating_sub(free_since) < enough
    }

    /// Whether a process was stopped so shortly before this moment that it had no time to check its
    /// lease.
    pub(super) fn just_resumed(&self, process: &str, moment: u64) -> bool {
        let stopped = |w: &Window<'_>| {
            w.fault == "stop" && w.hits(process) && w.from <= moment && moment <= w.until + 1_000_000
        };
        self.windows.iter().any(stopped)
    }

    /// Number of disruptions between these moments that may have cut a handler short.
    pub(super) fn disruptions(&self, from: u64, until: u64) -> usize {
        let deaths = self.deaths.values().filter(|(t, _)| (from..=until).contains(t)).count();
        let windows =
            self.windows.iter().filter(|w| w.disturbs() && w.from <= until && w.until + GRACE >= from);
        deaths + windows.count()
    }

    /// Number of outages of the broker or the receiver before this moment.
    pub(super) fn outages(&self, before: u64) -> usize {
        let away =
            |window: &&Window<'_>| matches!(window.fault, "outage" | "receiver") && window.from <= before;
        self.windows.iter().filter(away).count()
    }

    /// Processes that ended without a fault or a requested stop.
    pub(super) fn processes_that_failed(&self) -> impl Iterator<Item = (&'a str, &'a Line)> {
        let failed = |line: &Line| matches!(line.record.op, Op::Gone { expected: false, .. });
        let all: BTreeMap<&str, &Line> = self.gone.iter().map(|(process, line)| (*process, *line)).collect();
        all.into_iter().filter(move |(_, line)| failed(line))
    }

    /// The events that writers wrote, without the follow-ups of joins.
    pub(super) fn written(&self) -> impl Iterator<Item = (&'a Spec, &Tx<'a>)> {
        let own = self.specs.values().filter(|(spec, _)| !matches!(spec.kind, Kind::Then | Kind::Sorry));
        own.filter_map(|(spec, tx)| Some((*spec, self.txs.get(tx)?)))
    }

    /// The runs of an event.
    pub(super) fn runs_of(&self, id: &str) -> &[Run<'a>] {
        self.runs.get(id).map_or(&[], Vec::as_slice)
    }
}

/// Whether a line is about this arena.
fn is_of(arena: Arena, line: &Line) -> bool {
    let of = |process: &str| Arena::of(process) == Some(arena);
    match &line.record.op {
        // Stops in other arenas too: on a database with a single writer a stopped process may block
        // all others.
        Op::Hit { process, fault } | Op::Over { process, fault } => {
            fault == "stop" || process.as_deref().is_none_or(of)
        }
        Op::Foreign { arena: other, .. } => *other == arena,
        Op::Born { process, .. } | Op::Gone { process, .. } => of(process),
        Op::Position { .. } => arena.has_log(),
        Op::Setup { .. } => true,
        _ => of(&line.record.p),
    }
}

/// The lines of these runs, as a proof.
pub(super) fn lines_of<'a>(runs: &[Run<'a>]) -> Vec<&'a Line> {
    runs.iter().flat_map(|run| [Some(run.begin), run.finish]).flatten().collect()
}
