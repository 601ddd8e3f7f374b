//! Sixteen writers with held transactions, rollbacks, savepoints and two-phase commits, beside a
//! transaction that stays open: every publisher sees every committed event once, in the order of
//! positions.
//!
//! `OUTBOX_TEST_SECONDS` sets how long they write. The last test transfers money between wallets:
//! `OUTBOX_TEST_CLIENTS` sets the number of clients.

mod common;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use common::{Backend, TestDb};
use outbox::{
    Appended, Error, Event, EventId, Log, Outbox, Outgoing, Position, PublishError, Publisher, Query, Topic,
};
use sqlx::{MySql, Postgres, Sqlite};

const WRITERS: usize = 16;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn seconds() -> Duration {
    Duration::from_secs(setting("OUTBOX_TEST_SECONDS", 3))
}

fn report(line: std::fmt::Arguments<'_>) {
    // Not `println!`: the test runner captures that when a test passes.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Differences between databases.
trait LogBackend: Backend {
    const PRODUCT: &'static str;
    /// Maximum time for which a transaction is held open. Shorter where appends are serialized.
    const HOLD: Duration;
    /// Statements that leave a transaction open that writes, and does not concern the log.
    const OPEN_UNRELATED: &'static [&'static str] =
        &["CREATE TABLE {t}_other (n int)", "BEGIN", "INSERT INTO {t}_other VALUES (1)"];
    /// Appends by two-phase commit. Returns whether it was committed; `None` where that is not
    /// possible.
    fn in_two_phases(
        db: &TestDb<Self>,
        event: &Event,
        name: &str,
        commit: bool,
        hold: Duration,
    ) -> impl Future<Output = Option<bool>> + Send;
}

async fn open_unrelated<DB: LogBackend>(db: &TestDb<DB>) -> DB::Connection {
    use sqlx::Connection as _;
    let mut conn = DB::Connection::connect(db.url()).await.unwrap();
    for statement in DB::OPEN_UNRELATED {
        DB::execute_sql(&mut conn, &statement.replace("{t}", &db.table)).await.unwrap();
    }
    conn
}

impl LogBackend for Postgres {
    const PRODUCT: &'static str = "PostgreSQL";
    const HOLD: Duration = Duration::from_millis(30);

    async fn in_two_phases(
        db: &TestDb<Self>,
        event: &Event,
        name: &str,
        commit: bool,
        hold: Duration,
    ) -> Option<bool> {
        use sqlx::Connection as _;
        let mut conn = sqlx::PgConnection::connect(db.url()).await.unwrap();
        let (id, name) = (event.id(), format!("{}-{name}", db.table));
        let insert = format!(
            "BEGIN; INSERT INTO {}_log (event_id, event_type, tags, payload) VALUES ('{id}', 'two', ARRAY['w=2pc'], '0');
             PREPARE TRANSACTION '{name}'", db.table
        );
        Self::execute_sql(&mut conn, &insert).await.unwrap();
        tokio::time::sleep(hold).await;
        let end = if commit { "COMMIT" } else { "ROLLBACK" };
        Self::execute_sql(&mut conn, &format!("{end} PREPARED '{name}'")).await.unwrap();
        Some(commit)
    }
}

impl LogBackend for MySql {
    const PRODUCT: &'static str = "MariaDB";
    const HOLD: Duration = Duration::from_millis(3);

    async fn in_two_phases(
        db: &TestDb<Self>,
        event: &Event,
        name: &str,
        commit: bool,
        hold: Duration,
    ) -> Option<bool> {
        use sqlx::Connection as _;
        let mut conn = sqlx::MySqlConnection::connect(db.url()).await.unwrap();
        let (id, name, base) = (event.id(), format!("{}-{name}", db.table), &db.table);
        let statements = [
            format!("XA START '{name}'"),
            format!("UPDATE {base}_log_head SET position = LAST_INSERT_ID(position + 1)"),
            format!(
                "INSERT INTO {base}_log (position, event_id, event_type, tags, payload) \
                VALUES (LAST_INSERT_ID(), '{id}', 'two', '[\"w=2pc\"]', '0')"
            ),
            format!("INSERT INTO {base}_log_tag (tag, position) VALUES ('w=2pc', LAST_INSERT_ID())"),
            format!("XA END '{name}'"),
            format!("XA PREPARE '{name}'"),
        ];
        for statement in &statements {
            Self::execute_sql(&mut conn, statement).await.unwrap();
        }
        tokio::time::sleep(hold).await;
        Self::execute_sql(&mut conn, &format!("XA {} '{name}'", if commit { "COMMIT" } else { "ROLLBACK" }))
            .await
            .unwrap();
        Some(commit)
    }
}

impl LogBackend for Sqlite {
    const PRODUCT: &'static str = "SQLite";
    const HOLD: Duration = Duration::from_millis(2);

    // One writer: an open write transaction would block all others.
    const OPEN_UNRELATED: &'static [&'static str] = &["BEGIN", "SELECT count(*) FROM {t}"];

    async fn in_two_phases(_: &TestDb<Self>, _: &Event, _: &str, _: bool, _: Duration) -> Option<bool> {
        None
    }
}

/// Time of each event's commit, as far as its writer knows.
type Committed = Arc<Mutex<HashMap<EventId, Instant>>>;

/// A published event, with its epoch and time.
struct Published {
    position: Position,
    epoch: i64,
    id: EventId,
    at: Instant,
}

/// A publisher that records events.
#[derive(Clone)]
struct Seen {
    name: &'static str,
    events: Arc<Mutex<Vec<Published>>>,
}

impl Seen {
    fn named(name: &'static str) -> Self {
        Self { name, events: Arc::default() }
    }
}

#[async_trait]
impl Publisher for Seen {
    fn name(&self) -> &str {
        self.name
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        let now = Instant::now();
        let seen = events.iter().map(|event| Published {
            position: event.position().unwrap(),
            epoch: event.epoch().unwrap(),
            id: event.id().clone(),
            at: now,
        });
        self.events.lock().unwrap().extend(seen);
        Ok(())
    }
}

macro_rules! on_every_database {
    ($($case:ident)+) => {$(
        mod $case {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() { run::<Sqlite>().await }
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() { run::<Postgres>().await }
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn mariadb() { run::<MySql>().await }

            async fn run<DB: LogBackend>() {
                let set_up = |builder: outbox::OutboxBuilder| builder.max_connections(40);
                if let Some(db) = TestDb::<DB>::with(set_up).await {
                    super::$case(db).await;
                }
            }
        }
    )+};
}

on_every_database! {
    every_publisher_sees_every_committed_event_once_and_in_order
    transfers_keep_the_total_and_no_balance_is_negative
}

async fn every_publisher_sees_every_committed_event_once_and_in_order<DB: LogBackend>(db: TestDb<DB>) {
    let open = open_unrelated(&db).await;
    let (all, some) = (Seen::named("all"), Seen::named("some"));
    let publishing = db.another().await;
    let relay = publishing
        .outbox
        .log_only()
        .publish(Topic::new("all").to(all.clone()))
        .publish(Topic::new("some").types(["odd"]).to(some.clone()))
        .start()
        .await
        .unwrap();

    let db = Arc::new(db);
    let committed = Committed::default();
    let odd = Arc::new(Mutex::new(HashSet::new()));
    let end = Instant::now() + seconds();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let (db, committed, odd) = (db.clone(), committed.clone(), odd.clone());
        writers.spawn(async move {
            let mut turn = 0;
            while Instant::now() < end {
                turn += 1;
                let (events, is_committed) = one_transaction(&db, writer, turn).await;
                let now = Instant::now();
                if is_committed {
                    for event in &events {
                        committed.lock().unwrap().insert(event.id().clone(), now);
                        if *event.event_type() == "odd" {
                            odd.lock().unwrap().insert(event.id().clone());
                        }
                    }
                }
            }
        });
    }
    while let Some(ended) = writers.join_next().await {
        ended.unwrap();
    }
    relay.idle().await.unwrap();
    relay.stop().await.unwrap();
    drop(open);

    let committed = committed.lock().unwrap();
    for (seen, expected) in
        [(&all, committed.keys().cloned().collect::<HashSet<_>>()), (&some, odd.lock().unwrap().clone())]
    {
        let events = seen.events.lock().unwrap();
        let ids: HashSet<EventId> = events.iter().map(|event| event.id.clone()).collect();
        assert_eq!(expected.difference(&ids).count(), 0, "{}: some events were lost", seen.name);
        assert_eq!(ids.difference(&expected).count(), 0, "{}: some events were rolled back", seen.name);
        let in_order = |a: &Published, b: &Published| (a.epoch, a.position) < (b.epoch, b.position);
        assert!(events.is_sorted_by(in_order), "{}: out of order, or twice in an epoch", seen.name);
        // While writers keep SQLite busy, a node may lose its pairs for a moment, and publish some
        // events again.
        let epochs = events.iter().map(|event| event.epoch).collect::<BTreeSet<_>>().len();
        let again = events.len() - ids.len();
        assert!(again == 0 || epochs > 1, "{}: {again} came twice in {epochs} epochs", seen.name);
    }
    let events = all.events.lock().unwrap();
    let mut delays: Vec<Duration> =
        events.iter().map(|event| event.at.saturating_duration_since(committed[&event.id])).collect();
    delays.sort_unstable();
    let at = |part: usize| delays[(delays.len() - 1) * part / 100];
    report(format_args!(
        "{}: {} events by {WRITERS} writers, none lost, in order; commit to publisher p50 {:?}, p99 {:?}, max {:?}",
        DB::PRODUCT,
        delays.len(),
        at(50),
        at(99),
        at(100)
    ));
    assert!(at(50) < Duration::from_secs(10), "half of them took {:?} or longer", at(50));
}

/// Runs one transaction of a writer. Returns its events, and whether they were committed.
async fn one_transaction<DB: LogBackend>(db: &TestDb<DB>, writer: usize, turn: usize) -> (Vec<Event>, bool) {
    let make = |kind: &str| Event::new(kind).tag("w", writer).json(&turn).build().unwrap();
    let hold = DB::HOLD.mul_f64(rand::random());
    let commit = rand::random_bool(0.95);
    if rand::random_bool(0.05) {
        let event = make("two");
        if let Some(is_committed) =
            DB::in_two_phases(db, &event, &format!("{writer}-{turn}"), commit, hold).await
        {
            return (vec![event], is_committed);
        }
    }
    let mut tx = db.outbox.begin().await.unwrap();
    let mut events = Vec::new();
    for n in 0..rand::random_range(1..4) {
        let event = make(if (turn + n).is_multiple_of(2) { "even" } else { "odd" });
        tx.append([event.clone()]).await.unwrap();
        events.push(event);
        if rand::random_bool(0.1) {
            DB::execute_sql(&mut tx, "SAVEPOINT s").await.unwrap();
            tx.append([make("undone")]).await.unwrap();
            DB::execute_sql(&mut tx, "ROLLBACK TO SAVEPOINT s").await.unwrap();
        }
    }
    tokio::time::sleep(hold).await;
    if commit {
        tx.commit().await.unwrap();
    } else {
        tx.rollback().await.unwrap();
    }
    (events, commit)
}

const WALLETS: u64 = 10;
const EACH: i64 = 100;

#[derive(serde::Serialize, serde::Deserialize)]
struct Moved {
    from: Option<u64>,
    to: u64,
    amount: i64,
}

fn moved(moved: &Moved) -> outbox::EventBuilder {
    let event = Event::new("moved").tag("wallet", moved.to).json(moved);
    moved.from.iter().fold(event, |event, from| event.tag("wallet", from))
}

async fn balances<DB: Backend>(log: &Log<DB>, wallets: &[u64]) -> outbox::Projection<HashMap<u64, i64>> {
    let all = wallets.iter().map(|wallet| Query::tag("wallet", wallet)).reduce(Query::or).unwrap();
    log.project(all, HashMap::new(), |mut balances, event| {
        let moved: Moved = event.payload().unwrap();
        *balances.entry(moved.to).or_default() += moved.amount;
        if let Some(from) = moved.from {
            *balances.entry(from).or_default() -= moved.amount;
        }
        balances
    })
    .await
    .unwrap()
}

async fn transfers_keep_the_total_and_no_balance_is_negative<DB: LogBackend>(db: TestDb<DB>) {
    let clients = setting("OUTBOX_TEST_CLIENTS", 8);
    let outbox: &Outbox<DB> = &db.outbox;
    for wallet in 0..WALLETS {
        outbox.log().append([moved(&Moved { from: None, to: wallet, amount: EACH })]).await.unwrap();
    }
    let (made, conflicts) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let end = Instant::now() + seconds();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..clients {
        let (log, made, conflicts) = (outbox.log(), made.clone(), conflicts.clone());
        tasks.spawn(async move {
            while Instant::now() < end {
                let from = rand::random_range(0..WALLETS);
                let to = (from + rand::random_range(1..WALLETS)) % WALLETS;
                let amount = rand::random_range(1..80);
                // Decisions with and without the target have conditions that overlap without being
                // equal.
                let basis: &[u64] = if rand::random() { &[from, to] } else { &[from] };
                let known = balances(&log, basis).await;
                if known.state.get(&from).copied().unwrap_or(0) < amount {
                    continue;
                }
                match log.append_if([moved(&Moved { from: Some(from), to, amount })], known.unchanged()).await
                {
                    Ok(Appended::New(_)) => _ = made.fetch_add(1, Ordering::Relaxed),
                    Err(Error::Conflict { .. }) => _ = conflicts.fetch_add(1, Ordering::Relaxed),
                    other => panic!("{other:?}"),
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }

    // Replays all events from the start: at no point may a balance have been negative.
    let mut balances: HashMap<u64, i64> = HashMap::new();
    let (mut after, mut seen) = (Position::START, BTreeSet::new());
    loop {
        let events = outbox.log().read(&Query::all(), after, 500).await.unwrap();
        let Some(last) = events.last() else { break };
        after = last.position();
        for event in &events {
            assert!(seen.insert(event.position()));
            let moved: Moved = event.payload().unwrap();
            *balances.entry(moved.to).or_default() += moved.amount;
            if let Some(from) = moved.from {
                let balance = balances.entry(from).or_default();
                *balance -= moved.amount;
                assert!(*balance >= 0, "wallet {from} is at {balance} after position {}", event.position());
            }
        }
    }
    let total: i64 = balances.values().sum();
    let (made, conflicts) = (made.load(Ordering::Relaxed), conflicts.load(Ordering::Relaxed));
    report(format_args!("{}: {clients} clients, {made} transfers made, {conflicts} conflicts", DB::PRODUCT));
    assert_eq!(total, EACH * i64::try_from(WALLETS).unwrap());
    assert!(made > 0 && conflicts > 0, "{made} transfers, {conflicts} conflicts: the test proves nothing");
}
