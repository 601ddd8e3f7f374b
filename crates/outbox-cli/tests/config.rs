//! Output and exit codes of `outbox check`.

use std::path::Path;
use std::process::{Command, Output};

fn check(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
    command.arg("check").args(arguments).env_remove("DATABASE_URL").env_remove("OUTBOX_LOG");
    command.envs(environment.iter().copied()).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn write(folder: &Path, text: &str) -> String {
    let file = folder.join("outbox.toml");
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

const GOOD: &str = r#"mode = "ordered"
completion = "delete"
[database]
url = "postgres://shop:${SHOP_PASSWORD}@db.internal:5432/shop"
schema = "billing"
[poller]
interval = "1s"
batch-size = 200
[publishers.orders.file]
path = "orders.jsonl"
[publishers.console.stdout]
[[routes]]
type = "order.*"
tenant = "acme*"
to = "orders"
retry = { max-attempts = 20 }
[[routes]]
to = "console"
"#;

#[test]
fn a_server_that_is_not_verified_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let weak = GOOD.replace("5432/shop", "5432/shop?sslmode=require");
    let file =
        write(folder.path(), &weak.replace("schema =", "direct-url = \"postgres://db/shop\"\nschema ="));
    let checked = check(&["--config", &file], &[("SHOP_PASSWORD", "s3cret")]);
    assert_eq!(checked.status.code(), Some(0), "{}", err(&checked));
    let shown = "databases      postgres://db.internal:5432/shop (server not verified: sslmode=require does not verify \
                 the server's certificate), schema billing, directly at postgres://db/shop";
    assert!(out(&checked).contains(shown), "{}", out(&checked));
}

/// A-72
#[test]
fn a_valid_file_is_summarized_without_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), GOOD);
    let checked =
        check(&["--config", &file], &[("SHOP_PASSWORD", "s3cret"), ("OUTBOX_POLLER_INTERVAL", "2s")]);
    assert_eq!(checked.status.code(), Some(0), "{}", err(&checked));
    let expected = format!(
        "{file}: good

mode           ordered
databases      postgres://db.internal:5432/shop, schema billing
general        completion delete
poller         batch-size 200, interval 2s
publishers     console (stdout)
               orders (file)
routes         type order.*, tenant acme* -> orders (retry max-attempts 20)
               everything -> console
"
    );
    assert_eq!(out(&checked), expected);
    assert!(err(&checked).is_empty());
}

#[test]
fn an_invalid_file_is_reported_line_by_line_with_exit_code_1() {
    let folder = tempfile::tempdir().unwrap();
    let text =
        GOOD.replace("interval = \"1s\"", "interval = 1").replace("to = \"console\"", "to = \"consol\"");
    let file = write(folder.path(), &text.replace("batch-size", "batchsize"));
    let checked = check(&["--config", &file], &[("SHOP_PASSWORD", "s3cret")]);
    assert_eq!(checked.status.code(), Some(1));
    let expected = format!(
        "{file}:8:1: there is no setting `batchsize`: did you mean `batch-size`?\n\
         {file}:18:6: there is no publisher `consol`: did you mean `console`?\n"
    );
    assert_eq!(err(&checked), expected);
    assert!(out(&checked).is_empty());

    let checked = check(&["--config", &file], &[]);
    assert!(
        err(&checked).contains(":4:7: the environment variable SHOP_PASSWORD is not set"),
        "{}",
        err(&checked)
    );
}

/// A value that is not UTF-8 is reported by the name of its variable, and not shown.
#[cfg(unix)]
#[test]
fn a_variable_that_is_not_unicode_is_a_mistake() {
    use std::os::unix::ffi::OsStrExt as _;

    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), GOOD);
    let secret = std::ffi::OsStr::from_bytes(b"s3cret\xff");
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
    command.args(["check", "--config", &file]).env_remove("DATABASE_URL").env_remove("OUTBOX_LOG");
    command.env("SHOP_PASSWORD", secret).env("OUTBOX_POLLER_INTERVAL", secret);
    let checked = command.output().unwrap();
    assert_eq!(checked.status.code(), Some(1));
    let expected = format!(
        "{file}:4:7: the environment variable SHOP_PASSWORD is not UTF-8\n\
         OUTBOX_POLLER_INTERVAL: its value is not UTF-8\n"
    );
    assert_eq!(err(&checked), expected);
}

#[test]
fn a_suspicious_setting_is_a_warning_and_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), &format!("{GOOD}[[routes]]\ntype = \"late\"\nto = \"orders\"\n"));
    let checked = check(&["--config", &file], &[("SHOP_PASSWORD", "s3cret")]);
    assert_eq!(checked.status.code(), Some(0));
    let warning = format!(
        "warning: {file}:21:6: this route is never reached: the route on line 18 matches all events\n"
    );
    assert_eq!(err(&checked), warning);
}

#[test]
fn the_sample_is_printed_and_valid() {
    let folder = tempfile::tempdir().unwrap();
    let sample = check(&["--sample"], &[]);
    assert_eq!(sample.status.code(), Some(0));
    let file = write(folder.path(), &out(&sample));
    let checked = check(&["--config", &file], &[]);
    assert_eq!((checked.status.code(), err(&checked)), (Some(0), String::new()));
    assert!(out(&checked).contains("sqlite:shop.db"), "{}", out(&checked));
}

#[test]
fn connect_reports_what_is_available() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let url = format!("sqlite:{}", at("shop.db"));
    let text = |path: &str| {
        format!(
            "[database]\nurl = \"{url}\"\n[publishers.lines.file]\npath = \"{path}\"\n[[routes]]\nto = \"lines\"\n"
        )
    };
    let file = write(folder.path(), &text(&at("no/such/folder/x")));
    let checked = check(&["--config", &file, "--connect"], &[]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(out(&checked).contains("outbox migrate"), "{}", out(&checked));
    let reason = format!("cannot open {}: No such file or directory", at("no/such/folder/x"));
    let expected = format!("publisher lines (file): not available: {reason}");
    assert!(out(&checked).contains(&expected), "{}", out(&checked));
    // A relay that migrates at start does not need the tables.
    let migrates = format!("migrate = true\n{}", text(&at("x")));
    let checked = check(&["--config", &write(folder.path(), &migrates), "--connect"], &[]);
    assert_eq!(checked.status.code(), Some(0), "{}{}", out(&checked), err(&checked));
    assert!(out(&checked).contains("the relay will create or update its tables\n"), "{}", out(&checked));

    let migrated =
        Command::new(env!("CARGO_BIN_EXE_outbox")).args(["migrate", "--database", &url]).output().unwrap();
    assert!(migrated.status.success());
    let file = write(folder.path(), &text(&at("x")));
    let checked = check(&["--config", &file, "--connect"], &[]);
    assert_eq!(checked.status.code(), Some(0), "{}{}", out(&checked), err(&checked));
    assert!(out(&checked).contains(&format!("database: {url} answers, and its tables are up to date\n")));
    assert!(out(&checked).contains("publisher lines (file): available\n"));
}

#[test]
fn a_settings_file_is_required_and_a_missing_one_is_named() {
    assert_eq!(check(&[], &[]).status.code(), Some(2));
    let checked = check(&["--config", "/no/such/file.toml"], &[]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(err(&checked).starts_with("/no/such/file.toml: cannot be read: "), "{}", err(&checked));
}
