//! Output and exit codes of the real binary: demo, migrations, wrong usage.

use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A password that must never be shown.
const SECRET: &str = "s3cret-pa55";

fn outbox<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
    command.args(arguments).env_remove("DATABASE_URL").env_remove("OUTBOX_LOG").stdin(Stdio::null());
    command
}

/// Exit code and output of a run.
struct RunOutput {
    code: Option<i32>,
    out: String,
    err: String,
}

impl RunOutput {
    #[track_caller]
    fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// Number in the line of the summary with this name.
    #[track_caller]
    fn count(&self, name: &str) -> u64 {
        let line = self.out.lines().find_map(|line| line.trim_start().strip_prefix(name));
        let number =
            line.and_then(|line| line.split_whitespace().next()).map(|number| number.replace(',', ""));
        number
            .and_then(|number| number.parse().ok())
            .unwrap_or_else(|| panic!("no {name:?} in:\n{}\nstderr:\n{}", self.out, self.err))
    }
}

fn run<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> RunOutput {
    finish(outbox(arguments))
}

fn finish(mut command: Command) -> RunOutput {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    RunOutput { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// The URL of a SQLite file in this folder.
fn sqlite(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("test.db").display())
}

/// Checks every guarantee in the demo's summary.
#[track_caller]
fn assert_kept(ran: &RunOutput, written: u64) {
    assert_eq!(ran.count("written (committed)"), written);
    assert_eq!(ran.count("delivered") + ran.count("dead"), written);
    for broken in ["out of order", "too early", "phantom", "lost"] {
        assert_eq!(ran.count(broken), 0, "{}", ran.out);
    }
    assert!(ran.out.contains("hot path") && ran.out.contains("overall"), "{}", ran.out);
}

#[test]
fn the_demo_delivers_committed_events_and_nothing_else() {
    let temporary = tempfile::tempdir().unwrap();
    let mut command = outbox(["demo", "--events", "500"]);
    command.env("TMPDIR", temporary.path());
    let ran = finish(command).expect(0);
    assert_kept(&ran, 500);
    assert!(ran.count("rolled back") > 0, "{}", ran.out);
    assert!(ran.count("dead") > 0, "{}", ran.out);
    assert!(ran.err.is_empty(), "{}", ran.err);
    assert!(
        !ran.out.contains('\u{1b}'),
        "no colours or cursor moves where there is no terminal:\n{}",
        ran.out
    );
    assert_eq!(temporary.path().read_dir().unwrap().count(), 0, "the temporary folder is removed");
}

#[test]
fn without_failures_nothing_is_retried() {
    let ran = run(["demo", "--events", "60", "--fail", "0", "--rate", "0"]).expect(0);
    assert_kept(&ran, 60);
    assert_eq!(ran.count("retried"), 0);
}

#[test]
fn with_nothing_but_failures_every_event_is_still_settled() {
    let ran = run(["demo", "--events", "40", "--fail", "100", "--rate", "0"]).expect(0);
    assert_kept(&ran, 40);
    assert!(ran.count("dead") >= 20, "{}", ran.out);
}

#[test]
fn the_demo_logs_failures_only_on_request() {
    let ran = run(["demo", "--events", "40", "--fail", "50", "--log", "error"]).expect(0);
    assert!(ran.err.contains("ERROR"), "{}", ran.err);
}

/// Starts a demo without an end, and waits until it delivers events.
fn endless_demo(arguments: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = outbox(["demo"].iter().chain(arguments)).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    // A line begins with the elapsed seconds, ` 1 s`, and the numbers of written and delivered
    // events.
    let delivers = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [second, "s", _, delivered, ..] => second.parse::<u64>().is_ok() && delivered != "0",
        _ => false,
    };
    while !delivers(&line) {
        line.clear();
        assert_ne!(out.read_line(&mut line).unwrap(), 0, "the demo ended by itself");
    }
    (child, out)
}

#[cfg(unix)]
#[test]
fn an_interrupted_demo_delivers_the_rest_and_prints_its_summary() {
    let (mut child, mut out) = endless_demo(&[]);
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let ran = RunOutput { code: child.wait().unwrap().code(), out: rest, err: String::new() }.expect(0);
    let written = ran.count("written (committed)");
    assert!(written > 0);
    assert_kept(&ran, written);
}

/// First line of the response to a GET request.
fn answer(address: &str, path: &str, token: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}

#[test]
fn the_demo_serves_its_dashboard_with_the_token_of_its_link() {
    let mut child = outbox(["demo"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("Dashboard: ") {
        line.clear();
        assert_ne!(out.read_line(&mut line).unwrap(), 0, "the address of the dashboard is printed");
    }
    let link = line.trim().strip_prefix("Dashboard: http://").unwrap();
    let (address, token) = link.split_once("/#token=").unwrap();
    assert!(answer(address, "/", "").contains(" 200 "), "the page itself contains no data");
    assert!(answer(address, "/api/outbox/overview", "").contains(" 401 "));
    assert!(answer(address, "/api/outbox/overview", token).contains(" 200 "));
    child.kill().unwrap();
    child.wait().unwrap();

    let ran = run(["demo", "--listen", "0.0.0.0:0"]).expect(2);
    assert!(ran.err.contains("this machine only"), "{}", ran.err);
}

#[test]
fn the_tables_of_a_killed_demo_are_dropped_only_with_fresh() {
    let folder = tempfile::tempdir().unwrap();
    let url = sqlite(folder.path());
    let (mut child, _out) = endless_demo(&["--database", &url]);
    child.kill().unwrap();
    child.wait().unwrap();
    let ran = run(["demo", "--database", &url, "--events", "20"]).expect(1);
    assert!(ran.err.contains("--fresh"), "{}", ran.err);
    let ran = run(["demo", "--database", &url, "--events", "20", "--fresh"]).expect(0);
    assert_kept(&ran, 20);
    run(["demo", "--database", &url, "--events", "20"]).expect(0);
    assert_eq!(left_in(&url), Vec::<String>::new());
}

/// Names of all objects of the demo in a database.
fn left_in(url: &str) -> Vec<String> {
    const SQLITE: &str = "SELECT name FROM sqlite_master WHERE name LIKE 'outbox_demo%'";
    const POSTGRES: &str = "SELECT relname::text FROM pg_class WHERE relname LIKE 'outbox_demo%' \
        UNION ALL SELECT proname::text FROM pg_proc WHERE proname LIKE 'outbox_demo%'";
    const MYSQL: &str = "SELECT CAST(table_name AS CHAR) FROM information_schema.tables \
        WHERE table_schema = DATABASE() AND table_name LIKE 'outbox_demo%'";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime
        .block_on(async {
            match url.split(':').next() {
                Some("sqlite") => {
                    sqlx::query_scalar(SQLITE).fetch_all(&sqlx::SqlitePool::connect(url).await?).await
                }
                Some("mysql") => {
                    sqlx::query_scalar(MYSQL).fetch_all(&sqlx::MySqlPool::connect(url).await?).await
                }
                _ => sqlx::query_scalar(POSTGRES).fetch_all(&sqlx::PgPool::connect(url).await?).await,
            }
        })
        .unwrap()
}

/// Runs the demo on the server in this environment variable.
fn demo_on_server(variable: &str, required: bool) {
    let Ok(url) = std::env::var(variable) else {
        let required = required && std::env::var("OUTBOX_TEST_REQUIRE").is_ok_and(|value| value == "1");
        assert!(!required, "{variable} is not set, and OUTBOX_TEST_REQUIRE=1 asks for it");
        println!("skipped: {variable} is not set");
        return;
    };
    let ran = run(["demo", "--events", "500", "--fresh", "--database", &url]).expect(0);
    assert_kept(&ran, 500);
    // Fails if the tables of the first run still exist.
    run(["demo", "--events", "10", "--database", &url]).expect(0);
    assert_eq!(left_in(&url), Vec::<String>::new());
}

#[test]
fn the_demo_runs_on_postgres() {
    demo_on_server("OUTBOX_TEST_POSTGRES", true);
}

#[test]
fn the_demo_runs_on_mariadb() {
    demo_on_server("OUTBOX_TEST_MARIADB", true);
}

#[test]
fn the_demo_runs_on_mysql() {
    demo_on_server("OUTBOX_TEST_MYSQL", false);
}

#[test]
fn a_second_migration_reports_the_current_version() {
    let folder = tempfile::tempdir().unwrap();
    let url = sqlite(folder.path());
    let ran = run(["migrate", "--database", &url]).expect(0);
    assert!(ran.out.contains("migrated to version "), "{}", ran.out);
    let ran = run(["migrate", "--database", &url]).expect(0);
    assert!(ran.out.contains("already at version "), "{}", ran.out);
    let ran = run(["migrate", "--database", &url, "--table", "billing"]).expect(0);
    assert!(ran.out.contains("billing migrated to version "), "{}", ran.out);
}

#[test]
fn the_database_may_come_from_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = outbox(["migrate"]);
    command.env("DATABASE_URL", sqlite(folder.path()));
    assert!(finish(command).expect(0).out.contains("migrated"));
    let mut command = outbox(["migrate", "--help"]);
    command.env("DATABASE_URL", format!("postgres://ada:{SECRET}@db/shop"));
    let help = finish(command).expect(0);
    assert!(help.out.contains("DATABASE_URL") && !help.out.contains(SECRET), "{}", help.out);
}

#[test]
fn the_sql_is_printed_for_every_kind_of_database_without_a_server() {
    for (url, quoted) in [
        ("sqlite:shop.db", "\"billing\""),
        ("postgres://nowhere.invalid/shop", "\"billing\""),
        ("mysql://nowhere.invalid/shop", "`billing`"),
        ("mariadb", "`billing`"),
    ] {
        let ran = run(["migrate", "--print", "--database", url]).expect(0);
        assert!(ran.out.contains("outbox_event"), "{}", ran.out);
        let ran = run(["migrate", "--print", "--database", url, "--table", "billing"]).expect(0);
        assert!(ran.out.contains(&format!("CREATE TABLE IF NOT EXISTS {quoted} (")), "{}", ran.out);
        assert!(ran.err.is_empty(), "{}", ran.err);
    }
    let ran = run(["migrate", "--print", "--database", "postgres", "--schema", "accounting"]).expect(0);
    assert!(ran.out.contains("\"accounting\".\"outbox_event\""), "{}", ran.out);
}

#[test]
fn a_printed_script_makes_tables_that_are_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let url = sqlite(folder.path());
    let script = run(["migrate", "--print", "--database", "sqlite"]).expect(0).out;
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let options = sqlx::sqlite::SqliteConnectOptions::new()
            .filename(folder.path().join("test.db"))
            .create_if_missing(true);
        let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(script)).execute(&pool).await.unwrap();
        pool.close().await;
    });
    let ran = run(["migrate", "--database", &url]).expect(0);
    assert!(ran.out.contains("already at version "), "{}", ran.out);
}

#[test]
fn the_sql_of_an_upgrade_is_printed_from_a_version() {
    for kind in ["sqlite", "postgres", "mysql"] {
        let print = |from: &str| run(["migrate", "--print", "--from", from, "--database", kind]);
        let all = run(["migrate", "--print", "--database", kind]).expect(0).out;
        assert_eq!(print("0").expect(0).out, all);
        let versions = all.lines().filter(|line| line.starts_with("-- version ")).count();
        let upgrade = print("8").expect(0).out;
        assert!(upgrade.contains("-- version 9\n") && !upgrade.contains("-- version 8\n"), "{upgrade}");
        assert_eq!(upgrade.contains("DELIMITER"), kind == "mysql", "{upgrade}");
        let nothing = print(&versions.to_string()).expect(0).out;
        assert!(nothing.lines().all(|line| line.starts_with("--")), "{nothing}");
        for unknown in ["-1".to_owned(), (versions + 1).to_string()] {
            let refused = print(&unknown).expect(2);
            let exist = format!("no version {unknown}: versions 1 to {versions} exist");
            assert!(refused.err.contains("--from") && refused.err.contains(&exist), "{}", refused.err);
        }
    }
    run(["migrate", "--from", "8", "--database", "sqlite"]).expect(2);
}

#[test]
fn a_wrong_url_is_wrong_usage_and_its_password_is_not_shown() {
    for url in ["postgers://ada:PASS@db/shop", "ada:PASS@db/shop", "postgres:ada:PASS@db/shop"] {
        let url = url.replace("PASS", SECRET);
        for command in ["migrate", "demo"] {
            let ran = run([command, "--database", &url]).expect(2);
            assert!(ran.err.contains("--database") && ran.err.contains("postgres://"), "{}", ran.err);
            assert!(!ran.err.contains(SECRET) && !ran.out.contains(SECRET), "{}{}", ran.out, ran.err);
        }
    }
}

#[test]
fn an_unreachable_server_is_reported_at_once_without_its_password() {
    // Bound and not listening: refuses connections, and keeps the port from other processes.
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let port = held.local_addr().unwrap().port();
    for scheme in ["postgres", "mysql"] {
        let url = format!("{scheme}://ada:{SECRET}@127.0.0.1:{port}/shop");
        for command in ["migrate", "demo"] {
            let ran = run([command, "--database", &url]).expect(1);
            assert!(ran.err.contains("cannot reach") && ran.err.contains("--database"), "{}", ran.err);
            assert!(ran.err.contains(&format!("127.0.0.1:{port}/shop")), "{}", ran.err);
            assert!(!ran.err.contains(SECRET) && !ran.out.contains(SECRET), "{}{}", ran.out, ran.err);
        }
    }
}

#[test]
fn a_password_that_breaks_the_url_is_not_shown() {
    let ran = run(["migrate", "--database", &format!("postgres://ada:{SECRET}/{SECRET}@db/shop")]).expect(1);
    assert!(ran.err.contains("%2F"), "{}", ran.err);
    assert!(!ran.err.contains(SECRET), "{}", ran.err);
}

#[test]
fn a_file_that_cannot_be_opened_is_reported_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let ran = run(["migrate", "--database", &sqlite(&folder.path().join("missing"))]).expect(1);
    assert!(ran.err.contains("folder"), "{}", ran.err);
}

#[test]
fn wrong_names_and_values_are_wrong_usage() {
    for arguments in [
        &["migrate", "--database", "postgres", "--print", "--table", "no; such"][..],
        &["migrate", "--database", "sqlite:shop.db", "--schema", "accounting"],
        &["migrate"],
        &["demo", "--fail", "101"],
        &["demo", "--events", "0"],
        &["demo", "--log", "verbose"],
        &["demo", "--fresh"],
        &["no-such-command"],
    ] {
        let ran = run(arguments).expect(2);
        assert!(ran.err.contains("error:"), "{}", ran.err);
    }
}

/// On Unix, file names are bytes.
#[cfg(unix)]
#[test]
fn an_argument_that_is_not_utf8_is_reported_like_any_other() {
    use std::os::unix::ffi::OsStrExt as _;

    let odd = std::ffi::OsStr::from_bytes(b"/no/such\xff.toml");
    let os = std::ffi::OsStr::new;
    for (arguments, code) in [
        (&[os("relay"), os("--config"), odd, os("--lease"), os("30s")][..], 2),
        (&[os("status"), os("--database"), odd], 2),
        (&[odd], 2),
        (&[os("check"), os("--config"), odd], 1),
    ] {
        let ran = run(arguments).expect(code);
        assert!(!ran.err.contains("panicked"), "{arguments:?}: {}", ran.err);
    }
}

#[test]
fn every_help_has_examples() {
    for arguments in [&["--help"][..], &["demo", "--help"], &["migrate", "--help"], &["relay", "--help"]] {
        let ran = run(arguments).expect(0);
        assert!(ran.out.contains("Examples:"), "{}", ran.out);
    }
}
