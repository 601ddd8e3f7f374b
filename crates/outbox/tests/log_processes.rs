//! Three processes that publish many pairs, while one after another is killed: positions never
//! decrease, no event is lost, and no pair is without a leader for long.
//!
//! `OUTBOX_TEST_KILLS` and `OUTBOX_TEST_SUBSCRIPTIONS` set the number of kills and subscriptions.

#[path = "common/harness.rs"]
mod harness;
#[path = "common/polling.rs"]
mod polling;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use harness::ChildProcess;
use outbox::{
    Database, Event, Outbox, OutboxBuilder, Outgoing, Position, PublishError, Publisher, RelayBuilder,
    StoreOptions, SubscriptionId, Topic, open_store,
};
use polling::Poll;

const NODES: usize = 3;
/// Maximum time for which a pair that is behind may not publish.
const IDLE: Duration = Duration::from_secs(30);

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("outbox.db").display());
    let outbox = OutboxBuilder::new().sqlite(&url).await.unwrap();
    every_pair_is_published_although_nodes_are_killed(&outbox, &url, "outbox_event").await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    let Some(url) = harness::postgres_url() else { return };
    let table = harness::unique_table();
    let outbox = OutboxBuilder::new().table(&table).max_connections(4).postgres(&url).await.unwrap();
    every_pair_is_published_although_nodes_are_killed(&outbox, &url, &table).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb() {
    let Some(url) = harness::mariadb_url() else { return };
    let table = harness::unique_table();
    let outbox = OutboxBuilder::new().table(&table).max_connections(4).mysql(&url).await.unwrap();
    every_pair_is_published_although_nodes_are_killed(&outbox, &url, &table).await;
}

async fn every_pair_is_published_although_nodes_are_killed<DB: Database>(
    outbox: &Outbox<DB>,
    url: &str,
    table: &str,
) {
    let (kills, subscriptions) = (setting("OUTBOX_TEST_KILLS", 2), setting("OUTBOX_TEST_SUBSCRIPTIONS", 20));
    outbox.migrate().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut started = 0;
    let mut start = || {
        started += 1;
        node(url, table, &folder.path().join(format!("{started:04}")), subscriptions)
    };
    let mut nodes: Vec<ChildProcess> = (0..NODES).map(|_| start()).collect();

    let (stop, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let writer = tokio::spawn(write(outbox.clone(), stop.clone()));
    let watcher = tokio::spawn(watch(outbox.clone(), subscriptions, over.clone()));
    for _ in 0..kills {
        // Killed at a random moment, and replaced after a random time.
        tokio::time::sleep(Duration::from_millis(rand::random_range(500..6_000))).await;
        nodes.remove(rand::random_range(0..NODES)).kill();
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..2_000))).await;
        nodes.push(start());
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    stop.store(true, Ordering::SeqCst);
    let positions = writer.await.unwrap();

    let head = *positions.last().unwrap();
    let states = async || outbox.log_admin().subscriptions().await.unwrap();
    let is_done = async || states().await.iter().all(|subscription| subscription.position >= head);
    let poll = Poll { limit: Duration::from_secs(60), ..Poll::DEFAULT };
    poll.until("everything is published", is_done).await;
    over.store(true, Ordering::SeqCst);
    let longest_idle = watcher.await.unwrap();
    nodes.into_iter().for_each(ChildProcess::stop);
    assert!(
        outbox
            .log_admin()
            .subscriptions()
            .await
            .unwrap()
            .iter()
            .all(|subscription| subscription.leader.is_none()),
        "all leases are released"
    );

    let mut seen: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
    let (mut published, mut again, mut lapses) = (0, 0, 0);
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let mut last: BTreeMap<String, i64> = BTreeMap::new();
        for line in std::fs::read_to_string(file.unwrap().path()).unwrap().lines() {
            let (subscription, batch) = line.split_once('\t').unwrap();
            for position in batch.split(',').map(|position| position.parse::<i64>().unwrap()) {
                // A process that lost a pair and leads it again starts from the saved position, in
                // another epoch.
                lapses +=
                    usize::from(position <= last.insert(subscription.to_owned(), position).unwrap_or(0));
                published += 1;
                again += usize::from(!seen.entry(subscription.to_owned()).or_default().insert(position));
            }
        }
    }
    let all: BTreeSet<i64> = positions.iter().map(|position| position.get()).collect();
    assert_eq!(seen.len(), subscriptions);
    for (subscription, seen) in &seen {
        let missing: Vec<_> = all.difference(seen).collect();
        assert!(missing.is_empty(), "{subscription} never got {missing:?}");
    }
    let _ = writeln!(
        std::io::stderr(),
        "{}: {kills} kills, {subscriptions} subscriptions, {} events, {published} published, {again} of them again ({lapses} lapses); no subscription idle longer than {longest_idle:?}",
        url.split(':').next().unwrap_or_default(),
        all.len(),
    );
    assert!(longest_idle <= IDLE, "a pair was idle for {longest_idle:?}");
}

/// Appends until it is told to stop. Returns all positions.
async fn write<DB: Database>(outbox: Outbox<DB>, stop: Arc<AtomicBool>) -> Vec<Position> {
    let mut positions = Vec::new();
    let mut number = 0;
    while !stop.load(Ordering::SeqCst) {
        let events: Vec<_> = (0..rand::random_range(1..4))
            .map(|_| {
                number += 1;
                Event::new("e").tag("n", number % 7).json(&number)
            })
            .collect();
        // SQLite may be busy: then nothing was appended.
        if let Ok(appended) = outbox.log().append(events).await {
            positions.extend(appended);
        }
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..60))).await;
    }
    positions
}

/// Watches the table: no position may decrease. Returns the longest time for which a pair that was
/// behind did not advance.
async fn watch<DB: Database>(outbox: Outbox<DB>, subscriptions: usize, stop: Arc<AtomicBool>) -> Duration {
    let mut moved: BTreeMap<SubscriptionId, (Position, Instant)> = BTreeMap::new();
    let mut longest_idle = Duration::ZERO;
    while !stop.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (Ok(head), Ok(states)) = (outbox.log().head().await, outbox.log_admin().subscriptions().await)
        else {
            continue;
        };
        if states.len() < subscriptions || head == Position::START {
            continue;
        }
        for state in states {
            let now = Instant::now();
            let (position, since) = moved.entry(state.id.clone()).or_insert((state.position, now));
            assert!(
                state.position >= *position,
                "{} went back from {position} to {}",
                state.id,
                state.position
            );
            if state.position > *position || state.position >= head {
                (*position, *since) = (state.position, now);
            }
            longest_idle = longest_idle.max(since.elapsed());
        }
    }
    longest_idle
}

/// Starts a node in a child process.
fn node(url: &str, table: &str, record: &Path, subscriptions: usize) -> ChildProcess {
    let variables = [
        ("OUTBOX_NODE_URL", url.as_ref()),
        ("OUTBOX_NODE_TABLE", table.as_ref()),
        ("OUTBOX_NODE_RECORD", record.as_os_str()),
        ("OUTBOX_NODE_PAIRS", std::ffi::OsString::from(subscriptions.to_string()).leak()),
    ];
    ChildProcess::start("child_node_when_its_variables_are_set", &variables)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_node_when_its_variables_are_set() {
    let Ok(url) = std::env::var("OUTBOX_NODE_URL") else { return };
    let table = std::env::var("OUTBOX_NODE_TABLE").unwrap();
    let record = std::fs::File::create(std::env::var("OUTBOX_NODE_RECORD").unwrap()).unwrap();
    let record = Arc::new(Mutex::new(record));
    let store = open_store(&url, &StoreOptions::default().table(table).max_connections(2)).await.unwrap();
    let stop_requested = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    let mut relay = RelayBuilder::log_only(store);
    for n in 0..setting("OUTBOX_NODE_PAIRS", 1) {
        relay = relay.publish(Topic::new("all").to(Record { name: format!("p{n}"), file: record.clone() }));
    }
    let relay = relay.start().await.unwrap();
    stop_requested.await.unwrap().unwrap();
    relay.stop().await.unwrap();
}

/// Writes the positions of each batch to a file, in one write.
struct Record {
    name: String,
    file: Arc<Mutex<std::fs::File>>,
}

#[async_trait]
impl Publisher for Record {
    fn name(&self) -> &str {
        &self.name
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        let positions: Vec<String> = events.iter().filter_map(|e| Some(e.position()?.to_string())).collect();
        let line = format!("{}\t{}\n", self.name, positions.join(","));
        self.file.lock().unwrap().write_all(line.as_bytes())?;
        Ok(())
    }
}
