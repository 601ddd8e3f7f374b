//! Every change at the command line is in the audit, with the user of the operating system.

mod place;

use std::os::unix::fs::MetadataExt as _;

use outbox::store::{Audit, JoinAct, Verdict};
use outbox::{Event, JoinId, NewJoin};
use place::{Place, dead};

/// The newest entry, in short: action, target, outcome and count.
async fn last(place: &Place) -> (String, String, String, Option<u64>) {
    let Audit { actor, via, action, target, outcome, count, .. } =
        place.store.audits(None, 1).await.unwrap().remove(0);
    let uid = std::fs::metadata("/proc/self").unwrap().uid();
    assert_eq!(via, "cli");
    assert!(actor.contains(&format!("uid {uid}")), "{actor}");
    (action, target.unwrap(), outcome.unwrap_or_else(|| "?".to_owned()), count)
}

async fn entries(place: &Place) -> usize {
    place.store.audits(None, 100).await.unwrap().len()
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
async fn each_change_is_noted_with_its_outcome() {
    for place in Place::all().await {
        let ids = place.write((0..4).map(|n| Event::new("e").json(&n))).await;
        place.settle(|_| dead("no")).await;
        let id = ids[0].as_str();

        place.run(&["dead", "replay", id]).expect(0);
        assert_eq!(last(&place).await, entry("event.replay", id, "done", Some(1)));
        place.run(&["dead", "replay", id]).expect(3);
        assert_eq!(last(&place).await, entry("event.replay", id, "refused: the event is not dead", None));
        place.run(&["events", "cancel", id]).expect(0);
        assert_eq!(last(&place).await, entry("event.cancel", id, "done", Some(1)));
        place.run(&["events", "cancel", id]).expect(3);
        let refused = "refused: the event is not pending, or is being handled";
        assert_eq!(last(&place).await, entry("event.cancel", id, refused, None));

        let before = entries(&place).await;
        place.run(&["dead", "replay-all", "--type", "e"]).expect(0);
        place.run(&["purge", "--older-than", "0s", "--with-dead"]).expect(0);
        assert_eq!(entries(&place).await, before, "what only says what it would do is no change");
        place.run(&["dead", "replay-all", "--type", "e", "--rate", "1000/s", "--yes"]).expect(0);
        assert_eq!(last(&place).await, entry("dead.replay", "dead events", "done", Some(3)));
        let details = place.store.audits(None, 1).await.unwrap().remove(0).details.unwrap();
        assert!(details.contains(r#""event_type":"e""#), "{details}");
        place.settle(|_| Verdict::Done).await;
        place.run(&["purge", "--older-than", "0s", "--yes", "--with-joins-and-inbox"]).expect(0);
        assert_eq!(last(&place).await, entry("purge", "done", "done", Some(3)));

        let join = JoinId::from("join-7");
        let start = JoinAct::Start { id: join.clone(), join: NewJoin::of(1) };
        place.store.join(&start).await.unwrap();
        place.run(&["joins", "cancel", join.as_str()]).expect(0);
        assert_eq!(last(&place).await, entry("join.cancel", join.as_str(), "done", Some(1)));
        place.run(&["joins", "cancel", join.as_str()]).expect(3);
        let refused = entry("join.cancel", join.as_str(), "refused: it is CANCELLED already", None);
        assert_eq!(last(&place).await, refused);

        let log = place.store.log().unwrap();
        log.register(&[(outbox::PairId::new("audit", "kafka"), false)]).await.unwrap();
        place.run(&["log", "pause", "kafka"]).expect(0);
        assert_eq!(last(&place).await, entry("publisher.pause", "kafka", "done", Some(1)));
        place.run(&["log", "resume", "kafka", "--topic", "audit"]).expect(0);
        assert_eq!(last(&place).await, entry("publisher.resume", "audit/kafka", "done", Some(1)));
        place.run(&["log", "pause", "no-such"]).expect(3);
        let (action, target, outcome, count) = last(&place).await;
        assert_eq!((action.as_str(), target.as_str(), count), ("publisher.pause", "no-such", None));
        assert!(outcome.starts_with("refused: "), "{outcome}");
        place.run(&["log", "reset", "audit", "kafka", "--to", "start"]).expect(0);
        assert_eq!(last(&place).await, entry("publisher.reset", "audit/kafka", "done", Some(1)));
        place.end().await;
    }
}

/// Looking is no change, and neither is writing an event: those who may only do that have no rights on the audit.
#[tokio::test(flavor = "multi_thread")]
async fn what_changes_nothing_is_not_in_the_audit() {
    let place = Place::sqlite().await;
    let id = place.run(&["send", "--type", "e", "--payload", "1"]).expect(0).out.trim().to_owned();
    place.run(&["events", "show", &id, "--payload"]).expect(0);
    place.run(&["status"]).expect(0);
    place.run(&["explain", &id]).expect(0);
    assert_eq!(entries(&place).await, 0);
    place.end().await;
}
