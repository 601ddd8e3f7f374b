//! Outboxes for tests of the command: a separate one on each available database.

#![allow(dead_code, missing_docs, reason = "each test binary uses a part of it")]

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use outbox::store::{Completion, Holder, Origin, Settlement, SharedStore, Take, Verdict};
use outbox::{Event, EventBuilder, EventId, OnDead, StoreOptions, open_store};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor as _};

pub fn outbox<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
    command.args(arguments).env_remove("DATABASE_URL").env_remove("OUTBOX_LOG").env_remove("NO_COLOR");
    command.stdin(Stdio::null());
    command
}

/// Exit code and output of a run.
#[derive(Debug)]
pub struct RunOutput {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl RunOutput {
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// Each line of standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> Vec<serde_json::Value> {
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        self.out.lines().map(parse).collect()
    }

    /// Words of each line of standard output, including headers.
    pub fn words(&self) -> Vec<Vec<&str>> {
        self.out.lines().map(|line| line.split_whitespace().collect()).collect()
    }
}

pub fn finish(mut command: Command) -> RunOutput {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    RunOutput { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// A separate outbox for a test.
pub struct TestTarget {
    pub url: String,
    pub schema: Option<String>,
    pub store: SharedStore,
    folder: Option<tempfile::TempDir>,
}

impl TestTarget {
    /// One target on SQLite, and one on each server in environment variables.
    pub async fn all() -> Vec<Self> {
        let mut targets = vec![Self::sqlite().await];
        for variable in ["OUTBOX_TEST_POSTGRES", "OUTBOX_TEST_MARIADB", "OUTBOX_TEST_MYSQL"] {
            match std::env::var(variable) {
                Ok(url) => targets.push(Self::server(url).await),
                Err(_) => {
                    let required = variable != "OUTBOX_TEST_MYSQL"
                        && std::env::var("OUTBOX_TEST_REQUIRE").is_ok_and(|value| value == "1");
                    assert!(!required, "{variable} is not set, and OUTBOX_TEST_REQUIRE=1 asks for it");
                    println!("skipped: {variable} is not set");
                }
            }
        }
        targets
    }

    pub async fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("shop.db").display());
        Self::open(url, None, Some(folder)).await
    }

    async fn server(url: String) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let schema = format!("outbox_cli_{}_{number}", std::process::id());
        execute(&url, &format!("CREATE SCHEMA {schema}")).await;
        Self::open(url, Some(schema), None).await
    }

    async fn open(url: String, schema: Option<String>, folder: Option<tempfile::TempDir>) -> Self {
        let mut options = StoreOptions::default().max_connections(2);
        if let Some(schema) = &schema {
            options = options.schema(schema);
        }
        let store = open_store(&url, &options).await.unwrap();
        store.migrate().await.unwrap();
        Self { url, schema, store, folder }
    }

    /// Drops the schema.
    pub async fn end(self) {
        if let Some(schema) = &self.schema {
            let cascade = if self.url.starts_with("postgres") { " CASCADE" } else { "" };
            execute(&self.url, &format!("DROP SCHEMA {schema}{cascade}")).await;
        }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = outbox(arguments);
        command.env("DATABASE_URL", &self.url);
        command.args(self.schema.iter().flat_map(|schema| ["--schema", schema]));
        command
    }

    pub fn run(&self, arguments: &[&str]) -> RunOutput {
        finish(self.command(arguments))
    }

    /// Runs a statement as the owner of the tables, on SQLite.
    pub async fn sql(&self, statement: &str) {
        execute(&self.url, statement).await;
    }

    pub async fn write(&self, events: impl IntoIterator<Item = EventBuilder>) -> Vec<EventId> {
        let events: Vec<Event> = events.into_iter().map(|event| event.build().unwrap()).collect();
        self.store.insert(&events).await.unwrap()
    }

    /// Leases all due events.
    pub async fn lease(&self, owner: &str) -> Vec<outbox::store::Delivery> {
        let by = holder(owner);
        let take = Take {
            by,
            from: Origin::Start,
            limit: 10_000,
            skip_recent: Duration::ZERO,
            on_dead: OnDead::Hold,
            skip_types: Vec::new(),
            only: None,
            probe: None,
            destinations: Default::default(),
            held_up_to: Default::default(),
            group_lease: false,
            max_bytes: usize::MAX,
            by_aggregate: false,
        };
        self.store.take(&take).await.unwrap().deliveries
    }

    /// Settles all due events with these verdicts.
    pub async fn settle(&self, verdict: impl Fn(&Event) -> Verdict) {
        let taken = self.lease("worker").await;
        let settlements: Vec<Settlement> = taken
            .iter()
            .map(|d| Settlement { id: d.event.id().clone(), claim: d.claim, verdict: verdict(&d.event) })
            .collect();
        self.store.settle(&holder("worker"), Completion::Keep, &settlements).await.unwrap();
    }
}

fn holder(owner: &str) -> Holder {
    Holder::Lease { owner: owner.into(), lease: Duration::from_secs(60) }
}

pub fn dead(reason: &str) -> Verdict {
    Verdict::Dead { counted: true, reason: reason.to_owned() }
}

pub async fn execute(url: &str, statement: &str) {
    try_execute(url, statement).await.unwrap();
}

pub async fn try_execute(url: &str, statement: &str) -> Result<(), sqlx::Error> {
    let statement = AssertSqlSafe(statement.to_owned());
    if url.starts_with("sqlite") {
        let options: sqlx::sqlite::SqliteConnectOptions = url.parse()?;
        options.connect().await?.execute(statement).await?;
    } else if url.starts_with("postgres") {
        let options: sqlx::postgres::PgConnectOptions = url.parse().unwrap();
        options.connect().await?.execute(statement).await?;
    } else {
        let options: sqlx::mysql::MySqlConnectOptions =
            url.replacen("mariadb:", "mysql:", 1).parse().unwrap();
        options.connect().await?.execute(statement).await?;
    }
    Ok(())
}
