//! The store, its model, and the leases that nodes believe to hold.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Timelike, Utc};
use outbox::store::{
    Backlog, Claim, Cursor, EXCLUSIVE, Filter, Holder, KeyProgress, KeyQueueId, Leadership, Origin, Purge,
    Purgeable, Replayed, Routed, Settlement, SharedStore, Stats, Take, Verdict,
};
use outbox::{Clock, Completion, Event, EventId, FrozenClock, NodeId, SqlStore, Status, testing};

use crate::harness::{Database, DatabaseHarness};
use crate::steps::{By, Destinations, Draft, From, Kind, LEASE, Selection, Step, TYPES, Taker};
use crate::table::{GroupLease, KeyQueue, Lead, Model, Row, Taken};

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn node(n: u8) -> NodeId {
    NodeId::from(format!("node-{n}"))
}

fn lease(n: u8) -> Holder {
    Holder::Lease { owner: node(n), lease: seconds(LEASE) }
}

/// Writes with leases, as a relay's own process does; the store port has no such operation.
#[async_trait]
trait WriteLeased: Send + Sync {
    async fn write_leased(&self, events: &[(Event, bool)], owner: &NodeId) -> Vec<EventId>;
}

#[async_trait]
impl<DB: outbox::Database> WriteLeased for SqlStore<DB> {
    async fn write_leased(&self, events: &[(Event, bool)], owner: &NodeId) -> Vec<EventId> {
        testing::write_leased(self, events, owner, seconds(LEASE)).await.unwrap()
    }
}

/// Both traits of one store.
fn both<DB: outbox::Database>(store: SqlStore<DB>) -> (SharedStore, Arc<dyn WriteLeased>) {
    let store = store.shared();
    (store.clone(), store)
}

async fn open<DB: outbox::Database>(
    url: &str,
    options: &outbox::StoreOptions,
) -> (SharedStore, Arc<dyn WriteLeased>) {
    // A frozen time is part of a statement's text, so there are many texts; on MySQL each eviction
    // from the cache costs 40 ms, because sqlx closes the statement in a packet of its own and does
    // not set TCP_NODELAY.
    let join = if url.contains('?') { '&' } else { '?' };
    both(SqlStore::<DB>::open(&format!("{url}{join}statement-cache-capacity=3000"), options).await.unwrap())
}

/// The store, its model, and the leases that nodes believe to hold.
pub struct World {
    harness: DatabaseHarness,
    store: SharedStore,
    /// The store of another process.
    other_store: SharedStore,
    leased_writer: Arc<dyn WriteLeased>,
    clock: FrozenClock,
    start: DateTime<Utc>,
    model: Model,
    taken: Vec<Taken>,
    queues: Vec<KeyQueue>,
    cursor: Option<Cursor>,
}

impl World {
    pub async fn open(harness: DatabaseHarness) -> Self {
        let start = Utc::now().with_nanosecond(0).unwrap();
        let clock = FrozenClock::at(start);
        let options = harness.options().clock(Clock::Frozen(clock.clone()));
        let open = async || match &harness.database {
            Database::SqliteFile { url, .. } => open::<sqlx::Sqlite>(url, &options).await,
            Database::SqliteMemory(pool) => both(SqlStore::beside(pool, &options).unwrap()),
            #[cfg(feature = "postgres")]
            Database::Postgres(url) => open::<sqlx::Postgres>(url, &options).await,
            #[cfg(feature = "mysql")]
            Database::MySql(url) => open::<sqlx::MySql>(url, &options).await,
        };
        let ((store, leased_writer), (other_store, _)) = (open().await, open().await);
        store.migrate().await.unwrap();
        Self {
            harness,
            store,
            other_store,
            leased_writer,
            clock,
            start,
            model: Model::default(),
            taken: Vec::new(),
            queues: Vec::new(),
            cursor: None,
        }
    }

    /// The store of a node: two nodes share one, the third has its own.
    fn store_of(&self, owner: &NodeId) -> &SharedStore {
        if *owner == node(2) { &self.other_store } else { &self.store }
    }

    /// Whether the database has group leases.
    fn has_group_leases(&self) -> bool {
        #[cfg(feature = "postgres")]
        if let Database::Postgres(_) = &self.harness.database {
            return true;
        }
        false
    }

    /// Empties the table, and restarts time.
    async fn reset(&mut self) {
        self.clock.set(self.start + seconds(1_000));
        // A store remembers its group leases until their events are settled.
        for Taken { id, claim, by, .. } in std::mem::take(&mut self.taken) {
            let done = Settlement { id, claim, verdict: Verdict::Done };
            self.store_of(by.owner()).settle(&by, Completion::Delete, &[done]).await.unwrap();
        }
        let all = Purge { what: Purgeable::Everything, older_than: Duration::ZERO, limit: 100_000 };
        self.store.purge(all).await.unwrap();
        let reset = NodeId::from("reset");
        let Leadership::Held { epoch, .. } = self.store.lead(EXCLUSIVE, &reset, seconds(1)).await.unwrap()
        else {
            panic!("a leader's lease is too long");
        };
        self.store.resign(EXCLUSIVE, &reset, epoch, true).await.unwrap();
        self.model = Model { lead: Lead { epoch, ..Lead::default() }, ..Model::default() };
        self.queues.clear();
        self.cursor = None;
        self.clock.set(self.start);
        self.compare().await;
    }

    pub async fn run(&mut self, history: &[Step]) {
        self.reset().await;
        for step in history {
            self.step(step).await;
            self.compare().await;
        }
        self.compare_histories().await;
    }

    /// Asserts that the failed attempts of every event are those of the model.
    async fn compare_histories(&self) {
        for row in &self.model.rows {
            let attempts = self.store.attempts(&row.id, 1_000).await.unwrap();
            let found = attempts.into_iter().map(|a| (a.number, a.node, a.fatal, a.error));
            assert_eq!(found.collect::<Vec<_>>(), row.history, "{}", row.id);
        }
    }

    /// Asserts that the table equals the model.
    async fn compare(&mut self) {
        let listed = self.store.list(&Filter::default(), 100_000).await.unwrap();
        assert!(listed.windows(2).all(|subscription| subscription[0].seq < subscription[1].seq));
        assert_eq!(listed.len(), self.model.rows.len());
        for (stored, row) in listed.iter().zip(&self.model.rows) {
            let event = stored.event.as_ref().unwrap();
            let found = Row {
                id: event.id().clone(),
                seq: stored.seq,
                event_type: event.event_type().to_string(),
                key: event.ordering_key().map(Arc::from),
                dedup: event.dedup_key().map(str::to_owned),
                expires_at: event.expires_at(),
                status: stored.status,
                attempts: stored.attempts,
                created_at: stored.created_at,
                available_at: stored.available_at,
                done_at: stored.done_at,
                done_by: stored.done_by.clone(),
                last_error: stored.last_error.clone(),
                locked_by: stored.lease.as_ref().map(|(owner, _)| owner.clone()),
                locked_until: stored.lease.as_ref().map(|(_, until)| *until),
                group: row.group,
                claims: row.claims,
                crashes: row.crashes,
                history: row.history.clone(),
            };
            // A lease of the row or of a group. An expired lease that was released is not shown,
            // though the row remembers it.
            let (locked_by, locked_until) = self.model.lease(row).unzip();
            assert_eq!(found, Row { locked_by: locked_by.cloned(), locked_until, ..row.clone() });
        }
    }

    fn now(&self) -> DateTime<Utc> {
        self.clock.now()
    }

    fn draft(&self, draft: &Draft) -> Event {
        let mut event = Event::new(TYPES[usize::from(draft.other_type)]).json_text("{}");
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

    /// A former delivery, and the node that settles it.
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
            Step::Write(drafts) => self.write(drafts, None).await,
            Step::WriteLeased { owner, drafts } => self.write(drafts, Some(&node(*owner))).await,
            Step::WriteAndRollBack(draft) => {
                let key = draft.key.map_or("NULL".to_owned(), |key| format!("'key-{key}'"));
                self.harness
                    .run(&format!(
                        "BEGIN; INSERT INTO {} (event_type, payload, ordering_key) VALUES ('x', '1', {key}); ROLLBACK",
                        self.harness.table
                    ))
                    .await;
            }
            Step::Take { by, limit, from, on_dead, skip_recent, skip_type, only_type, destinations } => {
                let from = match (from, self.cursor) {
                    (From::Cursor, Some(cursor)) => Origin::After(cursor),
                    (From::Key(n), _) => Origin::Keys(vec![format!("key-{n}").into(), "key-0".into()]),
                    _ => Origin::Start,
                };
                let (by, held_up_to, group_lease) = match by {
                    Taker::Lease { owner, group_lease, onward } => {
                        let settings = (*on_dead, *destinations);
                        let queues =
                            self.queues.iter().filter(|run| *onward && run.is(&node(*owner), settings));
                        let held_up_to = queues.map(|run| (run.id.clone(), run.frontier)).collect();
                        (lease(*owner), held_up_to, *group_lease)
                    }
                    Taker::Leader(owner, held) => {
                        let by = Holder::Exclusive { owner: node(*owner), epoch: self.model.lead.epoch };
                        (by, self.held_up_to(held), false)
                    }
                };
                let take = Take {
                    by,
                    from,
                    limit: *limit,
                    skip_recent: seconds(*skip_recent),
                    on_dead: *on_dead,
                    skip_types: skip_type.then(|| TYPES[1].to_owned()).into_iter().collect(),
                    only: only_type.then(|| Arc::new(Routed::default().and_type(TYPES[0]))),
                    held_up_to,
                    group_lease,
                    probe: None,
                    max_bytes: usize::MAX,
                    by_aggregate: false,
                    destinations: destinations.destinations(),
                };
                self.take(&take, *destinations).await;
            }
            Step::Settle { by, of, delete } => self.settle(*by, of, *delete).await,
            Step::Extend { owner } => self.extend(&node(*owner)).await,
            Step::CountStart { by, of } => {
                let Some((taken, by)) = self.believed(*by, *of) else { return };
                let counted =
                    self.store_of(by.owner()).count_start(&by, &taken.id, taken.claim).await.unwrap();
                let i = self.model.rows.iter().position(|row| row.id == taken.id);
                let i = i.filter(|i| self.model.holds(&self.model.rows[*i], taken.claim, &by));
                // A start is not counted under an expired lease of a row. A group lease ends when
                // it is deleted.
                let now = self.now();
                let lasts = |row: &Row| match by {
                    Holder::Lease { .. } if row.group.is_none() => {
                        row.locked_until.is_some_and(|until| until > now)
                    }
                    _ => true,
                };
                let i = i.filter(|i| lasts(&self.model.rows[*i]));
                let expected = i.map(|i| {
                    self.model.rows[i].crashes += 1;
                    self.model.rows[i].crashes
                });
                assert_eq!(counted, expected);
            }
            Step::Reap => {
                let now = self.now();
                let mut expected = self.model.reap_lists(now);
                for row in &mut self.model.rows {
                    if row.locked_by.is_some() && row.locked_until.is_some_and(|until| until <= now) {
                        row.locked_by = None;
                        expected += 1;
                    }
                }
                assert_eq!(self.store.reap().await.unwrap(), expected);
            }
            Step::Pass(time) => self.clock.advance(seconds(*time)),
            Step::Cancel(back) => {
                let Some(row) = self.model.rows.iter().rev().nth(*back) else { return };
                let (id, free) = (row.id.clone(), self.model.is_free(row, self.now()));
                self.model.reap_lists(self.clock.now());
                assert_eq!(self.store.cancel(&id).await.unwrap(), free);
                self.model.rows.retain(|row| row.id != id || !free);
            }
            Step::Skip(back) => {
                let Some(row) = self.model.rows.iter_mut().rev().nth(*back) else { return };
                let (is_dead, operator, now) =
                    (row.status == Status::Dead, NodeId::from("operator"), self.clock.now());
                if is_dead {
                    (row.status, row.done_at, row.done_by) =
                        (Status::Done, Some(now), Some(operator.clone()));
                }
                let id = row.id.clone();
                assert_eq!(self.store.skip(&id, &operator).await.unwrap(), is_dead);
            }
            Step::Replay { filter, limit } => self.replay(filter, *limit).await,
            Step::Purge { what, older_than, limit } => self.purge(*what, *older_than, *limit).await,
            Step::Look(selection) => self.look(selection).await,
            Step::Lead { owner } => self.lead(&node(*owner)).await,
            Step::Resign { owner, late } => {
                let (owner, epoch) = (node(*owner), self.model.lead.epoch);
                self.store.resign(EXCLUSIVE, &owner, epoch - late, true).await.unwrap();
                if self.model.lead.holder.as_ref() == Some(&owner) && *late == 0 {
                    self.model.lead = Lead { epoch, ..Lead::default() };
                }
            }
        }
    }

    /// Frontiers of a taker that holds the first so many events of each key.
    fn held_up_to(&self, held: &[usize; 3]) -> HashMap<KeyQueueId, KeyProgress> {
        let mut held_up_to = HashMap::new();
        for (n, held) in held.iter().enumerate().filter(|(_, held)| **held > 0) {
            let key: Arc<str> = format!("key-{n}").into();
            let of_key = self.model.rows.iter().filter(|row| row.key.as_ref() == Some(&key));
            if let Some(row) = of_key.take(*held).last() {
                held_up_to.insert(KeyQueueId::of_key(key), KeyProgress { seq: row.seq, group_lease: false });
            }
        }
        held_up_to
    }

    /// Writes events; with an owner, events for the hot path are inserted with a lease of the
    /// owner.
    async fn write(&mut self, drafts: &[Draft], owner: Option<&NodeId>) {
        let is_leased =
            |draft: &Draft| owner.is_some() && draft.delay.is_none() && draft.key.is_none() && !draft.expires;
        let events: Vec<(Event, bool)> =
            drafts.iter().map(|draft| (self.draft(draft), is_leased(draft))).collect();
        let stored = match owner {
            Some(owner) => self.leased_writer.write_leased(&events, owner).await,
            None => {
                let events: Vec<Event> = events.iter().map(|(event, _)| event.clone()).collect();
                self.store.insert(&events).await.unwrap()
            }
        };
        let mut expected = Vec::new();
        for ((event, leased), draft) in events.iter().zip(drafts) {
            let dedup = event.dedup_key().map(str::to_owned);
            if dedup.is_some() && self.model.rows.iter().any(|row| row.dedup == dedup) {
                continue;
            }
            expected.push(event.id().clone());
            // The table assigns the number; that it is higher than all before is checked with the
            // order of the rows.
            let seq = self.store.find(event.id()).await.unwrap().expect("the event was stored").seq;
            let owner = owner.filter(|_| *leased);
            if let Some(owner) = owner {
                let by = Holder::Lease { owner: owner.clone(), lease: seconds(LEASE) };
                self.taken.push(Taken { id: event.id().clone(), claim: 1, by, group: None, settled: false });
            }
            self.model.rows.push(Row {
                id: event.id().clone(),
                seq,
                event_type: event.event_type().to_string(),
                key: event.ordering_key().map(Arc::from),
                dedup,
                expires_at: event.expires_at(),
                status: Status::New,
                attempts: 0,
                created_at: self.now(),
                available_at: self.now() + seconds(draft.delay.unwrap_or(0)),
                done_at: None,
                done_by: None,
                last_error: None,
                locked_by: owner.cloned(),
                locked_until: owner.map(|_| self.now() + seconds(LEASE)),
                group: None,
                claims: Claim::from(owner.is_some()),
                crashes: 0,
                history: Vec::new(),
            });
        }
        assert_eq!(stored, expected);
    }

    async fn take(&mut self, take: &Take, destinations: Destinations) {
        let now = self.now();
        if matches!(take.by, Holder::Lease { .. }) {
            self.model.reap_lists(now);
        }
        let (window, expected) = self.model.take(take, now);
        let taken = self.store_of(take.by.owner()).take(take).await.unwrap();
        assert!(taken.undecodable.is_empty());
        assert_eq!(taken.scanned, window.len());
        let found: HashSet<EventId> = taken.deliveries.iter().map(|d| d.event.id().clone()).collect();
        assert_eq!(found.len(), taken.deliveries.len(), "an event was returned twice");
        assert_eq!(found, expected.iter().map(|i| self.model.rows[*i].id.clone()).collect());
        let behind: BTreeSet<_> = window
            .iter()
            .filter(|i| !expected.contains(i))
            .map(|i| self.model.rows[*i].key.clone().unwrap())
            .collect();
        assert_eq!(taken.blocked_keys.iter().cloned().collect::<BTreeSet<_>>(), behind);
        if !matches!(take.from, Origin::Keys(_)) {
            let last = window.last().map(|i| &self.model.rows[*i]);
            assert_eq!(taken.cursor, last.map(|row| Cursor { at: row.available_at, seq: row.seq }));
            self.cursor = taken.cursor.or(self.cursor);
        }
        let mut newest: HashMap<&str, i64> = HashMap::new();
        let group = self.model.groups.len();
        if let Holder::Lease { owner, lease } = &take.by {
            self.model.groups.push(GroupLease { owner: owner.clone(), until: now + *lease, deleted: false });
        }
        for delivery in &taken.deliveries {
            let i = self.model.rows.iter().position(|row| row.id == *delivery.event.id()).unwrap();
            assert!(self.model.is_free(&self.model.rows[i], now), "two nodes hold the event");
            let group_lease = take.group_lease && self.has_group_leases() && self.model.rows[i].claims == 0;
            let row = &mut self.model.rows[i];
            if let Some(key) = delivery.event.ordering_key() {
                assert!(newest.insert(key, row.seq).is_none_or(|before| before < row.seq), "out of order");
            }
            assert_eq!(delivery.seq, Some(row.seq));
            assert_eq!(delivery.attempts, row.attempts);
            let suspect = row.locked_until.is_some() || row.crashes > 0;
            assert_eq!(delivery.suspect, suspect.then_some(row.crashes));
            assert_eq!(delivery.waited, (now - row.available_at).to_std().unwrap());
            assert_eq!(delivery.expires_in, row.expires_at.map(|end| end - now));
            if let Holder::Lease { owner, lease } = &take.by {
                if group_lease {
                    row.group = Some(group);
                } else {
                    row.claims += 1;
                    row.locked_by = Some(owner.clone());
                    row.locked_until = Some(now + *lease);
                }
                if row.key.is_some() {
                    KeyQueue::join(&mut self.queues, owner, (take.on_dead, destinations), row);
                }
            }
            assert_eq!(delivery.claim, row.claims);
            let (id, claim, by) = (row.id.clone(), row.claims, take.by.clone());
            self.taken.push(Taken { id, claim, by, group: row.group, settled: false });
        }
        if let Holder::Lease { owner, .. } = &take.by {
            let taken_over = taken.deliveries.iter().filter(|delivery| delivery.suspect.is_some());
            let keys = taken_over.filter_map(|delivery| delivery.event.ordering_key().map(Arc::from));
            self.model.fence(&keys.collect(), owner, now);
        }
        // Events of a key are taken in order: any earlier pending event was returned by the same
        // take, or is held by the taker.
        for row in self.model.rows.iter().filter(|row| row.key.is_some() && found.contains(&row.id)) {
            let earlier = self.model.rows.iter().filter(|other| other.key == row.key && other.seq < row.seq);
            let earlier = earlier.filter(|other| Model::is_ordered(take, row, other));
            for other in earlier.filter(|other| other.status.is_pending()) {
                let is_taken =
                    found.contains(&other.id) || self.model.is_held_by_taker(other, row, take, now);
                assert!(is_taken, "{} overtook {}", row.id, other.id);
            }
        }
    }

    async fn settle(&mut self, by: By, of: &[(usize, Kind)], delete: bool) {
        let completion = if delete { Completion::Delete } else { Completion::Keep };
        let Some((_, holder)) = of.first().and_then(|(back, _)| self.believed(by, *back)) else { return };
        let mut settlements: Vec<Settlement> = Vec::new();
        for (back, kind) in of {
            let Some((taken, _)) = self.believed(by, *back) else { continue };
            if settlements.iter().any(|s| s.id == taken.id && s.claim == taken.claim) {
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
                Kind::ReleasedSuspect => Verdict::ReleasedSuspect,
            };
            settlements.push(Settlement { id: taken.id, claim: taken.claim, verdict });
        }
        let now = self.now();
        let store = self.store_of(holder.owner());
        let moved = store.settle(&holder, completion, &settlements).await.unwrap().moved;
        let expected: u64 = settlements.iter().map(|s| self.model.settle(&holder, completion, s, now)).sum();
        assert_eq!(moved, expected);
        match &holder {
            Holder::Lease { owner, .. } => {
                let is_settled = |taken: &Taken| {
                    taken.by == holder
                        && settlements.iter().any(|s| s.id == taken.id && s.claim == taken.claim)
                };
                self.taken
                    .iter_mut()
                    .filter(|taken| is_settled(taken))
                    .for_each(|taken| taken.settled = true);
                KeyQueue::settle(&mut self.queues, owner, &settlements);
            }
            // A leader may name the claims of other nodes, and settle their events. A relay would
            // not.
            Holder::Exclusive { .. } => {
                let is_moved = |(id, _): &(EventId, Claim)| settlements.iter().any(|s| s.id == *id);
                for run in self.queues.iter_mut().filter(|run| run.left.iter().any(is_moved)) {
                    run.frontier.group_lease = false;
                }
            }
        }
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
        let mut kept = self.store_of(owner).extend(owner, seconds(LEASE), &held).await.unwrap();
        let by = Holder::Lease { owner: owner.clone(), lease: seconds(LEASE) };
        let until = self.now() + seconds(LEASE);
        let mut expected = Vec::new();
        for (id, claim) in &held {
            let matches = |taken: &&Taken| taken.id == *id && taken.claim == *claim && taken.by == by;
            let taken = self.taken.iter().find(matches);
            let i = self.model.rows.iter().position(|row| row.id == *id);
            if let Some((taken, group)) = taken.and_then(|taken| Some((taken, taken.group?))) {
                // A group lease is renewed as a whole, without a look at its events.
                let group = &mut self.model.groups[group];
                if !taken.settled && !group.deleted {
                    group.until = until;
                    expected.push(id.clone());
                }
            } else if let Some(i) = i.filter(|i| self.model.holds(&self.model.rows[*i], *claim, &by)) {
                self.model.rows[i].locked_until = Some(until);
                expected.push(id.clone());
            }
        }
        kept.sort_unstable();
        expected.sort_unstable();
        assert_eq!(kept, expected);
        if kept.len() < held.len() {
            // Another node may hold some of the events by now.
            self.queues.retain(|run| run.owner != *owner);
        }
    }

    /// The store's filter.
    fn filter(&self, selection: &Selection) -> Filter {
        selection.filter(|n| self.model.rows.get(n).map(|row| row.seq))
    }

    async fn look(&self, selection: &Selection) {
        let now = self.now();
        let filter = self.filter(selection);
        let rows: Vec<&Row> =
            self.model.matching(&filter, now).into_iter().map(|i| &self.model.rows[i]).collect();
        let listed = self.store.list(&filter, 100_000).await.unwrap();
        let seqs = |rows: &[&Row]| rows.iter().map(|row| row.seq).collect::<Vec<_>>();
        assert_eq!(listed.iter().map(|stored| stored.seq).collect::<Vec<_>>(), seqs(&rows));
        assert_eq!(self.store.count(&filter).await.unwrap(), rows.len() as u64);
        let mut types: BTreeMap<&str, u64> = BTreeMap::new();
        rows.iter().for_each(|row| *types.entry(&row.event_type).or_default() += 1);
        let found = self.store.types(&filter, 10).await.unwrap();
        assert!(
            found.windows(2).all(|subscription| subscription[0].1 >= subscription[1].1),
            "the most frequent comes first"
        );
        assert_eq!(found.iter().map(|(name, n)| (&**name, *n)).collect::<BTreeMap<_, _>>(), types);
        let oldest_due = self.model.oldest_due(now);
        let stats = Stats {
            new: self.model.count(Status::New),
            retry: self.model.count(Status::Retry),
            done: self.model.count(Status::Done),
            dead: self.model.count(Status::Dead),
            oldest_due,
        };
        assert_eq!(self.store.stats().await.unwrap(), stats);
        let free =
            self.model.rows.iter().filter(|row| self.model.is_free(row, now) && row.available_at <= now);
        let backlog = Backlog { pending: stats.new + stats.retry, free: free.count() as u64, oldest_due };
        assert_eq!(self.store.backlog().await.unwrap(), backlog);
    }

    async fn replay(&mut self, selection: &Selection, limit: usize) {
        let now = self.now();
        let filter = self.filter(selection);
        let dead = Filter { status: Some(Status::Dead), ..filter.clone() };
        let matching: Vec<usize> = self.model.matching(&dead, now).into_iter().take(limit).collect();
        let last = matching.last().map(|i| self.model.rows[*i].seq);
        for i in &matching {
            let row = &mut self.model.rows[*i];
            row.status = Status::New;
            row.attempts = 0;
            row.crashes = 0;
            row.available_at = now;
            row.expires_at = None;
            row.done_at = None;
            row.done_by = None;
            row.unlock();
            // The replayed event is in no queue, though it may lie before the end of one.
            for run in self.queues.iter_mut().filter(|run| row.key.as_ref() == Some(&run.id.key)) {
                run.frontier.group_lease = false;
            }
        }
        let expected = Replayed { moved: matching.len() as u64, last };
        assert_eq!(self.store.replay(&filter, limit).await.unwrap(), expected);
    }

    async fn purge(&mut self, what: Purgeable, older_than: u64, limit: usize) {
        let end = self.now() - seconds(older_than);
        // A dead event stays while a later one of its key is pending, unless everything is purged.
        let pending: Vec<(Arc<str>, i64)> = self
            .model
            .rows
            .iter()
            .filter(|row| row.status.is_pending())
            .filter_map(|row| Some((row.key.clone()?, row.seq)))
            .collect();
        let is_head = |row: &Row| {
            let key = row.key.as_deref();
            key.is_some_and(|key| pending.iter().any(|(other, seq)| **other == *key && *seq > row.seq))
        };
        // Since when a row is old enough; `None` if it must stay. DONE rows are purged first, then
        // DEAD ones in no order that all databases share, then pending ones.
        let since = |row: &Row| {
            let old = |time: DateTime<Utc>| Some(time).filter(|time| *time < end);
            let settled = row.done_at.unwrap_or(row.created_at);
            match (row.status, what) {
                (Status::Done, Purgeable::Done | Purgeable::Finished | Purgeable::Everything) => {
                    old(settled).map(|time| (0, Some(time)))
                }
                (Status::Dead, Purgeable::Dead | Purgeable::Finished) if !is_head(row) => {
                    old(settled).map(|_| (1, None))
                }
                (Status::Dead, Purgeable::Everything) => old(settled).map(|_| (1, None)),
                (Status::New | Status::Retry, Purgeable::Everything) => {
                    old(row.available_at).filter(|_| row.created_at < end).map(|time| (2, Some(time)))
                }
                _ => None,
            }
        };
        let mut order: Vec<_> = self.model.rows.iter().filter_map(since).collect();
        order.sort_unstable();
        order.truncate(limit);
        let purge = Purge { what, older_than: seconds(older_than), limit };
        assert_eq!(self.store.purge(purge).await.unwrap(), order.len() as u64);
        // Of several equally old rows any may have been purged.
        let left = self.store.list(&Filter::default(), 100_000).await.unwrap();
        let left: HashSet<i64> = left.iter().map(|stored| stored.seq).collect();
        let (kept, gone): (Vec<Row>, Vec<Row>) =
            std::mem::take(&mut self.model.rows).into_iter().partition(|row| left.contains(&row.seq));
        let mut went: Vec<_> =
            gone.iter().map(|row| since(row).expect("only rows that may be purged are gone")).collect();
        went.sort_unstable();
        assert_eq!(went, order, "the oldest go first");
        self.model.rows = kept;
    }

    async fn lead(&mut self, owner: &NodeId) {
        let now = self.now();
        self.model.reap_lists(now);
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
        let led = self.store_of(owner).lead(EXCLUSIVE, owner, seconds(LEASE)).await.unwrap();
        assert_eq!(led, expected);
    }
}
