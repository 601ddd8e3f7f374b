//! Effects that happen exactly once although processes crash: a process is killed again and again
//! in the middle of its work and restarted, and in the end the sum is exact.
//!
//! `OUTBOX_TEST_KILLS`, `OUTBOX_TEST_AMOUNTS` and `OUTBOX_TEST_MEMBERS` set the number of kills, of
//! events, and of steps of joins: `OUTBOX_TEST_KILLS=200 OUTBOX_TEST_AMOUNTS=20000
//! OUTBOX_TEST_MEMBERS=100000 cargo xtask test -- -p outbox --test exactly_once -- --nocapture`

mod common;
#[path = "exactly_once/crashing.rs"]
mod crashing;
#[path = "exactly_once/steps.rs"]
mod steps;

use std::sync::Arc;
use std::time::Duration;

use common::{Backend, Poll, TestDb};
use crashing::{Role, survive};
use outbox::{Context, Event, Failure, HandlerTx, Outbox, OutboxBuilder};
use rand::seq::SliceRandom as _;
use sqlx::{MySql, Postgres, Sqlite};

fn setting(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn kills() -> usize {
    setting("OUTBOX_TEST_KILLS", 5)
}

fn amounts() -> usize {
    setting("OUTBOX_TEST_AMOUNTS", 300)
}

fn members() -> usize {
    setting("OUTBOX_TEST_MEMBERS", 400)
}

/// The amount of an event.
fn amount(event: usize) -> usize {
    event * 7 % 1_000 + 1
}

fn event_id(event: usize) -> String {
    format!("event-{event}")
}

/// Eight processes claim work, acknowledge it twice, attach steps before and after that, and are
/// killed meanwhile: the counters of joins match the results of their steps, and the follow-up of
/// each join is written once.
async fn eight_workers_count_each_step_once<DB: Backend>() {
    let Some(db) = TestDb::<DB>::new().await else { return };
    steps::fan_out(&db, members()).await;
    let each = |_| survive(&db, "worker", kills().div_ceil(8), members() / 16);
    let survived = futures_util::future::join_all((0..8).map(each)).await;
    let kills: usize = survived.iter().map(|survived| survived.kills).sum();
    steps::check(&db, members()).await;
    let time = survived.iter().map(|survived| survived.time).max().unwrap_or_default();
    assert!(kills > 0, "some workers were killed while they worked");
    eprintln!("{}: {} steps by 8 workers, {kills} kills, {:.1} s", DB::NAME, members(), time.as_secs_f64());
}

/// Defines a test of each function on each database.
macro_rules! on_every_database {
    ($($case:ident)+) => {$(
        mod $case {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                super::$case::<sqlx::Sqlite>().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                super::$case::<sqlx::Postgres>().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn mariadb() {
                super::$case::<sqlx::MySql>().await;
            }
        }
    )+};
}

on_every_database! {
    a_consumer_with_an_inbox_books_each_amount_once
    a_handler_in_a_transaction_books_each_amount_once
    eight_workers_count_each_step_once
}

/// Work of the processes that are killed.
async fn play<DB: Backend>(mut role: Role) {
    let builder = OutboxBuilder::new().table(&role.table).max_connections(2);
    let outbox = DB::open(builder, &role.url).await.unwrap();
    match role.name.as_str() {
        "consumer" => consume(&outbox, &mut role).await,
        "relay" => relay(&outbox, role).await,
        "worker" => steps::work(&outbox, role).await,
        other => panic!("no role {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_process_when_a_role_is_set() {
    let Some(role) = Role::from_env() else { return };
    match role.database.as_str() {
        <Sqlite as sqlx::Database>::NAME => play::<Sqlite>(role).await,
        <Postgres as sqlx::Database>::NAME => play::<Postgres>(role).await,
        <MySql as sqlx::Database>::NAME => play::<MySql>(role).await,
        other => panic!("no database {other:?}"),
    }
}

/// A broker, simulated by a table, delivers every event twice, and again until it is acknowledged.
async fn a_consumer_with_an_inbox_books_each_amount_once<DB: Backend>() {
    let Some(db) = TestDb::<DB>::new().await else { return };
    let deliveries = deliver_twice(&db).await;
    let survived = survive(&db, "consumer", kills(), deliveries).await;

    let number = async |sql: &str| usize::try_from(db.number(sql).await).unwrap();
    assert_eq!(number("SELECT count(*) FROM {t}_delivery WHERE consumed = 0").await, 0);
    let handled = number("SELECT count(*) FROM {t}_handling").await;
    let booked = number("SELECT count(*) FROM {t}_handling WHERE booked = 1").await;
    let balance = number("SELECT balance FROM {t}_account").await;
    eprintln!(
        "{}: {} events delivered {deliveries} times, {} kills, {} redeliveries after kills, {:.1} s",
        DB::NAME,
        amounts(),
        survived.kills,
        handled - deliveries,
        survived.time.as_secs_f64(),
    );
    assert_eq!(booked, amounts(), "each event was booked once");
    assert_eq!(balance, (0..amounts()).map(amount).sum::<usize>(), "the sum is exact");
    assert_eq!(survived.kills, kills(), "the process was killed while it worked");
}

/// A relay calls a handler that books amounts in the transaction that settles the event.
async fn a_handler_in_a_transaction_books_each_amount_once<DB: Backend>() {
    let Some(db) = TestDb::<DB>::new().await else { return };
    make_tables(&db).await;
    let survived = survive(&db, "relay", kills(), amounts()).await;

    let number = async |sql: &str| usize::try_from(db.number(sql).await).unwrap();
    let booked = number("SELECT count(*) FROM {t}_handling").await;
    let balance = number("SELECT balance FROM {t}_account").await;
    let started = number("SELECT count(*) FROM {t} WHERE crashes > 0").await;
    eprintln!(
        "{}: {} events, {} kills, {started} handled again after a kill, {:.1} s",
        DB::NAME,
        amounts(),
        survived.kills,
        survived.time.as_secs_f64(),
    );
    let dead = db.outbox.admin().dead(&Default::default(), 10).await.unwrap();
    assert!(dead.is_empty(), "dead-lettered: {dead:?}");
    assert_eq!(booked, amounts(), "each event was booked once");
    assert_eq!(balance, (0..amounts()).map(amount).sum::<usize>(), "the sum is exact");
    assert_eq!(db.status_counts().await, (0, 0, amounts() as u64, 0));
    assert_eq!(survived.kills, kills(), "the process was killed while it worked");
}

/// Books the amount in the handler's transaction.
struct BookAmount {
    table: String,
    role: std::sync::Mutex<Role>,
}

impl BookAmount {
    async fn handle<DB: Backend>(&self, cx: Context, mut tx: HandlerTx<DB>) -> Result<(), Failure> {
        let (table, amount): (_, usize) = (&self.table, cx.payload()?);
        DB::execute_sql(&mut tx, &format!("UPDATE {table}_account SET balance = balance + {amount}")).await?;
        self.role.lock().unwrap().progress();
        DB::execute_sql(&mut tx, &format!("INSERT INTO {table}_handling VALUES (1)")).await?;
        Ok(())
    }
}

/// Runs a relay until no event is pending. Its name stays the same, so that it releases the leases
/// of the killed process before it. The leases themselves are long: one that runs out on a slow
/// machine counts as a crash of its event, as a kill does, and four of them dead-letter the event.
async fn relay<DB: Backend>(outbox: &Outbox<DB>, role: Role) {
    let book = Arc::new(BookAmount { table: role.table.clone(), role: std::sync::Mutex::new(role) });
    let relay = outbox
        .multi_node()
        .on_type("amount", move |cx: Context, tx: HandlerTx<DB>| {
            let book = book.clone();
            async move { book.handle(cx, tx).await }
        })
        .node("relay")
        .cold_capacity(100)
        .poll_interval(Duration::from_millis(50))
        .start()
        .await
        .unwrap();
    let pending = async || outbox.admin().backlog().await.unwrap().pending;
    // However many events a long run has.
    let poll = Poll { limit: Duration::MAX, ..Poll::DEFAULT };
    poll.until("no event is pending", async || pending().await == 0).await;
    relay.stop().await.unwrap();
}

/// Writes the events, and creates the tables of the bookings.
async fn make_tables<DB: Backend>(db: &TestDb<DB>) {
    let events = (0..amounts()).map(|n| Event::new("amount").id(event_id(n)).json(&amount(n)));
    db.outbox.send_all(events).await.unwrap();
    for table in [
        "CREATE TABLE {t}_handling (booked bigint NOT NULL)",
        "CREATE TABLE {t}_account (balance bigint NOT NULL)",
        "INSERT INTO {t}_account VALUES (0)",
    ] {
        db.run(table).await.unwrap();
    }
}

/// Writes events, and has the broker deliver each of them twice, in random order. Returns the
/// number of deliveries.
async fn deliver_twice<DB: Backend>(db: &TestDb<DB>) -> usize {
    make_tables(db).await;
    let table =
        "CREATE TABLE {t}_delivery (id bigint PRIMARY KEY, event bigint NOT NULL, consumed bigint NOT NULL)";
    db.run(table).await.unwrap();
    let mut events: Vec<usize> = (0..amounts()).chain(0..amounts()).collect();
    events.shuffle(&mut rand::rng());
    let rows: Vec<String> =
        events.iter().enumerate().map(|(id, event)| format!("({id}, {event}, 0)")).collect();
    for rows in rows.chunks(500) {
        db.run(&format!("INSERT INTO {{t}}_delivery VALUES {}", rows.join(", "))).await.unwrap();
    }
    events.len()
}

/// Handles each delivery in its own transaction, and acknowledges it to the broker some time later.
async fn consume<DB: Backend>(outbox: &Outbox<DB>, role: &mut Role) {
    let table = role.table.clone();
    let pool = outbox.pool();
    let mut last = -1;
    let mut arrived: Vec<String> = Vec::new();
    loop {
        let next = format!(
            "SELECT COALESCE((SELECT id FROM {table}_delivery WHERE consumed = 0 AND id > {last} \
             ORDER BY id LIMIT 1), -1)"
        );
        last = DB::number(&mut *pool.acquire().await.unwrap(), &next).await;
        if arrived.len() >= rand::random_range(1..20) || (last < 0 && !arrived.is_empty()) {
            let ids = std::mem::take(&mut arrived).join(", ");
            let acknowledge = format!("UPDATE {table}_delivery SET consumed = 1 WHERE id IN ({ids})");
            DB::execute_sql(&mut *pool.acquire().await.unwrap(), &acknowledge).await.unwrap();
        }
        if last < 0 {
            return;
        }
        let query = format!("SELECT event FROM {table}_delivery WHERE id = {last}");
        let event = DB::number(&mut *pool.acquire().await.unwrap(), &query).await;
        let event = usize::try_from(event).unwrap();

        let mut tx = outbox.begin().await.unwrap();
        let first = tx.once("booking", event_id(event)).await.unwrap();
        if first {
            let book = format!("UPDATE {table}_account SET balance = balance + {}", amount(event));
            DB::execute_sql(&mut tx, &book).await.unwrap();
        }
        let record = format!("INSERT INTO {table}_handling VALUES ({})", u8::from(first));
        DB::execute_sql(&mut tx, &record).await.unwrap();
        tx.commit().await.unwrap();
        arrived.push(last.to_string());
        role.progress();
    }
}
