//! The recipes work: the real programs write to a real database, and the relay delivers their
//! events.
//!
//! Drivers come from PyPI and npm, into a folder below `target/` that is reused.

use std::fs;
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use outbox::{Event, Outbox, StoreOptions};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, PgConnection, SqliteConnection};

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn recipe(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes").join(path)
}

/// Prints that a test is skipped; with `OUTBOX_TEST_REQUIRE=1` the test fails.
fn skip(why: &str) {
    let required = std::env::var("OUTBOX_TEST_REQUIRE").is_ok_and(|value| value == "1");
    assert!(!required, "{why}, and OUTBOX_TEST_REQUIRE=1 asks for it");
    println!("skipped: {why}");
}

/// URL of a server; `None` if the test is skipped.
fn server(variable: &str) -> Option<String> {
    let url = std::env::var(variable).ok();
    if url.is_none() {
        skip(&format!("{variable} is not set"));
    }
    url
}

/// Runs a command, and returns its standard output if it succeeds.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => {
            Err(format!("{command:?}: {}\n{}{}", output.status, text(&output.stdout), text(&output.stderr)))
        }
    }
}

fn outbox(arguments: &[&str], url: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
    command.args(arguments).env("DATABASE_URL", url).env_remove("OUTBOX_LOG").env_remove("OUTBOX_CONFIG");
    command
}

/// URL of another database on the same server.
fn sibling(url: &str, database: &str) -> String {
    let (server, _) = url.rsplit_once('/').expect("a URL ends with the name of its database");
    format!("{server}/{database}")
}

/// Folder with the dependencies of a recipe, installed again if the list of dependencies changes.
fn install_dir(
    name: &str,
    list: &Path,
    install: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("recipe-{name}"));
    let (wanted, stamp) = (fs::read(list).unwrap(), folder.join("installed"));
    if fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(folder);
    }
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    install(&folder)?;
    // Written last: marks the folder as complete.
    fs::write(stamp, wanted).unwrap();
    Ok(folder)
}

fn python() -> Result<PathBuf, String> {
    let list = recipe("python/requirements.txt");
    let folder = install_dir("python", &list, |folder| {
        run(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
        let mut install = Command::new(folder.join("bin/python"));
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
        run(install.arg(&list)).map(drop)
    })?;
    Ok(folder.join("bin/python"))
}

/// Folder with the driver of the Node.js recipe.
fn node() -> Result<PathBuf, String> {
    let list = recipe("node/package.json");
    run(Command::new("node").arg("--version"))?;
    install_dir("node", &list, |folder| {
        fs::copy(&list, folder.join("package.json")).unwrap();
        let mut install = Command::new("npm");
        install.args([
            "install",
            "--no-audit",
            "--no-fund",
            "--no-package-lock",
            "--ignore-scripts",
            "--silent",
        ]);
        run(install.current_dir(folder)).map(drop)
    })
}

/// Checks that the events of a recipe are delivered: two orders in order, and two events of the
/// log.
async fn is_delivered(url: &str) {
    let mut relay = outbox(&["relay", "--publish", "stdout", "--mode", "ordered", "--topic", "all"], url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (lines, rest) = tokio::task::block_in_place(|| {
        let mut out = BufReader::new(relay.stdout.take().unwrap());
        let lines: Vec<Value> =
            out.by_ref().lines().take(4).map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
        run(Command::new("kill").args(["-TERM", &relay.id().to_string()])).unwrap();
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        (lines, rest)
    });
    let ended = relay.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(rest, "", "nothing else is due");

    let of = |name: &str| lines.iter().filter(|line| line["type"] == name).collect::<Vec<_>>();
    let placed = of("order.placed");
    assert_eq!(placed.len(), 2, "{lines:?}");
    for (event, (order, total)) in placed.iter().zip([(41, 995), (42, 1_250)]) {
        assert_eq!(event["payload"], serde_json::json!({ "order": order, "total": total }));
        assert_eq!(
            (&event["aggregate_type"], &event["aggregate_id"]),
            (&"order".into(), &order.to_string().into())
        );
        assert_eq!(event["key"], "customer-7");
        assert_eq!(event["headers"], serde_json::json!({ "traceparent": TRACEPARENT, "source": "shop" }));
    }
    let facts = of("OrderPlaced");
    assert_eq!(facts.len(), 2, "{lines:?}");
    for (event, (order, total)) in facts.iter().zip([(41, 995), (42, 1_250)]) {
        assert_eq!(event["tags"], serde_json::json!([format!("order={order}"), "customer=7"]));
        assert_eq!(event["payload"], serde_json::json!({ "total": total }));
    }
    let store = outbox::open_store(url, &StoreOptions::default()).await.unwrap();
    let stats = store.stats().await.unwrap();
    assert_eq!((stats.done, stats.new), (2, 2), "the two reviews wait: {stats:?}");
}

/// A new database on PostgreSQL, with the outbox's tables.
struct Shop {
    admin: PgConnection,
    name: String,
    url: String,
}

impl Shop {
    async fn open(name: &str) -> Option<Self> {
        let server = server("OUTBOX_TEST_POSTGRES")?;
        let name = format!("recipe_{name}_{}", std::process::id());
        let mut admin = PgConnection::connect(&server).await.unwrap();
        let create = format!("CREATE DATABASE {name}");
        sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut admin).await.unwrap();
        let url = sibling(&server, &name);
        run(&mut outbox(&["migrate"], &url)).unwrap();
        Some(Self { admin, name, url })
    }

    async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.unwrap()
    }

    async fn close(mut self) {
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut self.admin).await.unwrap();
    }
}

/// Runs the program, and checks the delivered events.
async fn on_postgres<P>(
    name: &str,
    installed: Result<P, String>,
    run_recipe: impl FnOnce(&P, &str) -> Result<String, String>,
) {
    let installed = match installed {
        Ok(installed) => installed,
        Err(why) => return skip(&why),
    };
    let Some(shop) = Shop::open(name).await else { return };
    let printed = tokio::task::block_in_place(|| run_recipe(&installed, &shop.url)).unwrap();
    assert!(
        printed.contains("order 43: no money from a stolen card, so no order, and no event"),
        "{printed}"
    );
    assert!(printed.contains("the review of order 42 was asked for before"), "{printed}");
    is_delivered(&shop.url).await;
    let tomorrow = "SELECT count(*) FROM outbox_event WHERE event_type = 'order.review' \
                    AND available_at BETWEEN now() + interval '23 hours' AND now() + interval '25 hours'";
    let delayed: i64 = sqlx::query_scalar(tomorrow).fetch_one(&mut shop.connect().await).await.unwrap();
    assert_eq!(delayed, 2);
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_written_by_python_are_delivered() {
    on_postgres("python", tokio::task::block_in_place(python), |python, url| {
        run(Command::new(python).arg(recipe("python/orders.py")).env("DATABASE_URL", url))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_written_by_node_are_delivered() {
    on_postgres("node", tokio::task::block_in_place(node), |folder, url| {
        // Next to the driver, where Node.js looks for it.
        fs::copy(recipe("node/orders.js"), folder.join("orders.js")).unwrap();
        run(Command::new("node").arg(folder.join("orders.js")).env("DATABASE_URL", url))
    })
    .await;
}

fn script(name: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(fs::read_to_string(recipe("sql").join(name)).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_written_by_sql_are_delivered_from_postgres() {
    let Some(shop) = Shop::open("sql").await else { return };
    sqlx::raw_sql(script("postgres.sql")).execute(&mut shop.connect().await).await.unwrap();
    is_delivered(&shop.url).await;
    shop.close().await;
}

/// The statement in the guide takes the same lock on a key as the library.
#[tokio::test]
async fn a_key_that_another_language_has_locked_blocks_a_writer() {
    let Some(shop) = Shop::open("lock").await else { return };
    let guide = fs::read_to_string(recipe("../docs/guide/recipes.md")).unwrap();
    let lock = guide.lines().find(|line| line.starts_with("SELECT pg_advisory_xact_lock")).unwrap();
    assert!(lock.contains("'customer-7'"), "{lock}");
    let mut theirs = shop.connect().await;
    sqlx::raw_sql(AssertSqlSafe(format!("BEGIN; {lock}"))).execute(&mut theirs).await.unwrap();

    let outbox = Outbox::postgres(&shop.url).await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    sqlx::raw_sql("SET LOCAL lock_timeout = '300ms'").execute(&mut *tx).await.unwrap();
    let placed = |key| Event::new("order.placed").ordering_key(key).json(&42);
    tx.write(placed("customer-8")).await.unwrap();
    let refused = tx.write(placed("customer-7")).await.unwrap_err();
    assert!(refused.to_string().contains("lock timeout"), "{refused}");
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_written_by_sql_are_delivered_from_mysql_and_mariadb() {
    for (variable, required) in [("OUTBOX_TEST_MARIADB", true), ("OUTBOX_TEST_MYSQL", false)] {
        if !required && std::env::var(variable).is_err() {
            continue;
        }
        let Some(server) = server(variable) else { continue };
        let database = format!("recipe_sql_{}", std::process::id());
        let mut admin = MySqlConnection::connect(&server).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {database}")))
            .execute(&mut admin)
            .await
            .unwrap();
        let url = sibling(&server, &database);
        run(&mut outbox(&["migrate"], &url)).unwrap();
        let mut connection = MySqlConnection::connect(&url).await.unwrap();
        sqlx::raw_sql(script("mysql.sql")).execute(&mut connection).await.unwrap();
        is_delivered(&url).await;
        sqlx::raw_sql(AssertSqlSafe(format!("DROP DATABASE {database}"))).execute(&mut admin).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_written_by_sql_are_delivered_from_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    run(&mut outbox(&["migrate"], &url)).unwrap();
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    sqlx::raw_sql(script("sqlite.sql")).execute(&mut connection).await.unwrap();
    is_delivered(&url).await;
}
