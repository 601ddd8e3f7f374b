//! The store against a model of it: random histories, compared after every step.
//!
//! The model is a plain list of rows and a few `if`s, so that it is easy to believe. Whatever a history of writes,
//! crashes, late settlements, replays and purges does to the real table, it must do to that list.
//!
//! `OUTBOX_MODEL_CASES` says how many histories each database gets, `PROPTEST_RNG_SEED` makes them the same again.

mod support;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use chrono::{DateTime, Timelike, Utc};
use outbox::store::{
    Claim, Cursor, EXCLUSIVE, Filter, Holder, Leadership, Origin, Purge, Purgeable, Settlement, SharedStore,
    Take, Verdict,
};
use outbox::{Clock, Completion, Event, EventId, FrozenClock, NodeId, OnDead, Status, open_store};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use support::Place;

const LEASE: u64 = 10;

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// One step of a history. Deliveries are named by when they were taken, stale ones included.
#[derive(Clone, Debug)]
enum Step {
    Write(Vec<Draft>),
    WriteAndRollBack(Draft),
    Take { owner: u8, limit: usize, from: From, on_dead: OnDead, skip_recent: u64 },
    TakeAll { owner: u8, limit: usize, on_dead: OnDead },
    Settle { by: By, of: Vec<(usize, Kind)>, delete: bool },
    Extend { owner: u8 },
    CountStart { by: By, of: usize },
    Reap,
    Pass(u64),
    Cancel(usize),
    Replay { limit: usize },
    Purge { what: Purgeable, older_than: u64 },
    Lead { owner: u8 },
    Resign { owner: u8 },
}

#[derive(Clone, Debug)]
struct Draft {
    key: Option<u8>,
    dedup: Option<u8>,
    delay: Option<u64>,
    expires: bool,
}

#[derive(Clone, Copy, Debug)]
enum From {
    Start,
    Cursor,
    Key(u8),
}

/// In whose name a delivery is settled.
#[derive(Clone, Copy, Debug)]
enum By {
    ItsTaker,
    Owner(u8),
    Leader(u8),
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Done,
    Again { after: u64, counted: bool },
    Dead { counted: bool },
    Released,
}

fn draft() -> impl Strategy<Value = Draft> {
    (
        proptest::option::weighted(0.6, 0..3_u8),
        proptest::option::weighted(0.2, 0..3_u8),
        proptest::option::weighted(0.2, 1..15_u64),
        proptest::bool::weighted(0.1),
    )
        .prop_map(|(key, dedup, delay, expires)| Draft { key, dedup, delay, expires })
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        4 => Just(Kind::Done),
        2 => (0..8_u64, any::<bool>()).prop_map(|(after, counted)| Kind::Again { after, counted }),
        1 => any::<bool>().prop_map(|counted| Kind::Dead { counted }),
        1 => Just(Kind::Released),
    ]
}

fn by() -> impl Strategy<Value = By> {
    prop_oneof![
        8 => Just(By::ItsTaker),
        1 => (0..3_u8).prop_map(By::Owner),
        1 => (0..3_u8).prop_map(By::Leader),
    ]
}

fn on_dead() -> impl Strategy<Value = OnDead> {
    prop_oneof![Just(OnDead::Hold), Just(OnDead::Skip)]
}

fn step() -> impl Strategy<Value = Step> {
    let owner = 0..3_u8;
    let from =
        prop_oneof![3 => Just(From::Start), 1 => Just(From::Cursor), 1 => (0..3_u8).prop_map(From::Key)];
    let skip_recent = prop_oneof![4 => Just(0), 1 => Just(3)];
    let limit = || prop_oneof![1 => Just(1), 2 => Just(3), 2 => Just(10)];
    let what = prop_oneof![Just(Purgeable::Done), Just(Purgeable::Finished), Just(Purgeable::Everything)];
    prop_oneof![
        6 => prop::collection::vec(draft(), 1..5).prop_map(Step::Write),
        1 => draft().prop_map(Step::WriteAndRollBack),
        6 => (owner.clone(), limit(), from, on_dead(), skip_recent).prop_map(
            |(owner, limit, from, on_dead, skip_recent)| Step::Take { owner, limit, from, on_dead, skip_recent }),
        2 => (owner.clone(), limit(), on_dead())
            .prop_map(|(owner, limit, on_dead)| Step::TakeAll { owner, limit, on_dead }),
        8 => (by(), prop::collection::vec((0..8_usize, kind()), 1..5), any::<bool>())
            .prop_map(|(by, of, delete)| Step::Settle { by, of, delete }),
        1 => owner.clone().prop_map(|owner| Step::Extend { owner }),
        1 => (by(), 0..8_usize).prop_map(|(by, of)| Step::CountStart { by, of }),
        1 => Just(Step::Reap),
        4 => prop_oneof![1..4_u64, Just(LEASE)].prop_map(Step::Pass),
        1 => (0..8_usize).prop_map(Step::Cancel),
        1 => (1..4_usize).prop_map(|limit| Step::Replay { limit }),
        1 => (what, 0..12_u64).prop_map(|(what, older_than)| Step::Purge { what, older_than }),
        3 => owner.clone().prop_map(|owner| Step::Lead { owner }),
        2 => owner.prop_map(|owner| Step::Resign { owner }),
    ]
}

fn node(n: u8) -> NodeId {
    NodeId::from(format!("node-{n}"))
}

#[derive(Clone, Debug, PartialEq)]
struct Row {
    id: EventId,
    seq: i64,
    key: Option<String>,
    dedup: Option<String>,
    expires_at: Option<DateTime<Utc>>,
    status: Status,
    attempts: u32,
    created_at: DateTime<Utc>,
    available_at: DateTime<Utc>,
    done_at: Option<DateTime<Utc>>,
    last_error: Option<String>,
    locked_by: Option<NodeId>,
    locked_until: Option<DateTime<Utc>>,
    claims: Claim,
    crashes: u32,
}

impl Row {
    fn is_free(&self, now: DateTime<Utc>) -> bool {
        self.status.is_pending() && self.locked_until.is_none_or(|until| until <= now)
    }

    fn unlock(&mut self) {
        self.locked_by = None;
        self.locked_until = None;
    }
}

/// The lease on the whole table.
#[derive(Clone, Debug, Default)]
struct Lead {
    holder: Option<NodeId>,
    epoch: i64,
    until: Option<DateTime<Utc>>,
}

/// What some taker believes to hold.
#[derive(Clone, Debug)]
struct Taken {
    id: EventId,
    claim: Claim,
    by: Holder,
}

#[derive(Debug, Default)]
struct Model {
    rows: Vec<Row>,
    lead: Lead,
}

impl Model {
    /// The rows that a take looks at, and those of them that it may have.
    fn take(&self, take: &Take, now: DateTime<Utc>) -> (Vec<usize>, Vec<usize>) {
        let open = match &take.by {
            Holder::Lease { .. } => self.lead.until.is_none_or(|until| until <= now),
            Holder::Exclusive { owner, epoch } => self.leads(owner, *epoch),
        };
        let mut window: Vec<usize> = (0..self.rows.len())
            .filter(|i| {
                let row = &self.rows[*i];
                open && row.is_free(now)
                    && row.available_at <= now
                    && row.created_at <= now - take.skip_recent
                    && match &take.from {
                        Origin::Start => true,
                        Origin::After(cursor) => (row.available_at, row.seq) > (cursor.at, cursor.seq),
                        Origin::Keys(keys) => row.key.as_ref().is_some_and(|key| keys.contains(key)),
                    }
            })
            .collect();
        if let Origin::Keys(keys) = &take.from {
            // Each key has its share of the limit.
            let share = take.limit / keys.iter().collect::<HashSet<_>>().len();
            let mut left: HashMap<_, _> = keys.iter().map(|key| (key, share.max(1))).collect();
            window.retain(|i| {
                let left = self.rows[*i].key.as_ref().and_then(|key| left.get_mut(key)).unwrap();
                let taken = *left > 0;
                *left = left.saturating_sub(1);
                taken
            });
        } else {
            window.sort_by_key(|i| (self.rows[*i].available_at, self.rows[*i].seq));
            window.truncate(take.limit);
        }
        let has = |i: &usize| {
            let row = &self.rows[*i];
            let in_the_way = |(j, other): (usize, &Row)| {
                let blocks = match take.on_dead {
                    OnDead::Hold => other.status != Status::Done,
                    OnDead::Skip => other.status.is_pending(),
                };
                other.key == row.key && other.seq < row.seq && blocks && !window.contains(&j)
            };
            row.key.is_none() || !self.rows.iter().enumerate().any(in_the_way)
        };
        let taken = window.iter().copied().filter(has).collect();
        (window, taken)
    }

    fn leads(&self, owner: &NodeId, epoch: i64) -> bool {
        self.lead.holder.as_ref() == Some(owner) && self.lead.epoch == epoch
    }

    fn holds(&self, row: &Row, claim: Claim, by: &Holder) -> bool {
        row.status.is_pending()
            && row.claims == claim
            && match by {
                Holder::Lease { owner, .. } => row.locked_by.as_ref() == Some(owner),
                Holder::Exclusive { owner, epoch } => self.leads(owner, *epoch),
            }
    }

    fn settle(&mut self, by: &Holder, completion: Completion, s: &Settlement, now: DateTime<Utc>) -> u64 {
        let Some(i) = self.rows.iter().position(|row| row.id == s.id) else { return 0 };
        if !self.holds(&self.rows[i], s.claim, by) {
            return 0;
        }
        if s.verdict == Verdict::Done && completion == Completion::Delete {
            self.rows.remove(i);
            return 1;
        }
        let row = &mut self.rows[i];
        row.unlock();
        // Not visible, and nothing to a lease: each claim raises it anyway. But whoever holds the whole table claims
        // nothing, and must not settle twice either.
        row.claims += i32::from(s.verdict != Verdict::Done);
        match &s.verdict {
            Verdict::Done => {
                row.status = Status::Done;
                row.done_at = Some(now);
            }
            Verdict::Again { after, counted, error } => {
                row.status = if *counted { Status::Retry } else { Status::New };
                row.attempts += u32::from(*counted);
                row.available_at = now + *after;
                row.last_error = error.clone().or(row.last_error.take());
                row.crashes = 0;
            }
            Verdict::Dead { counted, reason } => {
                row.status = Status::Dead;
                row.attempts += u32::from(*counted);
                row.done_at = Some(now);
                row.last_error = Some(reason.clone());
                row.crashes = 0;
            }
            Verdict::Released => {}
        }
        1
    }
}

/// The store, its model, and what everybody believes to hold.
struct World {
    place: Place,
    store: SharedStore,
    clock: FrozenClock,
    start: DateTime<Utc>,
    model: Model,
    taken: Vec<Taken>,
    cursor: Option<Cursor>,
}

impl World {
    async fn open(place: Place) -> Self {
        let start = Utc::now().with_nanosecond(0).unwrap();
        let clock = FrozenClock::at(start);
        let options = place.options().clock(Clock::Frozen(clock.clone()));
        // A frozen time is part of a statement's text, so there are many texts; on MySQL each one that leaves the
        // cache costs 40 ms, because sqlx closes it in a packet of its own and does not set TCP_NODELAY.
        let store = match place.url() {
            Some(url) => {
                let join = if url.contains('?') { '&' } else { '?' };
                let url = format!("{url}{join}statement-cache-capacity=3000");
                open_store(&url, &options).await.unwrap()
            }
            None => place.store(options).await,
        };
        store.migrate().await.unwrap();
        Self { place, store, clock, start, model: Model::default(), taken: Vec::new(), cursor: None }
    }

    /// Empties the table, whatever the history before left in it, and starts time anew.
    async fn reset(&mut self) {
        self.clock.set(self.start + seconds(1_000));
        let all = Purge { what: Purgeable::Everything, older_than: Duration::ZERO, limit: 100_000 };
        self.store.purge(all).await.unwrap();
        let reset = NodeId::from("reset");
        let Leadership::Held { epoch, .. } = self.store.lead(EXCLUSIVE, &reset, seconds(1)).await.unwrap()
        else {
            panic!("somebody leads for too long");
        };
        self.store.resign(EXCLUSIVE, &reset, epoch).await.unwrap();
        self.model = Model { rows: Vec::new(), lead: Lead { epoch, ..Lead::default() } };
        self.taken.clear();
        self.cursor = None;
        self.clock.set(self.start);
        self.compare().await;
    }

    async fn run(&mut self, history: &[Step]) {
        self.reset().await;
        for step in history {
            self.step(step).await;
            self.compare().await;
        }
    }

    /// What the table shows is what the model holds.
    async fn compare(&mut self) {
        let listed = self.store.list(&Filter::default(), 100_000).await.unwrap();
        assert!(listed.windows(2).all(|pair| pair[0].seq < pair[1].seq));
        assert_eq!(listed.len(), self.model.rows.len());
        for (stored, row) in listed.iter().zip(&self.model.rows) {
            let event = stored.event.as_ref().unwrap();
            let found = Row {
                id: event.id().clone(),
                seq: stored.seq,
                key: event.ordering_key().map(str::to_owned),
                dedup: event.dedup_key().map(str::to_owned),
                expires_at: event.expires_at(),
                status: stored.status,
                attempts: stored.attempts,
                created_at: stored.created_at,
                available_at: stored.available_at,
                done_at: stored.done_at,
                last_error: stored.last_error.clone(),
                locked_by: stored.lease.as_ref().map(|(owner, _)| owner.clone()),
                locked_until: stored.lease.as_ref().map(|(_, until)| *until),
                claims: row.claims,
                crashes: row.crashes,
            };
            // A lease that was reaped is not shown, though the row remembers it.
            let shown =
                if row.locked_by.is_none() { Row { locked_until: None, ..row.clone() } } else { row.clone() };
            assert_eq!(found, shown);
        }
    }

    fn now(&self) -> DateTime<Utc> {
        self.clock.now()
    }

    fn draft(&self, draft: &Draft) -> Event {
        let mut event = Event::new("thing").json_text("{}");
        if let Some(key) = draft.key {
            event = event.ordering_key(format!("key-{key}"));
        }
        if let Some(dedup) = draft.dedup {
            event = event.dedup_key(format!("dedup-{dedup}"));
        }
        if let Some(delay) = draft.delay {
            event = event.deliver_after(seconds(delay));
        }
        if draft.expires {
            event = event.occurred_at(self.now()).expires_at(self.now() + seconds(20));
        }
        event.build().unwrap()
    }

    /// A delivery of some time, and in whose name it is spoken of.
    fn believed(&self, by: By, back: usize) -> Option<(Taken, Holder)> {
        let taken = self.taken.iter().rev().nth(back)?.clone();
        let by = match by {
            By::ItsTaker => taken.by.clone(),
            By::Owner(n) => lease(n),
            By::Leader(n) => Holder::Exclusive { owner: node(n), epoch: self.model.lead.epoch },
        };
        Some((taken, by))
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Write(drafts) => self.write(drafts).await,
            Step::WriteAndRollBack(draft) => {
                let key = draft.key.map_or("NULL".to_owned(), |key| format!("'key-{key}'"));
                self.place
                    .run(&format!(
                        "BEGIN; INSERT INTO {} (event_type, payload, ordering_key) VALUES ('x', '1', {key}); ROLLBACK",
                        self.place.table
                    ))
                    .await;
            }
            Step::Take { owner, limit, from, on_dead, skip_recent } => {
                let from = match (from, self.cursor) {
                    (From::Cursor, Some(cursor)) => Origin::After(cursor),
                    (From::Key(n), _) => Origin::Keys(vec![format!("key-{n}"), "key-0".to_owned()]),
                    _ => Origin::Start,
                };
                self.take(&Take {
                    by: lease(*owner),
                    from,
                    limit: *limit,
                    skip_recent: seconds(*skip_recent),
                    on_dead: *on_dead,
                    skip_types: Vec::new(),
                    frontiers: HashMap::new(),
                    together: false,
                })
                .await;
            }
            Step::TakeAll { owner, limit, on_dead } => {
                self.take(&Take {
                    by: Holder::Exclusive { owner: node(*owner), epoch: self.model.lead.epoch },
                    from: Origin::Start,
                    limit: *limit,
                    skip_recent: Duration::ZERO,
                    on_dead: *on_dead,
                    skip_types: Vec::new(),
                    frontiers: HashMap::new(),
                    together: false,
                })
                .await;
            }
            Step::Settle { by, of, delete } => self.settle(*by, of, *delete).await,
            Step::Extend { owner } => self.extend(&node(*owner)).await,
            Step::CountStart { by, of } => {
                let Some((taken, by)) = self.believed(*by, *of) else { return };
                let counted = self.store.count_start(&by, &taken.id, taken.claim).await.unwrap();
                let i = self.model.rows.iter().position(|row| row.id == taken.id);
                let i = i.filter(|i| self.model.holds(&self.model.rows[*i], taken.claim, &by));
                let expected = i.map(|i| {
                    self.model.rows[i].crashes += 1;
                    self.model.rows[i].crashes
                });
                assert_eq!(counted, expected);
            }
            Step::Reap => {
                let now = self.now();
                let mut expected = 0;
                for row in &mut self.model.rows {
                    if row.locked_by.is_some() && row.is_free(now) {
                        row.locked_by = None;
                        expected += 1;
                    }
                }
                assert_eq!(self.store.reap().await.unwrap(), expected);
            }
            Step::Pass(time) => self.clock.advance(seconds(*time)),
            Step::Cancel(back) => {
                let Some(row) = self.model.rows.iter().rev().nth(*back) else { return };
                let (id, free) = (row.id.clone(), row.is_free(self.now()));
                assert_eq!(self.store.cancel(&id).await.unwrap(), free);
                self.model.rows.retain(|row| row.id != id || !free);
            }
            Step::Replay { limit } => self.replay(*limit).await,
            Step::Purge { what, older_than } => self.purge(*what, *older_than).await,
            Step::Lead { owner } => self.lead(&node(*owner)).await,
            Step::Resign { owner } => {
                let owner = node(*owner);
                self.store.resign(EXCLUSIVE, &owner, self.model.lead.epoch).await.unwrap();
                if self.model.lead.holder.as_ref() == Some(&owner) {
                    self.model.lead = Lead { epoch: self.model.lead.epoch, ..Lead::default() };
                }
            }
        }
    }

    async fn write(&mut self, drafts: &[Draft]) {
        let events: Vec<Event> = drafts.iter().map(|draft| self.draft(draft)).collect();
        let stored = self.store.insert(&events).await.unwrap();
        let mut expected = Vec::new();
        for (event, draft) in events.iter().zip(drafts) {
            let dedup = event.dedup_key().map(str::to_owned);
            if dedup.is_some() && self.model.rows.iter().any(|row| row.dedup == dedup) {
                continue;
            }
            expected.push(event.id().clone());
            // The table draws the number; that it is higher than all before is checked with the order of the list.
            let seq = self.store.find(event.id()).await.unwrap().expect("it was stored").seq;
            self.model.rows.push(Row {
                id: event.id().clone(),
                seq,
                key: event.ordering_key().map(str::to_owned),
                dedup,
                expires_at: event.expires_at(),
                status: Status::New,
                attempts: 0,
                created_at: self.now(),
                available_at: self.now() + seconds(draft.delay.unwrap_or(0)),
                done_at: None,
                last_error: None,
                locked_by: None,
                locked_until: None,
                claims: 0,
                crashes: 0,
            });
        }
        assert_eq!(stored, expected);
    }

    async fn take(&mut self, take: &Take) {
        let now = self.now();
        let (window, expected) = self.model.take(take, now);
        let taken = self.store.take(take).await.unwrap();
        assert!(taken.undecodable.is_empty());
        assert_eq!(taken.scanned, window.len());
        let found: HashSet<EventId> = taken.deliveries.iter().map(|d| d.event.id().clone()).collect();
        assert_eq!(found.len(), taken.deliveries.len(), "an event came twice");
        assert_eq!(found, expected.iter().map(|i| self.model.rows[*i].id.clone()).collect());
        let behind: BTreeSet<_> = window
            .iter()
            .filter(|i| !expected.contains(i))
            .map(|i| self.model.rows[*i].key.clone().unwrap())
            .collect();
        assert_eq!(taken.behind.iter().cloned().collect::<BTreeSet<_>>(), behind);
        if !matches!(take.from, Origin::Keys(_)) {
            let last = window.last().map(|i| &self.model.rows[*i]);
            assert_eq!(taken.cursor, last.map(|row| Cursor { at: row.available_at, seq: row.seq }));
            self.cursor = taken.cursor.or(self.cursor);
        }
        let mut newest: HashMap<&str, i64> = HashMap::new();
        for delivery in &taken.deliveries {
            let row = self.model.rows.iter_mut().find(|row| row.id == *delivery.event.id()).unwrap();
            if let Some(key) = delivery.event.ordering_key() {
                assert!(newest.insert(key, row.seq).is_none_or(|before| before < row.seq), "out of order");
            }
            assert_eq!(delivery.seq, Some(row.seq));
            assert_eq!(delivery.attempts, row.attempts);
            assert_eq!(delivery.suspect, row.locked_until.is_some());
            assert_eq!(delivery.waited, (now - row.available_at).to_std().unwrap());
            assert_eq!(delivery.expires_in, row.expires_at.map(|end| end - now));
            if let Holder::Lease { owner, lease } = &take.by {
                assert!(row.is_free(now), "two hold it");
                row.claims += 1;
                row.locked_by = Some(owner.clone());
                row.locked_until = Some(now + *lease);
            }
            assert_eq!(delivery.claim, row.claims);
            self.taken.push(Taken { id: row.id.clone(), claim: row.claims, by: take.by.clone() });
        }
        // Only the head of a key is ever out: whatever is pending before it came in the same answer.
        for row in self.model.rows.iter().filter(|row| row.key.is_some() && found.contains(&row.id)) {
            let earlier = self.model.rows.iter().filter(|other| other.key == row.key && other.seq < row.seq);
            for other in earlier.filter(|other| other.status.is_pending()) {
                assert!(found.contains(&other.id), "{} overtook {}", row.id, other.id);
            }
        }
    }

    async fn settle(&mut self, by: By, of: &[(usize, Kind)], delete: bool) {
        let completion = if delete { Completion::Delete } else { Completion::Keep };
        let Some((_, holder)) = of.first().and_then(|(back, _)| self.believed(by, *back)) else { return };
        let mut settlements: Vec<Settlement> = Vec::new();
        for (back, kind) in of {
            let Some((taken, _)) = self.believed(by, *back) else { continue };
            if settlements.iter().any(|s| s.id == taken.id) {
                continue;
            }
            let verdict = match *kind {
                Kind::Done => Verdict::Done,
                Kind::Again { after, counted } => Verdict::Again {
                    after: seconds(after),
                    counted,
                    error: counted.then(|| format!("error {after}")),
                },
                Kind::Dead { counted } => Verdict::Dead { counted, reason: "no".to_owned() },
                Kind::Released => Verdict::Released,
            };
            settlements.push(Settlement { id: taken.id, claim: taken.claim, verdict });
        }
        let now = self.now();
        let moved = self.store.settle(&holder, completion, &settlements).await.unwrap().moved;
        let expected: u64 = settlements.iter().map(|s| self.model.settle(&holder, completion, s, now)).sum();
        assert_eq!(moved, expected);
    }

    async fn extend(&mut self, owner: &NodeId) {
        let held: Vec<(EventId, Claim)> = self
            .taken
            .iter()
            .rev()
            .take(8)
            .filter(|taken| taken.by.owner() == owner)
            .map(|taken| (taken.id.clone(), taken.claim))
            .collect::<HashSet<_>>()
            .into_iter()
            .collect();
        let kept = self.store.extend(owner, seconds(LEASE), &held).await.unwrap();
        let by = Holder::Lease { owner: owner.clone(), lease: seconds(LEASE) };
        let until = self.now() + seconds(LEASE);
        let mut expected = Vec::new();
        for (id, claim) in &held {
            let i = self.model.rows.iter().position(|row| row.id == *id);
            if let Some(i) = i.filter(|i| self.model.holds(&self.model.rows[*i], *claim, &by)) {
                self.model.rows[i].locked_until = Some(until);
                expected.push(id.clone());
            }
        }
        assert_eq!(kept, expected);
    }

    async fn replay(&mut self, limit: usize) {
        let now = self.now();
        let mut expected = 0;
        for row in self.model.rows.iter_mut().filter(|row| row.status == Status::Dead).take(limit) {
            row.status = Status::New;
            row.attempts = 0;
            row.crashes = 0;
            row.available_at = now;
            row.expires_at = None;
            row.done_at = None;
            row.unlock();
            expected += 1;
        }
        assert_eq!(self.store.replay(&Filter::default(), limit).await.unwrap().moved, expected);
    }

    async fn purge(&mut self, what: Purgeable, older_than: u64) {
        let end = self.now() - seconds(older_than);
        let before = self.model.rows.len();
        self.model.rows.retain(|row| {
            let old = |time: DateTime<Utc>| time < end;
            !match what {
                Purgeable::Done => row.status == Status::Done && row.done_at.is_some_and(old),
                Purgeable::Finished => row.done_at.is_some_and(old),
                Purgeable::Everything => {
                    row.done_at.map_or(old(row.available_at) && old(row.created_at), old)
                }
            }
        });
        let purge = Purge { what, older_than: seconds(older_than), limit: 1_000 };
        assert_eq!(self.store.purge(purge).await.unwrap(), (before - self.model.rows.len()) as u64);
    }

    async fn lead(&mut self, owner: &NodeId) {
        let now = self.now();
        let lead = &mut self.model.lead;
        let expected = match (&lead.holder, lead.until) {
            (Some(holder), _) if holder == owner => Leadership::Held { epoch: lead.epoch, clean: true },
            (Some(holder), Some(until)) if until > now => {
                Leadership::HeldBy { holder: holder.clone(), remaining: (until - now).to_std().unwrap() }
            }
            (holder, _) => Leadership::Held { epoch: lead.epoch + 1, clean: holder.is_none() },
        };
        if let Leadership::Held { epoch, .. } = expected {
            *lead = Lead { holder: Some(owner.clone()), epoch, until: Some(now + seconds(LEASE)) };
        }
        assert_eq!(self.store.lead(EXCLUSIVE, owner, seconds(LEASE)).await.unwrap(), expected);
    }
}

fn lease(n: u8) -> Holder {
    Holder::Lease { owner: node(n), lease: seconds(LEASE) }
}

fn any_history_does_to_the_table_what_it_does_to_the_model(place: impl Future<Output = Option<Place>>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let Some(place) = runtime.block_on(place) else { return };
    let world = std::cell::RefCell::new(runtime.block_on(World::open(place)));
    let cases = std::env::var("OUTBOX_MODEL_CASES").ok().map_or(64, |n| n.parse().expect("a number"));
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&prop::collection::vec(step(), 1..30), |history| {
            runtime.block_on(world.borrow_mut().run(&history));
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn on_sqlite() {
    any_history_does_to_the_table_what_it_does_to_the_model(Place::sqlite_memory());
}

#[cfg(feature = "postgres")]
#[test]
fn on_postgres() {
    any_history_does_to_the_table_what_it_does_to_the_model(Place::postgres());
}

#[cfg(feature = "mysql")]
#[test]
fn on_mariadb() {
    any_history_does_to_the_table_what_it_does_to_the_model(Place::mariadb());
}

#[cfg(feature = "mysql")]
#[test]
fn on_mysql() {
    any_history_does_to_the_table_what_it_does_to_the_model(Place::mysql());
}
