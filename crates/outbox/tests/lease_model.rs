//! Model of row leases, checked state by state: the protocol of `multi_node` and `ordered`.
//!
//! Two nodes take, handle, renew and settle events of one key and one event of the hot path, while
//! nodes crash, are suspended for longer than their leases (each step of a node may happen at any
//! later time), and lose the answers to settlements. Every rule can be left out, and each that is
//! left out violates an invariant.

use std::collections::BTreeSet;

use stateright::{Checker, Model, Property};

const INVARIANTS_HOLD: &str = "every invariant holds";
const NO_EVENT_LOST: &str = "no event is lost";

/// Rules of the protocol.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// A node's own deadline counts from before it requested the lease, so it ends before the
    /// database's.
    deadline_from_before_request: bool,
    /// An event is started only while its node believes in the lease.
    start_checks_lease: bool,
    /// Of a key only an event with no earlier one that is leased or pending can be taken.
    heads_only: bool,
    /// When an event was not done, for whichever reason, the later events of its key are released.
    key_halts: bool,
    /// The row of a hot event is inserted with a lease.
    born_leased: bool,
    /// A verdict names the claim counter, which increases each time the row is taken.
    verdict_names_claim: bool,
    /// A renewal names the claim counter, too.
    renewal_names_claim: bool,
}

const ALL: Rules = Rules {
    deadline_from_before_request: true,
    start_checks_lease: true,
    heads_only: true,
    key_halts: true,
    born_leased: true,
    verdict_names_claim: true,
    renewal_names_claim: true,
};

/// The table, its nodes, and the number of faults.
#[derive(Clone, Debug)]
struct Leases {
    rules: Rules,
    /// Events of one key, in the table from the start.
    keyed: usize,
    /// Events without a key that a node writes and delivers by the hot path.
    hot: usize,
    /// How often a node may crash, lose its belief in a lease, or lose the answer to a settlement.
    faults: u8,
    /// How often a handler may fail.
    failures: u8,
    /// Whether to check in every state that no event is lost.
    lost: bool,
}

const NODES: usize = 2;

type Node = usize;
type Event = usize;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    rows: Vec<Row>,
    nodes: Vec<Process>,
    faults: u8,
    failures: u8,
    faultless: bool,
    violated: Option<Invariant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Row {
    status: RowStatus,
    owner: Option<Node>,
    lapsed: bool,
    claims: u8,
    attempts: u8,
    // Ground truth, which no part of the protocol can see.
    failed: u8,
    handled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum RowStatus {
    Unwritten,
    Open(Node),
    Pending,
    Settled,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Process {
    crashed: bool,
    jobs: BTreeSet<Job>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Job {
    event: Event,
    claim: u8,
    stage: Stage,
    /// By the node's own clock the lease has not expired.
    believed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    Reserved,
    Queued,
    Running,
    Decided(Verdict),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Verdict {
    Done,
    Again,
    Released,
}

/// Invariants of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Invariant {
    /// An event is never running on two nodes that both believe in their lease.
    OneRunner,
    /// No node starts an event that another node holds.
    HolderOnly,
    /// Only the verdict of the last node that took the event takes effect.
    NoStaleVerdict,
    /// An event is not handled before the earlier events of its key.
    Order,
    /// Without a fault every event is handled once.
    OnceWithoutFaults,
    /// One failure is one attempt.
    CountedOnce,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Take(Node, usize),
    Renew(Node, Job),
    Start(Node, Job),
    Discard(Node, Job),
    End(Node, Job, Verdict),
    Settle(Node, Job),
    Write(Node, Event),
    Commit(Node, Event),
    HandOver(Node, Job),
    // Faults.
    LoseBelief(Node, Job),
    LeaseExpires(Event),
    SettleAnswerLost(Node, Job),
    Crash(Node),
}

impl Row {
    fn is_free(&self) -> bool {
        self.status == RowStatus::Pending && (self.owner.is_none() || self.lapsed)
    }
}

impl Process {
    fn replace(&mut self, job: Job, stage: Stage) {
        self.jobs.remove(&job);
        self.jobs.insert(Job { stage, ..job });
    }
}

impl State {
    fn violate(&mut self, invariant: Invariant) {
        self.violated = self.violated.or(Some(invariant));
    }

    fn fault(&mut self) {
        self.faults -= 1;
        self.faultless = false;
    }

    /// Whether this node is the last that took the event, according to the table.
    fn truly_holds(&self, node: Node, job: &Job) -> bool {
        let row = &self.rows[job.event];
        row.owner == Some(node) && row.claims == job.claim
    }

    fn is_believed(&self, event: Event) -> bool {
        let row = &self.rows[event];
        let holds = |job: &Job| job.event == event && job.claim == row.claims && job.believed;
        row.owner.is_some_and(|owner| self.nodes[owner].jobs.iter().any(holds))
    }
}

impl Leases {
    fn is_keyed(&self, event: Event) -> bool {
        event < self.keyed
    }

    /// Events that a take with this limit would return.
    fn takeable(&self, state: &State, limit: usize) -> Vec<Event> {
        let mut taken: Vec<Event> = Vec::new();
        for (event, row) in state.rows.iter().enumerate().filter(|(_, row)| row.is_free()).take(limit) {
            let before = &state.rows[..if self.is_keyed(event) { event } else { 0 }];
            let blocked = before
                .iter()
                .enumerate()
                .any(|(i, row)| row.status != RowStatus::Settled && !taken.contains(&i));
            if row.is_free() && !(self.rules.heads_only && blocked) {
                taken.push(event);
            }
        }
        taken
    }

    fn may_start(&self, process: &Process, job: &Job) -> bool {
        let blocks = |other: &Job| {
            let same_key = self.is_keyed(job.event) && other.event < job.event;
            same_key && !matches!(other.stage, Stage::Decided(Verdict::Done))
        };
        job.stage == Stage::Queued
            && (job.believed || !self.rules.start_checks_lease)
            && !process.jobs.iter().any(blocks)
    }

    fn node_actions(&self, state: &State, node: Node, actions: &mut Vec<Action>) {
        let process = &state.nodes[node];
        if process.crashed {
            return;
        }
        for limit in 1..=2 {
            let takeable = self.takeable(state, limit);
            if !takeable.is_empty() && (limit == 1 || takeable.len() > 1) {
                actions.push(Action::Take(node, limit));
            }
        }
        for job in &process.jobs {
            if job.stage != Stage::Reserved && (!job.believed || state.rows[job.event].lapsed) {
                actions.push(Action::Renew(node, *job));
            }
            match job.stage {
                Stage::Reserved => {
                    if state.rows[job.event].status != RowStatus::Open(node) {
                        actions.push(Action::HandOver(node, *job));
                    }
                }
                Stage::Queued if self.may_start(process, job) => actions.push(Action::Start(node, *job)),
                Stage::Queued if !job.believed => actions.push(Action::Discard(node, *job)),
                Stage::Queued => {}
                Stage::Running => {
                    actions.push(Action::End(node, *job, Verdict::Done));
                    if state.failures > 0 {
                        actions.push(Action::End(node, *job, Verdict::Again));
                    }
                }
                Stage::Decided(_) => {
                    actions.push(Action::Settle(node, *job));
                    if state.faults > 0 {
                        actions.push(Action::SettleAnswerLost(node, *job));
                    }
                }
            }
            if state.faults > 0 && job.believed {
                actions.push(Action::LoseBelief(node, *job));
            }
        }
        for (event, row) in state.rows.iter().enumerate() {
            match row.status {
                RowStatus::Unwritten => actions.push(Action::Write(node, event)),
                RowStatus::Open(writer) if writer == node => actions.push(Action::Commit(node, event)),
                _ => {}
            }
        }
        if state.faults > 0 && !process.jobs.is_empty() {
            actions.push(Action::Crash(node));
        }
    }

    fn take(&self, state: &mut State, node: Node, limit: usize) {
        for event in self.takeable(state, limit) {
            let row = &mut state.rows[event];
            (row.owner, row.lapsed, row.claims) = (Some(node), false, row.claims + 1);
            let job = Job { event, claim: row.claims, stage: Stage::Queued, believed: true };
            let jobs = &mut state.nodes[node].jobs;
            // The table leased the event to this node again, so the node's earlier lease of it is
            // lost.
            jobs.retain(|old| old.event != event || old.stage != Stage::Queued);
            let lost: Vec<Job> = jobs.iter().filter(|old| old.event == event).copied().collect();
            for old in lost {
                jobs.remove(&old);
                jobs.insert(Job { believed: false, ..old });
            }
            jobs.insert(job);
        }
    }

    fn start(&self, state: &mut State, node: Node, job: Job) {
        if !state.truly_holds(node, &job) {
            state.violate(Invariant::HolderOnly);
        }
        if state.rows[job.event].handled && state.faultless {
            state.violate(Invariant::OnceWithoutFaults);
        }
        if self.is_keyed(job.event) && state.rows[..job.event].iter().any(|row| !row.handled) {
            state.violate(Invariant::Order);
        }
        state.nodes[node].replace(job, Stage::Running);
        let running =
            |other: &&Job| other.event == job.event && other.stage == Stage::Running && other.believed;
        if state.nodes.iter().flat_map(|process| &process.jobs).filter(running).count() > 1 {
            state.violate(Invariant::OneRunner);
        }
    }

    /// Writes a verdict, if the table accepts it.
    fn write(&self, state: &mut State, node: Node, job: Job) {
        let Stage::Decided(verdict) = job.stage else { return };
        let truly = state.truly_holds(node, &job);
        let row = &mut state.rows[job.event];
        let ours = row.owner == Some(node) && (row.claims == job.claim || !self.rules.verdict_names_claim);
        if row.status != RowStatus::Pending || !ours {
            return;
        }
        match verdict {
            Verdict::Done => row.status = RowStatus::Settled,
            Verdict::Again => row.attempts += 1,
            Verdict::Released => {}
        }
        if verdict != Verdict::Done {
            row.claims += 1;
            (row.owner, row.lapsed) = (None, false);
        }
        if row.attempts > row.failed {
            state.violate(Invariant::CountedOnce);
        }
        if !truly {
            state.violate(Invariant::NoStaleVerdict);
        }
    }

    fn end(&self, state: &mut State, node: Node, job: Job, verdict: Verdict) {
        let done = verdict == Verdict::Done;
        let row = &mut state.rows[job.event];
        row.handled |= done;
        row.failed += u8::from(!done);
        state.failures -= u8::from(!done);
        let process = &mut state.nodes[node];
        process.replace(job, Stage::Decided(verdict));
        if !done {
            self.halt(process, job);
        }
    }

    /// Releases the queued events of a key behind this event.
    fn halt(&self, process: &mut Process, job: Job) {
        if self.is_keyed(job.event) && self.rules.key_halts {
            let behind = |other: &&Job| other.event > job.event && self.is_keyed(other.event);
            let queued: Vec<Job> = process
                .jobs
                .iter()
                .filter(behind)
                .filter(|other| other.stage == Stage::Queued)
                .copied()
                .collect();
            queued.into_iter().for_each(|other| process.replace(other, Stage::Decided(Verdict::Released)));
        }
    }

    fn renew(&self, state: &mut State, node: Node, job: Job) {
        let truly = state.truly_holds(node, &job);
        let row = &mut state.rows[job.event];
        let ours = row.owner == Some(node) && (truly || !self.rules.renewal_names_claim);
        let process = &mut state.nodes[node];
        process.jobs.remove(&job);
        if row.status == RowStatus::Pending && ours {
            row.lapsed = false;
            process.jobs.insert(Job { believed: true, ..job });
        } else {
            process.jobs.insert(Job { believed: false, ..job });
        }
    }

    /// Runs the model without further faults, until nothing is left to do.
    fn settles_without_faults(&self, state: &State) -> bool {
        let mut state = state.clone();
        (state.faults, state.failures) = (0, 0);
        for _ in 0..60 {
            if state.rows.iter().all(|row| row.status == RowStatus::Settled) {
                return true;
            }
            let mut actions = Vec::new();
            self.actions(&state, &mut actions);
            // Time passes when nothing else can happen; a lost lease is not renewed for ever.
            let rank = |action: &Action| match action {
                Action::LeaseExpires(_) => 2,
                Action::Take(..) => 1,
                _ => 0,
            };
            actions.retain(|action| !matches!(action, Action::Renew(..)));
            actions.sort_by_key(rank);
            let Some(next) = actions.first().and_then(|action| self.next_state(&state, *action)) else {
                return false;
            };
            state = next;
        }
        false
    }
}

impl Model for Leases {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let row = |status| Row {
            status,
            owner: None,
            lapsed: false,
            claims: 0,
            attempts: 0,
            failed: 0,
            handled: false,
        };
        let keyed = std::iter::repeat_n(row(RowStatus::Pending), self.keyed);
        vec![State {
            rows: keyed.chain(std::iter::repeat_n(row(RowStatus::Unwritten), self.hot)).collect(),
            nodes: vec![Process::default(); NODES],
            faults: self.faults,
            failures: self.failures,
            faultless: true,
            violated: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.violated.is_some() {
            return;
        }
        (0..NODES).for_each(|node| self.node_actions(state, node, actions));
        // Time passes for all nodes: a lease that its node believes in has not expired.
        for (event, row) in
            state.rows.iter().enumerate().filter(|(_, row)| row.owner.is_some() && !row.lapsed)
        {
            let skewed = !self.rules.deadline_from_before_request && state.faults > 0;
            if row.status != RowStatus::Settled && (!state.is_believed(event) || skewed) {
                actions.push(Action::LeaseExpires(event));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Take(node, limit) => self.take(&mut state, node, limit),
            Action::Renew(node, job) => self.renew(&mut state, node, job),
            Action::Start(node, job) => self.start(&mut state, node, job),
            Action::Discard(node, job) => {
                let process = &mut state.nodes[node];
                process.jobs.remove(&job);
                self.halt(process, job);
            }
            Action::End(node, job, verdict) => self.end(&mut state, node, job, verdict),
            Action::Settle(node, job) => {
                self.write(&mut state, node, job);
                state.nodes[node].jobs.remove(&job);
            }
            Action::Write(node, event) => {
                let row = &mut state.rows[event];
                row.status = RowStatus::Open(node);
                if self.rules.born_leased {
                    (row.owner, row.claims) = (Some(node), 1);
                }
                let job = Job { event, claim: row.claims, stage: Stage::Reserved, believed: true };
                state.nodes[node].jobs.insert(job);
            }
            Action::Commit(_, event) => state.rows[event].status = RowStatus::Pending,
            Action::HandOver(node, job) => state.nodes[node].replace(job, Stage::Queued),
            Action::LoseBelief(node, job) => {
                state.fault();
                let jobs = &mut state.nodes[node].jobs;
                jobs.remove(&job);
                jobs.insert(Job { believed: false, ..job });
            }
            Action::LeaseExpires(event) => {
                if state.is_believed(event) {
                    state.fault();
                }
                state.rows[event].lapsed = true;
            }
            Action::SettleAnswerLost(node, job) => {
                state.fault();
                self.write(&mut state, node, job);
            }
            Action::Crash(node) => {
                state.fault();
                state.nodes[node] = Process { crashed: true, ..Process::default() };
                for row in state.rows.iter_mut().filter(|row| row.status == RowStatus::Open(node)) {
                    (row.status, row.owner, row.claims) = (RowStatus::Unwritten, None, 0);
                }
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let kept = Property::always(INVARIANTS_HOLD, |_, state: &State| state.violated.is_none());
        let lost = Property::always(NO_EVENT_LOST, |model: &Self, state: &State| {
            let a_node_lives = state.nodes.iter().any(|process| !process.crashed);
            !a_node_lives || model.settles_without_faults(state)
        });
        if self.lost { vec![kept, lost] } else { vec![kept] }
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.rows.iter().all(|row| row.claims <= 6)
    }
}

/// Checks every state. Returns the first violated invariant, and the steps that lead to it.
fn check(model: Leases) -> Option<(Invariant, String)> {
    let started = std::time::Instant::now();
    let checker = model.checker().threads(1).spawn_bfs().join();
    println!("{} states in {:?}", checker.unique_state_count(), started.elapsed());
    let steps_of = |path: stateright::Path<State, Action>| {
        let steps: Vec<String> = path.into_actions().iter().map(|action| format!("{action:?}")).collect();
        steps.join("\n")
    };
    if let Some(path) = checker.discovery(INVARIANTS_HOLD) {
        let violated = path.last_state().violated?;
        return Some((violated, steps_of(path)));
    }
    if let Some(path) = checker.discovery(NO_EVENT_LOST) {
        panic!("an event is lost:\n{}", steps_of(path));
    }
    None
}

/// Number of faults; more faults take longer to check.
fn faults() -> u8 {
    std::env::var("OUTBOX_MODEL_FAULTS").ok().map_or(2, |n| n.parse().expect("a number"))
}

fn keyed(rules: Rules) -> Leases {
    Leases { rules, keyed: 2, hot: 0, faults: faults(), failures: 1, lost: false }
}

fn hot(rules: Rules) -> Leases {
    Leases { rules, keyed: 0, hot: 1, faults: faults(), failures: 1, lost: true }
}

#[test]
fn with_every_rule_no_invariant_is_violated() {
    for model in [keyed(ALL), hot(ALL), Leases { keyed: 1, hot: 0, lost: true, ..hot(ALL) }] {
        if let Some((invariant, steps)) = check(model) {
            panic!("{invariant:?} is violated:\n{steps}");
        }
    }
}

#[test]
fn without_any_one_rule_an_invariant_is_violated() {
    use Invariant::{CountedOnce, HolderOnly, OneRunner, Order};
    let cases = [
        (keyed(Rules { deadline_from_before_request: false, ..ALL }), HolderOnly),
        (keyed(Rules { start_checks_lease: false, ..ALL }), HolderOnly),
        (keyed(Rules { heads_only: false, ..ALL }), Order),
        (keyed(Rules { key_halts: false, ..ALL }), Order),
        (Leases { lost: false, ..hot(Rules { born_leased: false, ..ALL }) }, HolderOnly),
        (keyed(Rules { verdict_names_claim: false, ..ALL }), CountedOnce),
        (keyed(Rules { renewal_names_claim: false, ..ALL }), OneRunner),
    ];
    for (model, expected) in cases {
        let rules = model.rules;
        match check(model) {
            Some((invariant, steps)) => assert_eq!(invariant, expected, "{rules:?}:\n{steps}"),
            None => panic!("no invariant is violated: {rules:?}"),
        }
    }
}

/// Without the claim counter and without a lost answer: the verdict of a node that was suspended
/// for too long.
#[test]
fn without_the_claim_a_verdict_that_comes_too_late_takes_effect() {
    let model = Leases { failures: 0, keyed: 1, ..keyed(Rules { verdict_names_claim: false, ..ALL }) };
    assert_eq!(check(model).map(|(invariant, _)| invariant), Some(Invariant::NoStaleVerdict));
}
