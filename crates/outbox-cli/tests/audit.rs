//! Every change at the command line has an audit entry with the operating system's user.

mod common;

use std::os::unix::fs::MetadataExt as _;

use common::{TestTarget, dead};
use outbox::store::{Audit, JoinCommand, Verdict};
use outbox::{Event, JoinId, NewJoin};

/// Action, target, outcome and count of the newest entry.
async fn last(target: &TestTarget) -> (String, String, String, Option<u64>) {
    let Audit { actor, via, action, target, outcome, count, .. } =
        target.store.audits(None, 1).await.unwrap().remove(0);
    let uid = std::fs::metadata("/proc/self").unwrap().uid();
    assert_eq!(via, "cli");
    assert!(actor.contains(&format!("uid {uid}")), "{actor}");
    (action, target.unwrap(), outcome.unwrap_or_else(|| "?".to_owned()), count)
}

async fn entries(target: &TestTarget) -> usize {
    target.store.audits(None, 100).await.unwrap().len()
}

fn entry(
    action: &str,
    target: &str,
    outcome: &str,
    count: Option<u64>,
) -> (String, String, String, Option<u64>) {
    (action.to_owned(), target.to_owned(), outcome.to_owned(), count)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_has_an_audit_entry_with_its_outcome() {
    for target in TestTarget::all().await {
        let ids = target.write((0..4).map(|n| Event::new("e").json(&n))).await;
        target.settle(|_| dead("no")).await;
        let id = ids[0].as_str();

        target.run(&["dead", "replay", id]).expect(0);
        assert_eq!(last(&target).await, entry("event.replay", id, "done", Some(1)));
        target.run(&["dead", "replay", id]).expect(3);
        assert_eq!(last(&target).await, entry("event.replay", id, "refused: the event is not dead", None));
        target.run(&["events", "cancel", id]).expect(0);
        assert_eq!(last(&target).await, entry("event.cancel", id, "done", Some(1)));
        target.run(&["events", "cancel", id]).expect(3);
        let refused = "refused: the event is not pending, or is being handled";
        assert_eq!(last(&target).await, entry("event.cancel", id, refused, None));

        let before = entries(&target).await;
        target.run(&["dead", "replay-all", "--type", "e"]).expect(0);
        target.run(&["purge", "--older-than", "0s", "--with-dead"]).expect(0);
        assert_eq!(entries(&target).await, before, "a dry run is no change");
        target.run(&["dead", "replay-all", "--type", "e", "--rate", "1000/s", "--yes"]).expect(0);
        assert_eq!(last(&target).await, entry("dead.replay", "dead events", "done", Some(3)));
        let details = target.store.audits(None, 1).await.unwrap().remove(0).details.unwrap();
        assert!(details.contains(r#""event_type":"e""#), "{details}");
        target.settle(|_| Verdict::Done).await;
        target.run(&["purge", "--older-than", "0s", "--yes", "--with-joins-and-inbox"]).expect(0);
        assert_eq!(last(&target).await, entry("purge", "done", "done", Some(3)));

        let join = JoinId::from("join-7");
        let start = JoinCommand::Start { id: join.clone(), join: NewJoin::of(1) };
        target.store.join(&start).await.unwrap();
        target.run(&["joins", "cancel", join.as_str()]).expect(0);
        assert_eq!(last(&target).await, entry("join.cancel", join.as_str(), "done", Some(1)));
        target.run(&["joins", "cancel", join.as_str()]).expect(3);
        let refused = entry("join.cancel", join.as_str(), "refused: it is CANCELLED already", None);
        assert_eq!(last(&target).await, refused);

        let log = target.store.log().unwrap();
        log.register(&[(outbox::SubscriptionId::new("audit", "kafka"), false)]).await.unwrap();
        target.run(&["log", "pause", "kafka"]).expect(0);
        assert_eq!(last(&target).await, entry("publisher.pause", "kafka", "done", Some(1)));
        target.run(&["log", "resume", "kafka", "--topic", "audit"]).expect(0);
        assert_eq!(last(&target).await, entry("publisher.resume", "audit/kafka", "done", Some(1)));
        target.run(&["log", "pause", "no-such"]).expect(3);
        let (action, audit_target, outcome, count) = last(&target).await;
        assert_eq!((action.as_str(), audit_target.as_str(), count), ("publisher.pause", "no-such", None));
        assert!(outcome.starts_with("refused: "), "{outcome}");
        target.run(&["log", "reset", "audit", "kafka", "--to", "start"]).expect(0);
        assert_eq!(last(&target).await, entry("publisher.reset", "audit/kafka", "done", Some(1)));
        target.end().await;
    }
}

/// Reading is no change, and neither is writing an event: roles that may only do that have no
/// rights on the audit table.
#[tokio::test(flavor = "multi_thread")]
async fn commands_that_change_nothing_are_not_audited() {
    let target = TestTarget::sqlite().await;
    let id = target.run(&["send", "--type", "e", "--payload", "1"]).expect(0).out.trim().to_owned();
    target.run(&["events", "show", &id, "--payload"]).expect(0);
    target.run(&["status"]).expect(0);
    target.run(&["explain", &id]).expect(0);
    assert_eq!(entries(&target).await, 0);
    target.end().await;
}
