//! Handlers with a transaction: their writes are committed together with the event's settlement, or
//! not at all.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use common::{Backend, Seen, TestDb, numbered};
use outbox::store::Status;
use outbox::{Backoff, Context, Error, Event, Failure, Outcome, RelayBuilder, Tx, TxHandler};

/// Result of the booking handler after it has written its row.
type HandlerResult = Arc<dyn Fn(&Context) -> Result<Outcome, Failure> + Send + Sync>;

/// Writes the event's number into a table, in the handler's transaction.
struct BookNumber<DB: Backend> {
    db: TestDb<DB>,
    seen: Seen,
    result: HandlerResult,
    /// A further statement to run.
    also: Option<&'static str>,
    /// Whether to write an event as well.
    writes_event: bool,
    /// Delay after that.
    time: Duration,
}

impl<DB: Backend> BookNumber<DB> {
    async fn new(db: &TestDb<DB>) -> Self {
        db.run("CREATE TABLE {t}_booked (number bigint NOT NULL)").await.unwrap();
        Self {
            db: db.another().await,
            seen: Seen::default(),
            result: Arc::new(|_| Ok(Outcome::Done)),
            also: None,
            writes_event: false,
            time: Duration::ZERO,
        }
    }

    fn returning(
        mut self,
        result: impl Fn(&Context) -> Result<Outcome, Failure> + Send + Sync + 'static,
    ) -> Self {
        self.result = Arc::new(result);
        self
    }
}

#[async_trait]
impl<DB: Backend> TxHandler<DB> for BookNumber<DB> {
    async fn handle(&self, cx: Context, tx: &mut Tx<'static, DB>) -> Result<Outcome, Failure> {
        self.seen.record(&cx);
        let number: u64 = cx.payload()?;
        let table = &self.db.table;
        DB::execute_sql(tx, &format!("INSERT INTO {table}_booked VALUES ({number})")).await?;
        if let Some(sql) = self.also {
            DB::execute_sql(tx, &sql.replace("{t}", table)).await?;
        }
        if self.writes_event {
            tx.write(numbered("written", number)).await?;
        }
        tokio::time::sleep(self.time).await;
        (self.result)(&cx)
    }
}

/// Records how many earlier events are not settled.
struct CountUnsettled {
    table: String,
    unsettled: Arc<std::sync::Mutex<Vec<i64>>>,
}

#[async_trait]
impl<DB: Backend> TxHandler<DB> for CountUnsettled {
    async fn handle(&self, cx: Context, tx: &mut Tx<'static, DB>) -> Result<Outcome, Failure> {
        let (table, id) = (&self.table, cx.id());
        let before = format!(
            "SELECT count(*) FROM {table} WHERE status <> 1 AND seq < (SELECT seq FROM {table} WHERE event_id = '{id}')"
        );
        let unsettled = DB::number(tx, &before).await;
        self.unsettled.lock().unwrap().push(unsettled);
        Ok(Outcome::Done)
    }
}

async fn booked<DB: Backend>(db: &TestDb<DB>) -> i64 {
    db.number("SELECT count(*) FROM {t}_booked").await
}

fn quick(builder: RelayBuilder) -> RelayBuilder {
    let soon = Backoff::default().base(Duration::from_millis(1)).max_attempts(3).no_jitter();
    builder.poll_interval(Duration::from_millis(50)).retry(soon)
}

on_every_database! {
    async fn a_handlers_writes_are_committed_with_its_event(|db|) {
        let book = BookNumber::new(&db).await;
        let seen = book.seen.clone();
        let relay = db.outbox.multi_node().tx_handler("__GLOBAL__", "n", book).start().await.unwrap();
        db.write("n", 0..50).await;
        seen.reach(50).await;
        relay.idle().await.unwrap();
        seen.assert_each_once(0..50);
        assert_eq!(booked(&db).await, 50);
        assert_eq!(db.status_counts().await, (0, 0, 50, 0));
        relay.stop().await.unwrap();
    }

    async fn a_single_node_commits_with_the_event_too(|db|) {
        let book = BookNumber::new(&db).await;
        let relay = db.outbox.single_node().tx_handler("__GLOBAL__", "n", book).start().await.unwrap();
        db.outbox.send_all((0..30).map(|n| numbered("n", n).ordering_key("k"))).await.unwrap();
        relay.idle().await.unwrap();
        assert_eq!(booked(&db).await, 30);
        assert_eq!(db.status_counts().await, (0, 0, 30, 0));
        relay.stop().await.unwrap();
    }

    /// Verdicts of plain handlers are batched. After a crash no later event of a key may be settled
    /// while an earlier one is not.
    async fn earlier_events_of_its_key_are_settled_first(|db|) {
        for relay in [db.outbox.multi_node(), db.outbox.single_node()] {
            let counter = CountUnsettled { table: db.table.clone(), unsettled: Arc::default() };
            let unsettled = counter.unsettled.clone();
            let relay = relay
                .tx_handler::<DB>("__GLOBAL__", "n", counter)
                .on_type("plain", async |_: Context| ())
                .settle_linger(Duration::from_millis(300))
                .start()
                .await
                .unwrap();
            let events = (0..20).map(|n| numbered(if n % 4 == 3 { "n" } else { "plain" }, n).ordering_key("k"));
            db.outbox.send_all(events).await.unwrap();
            relay.idle().await.unwrap();
            assert_eq!(*unsettled.lock().unwrap(), [0; 5]);
            relay.stop().await.unwrap();
        }
    }

    async fn only_done_is_committed(|db|) {
        let attempts = AtomicU32::new(0);
        let book = BookNumber::new(&db).await.returning(move |cx| match cx.payload::<u64>()? {
            0 => Err(Failure::retry("no luck")),
            1 => Ok(Outcome::Dead("never".to_owned())),
            2 => Err(Failure::dead("never")),
            3 => panic!("on purpose"),
            _ if attempts.fetch_add(1, Ordering::SeqCst) == 0 => Ok(Outcome::Snooze(Duration::from_millis(1))),
            _ => Ok(Outcome::Done),
        });
        let relay = db.outbox.multi_node().tx_handler("__GLOBAL__", "n", book);
        let relay = quick(relay).start().await.unwrap();
        db.write("n", 0..5).await;
        db.drained().await;
        assert_eq!(booked(&db).await, 1);
        assert_eq!(db.status_counts().await, (0, 0, 1, 4));
        relay.stop().await.unwrap();
    }

    async fn a_statement_that_fails_rolls_everything_back(|db|) {
        let mut book = BookNumber::new(&db).await;
        book.also = Some("INSERT INTO {t}_booked VALUES (NULL)");
        let relay = db.outbox.multi_node().tx_handler("__GLOBAL__", "n", book);
        let relay = quick(relay).start().await.unwrap();
        let ids = db.write("n", 0..1).await;
        db.drained().await;
        assert_eq!(booked(&db).await, 0);
        let dead = db.find(&ids[0]).await;
        assert_eq!((dead.status, dead.attempts), (Status::Dead, 3));
        relay.stop().await.unwrap();
    }

    /// A handler that has lost its event meanwhile has no effect.
    async fn a_handler_that_ends_too_late_is_rolled_back(|db|) {
        let mut book = BookNumber::new(&db).await;
        // Within the transaction, another node has claimed the event.
        book.also = Some("UPDATE {t} SET claims = claims + 1");
        let seen = book.seen.clone();
        let relay = db.outbox.multi_node().lease(Duration::from_millis(300));
        let relay = quick(relay.tx_handler("__GLOBAL__", "n", book)).start().await.unwrap();
        db.write("n", 0..1).await;
        seen.reach(2).await;
        relay.stop().await.unwrap();
        assert_eq!(booked(&db).await, 0);
        assert_eq!(db.status_counts().await.2, 0);
    }

    async fn events_written_in_the_transaction_are_committed_or_rolled_back_with_it(|db|) {
        let mut book = BookNumber::new(&db).await.returning(|cx| match cx.payload::<u64>()? {
            n if n % 2 == 0 => Ok(Outcome::Done),
            _ => Err(Failure::dead("odd")),
        });
        book.writes_event = true;
        let written = Seen::default();
        let relay = db.outbox.multi_node().tx_handler("__GLOBAL__", "n", book).on_type("written", written.handler());
        let relay = quick(relay).start().await.unwrap();
        db.write("n", 0..10).await;
        db.drained().await;
        let mut numbers = written.numbers();
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 2, 4, 6, 8]);
        relay.stop().await.unwrap();
    }

    async fn steps_settled_in_a_transaction_are_counted(|db|) {
        let book = BookNumber::new(&db).await;
        let then = Seen::default();
        let relay = db.outbox.multi_node().tx_handler("__GLOBAL__", "n", book).on_type("then", then.handler());
        let relay = relay.start().await.unwrap();
        let steps = (0..20).map(|n| numbered("n", n));
        db.outbox.fan_out(steps).then(Event::new("then").json(&7)).send().await.unwrap();
        then.reach(1).await;
        assert_eq!(booked(&db).await, 20);
        relay.idle().await.unwrap();
        assert_eq!(then.numbers(), [7]);
        relay.stop().await.unwrap();
    }

    /// The lease is renewed meanwhile, on another connection.
    async fn a_handler_may_take_longer_than_its_lease(|db|) {
        let mut book = BookNumber::new(&db).await;
        // A first read, from which on some isolation levels use an old snapshot.
        book.also = Some("SELECT count(*) FROM {t}");
        book.time = Duration::from_millis(900);
        let seen = book.seen.clone();
        let relay = db.outbox.multi_node().lease(Duration::from_millis(600)).no_hot_path();
        let relay = relay.tx_handler("__GLOBAL__", "n", book).start().await.unwrap();
        db.write("n", 0..1).await;
        db.drained().await;
        relay.stop().await.unwrap();
        assert_eq!(booked(&db).await, 1);
        assert_eq!(db.status_counts().await, (0, 0, 1, 0));
        assert_eq!(seen.count(), 1);
    }

    async fn a_key_stays_in_order(|db|) {
        let book = BookNumber::new(&db).await.returning(|cx| match cx.attempt() {
            1 if cx.payload::<u64>()? % 5 == 0 => Err(Failure::retry("first time")),
            _ => Ok(Outcome::Done),
        });
        let seen = book.seen.clone();
        let relay = db.outbox.ordered().tx_handler("__GLOBAL__", "n", book);
        let relay = quick(relay).start().await.unwrap();
        db.outbox.send_all((0..20).map(|n| numbered("n", n).ordering_key("k"))).await.unwrap();
        db.drained().await;
        let mut firsts = seen.numbers();
        firsts.dedup();
        assert_eq!(firsts, (0..20).collect::<Vec<_>>());
        assert_eq!(booked(&db).await, 20);
        relay.stop().await.unwrap();
    }
}

/// The start fails before anything runs.
#[tokio::test]
async fn a_handler_for_another_database_is_refused_at_start() {
    struct Nothing;
    #[async_trait]
    impl TxHandler<sqlx::Postgres> for Nothing {
        async fn handle(&self, _: Context, _: &mut Tx<'static, sqlx::Postgres>) -> Result<Outcome, Failure> {
            Ok(Outcome::Done)
        }
    }
    let db = TestDb::<sqlx::Sqlite>::new().await.unwrap();
    let error = db.outbox.multi_node().tx_handler("__GLOBAL__", "n", Nothing).start().await.unwrap_err();
    assert!(matches!(&error, Error::Setting { reason, .. } if reason.contains("PostgreSQL")), "{error}");
    let store = RelayBuilder::multi_node(db.outbox.store()).tx_handler("__GLOBAL__", "n", Nothing);
    assert!(matches!(store.start().await, Err(Error::Setting { .. })));
}

/// SQLite has one writer, and while the handler is that writer leadership cannot be renewed, and no
/// other node can take over either.
#[ignore = "takes 20 s: cargo test -p outbox --test tx_handlers -- --ignored"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_may_take_longer_than_leadership_lasts() {
    let db = TestDb::<sqlx::Sqlite>::new().await.unwrap();
    let mut book = BookNumber::new(&db).await;
    book.time = Duration::from_secs(17);
    let seen = book.seen.clone();
    let relay = db.outbox.single_node().tx_handler("__GLOBAL__", "n", book).start().await.unwrap();
    db.write("n", 0..1).await;
    common::in_time(db.drained()).await;
    assert_eq!(booked(&db).await, 1);
    // Lost verdicts would keep the relay from ever being idle.
    common::in_time(relay.idle()).await.unwrap();
    assert_eq!(seen.count(), 1);
    relay.stop().await.unwrap();
}
