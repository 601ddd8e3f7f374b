//! The variant for CockroachDB and YugabyteDB, on PostgreSQL: it passes the conformance suite, and
//! sends no statement that these databases refuse.
//!
//! The databases themselves are not tested. Every statement that this process sends is read from
//! sqlx's log.

#![cfg(feature = "postgres")]

#[path = "common/harness.rs"]
mod harness;
#[path = "common/polling.rs"]
mod polling;
#[path = "common/statement_recorder.rs"]
mod statement_recorder;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use harness::DatabaseHarness;
use outbox::store::SharedStore;
use outbox::testing::conformance::Harness;
use outbox::{
    Clock, Context, Event, Failure, NodeId, Outbox, OutboxBuilder, Outcome, Query, StoreOptions,
    SubscriptionId,
};
use polling::until;
use sqlx::{ConnectOptions as _, Connection as _, Postgres};

/// Words that CockroachDB or YugabyteDB refuses, or has without effect: see
/// `docs/guide/distributed.md`.
const REFUSED: [&str; 21] = [
    "ADVISORY",
    "NOTIFY",
    "LISTEN ",
    "LOCK TABLE",
    "SET JIT",
    "LOCAL JIT",
    "ENABLE_SEQSCAN",
    "ENABLE_BITMAPSCAN",
    "ENABLE_MERGEJOIN",
    "HASHTEXTEXTENDED",
    "PG_LOCKS",
    "PG_STAT_",
    "PG_SEQUENCE",
    "PG_GET_SERIAL_SEQUENCE",
    "PG_TERMINATE_BACKEND",
    "PG_POSTMASTER",
    "COLLATE",
    "FOR EACH STATEMENT",
    "SECURITY DEFINER",
    "AUTOVACUUM",
    "DO $",
];

/// Why one of the databases refuses a statement. CockroachDB also refuses a statement that changes
/// a table twice.
fn refusal(statement: &str) -> Option<String> {
    if let Some(words) = REFUSED.iter().find(|words| statement.contains(*words)) {
        return Some((*words).to_owned());
    }
    if !statement.contains("WITH ") || statement.contains("CREATE ") {
        return None;
    }
    let mut changed = Vec::new();
    for change in ["INSERT INTO ", "UPDATE ", "DELETE FROM "] {
        for (at, _) in statement.match_indices(change) {
            let table = statement[at + change.len()..].split([' ', '(']).next().unwrap_or_default();
            // `FOR UPDATE OF e` and `DO UPDATE SET` change nothing else.
            if table.contains("T_") || table.contains('"') {
                changed.push(table.to_owned());
            }
        }
    }
    changed.sort();
    let twice = changed.windows(2).find(|two| two[0] == two[1])?;
    Some(format!("{} changed twice", twice[0]))
}

#[test]
fn the_recorder_knows_refused_statements() {
    let refused = |line| statement_recorder::refused(line, refusal);
    for line in [
        r#"summary="SELECT pg_advisory_xact_lock(1)" db.statement="""#,
        r#"summary="LISTEN x""#,
        r#"summary="WITH gone AS (…" db.statement="WITH gone AS (DELETE FROM \"t_node\" WHERE a)\n INSERT INTO \"t_node\" (b) VALUES (1)""#,
    ] {
        assert!(refused(line).is_some(), "{line}");
    }
    for line in [
        r#"summary="WITH u AS (UPDATE \"t\" e SET a = 1 RETURNING b) INSERT INTO \"t_attempt\" SELECT b FROM u" db.statement="""#,
        r#"summary="INSERT INTO \"t\" (a) …" db.statement="WITH l AS (SELECT 1) INSERT INTO \"t\" (a) VALUES (1) ON CONFLICT (a) DO UPDATE SET b = 2""#,
        r#"summary="SELECT a FROM \"t\" FOR UPDATE SKIP LOCKED" db.statement="""#,
        r#"summary="-- No …" db.statement="-- No advisory lock.\n  -- Nor a NOTIFY.\nSELECT 1""#,
    ] {
        assert_eq!(refused(line), None, "{line}");
    }
}

/// A harness whose statements are recorded. Dropping it fails the test if one of them is refused.
struct Recorded(DatabaseHarness);

impl Recorded {
    async fn new() -> Option<Self> {
        statement_recorder::record(refusal);
        DatabaseHarness::postgres().await.map(Self)
    }

    fn url(&self) -> &str {
        self.0.url().unwrap()
    }

    fn options(&self) -> StoreOptions {
        self.0.options().assume_distributed()
    }

    async fn outbox(&self) -> Outbox<Postgres> {
        let builder = OutboxBuilder::new().table(&self.0.table).assume_distributed();
        let outbox = builder.postgres(self.url()).await.unwrap();
        outbox.migrate().await.unwrap();
        outbox
    }

    /// A connection whose statements are not recorded.
    async fn connect_raw(&self) -> sqlx::PgConnection {
        let options: sqlx::postgres::PgConnectOptions = self.url().parse().unwrap();
        sqlx::PgConnection::connect_with(&options.disable_statement_logging()).await.unwrap()
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            statement_recorder::assert_accepted("a distributed database");
        }
    }
}

#[async_trait]
impl Harness for Recorded {
    async fn connect(&self, clock: Clock) -> SharedStore {
        self.0.store(self.options().clock(clock)).await
    }

    async fn execute(&self, sql: &str) -> bool {
        self.0.execute(sql).await
    }
}

mod postgres {
    outbox::conformance_tests!(crate::Recorded::new().await);
}

const LEASE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_queues_and_the_log_send_nothing_that_is_refused() {
    let Some(recorded) = Recorded::new().await else { return };
    let outbox = recorded.outbox().await;
    let handler = |cx: Context| async move {
        match (cx.payload::<u64>()?, cx.attempt()) {
            (7, 1) => Err(Failure::retry("once more")),
            _ => Ok(Outcome::Done),
        }
    };
    for relay in [outbox.single_node(), outbox.multi_node(), outbox.ordered()] {
        let events = (0..20_u64).map(|n| {
            let event = Event::new("e").json(&n).dedup_key(format!("d{}", n / 2));
            if n % 3 == 0 {
                event.ordering_key(format!("k{}", n % 2))
            } else {
                event.aggregate("order", n.to_string())
            }
        });
        outbox.send_all(events).await.unwrap();
        let relay =
            relay.retry(outbox::Backoff::default().base(Duration::from_millis(1))).on_type("e", handler);
        let relay = relay.start().await.unwrap();
        let steps = (0..5_u64).map(|n| Event::new("e").json(&n));
        outbox.fan_out(steps).then(Event::new("e").json(&9)).send().await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(outbox.admin().backlog().await.unwrap().pending, 0);
        assert_eq!(outbox.admin().stats().await.unwrap().dead, 0);
        assert!(outbox.admin().purge(Duration::ZERO).await.unwrap() > 0);
    }

    let (queue, me) = (outbox.queue(), NodeId::from("me"));
    outbox.send_all((0..3).map(|n| Event::new("work").json(&n))).await.unwrap();
    let items = queue.claim(&me, LEASE, 10).await.unwrap();
    assert_eq!(queue.ack(&me, items.iter().map(outbox::WorkItem::id)).await.unwrap(), 3);
    assert_eq!(queue.reap_expired().await.unwrap(), 0);
    outbox.admin().overview(1_000).await.unwrap();

    let log = outbox.log();
    let tagged = |n: u64| Event::new("e").json(&n).tag("n", 1);
    let read = log.project(Query::tag("n", 1), 0, |n, _| n + 1).await.unwrap();
    assert!(log.append_if([tagged(1)], read.unchanged()).await.is_ok());
    assert!(log.append_if([tagged(2)], read.unchanged()).await.is_err());
    let mut tx = outbox.begin().await.unwrap();
    assert_eq!(tx.project(Query::tag("n", 1), 0, |n, _| n + 1).await.unwrap().state, 1);
    tx.append([tagged(3)]).await.unwrap();
    tx.commit().await.unwrap();
    let store = outbox.store();
    let subscriptions = store.log().unwrap();
    subscriptions.register(&[(SubscriptionId::new("t", "p"), true)]).await.unwrap();
    assert_eq!(subscriptions.claim(&me, LEASE, &[SubscriptionId::new("t", "p")]).await.unwrap().len(), 1);
    assert_eq!(subscriptions.waiting().await.unwrap(), []);
    assert_eq!(subscriptions.purge_log(Duration::ZERO, 10).await.unwrap(), 1, "the last event stays");
}

/// Events of a key are numbered in the order of their commits, whatever a sequence hands out: two
/// sessions with blocks of numbers write in turns, as on YugabyteDB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_does_not_rest_on_a_sequence() {
    let Some(recorded) = Recorded::new().await else { return };
    let outbox = recorded.outbox().await;
    let table = recorded.0.table.clone();
    recorded.0.run(&format!("ALTER SEQUENCE {table}_seq_seq CACHE 100")).await;
    let (mut one, mut two) = (recorded.connect_raw().await, recorded.connect_raw().await);
    let insert = |key: &str, n: u32| {
        sqlx::AssertSqlSafe(format!(
            "INSERT INTO {table} (event_type, ordering_key, payload) VALUES ('e', {key}, '{n}')"
        ))
    };
    let numbers = |condition: &str| {
        sqlx::AssertSqlSafe(format!(
            "SELECT (payload #>> ARRAY[]::text[])::bigint FROM {table} WHERE {condition} ORDER BY seq"
        ))
    };
    // Without a key, the numbers have no order: the test would prove nothing otherwise.
    for n in 0..4 {
        let conn = if n % 2 == 0 { &mut one } else { &mut two };
        sqlx::query(insert("NULL", n)).execute(&mut *conn).await.unwrap();
    }
    let unkeyed: Vec<i64> =
        sqlx::query_scalar(numbers("ordering_key IS NULL")).fetch_all(&mut one).await.unwrap();
    assert_eq!(unkeyed, [0, 2, 1, 3]);
    for n in 0..20 {
        let conn = if n % 2 == 0 { &mut two } else { &mut one };
        sqlx::query(insert("'k'", n)).execute(&mut *conn).await.unwrap();
    }
    let keyed: Vec<i64> =
        sqlx::query_scalar(numbers("ordering_key = 'k'")).fetch_all(&mut one).await.unwrap();
    assert_eq!(keyed, (0..20).collect::<Vec<_>>());

    let seen = Arc::new(Mutex::new(Vec::new()));
    let relays: Vec<_> = (0..2)
        .map(|_| {
            let seen = seen.clone();
            outbox.multi_node().on_type("e", move |cx: Context| {
                let seen = seen.clone();
                async move {
                    if cx.event().ordering_key().is_some() {
                        seen.lock().unwrap().push(cx.payload::<i64>()?);
                    }
                    Ok::<_, Failure>(Outcome::Done)
                }
            })
        })
        .collect();
    for relay in relays {
        let relay = relay.start().await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
    }
    assert_eq!(*seen.lock().unwrap(), (0..20).collect::<Vec<_>>());
}

/// The first insert of a key is numbered first, even if its transaction commits last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_of_one_key_wait_for_each_other() {
    let Some(recorded) = Recorded::new().await else { return };
    let outbox = recorded.outbox().await;
    let mut first = outbox.begin().await.unwrap();
    first.write(Event::new("e").ordering_key("k").json(&1)).await.unwrap();
    let second = {
        let outbox = outbox.clone();
        tokio::spawn(async move { outbox.send(Event::new("e").ordering_key("k").json(&2)).await })
    };
    let table = &recorded.0.table;
    // Seen by PostgreSQL itself: the second writer waits for the first one's row.
    let waiting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{table}_key_slot%'"
    );
    let mut conn = recorded.connect_raw().await;
    let waits = async || {
        assert!(!second.is_finished(), "the second writer did not wait");
        let ask = sqlx::query_scalar::<_, i64>(sqlx::AssertSqlSafe(waiting.clone()));
        ask.fetch_one(&mut conn).await.unwrap() > 0
    };
    until("the second writer waits", waits).await;
    first.commit().await.unwrap();
    second.await.unwrap().unwrap();
    let order = format!("SELECT payload #>> ARRAY[]::text[] FROM {table} ORDER BY seq");
    let order: Vec<String> =
        sqlx::query_scalar(sqlx::AssertSqlSafe(order)).fetch_all(&mut conn).await.unwrap();
    assert_eq!(order, ["1", "2"]);
}

/// Several processes that start at once migrate one after another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrations_exclude_each_other() {
    let Some(recorded) = Recorded::new().await else { return };
    let store = Arc::new(recorded.0.store(recorded.options()).await);
    let all: Vec<_> = (0..6)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.migrate().await })
        })
        .collect();
    for one in all {
        one.await.unwrap().unwrap();
    }
    store.check_schema().await.unwrap();
}
