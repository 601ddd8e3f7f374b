//! Least-privilege roles: the privileges that each way of using the tables needs, as GRANT
//! statements.

#![cfg_attr(
    not(any(feature = "postgres", feature = "mysql")),
    allow(dead_code, unused_imports, unused_variables, reason = "SQLite has no roles")
)]

use std::fmt::Write as _;

use super::names::Names;
use super::{DatabaseKind, StoreOptions};
use crate::error::Result;

/// A way of using the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DatabaseRole {
    /// Inserts events, by SQL or with `outbox send`. Cannot read payloads or write the relay's
    /// columns.
    Writer,
    /// Runs a relay, publishes the log, serves the dashboard; repairs from the command line.
    Relay,
    /// Reads status, events, dead, joins, log, explain. Changes nothing.
    Viewer,
    /// Creates and upgrades the tables.
    Migrator,
}

/// Columns that writers set. Includes `created_at`, to which the library writes the database's
/// time.
const WRITER: &str = "event_id, event_type, aggregate_type, aggregate_id, tenant_id, ordering_key, correlation_id, \
    dedup_key, headers, payload, payload_bytes, content_type, occurred_at, created_at, available_at, due_at, expires_at";

/// Columns that writers set in the log, whose position a trigger draws on PostgreSQL.
const LOG_WRITER: &str = "event_id, event_type, tags, aggregate_type, aggregate_id, tenant_id, ordering_key, \
    correlation_id, headers, payload, payload_bytes, content_type, occurred_at";

/// Tables that every database has, except the version, which only a migration writes, and the
/// audit, from which nothing is ever deleted.
const TABLES: &[&str] = &[
    "events",
    "leases",
    "joins",
    "members",
    "inbox",
    "nodes",
    "attempts",
    "log",
    "log_tags",
    "progress",
    "log_unreadable",
];

/// Statements that grant a role its privileges, as text, to be run by an owner of the tables. The
/// tables must exist already, except for [`DatabaseRole::Migrator`].
///
/// `role` is the name of a role or user; for MySQL and MariaDB `user@host` names an account.
///
/// ```
/// use outbox::{DatabaseKind, DatabaseRole, StoreOptions, grants_sql};
///
/// let sql = grants_sql(DatabaseKind::Postgres, &StoreOptions::default(), DatabaseRole::Viewer, "bi")?;
/// assert!(sql.contains(r#"GRANT SELECT ON "outbox_event" TO "bi";"#));
/// # Ok::<(), outbox::Error>(())
/// ```
pub fn grants_sql(
    kind: DatabaseKind,
    options: &StoreOptions,
    what: DatabaseRole,
    role: &str,
) -> Result<String> {
    match kind {
        #[cfg(feature = "sqlite")]
        DatabaseKind::Sqlite => Ok(SQLITE.to_owned()),
        #[cfg(feature = "postgres")]
        DatabaseKind::Postgres => {
            let names = Names::new(options.schema.as_deref(), &options.table, '"')?;
            let role = format!("\"{}\"", role.replace('"', "\"\""));
            Ok(postgres(&names, options.schema.as_deref(), what, &role))
        }
        #[cfg(feature = "mysql")]
        DatabaseKind::MySql => {
            let names = Names::new(options.schema.as_deref(), &options.table, '`')?;
            let quoted = |name: &str| format!("`{}`", name.replace('`', "``"));
            let role = match role.rsplit_once('@') {
                Some((user, host)) => format!("{}@{}", quoted(user), quoted(host)),
                None => quoted(role),
            };
            Ok(mysql(&names, what, &role))
        }
    }
}

#[cfg(feature = "sqlite")]
const SQLITE: &str = "\
-- SQLite has no roles: the permissions of the database file and of its folder decide about read and write access.
-- Writers and relays write to both. A viewer needs to write there too, unless no other process has the file open:
-- readers of a database in WAL mode share memory with its writers.
";

/// Statements, one per line.
struct Grants<'a> {
    names: &'a Names,
    role: &'a str,
    text: String,
}

impl<'a> Grants<'a> {
    fn new(names: &'a Names, role: &'a str, about: &str) -> Self {
        Self { names, role, text: format!("-- {about}\n") }
    }

    fn named(&self, slot: &str) -> String {
        self.names.fill(slot).unwrap_or_default()
    }

    /// Adds a grant on a table, named by its slot in statements.
    fn on(&mut self, rights: &str, slot: &str) {
        let table = self.named(slot);
        let _ = writeln!(self.text, "GRANT {rights} ON {table} TO {};", self.role);
    }

    fn on_all(&mut self, rights: &str, slots: &[&str]) {
        slots.iter().for_each(|slot| self.on(rights, slot));
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }
}

const AGAIN: &str = "Run them again after an upgrade of the tables, which may add some.";

#[cfg(feature = "postgres")]
fn postgres(names: &Names, schema: Option<&str>, what: DatabaseRole, role: &str) -> String {
    // Schema names are checked, so quoting is sufficient.
    let schema = schema.unwrap_or("public");
    let mut grants = Grants::new(names, role, &format!("{} {AGAIN}", about(what)));
    let usage = |rights: &str| format!("GRANT {rights} ON SCHEMA \"{schema}\" TO {role};");
    match what {
        DatabaseRole::Writer => {
            grants.line(&usage("USAGE"));
            grants.on(&format!("INSERT ({WRITER})"), "events");
            grants.line("-- For deduplication keys, by which existing events are looked up.");
            grants.on("SELECT (event_id, dedup_key)", "events");
            grants.line("-- For `outbox send` and the library, which check the version of the tables.");
            grants.on("SELECT", "version");
            grants.line("-- For the event log.");
            grants.on(&format!("INSERT ({LOG_WRITER})"), "log");
            grants.on("INSERT", "log_tags");
            grants.on("USAGE", "log_seq");
            let (log, tags, sequence) =
                (grants.named("log"), grants.named("log_tags"), grants.named("log_seq"));
            grants.line("-- Applications that append with the library, and decide by what the log holds, need in addition:");
            grants.line(&format!("-- GRANT SELECT, INSERT ON {log}, {tags} TO {role};"));
            grants.line(&format!("-- GRANT SELECT ON SEQUENCE {sequence} TO {role};"));
        }
        DatabaseRole::Relay => {
            grants.line(&usage("USAGE"));
            grants.on_all("SELECT, INSERT, UPDATE, DELETE", TABLES);
            grants.on_all("SELECT, INSERT, UPDATE, DELETE", &["batches", "claim_lock"]);
            grants.on("SELECT, INSERT, UPDATE", "audits");
            grants.on("SELECT", "version");
            grants.on("SELECT, USAGE", "log_seq");
            grants.line("-- For mode `ordered`, which tells the table to order events by aggregate.");
            grants.on("USAGE", "by_aggregate");
        }
        DatabaseRole::Viewer => {
            grants.line(&usage("USAGE"));
            grants.on_all("SELECT", TABLES);
            grants.on_all("SELECT", &["batches", "audits", "version", "log_seq"]);
        }
        DatabaseRole::Migrator => {
            grants.line(&usage("USAGE, CREATE"));
            grants.line("-- Only the owner of a table can change it. For tables that another role created:");
            for slot in TABLES.iter().chain(&["batches", "claim_lock", "audits", "version"]) {
                let table = grants.named(slot);
                grants.line(&format!("-- ALTER TABLE {table} OWNER TO {role};"));
            }
            for slot in ["log_seq", "by_aggregate"] {
                let sequence = grants.named(slot);
                grants.line(&format!("-- ALTER SEQUENCE {sequence} OWNER TO {role};"));
            }
            for (slot, arguments) in [
                ("order_key", "()"),
                ("log_insert", "()"),
                ("log_refuse", "()"),
                ("call", "()"),
                ("log_lock", ""),
                ("log_settled", ""),
                ("log_append", ""),
            ] {
                let function = grants.named(slot);
                grants.line(&format!("-- ALTER FUNCTION {function}{arguments} OWNER TO {role};"));
            }
        }
    }
    // GRANT needs the word SEQUENCE before the name of a sequence.
    let name_sequence = |text: String, slot: &str| {
        let sequence = grants.named(slot);
        text.replace(&format!(" ON {sequence} TO"), &format!(" ON SEQUENCE {sequence} TO"))
    };
    ["log_seq", "by_aggregate"].into_iter().fold(grants.text.clone(), name_sequence)
}

#[cfg(feature = "mysql")]
fn mysql(names: &Names, what: DatabaseRole, role: &str) -> String {
    let mut grants = Grants::new(names, role, &format!("{} {AGAIN}", about(what)));
    match what {
        DatabaseRole::Writer => {
            grants.on(&format!("INSERT ({WRITER})"), "events");
            grants.on("SELECT (event_id, dedup_key)", "events");
            grants.line("-- Rows to lock while an event with an ordering key is written.");
            grants.on("SELECT, UPDATE", "keys");
            grants.line("-- For `outbox send` and the library, which check the version of the tables.");
            grants.on("SELECT", "version");
            let events = grants.named("events");
            grants.line("-- Deduplication keys with the library need in addition (with SQL, INSERT IGNORE does without).");
            grants.line("-- MariaDB asks for UPDATE on each column that the statement inserts.");
            grants.line(&format!("-- GRANT SELECT (event_type), UPDATE ({WRITER}) ON {events} TO {role};"));
            grants.line("-- For the event log, whose position writers draw themselves.");
            grants.on(&format!("INSERT (position, {LOG_WRITER})"), "log");
            grants.on("INSERT", "log_tags");
            grants.on("SELECT, UPDATE", "log_head");
            let (log, tags) = (grants.named("log"), grants.named("log_tags"));
            grants.line("-- Applications that append with the library, and decide by what the log holds, need in addition:");
            grants.line(&format!("-- GRANT SELECT, INSERT ON {log} TO {role};"));
            grants.line(&format!("-- GRANT SELECT, INSERT ON {tags} TO {role};"));
        }
        DatabaseRole::Relay => {
            grants.on_all("SELECT, INSERT, UPDATE, DELETE", TABLES);
            grants.on("SELECT, INSERT, UPDATE", "audits");
            grants.on("SELECT, UPDATE", "log_head");
            grants.on("SELECT", "version");
            grants.line("-- INSERT for mode `ordered`, which tells the table to order events by aggregate.");
            grants.on("SELECT, INSERT, UPDATE", "keys");
        }
        DatabaseRole::Viewer => {
            grants.on_all("SELECT", TABLES);
            grants.on_all("SELECT", &["audits", "keys", "log_head", "version"]);
        }
        DatabaseRole::Migrator => {
            let rights = "CREATE, ALTER, INDEX, DROP, REFERENCES, SELECT, INSERT, UPDATE, DELETE";
            grants.on_all(rights, TABLES);
            grants.on_all(rights, &["audits", "keys", "log_head", "version"]);
            grants.line("-- For the trigger that keeps plain SQL writers of one ordering key in order. On a server with a");
            grants.line("-- binary log the right is not enough without log_bin_trust_function_creators = 1.");
            grants.on(&format!("{rights}, TRIGGER"), "events");
        }
    }
    grants.text
}

fn about(what: DatabaseRole) -> &'static str {
    match what {
        DatabaseRole::Writer => "Rights of a writer: inserts events, reads no payload.",
        DatabaseRole::Relay => "Rights of a relay, with the dashboard and repairs at the command line.",
        DatabaseRole::Viewer => "Rights of a viewer: reads everything, payloads too, and changes nothing.",
        DatabaseRole::Migrator => "Rights to create and upgrade the tables.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "postgres")]
    fn names_are_quoted_and_in_their_schema() {
        let options = StoreOptions::default().schema("billing").table("orders_event");
        let sql = grants_sql(DatabaseKind::Postgres, &options, DatabaseRole::Relay, "o\"x; --").unwrap();
        assert!(sql.contains(r#"GRANT SELECT ON "billing"."orders_event_schema" TO "o""x; --";"#), "{sql}");
        assert!(
            sql.contains(r#"GRANT SELECT, USAGE ON SEQUENCE "billing"."orders_log_seq" TO "o""x; --";"#),
            "{sql}"
        );
        assert!(sql.contains(r#"GRANT USAGE ON SCHEMA "billing" TO "o""x; --";"#), "{sql}");
    }

    #[test]
    #[cfg(feature = "mysql")]
    fn an_account_is_a_user_at_a_host() {
        let options = StoreOptions::default();
        let of = |role: &str| grants_sql(DatabaseKind::MySql, &options, DatabaseRole::Viewer, role).unwrap();
        assert!(of("bi@10.%").contains("GRANT SELECT ON `outbox_event` TO `bi`@`10.%`;"));
        assert!(of("b`i").contains("GRANT SELECT ON `outbox_event` TO `b``i`;"));
    }

    #[test]
    #[cfg(all(feature = "postgres", feature = "mysql"))]
    fn no_table_is_forgotten() {
        let options = StoreOptions::default();
        for kind in [DatabaseKind::Postgres, DatabaseKind::MySql] {
            let script = super::super::migration_sql(kind, &options).unwrap();
            let tables: Vec<&str> = script
                .lines()
                .filter_map(|line| line.strip_prefix("CREATE TABLE IF NOT EXISTS "))
                .filter_map(|rest| rest.split(' ').next())
                .collect();
            assert!(tables.len() > 10, "{tables:?}");
            for role in [DatabaseRole::Relay, DatabaseRole::Viewer, DatabaseRole::Migrator] {
                let grants = grants_sql(kind, &options, role, "r").unwrap();
                // A viewer takes no events, so it needs no access to the claim lock.
                let needed = |table: &&&str| role != DatabaseRole::Viewer || !table.contains("_claim_lock");
                for table in tables.iter().filter(needed) {
                    assert!(grants.contains(&format!(" {table} ")), "{kind:?} {role:?} lacks {table}");
                }
            }
        }
    }

    #[test]
    #[cfg(feature = "sqlite")]
    fn sqlite_says_that_files_decide() {
        let sql =
            grants_sql(DatabaseKind::Sqlite, &StoreOptions::default(), DatabaseRole::Writer, "w").unwrap();
        assert!(sql.lines().all(|line| line.starts_with("--")) && sql.contains("permissions"));
    }
}
