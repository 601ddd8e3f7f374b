//! A relay that is killed while it holds events: the other one takes them over within the promised time, and one that is started
//! again under the same name takes its own back at once.
#![cfg(feature = "nats")]

mod streams;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use async_nats::jetstream;
use async_nats::jetstream::stream::Config;
use futures_util::StreamExt as _;
use outbox_testbed::{Plan, Server};
use sqlx::{AssertSqlSafe, PgPool};

/// How long the events of a vanished relay may wait with default settings, from its death on.
const PROMISED: Duration = Duration::from_secs(45);
/// How long anything else may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// PostgreSQL, NATS and an outbox between them.
struct Bed {
    nats: Server,
    stream: jetstream::stream::Stream,
    pool: PgPool,
    url: String,
    table: String,
    folder: tempfile::TempDir,
}

impl Bed {
    /// `None` where a server is missing.
    async fn new(name: &str) -> Option<Self> {
        let Ok(url) = std::env::var("OUTBOX_TEST_POSTGRES") else {
            assert!(std::env::var("OUTBOX_TEST_REQUIRE").is_err(), "OUTBOX_TEST_POSTGRES is not set");
            return None;
        };
        if !Plan::nats().is_here() {
            return None;
        }
        let nats = Plan::nats().start();
        let config = Config { name: name.into(), subjects: vec![format!("{name}.>")], ..Config::default() };
        let stream = streams::jetstream(&nats).await.create_stream(config).await.unwrap();
        let table = format!("{name}{}_event", std::process::id());
        let status =
            outbox(&["migrate", "--database", &url, "--table", &table], Stdio::null()).wait().unwrap();
        assert!(status.success());
        let pool = PgPool::connect(&url).await.unwrap();
        Some(Self { nats, stream, pool, url, table, folder: tempfile::tempdir().unwrap() })
    }

    /// A settings file with nothing but what is needed, and these lines. NATS is frozen for less than
    /// `ack-timeout`: a relay keeps its leases all the while, and reports no outage.
    fn config(&self, name: &str, lines: &str) -> PathBuf {
        let file = self.folder.path().join(format!("{name}.toml"));
        let (url, table, broker) = (&self.url, &self.table, self.nats.url());
        let subject = self.table.split(|c: char| c.is_ascii_digit()).next().unwrap();
        let text = format!(
            r#"
mode = "multi-node"
[database]
url = "{url}"
table = "{table}"
[publishers.broker.nats]
url = "{broker}"
subject = "{subject}.{{type}}"
ack-timeout = "5m"
[[routes]]
to = "broker"
{lines}
"#
        );
        std::fs::write(&file, text).unwrap();
        file
    }

    fn relay(&self, config: &Path) -> Relay {
        let log = config.with_extension("log");
        let to = std::fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        Relay { child: outbox(&["relay", "--config", config.to_str().unwrap()], to.into()), log }
    }

    async fn count(&self, what: &str) -> i64 {
        let query = what.replace("{table}", &self.table);
        sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(&self.pool).await.unwrap()
    }

    /// Waits until this is so, for at most this long.
    async fn until(&self, query: &str, is_so: impl Fn(i64) -> bool, limit: Duration, relays: &[&Relay]) {
        let began = Instant::now();
        loop {
            let count = self.count(query).await;
            if is_so(count) {
                return;
            }
            assert!(began.elapsed() < limit, "{query} is {count} after {limit:?}\n{}", logs(relays));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until no event is pending: their number has to fall again and again.
    async fn drained(&self, relays: &[&Relay]) {
        let mut pending = self.count(PENDING).await;
        while pending > 0 {
            self.until(PENDING, |n| n < pending, PATIENCE, relays).await;
            pending = self.count(PENDING).await;
        }
    }

    /// Has each relay deliver something. Before its first delivery a relay asks NATS for the stream,
    /// and takes a NATS that does not answer within 1.5 s for an outage.
    async fn warm_up(&self, relays: &[&Relay]) {
        let began = Instant::now();
        while usize::try_from(self.count(DELIVERERS).await) != Ok(relays.len()) {
            assert!(began.elapsed() < PATIENCE, "a relay delivers nothing\n{}", logs(relays));
            self.write(EVENTS).await;
            self.drained(relays).await;
            // A relay announces its counts every 2 s.
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }

    /// Some with keys, some without. Ids go on where those of the table end.
    async fn write(&self, events: i64) {
        let insert = format!(
            "INSERT INTO {0} (event_id, event_type, ordering_key, payload) SELECT 'e' || base + n, 'order.placed', \
             CASE WHEN n % 2 = 0 THEN 'key-' || n % 50 END, '{{}}' \
             FROM generate_series(1, $1) n, (SELECT count(*) AS base FROM {0}) written",
            self.table
        );
        sqlx::query(AssertSqlSafe(insert)).bind(events).execute(&self.pool).await.unwrap();
    }

    /// How often each event is in the stream.
    async fn arrived(&mut self) -> HashMap<String, usize> {
        let expected = self.stream.info().await.unwrap().state.messages;
        let config = jetstream::consumer::pull::OrderedConfig::default();
        let mut messages = self.stream.create_consumer(config).await.unwrap().messages().await.unwrap();
        let mut arrived = HashMap::new();
        for _ in 0..expected {
            let message = messages.next().await.unwrap().unwrap();
            let id = message.headers.as_ref().and_then(|headers| headers.get("Nats-Msg-Id")).unwrap();
            *arrived.entry(id.to_string()).or_default() += 1;
        }
        arrived
    }
}

/// A relay in a process of its own.
struct Relay {
    child: Child,
    log: PathBuf,
}

impl Relay {
    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// SIGKILL: it says nothing more.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn logs(relays: &[&Relay]) -> String {
    relays.iter().map(|relay| relay.log()).collect::<Vec<_>>().join("\n---\n")
}

fn outbox(arguments: &[&str], log: Stdio) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
    command.args(arguments).env_remove("DATABASE_URL").env_remove("OUTBOX_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

const PENDING: &str = "SELECT count(*) FROM {table} WHERE status IN (0, 2)";
/// A batch may stay in its table after its last event was delivered.
const HOLDERS: &str = "SELECT count(DISTINCT b.owner) FROM {table}_batch b CROSS JOIN unnest(b.seqs) AS seq \
     JOIN {table} e USING (seq) WHERE e.status IN (0, 2)";
const HELD_BY_A: &str = "SELECT count(*) FROM {table}_batch b CROSS JOIN unnest(b.seqs) AS seq \
     JOIN {table} e USING (seq) WHERE e.status IN (0, 2) AND b.owner = 'a'";
const RELEASED: &str =
    "SELECT count(*) FROM {table}_node WHERE node = 'a' AND (state::json ->> 'released')::boolean";
const DELIVERERS: &str =
    "SELECT count(*) FROM {table}_node WHERE (state::json -> 'counts' ->> 'delivered')::bigint > 0";
const WRITTEN: &str = "SELECT count(*) FROM {table}";
const EVENTS: i64 = 3_000;

/// The promise is about default settings, so this test takes half a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_backlog_of_a_killed_relay_flows_again_within_the_promised_time() {
    let Some(mut bed) = Bed::new("takeover").await else { return };
    let relays = [("a", "[claim-locking]\nowner-id = \"a\""), ("b", "[claim-locking]\nowner-id = \"b\"")];
    let [mut killed, left] = relays.map(|(name, lines)| bed.relay(&bed.config(name, lines)));
    bed.until("SELECT count(*) FROM {table}_node", |n| n == 2, PATIENCE, &[&killed, &left]).await;
    bed.warm_up(&[&killed, &left]).await;
    // The one that is left has been present for as long as it takes before it releases leases of others.
    bed.until(
        "SELECT count(*) FROM {table}_node WHERE started_at < clock_timestamp() - interval '20 s'",
        |n| n == 2,
        PATIENCE,
        &[&killed, &left],
    )
    .await;

    bed.nats.freeze();
    bed.write(EVENTS).await;
    bed.until(HOLDERS, |n| n == 2, PATIENCE, &[&killed, &left]).await;
    killed.kill();
    let died = Instant::now();
    let held = bed.count(HELD_BY_A).await;
    bed.nats.thaw();
    // So few are pending only if events that the killed relay held were delivered.
    let in_time = || PROMISED.saturating_sub(died.elapsed());
    bed.until(PENDING, |n| n < held, in_time(), &[&left]).await;
    println!("{EVENTS} events, {held} held by a relay that was killed: they flow after {:?}", died.elapsed());
    bed.until(HELD_BY_A, |n| n == 0, in_time(), &[&left]).await;
    // The leases may run out before the other relay releases them.
    bed.until(RELEASED, |n| n == 1, in_time(), &[&left]).await;
    bed.drained(&[&left]).await;
    let written = bed.count(WRITTEN).await;
    assert_eq!(bed.count("SELECT count(*) FROM {table} WHERE status = 1").await, written);
    let arrived = bed.arrived().await;
    assert_eq!(i64::try_from(arrived.len()), Ok(written));
    assert!(left.log().contains("relay vanished: released its leases"), "{}", left.log());
}

/// However long its leases are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_is_started_again_under_its_name_takes_its_events_back_at_once() {
    let Some(mut bed) = Bed::new("restart").await else { return };
    let config = bed.config("a", "[claim-locking]\nowner-id = \"a\"\nlease = \"10m\"\npresence = \"10m\"");
    let mut relay = bed.relay(&config);
    bed.until("SELECT count(*) FROM {table}_node", |n| n == 1, PATIENCE, &[&relay]).await;
    bed.warm_up(&[&relay]).await;
    bed.nats.freeze();
    bed.write(500).await;
    bed.until(HOLDERS, |n| n == 1, PATIENCE, &[&relay]).await;
    relay.kill();
    bed.nats.thaw();
    let relay = bed.relay(&config);
    bed.drained(&[&relay]).await;
    assert!(relay.log().contains("did not stop properly"), "{}", relay.log());
    assert_eq!(i64::try_from(bed.arrived().await.len()), Ok(bed.count(WRITTEN).await));
}
