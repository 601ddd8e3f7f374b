//! Writing: limits of events, and events that are committed or rolled back with their transaction.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Backend, Seen, TestDb, numbered, until};
use outbox::store::Status;
use outbox::{
    AggregateType, Context, DeadFilter, Error, Event, EventBuilder, EventError, EventId, EventType,
    HookError, Message, OutboxBuilder, Outgoing, Publisher as _, StatisticsPublisher, Unrouted, WriterHook,
    Written,
};
use serde::{Deserialize, Serialize};
use sqlx::Connection as _;

const MS: Duration = Duration::from_millis(1);

/// URL of a PostgreSQL database, with the table as the application name of its sessions.
fn named<DB: Backend>(db: &TestDb<DB>) -> String {
    format!("{}?application_name={}", db.url().split('?').next().unwrap(), db.table)
}

on_every_database! {
    async fn a_rollback_leaves_nothing(|db|) {
        db.run("CREATE TABLE {t}_orders (id integer)").await.unwrap();
        let relays = [db.outbox.single_node(), db.outbox.multi_node()];
        for relay in relays {
            let seen = Seen::default();
            let relay = relay.poll_interval(20 * MS).on_type("e", seen.handler()).start().await.unwrap();
            let insert = format!("INSERT INTO {}_orders (id) VALUES (1)", db.table);
            for dropped in [true, false] {
                let mut tx = db.outbox.begin().await.unwrap();
                DB::execute_sql(&mut tx, &insert).await.unwrap();
                let written = tx.write(numbered("e", 1)).await.unwrap();
                assert!(written.is_new());
                if dropped { drop(tx) } else { tx.rollback().await.unwrap() }
            }
            relay.idle().await.unwrap();
            assert_eq!(db.number("SELECT count(*) FROM {t}").await, 0);
            assert_eq!(db.number("SELECT count(*) FROM {t}_orders").await, 0);
            assert_eq!(seen.count(), 0);
            relay.stop().await.unwrap();
        }
    }

    async fn a_commit_keeps_the_change_and_the_event(|db|) {
        db.run("CREATE TABLE {t}_orders (id integer)").await.unwrap();
        let mut tx = db.outbox.begin().await.unwrap();
        DB::execute_sql(&mut tx, &format!("INSERT INTO {}_orders (id) VALUES (1)", db.table)).await.unwrap();
        let id = tx.write(numbered("e", 1)).await.unwrap().id;
        tx.commit().await.unwrap();
        assert_eq!(db.number("SELECT count(*) FROM {t}_orders").await, 1);
        let stored = db.find(&id).await;
        assert_eq!((stored.status, stored.attempts, stored.lease), (Status::New, 0, None));
    }

    /// Case 6: the hot path may deliver only events that the commit kept.
    async fn an_event_that_a_savepoint_rolled_back_is_not_delivered(|db|) {
        for relay in [db.outbox.single_node(), db.outbox.multi_node()] {
            let seen = Seen::default();
            let relay = relay.poll_interval(20 * MS).on_type("e", seen.handler()).start().await.unwrap();
            let mut tx = db.outbox.begin().await.unwrap();
            tx.write(numbered("e", 1)).await.unwrap();
            DB::execute_sql(&mut tx, "SAVEPOINT here").await.unwrap();
            tx.write(numbered("e", 2)).await.unwrap();
            DB::execute_sql(&mut tx, "ROLLBACK TO SAVEPOINT here").await.unwrap();
            tx.write(numbered("e", 3)).await.unwrap();
            tx.commit().await.unwrap();
            seen.reach(2).await;
            relay.idle().await.unwrap();
            let mut numbers = seen.numbers();
            numbers.sort_unstable();
            assert_eq!(numbers, [1, 3]);
            relay.stop().await.unwrap();
        }
    }

    /// Case 6, as in sqlx: a savepoint is a transaction in a transaction.
    async fn a_savepoint_that_was_committed_is_not_a_commit(|db|) {
        for relay in [db.outbox.single_node(), db.outbox.multi_node()] {
            let seen = Seen::default();
            let relay = relay.on_type("e", seen.handler()).poll_interval(20 * MS).start().await.unwrap();
            let mut outer = db.outbox.begin().await.unwrap();
            let mut inner = db.outbox.adopt(outer.begin().await.unwrap());
            let calls = Arc::new(Mutex::new(false));
            let record = calls.clone();
            inner.after_commit(move || *record.lock().unwrap() = true);
            inner.write(numbered("e", 1)).await.unwrap();
            inner.commit().await.unwrap();
            outer.rollback().await.unwrap();
            assert!(!*calls.lock().unwrap(), "called for a commit that did not happen");
            relay.idle().await.unwrap();
            assert_eq!(seen.count(), 0, "delivered without a commit");

            let mut outer = db.outbox.begin().await.unwrap();
            let mut inner = db.outbox.adopt(outer.begin().await.unwrap());
            inner.write(numbered("e", 2)).await.unwrap();
            inner.commit().await.unwrap();
            outer.commit().await.unwrap();
            seen.reach(1).await;
            relay.idle().await.unwrap();
            assert_eq!(seen.numbers(), [2]);
            relay.stop().await.unwrap();
        }
    }

    async fn a_write_that_fails_affects_no_other_write(|db|) {
        let seen = Seen::default();
        let relay = db.outbox.multi_node().on_type("e", seen.handler()).start().await.unwrap();
        let id = db.outbox.send(numbered("e", 1)).await.unwrap().id;
        relay.idle().await.unwrap();
        let again = db.outbox.send(numbered("e", 2).id(&id)).await;
        assert!(matches!(again, Err(Error::DuplicateId { .. })), "{again:?}");
        let twice = db.outbox.send_all([numbered("e", 3).id("same"), numbered("e", 4).id("same")]).await;
        assert!(matches!(twice, Err(Error::DuplicateId { .. })), "{twice:?}");
        db.outbox.send(numbered("e", 5)).await.unwrap();
        relay.idle().await.unwrap();
        assert_eq!(seen.numbers(), [1, 5]);
        relay.stop().await.unwrap();
    }

    async fn a_batch_is_written_in_its_order_however_long_it_is(|db|) {
        let ids = db.write("e", 0..2_500).await;
        assert_eq!(ids.len(), 2_500);
        let listed = db.outbox.admin().list(&Default::default(), 3_000).await.unwrap();
        let order: Vec<EventId> = listed.into_iter().map(|stored| stored.event.unwrap().id().clone()).collect();
        assert_eq!(order, ids);
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "ids rise");
        let none: Vec<Event> = Vec::new();
        assert!(db.outbox.send_all(none).await.unwrap().is_empty());
    }

    async fn one_invalid_event_rejects_its_whole_batch(|db|) {
        let bad = db.outbox.send_all([numbered("e", 1), numbered("", 2)]).await;
        assert!(matches!(bad, Err(Error::Event(EventError::Empty { field: "event type" }))), "{bad:?}");
        let mut tx = db.outbox.begin().await.unwrap();
        tx.write_all([numbered("e", 1), numbered("", 2)]).await.unwrap_err();
        tx.write(numbered("e", 3)).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(db.status_counts().await, (1, 0, 0, 0), "the transaction is usable after an error that did not reach the database");
    }

    async fn a_deduplication_key_is_written_once(|db|) {
        let seen = Seen::default();
        let relay = db.outbox.single_node().on_type("e", seen.handler()).start().await.unwrap();
        let first = db.outbox.send(numbered("e", 1).dedup_key("k")).await.unwrap();
        assert!(first.is_new());
        let again = db.outbox.send(numbered("e", 2).dedup_key("k")).await.unwrap();
        assert!(again.is_duplicate());
        assert_eq!(again.id, first.id);
        let written = db.outbox.send_all([
            numbered("e", 3).dedup_key("k"),
            numbered("e", 4).dedup_key("other"),
            numbered("e", 5),
            numbered("e", 6).dedup_key("other"),
        ]).await.unwrap();
        let outcomes: Vec<bool> = written.iter().map(Written::is_new).collect();
        assert_eq!(outcomes, [false, true, true, false]);
        assert_eq!((&written[0].id, &written[3].id), (&first.id, &written[1].id));
        relay.idle().await.unwrap();
        let mut numbers = seen.numbers();
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 4, 5]);
        let done = db.outbox.send(numbered("e", 7).dedup_key("k")).await.unwrap();
        assert_eq!((done.is_duplicate(), done.id), (true, first.id), "done, and still there");
        relay.stop().await.unwrap();
    }

    async fn callbacks_are_called_by_the_end_of_the_transaction(|db|) {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let record = |what: &'static str| {
            let calls = calls.clone();
            move || calls.lock().unwrap().push(what)
        };
        for end in ["commit", "rollback", "drop"] {
            let mut tx = db.outbox.begin().await.unwrap();
            tx.after_commit(record("committed"));
            tx.after_commit(|| panic!("logged, nothing else"));
            tx.after_rollback(record("rolled back"));
            tx.after_commit(record("committed, second"));
            tx.write(numbered("e", 1)).await.unwrap();
            match end {
                "commit" => tx.commit().await.unwrap(),
                "rollback" => tx.rollback().await.unwrap(),
                _ => drop(tx),
            }
        }
        assert_eq!(*calls.lock().unwrap(), ["committed", "committed, second", "rolled back", "rolled back"]);
        assert_eq!(db.status_counts().await.0, 1);
    }

    /// A compensation is needed most when the database fails.
    async fn callbacks_and_hooks_are_called_for_a_rollback_that_fails(|db|) {
        let (own, kill) = match db.url().split_once(':') {
            Some(("postgres", _)) => ("SELECT pg_backend_pid()::bigint", "SELECT pg_terminate_backend({}, 30000)"),
            Some(("mysql", _)) => ("SELECT CAST(connection_id() AS signed)", "KILL CONNECTION {}"),
            // SQLite has no server that could end a connection.
            _ => return,
        };
        let calls = Calls::default();
        let hook = RecordingHook { calls: calls.clone(), change: Ok, panics: false };
        let outbox = db.another_with(|builder| builder.hook(hook)).await.outbox;
        let mut tx = outbox.begin().await.unwrap();
        let callback = calls.clone();
        tx.after_rollback(move || callback.lock().unwrap().push("callback".to_owned()));
        tx.after_commit(|| panic!("it was not committed"));
        tx.write(numbered("e", 1)).await.unwrap();
        let connection = DB::number(&mut tx, own).await;
        db.run(&kill.replace("{}", &connection.to_string())).await.unwrap();
        tx.rollback().await.unwrap_err();
        assert_eq!(calls.lock().unwrap()[2..], ["after_rollback 1", "callback"]);
        assert_eq!(db.status_counts().await.0, 0);
    }

    async fn a_transaction_begun_elsewhere_is_adopted(|db|) {
        let seen = Seen::default();
        let relay = db.outbox.single_node().skip_recent(Duration::from_secs(3_600))
            .on_type("e", seen.handler()).start().await.unwrap();
        let mut tx = db.outbox.adopt(db.outbox.pool().begin().await.unwrap());
        tx.write(numbered("e", 1)).await.unwrap();
        tx.commit().await.unwrap();
        seen.reach(1).await;
        relay.stop().await.unwrap();
    }

    /// The outbox does not see the commit, so the hot path is not used.
    async fn a_receipt_wakes_the_relay_when_the_commit_is_confirmed(|db|) {
        let seen = Seen::default();
        let relay = db.outbox.multi_node().poll_interval(Duration::from_secs(3_600))
            .on_type("e", seen.handler()).start().await.unwrap();
        relay.idle().await.unwrap();
        let mut tx = db.outbox.pool().begin().await.unwrap();
        let mut bound = db.outbox.bind(&mut tx);
        let written = bound.write_all([numbered("e", 1), numbered("e", 2)]).await.unwrap();
        let receipt = bound.finish();
        assert!(receipt.written().eq(&written) && written.iter().all(Written::is_new));
        tx.commit().await.unwrap();
        receipt.committed();
        seen.reach(2).await;

        let mut tx = db.outbox.pool().begin().await.unwrap();
        let mut bound = db.outbox.bind(&mut tx);
        bound.write(numbered("e", 3)).await.unwrap();
        let receipt = bound.finish();
        tx.rollback().await.unwrap();
        receipt.rolled_back();
        relay.idle().await.unwrap();
        assert_eq!(seen.count(), 2);
        relay.stop().await.unwrap();
    }

    async fn every_field_is_stored_and_read_back(|db|) {
        let now = chrono::DateTime::from_timestamp_millis(chrono::Utc::now().timestamp_millis()).unwrap();
        let event = Event::new("order.placed").id("own-id").aggregate("order", "42").tenant("acme")
            .ordering_key("k").correlation("c").dedup_key("d").header("a", "1").headers([("b", "2"), ("a", "3")])
            .json_text("[1,  2]").occurred_at(now).available_at(now + chrono::Duration::seconds(60))
            .expires_at(now + chrono::Duration::seconds(90)).build().unwrap();
        db.outbox.send(event.clone()).await.unwrap();
        let stored = db.find(event.id()).await.event.unwrap();
        assert_eq!(stored, event);
        assert_eq!(stored.headers().len(), 2);
        assert_eq!(stored.header("a"), Some("3"));
        assert!(stored.is_delayed());
    }

    /// The maximum length of each field, in characters of four bytes.
    async fn the_database_accepts_what_the_builder_allows(|db|) {
        let long = |n: usize| "\u{1F980}".repeat(n);
        let event = Event::new(long(255)).id(long(36)).aggregate(long(64), long(128)).tenant(long(64))
            .ordering_key(long(255)).correlation(long(255)).dedup_key(long(255)).header(long(255), long(2_000))
            .bytes(long(255), vec![0xff; 1_048_576]).build().unwrap();
        db.outbox.send(event.clone()).await.unwrap();
        let stored = db.find(event.id()).await.event.unwrap();
        assert_eq!(stored.payload_bytes(), event.payload_bytes());
        assert_eq!((stored.event_type(), stored.headers()), (event.event_type(), event.headers()));
        assert_eq!((stored.tenant_id(), stored.ordering_key()), (event.tenant_id(), event.ordering_key()));
    }

    /// The limit is a setting: the databases accept far more than its default.
    async fn a_payload_may_be_as_large_as_the_outbox_allows(|db|) {
        let large = db.another_with(|builder| builder.max_payload(8 << 20)).await;
        let (bytes, text) = (vec![0xfe; 6 << 20], "ü".repeat(3 << 20));
        large.outbox.send(Event::new("e").bytes("a/b", bytes.clone())).await.unwrap();
        large.outbox.send(Event::new("e").json(&text)).await.unwrap();
        let items = large.outbox.queue().claim(&"a".into(), Duration::from_secs(30), 10).await.unwrap();
        assert_eq!(items.len(), 2);
        assert!(items[0].payload_bytes() == bytes, "the bytes changed");
        assert!(items[1].payload::<String>().unwrap() == text, "the text changed");
    }

    /// Without a relay, nothing happens after the commit: a poller of another process or CDC
    /// delivers.
    async fn without_a_relay_an_event_waits(|db|) {
        let id = db.outbox.send(numbered("e", 1)).await.unwrap().id;
        let stored = db.find(&id).await;
        assert_eq!((stored.status, stored.lease), (Status::New, None));
    }

    /// A connection is kept for the next transaction for a moment, and no longer than that from
    /// other users of the pool.
    async fn connections_of_transactions_return_to_the_pool(|db|) {
        let db = db.another_with(|builder| builder.max_connections(4)).await;
        let pool = db.outbox.pool();
        for n in 0..20 {
            let begun = (0..pool.options().get_max_connections()).map(|_| db.outbox.begin());
            for tx in futures_util::future::join_all(begun).await {
                let mut tx = tx.unwrap();
                tx.write(numbered("e", n)).await.unwrap();
                if n % 2 == 0 { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
            }
            let acquired = (0..pool.options().get_max_connections()).map(|_| pool.acquire());
            assert!(futures_util::future::join_all(acquired).await.iter().all(Result::is_ok));
        }
        db.outbox.close().await;
        assert_eq!(pool.size(), 0);
    }

    /// Changes of a transaction that is dropped or cancelled do not reappear with its connection.
    async fn the_next_transaction_contains_no_changes_of_a_dropped_one(|db|) {
        let db = db.another_with(|builder| builder.max_connections(2)).await;
        for n in 0..30 {
            let mut tx = db.outbox.begin().await.unwrap();
            tx.write(numbered("e", n)).await.unwrap();
            match n % 3 {
                0 => drop(tx),
                1 => drop(tokio::time::timeout(Duration::ZERO, tx.rollback()).await),
                _ => tx.commit().await.unwrap(),
            }
        }
        let count = "SELECT count(*) FROM {t}";
        assert_eq!(db.number(count).await, 10);
    }

    /// A `begin` that is dropped at any point must leave no transaction open.
    async fn a_cancelled_begin_leaves_no_transaction_open(|db|) {
        let is_postgres = db.url().starts_with("postgres");
        let url = if is_postgres { named(&db) } else { db.url().to_owned() };
        let outbox = DB::open(OutboxBuilder::new().table(&db.table).max_connections(4), &url).await.unwrap();
        for delay in 0..200u32 {
            let begin = std::pin::pin!(outbox.begin());
            let _ = tokio::time::timeout(Duration::from_micros(u64::from(delay) * 5), begin).await;
        }
        // All connections are usable, none is inside a transaction.
        outbox.send(numbered("e", 1)).await.unwrap();
        let other = db.another().await;
        other.outbox.send(numbered("e", 2)).await.unwrap();
        assert_eq!(other.status_counts().await.0, 2, "the events are committed and visible to others");
        let open = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' \
                    AND application_name = '{t}'";
        // A pool takes connections back in a separate task.
        until("no transaction is open", async || !is_postgres || db.number(open).await == 0).await;
    }
}

/// PostgreSQL answers COMMIT with ROLLBACK, and no error, when a statement has failed before.
#[tokio::test]
async fn a_commit_that_was_a_rollback_is_an_error() {
    let Some(db) = TestDb::<sqlx::Postgres>::new().await else { return };
    let seen = Seen::default();
    let relay =
        db.outbox.multi_node().poll_interval(20 * MS).on_type("e", seen.handler()).start().await.unwrap();
    for failure in ["after the write", "before the write", "in the write"] {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let (yes, no) = (calls.clone(), calls.clone());
        let mut tx = db.outbox.begin().await.unwrap();
        tx.after_commit(move || yes.lock().unwrap().push("committed"));
        tx.after_rollback(move || no.lock().unwrap().push("rolled back"));
        if failure == "before the write" {
            sqlx::query("SELECT 1/0").execute(&mut *tx).await.unwrap_err();
        }
        let id = if failure == "in the write" { "x".repeat(36) } else { EventId::generate().to_string() };
        let written = tx.write(numbered("e", 1).id(id.clone())).await;
        assert_eq!(written.is_ok(), failure != "before the write", "{written:?}");
        if failure == "after the write" {
            sqlx::query("SELECT 1/0").execute(&mut *tx).await.unwrap_err();
        }
        if failure == "in the write" {
            tx.write(numbered("e", 2).id(id)).await.unwrap_err();
        }
        let committed = tx.commit().await;
        assert!(committed.is_err(), "a failure {failure} went unnoticed");
        assert_eq!(*calls.lock().unwrap(), ["rolled back"], "{failure}");
    }
    relay.idle().await.unwrap();
    assert_eq!(seen.count(), 0);
    assert_eq!(db.status_counts().await, (0, 0, 0, 0));
    relay.stop().await.unwrap();
}

/// The same without any event: callbacks for a commit must not be called either.
#[tokio::test]
async fn commit_callbacks_are_not_called_for_a_commit_that_was_a_rollback() {
    let Some(db) = TestDb::<sqlx::Postgres>::new().await else { return };
    let calls = Arc::new(Mutex::new(Vec::new()));
    let (yes, no) = (calls.clone(), calls.clone());
    let mut tx = db.outbox.begin().await.unwrap();
    tx.after_commit(move || yes.lock().unwrap().push("committed"));
    tx.after_rollback(move || no.lock().unwrap().push("rolled back"));
    sqlx::query("SELECT 1/0").execute(&mut *tx).await.unwrap_err();
    tx.commit().await.unwrap_err();
    assert_eq!(*calls.lock().unwrap(), ["rolled back"]);
}

/// A constraint that is checked at the commit refuses the whole transaction.
#[tokio::test]
async fn a_commit_that_the_database_refuses_is_a_rollback() {
    let db = TestDb::<sqlx::Sqlite>::new().await.unwrap();
    let seen = Seen::default();
    let relay = db.outbox.single_node().on_type("e", seen.handler()).start().await.unwrap();
    db.run("CREATE TABLE parent (id integer PRIMARY KEY)").await.unwrap();
    db.run("CREATE TABLE child (p integer REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")
        .await
        .unwrap();
    let rolled_back = Arc::new(Mutex::new(false));
    let record = rolled_back.clone();
    let mut tx = db.outbox.begin().await.unwrap();
    tx.after_rollback(move || *record.lock().unwrap() = true);
    tx.after_commit(|| panic!("it was not committed"));
    sqlx::query("INSERT INTO child (p) VALUES (7)").execute(&mut *tx).await.unwrap();
    tx.write(numbered("e", 1)).await.unwrap();
    assert!(matches!(tx.commit().await, Err(Error::Database(_))));
    assert!(*rolled_back.lock().unwrap());
    relay.idle().await.unwrap();
    assert_eq!((seen.count(), db.status_counts().await), (0, (0, 0, 0, 0)));
    relay.stop().await.unwrap();
}

/// A hook that records its calls, and changes events by a function.
struct RecordingHook {
    calls: Arc<Mutex<Vec<String>>>,
    change: Change,
    panics: bool,
}

impl RecordingHook {
    fn record(&self, when: &str, events: &[Event]) {
        self.calls.lock().unwrap().push(format!("{when} {}", events.len()));
        assert!(!self.panics, "a hook that panics");
    }
}

impl WriterHook for RecordingHook {
    fn before_write(&self, events: Vec<Event>) -> Result<Vec<Event>, HookError> {
        self.calls.lock().unwrap().push(format!("before_write {}", events.len()));
        (self.change)(events)
    }

    fn after_write(&self, events: &[Event]) {
        self.record("after_write", events);
    }

    fn after_commit(&self, events: &[Event]) {
        self.record("after_commit", events);
    }

    fn after_rollback(&self, events: &[Event]) {
        self.record("after_rollback", events);
    }
}

type Calls = Arc<Mutex<Vec<String>>>;
type Change = fn(Vec<Event>) -> Result<Vec<Event>, HookError>;

async fn with_hook(change: Change, panics: bool) -> (TestDb<sqlx::Sqlite>, Calls) {
    let calls = Calls::default();
    let hook = RecordingHook { calls: calls.clone(), change, panics };
    (TestDb::with(|builder| builder.hook(hook)).await.unwrap(), calls)
}

#[tokio::test]
async fn a_hook_sees_each_batch_once() {
    for panics in [false, true] {
        let (db, calls) = with_hook(Ok, panics).await;
        let mut tx = db.outbox.begin().await.unwrap();
        tx.write_all([numbered("e", 1), numbered("e", 2)]).await.unwrap();
        tx.write(numbered("e", 3)).await.unwrap();
        tx.commit().await.unwrap();
        let mut tx = db.outbox.begin().await.unwrap();
        tx.write(numbered("e", 4)).await.unwrap();
        drop(tx);
        let expected = [
            "before_write 2",
            "after_write 2",
            "before_write 1",
            "after_write 1",
            "after_commit 2",
            "after_commit 1",
            "before_write 1",
            "after_write 1",
            "after_rollback 1",
        ];
        assert_eq!(*calls.lock().unwrap(), expected);
        assert_eq!(db.status_counts().await.0, 3, "a panic in a hook changes nothing");
    }
}

#[tokio::test]
async fn a_hook_changes_suppresses_and_refuses() {
    #[expect(clippy::needless_pass_by_value, reason = "what a hook is")]
    fn upper(events: Vec<Event>) -> Result<Vec<Event>, HookError> {
        let changed = events.iter().map(|event| {
            Event::new(event.event_type().as_str().to_uppercase())
                .json_text(String::from_utf8_lossy(event.payload_bytes()))
        });
        changed.map(|event| Ok(event.build()?)).collect()
    }
    let (db, _) = with_hook(upper, false).await;
    let id = db.outbox.send(numbered("e", 1)).await.unwrap().id;
    assert_eq!(db.find(&id).await.event.unwrap().event_type(), "E");

    let (db, calls) = with_hook(|_| Ok(Vec::new()), false).await;
    let event = numbered("e", 1).build().unwrap();
    let suppressed = db.outbox.send(event.clone()).await.unwrap();
    assert!(suppressed.is_suppressed() && !suppressed.is_new() && !suppressed.is_duplicate());
    assert_eq!(suppressed.id(), event.id());
    assert!(db.outbox.send_all([numbered("e", 1), numbered("e", 2)]).await.unwrap().is_empty());
    assert_eq!(
        *calls.lock().unwrap(),
        ["before_write 1", "before_write 2"],
        "nothing was written, so no other hook is called"
    );
    assert_eq!(db.status_counts().await, (0, 0, 0, 0));

    let changes: [(Change, &str); 2] =
        [(|_| Err("not allowed".into()), "not allowed"), (|_| panic!("boom"), "it panicked")];
    for (change, reason) in changes {
        let (db, _) = with_hook(change, false).await;
        let mut tx = db.outbox.begin().await.unwrap();
        let written = tx.write(numbered("e", 1)).await;
        assert!(matches!(&written, Err(Error::Hook(error)) if error.to_string() == reason), "{written:?}");
        tx.commit().await.unwrap();
        assert_eq!(db.status_counts().await, (0, 0, 0, 0));
    }
}

#[tokio::test]
async fn hooks_run_in_the_order_they_were_added() {
    fn tag(name: &'static str) -> impl WriterHook {
        struct Tag(&'static str);
        impl WriterHook for Tag {
            fn before_write(&self, events: Vec<Event>) -> Result<Vec<Event>, HookError> {
                let longer =
                    |e: &Event| Event::new(format!("{}{}", e.event_type(), self.0)).json(&1).build().unwrap();
                Ok(events.iter().map(longer).collect())
            }
        }
        Tag(name)
    }
    let db = TestDb::<sqlx::Sqlite>::with(|b| b.hook(tag(".a")).hook(tag(".b"))).await.unwrap();
    let id = db.outbox.send(numbered("e", 1)).await.unwrap().id;
    assert_eq!(db.find(&id).await.event.unwrap().event_type(), "e.a.b");
}

/// On MySQL and MariaDB a connection can set its own time, which distinguishes the database's clock
/// from the process's.
#[tokio::test]
async fn an_event_is_stored_by_the_databases_clock() {
    let Some(db) = TestDb::<sqlx::MySql>::new().await else { return };
    let mut tx = db.outbox.begin().await.unwrap();
    sqlx::MySql::execute_sql(&mut tx, "SET timestamp = 1000000000").await.unwrap();
    let event = numbered("e", 1).deliver_after(Duration::from_secs(60));
    let id = tx.write(event).await.unwrap().id;
    sqlx::MySql::execute_sql(&mut tx, "SET timestamp = DEFAULT").await.unwrap();
    tx.commit().await.unwrap();
    let stored = db.find(&id).await;
    assert_eq!(stored.created_at.timestamp(), 1_000_000_000);
    assert_eq!(stored.available_at.timestamp(), 1_000_000_060);
}

/// PostgreSQL finds the time function by the search path, so a function of the same name
/// distinguishes the database's clock from the process's.
#[tokio::test]
async fn an_event_is_stored_by_the_clock_of_postgres() {
    let Some(db) = TestDb::<sqlx::Postgres>::new().await else { return };
    let shifted = "CREATE SCHEMA {t}; CREATE FUNCTION {t}.statement_timestamp() RETURNS timestamptz \
                   LANGUAGE sql AS $$ SELECT '2001-09-09T01:46:40Z'::timestamptz $$";
    db.run(shifted).await.unwrap();
    let mut tx = db.outbox.begin().await.unwrap();
    let path = format!("SET LOCAL search_path = {}, pg_catalog, public", db.table);
    sqlx::Postgres::execute_sql(&mut tx, &path).await.unwrap();
    let event = numbered("e", 1).deliver_after(Duration::from_secs(60));
    let id = tx.write(event).await.unwrap().id;
    tx.commit().await.unwrap();
    let stored = db.find(&id).await;
    assert_eq!(stored.created_at.timestamp(), 1_000_000_000);
    assert_eq!(stored.available_at.timestamp(), 1_000_000_060);
}

#[test]
fn a_builder_reports_what_is_wrong() {
    let good = || Event::new("e").json(&1);
    let long = |n: usize| "x".repeat(n + 1);
    let now = chrono::Utc::now();
    let hour = chrono::Duration::hours(1);
    let empty = |field| EventError::Empty { field };
    let too_long = |field, limit| EventError::TooLong { field, length: limit + 1, limit };
    let control = |field, character| EventError::Control { field, character };
    let cases: Vec<(EventBuilder, EventError)> = vec![
        (Event::new("").json(&1), empty("event type")),
        (Event::new(long(255)).json(&1), too_long("event type", 255)),
        (Event::new("a\0b").json(&1), control("event type", '\0')),
        (good().id(""), empty("event id")),
        (good().id(long(36)), too_long("event id", 36)),
        (good().aggregate("", "1"), empty("aggregate type")),
        (good().aggregate(long(64), "1"), too_long("aggregate type", 64)),
        (good().aggregate("a", ""), empty("aggregate id")),
        (good().aggregate("a", long(128)), too_long("aggregate id", 128)),
        (good().tenant(""), empty("tenant id")),
        (good().tenant(long(64)), too_long("tenant id", 64)),
        (good().ordering_key(""), empty("ordering key")),
        (good().ordering_key(long(255)), too_long("ordering key", 255)),
        (good().ordering_key("a\nb"), control("ordering key", '\n')),
        (good().correlation(long(255)), too_long("correlation id", 255)),
        (good().dedup_key(""), empty("dedup key")),
        (good().dedup_key(long(255)), too_long("dedup key", 255)),
        (good().header("", "v"), empty("header name")),
        (good().header(long(255), "v"), too_long("header name", 255)),
        (good().header("n", "a\r\nX: y"), control("header value", '\r')),
        (Event::new("e"), EventError::NoPayload),
        (good().json(&2), EventError::TwoPayloads),
        (good().bytes("text/plain", "2"), EventError::TwoPayloads),
        (Event::new("e").bytes("text/plain", "2").json(&1), EventError::TwoPayloads),
        (Event::new("e").bytes("", "2"), empty("content type")),
        (good().max_payload(0), EventError::PayloadTooLarge { size: 1, limit: 0 }),
        (
            Event::new("e").bytes("a/b", vec![0; 1_048_577]),
            EventError::PayloadTooLarge { size: 1_048_577, limit: 1_048_576 },
        ),
        (good().available_at(now + hour).deliver_after(MS), EventError::TwoDelays),
        (good().deliver_after(Duration::ZERO), EventError::ZeroDelay),
        (good().occurred_at(now).available_at(now - hour), EventError::AvailableBeforeOccurred),
        (good().occurred_at(now).expires_at(now), EventError::ExpiresTooEarly),
        (
            good().occurred_at(now).available_at(now + hour).expires_at(now + hour),
            EventError::ExpiresTooEarly,
        ),
        (good().deliver_after(Duration::MAX), EventError::TimeOutOfRange { field: "deliver_after" }),
        (
            good().occurred_at(chrono::DateTime::<chrono::Utc>::MIN_UTC),
            EventError::TimeOutOfRange { field: "occurred_at" },
        ),
        (
            good().available_at(chrono::DateTime::<chrono::Utc>::MAX_UTC),
            EventError::TimeOutOfRange { field: "available_at" },
        ),
        (
            good().expires_at(chrono::DateTime::<chrono::Utc>::MAX_UTC),
            EventError::TimeOutOfRange { field: "expires_at" },
        ),
    ];
    for (builder, expected) in cases {
        assert_eq!(builder.build().unwrap_err(), expected);
    }
    assert_eq!(Event::new("e").bytes("text/plain", "").build().unwrap().payload_bytes(), b"");
    assert_eq!(good().ordering_key("x".repeat(255)).build().unwrap().ordering_key().unwrap().len(), 255);
}

/// Only a caller that sets `occurred_at` can contradict itself.
#[test]
fn a_due_time_in_the_past_is_at_once_unless_occurred_at_was_set() {
    let now = chrono::Utc::now();
    let hour = chrono::Duration::hours(1);
    let due = |at| Event::new("e").json(&1).available_at(at);
    for at in [now, now - hour] {
        let event = due(at).build().unwrap();
        assert!(!event.is_delayed());
        assert_eq!(event.available_at(), Some(at));
    }
    assert!(due(now - hour).expires_at(now + hour).build().is_ok());
    let expired = due(now - hour).expires_at(now - hour / 2).build();
    assert_eq!(expired.unwrap_err(), EventError::ExpiresTooEarly);
    let both = due(now - hour).occurred_at(now).build();
    assert_eq!(both.unwrap_err(), EventError::AvailableBeforeOccurred);
    assert!(due(now - hour).occurred_at(now - hour).build().is_ok());
}

#[test]
fn invalid_json_is_refused() {
    for text in ["", "{", "{'a': 1}", "[1,]", "\"a\0b\"", "\"\\ud800\"", "\"\\udc00\\ud800\"", "1 2", "nul"] {
        let error = Event::new("e").json_text(text).build().unwrap_err();
        assert!(matches!(error, EventError::NotJson { .. }), "{text:?}: {error}");
    }
    for text in ["null", " 1 ", "\"\\u0000\"", "\"\\ud83d\\ude00\"", "\"\\\\ud800\"", "{\"a\":1,\"a\":2}"] {
        assert_eq!(Event::new("e").json_text(text).build().unwrap().payload_bytes(), text.as_bytes());
    }
    let not_a_map_key = std::collections::HashMap::from([(vec![1u8], 1)]);
    assert!(matches!(Event::new("e").json(&not_a_map_key).build(), Err(EventError::NotJson { .. })));
}

#[test]
fn defaults_are_as_documented() {
    let before = chrono::Utc::now();
    let event = Event::new("e").json(&1).build().unwrap();
    assert_eq!(event.id().as_str().len(), 26);
    assert_eq!(event.aggregate_type(), "__GLOBAL__");
    assert!(event.headers().is_empty() && event.tenant_id().is_none() && !event.is_delayed());
    assert!(event.occurred_at() >= before && event.occurred_at() <= chrono::Utc::now());
    let ids: Vec<EventId> = (0..10_000).map(|_| EventId::generate()).collect();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
}

#[test]
fn an_empty_correlation_id_is_none() {
    let event = Event::new("e").correlation("").json(&1).build().unwrap();
    assert_eq!(event.correlation_id(), None);
}

#[derive(Serialize, Deserialize)]
struct Placed {
    order: u64,
}

impl Message for Placed {
    const TYPE: &'static str = "order.placed";
    const AGGREGATE_TYPE: &'static str = "order";

    fn describe(&self, event: EventBuilder) -> EventBuilder {
        event.aggregate("order", self.order.to_string()).deliver_after(Duration::from_secs(5))
    }
}

enum Kind {
    Order,
}

impl From<Kind> for AggregateType {
    fn from(_: Kind) -> Self {
        AggregateType::from_static("order")
    }
}

#[tokio::test]
async fn messages_and_enums_are_events_and_types() {
    let db = TestDb::<sqlx::Sqlite>::new().await.unwrap();
    let id = db.outbox.send(Placed { order: 7 }).await.unwrap().id;
    let event = db.find(&id).await.event.unwrap();
    assert_eq!((event.event_type().as_str(), event.aggregate_type().as_str()), ("order.placed", "order"));
    assert_eq!((event.aggregate_id(), event.payload::<Placed>().unwrap().order), (Some("7"), 7));
    assert!(event.is_delayed());
    const SHIPPED: EventType = EventType::from_static("order.shipped");
    let event = Event::new(&SHIPPED).aggregate(Kind::Order, "7").json(&()).build().unwrap();
    assert_eq!((event.event_type().as_str(), event.aggregate_type().as_str()), ("order.shipped", "order"));
}

#[derive(Clone, Copy)]
enum Step {
    Paid,
}

impl From<Step> for EventType {
    fn from(_: Step) -> Self {
        EventType::from_static("order.paid")
    }
}

/// Filters, assertions and statistics accept the types that events are written with.
#[tokio::test]
async fn enums_are_accepted_wherever_a_type_is() {
    let db = TestDb::<sqlx::Sqlite>::new().await.unwrap();
    let relay = db
        .outbox
        .single_node()
        .unrouted(Unrouted::Dead)
        .on_type("other", async |_: Context| {})
        .start()
        .await
        .unwrap();
    for _ in 0..2 {
        db.outbox.send(Event::new(Step::Paid).aggregate(Kind::Order, "7").json(&())).await.unwrap();
    }
    db.outbox.send(Event::new("order.sent").aggregate(Kind::Order, "7").json(&())).await.unwrap();
    relay.idle().await.unwrap();
    relay.stop().await.unwrap();
    let admin = db.outbox.admin();
    let count = async |filter: DeadFilter| admin.dead(&filter, 10).await.unwrap().len();
    assert_eq!(count(DeadFilter::default().event_type(Step::Paid)).await, 2);
    assert_eq!(count(DeadFilter::default().aggregate_type(Kind::Order)).await, 3);
    assert_eq!(count(DeadFilter::default().event_type("order.sent").aggregate_type("order")).await, 1);
    let written = outbox::testing::written(&db.outbox).await;
    written.count(Step::Paid, 2);
    assert_eq!(written.of_type(Step::Paid).len(), 2);
    let statistics = StatisticsPublisher::new();
    let event = Event::new(Step::Paid).json(&()).build().unwrap();
    statistics.publish_batch(&[Outgoing::new(event)]).await.unwrap();
    assert_eq!(statistics.statistics().of(Step::Paid), 1);
}

/// Failed assertions on written events name the events that were found.
#[tokio::test]
async fn an_assertion_that_fails_names_what_was_written() {
    let db = TestDb::<sqlx::Sqlite>::new().await.unwrap();
    db.outbox.send_all([numbered("paid", 1), numbered("paid", 2), numbered("sent", 3)]).await.unwrap();
    let written = outbox::testing::written(&db.outbox).await;
    assert_eq!(written.one("sent").payload::<u64>().unwrap(), 3);
    written.none("lost");
    type Assertion = fn(&outbox::testing::WrittenEvents);
    let failing: [(Assertion, &str); 4] = [
        (|written| _ = written.one("paid"), "expected 1 of \"paid\""),
        (|written| _ = written.one("lost"), "expected 1 of \"lost\""),
        (|written| written.none("sent"), "expected 0 of \"sent\""),
        (|written| written.count("paid", 3), "expected 3 of \"paid\""),
    ];
    for (assertion, message) in failing {
        let panic =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| assertion(&written))).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains(message) && text.contains(r#"["paid", "paid", "sent"]"#), "{text}");
    }
}

#[tokio::test]
async fn an_outbox_has_its_own_limit_for_payloads() {
    let db = TestDb::<sqlx::Sqlite>::with(|b| b.max_payload(10)).await.unwrap();
    let too_large = |size| Error::Event(EventError::PayloadTooLarge { size, limit: 10 }).to_string();
    let text = "x".repeat(9);
    assert_eq!(db.outbox.send(Event::new("e").json(&text)).await.unwrap_err().to_string(), too_large(11));
    let built = Event::new("e").json(&text).build().unwrap();
    assert_eq!(db.outbox.send(built).await.unwrap_err().to_string(), too_large(11));
    assert!(db.outbox.send(Event::new("e").json(&text).max_payload(11)).await.is_ok(), "set for this event");
    assert!(db.outbox.send(db.outbox.event("e").json("12345678")).await.is_ok());
    assert_eq!(db.status_counts().await.0, 2);
}

#[tokio::test]
async fn an_invalid_name_or_url_is_an_error_that_names_it() {
    for name in ["", "1st", "drop table", "a-b", "a;b", "a\"b", &"x".repeat(60)] {
        let opened = OutboxBuilder::new().table(name).sqlite(":memory:").await;
        let Err(Error::Identifier { name: named }) = opened else { panic!("{name:?}: {opened:?}") };
        assert_eq!(named, name);
    }
    let opened = OutboxBuilder::new().postgres("postgers://me:s3cret@localhost/shop").await;
    let Err(error @ Error::Url { .. }) = opened else { panic!("{opened:?}") };
    let text = error.to_string();
    assert!(text.contains("postgers") && !text.contains("s3cret"), "{text}");
    let opened = OutboxBuilder::new().mysql("postgres://localhost/shop").await;
    assert!(matches!(opened, Err(Error::Url { .. })), "{opened:?}");
    let opened = outbox::open_store("nonsense", &Default::default()).await;
    assert!(matches!(opened, Err(Error::Url { .. })), "{opened:?}");
    let opened = OutboxBuilder::new().sqlite("/no/such/directory/outbox.db").await;
    assert!(opened.is_err());
}

/// A handler writes to the outbox of its own relay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_may_write_events() {
    let db = TestDb::<sqlx::Sqlite>::new().await.unwrap();
    let seen = Seen::default();
    let outbox = db.outbox.clone();
    let relay =
        db.outbox.single_node().on_type("second", seen.handler()).on_type("first", move |cx: Context| {
            let outbox = outbox.clone();
            async move {
                outbox
                    .send(numbered("second", cx.payload::<u64>()?))
                    .await
                    .map(|_| ())
                    .map_err(outbox::Failure::retry)
            }
        });
    let relay = relay.start().await.unwrap();
    db.write("first", 0..50).await;
    seen.reach(50).await;
    relay.idle().await.unwrap();
    seen.assert_each_once(0..50);
    relay.stop().await.unwrap();
}

/// The server ended the connections, a moment after they were used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_begins_although_connections_just_broke() {
    let Some(db) = TestDb::<sqlx::Postgres>::new().await else { return };
    let outbox =
        OutboxBuilder::new().table(&db.table).max_connections(8).postgres(&named(&db)).await.unwrap();
    for n in 0..10 {
        let begun = futures_util::future::join_all((0..8).map(|_| outbox.begin())).await;
        for tx in begun {
            tx.unwrap().commit().await.unwrap();
        }
        let terminate = format!(
            "SELECT count(pg_terminate_backend(pid, 30000)) FROM pg_stat_activity WHERE application_name = '{}'",
            db.table
        );
        assert!(db.number(&terminate).await >= 1);
        let mut tx = outbox.begin().await.unwrap();
        tx.write(numbered("e", n)).await.unwrap();
        tx.commit().await.unwrap();
    }
    assert_eq!(db.number("SELECT count(*) FROM {t}").await, 10);
}

/// A pool takes connections back in a separate task.
#[test]
fn an_outbox_may_be_dropped_outside_of_a_runtime() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let db = runtime.block_on(async {
        let db = TestDb::<sqlx::Postgres>::new().await?;
        db.outbox.begin().await.unwrap().commit().await.unwrap();
        Some(db)
    });
    drop(runtime);
    drop(db);
}
