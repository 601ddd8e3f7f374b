//! A failing relay is reported by probes, metrics and commands until it has recovered.

mod daemons;

use std::process::Command;

use daemons::{TestDir, wait_until};
use outbox::{Event, OutboxBuilder};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, PgConnection, SqliteConnection};

const ONE: &str = r#"
mode = "MODE"
[database]
name = "shop"
url = "URL"
table = "TABLE"
[poller]
interval = "100ms"
[claim-locking]
owner-id = "relay-1"
[publishers.lines.file]
path = "{}/lines.jsonl"
[[routes]]
to = "lines"
"#;

/// Runs the command, and returns its standard output and exit code.
fn outbox(arguments: &[&str]) -> (String, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
    let output =
        command.args(arguments).env_remove("DATABASE_URL").env_remove("OUTBOX_LOG").output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

fn json(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// Runs statements on a database of any kind.
async fn run(url: &str, sql: &str) {
    let run = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
    match url.split(':').next() {
        Some("sqlite") => {
            run.execute(&mut SqliteConnection::connect(url).await.unwrap()).await.unwrap();
        }
        Some("postgres") => {
            run.execute(&mut PgConnection::connect(url).await.unwrap()).await.unwrap();
        }
        _ => {
            run.execute(&mut MySqlConnection::connect(url).await.unwrap()).await.unwrap();
        }
    }
}

/// Makes every claim of events fail, while reads succeed.
async fn no_claims(url: &str, table: &str) {
    let sql = match url.split(':').next() {
        Some("postgres") => format!(
            "CREATE FUNCTION {table}_no() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN RAISE EXCEPTION ''the index is corrupt''; END'; \
             CREATE TRIGGER {table}_no BEFORE INSERT ON {table}_batch FOR EACH ROW EXECUTE FUNCTION {table}_no()"
        ),
        Some("sqlite") => format!(
            "CREATE TRIGGER {table}_no BEFORE UPDATE ON {table} \
             BEGIN SELECT RAISE(ABORT, 'the index is corrupt'); END"
        ),
        _ => format!(
            "CREATE TRIGGER {table}_no BEFORE UPDATE ON {table} FOR EACH ROW \
             SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the index is corrupt'"
        ),
    };
    run(url, &sql).await;
}

async fn claims_again(url: &str, table: &str) {
    let on = if url.starts_with("postgres") { format!(" ON {table}_batch") } else { String::new() };
    run(url, &format!("DROP TRIGGER {table}_no{on}")).await;
}

/// Makes every take fail, and then succeed again.
async fn reports_failing_takes(url: &str, table: &str, mode: &str) {
    let dir = TestDir::new();
    let text = ONE.replace("MODE", mode).replace("URL", url).replace("TABLE", table);
    let relay = dir.relay("relay", &dir.config(&text), &["--listen", "127.0.0.1:0"]);
    relay.wait_for_log("relay started").await;
    relay.wait_until_ready().await;
    wait_until("a first take", || json(&relay.get("/readyz").1)["last_take"].is_string(), || relay.log())
        .await;
    let databases = || outbox(&["databases", "--database", url, "--table", table, "--json"]);
    assert_eq!((json(&databases().0)["state"].as_str(), databases().1), (Some("ok"), Some(0)));

    no_claims(url, table).await;
    let sent =
        outbox(&["send", "--type", "order.placed", "--payload", "1", "--database", url, "--table", table]);
    let id = sent.0.split_whitespace().last().unwrap_or_default().to_owned();
    assert_eq!(sent.1, Some(0), "{}", sent.0);
    let is_cause = |reason: &Value| {
        reason.as_str().is_some_and(|reason| {
            reason.starts_with("the relay has failed to take events since ")
                && reason.contains("the index is corrupt")
        })
    };
    let is_told = || {
        let (status, body) = relay.get("/readyz");
        status == 503 && json(&body)["reasons"].as_array().is_some_and(|all| all.iter().any(is_cause))
    };
    wait_until("/readyz names the cause", is_told, || relay.get("/readyz").1 + &relay.log()).await;
    assert_eq!(relay.get("/healthz").0, 200, "a restart would not help");
    let metrics = relay.get("/metrics").1;
    let failing =
        metrics.lines().find(|line| line.starts_with("outbox_task_failing") && line.contains("\"take\""));
    assert!(failing.is_some_and(|line| line.ends_with(" 1")), "{metrics}");
    assert!(metrics.contains("outbox_take_last_seconds{store=\"shop\"} "), "{metrics}");

    let explain = || outbox(&["explain", &id, "--database", url, "--table", table]).0;
    let message = "relay relay-1 has failed to take events";
    wait_until("explain names it", || explain().contains(message), explain).await;
    assert!(explain().contains("the index is corrupt"), "{}", explain());
    let status = || outbox(&["status", "--database", url, "--table", table]).0;
    assert!(status().contains("Relay relay-1 has failed to take events since "), "{}", status());
    assert!(status().contains("failing"), "{}", status());
    let (listed, code) = databases();
    assert_eq!((json(&listed)["state"].as_str(), code), (Some("failing"), Some(1)), "{listed}");
    assert!(
        json(&listed)["problem"].as_str().unwrap_or_default().contains("relay relay-1 has failed"),
        "{listed}"
    );

    claims_again(url, table).await;
    wait_until("delivered", || dir.types("lines.jsonl") == ["order.placed"], || relay.log()).await;
    relay.wait_until_ready().await;
    wait_until("status reports no problem", || !status().contains("has failed"), status).await;
    assert_eq!(databases().1, Some(0), "{}", databases().0);
    let (status, log) = relay.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_whose_takes_fail_is_not_ready_and_reports_why_on_sqlite() {
    let dir = TestDir::new();
    let _outbox = dir.outbox("shop.db").await;
    reports_failing_takes(&dir.url("shop.db"), "outbox_event", "multi-node").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_whose_takes_fail_is_not_ready_and_reports_why_on_servers() {
    let table = format!("health_{}", std::process::id());
    if let Ok(url) = std::env::var("OUTBOX_TEST_POSTGRES") {
        OutboxBuilder::new().table(&table).postgres(&url).await.unwrap().migrate().await.unwrap();
        reports_failing_takes(&url, &table, "ordered").await;
    }
    for variable in ["OUTBOX_TEST_MARIADB", "OUTBOX_TEST_MYSQL"] {
        let Ok(url) = std::env::var(variable) else { continue };
        OutboxBuilder::new().table(&table).mysql(&url).await.unwrap().migrate().await.unwrap();
        reports_failing_takes(&url, &table, "multi-node").await;
    }
}

/// One of two databases fails: it is named, the process stays ready, and the other is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_database_of_a_fleet_is_named_and_the_others_go_on() {
    let dir = TestDir::new();
    let config = dir.config(
        "migrate = true\n[poller]\ninterval = \"100ms\"\n\
         [[databases]]\nname = \"acme\"\nurl = \"sqlite:{}/acme.db\"\n\
         [[databases]]\nname = \"globex\"\nurl = \"sqlite:{}/globex.db\"\n\
         [publishers.lines.file]\npath = \"{}/lines.jsonl\"\n[[routes]]\nto = \"lines\"\n",
    );
    let acme = dir.outbox("acme.db").await;
    let globex = dir.outbox("globex.db").await;
    let relay = dir.relay("relay", &config, &["--listen", "127.0.0.1:0"]);
    relay.wait_for_log("fleet relay started").await;
    let state = |n: usize| json(&relay.get("/readyz").1)["databases"][n].clone();
    wait_until(
        "both are served",
        || state(0)["state"] == "active" && state(1)["state"] == "active",
        || relay.log(),
    )
    .await;

    no_claims(&dir.url("acme.db"), "outbox_event").await;
    acme.send(Event::new("user.created").json(&1)).await.unwrap();
    wait_until("acme fails", || state(0)["state"] == "failing", || relay.get("/readyz").1).await;
    let reason = state(0)["reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason.starts_with("the relay has failed to take events since "), "{reason}");
    assert_eq!((relay.get("/readyz").0, state(1)["state"].as_str()), (200, Some("active")));
    globex.send(Event::new("order.placed").json(&1)).await.unwrap();
    wait_until("globex is served", || dir.types("lines.jsonl").len() == 1, || relay.log()).await;
    let urls = [dir.url("acme.db"), dir.url("globex.db")];
    let named = [format!("acme={}", urls[0]), format!("globex={}", urls[1])];
    let list = || outbox(&["databases", "--database", &named[0], "--database", &named[1], "--json"]);
    let states =
        || list().0.lines().map(|line| json(line)["state"].as_str().map(str::to_owned)).collect::<Vec<_>>();
    let expected = [Some("failing".to_owned()), Some("ok".to_owned())];
    wait_until("the command lists it", || states() == expected, || list().0).await;

    claims_again(&urls[0], "outbox_event").await;
    wait_until("acme is served again", || state(0)["state"] == "active", || relay.get("/readyz").1).await;
    let (status, log) = relay.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
}
