//! Behaviour that all commands share: exit codes and errors, hidden secrets and payloads, help,
//! colours.

mod common;

use std::process::{Command, Stdio};

use common::{TestTarget, dead, finish, outbox};
use outbox::store::Verdict;
use outbox::{Event, EventBuilder};

/// Texts that must not be shown without `--payload`, and never.
const PAYLOAD: &str = "pr1vate-payload";
const SECRET: &str = "s3cret-pa55";

fn event(event_type: &str) -> EventBuilder {
    Event::new(event_type).json(&serde_json::json!({ "note": PAYLOAD }))
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_tables_are_reported() {
    let target = TestTarget::sqlite().await;
    let missing = ["explain", "01JD3V7Q0Z6W4T0M1S2K8N5R9X", "--table", "no_such"];
    let ran = target.run(&missing).expect(0);
    assert!(ran.out.contains("no_such") && ran.out.contains("outbox migrate"), "{}", ran.out);
    for command in
        [&["status"][..], &["dead", "list"], &["events", "list"], &["log", "status"], &["joins", "list"]]
    {
        let ran = target.run(&[command, &["--table", "no_such"]].concat()).expect(1);
        assert!(ran.err.contains("no_such") && ran.err.contains("migrate"), "{}", ran.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_are_shown_only_on_request() {
    let target = TestTarget::sqlite().await;
    let ids = target.write([event("a").ordering_key("k"), event("b").ordering_key("k"), event("c")]).await;
    target.settle(|e| if e.event_type() == "a" { dead("no") } else { Verdict::Released }).await;
    let _ = target
        .store
        .log()
        .unwrap()
        .append(&[event("l").build().unwrap()], &Default::default())
        .await
        .unwrap();
    let id = ids[0].as_str();
    for arguments in [
        &["events", "list"][..],
        &["events", "list", "--json"],
        &["events", "show", id],
        &["events", "show", id, "--json"],
        &["dead", "list"],
        &["dead", "list", "--json"],
        &["dead", "show", id],
        &["dead", "replay-all"],
        &["explain", ids[1].as_str()],
        &["explain", ids[1].as_str(), "--json"],
        &["status"],
        &["status", "--json"],
        &["log", "read"],
        &["log", "read", "--json"],
    ] {
        let ran = target.run(&[arguments, &["--log", "trace"]].concat()).expect(0);
        assert!(!ran.out.contains(PAYLOAD) && !ran.err.contains(PAYLOAD), "{arguments:?}: {ran:?}");
    }
    for arguments in [
        &["events", "show", id, "--payload"][..],
        &["dead", "show", id, "--payload"],
        &["log", "read", "--json", "--payload"],
    ] {
        assert!(target.run(arguments).expect(0).out.contains(PAYLOAD), "{arguments:?}");
    }
}

/// Commands with the arguments that they need to connect to the database.
const COMMANDS: [&[&str]; 19] = [
    &["send", "--type", "x", "--payload", "1"],
    &["status"],
    &["events", "list"],
    &["events", "show", "x"],
    &["events", "cancel", "x"],
    &["dead", "list"],
    &["dead", "count"],
    &["dead", "replay", "x"],
    &["dead", "replay-all"],
    &["explain", "x"],
    &["purge", "--older-than", "1d"],
    &["joins", "list"],
    &["nodes"],
    &["nodes", "release", "x"],
    &["joins", "cancel", "x"],
    &["log", "status"],
    &["log", "pause", "x"],
    &["log", "reset", "x", "y", "--to", "start"],
    &["log", "read"],
];

#[test]
fn an_unreachable_server_is_reported_by_every_command_without_its_password() {
    let url = format!("postgres://ada:{SECRET}@127.0.0.1:1/shop");
    for arguments in COMMANDS {
        let ran = finish(outbox(arguments.iter().chain(&["--database", &url]))).expect(1);
        assert!(ran.err.contains("cannot reach") && ran.err.contains("hint:"), "{arguments:?}: {}", ran.err);
        assert!(!ran.err.contains(SECRET) && !ran.out.contains(SECRET), "{arguments:?}: {ran:?}");
    }
}

#[test]
fn a_missing_file_is_reported_and_not_created() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("typo.db").display());
    for arguments in COMMANDS {
        let ran = finish(outbox(arguments.iter().chain(&["--database", &url]))).expect(1);
        assert!(ran.err.contains("typo.db") && ran.err.contains("outbox migrate"), "{}", ran.err);
    }
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}

#[test]
fn every_command_has_help_with_examples_and_exit_codes() {
    let groups = [
        &["events"][..],
        &["dead"],
        &["joins"],
        &["log"],
        &["databases"],
        &["log", "resume"],
        &["log", "lag"],
    ];
    let more = [&["joins", "show"][..], &["dead", "show"]];
    for arguments in COMMANDS.into_iter().chain(groups).chain(more) {
        let command: Vec<&str> =
            arguments.iter().copied().take_while(|word| !word.starts_with('-')).collect();
        let command = if command[0] == "explain" { &command[..1] } else { &command[..command.len().min(2)] };
        let ran = finish(outbox(command.iter().chain(&["--help"]))).expect(0);
        assert!(ran.out.contains("Examples:") && ran.out.contains("Exit codes:"), "{command:?}: {}", ran.out);
    }
}

#[test]
fn completions_are_printed_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = finish(outbox(["completions", shell])).expect(0);
        assert!(ran.out.contains("replay-all"), "{shell}");
    }
    finish(outbox(["completions", "cmd.exe"])).expect(2);
}

/// Runs the command with a terminal for its output, by `script`; `None` if that is not installed.
#[cfg(unix)]
fn on_a_terminal(target: &TestTarget, arguments: &str, no_color: bool) -> Option<String> {
    let mut command = Command::new("script");
    let line = format!("{} {arguments}", env!("CARGO_BIN_EXE_outbox"));
    command.args(["-qec", &line, "/dev/null"]).env("DATABASE_URL", &target.url).env("TERM", "xterm");
    command.stdin(Stdio::null()).env_remove("OUTBOX_LOG").env_remove("NO_COLOR");
    if no_color {
        command.env("NO_COLOR", "1");
    }
    let output = command.output().ok()?;
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn colours_are_for_terminals_and_not_with_no_color() {
    let target = TestTarget::sqlite().await;
    target.write([event("a")]).await;
    target.settle(|_| dead("no")).await;
    let escape = '\u{1b}';
    assert!(!target.run(&["status"]).expect(0).out.contains(escape));
    let Some(coloured) = on_a_terminal(&target, "status", false) else {
        println!("skipped: `script` is not installed");
        return;
    };
    assert!(coloured.contains(escape), "{coloured:?}");
    let plain = on_a_terminal(&target, "status", true).unwrap();
    assert!(plain.contains("DEAD") && !plain.contains(escape), "{plain:?}");
    let bar = on_a_terminal(&target, "dead replay-all --all --yes", false).unwrap();
    assert!(bar.contains("Replayed 1 event."), "{bar:?}");
}

/// Every user of the machine can read command lines with `ps`.
#[tokio::test(flavor = "multi_thread")]
async fn a_password_on_the_command_line_causes_a_warning() {
    let target = TestTarget::sqlite().await;
    let url = "postgres://ada:s3cret-pa55@127.0.0.1:1/shop";
    let ran = finish(outbox(["status", "--database", url])).expect(1);
    assert!(ran.err.contains("a database password is on the command line"), "{}", ran.err);
    assert!(!ran.err.contains("s3cret"), "{}", ran.err);
    let mut command = outbox(["status"]);
    let quiet = {
        command.env("DATABASE_URL", url);
        finish(command).expect(1)
    };
    assert!(!quiet.err.contains("command line"), "{}", quiet.err);

    // Containers pass the URL in a file.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("database-url");
    std::fs::write(&file, format!("{}\n", target.url)).unwrap();
    let named = format!("@{}", file.display());
    finish(outbox(["status", "--database", &named])).expect(0);
    let mut command = outbox(["status"]);
    command.env("DATABASE_URL", &named);
    finish(command).expect(0);
    let missing = finish(outbox(["status", "--database", "@/no/such/file"])).expect(2);
    assert!(missing.err.contains("cannot read the file /no/such/file"), "{}", missing.err);
    target.end().await;
}
