//! Sixteen writers with rollbacks and late commits, three relays in separate processes, handlers
//! that fail: every committed event is delivered, no rolled back one, none on two nodes at once,
//! and in order per key.

#[path = "common/harness.rs"]
mod harness;
#[path = "common/polling.rs"]
mod polling;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use harness::ChildProcess;
use outbox::store::SharedStore;
use outbox::{
    Backoff, Context, Database, Event, Failure, Outbox, OutboxBuilder, RelayBuilder, StoreOptions, open_store,
};

const WRITERS: usize = 16;
const RELAYS: usize = 3;
const KEYS: usize = 25;

/// Number of transactions of each writer.
fn transactions() -> usize {
    std::env::var("OUTBOX_TEST_TRANSACTIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(60)
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_relay_processes_on_postgres_deliver_everything_once_at_a_time_in_order() {
    let Some(url) = harness::postgres_url() else { return };
    let table = harness::unique_table();
    let outbox =
        OutboxBuilder::new().table(&table).max_connections(WRITERS as u32).postgres(&url).await.unwrap();
    everything_arrives(&outbox, &url, &table).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_relay_processes_on_mariadb_deliver_everything_once_at_a_time_in_order() {
    let Some(url) = harness::mariadb_url() else { return };
    let table = harness::unique_table();
    let outbox =
        OutboxBuilder::new().table(&table).max_connections(WRITERS as u32).mysql(&url).await.unwrap();
    everything_arrives(&outbox, &url, &table).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_relay_processes_on_one_sqlite_file_deliver_everything_once_at_a_time_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("outbox.db").display());
    let outbox = OutboxBuilder::new().table("outbox_event").sqlite(&url).await.unwrap();
    everything_arrives(&outbox, &url, "outbox_event").await;
}

async fn everything_arrives<DB: Database>(outbox: &Outbox<DB>, url: &str, table: &str) {
    outbox.migrate().await.unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let relays: Vec<ChildProcess> = (0..RELAYS).map(|_| relay_process(url, table, log.path())).collect();

    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let outbox = outbox.clone();
        writers.spawn(async move { write(&outbox, writer).await });
    }
    let committed: HashSet<String> = writers.join_all().await.into_iter().flatten().collect();
    let pending = async || outbox.admin().backlog().await.unwrap().pending;
    polling::until("everything is settled", async || pending().await == 0).await;
    relays.into_iter().for_each(ChildProcess::stop);

    let runs = read(log.path());
    let done: HashSet<String> = runs.iter().filter(|run| run.done).map(|run| run.id.clone()).collect();
    let lost: Vec<_> = committed.difference(&done).collect();
    let phantom: Vec<_> = runs.iter().filter(|run| !committed.contains(&run.id)).collect();
    assert!(
        lost.is_empty(),
        "{} of {} committed events never arrived: {lost:?}",
        lost.len(),
        committed.len()
    );
    assert!(phantom.is_empty(), "handled, but never committed: {phantom:?}");
    assert_no_overlap(&runs);
    assert_order(&runs);
    let nodes: HashSet<&str> = runs.iter().map(|run| run.node.as_str()).collect();
    assert_eq!(nodes.len(), RELAYS, "every relay took part");
    let duplicates = runs.iter().filter(|run| run.done).count() - done.len();
    assert_eq!(duplicates, 0, "nothing crashed, so nothing is delivered twice");
    assert_eq!(outbox.admin().stats().await.unwrap().dead, 0);
}

/// Makes transactions of one to three events; every tenth is rolled back, every tenth commits late.
/// Returns the ids of the committed events.
async fn write<DB: Database>(outbox: &Outbox<DB>, writer: usize) -> Vec<String> {
    let mut committed = Vec::new();
    for n in 0..transactions() {
        let dice = (writer * 7 + n * 13) % 10;
        let mut tx = outbox.begin().await.unwrap();
        // One key per transaction: two could cause a deadlock, as with any two rows.
        let key = dice.is_multiple_of(2).then(|| format!("key-{}", (writer * 5 + n * 3) % KEYS));
        let events = (0..=dice % 3).map(|_| {
            let event = Event::new("thing.happened").json(&n);
            match &key {
                Some(key) => event.ordering_key(key),
                None => event,
            }
        });
        let written = tx.write_all(events).await.unwrap();
        match dice {
            3 => tx.rollback().await.unwrap(),
            _ => {
                // Some transactions commit after later ones.
                if dice == 4 {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                tx.commit().await.unwrap();
                committed.extend(written.iter().map(|written| written.id.to_string()));
            }
        }
    }
    committed
}

/// One run of a handler, as recorded in the log.
#[derive(Debug)]
struct Run {
    id: String,
    key: String,
    seq: i64,
    node: String,
    start: u128,
    end: u128,
    done: bool,
}

fn read(log: &Path) -> Vec<Run> {
    let text = std::fs::read_to_string(log).unwrap();
    let run = |line: &str| {
        let field: Vec<&str> = line.split('\t').collect();
        Run {
            id: field[0].to_owned(),
            key: field[1].to_owned(),
            seq: field[2].parse().unwrap(),
            node: field[3].to_owned(),
            start: field[4].parse().unwrap(),
            end: field[5].parse().unwrap(),
            done: field[6] == "done",
        }
    };
    text.lines().map(run).collect()
}

fn assert_no_overlap(runs: &[Run]) {
    let mut by_event: HashMap<&str, Vec<&Run>> = HashMap::new();
    for run in runs {
        by_event.entry(&run.id).or_default().push(run);
    }
    for runs in by_event.values_mut() {
        runs.sort_by_key(|run| run.start);
        for pair in runs.windows(2) {
            assert!(pair[0].end <= pair[1].start, "handled by two at once: {pair:?}");
        }
    }
}

fn assert_order(runs: &[Run]) {
    let mut by_key: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
    for run in runs.iter().filter(|run| !run.key.is_empty()) {
        by_key.entry(&run.key).or_default().push(run);
    }
    assert!(!by_key.is_empty());
    for (key, mut runs) in by_key {
        runs.sort_by_key(|run| run.start);
        let order: Vec<i64> = runs.iter().map(|run| run.seq).collect();
        assert!(order.is_sorted(), "out of order in {key}: {order:?}");
    }
}

/// Starts a relay in a child process.
fn relay_process(url: &str, table: &str, log: &Path) -> ChildProcess {
    let variables = [
        ("OUTBOX_RELAY_URL", url.as_ref()),
        ("OUTBOX_RELAY_TABLE", table.as_ref()),
        ("OUTBOX_RELAY_LOG", log.as_os_str()),
    ];
    ChildProcess::start("child_relay_when_its_variables_are_set", &variables)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_relay_when_its_variables_are_set() {
    let Ok(url) = std::env::var("OUTBOX_RELAY_URL") else { return };
    let table = std::env::var("OUTBOX_RELAY_TABLE").unwrap();
    let log = std::env::var("OUTBOX_RELAY_LOG").unwrap();
    let log = std::fs::OpenOptions::new().append(true).open(log).unwrap();
    let store: SharedStore = open_store(&url, &StoreOptions::default().table(table)).await.unwrap();
    let log: &'static Mutex<std::fs::File> = Box::leak(Box::new(Mutex::new(log)));
    let relay = RelayBuilder::multi_node(store)
        .workers(8)
        .retry(Backoff::default().base(Duration::from_millis(20)).max_attempts(50))
        .poll_interval(Duration::from_millis(100))
        .on_any(move |cx: Context| async move { handle(&cx, log).await })
        .start()
        .await
        .unwrap();
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await.unwrap().unwrap();
    relay.stop().await.unwrap();
}

/// Takes a moment, fails in one of twenty attempts, and records the call.
async fn handle(cx: &Context, log: &Mutex<std::fs::File>) -> Result<(), Failure> {
    let start = now();
    let dice = cx.id().as_str().bytes().map(u32::from).sum::<u32>() + cx.attempt();
    tokio::time::sleep(Duration::from_micros(u64::from(dice % 5) * 500)).await;
    let done = !dice.is_multiple_of(20);
    let line = format!(
        "{}\t{}\t{}\t{}\t{start}\t{}\t{}\n",
        cx.id(),
        cx.ordering_key().unwrap_or_default(),
        cx.seq().unwrap_or_default(),
        cx.node(),
        now(),
        if done { "done" } else { "failed" },
    );
    log.lock().unwrap().write_all(line.as_bytes())?;
    if done { Ok(()) } else { Err(Failure::retry("one of twenty")) }
}

fn now() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros()
}
