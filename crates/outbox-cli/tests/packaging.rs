//! The files in `packaging/` use only existing flags, settings, metrics and sections of the guide.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn outbox<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
    command.args(arguments).stdin(Stdio::null()).env_remove("OUTBOX_CONFIG");
    command.env("DATABASE_URL", "postgres://shop:shop@postgres/shop").env("NATS_URL", "nats://nats:4222");
    command.output().unwrap()
}

/// Documented metrics of the library, with Prometheus names.
fn documented() -> BTreeSet<String> {
    let lines = read("crates/outbox/src/metrics.rs");
    let rows = lines.lines().filter_map(|line| line.strip_prefix("//! | `"));
    let names = rows.filter_map(|row| row.split('|').next());
    let each =
        names.flat_map(|names| names.split(['`', ',', ' ']).filter(|name| name.starts_with("outbox.")));
    each.map(|name| name.replace('.', "_")).collect()
}

/// Every word that looks like the name of a metric.
fn named_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("outbox_")).map(str::to_owned).collect()
}

/// All `expr`s of a dashboard.
fn queries(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("expr").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|value| queries(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| queries(value, found)),
        _ => {}
    }
}

#[test]
fn the_dashboard_shows_every_metric_and_no_other() {
    let dashboard = read("packaging/grafana/outbox.json");
    let mut found = Vec::new();
    queries(&serde_json::from_str(&dashboard).unwrap(), &mut found);
    assert!(found.len() > 10);
    assert_eq!(named_in(&found.join("\n")), documented());
    // Also outside of queries, as in the variable for the database.
    assert!(named_in(&dashboard).is_subset(&documented()));
}

#[test]
fn alerts_use_existing_metrics_and_link_to_the_guide() {
    let alerts = read("packaging/prometheus/alerts.yaml");
    let (named, documented) = (named_in(&alerts), documented());
    assert!(named.is_subset(&documented), "{:?}", named.difference(&documented));

    let guide = read("docs/guide/operating.md");
    let sections: BTreeSet<String> =
        guide.lines().filter_map(|line| line.strip_prefix("### ")).map(str::to_lowercase).collect();
    let names = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let mut runbooks = alerts.lines().filter_map(|line| line.trim().strip_prefix("runbook_url: "));
    for name in names {
        let section = name.to_lowercase();
        let url = runbooks.next().unwrap_or_else(|| panic!("{name} has no runbook"));
        assert!(url.ends_with(&format!("/docs/guide/operating.md#{section}")), "{name}: {url}");
        assert!(sections.contains(&section), "the guide has no section {name}");
    }
    assert_eq!(runbooks.next(), None);
}

/// Arguments of the commands in lines such as `ExecStart=/usr/bin/outbox relay …`.
fn commands_of_the_service() -> Vec<Vec<String>> {
    let service = read("packaging/outbox.service");
    let lines = service.lines().filter(|line| line.starts_with("Exec"));
    let commands = lines.filter_map(|line| line.split_once("=/usr/bin/outbox ")).map(|(_, rest)| rest);
    commands.map(|rest| rest.split_whitespace().map(str::to_owned).collect()).collect()
}

fn command_of_the_image() -> Vec<String> {
    let dockerfile = read("packaging/Dockerfile");
    let command = dockerfile.lines().find_map(|line| line.strip_prefix("CMD ")).unwrap();
    serde_json::from_str(command).unwrap()
}

/// Checks arguments with `--help`: unknown ones are refused before the help is printed.
#[track_caller]
fn assert_valid(words: &[String]) {
    let ran = outbox(words.iter().map(String::as_str).chain(["--help"]));
    assert!(ran.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn the_runbook_names_commands_that_exist() {
    let guide = read("docs/guide/operating.md");
    let (_, runbook) = guide.split_once("\n## Runbook\n").unwrap();
    let quoted = runbook.split('`').skip(1).step_by(2);
    let commands: Vec<&str> = quoted.filter_map(|code| code.strip_prefix("outbox ")).collect();
    assert!(commands.len() > 8, "{commands:?}");
    for command in commands {
        assert_valid(&command.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    }
}

#[test]
fn the_service_and_the_image_run_valid_commands() {
    let mut commands = commands_of_the_service();
    assert_eq!(commands.len(), 2, "the start, and a check of the settings before a reload: {commands:?}");
    commands.push(command_of_the_image());
    for words in commands {
        assert_valid(&words);
    }
    let refused = outbox(["relay", "--no-such-flag", "--help"]);
    assert!(!refused.status.success(), "otherwise this test proves nothing");
}

#[test]
fn the_service_is_stopped_and_reloaded_by_the_right_signals() {
    let service = read("packaging/outbox.service");
    let value = |name: &str| service.lines().filter_map(|line| line.strip_prefix(name)).next_back();
    assert_eq!(value("KillSignal="), Some("SIGTERM"));
    assert_eq!(value("ExecReload="), Some("/bin/kill -HUP $MAINPID"));
    assert_eq!(value("DynamicUser="), Some("yes"));
    assert_eq!(value("ProtectSystem="), Some("strict"));
    let stop: u64 = value("TimeoutStopSec=").unwrap().trim_end_matches('s').parse().unwrap();
    let sample = read("crates/outbox-cli/outbox.sample.toml");
    let drain = sample.lines().find_map(|line| line.strip_prefix("#drain-timeout = \"")).unwrap();
    let drain: u64 = drain.trim_end_matches("s\"").parse().unwrap();
    assert!(stop >= 4 * drain, "the process is killed after {stop} s, and drains for {drain} s");
}

#[test]
fn the_settings_of_the_containers_are_valid() {
    let file = root().join("packaging/relay.toml");
    let checked = outbox(["check".as_ref(), "--config".as_ref(), file.as_os_str()]);
    let output =
        format!("{}{}", String::from_utf8_lossy(&checked.stdout), String::from_utf8_lossy(&checked.stderr));
    assert!(checked.status.success(), "{output}");
    assert!(!output.contains("warning"), "{output}");
}
