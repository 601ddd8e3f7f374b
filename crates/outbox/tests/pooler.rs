//! The outbox behind PgBouncer in transaction mode: everything works, and no state stays in the
//! server's sessions.
#![cfg(feature = "postgres")]
#![allow(missing_docs)]

#[path = "common/harness.rs"]
mod harness;
#[path = "common/polling.rs"]
mod polling;

use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use harness::{DatabaseHarness, postgres_url, unique_table};
use outbox::fleet::FleetDatabase;
use outbox::{
    Context, Error, Event, Fleet, Handled, LatchPublisher, Outbox, OutboxBuilder, Pooler, Query, Topic,
};
use outbox_testbed::{Plan, Server};
use polling::until;
use sqlx::{Connection as _, PgConnection, PgPool, Postgres, Row as _};

/// Number of sessions of a pooler in these tests.
const SESSIONS: usize = 3;
const FOREVER: Duration = Duration::from_secs(60);

/// PgBouncer with default settings, for tests that do not inspect its sessions.
static SHARED: LazyLock<Option<Server>> = LazyLock::new(|| Some(plan(&postgres_url()?)?.start()));

fn plan(upstream: &str) -> Option<Plan> {
    Some(Plan::pgbouncer(upstream)).filter(Plan::is_here)
}

/// The suite's store is opened by URL alone: the library detects the pooler.
mod conformance {
    outbox::conformance_tests!(super::behind_pooler().await);
}

async fn behind_pooler() -> Option<DatabaseHarness> {
    let url = SHARED.as_ref()?.url();
    Some(DatabaseHarness { database: harness::Database::Postgres(url), table: unique_table() })
}

/// Starts a pooler for each way in which it treats prepared statements: it does not know them, or
/// passes them on. Versions before 1.21 have only the first.
fn poolers() -> Vec<Server> {
    let Some(url) = postgres_url() else { return Vec::new() };
    let Some(plan) = plan(&url) else { return Vec::new() };
    let plan = plan.config(&format!("default_pool_size = {SESSIONS}"));
    let version = Command::new("pgbouncer").arg("--version").output();
    let version = version.or_else(|_| Command::new("/usr/sbin/pgbouncer").arg("--version").output()).unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let minor = version.split_whitespace().nth(1).and_then(|v| v.split('.').nth(1)?.parse::<u32>().ok());
    if minor.unwrap() < 21 {
        return vec![plan.start()];
    }
    ["0", "50"].map(|n| plan.clone().config(&format!("max_prepared_statements = {n}")).start()).into()
}

/// Every session of a pooler, each in a transaction so that none is returned twice.
async fn sessions(pooler: &Server) -> Vec<PgConnection> {
    let mut connections = Vec::new();
    for _ in 0..SESSIONS {
        let options = outbox::connect::postgres(&pooler.url()).unwrap();
        let mut conn = PgConnection::connect_with(&options).await.unwrap();
        sqlx::raw_sql("BEGIN").execute(&mut conn).await.unwrap();
        connections.push(conn);
    }
    connections
}

/// The settings, locks, channels and statements of a session, as a text.
async fn state(conn: &mut PgConnection) -> String {
    const STATE: &str = "SELECT concat_ws(' ', \
        (SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings \
            WHERE source = 'session' AND name NOT IN ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', \
            'transaction_isolation', 'transaction_read_only', 'transaction_deferrable')), \
        (SELECT string_agg('lock ' || objid, ' ') FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()), \
        (SELECT string_agg('listens to ' || c, ' ') FROM pg_listening_channels() c), \
        (SELECT string_agg('prepared ' || name, ' ') FROM pg_prepared_statements))";
    sqlx::raw_sql(STATE).fetch_one(conn).await.unwrap().get(0)
}

async fn pid(conn: &mut PgConnection) -> i32 {
    let pid: String = sqlx::raw_sql("SELECT pg_backend_pid()::text").fetch_one(conn).await.unwrap().get(0);
    pid.parse().unwrap()
}

async fn done(_: Context) -> Handled {
    Ok(())
}

/// Writers, relays in every mode, handlers in transactions, joins, the queue, the log and its
/// publishers.
async fn everything(url: &str, table: &str) {
    let open = || OutboxBuilder::new().table(table).max_connections(4);
    let outbox = open().postgres(url).await.unwrap();
    outbox.migrate().await.unwrap();
    for relay in [outbox.single_node(), outbox.multi_node(), outbox.ordered()] {
        let relay = relay.poll_interval(Duration::from_millis(50)).on_any(done).start().await.unwrap();
        let keyed = (0..20).map(|n| Event::new("e").json(&n).ordering_key(format!("k{}", n % 3)));
        outbox.send_all(keyed).await.unwrap();
        outbox.send(Event::new("e").json(&1).dedup_key("d")).await.unwrap();
        outbox.fan_out([Event::new("e").json(&1)]).then(Event::new("e").json(&2)).send().await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
    }
    let stats = outbox.admin().stats().await.unwrap();
    assert_eq!((stats.new, stats.retry, stats.dead, stats.done), (0, 0, 0, 3 * 22 + 1), "{stats:?}");

    let latch = LatchPublisher::expecting(2);
    let relay = outbox.log_only().publish(Topic::new("all").to(latch.clone())).start().await.unwrap();
    let log = outbox.log();
    let tagged = |n: u8| Event::new("e").json(&n).tag("n", 1);
    log.append([tagged(1)]).await.unwrap();
    let read = log.project(Query::tag("n", 1), 0, |n, _| n + 1).await.unwrap();
    assert!(log.append_if([tagged(2)], read.unchanged()).await.is_ok());
    assert!(matches!(log.append_if([tagged(3)], read.unchanged()).await, Err(Error::Conflict { .. })));
    latch.wait(FOREVER).await.unwrap();
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_works_and_nothing_stays_in_the_sessions() {
    for pooler in poolers() {
        everything(&pooler.url(), &unique_table()).await;
        let mut sessions = sessions(&pooler).await;
        let mut pids = Vec::new();
        for session in &mut sessions {
            assert_eq!(state(session).await, "");
            pids.push(pid(session).await);
        }
        pids.dedup();
        assert_eq!(pids.len(), SESSIONS, "all sessions were inspected");
    }
}

/// The inspection of sessions detects the state that it looks for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_that_stays_in_a_session_is_detected() {
    let Some(url) = postgres_url() else { return };
    let mut conn = PgConnection::connect(&url).await.unwrap();
    for (leave, seen) in [
        ("SET enable_seqscan = off", "enable_seqscan=off"),
        ("SELECT pg_advisory_lock(42)", "lock 42"),
        ("LISTEN pooler_test", "listens to pooler_test"),
        ("PREPARE sqlx_s_1 AS SELECT 1", "prepared sqlx_s_1"),
    ] {
        sqlx::raw_sql(leave).execute(&mut conn).await.unwrap();
        let state = state(&mut conn).await;
        assert!(state.contains(seen), "{seen} in {state:?}");
    }
}

/// The library does not inspect a pool of the application: the application says that it connects to
/// a pooler.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_behind_a_pooler_works_if_it_is_declared() {
    for pooler in poolers() {
        let pool = PgPool::connect_lazy_with(outbox::connect::postgres(&pooler.url()).unwrap());
        let builder = OutboxBuilder::new().table(unique_table()).pooler(Pooler::Transaction);
        let outbox = builder.on_pool(&pool).unwrap();
        outbox.migrate().await.unwrap();
        let relay = outbox.multi_node().on_any(done).start().await.unwrap();
        outbox.send_all((0..20).map(|n| Event::new("e").json(&n))).await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(outbox.admin().stats().await.unwrap().done, 20);
        for session in &mut sessions(&pooler).await {
            assert_eq!(state(session).await, "");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_works_behind_a_pooler() {
    for pooler in poolers() {
        let databases =
            ["one", "two"].map(|name| FleetDatabase::new(name, pooler.url()).table(unique_table()));
        let fleet = Fleet::builder().databases(databases).migrate(true).open().await.unwrap();
        let latch = LatchPublisher::expecting(20);
        let relay = fleet.ordered().forward(["e"], latch.clone()).start().await.unwrap();
        for name in ["one", "two"] {
            let outbox: Outbox<Postgres> = fleet.outbox(name).unwrap();
            let events = (0..10).map(|n| Event::new("e").json(&n).ordering_key("k"));
            outbox.send_all(events).await.unwrap();
        }
        latch.wait(FOREVER).await.unwrap();
        relay.stop().await.unwrap();
        fleet.close().await;
        for session in &mut sessions(&pooler).await {
            assert_eq!(state(session).await, "");
        }
    }
}

/// An hour between two polls: only a notification delivers the event in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_direct_url_wakes_a_relay_behind_a_pooler() {
    let (Some(direct), Some(pooler)) = (postgres_url(), SHARED.as_ref()) else { return };
    let open = || OutboxBuilder::new().table("unused").max_connections(4);
    let table = unique_table();
    let writer = open().table(&table).postgres(&pooler.url()).await.unwrap();
    writer.migrate().await.unwrap();
    assert!(writer.store().watch().await.unwrap().is_none(), "no LISTEN through a pooler");
    assert!(writer.store().listen().await.unwrap().is_none(), "no LISTEN through a pooler");

    let outbox = open().table(&table).direct_url(&direct).postgres(&pooler.url()).await.unwrap();
    let latch = LatchPublisher::expecting(1);
    let hour = Duration::from_secs(3_600);
    let relay = outbox.multi_node().poll_interval(hour).forward(["e"], latch.clone()).start().await.unwrap();
    // Waiting: the relay's session holds the lock that makes writers notify.
    let waiting = format!(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted \
         AND (classid::bigint << 32 | objid::bigint) = hashtextextended(current_schema() || '.{table}', 11)"
    );
    let mut conn = PgConnection::connect(&direct).await.unwrap();
    let is_waiting = async || {
        let waiting = sqlx::raw_sql(sqlx::AssertSqlSafe(waiting.clone())).fetch_one(&mut conn).await.unwrap();
        waiting.get::<i64, _>(0) > 0
    };
    until("the relay waits for notifications", is_waiting).await;
    writer.send(Event::new("e").json(&1)).await.unwrap();
    latch.wait(FOREVER).await.expect("the writer wakes the relay");
    relay.stop().await.unwrap();

    let twice = open().direct_url(pooler.url()).postgres(&pooler.url()).await;
    assert!(matches!(twice, Err(Error::Setting { reason, .. }) if reason.contains("direct_url")));
}
