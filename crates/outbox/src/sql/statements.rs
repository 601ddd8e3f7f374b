//! SQL that all databases share: one constant per statement, with `{slots}` for the parts that
//! differ:
//!
//! | slot | stands for |
//! | --- | --- |
//! | `{events}` `{leases}` `{keys}` `{joins}` `{members}` `{inbox}` `{attempts}` `{audits}` `{version}` `{log}` `{progress}` | the tables of the outbox |
//! | `{now}` | the clock of the database, or of a test |
//! | `{later $1}` `{earlier $1}` | now plus or minus that many microseconds |
//! | `{pending}` `{dead}` | the condition that a row is pending or dead, as its index has it |
//! | `{pending of events}` `{pending of key}` | pending without an alias; as the index of keys has it |
//! | `{held}` `{free}` `{holder}` `{until}` | whether the row is leased or free, its holder, the end of its lease |
//! | `{past}` `{frontier}` | the events of a key queue that the taker does not hold; the number up to which it holds all of them |
//! | `{destination}` | the number of the destination of a key queue, or NULL |
//! | `{int x}` `{flag x}` `{json x}` | x as a 64-bit number, a condition as a number, JSON as text |
//! | `{in texts $1}` `{in ints $1}` | is one of a list |
//! | `{in rows $1}` | two texts are one of a list of two-text arrays, as JSON |
//! | `{fits $1}` | a text matches a pattern, as `Dialect::pattern` writes it |
//! | `{listed events event_id texts $1}` `{where listed …}` | the rows of a table whose column is in a list, to be changed |
//! | `{pairs $1}` `{paired $1}` | a list of subscriptions as a table `s`; the same joined with their rows as `e` |
//! | `{named}` | the condition that an event has the id in a row `s` of a batch (PostgreSQL) |
//! | `{then}` | a join that reads its left side first and searches its right side |
//! | `{log}` `{log_tags}` | the event log and its tags |
//! | `{skip locked}` `{lock}` `{lock listed}` | row locks, where the database has them |
//! | `{by events_due}` | an index hint, where the database needs one |
//! | `{unsettled pending}` `{unsettled dead}` | a condition that the index of keys can search by; it includes at least those rows |
//! | `{place available_at $1 $2}` | a time that was read before, of the row with this number |
//! | `{size}` | the size of a payload in bytes |
//! | `{bounded json x}` `{bounded bytes x}` | x, unless it is larger than the store reads: then `!` and its size, or NULL |
//! | `{most}` | how many bytes of a payload or of headers the store reads |
//! | `{bytes x}` | the size of JSON as text, in bytes |
//! | `{aggregate key}` | the ordering key of a row that is ordered by its aggregate |
//!
//! A statement that only one database uses is in the file of that database.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use chrono::{DateTime, Utc};

use super::dialect::{BirthLease, Dialect, NewRow, Value, micros};
use crate::event::{Due, Event, GLOBAL, Payload};
use crate::store::{Filter, Holder, MAX_ERROR, Origin, Routed, Status, Take};

/// Columns of an event, in the order that `Dialect::columns` expects.
const EVENT: &str = "e.event_type, e.aggregate_type, e.aggregate_id, e.tenant_id, e.ordering_key, e.correlation_id, \
     e.dedup_key, {bounded json e.headers}, {bounded json e.payload}, {bounded bytes e.payload_bytes}, e.content_type, e.occurred_at, e.expires_at, \
     e.created_at, e.due_at";

/// Index of the first column of [`EVENT`] in a row of [`window`] and [`list`].
pub(super) const EVENT_FROM: usize = 7;
/// Index of the last error, which follows the event.
pub(super) const LAST_ERROR: usize = EVENT_FROM + 15;
/// Index of the first column after both.
pub(super) const AFTER_EVENT: usize = LAST_ERROR + 1;

/// How often the event was started as a suspect; NULL if the event is not a suspect.
const SUSPECT: &str = "CASE WHEN e.locked_until IS NOT NULL OR e.crashes > 0 THEN e.crashes END";

/// Columns of every taken row: id, seq, available at, attempts, claims, suspect, now, then the
/// event and its last error. The error is cut, because another writer may have stored a longer one
/// than a relay does.
pub(super) fn columns() -> String {
    format!(
        "e.event_id, e.seq, e.available_at, {{int e.attempts}}, {{int e.claims}}, \
         {{int {SUSPECT}}}, {{now}}, {EVENT}, SUBSTR(e.last_error, 1, {MAX_ERROR})"
    )
}

/// Selects the rows that may be taken, before the order per key is checked. The limit is part of
/// the text, not a parameter: planners choose the index for a small limit that they can see.
///
/// Several keys at once need a database with `LATERAL`: each key gets an equal share of the limit.
///
/// `lists`: the id of the oldest group lease, if the database has group leases.
pub(super) fn window<DB: Dialect>(
    take: &Take,
    columns: &str,
    lock: Lock,
    lists: Option<i64>,
) -> (String, Vec<Value>) {
    const FREE: &str =
        "{pending} AND e.available_at <= {now} AND (e.locked_until IS NULL OR e.locked_until <= {now})";
    let mut values = Vec::new();
    let mut due = FREE.to_owned();
    match &take.by {
        // While a leader holds the whole table, no node leases single rows.
        Holder::Lease { .. } => due.push_str(
            " AND NOT EXISTS (SELECT 1 FROM {leases} x WHERE x.name = 'exclusive' AND x.held_until > {now})",
        ),
        // A former leader reads no rows.
        Holder::Exclusive { owner, epoch } => {
            values.extend([Value::text(owner.as_str()), Value::Int(*epoch)]);
            due.push_str(
                " AND EXISTS (SELECT 1 FROM {leases} x WHERE x.name = 'exclusive' AND x.holder = $1 AND x.epoch = $2)",
            );
        }
    }
    if let Some(oldest) = lists {
        // Also an expired group lease: its holder may still settle the events in it, until another
        // node takes it away.
        values.push(Value::Int(oldest));
        let mut which = format!("b.batch_id >= ${}", values.len());
        if let Origin::After(cursor) = &take.from {
            // Most group leases lie before the start of the window, and are not searched.
            values.push(Value::Time(Some(cursor.at)));
            let _ = write!(which, " AND b.due_to >= {{time ${}}}", values.len());
        }
        let _ = write!(
            due,
            " AND (e.claims > 0 OR e.seq NOT IN (SELECT unnest(b.seqs) FROM {{batches}} b WHERE {which}))"
        );
    }
    if !take.skip_recent.is_zero() {
        values.push(Value::micros(take.skip_recent));
        let _ = write!(due, " AND e.created_at <= {{earlier ${}}}", values.len());
    }
    if !take.skip_types.is_empty() {
        values.push(Value::texts(take.skip_types.iter().map(String::as_str)));
        let _ = write!(due, " AND NOT (e.event_type {{in texts ${}}})", values.len());
    }
    if let Some(only) = &take.only {
        due.push_str(&routed::<DB>(only, &mut values));
    }
    if let Some(types) = &take.probe {
        values.push(Value::texts(types.iter().map(String::as_str)));
        let _ = write!(due, " AND e.event_type {{in texts ${}}}", values.len());
    }
    let limit = take.limit;
    let order = match &take.from {
        Origin::Start => "e.available_at, e.seq",
        Origin::After(cursor) => {
            values.extend([Value::Time(Some(cursor.at)), Value::Int(cursor.seq)]);
            let (at, seq) = (values.len() - 1, values.len());
            let _ = write!(
                due,
                " AND e.available_at >= {{time ${at}}} AND (e.available_at > {{time ${at}}} OR e.seq > ${seq})"
            );
            "e.available_at, e.seq"
        }
        Origin::Keys(keys) if keys.len() == 1 => {
            values.push(Value::text(&*keys[0]));
            let _ = write!(due, " AND e.ordering_key = ${}", values.len());
            "e.seq"
        }
        Origin::Keys(keys) => {
            let keys: BTreeSet<&str> = keys.iter().map(|key| &**key).collect();
            let each = (limit / keys.len().max(1)).max(1);
            values.push(Value::texts(keys));
            let list = values.len();
            let locked = if lock == Lock::None { "" } else { " {skip locked}" };
            let text = format!(
                "SELECT {columns} FROM {{events}} e WHERE e.event_id IN (\
                 SELECT l.event_id FROM unnest(${list}::text[]) k(key) CROSS JOIN LATERAL (\
                 SELECT e.event_id FROM {{events}} e WHERE {due} AND e.ordering_key = k.key ORDER BY e.seq LIMIT {each}) l) \
                 AND {FREE}{locked}"
            );
            return (text, values);
        }
    };
    let find =
        |what: &str| format!("SELECT {what} FROM {{events}} e WHERE {due} ORDER BY {order} LIMIT {limit}");
    let text = match lock {
        Lock::None => find(columns),
        Lock::Skipping => find(columns) + " {skip locked}",
        Lock::Waiting => format!(
            "SELECT {columns} FROM ({}) w {{then}} {{events}} e FORCE INDEX (PRIMARY) ON e.seq = w.seq \
             WHERE {due} ORDER BY {order} FOR UPDATE",
            find("e.seq")
        ),
    };
    (text, values)
}

/// How a take locks the rows of its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    /// No locks.
    None,
    /// Leaves out rows that another transaction has locked.
    Skipping,
    /// Finds the rows first, then locks them by their numbers and checks them again. A locking
    /// search would lock every row that it passes, and wait for locks in another order than
    /// settlements and writers do.
    Waiting,
}

/// Condition that an event is routed. The text depends only on the number of patterns: the routes
/// of a relay are the same for as long as its settings are.
fn routed<DB: Dialect>(only: &Routed, values: &mut Vec<Value>) -> String {
    values.push(Value::texts(only.types.iter().map(String::as_str)));
    let mut text = format!(" AND (e.event_type {{in texts ${}}}", values.len());
    if !only.pairs.is_empty() {
        values.push(Value::Text(serde_json::to_string(&only.pairs).ok()));
        // Other writers may have written NULL for the global aggregate.
        let _ = write!(
            text,
            " OR (COALESCE(e.aggregate_type, '{GLOBAL}'), e.event_type) {{in rows ${}}}",
            values.len()
        );
    }
    for pattern in &only.patterns {
        values.push(Value::text(DB::pattern(pattern)));
        let _ = write!(text, " OR e.event_type {{fits ${}}}", values.len());
    }
    text + ")"
}

/// Leases rows that were selected and locked in the same transaction.
pub(super) const CLAIM: &str = "UPDATE {listed events event_id texts $3} \
     SET locked_by = $1, locked_until = {later $2}, claims = claims + 1 {where listed events event_id texts $3}";

/// Makes the verdicts of other holders on events of these keys stale. The other holders keep their
/// leases: no other node handles these events before the leases run out.
///
/// Events whose lease ran out stay suspect, and get a time long ago ($3) that marks them as fenced.
/// Without the mark every take of a key with thousands of suspects would write all of them.
///
/// These rows have not been read, so claims that another program wrote stop at a billion, the limit
/// of the table. At a billion the fence does not hold, but no relay holds such a row.
pub(super) const FENCE: &str = "UPDATE {listed events ordering_key texts $1} \
     SET claims = CASE WHEN claims < 1000000000 THEN claims + 1 ELSE claims END, \
     locked_by = CASE WHEN locked_until > {now} THEN locked_by END, \
     locked_until = CASE WHEN locked_until > {now} THEN locked_until WHEN locked_until IS NOT NULL THEN {time $3} END \
     {where listed events ordering_key texts $1} AND {pending of key} \
     AND (locked_by <> $2 OR (locked_by IS NULL AND locked_until > {time $3}))";

/// End of the lease that the row of a fenced event shows.
pub(super) const FENCED: DateTime<Utc> = DateTime::UNIX_EPOCH;

/// Finds pending rows with an aggregate and no key, the oldest first. An UPDATE alone would wait
/// for rows of open transactions on MySQL and MariaDB.
pub(super) const UNKEYED: &str = "SELECT e.seq FROM {events} e {by events_key} \
     WHERE {pending} AND e.ordering_key IS NULL AND e.aggregate_id IS NOT NULL ORDER BY e.seq LIMIT 10000";
/// Gives such rows the key of their aggregate. Includes rows that a relay holds: later events of
/// the key wait for them.
pub(super) const KEY_BY_AGGREGATE: &str = "UPDATE {listed events seq ints $1} SET ordering_key = {aggregate key} \
     {where listed events seq ints $1} AND ordering_key IS NULL";

/// Removes the holder of an expired lease. The expired time stays, because it makes the event
/// suspect.
pub(super) const REAP: &str = "UPDATE {events} SET locked_by = NULL \
     WHERE {pending of events} AND locked_by IS NOT NULL AND locked_until <= {now}";

pub(super) const HELD: &str = "SELECT event_id, {int claims} FROM {events} \
     WHERE event_id {in texts $2} AND locked_by = $1 AND {pending of events}";

pub(super) const COUNT_START: &str = "UPDATE {events} SET crashes = crashes + 1 \
     WHERE event_id = $1 AND claims = $2 AND {pending of events}";
/// Added to [`COUNT_START`]: the caller must still be the holder.
pub(super) const COUNTED_BY_LEASE: &str = " AND locked_by = $3 AND locked_until > {now}";
pub(super) const COUNTED_BY_LIST: &str = " AND locked_by IS NULL";
pub(super) const COUNTED_BY_EPOCH: &str = " AND EXISTS (SELECT 1 FROM {leases} l \
     WHERE l.name = 'exclusive' AND l.holder = $3 AND l.epoch = $4)";
/// Added to [`COUNT_START`]: no group lease has the event.
pub(super) const COUNTED_UNLISTED: &str = " AND seq NOT IN (SELECT unnest(b.seqs) FROM {batches} b)";
pub(super) const CRASHES: &str = "SELECT {int crashes} FROM {events} WHERE event_id = $1";

pub(super) const SEE_LEASE: &str =
    "SELECT holder, epoch, held_until, {now} FROM {leases} WHERE name = $1 {lock}";
/// Renews a lease. A statement of its own, without the lock that a takeover needs: settlements
/// share the row, one after another without a gap, and would keep the lease from being renewed.
pub(super) const KEEP_LEASE: &str =
    "UPDATE {leases} SET held_until = {later $3} WHERE name = $1 AND holder = $2";
pub(super) const EPOCH: &str = "SELECT epoch FROM {leases} WHERE name = $1 AND holder = $2";
pub(super) const PUT_LEASE: &str =
    "UPDATE {leases} SET holder = $2, epoch = $3, held_until = {later $4} WHERE name = $1";
pub(super) const LEADER: &str = "SELECT holder FROM {leases} WHERE name = $1 AND held_until > {now}";
pub(super) const RESIGN: &str = "UPDATE {leases} SET holder = NULL, held_until = NULL \
     WHERE name = $1 AND holder = $2 AND epoch = $3";
/// Ends a lease but leaves its holder: the expired lease shows the next holder that this one
/// vanished.
pub(super) const END_LEASE: &str =
    "UPDATE {leases} SET held_until = {now} WHERE name = $1 AND holder = $2 AND epoch = $3";

/// Finds a pending, free event and locks its row, so that the event cannot become or stop being a
/// step of a join.
pub(super) const CANCELLABLE: &str =
    "SELECT {int e.joined} FROM {events} e WHERE e.event_id = $1 AND {pending} AND {free} {lock}";
/// Dead-letters a row that cannot be leased, and so cannot be settled, because of invalid values.
pub(super) const DEAD_LETTER: &str = "UPDATE {events} AS e SET status = 3, done_at = {now}, done_by = $2, last_error = $3, \
     locked_by = NULL, locked_until = NULL, available_at = {now}, claims = 1, crashes = 0, \
     attempts = CASE WHEN e.attempts BETWEEN 0 AND 1000000000 THEN e.attempts ELSE 0 END \
     WHERE e.seq = $1 AND {pending} AND {free}";
/// The id of a dead-lettered row, if it is a step of a join.
pub(super) const DEAD_STEP: &str =
    "SELECT e.event_id FROM {events} e WHERE e.seq = $1 AND {dead} AND e.joined = 1";
pub(super) const CANCEL: &str = "DELETE FROM {events} WHERE event_id = $1";

pub(super) const REPLAY: &str = "UPDATE {listed events seq ints $1} SET status = 0, attempts = 0, crashes = 0, \
     available_at = {now}, expires_at = NULL, done_at = NULL, done_by = NULL, locked_by = NULL, locked_until = NULL \
     {where listed events seq ints $1} AND status = 3";

pub(super) const STATS: &str = "SELECT {int status}, count(*) FROM {events} GROUP BY status";
pub(super) const OLDEST_DUE: &str =
    "SELECT min(e.available_at), {now} FROM {events} e WHERE {pending} AND e.available_at <= {now}";
/// The last pending event that has been due for at least `$1`, by the index.
pub(super) const LAST_DUE: &str = "SELECT e.available_at, e.seq FROM {events} e {by events_due} \
     WHERE {pending} AND e.available_at <= {earlier $1} ORDER BY e.available_at DESC, e.seq DESC LIMIT 1";
pub(super) const BACKLOG: &str = "SELECT count(*), \
     count(CASE WHEN e.available_at <= {now} AND {free} THEN 1 END) \
     FROM {events} e WHERE {pending}";

pub(super) const MAKE_VERSION: &str = "CREATE TABLE IF NOT EXISTS {version} (version integer NOT NULL)";
pub(super) const SEE_VERSION: &str = "SELECT {int max(version)} FROM {version}";
pub(super) const CLEAR_VERSION: &str = "DELETE FROM {version}";
pub(super) const PUT_VERSION: &str = "INSERT INTO {version} (version) VALUES ($1)";

/// Condition of a filter, with its values numbered from `$1`.
pub(super) fn condition(filter: &Filter) -> (String, Vec<Value>) {
    let mut text = match filter.status {
        Some(Status::Dead) => "{dead}".to_owned(),
        Some(status) => format!("e.status = {}", status as i16),
        None => "1 = 1".to_owned(),
    };
    if filter.pending {
        text.push_str(" AND {pending}");
    }
    // Other writers may have written NULL for the global aggregate.
    let is_global = filter.aggregate_type.as_deref() == Some(GLOBAL);
    if is_global {
        let _ = write!(text, " AND COALESCE(e.aggregate_type, '{GLOBAL}') = '{GLOBAL}'");
    }
    let mut values = Vec::new();
    // `$` marks the place of the value.
    let mut add = |condition: &str, value: Option<Value>| {
        let (Some(value), Some((before, after))) = (value, condition.split_once('$')) else { return };
        values.push(value);
        let _ = write!(text, " AND e.{before}${}{after}", values.len());
    };
    let text_of = |text: &Option<String>| text.as_ref().map(Value::text);
    add("event_type = $", text_of(&filter.event_type));
    add("aggregate_type = $", text_of(&filter.aggregate_type).filter(|_| !is_global));
    add("aggregate_id = $", text_of(&filter.aggregate_id));
    add("tenant_id = $", text_of(&filter.tenant_id));
    add("ordering_key = $", text_of(&filter.ordering_key));
    add("correlation_id = $", text_of(&filter.correlation_id));
    add("event_id = $", filter.id.as_ref().map(|id| Value::text(id.as_str())));
    add("seq > $", filter.after_seq.map(Value::Int));
    add("seq <= $", filter.upto_seq.map(Value::Int));
    add("created_at < {earlier $}", filter.older_than.map(Value::micros));
    add("created_at >= {earlier $}", filter.newer_than.map(Value::micros));
    add("done_at < {earlier $}", filter.settled_before.map(Value::micros));
    add("done_at >= {earlier $}", filter.settled_within.map(Value::micros));
    (text, values)
}

pub(super) fn list(filter: &Filter, limit: usize) -> (String, Vec<Value>) {
    let (condition, values) = condition(filter);
    let columns = columns();
    let text = format!(
        "SELECT {columns}, {{int e.status}}, e.done_at, {{holder}}, {{until}}, e.done_by \
         FROM {{events}} e WHERE {condition} ORDER BY e.seq LIMIT {limit}"
    );
    (text, values)
}

pub(super) fn count(filter: &Filter) -> (String, Vec<Value>) {
    let (condition, values) = condition(filter);
    (format!("SELECT count(*) FROM {{events}} e WHERE {condition}"), values)
}

/// Counts the events of each type.
pub(super) fn types(filter: &Filter, limit: usize) -> (String, Vec<Value>) {
    let (condition, values) = condition(filter);
    let text = format!(
        "SELECT e.event_type, count(*) FROM {{events}} e WHERE {condition} \
         GROUP BY e.event_type ORDER BY 2 DESC, 1 LIMIT {limit}"
    );
    (text, values)
}

/// The time, the leader of the table, the time of the last settlement, and whether any row is held.
/// Not the maximum of `done_at`: for that SQLite reads the whole table, and MariaDB the whole index
/// once NULLs are left out.
pub(super) const SURROUNDINGS: &str = "SELECT {now}, \
     (SELECT x.holder FROM {leases} x WHERE x.name = 'exclusive' AND x.held_until > {now}), \
     (SELECT e.done_at FROM {events} e WHERE e.done_at IS NOT NULL ORDER BY e.done_at DESC LIMIT 1), \
     (SELECT count(*) FROM (SELECT e.seq FROM {events} e WHERE {pending} AND {held} LIMIT 1) h)";

/// Counts the free events that are due before this place in the queue, up to a limit.
pub(super) fn due_before(limit: u64) -> String {
    format!(
        "SELECT count(*) FROM (SELECT e.seq FROM {{events}} e WHERE {{pending}} AND e.available_at <= {{now}} \
         AND {{free}} AND e.available_at <= {{time $1}} \
         AND (e.available_at < {{time $1}} OR e.seq < $2) ORDER BY e.available_at, e.seq LIMIT {limit}) d"
    )
}

/// The numbers of the rows that a filter selects.
pub(super) fn numbers(filter: &Filter, limit: usize) -> (String, Vec<Value>) {
    let (condition, values) = condition(filter);
    (format!("SELECT e.seq FROM {{events}} e WHERE {condition} ORDER BY e.seq LIMIT {limit}"), values)
}

/// Which rows one query of a purge selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purged {
    /// DONE rows by `done_at`, along its index. `from`: without rows before the time `$2`.
    Done { from: bool },
    /// DONE rows without `done_at`. Read without locks: without an index of their own (MySQL has no
    /// partial indexes) they lie among the pending rows, and a locking read would lock all of
    /// those.
    DoneWithoutTime,
    /// DEAD rows; `heads`: also dead rows that hold back later events of their key.
    Dead { heads: bool },
    /// Pending rows.
    Pending,
}

/// Selects rows to purge: their ids, their `done_at`, and their numbers. Rows are selected first
/// and deleted by id, which takes no lock on a row that another transaction has locked.
pub(super) fn purgeable<DB: Dialect>(what: Purged, limit: usize) -> String {
    // A step of an open join may be replayed, and explains why the join waits.
    const FREE: &str = "(e.joined = 0 OR NOT EXISTS (SELECT 1 FROM {members} m LEFT JOIN {joins} j ON j.join_id = m.join_id \
        WHERE m.event_id = e.event_id AND (j.status = 0 OR (m.home <> '' AND m.status = 0))))";
    const DEAD: &str = "{dead} AND COALESCE(e.done_at, e.created_at) < {earlier $1}";
    const NOT_A_HEAD: &str = "(e.ordering_key IS NULL OR NOT EXISTS (SELECT 1 FROM {events} o \
        WHERE o.ordering_key = e.ordering_key AND o.seq > e.seq AND {pending of later}))";
    let in_order = if DB::DEAD_BY_TIME { "ORDER BY e.available_at, e.seq" } else { "ORDER BY e.seq" };
    let (condition, lock) = match what {
        Purged::Done { from: false } => {
            ("e.status = 1 AND e.done_at < {earlier $1} ORDER BY e.done_at".to_owned(), "{skip locked}")
        }
        Purged::Done { from: true } => (
            "e.status = 1 AND e.done_at >= {time $2} AND e.done_at < {earlier $1} ORDER BY e.done_at"
                .to_owned(),
            "{skip locked}",
        ),
        Purged::DoneWithoutTime => {
            ("e.status = 1 AND e.done_at IS NULL AND e.created_at < {earlier $1}".to_owned(), "")
        }
        Purged::Dead { heads: false } => (format!("{DEAD} AND {NOT_A_HEAD} {in_order}"), "{skip locked}"),
        Purged::Dead { heads: true } => (format!("{DEAD} {in_order}"), "{skip locked}"),
        Purged::Pending => (
            "{pending} AND e.available_at < {earlier $1} AND e.created_at < {earlier $1} \
             ORDER BY e.available_at, e.seq"
                .to_owned(),
            "{skip locked}",
        ),
    };
    format!(
        "SELECT e.event_id, e.done_at, e.seq FROM {{events}} e WHERE {FREE} AND {condition} LIMIT {limit} {lock}"
    )
}
/// Deletes a row by number, because its id is not text and matches no id in a list.
pub(super) const PURGE_ROW: &str = "DELETE FROM {events} WHERE seq = $1";
/// Deletes the rows that [`Purged::DoneWithoutTime`] selected, unless they changed since.
pub(super) const PURGE_WITHOUT_TIME: &str = "DELETE {from listed events event_id texts $1} \
     {where listed events event_id texts $1} AND status = 1 AND done_at IS NULL";
pub(super) const PURGE: &str =
    "DELETE {from listed events event_id texts $1} {where listed events event_id texts $1}";

/// Number of values that [`row_values`] returns.
const ROW_VALUES: usize = 16;

/// Columns that [`row_values`] has values for, and how each value is written. The time at which an
/// event is available takes two values.
const COLUMNS: [(&str, &str); ROW_VALUES] = [
    ("event_id", "$"),
    ("event_type", "$"),
    ("aggregate_type", "$"),
    ("aggregate_id", "$"),
    ("tenant_id", "$"),
    ("ordering_key", "$"),
    ("correlation_id", "$"),
    ("dedup_key", "$"),
    ("headers", "{to json $}"),
    ("payload", "{to json $}"),
    ("payload_bytes", "$"),
    ("content_type", "$"),
    ("occurred_at", "{time $}"),
    ("available_at", "{time $}"),
    ("available_at", "{later $}"),
    ("expires_at", "{time $}"),
];
const AT: usize = ROW_VALUES - 3;
const DELAY: usize = ROW_VALUES - 2;

/// Rows to insert: the values of each row, and which columns have a value in at least one row. Most
/// events leave most columns at their defaults, and every bound value costs time.
struct Given {
    rows: Vec<[Value; ROW_VALUES]>,
    used: [bool; ROW_VALUES],
    /// Whether at least one row has a due time of its own.
    due: bool,
}

/// Whether a value differs from the default of its column.
fn is_given(value: &Value) -> bool {
    !matches!(value, Value::Text(None) | Value::Bytes(None) | Value::Time(None) | Value::Int(0))
}

impl Given {
    fn of(rows: &[NewRow]) -> Self {
        let rows: Vec<_> = rows.iter().map(|row| row_values(&row.event)).collect();
        let mut used = [false; ROW_VALUES];
        for row in &rows {
            for (used, value) in used.iter_mut().zip(row) {
                *used |= is_given(value);
            }
        }
        let due = used[AT] || used[DELAY];
        (used[AT], used[DELAY]) = (false, false);
        Self { rows, used, due }
    }

    /// `INSERT INTO … (…) ` with the used columns in their order, then `created_at`, the due time,
    /// and the lease.
    fn insert_into(&self, leases: bool) -> String {
        let mut text = "INSERT INTO {events} (".to_owned();
        for ((column, _), _) in COLUMNS.iter().zip(self.used).filter(|(_, used)| *used) {
            let _ = write!(text, "{column}, ");
        }
        text.push_str("created_at, available_at");
        text.push_str(if self.due { ", due_at" } else { "" });
        text.push_str(if leases { ", locked_by, locked_until, claims) " } else { ") " });
        text
    }
}

/// Writes a placeholder in place of the `$`, and adds its value.
fn write_value(text: &mut String, values: &mut Vec<Value>, written: &str, value: Value) {
    values.push(value);
    let (before, after) = written.split_once('$').unwrap_or((written, ""));
    let _ = write!(text, "{before}${}{after}", values.len());
}

/// `INSERT … VALUES` for these rows, with the lease's owner and length as `$1` and `$2`.
pub(super) fn insert_values(rows: &[NewRow], birth: Option<&BirthLease>) -> (String, Vec<Value>) {
    let given = Given::of(rows);
    let mut text = given.insert_into(birth.is_some());
    text.push_str("VALUES ");

    let mut values = Vec::with_capacity(2 + rows.len() * ROW_VALUES);
    values.extend(birth.into_iter().flat_map(lease_values));
    for (n, (row, row_values)) in rows.iter().zip(given.rows).enumerate() {
        text.push_str(if n == 0 { "(" } else { ", (" });
        let mut times = Vec::with_capacity(2);
        for (i, value) in row_values.into_iter().enumerate() {
            if given.used[i] {
                write_value(&mut text, &mut values, COLUMNS[i].1, value);
                text.push_str(", ");
            } else if i == AT || i == DELAY {
                times.push((COLUMNS[i].1, value));
            }
        }
        text.push_str("{now}, ");
        if given.due {
            text.push_str("COALESCE(");
            for (i, (written, value)) in times.iter().enumerate() {
                text.push_str(if i == 0 { "" } else { ", " });
                write_value(&mut text, &mut values, written, value.clone());
            }
            text.push_str("), ");
            // The same time, or NULL if the event has no due time.
            match times.into_iter().find(|(_, value)| is_given(value)) {
                Some((written, value)) => write_value(&mut text, &mut values, written, value),
                None => text.push_str("NULL"),
            }
        } else {
            text.push_str("{now}");
        }
        text.push_str(match (birth.is_some(), row.leased) {
            (true, true) => ", $1, {later $2}, 1)",
            (true, false) => ", NULL, NULL, 0)",
            (false, _) => ")",
        });
    }
    (text, values)
}

/// `INSERT … SELECT` from one list per column: the text does not depend on the number of rows. For
/// databases that have arrays.
///
/// `first` returns a query of one row that runs before anything is inserted. Its argument is the
/// placeholder of the list of keys; it is not called if no row has a key.
#[cfg(feature = "postgres")]
pub(super) fn insert_lists(
    rows: &[NewRow],
    birth: Option<&BirthLease>,
    first: impl FnOnce(&str) -> String,
) -> (String, Vec<Value>) {
    let given = Given::of(rows);
    let insert = given.insert_into(birth.is_some());
    let Given { rows: all, used, due } = given;
    let is_list = |i: usize| used[i] || (due && (i == AT || i == DELAY));
    let mut lists: Vec<(usize, Value)> = Vec::new();
    for row in all {
        if lists.is_empty() {
            lists = (0..ROW_VALUES).filter(|i| is_list(*i)).map(|i| (i, row[i].empty_list())).collect();
        }
        let values = row.into_iter().enumerate().filter(|(i, _)| is_list(*i));
        lists.iter_mut().zip(values).for_each(|((_, list), (_, value))| list.push(value));
    }

    let (mut from, mut names, mut select) = (String::new(), String::new(), String::new());
    let mut keys = None;
    let mut values = Vec::with_capacity(ROW_VALUES + 3);
    for (i, list) in lists {
        let kind = list.array();
        values.push(list);
        let place = format!("${}::{kind}", values.len());
        let _ = write!(from, "{place}, ");
        let _ = write!(names, "v{i}, ");
        if used[i] {
            let (before, after) = COLUMNS[i].1.split_once('$').unwrap_or_default();
            let _ = write!(select, "{before}r.v{i}{after}, ");
        }
        if COLUMNS[i].0 == "ordering_key" {
            keys = Some(place);
        }
    }
    select.push_str("{now}, ");
    if due {
        let _ = write!(
            select,
            "COALESCE(r.v{AT}, {{later r.v{DELAY}}}), \
             CASE WHEN r.v{DELAY} > 0 THEN {{later r.v{DELAY}}} ELSE r.v{AT} END"
        );
    } else {
        select.push_str("{now}");
    }
    if let Some(birth) = birth {
        let leased = Value::ints(rows.iter().map(|row| i64::from(row.leased)));
        let _ = write!(from, "${}::{}, ", values.len() + 1, leased.array());
        names.push_str("leased, ");
        let (owner, lease) = (values.len() + 2, values.len() + 3);
        let _ = write!(
            select,
            ", CASE WHEN r.leased = 1 THEN ${owner} END, CASE WHEN r.leased = 1 THEN {{later ${lease}}} END, r.leased"
        );
        values.push(leased);
        values.extend(lease_values(birth));
    }
    let from = from.trim_end_matches(", ");
    let lists = format!("unnest({from}) WITH ORDINALITY r({names}n)");
    let text = match keys {
        Some(keys) => {
            let first = first(&keys);
            format!(
                "WITH first AS MATERIALIZED ({first}) {insert}SELECT {select} FROM first, {lists} WHERE first.done ORDER BY r.n"
            )
        }
        None => format!("{insert}SELECT {select} FROM {lists} ORDER BY r.n"),
    };
    (text, values)
}

/// Maximum number of deduplication keys in one statement.
pub(super) const MOST_DEDUP_KEYS: usize = 512;

/// Selects keys and ids of the events with these deduplication keys. `current` makes a transaction
/// read rows that were committed after its snapshot. The last key is repeated up to a power of two,
/// so that there are few different texts.
pub(super) fn ids_by_dedup_key(keys: &[&str], current: &str) -> (String, Vec<Value>) {
    let count = keys.len().next_power_of_two();
    let padded = keys.iter().chain(std::iter::repeat(keys.last().unwrap_or(&"")));
    let values: Vec<Value> = padded.take(count).map(|key| Value::text(*key)).collect();
    let places: Vec<String> = (1..=count).map(|n| format!("${n}")).collect();
    let text = format!(
        "SELECT e.dedup_key, e.event_id FROM {{events}} e {{by events_dedup}} WHERE e.dedup_key IN ({}) {current}",
        places.join(", ")
    );
    (text, values)
}

/// Owner and length of the lease of events that are inserted leased.
fn lease_values(birth: &BirthLease) -> [Value; 2] {
    [Value::text(birth.owner.as_str()), Value::micros(birth.lease)]
}

/// Values of one row, in the order of [`COLUMNS`]; the time at which the event is available is an
/// absolute time or a delay.
pub(super) fn row_values(event: &Event) -> [Value; ROW_VALUES] {
    let owned = |text: Option<&str>| Value::Text(text.map(str::to_owned));
    let (payload, bytes, content_type) = match event.raw_payload() {
        Payload::Json(text) => (Some(text.clone()), None, None),
        Payload::Bytes { content_type, data } => (None, Some(data.clone()), Some(content_type.clone())),
    };
    let (at, delay) = match event.due() {
        Due::Now => (None, 0),
        Due::After(delay) => (None, micros(delay)),
        Due::At(at) | Due::Later(at) => (Some(at), 0),
    };
    let headers = match event.headers() {
        headers if headers.is_empty() => None,
        headers => serde_json::to_string(headers).ok(),
    };
    [
        Value::text(event.id().as_str()),
        Value::text(event.event_type().as_str()),
        Value::text(event.aggregate_type().as_str()),
        owned(event.aggregate_id()),
        owned(event.tenant_id()),
        owned(event.ordering_key()),
        owned(event.correlation_id()),
        owned(event.dedup_key()),
        Value::Text(headers),
        Value::Text(payload),
        Value::Bytes(bytes),
        Value::Text(content_type),
        Value::Time(Some(event.occurred_at())),
        Value::Time(at),
        Value::Int(delay),
        Value::Time(event.expires_at()),
    ]
}
