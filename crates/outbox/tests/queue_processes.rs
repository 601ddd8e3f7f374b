//! Two processes that work on one queue: an item whose lease expires is claimed by the other, and a
//! later ack of the first has no effect; an item whose lease is renewed stays with its owner.
//!
//! `OUTBOX_TEST_ITEMS` sets the number of items.

#[path = "common/harness.rs"]
mod harness;
#[path = "common/polling.rs"]
mod polling;

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use harness::ChildProcess;
use outbox::{Database, Event, NodeId, Outbox, OutboxBuilder, StoreOptions, WorkItem, WorkQueue, open_store};
use polling::Poll;

const WORKERS: usize = 2;
/// Number of concurrent handlers of each worker.
const AT_ONCE: usize = 3;

/// Durations of a lease and of its handler. A lease that is renewed outlasts a process that is
/// suspended for some seconds.
fn times(renew: bool) -> (Duration, Duration) {
    let (lease, slow) = if renew { (6, 8) } else { (1, 3) };
    (Duration::from_secs(lease), Duration::from_secs(slow))
}

fn item_count() -> usize {
    std::env::var("OUTBOX_TEST_ITEMS").ok().and_then(|n| n.parse().ok()).unwrap_or(4)
}

macro_rules! on_every_server {
    ($($case:ident)+) => {$(
        mod $case {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                let folder = tempfile::tempdir().unwrap();
                let url = format!("sqlite:{}", folder.path().join("outbox.db").display());
                let outbox = OutboxBuilder::new().sqlite(&url).await.unwrap();
                super::$case(&outbox, &url, "outbox_event").await;
            }

            #[cfg(feature = "postgres")]
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                let Some(url) = harness::postgres_url() else { return };
                let table = harness::unique_table();
                let outbox = OutboxBuilder::new().table(&table).max_connections(2).postgres(&url).await.unwrap();
                super::$case(&outbox, &url, &table).await;
            }

            #[cfg(feature = "mysql")]
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn mariadb() {
                let Some(url) = harness::mariadb_url() else { return };
                let table = harness::unique_table();
                let outbox = OutboxBuilder::new().table(&table).max_connections(2).mysql(&url).await.unwrap();
                super::$case(&outbox, &url, &table).await;
            }
        }
    )+};
}

on_every_server! {
    an_ack_under_an_expired_lease_counts_only_if_the_item_was_not_claimed_again
    an_item_whose_lease_is_renewed_is_handled_once
}

async fn an_ack_under_an_expired_lease_counts_only_if_the_item_was_not_claimed_again<DB: Database>(
    outbox: &Outbox<DB>,
    url: &str,
    table: &str,
) {
    let history = work_off(outbox, url, table, false).await;
    let mut stale = 0;
    for (item, actions) in &history {
        let counted: Vec<_> = actions.iter().filter(|action| action.counted == Some(true)).collect();
        assert_eq!(counted.len(), 1, "one ack of {item} counts: {actions:?}");
        let claims: Vec<u32> =
            actions.iter().filter(|a| a.counted.is_none()).map(|action| action.claim).collect();
        assert_eq!(
            claims.iter().max(),
            Some(&counted[0].claim),
            "the ack of the newest claim counts: {actions:?}"
        );
        let different: HashSet<&u32> = claims.iter().collect();
        assert_eq!(different.len(), claims.len(), "no two claims are the same: {actions:?}");
        stale += actions.iter().filter(|action| action.counted == Some(false)).count();
    }
    assert!(stale > 0, "no item was taken over, so the test proves nothing");
}

async fn an_item_whose_lease_is_renewed_is_handled_once<DB: Database>(
    outbox: &Outbox<DB>,
    url: &str,
    table: &str,
) {
    for (item, actions) in work_off(outbox, url, table, true).await {
        let counted: Vec<_> = actions.iter().map(|action| action.counted).collect();
        assert_eq!(counted, [None, Some(true)], "{item} was claimed once and done: {actions:?}");
    }
}

/// A claim or ack of an item.
#[derive(Debug)]
struct ItemAction {
    at: u128,
    claim: u32,
    /// `None` for a claim; for an ack, whether it counted.
    counted: Option<bool>,
    #[expect(dead_code, reason = "printed when the test fails")]
    worker: String,
}

/// Has two processes work off a queue. Returns the actions on each item, in the order of time.
async fn work_off<DB: Database>(
    outbox: &Outbox<DB>,
    url: &str,
    table: &str,
    renew: bool,
) -> BTreeMap<String, Vec<ItemAction>> {
    outbox.migrate().await.unwrap();
    let items = item_count();
    outbox.send_all((0..items).map(|n| Event::new("work").json(&n))).await.unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let workers: Vec<_> = (0..WORKERS).map(|_| worker(url, table, log.path(), renew)).collect();
    let pending = async || outbox.admin().backlog().await.unwrap().pending;
    let limit = Duration::from_secs(30) + times(renew).1 * u32::try_from(items).unwrap() * 2;
    let poll = Poll { limit, ..Poll::DEFAULT };
    poll.until("the queue is worked off", async || pending().await == 0).await;
    workers.into_iter().for_each(ChildProcess::stop);
    assert_eq!(outbox.admin().stats().await.unwrap().done, items as u64);

    let mut history: BTreeMap<String, Vec<ItemAction>> = BTreeMap::new();
    for line in std::fs::read_to_string(log.path()).unwrap().lines() {
        let field: Vec<&str> = line.split('\t').collect();
        let claim = field[1].rsplit(':').nth(1).unwrap().parse().unwrap();
        let counted = match field[3] {
            "claimed" => None,
            answer => Some(answer == "1"),
        };
        let action =
            ItemAction { at: field[0].parse().unwrap(), claim, counted, worker: field[2].to_owned() };
        let message = field[1].split(':').next().unwrap().to_owned();
        history.entry(message).or_default().push(action);
    }
    assert_eq!(history.len(), items);
    history.values_mut().for_each(|actions| actions.sort_by_key(|action| action.at));
    history
}

/// Starts a worker in a child process.
fn worker(url: &str, table: &str, log: &Path, renew: bool) -> ChildProcess {
    let variables = [
        ("OUTBOX_WORKER_URL", url.as_ref()),
        ("OUTBOX_WORKER_TABLE", table.as_ref()),
        ("OUTBOX_WORKER_LOG", log.as_os_str()),
        ("OUTBOX_WORKER_RENEWS", if renew { "true".as_ref() } else { "false".as_ref() }),
    ];
    ChildProcess::start("child_worker_when_its_variables_are_set", &variables)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_worker_when_its_variables_are_set() {
    let Ok(url) = std::env::var("OUTBOX_WORKER_URL") else { return };
    let table = std::env::var("OUTBOX_WORKER_TABLE").unwrap();
    let log = std::fs::OpenOptions::new().append(true).open(std::env::var("OUTBOX_WORKER_LOG").unwrap());
    let log = Arc::new(Mutex::new(log.unwrap()));
    let renew = std::env::var("OUTBOX_WORKER_RENEWS").unwrap() == "true";
    let options = StoreOptions::default().table(table).max_connections(2);
    let queue = WorkQueue::new(open_store(&url, &options).await.unwrap());
    let stop_requested = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    let stop = Arc::new(AtomicBool::new(false));
    let mut handlers = tokio::task::JoinSet::new();
    for _ in 0..AT_ONCE {
        let (queue, log, stop) = (queue.clone(), log.clone(), stop.clone());
        handlers.spawn(async move {
            let me = NodeId::generate();
            while !stop.load(Ordering::SeqCst) {
                let items = queue.claim(&me, times(renew).0, 1).await.unwrap();
                let Some(item) = items.first() else {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                };
                record(&log, &me, item, "claimed");
                work(&queue, &me, item, renew).await;
                let answer = queue.ack(&me, [item.id()]).await.unwrap();
                record(&log, &me, item, &answer.to_string());
            }
        });
    }
    stop_requested.await.unwrap().unwrap();
    stop.store(true, Ordering::SeqCst);
    handlers.join_all().await;
}

/// Takes longer than the lease for the first two claims only: otherwise two workers would take the
/// item from each other without end.
async fn work(queue: &WorkQueue, me: &NodeId, item: &WorkItem, renew: bool) {
    let claim: u32 = item.id().to_string().rsplit(':').nth(1).unwrap().parse().unwrap();
    let (lease, slow) = times(renew);
    let end = Instant::now() + if claim <= 2 { slow } else { Duration::from_millis(100) };
    while Instant::now() < end {
        let left = end - Instant::now();
        tokio::time::sleep(left.min(Duration::from_millis(300))).await;
        if renew {
            let held = queue.extend(me, lease, [item.id()]).await.unwrap();
            assert_eq!(held.len(), 1, "a lease that is renewed is not lost");
        }
    }
}

fn record(log: &Mutex<std::fs::File>, me: &NodeId, item: &WorkItem, what: &str) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
    let line = format!("{now}\t{}\t{me}\t{what}\n", item.id());
    log.lock().unwrap().write_all(line.as_bytes()).unwrap();
}
