//! The variant for TiDB, on MariaDB or MySQL: it passes the conformance suite, and sends no
//! statement that TiDB refuses.
//!
//! TiDB itself is not tested. Every statement that this process sends is read from sqlx's log.

#![cfg(feature = "mysql")]

#[path = "common/harness.rs"]
mod harness;
#[path = "common/statement_recorder.rs"]
mod statement_recorder;

use std::time::Duration;

use async_trait::async_trait;
use harness::DatabaseHarness;
use outbox::store::SharedStore;
use outbox::testing::conformance::Harness;
use outbox::{
    Clock, Context, Event, Failure, NodeId, OutboxBuilder, Outcome, Query, StoreOptions, SubscriptionId,
};
use sqlx::Connection as _;

/// Syntax that TiDB does not implement, or ignores: see `docs/guide/tidb.md`.
const REFUSED: [&str; 15] = [
    "JSON_TABLE",
    "SKIP LOCKED",
    "SHARE MODE",
    "FOR SHARE",
    "CREATE TRIGGER",
    "SCHEMA.TRIGGERS",
    "CREATE FUNCTION",
    "CREATE PROCEDURE",
    "LATERAL",
    "DEFAULT (UTC_TIMESTAMP",
    "DEFAULT ('[]')",
    "LOCK_WAIT_TIMEOUT",
    "INNODB_",
    "PERFORMANCE_SCHEMA",
    "LOCK TABLE",
];

fn refusal(statement: &str) -> Option<String> {
    let found = REFUSED.iter().find(|words| statement.contains(*words));
    found.map(|words| (*words).to_owned())
}

/// A harness whose statements are recorded. Dropping it fails the test if one of them has syntax
/// that TiDB refuses.
struct Recorded(DatabaseHarness);

impl Recorded {
    fn of(harness: Option<DatabaseHarness>) -> Option<Self> {
        statement_recorder::record(refusal);
        harness.map(Self)
    }

    fn url(&self) -> &str {
        self.0.url().unwrap()
    }

    fn options(&self) -> StoreOptions {
        self.0.options().assume_tidb()
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            statement_recorder::assert_accepted("TiDB");
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

    fn gives_keys(&self) -> bool {
        false
    }
}

/// On MySQL only, which `cargo xtask test --mysql` enables: the suite takes a minute.
mod mysql {
    outbox::conformance_tests!(crate::Recorded::of(crate::DatabaseHarness::mysql().await));
}

const LEASE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_queues_and_the_log_send_nothing_that_tidb_refuses_on_mariadb() {
    let Some(harness) = Recorded::of(DatabaseHarness::mariadb().await) else { return };
    let builder = OutboxBuilder::new().table(&harness.0.table).assume_tidb();
    let outbox = builder.mysql(harness.url()).await.unwrap();
    outbox.migrate().await.unwrap();
    let handler = |cx: Context| async move {
        match (cx.payload::<u64>()?, cx.attempt()) {
            (7, 1) => Err(Failure::retry("once more")),
            _ => Ok(Outcome::Done),
        }
    };
    let refused = outbox.ordered().start().await.unwrap_err().to_string();
    assert!(refused.contains("TiDB") && refused.contains("multi_node"), "{refused}");
    for relay in [outbox.single_node(), outbox.multi_node()] {
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

    let log = outbox.log();
    let tagged = |n: u64| Event::new("e").json(&n).tag("n", 1);
    let read = log.project(Query::tag("n", 1), 0, |n, _| n + 1).await.unwrap();
    assert!(log.append_if([tagged(1)], read.unchanged()).await.is_ok());
    assert!(log.append_if([tagged(2)], read.unchanged()).await.is_err());
    let mut tx = outbox.begin().await.unwrap();
    assert_eq!(tx.project(Query::tag("n", 1), 0, |n, _| n + 1).await.unwrap().state, 1);
    tx.append([tagged(3)]).await.unwrap();
    tx.commit().await.unwrap();
    let pairs = outbox.store();
    let pairs = pairs.log().unwrap();
    pairs.register(&[(SubscriptionId::new("t", "p"), true)]).await.unwrap();
    assert_eq!(pairs.claim(&me, LEASE, &[SubscriptionId::new("t", "p")]).await.unwrap().len(), 1);
    assert_eq!(rows(&harness, "log_tag").await, 2);
    assert_eq!(pairs.purge_log(Duration::ZERO, 10).await.unwrap(), 1, "the last event stays");
    assert_eq!(rows(&harness, "log_tag").await, 1);
}

async fn rows(harness: &Recorded, table: &str) -> i64 {
    let mut conn = sqlx::MySqlConnection::connect(harness.url()).await.unwrap();
    let count = format!("SELECT count(*) FROM {}_{table}", harness.0.table);
    sqlx::query_scalar(sqlx::AssertSqlSafe(count)).fetch_one(&mut conn).await.unwrap()
}
