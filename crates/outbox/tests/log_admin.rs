//! Administration of the pairs of a log.

mod common;

use std::time::Duration;

use common::numbered;
use outbox::store::{LogStore, ProgressUpdate, SharedStore};
use outbox::{
    Appended, Condition, Error, NodeId, Position, SubscriptionId, SubscriptionState, SubscriptionStatus,
};

const SEC: Duration = Duration::from_secs(1);

/// Registers the pairs of two topics, and appends this many events.
async fn prepare(store: &SharedStore, events: u64) {
    let log = log(store);
    let subscriptions = [("t", "kafka"), ("t", "log"), ("u", "kafka")];
    log.register(&subscriptions.map(|(topic, publisher)| (SubscriptionId::new(topic, publisher), false)))
        .await
        .unwrap();
    append(store, events).await;
}

async fn append(store: &SharedStore, events: u64) -> Vec<Position> {
    let events: Vec<_> = (0..events).map(|n| numbered("e", n).build().unwrap()).collect();
    match log(store).append(&events, &Condition::default()).await.unwrap() {
        Appended::New(positions) => positions,
        Appended::Already => unreachable!("no condition"),
    }
}

fn log(store: &SharedStore) -> &dyn LogStore {
    store.log().expect("a store with a log")
}

/// Leads a pair and moves it to a position, as a relay would. Returns its state before that.
async fn publish_up_to(
    store: &SharedStore,
    subscription: &SubscriptionId,
    to: Position,
) -> SubscriptionState {
    let node = NodeId::from("n");
    let led = log(store).claim(&node, SEC, std::slice::from_ref(subscription)).await.unwrap().remove(0);
    assert_eq!(log(store).save(&node, &[moving(&led, to)]).await.unwrap().len(), 1);
    led
}

fn moving(from: &SubscriptionState, to: Position) -> ProgressUpdate {
    ProgressUpdate {
        subscription: from.id.clone(),
        epoch: from.epoch,
        from: from.position,
        to,
        status: SubscriptionStatus::Active,
        error_count: 0,
        last_error: None,
    }
}

fn is_unknown<T>(result: &outbox::Result<T>) -> bool {
    matches!(result, Err(Error::UnknownSubscription { .. }))
}

on_every_database! {
    async fn publishers_are_paused_and_resumed(|db|) {
        let (admin, store) = (db.outbox.log_admin(), db.outbox.store());
        prepare(&store, 0).await;
        let statuses = async || {
            let subscriptions = admin.subscriptions().await.unwrap();
            subscriptions.iter().map(|subscription| subscription.status.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(admin.pause("kafka").await.unwrap(), 2);
        assert_eq!(statuses().await, ["PAUSED", "ACTIVE", "PAUSED"]);
        assert_eq!(admin.resume("kafka").await.unwrap(), 2);
        assert_eq!(statuses().await, ["ACTIVE", "ACTIVE", "ACTIVE"]);
        admin.pause_in("u", "kafka").await.unwrap();
        assert_eq!(statuses().await, ["ACTIVE", "ACTIVE", "PAUSED"]);
        assert_eq!(admin.subscription("u", "kafka").await.unwrap().status, SubscriptionStatus::Paused);
        admin.resume_in("u", "kafka").await.unwrap();
        assert_eq!(statuses().await, ["ACTIVE", "ACTIVE", "ACTIVE"]);
    }

    /// A mistyped name must not look like success.
    async fn an_unknown_pair_is_an_error(|db|) {
        let (admin, store) = (db.outbox.log_admin(), db.outbox.store());
        prepare(&store, 1).await;
        assert!(is_unknown(&admin.pause("kafak").await));
        assert!(is_unknown(&admin.resume("kafak").await));
        assert!(is_unknown(&admin.pause_in("u", "log").await));
        assert!(is_unknown(&admin.resume_in("u", "log").await));
        assert!(is_unknown(&admin.subscription("u", "log").await));
        assert!(is_unknown(&admin.reset_to_time("u", "log", chrono::Utc::now()).await));
        let error = admin.reset("u", "log", Position::START).await.unwrap_err();
        assert_eq!(error.to_string(), r#"there is no publisher "log" of topic "u""#);
    }

    /// Back or forward, but not beyond the head of the log. A node that led the pair before can no
    /// longer move it.
    async fn a_pair_is_reset_to_a_position(|db|) {
        let (admin, store) = (db.outbox.log_admin(), db.outbox.store());
        prepare(&store, 3).await;
        let positions = append(&store, 2).await;
        let (near, head) = (positions[0], positions[1]);
        let subscription = SubscriptionId::new("t", "kafka");
        let led = publish_up_to(&store, &subscription, near).await;
        for position in [Position::START, head, near] {
            admin.reset("t", "kafka", position).await.unwrap();
            assert_eq!(admin.subscription("t", "kafka").await.unwrap().position, position);
            let late = ProgressUpdate { from: position, ..moving(&led, head) };
            assert!(log(&store).save(&NodeId::from("n"), &[late]).await.unwrap().is_empty());
        }
        let beyond = Position::new(head.get() + 1);
        let error = admin.reset("t", "kafka", beyond).await.unwrap_err();
        assert!(matches!(error, Error::BeyondHead { position, head: end } if position == beyond && end == head));
        assert_eq!(admin.subscription("t", "kafka").await.unwrap().position, near);
        assert_eq!(admin.subscription("u", "kafka").await.unwrap().position, Position::START, "the other pairs are unchanged");
    }

    async fn a_pair_is_reset_to_a_time(frozen |db|) {
        let (admin, store) = (db.outbox.log_admin(), db.outbox.store());
        prepare(&store, 0).await;
        let clock = db.clock.clone().unwrap();
        let start = clock.now();
        db.advance(SEC);
        let first = *append(&store, 2).await.last().unwrap();
        db.advance(SEC);
        let between = clock.now();
        db.advance(SEC);
        let last = *append(&store, 2).await.last().unwrap();
        db.advance(SEC);
        for (time, position) in [(between, first), (clock.now(), last), (start, Position::START)] {
            assert_eq!(admin.reset_to_time("t", "log", time).await.unwrap(), position);
            assert_eq!(admin.subscription("t", "log").await.unwrap().position, position);
        }
    }

    /// The lag is counted in positions, and never negative.
    async fn lag_is_reported_for_every_pair(|db|) {
        let (admin, store) = (db.outbox.log_admin(), db.outbox.store());
        assert!(admin.lag().await.unwrap().is_empty());
        prepare(&store, 0).await;
        assert!(admin.lag().await.unwrap().iter().all(|lag| lag.behind == 0));
        let positions = append(&store, 5).await;
        let head = *positions.last().unwrap();
        publish_up_to(&store, &SubscriptionId::new("t", "kafka"), positions[1]).await;
        publish_up_to(&store, &SubscriptionId::new("t", "log"), Position::new(head.get() + 7)).await;
        admin.pause_in("u", "kafka").await.unwrap();
        let lag = admin.lag().await.unwrap();
        assert!(lag.iter().all(|lag| lag.head == head));
        let behind: Vec<u64> = lag.iter().map(|lag| lag.behind).collect();
        assert_eq!(behind, [(head.get() - positions[1].get()) as u64, 0, head.get() as u64]);
        assert_eq!(lag[2].status, SubscriptionStatus::Paused);
        assert_eq!(lag[0].position, positions[1]);
    }
}
