//! The event log as an application uses it: its transactions, its events, other languages.

mod common;

use common::{Poll, numbered};
use outbox::store::Watermark;
use outbox::{
    Appended, Condition, Error, Event, EventBuilder, EventError, EventId, LogEvent, MAX_APPEND, Message,
    Outbox, Position, Query,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct DepositMade {
    wallet: String,
    amount: i64,
}

impl Message for DepositMade {
    const TYPE: &'static str = "DepositMade";

    fn describe(&self, event: EventBuilder) -> EventBuilder {
        event.tag("wallet_id", &self.wallet)
    }
}

fn deposit(wallet: &str, amount: i64) -> DepositMade {
    DepositMade { wallet: wallet.to_owned(), amount }
}

fn wallet(name: &str) -> Query {
    Query::tag("wallet_id", name)
}

fn balance(balance: i64, event: &LogEvent) -> i64 {
    balance + event.payload::<DepositMade>().unwrap().amount
}

async fn count<DB: outbox::Database>(outbox: &Outbox<DB>, query: Query) -> usize {
    outbox.log().read(&query, Position::START, 100_000).await.unwrap().len()
}

on_every_database! {
    async fn a_decision_is_conditional_on_its_projection(|db|) {
        let log = db.outbox.log();
        log.append([deposit("w1", 30), deposit("w2", 500), deposit("w1", 12)]).await.unwrap();
        let read = log.project(wallet("w1"), 0, balance).await.unwrap();
        assert_eq!(read.state, 42);
        log.append([deposit("w2", 1)]).await.unwrap();
        let done = log.append_if([deposit("w1", -42)], read.unchanged()).await.unwrap();
        assert_eq!(done.positions().len(), 1);
        let late = log.append_if([deposit("w1", -42)], read.unchanged()).await;
        assert!(matches!(late, Err(Error::Conflict { after }) if after == read.position), "{late:?}");
        assert_eq!(log.project(wallet("w1"), 0, balance).await.unwrap().state, 0);
        assert_eq!(log.head().await.unwrap(), done.positions()[0]);
    }

    async fn a_projection_reads_everything_page_by_page(|db|) {
        let log = db.outbox.log();
        log.append((0..2_300).map(|_| deposit("w1", 1))).await.unwrap();
        log.append((0..10).map(|_| deposit("w2", 1))).await.unwrap();
        let either = wallet("w2").types(["DepositMade"]).or(wallet("w1"));
        for (query, sum) in
            [(wallet("w1"), 2_300), (Query::all(), 2_310), (either, 2_310), (wallet("unknown"), 0)]
        {
            assert_eq!(log.project(query.clone(), 0, balance).await.unwrap().state, sum);
            let mut tx = db.outbox.begin().await.unwrap();
            assert_eq!(tx.project(query, 0, balance).await.unwrap().state, sum);
            tx.rollback().await.unwrap();
        }
    }

    /// Part of the append may be written, events without their tags: this must not be committed.
    async fn a_transaction_whose_append_was_cancelled_cannot_be_committed(|db|) {
        use futures_util::FutureExt as _;
        let mut tx = db.outbox.begin().await.unwrap();
        // So many events that the append cannot finish at once.
        let many = (0..5_000).map(|n| Event::new("E").tag("w", n).json(&n));
        assert!(tx.append(many).now_or_never().is_none(), "the append is not finished");
        let again = tx.append([Event::new("E").json(&2)]).await;
        assert!(matches!(again, Err(Error::Lifecycle(_))), "{again:?}");
        let committed = tx.commit().await;
        assert!(matches!(committed, Err(Error::Lifecycle(_))), "{committed:?}");
        let other = db.another().await;
        assert_eq!(other.outbox.log().read(&Query::all(), Position::START, 10).await.unwrap(), []);
    }

    async fn a_rollback_appends_nothing(|db|) {
        let mut tx = db.outbox.begin().await.unwrap();
        assert_eq!(tx.append([deposit("w1", 1), deposit("w1", 2)]).await.unwrap().len(), 2);
        assert_eq!(tx.read_log(&wallet("w1"), Position::START, 10).await.unwrap().len(), 2, "its own events");
        tx.rollback().await.unwrap();
        let mut tx = db.outbox.begin().await.unwrap();
        tx.append([deposit("w1", 1)]).await.unwrap();
        drop(tx);
        assert_eq!(count(&db.outbox, Query::all()).await, 0);
        assert_eq!(db.number("SELECT count(*) FROM {t}_log_tag").await, 0);
        let free = Condition::unless(wallet("w1"));
        assert!(db.outbox.log().append_if([deposit("w1", 1)], free).await.is_ok());
    }

    async fn a_conflict_leaves_the_transaction_as_it_was(|db|) {
        let log = db.outbox.log();
        log.append([deposit("w1", 1)]).await.unwrap();
        db.run("CREATE TABLE {t}_orders (id INTEGER)").await.unwrap();
        let mut tx = db.outbox.begin().await.unwrap();
        DB::execute_sql(&mut *tx, &format!("INSERT INTO {}_orders VALUES (1)", db.table)).await.unwrap();
        tx.append([deposit("w2", 1)]).await.unwrap();
        for _ in 0..3 {
            let refused = tx.append_if([deposit("w1", 2)], Condition::unless(wallet("w1"))).await;
            assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
            let own = tx.append_if([deposit("w2", 2)], Condition::unless(wallet("w2"))).await;
            assert!(matches!(own, Err(Error::Conflict { .. })), "its own events count too: {own:?}");
        }
        let beyond = Condition::unless(wallet("w1")).after(Position::new(1_000));
        let refused = tx.append_if([deposit("w1", 2)], beyond).await;
        assert!(matches!(refused, Err(Error::BeyondHead { .. })), "{refused:?}");
        tx.append([deposit("w3", 1)]).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(count(&db.outbox, Query::all()).await, 3);
        assert_eq!(db.number("SELECT count(*) FROM {t}_orders").await, 1);
        let mut watermark = Watermark::default();
        db.outbox.store().log().unwrap().advance(&mut watermark).await.unwrap();
        assert_eq!(watermark.safe, log.head().await.unwrap());
    }

    async fn queue_and_log_are_committed_together(|db|) {
        let mut tx = db.outbox.begin().await.unwrap();
        tx.append([deposit("w1", 1)]).await.unwrap();
        let id = tx.write(numbered("mail", 1)).await.unwrap().id;
        let again = Condition::only_once(wallet("w1"));
        assert_eq!(tx.append_if([deposit("w1", 1)], again).await.unwrap(), Appended::Already);
        tx.commit().await.unwrap();
        assert_eq!(count(&db.outbox, wallet("w1")).await, 1);
        db.find(&id).await;
        let mut tx = db.outbox.begin().await.unwrap();
        tx.append([deposit("w1", 1)]).await.unwrap();
        tx.write(numbered("mail", 2)).await.unwrap();
        tx.rollback().await.unwrap();
        assert_eq!(count(&db.outbox, wallet("w1")).await, 1);
        assert_eq!(db.status_counts().await.0, 1);
    }

    async fn it_works_in_a_transaction_that_stays_yours(|db|) {
        let free = || Condition::unless(wallet("w1"));
        let mut tx = db.outbox.pool().begin().await.unwrap();
        let mut bound = db.outbox.bind(&mut tx);
        assert_eq!(bound.append_if([deposit("w1", 1)], free()).await.unwrap().positions().len(), 1);
        assert!(bound.append_if([deposit("w1", 1)], free()).await.is_err());
        drop(bound);
        tx.rollback().await.unwrap();
        let mut tx = db.outbox.pool().begin().await.unwrap();
        assert!(db.outbox.bind(&mut tx).append_if([deposit("w1", 1)], free()).await.is_ok());
        tx.commit().await.unwrap();
        assert_eq!(count(&db.outbox, Query::all()).await, 1);
    }

    /// After a failed append a transaction has all of its events or none.
    async fn a_failed_append_leaves_nothing_in_the_transaction(|db|) {
        let taken = EventId::generate();
        db.outbox.log().append([Event::new("a").id(&taken).json(&1)]).await.unwrap();
        let many = || {
            let first = (0..1_200).map(|n| Event::new("b").tag("n", n).json(&n));
            first.chain([Event::new("b").id(&taken).json(&1)])
        };
        let mut tx = db.outbox.begin().await.unwrap();
        let refused = tx.append(many()).await;
        assert!(matches!(refused, Err(Error::DuplicateId { .. })), "{refused:?}");
        // PostgreSQL has aborted the transaction, the other databases continue it.
        if tx.append([Event::new("c").json(&1)]).await.is_ok() {
            tx.commit().await.unwrap();
            assert_eq!(count(&db.outbox, Query::of_types(["c"])).await, 1);
        }
        assert_eq!(count(&db.outbox, Query::of_types(["b"])).await, 0);
        assert_eq!(db.number("SELECT count(*) FROM {t}_log_tag").await, 0);
        db.outbox.log().append([Event::new("d").json(&1)]).await.unwrap();
    }

    /// An earlier read decides nothing: conditions see events that others have committed since.
    async fn a_condition_sees_events_committed_after_the_transaction_began(|db|) {
        let other = db.another().await;
        let mut tx = db.outbox.pool().begin().await.unwrap();
        DB::execute_sql(&mut *tx, &format!("SELECT count(*) FROM {}_log", db.table)).await.unwrap();
        let Ok(at) = other.outbox.log().append([deposit("w1", 1)]).await else { return };
        let free = Condition::unless(wallet("w1"));
        let refused = db.outbox.bind(&mut tx).append_if([deposit("w1", 1)], free).await;
        match refused {
            Err(Error::Conflict { .. }) => {}
            // With strict snapshots the transaction has to be retried.
            Err(e) => assert!(e.is_transient(), "{e:?}"),
            Ok(appended) => panic!("{appended:?} beside {at:?}"),
        }
        drop(tx);
        let mut tx = db.outbox.begin().await.unwrap();
        assert_eq!(tx.project(wallet("w1"), 0, balance).await.unwrap().state, 1);
        tx.rollback().await.unwrap();
    }

    async fn properties_of_the_queue_are_refused_by_the_log(|db|) {
        let event = || Event::new("a").json(&1);
        let soon = chrono::Utc::now() + chrono::Duration::hours(1);
        for (refused, named) in [
            (event().dedup_key("k"), "dedup_key"),
            (event().deliver_after(std::time::Duration::from_secs(1)), "deliver_after"),
            (event().available_at(soon), "available_at"),
            (event().expires_at(soon), "expires_at"),
        ] {
            let refused = db.outbox.log().append([event(), refused]).await;
            let Err(Error::Event(EventError::NotForTheLog { field })) = refused else { panic!("{refused:?}") };
            assert_eq!(field, named);
        }
        let tags = (0..10_000).fold(event(), |event, n| event.tag("n", n));
        let refused = db.outbox.log().append([tags]).await;
        assert!(matches!(refused, Err(Error::Event(EventError::TooMany { .. }))), "{refused:?}");
        let refused = db.outbox.log().append((0..=MAX_APPEND).map(|_| event())).await;
        assert!(matches!(refused, Err(Error::Event(EventError::TooMany { .. }))), "{refused:?}");
        let mistaken = db.outbox.log().append_if([event()], Condition::unless(Query::tag("", 1))).await;
        assert!(matches!(mistaken, Err(Error::Event(_))), "{mistaken:?}");
        assert_eq!(count(&db.outbox, Query::all()).await, 0);
    }

    async fn a_missing_log_table_is_named(|db|) {
        db.run("DROP TABLE {t}_log").await.unwrap();
        let (log, all) = (db.outbox.log(), Query::all());
        for error in [
            log.append([deposit("w1", 1)]).await.unwrap_err(),
            log.read(&all, Position::START, 1).await.unwrap_err(),
        ] {
            assert!(matches!(&error, Error::NotMigrated { table } if table.ends_with("_log")), "{error:?}");
        }
    }

    async fn an_unreadable_event_is_an_error_that_names_its_position(|db|) {
        let at = db.outbox.log().append([deposit("w1", 1), deposit("w1", 2)]).await.unwrap();
        db.run(&format!("UPDATE {{t}}_log SET headers = '[1]' WHERE position = {}", at[1])).await.unwrap();
        let error = db.outbox.log().read(&wallet("w1"), Position::START, 10).await.unwrap_err();
        assert!(matches!(error, Error::Undecodable { position, .. } if position == at[1]), "{error}");
        assert!(db.outbox.log().project(wallet("w1"), 0, balance).await.is_err());
        assert_eq!(db.outbox.log().read(&wallet("w1"), Position::START, 1).await.unwrap().len(), 1);
    }
}

/// Asserts that plain inserts of another language are events like any other.
async fn like_any_other<DB: common::Backend>(db: &common::TestDb<DB>) {
    let log = db.outbox.log();
    let found = log.read(&wallet("w1"), Position::START, 10).await.unwrap();
    let payloads: Vec<String> =
        found.iter().map(|e| String::from_utf8(e.payload_bytes().to_vec()).unwrap()).collect();
    assert_eq!(payloads, ["{\"amount\" : 5}", "6"]);
    assert_eq!(found[0].tags().len(), 2);
    assert!(!found[0].id().as_str().is_empty());
    assert_ne!(found[0].id(), found[1].id());
    assert_eq!(found[0].aggregate_type().as_str(), "__GLOBAL__");
    let refused = log.append_if([deposit("w1", 1)], Condition::unless(wallet("w1").types(["Deposit"]))).await;
    assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    let mut watermark = Watermark::default();
    db.outbox.store().log().unwrap().advance(&mut watermark).await.unwrap();
    assert_eq!(watermark.safe, found[1].position());
    assert_eq!(log.append([deposit("w1", 1)]).await.unwrap().len(), 1);
    assert_eq!(count(&db.outbox, wallet("w1")).await, 3);
}

#[tokio::test]
async fn on_sqlite_other_languages_only_insert_a_row() {
    let db = common::TestDb::<sqlx::Sqlite>::new().await.unwrap();
    for row in [
        r#"('Deposit', '["wallet_id=w1", "vip"]', '{"amount" : 5}')"#,
        r#"('Deposit', '["wallet_id=w1", "wallet_id=w1"]', '6')"#,
    ] {
        db.run(&format!("INSERT INTO {{t}}_log (event_type, tags, payload) VALUES {row}")).await.unwrap();
    }
    for wrong in ["'{}'", "'[1]'", "'x'", "NULL"] {
        let row = format!("INSERT INTO {{t}}_log (event_type, tags, payload) VALUES ('a', {wrong}, '1')");
        db.run(&row).await.unwrap_err();
    }
    like_any_other(&db).await;
    assert_eq!(count(&db.outbox, Query::tag("vip", "")).await, 1);
}

#[tokio::test]
async fn on_postgres_other_languages_only_insert_a_row() {
    let Some(db) = common::TestDb::<sqlx::Postgres>::new().await else { return };
    // With a `search_path` that does not contain the outbox's tables.
    let insert = "SET search_path = pg_catalog; INSERT INTO public.{t}_log (event_type, tags, payload) VALUES \
        ('Deposit', ARRAY['wallet_id=w1', 'vip'], '{\"amount\" : 5}'), \
        ('Deposit', ARRAY['wallet_id=w1', 'wallet_id=w1'], '6'); RESET search_path";
    db.run(insert).await.unwrap();
    db.run("INSERT INTO {t}_log (event_type, tags, payload) VALUES ('a', ARRAY[NULL], '1')")
        .await
        .unwrap_err();
    // A duplicate is skipped, with its tags.
    let again = "INSERT INTO {t}_log (event_id, event_type, tags, payload) \
        SELECT event_id, 'Again', ARRAY['again=1'], '1' FROM {t}_log ON CONFLICT DO NOTHING";
    db.run(again).await.unwrap();
    let log = db.outbox.log();
    assert!(log.append_if(Vec::<Event>::new(), Condition::unless(Query::tag("again", 1))).await.is_ok());
    like_any_other(&db).await;
    assert_eq!(count(&db.outbox, Query::tag("vip", "")).await, 1);
}

#[tokio::test]
async fn on_mariadb_other_languages_take_the_position_first() {
    let Some(db) = common::TestDb::<sqlx::MySql>::new().await else { return };
    for (tags, payload) in
        [(r#"["wallet_id=w1", "vip="]"#, r#"{"amount" : 5}"#), (r#"["wallet_id=w1"]"#, "6")]
    {
        let statements = format!(
            "START TRANSACTION; UPDATE {{t}}_log_head SET position = LAST_INSERT_ID(position + 1); \
             SET @position = LAST_INSERT_ID(); INSERT INTO {{t}}_log (position, event_type, tags, payload) \
             VALUES (@position, 'Deposit', '{tags}', '{payload}'); \
             INSERT INTO {{t}}_log_tag (tag, position) VALUES ('wallet_id=w1', @position); COMMIT"
        );
        db.run(&statements).await.unwrap();
    }
    let forgotten = "INSERT INTO {t}_log (event_type, payload) VALUES ('a', '1')";
    db.run(forgotten).await.unwrap_err();
    db.run(&format!("SET sql_mode = ''; {forgotten}")).await.unwrap_err();
    like_any_other(&db).await;
}

/// A deadlock rolls back the whole transaction on MySQL. A rollback after that could undo another
/// transaction.
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mariadb_an_append_that_a_deadlock_rolls_back_undoes_no_other_transaction() {
    use common::Backend as _;
    use sqlx::{Connection as _, MySql};

    let Some(db) = common::TestDb::<MySql>::new().await else { return };
    let log = db.outbox.log();
    log.append([Event::new("First").json(&1)]).await.unwrap();
    // Reads first, with a lock, and has written so much that the server does not choose it as the
    // victim.
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
    let mut ours = db.outbox.begin().await.unwrap();
    let appending = tokio::spawn(async move {
        let appended = ours.append([Event::new("Ours").tag("w", 1).json(&2)]).await;
        drop(ours);
        appended
    });
    let waiting = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' \
                   AND trx_query LIKE '%{t}%'";
    let waits = async || {
        assert!(!appending.is_finished(), "the end of the log is locked");
        db.number(waiting).await > 0
    };
    Poll::INNODB.until("the append waits for the lock", waits).await;
    run(&mut other, "UPDATE {t}_log_head SET position = LAST_INSERT_ID(position + 1)").await;
    run(&mut other, "SET @position = LAST_INSERT_ID()").await;
    run(
        &mut other,
        "INSERT INTO {t}_log (position, event_type, tags, payload) VALUES (@position, 'Theirs', '[]', '3')",
    )
    .await;
    run(&mut other, "COMMIT").await;
    let ended = appending.await.unwrap().unwrap_err();
    assert!(ended.is_transient(), "{ended:?}");
    let events = log.read(&Query::all(), Position::START, 10).await.unwrap();
    let types: Vec<&str> = events.iter().map(|event| event.event_type().as_str()).collect();
    assert_eq!(types, ["First", "Theirs"]);
    assert_eq!(log.append([Event::new("Next").json(&4)]).await.unwrap(), [Position::new(3)]);
}
