//! Number of statements of a call of the work queue or about the pairs of a log, as sqlx logs them;
//! and number of round trips, as a proxy counts them.
//!
//! A separate test binary: a process has one subscriber.

mod common;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use common::{Backend, TestDb, numbered, until};
use outbox::store::{ProgressUpdate, Status};
use outbox::{NodeId, OutboxBuilder, Position, SubscriptionId, SubscriptionStatus, WorkItem, WorkItemId};
use outbox_testbed::Proxy;
use tracing_subscriber::filter::LevelFilter;

/// Every log record of the process: a statement is logged in several lines of text.
#[derive(Clone, Default)]
struct LogRecords(Arc<Mutex<Vec<String>>>);

impl io::Write for LogRecords {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().push(String::from_utf8_lossy(line).into_owned());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

static RECORDS: LazyLock<LogRecords> = LazyLock::new(|| {
    let lines = LogRecords::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(LevelFilter::DEBUG).with_ansi(false);
    subscriber.with_writer(move || writer.clone()).init();
    lines
});

/// Runs a call. Returns its result, and the number of statements on the tables of this test.
async fn counted<DB: Backend, T>(
    db: &TestDb<DB>,
    call: impl Future<Output = outbox::Result<T>>,
) -> (T, usize) {
    let statements = || {
        let lines = RECORDS.0.lock().unwrap();
        let of_test = |line: &&String| line.contains("sqlx::query") && line.contains(db.table.as_str());
        lines.iter().filter(of_test).count()
    };
    let before = statements();
    let result = call.await.unwrap();
    (result, statements() - before)
}

fn ids(items: &[WorkItem]) -> Vec<WorkItemId> {
    items.iter().map(|item| item.id().clone()).collect()
}

const LEASE: Duration = Duration::from_secs(30);

/// Minimum number of round trips of a call in several rounds. A connection that is new to a
/// statement prepares it first, and an idle connection is pinged first.
struct Trips<'a> {
    proxy: &'a Proxy,
    of: BTreeMap<&'static str, u64>,
}

impl Trips<'_> {
    async fn count<T>(&mut self, name: &'static str, call: impl Future<Output = outbox::Result<T>>) -> T {
        let before = self.proxy.round_trips();
        let result = call.await.unwrap();
        let trips = self.proxy.round_trips() - before;
        let fewest = self.of.entry(name).or_insert(trips);
        *fewest = trips.min(*fewest);
        result
    }
}

/// Round trips of each call, on a queue behind a proxy.
async fn trips<DB: Backend>(db: &TestDb<DB>) -> BTreeMap<&'static str, u64> {
    let (proxy, url) = db.proxied();
    let outbox = DB::open(OutboxBuilder::new().table(&db.table), &url).await.unwrap();
    let (queue, me) = (outbox.queue(), NodeId::from("a"));
    let mut trips = Trips { proxy: &proxy, of: BTreeMap::new() };
    for round in 0..8 {
        db.write("e", 0..40).await;
        let items = trips.count("claim", queue.claim(&me, LEASE, 40)).await;
        assert_eq!(items.len(), 40);
        trips.count("extend", queue.extend(&me, LEASE, ids(&items))).await;
        assert_eq!(trips.count("ack", queue.ack(&me, ids(&items[..10]))).await, 10);
        let later = queue.abandon_after(&me, ids(&items[10..20]), DAY, "no");
        assert_eq!(trips.count("abandon", later).await, 10);
        assert_eq!(trips.count("fail", queue.fail(&me, ids(&items[20..30]), "no")).await, 10);
        assert_eq!(trips.count("release", queue.release(&me, ids(&items[30..]))).await, 10);
        trips.count("reap", queue.reap_expired()).await;
        let rest = queue.claim(&me, LEASE, 40).await.unwrap();
        queue.ack(&me, ids(&rest)).await.unwrap();
        let key = format!("k{round}");
        db.outbox.send_all((0..10).map(|n| numbered("e", n).ordering_key(&key))).await.unwrap();
        let keyed = trips.count("claim with keys", queue.claim(&me, LEASE, 40)).await;
        assert_eq!(keyed.len(), 10);
        queue.ack(&me, ids(&keyed)).await.unwrap();
        assert_eq!(trips.count("claim nothing", queue.claim(&me, LEASE, 40)).await.len(), 0);
    }
    outbox.close().await;
    trips.of
}

const DAY: Duration = Duration::from_secs(86_400);

/// OBX-112, 120. The numbers are those of the documentation of `WorkQueue`.
#[tokio::test]
async fn calls_take_as_many_round_trips_on_postgres_as_documented() {
    let Some(db) = TestDb::<sqlx::Postgres>::new().await else { return };
    let expected = [
        ("abandon", 1),
        ("ack", 1),
        ("claim", 4),
        ("claim nothing", 3),
        ("claim with keys", 5),
        ("extend", 1),
        ("fail", 1),
        ("reap", 1),
        ("release", 1),
    ];
    assert_eq!(trips(&db).await, BTreeMap::from(expected));
}

#[tokio::test]
async fn calls_take_as_many_round_trips_on_mariadb_as_documented() {
    let Some(db) = TestDb::<sqlx::MySql>::new().await else { return };
    let expected = [
        ("abandon", 4),
        ("ack", 1),
        ("claim", 4),
        ("claim nothing", 3),
        ("claim with keys", 5),
        ("extend", 1),
        ("fail", 4),
        ("reap", 1),
        ("release", 1),
    ];
    assert_eq!(trips(&db).await, BTreeMap::from(expected));
}

/// C-08. All times are a tenth of the defaults, so six seconds stand for a minute. All traffic of
/// the relay to the server is counted: its statements, and by a proxy its round trips.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_relay_with_two_pairs_makes_less_than_sixty_statements_a_minute_on_postgres() {
    let Some(db) = TestDb::<sqlx::Postgres>::new().await else { return };
    let (proxy, url) = db.proxied();
    let outbox = sqlx::Postgres::open(OutboxBuilder::new().table(&db.table), &url).await.unwrap();
    let (tenth, lease) = (|seconds: u64| Duration::from_millis(seconds * 100), Duration::from_millis(300));
    let relay = outbox
        .multi_node()
        .poll_interval(tenth(5))
        .presence(tenth(20))
        .subscription_lease(lease)
        .log_watch(Duration::from_millis(25))
        .on_type("e", async |_: outbox::Context| {})
        .publish(outbox::Topic::new("t").to(outbox::StatisticsPublisher::named("a")).every(tenth(10)))
        .publish(outbox::Topic::new("t").to(outbox::StatisticsPublisher::named("b")).every(tenth(10)))
        .start()
        .await
        .unwrap();
    // From then on the relay is notified of appends, and renews its leases less often.
    let is_idle = async || {
        let subscriptions = db.outbox.log_admin().subscriptions().await.unwrap();
        subscriptions.len() == 2 && subscriptions.iter().all(|subscription| subscription.remaining > lease)
    };
    until("the relay is idle", is_idle).await;
    // The growing pauses have reached their maximum by then.
    tokio::time::sleep(tenth(60)).await;
    let before = proxy.round_trips();
    let minute = async {
        tokio::time::sleep(tenth(60)).await;
        Ok(())
    };
    let ((), statements) = counted(&db, minute).await;
    let trips = proxy.round_trips() - before;
    relay.stop().await.unwrap();
    assert!(statements < 60, "{statements} statements a minute");
    assert!(statements > 20, "{statements} statements a minute: the relay does not renew its leases");
    // Two for each statement on an idle machine. If a connection is busy, the statement is prepared
    // on another one first.
    assert!(trips < 3 * statements as u64, "{trips} round trips for {statements} statements");
}

on_every_database! {
    /// OBX-112, 120. A claim reads and then writes, with a query for blocking events of keys in
    /// between. On PostgreSQL it waits for other claims first, in the message that begins the
    /// transaction.
    async fn a_claim_is_a_short_transaction(|db|) {
        let (queue, me) = (db.outbox.queue(), NodeId::from("a"));
        db.write("e", 0..300).await;
        let (items, statements) = counted(&db, queue.claim(&me, LEASE, 300)).await;
        assert_eq!((items.len(), statements), (300, 2));
        db.outbox.send_all((0..300).map(|n| numbered("e", n).ordering_key("k"))).await.unwrap();
        let (items, statements) = counted(&db, queue.claim(&me, LEASE, 300)).await;
        assert_eq!((items.len(), statements), (300, 3));
    }

    /// One INSERT, and no statement reads or changes the table after the commit.
    async fn without_a_relay_no_statement_follows_a_commit(|db|) {
        let (written, statements) = counted(&db, db.outbox.send(numbered("e", 1))).await;
        assert_eq!(statements, 1);
        let before = counted(&db, async { Ok(db.find(&written.id).await) }).await;
        assert_eq!((before.0.status, before.0.attempts, before.0.lease), (Status::New, 0, None));
        let (_, later) = counted(&db, async { Ok(db.find(before.0.event.as_ref().unwrap().id()).await) }).await;
        assert_eq!(later, before.1, "only the query of the test itself");
    }

    /// The ids of existing events are read only if an event was a duplicate. MySQL and MariaDB
    /// cannot return the stored rows of an insert that skips duplicates.
    async fn a_duplicate_costs_one_more_statement(|db|) {
        let keyed = |keys: std::ops::Range<u64>| keys.map(|n| numbered("e", n).dedup_key(format!("key-{n}")));
        let insert = if db.url().starts_with("mysql") { 2 } else { 1 };
        let (_, statements) = counted(&db, db.outbox.send_all(keyed(0..100))).await;
        assert_eq!(statements, insert);
        let (_, statements) = counted(&db, db.outbox.send_all(keyed(50..150))).await;
        assert_eq!(statements, insert + 1);
    }

    /// OBX-112, 120. However many items it names. A failure is recorded as well: on PostgreSQL in
    /// the same statement, elsewhere in a transaction of two.
    async fn settling_items_is_one_statement(|db|) {
        let (queue, me) = (db.outbox.queue(), NodeId::from("a"));
        let failing = if db.url().starts_with("postgres") { 1 } else { 2 };
        db.write("e", 0..300).await;
        let items = queue.claim(&me, LEASE, 300).await.unwrap();
        assert_eq!(counted(&db, queue.extend(&me, LEASE, ids(&items))).await, (ids(&items), 1));
        assert_eq!(counted(&db, queue.ack(&me, ids(&items[..100]))).await, (100, 1));
        assert_eq!(counted(&db, queue.abandon(&me, ids(&items[100..150]), "no")).await, (50, failing));
        assert_eq!(counted(&db, queue.fail(&me, ids(&items[150..200]), "no")).await, (50, failing));
        assert_eq!(counted(&db, queue.release(&me, ids(&items[200..]))).await, (100, 1));
        assert_eq!(counted(&db, queue.reap_expired()).await, (0, 1));
    }

    /// The joins of the steps are locked, counted and closed in the same transaction.
    async fn steps_of_joins_take_a_fixed_number_of_statements(|db|) {
        let (queue, me) = (db.outbox.queue(), NodeId::from("a"));
        let mut all = Vec::new();
        for count in [2, 200] {
            db.outbox.fan_out((0..count).map(|n| numbered("e", n))).then(numbered("then", 0)).send().await.unwrap();
            let items = queue.claim(&me, LEASE, 300).await.unwrap();
            let steps: Vec<WorkItem> = items.into_iter().filter(|item| *item.event_type() == "e").collect();
            let (acked, statements) = counted(&db, queue.ack(&me, ids(&steps))).await;
            assert_eq!(acked, count);
            all.push(statements);
        }
        assert_eq!(all[0], all[1]);
        assert!((3..=10).contains(&all[0]), "{all:?}");
    }

    /// However many pairs there are.
    async fn pairs_of_a_log_are_led_and_moved_in_few_statements(|db|) {
        let (store, me) = (db.outbox.store(), NodeId::from("a"));
        let log = store.log().unwrap();
        let ids: Vec<SubscriptionId> = (0..300).map(|n| SubscriptionId::new("t", format!("p{n}"))).collect();
        let rows: Vec<_> = ids.iter().map(|id| (id.clone(), false)).collect();
        assert_eq!(counted(&db, log.register(&rows)).await, ((), 1));
        let (led, statements) = counted(&db, log.claim(&me, LEASE, &ids)).await;
        assert_eq!((led.len(), statements), (300, 2));
        log.tend(&me, LEASE).await.unwrap();
        let (roll, statements) = counted(&db, log.tend(&me, LEASE)).await;
        // Every node sends this heartbeat every few seconds.
        let tends = if db.url().starts_with("postgres") { 1 } else { 4 };
        assert_eq!((roll.subscriptions.len(), statements), (300, tends));
        let moves = led.iter().map(|subscription| ProgressUpdate {
            subscription: subscription.id.clone(),
            epoch: subscription.epoch,
            from: subscription.position,
            to: Position::new(7),
            status: SubscriptionStatus::Active,
            error_count: 0,
            last_error: None,
        });
        let moves: Vec<ProgressUpdate> = moves.collect();
        let (moved, statements) = counted(&db, log.save(&me, &moves)).await;
        assert_eq!((moved.len(), statements), (300, 1));
        log.reset(&ids[0], Position::START).await.unwrap();
        let (moved, statements) = counted(&db, log.save(&me, &moves)).await;
        assert_eq!((moved.len(), statements), (299, 2));
        let result: Vec<_> = led.iter().map(|subscription| (subscription.id.clone(), subscription.epoch)).collect();
        assert_eq!(counted(&db, log.release(&me, &result)).await, ((), 1));
        assert_eq!(counted(&db, log.leave(&me)).await, ((), 2));
        assert_eq!(counted(&db, log.set_status("p7", None, SubscriptionStatus::Paused)).await, (1, 1));
        assert_eq!(counted(&db, log.save(&me, &[])).await.1, 0);
    }
}
