//! Joins and transactions in a fleet: steps in one database, the join in another.

mod common;
#[path = "common/fleet_fixtures.rs"]
mod fleet_fixtures;

use std::time::Duration;

use common::{Poll, Seen, ids_of, numbered, until};
use fleet_fixtures::Folder;
use outbox::fleet::FleetRelay;
use outbox::store::JoinFilter;
use outbox::{
    Context, Database, Error, Event, Failure, Fleet, Handled, HandlerTx, Join, JoinId, JoinStatus, JoinWait,
    Message, NewJoin, Outbox,
};
use serde::{Deserialize, Serialize};
use sqlx::{MySql, Postgres, Sqlite};

/// A fleet with the join's database, `home`, and one database of every kind that is configured.
struct JoinFleet {
    _folder: Folder,
    fleet: Fleet,
    kinds: Vec<&'static str>,
}

impl JoinFleet {
    async fn new() -> Self {
        let folder = Folder::new();
        let mut builder = Fleet::builder().migrate(true).max_connections(8);
        builder = builder.database("home", folder.url("home")).database("sqlite", folder.url("remote"));
        let mut kinds = vec!["sqlite"];
        for (kind, variable) in [
            ("postgres", "OUTBOX_TEST_POSTGRES"),
            ("mariadb", "OUTBOX_TEST_MARIADB"),
            ("mysql", "OUTBOX_TEST_MYSQL"),
        ] {
            if let Ok(url) = std::env::var(variable) {
                let database = outbox::fleet::FleetDatabase::new(kind, url).table(fleet_fixtures::table());
                builder = builder.databases([database]);
                kinds.push(kind);
            }
        }
        Self { fleet: builder.open().await.unwrap(), kinds, _folder: folder }
    }

    fn home(&self) -> Outbox<Sqlite> {
        self.fleet.outbox("home").unwrap()
    }

    async fn relay(&self, steps: &Seen, follow_ups: &Seen) -> FleetRelay {
        let handler = steps.returning(|cx| match cx.payload::<u64>()? {
            13 if cx.attempt() == 1 => Err(Failure::dead("thirteen")),
            _ => Ok(outbox::Outcome::Done),
        });
        self.fleet
            .multi_node()
            .on_type("step", handler)
            .on_type("then", follow_ups.handler())
            .on_type("sorry", follow_ups.handler())
            .poll_interval(Duration::from_millis(100))
            .start()
            .await
            .unwrap()
    }

    /// Writes steps to every database but `home`, attached to a join in `home`.
    async fn write_steps(&self, join: &JoinId, numbers: std::ops::Range<u64>) {
        for kind in &self.kinds {
            match *kind {
                "sqlite" => remote::<Sqlite>(&self.fleet, kind, join, numbers.clone()).await,
                "postgres" => remote::<Postgres>(&self.fleet, kind, join, numbers.clone()).await,
                _ => remote::<MySql>(&self.fleet, kind, join, numbers.clone()).await,
            }
        }
    }

    async fn join(&self, id: &JoinId) -> Join {
        self.home().admin().join(id).await.unwrap().unwrap()
    }
}

async fn remote<DB: Database>(fleet: &Fleet, name: &str, join: &JoinId, numbers: std::ops::Range<u64>) {
    let outbox: Outbox<DB> = fleet.outbox(name).unwrap();
    let mut tx = outbox.begin().await.unwrap();
    let steps = ids_of(tx.write_all(numbers.map(|n| numbered("step", n))).await.unwrap());
    tx.joins().attach_all(join.at("home"), &steps).await.unwrap();
    tx.commit().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_in_other_databases_are_counted_in_the_joins_own() {
    let setup = JoinFleet::new().await;
    let (steps, follow_ups) = (Seen::default(), Seen::default());
    let all = setup.kinds.len() as u32 * 10;
    let mut tx = setup.home().begin().await.unwrap();
    let home = setup.home();
    let mut joins = tx.joins();
    let join = joins.start(NewJoin::of(all + 1).group("run")).await.unwrap().id;
    joins.wait(&join, JoinWait::new().then(Event::new("then").json(&7))).await.unwrap();
    tx.commit().await.unwrap();
    let relay = setup.relay(&steps, &follow_ups).await;
    setup.write_steps(&join, 0..10).await;
    // One step is in the join's own database.
    let local = home.send(numbered("step", 99)).await.unwrap().id;
    home.joins().attach(&join, &local).await.unwrap();
    follow_ups.reach(1).await;
    relay.idle().await.unwrap();
    let joined = setup.join(&join).await;
    assert_eq!((joined.completed, joined.failed, joined.status), (all + 1, 0, JoinStatus::Completed));
    assert_eq!(follow_ups.numbers(), [7]);
    relay.stop().await.unwrap();
    setup.fleet.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_step_in_another_database_fails_the_join_and_its_replay_is_counted() {
    let setup = JoinFleet::new().await;
    let (steps, follow_ups) = (Seen::default(), Seen::default());
    let home = setup.home();
    let databases = setup.kinds.len() as u32;
    let join = home.joins().start(NewJoin::of(databases)).await.unwrap().id;
    home.joins().wait(&join, JoinWait::new().if_failed(Event::new("sorry").json(&1))).await.unwrap();
    let relay = setup.relay(&steps, &follow_ups).await;
    setup.write_steps(&join, 13..14).await;
    follow_ups.reach(1).await;
    assert_eq!(setup.join(&join).await.failed, databases);
    let remote: Outbox<Sqlite> = setup.fleet.outbox("sqlite").unwrap();
    let handled = steps.count();
    // The replay begins with attempt 1 again: another handler lets it succeed.
    relay.stop().await.unwrap();
    let (again, none) = (Seen::default(), Seen::default());
    let relay = setup.fleet.multi_node().on_type("step", again.handler()).on_any(none.handler());
    let relay = relay.poll_interval(Duration::from_millis(100)).start().await.unwrap();
    assert_eq!(remote.admin().replay_all(&Default::default(), 10).await.unwrap(), 1);
    again.reach(1).await;
    until("the replayed step is counted", async || setup.join(&join).await.completed > 0).await;
    let joined = setup.join(&join).await;
    assert_eq!((joined.completed, joined.failed, joined.status), (1, databases - 1, JoinStatus::Failed));
    assert_eq!((steps.count(), none.count()), (handled, 0), "the relay handles reports itself");
    relay.stop().await.unwrap();
    setup.fleet.close().await;
}

/// A relay that does not know the join's database keeps the report until a relay that knows it
/// runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_waits_for_a_relay_that_knows_the_joins_database() {
    let setup = JoinFleet::new().await;
    let home = setup.home();
    let join = home.joins().start(NewJoin::of(1)).await.unwrap().id;
    home.joins().wait(&join, JoinWait::new()).await.unwrap();
    let alone: Outbox<Sqlite> = setup.fleet.outbox("sqlite").unwrap();
    remote::<Sqlite>(&setup.fleet, "sqlite", &join, 0..1).await;
    let seen = Seen::default();
    let relay = alone.multi_node().on_any(seen.handler()).start().await.unwrap();
    seen.reach(1).await;
    relay.idle().await.unwrap();
    relay.stop().await.unwrap();
    let waiting = alone.admin().stats().await.unwrap();
    assert_eq!((waiting.new, waiting.done, waiting.dead), (1, 1, 0));
    assert_eq!(setup.join(&join).await.completed, 0);
    assert_eq!(seen.count(), 1);

    let relay = setup.relay(&Seen::default(), &Seen::default()).await;
    until("the join is completed", async || setup.join(&join).await.status == JoinStatus::Completed).await;
    relay.stop().await.unwrap();
    setup.fleet.close().await;
}

fn forged(home: &str, join: &str, step: &str, became: &str) -> outbox::EventBuilder {
    let payload = serde_json::json!({ "home": home, "join": join, "step": step, "became": became });
    Event::new("outbox.join.report").json(&payload)
}

/// The right to insert into one tenant's table does not allow changes to the joins of another
/// tenant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_report_is_dead_and_settles_no_join() {
    let folder = Folder::new();
    let fleet = Fleet::builder()
        .database("tenant-a", folder.url("a"))
        .database("tenant-b", folder.url("b"))
        .migrate(true)
        .open()
        .await
        .unwrap();
    let (a, b): (Outbox<Sqlite>, Outbox<Sqlite>) =
        (fleet.outbox("tenant-a").unwrap(), fleet.outbox("tenant-b").unwrap());
    let join = b.joins().start(NewJoin::of(2)).await.unwrap().id;
    b.joins().wait(&join, JoinWait::new().then(Event::new("payout.approved").json(&1))).await.unwrap();
    let other = b.joins().start(NewJoin::of(1)).await.unwrap().id;
    // A step of tenant-a that is attached, and not due for a day.
    let day = Duration::from_secs(86_400);
    let pending = a.send(Event::new("step").json(&1).deliver_after(day)).await.unwrap().id;
    a.joins().attach(join.at("tenant-b"), &pending).await.unwrap();
    let forgeries = [
        forged("tenant-b", join.as_str(), "s1", "completed"),
        forged("tenant-b", join.as_str(), "s2", "failed"),
        forged("tenant-b", join.as_str(), pending.as_str(), "completed"),
        forged("tenant-b", other.as_str(), pending.as_str(), "completed"),
        forged("nowhere", join.as_str(), "s1", "completed"),
        Event::new("outbox.join.report").json("no report at all"),
    ];
    let count = forgeries.len();
    a.send_all(forgeries).await.unwrap();
    let follow_ups = Seen::default();
    let relay = fleet.multi_node().on_type("payout.approved", follow_ups.handler()).start().await.unwrap();
    relay.idle().await.unwrap();
    let dead = a.admin().dead(&Default::default(), 100).await.unwrap();
    assert_eq!(dead.len(), count, "{dead:?}");
    for event in &dead {
        let reason = event.last_error.as_deref().unwrap_or_default();
        assert!(reason.starts_with("forged join report: "), "{reason}");
    }
    for id in [&join, &other] {
        let found = b.admin().join(id).await.unwrap().unwrap();
        assert_eq!((found.attached, found.completed, found.status), (0, 0, JoinStatus::Pending));
    }
    assert_eq!((follow_ups.count(), b.admin().stats().await.unwrap().new), (0, 0));
    relay.stop().await.unwrap();
    fleet.close().await;
}

/// JSON can encode NUL, and PostgreSQL refuses to compare with it: an error that no retry removes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_with_a_nul_is_dead_at_once_in_every_database() {
    let setup = JoinFleet::new().await;
    let relay = setup.relay(&Seen::default(), &Seen::default()).await;
    for kind in &setup.kinds {
        let dead = match *kind {
            "sqlite" => dead_reports::<Sqlite>(&setup.fleet, kind).await,
            "postgres" => dead_reports::<Postgres>(&setup.fleet, kind).await,
            _ => dead_reports::<MySql>(&setup.fleet, kind).await,
        };
        for reason in dead {
            assert_eq!(reason, "forged join report: a text in the payload contains NUL", "{kind}");
        }
    }
    relay.stop().await.unwrap();
    setup.fleet.close().await;
}

/// Writes reports with a NUL in each of their texts. Returns the reasons why they are dead.
async fn dead_reports<DB: Database>(fleet: &Fleet, name: &str) -> Vec<String> {
    let outbox: Outbox<DB> = fleet.outbox(name).unwrap();
    let reports = [
        forged("home\0", "join-7", "step-7", "completed"),
        forged("home", "join-7\0", "step-7", "completed"),
        forged("home", "join-7", "\0step-7", "failed"),
    ];
    let count = reports.len();
    outbox.send_all(reports).await.unwrap();
    let all_dead = async || {
        let dead = outbox.admin().dead(&Default::default(), 100).await.unwrap();
        if dead.len() == count { Ok(dead) } else { Err(dead) }
    };
    let dead = Poll::DEFAULT.value(&format!("all reports of {name} are dead"), all_dead).await;
    dead.into_iter().map(|event| event.last_error.unwrap_or_default()).collect()
}

/// The writer chooses `occurred_at`: it neither shortens nor extends the time that a report is
/// retried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reports_age_counts_from_the_time_of_storing() {
    let folder = Folder::new();
    let fleet = Fleet::builder().database("a", folder.url("a")).migrate(true).open().await.unwrap();
    let a: Outbox<Sqlite> = fleet.outbox("a").unwrap();
    let seen = Seen::default();
    let step = a.send(numbered("step", 1)).await.unwrap().id;
    a.joins().attach(JoinId::from("join-7").at("gone"), &step).await.unwrap();
    for (set, dead) in [
        ("occurred_at = '2020-01-01 00:00:00.000000'", 0),
        ("occurred_at = '2999-01-01 00:00:00.000000', created_at = '2020-01-01 00:00:00.000000'", 1),
    ] {
        let relay = fleet.multi_node().on_any(seen.handler()).start().await.unwrap();
        seen.reach(1).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        let mut tx = a.begin().await.unwrap();
        let change = format!(
            "UPDATE outbox_event SET available_at = '2020-01-01 00:00:00.000000', {set} \
             WHERE event_type = 'outbox.join.report'"
        );
        let changed = sqlx::query(sqlx::AssertSqlSafe(change)).execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(changed.rows_affected(), 1);
        let relay = fleet.multi_node().on_any(seen.handler()).start().await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(a.admin().stats().await.unwrap().dead, dead, "{set}");
    }
    fleet.close().await;
}

/// Such a report is not retried for ever: a fleet that has the database may start up to a day
/// later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_to_an_unknown_database_is_dead_after_a_day() {
    let folder = Folder::new();
    let fleet = Fleet::builder().database("a", folder.url("a")).migrate(true).open().await.unwrap();
    let a: Outbox<Sqlite> = fleet.outbox("a").unwrap();
    let join = JoinId::from("join-7");
    let seen = Seen::default();
    let step = a.send(numbered("step", 1)).await.unwrap().id;
    a.joins().attach(join.at("gone"), &step).await.unwrap();
    let relay = fleet.multi_node().on_any(seen.handler()).start().await.unwrap();
    seen.reach(1).await;
    relay.idle().await.unwrap();
    assert_eq!(a.admin().stats().await.unwrap().dead, 0, "the report waits");
    relay.stop().await.unwrap();
    let mut tx = a.begin().await.unwrap();
    let older = "UPDATE outbox_event SET available_at = '2020-01-01 00:00:00.000000', \
                 created_at = '2020-01-01 00:00:00.000000', occurred_at = '2020-01-01 00:00:00.000000' \
                 WHERE event_type = 'outbox.join.report'";
    let changed = sqlx::query(older).execute(&mut *tx).await.unwrap().rows_affected();
    tx.commit().await.unwrap();
    assert_eq!(changed, 1);
    let relay = fleet.multi_node().on_any(seen.handler()).start().await.unwrap();
    relay.idle().await.unwrap();
    let dead = a.admin().dead(&Default::default(), 10).await.unwrap();
    let reason = dead[0].last_error.as_deref().unwrap();
    assert!(reason.contains("unknown to this relay for a day"), "{reason}");
    relay.stop().await.unwrap();
    fleet.close().await;
}

#[derive(Serialize, Deserialize)]
struct Booked(i64);
impl Message for Booked {
    const TYPE: &'static str = "booked";
}

async fn book(Booked(amount): Booked, mut tx: HandlerTx<Sqlite>) -> Handled {
    sqlx::query("INSERT INTO account VALUES ($1)").bind(amount).execute(&mut **tx).await?;
    Ok(())
}

/// Each handler gets a transaction of the database that its event is in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_get_transactions_of_their_events_own_database() {
    let folder = Folder::new();
    let fleet = Fleet::builder()
        .database("a", folder.url("a"))
        .database("b", folder.url("b"))
        .migrate(true)
        .max_connections(2)
        .open()
        .await
        .unwrap();
    for (name, amounts) in [("a", 0..10), ("b", 100..130)] {
        let outbox: Outbox<Sqlite> = fleet.outbox(name).unwrap();
        let mut tx = outbox.begin().await.unwrap();
        sqlx::query("CREATE TABLE account (amount INTEGER)").execute(&mut *tx).await.unwrap();
        tx.write_all(amounts.map(Booked)).await.unwrap();
        tx.commit().await.unwrap();
    }
    let relay = fleet.multi_node().on(book).start().await.unwrap();
    relay.idle().await.unwrap();
    for (name, sum) in [("a", (0..10).sum::<i64>()), ("b", (100..130).sum())] {
        let outbox: Outbox<Sqlite> = fleet.outbox(name).unwrap();
        let mut tx = outbox.begin().await.unwrap();
        let found: i64 =
            sqlx::query_scalar("SELECT sum(amount) FROM account").fetch_one(&mut *tx).await.unwrap();
        tx.rollback().await.unwrap();
        assert_eq!(found, sum, "{name}");
        assert!(outbox.admin().joins(&JoinFilter::default(), 1).await.unwrap().is_empty());
    }
    relay.stop().await.unwrap();
    fleet.close().await;
}

/// Before anything is served, with an error that names the wanted database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_wants_another_kind_of_transaction_is_refused_at_start() {
    async fn on_postgres(_: Booked, _: HandlerTx<Postgres>) -> Handled {
        Ok(())
    }
    let folder = Folder::new();
    let fleet = Fleet::builder().database("a", folder.url("a")).migrate(true).open().await.unwrap();
    let error = fleet.multi_node().on(on_postgres).start().await.unwrap_err();
    assert!(matches!(&error, Error::Setting { reason, .. } if reason.contains("PostgreSQL")), "{error:?}");
    let relay = fleet.multi_node().on(book).start().await.unwrap();
    relay.stop().await.unwrap();
    fleet.close().await;
}

/// A handler of a fleet can find the outbox of its event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_knows_which_database_its_event_is_in() {
    let folder = Folder::new();
    let names = ["a", "b", "c"];
    let mut builder = Fleet::builder().migrate(true);
    for name in names {
        builder = builder.database(name, folder.url(name));
    }
    let fleet = builder.open().await.unwrap();
    let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
    let relay = fleet.multi_node().on_type("n", move |cx: Context| {
        let sender = sender.clone();
        async move { sender.send((cx.store().to_owned(), cx.payload::<String>().unwrap())).unwrap() }
    });
    let relay = relay.start().await.unwrap();
    for name in names {
        let outbox: Outbox<Sqlite> = fleet.outbox(name).unwrap();
        outbox.send(Event::new("n").json(name)).await.unwrap();
        let (store, name_sent) = received.recv().await.unwrap();
        assert_eq!((store.as_str(), name_sent.as_str()), (name, name));
    }
    relay.stop().await.unwrap();
    fleet.close().await;
}

/// The file of a tenant that was deleted is not created again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_file_is_not_created_again() {
    let folder = Folder::new();
    let fleet = Fleet::builder()
        .database("a", folder.url("a"))
        .database("b", folder.url("b"))
        .migrate(true)
        // One connection: serving one database closes the connection of the other.
        .max_connections(1)
        .open()
        .await
        .unwrap();
    let relay = fleet.multi_node().poll_interval(Duration::from_millis(20)).start().await.unwrap();
    relay.idle().await.unwrap();
    for end in ["db", "db-wal", "db-shm"] {
        let _ = std::fs::remove_file(folder.file("a").with_extension(end));
    }
    until("the missing file is noticed", async || {
        matches!(fleet_fixtures::state_of(&fleet, "a"), Some(outbox::fleet::DatabaseState::Failing { .. }))
    })
    .await;
    assert!(!folder.file("a").with_extension("db").exists());
    relay.stop().await.unwrap();
    fleet.close().await;
}
