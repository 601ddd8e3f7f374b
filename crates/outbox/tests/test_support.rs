//! Helpers for the tests of applications.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{Seen, TestDb, numbered};
use outbox::store::Status;
use outbox::{Backoff, Context, Failure, Message, Outcome, State, testing};
use serde::{Deserialize, Serialize};

const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
    customer: String,
}

impl Message for OrderPlaced {
    const TYPE: &'static str = "order.placed";
}

on_every_database! {
    async fn a_frozen_clock_runs_through_retries_snoozes_and_delays(frozen |db|) {
        let (failing, snoozed, late) = (Seen::default(), AtomicU32::new(0), Seen::default());
        let snooze = Arc::new(snoozed);
        let count = snooze.clone();
        let relay = db.outbox.multi_node().retry(Backoff::default().base(HOUR).max(HOUR).max_attempts(5))
            .on_type("failing", failing.returning(|_| Err(Failure::retry("no luck"))))
            .on_type("snoozed", move |_: Context| {
                let snoozes = count.fetch_add(1, Ordering::SeqCst);
                async move { if snoozes < 3 { Outcome::Snooze(HOUR) } else { Outcome::Done } }
            })
            .on_type("late", late.handler()).start().await.unwrap();
        let dead = db.outbox.send(numbered("failing", 1)).await.unwrap().id;
        let done = db.outbox.send(numbered("snoozed", 2)).await.unwrap().id;
        db.outbox.send(numbered("late", 3).deliver_after(24 * HOUR)).await.unwrap();
        let clock = db.clock.clone().unwrap();
        testing::run_due(&db.outbox, &relay, &clock).await.unwrap();
        assert_eq!((failing.attempts(), late.numbers()), (vec![1, 2, 3, 4, 5], vec![3]));
        assert_eq!(snooze.load(Ordering::SeqCst), 4);
        assert_eq!((db.status(&dead).await, db.status(&done).await), (Status::Dead, Status::Done));
        relay.stop().await.unwrap();
    }

    async fn an_assertion_checks_the_content_of_a_message(|db|) {
        let placed = |order| OrderPlaced { order, customer: "ada".to_owned() };
        db.outbox.send_all([placed(41), placed(42)]).await.unwrap();
        testing::assert_written!(db.outbox, OrderPlaced { order: 42, .. });
        testing::assert_written!(db.outbox, OrderPlaced { order, customer } if *order == 41 && customer == "ada");
        let written = testing::written(&db.outbox).await;
        assert_eq!(written.messages::<OrderPlaced>().iter().map(|placed| placed.order).collect::<Vec<_>>(), [41, 42]);
    }
}

#[tokio::test]
#[should_panic(
    expected = "no message matches `OrderPlaced { order: 43, .. }`, the outbox holds [\"order.placed\"]"
)]
async fn an_assertion_that_fails_names_its_pattern_and_the_written_types() {
    let outbox = testing::outbox().await;
    outbox.send(OrderPlaced { order: 42, customer: "ada".to_owned() }).await.unwrap();
    testing::assert_written!(outbox, OrderPlaced { order: 43, .. });
}

#[tokio::test]
#[should_panic(expected = "does a handler snooze forever?")]
async fn a_handler_that_snoozes_forever_ends_the_test() {
    let db = TestDb::<sqlx::Sqlite>::frozen().await.unwrap();
    let relay = db.outbox.single_node().on_type("e", async || Outcome::Snooze(HOUR)).start().await.unwrap();
    db.outbox.send(numbered("e", 1)).await.unwrap();
    let _ = testing::run_due(&db.outbox, &relay, db.clock.as_ref().unwrap()).await;
}

#[tokio::test]
async fn a_handler_is_called_as_a_function() {
    async fn bill(placed: OrderPlaced, cx: Context, State(limit): State<u32>) -> Result<(), Failure> {
        match cx.last_error() {
            Some(error) if cx.attempt() > limit => {
                Err(Failure::dead(format!("order {}: {error}", placed.order)))
            }
            _ => Ok(()),
        }
    }
    let placed = || OrderPlaced { order: 42, customer: "ada".to_owned() };
    let cx = testing::context(placed());
    assert_eq!((cx.attempt(), cx.event_type().as_str()), (1, "order.placed"));
    bill(placed(), cx.clone(), State(3)).await.unwrap();
    let failure = bill(placed(), cx.with_attempt(4).with_last_error("no card"), State(3)).await.unwrap_err();
    assert_eq!((failure.is_dead(), failure.to_string()), (true, "order 42: no card".to_owned()));

    let cx = testing::context(placed()).with_state(7_u8).with_stopping_relay();
    assert_eq!(cx.state::<u8>(), Some(&7));
    assert!(cx.is_stopping());
    cx.stopping().await;
}
