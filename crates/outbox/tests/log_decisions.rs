//! Decisions in one call: they are repeated after conflicts, up to a bound, and leave no
//! transaction open.

mod common;

use std::convert::Infallible;
use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{Backend, Poll, TestDb, numbered, until};
use outbox::{
    Appended, Database, DecideError, Decision, Error, Event, EventBuilder, Log, LogEvent, Outbox, Position,
    Query,
};
use tokio::task::JoinSet;

#[derive(Debug, PartialEq, thiserror::Error)]
#[error("refused at {0}")]
struct Refused(i64);

#[derive(Debug, Default)]
struct Course {
    places: usize,
    students: Vec<u64>,
}

impl Course {
    fn query() -> Query {
        Query::tag("course", "c1")
    }

    fn defined(places: usize) -> EventBuilder {
        Event::new("CourseDefined").tag("course", "c1").json(&places)
    }

    fn apply(mut self, event: &LogEvent) -> Self {
        match event.event_type().as_str() {
            "CourseDefined" => self.places = event.payload().unwrap(),
            _ => self.students.push(event.payload().unwrap()),
        }
        self
    }

    fn subscribe(&self, student: u64) -> Result<Vec<EventBuilder>, Refused> {
        if self.students.len() >= self.places {
            return Err(Refused(self.places.try_into().unwrap()));
        }
        Ok(vec![Event::new("StudentSubscribed").tag("course", "c1").json(&student)])
    }
}

fn wallet() -> Query {
    Query::tag("wallet", "w1")
}

/// An event that holds the balance after it.
fn balance(amount: i64) -> EventBuilder {
    Event::new("BalanceChanged").tag("wallet", "w1").json(&amount)
}

fn last(_: i64, event: &LogEvent) -> i64 {
    event.payload().unwrap()
}

/// Withdraws all of 100 for a request.
fn withdraw(request: &str) -> impl Fn(&i64) -> Result<[EventBuilder; 1], Refused> {
    move |state| {
        if *state < 100 { Err(Refused(*state)) } else { Ok([balance(state - 100).tag("request", request)]) }
    }
}

fn request(id: &str) -> Decision {
    Decision::on(wallet()).once(Query::tag("request", id))
}

async fn balances<DB: Database>(outbox: &Outbox<DB>) -> Vec<i64> {
    let events = outbox.log().read(&wallet(), Position::START, 1_000).await.unwrap();
    events.iter().map(|event| event.payload().unwrap()).collect()
}

/// Appends from inside a closure that is not async, as a concurrent writer would.
fn append_meanwhile<DB: Database>(log: &Log<DB>, events: impl IntoIterator<Item = EventBuilder>) {
    let append = log.append(events);
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(append)).unwrap();
}

on_every_database! {
    async fn twenty_students_who_subscribe_at_once_take_exactly_five_places(|db|) {
        let other = db.another().await;
        db.outbox.log().append([Course::defined(5)]).await.unwrap();
        let mut students = JoinSet::new();
        for student in 0..20 {
            let log = if student % 2 == 0 { db.outbox.log() } else { other.outbox.log() };
            students.spawn(async move {
                let subscribe = |course: &Course| course.subscribe(student);
                log.decide(Course::query(), Course::default(), Course::apply, subscribe).await
            });
        }
        let (taken, refused): (Vec<_>, Vec<_>) = students.join_all().await.into_iter().partition(Result::is_ok);
        assert_eq!((taken.len(), refused.len()), (5, 15));
        for refusal in refused {
            assert!(matches!(refusal, Err(DecideError::Refused(Refused(5)))), "{refusal:?}");
        }
        let course = db.outbox.log().project(Course::query(), Course::default(), Course::apply).await.unwrap();
        assert_eq!(course.state.students.len(), 5);
    }

    /// Each conflict is another decision that succeeded, so a hundred tries are enough for each.
    async fn a_hundred_concurrent_decisions_on_one_wallet_lose_no_update(|db|) {
        let other = db.another().await;
        let mut deciders = JoinSet::new();
        for n in 0..100 {
            let log = if n % 2 == 0 { db.outbox.log() } else { other.outbox.log() };
            deciders.spawn(async move {
                let add = |state: &i64| Ok::<_, Infallible>([balance(state + 1)]);
                log.decide(Decision::on(wallet()).tries(100), 0, last, add).await.unwrap()
            });
        }
        let decided = deciders.join_all().await;
        assert_eq!(balances(&db.outbox).await, Vec::from_iter(1..=100));
        let mut based_on: Vec<i64> = decided.iter().map(|decided| decided.state).collect();
        based_on.sort_unstable();
        assert_eq!(based_on, Vec::from_iter(0..100), "no two decisions have the same basis");
        assert!(decided.iter().any(|decided| decided.conflicts > 0), "the decisions were not concurrent");
    }

    async fn a_retry_reads_only_the_new_events(|db|) {
        let log = db.outbox.log();
        log.append((1..=10).map(balance)).await.unwrap();
        let (mut applied, mut bases) = (Vec::new(), Vec::new());
        let apply = |state, event: &LogEvent| {
            applied.push(event.position());
            last(state, event)
        };
        let decide = |state: &i64| {
            bases.push(*state);
            if bases.len() == 1 {
                append_meanwhile(&log, [balance(20), balance(21)]);
            }
            Ok::<_, Infallible>([balance(state + 1)])
        };
        let decided = log.decide(wallet(), 0, apply, decide).await.unwrap();
        assert_eq!(bases, [10, 21]);
        assert_eq!((decided.state, decided.conflicts), (21, 1));
        assert_eq!(applied.len(), 12, "ten events, and the two that caused the conflict");
        assert!(applied.is_sorted_by(|one, next| one < next), "{applied:?}");
        assert!(decided.position >= applied[11] && decided.position < decided.positions()[0]);
        assert_eq!(balances(&db.outbox).await.last(), Some(&22));
    }

    async fn a_decision_that_always_conflicts_ends_with_a_conflict(|db|) {
        let log = db.outbox.log();
        let mut appended = 0;
        for (decision, tries) in [
            (Decision::from(wallet()), 10),
            (Decision::on(wallet()).tries(3), 3),
            (Decision::on(wallet()).tries(0), 1),
        ] {
            let mut calls = 0;
            let decide = |_: &i64| {
                calls += 1;
                append_meanwhile(&log, [balance(-1)]);
                Ok::<_, Infallible>([balance(1)])
            };
            let ended = log.decide(decision, 0, last, decide).await;
            assert!(matches!(ended, Err(DecideError::Outbox(Error::Conflict { .. }))), "{ended:?}");
            assert_eq!(calls, tries);
            appended += tries;
        }
        assert_eq!(balances(&db.outbox).await, vec![-1; appended]);
    }

    async fn a_refusal_appends_nothing_and_is_an_error_like_any_other(|db|) {
        let log = db.outbox.log();
        log.append([balance(99)]).await.unwrap();
        let pay = async || -> Result<(), Box<dyn StdError + Send + Sync>> {
            log.decide(wallet(), 0, last, withdraw("r1")).await?;
            Ok(())
        };
        let refused = pay().await.unwrap_err();
        assert_eq!(refused.to_string(), "refused at 99");
        let refused = refused.downcast::<DecideError<Refused>>().unwrap();
        assert!(matches!(*refused, DecideError::Refused(Refused(99))));
        assert_eq!(balances(&db.outbox).await, [99]);
        let invalid = log.decide(wallet(), 0, last, |_| Ok::<_, Refused>([Event::new("").json(&1)])).await;
        assert!(matches!(invalid, Err(DecideError::Outbox(Error::Event(_)))), "{invalid:?}");
        assert_eq!(log.read(&Query::all(), Position::START, 10).await.unwrap().len(), 1);
    }

    async fn an_empty_decision_appends_nothing_and_succeeds(|db|) {
        let log = db.outbox.log();
        log.append([balance(7)]).await.unwrap();
        // An event that is appended meanwhile is no conflict: there is nothing to append.
        let decide = |_: &i64| {
            append_meanwhile(&log, [balance(8)]);
            Ok::<_, Infallible>(None::<EventBuilder>)
        };
        let decided = log.decide(wallet(), 0, last, decide).await.unwrap();
        assert_eq!((decided.state, decided.conflicts, &decided.appended), (7, 0, &Appended::New(Vec::new())));
        assert_eq!(decided.positions(), []);
        assert_eq!(balances(&db.outbox).await, [7, 8]);
    }

    async fn a_repeated_request_is_carried_out_once(|db|) {
        let log = db.outbox.log();
        log.append([balance(100)]).await.unwrap();
        let first = log.decide(request("r1"), 0, last, withdraw("r1")).await.unwrap();
        assert_eq!(first.positions().len(), 1);
        // The balance is too low now: because of this request, so that it is not refused.
        let again = log.decide(request("r1"), 0, last, withdraw("r1")).await.unwrap();
        assert_eq!(again.appended, Appended::Already);
        let mut tx = db.outbox.begin().await.unwrap();
        assert_eq!(tx.decide(request("r1"), 0, last, withdraw("r1")).await.unwrap().appended, Appended::Already);
        let other = tx.decide(request("r2"), 0, last, withdraw("r2")).await;
        assert!(matches!(other, Err(DecideError::Refused(Refused(0)))), "{other:?}");
        tx.rollback().await.unwrap();
        let empty = |_: &i64| Ok::<_, Infallible>(None::<EventBuilder>);
        assert_eq!(log.decide(request("r1"), 0, last, empty).await.unwrap().appended, Appended::Already);
        log.append([balance(200)]).await.unwrap();
        assert_eq!(log.decide(request("r1"), 0, last, withdraw("r1")).await.unwrap().appended, Appended::Already);
        assert_eq!(balances(&db.outbox).await, [100, 0, 200]);
    }

    /// Clients repeat a request that they got no answer to, while the first one is still running.
    async fn a_request_that_arrives_many_times_at_once_is_carried_out_once(|db|) {
        db.outbox.log().append([balance(100)]).await.unwrap();
        let mut requests = JoinSet::new();
        for _ in 0..12 {
            let log = db.outbox.log();
            requests.spawn(async move { log.decide(request("r1"), 0, last, withdraw("r1")).await.unwrap() });
        }
        let decided = requests.join_all().await;
        assert_eq!(decided.iter().filter(|decided| decided.appended == Appended::Already).count(), 11);
        assert_eq!(balances(&db.outbox).await, [100, 0]);
    }

    async fn a_decision_in_a_transaction_is_committed_with_it(|db|) {
        db.outbox.log().append([balance(150)]).await.unwrap();
        for commit in [false, true] {
            let mut tx = db.outbox.begin().await.unwrap();
            let decided = tx.decide(wallet(), 0, last, withdraw("r1")).await.unwrap();
            assert_eq!((decided.state, decided.positions().len()), (150, 1));
            // Its own events count, and a refusal leaves the transaction as it was.
            let refused = tx.decide(wallet(), 0, last, withdraw("r2")).await;
            assert!(matches!(refused, Err(DecideError::Refused(Refused(50)))), "{refused:?}");
            let empty = |_: &i64| Ok::<_, Infallible>(Vec::<EventBuilder>::new());
            assert_eq!(tx.decide(wallet(), 0, last, empty).await.unwrap().state, 50);
            tx.write(numbered("mail", 1)).await.unwrap();
            if commit { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
            let expected: &[i64] = if commit { &[150, 50] } else { &[150] };
            assert_eq!(balances(&db.outbox).await, expected);
            assert_eq!(db.status_counts().await.0, u64::from(commit));
        }
    }

    /// With one connection, a transaction that stayed open would also leave the pool empty.
    async fn a_decision_that_panics_leaves_no_transaction_open(|db|) {
        let one = db.another_with(|builder| builder.max_connections(1)).await;
        one.outbox.log().append([balance(1)]).await.unwrap();
        let refuse = |_: &i64| -> Result<[EventBuilder; 1], Infallible> { panic!("no decision") };
        let explode = |_: i64, _: &LogEvent| -> i64 { panic!("no state") };
        let outbox = &one.outbox;
        let (log, mut tasks) = (outbox.log(), JoinSet::new());
        tasks.spawn(async move { log.decide(wallet(), 0, last, refuse).await.map(drop).unwrap() });
        assert!(tasks.join_next().await.unwrap().unwrap_err().is_panic());
        let log = outbox.log();
        tasks.spawn(async move { log.decide(wallet(), 0, explode, refuse).await.map(drop).unwrap() });
        assert!(tasks.join_next().await.unwrap().unwrap_err().is_panic());
        let outbox = outbox.clone();
        tasks.spawn(async move {
            let mut tx = outbox.begin().await.unwrap();
            tx.append([balance(2)]).await.unwrap();
            tx.decide(wallet(), 0, last, refuse).await.map(drop).unwrap();
        });
        assert!(tasks.join_next().await.unwrap().unwrap_err().is_panic());
        // Another process can append, and this one has its connection.
        db.outbox.log().append([balance(3)]).await.unwrap();
        let add = |state: &i64| Ok::<_, Infallible>([balance(state + 1)]);
        one.outbox.log().decide(wallet(), 0, last, add).await.unwrap();
        assert_eq!(balances(&db.outbox).await, [1, 3, 4]);
    }
}

/// The append is executed, and its response is lost: a second try could append the events twice.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_a_decision_is_not_made_again_when_its_outcome_is_unknown() {
    let Some(db) = TestDb::<sqlx::Postgres>::new().await else { return };
    let (proxy, url) = db.proxied();
    let builder = outbox::OutboxBuilder::new().table(&db.table);
    let log = sqlx::Postgres::open(builder, &url).await.unwrap().log();
    let calls = Arc::new(AtomicUsize::new(0));
    let (blocker, mut blocking) = tokio::sync::mpsc::unbounded_channel();
    let (counted, outbox) = (calls.clone(), db.outbox.clone());
    let deciding = tokio::spawn(async move {
        // A transaction that has appended for this wallet holds up the append, until it is rolled
        // back.
        let decide = |state: &i64| {
            counted.fetch_add(1, Ordering::SeqCst);
            let block = async {
                let mut tx = outbox.begin().await.unwrap();
                tx.append([balance(-1)]).await.unwrap();
                tx
            };
            let tx = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(block));
            blocker.send(tx).unwrap();
            Ok::<_, Infallible>([balance(state + 1)])
        };
        log.decide(wallet(), 0, last, decide).await
    });
    let tx = blocking.recv().await.unwrap();
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{t}%'";
    until("the append waits for the lock", async || db.number(waiting).await > 0).await;
    proxy.mute();
    tx.rollback().await.unwrap();
    until("the event is appended", async || balances(&db.outbox).await.len() == 1).await;
    proxy.cut();
    let lost = tokio::time::timeout(Duration::from_secs(60), deciding).await.unwrap().unwrap();
    assert!(matches!(lost, Err(DecideError::Outbox(Error::CommitUnknown(_)))), "{lost:?}");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(balances(&db.outbox).await, [1]);
}

/// The server ends the append, because another transaction waits for it in turn.
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb_a_deadlock_does_not_end_a_decision() {
    use sqlx::{Connection as _, MySql};

    let Some(db) = TestDb::<MySql>::new().await else { return };
    let log = db.outbox.log();
    log.append([balance(1)]).await.unwrap();
    // Has written so much that the server does not choose it as the victim.
    let mut other = sqlx::MySqlConnection::connect(db.url()).await.unwrap();
    let run = async |conn: &mut sqlx::MySqlConnection, statement: &str| {
        MySql::execute_sql(conn, &statement.replace("{t}", &db.table)).await.unwrap();
    };
    run(&mut other, "CREATE TABLE {t}_biz (id int AUTO_INCREMENT PRIMARY KEY, x int)").await;
    run(&mut other, "START TRANSACTION").await;
    for _ in 0..50 {
        run(&mut other, "INSERT INTO {t}_biz (x) VALUES (1), (2), (3), (4)").await;
    }
    run(&mut other, "SELECT * FROM {t}_log WHERE position > 0 FOR UPDATE").await;
    let deciding = tokio::spawn(async move {
        log.decide(wallet(), 0, last, |state| Ok::<_, Infallible>([balance(state + 1)])).await
    });
    let waiting = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' \
                   AND trx_query LIKE '%{t}%'";
    Poll::INNODB.until("the append waits for the lock", async || db.number(waiting).await > 0).await;
    // The append holds this row, and waits for the other transaction.
    run(&mut other, "UPDATE {t}_log_head SET position = position + 1").await;
    run(&mut other, "COMMIT").await;
    let decided = tokio::time::timeout(Duration::from_secs(60), deciding).await.unwrap().unwrap().unwrap();
    assert_eq!((decided.state, decided.conflicts), (1, 0));
    assert_eq!(balances(&db.outbox).await, [1, 2]);
}
