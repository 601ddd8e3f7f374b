//! The event log: appending, reading by query, conditions, and the watermark.

use std::sync::Arc;
use std::time::Duration;

use chrono::SubsecRound as _;

use super::{Harness, SECOND, Scene, event};
use crate::error::Error;
use crate::event::{Event, EventBuilder, EventId};
use crate::log::{
    Appended, Condition, LogEvent, LogStore, Position, Query, SubscriptionId, SubscriptionStatus, Watermark,
};
use crate::store::SharedStore;

/// A scene whose store has a log; `None`: the cases are skipped.
async fn open(harness: &impl Harness) -> Option<Scene> {
    let scene = Scene::open(harness).await;
    scene.store.log().is_some().then_some(scene)
}

fn log(scene: &Scene) -> &dyn LogStore {
    scene.store.log().expect("the store has a log")
}

fn tagged(event_type: &str, tags: &[(&str, &str)]) -> EventBuilder {
    tags.iter().fold(event(event_type), |event, (name, value)| event.tag(name, value))
}

async fn append_if(
    scene: &Scene,
    events: impl IntoIterator<Item = EventBuilder>,
    condition: Condition,
) -> Result<Appended, Error> {
    let events: Vec<Event> = events.into_iter().map(|e| e.build().expect("a valid event")).collect();
    log(scene).append(&events, &condition).await
}

async fn append(scene: &Scene, events: impl IntoIterator<Item = EventBuilder>) -> Vec<Position> {
    let appended = append_if(scene, events, Condition::default()).await.expect("events are appended");
    appended.positions().to_vec()
}

async fn read(scene: &Scene, query: &Query) -> Vec<LogEvent> {
    read_some(scene, query, Position::START, None, 100_000).await
}

async fn read_some(
    scene: &Scene,
    query: &Query,
    after: Position,
    upto: Option<Position>,
    limit: usize,
) -> Vec<LogEvent> {
    let read = log(scene).read(query, after, upto, limit).await.expect("the log is read");
    read.into_iter().map(|stored| stored.expect("it can be decoded")).collect()
}

fn positions(events: &[LogEvent]) -> Vec<Position> {
    events.iter().map(LogEvent::position).collect()
}

async fn safe(scene: &Scene) -> Position {
    let mut watermark = Watermark::default();
    log(scene).advance(&mut watermark).await.expect("the watermark is advanced");
    watermark.safe
}

/// With all its attributes, bytes included.
pub async fn an_event_of_the_log_comes_back_as_it_was_appended(harness: &impl Harness) {
    let Some(scene) = open(harness).await else { return };
    let json = Event::new("OrderPlaced")
        .aggregate("order", "42")
        .tenant("acme")
        .ordering_key("order-42")
        .correlation("story")
        .header("source", "wéb \"shop\"")
        .tag("order_id", "42")
        .tag("note", r#"{"quoted\", ünd 'so', NULL}"#)
        .tag("empty", "")
        .json_text("{\"b\" : 1.0,\n \"a\": \"\\u00e4\" }")
        .occurred_at(scene.now());
    let bytes = Event::new("ImageMade").bytes("image/png", [0, 159, 146, 150, 255]).occurred_at(scene.now());
    let nothing = Event::new("NothingMade").bytes("text/plain", []).occurred_at(scene.now());
    let events: Vec<Event> =
        [json, bytes, nothing].into_iter().map(|e| e.build().expect("a valid event")).collect();
    let appended = log(&scene).append(&events, &Condition::default()).await.expect("it is appended");
    let back = read(&scene, &Query::all()).await;
    assert_eq!(positions(&back), appended.positions());
    assert_eq!(back.iter().map(|e| e.event().clone()).collect::<Vec<_>>(), events);
    assert_eq!(back[0].tag("order_id"), Some("42"));
    assert!(read(&scene, &Query::tag("note", r#"{"quoted\", ünd 'so', NULL}"#)).await.len() == 1);
}

/// After a position, up to one, and at most the limit.
pub async fn the_log_is_read_by_position(harness: &impl Harness) {
    let Some(scene) = open(harness).await else { return };
    assert!(read(&scene, &Query::all()).await.is_empty());
    assert_eq!(log(&scene).head().await.expect("the head is read"), Position::START);
    let first = append(&scene, [event("a"), event("b"), event("c")]).await;
    let second = append(&scene, [event("d")]).await;
    let all = [first, second].concat();
    assert!(all.is_sorted() && all[0] > Position::START && all.windows(2).all(|w| w[0] < w[1]), "{all:?}");
    let whole = Query::all();
    let back = read(&scene, &whole).await;
    assert_eq!(back.iter().map(|e| e.event_type().as_str()).collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    assert_eq!(positions(&read_some(&scene, &whole, all[0], None, 2).await), all[1..3]);
    assert_eq!(positions(&read_some(&scene, &whole, all[0], Some(all[2]), 10).await), all[1..3]);
    assert!(read_some(&scene, &whole, all[3], None, 10).await.is_empty());
    assert_eq!(log(&scene).head().await.expect("the head is read"), all[3]);
}

/// All of its tags and one of its types, or an alternative: the same as [`Query::matches`].
pub async fn a_query_selects_matching_events(harness: &impl Harness) {
    let Some(scene) = open(harness).await else { return };
    let values = ["1", "2", "3"];
    let mut events = Vec::new();
    for n in 0..60_usize {
        let mut event = event(["A", "B", "C"][n % 3]);
        if n % 4 > 0 {
            event = event.tag("w", values[n % 3]);
        }
        if n % 5 > 1 {
            event = event.tag("r", values[n / 7 % 3]);
        }
        if n % 2 == 0 {
            // Two tags of one name.
            event = event.tag("w", values[n / 5 % 3]);
        }
        events.push(event);
    }
    append(&scene, events).await;
    let all = read(&scene, &Query::all()).await;
    assert_eq!(all.len(), 60);
    let w = |value: &str| Query::tag("w", value);
    for query in [
        w("1"),
        w("1").and_tag("r", "2"),
        w("1").and_tag("r", "2").and_tag("w", "2"),
        w("2").types(["A", "C"]),
        Query::of_types(["B"]),
        Query::of_types(["C", "A", "C"]),
        w("1").or(w("2").and_tag("r", "1")),
        w("1").types(["A"]).or(Query::of_types(["B", "C"])).or(Query::tag("r", "3")),
        w("1").or(Query::all()),
        w("unknown").or(Query::of_types(["X"])),
    ] {
        let wanted: Vec<Position> = all.iter().filter(|e| query.matches(e)).map(LogEvent::position).collect();
        assert_eq!(positions(&read(&scene, &query).await), wanted, "{query:?}");
        let some = read_some(&scene, &query, all[9].position(), Some(all[40].position()), 7).await;
        let wanted: Vec<Position> = wanted
            .into_iter()
            .filter(|p| *p > all[9].position() && *p <= all[40].position())
            .take(7)
            .collect();
        assert_eq!(positions(&some), wanted, "{query:?}");
    }
}

/// Continuing after the last position misses no event and repeats none.
pub async fn a_query_is_read_page_by_page(harness: &impl Harness) {
    let Some(scene) = open(harness).await else { return };
    let events = (0..50).map(|n| tagged(["A", "B"][n % 2], &[("n", ["0", "1", "2"][n % 3])]));
    append(&scene, events).await;
    for query in [Query::all(), Query::tag("n", "1"), Query::tag("n", "2").or(Query::of_types(["A"]))] {
        let whole = positions(&read(&scene, &query).await);
        let mut paged = Vec::new();
        loop {
            let after = paged.last().copied().unwrap_or_default();
            let page = read_some(&scene, &query, after, None, 4).await;
            paged.extend(positions(&page));
            if page.len() < 4 {
                break;
            }
        }
        assert_eq!(paged, whole, "{query:?}");
    }
}

/// Compared by bytes.
pub async fn tags_differ_by_case_and_trailing_spaces(harness: &impl Harness) {
    let Some(scene) = open(harness).await else { return };
    let values = ["a", "A", "a ", "ä", "a\u{308}"];
    append(&scene, values.map(|value| tagged("x", &[("n", value)]))).await;
    append(&scene, [event("X"), event("x ")]).await;
    for value in values {
        let found = read(&scene, &Query::tag("n", value)).await;
        assert_eq!(found.iter().map(|e| e.tag("n")).collect::<Vec<_>>(), [Some(value)]);
        let taken =
            append_if(&scene, [event("y")], Condition::unless(Query::tag("n", value).types(["X"]))).await;
        taken.expect("another type").positions().first().expect("it is appended");
    }
    assert_eq!(read(&scene, &Query::of_types(["X"])).await.len(), 1);
    assert_eq!(read(&scene, &Query::of_types(["x"])).await.len(), 5);
}

/// More than fits into one statement.
pub async fn a_large_append_keeps_its_order(harness: &impl Harness) {
    let Some(scene) = open(harness).await else { return };
    let events = (0..2_500_u32)
        .map(|n| Event::new("n").json(&n).tag("n", n).tag("tenth", n / 10).tag("all", "yes"))
        .collect::<Vec<_>>();
    let appended = append(&scene, events).await;
    assert_eq!(appended.len(), 2_500);
    let back = read(&scene, &Query::tag("all", "yes")).await;
    assert_eq!(positions(&back), appended);
    let numbers: Vec<u32> = back.iter().map(|e| e.payload().expect("a number")).collect();
    assert!(numbers.into_iter().eq(0..2_500));
    assert_eq!(positions(&read(&scene, &Query::tag("n", 1_234)).await), [appended[1_234]]);
    assert_eq!(positions(&read(&scene, &Query::tag("tenth", 200)).await), appended[2_000..2_010]);
}

/// By tags, by types, by everything; only after the position, only if everything matches.
pub async fn a_condition_checks_matching_events_after_its_position(harness: &impl Harness) {
    let Some(scene) = open(harness).await else { return };
    let deposit = || tagged("Deposit", &[("w", "1"), ("r", "eu")]);
    let at = append(&scene, [deposit()]).await[0];
    let before = Position::new(at.get() - 1);
    let conflicting = [
        Query::tag("w", "1"),
        Query::tag("r", "eu").and_tag("w", "1"),
        Query::tag("w", "1").types(["Deposit", "Other"]),
        Query::of_types(["Other", "Deposit"]),
        Query::all(),
        Query::tag("w", "2").or(Query::of_types(["Deposit"])),
    ];
    for query in conflicting {
        for condition in [Condition::unless(query.clone()), Condition::unless(query.clone()).after(before)] {
            let refused = append_if(&scene, [event("x")], condition).await;
            assert!(matches!(refused, Err(Error::Conflict { .. })), "{query:?} {refused:?}");
        }
    }
    let harmless = [
        Query::tag("w", "2"),
        Query::tag("w", "1").and_tag("r", "us"),
        Query::tag("w", "1").types(["Other"]),
        Query::of_types(["Other"]),
    ];
    for query in harmless {
        let appended = append_if(&scene, [event("x")], Condition::unless(query.clone())).await;
        assert_eq!(appended.expect("nothing matches").positions().len(), 1, "{query:?}");
    }
    let unchanged = Condition::unless(Query::tag("w", "1")).after(at);
    assert!(append_if(&scene, [deposit()], unchanged.clone()).await.is_ok());
    let conflict = append_if(&scene, [deposit()], unchanged).await;
    assert!(matches!(conflict, Err(Error::Conflict { after }) if after == at), "{conflict:?}");
}

/// And the next append is unaffected.
pub async fn a_conflict_appends_nothing(harness: &impl Harness) {
    let Some(scene) = open(harness).await else { return };
    append(&scene, [tagged("a", &[("w", "1")])]).await;
    for _ in 0..3 {
        let many = (0..600).map(|_| tagged("b", &[("w", "1")]));
        append_if(&scene, many, Condition::unless(Query::tag("w", "1"))).await.expect_err("a conflict");
    }
    assert_eq!(read(&scene, &Query::all()).await.len(), 1);
    assert_eq!(read(&scene, &Query::tag("w", "1")).await.len(), 1);
    let next = append(&scene, [tagged("c", &[("w", "1")])]).await;
    assert_eq!(positions(&read(&scene, &Query::of_types(["c"])).await), next);
    assert_eq!(safe(&scene).await, next[0]);
}

/// Even if it would be a conflict as well: a repeat finds its own event.
pub async fn a_repeated_request_is_not_appended_again(harness: &impl Harness) {
    let Some(scene) = open(harness).await else { return };
    let request = || tagged("Registered", &[("name", "ada"), ("request", "r1")]);
    let condition =
        |request: &str| Condition::unless(Query::tag("name", "ada")).once(Query::tag("request", request));
    let first = append_if(&scene, [request()], condition("r1")).await.expect("it is new");
    assert_eq!(first.positions().len(), 1);
    let again = append_if(&scene, [request()], condition("r1")).await.expect("it is no error");
    assert_eq!(again, Appended::Already);
    let other = append_if(&scene, [request()], condition("r2")).await;
    assert!(matches!(other, Err(Error::Conflict { .. })), "{other:?}");
    let only = Condition::only_once(Query::tag("request", "r1"));
    assert_eq!(append_if(&scene, [event("x")], only).await.expect("it is no error"), Appended::Already);
    assert_eq!(read(&scene, &Query::all()).await.len(), 1);
}

/// Each with its own position.
pub async fn every_part_of_a_condition_must_hold(harness: &impl Harness) {
    let Some(scene) = open(harness).await else { return };
    let at = append(&scene, [tagged("a", &[("w", "1")]), tagged("a", &[("w", "2")])]).await;
    let part = |w: &str, after| Condition::unless(Query::tag("w", w)).after(after);
    for (one, two, holds) in [(at[0], at[1], true), (at[0], at[0], false), (Position::START, at[1], false)] {
        let appended = append_if(&scene, [event("x")], part("1", one).and(part("2", two))).await;
        assert_eq!(appended.is_ok(), holds, "{one} {two}");
    }
}

/// This is always an error: the position belongs to another log, or the log was restored from a
/// backup.
pub async fn a_position_beyond_the_head_is_refused(harness: &impl Harness) {
    let Some(scene) = open(harness).await else { return };
    let at = append(&scene, [event("a")]).await[0];
    let condition = Condition::unless(Query::tag("w", "1")).after(Position::new(at.get() + 1_000));
    let refused = append_if(&scene, [event("b")], condition).await;
    let Err(Error::BeyondHead { position, head }) = refused else { panic!("{refused:?}") };
    assert_eq!((position.get(), head), (at.get() + 1_000, at));
    assert_eq!(read(&scene, &Query::all()).await.len(), 1);
}

/// Checks the condition alone.
pub async fn an_empty_append_checks_its_condition(harness: &impl Harness) {
    let Some(scene) = open(harness).await else { return };
    let condition = || Condition::unless(Query::tag("w", "1"));
    assert_eq!(append(&scene, []).await, []);
    assert_eq!(append_if(&scene, [], condition()).await.expect("nothing matches").positions(), []);
    let at = append(&scene, [tagged("a", &[("w", "1")])]).await;
    assert!(append_if(&scene, [], condition()).await.is_err());
    assert_eq!(append(&scene, [event("b")]).await[0].get(), at[0].get() + 1);
}

/// Not even the events before the duplicate.
pub async fn an_existing_id_appends_nothing(harness: &impl Harness) {
    let Some(scene) = open(harness).await else { return };
    let id = EventId::generate();
    append(&scene, [event("a").id(&id)]).await;
    let many = (0..1_500).map(|n| tagged("b", &[("w", "1")]).header("n", n.to_string()));
    let taken = append_if(&scene, many.chain([event("b").id(&id)]), Condition::default()).await;
    assert!(matches!(taken, Err(Error::DuplicateId { .. })), "{taken:?}");
    assert_eq!(read(&scene, &Query::all()).await.len(), 1);
    assert_eq!(read(&scene, &Query::tag("w", "1")).await.len(), 0);
    append(&scene, [event("c")]).await;
}

/// For a relay that starts. A lower value is no error: the relay then has more to read.
pub async fn the_watermark_is_stored(harness: &impl Harness) {
    let Some(scene) = open(harness).await else { return };
    assert_eq!(log(&scene).stored_watermark().await.expect("it is read"), Position::START);
    for note in [5, 5, 9, 3] {
        log(&scene).store_watermark(Position::new(note)).await.expect("it is stored");
        assert_eq!(log(&scene).stored_watermark().await.expect("it is read"), Position::new(note));
    }
}

/// Without other transactions.
pub async fn appended_events_are_settled_and_safe(harness: &impl Harness) {
    let Some(scene) = open(harness).await else { return };
    let nothing = [Query::all(), Query::tag("w", "1"), Query::of_types(["a"])];
    for query in &nothing {
        assert_eq!(log(&scene).settled(query).await.expect("it is settled"), Position::START);
    }
    assert_eq!(safe(&scene).await, Position::START);
    let mut watermark = Watermark::default();
    for n in 0..5 {
        let at = append(&scene, [tagged("a", &[("w", "1")]), event("b")]).await[1];
        for query in &nothing {
            assert_eq!(log(&scene).settled(query).await.expect("it is settled"), at, "{n} {query:?}");
        }
        log(&scene).advance(&mut watermark).await.expect("the watermark is advanced");
        assert_eq!(watermark.safe, at);
        assert_eq!(safe(&scene).await, at, "from the start too");
    }
}

/// The other events are read.
pub async fn an_undecodable_row_of_the_log_is_reported_with_its_position(harness: &impl Harness) {
    let Some(scene) = open(harness).await else { return };
    let at = append(&scene, [event("a"), event("b"), event("c")]).await;
    if !harness.execute(&format!("UPDATE {{log}} SET headers = '[1]' WHERE position = {}", at[1])).await {
        return;
    }
    let read = log(&scene).read(&Query::all(), Position::START, None, 10).await.expect("the log is read");
    let read: Vec<_> = read.into_iter().map(|stored| stored.map(|event| event.position())).collect();
    assert_eq!((&read[0], &read[2]), (&Ok(at[0]), &Ok(at[2])));
    let (position, reason) = read[1].clone().expect_err("it cannot be decoded");
    assert_eq!(position, at[1]);
    assert!(reason.contains("headers"), "{reason}");
}

/// The last one before the time.
pub async fn positions_are_found_by_time(harness: &impl Harness) {
    let Some(scene) = open(harness).await else { return };
    let start = scene.now().trunc_subsecs(3);
    assert_eq!(log(&scene).position_at(start).await.expect("it is found"), Position::START);
    let mut at = Vec::new();
    for _ in 0..10 {
        at.extend(append(&scene, [event("a"), event("b"), event("c")]).await);
        scene.pass(10 * SECOND);
    }
    for (seconds, events) in [(0, 0), (1, 3), (10, 3), (11, 6), (45, 15), (90, 27), (91, 30), (1_000, 30)] {
        let found = log(&scene).position_at(start + Duration::from_secs(seconds)).await.expect("it is found");
        let wanted = at[..events].last().copied().unwrap_or_default();
        assert_eq!(found, wanted, "{seconds}");
    }
}

/// Concurrent increments, each on the condition that no other was appended since it was read.
pub async fn of_concurrent_decisions_one_succeeds(harness: &impl Harness) {
    const WRITERS: usize = 6;
    const EACH: usize = 5;
    let Some(scene) = open(harness).await else { return };
    let store: SharedStore = scene.store.clone();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let store = Arc::clone(&store);
        writers.spawn(async move {
            let log = store.log().expect("the store has a log");
            // Different queries that match the same events.
            let query = match writer % 3 {
                0 => Query::tag("n", "1"),
                1 => Query::tag("n", "1").types(["Added"]),
                _ => Query::of_types(["Added"]).or(Query::tag("n", "1")),
            };
            let mut done = 0;
            while done < EACH {
                let at = log.settled(&query).await.expect("it is settled");
                let before =
                    log.read(&query, Position::START, Some(at), 1_000).await.expect("it is read").len();
                let added = Event::new("Added").tag("n", "1").json(&before).build().expect("a valid event");
                match log.append(&[added], &Condition::unless(query.clone()).after(at)).await {
                    Ok(_) => done += 1,
                    Err(Error::Conflict { .. }) => {}
                    Err(e) => panic!("{e:?}"),
                }
            }
        });
    }
    while let Some(ended) = writers.join_next().await {
        ended.expect("a writer succeeds");
    }
    let added = read(&scene, &Query::tag("n", "1")).await;
    let numbers: Vec<usize> = added.iter().map(|e| e.payload().expect("a number")).collect();
    assert_eq!(numbers, (0..WRITERS * EACH).collect::<Vec<_>>(), "each has read all before it");
}

/// However old they are: events that a publisher has not published stay, and so does the last event
/// of the log. Tags are deleted with their events.
pub async fn old_events_of_the_log_are_purged_once_every_subscription_has_passed_them(
    harness: &impl Harness,
) {
    let Some(scene) = open(harness).await else { return };
    let day = 86_400 * SECOND;
    assert_eq!(log(&scene).purge_log(day, 10).await.unwrap(), 0, "an empty log");
    let old = append(&scene, (0..6).map(|n| tagged("E", &[("n", &n.to_string()), ("all", "")]))).await;
    scene.pass(2 * day);
    let young = append(&scene, [tagged("E", &[("all", "")]), tagged("E", &[("all", "")])]).await;
    let (fast, slow) = (SubscriptionId::new("t", "fast"), SubscriptionId::new("t", "slow"));
    log(&scene).register(&[(fast.clone(), false), (slow.clone(), false)]).await.unwrap();
    log(&scene).reset(&fast, young[1]).await.unwrap();
    assert_eq!(
        log(&scene).purge_log(day, 10).await.unwrap(),
        0,
        "one subscription has published nothing yet"
    );
    log(&scene).reset(&slow, old[3]).await.unwrap();
    log(&scene).set_status("slow", None, SubscriptionStatus::Paused).await.unwrap();
    for purged in [3, 1, 0] {
        assert_eq!(log(&scene).purge_log(day, 3).await.unwrap(), purged);
    }
    let left: Vec<Position> = old[4..].iter().chain(&young).copied().collect();
    assert_eq!(positions(&read(&scene, &Query::all()).await), left);
    assert_eq!(positions(&read(&scene, &Query::tag("all", "")).await), left);
    log(&scene).reset(&slow, young[1]).await.unwrap();
    assert_eq!(log(&scene).purge_log(day, 10).await.unwrap(), 2);
    assert_eq!(positions(&read(&scene, &Query::all()).await), young, "not old enough");
    // The tags are deleted too: a new event with one of them is the only one.
    let again = append(&scene, [tagged("E", &[("n", "0")])]).await;
    assert_eq!(positions(&read(&scene, &Query::tag("n", 0)).await), again);

    scene.pass(2 * day);
    log(&scene).reset(&slow, again[0]).await.unwrap();
    log(&scene).reset(&fast, again[0]).await.unwrap();
    assert_eq!(log(&scene).purge_log(day, 10).await.unwrap(), 2, "all but the last");
    assert_eq!(positions(&read(&scene, &Query::all()).await), again);
    assert_eq!((log(&scene).head().await.unwrap(), safe(&scene).await), (again[0], again[0]));
    assert!(append(&scene, [event("E")]).await[0] > again[0]);
}
