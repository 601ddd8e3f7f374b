//! Three processes that publish many pairs, while one after another is killed: positions never go back, nothing is lost, and no pair
//! is left alone for long.
//!
//! `OUTBOX_TEST_KILLS` and `OUTBOX_TEST_PAIRS` set how many kills and pairs there are.

#[path = "common/harness.rs"]
mod harness;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use harness::ChildProcess;
use outbox::{
    Database, Event, Outbox, OutboxBuilder, Outgoing, PairId, Position, PublishError, Publisher,
    RelayBuilder, StoreOptions, Topic, open_store,
};

const NODES: usize = 3;
/// A pair that has something to publish and does not is idle. No longer than this.
const IDLE: Duration = Duration::from_secs(30);

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("outbox.db").display());
    let outbox = OutboxBuilder::new().sqlite(&url).await.unwrap();
    nodes_are_killed_and_every_pair_goes_on(&outbox, &url, "outbox_event").await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    let Some(url) = harness::postgres_url() else { return };
    let table = harness::unique_table();
    let outbox = OutboxBuilder::new().table(&table).max_connections(4).postgres(&url).await.unwrap();
    nodes_are_killed_and_every_pair_goes_on(&outbox, &url, &table).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb() {
    let Some(url) = harness::mariadb_url() else { return };
    let table = harness::unique_table();
    let outbox = OutboxBuilder::new().table(&table).max_connections(4).mysql(&url).await.unwrap();
    nodes_are_killed_and_every_pair_goes_on(&outbox, &url, &table).await;
}

async fn nodes_are_killed_and_every_pair_goes_on<DB: Database>(outbox: &Outbox<DB>, url: &str, table: &str) {
    let (kills, pairs) = (setting("OUTBOX_TEST_KILLS", 2), setting("OUTBOX_TEST_PAIRS", 20));
    outbox.migrate().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut born = 0;
    let mut start = || {
        born += 1;
        node(url, table, &folder.path().join(format!("{born:04}")), pairs)
    };
    let mut nodes: Vec<ChildProcess> = (0..NODES).map(|_| start()).collect();

    let (stop, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let writer = tokio::spawn(write(outbox.clone(), stop.clone()));
    let watcher = tokio::spawn(watch(outbox.clone(), pairs, over.clone()));
    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(rand::random_range(500..6_000))).await;
        nodes.remove(rand::random_range(0..NODES)).kill();
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..2_000))).await;
        nodes.push(start());
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    stop.store(true, Ordering::SeqCst);
    let positions = writer.await.unwrap();

    let head = *positions.last().unwrap();
    let done = async {
        while !outbox.log_admin().pairs().await.unwrap().iter().all(|pair| pair.position >= head) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), done).await.expect("everything is published");
    over.store(true, Ordering::SeqCst);
    let longest = watcher.await.unwrap();
    nodes.into_iter().for_each(ChildProcess::stop);
    assert!(
        outbox.log_admin().pairs().await.unwrap().iter().all(|pair| pair.leader.is_none()),
        "all is handed over"
    );

    let mut seen: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
    let (mut published, mut again, mut lapses) = (0, 0, 0);
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let mut last: BTreeMap<String, i64> = BTreeMap::new();
        for line in std::fs::read_to_string(file.unwrap().path()).unwrap().lines() {
            let (pair, batch) = line.split_once('\t').unwrap();
            for position in batch.split(',').map(|position| position.parse::<i64>().unwrap()) {
                // A process that lost a pair and got it back starts again from what was saved: another epoch.
                lapses += usize::from(position <= last.insert(pair.to_owned(), position).unwrap_or(0));
                published += 1;
                again += usize::from(!seen.entry(pair.to_owned()).or_default().insert(position));
            }
        }
    }
    let all: BTreeSet<i64> = positions.iter().map(|position| position.get()).collect();
    assert_eq!(seen.len(), pairs);
    for (pair, seen) in &seen {
        let missing: Vec<_> = all.difference(seen).collect();
        assert!(missing.is_empty(), "{pair} never got {missing:?}");
    }
    let _ = writeln!(
        std::io::stderr(),
        "{}: {kills} kills, {pairs} pairs, {} events, {published} published, {again} of them again ({lapses} lapses); no pair idle longer than {longest:?}",
        url.split(':').next().unwrap_or_default(),
        all.len(),
    );
    assert!(longest <= IDLE, "a pair was idle for {longest:?}");
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
        // SQLite may be busy: then it did not happen.
        if let Ok(appended) = outbox.log().append(events).await {
            positions.extend(appended);
        }
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..60))).await;
    }
    positions
}

/// Looks at the table: no position may go back. Returns the longest time that one stood still although there was more.
async fn watch<DB: Database>(outbox: Outbox<DB>, pairs: usize, stop: Arc<AtomicBool>) -> Duration {
    let mut moved: BTreeMap<PairId, (Position, Instant)> = BTreeMap::new();
    let mut longest = Duration::ZERO;
    while !stop.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (Ok(head), Ok(states)) = (outbox.log().head().await, outbox.log_admin().pairs().await) else {
            continue;
        };
        if states.len() < pairs || head == Position::START {
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
            longest = longest.max(since.elapsed());
        }
    }
    longest
}

/// A node in a process of its own.
fn node(url: &str, table: &str, record: &Path, pairs: usize) -> ChildProcess {
    let variables = [
        ("OUTBOX_NODE_URL", url.as_ref()),
        ("OUTBOX_NODE_TABLE", table.as_ref()),
        ("OUTBOX_NODE_RECORD", record.as_os_str()),
        ("OUTBOX_NODE_PAIRS", std::ffi::OsString::from(pairs.to_string()).leak()),
    ];
    ChildProcess::start("a_node_when_told_to_be_one", &variables)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_when_told_to_be_one() {
    let Ok(url) = std::env::var("OUTBOX_NODE_URL") else { return };
    let table = std::env::var("OUTBOX_NODE_TABLE").unwrap();
    let record = std::fs::File::create(std::env::var("OUTBOX_NODE_RECORD").unwrap()).unwrap();
    let record = Arc::new(Mutex::new(record));
    let store = open_store(&url, &StoreOptions::default().table(table).max_connections(2)).await.unwrap();
    let told = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    let mut relay = RelayBuilder::log_only(store);
    for n in 0..setting("OUTBOX_NODE_PAIRS", 1) {
        relay = relay.publish(Topic::new("all").to(Record { name: format!("p{n}"), file: record.clone() }));
    }
    let relay = relay.start().await.unwrap();
    told.await.unwrap().unwrap();
    relay.stop().await.unwrap();
}

/// Writes down the positions of each batch, in one piece.
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
