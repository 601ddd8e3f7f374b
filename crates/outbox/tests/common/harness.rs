//! The databases that integration tests run on.
//!
//! SQLite is always available. Environment variables name the servers, as `cargo xtask test` sets
//! them: `OUTBOX_TEST_POSTGRES`, `OUTBOX_TEST_MARIADB`, `OUTBOX_TEST_MYSQL`. Tests of a server
//! without a URL print that they were skipped and pass; with `OUTBOX_TEST_REQUIRE=1` a missing
//! PostgreSQL or MariaDB is a failure.
#![allow(dead_code, reason = "each test file uses what it needs")]

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex};

use async_trait::async_trait;
use outbox::store::SharedStore;
use outbox::testing::conformance::Harness;
use outbox::{Clock, SqlStore, StoreOptions, open_store};

/// URL of the PostgreSQL to test on.
pub fn postgres_url() -> Option<String> {
    server("PostgreSQL", "OUTBOX_TEST_POSTGRES", true)
}

/// URL of the MariaDB to test on.
pub fn mariadb_url() -> Option<String> {
    server("MariaDB", "OUTBOX_TEST_MARIADB", true)
}

/// URL of the MySQL to test on. Never required: MySQL takes long to download.
pub fn mysql_url() -> Option<String> {
    server("MySQL", "OUTBOX_TEST_MYSQL", false)
}

fn server(name: &str, variable: &str, required: bool) -> Option<String> {
    static REPORTED: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);
    if let Some(url) = std::env::var(variable).ok().filter(|url| !url.is_empty()) {
        return Some(url);
    }
    let require = std::env::var("OUTBOX_TEST_REQUIRE").is_ok_and(|v| v == "1");
    assert!(!(required && require), "{name} is required, but {variable} is not set");
    if REPORTED.lock().unwrap().insert(variable.to_owned()) {
        // Not `println!`: the test runner captures that when a test passes.
        let _ = std::io::Write::write_fmt(
            &mut std::io::stderr(),
            format_args!("skipped: tests on {name}, because {variable} is not set\n"),
        );
    }
    None
}

/// A table name that no other test uses, in this run or another on the same server.
pub fn unique_table() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let started = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_millis() & 0xffff_ffff);
    format!("t{started:08x}_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// This test binary as a child process, which plays a role until it is told to stop.
pub struct ChildProcess(std::process::Child);

impl ChildProcess {
    /// `test` is the test that plays the role when these variables are set.
    pub fn start(test: &str, variables: &[(&str, &std::ffi::OsStr)]) -> Self {
        use std::process::{Command, Stdio};
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    /// Kills the process.
    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Closes the standard input of the process, which tells the process to stop.
    pub fn stop(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success(), "the process stops cleanly");
    }
}

/// A database and the name of an outbox's table in it. The tables are not created yet, and are not
/// dropped after the test: the servers are temporary.
pub struct DatabaseHarness {
    pub database: Database,
    pub table: String,
}

/// The database, and how to connect to it.
pub enum Database {
    SqliteFile {
        url: String,
        folder: tempfile::TempDir,
    },
    SqliteMemory(sqlx::SqlitePool),
    #[cfg(feature = "postgres")]
    Postgres(String),
    #[cfg(feature = "mysql")]
    MySql(String),
}

impl DatabaseHarness {
    fn new(database: Database) -> Self {
        Self { database, table: unique_table() }
    }

    pub async fn sqlite_file() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("outbox.db").display());
        Some(Self::new(Database::SqliteFile { url, folder }))
    }

    pub async fn sqlite_memory() -> Option<Self> {
        let pool = sqlx::sqlite::SqlitePoolOptions::new()
            .max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect("sqlite::memory:")
            .await
            .unwrap();
        Some(Self::new(Database::SqliteMemory(pool)))
    }

    #[cfg(feature = "postgres")]
    pub async fn postgres() -> Option<Self> {
        Some(Self::new(Database::Postgres(postgres_url()?)))
    }

    #[cfg(feature = "mysql")]
    pub async fn mariadb() -> Option<Self> {
        Some(Self::new(Database::MySql(mariadb_url()?)))
    }

    #[cfg(feature = "mysql")]
    pub async fn mysql() -> Option<Self> {
        Some(Self::new(Database::MySql(mysql_url()?)))
    }

    /// URL to connect to; `None` for a database in memory, which only
    /// [`store`](DatabaseHarness::store) can reach.
    pub fn url(&self) -> Option<&str> {
        match &self.database {
            Database::SqliteFile { url, .. } => Some(url),
            Database::SqliteMemory(_) => None,
            #[cfg(feature = "postgres")]
            Database::Postgres(url) => Some(url),
            #[cfg(feature = "mysql")]
            Database::MySql(url) => Some(url),
        }
    }

    pub fn options(&self) -> StoreOptions {
        StoreOptions::default().table(&self.table)
    }

    /// The store on this table, not migrated.
    pub async fn store(&self, options: StoreOptions) -> SharedStore {
        match &self.database {
            Database::SqliteMemory(pool) => SqlStore::beside(pool, &options).unwrap().shared(),
            _ => open_store(self.url().unwrap_or_default(), &options).await.unwrap(),
        }
    }

    /// Runs statements and ignores their results.
    pub async fn run(&self, sql: &str) {
        use sqlx::Connection as _;
        let sql = sqlx::AssertSqlSafe(sql.to_owned());
        match &self.database {
            Database::SqliteFile { url, .. } => {
                let mut conn = sqlx::SqliteConnection::connect(&format!("{url}?mode=rwc")).await.unwrap();
                sqlx::raw_sql(sql).execute(&mut conn).await.unwrap();
            }
            Database::SqliteMemory(pool) => {
                sqlx::raw_sql(sql).execute(pool).await.unwrap();
            }
            #[cfg(feature = "postgres")]
            Database::Postgres(url) => {
                let options = outbox::connect::postgres(url).unwrap();
                let mut conn = sqlx::PgConnection::connect_with(&options).await.unwrap();
                sqlx::raw_sql(sql).execute(&mut conn).await.unwrap();
            }
            #[cfg(feature = "mysql")]
            Database::MySql(url) => {
                let mut conn = sqlx::MySqlConnection::connect(url).await.unwrap();
                sqlx::raw_sql(sql).execute(&mut conn).await.unwrap();
            }
        }
    }
}

#[async_trait]
impl Harness for DatabaseHarness {
    async fn connect(&self, clock: Clock) -> SharedStore {
        self.store(self.options().clock(clock)).await
    }

    async fn execute(&self, sql: &str) -> bool {
        let table = &self.table;
        let sql = sql
            .replace("{events}", table)
            .replace("{inbox}", &format!("{table}_inbox"))
            .replace("{progress}", &format!("{table}_topic_progress"))
            .replace("{log}", &format!("{table}_log"))
            .replace("{version}", &format!("{table}_schema"));
        self.run(&sql).await;
        true
    }
}

/// Defines a test of each function on each database: `on_every_database!(a_case, another_case);`
/// where a case is `async fn a_case(harness: DatabaseHarness)`.
#[macro_export]
macro_rules! on_every_database {
    ($($case:ident),+ $(,)?) => {
        $crate::on_every_database!(@database sqlite_file; $($case)+);
        $crate::on_every_database!(@database sqlite_memory; $($case)+);
        #[cfg(feature = "postgres")]
        $crate::on_every_database!(@database postgres; $($case)+);
        #[cfg(feature = "mysql")]
        $crate::on_every_database!(@database mariadb; $($case)+);
        #[cfg(feature = "mysql")]
        $crate::on_every_database!(@database mysql; $($case)+);
    };
    (@database $database:ident; $($case:ident)+) => {
        mod $database {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    if let Some(harness) = $crate::harness::DatabaseHarness::$database().await {
                        super::$case(harness).await;
                    }
                }
            )+
        }
    };
}
