//! Outcomes of handlers and their effect on an event: retries, dead letters, routing, interceptors.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Gate, Seen, numbered};
use outbox::store::Status;
use outbox::{
    Backoff, Context, Error, Event, EventBuilder, EventType, Failure, Handled, HandlerTx, Interceptor,
    Message, OrDead, Outcome, RetryPolicy, Route, Unrouted, on, on_aggregate, on_any, on_type,
};
use serde::{Deserialize, Serialize};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);

/// Waits one second after each failure; three attempts.
fn three() -> Backoff {
    Backoff::default().base(SEC).max(SEC).max_attempts(3).no_jitter()
}

on_every_database! {
    async fn a_failure_is_retried_until_the_event_is_dead(frozen |db|) {
        for relay in [db.outbox.single_node(), db.outbox.multi_node(), db.outbox.ordered()] {
            let seen = Seen::default();
            let relay = relay.retry(three())
                .on_type("e", seen.returning(|_| Err(Failure::retry("no luck")))).start().await.unwrap();
            let id = db.outbox.send(numbered("e", 1)).await.unwrap().id;
            for attempt in 1..=3u32 {
                relay.idle().await.unwrap();
                assert_eq!(seen.count(), attempt as usize, "not before it is due");
                let stored = db.find(&id).await;
                assert_eq!(stored.attempts, attempt);
                assert_eq!(stored.last_error.as_deref(), Some("no luck"));
                assert_eq!(stored.lease, None);
                let (status, wait) = if attempt < 3 { (Status::Retry, SEC) } else { (Status::Dead, SEC * 100) };
                assert_eq!(stored.status, status);
                db.advance(wait);
            }
            relay.idle().await.unwrap();
            assert_eq!(seen.attempts(), [1, 2, 3]);
            relay.stop().await.unwrap();
        }
    }

    /// Case 5: the old system delivered 40 times in 4 s and counted nothing.
    async fn a_panic_counts_as_an_attempt(frozen |db|) {
        let seen = Seen::default();
        let relay = db.outbox.single_node().retry(three())
            .on_type("e", seen.returning(|cx| panic!("attempt {}", cx.attempt()))).start().await.unwrap();
        let id = db.outbox.send(numbered("e", 1)).await.unwrap().id;
        for _ in 0..5 {
            relay.idle().await.unwrap();
            db.advance(SEC);
        }
        assert_eq!(seen.attempts(), [1, 2, 3]);
        let stored = db.find(&id).await;
        assert_eq!((stored.status, stored.attempts), (Status::Dead, 3));
        assert_eq!(stored.last_error.as_deref(), Some("the handler panicked: attempt 3"));
        relay.stop().await.unwrap();
    }

    async fn retry_after_as_an_outcome_counts_no_attempt(frozen |db|) {
        let seen = Seen::default();
        let relay = db.outbox.multi_node().retry(Backoff::never()).on_type("e", seen.returning(|cx| {
            assert_eq!(cx.attempt(), 1);
            Ok(Outcome::Snooze(SEC))
        })).start().await.unwrap();
        let id = db.outbox.send(numbered("e", 1)).await.unwrap().id;
        for deferral in 1..=5 {
            relay.idle().await.unwrap();
            assert_eq!(seen.count(), deferral);
            let stored = db.find(&id).await;
            assert_eq!((stored.status, stored.attempts, stored.lease), (Status::New, 0, None));
            db.advance(SEC);
        }
        relay.stop().await.unwrap();
    }

    async fn retry_after_as_a_failure_counts_an_attempt(frozen |db|) {
        let seen = Seen::default();
        let relay = db.outbox.single_node().retry(three())
            .on_type("e", seen.returning(|_| Err(Failure::retry_after(SEC * 60, "busy")))).start().await.unwrap();
        let id = db.outbox.send(numbered("e", 1)).await.unwrap().id;
        relay.idle().await.unwrap();
        db.advance(SEC * 59);
        relay.idle().await.unwrap();
        assert_eq!(seen.count(), 1, "its own delay, not the policy's");
        for _ in 0..4 {
            db.advance(SEC * 60);
            relay.idle().await.unwrap();
        }
        assert_eq!(seen.attempts(), [1, 2, 3]);
        assert_eq!(db.status(&id).await, Status::Dead);
        relay.stop().await.unwrap();
    }

    async fn dead_is_dead_at_once_and_counts_no_attempt(|db|) {
        let seen = Seen::default();
        let relay = db.outbox.single_node()
            .on_type("returned", seen.returning(|_| Ok(Outcome::Dead("not wanted".to_owned()))))
            .on_type("failed", seen.returning(|_| Err(Failure::dead("hopeless"))))
            .on_type("parsed", seen.returning(|_| "seven".parse::<u8>().or_dead().map(|_| Outcome::Done)))
            .start().await.unwrap();
        let mut ids = Vec::new();
        for event_type in ["returned", "failed", "parsed"] {
            ids.push(db.outbox.send(numbered(event_type, 1)).await.unwrap().id);
        }
        relay.idle().await.unwrap();
        for (id, reason) in ids.iter().zip(["not wanted", "hopeless", "invalid digit found in string"]) {
            let stored = db.find(id).await;
            assert_eq!((stored.status, stored.attempts, stored.lease), (Status::Dead, 0, None));
            assert_eq!(stored.last_error.as_deref(), Some(reason));
            assert!(stored.done_at.is_some());
        }
        assert_eq!(seen.count(), 3);
        relay.stop().await.unwrap();
    }

    /// `Duration::MAX` is longer than any database can store.
    async fn a_delay_without_end_stops_nothing(|db|) {
        for relay in [db.outbox.single_node(), db.outbox.multi_node()] {
            let seen = Seen::default();
            let relay = relay.on_type("later", seen.returning(|_| Ok(Outcome::Snooze(Duration::MAX))))
                .on_type("again", seen.returning(|_| Err(Failure::retry_after(Duration::MAX, "busy"))))
                .on_type("now", seen.handler()).start().await.unwrap();
            let later = db.outbox.send(numbered("later", 1)).await.unwrap().id;
            let again = db.outbox.send(numbered("again", 2)).await.unwrap().id;
            seen.reach(2).await;
            let now = db.outbox.send(numbered("now", 3)).await.unwrap().id;
            seen.reach(3).await;
            relay.idle().await.unwrap();
            assert_eq!(db.status(&later).await, Status::New);
            assert_eq!(db.status(&again).await, Status::Retry);
            assert_eq!(db.status(&now).await, Status::Done);
            assert!(db.find(&later).await.available_at > chrono::Utc::now() + chrono::Duration::days(3_650));
            relay.stop().await.unwrap();
        }
    }

    async fn an_error_text_is_cut_and_stored_whatever_it_holds(|db|) {
        let relay = db.outbox.single_node()
            .on_type("e", async |_: Context| Err::<(), _>(Failure::dead(format!("a\0b'\";\u{1F600}{}", "ü".repeat(5_000)))))
            .start().await.unwrap();
        let id = db.outbox.send(numbered("e", 1)).await.unwrap().id;
        relay.idle().await.unwrap();
        let stored = db.find(&id).await;
        let text = stored.last_error.unwrap();
        assert_eq!(stored.status, Status::Dead);
        assert_eq!(text.chars().count(), 4_000);
        assert!(text.starts_with("a\u{fffd}b'\";\u{1F600}üü"), "{}", &text[..20]);
        relay.stop().await.unwrap();
    }

    /// Types are read back from the database, whichever collation it has.
    async fn types_that_differ_by_case_have_handlers_of_their_own(|db|) {
        let (upper, lower) = (Seen::default(), Seen::default());
        let relay = db.outbox.multi_node().no_hot_path().on_type("Order.Created", upper.handler())
            .on_type("order.created", lower.handler()).start().await.unwrap();
        db.outbox.send_all([numbered("Order.Created", 1), numbered("order.created", 2)]).await.unwrap();
        let unrouted = db.outbox.send(numbered("ORDER.CREATED", 3)).await.unwrap().id;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!((upper.numbers(), lower.numbers()), (vec![1], vec![2]));
        assert_eq!(db.status(&unrouted).await, Status::New, "no handler matches");
    }

    async fn an_event_without_a_handler_is_dead_or_waits_for_a_node_that_knows_it(frozen |db|) {
        let relay = db.outbox.single_node().unrouted(Unrouted::Dead).start().await.unwrap();
        let id = db.outbox.send(numbered("e", 1).aggregate("order", "1")).await.unwrap().id;
        relay.idle().await.unwrap();
        let stored = db.find(&id).await;
        assert_eq!((stored.status, stored.attempts), (Status::Dead, 0));
        assert_eq!(stored.last_error.unwrap(), "no handler for event type \"e\" of aggregate type \"order\"");
        relay.stop().await.unwrap();

        let relay = db.outbox.single_node().unrouted(Unrouted::Retry).retry(three()).start().await.unwrap();
        let id = db.outbox.send(numbered("e", 2)).await.unwrap().id;
        relay.idle().await.unwrap();
        let stored = db.find(&id).await;
        assert_eq!((stored.status, stored.attempts), (Status::Retry, 1));
        relay.stop().await.unwrap();

        let seen = Seen::default();
        let relay = db.outbox.single_node().on_type("e", seen.handler()).start().await.unwrap();
        db.advance(SEC);
        relay.idle().await.unwrap();
        assert_eq!(seen.numbers(), [2]);
        assert_eq!(db.status(&id).await, Status::Done);
        relay.stop().await.unwrap();
    }
}

mod on_sqlite {
    use super::*;
    use crate::common::TestDb;
    use outbox::store::StoredEvent;

    type Sqlite = TestDb<sqlx::Sqlite>;

    async fn fresh() -> Sqlite {
        TestDb::new().await.unwrap()
    }

    async fn deliver(
        db: &Sqlite,
        relay: outbox::RelayBuilder<sqlx::Sqlite>,
        event: impl outbox::IntoEvent,
    ) -> StoredEvent {
        let relay = relay.start().await.unwrap();
        let id = db.outbox.send(event).await.unwrap().id;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        db.find(&id).await
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Paid {
        amount: u64,
    }

    impl Message for Paid {
        const TYPE: &'static str = "paid";
        const AGGREGATE_TYPE: &'static str = "invoice";

        fn describe(&self, event: EventBuilder) -> EventBuilder {
            event.aggregate(Self::AGGREGATE_TYPE, "7").tenant("acme").header("currency", "eur")
        }
    }

    #[derive(Serialize, Deserialize)]
    struct Pinged;

    impl Message for Pinged {
        const TYPE: &'static str = "pinged";
    }

    #[tokio::test]
    async fn a_typed_handler_gets_its_message_and_the_event_around_it() {
        let db = fresh().await;
        let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
        let relay = db.outbox.single_node().on(move |paid: Paid, cx: Context| {
            sender.send((paid, cx)).unwrap();
            async { Handled::Ok(()) }
        });
        let stored = deliver(&db, relay, Paid { amount: 5 }).await;
        assert_eq!(stored.status, Status::Done);
        let (paid, cx) = received.recv().await.unwrap();
        assert_eq!(paid, Paid { amount: 5 });
        assert_eq!(
            (cx.tenant_id(), cx.header("currency"), cx.aggregate_id()),
            (Some("acme"), Some("eur"), Some("7"))
        );
        assert_eq!(cx.attempt(), 1);
    }

    #[tokio::test]
    async fn garbage_for_a_typed_handler_is_dead_at_once_and_not_quoted() {
        let db = fresh().await;
        for event in [
            Event::new("paid").aggregate_type("invoice").json(&"s3cret"),
            Event::new("paid").aggregate_type("invoice").bytes("image/png", b"\x00\xff\xd8".to_vec()),
        ] {
            let called = Arc::new(Mutex::new(0));
            let count = called.clone();
            let relay = db.outbox.single_node().on(move |_: Paid, _: Context| {
                *count.lock().unwrap() += 1;
                async {}
            });
            let stored = deliver(&db, relay, event).await;
            assert_eq!((stored.status, stored.attempts), (Status::Dead, 0));
            let reason = stored.last_error.unwrap();
            assert!(reason.contains("the payload is not a") && !reason.contains("s3cret"), "{reason}");
            assert_eq!(*called.lock().unwrap(), 0);
        }
    }

    enum Kind {
        Made,
    }

    impl From<Kind> for EventType {
        fn from(_: Kind) -> Self {
            EventType::from_static("made")
        }
    }

    #[tokio::test]
    async fn the_most_specific_handler_is_called() {
        let db = fresh().await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let note = |name: &'static str| {
            let seen = seen.clone();
            move |_: Context| {
                seen.lock().unwrap().push(name);
                async {}
            }
        };
        let relay = db
            .outbox
            .single_node()
            .workers(1)
            .on_any(note("any"))
            .on_type(Kind::Made, note("type"))
            .on_aggregate("order", Kind::Made, note("aggregate"))
            .start()
            .await
            .unwrap();
        for event in [
            Event::new(Kind::Made).json(&1).aggregate("order", "1"),
            Event::new("made").json(&1).aggregate("invoice", "1"),
            Event::new("made").json(&1),
            Event::new("lost").json(&1).aggregate("order", "1"),
        ] {
            db.outbox.send(event).await.unwrap();
            relay.idle().await.unwrap();
        }
        relay.stop().await.unwrap();
        assert_eq!(*seen.lock().unwrap(), ["aggregate", "type", "type", "any"]);
    }

    #[tokio::test]
    async fn a_second_handler_for_the_same_pair_is_an_error() {
        let db = fresh().await;
        let nothing = async |_: Context| {};
        let twice = db.outbox.single_node().on_type("e", nothing).on_type("e", nothing).start().await;
        let Err(Error::DuplicateHandler { aggregate_type, event_type }) = twice else { panic!("{twice:?}") };
        assert_eq!((aggregate_type.as_str(), event_type.as_str()), ("__GLOBAL__", "e"));

        let typed = db
            .outbox
            .single_node()
            .on(async |_: Pinged, _: Context| {})
            .on_type("pinged", nothing)
            .start()
            .await;
        assert!(matches!(typed, Err(Error::DuplicateHandler { .. })), "{typed:?}");
        let any = db.outbox.single_node().on_any(nothing).on_any(nothing).start().await;
        assert!(matches!(any, Err(Error::DuplicateHandler { .. })), "{any:?}");

        let fine =
            db.outbox.single_node().on_type("e", nothing).on_aggregate("order", "e", nothing).start().await;
        fine.unwrap().stop().await.unwrap();
    }

    /// Records its calls, and returns a configured result.
    struct Recording {
        name: &'static str,
        calls: Arc<Mutex<Vec<String>>>,
        before: fn() -> Result<(), Failure>,
        after: fn(),
    }

    impl Interceptor for Recording {
        fn before(&self, _: &Context) -> Result<(), Failure> {
            self.calls.lock().unwrap().push(format!("before {}", self.name));
            (self.before)()
        }

        fn after(&self, _: &Context, result: &Result<Outcome, Failure>) {
            let how = if result.is_ok() { "ok" } else { "err" };
            self.calls.lock().unwrap().push(format!("after {} {how}", self.name));
            (self.after)();
        }
    }

    async fn intercepted(before: fn() -> Result<(), Failure>, after: fn()) -> (Vec<String>, StoredEvent) {
        let db = fresh().await;
        let calls = Arc::new(Mutex::new(Vec::new()));
        let note = |name, before, after| Recording { name, calls: calls.clone(), before, after };
        let handler = calls.clone();
        let relay = db
            .outbox
            .single_node()
            .retry(Backoff::never())
            .interceptor(note("a", || Ok(()), || ()))
            .interceptor(note("b", before, after))
            .interceptor(note("c", || Ok(()), || ()))
            .on_type("e", move |_: Context| {
                handler.lock().unwrap().push("handler".to_owned());
                async {}
            });
        let stored = deliver(&db, relay, numbered("e", 1)).await;
        let calls = calls.lock().unwrap().clone();
        (calls, stored)
    }

    #[tokio::test]
    async fn interceptors_run_in_order_before_and_in_reverse_after_the_handler() {
        let (calls, stored) = intercepted(|| Ok(()), || ()).await;
        let expected =
            ["before a", "before b", "before c", "handler", "after c ok", "after b ok", "after a ok"];
        assert_eq!(calls, expected);
        assert_eq!(stored.status, Status::Done);
    }

    #[tokio::test]
    async fn an_interceptor_that_refuses_keeps_the_event_from_its_handler() {
        let (calls, stored) = intercepted(|| Err(Failure::dead("not today")), || ()).await;
        assert_eq!(calls, ["before a", "before b", "after a err"]);
        assert_eq!((stored.status, stored.last_error.as_deref()), (Status::Dead, Some("not today")));
        assert_eq!(stored.attempts, 0);
    }

    #[tokio::test]
    async fn an_interceptor_that_panics_before_is_a_failure_and_after_is_nothing() {
        let (calls, stored) = intercepted(|| panic!("before"), || ()).await;
        assert_eq!(calls, ["before a", "before b", "after a err"]);
        assert_eq!((stored.status, stored.attempts), (Status::Dead, 1));
        assert_eq!(stored.last_error.as_deref(), Some("an interceptor panicked: before"));

        let (calls, stored) = intercepted(|| Ok(()), || panic!("after")).await;
        assert_eq!(calls.last().unwrap(), "after a ok");
        assert_eq!((stored.status, stored.last_error), (Status::Done, None));
    }

    async fn fails() -> Handled {
        Err(Failure::retry("always"))
    }

    #[tokio::test]
    async fn a_handler_may_have_a_retry_policy_of_its_own() {
        let db = fresh().await;
        let relay = || {
            let relay = db.outbox.single_node().retry(Backoff::default().base(SEC * 60));
            relay.route(on_type("once", fails).retry(Backoff::never())).on_type("more", fails)
        };
        assert_eq!(deliver(&db, relay(), numbered("once", 1)).await.status, Status::Dead);
        assert_eq!(deliver(&db, relay(), numbered("more", 1)).await.status, Status::Retry);
    }

    #[derive(Serialize, Deserialize)]
    struct Posted;

    impl Message for Posted {
        const TYPE: &'static str = "e";
    }

    /// Hangs, or fails at once.
    async fn hang_or_fail(hangs: bool) -> Handled {
        if hangs {
            std::future::pending::<()>().await;
        }
        Err(Failure::retry("always"))
    }

    /// Each kind of route, beside two handlers with the relay's own settings.
    #[tokio::test]
    async fn every_kind_of_route_may_have_a_retry_policy_and_a_time_limit_of_its_own() {
        type Kind = fn(bool) -> Route<sqlx::Sqlite>;
        let kinds: [(&str, Kind); 5] = [
            ("on", |hangs| on(move |_: Posted| hang_or_fail(hangs))),
            ("on_type", |hangs| on_type("e", move || hang_or_fail(hangs))),
            ("on_aggregate", |hangs| on_aggregate("__GLOBAL__", "e", move || hang_or_fail(hangs))),
            ("on_any", |hangs| on_any(move || hang_or_fail(hangs))),
            ("transaction", |hangs| on(move |_: Posted, _: HandlerTx<sqlx::Sqlite>| hang_or_fail(hangs))),
        ];
        let db = fresh().await;
        let relay = || db.outbox.single_node().on_type("before", || hang_or_fail(false));
        let posted = || Event::new("e").json(&Posted);
        for (name, kind) in kinds {
            let stored = deliver(&db, relay().route(kind(false)), posted()).await;
            assert_eq!(stored.status, Status::Retry, "{name} by the relay's own policy");
            let stored = deliver(&db, relay().route(kind(false).retry(Backoff::never())), posted()).await;
            assert_eq!(stored.status, Status::Dead, "{name}");

            let limited = relay().route(kind(true).timeout(20 * MS).retry(Backoff::never()));
            let stored = deliver(&db, limited, posted()).await;
            assert_eq!(stored.status, Status::Dead, "{name}");
            let error = stored.last_error.unwrap();
            assert!(error.contains("did not finish within 20ms"), "{name}: {error}");

            let others = || {
                let relay = relay().route(kind(false).retry(Backoff::never()));
                relay.on_type("after", || hang_or_fail(false))
            };
            for other in ["before", "after"] {
                let stored = deliver(&db, others(), numbered(other, 1)).await;
                assert_eq!(stored.status, Status::Retry, "{other} {name}");
            }
        }
    }

    #[tokio::test]
    async fn options_of_a_route_are_greater_than_zero() {
        let db = fresh().await;
        let relay = || db.outbox.single_node();
        let any = || on_any(async |_: Context| {});
        for (wrong, message) in [
            (relay().route(any().timeout(Duration::ZERO)), "timeout of a route must be greater than 0"),
            (relay().route(any().max_concurrent(0)), "max_concurrent of a route must be greater than 0"),
        ] {
            let error = wrong.start().await.unwrap_err();
            assert!(matches!(error, Error::Setting { .. }) && error.to_string().contains(message), "{error}");
        }
    }

    #[derive(Debug)]
    struct Bomb;

    impl RetryPolicy for Bomb {
        fn delay(&self, _: u32, _: f64) -> Option<Duration> {
            panic!("no policy")
        }
    }

    /// Retry policies are the user's code as well; a panic would end each worker.
    #[tokio::test]
    async fn a_retry_policy_that_panics_ends_no_worker() {
        let db = fresh().await;
        let seen = Seen::default();
        let relay = db.outbox.single_node().workers(1).retry(Bomb).on_type("bad", fails);
        let relay = relay.on_type("good", seen.handler()).start().await.unwrap();
        let bad = db.outbox.send(numbered("bad", 1)).await.unwrap().id;
        relay.idle().await.unwrap();
        db.outbox.send(numbered("good", 1)).await.unwrap();
        seen.reach(1).await;
        relay.stop().await.unwrap();
        assert_eq!(db.status(&bad).await, Status::Retry);
    }

    #[test]
    fn a_backoff_of_for_ever_does_not_overflow() {
        let policy = Backoff::default().base(Duration::MAX).max(Duration::MAX);
        assert!(policy.delay(9, 0.999).unwrap() > SEC);
    }

    #[tokio::test]
    async fn a_handler_that_takes_too_long_is_dropped_and_has_failed() {
        let db = fresh().await;
        let (seen, gate) = (Seen::default(), Gate::closed());
        let retry = Backoff::default().base(SEC * 3_600).max(SEC * 3_600);
        let relay = db.outbox.single_node().retry(retry).handler_timeout(50 * MS);
        let relay = relay.on_type("e", seen.behind(&gate));
        let stored = deliver(&db, relay, numbered("e", 1)).await;
        assert_eq!((stored.status, stored.attempts), (Status::Retry, 1));
        assert_eq!(stored.last_error.as_deref(), Some("the handler did not finish within 50ms"));
    }

    /// At most as many handlers as workers run at once, however many events are queued.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn workers_bound_how_many_handlers_run() {
        let db = fresh().await;
        let (seen, gate) = (Seen::default(), Gate::closed());
        let relay =
            db.outbox.single_node().workers(3).on_type("e", seen.behind(&gate)).start().await.unwrap();
        db.another().await.write("e", 0..10).await;
        relay.poll_once().await.unwrap();
        db.write("e", 10..20).await;
        for done in 0..=17 {
            seen.reach(done + 3).await;
            tokio::task::yield_now().await;
            assert_eq!(seen.count(), done + 3);
            gate.admit(1);
        }
        gate.open();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        seen.assert_each_once(0..20);
    }
}
