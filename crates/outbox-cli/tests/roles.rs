//! Least-privilege roles: grants of `outbox migrate --print-grants` on real servers, and the
//! resulting rights of each role.

mod common;

use std::process::{Command, Stdio};
use std::time::Duration;

use common::{RunOutput, TestTarget, execute, finish, outbox, try_execute};
use outbox::Event;
use outbox::store::Status;

/// Targets on all available servers.
async fn servers() -> Vec<TestTarget> {
    let mut servers = Vec::new();
    for target in TestTarget::all().await {
        match target.schema {
            Some(_) => servers.push(target),
            None => target.end().await,
        }
    }
    servers
}

fn is_postgres(target: &TestTarget) -> bool {
    target.url.starts_with("postgres")
}

/// A role that can log in, without other rights.
struct Role<'a> {
    target: &'a TestTarget,
    name: String,
    url: String,
}

impl<'a> Role<'a> {
    async fn new(target: &'a TestTarget, suffix: &str) -> Self {
        // The blank requires quoting everywhere.
        let name = format!("{} {suffix}", target.schema.as_deref().unwrap());
        if is_postgres(target) {
            execute(&target.url, &format!("CREATE ROLE \"{name}\" LOGIN")).await;
        } else {
            execute(&target.url, &format!("CREATE USER `{name}`@`%`")).await;
        }
        let (scheme, host) = (target.url.find("://").unwrap() + 3, target.url.rfind('@').unwrap());
        let mut server = target.url[host..].to_owned();
        if !is_postgres(target) {
            // The account has no rights in another database, and cannot connect to it.
            let path = server.find('/').unwrap();
            server.replace_range(path.., &format!("/{}", target.schema.as_deref().unwrap()));
        }
        let url = format!("{}{}{server}", &target.url[..scheme], name.replace(' ', "%20"));
        Self { target, name, url }
    }

    /// Creates a role, and runs the printed grants as the owner of the tables.
    async fn granted(target: &'a TestTarget, role: &str) -> Self {
        let new = Self::new(target, role).await;
        new.grant(role).await;
        new
    }

    async fn grant(&self, role: &str) {
        let kind = if is_postgres(self.target) { "postgres" } else { "mysql" };
        let name = if is_postgres(self.target) { self.name.clone() } else { format!("{}@%", self.name) };
        let schema = self.target.schema.as_deref().unwrap();
        let printed = finish(outbox([
            "migrate",
            "--database",
            kind,
            "--print-grants",
            role,
            "--role-name",
            &name,
            "--schema",
            schema,
        ]));
        for grant in printed.expect(0).out.lines().filter(|line| !line.starts_with("--")) {
            execute(&self.target.url, grant).await;
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = outbox(arguments);
        command.env("DATABASE_URL", &self.url).args(["--schema", self.target.schema.as_deref().unwrap()]);
        command
    }

    fn run(&self, arguments: &[&str]) -> RunOutput {
        finish(self.command(arguments))
    }

    /// Runs a statement in which `{event}`, `{log}` and so on stand for tables.
    async fn sql(&self, statement: &str) -> Result<(), sqlx::Error> {
        let schema = self.target.schema.as_deref().unwrap();
        try_execute(&self.url, &statement.replace("{", &format!("{schema}.outbox_")).replace('}', "")).await
    }

    #[track_caller]
    fn is_refused(&self, result: Result<(), sqlx::Error>, statement: &str) {
        let error = result.expect_err(statement);
        let error = error.as_database_error().expect(statement);
        let code = error.code().unwrap_or_default();
        let denied = if is_postgres(self.target) { "42501" } else { "42000" };
        assert_eq!(code, denied, "{statement}: {error}");
    }

    async fn end(self) {
        if is_postgres(self.target) {
            execute(&self.target.url, &format!("DROP OWNED BY \"{}\"", self.name)).await;
            execute(&self.target.url, &format!("DROP ROLE \"{}\"", self.name)).await;
        } else {
            execute(&self.target.url, &format!("DROP USER `{}`@`%`", self.name)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_inserts_and_touches_nothing_else() {
    for target in servers().await {
        let writer = Role::granted(&target, "writer").await;
        let every = "INSERT INTO {event} (event_id, event_type, aggregate_type, aggregate_id, tenant_id, ordering_key, \
            correlation_id, headers, payload, occurred_at, available_at, expires_at) VALUES ('id', 'a', 't', 'i', 't', 'k', 'c', \
            '[]', '1', '2026-01-01', '2026-01-01', '2036-01-01')";
        writer.sql(every).await.unwrap();
        writer
            .sql("INSERT INTO {event} (event_type, payload, dedup_key) VALUES ('b', '1', 'once')")
            .await
            .unwrap();
        writer.sql("SELECT event_id, dedup_key FROM {event}").await.unwrap();
        for statement in [
            "INSERT INTO {event} (event_type, payload, claims) VALUES ('x', '1', 7)",
            "INSERT INTO {event} (event_type, payload, status) VALUES ('x', '1', 1)",
            "INSERT INTO {event} (event_type, payload, locked_by) VALUES ('x', '1', 'me')",
            "INSERT INTO {event} (event_type, payload, locked_until) VALUES ('x', '1', '2030-01-01')",
            "INSERT INTO {event} (event_type, payload, joined) VALUES ('x', '1', 1)",
            "SELECT payload FROM {event}",
            "SELECT headers FROM {event}",
            "UPDATE {event} SET event_type = 'x'",
            "DELETE FROM {event}",
            "SELECT * FROM {event_join_member}",
            "INSERT INTO {event_join_member} (join_id, event_id) VALUES ('j', 'e')",
            "INSERT INTO {event_audit} (actor, via, action) VALUES ('a', 'b', 'c')",
            "UPDATE {event_schema} SET version = 1",
            "SELECT payload FROM {log}",
        ] {
            writer.is_refused(writer.sql(statement).await, statement);
        }
        if is_postgres(&target) {
            let append = "INSERT INTO {log} (event_type, tags, payload) VALUES ('l', ARRAY['n=1'], '1')";
            writer.sql(append).await.unwrap();
        } else {
            writer.sql("UPDATE {log_head} SET position = LAST_INSERT_ID(position + 1)").await.unwrap();
            writer
                .sql("INSERT INTO {log} (position, event_type, payload) VALUES (1, 'l', '1')")
                .await
                .unwrap();
            writer.sql("INSERT INTO {log_tag} (tag, position) VALUES ('n=1', 1)").await.unwrap();
        }
        // `outbox send` with and without a key succeeds; other commands are refused with a hint.
        writer.run(&["send", "--type", "c", "--payload", "1"]).expect(0);
        writer.run(&["send", "--type", "c", "--payload", "1", "--key", "k", "--after", "1h"]).expect(0);
        if is_postgres(&target) {
            writer.run(&["send", "--type", "c", "--payload", "1", "--dedup-key", "once"]).expect(3);
        }
        let refused = writer.run(&["events", "list"]).expect(1);
        assert!(refused.err.contains("outbox_event"), "{}", refused.err);
        assert!(refused.err.contains("outbox migrate --print-grants"), "{}", refused.err);
        writer.end().await;
        target.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_delivers_events_and_the_log() {
    for target in servers().await {
        let relay = Role::granted(&target, "relay").await;
        for mode in ["single-node", "multi-node", "ordered", "log"] {
            let event = Event::new("e").ordering_key("k").json(&1).build().unwrap();
            if mode == "log" {
                let log = target.store.log().unwrap();
                let event = Event::new("e").tag("n", 1).json(&1).build().unwrap();
                let _ = log.append(&[event], &Default::default()).await.unwrap();
            } else {
                target.store.insert(&[event]).await.unwrap();
            }
            let mut command = relay.command(&["relay", "--publish", "stdout", "--mode", mode]);
            if mode == "log" {
                command.args(["--topic", "audit"]);
            }
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
            let read = tokio::task::spawn_blocking(move || {
                std::io::BufRead::read_line(&mut out, &mut line).unwrap();
                (line, out)
            });
            let Ok(read) = tokio::time::timeout(Duration::from_secs(60), read).await else {
                child.kill().unwrap();
                let output = child.wait_with_output().unwrap();
                panic!("{mode}: {}", String::from_utf8_lossy(&output.stderr));
            };
            assert!(read.unwrap().0.contains("\"e\""), "{mode}");
            let pid = child.id().to_string();
            assert!(Command::new("kill").arg(&pid).status().unwrap().success());
            let output = child.wait_with_output().unwrap();
            let log = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() && !log.contains("denied"), "{mode}: {log}");
        }
        let left = target.store.stats().await.unwrap();
        assert_eq!((left.new, left.done), (0, 3));
        // Repairs, with audit entries.
        let id = relay.run(&["send", "--type", "x", "--payload", "1"]).expect(0).out.trim().to_owned();
        relay.run(&["events", "cancel", &id]).expect(0);
        relay.run(&["purge", "--older-than", "0s", "--yes", "--with-joins-and-inbox"]).expect(0);
        relay.run(&["log", "pause", "lines"]).expect(0);
        for statement in
            ["DELETE FROM {event_audit}", "UPDATE {event_schema} SET version = 1", "DROP TABLE {event}"]
        {
            let refused = relay.sql(statement).await.unwrap_err();
            assert!(refused.as_database_error().is_some(), "{statement}");
        }
        relay.end().await;
        target.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_looks_and_changes_nothing() {
    for target in servers().await {
        let viewer = Role::granted(&target, "viewer").await;
        let ids = target.write([Event::new("e").json(&1), Event::new("dead").json(&1)]).await;
        target
            .settle(|event| {
                if *event.event_type() == "dead" {
                    common::dead("no")
                } else {
                    outbox::store::Verdict::Released
                }
            })
            .await;
        let (id, dead) = (ids[0].as_str(), ids[1].as_str());
        for command in [
            &["status"][..],
            &["events", "list"],
            &["events", "show", id, "--payload"],
            &["dead", "list"],
            &["dead", "count", "--by-type"],
            &["explain", id],
            &["explain", dead],
        ] {
            viewer.run(command).expect(0);
        }
        for nothing in [&["joins", "list"][..], &["log", "status"], &["log", "read"]] {
            viewer.run(nothing).expect(3);
        }
        for change in [
            &["dead", "replay", dead][..],
            &["dead", "replay-all", "--all", "--yes"],
            &["events", "cancel", id],
            &["purge", "--older-than", "0s", "--yes"],
            &["log", "pause", "x"],
            &["send", "--type", "x", "--payload", "1"],
        ] {
            let refused = viewer.run(change).expect(1);
            assert!(refused.err.contains("--print-grants"), "{change:?}: {}", refused.err);
        }
        let found = target.store.find(&ids[1]).await.unwrap().unwrap();
        assert_eq!(found.status, Status::Dead);
        viewer.end().await;
        target.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migrator_creates_the_tables() {
    for target in servers().await {
        let migrator = Role::new(&target, "migrator").await;
        let refused = migrator.run(&["migrate", "--table", "other_event"]).expect(1);
        assert!(
            refused.err.contains("--print-grants") && refused.err.contains("migrator"),
            "{}",
            refused.err
        );
        let kind = if is_postgres(&target) { "postgres" } else { "mysql" };
        let name = if is_postgres(&target) { migrator.name.clone() } else { format!("{}@%", migrator.name) };
        let schema = target.schema.as_deref().unwrap();
        let printed = finish(outbox([
            "migrate",
            "--database",
            kind,
            "--print-grants",
            "migrator",
            "--role-name",
            &name,
            "--schema",
            schema,
            "--table",
            "other_event",
        ]));
        for grant in printed.expect(0).out.lines().filter(|line| !line.starts_with("--")) {
            execute(&target.url, grant).await;
        }
        for _ in 0..2 {
            migrator.run(&["migrate", "--table", "other_event"]).expect(0);
        }
        migrator.end().await;
        target.end().await;
    }
}

#[test]
fn grants_for_sqlite_explain_that_it_has_no_roles() {
    let printed = finish(outbox(["migrate", "--database", "sqlite", "--print-grants", "writer"])).expect(0);
    assert!(printed.out.contains("permissions of the database file"), "{}", printed.out);
    finish(outbox(["migrate", "--database", "sqlite", "--role-name", "x"])).expect(2);
    finish(outbox(["migrate", "--database", "sqlite", "--print-grants", "boss"])).expect(2);
}
