//! A protocol to come, walked through state by state before it is built: *shares* of the table are leased, not rows.
//!
//! A node holds a share in an epoch. It reads the rows of the share without writing them, keeps in memory what it has
//! in hand, and settles with a statement that is fenced by the epoch. Shares move: their holder lets them go when it has
//! nothing of them in hand any more, or its lease runs out. Nodes are slow at will: each step of one may come at any
//! time later, which is what a stopped process looks like.
//!
//! Every rule of the protocol can be left out here, and each that is left out breaks a promise: that is how the list of
//! rules came to be.

use std::collections::BTreeSet;

use stateright::{Checker, Model, Property};

const KEPT: &str = "every promise is kept";
const LOST: &str = "nothing is lost";

/// What the protocol asks for.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// A node's own deadline counts from before it asked for the lease, so it is over before the database's.
    deadline_from_before_asking: bool,
    /// An event is started only while its node believes to hold the share, in the epoch it was taken in.
    start_asks_for_epoch: bool,
    /// The same for events that came from a writer of the same process.
    hot_start_asks_for_epoch: bool,
    /// An event counts as in hand from before its row is written, not from its hand-over after the commit.
    in_hand_from_reservation: bool,
    /// What was settled while a read was under way is not admitted by it.
    settled_is_remembered: bool,
    /// A read that began in one epoch admits nothing in another.
    read_is_of_its_epoch: bool,
    /// Behind an event of a key that was not done nothing is admitted until that is written, and then only by a later read.
    failed_key_halts: bool,
    /// A verdict takes effect only in the epoch its event was taken in.
    verdict_names_epoch: bool,
    /// The check of the epoch and the write are one: nobody can take the share over in between.
    verdict_locks_epoch: bool,
    /// A verdict names the row's counter, which every verdict raises that leaves the row in the table.
    verdict_names_counter: bool,
    /// A share is let go only when no handler is at any of its events.
    handlers_end_first: bool,
    /// A share is let go only when every verdict about its events is written.
    verdicts_are_written_first: bool,
    /// Who has lost its belief, even for a moment, gets a new epoch.
    new_epoch_after_lapse: bool,
}

const ALL: Rules = Rules {
    deadline_from_before_asking: true,
    start_asks_for_epoch: true,
    hot_start_asks_for_epoch: true,
    in_hand_from_reservation: true,
    settled_is_remembered: true,
    read_is_of_its_epoch: true,
    failed_key_halts: true,
    verdict_names_epoch: true,
    verdict_locks_epoch: true,
    verdict_names_counter: true,
    handlers_end_first: true,
    verdicts_are_written_first: true,
    new_epoch_after_lapse: true,
};

/// The share, its nodes, and how much may go wrong.
#[derive(Clone, Debug)]
struct Shares {
    rules: Rules,
    nodes: usize,
    /// Events of one key, in the table from the start.
    keyed: usize,
    /// Events without a key that a node writes and hands over.
    hot: usize,
    /// How often a node may crash, lose its belief, or not hear that its verdict was written.
    faults: u8,
    /// How often a holder may want to let the share go.
    moves: u8,
    /// How often a handler may fail.
    failures: u8,
    /// Whether to look as well from every state whether nothing is lost.
    lost: bool,
}

type Node = usize;
type Event = usize;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    // The database.
    holder: Option<Node>,
    epoch: u8,
    /// Whether the holder's lease has run out.
    lapsed: bool,
    rows: Vec<Row>,
    // The processes.
    nodes: Vec<Process>,
    // What is left of what may go wrong, and what has.
    faults: u8,
    moves: u8,
    failures: u8,
    faultless: bool,
    broken: Option<Promise>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Row {
    place: Place,
    counter: u8,
    attempts: u8,
    // What really happened, which no part of the protocol can see.
    failed: u8,
    handled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    NotWritten,
    Open(Node),
    Pending,
    Settled,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Process {
    crashed: bool,
    lease: Option<Lease>,
    leaving: bool,
    read: Option<Read>,
    jobs: BTreeSet<Job>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lease {
    epoch: u8,
    /// By the node's own clock it is not over.
    believed: bool,
}

/// A read of the table that is under way, or whose answer has not been looked at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Read {
    epoch: u8,
    seen: Vec<(Event, u8)>,
    settled_since: BTreeSet<Event>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Job {
    event: Event,
    epoch: u8,
    counter: u8,
    stage: Stage,
    hot: bool,
    /// Whether the node's memory still knows that it has it.
    held: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    Reserved,
    Committed,
    Queued,
    Running,
    /// Handled; `true` for done.
    Said(bool),
    /// The epoch was looked at and found right.
    Checked(bool),
}

/// What must hold whatever happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Promise {
    /// An event is never in the hands of two who both believe in their lease.
    OneHand,
    /// No verdict of an earlier epoch takes effect.
    NoStaleVerdict,
    /// An event is not handled before those of its key before it.
    Order,
    /// Nobody begins to handle what another holds.
    HolderOnly,
    /// The true holder does not handle what is settled.
    NotAfterSettling,
    /// Without a fault every event is handled once.
    OnceWithoutFaults,
    /// One failure is one attempt.
    CountedOnce,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Ask(Node),
    Renew(Node),
    Read(Node),
    Admit(Node),
    Start(Node, Job),
    End(Node, Job, bool),
    Check(Node, Job),
    Settle(Node, Job),
    Write(Node, Event),
    Commit(Node, Event),
    HandOver(Node, Job),
    Discard(Node, Job),
    WantToLeave(Node),
    LetGo(Node),
    // What goes wrong.
    LoseBelief(Node),
    LeaseRunsOut,
    SettleUnheard(Node, Job),
    Crash(Node),
}

impl Process {
    fn believes(&self, epoch: u8) -> bool {
        self.lease.is_some_and(|lease| lease.believed && lease.epoch == epoch)
    }

    fn holds(&self, event: Event) -> bool {
        self.jobs.iter().any(|job| job.event == event && job.held)
    }

    /// Whether it was handled here and is not done, which is not written yet.
    fn has_failed(&self, event: Event) -> bool {
        let failed = |stage| matches!(stage, Stage::Said(false) | Stage::Checked(false));
        self.jobs.iter().any(|job| job.event == event && job.held && failed(job.stage))
    }

    fn replace(&mut self, job: Job, stage: Stage) {
        self.jobs.remove(&job);
        self.jobs.insert(Job { stage, ..job });
    }

    /// Nothing in memory counts any more. Handlers that run cannot be stopped.
    fn drop_everything(&mut self) {
        let jobs = std::mem::take(&mut self.jobs);
        let goes_on = |job: &Job| !matches!(job.stage, Stage::Queued);
        self.jobs = jobs.into_iter().filter(goes_on).map(|job| Job { held: false, ..job }).collect();
    }
}

impl State {
    fn breaks(&mut self, promise: Promise) {
        self.broken = self.broken.or(Some(promise));
    }

    fn fault(&mut self) {
        self.faults -= 1;
        self.faultless = false;
    }

    /// Whether this node holds the share in this epoch, as the database has it.
    fn truly_holds(&self, node: Node, epoch: u8) -> bool {
        self.holder == Some(node) && self.epoch == epoch
    }

    fn everything_is_settled(&self) -> bool {
        self.rows.iter().all(|row| row.place == Place::Settled)
    }
}

impl Shares {
    /// Whether nothing of the key before this event is unfinished in this node's hands.
    fn is_next(&self, process: &Process, job: &Job) -> bool {
        let before = |other: &Job| other.event < job.event && other.event < self.keyed;
        let unfinished = |other: &&Job| !matches!(other.stage, Stage::Said(true) | Stage::Checked(true));
        job.event >= self.keyed
            || !process.jobs.iter().filter(|other| before(other)).any(|job| unfinished(&job))
    }

    fn may_start(&self, process: &Process, job: &Job) -> bool {
        let asks =
            if job.hot { self.rules.hot_start_asks_for_epoch } else { self.rules.start_asks_for_epoch };
        let allowed = if asks { process.believes(job.epoch) } else { true };
        allowed && job.stage == Stage::Queued && self.is_next(process, job)
    }

    fn may_let_go(&self, process: &Process) -> bool {
        let in_the_way = |job: &Job| match job.stage {
            Stage::Reserved | Stage::Committed | Stage::Queued => false,
            Stage::Running => self.rules.handlers_end_first,
            Stage::Said(_) | Stage::Checked(_) => self.rules.verdicts_are_written_first,
        };
        process.leaving && process.lease.is_some() && !process.jobs.iter().any(in_the_way)
    }

    fn node_actions(&self, state: &State, node: Node, actions: &mut Vec<Action>) {
        let process = &state.nodes[node];
        if process.crashed {
            return;
        }
        let believes = process.lease.is_some_and(|lease| lease.believed);
        let free = state.holder.is_none() || state.lapsed || state.holder == Some(node);
        if !believes && !process.leaving && free {
            actions.push(Action::Ask(node));
        }
        if let Some(lease) = process.lease
            && state.truly_holds(node, lease.epoch)
            && (lease.believed || !self.rules.new_epoch_after_lapse)
            && (state.lapsed || !lease.believed)
        {
            actions.push(Action::Renew(node));
        }
        if believes && !process.leaving && process.read.is_none() {
            actions.push(Action::Read(node));
        }
        if process.read.is_some() {
            actions.push(Action::Admit(node));
        }
        for job in &process.jobs {
            match job.stage {
                Stage::Reserved => {}
                Stage::Committed => actions.push(Action::HandOver(node, *job)),
                Stage::Queued if self.may_start(process, job) => actions.push(Action::Start(node, *job)),
                Stage::Queued if !process.believes(job.epoch) => actions.push(Action::Discard(node, *job)),
                Stage::Queued => {}
                Stage::Running => {
                    actions.push(Action::End(node, *job, true));
                    if state.failures > 0 {
                        actions.push(Action::End(node, *job, false));
                    }
                }
                Stage::Said(_) if !self.rules.verdict_locks_epoch => actions.push(Action::Check(node, *job)),
                Stage::Said(_) | Stage::Checked(_) => {
                    actions.push(Action::Settle(node, *job));
                    if state.faults > 0 {
                        actions.push(Action::SettleUnheard(node, *job));
                    }
                }
            }
        }
        for (event, row) in state.rows.iter().enumerate() {
            match row.place {
                Place::NotWritten => actions.push(Action::Write(node, event)),
                Place::Open(writer) if writer == node => actions.push(Action::Commit(node, event)),
                _ => {}
            }
        }
        if believes && !process.leaving && state.moves > 0 {
            actions.push(Action::WantToLeave(node));
        }
        if self.may_let_go(process) {
            actions.push(Action::LetGo(node));
        }
        if state.faults > 0 {
            if believes {
                actions.push(Action::LoseBelief(node));
            }
            if process.lease.is_some() || !process.jobs.is_empty() {
                actions.push(Action::Crash(node));
            }
        }
    }

    fn start(&self, state: &mut State, node: Node, job: Job) {
        let truly = state.truly_holds(node, job.epoch);
        if !truly {
            state.breaks(Promise::HolderOnly);
        }
        if state.rows[job.event].place == Place::Settled && truly {
            state.breaks(Promise::NotAfterSettling);
        }
        if state.rows[job.event].handled && state.faultless {
            state.breaks(Promise::OnceWithoutFaults);
        }
        if job.event < self.keyed && state.rows[..job.event].iter().any(|row| !row.handled) {
            state.breaks(Promise::Order);
        }
        state.nodes[node].replace(job, Stage::Running);
        let believing = |process: &Process| {
            let running = |job_: &&Job| job_.event == job.event && job_.stage == Stage::Running;
            process.jobs.iter().filter(running).filter(|job| process.believes(job.epoch)).count()
        };
        if state.nodes.iter().map(believing).sum::<usize>() > 1 {
            state.breaks(Promise::OneHand);
        }
    }

    /// Writes a verdict, if the database lets it.
    fn write(&self, state: &mut State, node: Node, job: Job) {
        let (done, checked) = match job.stage {
            Stage::Said(done) => (done, false),
            Stage::Checked(done) => (done, true),
            _ => unreachable!("only verdicts are written"),
        };
        let truly = state.truly_holds(node, job.epoch);
        let row = &mut state.rows[job.event];
        let fits = row.place == Place::Pending
            && (checked || truly || !self.rules.verdict_names_epoch)
            && (row.counter == job.counter || !self.rules.verdict_names_counter);
        if !fits {
            return;
        }
        if done {
            row.place = Place::Settled;
        } else {
            row.counter += 1;
            row.attempts += 1;
        }
        if row.attempts > row.failed {
            state.breaks(Promise::CountedOnce);
        }
        if !truly {
            state.breaks(Promise::NoStaleVerdict);
        }
    }

    /// A verdict is out of this node's hands: written, or too late.
    fn settled(process: &mut Process, job: Job) {
        process.jobs.remove(&job);
        if let Some(read) = process.read.as_mut().filter(|_| job.held) {
            read.settled_since.insert(job.event);
        }
    }

    fn admit(&self, state: &mut State, node: Node) {
        let keyed = self.keyed;
        let process = &mut state.nodes[node];
        let Some(read) = process.read.take() else { return };
        let Some(lease) = process.lease.filter(|_| !process.leaving) else { return };
        if self.rules.read_is_of_its_epoch && read.epoch != lease.epoch {
            return;
        }
        for (event, counter) in &read.seen {
            let settled = self.rules.settled_is_remembered && read.settled_since.contains(event);
            if process.holds(*event) || settled {
                if *event < keyed && self.rules.failed_key_halts && (settled || process.has_failed(*event)) {
                    break;
                }
                continue;
            }
            process.jobs.insert(Job {
                event: *event,
                epoch: lease.epoch,
                counter: *counter,
                stage: Stage::Queued,
                hot: false,
                held: true,
            });
        }
    }

    /// The same model without anything more going wrong, until nothing is left to do.
    fn settles_if_left_alone(&self, state: &State) -> bool {
        let mut state = state.clone();
        (state.faults, state.moves, state.failures) = (0, 0, 0);
        for _ in 0..60 {
            if state.everything_is_settled() {
                return true;
            }
            let mut actions = Vec::new();
            self.actions(&state, &mut actions);
            // What changes nothing is not progress: reading is the last resort, and time passes when nothing else can.
            let rank = |action: &Action| match action {
                Action::LeaseRunsOut => 4,
                Action::Ask(_) => 3,
                Action::Read(_) => 2,
                Action::Renew(_) => 1,
                _ => 0,
            };
            actions.sort_by_key(rank);
            let Some(next) = actions.first().and_then(|action| self.next_state(&state, *action)) else {
                return false;
            };
            state = next;
        }
        false
    }
}

impl Model for Shares {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let row = |place| Row { place, counter: 0, attempts: 0, failed: 0, handled: false };
        let keyed = std::iter::repeat_n(row(Place::Pending), self.keyed);
        vec![State {
            holder: None,
            epoch: 0,
            lapsed: false,
            rows: keyed.chain(std::iter::repeat_n(row(Place::NotWritten), self.hot)).collect(),
            nodes: vec![Process::default(); self.nodes],
            faults: self.faults,
            moves: self.moves,
            failures: self.failures,
            faultless: true,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        (0..self.nodes).for_each(|node| self.node_actions(state, node, actions));
        // Time passes for everybody: a lease that its node believes in has not run out.
        if let Some(holder) = state.holder.filter(|_| !state.lapsed) {
            let process = &state.nodes[holder];
            let believed = process.believes(state.epoch) && !process.crashed;
            if !believed || (!self.rules.deadline_from_before_asking && state.faults > 0) {
                actions.push(Action::LeaseRunsOut);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Ask(node) => {
                state.epoch += 1;
                (state.holder, state.lapsed) = (Some(node), false);
                let process = &mut state.nodes[node];
                process.drop_everything();
                process.lease = Some(Lease { epoch: state.epoch, believed: true });
            }
            Action::Renew(node) => {
                state.lapsed = false;
                let lease = state.nodes[node].lease.as_mut()?;
                if !lease.believed {
                    lease.believed = true;
                    state.nodes[node].drop_everything();
                }
            }
            Action::Read(node) => {
                let epoch = state.nodes[node].lease?.epoch;
                let mut seen = Vec::new();
                if state.truly_holds(node, epoch) {
                    let pending = |(_, row): &(Event, &Row)| row.place == Place::Pending;
                    seen = state
                        .rows
                        .iter()
                        .enumerate()
                        .filter(pending)
                        .map(|(event, row)| (event, row.counter))
                        .collect();
                }
                state.nodes[node].read = Some(Read { epoch, seen, settled_since: BTreeSet::new() });
            }
            Action::Admit(node) => self.admit(&mut state, node),
            Action::Start(node, job) => self.start(&mut state, node, job),
            Action::End(node, job, done) => {
                let row = &mut state.rows[job.event];
                row.handled |= done;
                row.failed += u8::from(!done);
                state.failures -= u8::from(!done);
                let process = &mut state.nodes[node];
                process.replace(job, Stage::Said(done));
                if !done && job.event < self.keyed {
                    // Nothing of the key goes on behind it.
                    process.jobs.retain(|other| {
                        other.event <= job.event || other.event >= self.keyed || other.stage != Stage::Queued
                    });
                }
            }
            Action::Check(node, job) => {
                let Stage::Said(done) = job.stage else { return None };
                let process = &mut state.nodes[node];
                if last.truly_holds(node, job.epoch) || !self.rules.verdict_names_epoch {
                    process.replace(job, Stage::Checked(done));
                } else {
                    Self::settled(process, job);
                }
            }
            Action::Settle(node, job) => {
                self.write(&mut state, node, job);
                Self::settled(&mut state.nodes[node], job);
            }
            Action::SettleUnheard(node, job) => {
                state.fault();
                self.write(&mut state, node, job);
            }
            Action::Write(node, event) => {
                state.rows[event].place = Place::Open(node);
                let process = &mut state.nodes[node];
                if let Some(lease) = process.lease.filter(|lease| lease.believed && !process.leaving) {
                    process.jobs.insert(Job {
                        event,
                        epoch: lease.epoch,
                        counter: 0,
                        stage: Stage::Reserved,
                        hot: true,
                        held: self.rules.in_hand_from_reservation,
                    });
                }
            }
            Action::Commit(node, event) => {
                state.rows[event].place = Place::Pending;
                let process = &mut state.nodes[node];
                let reserved =
                    process.jobs.iter().find(|job| job.event == event && job.stage == Stage::Reserved);
                if let Some(job) = reserved.copied() {
                    process.replace(job, Stage::Committed);
                }
            }
            Action::HandOver(node, job) => {
                let process = &mut state.nodes[node];
                process.jobs.remove(&job);
                // What was dropped from memory in the meantime is for whoever holds the share now.
                if job.held || !self.rules.in_hand_from_reservation {
                    process.jobs.insert(Job { stage: Stage::Queued, held: true, ..job });
                }
            }
            Action::Discard(node, job) => {
                state.nodes[node].jobs.remove(&job);
            }
            Action::WantToLeave(node) => {
                state.moves -= 1;
                let process = &mut state.nodes[node];
                process.leaving = true;
                process.jobs.retain(|job| job.stage != Stage::Queued);
            }
            Action::LetGo(node) => {
                let process = &mut state.nodes[node];
                if let Some(lease) = process.lease.take() {
                    process.leaving = false;
                    process.drop_everything();
                    if state.truly_holds(node, lease.epoch) {
                        (state.holder, state.lapsed) = (None, false);
                    }
                }
            }
            Action::LoseBelief(node) => {
                state.fault();
                let process = &mut state.nodes[node];
                process.leaving = false;
                if let Some(lease) = &mut process.lease {
                    lease.believed = false;
                }
            }
            Action::LeaseRunsOut => {
                state.lapsed = true;
                let holder = state.holder?;
                if state.nodes[holder].believes(state.epoch) && !state.nodes[holder].crashed {
                    state.fault();
                }
            }
            Action::Crash(node) => {
                state.fault();
                // It stays away: whoever comes in its place is another node.
                state.nodes[node] = Process { crashed: true, ..Process::default() };
                for row in &mut state.rows {
                    if row.place == Place::Open(node) {
                        row.place = Place::NotWritten;
                    }
                }
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let kept = Property::always(KEPT, |_, state: &State| state.broken.is_none());
        let lost = Property::always(LOST, |model: &Self, state: &State| {
            let somebody_lives = state.nodes.iter().any(|process| !process.crashed);
            !somebody_lives || model.settles_if_left_alone(state)
        });
        if self.lost { vec![kept, lost] } else { vec![kept] }
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.epoch <= 5
    }
}

/// Walks through every state; the first promise that is broken, and how it came to that.
fn check(model: Shares) -> Option<(Promise, String)> {
    let started = std::time::Instant::now();
    let checker = model.checker().threads(1).spawn_bfs().join();
    println!("{} states in {:?}", checker.unique_state_count(), started.elapsed());
    let told = |path: stateright::Path<State, Action>| {
        let steps: Vec<String> = path.into_actions().iter().map(|action| format!("{action:?}")).collect();
        steps.join("\n")
    };
    if let Some(path) = checker.discovery(KEPT) {
        let broken = path.last_state().broken?;
        return Some((broken, told(path)));
    }
    if let Some(path) = checker.discovery(LOST) {
        panic!("something is lost:\n{}", told(path));
    }
    None
}

/// How much may go wrong, more of which takes longer to walk through.
fn faults() -> u8 {
    std::env::var("OUTBOX_MODEL_FAULTS").ok().map_or(1, |n| n.parse().expect("a number"))
}

fn keyed(rules: Rules) -> Shares {
    Shares { rules, nodes: 2, keyed: 2, hot: 0, faults: faults(), moves: 1, failures: 1, lost: false }
}

fn hot(rules: Rules) -> Shares {
    Shares { rules, nodes: 2, keyed: 0, hot: 1, faults: faults(), moves: 1, failures: 1, lost: false }
}

#[test]
fn with_every_rule_no_promise_is_broken() {
    // Whether nothing is lost is asked in every state: of fewer states.
    let one = Shares { keyed: 1, lost: true, ..keyed(ALL) };
    let written = Shares { failures: 0, lost: true, ..hot(ALL) };
    for model in [keyed(ALL), hot(ALL), one, written] {
        if let Some((promise, steps)) = check(model) {
            panic!("{promise:?} is broken:\n{steps}");
        }
    }
}

#[test]
fn without_any_one_rule_a_promise_is_broken() {
    use Promise::{
        CountedOnce, HolderOnly, NoStaleVerdict, NotAfterSettling, OnceWithoutFaults, OneHand, Order,
    };
    let cases = [
        (keyed(Rules { deadline_from_before_asking: false, ..ALL }), HolderOnly),
        (keyed(Rules { start_asks_for_epoch: false, ..ALL }), HolderOnly),
        (hot(Rules { hot_start_asks_for_epoch: false, ..ALL }), HolderOnly),
        (hot(Rules { in_hand_from_reservation: false, ..ALL }), OneHand),
        (keyed(Rules { settled_is_remembered: false, ..ALL }), NotAfterSettling),
        (keyed(Rules { read_is_of_its_epoch: false, ..ALL }), NotAfterSettling),
        (keyed(Rules { failed_key_halts: false, ..ALL }), Order),
        (keyed(Rules { verdict_names_epoch: false, ..ALL }), NoStaleVerdict),
        (keyed(Rules { verdict_locks_epoch: false, ..ALL }), NoStaleVerdict),
        (keyed(Rules { verdict_names_counter: false, ..ALL }), CountedOnce),
        (keyed(Rules { handlers_end_first: false, ..ALL }), OnceWithoutFaults),
        (keyed(Rules { verdicts_are_written_first: false, ..ALL }), OnceWithoutFaults),
        (keyed(Rules { new_epoch_after_lapse: false, ..ALL }), OneHand),
    ];
    for (model, expected) in cases {
        let rules = model.rules;
        match check(model) {
            Some((promise, steps)) => assert_eq!(promise, expected, "{rules:?}:\n{steps}"),
            None => panic!("no promise is broken: {rules:?}"),
        }
    }
}
