//! Rows of other programs are input: no value that a column accepts may stop a relay.

mod common;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use common::{Backend, Gate, TestDb, until};
use outbox::store::{PageRequest, Status, StatusGroup};
use outbox::{
    Context, Event, EventBuilder, EventId, Outcome, Outgoing, PublishError, Publisher, Query, Relay, Topic,
};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

/// A number from the environment, for long runs.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A different seed each time, printed by a test that fails.
fn seed() -> u64 {
    let seed = setting("OUTBOX_HOSTILE_SEED", rand::random());
    println!("OUTBOX_HOSTILE_SEED={seed}");
    seed
}

fn is_sqlite<DB: Backend>() -> bool {
    std::any::TypeId::of::<DB>() == std::any::TypeId::of::<sqlx::Sqlite>()
}

fn is_postgres<DB: Backend>() -> bool {
    std::any::TypeId::of::<DB>() == std::any::TypeId::of::<sqlx::Postgres>()
}

/// Times at and beyond the edges of what each database accepts.
fn times<DB: Backend>() -> Vec<&'static str> {
    let common = ["'1970-01-01 00:00:00'", "'9999-12-31 23:59:59'", "'2026-11-17 12:00:00'"];
    let own: &[&str] = if is_postgres::<DB>() {
        &[
            "'infinity'",
            "'-infinity'",
            "'4713-01-01 00:00:00 BC'",
            "'0001-01-01 00:00:00'",
            "'10000-01-01'",
            "'262142-12-31'",
            "'262143-01-02'",
            "'294276-12-31'",
        ]
    } else if is_sqlite::<DB>() {
        &[
            "'2026-02-30 00:00:00'",
            "'0000-00-00 00:00:00'",
            "'9999-99-99 99:99:99'",
            "'aaaa-bb-cc dd:ee:ff'",
            "'2026-01-01 00:00:00+05:00'",
            "'2026-01-01 00:00:00.1234567890123'",
            "'0000-01-01 00:00:00'",
        ]
    } else {
        &["'0000-00-00'", "'2026-00-10'", "'2026-10-00'", "'0001-01-01'", "'9999-12-31 23:59:59.999999'"]
    };
    common.into_iter().chain(own.iter().copied()).collect()
}

/// A time that a column accepts without the checks, and that no relay can use.
fn impossible_time<DB: Backend>() -> &'static str {
    if is_postgres::<DB>() {
        "'infinity'"
    } else if is_sqlite::<DB>() {
        "'2026-02-30 00:00:00'"
    } else {
        "'2026-00-10'"
    }
}

/// A column, and a hostile value for it.
fn hostile<DB: Backend>(random: &mut SmallRng) -> (&'static str, String) {
    let integers = [
        "-1",
        "-5",
        "0",
        "1",
        "999999999",
        "1000000000",
        "1000000001",
        "2147483646",
        "2147483647",
        "-2147483648",
    ];
    let wide = ["9223372036854775807", "-9223372036854775808"];
    let one = |random: &mut SmallRng, of: &[&str]| (*of.choose(random).unwrap()).to_owned();
    let column = *[
        "event_type",
        "aggregate_type",
        "aggregate_id",
        "tenant_id",
        "ordering_key",
        "correlation_id",
        "headers",
        "occurred_at",
        "created_at",
        "available_at",
        "expires_at",
        "done_at",
        "locked_until",
        "locked_by",
        "status",
        "attempts",
        "claims",
        "crashes",
        "joined",
        "last_error",
        "done_by",
    ]
    .choose(random)
    .unwrap();
    let value = match column {
        "occurred_at" | "created_at" | "available_at" | "expires_at" | "done_at" | "locked_until" => {
            one(random, &times::<DB>())
        }
        "attempts" | "claims" | "crashes" => {
            let all: Vec<&str> = integers
                .iter()
                .chain(is_sqlite::<DB>().then_some(&wide).into_iter().flatten())
                .copied()
                .collect();
            one(random, &all)
        }
        "joined" => one(random, &["0", "1", "-1", "32767"]),
        "status" => one(random, &["0", "1", "2", "3"]),
        "headers" => {
            let deep = format!("'{}{}'", "[".repeat(3_000), "]".repeat(3_000));
            let odd = [
                "'[1]'",
                "'\"x\"'",
                "'{\"a\":1}'",
                "'null'",
                "'{\"a\":{}}'",
                "'{\"\":\"\"}'",
                "'{\"a\":\"b\",\"a\":\"c\"}'",
            ];
            if random.random_ratio(1, 10) { deep } else { one(random, &odd) }
        }
        // Hostile rows have keys of their own: a row may block the other events of its key.
        "ordering_key" => format!("'hostile-{}'", random.random_range(0..5)),
        _ if is_sqlite::<DB>() && random.random_ratio(1, 4) => "CAST(x'ff00fe' AS TEXT)".to_owned(),
        _ => one(random, &["''", "' '", "'a\tb'", "'ä\u{202e}😀'", "'outbox.join.report'"]),
    };
    (column, value)
}

/// Drops the checks that refuse such values, as if the rows had been written before the checks
/// existed.
async fn without_checks<DB: Backend>(db: &TestDb<DB>) {
    let statements: &[&str] = if is_sqlite::<DB>() {
        &["DROP TRIGGER {t}_values", "DROP TRIGGER {t}_log_values"]
    } else if is_postgres::<DB>() {
        &[
            "ALTER TABLE {t} DROP CONSTRAINT {t}_times, DROP CONSTRAINT {t}_counters",
            "ALTER TABLE {t}_log DROP CONSTRAINT {t}_log_times",
        ]
    } else {
        &["ALTER TABLE {t} DROP CONSTRAINT {t}_times, DROP CONSTRAINT {t}_counters"]
    };
    for statement in statements {
        db.run(statement).await.unwrap();
    }
}

/// Inserts a row with some hostile values. Returns its id if the database accepted it.
async fn insert_hostile<DB: Backend>(db: &TestDb<DB>, random: &mut SmallRng, n: usize) -> Option<String> {
    let id = format!("hostile-{n}");
    let mut values: HashMap<&str, String> = HashMap::from([
        ("event_id", format!("'{id}'")),
        ("event_type", "'hostile'".to_owned()),
        ("payload", format!("'{n}'")),
    ]);
    for _ in 0..random.random_range(1..=4) {
        let (column, value) = hostile::<DB>(random);
        values.insert(column, value);
    }
    if is_sqlite::<DB>() && random.random_ratio(1, 20) {
        values.insert("event_id", format!("CAST(x'ff{n:06x}' AS TEXT)"));
    }
    let (columns, values): (Vec<&str>, Vec<String>) = values.into_iter().unzip();
    let sql = format!("INSERT INTO {{t}} ({}) VALUES ({})", columns.join(", "), values.join(", "));
    db.run(&sql).await.is_ok().then_some(id)
}

async fn send<DB: Backend>(db: &TestDb<DB>, event: EventBuilder) -> EventId {
    db.outbox.send(event).await.unwrap().id
}

/// Number of calls for each event.
type Handled = Arc<Mutex<HashMap<EventId, u32>>>;

async fn start<DB: Backend>(db: &TestDb<DB>, mode: u8, handled: &Handled) -> Relay {
    let builder = match mode {
        0 => db.outbox.single_node(),
        1 => db.outbox.multi_node(),
        _ => db.outbox.ordered(),
    };
    let handled = handled.clone();
    let handler = move |cx: Context| {
        *handled.lock().unwrap().entry(cx.id().clone()).or_default() += 1;
        async { Ok::<_, outbox::Failure>(Outcome::Done) }
    };
    builder.no_hot_path().poll_interval(Duration::from_millis(20)).on_any(handler).start().await.unwrap()
}

/// Waits until all of these events were handled.
async fn arrived(handled: &Handled, ids: &[EventId]) {
    let all_handled = async || {
        let handled = handled.lock().unwrap();
        ids.iter().all(|id| handled.contains_key(id))
    };
    until("all events are handled", all_handled).await;
}

/// Every query of the administration succeeds.
async fn every_query_succeeds<DB: Backend>(db: &TestDb<DB>) {
    let admin = db.outbox.admin();
    for status_group in [StatusGroup::Pending, StatusGroup::Done, StatusGroup::Dead] {
        let mut request = PageRequest { status_group, limit: 50, ..PageRequest::default() };
        for _ in 0..100 {
            let page = admin.page(&request).await.unwrap();
            for row in &page.rows {
                admin.explain(&row.id).await.unwrap();
            }
            request.after = page.next;
            if request.after.is_none() {
                break;
            }
        }
    }
    admin.stats().await.unwrap();
    admin.overview(1_000).await.unwrap();
    for status in [Status::New, Status::Retry, Status::Done, Status::Dead] {
        let filter = outbox::store::Filter { status: Some(status), ..Default::default() };
        admin.list(&filter, 10_000).await.unwrap();
    }
}

/// Maximum number of calls for one event, whatever its row contains.
const MAX_CALLS: u32 = 3;

async fn hostile_rows_stop_nothing<DB: Backend>(db: &TestDb<DB>, mode: u8, checks: bool) {
    if !checks {
        without_checks(db).await;
    }
    let mut random = SmallRng::seed_from_u64(seed());
    let handled = Handled::default();
    let (mut good, mut stored) = (Vec::new(), 0);
    for n in 0..setting("OUTBOX_HOSTILE_ROWS", 150) as usize {
        stored += usize::from(insert_hostile(db, &mut random, n).await.is_some());
        if n % 3 == 0 {
            let event = Event::new("good").json(&n);
            let event = if n % 2 == 0 { event.ordering_key(format!("good-{}", n % 7)) } else { event };
            good.push(send(db, event).await);
        }
    }
    assert!(stored > 10, "the database accepted hostile rows");
    let relay = start(db, mode, &handled).await;
    arrived(&handled, &good).await;
    // The relay continues, also with rows that are written after that.
    for n in 0..5 {
        insert_hostile(db, &mut random, 100_000 + n).await;
        let id = send(db, Event::new("good").json(&n)).await;
        arrived(&handled, &[id]).await;
    }
    relay.idle().await.unwrap();
    every_query_succeeds(db).await;
    relay.stop().await.unwrap();
    db.outbox.admin().purge(Duration::ZERO).await.unwrap();
    db.outbox.admin().purge_dead(Duration::ZERO).await.unwrap();
    let handled = handled.lock().unwrap().clone();
    for (id, times) in handled {
        assert!(times <= MAX_CALLS, "handled {times} times: {:?}", db.find(&id).await);
    }
}

on_every_database! {
    async fn hostile_rows_stop_no_single_node_relay(|db|) {
        hostile_rows_stop_nothing(&db, 0, false).await;
    }

    async fn hostile_rows_stop_no_multi_node_relay(|db|) {
        hostile_rows_stop_nothing(&db, 1, false).await;
    }

    async fn hostile_rows_stop_no_ordered_relay(|db|) {
        hostile_rows_stop_nothing(&db, 2, false).await;
    }

    async fn hostile_rows_that_the_tables_accept_stop_no_relay(|db|) {
        hostile_rows_stop_nothing(&db, 1, true).await;
    }

    /// The tables accept these counters, and refuse them incremented by one.
    async fn counters_at_their_limit_are_dead_lettered_in_every_mode(|db|) {
        for mode in 0..3 {
            let mut hostile = Vec::new();
            for column in ["claims", "attempts", "crashes"] {
                for value in ["999000000", "999999999", "1000000000"] {
                    let id = format!("{mode}-{column}-{value}");
                    db.run(&format!(
                        "INSERT INTO {{t}} (event_id, event_type, payload, ordering_key, {column}) \
                         VALUES ('{id}', 'hostile', '1', '{id}', {value})"
                    )).await.unwrap();
                    hostile.push(EventId::from(id));
                }
            }
            let handled = Handled::default();
            let relay = start(&db, mode, &handled).await;
            let good = send(&db, Event::new("good").json(&mode)).await;
            arrived(&handled, &[good]).await;
            relay.idle().await.unwrap();
            relay.stop().await.unwrap();
            for id in &hostile {
                let event = db.find(id).await;
                assert_eq!(event.status, Status::Dead, "mode {mode}: {event:?}");
            }
            assert_eq!(handled.lock().unwrap().len(), 1, "none of them was handled");
        }
    }

    /// The values that a reviewer would try first.
    async fn times_and_counters_that_no_relay_can_use_are_refused(|db|) {
        let mut refused = vec![("claims", "-1"), ("claims", "2147483647"), ("attempts", "-1"), ("crashes", "2147483647")];
        refused.extend(["occurred_at", "available_at"].map(|column| (column, impossible_time::<DB>())));
        for (column, value) in refused {
            let sql = format!("INSERT INTO {{t}} (event_type, payload, {column}) VALUES ('x', '1', {value})");
            assert!(db.run(&sql).await.is_err(), "{column} = {value} was accepted");
        }
        if is_postgres::<DB>() {
            db.run("INSERT INTO {t} (event_id, event_type, payload, expires_at) VALUES ('never', 'x', '1', 'infinity')").await.unwrap();
            assert_eq!(db.find(&"never".into()).await.event.unwrap().expires_at(), None);
        }
    }

    /// A table from before the checks is repaired first, and then checked.
    async fn a_migration_repairs_rows_that_the_checks_would_refuse(|db|) {
        without_checks(&db).await;
        let time = impossible_time::<DB>();
        let insert = format!("INSERT INTO {{t}} (event_id, event_type, payload, occurred_at, claims) VALUES ('old', 'x', '1', {time}, 2147483647)");
        if is_postgres::<DB>() || is_sqlite::<DB>() {
            db.run(&insert).await.unwrap();
        } else {
            // MySQL refuses such a time in its default mode.
            db.run(&format!("SET sql_mode = ''; {insert}; SET sql_mode = DEFAULT")).await.unwrap();
        }
        db.run(&format!("UPDATE {{t}}_schema SET version = {}", if is_postgres::<DB>() { 8 } else { 7 })).await.unwrap();
        db.outbox.migrate().await.unwrap();
        db.outbox.migrate().await.unwrap();
        let handled = Handled::default();
        let relay = start(&db, 1, &handled).await;
        let id = send(&db, Event::new("good").json(&1)).await;
        arrived(&handled, &[id]).await;
        relay.idle().await.unwrap();
        let old = db.find(&"old".into()).await;
        assert!(!old.status.is_pending(), "{old:?}");
        relay.stop().await.unwrap();
    }

    async fn events_larger_than_the_limit_are_dead_lettered_unread(|db|) {
        let small = db.another_with(|builder| builder.max_payload(1_000)).await;
        let long = "x".repeat(2_000);
        db.run(&format!("INSERT INTO {{t}} (event_id, event_type, payload) VALUES ('payload', 'x', '\"{long}\"')")).await.unwrap();
        db.run(&format!("INSERT INTO {{t}} (event_id, event_type, payload, headers) VALUES ('headers', 'x', '1', '{{\"a\":\"{long}\"}}')")).await.unwrap();
        let bytes = Event::new("x").id("bytes").bytes("x/y", vec![7; 2_000]);
        db.outbox.send(bytes).await.unwrap();
        let handled = Handled::default();
        let relay = start(&small, 1, &handled).await;
        let good = send(&db, Event::new("x").json(&"x".repeat(900))).await;
        arrived(&handled, &[good]).await;
        relay.idle().await.unwrap();
        for id in ["payload", "headers", "bytes"] {
            let event = db.find(&id.into()).await;
            let reason = event.last_error.unwrap_or_default();
            assert_eq!(event.status, Status::Dead, "{id}: {reason}");
            assert!(reason.contains("bytes, more than the limit") || reason.contains("more bytes than the limit"), "{reason}");
        }
        assert_eq!(handled.lock().unwrap().len(), 1);
        relay.stop().await.unwrap();
    }

    async fn a_relay_reads_no_more_than_its_byte_limit_allows(|db|) {
        let events: Vec<EventBuilder> = (0..50).map(|_| Event::new("e").json(&"x".repeat(3_000))).collect();
        db.outbox.send_all(events).await.unwrap();
        let (gate, handled) = (Gate::closed(), Handled::default());
        let handler = {
            let (gate, handled) = (gate.clone(), handled.clone());
            move |cx: Context| {
                let (gate, handled) = (gate.clone(), handled.clone());
                async move {
                    gate.pass().await;
                    *handled.lock().unwrap().entry(cx.id().clone()).or_default() += 1;
                    Ok::<_, outbox::Failure>(Outcome::Done)
                }
            }
        };
        let relay = db.outbox.multi_node().no_hot_path().workers(1).queue_bytes(20_000).on_any(handler);
        let relay = relay.start().await.unwrap();
        for _ in 0..5 {
            relay.poll_once().await.unwrap();
        }
        let request = PageRequest { status_group: StatusGroup::Pending, limit: 50, ..PageRequest::default() };
        let held = db.outbox.admin().page(&request).await.unwrap().rows.iter().filter(|row| row.lease.is_some()).count();
        assert!((1..=7).contains(&held), "{held} events of 3,500 bytes are in memory");
        gate.open();
        relay.idle().await.unwrap();
        assert_eq!(handled.lock().unwrap().len(), 50);
        relay.stop().await.unwrap();
    }

    /// The log has no dead letters: unreadable rows are recorded, and skipped.
    async fn hostile_rows_of_the_log_stop_no_publisher(|db|) {
        without_checks(&db).await;
        let mut random = SmallRng::seed_from_u64(seed());
        let log = db.outbox.log();
        let (mut good, mut hostile) = (Vec::new(), 0);
        for n in 0..60 {
            let (column, value) = loop {
                let (column, value) = self::hostile::<DB>(&mut random);
                if ["headers", "occurred_at", "created_at", "aggregate_type", "tenant_id"].contains(&column) {
                    break (column, value);
                }
            };
            // On MySQL and MariaDB a position is drawn first.
            let sql = if is_postgres::<DB>() || is_sqlite::<DB>() {
                format!("INSERT INTO {{t}}_log (event_type, payload, {column}) VALUES ('hostile', '{n}', {value})")
            } else {
                format!(
                    "UPDATE {{t}}_log_head SET position = LAST_INSERT_ID(position + 1); \
                     INSERT INTO {{t}}_log (position, event_type, payload, {column}) VALUES (LAST_INSERT_ID(), 'hostile', '{n}', {value})"
                )
            };
            hostile += usize::from(db.run(&sql).await.is_ok());
            if n % 4 == 0 {
                log.append([Event::new("good").json(&n)]).await.unwrap();
                good.push(n);
            }
        }
        assert!(hostile > 10, "the database accepted hostile rows");
        let kept = Kept::default();
        let topic = Topic::new("all").types(["good"]);
        let relay = db.outbox.multi_node().publish(topic.to(kept.clone())).start().await.unwrap();
        log.append([Event::new("good").json(&1_000)]).await.unwrap();
        good.push(1_000);
        kept.reach(good.len()).await;
        assert_eq!(*kept.0.lock().unwrap(), good, "each once, in order");
        relay.stop().await.unwrap();
        let unreadable = db.outbox.store().log().unwrap().unreadable(1_000).await.unwrap();
        let rows = db.outbox.store().log().unwrap().read(&Query::all(), outbox::Position::START, None, 1_000).await.unwrap();
        let bad: BTreeSet<i64> = rows.iter().filter_map(|row| row.as_ref().err()).map(|(at, _)| at.get()).collect();
        assert!(!bad.is_empty());
        assert_eq!(unreadable.iter().map(|row| row.position.get()).collect::<BTreeSet<_>>(), bad);
    }
}

/// Keeps the numbers of the published events.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<i32>>>);

impl Kept {
    async fn reach(&self, count: usize) {
        until("enough events are published", async || self.0.lock().unwrap().len() >= count).await;
    }
}

#[async_trait]
impl Publisher for Kept {
    fn name(&self) -> &'static str {
        "kept"
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        self.0.lock().unwrap().extend(events.iter().filter_map(|event| event.payload::<i32>().ok()));
        Ok(())
    }
}

/// Positions are drawn: a chosen position would make another writer's append fail.
#[tokio::test]
async fn a_position_of_the_log_that_was_not_drawn_is_refused() {
    let Some(db) = TestDb::<sqlx::Postgres>::new().await else { return };
    let chosen = "INSERT INTO {t}_log (position, event_type, payload) VALUES (1, 'x', '1')";
    let error = db.run(chosen).await.unwrap_err().to_string();
    assert!(error.contains("has not been drawn"), "{error}");
    db.outbox.log().append([Event::new("x").json(&1)]).await.unwrap();
    db.run("INSERT INTO {t}_log (event_type, payload) VALUES ('x', '2')").await.unwrap();
}

/// On MySQL and MariaDB writers name the position, so one may name a position that it has not
/// drawn.
#[tokio::test]
async fn appends_skip_positions_of_the_log_that_were_not_drawn() {
    let Some(db) = TestDb::<sqlx::MySql>::new().await else { return };
    let log = db.outbox.log();
    let take_position = async |position: i64| {
        let insert =
            format!("INSERT INTO {{t}}_log (position, event_type, payload) VALUES ({position}, 'x', '1')");
        db.run(&insert).await.unwrap();
    };
    let append = async |count: usize| -> Vec<i64> {
        let events = (0..count).map(|n| Event::new("good").json(&n).tag("a", "b"));
        let appended = log.append(events).await.unwrap();
        appended.iter().map(|position| position.get()).collect()
    };
    assert_eq!(append(1).await, [1]);
    for position in [2, 3, 5, i64::MAX] {
        take_position(position).await;
    }
    assert_eq!(append(1).await, [4], "the first free position");
    assert_eq!(append(2).await, [6, 7], "the first gap that fits all");
    assert_eq!(append(1).await, [8], "the counter has moved");
    db.run("INSERT INTO {t}_log_tag (tag, position) VALUES ('a=b', 9)").await.unwrap();
    assert_eq!(append(1).await, [9], "the tag is there already");
    // The chosen position is in the range of the second of two statements.
    take_position(1_100).await;
    let many = append(1_200).await;
    assert_eq!(many[..1_000], (10..1_010).collect::<Vec<_>>());
    assert_eq!(many[1_000..], (1_101..1_301).collect::<Vec<_>>());
    assert_eq!(append(1).await, [1_301]);
    let found = log.read(&Query::tag("a", "b"), outbox::Position::START, 10_000).await.unwrap();
    assert_eq!(found.len(), 1 + 1 + 2 + 1 + 1 + 1_200 + 1);
}
