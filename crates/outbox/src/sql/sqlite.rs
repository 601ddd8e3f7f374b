//! The SQLite dialect: one writer, no row locks, times as text, lists as JSON.

use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::query::Query;
use sqlx::sqlite::{
    Sqlite, SqliteArguments, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool,
    SqlitePoolOptions, SqliteSynchronous,
};

use super::StoreOptions;
use super::dialect::{
    BirthLease, Columns, Dialect, NewRow, Noting, Pools, Render, StoredRow, Value, Which, plumbing,
    stored_rows,
};
use super::inbox::returned;
use super::names::{Listed, Names, Statement, nth};
use super::sessions::Sessions;
use super::statements::insert_values;
use super::warm;
use crate::error::{Error, Result, without_credentials};
use crate::store::{Completion, Holder, OnDead};

/// How many rows go into one INSERT: below the 32,766 placeholders that SQLite allows.
const CHUNK: usize = 500;

/// Rows of a settlement batch that their holder still holds. A cross join: SQLite then keeps the
/// order, and looks up each member of the batch instead of each event.
const BATCH: &str = "SELECT e.seq, s.value ->> 2 AS status, s.value ->> 3 AS counted, s.value ->> 4 AS after, \
    s.value ->> 5 AS error FROM json_each($3) s CROSS JOIN {events} e ON e.event_id = s.value ->> 0 \
    AND e.claims = s.value ->> 1 AND e.status IN (0, 2)";

impl Dialect for Sqlite {
    const QUOTE: char = '"';
    // A transaction that reads first and writes later may fail at once with BUSY, whatever the
    // timeout.
    const BEGIN: Option<&'static str> = Some("BEGIN IMMEDIATE");
    const MIGRATIONS: &'static [&'static str] = &[
        include_str!("../../migrations/sqlite/0001_outbox_event.sql"),
        include_str!("../../migrations/sqlite/0002_joins.sql"),
        include_str!("../../migrations/sqlite/0003_inbox.sql"),
        include_str!("../../migrations/sqlite/0004_log.sql"),
        include_str!("../../migrations/sqlite/0005_topic_progress.sql"),
        include_str!("../../migrations/sqlite/0006_node.sql"),
        include_str!("../../migrations/sqlite/0007_attempt_audit.sql"),
        include_str!("../../migrations/sqlite/0008_hardening.sql"),
        include_str!("../../migrations/sqlite/0009_due_at.sql"),
        include_str!("../../migrations/sqlite/0010_order.sql"),
    ];
    const SCHEMAS: bool = false;
    const ARRAYS: bool = false;
    const LATERAL: bool = false;
    const ONCE: &'static str = "INSERT INTO {inbox} (consumer, event_id, received_at) VALUES ($1, $2, {now}) \
        ON CONFLICT DO NOTHING";
    const BY_AGGREGATE: &'static str =
        "INSERT OR IGNORE INTO {leases} (name, epoch) VALUES ('by_aggregate', 0)";
    const NEW_LEASE: &'static str = "INSERT OR IGNORE INTO {leases} (name, epoch) VALUES ($1, 0)";

    /// For `GLOB`: SQLite's `LIKE` ignores case.
    fn pattern(pattern: &str) -> String {
        let letter = |c: char| match c {
            '?' | '[' => format!("[{c}]"),
            c => c.to_string(),
        };
        pattern.chars().map(letter).collect()
    }

    fn fragment(slot: &str) -> String {
        let (word, rest) = slot.split_once(' ').unwrap_or((slot, ""));
        match (word, rest) {
            ("now", _) => "strftime('%Y-%m-%d %H:%M:%f', 'now')".to_owned(),
            ("later", n) => {
                format!("strftime('%Y-%m-%d %H:%M:%f', {{now}}, printf('+%.3f seconds', {n} / 1000000.0))")
            }
            ("earlier", n) => {
                format!("strftime('%Y-%m-%d %H:%M:%f', {{now}}, printf('-%.3f seconds', {n} / 1000000.0))")
            }
            ("time", n) => n.to_owned(),
            ("pending", "") => "e.status IN (0, 2)".to_owned(),
            // With the condition of the index of keys, which SQLite does not deduce.
            ("pending", "of later") => "o.status IN (0, 2) AND o.status <> 1".to_owned(),
            ("pending", "of key") => "status IN (0, 2) AND status <> 1".to_owned(),
            ("pending", _) => "status IN (0, 2)".to_owned(),
            ("dead", _) => "e.status = 3".to_owned(),
            ("frontier", _) => "k.value ->> 1".to_owned(),
            ("destination", _) => "k.value ->> 3".to_owned(),
            ("held", _) => "e.locked_until > {now}".to_owned(),
            ("free", _) => "(e.locked_until IS NULL OR e.locked_until <= {now})".to_owned(),
            ("holder", _) => "e.locked_by".to_owned(),
            ("until", _) => "e.locked_until".to_owned(),
            ("int" | "flag", x) => format!("({x})"),
            ("json", x) => x.to_owned(),
            ("to", json) => json.trim_start_matches("json ").to_owned(),
            ("in", list) => match list.split_once(' ').unwrap_or_default() {
                ("rows", list) => {
                    format!("IN (SELECT j.value ->> 0, j.value ->> 1 FROM json_each({list}) j)")
                }
                (_, list) => format!("IN (SELECT j.value FROM json_each({list}) j)"),
            },
            ("fits", n) => format!("GLOB {n}"),
            ("listed", listed) => format!("{{{}}}", Listed::parse(listed).table),
            ("from", listed) => format!("FROM {{{listed}}}"),
            ("where", listed) => {
                let Listed { column, kind, list, .. } = Listed::parse(listed);
                format!("WHERE {column} {{in {kind} {list}}}")
            }
            ("pairs", n) => format!(
                "(SELECT j.value ->> 'of_topic' AS of_topic, j.value ->> 'of_publisher' AS of_publisher, \
                 j.value ->> 'at_head' AS at_head, j.value ->> 'of_epoch' AS of_epoch, \
                 j.value ->> 'old_position' AS old_position, j.value ->> 'new_position' AS new_position, \
                 j.value ->> 'new_status' AS new_status, j.value ->> 'new_errors' AS new_errors, \
                 j.value ->> 'new_error' AS new_error FROM json_each({n}) j) s"
            ),
            ("paired", n) => format!(
                "{{pairs {n}}} CROSS JOIN {{progress}} e ON e.topic = s.of_topic AND e.publisher = s.of_publisher"
            ),
            // One writer: a write transaction locks all rows.
            ("skip" | "lock", _) => String::new(),
            // The left side is the smaller one; SQLite keeps the order of a cross join.
            ("then", _) => "CROSS JOIN".to_owned(),
            ("by", _) => String::new(),
            ("unsettled", _) => "e.status <> 1".to_owned(),
            // Another program may have written a time with more or fewer digits than the value that
            // was read, and times are compared as text: the value is read from the row itself, if
            // it has not moved since.
            ("place", place) => {
                let (column, at, seq) = (nth(place, 0), nth(place, 1), nth(place, 2));
                format!(
                    "COALESCE((SELECT x.{column} FROM {{events}} x WHERE x.seq = {seq} \
                     AND abs(julianday(x.{column}) - julianday({at})) < 0.000000024), {at})"
                )
            }
            // Unlike `length` of a text, `octet_length` reads the header of the record and not the
            // value.
            ("bytes", x) => format!("octet_length({x})"),
            ("aggregate", _) => "COALESCE(aggregate_type, '__GLOBAL__') || '/' || aggregate_id".to_owned(),
            ("size", _) => "COALESCE(octet_length(e.payload), octet_length(e.payload_bytes))".to_owned(),
            ("bounded", value) => match value.split_once(' ') {
                Some(("json", x)) => format!(
                    "CASE WHEN octet_length({x}) <= {{most}} THEN {x} \
                     WHEN {x} IS NOT NULL THEN '!' || octet_length({x}) END"
                ),
                Some((_, x)) => format!("CASE WHEN octet_length({x}) <= {{most}} THEN {x} END"),
                None => String::new(),
            },
            _ => unreachable!("no fragment {slot:?}"),
        }
    }

    fn literal(time: DateTime<Utc>) -> String {
        format!("'{}'", text(time))
    }

    fn statement(text: String, _: &Names) -> Statement {
        // `$1` would be a named parameter to SQLite, and names are searched one by one.
        Statement::numbered(text.replace('$', "?"))
    }

    fn stops(on_dead: OnDead) -> &'static str {
        match on_dead {
            OnDead::Hold => {
                "WITH s AS MATERIALIZED (SELECT k.value ->> 0 AS id, k.value ->> 3 AS destination, \
                 (SELECT o.seq FROM {events} o WHERE o.ordering_key = k.value ->> 0 AND {past} AND o.seq < k.value ->> 2 \
                 AND o.status <> 1 AND o.seq NOT {in ints $2} ORDER BY o.seq LIMIT 1) AS stop FROM json_each($1) k) \
                 SELECT s.id, s.destination, s.stop, (SELECT e.event_type FROM {events} e WHERE e.seq = s.stop) FROM s"
            }
            OnDead::Skip => {
                "WITH s AS MATERIALIZED (SELECT k.value ->> 0 AS id, k.value ->> 3 AS destination, \
                 (SELECT o.seq FROM {events} o WHERE o.ordering_key = k.value ->> 0 AND {past} AND o.seq < k.value ->> 2 \
                 AND o.status <> 1 AND o.status <> 3 AND o.seq NOT {in ints $2} ORDER BY o.seq LIMIT 1) AS stop \
                 FROM json_each($1) k) \
                 SELECT s.id, s.destination, s.stop, (SELECT e.event_type FROM {events} e WHERE e.seq = s.stop) FROM s"
            }
        }
    }

    fn settle_done(completion: Completion, by: &Holder, which: Which) -> String {
        let (holds, which) = (fence(by), which.condition());
        match completion {
            Completion::Delete => {
                format!(
                    "DELETE FROM {{events}} WHERE seq IN (SELECT b.seq FROM ({BATCH} AND {holds}{which}) b)"
                )
            }
            Completion::Keep => format!(
                "UPDATE {{events}} SET status = 1, done_at = {{now}}, done_by = $1, locked_by = NULL, locked_until = NULL \
                 WHERE seq IN (SELECT b.seq FROM ({BATCH} AND {holds}{which}) b)"
            ),
        }
    }

    fn settle_rest(by: &Holder, which: Which) -> String {
        let (holds, which) = (fence(by), which.condition());
        // Materialized, because SQLite would otherwise scan all events and read the batch for each.
        format!(
            "WITH b AS MATERIALIZED ({BATCH} AND {holds}{which}) \
             UPDATE {{events}} SET status = COALESCE(b.status, {{events}}.status), claims = claims + 1, attempts = attempts + b.counted, \
             available_at = CASE WHEN b.after IS NULL OR b.status IS NULL THEN available_at ELSE {{later b.after}} END, \
             last_error = COALESCE(b.error, last_error), done_at = CASE WHEN b.status = 3 THEN {{now}} END, \
             done_by = CASE WHEN b.status = 3 THEN $1 END, locked_by = NULL, \
             locked_until = CASE WHEN b.status IS NULL AND b.after IS NOT NULL THEN {{now}} END, \
             crashes = CASE WHEN b.status IS NULL THEN crashes ELSE 0 END \
             FROM b WHERE {{events}}.seq = b.seq"
        )
    }

    fn hold_batch(by: &Holder) -> String {
        let holds = fence(by);
        format!(
            "SELECT e.event_id, e.joined FROM json_each($3) s CROSS JOIN {{events}} e ON e.event_id = s.value ->> 0 \
             AND e.claims = s.value ->> 1 AND e.status IN (0, 2) AND {holds}"
        )
    }

    fn note_attempts(by: &Holder, which: Which) -> Noting {
        let (holds, which) = (fence(by), which.condition());
        Noting::First(format!(
            "INSERT INTO {{attempts}} (event_id, failed_at, number, node, fatal, error) \
             SELECT e.event_id, {{now}}, e.attempts + (s.value ->> 3), $1, COALESCE(s.value ->> 2 = 3, 0), \
             COALESCE(s.value ->> 5, '') FROM json_each($3) s CROSS JOIN {{events}} e ON e.event_id = s.value ->> 0 \
             AND e.claims = s.value ->> 1 AND e.status IN (0, 2) AND {holds}{which} \
             WHERE s.value ->> 3 = 1 OR s.value ->> 2 = 3"
        ))
    }

    fn count_joins() -> &'static str {
        "UPDATE {joins} SET attached_steps = s.value ->> 1, completed_steps = s.value ->> 2, \
         failed_steps = s.value ->> 3, status = s.value ->> 4, updated_at = {now} \
         FROM json_each($1) s WHERE join_id = s.value ->> 0"
    }

    fn is_already_there(error: &sqlx::Error) -> bool {
        error.as_database_error().is_some_and(|e| e.message().starts_with("duplicate column name"))
    }

    fn extend() -> &'static str {
        "UPDATE {events} SET locked_until = {later $2} WHERE seq IN (\
         SELECT e.seq FROM json_each($3) s CROSS JOIN {events} e ON e.event_id = s.value ->> 0 \
         AND e.claims = s.value ->> 1 AND e.locked_by = $1 AND {pending})"
    }

    // SQLite has no estimate of the number of rows.
    const SIZE: &'static str = "SELECT (SELECT q.seq FROM sqlite_sequence q WHERE q.name = s.name), NULL \
        FROM (SELECT $1 AS schema, $2 AS name) s";

    const ANNOUNCE: &'static str = "INSERT INTO {nodes} (node, started_at, seen_at, state) VALUES ($1, {now}, {now}, $2) \
        ON CONFLICT (node) DO UPDATE SET seen_at = {now}, state = excluded.state";

    // `WHERE` is needed, or SQLite would read `ON` as a part of the join.
    const REGISTER: &'static str = "INSERT INTO {progress} (topic, publisher, last_position, created_at, updated_at) \
        SELECT s.of_topic, s.of_publisher, \
        CASE WHEN s.at_head = 1 THEN COALESCE((SELECT max(position) FROM {log}), 0) ELSE 0 END, {now}, {now} \
        FROM {pairs $1} WHERE TRUE ON CONFLICT DO NOTHING";

    fn change_pairs(list: &str, set: &str, condition: &str) -> String {
        format!(
            "UPDATE {{progress}} AS e SET {set} FROM {{pairs {list}}} \
             WHERE e.topic = s.of_topic AND e.publisher = s.of_publisher AND {condition}"
        )
    }

    fn purge_inbox(limit: usize) -> String {
        format!(
            "DELETE FROM {{inbox}} WHERE (consumer, event_id) IN (\
             SELECT i.consumer, i.event_id FROM {{inbox}} i WHERE i.received_at < {{earlier $1}} \
             ORDER BY i.received_at LIMIT {limit} {{skip locked}})"
        )
    }

    async fn once_each(
        sql: &dyn Render,
        conn: &mut SqliteConnection,
        consumer: &str,
        ids: Value,
    ) -> Result<Vec<String>, sqlx::Error> {
        // `WHERE` is needed, or SQLite would read `ON` as a part of the join.
        let insert = sql.render(
            "INSERT INTO {inbox} (consumer, event_id, received_at) SELECT $1, j.value, {now} FROM json_each($2) j \
             WHERE TRUE ON CONFLICT DO NOTHING RETURNING event_id",
        );
        returned::<Self>(conn, insert, vec![Value::text(consumer), ids]).await
    }

    // One connection writes: transactions queue for it in order instead of colliding.
    const AT_ONCE: usize = 1;

    fn options(url: &str, patience: Duration) -> Result<SqliteConnectOptions> {
        // Less than the patience: the caller gets the error that the file is locked, and no thread
        // is left waiting for the file.
        let options = connect_options(url)?.busy_timeout(patience.mul_f64(0.8));
        if is_in_memory(&options) {
            let reason = "a fleet closes idle connections, which deletes a database in memory: use a file";
            return Err(Error::Url { url: url.to_owned(), reason: reason.to_owned() });
        }
        Ok(options)
    }

    fn creating(options: SqliteConnectOptions, create: bool) -> SqliteConnectOptions {
        options.create_if_missing(create)
    }

    async fn connect(url: &str, options: &StoreOptions) -> Result<Pools<Self>> {
        let connect = connect_options(url)?;
        // One connection writes: transactions queue for it in order instead of colliding.
        let write = pool(1).connect_with(connect).await?;
        Ok(Self::beside(&write, options, Sessions::own()).own())
    }

    fn beside(write: &SqlitePool, options: &StoreOptions, sessions: Sessions) -> Pools<Self> {
        let connect = write.connect_options();
        let read = if is_in_memory(&connect) {
            write.clone()
        } else {
            pool(options.max_connections).connect_lazy_with((*connect).clone())
        };
        Pools::new(write, write.clone(), read, sessions)
    }

    async fn insert(
        sql: &dyn Render,
        conn: &mut SqliteConnection,
        rows: &[NewRow],
        birth: Option<&BirthLease>,
        dated: bool,
    ) -> Result<Option<Vec<StoredRow>>> {
        let dedup = rows.iter().any(|r| r.event.dedup_key().is_some());
        let mut stored = Vec::new();
        for rows in rows.chunks(CHUNK) {
            let (mut text, values) = insert_values(rows, birth);
            if !dedup && !dated {
                Self::run(conn, sql.render(&text), values).await?;
                continue;
            }
            if dedup {
                text.push_str(" ON CONFLICT (dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING");
            }
            text.push_str(if dated { " RETURNING event_id, created_at" } else { " RETURNING event_id" });
            let rows = Self::fetch(conn, sql.render(&text), values).await?;
            stored.extend(stored_rows::<Self>(&rows, dated)?);
        }
        Ok((dedup || dated).then_some(stored))
    }

    async fn lock_migrations(_: &mut SqliteConnection, _: &Names) -> Result<bool> {
        // The transaction that migrates is the only writer.
        Ok(true)
    }

    // A full disk, an I/O error or a trigger may end a transaction. Then ROLLBACK fails, and the
    // driver treats the transaction as open until a ROLLBACK succeeds. Closing the connection would
    // help as well, but would lose a database in memory.
    async fn reopen_transaction(conn: &mut SqliteConnection, depth: usize) -> bool {
        let savepoints = (1..depth).map(|n| format!("; SAVEPOINT _sqlx_savepoint_{n}"));
        Self::script(conn, format!("BEGIN{}", savepoints.collect::<String>())).await.is_ok()
    }

    fn is_missing_table(error: &sqlx::Error) -> bool {
        error.as_database_error().is_some_and(|e| e.message().contains("no such table"))
    }

    fn is_duplicate_id(error: &sqlx::Error) -> bool {
        error
            .as_database_error()
            .is_some_and(|e| e.is_unique_violation() && e.message().ends_with(".event_id"))
    }

    plumbing!(bind);
}

/// Returns the condition that keeps a settlement from changing a row that its holder has lost.
fn fence(by: &Holder) -> &'static str {
    match by {
        Holder::Lease { .. } => "e.locked_by = $1 AND $2 IS NOT NULL",
        Holder::Exclusive { .. } => {
            "EXISTS (SELECT 1 FROM {leases} l WHERE l.name = 'exclusive' AND l.holder = $1 AND l.epoch = $2)"
        }
    }
}

fn connect_options(url: &str) -> Result<SqliteConnectOptions> {
    Ok(SqliteConnectOptions::from_str(url)
        .map_err(|e| Error::Url { url: without_credentials(url), reason: e.to_string() })?
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(Duration::from_secs(30)))
}

fn is_in_memory(connect: &SqliteConnectOptions) -> bool {
    let file = connect.get_filename().to_string_lossy();
    file.is_empty()
        || file.contains(":memory:")
        || file.contains("mode=memory")
        || file.contains("sqlx-in-memory")
}

fn pool(max_connections: u32) -> SqlitePoolOptions {
    // An in-memory database is its connection: none may be closed.
    warm::pool(max_connections).idle_timeout(None).max_lifetime(None)
}

/// A time as the tables store it: comparable as text, readable by SQLite's own functions.
fn text(time: DateTime<Utc>) -> String {
    time.format("%Y-%m-%d %H:%M:%S%.3f").to_string()
}

fn bind(
    mut query: Query<'_, Sqlite, SqliteArguments>,
    _: Option<Vec<usize>>,
    values: Vec<Value>,
) -> Query<'_, Sqlite, SqliteArguments> {
    for value in values {
        query = match value {
            Value::Int(v) => query.bind(v),
            Value::Text(v) => query.bind(v),
            Value::Bytes(v) => query.bind(v),
            Value::Time(v) => query.bind(v.map(text)),
            list => query.bind(list.into_json()),
        };
    }
    query
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::SqlStore;
    use crate::store::{PageRequest, StatusGroup, Store as _};

    /// Query plan of a statement.
    async fn plan(store: &SqlStore<Sqlite>, template: &str, values: Vec<Value>) -> Vec<String> {
        let rows = store.fetch(&format!("EXPLAIN QUERY PLAN {template}"), values).await.unwrap();
        rows.iter().filter_map(|row| Sqlite::text(row, 3).unwrap()).collect()
    }

    /// A scan of an index ends at its limit; a scan of the table does not.
    fn assert_searched(plan: &[String], what: &str) {
        let (whole, alias) = (plan.iter().any(|step| step == "SCAN outbox_event"), "SCAN e");
        assert!(!whole && !plan.iter().any(|step| step == alias), "{what}: {plan:#?}");
    }

    #[tokio::test]
    async fn a_key_is_taken_over_by_the_index_of_keys() {
        let store = SqlStore::<Sqlite>::open("sqlite::memory:", &StoreOptions::default()).await.unwrap();
        store.migrate().await.unwrap();
        let fenced = Value::Time(Some(crate::sql::statements::FENCED));
        let values = vec![Value::texts(["key"]), Value::text("a"), fenced];
        let plan = plan(&store, crate::sql::statements::FENCE, values).await;
        let searched = "SEARCH outbox_event USING INDEX outbox_event_key (ordering_key=?)";
        assert!(plan.iter().any(|step| step == searched), "{plan:#?}");
    }

    #[tokio::test]
    async fn no_settlement_and_no_page_reads_the_whole_table() {
        let store = SqlStore::<Sqlite>::open("sqlite::memory:", &StoreOptions::default()).await.unwrap();
        store.migrate().await.unwrap();
        let by = Holder::Lease { owner: "a".into(), lease: Duration::from_secs(1) };
        let batch = || vec![Value::text("a"), Value::Int(0), Value::text("[]")];
        for which in [Which::Plain, Which::All] {
            let done = [Completion::Keep, Completion::Delete].map(|c| Sqlite::settle_done(c, &by, which));
            let Noting::First(note) = Sqlite::note_attempts(&by, which) else {
                panic!("SQLite needs two statements")
            };
            let rest = [Sqlite::settle_rest(&by, which), note];
            for statement in done.into_iter().chain(rest) {
                assert_searched(&plan(&store, &statement, batch()).await, &statement);
            }
        }
        for status_group in [StatusGroup::Pending, StatusGroup::Done, StatusGroup::Dead] {
            for newest_first in [false, true] {
                let mut ask = PageRequest { status_group, newest_first, ..PageRequest::default() };
                for after in [None, Some(crate::store::Cursor { at: Utc::now(), seq: 7 })] {
                    ask.after = after;
                    for key in [None, Some("k".to_owned())] {
                        ask.filter.ordering_key = key;
                        let (statement, values) = crate::sql::page::statement::<Sqlite>(&ask, 50, 5_000);
                        let plan = plan(&store, &statement, values).await;
                        assert_searched(&plan, &statement);
                        let mut looking = plan.iter().take_while(|step| *step != "SCAN w");
                        assert!(
                            looking.clone().any(|step| step.contains(" e USING INDEX outbox_event_")),
                            "{plan:#?}"
                        );
                        assert!(
                            !looking.any(|step| step.contains("TEMP B-TREE")),
                            "the plan sorts: {plan:#?}"
                        );
                    }
                }
            }
        }
    }
}
