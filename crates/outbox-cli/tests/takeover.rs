//! A relay that is killed while it holds events: another relay takes the events over within the
//! documented time, and a relay that restarts under the same name takes them back at once.
#![cfg(feature = "nats")]

mod polling;
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

/// Documented maximum time until the events of a killed relay are taken over with default settings.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(45);
/// Time limit for everything else.
const TIMEOUT: Duration = Duration::from_secs(60);

/// PostgreSQL with an outbox, and NATS.
struct TestSetup {
    nats: Server,
    stream: jetstream::stream::Stream,
    pool: PgPool,
    url: String,
    table: String,
    folder: tempfile::TempDir,
}

impl TestSetup {
    /// Returns `None` if a server is missing.
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

    /// Writes a minimal settings file with these lines. NATS is frozen for less than `ack-timeout`,
    /// so that a relay keeps its leases meanwhile, and reports no outage.
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

    /// Waits until the result of the query satisfies the condition, for at most this long.
    async fn until(&self, query: &str, is_so: impl Fn(i64) -> bool, limit: Duration, relays: &[&Relay]) {
        let reached = async || {
            let count = self.count(query).await;
            if is_so(count) { Ok(()) } else { Err(format!("is {count}")) }
        };
        polling::within(limit, query, reached, || logs(relays)).await;
    }

    /// Waits until no event is pending. Fails if their number does not decrease in time.
    async fn drained(&self, relays: &[&Relay]) {
        let mut pending = self.count(PENDING).await;
        while pending > 0 {
            self.until(PENDING, |n| n < pending, TIMEOUT, relays).await;
            pending = self.count(PENDING).await;
        }
    }

    /// Lets each relay deliver events. Before its first delivery a relay queries NATS for the
    /// stream, and treats a NATS that does not answer within 1.5 s as an outage.
    async fn warm_up(&self, relays: &[&Relay]) {
        let began = Instant::now();
        while usize::try_from(self.count(DELIVERERS).await) != Ok(relays.len()) {
            assert!(began.elapsed() < TIMEOUT, "a relay delivers nothing\n{}", logs(relays));
            self.write(EVENTS).await;
            self.drained(relays).await;
            // A relay announces its counts every 2 s.
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }

    /// Writes events, some of them with keys. The ids continue those in the table.
    async fn write(&self, events: i64) {
        let insert = format!(
            "INSERT INTO {0} (event_id, event_type, ordering_key, payload) SELECT 'e' || base + n, 'order.placed', \
             CASE WHEN n % 2 = 0 THEN 'key-' || n % 50 END, '{{}}' \
             FROM generate_series(1, $1) n, (SELECT count(*) AS base FROM {0}) written",
            self.table
        );
        sqlx::query(AssertSqlSafe(insert)).bind(events).execute(&self.pool).await.unwrap();
    }

    /// Number of occurrences of each event in the stream.
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

/// A relay process.
struct Relay {
    child: Child,
    log: PathBuf,
}

impl Relay {
    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Kills the process by SIGKILL.
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
/// The row of a group lease may stay in the batch table after its last event was delivered.
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

/// Tests default settings, so this test takes half a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_backlog_of_a_killed_relay_flows_again_within_the_promised_time() {
    let Some(mut setup) = TestSetup::new("takeover").await else { return };
    let relays = [("a", "[claim-locking]\nowner-id = \"a\""), ("b", "[claim-locking]\nowner-id = \"b\"")];
    let [mut killed, left] = relays.map(|(name, lines)| setup.relay(&setup.config(name, lines)));
    setup.until("SELECT count(*) FROM {table}_node", |n| n == 2, TIMEOUT, &[&killed, &left]).await;
    setup.warm_up(&[&killed, &left]).await;
    // A relay releases leases of other relays only after it has been present for this time.
    setup
        .until(
            "SELECT count(*) FROM {table}_node WHERE started_at < clock_timestamp() - interval '20 s'",
            |n| n == 2,
            TIMEOUT,
            &[&killed, &left],
        )
        .await;

    setup.nats.freeze();
    setup.write(EVENTS).await;
    setup.until(HOLDERS, |n| n == 2, TIMEOUT, &[&killed, &left]).await;
    killed.kill();
    let died = Instant::now();
    let held = setup.count(HELD_BY_A).await;
    setup.nats.thaw();
    // Fewer than `held` can be pending only if events that the killed relay held were delivered.
    let in_time = || TAKEOVER_LIMIT.saturating_sub(died.elapsed());
    setup.until(PENDING, |n| n < held, in_time(), &[&left]).await;
    println!("{EVENTS} events, {held} held by a killed relay: delivered after {:?}", died.elapsed());
    setup.until(HELD_BY_A, |n| n == 0, in_time(), &[&left]).await;
    // The leases may expire before the other relay releases them.
    setup.until(RELEASED, |n| n == 1, in_time(), &[&left]).await;
    setup.drained(&[&left]).await;
    let written = setup.count(WRITTEN).await;
    assert_eq!(setup.count("SELECT count(*) FROM {table} WHERE status = 1").await, written);
    let arrived = setup.arrived().await;
    assert_eq!(i64::try_from(arrived.len()), Ok(written));
    assert!(left.log().contains("relay vanished: released its leases"), "{}", left.log());
}

/// Independent of the length of its leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_is_started_again_under_its_name_takes_its_events_back_at_once() {
    let Some(mut setup) = TestSetup::new("restart").await else { return };
    let config = setup.config("a", "[claim-locking]\nowner-id = \"a\"\nlease = \"10m\"\npresence = \"10m\"");
    let mut relay = setup.relay(&config);
    setup.until("SELECT count(*) FROM {table}_node", |n| n == 1, TIMEOUT, &[&relay]).await;
    setup.warm_up(&[&relay]).await;
    setup.nats.freeze();
    setup.write(500).await;
    setup.until(HOLDERS, |n| n == 1, TIMEOUT, &[&relay]).await;
    relay.kill();
    setup.nats.thaw();
    let relay = setup.relay(&config);
    setup.drained(&[&relay]).await;
    assert!(relay.log().contains("did not stop properly"), "{}", relay.log());
    assert_eq!(i64::try_from(setup.arrived().await.len()), Ok(setup.count(WRITTEN).await));
}
