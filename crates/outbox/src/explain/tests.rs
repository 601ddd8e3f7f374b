use chrono::Duration;

use super::*;
use crate::error::DecodeError;
use crate::event::{Event, EventBuilder};
use crate::store::{NodeOutage, NodeRoutes, NodeState, RelayHealth, RelayTask, Routed, TaskError};

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000, 0).expect("a time")
}

fn stored(seq: i64, event: EventBuilder) -> StoredEvent {
    let event = event.id(format!("e{seq}")).json_text("{}").build().expect("a valid event");
    StoredEvent {
        event: Ok(event),
        seq,
        status: Status::New,
        attempts: 0,
        created_at: now() - Duration::hours(1),
        available_at: now() - Duration::minutes(3),
        done_at: None,
        last_error: None,
        done_by: None,
        lease: None,
    }
}

fn plain() -> StoredEvent {
    stored(9, Event::new("order.placed"))
}

fn of(event: StoredEvent) -> DeliveryFacts {
    DeliveryFacts { now: now(), event: Some(event), ..DeliveryFacts::default() }
}

fn explain(delivery_facts: &DeliveryFacts) -> Explanation {
    Explanation::of(&EventId::from("e9"), delivery_facts)
}

/// Asserts that the text of an explanation contains all of these.
#[track_caller]
fn shows(explanation: &Explanation, words: &[&str]) {
    let text = explanation.to_string();
    for word in words {
        assert!(text.contains(word), "no {word:?} in:\n{text}");
    }
}

#[test]
fn an_unknown_event_may_have_been_purged() {
    let explained = explain(&DeliveryFacts { now: now(), ..DeliveryFacts::default() });
    assert_eq!(explained.reasons, [Reason::Unknown]);
    shows(&explained, &["Event e9 is not in the table", "purged", "Check the id"]);
}

#[test]
fn a_done_event_shows_when_and_by_which_node() {
    let at = Some(now() - Duration::hours(3));
    let by = Some(NodeId::from("node-1"));
    let explained =
        explain(&of(StoredEvent { status: Status::Done, done_at: at, done_by: by.clone(), ..plain() }));
    assert_eq!(explained.reasons, [Reason::Done { at, by }]);
    shows(&explained, &["e9 (order.placed) is DONE", "3 h ago", "by node-1"]);
}

#[test]
fn a_dead_event_shows_why_and_how_to_replay_it() {
    let since = Some(now() - Duration::days(4));
    let dead = StoredEvent {
        status: Status::Dead,
        done_at: since,
        attempts: 5,
        last_error: Some("broker away.\nand more".to_owned()),
        ..plain()
    };
    let explained = explain(&of(dead));
    assert!(matches!(explained.reason(), Reason::Dead { attempts: 5, .. }));
    shows(
        &explained,
        &[
            "is DEAD, and has been for 4 days",
            "after 5 failed attempts: broker away.",
            "outbox dead replay e9",
        ],
    );
    assert!(!explained.to_string().contains("and more"));
}

#[test]
fn a_held_event_shows_its_holder_and_the_end_of_the_lease() {
    let until = now() + Duration::seconds(20);
    let explained = explain(&of(StoredEvent { lease: Some(("node-1".into(), until)), ..plain() }));
    assert_eq!(explained.reasons, [Reason::Held { by: "node-1".into(), until }]);
    shows(&explained, &["node-1 holds it for another 20 s"]);
}

#[test]
fn a_holder_that_vanished_is_named() {
    let until = now() + chrono::Duration::seconds(290);
    let event = StoredEvent { lease: Some(("a".into(), until)), ..plain() };
    let announced = |mut node: Node| {
        node.state.presence_ms = Some(20_000);
        node
    };
    let with = |nodes| explain(&DeliveryFacts { nodes, ..of(event.clone()) });
    let explained = with(vec![announced(node("a", 12, true))]);
    assert_eq!(*explained.reason(), Reason::Held { by: "a".into(), until });
    // No relay is left to release the lease: it has to expire.
    let explained = with(vec![announced(node("a", 31, true)), announced(node("b", 40, true))]);
    shows(
        &explained,
        &["held by relay a, which vanished 31 s ago", "released in at most 5 min", "outbox nodes release a"],
    );
    let explained = with(vec![announced(node("a", 31, true)), announced(node("b", 1, true))]);
    shows(
        &explained,
        &["held by relay a, which vanished 31 s ago", "its leases are released in at most 5 s."],
    );
    // A relay of an older version does not stop handling the events that it holds.
    let explained = with(vec![node("a", 70, true), announced(node("b", 1, true))]);
    shows(&explained, &["which vanished 70 s ago", "released in at most 5 min"]);
}

#[test]
fn a_lease_that_ends_now_has_expired() {
    let explained = explain(&of(StoredEvent { lease: Some(("node-1".into(), now())), ..plain() }));
    assert_eq!(explained.reasons, [Reason::LeaseRanOut { by: "node-1".into(), since: now() }]);
    shows(&explained, &["held by node-1, whose lease expired", "takes the event over"]);
}

#[test]
fn a_delayed_event_a_retry_and_a_snoozed_event_have_different_texts() {
    let at = now() + Duration::minutes(5);
    let later = StoredEvent { available_at: at, ..plain() };
    shows(&explain(&of(later.clone())), &["not due for another 5 min", "to be delivered at 2027-"]);

    let last_error = Some("timeout".to_owned());
    let retry = StoredEvent { status: Status::Retry, attempts: 3, last_error, ..later };
    let explained = explain(&of(retry.clone()));
    let error = Some("timeout".to_owned());
    assert_eq!(explained.reasons, [Reason::NotDue { at, attempts: 3, error }]);
    shows(&explained, &["retry number 3, due in 5 min", "timeout"]);

    let deferred = StoredEvent { status: Status::New, attempts: 0, ..retry };
    shows(&explain(&of(deferred)), &["was snoozed", "timeout"]);
}

#[test]
fn an_event_that_becomes_due_now_is_due() {
    let explained = explain(&of(StoredEvent { available_at: now(), ..plain() }));
    assert!(matches!(explained.reason(), Reason::Waiting { .. }), "{explained}");
}

#[test]
fn expiry_is_the_first_reason_of_an_expired_event() {
    let end = now() - Duration::seconds(10);
    let expired = stored(9, Event::new("order.placed").occurred_at(end - Duration::hours(1)).expires_at(end));
    let explained = explain(&of(expired));
    assert_eq!(*explained.reason(), Reason::Expired { at: end });
    assert!(matches!(explained.reasons[1], Reason::Waiting { .. }));
    shows(&explained, &["expired 10 s ago", "dead-letters it"]);
}

#[test]
fn a_decode_error_is_the_first_reason_of_an_undecodable_event() {
    let broken = DecodeError { id: "e9".into(), reason: "its payload is not JSON".to_owned() };
    let explained = explain(&of(StoredEvent { event: Err(broken), ..plain() }));
    assert!(matches!(explained.reason(), Reason::Undecodable { .. }));
    shows(&explained, &["Event e9 cannot be decoded: its payload is not JSON"]);
}

#[test]
fn the_reason_of_a_retrying_head_is_shown() {
    let keyed = || Event::new("order.paid").ordering_key("k");
    let head = StoredEvent {
        status: Status::Retry,
        attempts: 2,
        available_at: now() + Duration::seconds(30),
        last_error: Some("503".to_owned()),
        ..stored(4, keyed())
    };
    let explained = explain(&DeliveryFacts { pending_ahead: Some(head), ..of(stored(9, keyed())) });
    let Reason::Behind { event } = explained.reason() else { panic!("{explained}") };
    assert_eq!(event.event_id, "e4");
    assert!(matches!(event.reason(), Reason::NotDue { attempts: 2, .. }));
    shows(
        &explained,
        &["waits behind an earlier event", "e4 (order.paid), which waits for retry number 2", "503"],
    );
}

#[test]
fn the_advice_for_an_event_behind_a_dead_head_is_to_replay_the_head() {
    let keyed = || Event::new("order.paid").ordering_key("k");
    let dead = StoredEvent { status: Status::Dead, ..stored(2, keyed()) };
    let facts = DeliveryFacts {
        dead_ahead: Some(dead),
        pending_ahead: Some(stored(5, keyed())),
        ..of(stored(9, keyed()))
    };
    let explained = explain(&facts);
    let behind: Vec<&str> = explained
        .reasons
        .iter()
        .map(|reason| match reason {
            Reason::Behind { event } => event.event_id.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(behind, ["e2", "e5"], "the first one first");
    shows(&explained, &["which is DEAD", "outbox dead replay e2", "skip"]);
    let Reason::Behind { event } = &explained.reasons[1] else { panic!() };
    assert!(matches!(event.reason(), Reason::Behind { .. }), "the dead event blocks it too");
}

#[test]
fn a_dead_event_behind_a_pending_one_is_the_second_reason() {
    let keyed = || Event::new("order.paid").ordering_key("k");
    let facts = DeliveryFacts {
        dead_ahead: Some(StoredEvent { status: Status::Dead, ..stored(7, keyed()) }),
        pending_ahead: Some(stored(5, keyed())),
        ..of(stored(9, keyed()))
    };
    let explained = explain(&facts);
    let Reason::Behind { event } = explained.reason() else { panic!("{explained}") };
    assert_eq!(event.event_id, "e5");
}

#[test]
fn a_delay_comes_before_the_event_ahead() {
    let keyed = || Event::new("order.paid").ordering_key("k");
    let later = StoredEvent { available_at: now() + Duration::days(9), ..stored(9, keyed()) };
    let explained = explain(&DeliveryFacts { pending_ahead: Some(stored(5, keyed())), ..of(later) });
    assert!(matches!(explained.reasons[..], [Reason::NotDue { .. }, Reason::Behind { .. }]), "{explained}");
    shows(&explained, &["not due for another 9 days", "\nIt also waits behind"]);
}

#[test]
fn a_leader_has_the_event_in_memory_or_reads_it_soon() {
    let leader = Some(NodeId::from("node-7"));
    let explained = explain(&DeliveryFacts { leader, due_before: 3, ..of(plain()) });
    assert!(matches!(explained.reason(), Reason::WithLeader { due_before: Some(3), .. }));
    shows(
        &explained,
        &["has been due for 3 min", "node-7 leads this table alone", "3 free events are due before it"],
    );
}

#[test]
fn without_any_sign_of_a_relay_the_advice_is_to_start_one() {
    let explained = explain(&of(plain()));
    assert!(matches!(explained.reason(), Reason::Waiting { at_work: false, .. }));
    shows(&explained, &["no sign of a running relay", "none was settled", "Start a relay"]);
    let long_ago = Some(now() - Duration::hours(5));
    let explained = explain(&DeliveryFacts { last_settled: long_ago, ..of(plain()) });
    shows(&explained, &["the last one was settled 5 h ago", "Start a relay"]);
}

#[test]
fn leased_events_and_recent_settlements_are_signs_of_a_relay() {
    let recent = Some(now() - Duration::seconds(5));
    for facts in [
        DeliveryFacts { any_leased: true, ..of(plain()) },
        DeliveryFacts { last_settled: recent, ..of(plain()) },
    ] {
        let explained = explain(&DeliveryFacts { due_before: 10_000, ..facts });
        assert!(matches!(explained.reason(), Reason::Waiting { at_work: true, .. }));
        shows(&explained, &["A relay is active", "10000 free events or more"]);
        assert_eq!(explained.advice(), None);
    }
}

fn node(name: &str, seconds: u64, active: bool) -> Node {
    Node {
        node: name.into(),
        started_at: now() - Duration::hours(1),
        seen: std::time::Duration::from_secs(seconds),
        state: NodeState { active, ..NodeState::default() },
    }
}

fn without(destination: &str, event_type: &str, node: Node) -> Node {
    let outage = NodeOutage {
        destination: destination.to_owned(),
        since: now() - Duration::minutes(9),
        reason: "connection refused".to_owned(),
        types: vec!["other".to_owned(), event_type.to_owned()],
    };
    Node { state: NodeState { outages: vec![outage], ..node.state.clone() }, ..node }
}

#[test]
fn a_relay_that_runs_and_delivers_is_named() {
    let nodes = vec![node("stands-by", 1, false), node("works", 5, true), node("was", 600, true)];
    let explained = explain(&DeliveryFacts { nodes, ..of(plain()) });
    let Reason::Waiting { relays, at_work: true, .. } = explained.reason() else { panic!("{explained}") };
    assert_eq!(*relays, [NodeId::from("works")]);
    shows(&explained, &["Active relays: works."]);
    let nodes = vec![node("stands-by", 1, false), node("was", 600, true)];
    assert!(explain(&DeliveryFacts { nodes, ..of(plain()) }).advice().is_some(), "no relay delivers");
}

#[test]
fn an_unavailable_destination_is_shown_with_the_relays_that_report_it() {
    let nodes = vec![
        without("nats", "order.placed", node("a", 1, true)),
        without("nats", "order.placed", node("b", 1, true)),
        without("kafka", "order.placed", node("gone", 600, true)),
        without("redis", "order.paid", node("c", 1, true)),
    ];
    let explained = explain(&DeliveryFacts { nodes, ..of(plain()) });
    let Reason::Outage { destination, nodes, .. } = explained.reason() else { panic!("{explained}") };
    assert_eq!((destination.as_str(), nodes.len(), explained.reasons.len()), ("nats", 2, 1));
    shows(
        &explained,
        &[
            "goes to nats",
            "not been available for 9 min",
            "reported by a, b",
            "connection refused",
            "Bring nats back",
        ],
    );
}

/// A relay that reports that one of its tasks fails.
fn failing(task: RelayTask, failures: u64, node: Node) -> Node {
    let error = TaskError::new(task, now() - Duration::minutes(5), "index is corrupt", failures);
    let health = RelayHealth { errors: vec![error], ..RelayHealth::default() };
    Node { state: NodeState { health, ..node.state.clone() }, ..node }
}

fn failing_relays(explanation: &Explanation) -> Vec<&str> {
    let failing = explanation.reasons.iter().filter_map(|reason| match reason {
        Reason::RelayFails { relay, .. } => Some(relay.as_str()),
        _ => None,
    });
    failing.collect()
}

#[test]
fn an_event_that_no_relay_can_take_is_shown_with_each_relay_and_its_error() {
    let take = |name| failing(RelayTask::Take, 3, node(name, 1, true));
    let nodes = vec![take("a"), take("b"), failing(RelayTask::Take, 9, node("gone", 600, true))];
    for leader in [None, Some(NodeId::from("a:life"))] {
        let explained = explain(&DeliveryFacts { nodes: nodes.clone(), leader, ..of(plain()) });
        assert_eq!(explained.reasons.len(), 2, "{explained}");
        assert_eq!(failing_relays(&explained), ["a", "b"]);
        shows(
            &explained,
            &[
                "waits to be taken: relay a has failed to take events for 5 min (since 2027-01-15T07:55:00Z)",
                "relay b has failed to take events",
                "index is corrupt",
                "Fix the cause",
            ],
        );
        assert!(!explained.to_string().contains("Active relays"), "{explained}");
    }
}

#[test]
fn a_failing_relay_does_not_count_as_active() {
    let nodes = vec![failing(RelayTask::Take, 3, node("bad", 1, true)), node("good", 1, true)];
    let explained = explain(&DeliveryFacts { nodes, ..of(plain()) });
    let Reason::Waiting { relays, at_work: true, .. } = explained.reason() else { panic!("{explained}") };
    assert_eq!(*relays, [NodeId::from("good")]);
    assert_eq!(failing_relays(&explained), ["bad"]);
    shows(&explained, &["Active relays: good.", "It also waits to be taken: relay bad has failed"]);
}

#[test]
fn a_transient_error_and_an_error_of_another_task_are_no_reasons() {
    let nodes = vec![
        failing(RelayTask::Take, 2, node("once", 1, true)),
        failing(RelayTask::Purge, 9, node("purges", 1, true)),
    ];
    let explained = explain(&DeliveryFacts { nodes, ..of(plain()) });
    assert!(failing_relays(&explained).is_empty(), "{explained}");
    shows(&explained, &["Active relays: once, purges."]);
}

#[test]
fn a_holder_that_fails_to_settle_is_a_reason() {
    let held = StoredEvent { lease: Some(("a".into(), now() + Duration::minutes(1))), ..plain() };
    let settle = |name| failing(RelayTask::Settle, 3, node(name, 1, true));
    let explained = explain(&DeliveryFacts { nodes: vec![settle("a"), settle("b")], ..of(held) });
    assert!(matches!(explained.reason(), Reason::Held { .. }), "{explained}");
    assert_eq!(failing_relays(&explained), ["a"]);
    shows(&explained, &["It also waits to be settled: relay a has failed to settle events for 5 min"]);

    let left = StoredEvent { lease: Some(("gone".into(), now() - Duration::minutes(1))), ..plain() };
    let nodes = vec![failing(RelayTask::Take, 3, node("a", 1, true))];
    let explained = explain(&DeliveryFacts { nodes, ..of(left) });
    assert!(matches!(explained.reason(), Reason::LeaseRanOut { .. }), "{explained}");
    assert_eq!(failing_relays(&explained), ["a"]);
}

#[test]
fn missing_tables_are_a_reason() {
    let error = Error::NotMigrated { table: "outbox_event".to_owned() };
    let explained = Explanation::of_schema(&"e9".into(), &error);
    assert!(matches!(explained.reason(), Reason::Schema { .. }));
    shows(&explained, &["outbox_event", "outbox migrate"]);
}

#[test]
fn programs_read_the_reason_by_its_name() {
    let dead = StoredEvent { status: Status::Dead, attempts: 5, ..plain() };
    let json = serde_json::to_value(explain(&of(dead))).expect("JSON");
    assert_eq!(json["event_id"], "e9");
    assert_eq!(json["event"]["status"], "DEAD");
    assert_eq!(json["reasons"][0]["reason"], "dead");
    assert_eq!(json["reasons"][0]["attempts"], 5);
    assert_eq!(json["asked_at"], "2027-01-15T08:00:00Z");
}

fn routing(name: &str, routes: NodeRoutes) -> Node {
    let state = NodeState { active: true, routes, ..NodeState::default() };
    Node { node: NodeId::from(name), started_at: now(), seen: std::time::Duration::ZERO, state }
}

#[test]
fn an_event_that_no_running_relay_routes_names_the_relays() {
    let other = |name: &str| routing(name, NodeRoutes::Only(Routed::default().and_type("order.paid")));
    let nodes = vec![other("a"), other("b")];
    let explained = explain(&DeliveryFacts { nodes: nodes.clone(), ..of(plain()) });
    let reason = Reason::Unrouted {
        event_type: "order.placed".to_owned(),
        aggregate_type: "__GLOBAL__".to_owned(),
        relays: vec!["a".into(), "b".into()],
        leader: None,
    };
    assert_eq!(explained.reasons, [reason], "no second reason that it waits for a relay");
    shows(
        &explained,
        &[
            "e9 (order.placed) waits for a relay that routes it",
            "no running relay routes event type order.placed",
            "running: a, b.",
            "Run a relay with a handler or a route for order.placed",
        ],
    );

    // Other reasons come first.
    let late = StoredEvent { available_at: now() + Duration::hours(1), ..plain() };
    let explained = explain(&DeliveryFacts { nodes: nodes.clone(), ..of(late) });
    assert!(matches!(explained.reasons[..], [Reason::NotDue { .. }, Reason::Unrouted { .. }]));
    let behind = stored(9, Event::new("order.paid").ordering_key("k"));
    let ahead = stored(7, Event::new("order.placed").ordering_key("k"));
    let explained =
        explain(&DeliveryFacts { nodes: nodes.clone(), pending_ahead: Some(ahead), ..of(behind) });
    shows(
        &explained,
        &["waits behind an earlier event of its ordering key: e7 (order.placed), which waits for a relay"],
    );
    assert_eq!(explained.reasons.len(), 1);

    // One relay that routes the event is enough; a relay that does not announce its routes counts
    // as routing it.
    for routes in [
        NodeRoutes::Everything,
        NodeRoutes::TooMany,
        NodeRoutes::Only(Routed::default().and_pattern("*.placed")),
    ] {
        let nodes = [nodes.clone(), vec![routing("c", routes)]].concat();
        let explained = explain(&DeliveryFacts { nodes, ..of(plain()) });
        assert!(matches!(explained.reasons[..], [Reason::Waiting { .. }]), "{explained}");
    }
}

#[test]
fn an_event_that_the_leader_does_not_route_waits_whatever_others_route() {
    let leader = routing("led", NodeRoutes::Only(Routed::default().and_pair("bill", "order.placed")));
    let nodes = vec![leader, routing("other", NodeRoutes::Everything)];
    let delivery_facts = DeliveryFacts { nodes, leader: Some("led:01K".into()), ..of(plain()) };
    let explained = explain(&delivery_facts);
    assert!(matches!(&explained.reasons[..], [Reason::Unrouted { relays, .. }] if *relays == ["led".into()]));
    shows(&explained, &["led:01K leads this table alone (single_node), and does not route", "multi_node"]);
    let bill = stored(9, Event::new("order.placed").aggregate("bill", "1"));
    let explained = explain(&DeliveryFacts { event: Some(bill), ..delivery_facts });
    assert!(matches!(explained.reasons[..], [Reason::WithLeader { .. }]));
}
