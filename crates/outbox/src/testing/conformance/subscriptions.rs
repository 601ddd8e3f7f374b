//! The subscriptions of a log: position, leader, and fencing of an old leader. Skipped for a store
//! without a log.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Harness, LEASE, SECOND, Scene, event};
use crate::log::{
    Appended, Condition, LogStore, Position, ProgressUpdate, SubscriptionId, SubscriptionState,
    SubscriptionStatus,
};
use crate::sql::Clock;
use crate::store::{MAX_ERROR, NodeId, SharedStore};

/// A scene whose store has a log.
struct Subscriptions(Scene);

impl Subscriptions {
    /// With these subscriptions of topic `t`, by publisher.
    async fn open(harness: &impl Harness, publishers: &[&str]) -> Option<Self> {
        let scene = Scene::open(harness).await;
        scene.store.log()?;
        let subscriptions = Self(scene);
        subscriptions.register(publishers).await;
        Some(subscriptions)
    }

    fn log(&self) -> &dyn LogStore {
        log_of(&self.0.store)
    }

    fn pass(&self, time: Duration) {
        self.0.pass(time);
    }

    async fn register(&self, publishers: &[&str]) {
        let subscriptions: Vec<_> =
            publishers.iter().map(|publisher| (subscription(publisher), false)).collect();
        self.log().register(&subscriptions).await.unwrap();
    }

    async fn append(&self, events: usize) -> Vec<Position> {
        let events: Vec<_> = (0..events).map(|_| event("appended").build().unwrap()).collect();
        match self.log().append(&events, &Condition::default()).await.unwrap() {
            Appended::New(positions) => positions,
            Appended::Already => panic!("the append has no condition"),
        }
    }

    async fn all(&self) -> Vec<SubscriptionState> {
        self.log().subscriptions().await.unwrap()
    }

    async fn see(&self, publisher: &str) -> SubscriptionState {
        let found = self.all().await.into_iter().find(|state| state.id == subscription(publisher));
        found.expect("the subscription exists")
    }

    /// Claims those of these that are free, by publisher.
    async fn claim(&self, node: &str, publishers: &[&str]) -> Vec<SubscriptionState> {
        let wanted: Vec<_> = publishers.iter().map(|publisher| subscription(publisher)).collect();
        self.log().claim(&NodeId::from(node), LEASE, &wanted).await.unwrap()
    }

    async fn claim_one(&self, node: &str, publisher: &str) -> SubscriptionState {
        let taken = self.claim(node, &[publisher]).await;
        taken.into_iter().next().expect("the subscription is free")
    }

    async fn tend(&self, node: &str) -> Vec<String> {
        let roll = self.log().tend(&NodeId::from(node), LEASE).await.unwrap();
        assert_eq!(roll.subscriptions, self.all().await);
        roll.nodes.iter().map(NodeId::to_string).collect()
    }

    async fn save(&self, node: &str, moves: &[ProgressUpdate]) -> Vec<SubscriptionId> {
        self.log().save(&NodeId::from(node), moves).await.unwrap()
    }

    async fn saves(&self, node: &str, one: ProgressUpdate) -> bool {
        !self.save(node, &[one]).await.is_empty()
    }
}

fn log_of(store: &SharedStore) -> &dyn LogStore {
    store.log().expect("a store with a log")
}

fn subscription(publisher: &str) -> SubscriptionId {
    SubscriptionId::new("t", publisher)
}

fn at(number: i64) -> Position {
    Position::new(number)
}

/// A move from the current position to another one, without an error.
fn to(state: &SubscriptionState, position: i64) -> ProgressUpdate {
    ProgressUpdate {
        subscription: state.id.clone(),
        epoch: state.epoch,
        from: state.position,
        to: at(position),
        status: SubscriptionStatus::Active,
        error_count: 0,
        last_error: None,
    }
}

fn failing(state: &SubscriptionState, errors: u32, error: &str) -> ProgressUpdate {
    ProgressUpdate {
        status: SubscriptionStatus::Failed,
        error_count: errors,
        last_error: Some(error.to_owned()),
        ..to(state, state.position.get())
    }
}

/// At the start of the log, active, without a leader. A second start of the relay changes nothing.
pub async fn a_subscription_is_registered_once(harness: &impl Harness) {
    let Some(subscriptions) = Subscriptions::open(harness, &["b", "a", "a"]).await else { return };
    let all = subscriptions.all().await;
    assert_eq!(
        all.iter().map(|state| state.id.clone()).collect::<Vec<_>>(),
        [subscription("a"), subscription("b")]
    );
    let expected = SubscriptionState {
        id: subscription("a"),
        status: SubscriptionStatus::Active,
        position: Position::START,
        error_count: 0,
        last_error: None,
        leader: None,
        epoch: 0,
        remaining: Duration::ZERO,
        updated_at: subscriptions.0.now(),
    };
    assert_eq!(all[0], expected);

    let led = subscriptions.claim_one("n", "a").await;
    assert!(subscriptions.saves("n", to(&led, 5)).await);
    subscriptions.log().register(&[(subscription("a"), true), (subscription("c"), false)]).await.unwrap();
    let all = subscriptions.all().await;
    assert_eq!(all.len(), 3);
    assert_eq!((all[0].position, all[0].epoch), (at(5), led.epoch), "existing rows stay unchanged");
    subscriptions.log().register(&[]).await.unwrap();
}

/// For a publisher that does not need earlier events.
pub async fn a_subscription_may_start_at_the_head(harness: &impl Harness) {
    let Some(subscriptions) = Subscriptions::open(harness, &[]).await else { return };
    subscriptions.log().register(&[(subscription("empty"), true)]).await.unwrap();
    assert_eq!(subscriptions.see("empty").await.position, Position::START);
    let head = *subscriptions.append(3).await.last().unwrap();
    subscriptions
        .log()
        .register(&[(subscription("start"), false), (subscription("head"), true)])
        .await
        .unwrap();
    assert_eq!(subscriptions.see("start").await.position, Position::START);
    assert_eq!(subscriptions.see("head").await.position, head);
}

/// Compared by bytes, as all names.
pub async fn names_of_subscriptions_differ_by_case_and_trailing_spaces(harness: &impl Harness) {
    let names = [" Kafka", "Kafka", "kafka", "kafka ", "käfka", "😀"];
    let Some(subscriptions) = Subscriptions::open(harness, &names).await else { return };
    let found: Vec<String> = subscriptions.all().await.iter().map(|s| s.id.publisher().to_owned()).collect();
    assert_eq!(found, names, "in the order of their bytes");
    assert_eq!(subscriptions.claim("n", &["kafka"]).await.len(), 1);
    assert_eq!(subscriptions.log().set_status("KAFKA", None, SubscriptionStatus::Paused).await.unwrap(), 0);
    assert_eq!(subscriptions.log().set_status("kafka ", None, SubscriptionStatus::Paused).await.unwrap(), 1);
    assert_eq!(subscriptions.see("kafka").await.status, SubscriptionStatus::Active);
    let long = "x".repeat(100);
    subscriptions.register(&[&long]).await;
    assert_eq!(subscriptions.claim("n", &[&long]).await[0].id.publisher(), long);
}

/// Other nodes get the remaining subscriptions.
pub async fn a_subscription_has_one_leader_at_a_time(harness: &impl Harness) {
    let Some(subscriptions) = Subscriptions::open(harness, &["a", "b", "c"]).await else { return };
    let taken = subscriptions.claim("one", &["b", "a", "a", "unknown"]).await;
    assert_eq!(taken.iter().map(|s| s.id.publisher()).collect::<Vec<_>>(), ["a", "b"]);
    for state in &taken {
        assert_eq!((state.leader.as_ref().unwrap().as_str(), state.epoch), ("one", 1));
        assert_eq!(state.remaining, LEASE);
    }
    let rest = subscriptions.claim("two", &["a", "b", "c"]).await;
    assert_eq!(rest.iter().map(|s| s.id.publisher()).collect::<Vec<_>>(), ["c"]);
    assert!(subscriptions.claim("one", &["a", "b", "c"]).await.is_empty(), "each already has a leader");
    subscriptions.pass(10 * SECOND);
    let seen = subscriptions.see("a").await;
    assert_eq!(seen.leader, Some(NodeId::from("one")));
    assert_eq!(seen.remaining, LEASE - 10 * SECOND);
    assert!(subscriptions.claim("two", &[]).await.is_empty());
}

/// A pause stops publishing, not leading.
pub async fn a_paused_subscription_may_have_a_leader(harness: &impl Harness) {
    let Some(subscriptions) = Subscriptions::open(harness, &["a"]).await else { return };
    subscriptions.log().set_status("a", None, SubscriptionStatus::Paused).await.unwrap();
    assert_eq!(subscriptions.claim_one("n", "a").await.status, SubscriptionStatus::Paused);
}

/// However long, while heartbeats are written.
pub async fn a_heartbeat_renews_leases(harness: &impl Harness) {
    let Some(subscriptions) = Subscriptions::open(harness, &["a", "b", "c"]).await else { return };
    subscriptions.claim("one", &["a", "b"]).await;
    subscriptions.claim("two", &["c"]).await;
    for _ in 0..3 {
        subscriptions.pass(LEASE - SECOND);
        subscriptions.tend("one").await;
    }
    for publisher in ["a", "b"] {
        assert_eq!(subscriptions.see(publisher).await.remaining, LEASE);
        assert_eq!(subscriptions.see(publisher).await.epoch, 1);
    }
    assert_eq!(subscriptions.see("c").await.remaining, Duration::ZERO, "not that of another node");
    assert_eq!(subscriptions.claim("three", &["a", "b", "c"]).await.len(), 1);
}

/// Another node may be about to claim the subscription: it is claimed again, in a new epoch.
pub async fn an_expired_lease_is_not_renewed(harness: &impl Harness) {
    let Some(subscriptions) = Subscriptions::open(harness, &["a"]).await else { return };
    let first = subscriptions.claim_one("one", "a").await;
    subscriptions.pass(LEASE);
    subscriptions.tend("one").await;
    assert_eq!(subscriptions.see("a").await.remaining, Duration::ZERO);
    let again = subscriptions.claim_one("one", "a").await;
    assert!(again.epoch > first.epoch);
    assert!(!subscriptions.saves("one", to(&first, 1)).await, "its own old epoch is over too");
    assert!(subscriptions.saves("one", to(&again, 1)).await);
}

/// The previous leader may hang, and continue later.
pub async fn a_takeover_fences_the_old_leader(harness: &impl Harness) {
    let Some(subscriptions) = Subscriptions::open(harness, &["a"]).await else { return };
    let old = subscriptions.claim_one("one", "a").await;
    subscriptions.pass(LEASE);
    let new = subscriptions.claim_one("two", "a").await;
    assert!(new.epoch > old.epoch);
    assert!(!subscriptions.saves("one", to(&old, 7)).await);
    assert!(!subscriptions.saves("one", failing(&old, 1, "late")).await);
    assert!(!subscriptions.saves("one", to(&new, 7)).await, "the epoch alone is not enough");
    assert!(!subscriptions.saves("two", to(&old, 7)).await, "the name alone is not enough either");
    let seen = subscriptions.see("a").await;
    assert_eq!((seen.position, seen.error_count), (Position::START, 0));
    assert!(subscriptions.saves("two", to(&new, 7)).await);
    assert_eq!(subscriptions.see("a").await.position, at(7));
}

/// Published events are not published again just because a lease was short: the epoch is the fence,
/// not the clock.
pub async fn a_leader_may_save_until_another_node_takes_over(harness: &impl Harness) {
    let Some(subscriptions) = Subscriptions::open(harness, &["a"]).await else { return };
    let led = subscriptions.claim_one("one", "a").await;
    subscriptions.pass(10 * LEASE);
    assert!(subscriptions.saves("one", to(&led, 7)).await);
    assert_eq!(subscriptions.claim_one("two", "a").await.position, at(7));
}

/// An operator sets the position: a leader with a batch in flight does not know it.
pub async fn a_reset_fences_the_leader(harness: &impl Harness) {
    let Some(subscriptions) = Subscriptions::open(harness, &["a", "b"]).await else { return };
    let led = subscriptions.claim_one("one", "a").await;
    assert!(subscriptions.saves("one", to(&led, 10)).await);
    let led = subscriptions.see("a").await;
    subscriptions.pass(SECOND);
    assert!(subscriptions.log().reset(&subscription("a"), at(3)).await.unwrap());
    assert!(!subscriptions.saves("one", to(&led, 20)).await);
    let seen = subscriptions.see("a").await;
    assert_eq!((seen.position, seen.leader.clone()), (at(3), None));
    assert!(seen.epoch > led.epoch);
    assert_eq!(seen.updated_at, subscriptions.0.now());

    assert!(subscriptions.log().reset(&subscription("a"), at(10)).await.unwrap());
    assert!(
        !subscriptions.saves("one", to(&led, 20)).await,
        "back at the same position, but not in the same epoch"
    );
    let next = subscriptions.claim_one("two", "a").await;
    assert!(next.epoch > seen.epoch, "free immediately");
    assert_eq!(next.position, at(10));
    assert!(!subscriptions.log().reset(&subscription("unknown"), at(1)).await.unwrap());
    assert_eq!(subscriptions.see("b").await.position, Position::START);
}

/// It starts over, unless an operator has paused it.
pub async fn a_reset_clears_errors_but_not_a_pause(harness: &impl Harness) {
    let Some(subscriptions) = Subscriptions::open(harness, &["failed", "paused"]).await else { return };
    for publisher in ["failed", "paused"] {
        let led = subscriptions.claim_one("n", publisher).await;
        assert!(subscriptions.saves("n", failing(&led, 5, "broker away")).await);
    }
    subscriptions.log().set_status("paused", None, SubscriptionStatus::Paused).await.unwrap();
    for (publisher, status) in
        [("failed", SubscriptionStatus::Active), ("paused", SubscriptionStatus::Paused)]
    {
        assert!(subscriptions.log().reset(&subscription(publisher), at(0)).await.unwrap());
        let seen = subscriptions.see(publisher).await;
        assert_eq!((seen.status, seen.error_count, seen.last_error), (status, 0, None));
    }
}

/// Events published before the pause was seen count as published, and the pause stays.
pub async fn a_pause_survives_a_save(harness: &impl Harness) {
    let Some(subscriptions) = Subscriptions::open(harness, &["a"]).await else { return };
    let led = subscriptions.claim_one("n", "a").await;
    subscriptions.log().set_status("a", None, SubscriptionStatus::Paused).await.unwrap();
    assert!(subscriptions.saves("n", to(&led, 7)).await);
    let seen = subscriptions.see("a").await;
    assert_eq!((seen.status, seen.position), (SubscriptionStatus::Paused, at(7)));
    assert!(subscriptions.saves("n", failing(&seen, 3, "broker away")).await);
    let seen = subscriptions.see("a").await;
    assert_eq!((seen.status, seen.error_count), (SubscriptionStatus::Paused, 3));
    assert_eq!(seen.last_error.as_deref(), Some("broker away"));

    subscriptions.log().set_status("a", None, SubscriptionStatus::Active).await.unwrap();
    assert!(
        subscriptions.saves("n", ProgressUpdate { status: SubscriptionStatus::Paused, ..to(&seen, 8) }).await
    );
    assert_eq!(subscriptions.see("a").await.status, SubscriptionStatus::Active, "a leader cannot pause");
}

/// Errors are recorded without a move, and cleared by the first success.
pub async fn errors_are_recorded_and_cleared(harness: &impl Harness) {
    let Some(subscriptions) = Subscriptions::open(harness, &["a"]).await else { return };
    let led = subscriptions.claim_one("n", "a").await;
    let since = led.updated_at;
    subscriptions.pass(SECOND);
    assert!(subscriptions.saves("n", failing(&led, 5, "broker away")).await);
    let seen = subscriptions.see("a").await;
    assert_eq!((seen.status, seen.error_count), (SubscriptionStatus::Failed, 5));
    assert_eq!(seen.last_error.as_deref(), Some("broker away"));
    assert_eq!(seen.updated_at, since, "its position has not changed");
    assert!(subscriptions.saves("n", to(&led, 1)).await);
    let seen = subscriptions.see("a").await;
    assert_eq!(
        (seen.status, seen.error_count, seen.last_error.clone()),
        (SubscriptionStatus::Active, 0, None)
    );
    assert_eq!(seen.updated_at, subscriptions.0.now());

    let nasty = "a\0b\n\t\"quoted\" \\ 'single' $1 ? {events} é 😀";
    assert!(subscriptions.saves("n", failing(&seen, 1, nasty)).await);
    assert_eq!(subscriptions.see("a").await.last_error, Some(nasty.replace('\0', "\u{fffd}")));
    assert!(subscriptions.saves("n", failing(&seen, u32::MAX, &"😀".repeat(MAX_ERROR + 1_000))).await);
    assert!(subscriptions.see("a").await.error_count > 2_000_000_000);
    assert_eq!(subscriptions.see("a").await.last_error, Some("😀".repeat(MAX_ERROR)));
}

/// A leader with another starting position moves nothing.
pub async fn a_move_names_the_position_it_moves_from(harness: &impl Harness) {
    let Some(subscriptions) = Subscriptions::open(harness, &["a"]).await else { return };
    let led = subscriptions.claim_one("n", "a").await;
    assert!(subscriptions.saves("n", to(&led, 5)).await);
    assert!(subscriptions.saves("n", ProgressUpdate { from: at(5), ..to(&led, 9) }).await);
    assert!(!subscriptions.saves("n", to(&led, 5)).await, "an old move never sets it back");
    assert!(!subscriptions.saves("n", ProgressUpdate { from: at(5), ..to(&led, 12) }).await);
    assert_eq!(subscriptions.see("a").await.position, at(9));
}

/// The response to the first may have been lost.
pub async fn a_repeated_move_counts_once(harness: &impl Harness) {
    let Some(subscriptions) = Subscriptions::open(harness, &["a", "b"]).await else { return };
    let (a, b) = (subscriptions.claim_one("n", "a").await, subscriptions.claim_one("n", "b").await);
    assert!(subscriptions.saves("n", to(&a, 5)).await);
    assert_eq!(
        subscriptions.save("n", &[to(&a, 5), to(&b, 6)]).await,
        [subscription("a"), subscription("b")]
    );
    assert_eq!(
        (subscriptions.see("a").await.position, subscriptions.see("b").await.position),
        (at(5), at(6))
    );
}

/// In one statement, each independently.
pub async fn many_subscriptions_are_moved_in_one_call(harness: &impl Harness) {
    let names: Vec<String> = (0..300).map(|n| format!("p{n:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let Some(subscriptions) = Subscriptions::open(harness, &names).await else { return };
    let led = subscriptions.claim("n", &names).await;
    assert_eq!(led.len(), names.len());
    let mut moves: Vec<ProgressUpdate> = led.iter().zip(1..).map(|(state, n)| to(state, n)).collect();
    moves.reverse();
    assert_eq!(subscriptions.save("n", &moves).await.len(), names.len());

    for n in [7, 200] {
        assert!(subscriptions.log().reset(&led[n].id, at(1_000)).await.unwrap());
    }
    let again: Vec<ProgressUpdate> = subscriptions
        .all()
        .await
        .iter()
        .zip(&led)
        .map(|(now, led)| ProgressUpdate { epoch: led.epoch, ..to(now, 2_000) })
        .collect();
    let moved = subscriptions.save("n", &again).await;
    assert_eq!(moved.len(), names.len() - 2);
    for (n, state) in subscriptions.all().await.iter().enumerate() {
        let lost = n == 7 || n == 200;
        assert_eq!(state.position, at(if lost { 1_000 } else { 2_000 }), "{}", state.id);
        assert_eq!(moved.contains(&state.id), !lost, "{}", state.id);
    }
    assert!(subscriptions.save("n", &[]).await.is_empty());
}

/// Other nodes can claim it immediately.
pub async fn a_released_subscription_is_free_immediately(harness: &impl Harness) {
    let Some(subscriptions) = Subscriptions::open(harness, &["a", "b"]).await else { return };
    let led = subscriptions.claim("one", &["a", "b"]).await;
    let release = async |node: &str, epoch: i64| {
        subscriptions.log().release(&NodeId::from(node), &[(subscription("a"), epoch)]).await.unwrap();
    };
    release("two", led[0].epoch).await;
    release("one", led[0].epoch - 1).await;
    assert_eq!(
        subscriptions.see("a").await.leader,
        Some(NodeId::from("one")),
        "not by other nodes, and not in another epoch"
    );
    release("one", led[0].epoch).await;
    assert_eq!(subscriptions.see("a").await.leader, None);
    assert!(
        !subscriptions.saves("one", to(&led[0], 1)).await,
        "a released subscription is not the node's any more"
    );
    let taken = subscriptions.claim("two", &["a", "b"]).await;
    assert_eq!((taken.len(), taken[0].epoch), (1, led[0].epoch + 1));
    subscriptions.log().release(&NodeId::from("two"), &[]).await.unwrap();
}

/// Other nodes need not wait for a node that stops.
pub async fn a_node_that_leaves_releases_all_subscriptions(harness: &impl Harness) {
    let Some(subscriptions) = Subscriptions::open(harness, &["a", "b", "c"]).await else { return };
    subscriptions.claim("one", &["a", "b"]).await;
    subscriptions.claim("two", &["c"]).await;
    subscriptions.tend("one").await;
    assert_eq!(subscriptions.tend("two").await, ["one", "two"]);
    subscriptions.log().leave(&NodeId::from("one")).await.unwrap();
    assert_eq!(subscriptions.tend("two").await, ["two"]);
    assert_eq!(subscriptions.claim("two", &["a", "b", "c"]).await.len(), 2);
    assert_eq!(subscriptions.see("c").await.epoch, 1, "the subscriptions of other nodes stay theirs");
}

/// Nodes whose heartbeat is recent enough, and always the calling one.
pub async fn nodes_are_listed_while_their_heartbeat_is_recent(harness: &impl Harness) {
    let Some(subscriptions) = Subscriptions::open(harness, &[]).await else { return };
    subscriptions.0.store.lead("purge", &NodeId::from("elsewhere"), 100 * LEASE).await.unwrap();
    assert_eq!(subscriptions.tend("one").await, ["one"]);
    subscriptions.pass(LEASE - SECOND);
    assert_eq!(subscriptions.tend("two").await, ["one", "two"]);
    subscriptions.pass(SECOND);
    assert_eq!(subscriptions.tend("two").await, ["two"]);
    assert_eq!(subscriptions.tend("one").await, ["one", "two"], "the heartbeat is back");

    // Old heartbeats are deleted. Setting the clock back would show them again.
    let then = subscriptions.0.now();
    subscriptions.pass(9 * LEASE);
    assert_eq!(subscriptions.tend("two").await, ["two"]);
    subscriptions.0.clock.set(then);
    assert_eq!(subscriptions.tend("two").await, ["one", "two"], "not long enough");
    subscriptions.pass(12 * LEASE);
    assert_eq!(subscriptions.tend("two").await, ["two"]);
    subscriptions.0.clock.set(then);
    assert_eq!(subscriptions.tend("two").await, ["two"]);
}

/// The store's part of pausing and resuming.
pub async fn a_status_is_set_by_publisher_or_in_one_topic(harness: &impl Harness) {
    let Some(subscriptions) = Subscriptions::open(harness, &["kafka", "log"]).await else { return };
    let other = SubscriptionId::new("u", "kafka");
    subscriptions.log().register(&[(other.clone(), false)]).await.unwrap();
    let statuses = async || {
        let all = subscriptions.all().await;
        all.iter().map(|state| state.status.as_str()).collect::<Vec<_>>()
    };
    let set = async |publisher, topic, status| {
        subscriptions.log().set_status(publisher, topic, status).await.unwrap()
    };
    assert_eq!(set("kafka", None, SubscriptionStatus::Paused).await, 2);
    assert_eq!(set("kafka", None, SubscriptionStatus::Paused).await, 2, "again");
    assert_eq!(statuses().await, ["PAUSED", "ACTIVE", "PAUSED"]);
    assert_eq!(set("kafka", Some("u"), SubscriptionStatus::Active).await, 1);
    assert_eq!(statuses().await, ["PAUSED", "ACTIVE", "ACTIVE"]);
    assert_eq!(set("kafka", Some("v"), SubscriptionStatus::Active).await, 0);
    assert_eq!(set("unknown", None, SubscriptionStatus::Active).await, 0);

    let led = subscriptions.claim_one("n", "kafka").await;
    assert!(subscriptions.saves("n", failing(&led, 5, "broker away")).await);
    assert_eq!(set("kafka", Some("t"), SubscriptionStatus::Paused).await, 1);
    assert_eq!(subscriptions.see("kafka").await.error_count, 5, "a pause keeps errors");
    assert_eq!(set("kafka", None, SubscriptionStatus::Active).await, 2);
    let seen = subscriptions.see("kafka").await;
    assert_eq!((seen.status, seen.error_count, seen.last_error), (SubscriptionStatus::Active, 0, None));
    assert_eq!((seen.leader, seen.epoch), (led.leader, led.epoch), "the leader stays");
}

/// As an operator does it at the database's own prompt.
pub async fn operators_pause_and_resume_with_sql(harness: &impl Harness) {
    let Some(subscriptions) = Subscriptions::open(harness, &["KafkaPublisher", "other"]).await else {
        return;
    };
    let led = subscriptions.claim_one("n", "KafkaPublisher").await;
    assert!(subscriptions.saves("n", failing(&led, 5, "broker away")).await);
    let pause = "UPDATE {progress} SET status = 'PAUSED' WHERE publisher = 'KafkaPublisher'";
    if !harness.execute(pause).await {
        return;
    }
    let seen = subscriptions.see("KafkaPublisher").await;
    assert_eq!((seen.status, seen.error_count), (SubscriptionStatus::Paused, 5));
    let resume = "UPDATE {progress} SET status = 'ACTIVE', error_count = 0, last_error = NULL \
        WHERE publisher = 'KafkaPublisher'";
    assert!(harness.execute(resume).await);
    let seen = subscriptions.see("KafkaPublisher").await;
    assert_eq!((seen.status, seen.error_count, seen.last_error), (SubscriptionStatus::Active, 0, None));

    // A manually inserted row is a subscription too.
    assert!(harness.execute("INSERT INTO {progress} (topic, publisher) VALUES ('t', 'by hand')").await);
    let made = subscriptions.claim_one("n", "by hand").await;
    assert_eq!((made.status, made.position, made.epoch), (SubscriptionStatus::Active, Position::START, 1));
}

/// Concurrent claims of all nodes.
pub async fn concurrent_claims_never_share_a_subscription(harness: &impl Harness) {
    let names: Vec<String> = (0..40).map(|n| format!("p{n:02}")).collect();
    let Some(subscriptions) = Subscriptions::open(harness, &[]).await else { return };
    let ids: Vec<SubscriptionId> = names.iter().map(|name| subscription(name)).collect();
    let rows: Vec<_> = ids.iter().map(|id| (id.clone(), false)).collect();
    subscriptions.log().register(&rows).await.unwrap();

    let other = harness.connect(Clock::Frozen(subscriptions.0.clock.clone())).await;
    let mut asking = tokio::task::JoinSet::new();
    for n in 0..8_usize {
        let store = if n % 2 == 0 { subscriptions.0.store.clone() } else { other.clone() };
        let mut wanted = ids.clone();
        wanted.rotate_left(n * 5);
        asking.spawn(async move {
            let mut taken = Vec::new();
            for some in wanted.chunks(20) {
                taken
                    .extend(log_of(&store).claim(&NodeId::from(format!("n{n}")), LEASE, some).await.unwrap());
            }
            taken
        });
    }
    let mut by_pair = BTreeMap::new();
    for state in asking.join_all().await.into_iter().flatten() {
        let twice = by_pair.insert(state.id.clone(), state.leader);
        assert_eq!(twice, None, "{} was taken twice", state.id);
    }
    assert_eq!(by_pair.len(), ids.len(), "all are claimed");
    for state in subscriptions.all().await {
        assert_eq!((&state.leader, state.epoch), (&by_pair[&state.id], 1));
    }
}

/// All operations concurrently, on the database's own clock. Positions only ever increase, set by
/// the leaders.
pub async fn leaders_operators_and_new_nodes_do_not_fail_each_other(harness: &impl Harness) {
    let store = harness.connect(Clock::Database).await;
    store.migrate().await.unwrap();
    if store.log().is_none() {
        return;
    }
    let ids: Vec<SubscriptionId> =
        (0..20).map(|n| SubscriptionId::new(format!("t{}", n % 4), format!("p{n:02}"))).collect();
    let rows: Vec<_> = ids.iter().map(|id| (id.clone(), false)).collect();
    let mut acting = tokio::task::JoinSet::new();
    for n in 0..3 {
        let (store, ids, rows) = (store.clone(), ids.clone(), rows.clone());
        acting.spawn(async move {
            let (log, node) = (log_of(&store), NodeId::from(format!("n{n}")));
            let mut moved = 0;
            for _ in 0..10 {
                log.register(&rows).await.unwrap();
                let led = log.claim(&node, LEASE, &ids).await.unwrap();
                let moves: Vec<ProgressUpdate> =
                    led.iter().map(|state| to(state, state.position.get() + 1)).collect();
                let (saved, _) = tokio::join!(log.save(&node, &moves), log.tend(&node, LEASE));
                moved += saved.unwrap().len();
                let given: Vec<_> = led.iter().map(|state| (state.id.clone(), state.epoch)).collect();
                log.release(&node, &given).await.unwrap();
            }
            log.leave(&node).await.unwrap();
            moved
        });
    }
    let operator = store.clone();
    acting.spawn(async move {
        for n in 0..20 {
            let status = if n % 2 == 0 { SubscriptionStatus::Paused } else { SubscriptionStatus::Active };
            log_of(&operator).set_status("p01", None, status).await.unwrap();
        }
        0
    });
    let moved: usize = acting.join_all().await.into_iter().sum();
    let all = log_of(&store).subscriptions().await.unwrap();
    let stands: i64 = all.iter().map(|state| state.position.get()).sum();
    assert_eq!(usize::try_from(stands).unwrap(), moved, "every reported move counts, and no other");
    assert!(moved > 0);
    assert!(all.iter().all(|state| state.leader.is_none()));
}
