//! The PostgreSQL dialect: arrays, group leases, advisory locks.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::Connection as _;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgPool, Postgres};
use sqlx::query::Query;

use super::StoreOptions;
use super::dialect::{
    BirthLease, Columns, Dialect, NewRow, Noting, Pools, Render, StoredRow, Value, Which, plumbing,
    stored_rows,
};
use super::distributed;
use super::inbox::returned;
use super::names::{Listed, Names, Statement, nth};
use super::sessions::Sessions;
use super::statements::{insert_lists, insert_values};
use super::warm::pool;
use super::watch::{PgEar, PgWatch};
use crate::connect::{self, Pooler};
use crate::error::Result;
use crate::store::{AppendNotifier, Completion, Holder, InsertNotifier, OnDead};

/// How many keys an insert locks itself, in order. With more keys only the trigger of the table
/// locks, which takes one lock for all keys once there are too many.
const MOST_KEYS: usize = 1_000;

/// Locks keys in one order, so that the events of a key become visible in the order of their
/// numbers. The trigger of the table locks them as well, but in the order of the rows, in which two
/// writers can deadlock.
fn lock_keys(keys: &str) -> String {
    format!(
        "SELECT count(pg_advisory_xact_lock(h)) >= 0 AS done FROM (\
         SELECT DISTINCT hashtextextended(k, 1) AS h FROM unnest({keys}) k WHERE k IS NOT NULL ORDER BY h) l"
    )
}

/// Condition that an event has a group lease.
const LISTED: &str =
    "(e.claims = 0 AND e.seq IN (SELECT unnest(b.seqs) FROM {batches} b WHERE b.held_until > {now}))";

/// A column of the group lease of an event.
fn of_list(column: &str) -> String {
    format!(
        "CASE WHEN e.claims = 0 AND e.status IN (0, 2) THEN (\
         SELECT b.{column} FROM {{batches}} b WHERE e.seq = ANY(b.seqs) ORDER BY b.batch_id DESC LIMIT 1) END"
    )
}

const FENCE: &str = "WITH f AS MATERIALIZED (\
    SELECT 1 FROM {leases} WHERE name = 'exclusive' AND holder = $1 AND epoch = $2 FOR KEY SHARE) ";

impl Dialect for Postgres {
    const QUOTE: char = '"';
    const BEGIN: Option<&'static str> = None;
    const BEGIN_SHARED: Option<&'static str> = Some("BEGIN; SET LOCAL jit = off");
    const BEGIN_SHARED_BY_INDEX: Option<&'static str> = Some(
        "BEGIN; SET LOCAL jit = off; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; \
         SET LOCAL enable_mergejoin = off",
    );
    const MIGRATIONS: &'static [&'static str] = &[
        include_str!("../../migrations/postgres/0001_outbox_event.sql"),
        include_str!("../../migrations/postgres/0002_joins.sql"),
        include_str!("../../migrations/postgres/0003_inbox.sql"),
        include_str!("../../migrations/postgres/0004_log.sql"),
        include_str!("../../migrations/postgres/0005_topic_progress.sql"),
        include_str!("../../migrations/postgres/0006_node.sql"),
        include_str!("../../migrations/postgres/0007_attempt_audit.sql"),
        include_str!("../../migrations/postgres/0008_batch.sql"),
        include_str!("../../migrations/postgres/0009_hardening.sql"),
        include_str!("../../migrations/postgres/0010_due_at.sql"),
        include_str!("../../migrations/postgres/0011_order_and_log_wakeup.sql"),
    ];
    const SCHEMAS: bool = true;
    const ARRAYS: bool = true;
    const LATERAL: bool = true;
    const ONCE: &'static str = "INSERT INTO {inbox} (consumer, event_id, received_at) VALUES ($1, $2, {now}) \
        ON CONFLICT DO NOTHING";

    fn fragment(slot: &str) -> String {
        let (word, rest) = slot.split_once(' ').unwrap_or((slot, ""));
        match (word, rest) {
            // The start of the statement: a stable value, so that an index can be searched by it.
            ("now", _) => "statement_timestamp()".to_owned(),
            ("later", n) => format!("({{now}} + ({n}::bigint)::float8 * interval '1 microsecond')"),
            ("earlier", n) => format!("({{now}} - ({n}::bigint)::float8 * interval '1 microsecond')"),
            ("time", n) => format!("{n}::timestamptz"),
            ("pending", "") => "e.status IN (0, 2)".to_owned(),
            // Of events that are named by id. Written this way, the planner does not see that the
            // index of due events covers them all.
            ("pending", "by id") => "e.status + 0 IN (0, 2)".to_owned(),
            ("pending", "of later") => "o.status IN (0, 2)".to_owned(),
            ("pending", _) => "status IN (0, 2)".to_owned(),
            // Condition that an event is the one that `s` names. `ANY` makes the planner search for
            // each id: with `=` the planner could also read a whole index and compare every entry
            // with every id. That plan looks cheap while the table is small, and may be kept until
            // the table is large. Not by the physical place of the row: a concurrent update moves
            // the row.
            ("named", _) => "e.event_id = ANY(ARRAY[s.id])".to_owned(),
            ("dead", _) => "e.status = 3".to_owned(),
            ("frontier", _) => "k.frontier".to_owned(),
            ("destination", _) => "k.destination".to_owned(),
            ("held", _) => format!("(e.locked_until > {{now}} OR {LISTED})"),
            ("free", _) => {
                format!("((e.locked_until IS NULL OR e.locked_until <= {{now}}) AND NOT {LISTED})")
            }
            ("holder", _) => format!("COALESCE(e.locked_by, {})", of_list("owner")),
            ("until", _) => format!("COALESCE(e.locked_until, {})", of_list("held_until")),
            ("int", x) => format!("({x})::bigint"),
            ("flag", x) => format!("({x})::int::bigint"),
            ("json", x) => format!("{x}::text"),
            ("to", json) => format!("{}::json", json.trim_start_matches("json ")),
            ("in", list) => match list.split_once(' ') {
                Some(("texts", n)) => format!("= ANY({n}::text[])"),
                // Evaluated once per statement and hashed, not once per row.
                Some(("rows", n)) => {
                    format!("IN (SELECT j ->> 0, j ->> 1 FROM json_array_elements({n}::text::json) j)")
                }
                Some((_, n)) => format!("= ANY({n}::bigint[])"),
                None => String::new(),
            },
            ("fits", n) => format!("LIKE {n} ESCAPE '|'"),
            ("listed", listed) => format!("{{{}}}", Listed::parse(listed).table),
            ("from", listed) => format!("FROM {{{listed}}}"),
            ("where", listed) => {
                let Listed { column, kind, list, .. } = Listed::parse(listed);
                format!("WHERE {column} {{in {kind} {list}}}")
            }
            ("pairs", n) => format!(
                "json_to_recordset({n}::json) AS s(of_topic text, of_publisher text, at_head bigint, of_epoch bigint, \
                 old_position bigint, new_position bigint, new_status text, new_errors bigint, new_error text)"
            ),
            ("paired", n) => format!(
                "{{pairs {n}}} JOIN {{progress}} e ON e.topic = s.of_topic AND e.publisher = s.of_publisher"
            ),
            ("skip", _) => "FOR UPDATE SKIP LOCKED".to_owned(),
            ("lock", _) => "FOR UPDATE".to_owned(),
            // The time of an append is read while its locks are held, unless a test sets the time.
            ("stored", _) => "NULL::timestamptz".to_owned(),
            ("then", _) => "JOIN".to_owned(),
            ("by", _) => String::new(),
            ("unsettled", _) => "e.status <> 1".to_owned(),
            ("place", place) => format!("{{time {}}}", nth(place, 1)),
            ("bytes", x) => format!("octet_length({x}::text)::bigint"),
            ("aggregate", _) => {
                "concat(COALESCE(aggregate_type, '__GLOBAL__'), '/', aggregate_id)".to_owned()
            }
            ("size", _) => {
                "COALESCE(octet_length(e.payload::text), octet_length(e.payload_bytes))::bigint".to_owned()
            }
            // A value that is stored in little space cannot be large: compressed, it takes more
            // than 1/512 of its size. So small values are not decompressed to be measured.
            ("bounded", value) => match value.split_once(' ') {
                Some(("json", x)) => format!(
                    "CASE WHEN pg_column_size({x}) < {{most}} / 512 OR octet_length({x}::text) <= {{most}} THEN {x}::text \
                     WHEN {x} IS NOT NULL THEN '!' || octet_length({x}::text) END"
                ),
                Some((_, x)) => format!("CASE WHEN octet_length({x}) <= {{most}} THEN {x} END"),
                None => String::new(),
            },
            _ => unreachable!("no fragment {slot:?}"),
        }
    }

    fn literal(time: DateTime<Utc>) -> String {
        format!("timestamptz '{}'", time.format("%Y-%m-%d %H:%M:%S%.6f+00"))
    }

    fn statement(text: String, names: &Names) -> Statement {
        Statement { product: Some(names.product.clone()), ..Statement::numbered(text) }
    }

    async fn adapt(
        conn: &mut PgConnection,
        statement: Statement,
        values: Vec<Value>,
    ) -> Result<(Statement, Vec<Value>), sqlx::Error> {
        match &statement.product {
            Some(product) if product.find_distributed(conn).await? => {
                Ok(distributed::rewrite(statement, values))
            }
            _ => Ok((statement, values)),
        }
    }

    fn stops(on_dead: OnDead) -> &'static str {
        match on_dead {
            OnDead::Hold => {
                "SELECT k.key, k.destination, s.seq, s.event_type \
                 FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) k(key, frontier, last, destination), \
                 LATERAL (SELECT o.seq, o.event_type FROM {events} o WHERE o.ordering_key = k.key AND {past} AND o.seq < k.last \
                 AND o.status <> 1 AND o.seq NOT IN (SELECT unnest($5::bigint[])) ORDER BY o.seq LIMIT 1) s"
            }
            OnDead::Skip => {
                "SELECT k.key, k.destination, s.seq, s.event_type \
                 FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) k(key, frontier, last, destination), \
                 LATERAL (SELECT o.seq, o.event_type FROM {events} o WHERE o.ordering_key = k.key AND {past} AND o.seq < k.last \
                 AND o.status IN (0, 2) AND o.seq NOT IN (SELECT unnest($5::bigint[])) ORDER BY o.seq LIMIT 1) s"
            }
        }
    }

    fn settle_done(completion: Completion, by: &Holder, which: Which) -> String {
        let (fence, holds) = fence(by);
        let which = which.condition();
        match completion {
            Completion::Delete => format!(
                "{fence}DELETE FROM {{events}} e USING unnest($3::text[], $4::bigint[]) s(id, claim) \
                 WHERE {{named}} AND e.claims = s.claim AND {{pending by id}} AND {holds}{which}"
            ),
            Completion::Keep => format!(
                "{fence}UPDATE {{events}} e SET status = 1, done_at = {{now}}, done_by = $1, locked_by = NULL, \
                 locked_until = NULL FROM unnest($3::text[], $4::bigint[]) s(id, claim) \
                 WHERE {{named}} AND e.claims = s.claim AND {{pending by id}} AND {holds}{which}"
            ),
        }
    }

    fn settle_rest(by: &Holder, which: Which) -> String {
        format!("{}{}", fence(by).0, settle_rest(by, which))
    }

    fn hold_batch(by: &Holder) -> String {
        let (fence, holds) = fence(by);
        format!(
            "{fence}SELECT e.event_id, e.joined::bigint FROM unnest($3::text[], $4::bigint[]) s(id, claim) \
             JOIN {{events}} e ON {{named}} AND e.claims = s.claim \
             WHERE {{pending by id}} AND {holds} ORDER BY e.event_id FOR UPDATE OF e"
        )
    }

    fn note_attempts(by: &Holder, which: Which) -> Noting {
        let (fence, rest) = (fence(by).0, settle_rest(by, which));
        let with = if fence.is_empty() { "WITH".to_owned() } else { format!("{},", fence.trim_end()) };
        Noting::AtOnce(format!(
            "{with} u AS ({rest} RETURNING e.event_id, e.attempts, e.status, s.counted, s.error), \
             h AS (INSERT INTO {{attempts}} (event_id, failed_at, number, node, fatal, error) \
             SELECT u.event_id, {{now}}, u.attempts, $1, (u.status = 3)::int, COALESCE(u.error, '') \
             FROM u WHERE u.counted = 1 OR u.status = 3) SELECT 1 FROM u"
        ))
    }

    fn count_joins() -> &'static str {
        "UPDATE {joins} j SET attached_steps = s.attached, completed_steps = s.completed, failed_steps = s.failed, \
         status = s.status, updated_at = {now} \
         FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) \
             s(id, attached, completed, failed, status) WHERE j.join_id = s.id"
    }

    fn extend() -> &'static str {
        "UPDATE {events} e SET locked_until = {later $2} FROM unnest($3::text[], $4::bigint[]) s(id, claim) \
         WHERE {named} AND e.claims = s.claim AND COALESCE(e.locked_by = $1, FALSE) AND {pending by id}"
    }

    const ANNOUNCE: &'static str = "INSERT INTO {nodes} (node, started_at, seen_at, state) VALUES ($1, {now}, {now}, $2) \
        ON CONFLICT (node) DO UPDATE SET seen_at = {now}, state = excluded.state";

    fn announce_and_forget(names: &Names) -> Option<&'static str> {
        Self::ANNOUNCE_AND_FORGET.filter(|_| !names.product.is_distributed())
    }

    // One statement, because every relay sends it every few seconds. A relay cannot have vanished
    // sooner than $4.
    const ANNOUNCE_AND_FORGET: Option<&'static str> = Some(
        "WITH gone AS (DELETE FROM {nodes} WHERE seen_at < {earlier $3} AND node <> $1) \
         INSERT INTO {nodes} (node, started_at, seen_at, state) VALUES ($1, {now}, {now}, $2) \
         ON CONFLICT (node) DO UPDATE SET seen_at = {now}, state = excluded.state \
         RETURNING (EXISTS (SELECT 1 FROM {nodes} q WHERE q.node <> $1 AND q.seen_at < {earlier $4} \
         AND q.state NOT LIKE '%\"released\":true%'))::int::bigint",
    );

    // The heartbeat, the leases, the other nodes and all subscriptions in one statement. A row that
    // the statement renews is read as renewed; all others are read as they were before. A
    // subscription of this node that was not renewed is no longer led by it, whatever its row says:
    // its lease ran out, or it was reset meanwhile.
    const TEND: Option<&'static str> = Some(
        "WITH beat AS (\
             INSERT INTO {leases} AS l (name, holder, epoch, held_until) VALUES ($3, $1, 0, {later $2}) \
             ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, held_until = excluded.held_until), \
         renewed AS (\
             UPDATE {progress} AS e SET leader_until = {later $2} \
             WHERE (e.topic, e.publisher) IN (SELECT e.topic, e.publisher FROM {progress} e \
                 WHERE e.leader = $1 AND e.leader_until > {now} ORDER BY e.topic, e.publisher FOR UPDATE) \
             RETURNING e.topic, e.publisher, e.status, e.last_position, e.error_count, e.last_error, e.leader, e.epoch, \
                 e.leader_until, e.updated_at), \
         e AS (\
             SELECT * FROM renewed UNION ALL \
             SELECT p.topic, p.publisher, p.status, p.last_position, p.error_count, p.last_error, p.leader, p.epoch, \
                 CASE WHEN p.leader IS DISTINCT FROM $1 THEN p.leader_until END, p.updated_at \
             FROM {progress} p WHERE (p.topic, p.publisher) NOT IN (SELECT r.topic, r.publisher FROM renewed r)) \
         SELECT e.topic, e.publisher, e.status, e.last_position, {int e.error_count}, e.last_error, e.leader, e.epoch, \
             e.leader_until, e.updated_at, {now} FROM e \
         UNION ALL SELECT l.name, l.holder, NULL, 0, {int 0}, NULL, NULL, 0, l.held_until, NULL, {now} FROM {leases} l \
             WHERE l.name LIKE 'log node %' AND l.held_until IS NOT NULL",
    );

    const REGISTER: &'static str = "INSERT INTO {progress} (topic, publisher, last_position, created_at, updated_at) \
        SELECT s.of_topic, s.of_publisher, \
        CASE WHEN s.at_head = 1 THEN COALESCE((SELECT max(position) FROM {log}), 0) ELSE 0 END, {now}, {now} \
        FROM {pairs $1} ORDER BY s.of_topic COLLATE \"C\", s.of_publisher COLLATE \"C\" ON CONFLICT DO NOTHING";

    fn change_pairs(list: &str, set: &str, condition: &str) -> String {
        // Locks the rows first, because an UPDATE changes rows in the order in which it finds them.
        format!(
            "UPDATE {{progress}} AS e SET {set} FROM (\
             SELECT s.* FROM {{paired {list}}} ORDER BY e.topic, e.publisher FOR UPDATE OF e) s \
             WHERE e.topic = s.of_topic AND e.publisher = s.of_publisher AND {condition}"
        )
    }

    fn in_order(condition: &str) -> String {
        format!(
            "(e.topic, e.publisher) IN (SELECT e.topic, e.publisher FROM {{progress}} e WHERE {condition} \
             ORDER BY e.topic, e.publisher FOR UPDATE)"
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
        conn: &mut PgConnection,
        consumer: &str,
        ids: Value,
    ) -> Result<Vec<String>, sqlx::Error> {
        let insert = sql.render(
            "INSERT INTO {inbox} (consumer, event_id, received_at) SELECT $1, i.id, {now} \
             FROM unnest($2::text[]) WITH ORDINALITY i(id, n) ORDER BY i.n ON CONFLICT DO NOTHING RETURNING event_id",
        );
        returned::<Self>(conn, insert, vec![Value::text(consumer), ids]).await
    }

    const LISTS: bool = true;

    const BY_AGGREGATE: &'static str = "SELECT CASE WHEN pg_sequence_last_value('{by_aggregate}'::regclass) IS NULL \
        THEN nextval('{by_aggregate}'::regclass) END";
    const NEW_LEASE: &'static str =
        "INSERT INTO {leases} (name, epoch) VALUES ($1, 0) ON CONFLICT (name) DO NOTHING";

    fn by_aggregate(names: &Names) -> &'static str {
        if names.product.is_distributed() { distributed::BY_AGGREGATE } else { Self::BY_AGGREGATE }
    }

    fn size(names: &Names) -> &'static str {
        if names.product.is_distributed() { distributed::SIZE } else { Self::SIZE }
    }

    fn migrations(names: &Names) -> &'static [&'static str] {
        if names.product.is_distributed() { distributed::MIGRATIONS } else { Self::MIGRATIONS }
    }

    fn options(url: &str, _: Duration) -> Result<PgConnectOptions> {
        connect::postgres(url)
    }

    async fn connect_one(
        options: &PgConnectOptions,
        sessions: &Sessions,
    ) -> Result<PgConnection, sqlx::Error> {
        let mut conn = if sessions.are_unknown() {
            let (conn, shared) = connect_and_see(options).await?;
            sessions.learn(shared);
            conn
        } else {
            PgConnection::connect_with(options).await?
        };
        set_up(&mut conn, sessions, SETTINGS).await?;
        Ok(conn)
    }

    fn sessions(url: &str, pooler: Pooler) -> Result<Sessions> {
        Ok(Sessions::new(Pooler::of_url(url)?.unwrap_or(pooler)))
    }

    async fn are_shared(options: &PgConnectOptions) -> Result<bool, sqlx::Error> {
        let (conn, shared) = connect_and_see(options).await?;
        conn.close().await?;
        Ok(shared)
    }

    async fn connect(url: &str, options: &StoreOptions) -> Result<Pools<Self>> {
        let connect = connect::postgres(url)?;
        let sessions = Self::sessions(url, options.pooler)?.of(options.product());
        // A pool would try to reach an absent server for half a minute, and then report a timeout
        // of the pool.
        Self::connect_one(&connect, &sessions).await?.close().await?;
        let pool = pool(options.max_connections).connect_with(connect).await?;
        Ok(Self::beside(&pool, options, sessions).own())
    }

    fn beside(write: &PgPool, _: &StoreOptions, sessions: Sessions) -> Pools<Self> {
        let options = || (*write.connect_options()).clone();
        let own = |connections, settings| {
            let sessions = sessions.clone();
            let pool = pool(connections).after_connect(move |conn, _| {
                let sessions = sessions.clone();
                Box::pin(async move { set_up(conn, &sessions, settings).await })
            });
            pool.connect_lazy_with(options())
        };
        let (relay, read) = (own(3, SETTINGS_BY_INDEX), own(2, SETTINGS));
        Pools::new(write, relay, read, sessions)
    }

    async fn insert(
        sql: &dyn Render,
        conn: &mut PgConnection,
        rows: &[NewRow],
        birth: Option<&BirthLease>,
        dated: bool,
    ) -> Result<Option<Vec<StoredRow>>> {
        let keys: BTreeSet<&str> = rows.iter().filter_map(|r| r.event.ordering_key()).collect();
        let dedup = rows.iter().any(|r| r.event.dedup_key().is_some());
        let distributed = !keys.is_empty() && sql.names().product.find_distributed(conn).await?;
        let (mut text, values) = if distributed {
            insert_lists(rows, birth, distributed::lock_keys)
        } else if rows.len() == 1 && keys.is_empty() {
            insert_values(rows, birth)
        } else if keys.len() <= MOST_KEYS {
            insert_lists(rows, birth, lock_keys)
        } else {
            insert_lists(rows, birth, |_| "SELECT TRUE AS done".to_owned())
        };
        if !dedup && !dated {
            Self::run(conn, sql.render(&text), values).await?;
            return Ok(None);
        }
        if dedup {
            text.push_str(" ON CONFLICT (dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING");
        }
        text.push_str(if dated { " RETURNING event_id, created_at" } else { " RETURNING event_id" });
        let stored = Self::fetch(conn, sql.render(&text), values).await?;
        Ok(Some(stored_rows::<Self>(&stored, dated)?))
    }

    const IN_ORDER: Option<&'static str> = Some(
        "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_mergejoin = off",
    );

    // A user who may only write and read the table need not have rights on its sequence.
    const SIZE: &'static str = "SELECT CASE WHEN has_sequence_privilege(s.id, 'SELECT') OR has_sequence_privilege(s.id, 'USAGE') \
        THEN pg_sequence_last_value(s.id) END, \
        (SELECT CASE WHEN c.reltuples >= 0 THEN c.reltuples::bigint END FROM pg_class c WHERE c.oid = '{events}'::regclass) \
        FROM (SELECT pg_get_serial_sequence('{events}', 'seq')::regclass AS id, $1::text AS schema, $2::text AS name) s";

    const NOTIFIES: bool = true;

    async fn listen(
        options: PgConnectOptions,
        names: &Names,
        channel: &str,
    ) -> Result<Option<Box<dyn AppendNotifier>>> {
        Ok(Some(Box::new(PgEar::open(options, names, channel).await?)))
    }

    async fn watch(options: PgConnectOptions, names: &Names) -> Result<Option<Box<dyn InsertNotifier>>> {
        Ok(Some(Box::new(PgWatch::open(options, names).await?)))
    }

    async fn lock_migrations(conn: &mut PgConnection, names: &Names) -> Result<bool> {
        // Writers wait while a migration alters their table: the migration must read by the
        // indexes, also with statistics from a time when the table was small.
        if names.product.find_distributed(conn).await? {
            return distributed::lock_migrations(conn, names).await;
        }
        let limits = "SET LOCAL lock_timeout = 2000; SET LOCAL enable_seqscan = off";
        Self::script(conn, limits.to_owned()).await?;
        let lock = Statement::numbered("SELECT pg_advisory_xact_lock(hashtextextended($1, 7))".to_owned());
        let lock = Statement { named: false, ..lock };
        Self::run(conn, lock, vec![Value::text(names.table.clone())]).await?;
        Ok(true)
    }

    fn is_lock_timeout(error: &sqlx::Error) -> bool {
        error.as_database_error().is_some_and(|e| e.code().as_deref() == Some("55P03"))
    }

    fn is_missing_table(error: &sqlx::Error) -> bool {
        // Or a missing function, because functions are created with the tables.
        error.as_database_error().is_some_and(|e| match e.code().as_deref() {
            Some("42P01") => true,
            Some("42883") => ["_log_append", "_log_settled"].iter().any(|name| e.message().contains(name)),
            _ => false,
        })
    }

    fn is_duplicate_id(error: &sqlx::Error) -> bool {
        error.as_database_error().is_some_and(|e| {
            e.is_unique_violation() && e.constraint().is_none_or(|name| !name.ends_with("_dedup"))
        })
    }

    plumbing!(bind);
}

/// Returns the condition that keeps a settlement from changing a row that its holder has lost.
///
/// The owner is compared inside COALESCE to keep the planner from guessing by statistics that may
/// be from a time when nothing was leased: expecting one row, it would compare each leased row with
/// each row of the batch.
fn fence(by: &Holder) -> (&'static str, &'static str) {
    match by {
        // Held by a group lease: then the claims alone identify the holder, whatever a writer has
        // put into locked_by. Or held by the lease of the row.
        Holder::Lease { .. } => {
            ("", "COALESCE(s.claim = 0 OR e.locked_by = $1, FALSE) AND $2::bigint IS NOT NULL")
        }
        // The lease of the leader may have run out without a new leader. Then other nodes may have
        // put events that it read into group leases, which the row does not show. Group leases are
        // read by their ids: no plan here may read them without an index, and a plan that has to
        // anyway may as well read all events.
        Holder::Exclusive { .. } => (
            FENCE,
            "EXISTS (SELECT 1 FROM f) \
             AND (s.claim > 0 OR e.seq NOT IN (SELECT unnest(b.seqs) FROM {batches} b WHERE b.batch_id >= 0))",
        ),
    }
}

/// Settles all verdicts except done, without the fence that precedes the statement.
fn settle_rest(by: &Holder, which: Which) -> String {
    let (holds, which) = (fence(by).1, which.condition());
    format!(
        "UPDATE {{events}} e SET status = COALESCE(s.status, e.status), claims = e.claims + 1, attempts = e.attempts + s.counted, \
         available_at = CASE WHEN s.after IS NULL OR s.status IS NULL THEN e.available_at \
             ELSE {{now}} + s.after::float8 * interval '1 microsecond' END, \
         last_error = COALESCE(s.error, e.last_error), done_at = CASE WHEN s.status = 3 THEN {{now}} END, \
         done_by = CASE WHEN s.status = 3 THEN $1 END, locked_by = NULL, \
         locked_until = CASE WHEN s.status IS NULL AND s.after IS NOT NULL THEN {{now}} END, \
         crashes = CASE WHEN s.status IS NULL THEN e.crashes ELSE 0 END \
         FROM unnest($3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[]) \
             s(id, claim, status, counted, after, error) \
         WHERE {{named}} AND e.claims = s.claim AND {{pending by id}} AND {holds}{which}"
    )
}

/// A setting that a connection requests at startup. A server applies it to the session that starts
/// with the connection; a pooler, whose sessions exist already, rejects or ignores it.
const MARK: (&str, &str) = ("outbox.session", "own");

/// Connects, and returns whether the connection shares its session with others.
async fn connect_and_see(options: &PgConnectOptions) -> Result<(PgConnection, bool), sqlx::Error> {
    match PgConnection::connect_with(&options.clone().options([MARK])).await {
        Ok(mut conn) => {
            // Not prepared: a prepared statement would stay in the session.
            let ask = "SELECT COALESCE(current_setting('outbox.session', TRUE), '')";
            let row = sqlx::raw_sql(ask).fetch_one(&mut conn).await?;
            let mark: &str = sqlx::Row::try_get(&row, 0)?;
            let shared = mark != MARK.1;
            Ok((conn, shared))
        }
        // `unsupported startup parameter`, in texts and codes that differ. Excluded are errors of
        // the user, the password or the database, and a server that lacks resources, starts or
        // stops.
        Err(sqlx::Error::Database(refused))
            if !["28", "3D", "53", "57"]
                .iter()
                .any(|class| refused.code().is_some_and(|code| code.starts_with(class))) =>
        {
            Ok((PgConnection::connect_with(options).await?, true))
        }
        Err(error) => Err(error),
    }
}

/// Settings of a connection. The statements of the relay are short, but look expensive to a planner
/// without good statistics: JIT compilation costs a hundred times as much as it saves.
const SETTINGS: &str = "SET jit = off";

/// Settings of connections that only read by indexes. With old or no statistics, or for a generic
/// plan, it looks cheap to read and sort a whole table. The remaining plans read the indexes in
/// their order, or search them by value; a merge join would read an index to its end. Not
/// `enable_sort`: where a plan needs a sort, all plans would look the same.
const SETTINGS_BY_INDEX: &str =
    "SET jit = off; SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_mergejoin = off";

/// Finds out which product the server is, and applies the settings, unless the session is shared or
/// the server does not have them.
async fn set_up(
    conn: &mut PgConnection,
    sessions: &Sessions,
    settings: &'static str,
) -> Result<(), sqlx::Error> {
    if !sessions.product().find_distributed(conn).await? && !sessions.are_shared() {
        sqlx::raw_sql(settings).execute(conn).await?;
    }
    Ok(())
}

fn bind(
    mut query: Query<'_, Postgres, PgArguments>,
    _: Option<Vec<usize>>,
    values: Vec<Value>,
) -> Query<'_, Postgres, PgArguments> {
    for value in values {
        query = match value {
            Value::Int(v) => query.bind(v),
            Value::Text(v) => query.bind(v),
            Value::Bytes(v) => query.bind(v),
            Value::Time(v) => query.bind(v),
            Value::Texts(v) => query.bind(v),
            Value::Ints(v) => query.bind(v),
            Value::Times(v) => query.bind(v),
            Value::Blobs(v) => query.bind(v),
        };
    }
    query
}
