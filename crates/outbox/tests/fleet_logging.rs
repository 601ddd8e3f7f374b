//! Every log line and every metric of a fleet names its database, and none shows a password.
//!
//! A separate test binary: a process has one subscriber.

mod common;
#[path = "common/fleet_fixtures.rs"]
mod fleet_fixtures;
#[path = "common/log_lines.rs"]
mod log_lines;

use std::collections::BTreeSet;
use std::time::Duration;

use common::{Seen, in_time, numbered, until};
use fleet_fixtures::{Answer, Folder, Script, state_of};
use log_lines::LogLines;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use outbox::fleet::{DatabaseState, FleetDatabase};
use outbox::{Failure, Fleet, Result, Unrouted};
use sqlx::Sqlite;
use tracing_subscriber::filter::LevelFilter;

/// One thread, so that the recorder of this test sees everything.
#[tokio::test(flavor = "current_thread")]
async fn log_lines_and_metrics_name_the_database() -> Result<()> {
    let recorder = DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    let _mine = metrics::set_default_local_recorder(&recorder);
    let lines = LogLines::capture(LevelFilter::DEBUG);

    let folder = Folder::new();
    let down = FleetDatabase::new("down", "postgres://ada:s3cret@127.0.0.1:1/x");
    let script = Script::of([
        Answer::Found(vec![folder.database("acme"), folder.database("globex"), down.clone()]),
        Answer::Found(vec![folder.database("acme"), down]),
        Answer::Error,
    ]);
    let fleet =
        Fleet::builder().discovery(script).absences(1).migrate(true).max_connections(3).open().await?;
    let seen = Seen::default();
    let relay = fleet
        .multi_node()
        .unrouted(Unrouted::Dead)
        .on_type("good", seen.handler())
        .on_type("bad", seen.returning(|_| Err(Failure::retry_after(Duration::from_secs(3_600), "no luck"))))
        .start()
        .await?;
    for name in ["acme", "globex"] {
        let outbox = fleet.outbox::<Sqlite>(name)?;
        outbox.send(numbered("good", 1)).await?;
        outbox.send(numbered("bad", 2)).await?;
        outbox.send(numbered("unrouted", 3)).await?;
    }
    in_time(seen.reach(4)).await;
    in_time(relay.idle()).await?;
    let failing = || matches!(state_of(&fleet, "down"), Some(DatabaseState::Failing { .. }));
    until("one is down", async || failing()).await;
    fleet.refresh().await?;
    assert!(fleet.refresh().await.is_err());
    until("globex is gone", async || state_of(&fleet, "globex").is_none()).await;
    relay.stop().await?;
    fleet.close().await;

    let text = lines.text();
    assert!(!text.contains("s3cret"), "{text}");
    let ours: Vec<&str> = text.lines().filter(|line| line.contains(" outbox::")).collect();
    // Lines about the whole fleet, or about the answer of its discovery.
    let of_all = ["fleet relay started", "the databases stay as they were"];
    for line in &ours {
        let of_one =
            ["acme", "globex", "down"].iter().any(|name| line.contains(&format!("store=\"{name}\"")));
        assert!(of_one || of_all.iter().any(|message| line.contains(message)), "{line}");
    }
    let assert_logged = |message: &str, name: &str| {
        assert!(
            ours.iter().any(|l| l.contains(message) && l.contains(&format!("store=\"{name}\""))),
            "{message}: {text}"
        );
    };
    for name in ["acme", "globex"] {
        assert_logged("handled", name);
        assert_logged("handler failed", name);
        assert_logged("event is dead", name);
        assert_logged("relay stopped", name);
    }
    assert_logged("database unavailable", "down");
    assert_logged("the database is gone", "globex");

    let mut stores = BTreeSet::new();
    let mut fleets = Vec::new();
    for (key, _, _, value) in snapshots.snapshot().into_vec() {
        let (_, key) = key.into_parts();
        let labels: Vec<_> = key.labels().map(|label| (label.key(), label.value())).collect();
        match (labels.as_slice(), value) {
            ([("store", store)], _) => drop(stores.insert((*store).to_owned())),
            ([], DebugValue::Gauge(n)) => fleets.push((key.name().to_owned(), n.into_inner())),
            other => panic!("{}: {other:?}", key.name()),
        }
    }
    fleets.sort_by(|a, b| a.0.cmp(&b.0));
    let names: Vec<&str> = fleets.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["outbox.fleet.connections", "outbox.fleet.databases", "outbox.fleet.troubled"]);
    assert!(fleets.iter().all(|(_, n)| *n == 0.0), "all is closed: {fleets:?}");
    assert!(stores.is_superset(&BTreeSet::from(["acme".to_owned(), "globex".to_owned()])), "{stores:?}");
    Ok(())
}
