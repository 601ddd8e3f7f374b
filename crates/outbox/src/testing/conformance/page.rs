//! Pages: every event on exactly one of them, in the order of its status group, despite concurrent
//! changes.

use std::collections::HashSet;
use std::time::Duration;

use super::{Harness, SECOND, Scene, again, dead, event, holder, leasing, settlement};
use crate::error::Error;
use crate::event::{Event, EventId};
use crate::sql::Clock;
use crate::store::{
    Completion, Cursor, Delivery, EventRow, Filter, MAX_ERROR, PageRequest, SharedStore, Status, StatusGroup,
    Take, Verdict,
};

/// All pages of a request, in order.
async fn pages(store: &SharedStore, ask: &PageRequest) -> Vec<Vec<EventRow>> {
    let mut ask = ask.clone();
    let mut pages = Vec::new();
    loop {
        let page = store.page(&ask).await.expect("a page is read");
        assert!(page.rows.len() <= ask.limit);
        pages.push(page.rows);
        assert!(pages.len() < 5_000, "too many pages");
        match page.next {
            Some(next) => ask.after = Some(next),
            None => return pages,
        }
    }
}

async fn ids(store: &SharedStore, ask: &PageRequest) -> Vec<EventId> {
    pages(store, ask).await.into_iter().flatten().map(|row| row.id).collect()
}

fn status_group(status_group: StatusGroup) -> PageRequest {
    PageRequest { status_group, limit: 3, scan_limit: 4, ..PageRequest::default() }
}

fn of_type(event_type: &str) -> Filter {
    Filter { event_type: Some(event_type.to_owned()), ..Filter::default() }
}

/// Settles all due events with this verdict, some at a time.
async fn settle_all(scene: &Scene, verdict: &Verdict) {
    loop {
        let taken = scene.take(&Take { limit: 250, ..leasing("a") }).await.deliveries;
        if taken.is_empty() {
            return;
        }
        scene.settle_all(&holder("a"), taken.iter().map(|d| (d, verdict.clone()))).await;
        scene.pass(SECOND);
    }
}

/// Each group in its own order, from either end.
pub async fn each_status_group_is_read_in_its_order(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let mut written = Vec::new();
    for n in 0..24 {
        written.push(scene.write_one(event(if n % 2 == 0 { "even" } else { "odd" })).await);
        scene.pass(SECOND);
    }
    let taken = scene.lease("a").await;
    // In another order than they were written.
    for n in (0..8).rev() {
        scene.settle("a", &taken[n], Verdict::Done).await;
        scene.pass(SECOND);
    }
    for delivery in &taken[8..16] {
        scene.settle("a", delivery, dead("no")).await;
    }
    for delivery in &taken[16..20] {
        scene.settle("a", delivery, again(1_000)).await;
    }
    for delivery in &taken[20..] {
        scene.settle("a", delivery, Verdict::Released).await;
    }
    let done: Vec<EventId> = written[..8].iter().rev().cloned().collect();
    let pending: Vec<EventId> = written[20..].iter().chain(&written[16..20]).cloned().collect();
    for (name, expected) in [
        (StatusGroup::Done, done),
        (StatusGroup::Dead, written[8..16].to_vec()),
        (StatusGroup::Pending, pending),
    ] {
        assert_eq!(ids(&scene.store, &status_group(name)).await, expected, "{name:?}");
        let backwards = PageRequest { newest_first: true, ..status_group(name) };
        let reversed: Vec<EventId> = expected.into_iter().rev().collect();
        assert_eq!(ids(&scene.store, &backwards).await, reversed, "{name:?} backwards");
    }
}

/// With a small scan limit, in every group, in both directions, and with many events settled at the
/// same time.
pub async fn every_hundredth_of_a_thousand_is_found_once(harness: &impl Harness) {
    for name in [StatusGroup::Pending, StatusGroup::Done, StatusGroup::Dead] {
        let scene = Scene::open(harness).await;
        let of = |n: u32| event(if n % 100 == 7 { "rare" } else { "common" }).tenant(format!("{name:?}"));
        let written = scene.write((0..1_000).map(of)).await;
        match name {
            StatusGroup::Pending => {}
            StatusGroup::Done => settle_all(&scene, &Verdict::Done).await,
            StatusGroup::Dead => settle_all(&scene, &dead("no")).await,
        }
        let rare: Vec<EventId> = written.into_iter().skip(7).step_by(100).collect();
        let filter = Filter { tenant_id: Some(format!("{name:?}")), ..of_type("rare") };
        for (limit, newest_first) in [(3, false), (100, false), (1, true)] {
            let ask = PageRequest {
                status_group: name,
                filter: filter.clone(),
                newest_first,
                limit,
                scan_limit: 50,
                ..PageRequest::default()
            };
            let mut found = ids(&scene.store, &ask).await;
            if newest_first {
                found.reverse();
            }
            // Events that were settled at the same time are in the order of the table.
            assert_eq!(found, rare, "{name:?}, {limit} at a time");
        }
        if name == StatusGroup::Pending {
            // The next group starts without pending events.
            settle_all(&scene, &Verdict::Done).await;
        }
    }
}

/// The search continues from its end.
pub async fn a_page_without_a_match_has_a_next_page(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write((0..10).map(|_| event("common"))).await;
    let rare = scene.write_one(event("rare")).await;
    let mut ask = PageRequest { filter: of_type("rare"), limit: 5, scan_limit: 10, ..PageRequest::default() };
    let first = scene.store.page(&ask).await.unwrap();
    assert!(first.rows.is_empty());
    ask.after = Some(first.next.expect("there is a next page"));
    let second = scene.store.page(&ask).await.unwrap();
    assert_eq!((second.rows[0].id.clone(), second.rows.len(), second.next), (rare, 1, None));
}

/// Events that stay are seen once, events that leave at most once.
pub async fn events_settled_between_pages_do_not_disturb_the_rest(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write((0..60).map(|_| event("e"))).await;
    let taken = scene.lease("a").await;
    let mut ask = PageRequest { limit: 7, scan_limit: 9, ..PageRequest::default() };
    let mut seen = Vec::new();
    let mut settled = HashSet::new();
    for turn in 0.. {
        let page = scene.store.page(&ask).await.unwrap();
        seen.extend(page.rows.into_iter().map(|row| row.id));
        // Two that were seen, two that are still to come.
        for n in [turn * 3, turn * 3 + 1, 59 - turn * 2, 58 - turn * 2] {
            if let Some(delivery) = taken.get(n).filter(|d| settled.insert(d.event.id().clone())) {
                scene.settle("a", delivery, Verdict::Done).await;
            }
        }
        match page.next {
            Some(next) => ask.after = Some(next),
            None => break,
        }
    }
    let once: HashSet<&EventId> = seen.iter().collect();
    assert_eq!(once.len(), seen.len(), "none twice");
    assert!(written.iter().all(|id| once.contains(id) || settled.contains(id)), "none is missed");
}

/// Zero rows to return or to read; and unknown events are not found.
pub async fn a_zero_limit_is_refused_and_an_unknown_event_is_not_found(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let empty = scene.store.page(&PageRequest::default()).await.unwrap();
    assert_eq!((empty.rows.len(), empty.next), (0, None));
    let id = scene.write_one(event("e")).await;
    for (limit, scan_limit) in [(0, 10), (10, 0), (0, 0)] {
        let asked = scene.store.page(&PageRequest { limit, scan_limit, ..PageRequest::default() }).await;
        assert!(matches!(asked, Err(Error::Setting { .. })), "{asked:?}");
    }
    let late = Cursor { at: scene.now() + Duration::from_secs(1_000_000_000), seq: i64::MAX };
    for name in [StatusGroup::Pending, StatusGroup::Done, StatusGroup::Dead] {
        assert!(ids(&scene.store, &PageRequest { after: Some(late), ..status_group(name) }).await.is_empty());
        let unknown = Filter { id: Some(EventId::from("unknown")), ..Filter::default() };
        assert!(ids(&scene.store, &PageRequest { filter: unknown, ..status_group(name) }).await.is_empty());
        let by_id = Filter { id: Some(id.clone()), ..Filter::default() };
        let found =
            ids(&scene.store, &PageRequest { filter: by_id, limit: 1, scan_limit: 1, ..status_group(name) })
                .await;
        assert_eq!(found.len(), usize::from(name == StatusGroup::Pending), "only in its own group");
    }
    // More than the maximum.
    let much = PageRequest { limit: usize::MAX, scan_limit: usize::MAX, ..PageRequest::default() };
    assert_eq!(ids(&scene.store, &much).await, [id]);
}

/// By every field; of a key, in the order of the table.
pub async fn pages_hold_the_events_that_match_their_filter(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let mut mine = Vec::new();
    for n in 0..30 {
        let later = Duration::from_secs(1_000 - n);
        scene.write_one(event("t").deliver_after(later).ordering_key("other").aggregate("a", "2")).await;
        let own = event("t").ordering_key("mine").aggregate("a", "1").tenant("acme").correlation("story");
        mine.push(scene.write_one(own.deliver_after(later)).await);
    }
    let text = |text: &str| Some(text.to_owned());
    let by_key = Filter { ordering_key: text("mine"), ..Filter::default() };
    assert_eq!(
        ids(&scene.store, &PageRequest { filter: by_key.clone(), ..status_group(StatusGroup::Pending) })
            .await,
        mine
    );
    let mut by_time = mine.clone();
    by_time.reverse();
    for filter in [
        Filter { aggregate_id: text("1"), aggregate_type: text("a"), ..Filter::default() },
        Filter { tenant_id: text("acme"), ..Filter::default() },
        Filter { correlation_id: text("story"), newer_than: Some(SECOND), ..Filter::default() },
        // Fields that are ignored here.
        Filter {
            tenant_id: text("acme"),
            status: Some(Status::Dead),
            pending: true,
            after_seq: Some(i64::MAX),
            upto_seq: Some(0),
            ..Filter::default()
        },
    ] {
        let ask = PageRequest { filter, ..status_group(StatusGroup::Pending) };
        assert_eq!(ids(&scene.store, &ask).await, by_time, "{ask:?}");
    }
    scene.pass(Duration::from_secs(1_000));
    let keys: Vec<Delivery> = scene.lease("a").await;
    let of_mine = keys.iter().filter(|d| d.event.ordering_key() == Some("mine"));
    for (n, delivery) in of_mine.enumerate() {
        scene.settle("a", delivery, if n < 10 { dead("no") } else { Verdict::Done }).await;
        scene.pass(SECOND);
    }
    for (name, expected) in
        [(StatusGroup::Dead, &mine[..10]), (StatusGroup::Done, &mine[10..]), (StatusGroup::Pending, &[])]
    {
        let ask = PageRequest { filter: by_key.clone(), ..status_group(name) };
        assert_eq!(ids(&scene.store, &ask).await, expected, "{name:?}");
        let mut backwards = ids(&scene.store, &PageRequest { newest_first: true, ..ask }).await;
        backwards.reverse();
        assert_eq!(backwards, expected, "{name:?} backwards");
    }
}

/// Markup is not changed, and a long error is cut.
pub async fn a_row_shows_all_but_the_payload(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let json = r#"{"größe": "ä"}"#;
    let full = Event::new("order.placed")
        .json_text(json)
        .aggregate("order", "42")
        .tenant("acme")
        .ordering_key("k")
        .correlation("story")
        .header("secret", "do not show");
    let bytes = Event::new("b").bytes("application/x-thing", vec![0_u8, 255, 1]);
    let written = scene.write([full, bytes, event("held")]).await;
    let created = scene.now();
    let taken = scene.lease("a").await;
    scene.pass(SECOND);
    let error = format!("<b>no</b> & \0 {}", "ü".repeat(MAX_ERROR));
    scene
        .settle("a", &taken[0], Verdict::Again { after: 5 * SECOND, counted: true, error: Some(error) })
        .await;
    scene.settle("a", &taken[1], dead("<script>alert(1)</script>")).await;

    let rows: Vec<EventRow> =
        pages(&scene.store, &PageRequest::default()).await.into_iter().flatten().collect();
    let row = |n: usize| rows.iter().find(|row| row.id == written[n]).expect("it is there");
    let first = row(0);
    assert_eq!((first.event_type.as_str(), first.aggregate_type.as_str()), ("order.placed", "order"));
    assert_eq!((first.aggregate_id.as_deref(), first.tenant_id.as_deref()), (Some("42"), Some("acme")));
    assert_eq!((first.ordering_key.as_deref(), first.correlation_id.as_deref()), (Some("k"), Some("story")));
    assert_eq!((first.status, first.attempts, first.created_at), (Status::Retry, 1, created));
    assert_eq!(first.available_at, scene.now() + 5 * SECOND);
    assert_eq!((first.done_at, first.done_by.as_ref(), first.lease.as_ref()), (None, None, None));
    assert_eq!(first.payload_bytes, json.len() as u64);
    let shown = first.last_error.as_deref().unwrap();
    assert!(shown.starts_with("<b>no</b> & \u{fffd} ü"), "{shown}");
    assert_eq!(shown.chars().count(), 500);
    assert_eq!(first.seq, scene.see(&written[0]).await.seq);
    let held = row(2);
    assert_eq!(held.lease.as_ref().map(|(node, _)| node.as_str()), Some("a"));

    let dead = scene.store.page(&status_group(StatusGroup::Dead)).await.unwrap().rows.remove(0);
    assert_eq!((dead.id, dead.payload_bytes, dead.status), (written[1].clone(), 3, Status::Dead));
    assert_eq!(dead.last_error.as_deref(), Some("<script>alert(1)</script>"));
    assert_eq!((dead.done_at, dead.done_by), (Some(scene.now()), Some("a".into())));
    let shown = format!("{rows:?}");
    assert!(!shown.contains("größe") && !shown.contains("do not show"));
}

/// By id and by sequence number, also of undecodable events; the facts around an event contain no
/// payload either.
pub async fn metadata_has_sizes_and_never_contents(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let secret = r#"{"größe": "canary"}"#;
    let end = scene.now() + chrono::Duration::seconds(60);
    let full = || {
        Event::new("order.placed")
            .json_text(secret)
            .aggregate("order", "42")
            .tenant("acme")
            .ordering_key("k")
            .correlation("story")
            .header("name", "canary")
            .expires_at(end)
    };
    let bytes = Event::new("b").bytes("application/x-thing", b"canary".to_vec());
    let written = scene.write([full().dedup_key("once"), full(), bytes]).await;
    let first = scene.store.metadata(&written[0]).await.unwrap().expect("it is there");
    let stored = scene.see(&written[0]).await;
    assert_eq!((&first.row.id, first.row.seq), (&written[0], stored.seq));
    assert_eq!((first.row.payload_bytes, first.headers_bytes), (secret.len() as u64, 17));
    assert_eq!((first.dedup_key.as_deref(), first.content_type.as_str()), (Some("once"), crate::event::JSON));
    assert_eq!((first.expires_at, first.unreadable.as_deref()), (Some(end), None));
    assert_eq!(first.occurred_at, stored.event.ok().map(|event| event.occurred_at()));
    assert_eq!(first.row.ordering_key.as_deref(), Some("k"));
    assert_eq!(scene.store.metadata_at(first.row.seq).await.unwrap(), Some(first.clone()));
    let third = scene.store.metadata(&written[2]).await.unwrap().expect("it is there");
    assert_eq!((third.row.payload_bytes, third.headers_bytes), (6, 0));
    assert_eq!((third.content_type.as_str(), third.expires_at), ("application/x-thing", None));
    assert_eq!(scene.store.metadata(&EventId::from("unknown")).await.unwrap(), None);
    for seq in [-1, i64::MIN, i64::MAX] {
        assert_eq!(scene.store.metadata_at(seq).await.unwrap(), None, "{seq}");
    }

    let facts = scene.store.delivery_facts(&written[1]).await.unwrap();
    assert_eq!(facts.pending_ahead.as_ref().map(|event| event.seq), Some(first.row.seq));
    for text in [format!("{facts:?}"), format!("{first:?}{third:?}")] {
        assert!(!text.contains("canary"), "{text}");
    }
    for event in [facts.event, facts.pending_ahead].into_iter().flatten() {
        let event = event.event.expect("it can be decoded");
        assert_eq!((event.payload_bytes(), event.headers().len()), (&b"null"[..], 0), "it was read");
    }

    let long = "x".repeat(MAX_ERROR);
    let taken = scene.lease("a").await;
    scene.settle("a", &taken[0], dead(&long)).await;
    let died = scene.store.metadata(&written[0]).await.unwrap().expect("it is there");
    assert_eq!((died.row.status, died.row.last_error.as_deref()), (Status::Dead, Some(long.as_str())));

    let insert = "INSERT INTO {events} (event_id, event_type, payload, headers) VALUES ('odd', 'x', 'null', '[\"canary\"]')";
    if harness.execute(insert).await {
        let odd = scene.store.metadata(&EventId::from("odd")).await.unwrap().expect("it is there");
        let reason = odd.unreadable.expect("it cannot be decoded");
        assert!(reason.contains("headers") && !reason.contains("canary"), "{reason}");
    }

    // Larger than a store decodes: a relay dead-letters it, and the metadata has the cause.
    let size = crate::event::MAX_PAYLOAD + 1;
    let text = format!("\"{}\"", "x".repeat(size - 2));
    let large = scene.write_one(Event::new("large").max_payload(size).json_text(text)).await;
    let large = scene.store.metadata(&large).await.unwrap().expect("it is there");
    assert_eq!(large.row.payload_bytes, size as u64);
    assert!(large.unreadable.is_some_and(|reason| reason.contains(&size.to_string())));
}

/// Writers in SQL choose ids: with control characters, or only a space.
pub async fn an_event_is_found_whatever_its_id_is(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    for id in ["a\u{7}b\u{1b}[2J", " x ", "..", "a/b?c#d%41", "\u{202e}", " "] {
        let insert =
            format!("INSERT INTO {{events}} (event_id, event_type, payload) VALUES ('{id}', 'x', '1')");
        if !harness.execute(&insert).await {
            return;
        }
        let found = scene.store.metadata(&EventId::from(id)).await.unwrap().expect("it is found by its id");
        assert_eq!(found.row.id.as_str(), id);
        let again = scene
            .store
            .metadata_at(found.row.seq)
            .await
            .unwrap()
            .expect("it is found by its sequence number");
        assert_eq!(again.row.id.as_str(), id);
        assert!(scene.store.cancel(&found.row.id).await.unwrap(), "{id:?}");
    }
    assert_eq!(
        scene.store.metadata(&EventId::from("a\0b")).await.unwrap(),
        None,
        "no database fails on a NUL"
    );
}

/// SQLite compares times as text, and other writers may use another precision.
pub async fn times_of_other_writers_are_paged_through(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let times = ["01:02:03", "01:02:03.1", "01:02:03.123456", "01:02:03.123999", "01:02:04"];
    for time in times {
        for n in 0..3 {
            let row = format!("('{time}', '{n}', '2001-02-03 {time}')");
            let insert = format!("INSERT INTO {{events}} (event_type, payload, available_at) VALUES {row}");
            if !harness.execute(&insert).await {
                return;
            }
        }
    }
    for newest_first in [false, true] {
        for limit in [1, 2, 7] {
            let ask = PageRequest { newest_first, limit, scan_limit: limit, ..PageRequest::default() };
            let found = ids(&scene.store, &ask).await;
            assert_eq!(found.len(), 15, "{limit} at a time");
            assert_eq!(found.into_iter().collect::<HashSet<_>>().len(), 15, "{limit} at a time");
        }
    }
}

/// No operation fails, and no event is repeated.
pub async fn pages_are_read_while_others_settle(harness: &impl Harness) {
    let store = harness.connect(Clock::Database).await;
    store.migrate().await.unwrap();
    let events: Vec<Event> =
        (0..1_000).map(|n| event(if n % 2 == 0 { "stays" } else { "goes" }).build().unwrap()).collect();
    let stays: HashSet<EventId> =
        events.iter().filter(|e| *e.event_type() == "stays").map(|e| e.id().clone()).collect();
    store.insert(&events).await.unwrap();
    let worker = harness.connect(Clock::Database).await;
    let work = tokio::spawn(async move {
        let skipped = vec!["stays".to_owned()];
        loop {
            let take = Take { limit: 20, skip_types: skipped.clone(), ..leasing("a") };
            let taken = worker.take(&take).await.unwrap().deliveries;
            if taken.is_empty() {
                return;
            }
            let verdicts = [Verdict::Done, dead("no")].into_iter().cycle();
            let settled: Vec<_> =
                taken.iter().zip(verdicts).map(|(d, verdict)| settlement(d, verdict)).collect();
            worker.settle(&holder("a"), Completion::Keep, &settled).await.unwrap();
        }
    });
    loop {
        let over = work.is_finished();
        for name in [StatusGroup::Pending, StatusGroup::Done, StatusGroup::Dead] {
            let ask = PageRequest { status_group: name, limit: 40, scan_limit: 60, ..PageRequest::default() };
            let found = ids(&store, &ask).await;
            let once: HashSet<EventId> = found.iter().cloned().collect();
            assert_eq!(once.len(), found.len(), "{name:?}: none twice");
            if name == StatusGroup::Pending {
                assert!(once.is_superset(&stays), "none that stays is missed");
            }
        }
        if over {
            break;
        }
    }
    work.await.unwrap();
}
