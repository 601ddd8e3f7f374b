//! A settings file of the daemon configures an embedded outbox: on SQLite, and on the servers that
//! the environment names.

#![cfg(feature = "settings")]

mod common;

use std::time::Duration;

use common::{Backend, Poll, Seen, TestDb, in_time, until};
use outbox::settings::{Mode, Settings};
use outbox::store::{EXCLUSIVE, Status};
use outbox::{
    Context, Error, Event, Failure, Outbox, OutboxBuilder, Outgoing, PublishError, Publisher, Topic,
};
use sqlx::{MySql, Postgres, Sqlite};
use tokio::sync::watch;

/// A file that `outbox check` accepts: `a_file_of_the_daemon_is_good_for_the_daemon` of the command
/// tests that.
const FILE: &str = include_str!("settings/shared.toml");

/// The file with this database and table.
fn shared(url: &str, table: &str) -> String {
    FILE.replace("sqlite:shop.db", url).replace("shop_event", table)
}

/// Databases that settings can open.
trait Opened: Backend {
    async fn opened(settings: &Settings) -> outbox::Result<Outbox<Self>>;
}

impl Opened for Sqlite {
    async fn opened(settings: &Settings) -> outbox::Result<Outbox<Self>> {
        settings.sqlite().await
    }
}

impl Opened for Postgres {
    async fn opened(settings: &Settings) -> outbox::Result<Outbox<Self>> {
        settings.postgres().await
    }
}

impl Opened for MySql {
    async fn opened(settings: &Settings) -> outbox::Result<Outbox<Self>> {
        settings.mysql().await
    }
}

///
mod a_file_of_the_daemon_configures_an_embedded_outbox {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sqlite() {
        in_time(embedded::<Sqlite>()).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn postgres() {
        in_time(embedded::<Postgres>()).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn mariadb() {
        in_time(embedded::<MySql>()).await;
    }
}

async fn embedded<DB: Opened>() {
    let Some(db) = TestDb::<DB>::new().await else { return };
    let url = if db.url().contains("://") { db.url().to_owned() } else { format!("sqlite:{}", db.url()) };
    // Another table than that of the test database: the settings create it, because `migrate` is
    // on.
    let table = format!("{}s", db.table);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, shared(&url, &table)).unwrap();
    let settings = Settings::from_file(file.path()).unwrap();
    assert_eq!(settings.mode(), Mode::SingleNode);
    let outbox = DB::opened(&settings).await.unwrap();
    let on_table = DB::open(OutboxBuilder::new().table(&table), db.url()).await.unwrap();

    // Mode: one relay leads the whole table. Name: of this relay.
    let seen = Seen::default();
    let recorded = seen.clone();
    let relay = outbox.relay(&settings).on_type("fails", move |cx: Context| {
        let seen = recorded.clone();
        async move {
            seen.record(&cx);
            Err::<(), _>(Failure::retry("always"))
        }
    });
    let relay = relay.on_type("e", seen.handler()).start().await.unwrap();
    assert!(relay.is_active());
    assert_eq!(relay.node().as_str(), "embedded");
    let leader = on_table.store().leader(EXCLUSIVE).await.unwrap().unwrap();
    assert!(leader.as_str().starts_with("embedded"), "{leader}");

    // Table: the event is stored there. Retry: two attempts in all.
    let id = outbox.send(Event::new("fails").json(&1)).await.unwrap().id;
    seen.reach(2).await;
    let dead = loop {
        let stored =
            on_table.admin().find(&id).await.unwrap().expect("the event is in the table of the settings");
        if stored.status == Status::Dead {
            break stored;
        }
        relay.idle().await.unwrap();
    };
    assert_eq!((dead.attempts, seen.count()), (2, 2));
    assert_eq!(db.status_counts().await, (0, 0, 0, 0), "nothing is in another table");

    relay.stop().await.unwrap();

    // Payload limit: of the application's events.
    let large = outbox.send(Event::new("e").json(&"x".repeat(2_000))).await;
    assert!(matches!(large, Err(Error::Event(_))), "{large:?}");
}

/// Two relays, one with the poll interval of the file, an hour, and one with that of the
/// environment, 10 ms. Waits start at 25 ms and double up to the interval: while one relay polls
/// fifty times the other polls a few times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_poll_interval_is_that_of_the_file_and_the_environment_takes_precedence() {
    let folder = tempfile::tempdir().unwrap();
    let start = async |name: &str, variables: &[(&str, &str)]| {
        let url = format!("sqlite:{}", folder.path().join(name).display());
        let text = shared(&url, "shop_event");
        let settings = Settings::from_toml_and_env(&text, variables.iter().copied()).unwrap();
        settings.sqlite().await.unwrap().relay(&settings).on_any(async |_: Context| {}).start().await.unwrap()
    };
    let relays = [
        start("file.db", &[]).await,
        start("environment.db", &[("OUTBOX_POLLER_INTERVAL", "10ms"), ("OUTBOX_MODE", "MULTI_NODE")]).await,
    ];
    let (mut last, mut polls) = ([None; 2], [0; 2]);
    let count_polls = async || {
        for (n, relay) in relays.iter().enumerate() {
            let seen = relay.health().last_take;
            polls[n] += usize::from(std::mem::replace(&mut last[n], seen) != seen);
        }
        polls[1] >= 50
    };
    // Much more often than the relays poll.
    let poll = Poll { pause: Duration::from_millis(1), ..Poll::DEFAULT };
    poll.until("the second relay has polled 50 times", count_polls).await;
    assert!(polls[0] < 25, "{polls:?}");
    for relay in relays {
        relay.stop().await.unwrap();
    }
}

/// With the application's own pool, and its own hook, the settings of the outbox apply all the
/// same.
#[tokio::test]
async fn an_outbox_beside_a_pool_has_the_settings() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}?mode=rwc", folder.path().join("shop.db").display());
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    let text = "mode = \"ordered\"\n[database]\ntable = \"shop_event\"\n[dispatcher]\nmax-payload = 100\n";
    let outbox = OutboxBuilder::new().settings(&Settings::from_toml(text).unwrap()).on_pool(&pool).unwrap();
    outbox.migrate().await.unwrap();
    assert!(outbox.send(Event::new("e").json(&"x".repeat(200))).await.is_err());
    let event = Event::new("e").aggregate("order", "42").json(&1);
    let id = outbox.send(event).await.unwrap().id;
    let stored = outbox.admin().find(&id).await.unwrap().unwrap();
    assert_eq!(stored.event.unwrap().ordering_key(), Some("order/42"), "as mode `ordered` says");
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM shop_event").fetch_one(&pool).await.unwrap();
    assert_eq!(rows, 1);
}

/// Records the size of each batch, and fails if configured to.
#[derive(Clone)]
struct RecordBatches {
    batches: watch::Sender<Vec<usize>>,
    fails: bool,
}

impl RecordBatches {
    fn new(fails: bool) -> Self {
        Self { batches: watch::Sender::new(Vec::new()), fails }
    }

    async fn until(&self, enough: impl FnMut(&Vec<usize>) -> bool) -> Vec<usize> {
        in_time(self.batches.subscribe().wait_for(enough)).await.unwrap().clone()
    }
}

#[async_trait::async_trait]
impl Publisher for RecordBatches {
    fn name(&self) -> &'static str {
        "recorded"
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        self.batches.send_modify(|batches| batches.push(events.len()));
        if self.fails { Err(PublishError::after(0, Failure::retry("always"))) } else { Ok(()) }
    }
}

/// C-04: the batch size of all publishers of the log, unless a pair sets its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishers_of_the_log_have_the_batch_size_of_the_settings() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    let text =
        format!("mode = \"log\"\nmigrate = true\n[database]\nurl = \"{url}\"\n[log]\nbatch-size = 2\n");
    let settings = Settings::from_toml(&text).unwrap();
    let outbox = settings.sqlite().await.unwrap();
    let events = (0..5).map(|n| Event::new("e").json(&n));
    outbox.log().append(events).await.unwrap();
    let (two, own) = (RecordBatches::new(false), RecordBatches::new(false));
    let relay = outbox
        .relay(&settings)
        .publish(Topic::new("two").to(two.clone()))
        .publish(Topic::new("own").to(own.clone()).batch(3));
    let relay = relay.start().await.unwrap();
    assert_eq!(two.until(|batches| batches.iter().sum::<usize>() == 5).await, [2, 2, 1]);
    assert_eq!(own.until(|batches| batches.iter().sum::<usize>() == 5).await, [3, 2]);
    relay.stop().await.unwrap();
}

/// Handlers have ten attempts by default, publishers retry for a day: the delays of the settings
/// change neither limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishers_keep_their_number_of_attempts_if_the_settings_name_none() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    let text = format!(
        "mode = \"single-node\"\nmigrate = true\n[database]\nurl = \"{url}\"\n[retry]\nbase-delay-ms = 1\nmax-delay-ms = 1\n"
    );
    let settings = Settings::from_toml(&text).unwrap();
    let outbox = settings.sqlite().await.unwrap();
    let recorded = RecordBatches::new(true);
    let relay = outbox.relay(&settings).forward(["e"], recorded.clone()).start().await.unwrap();
    outbox.send(Event::new("e").json(&1)).await.unwrap();
    recorded.until(|batches| batches.len() > 10).await;
    relay.stop().await.unwrap();
}

/// Writer-only: no delivery, and no deletion of undelivered events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writer_only_delivers_and_deletes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    let text = format!(
        "mode = \"writer_only\"\nmigrate = true\n[database]\nurl = \"{url}\"\n[purge]\nretention = \"0s\"\ninterval = \"1ms\"\n"
    );
    let settings = Settings::from_toml(&text).unwrap();
    let outbox = settings.sqlite().await.unwrap();
    let seen = Seen::default();
    let relay = outbox.relay(&settings).on_type("e", seen.handler()).start().await.unwrap();
    let id = outbox.send(Event::new("e").json(&1)).await.unwrap().id;
    // DONE, as another process would set it: purged. The other event stays.
    let done = outbox.send(Event::new("e").json(&2)).await.unwrap().id;
    sqlx::query("UPDATE outbox_event SET status = 1 WHERE event_id = $1")
        .bind(done.as_str())
        .execute(outbox.pool())
        .await
        .unwrap();
    until("the done event is purged", async || outbox.admin().find(&done).await.unwrap().is_none()).await;
    relay.stop().await.unwrap();
    assert_eq!(outbox.admin().find(&id).await.unwrap().unwrap().status, Status::New);
    assert_eq!(seen.count(), 0);
}
