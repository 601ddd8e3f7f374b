//! Dialect of MySQL and MariaDB: no arrays, no partial indexes, no `UPDATE … RETURNING`. `tidb.rs`
//! rewrites the statements that TiDB does not accept.
//!
//! Sessions are READ COMMITTED: under REPEATABLE READ a `SKIP LOCKED` claim that finds nothing
//! locks the gap and blocks the application's inserts.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::Connection as _;
use sqlx::mysql::{
    MySql, MySqlArguments, MySqlConnectOptions, MySqlConnection, MySqlDatabaseError, MySqlPool,
};
use sqlx::query::Query;

use super::StoreOptions;
use super::dialect::{
    BirthLease, Columns, Dialect, NewRow, Noting, Pools, Render, StoredRow, Value, Which, plumbing,
    stored_rows,
};
use super::inbox::returned;
use super::names::{Listed, Names, Statement, nth, render};
use super::sessions::Sessions;
use super::statements::insert_values;
use super::tidb;
use super::warm::pool;
use crate::connect;
use crate::error::Result;
use crate::store::{Completion, Holder, OnDead};

/// Maximum number of rows in one INSERT: well below the protocol's limit of 65,535 placeholders.
const CHUNK: usize = 1_000;

/// Returns the times of inserted rows on MariaDB. MySQL cannot, and treats the clause as a comment:
/// a separate statement then reads the times.
const RETURNING_TIMES: &str = " /*M!100500 RETURNING event_id, created_at */";

/// Keeps writers of one ordering key in order. Not a numbered migration, because a server may
/// refuse it.
const ORDER_TRIGGER: &str = include_str!("../../migrations/mysql/order_trigger.sql");

/// Number of rows in the table of key locks.
const KEY_SLOTS: u32 = 16_384;

/// A settlement batch as a table. STRAIGHT_JOIN starts from the batch: the optimizer must not start
/// from the events.
const BATCH: &str = "JSON_TABLE($3, '$[*]' COLUMNS (id varchar(36) {exact} PATH '$[0]', claim int PATH '$[1]', \
    status smallint PATH '$[2]', counted int PATH '$[3]', after bigint PATH '$[4]', error text {exact} PATH '$[5]')) s \
    STRAIGHT_JOIN {events} e FORCE INDEX ({events_id}) ON e.event_id = s.id AND e.claims = s.claim";

/// Collation of the text columns: by bytes, trailing spaces included. MySQL and MariaDB each have
/// their own name for it, and each reads only its own kind of comment. A list from JSON must name
/// the collation too, or it has the database's default character set.
const EXACT: &str = "CHARACTER SET utf8mb4 COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */";

impl Dialect for MySql {
    const QUOTE: char = '`';
    const BEGIN: Option<&'static str> = None;
    const MIGRATIONS: &'static [&'static str] = &[
        include_str!("../../migrations/mysql/0001_outbox_event.sql"),
        include_str!("../../migrations/mysql/0002_joins.sql"),
        include_str!("../../migrations/mysql/0003_inbox.sql"),
        include_str!("../../migrations/mysql/0004_log.sql"),
        include_str!("../../migrations/mysql/0005_topic_progress.sql"),
        include_str!("../../migrations/mysql/0006_node.sql"),
        include_str!("../../migrations/mysql/0007_attempt_audit.sql"),
        include_str!("../../migrations/mysql/0008_hardening.sql"),
        include_str!("../../migrations/mysql/0009_due_at.sql"),
        include_str!("../../migrations/mysql/0010_order.sql"),
    ];
    // Under REPEATABLE READ a handler's transaction could not settle an event whose lease was
    // renewed after the transaction's first read, where snapshots are strict (MariaDB 11.6 and
    // later).
    const BEFORE_HANDLER: Option<&'static str> = Some("SET TRANSACTION ISOLATION LEVEL READ COMMITTED");
    const SCHEMAS: bool = true;
    const ARRAYS: bool = false;
    const LATERAL: bool = false;
    // Other errors that IGNORE would suppress, such as a text that is too long, are checked before.
    const ONCE: &'static str =
        "INSERT IGNORE INTO {inbox} (consumer, event_id, received_at) VALUES ($1, $2, {now})";
    // JSON_VALID rejects JSON nested more than 32 (MariaDB) or 100 (MySQL) levels deep.
    const CHECKS_JSON: bool = false;
    const BY_AGGREGATE: &'static str = "INSERT IGNORE INTO {keys} (slot) VALUES (-1)";
    const ORDER_TRIGGER: Option<&'static str> = Some(ORDER_TRIGGER);
    const NEW_LEASE: &'static str = "INSERT IGNORE INTO {leases} (name, epoch) VALUES ($1, 0)";

    fn fragment(slot: &str) -> String {
        let (word, rest) = slot.split_once(' ').unwrap_or((slot, ""));
        match (word, rest) {
            ("now", _) => "utc_timestamp(6)".to_owned(),
            ("later", n) => format!("({{now}} + INTERVAL {n} MICROSECOND)"),
            ("earlier", n) => format!("({{now}} - INTERVAL {n} MICROSECOND)"),
            ("time", n) => n.to_owned(),
            ("pending", "") => "e.lane = 0".to_owned(),
            ("pending", "of later") => "o.lane = 0".to_owned(),
            ("pending", _) => "lane = 0".to_owned(),
            ("dead", _) => "e.lane = 3".to_owned(),
            ("frontier", _) => "k.frontier".to_owned(),
            ("destination", _) => "k.destination".to_owned(),
            ("held", _) => "e.locked_until > {now}".to_owned(),
            ("free", _) => "(e.locked_until IS NULL OR e.locked_until <= {now})".to_owned(),
            ("holder", _) => "e.locked_by".to_owned(),
            ("until", _) => "e.locked_until".to_owned(),
            ("int", x) => format!("CAST({x} AS SIGNED)"),
            ("flag", x) => format!("CAST({x} AS SIGNED)"),
            ("json", x) => x.to_owned(),
            ("to", json) => json.trim_start_matches("json ").to_owned(),
            ("in", list) => match list.split_once(' ') {
                Some(("rows", n)) => format!(
                    "IN (SELECT j.a, j.b FROM JSON_TABLE({n}, '$[*]' COLUMNS (\
                     a varchar(255) {{exact}} PATH '$[0]', b varchar(255) {{exact}} PATH '$[1]')) j)"
                ),
                Some((kind, n)) => format!("IN (SELECT j.v FROM {})", list_table(kind, n)),
                None => String::new(),
            },
            ("fits", n) => format!("LIKE {n} ESCAPE '|'"),
            ("exact", _) => EXACT.to_owned(),
            // A join, because MariaDB runs a subquery of an UPDATE or DELETE once for each row of
            // the table.
            ("listed", listed) => {
                let Listed { table, column, kind, list } = Listed::parse(listed);
                // The index whose first column is this one. With another index every row of the
                // table is read, and locked by a statement that changes rows.
                let index = match (table, column) {
                    ("events", "event_id") => "{events_id}",
                    ("events", "ordering_key") => "{events_key}",
                    ("members", "event_id") => "{events_step_event}",
                    ("events", "seq")
                    | ("joins" | "members", "join_id")
                    | ("leases", "name")
                    | ("attempts", "attempt_id")
                    | ("audits", "audit_id")
                    | ("log", "position") => "PRIMARY",
                    _ => unreachable!("no index of {table} by {column}"),
                };
                format!(
                    "{} STRAIGHT_JOIN {{{table}}} e FORCE INDEX ({index}) ON e.{column} = j.v",
                    list_table(kind, list)
                )
            }
            ("from", listed) => format!("e FROM {{{listed}}}"),
            ("where", _) => "WHERE TRUE".to_owned(),
            ("pairs", n) => format!(
                "JSON_TABLE({n}, '$[*]' COLUMNS (of_topic varchar(100) {{exact}} PATH '$.of_topic', \
                 of_publisher varchar(100) {{exact}} PATH '$.of_publisher', at_head int PATH '$.at_head', \
                 of_epoch bigint PATH '$.of_epoch', old_position bigint PATH '$.old_position', \
                 new_position bigint PATH '$.new_position', new_status varchar(16) {{exact}} PATH '$.new_status', \
                 new_errors int PATH '$.new_errors', new_error text {{exact}} PATH '$.new_error')) s"
            ),
            // Joined from the list, row by row: this sets the order in which rows are locked.
            ("paired", n) => format!(
                "{{pairs {n}}} STRAIGHT_JOIN {{progress}} e FORCE INDEX (PRIMARY) \
                 ON e.topic = s.of_topic AND e.publisher = s.of_publisher"
            ),
            ("skip", _) => "FOR UPDATE SKIP LOCKED".to_owned(),
            // MySQL needs to know that the list is not to be locked; MariaDB has no syntax for it,
            // and ignores this kind of comment.
            ("lock", "listed") => "FOR UPDATE /*!80000 OF e */".to_owned(),
            ("lock", _) => "FOR UPDATE".to_owned(),
            // The table on the left is the smaller one.
            ("then", _) => "STRAIGHT_JOIN".to_owned(),
            ("by", index) => format!("FORCE INDEX ({{{index}}})"),
            ("unsettled", "dead") => "e.lane = 3".to_owned(),
            ("unsettled", _) => "e.lane = 0".to_owned(),
            ("place", place) => nth(place, 1).to_owned(),
            ("bytes", x) => format!("CAST(OCTET_LENGTH({x}) AS SIGNED)"),
            ("aggregate", _) => {
                "CONCAT(COALESCE(aggregate_type, '__GLOBAL__'), '/', aggregate_id)".to_owned()
            }
            ("size", _) => {
                "CAST(COALESCE(OCTET_LENGTH(e.payload), OCTET_LENGTH(e.payload_bytes)) AS SIGNED)".to_owned()
            }
            ("bounded", value) => match value.split_once(' ') {
                Some(("json", x)) => format!(
                    "CASE WHEN OCTET_LENGTH({x}) <= {{most}} THEN {x} \
                     WHEN {x} IS NOT NULL THEN CONCAT('!', OCTET_LENGTH({x})) END"
                ),
                Some((_, x)) => format!("CASE WHEN OCTET_LENGTH({x}) <= {{most}} THEN {x} END"),
                None => String::new(),
            },
            _ => unreachable!("no fragment {slot:?}"),
        }
    }

    fn literal(time: DateTime<Utc>) -> String {
        format!("timestamp'{}'", time.format("%Y-%m-%d %H:%M:%S%.6f"))
    }

    fn statement(text: String, names: &Names) -> Statement {
        Statement { product: Some(names.product.clone()), ..Statement::positional(&text) }
    }

    async fn adapt(
        conn: &mut MySqlConnection,
        statement: Statement,
        values: Vec<Value>,
    ) -> Result<(Statement, Vec<Value>), sqlx::Error> {
        match &statement.product {
            Some(product) if product.find_tidb(conn).await? => Ok(tidb::rewrite(statement, values)),
            _ => Ok((statement, values)),
        }
    }

    async fn gives_keys(conn: &mut MySqlConnection, names: &Names) -> Result<bool, sqlx::Error> {
        Ok(!names.product.find_tidb(conn).await?)
    }

    async fn take_turn(sql: &dyn Render, conn: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
        let is_tidb = sql.names().product.find_tidb(conn).await?;
        if is_tidb {
            Self::fetch(conn, sql.render(tidb::TAKE_TURN), Vec::new()).await?;
        }
        Ok(is_tidb)
    }

    fn migrations(names: &Names) -> &'static [&'static str] {
        if names.product.is_tidb() { tidb::MIGRATIONS } else { Self::MIGRATIONS }
    }

    fn stops(on_dead: OnDead) -> &'static str {
        // One search per lane: only then does the index return the first row without a sort. The
        // limit keeps the derived table from being merged, which would search twice.
        match on_dead {
            OnDead::Hold => {
                "SELECT s.id, s.destination, s.stop, (SELECT e.event_type FROM {events} e WHERE e.seq = s.stop) FROM (\
                 SELECT k.id, k.destination, NULLIF(LEAST(\
                 COALESCE((SELECT o.seq FROM {events} o WHERE o.ordering_key = k.id AND o.lane = 0 \
                 AND {past} AND o.seq < k.last AND o.seq NOT {in ints $2} ORDER BY o.seq LIMIT 1), 9223372036854775807), \
                 COALESCE((SELECT o.seq FROM {events} o WHERE o.ordering_key = k.id AND o.lane = 3 \
                 AND {past} AND o.seq < k.last ORDER BY o.seq LIMIT 1), 9223372036854775807)), 9223372036854775807) AS stop \
                 FROM JSON_TABLE($1, '$[*]' COLUMNS (id varchar(255) {exact} PATH '$[0]', frontier bigint PATH '$[1]', \
                 last bigint PATH '$[2]', destination bigint PATH '$[3]')) k LIMIT 9223372036854775807) s"
            }
            OnDead::Skip => {
                "SELECT s.id, s.destination, s.stop, (SELECT e.event_type FROM {events} e WHERE e.seq = s.stop) FROM (\
                 SELECT k.id, k.destination, (SELECT o.seq FROM {events} o WHERE o.ordering_key = k.id \
                 AND o.lane = 0 AND {past} AND o.seq < k.last AND o.seq NOT {in ints $2} ORDER BY o.seq LIMIT 1) AS stop \
                 FROM JSON_TABLE($1, '$[*]' COLUMNS (id varchar(255) {exact} PATH '$[0]', frontier bigint PATH '$[1]', \
                 last bigint PATH '$[2]', destination bigint PATH '$[3]')) k LIMIT 9223372036854775807) s"
            }
        }
    }

    fn settle_done(completion: Completion, by: &Holder, which: Which) -> String {
        let (holds, which) = (fence(by), which.condition());
        match completion {
            Completion::Delete => {
                format!("DELETE e FROM {BATCH} WHERE e.status IN (0, 2) AND {holds}{which}")
            }
            Completion::Keep => format!(
                "UPDATE {BATCH} SET e.status = 1, e.done_at = {{now}}, e.done_by = $1, e.locked_by = NULL, e.locked_until = NULL \
                 WHERE e.status IN (0, 2) AND {holds}{which}"
            ),
        }
    }

    fn settle_rest(by: &Holder, which: Which) -> String {
        let (holds, which) = (fence(by), which.condition());
        // Assignments run from left to right: expressions that read the old status come first.
        format!(
            "UPDATE {BATCH} SET e.done_at = CASE WHEN s.status = 3 THEN {{now}} END, \
             e.done_by = CASE WHEN s.status = 3 THEN $1 END, e.attempts = e.attempts + s.counted, \
             e.available_at = CASE WHEN s.after IS NULL OR s.status IS NULL THEN e.available_at \
                 ELSE {{now}} + INTERVAL COALESCE(s.after, 0) MICROSECOND END, \
             e.last_error = COALESCE(s.error, e.last_error), \
             e.crashes = CASE WHEN s.status IS NULL THEN e.crashes ELSE 0 END, \
             e.locked_by = NULL, \
             e.locked_until = CASE WHEN s.status IS NULL AND s.after IS NOT NULL THEN {{now}} END, \
             e.claims = e.claims + 1, e.status = COALESCE(s.status, e.status) \
             WHERE e.status IN (0, 2) AND {holds}{which}"
        )
    }

    fn hold_batch(by: &Holder) -> String {
        let holds = fence(by);
        format!(
            "SELECT e.event_id, CAST(e.joined AS SIGNED) FROM {BATCH} WHERE e.status IN (0, 2) AND {holds} {{lock listed}}"
        )
    }

    fn note_attempts(by: &Holder, which: Which) -> Noting {
        let (holds, which) = (fence(by), which.condition());
        Noting::First(format!(
            "INSERT INTO {{attempts}} (event_id, failed_at, number, node, fatal, error) \
             SELECT e.event_id, {{now}}, e.attempts + s.counted, $1, CASE WHEN s.status = 3 THEN 1 ELSE 0 END, \
             COALESCE(s.error, '') FROM {BATCH} \
             WHERE (s.counted = 1 OR s.status = 3) AND e.status IN (0, 2) AND {holds}{which} {{lock listed}}"
        ))
    }

    fn count_joins() -> &'static str {
        "UPDATE JSON_TABLE($1, '$[*]' COLUMNS (id varchar(36) {exact} PATH '$[0]', attached int PATH '$[1]', \
         completed int PATH '$[2]', failed int PATH '$[3]', status smallint PATH '$[4]')) s \
         STRAIGHT_JOIN {joins} j FORCE INDEX (PRIMARY) ON j.join_id = s.id \
         SET j.attached_steps = s.attached, j.completed_steps = s.completed, j.failed_steps = s.failed, \
         j.status = s.status, j.updated_at = {now}"
    }

    fn is_already_there(error: &sqlx::Error) -> bool {
        error.as_database_error().is_some_and(|e| {
            let message = e.message().to_ascii_lowercase();
            ["duplicate column name", "duplicate check constraint"]
                .iter()
                .any(|said| message.starts_with(said))
        })
    }

    fn extend() -> &'static str {
        "UPDATE JSON_TABLE($3, '$[*]' COLUMNS (id varchar(36) {exact} PATH '$[0]', claim int PATH '$[1]')) s \
         STRAIGHT_JOIN {events} e FORCE INDEX ({events_id}) ON e.event_id = s.id AND e.claims = s.claim \
         SET e.locked_until = {later $2} WHERE e.locked_by = $1 AND {pending}"
    }

    const DEAD_BY_TIME: bool = true;
    const LAST_ID: Option<&'static str> = Some("SELECT CAST(LAST_INSERT_ID() AS SIGNED)");
    // MySQL refreshes `auto_increment` in this view once a day; MariaDB has the current value.
    const SIZE: &'static str = "SELECT CAST(GREATEST(COALESCE((SELECT max(e.seq) FROM {events} e), 0), \
        COALESCE(max(t.auto_increment) - 1, 0)) AS SIGNED), CAST(max(t.table_rows) AS SIGNED) \
        FROM information_schema.tables t WHERE t.table_schema = COALESCE($1, database()) AND t.table_name = $2";

    // Not IGNORE, which would suppress more errors than that of an existing row.
    const ANNOUNCE: &'static str = "INSERT INTO {nodes} (node, started_at, seen_at, state) VALUES ($1, {now}, {now}, $2) \
        ON DUPLICATE KEY UPDATE seen_at = {now}, state = $2";

    const REGISTER: &'static str = "INSERT INTO {progress} (topic, publisher, last_position, created_at, updated_at) \
        SELECT s.of_topic, s.of_publisher, \
        CASE WHEN s.at_head = 1 THEN COALESCE((SELECT max(l.position) FROM {log} l), 0) ELSE 0 END, {now}, {now} \
        FROM {pairs $1} ON DUPLICATE KEY UPDATE topic = {progress}.topic";

    fn change_pairs(list: &str, set: &str, condition: &str) -> String {
        format!("UPDATE {{paired {list}}} SET {set} WHERE {condition}")
    }

    fn purge_inbox(limit: usize) -> String {
        format!("DELETE FROM {{inbox}} WHERE received_at < {{earlier $1}} ORDER BY received_at LIMIT {limit}")
    }

    async fn once_each(
        sql: &dyn Render,
        conn: &mut MySqlConnection,
        consumer: &str,
        ids: Value,
    ) -> Result<Vec<String>, sqlx::Error> {
        let values = vec![Value::text(consumer), ids, Value::Int(rand::random::<i64>())];
        let insert = sql.render(
            "INSERT IGNORE INTO {inbox} (consumer, event_id, received_at, batch) \
             SELECT $1, j.v, {now}, $3 FROM JSON_TABLE($2, '$[*]' COLUMNS (v varchar(255) {exact} PATH '$')) j",
        );
        Self::run(conn, insert, values.clone()).await?;
        let new = sql.render(
            "SELECT event_id FROM {inbox} WHERE consumer = $1 AND event_id {in texts $2} AND batch = $3",
        );
        returned::<Self>(conn, new, values).await
    }

    fn options(url: &str, _: Duration) -> Result<MySqlConnectOptions> {
        connect::mysql(url)
    }

    async fn connect_one(
        options: &MySqlConnectOptions,
        _: &Sessions,
    ) -> Result<MySqlConnection, sqlx::Error> {
        let mut conn = MySqlConnection::connect_with(options).await?;
        read_committed(&mut conn).await?;
        Ok(conn)
    }

    async fn connect(url: &str, options: &StoreOptions) -> Result<Pools<Self>> {
        let connect = connect::mysql(url)?;
        // A pool would retry an unreachable server for half a minute, and then report that the pool
        // is busy.
        MySqlConnection::connect_with(&connect).await?.close().await?;
        let pool = pool(options.max_connections).connect_with(connect).await?;
        Ok(Self::beside(&pool, options, Sessions::own().of(options.product())).own())
    }

    fn beside(write: &MySqlPool, _: &StoreOptions, sessions: Sessions) -> Pools<Self> {
        let beside = |size| {
            pool(size)
                .after_connect(|conn, _| Box::pin(read_committed(conn)))
                .connect_lazy_with((*write.connect_options()).clone())
        };
        Pools::new(write, beside(3), beside(2), sessions)
    }

    async fn insert(
        sql: &dyn Render,
        conn: &mut MySqlConnection,
        rows: &[NewRow],
        birth: Option<&BirthLease>,
        dated: bool,
    ) -> Result<Option<Vec<StoredRow>>> {
        let slots: BTreeSet<i64> = rows.iter().filter_map(|r| r.event.ordering_key()).map(key_slot).collect();
        if !slots.is_empty() {
            // Row by row in the order of the list, so that two writers never deadlock. An update
            // that changes nothing: MySQL cannot SELECT … FOR UPDATE from a JSON table.
            let lock = sql.render(
                "UPDATE JSON_TABLE($1, '$[*]' COLUMNS (v smallint PATH '$')) j \
                 STRAIGHT_JOIN {keys} k ON k.slot = j.v SET k.slot = k.slot",
            );
            Self::run(conn, lock, vec![Value::ints(slots)]).await?;
        }
        let dedup = rows.iter().any(|r| r.event.dedup_key().is_some());
        let mut stored = Vec::new();
        for rows in rows.chunks(CHUNK) {
            let (mut text, values) = insert_values(rows, birth);
            if dedup {
                // Only an existing deduplication key is skipped: an existing id violates the NOT
                // NULL.
                text.push_str(
                    " ON DUPLICATE KEY UPDATE event_type = IF(event_id = VALUES(event_id), NULL, event_type)",
                );
            }
            if dated && !dedup {
                text.push_str(RETURNING_TIMES);
                let rows = Self::fetch(conn, sql.render(&text), values).await?;
                stored.extend(stored_rows::<Self>(&rows, true)?);
            } else {
                Self::run(conn, sql.render(&text), values).await?;
            }
        }
        if !dedup && (!dated || stored.len() == rows.len()) {
            return Ok(dated.then_some(stored));
        }
        let columns = if dated { "event_id, created_at" } else { "event_id" };
        let there = sql.render(&format!("SELECT {columns} FROM {{events}} WHERE event_id {{in texts $1}}"));
        let found =
            Self::fetch(conn, there, vec![Value::texts(rows.iter().map(|r| r.event.id().as_str()))]).await?;
        Ok(Some(stored_rows::<Self>(&found, dated)?))
    }

    async fn lock_migrations(conn: &mut MySqlConnection, names: &Names) -> Result<bool> {
        let is_tidb = names.product.find_tidb(conn).await?;
        // DDL commits implicitly, which would release a row lock.
        let lock = Statement::positional("SELECT CAST(GET_LOCK($1, 2) AS SIGNED)");
        let rows = Self::fetch(conn, lock, vec![lock_name(names)]).await?;
        let locked = rows.first().map(|row| Self::int(row, 0)).transpose()?.flatten() == Some(1);
        // Sessions of TiDB do not wait for metadata locks.
        if locked && !is_tidb {
            // For metadata locks, for which the server waits a day by default.
            let limit =
                "SET @outbox_lock_wait_timeout = @@SESSION.lock_wait_timeout, SESSION lock_wait_timeout = 2";
            Self::script(conn, limit.to_owned()).await?;
        }
        Ok(locked)
    }

    async fn create_order_trigger(conn: &mut MySqlConnection, names: &Names) -> Result<bool, sqlx::Error> {
        if names.product.is_tidb() {
            return Ok(false);
        }
        let there = Statement::positional(
            "SELECT CAST(count(*) AS SIGNED) FROM information_schema.triggers t \
             WHERE t.event_object_schema = COALESCE($1, database()) AND t.event_object_table = $2 AND t.trigger_name = $3",
        );
        let (schema, name) = (names.schema.clone(), format!("{}_order", names.table));
        let values = vec![Value::Text(schema), Value::text(names.table.clone()), Value::text(name)];
        let there = Self::fetch(conn, there, values).await?;
        if there.first().map(|row| Self::int(row, 0)).transpose()?.flatten() == Some(1) {
            return Ok(true);
        }
        let create = render(ORDER_TRIGGER, names, &Self::fragment);
        match Self::script(conn, create).await {
            // The trigger exists, but this account may not see it.
            Err(error) if number(&error) == Some(1359) => Ok(true),
            // The account may not create triggers, or may not do so on a server with a binary log
            // that does not trust it.
            Err(error) if matches!(number(&error), Some(1142 | 1227 | 1419)) => Ok(false),
            created => created.map(|_| true),
        }
    }

    async fn unlock_migrations(conn: &mut MySqlConnection, names: &Names) -> Result<()> {
        if !names.product.is_tidb() {
            // The session belongs to the application's pool.
            let limit = "SET SESSION lock_wait_timeout = @outbox_lock_wait_timeout";
            Self::script(conn, limit.to_owned()).await?;
        }
        let unlock = Statement::positional("SELECT RELEASE_LOCK($1)");
        Self::run(conn, unlock, vec![lock_name(names)]).await?;
        Ok(())
    }

    /// sqlx 0.9 forgets how much of a response it has read if the future is dropped while it
    /// prepares a statement or reads a packet. It then takes the rest for the response of a later
    /// statement, or waits for ever.
    const CANCEL_SAFE: bool = false;

    /// Selects a text that no earlier response contains.
    async fn is_in_sync(conn: &mut MySqlConnection) -> bool {
        let expected = format!("{:032x}", rand::random::<u128>());
        let select = sqlx::AssertSqlSafe(format!("SELECT '{expected}'"));
        match sqlx::raw_sql(select).fetch_all(conn).await {
            Ok(rows) => rows.len() == 1 && Self::text(&rows[0], 0).is_ok_and(|text| text == Some(expected)),
            Err(_) => false,
        }
    }

    fn is_lock_timeout(error: &sqlx::Error) -> bool {
        number(error) == Some(1205)
    }

    fn is_missing_table(error: &sqlx::Error) -> bool {
        error.as_database_error().is_some_and(|e| e.code().is_some_and(|code| code == "42S02"))
    }

    fn is_duplicate_id(error: &sqlx::Error) -> bool {
        error.as_database_error().is_some_and(|e| {
            (e.is_unique_violation() && !e.message().ends_with("_dedup'"))
                || e.message().contains("'event_type' cannot be null")
        })
    }

    plumbing!(bind);
}

/// Number of the key lock row that a key locks. The trigger for plain SQL writers computes the same
/// number, by `CRC32`.
fn key_slot(key: &str) -> i64 {
    const CRC32: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC);
    i64::from(CRC32.checksum(key.as_bytes()) % KEY_SLOTS)
}

/// The server's error number.
fn number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(error.number())
}

/// A list as a table `j` with one column `v`.
fn list_table(kind: &str, placeholder: &str) -> String {
    let column = if kind == "texts" { "varchar(255) {exact}" } else { "bigint" };
    format!("JSON_TABLE({placeholder}, '$[*]' COLUMNS (v {column} PATH '$')) j")
}

/// Name of the migration lock. Lock names are global to the server, not to a database; every
/// statement is idempotent, so an unnecessary wait does no harm.
fn lock_name(names: &Names) -> Value {
    Value::text(format!("outbox {}", names.table))
}

/// Condition that excludes rows that the holder of a settlement no longer holds.
fn fence(by: &Holder) -> &'static str {
    match by {
        Holder::Lease { .. } => "e.locked_by = $1 AND $2 IS NOT NULL",
        Holder::Exclusive { .. } => {
            "EXISTS (SELECT 1 FROM {leases} l WHERE l.name = 'exclusive' AND l.holder = $1 AND l.epoch = $2)"
        }
    }
}

async fn read_committed(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").execute(conn).await?;
    Ok(())
}

fn bind(
    mut query: Query<'_, MySql, MySqlArguments>,
    order: Option<Vec<usize>>,
    values: Vec<Value>,
) -> Query<'_, MySql, MySqlArguments> {
    let mut values: Vec<Option<Value>> = values.into_iter().map(Some).collect();
    let order = order.unwrap_or_default();
    for (place, &n) in order.iter().enumerate() {
        let again = order[place + 1..].contains(&n);
        let value = if again { values[n].clone() } else { values[n].take() };
        query = match value {
            Some(Value::Int(v)) => query.bind(v),
            Some(Value::Text(v)) => query.bind(v),
            Some(Value::Bytes(v)) => query.bind(v),
            // As DATETIME: sqlx sends a DateTime<Utc> as a TIMESTAMP, which ends in 2038.
            Some(Value::Time(v)) => query.bind(v.map(|time| time.naive_utc())),
            Some(list) => query.bind(list.into_json()),
            None => unreachable!("placeholder {n} has no value"),
        };
    }
    query
}
