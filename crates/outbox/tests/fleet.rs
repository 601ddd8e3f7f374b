//! A relay for many databases.

mod common;
#[path = "common/fleet_fixtures.rs"]
mod fleet_fixtures;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{Gate, Seen, in_time, numbered, until};
use fleet_fixtures::{Answer, Folder, Proxy, Script, silent_server, state_of};
use outbox::fleet::{DatabaseState, DrainFirst, FleetDatabase, Polled, RoundRobin, Selection};
use outbox::store::Status;
use outbox::{Context, Error, Event, Fleet, LatchPublisher, Outbox, Position, Query, Topic};
use sqlx::{MySql, Postgres, Sqlite};

type Result<T = ()> = outbox::Result<T>;

/// Poll interval of the tests: several polls a second.
const POLL: Duration = Duration::from_millis(200);

#[tokio::test]
async fn the_router_finds_a_database_by_text_and_by_uuid() -> Result {
    let folder = Folder::new();
    let id = uuid::Uuid::from_u128(0xA11CE);
    let fleet =
        Fleet::builder().database("acme", folder.url("acme")).database(id, folder.url("b")).open().await?;
    let acme: Outbox<Sqlite> = fleet.outbox("acme")?;
    let by_id: Outbox<Sqlite> = fleet.outbox(id)?;
    let by_text: Outbox<Sqlite> = fleet.outbox(id.to_string())?;
    assert!(std::ptr::eq(by_id.pool(), by_text.pool()), "the same outbox");
    assert!(!std::ptr::eq(acme.pool(), by_id.pool()));
    assert!(std::ptr::eq(acme.pool(), fleet.outbox::<Sqlite>("acme".to_owned())?.pool()), "cached");
    Ok(())
}

#[tokio::test]
async fn every_database_of_a_fleet_has_its_log() -> Result {
    let folder = Folder::new();
    let mut builder = Fleet::builder().database("acme", folder.url("acme"));
    let postgres = std::env::var("OUTBOX_TEST_POSTGRES").ok();
    if let Some(url) = &postgres {
        builder = builder.databases([FleetDatabase::new("globex", url).table(fleet_fixtures::table())]);
    }
    let fleet = builder.migrate(true).open().await?;
    let databases = 1 + usize::from(postgres.is_some());
    let latch = LatchPublisher::expecting(2 * databases);
    let relay = fleet.multi_node().publish(Topic::new("all").to(latch.clone())).start().await?;
    appends_conditionally(&fleet.outbox::<Sqlite>("acme")?).await?;
    if postgres.is_some() {
        appends_conditionally(&fleet.outbox::<Postgres>("globex")?).await?;
    }
    let published = latch.wait(common::FOREVER).await.expect("every log is published");
    assert_eq!(published.len(), 2 * databases);
    relay.stop().await
}

/// Appends conditionally, alone and in a transaction.
async fn appends_conditionally<DB: outbox::Database>(outbox: &Outbox<DB>) -> Result {
    let (log, query) = (outbox.log(), Query::tag("n", 1));
    let event = || numbered("e", 1).tag("n", 1);
    let read = log.project(query.clone(), 0, |n, _| n + 1).await?;
    assert_eq!(log.append_if([event()], read.unchanged()).await?.positions().len(), 1);
    assert!(matches!(log.append_if([event()], read.unchanged()).await, Err(Error::Conflict { .. })));
    let mut tx = outbox.begin().await?;
    let read = tx.project(query.clone(), 0, |n, _| n + 1).await?;
    assert_eq!(tx.append_if([event()], read.unchanged()).await?.positions().len(), 1);
    tx.commit().await?;
    assert_eq!(log.read(&query, Position::START, 10).await?.len(), 2);
    Ok(())
}

#[tokio::test]
async fn the_router_names_what_it_cannot_find() -> Result {
    let folder = Folder::new();
    let fleet = Fleet::builder().database("acme", folder.url("acme")).open().await?;
    let unknown = fleet.outbox::<Sqlite>("globex").unwrap_err();
    assert!(matches!(&unknown, Error::UnknownRoute { key } if key == "globex"), "{unknown:?}");
    assert!(unknown.to_string().starts_with("no database is registered under \"globex\""), "{unknown}");
    let wrong = fleet.outbox::<Postgres>("acme").unwrap_err();
    assert!(matches!(&wrong, Error::WrongKind { found: "SQLite", wanted: "PostgreSQL", .. }), "{wrong:?}");
    assert_eq!(
        wrong.to_string(),
        "the database \"acme\" is SQLite, but an outbox on PostgreSQL was requested"
    );
    Ok(())
}

#[tokio::test]
async fn mistakes_are_reported_before_anything_runs() {
    let folder = Folder::new();
    let open = async |builder: outbox::fleet::FleetBuilder| builder.open().await.unwrap_err();
    let none = open(Fleet::builder()).await;
    assert!(matches!(&none, Error::Setting { reason, .. } if reason.contains("without databases")), "{none}");
    let twice = open(Fleet::builder().database("a", folder.url("a")).database("a", folder.url("b"))).await;
    assert!(matches!(&twice, Error::DuplicateDatabase { name } if name == "a"), "{twice}");
    for url in ["sqlite::memory:", "oracle://ada:s3cret@db/x", "postgres://ada:s3cret@db:nowhere/x"] {
        let bad = open(Fleet::builder().database("a", url)).await;
        assert!(matches!(bad, Error::Url { .. }), "{bad:?}");
        assert!(!format!("{bad} {bad:?}").contains("s3cret"), "{bad}");
    }
    let unnamed = open(Fleet::builder().database("", folder.url("a"))).await;
    assert!(matches!(unnamed, Error::Setting { .. }), "{unnamed}");
    let zero = open(Fleet::builder().database("a", folder.url("a")).max_connections(0)).await;
    assert!(matches!(zero, Error::Setting { .. }), "{zero}");
    let both = Script::of([Answer::Found(vec![folder.database("a")])]);
    let both = open(Fleet::builder().database("a", folder.url("a")).discovery(both)).await;
    assert!(matches!(both, Error::Setting { .. }), "{both}");
}

/// In each mode and on each kind of database, the relay delivers events of the router and of other
/// programs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_relay_delivers_from_databases_of_all_kinds() -> Result {
    for mode in [Fleet::single_node, Fleet::multi_node, Fleet::ordered] {
        let folder = Folder::new();
        let mut builder =
            Fleet::builder().database("lite", folder.url("lite")).migrate(true).max_connections(4);
        let table = fleet_fixtures::table();
        let postgres = std::env::var("OUTBOX_TEST_POSTGRES").ok();
        let mariadb = std::env::var("OUTBOX_TEST_MARIADB").ok();
        let mysql = std::env::var("OUTBOX_TEST_MYSQL").ok();
        for (name, url) in [("pg", &postgres), ("maria", &mariadb), ("mysql", &mysql)] {
            builder =
                builder.databases(url.iter().map(|url| FleetDatabase::new(name, url.as_str()).table(&table)));
        }
        let fleet = builder.open().await?;
        let seen = Seen::default();
        let relay = mode(&fleet).poll_interval(POLL).on_type("n", seen.handler()).start().await?;
        in_time(async {
            let mut sent = 0;
            fleet.outbox::<Sqlite>("lite")?.send_all((0..5).map(|n| numbered("n", n))).await?;
            sent += 5;
            if let Some(url) = &postgres {
                fleet.outbox::<Postgres>("pg")?.send_all((5..10).map(|n| numbered("n", n))).await?;
                let other = outbox::OutboxBuilder::new().table(&table).postgres(url).await?;
                other.send(numbered("n", 15)).await?;
                sent += 6;
            }
            for (name, url) in [("maria", &mariadb), ("mysql", &mysql)] {
                if url.is_some() {
                    fleet.outbox::<MySql>(name)?.send_all((10..15).map(|n| numbered("n", n))).await?;
                    sent += 5;
                }
            }
            seen.reach(sent).await;
            relay.idle().await?;
            assert_eq!(seen.count(), sent, "each once");
            relay.stop().await?;
            fleet.close().await;
            assert_eq!(fleet.connections(), 0);
            Ok::<_, Error>(())
        })
        .await?;
    }
    Ok(())
}

/// D-03. A quarter of the connections may wait for notifications. The other databases are polled.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_by_another_program_wakes_the_relay_of_a_fleet_on_postgres() -> Result {
    let Ok(url) = std::env::var("OUTBOX_TEST_POSTGRES") else { return Ok(()) };
    let tables: Vec<String> = (0..3).map(|_| fleet_fixtures::table()).collect();
    let database = |table: &String| FleetDatabase::new(table.as_str(), url.as_str()).table(table);
    for table in &tables {
        outbox::OutboxBuilder::new().table(table).postgres(&url).await?.migrate().await?;
    }
    let (woken, polled) = tables.split_at(2);
    let fleet = Fleet::builder().databases(woken.iter().map(database)).max_connections(8).open().await?;
    let seen = Seen::default();
    let never = Duration::from_secs(3_600);
    let relay = fleet.multi_node().poll_interval(never).on_type("n", seen.handler()).start().await?;
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    let insert = async |table: &str, n: usize| {
        let insert = format!("INSERT INTO {table} (event_type, payload) VALUES ('n', '{n}')");
        sqlx::raw_sql(sqlx::AssertSqlSafe(insert)).execute(&pool).await.unwrap();
    };
    // The relay holds a lock while it waits for notifications, and writers notify only then.
    let is_waiting = async |table: &str| {
        let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted \
                    AND (classid::bigint << 32) | objid::bigint = hashtextextended('public.' || $1, 11)";
        let locks = async || sqlx::query_scalar::<_, i64>(held).bind(table).fetch_one(&pool).await.unwrap();
        until("the relay waits for notifications", async || locks().await > 0).await;
    };
    in_time(async {
        for n in 0..20 {
            is_waiting(&woken[n % 2]).await;
            insert(&woken[n % 2], n).await;
            seen.reach(n + 1).await;
            assert!(fleet.connections() <= 8, "{}", fleet.connections());
        }
        relay.stop().await?;
        fleet.close().await;
        assert_eq!(fleet.connections(), 0);
        // One database too many: its events are polled.
        let fleet = Fleet::builder().databases(tables.iter().map(database)).max_connections(8).open().await?;
        let relay = fleet.multi_node().poll_interval(POLL).on_type("n", seen.handler()).start().await?;
        insert(&polled[0], 20).await;
        seen.reach(21).await;
        relay.stop().await?;
        fleet.close().await;
        assert_eq!(fleet.connections(), 0);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_lives_with_a_single_connection() -> Result {
    let folder = Folder::new();
    let names: Vec<String> = (0..8).map(|n| format!("db-{n}")).collect();
    let databases = names.iter().map(|name| folder.database(name));
    let fleet = Fleet::builder().databases(databases).migrate(true).max_connections(1).open().await?;
    let seen = Seen::default();
    let relay = fleet.multi_node().poll_interval(POLL).on_type("n", seen.handler()).start().await?;
    in_time(async {
        for (n, name) in names.iter().enumerate() {
            fleet.outbox::<Sqlite>(name)?.send(numbered("n", n as u64)).await?;
            assert!(fleet.connections() <= 1);
        }
        seen.reach(8).await;
        relay.stop().await?;
        seen.assert_each_once(0..8);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_transaction_of_a_fleet_is_rolled_back_when_it_is_dropped() -> Result {
    let folder = Folder::new();
    let fleet = Fleet::builder().database("a", folder.url("a")).migrate(true).open().await?;
    let outbox: Outbox<Sqlite> = fleet.outbox("a")?;
    let mut tx = outbox.begin().await?;
    tx.write(numbered("n", 1)).await?;
    drop(tx);
    // A `begin` that is dropped half way leaves no connection behind either.
    for _ in 0..50 {
        let mut begin = Box::pin(outbox.begin());
        let _ = futures_util::FutureExt::now_or_never(begin.as_mut());
        tokio::task::yield_now().await;
        let _ = futures_util::FutureExt::now_or_never(begin.as_mut());
    }
    outbox.send(numbered("n", 2)).await?;
    assert_eq!(outbox.admin().stats().await?.new, 1);
    assert!(fleet.connections() <= 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_adds_and_removes_after_two_absences() -> Result {
    let folder = Folder::new();
    let (a, b) = (folder.database("a"), folder.database("b"));
    let script = Script::of([
        Answer::Found(vec![a.clone()]),
        Answer::Found(vec![a.clone(), b.clone()]),
        Answer::Found(vec![a.clone()]),
        Answer::Found(vec![a.clone(), b.clone()]),
        Answer::Found(vec![a.clone()]),
        Answer::Found(vec![a.clone()]),
    ]);
    let fleet = Fleet::builder().discovery(script).migrate(true).open().await?;
    let seen = Seen::default();
    let relay = fleet.multi_node().poll_interval(POLL).on_type("n", seen.handler()).start().await?;
    let outbox_a: Outbox<Sqlite> = fleet.outbox("a")?;
    assert!(matches!(fleet.outbox::<Sqlite>("b"), Err(Error::UnknownRoute { .. })));

    fleet.refresh().await?;
    let outbox_b: Outbox<Sqlite> = fleet.outbox("b")?;
    outbox_b.send(numbered("n", 1)).await?;
    in_time(seen.reach(1)).await;

    fleet.refresh().await?;
    fleet.outbox::<Sqlite>("b")?;
    fleet.refresh().await?;
    fleet.refresh().await?;
    assert!(
        std::ptr::eq(outbox_b.pool(), fleet.outbox::<Sqlite>("b")?.pool()),
        "missing once, twice, not in a row"
    );
    fleet.refresh().await?;
    assert!(matches!(fleet.outbox::<Sqlite>("b"), Err(Error::UnknownRoute { .. })));
    assert!(std::ptr::eq(outbox_a.pool(), fleet.outbox::<Sqlite>("a")?.pool()), "a was never recreated");
    until("b is gone", async || state_of(&fleet, "b").is_none()).await;
    let late = outbox_b.send(numbered("n", 2)).await.unwrap_err();
    assert!(matches!(late, Error::Unavailable { .. }), "{late:?}");
    relay.stop().await
}

#[tokio::test]
async fn a_failed_discovery_removes_nothing() -> Result {
    let folder = Folder::new();
    let a = folder.database("a");
    let script = Script::of([
        Answer::Found(vec![a.clone()]),
        Answer::Error,
        Answer::Panic,
        Answer::Found(vec![]),
        Answer::Found(vec![folder.database("x"), folder.database("x")]),
        Answer::Error,
        Answer::Found(vec![a.clone(), folder.database("b")]),
    ]);
    let fleet = Fleet::builder().discovery(script).absences(1).open().await?;
    let outbox: Outbox<Sqlite> = fleet.outbox("a")?;
    for _ in 0..3 {
        assert!(matches!(fleet.refresh().await, Err(Error::Discovery(_))));
    }
    assert!(matches!(fleet.refresh().await, Err(Error::DuplicateDatabase { .. })));
    assert!(fleet.refresh().await.is_err());
    assert_eq!(fleet.databases().len(), 1);
    fleet.refresh().await?;
    assert!(std::ptr::eq(outbox.pool(), fleet.outbox::<Sqlite>("a")?.pool()));
    fleet.outbox::<Sqlite>("b")?;
    Ok(())
}

#[tokio::test]
async fn the_first_discovery_must_succeed_and_later_ones_run_by_themselves() -> Result {
    let failed = Fleet::builder().discovery(Script::of([Answer::Error])).open().await;
    let Err(failed @ Error::Discovery(_)) = failed else { panic!("{failed:?}") };
    let source = std::error::Error::source(&failed).unwrap();
    assert_eq!(source.to_string(), "the directory is unavailable");
    let folder = Folder::new();
    let script =
        Script::of([Answer::Found(vec![]), Answer::Error, Answer::Found(vec![folder.database("a")])]);
    let fleet = Fleet::builder().discovery(script).refresh(Duration::from_millis(20)).open().await?;
    until("a is discovered", async || fleet.outbox::<Sqlite>("a").is_ok()).await;
    Ok(())
}

#[tokio::test]
async fn an_invalid_database_in_a_discovery_does_not_exclude_the_others() -> Result {
    let folder = Folder::new();
    let bad = FleetDatabase::new("bad", "nonsense");
    let script = Script::of([Answer::Found(vec![bad, folder.database("a")])]);
    let fleet = Fleet::builder().discovery(script).open().await?;
    fleet.outbox::<Sqlite>("a")?;
    assert!(matches!(fleet.outbox::<Sqlite>("bad"), Err(Error::UnknownRoute { .. })));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_database_is_replaced() -> Result {
    let folder = Folder::new();
    let (before, after) = (folder.url("before"), folder.url("after"));
    let script = Script::of([
        Answer::Found(vec![FleetDatabase::new("a", &before)]),
        Answer::Found(vec![FleetDatabase::new("a", &after)]),
        Answer::Found(vec![FleetDatabase::new("a", &before)]),
        Answer::Found(vec![FleetDatabase::new("a", &before).table("other")]),
    ]);
    let fleet = Fleet::builder().discovery(script).migrate(true).open().await?;
    let seen = Seen::default();
    let relay = fleet.multi_node().poll_interval(POLL).on_type("n", seen.handler()).start().await?;
    in_time(async {
        for n in 0..4 {
            fleet.outbox::<Sqlite>("a")?.send(numbered("n", n)).await?;
            seen.reach(n as usize + 1).await;
            fleet.refresh().await?;
        }
        let outbox: Outbox<Sqlite> = fleet.outbox("a")?;
        until("it is served", async || state_of(&fleet, "a") == Some(DatabaseState::Active)).await;
        relay.stop().await?;
        assert_eq!(outbox.admin().stats().await?.done, 1, "the table has its own events");
        seen.assert_each_once(0..4);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_database_finishes_events_in_flight_and_releases_the_others() -> Result {
    let folder = Folder::new();
    let (a, b) = (folder.database("a"), folder.database("b"));
    let script = Script::of([Answer::Found(vec![a.clone(), b]), Answer::Found(vec![a])]);
    let fleet = Fleet::builder().discovery(script).absences(1).migrate(true).open().await?;
    let (seen, gate) = (Seen::default(), Gate::closed());
    let relay = fleet
        .multi_node()
        .workers_per_database(1)
        .poll_interval(POLL)
        .drain(Duration::from_secs(5))
        .on_type("n", seen.behind(&gate))
        .start()
        .await?;
    let outbox: Outbox<Sqlite> = fleet.outbox("b")?;
    outbox.send_all((0..10).map(|n| numbered("n", n))).await?;
    in_time(seen.reach(1)).await;

    fleet.refresh().await?;
    gate.admit(1);
    assert_eq!(state_of(&fleet, "b"), Some(DatabaseState::Removing));
    until("b is gone", async || state_of(&fleet, "b").is_none()).await;
    gate.open();

    let there = Outbox::sqlite(&folder.url("b")).await?;
    let all = there.admin().list(&Default::default(), 100).await?;
    assert!(all.iter().any(|event| event.status == Status::Done), "the event in flight is done");
    assert!(all.iter().filter(|event| event.status == Status::New).count() >= 8);
    assert!(all.iter().all(|event| event.lease.is_none()), "no lease is left: {all:?}");
    relay.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_are_bounded_over_all_databases() -> Result {
    let folder = Folder::new();
    let names: Vec<String> = (0..6).map(|n| format!("db-{n}")).collect();
    let databases = names.iter().map(|name| folder.database(name));
    let fleet = Fleet::builder().databases(databases).migrate(true).open().await?;
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let (seen, gate) = (Seen::default(), Gate::closed());
    let (now, peak, note, opened) = (running.clone(), most.clone(), seen.clone(), gate.clone());
    let relay = fleet
        .multi_node()
        .workers(5)
        .workers_per_database(3)
        .poll_interval(POLL)
        .on_type("n", move |cx: Context| {
            let (now, peak, note, gate) = (now.clone(), peak.clone(), note.clone(), opened.clone());
            async move {
                peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                note.record(&cx);
                gate.pass().await;
                now.fetch_sub(1, Ordering::SeqCst);
            }
        })
        .start()
        .await?;
    for (n, name) in names.iter().enumerate() {
        let n = n as u64 * 20;
        fleet.outbox::<Sqlite>(name)?.send_all((n..n + 20).map(|n| numbered("n", n))).await?;
    }
    // One handler ends at a time, so that as many as allowed run all the time.
    in_time(async {
        for begun in 5..120 {
            seen.reach(begun).await;
            gate.admit(1);
        }
        seen.reach(120).await;
    })
    .await;
    gate.open();
    relay.stop().await?;
    seen.assert_each_once(0..120);
    assert_eq!(most.load(Ordering::SeqCst), 5);
    Ok(())
}

/// Records which database was polled and returned events.
#[derive(Clone)]
struct RecordPolls<S>(S, Arc<std::sync::Mutex<Vec<(String, usize)>>>);

impl<S: Selection> Selection for RecordPolls<S> {
    fn next(&mut self, waiting: &[&str], last: Option<Polled<'_>>) -> usize {
        if let Some(last) = last {
            let mut polled = self.1.lock().unwrap();
            let note = (last.name.to_owned(), last.events);
            if last.events > 0 && polled.last() != Some(&note) {
                polled.push(note);
            }
        }
        self.0.next(waiting, last)
    }
}

/// Returns which database returned how many events, poll by poll, until each has returned all of
/// its events. There are far more connections than databases.
async fn polls_with(selection: impl Selection, events: u64) -> Result<Vec<(String, usize)>> {
    let folder = Folder::new();
    let names = ["a", "b", "c"];
    let open = || Fleet::builder().databases(names.map(|name| folder.database(name))).migrate(true).open();
    let (fleet, writer) = (open().await?, open().await?);
    let polled: Arc<std::sync::Mutex<Vec<_>>> = Arc::default();
    let seen = Seen::default();
    let relay = fleet
        .multi_node()
        .batch(8)
        .poll_interval(Duration::from_secs(3_600))
        .selection(RecordPolls(selection, polled.clone()))
        .on_type("n", seen.handler())
        .start()
        .await?;
    relay.idle().await?;
    polled.lock().unwrap().clear();
    for name in names {
        writer.outbox::<Sqlite>(name)?.send_all((0..events).map(|n| numbered("n", n))).await?;
    }
    // Poll all databases at the same moment.
    relay.wake();
    in_time(seen.reach(names.len() * events as usize)).await;
    relay.stop().await?;
    let polled = polled.lock().unwrap().clone();
    Ok(polled)
}

/// Records the database that returned events, and the next one, when the first and others wait.
#[derive(Clone)]
struct Contested<S>(S, Arc<std::sync::Mutex<Vec<(String, String)>>>);

impl<S: Selection> Selection for Contested<S> {
    fn next(&mut self, waiting: &[&str], last: Option<Polled<'_>>) -> usize {
        let next = self.0.next(waiting, last);
        if let Some(last) = last
            && last.events > 0
            && waiting.len() > 1
            && waiting.contains(&last.name)
        {
            self.1.lock().unwrap().push((last.name.to_owned(), waiting[next].to_owned()));
        }
        next
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_robin_goes_from_one_database_to_the_next() -> Result {
    let contested = Contested(RoundRobin, Arc::default());
    // So many events that a database whose relay starts late still competes with others.
    let polled = polls_with(contested.clone(), 600).await?;
    let contested = contested.1.lock().unwrap();
    assert!(!contested.is_empty(), "no database had to wait: {polled:?}");
    assert!(contested.iter().all(|(last, next)| last != next), "goes back and forth: {contested:?}");
    Ok(())
}

/// Number of polls of another database than the one before.
fn changes(polled: &[(String, usize)]) -> usize {
    polled.windows(2).filter(|two| two[0].0 != two[1].0).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_first_stays_with_a_database_until_it_is_empty() -> Result {
    let polled = polls_with(DrainFirst, 60).await?;
    let names: BTreeSet<&str> = polled.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.len() >= 2 && changes(&polled) == names.len() - 1, "one after another: {polled:?}");
    assert!(polled.len() > names.len(), "each takes more than one poll: {polled:?}");
    Ok(())
}

/// A server that never answers, and a port without a server: the other databases are not delayed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn databases_that_hang_or_refuse_do_not_delay_the_others() -> Result {
    // If each hanging database kept a connection, an event would wait several times as long.
    const PATIENCE: Duration = Duration::from_secs(5);
    let folder = Folder::new();
    let silent = silent_server().await;
    let good: Vec<String> = (0..5).map(|n| format!("good-{n}")).collect();
    let mut builder = Fleet::builder()
        .databases(good.iter().map(|name| folder.database(name)))
        .database("silent-pg", format!("postgres://ada:s3cret@127.0.0.1:{silent}/x"))
        .database("silent-maria", format!("mysql://ada:s3cret@127.0.0.1:{silent}/x"))
        .database("refusing-pg", "postgres://ada:s3cret@127.0.0.1:1/x")
        .database("refusing-maria", "mysql://ada:s3cret@127.0.0.1:1/x")
        .patience(PATIENCE)
        .max_connections(4)
        .migrate(true);
    for n in 0..10 {
        builder = builder.database(format!("also-silent-{n}"), format!("postgres://x@127.0.0.1:{silent}/x"));
    }
    let fleet = builder.open().await?;
    let seen = Seen::default();
    let relay = fleet.multi_node().poll_interval(POLL).on_type("n", seen.handler()).start().await?;
    let failing = |state: &DatabaseState| matches!(state, DatabaseState::Failing { .. });
    let known = || fleet.databases().iter().all(|one| good.contains(&one.name) || failing(&one.state));
    until("the bad ones are known", async || known()).await;

    let mut worst = Duration::ZERO;
    for round in 0..5 {
        for name in &good {
            // Another program writes: no hot path.
            let other = Outbox::sqlite(&folder.url(name)).await?;
            other.migrate().await?;
            other.send(numbered("n", round)).await?;
            other.close().await;
        }
        let began = Instant::now();
        in_time(seen.reach((round as usize + 1) * 5)).await;
        worst = worst.max(began.elapsed());
        assert!(fleet.connections() <= 4);
    }
    assert!(worst < 2 * PATIENCE, "{worst:?}");

    let error = fleet.outbox::<Postgres>("silent-pg")?.send(numbered("n", 1)).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    let text = format!("{error} {error:?} {:?}", fleet.databases());
    assert!(!text.contains("s3cret"), "{text}");
    in_time(relay.stop()).await
}

/// The database is served whenever it is reachable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_is_served_whenever_it_is_reachable() -> Result {
    let Ok(url) = std::env::var("OUTBOX_TEST_POSTGRES") else { return Ok(()) };
    let proxy = Proxy::to(&url).await;
    let table = fleet_fixtures::table();
    let direct = outbox::OutboxBuilder::new().table(&table).max_connections(2).postgres(&url).await?;
    direct.migrate().await?;
    proxy.shut();
    let fleet = Fleet::builder()
        .databases([FleetDatabase::new("flapping", &proxy.url).table(&table)])
        .patience(Duration::from_millis(500))
        .open()
        .await?;
    let seen = Seen::default();
    let relay = fleet.multi_node().poll_interval(POLL).on_type("n", seen.handler()).start().await?;
    for round in 0..3 {
        direct.send(numbered("n", round)).await?;
        until("it fails", async || {
            matches!(state_of(&fleet, "flapping"), Some(DatabaseState::Failing { .. }))
        })
        .await;
        proxy.open();
        in_time(seen.reach(round as usize + 1)).await;
        until("it is active", async || state_of(&fleet, "flapping") == Some(DatabaseState::Active)).await;
        proxy.shut();
    }
    proxy.open();
    until("it is active", async || state_of(&fleet, "flapping") == Some(DatabaseState::Active)).await;
    in_time(relay.idle()).await?;
    relay.stop().await?;
    assert!(seen.count() >= 3);
    let numbers: BTreeSet<u64> = seen.numbers().into_iter().collect();
    assert_eq!(numbers, BTreeSet::from([0, 1, 2]));
    Ok(())
}

/// A database is served as soon as it is migrated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_without_tables_is_served_once_it_has_them() -> Result {
    let folder = Folder::new();
    let fleet = Fleet::builder().database("a", folder.url("a")).open().await?;
    let seen = Seen::default();
    let relay = fleet.multi_node().poll_interval(POLL).on_type("n", seen.handler()).start().await?;
    until("it is known", async || matches!(state_of(&fleet, "a"), Some(DatabaseState::Failing { .. }))).await;
    let outbox: Outbox<Sqlite> = fleet.outbox("a")?;
    assert!(matches!(outbox.send(numbered("n", 1)).await, Err(Error::NotMigrated { .. })));
    outbox.migrate().await?;
    outbox.send(numbered("n", 2)).await?;
    in_time(seen.reach(1)).await;
    relay.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_relay_waits_for_the_first_to_stop() -> Result {
    let folder = Folder::new();
    let fleet = Fleet::builder().database("a", folder.url("a")).migrate(true).open().await?;
    let first = fleet.single_node().on_any(async |_: Context| ()).start().await?;
    let second = fleet.single_node().on_any(async |_: Context| ()).start().await;
    assert!(matches!(second, Err(Error::Lifecycle(_))));
    first.stop().await?;
    // A second fleet stands for a second process.
    let other = Fleet::builder().database("a", folder.url("a")).open().await?;
    let seen = Seen::default();
    let first = fleet.single_node().on_type("n", seen.handler()).start().await?;
    until("it leads", async || state_of(&fleet, "a") == Some(DatabaseState::Active)).await;
    let second = other.single_node().on_type("n", seen.handler()).start().await?;
    until("it stands by", async || state_of(&other, "a") == Some(DatabaseState::StandingBy)).await;
    first.stop().await?;
    until("it takes over", async || state_of(&other, "a") == Some(DatabaseState::Active)).await;
    other.outbox::<Sqlite>("a")?.send(Event::new("n").json(&1)).await?;
    in_time(seen.reach(1)).await;
    second.stop().await
}
