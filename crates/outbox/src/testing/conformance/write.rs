//! Writing: events are stored unchanged, and none is stored twice.

use chrono::{DateTime, TimeZone, Utc};

use super::{Harness, Scene, event, keyed, leasing};
use crate::error::Error;
use crate::event::{Event, EventBuilder, Payload};
use crate::sql::Clock;
use crate::store::{Completion, Filter, Status, Verdict};

/// A handler gets the JSON text as written: not reordered, not reformatted, duplicates kept.
pub async fn json_is_kept_to_the_byte(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    for json in [
        "{\"z\":1,  \"a\":1.50, \"a\":1.0}",
        "\t[ 1 ,\r\n 2e400, -0, 0.1000000000000000055511151231257827 ]  \n",
        r#""\u0000 \u00e9 \ud83d\ude00 é 😀 \" \\ $1 ? {events}""#,
        "null",
        "\"\"",
        &format!("{}1{}", "[".repeat(120), "]".repeat(120)),
        &format!("\"{}\"", "x".repeat(300_000)),
    ] {
        let id = scene.write_one(Event::new("odd").json_text(json)).await;
        let taken = scene.lease("a").await;
        assert_eq!(taken.len(), 1);
        assert_eq!(taken[0].event.raw_payload(), &Payload::Json(json.to_owned()), "{json:.60}");
        assert_eq!(taken[0].event.content_type(), "application/json");
        assert_eq!(scene.see(&id).await.event.unwrap().payload_bytes(), json.as_bytes());
        scene.settle("a", &taken[0], Verdict::Done).await;
    }
}

/// Bytes are stored unchanged, including none at all.
pub async fn bytes_are_kept_to_the_byte(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let all: Vec<u8> = (0..=255).collect();
    let bytes = || {
        vec![
            Event::new("all").bytes("application/octet-stream", all.clone()),
            Event::new("none").bytes("text/plain", ""),
            Event::new("quoted").bytes("text/plain; charset=utf-8", "'); DROP TABLE x; --"),
        ]
    };
    // Single events and batches may be written differently.
    for one in bytes() {
        scene.write_one(one).await;
    }
    scene.write(bytes()).await;
    let taken = scene.lease("a").await;
    let found: Vec<_> = taken.iter().map(|d| d.event.raw_payload().clone()).collect();
    let given: Vec<_> =
        bytes().into_iter().chain(bytes()).map(|e| e.build().unwrap().raw_payload().clone()).collect();
    assert_eq!(found.len(), given.len());
    assert!(found == given, "bytes or content types changed");
}

/// Every field, through `take`, `list` and `find`; times to the millisecond.
pub async fn every_field_comes_back_as_it_was_written(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let full = full_event(scene.now()).build().unwrap();
    let plain = event("plain").build().unwrap();
    assert_eq!(
        scene.store.insert(&[full.clone(), plain.clone()]).await.unwrap(),
        [full.id().clone(), plain.id().clone()]
    );
    let alone = full_event(scene.now()).build().unwrap();
    scene.store.insert(std::slice::from_ref(&alone)).await.unwrap();

    let taken = scene.lease("a").await;
    assert_eq!(taken.len(), 3);
    let listed = scene.all().await;
    for (i, given) in [&full, &plain, &alone].into_iter().enumerate() {
        assert_same(&taken[i].event, given);
        assert_same(listed[i].event.as_ref().unwrap(), given);
        assert_same(&scene.see(given.id()).await.event.unwrap(), given);
        assert_eq!(listed[i].status, Status::New);
        assert_eq!(listed[i].attempts, 0);
        assert_eq!(listed[i].created_at, scene.now());
        assert_eq!(listed[i].done_at, None);
        assert_eq!(listed[i].last_error, None);
        assert_eq!(taken[i].seq, Some(listed[i].seq));
    }
}

fn full_event(now: DateTime<Utc>) -> EventBuilder {
    Event::new("order.plåced ✓")
        .aggregate("örder", "42/ä\"'\\")
        .tenant("acmé")
        .ordering_key("k€y 😀")
        .correlation("çorrelation")
        .header("source", "wéb 😀")
        .header("ключ", "\"quoted\" \\ 'single' $1 ?")
        .header("empty", "")
        .json(&serde_json::json!({ "total": 995 }))
        .occurred_at(now - chrono::Duration::days(1))
        .available_at(now - chrono::Duration::hours(1))
        .expires_at(now + chrono::Duration::days(1))
}

fn assert_same(found: &Event, given: &Event) {
    assert_eq!(found.id(), given.id());
    assert_eq!(found.event_type(), given.event_type());
    assert_eq!(found.aggregate_type(), given.aggregate_type());
    assert_eq!(found.aggregate_id(), given.aggregate_id());
    assert_eq!(found.tenant_id(), given.tenant_id());
    assert_eq!(found.ordering_key(), given.ordering_key());
    assert_eq!(found.correlation_id(), given.correlation_id());
    assert_eq!(found.dedup_key(), given.dedup_key());
    assert_eq!(found.headers(), given.headers());
    assert!(found.raw_payload() == given.raw_payload());
    let millis = |t: DateTime<Utc>| t.timestamp_millis();
    assert_eq!(millis(found.occurred_at()), millis(given.occurred_at()));
    assert_eq!(found.expires_at().map(millis), given.expires_at().map(millis));
    assert_eq!(found.available_at().map(millis), given.available_at().map(millis));
    assert_eq!(found.is_delayed(), given.is_delayed());
}

/// Limits are characters, not bytes.
pub async fn fields_at_their_limits_fit(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    for wide in ["x", "ä", "😀"] {
        let long = |n: usize| wide.repeat(n);
        let longest = || {
            Event::new(long(255))
                .id(format!("{}{}", long(35), wide))
                .aggregate(long(64), long(128))
                .tenant(long(64))
                .ordering_key(long(255))
                .correlation(long(255))
                .dedup_key(long(255))
                .header(long(255), long(5_000))
                .bytes(long(255), vec![7; 1_048_576])
                .build()
                .unwrap()
        };
        let event = longest();
        assert_eq!(scene.store.insert(std::slice::from_ref(&event)).await.unwrap().len(), 1);
        let taken = scene.lease("a").await;
        assert_eq!(taken.len(), 1);
        assert_same(&taken[0].event, &event);
        assert_eq!(scene.settle("a", &taken[0], Verdict::Done).await, 1);
    }
}

/// From 1970 to 9999, the range of an event's times.
pub async fn times_at_their_limits_fit(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let first = Utc.timestamp_opt(1, 0).unwrap();
    let last = Utc.with_ymd_and_hms(9999, 12, 31, 23, 59, 59).unwrap();
    let early = event("early").occurred_at(first).available_at(first).expires_at(last).build().unwrap();
    let late = event("late").available_at(last - chrono::Duration::seconds(1)).build().unwrap();
    scene.store.insert(&[early.clone(), late.clone()]).await.unwrap();
    assert_same(&scene.see(early.id()).await.event.unwrap(), &early);
    assert_same(&scene.see(late.id()).await.event.unwrap(), &late);
    let taken = scene.lease("a").await;
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].event.id(), early.id());

    let far = event("far").deliver_after(std::time::Duration::from_secs(90 * 365 * 86_400));
    let far = scene.write_one(far).await;
    let due = scene.now() + chrono::Duration::days(90 * 365);
    assert_eq!(scene.see(&far).await.available_at, due);
}

/// In one transaction, thousands of events.
pub async fn many_events_keep_the_order_in_which_they_were_given(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let numbered = |n: usize| Event::new("n").json(&n).ordering_key(format!("key-{}", n % 50));
    let ids = scene.write((0..2_500).map(numbered)).await;
    assert_eq!(ids.len(), 2_500);
    let listed = scene.all().await;
    let found: Vec<_> = listed.iter().map(|s| s.event.as_ref().unwrap().id().clone()).collect();
    assert_eq!(found, ids);
    assert!(listed.windows(2).all(|pair| pair[0].seq < pair[1].seq));
}

/// No events, no ids.
pub async fn writing_no_events_stores_nothing(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    assert!(scene.store.insert(&[]).await.unwrap().is_empty());
    assert!(scene.all().await.is_empty());
}

/// Every other column has a default in the database.
pub async fn other_languages_need_only_a_type_and_a_payload(harness: &impl Harness) {
    let store = harness.connect(Clock::Database).await;
    store.migrate().await.unwrap();
    let insert = r#"INSERT INTO {events} (event_type, payload) VALUES ('order.placed', '{"order":  42}')"#;
    if !harness.execute(insert).await {
        return;
    }
    assert!(harness.execute(insert).await);
    let taken = store.take(&leasing("a")).await.unwrap().deliveries;
    assert_eq!(taken.len(), 2, "due immediately, with different ids");
    let event = &taken[0].event;
    assert!(!event.id().as_str().is_empty());
    assert_ne!(event.id(), taken[1].event.id());
    assert_eq!(event.event_type(), "order.placed");
    assert_eq!(event.aggregate_type(), "__GLOBAL__");
    assert_eq!(event.payload_bytes(), br#"{"order":  42}"#);
    assert!(event.headers().is_empty());
    assert!((Utc::now() - event.occurred_at()).num_minutes().abs() < 5);
    assert!(event.available_at().is_none() && !event.is_delayed());
}

/// Programs that name every column write NULL, or JSON's null, where they have no value.
pub async fn other_languages_may_leave_headers_blank(harness: &impl Harness) {
    let store = harness.connect(Clock::Database).await;
    store.migrate().await.unwrap();
    for headers in ["NULL", "'null'", "' null '", "'{}'"] {
        let insert =
            format!("INSERT INTO {{events}} (event_type, payload, headers) VALUES ('e', 'null', {headers})");
        if !harness.execute(&insert).await {
            return;
        }
    }
    let taken = store.take(&leasing("a")).await.unwrap();
    assert_eq!((taken.deliveries.len(), taken.undecodable.len()), (4, 0), "{:?}", taken.undecodable);
    assert!(taken.deliveries.iter().all(|delivery| delivery.event.headers().is_empty()));
}

/// `Order` is not `order`, and `a ` is not `a`, in types, keys, deduplication keys and ids.
pub async fn types_and_keys_differ_by_case_and_trailing_spaces(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let texts = ["order", "Order", "order ", "örder", "orde\u{301}r"];
    let written = scene
        .write(texts.iter().map(|text| event(text).ordering_key(*text).dedup_key(*text).id(*text)))
        .await;
    assert_eq!(written.len(), texts.len());
    for text in texts {
        let filter = Filter { event_type: Some(text.to_owned()), ..Filter::default() };
        let found = scene.store.list(&filter, 10).await.unwrap();
        assert_eq!(found.len(), 1, "{text:?}");
        assert_eq!(found[0].event.as_ref().unwrap().event_type(), text);
    }
    // Each key is separate: one blocked key blocks no other.
    let head = scene.lease_one("a").await;
    assert_eq!(head.event.ordering_key(), Some("order"));
    scene.write(texts.map(keyed)).await;
    let taken = scene.lease("b").await;
    assert_eq!(taken.iter().filter(|d| d.event.ordering_key() == Some("order")).count(), 0);
    for text in &texts[1..] {
        assert_eq!(taken.iter().filter(|d| d.event.ordering_key() == Some(*text)).count(), 2, "{text:?}");
    }
    assert_eq!(scene.settle("a", &head, Verdict::Done).await, 1);
    assert_eq!(scene.count(Filter { status: Some(Status::Done), ..Filter::default() }).await, 1);
}

/// The second event gets no id, and the first stays unchanged.
pub async fn a_deduplication_key_keeps_the_second_event_out(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let first = scene.write_one(event("first").dedup_key("d")).await;
    assert!(scene.write([event("second").dedup_key("d")]).await.is_empty());
    let mixed = [event("second").dedup_key("d"), event("third"), event("fourth").dedup_key("e")];
    assert_eq!(scene.write(mixed).await.len(), 2);
    let types: Vec<_> =
        scene.all().await.into_iter().map(|s| s.event.unwrap().event_type().to_string()).collect();
    assert_eq!(types, ["first", "third", "fourth"]);
    assert_eq!(scene.see(&first).await.event.unwrap().event_type(), "first");
}

/// The first of a batch wins.
pub async fn a_deduplication_key_counts_inside_one_batch(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let batch: Vec<Event> = ["a", "b", "a", "b", "a"]
        .iter()
        .enumerate()
        .map(|(n, key)| event(&format!("n{n}")).dedup_key(*key).build().unwrap())
        .collect();
    let stored = scene.store.insert(&batch).await.unwrap();
    assert_eq!(stored, [batch[0].id().clone(), batch[1].id().clone()]);
    assert_eq!(scene.all().await.len(), 2);
}

/// Also while its event is DONE; not after the row is deleted.
pub async fn a_deduplication_key_is_free_again_after_its_event_is_deleted(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write_one(event("kept").dedup_key("kept")).await;
    scene.write_one(event("deleted").dedup_key("deleted")).await;
    let taken = scene.lease("a").await;
    scene.settle("a", &taken[0], Verdict::Done).await;
    let deleted = [super::settlement(&taken[1], Verdict::Done)];
    scene.store.settle(&super::holder("a"), Completion::Delete, &deleted).await.unwrap();
    assert!(scene.write([event("kept").dedup_key("kept")]).await.is_empty());
    assert_eq!(scene.write([event("again").dedup_key("deleted")]).await.len(), 1);
}

/// Not a silent success, and not half a batch.
pub async fn a_duplicate_id_is_an_error_and_stores_nothing(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write_one(event("first").id("same")).await;
    for batch in [
        vec![event("second").id("same")],
        vec![event("second"), event("third").id("same"), event("fourth")],
        vec![event("second").id("twin"), event("third").id("twin")],
        vec![keyed("k").id("same")],
    ] {
        let events: Vec<Event> = batch.into_iter().map(|e| e.build().unwrap()).collect();
        let error = scene.store.insert(&events).await.unwrap_err();
        assert!(matches!(error, Error::DuplicateId { .. }), "{error:?}");
        assert_eq!(scene.all().await.len(), 1);
    }
    assert_eq!(scene.write([event("after")]).await.len(), 1, "the connection is usable again");
}

/// An existing deduplication key is skipped, an existing id is an error, also in the same batch.
pub async fn a_duplicate_id_is_an_error_beside_deduplication_keys_too(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write_one(event("first").id("same").dedup_key("d")).await;
    for batch in [
        vec![event("second").id("same").dedup_key("e")],
        vec![event("second").id("same").dedup_key("d")],
        vec![event("second").dedup_key("f"), event("third").id("same")],
        vec![event("second").dedup_key("d"), event("third").id("same").dedup_key("g")],
    ] {
        let events: Vec<Event> = batch.into_iter().map(|e| e.build().unwrap()).collect();
        match scene.store.insert(&events).await {
            Err(Error::DuplicateId { .. }) => {}
            // The same event once more: its own deduplication key keeps it out.
            Ok(stored) if stored.is_empty() && events.len() == 1 => {
                assert_eq!(events[0].dedup_key(), Some("d"));
            }
            other => panic!("{other:?}"),
        }
        let all = scene.all().await;
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].event.as_ref().unwrap().event_type(), "first");
    }
}
