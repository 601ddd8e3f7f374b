//! Health of a relay: its last successes, its current failures, and their start.

mod common;
#[path = "common/failing_store.rs"]
mod failing_store;

use std::time::Duration;

use common::{Backend, Seen, TestDb, in_time, until};
use failing_store::FailingStore;
use outbox::fleet::DatabaseState;
use outbox::store::RelayTask;
use outbox::{Context, Event, Fleet, Outbox, Reason, RelayBuilder};
use sqlx::Sqlite;

const MS: Duration = Duration::from_millis(1);

/// Renames a column that takes need.
const BREAK: &str = "ALTER TABLE {t} RENAME COLUMN correlation_id TO elsewhere";
const REPAIR: &str = "ALTER TABLE {t} RENAME COLUMN elsewhere TO correlation_id";

/// Statements that make every claim fail while everything can be read, and that undo this.
fn no_claims<DB: Backend>() -> (&'static str, &'static str) {
    let name = std::any::type_name::<DB>();
    if name.contains("Postgres") {
        return (
            "CREATE FUNCTION {t}_no() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN RAISE EXCEPTION ''the index is corrupt''; END'; \
             CREATE TRIGGER {t}_no BEFORE INSERT ON {t}_batch FOR EACH ROW EXECUTE FUNCTION {t}_no()",
            "DROP TRIGGER {t}_no ON {t}_batch; DROP FUNCTION {t}_no()",
        );
    }
    let fails = if name.contains("MySql") {
        "CREATE TRIGGER {t}_no BEFORE UPDATE ON {t} FOR EACH ROW \
         SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the index is corrupt'"
    } else {
        "CREATE TRIGGER {t}_no BEFORE UPDATE ON {t} BEGIN SELECT RAISE(ABORT, 'the index is corrupt'); END"
    };
    (fails, "DROP TRIGGER {t}_no")
}

on_every_database! {
    async fn a_relay_whose_takes_fail_reports_it_until_they_succeed(|db|) {
        let seen = Seen::default();
        let other = db.another().await;
        let relay = other.outbox.multi_node().node("shop-1").on_type("e", seen.handler()).poll_interval(50 * MS)
            .start().await.unwrap();
        until("a take succeeds", async || relay.health().last_take.is_some()).await;
        assert!(relay.health().errors.is_empty(), "{:?}", relay.health());

        let (fails, repaired) = no_claims::<DB>();
        db.run(fails).await.unwrap();
        let ids = db.write("e", 0..1).await;
        until("the takes fail", async || relay.health().problem(RelayTask::Take).is_some()).await;
        let health = relay.health();
        let problem = health.problem(RelayTask::Take).unwrap();
        assert!(problem.error.contains("the index is corrupt"), "{problem}");
        assert!(problem.failures >= 3, "{health:?}");

        // Other programs read the failure in the relay's row.
        let explained = async || db.outbox.admin().explain(&ids[0]).await.unwrap();
        until("the failure is stored", async || matches!(explained().await.reason(), Reason::RelayFails { .. })).await;
        let text = explained().await.to_string();
        assert!(text.contains("relay shop-1 has failed to take events"), "{text}");
        assert!(text.contains("the index is corrupt") && !text.contains("At work"), "{text}");

        db.run(repaired).await.unwrap();
        seen.reach(1).await;
        db.drained().await;
        until("the relay recovers", async || relay.health().errors.is_empty()).await;
        assert!(relay.health().last_settlement.is_some());
        let stored = async || db.outbox.store().nodes().await.unwrap().remove(0).state.health;
        until("the recovery is stored", async || stored().await.errors.is_empty()).await;
        relay.stop().await.unwrap();
    }

    async fn a_leader_that_cannot_read_the_table_reports_it_until_it_can(|db|) {
        let other = db.another().await;
        let seen = Seen::default();
        let relay = other.outbox.single_node().on_type("e", seen.handler()).poll_interval(50 * MS).start().await.unwrap();
        until("a take succeeds", async || relay.health().last_take.is_some()).await;
        db.run(BREAK).await.unwrap();
        until("the takes fail", async || relay.health().problem(RelayTask::Take).is_some()).await;
        let problem = relay.health().problem(RelayTask::Take).unwrap().to_string();
        assert!(problem.contains("correlation_id"), "{problem}");
        db.run(REPAIR).await.unwrap();
        db.write("e", 0..1).await;
        seen.reach(1).await;
        until("the relay recovers", async || relay.health().errors.is_empty()).await;
        relay.stop().await.unwrap();
    }

    async fn a_relay_whose_settlements_fail_reports_it_until_they_succeed(|db|) {
        let store = FailingStore::settle(db.outbox.store(), usize::MAX, || sqlx::Error::PoolTimedOut.into());
        let seen = Seen::default();
        let relay = RelayBuilder::multi_node(store.clone()).on_type("e", seen.handler()).start().await.unwrap();
        db.write("e", 0..1).await;
        until("the settlements fail", async || relay.health().problem(RelayTask::Settle).is_some()).await;
        assert_eq!(relay.health().last_settlement, None);
        store.heal();
        db.drained().await;
        until("the relay recovers", async || relay.health().errors.is_empty()).await;
        assert!(relay.health().last_settlement.is_some());
        seen.assert_each_once(0..1);
        relay.stop().await.unwrap();
    }
}

/// A relay that stands by takes nothing, and has no failed take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_stands_by_has_no_take_to_fail() {
    in_time(async {
        let db = TestDb::<Sqlite>::new().await.unwrap();
        let other = db.another().await;
        let first = db.outbox.single_node().start().await.unwrap();
        let second = other.outbox.single_node().poll_interval(5 * MS).start().await.unwrap();
        until("the leader takes events", async || first.health().last_take.is_some()).await;
        second.poll_once().await.unwrap();
        assert!(!second.is_active());
        assert_eq!((second.health().last_take, second.health().errors.len()), (None, 0));
        second.stop().await.unwrap();
        first.stop().await.unwrap();
    })
    .await;
}

/// The other databases are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_a_fleet_whose_takes_fail_is_failing() {
    in_time(async {
        let folder = tempfile::tempdir().unwrap();
        let url = |name: &str| format!("sqlite:{}/{name}.db", folder.path().display());
        let fleet = Fleet::builder()
            .database("acme", url("acme"))
            .database("globex", url("globex"))
            .migrate(true)
            .open()
            .await
            .unwrap();
        let seen = Seen::default();
        let relay = fleet
            .multi_node()
            .on_type("e", seen.handler())
            .on_any(async |_: Context| ())
            .poll_interval(50 * MS)
            .start()
            .await
            .unwrap();
        relay.idle().await.unwrap();
        let state = |name: &str| relay.databases().into_iter().find(|d| d.name == name).unwrap();
        assert_eq!(state("acme").state, DatabaseState::Active);
        assert!(state("acme").health.unwrap().last_take.is_some());

        let acme: Outbox<Sqlite> = fleet.outbox("acme").unwrap();
        let pool = sqlx::SqlitePool::connect(&url("acme")).await.unwrap();
        let run = async |sql: &str| {
            let sql = sql.replace("{t}", "outbox_event");
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await.unwrap();
        };
        run(BREAK).await;
        let is_failing = |name: &str| matches!(state(name).state, DatabaseState::Failing { .. });
        until("acme is failing", async || is_failing("acme")).await;
        let DatabaseState::Failing { reason } = state("acme").state else {
            panic!("it was failing just now")
        };
        assert!(reason.starts_with("the relay has failed to take events since "), "{reason}");
        assert!(reason.contains("correlation_id"), "{reason}");
        let globex: Outbox<Sqlite> = fleet.outbox("globex").unwrap();
        globex.send(Event::new("e").json(&1)).await.unwrap();
        seen.reach(1).await;
        assert!(!is_failing("globex"));

        run(REPAIR).await;
        acme.send(Event::new("e").json(&2)).await.unwrap();
        seen.reach(2).await;
        until("acme is active again", async || state("acme").state == DatabaseState::Active).await;
        relay.stop().await.unwrap();
    })
    .await;
}
