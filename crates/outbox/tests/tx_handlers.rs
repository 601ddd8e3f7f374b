//! Handlers that get a transaction: what they write takes effect together with the event being done, or not at all.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use common::{Backend, Seen, TestDb, numbered};
use outbox::store::Status;
use outbox::{Backoff, Cx, Error, Event, Failure, Outcome, RelayBuilder, Tx, TxHandler};

/// What the booking handler does after it has written its row.
type Say = Arc<dyn Fn(&Cx) -> Result<Outcome, Failure> + Send + Sync>;

/// Writes the event's number into a table, in the transaction that it is given.
struct Book<DB: Backend> {
    db: TestDb<DB>,
    seen: Seen,
    say: Say,
    /// A statement to run as well.
    also: Option<&'static str>,
    /// Whether to write an event as well.
    tells: bool,
    /// How long to wait after that.
    time: Duration,
}

impl<DB: Backend> Book<DB> {
    async fn new(db: &TestDb<DB>) -> Self {
        db.run("CREATE TABLE {t}_booked (number bigint NOT NULL)").await.unwrap();
        Self {
            db: db.another().await,
            seen: Seen::default(),
            say: Arc::new(|_| Ok(Outcome::Done)),
            also: None,
            tells: false,
            time: Duration::ZERO,
        }
    }

    fn says(mut self, say: impl Fn(&Cx) -> Result<Outcome, Failure> + Send + Sync + 'static) -> Self {
        self.say = Arc::new(say);
        self
    }
}

#[async_trait]
impl<DB: Backend> TxHandler<DB> for Book<DB> {
    async fn handle(&self, cx: Cx, tx: &mut Tx<'static, DB>) -> Result<Outcome, Failure> {
        self.seen.note(&cx);
        let number: u64 = cx.payload()?;
        let table = &self.db.table;
        DB::execute_sql(tx, &format!("INSERT INTO {table}_booked VALUES ({number})")).await?;
        if let Some(sql) = self.also {
            DB::execute_sql(tx, &sql.replace("{t}", table)).await?;
        }
        if self.tells {
            tx.write(numbered("told", number)).await?;
        }
        tokio::time::sleep(self.time).await;
        (self.say)(&cx)
    }
}

/// Looks how many events come before its own and are not settled.
struct Look {
    table: String,
    unsettled: Arc<std::sync::Mutex<Vec<i64>>>,
}

#[async_trait]
impl<DB: Backend> TxHandler<DB> for Look {
    async fn handle(&self, cx: Cx, tx: &mut Tx<'static, DB>) -> Result<Outcome, Failure> {
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
    async fn what_a_handler_writes_is_committed_with_its_event(|db|) {
        let book = Book::new(&db).await;
        let seen = book.seen.clone();
        let relay = db.outbox.multi_node().tx_handler("__GLOBAL__", "n", book).start().await.unwrap();
        db.write("n", 0..50).await;
        seen.reach(50).await;
        relay.idle().await.unwrap();
        seen.assert_each_once(0..50);
        assert_eq!(booked(&db).await, 50);
        assert_eq!(db.tally().await, (0, 0, 50, 0));
        relay.stop().await.unwrap();
    }

    async fn one_node_alone_commits_with_the_event_too(|db|) {
        let book = Book::new(&db).await;
        let relay = db.outbox.single_node().tx_handler("__GLOBAL__", "n", book).start().await.unwrap();
        db.outbox.send_all((0..30).map(|n| numbered("n", n).ordering_key("k"))).await.unwrap();
        relay.idle().await.unwrap();
        assert_eq!(booked(&db).await, 30);
        assert_eq!(db.tally().await, (0, 0, 30, 0));
        relay.stop().await.unwrap();
    }

    /// Verdicts of plain handlers wait for company. A crash must not find a later event of the key settled and an earlier one not.
    async fn what_comes_before_it_in_its_key_is_settled_first(|db|) {
        for relay in [db.outbox.multi_node(), db.outbox.single_node()] {
            let look = Look { table: db.table.clone(), unsettled: Arc::default() };
            let unsettled = look.unsettled.clone();
            let relay = relay
                .tx_handler::<DB>("__GLOBAL__", "n", look)
                .on_type("plain", async |_: Cx| ())
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
        let tries = AtomicU32::new(0);
        let book = Book::new(&db).await.says(move |cx| match cx.payload::<u64>()? {
            0 => Err(Failure::retry("no luck")),
            1 => Ok(Outcome::Dead("never".to_owned())),
            2 => Err(Failure::dead("never")),
            3 => panic!("on purpose"),
            _ if tries.fetch_add(1, Ordering::SeqCst) == 0 => Ok(Outcome::RetryAfter(Duration::from_millis(1))),
            _ => Ok(Outcome::Done),
        });
        let relay = db.outbox.multi_node().tx_handler("__GLOBAL__", "n", book);
        let relay = quick(relay).start().await.unwrap();
        db.write("n", 0..5).await;
        db.drained().await;
        assert_eq!(booked(&db).await, 1);
        assert_eq!(db.tally().await, (0, 0, 1, 4));
        relay.stop().await.unwrap();
    }

    async fn a_statement_that_fails_rolls_everything_back(|db|) {
        let mut book = Book::new(&db).await;
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

    /// Whoever has lost the event in the meantime has done nothing.
    async fn what_came_too_late_is_rolled_back(|db|) {
        let mut book = Book::new(&db).await;
        // Seen from inside of the transaction, somebody else has claimed the event.
        book.also = Some("UPDATE {t} SET claims = claims + 1");
        let seen = book.seen.clone();
        let relay = db.outbox.multi_node().lease(Duration::from_millis(300));
        let relay = quick(relay.tx_handler("__GLOBAL__", "n", book)).start().await.unwrap();
        db.write("n", 0..1).await;
        seen.reach(2).await;
        relay.stop().await.unwrap();
        assert_eq!(booked(&db).await, 0);
        assert_eq!(db.tally().await.2, 0);
    }

    async fn events_written_in_the_transaction_live_and_die_with_it(|db|) {
        let mut book = Book::new(&db).await.says(|cx| match cx.payload::<u64>()? {
            n if n % 2 == 0 => Ok(Outcome::Done),
            _ => Err(Failure::dead("odd")),
        });
        book.tells = true;
        let told = Seen::default();
        let relay = db.outbox.multi_node().tx_handler("__GLOBAL__", "n", book).on_type("told", told.handler());
        let relay = quick(relay).start().await.unwrap();
        db.write("n", 0..10).await;
        db.drained().await;
        let mut numbers = told.numbers();
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 2, 4, 6, 8]);
        relay.stop().await.unwrap();
    }

    async fn steps_settled_in_a_transaction_are_counted(|db|) {
        let book = Book::new(&db).await;
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

    /// Its lease is renewed meanwhile, beside its transaction.
    async fn a_handler_may_take_longer_than_its_lease(|db|) {
        let mut book = Book::new(&db).await;
        // A first read, from when on some isolation levels look at the past.
        book.also = Some("SELECT count(*) FROM {t}");
        book.time = Duration::from_millis(900);
        let seen = book.seen.clone();
        let relay = db.outbox.multi_node().lease(Duration::from_millis(600)).no_hot_path();
        let relay = relay.tx_handler("__GLOBAL__", "n", book).start().await.unwrap();
        db.write("n", 0..1).await;
        db.drained().await;
        relay.stop().await.unwrap();
        assert_eq!(booked(&db).await, 1);
        assert_eq!(db.tally().await, (0, 0, 1, 0));
        assert_eq!(seen.count(), 1);
    }

    async fn a_key_stays_in_order(|db|) {
        let book = Book::new(&db).await.says(|cx| match cx.attempt() {
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

/// Before anything runs.
#[tokio::test]
async fn a_handler_for_another_database_is_refused_at_start() {
    struct Nothing;
    #[async_trait]
    impl TxHandler<sqlx::Postgres> for Nothing {
        async fn handle(&self, _: Cx, _: &mut Tx<'static, sqlx::Postgres>) -> Result<Outcome, Failure> {
            Ok(Outcome::Done)
        }
    }
    let db = TestDb::<sqlx::Sqlite>::new().await.unwrap();
    let error = db.outbox.multi_node().tx_handler("__GLOBAL__", "n", Nothing).start().await.unwrap_err();
    assert!(matches!(&error, Error::Setting(text) if text.contains("PostgreSQL")), "{error}");
    let store = RelayBuilder::multi_node(db.outbox.store()).tx_handler("__GLOBAL__", "n", Nothing);
    assert!(matches!(store.start().await, Err(Error::Setting(_))));
}

/// SQLite has one writer, and while the handler is that one leadership cannot be renewed: nobody can have taken over either.
#[ignore = "takes 20 s: cargo test -p outbox --test tx_handlers -- --ignored"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_may_take_longer_than_leadership_lasts() {
    let db = TestDb::<sqlx::Sqlite>::new().await.unwrap();
    let mut book = Book::new(&db).await;
    book.time = Duration::from_secs(17);
    let seen = book.seen.clone();
    let relay = db.outbox.single_node().tx_handler("__GLOBAL__", "n", book).start().await.unwrap();
    db.write("n", 0..1).await;
    common::in_time(db.drained()).await;
    assert_eq!(booked(&db).await, 1);
    // Lost verdicts, if there were any, would keep the relay from ever being idle.
    common::in_time(relay.idle()).await.unwrap();
    assert_eq!(seen.count(), 1);
    relay.stop().await.unwrap();
}
