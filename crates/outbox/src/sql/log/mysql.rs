//! The log on MySQL and MariaDB: a counter, whose row each append locks until the end of its
//! transaction.
//!
//! Under REPEATABLE READ a transaction does not see rows committed after its first read. Reads that
//! decide an append therefore lock, which returns the current rows.

use sqlx::Row as _;
use sqlx::mysql::{MySql, MySqlConnection, MySqlRow};

use super::rows::{self, stored, tags_from_json};
use super::{Append, AppendOutcome, LogDialect, statements};
use crate::error::Result;
use crate::event::Event;
use crate::log::{Item, Position, Tag, Watermark};
use crate::sql::dialect::{Dialect as _, Render, Value};
use crate::sql::names::Names;
use crate::sql::tidb;

/// Maximum number of events in one INSERT: well below the protocol's limit of 65,535 placeholders.
const CHUNK: usize = 1_000;

/// Adds to the counter, and returns its new value as the last insert id, without a second
/// statement.
const COUNT: &str = "UPDATE {log_head} SET position = LAST_INSERT_ID(position + $1) WHERE id = 1";

/// Sets the counter, whose row is locked.
const MOVE: &str = "UPDATE {log_head} SET position = $1 WHERE id = 1";

/// Finds the occupied positions from `$1` on, which the counter has not reached. A locking read, to
/// see all committed rows.
const TAKEN: &str =
    "SELECT l.position FROM {log} l WHERE l.position >= $1 ORDER BY l.position LOCK IN SHARE MODE";

/// Tags and positions as a table.
const LIST: &str = "JSON_TABLE($1, '$[*]' COLUMNS (\
     tag varchar(255) {exact} PATH '$[0]', position bigint PATH '$[1]')) j";

impl LogDialect for MySql {
    const CURRENT: &'static str = "LOCK IN SHARE MODE";
    const HEAD: &'static str = "SELECT position FROM {log_head}";
    const PURGE_TAGS: &'static str = "DELETE t FROM {log_tags} t JOIN (\
             SELECT l.position, j.tag FROM {log} l \
             JOIN JSON_TABLE(l.tags, '$[*]' COLUMNS (tag varchar(255) {exact} PATH '$')) j WHERE l.position {in ints $1}) x \
         ON x.tag = t.tag AND x.position = t.position";

    fn purge_tags(names: &Names) -> &'static str {
        if names.product.is_tidb() { tidb::PURGE_TAGS } else { Self::PURGE_TAGS }
    }

    async fn append(
        sql: &dyn Render,
        conn: &mut MySqlConnection,
        append: &Append<'_>,
    ) -> Result<AppendOutcome> {
        if append.own {
            return append_all(sql, conn, append).await;
        }
        // The caller's transaction may continue after an error, so the append is all or nothing. If
        // the error has ended the transaction, as a deadlock does, the savepoint no longer exists,
        // and nothing outside of the append is undone.
        Self::script(conn, "SAVEPOINT outbox_log_append".to_owned()).await?;
        let appended = append_all(sql, conn, append).await;
        let end = if matches!(appended, Ok(AppendOutcome::New(_))) {
            "RELEASE SAVEPOINT"
        } else {
            "ROLLBACK TO SAVEPOINT"
        };
        let ended = Self::script(conn, format!("{end} outbox_log_append")).await;
        let appended = appended?;
        ended?;
        Ok(appended)
    }

    async fn settle(
        sql: &dyn Render,
        conn: &mut MySqlConnection,
        _: &[Item],
        to_stay: bool,
    ) -> Result<Position> {
        // Positions are committed in order, so all existing positions are final.
        let lock = if to_stay { " FOR UPDATE" } else { "" };
        let statement = sql.render(&format!("{}{lock}", Self::HEAD));
        Ok(statements::position::<Self>(&Self::fetch(conn, statement, Vec::new()).await?)?)
    }

    async fn look(sql: &dyn Render, conn: &mut MySqlConnection, watermark: &mut Watermark) -> Result<()> {
        let rows = Self::fetch(conn, sql.render(Self::HEAD), Vec::new()).await?;
        let end = statements::position::<Self>(&rows)?;
        watermark.ends_at(end);
        watermark.reach(end);
        Ok(())
    }

    // JSON_VALID rejects deeply nested JSON that is valid, so the table accepts any text.
    stored!(tags, check_json: true);
}

fn tags(row: &MySqlRow) -> Result<Vec<Tag>, String> {
    tags_from_json(row.try_get(2).map_err(|e| e.to_string())?)
}

/// Draws the positions, checks the conditions, writes the events.
async fn append_all(
    sql: &dyn Render,
    conn: &mut MySqlConnection,
    append: &Append<'_>,
) -> Result<AppendOutcome> {
    let count = i64::try_from(append.events.len()).unwrap_or(i64::MAX);
    let counted =
        sqlx::query(sqlx::AssertSqlSafe(sql.render(COUNT).text)).bind(count).execute(&mut *conn).await?;
    let last = i64::try_from(counted.last_insert_id()).unwrap_or(i64::MAX);
    let head = last - count;
    if let Some(refused) = refused(sql, conn, append, Position::new(head)).await? {
        return Ok(refused);
    }
    Ok(AppendOutcome::New(write(sql, conn, append.events, head + 1).await?))
}

/// Returns why the events cannot be appended to a log that ends at `head`. The lock on the counter
/// excludes other appends meanwhile.
async fn refused(
    sql: &dyn Render,
    conn: &mut MySqlConnection,
    append: &Append<'_>,
    head: Position,
) -> Result<Option<AppendOutcome>> {
    for check in &append.checks {
        if check.after > head {
            return Ok(append.beyond(head));
        }
        let (text, values) = statements::find(check.item, check.after, MySql::CURRENT);
        if !MySql::fetch(conn, sql.render(&text), values).await?.is_empty() {
            return Ok(Some(AppendOutcome::found(check)));
        }
    }
    Ok(None)
}

/// Writes events from this position on. Returns their positions, which rise and may have gaps.
///
/// The database does not stop a writer from using a position that it has not drawn. Where such rows
/// occupy the drawn positions, the events and the counter move behind them: otherwise every further
/// append would fail.
async fn write(
    sql: &dyn Render,
    conn: &mut MySqlConnection,
    events: &[Event],
    first: i64,
) -> Result<Vec<Position>> {
    let (mut positions, mut next, mut left) = (Vec::with_capacity(events.len()), first, events);
    while !left.is_empty() {
        let (chunk, rest) = left.split_at(left.len().min(CHUNK));
        match write_chunk(sql, conn, chunk, next).await {
            Err(error) if is_taken_position(&error) => {
                // The failed statement has written nothing.
                next = move_behind(sql, conn, next, left.len()).await?;
                write_chunk(sql, conn, chunk, next).await?;
            }
            written => written?,
        }
        positions.extend((next..).take(chunk.len()).map(Position::new));
        next = positions.last().map_or(next, |last| last.get() + 1);
        left = rest;
    }
    Ok(positions)
}

async fn write_chunk(
    sql: &dyn Render,
    conn: &mut MySqlConnection,
    events: &[Event],
    first: i64,
) -> Result<(), sqlx::Error> {
    let (text, values) = rows::insert(events, Some(first));
    MySql::run(conn, sql.render(&text), values).await?;
    let tags = tags_from(events, first);
    if !tags.is_empty() {
        // IGNORE: another writer may have inserted the same tag. Tags are neither NULL nor too
        // long.
        let insert =
            format!("INSERT IGNORE INTO {{log_tags}} (tag, position) SELECT j.tag, j.position FROM {LIST}");
        MySql::run(conn, sql.render(&insert), vec![json(&tags)]).await?;
    }
    Ok(())
}

/// Moves the counter behind the rows that occupy positions, to the first gap of `count` positions.
/// Returns the first position of the gap.
async fn move_behind(
    sql: &dyn Render,
    conn: &mut MySqlConnection,
    first: i64,
    count: usize,
) -> Result<i64, sqlx::Error> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let mut next = first;
    let mut each = |row: &MySqlRow| {
        let taken: i64 = row.try_get(0)?;
        if taken - next < count {
            next = taken.saturating_add(1);
        }
        Ok(())
    };
    MySql::fetch_each(conn, sql.render(TAKEN), vec![Value::Int(first)], &mut each).await?;
    tracing::warn!(
        from = first,
        to = next,
        "log positions occupied without being drawn from the counter; skipped"
    );
    let last = next.saturating_add(count - 1);
    MySql::run(conn, sql.render(MOVE), vec![Value::Int(last)]).await?;
    Ok(next)
}

/// Whether the error means that a position is occupied, rather than an event's id.
fn is_taken_position(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|e| e.is_unique_violation() && e.message().trim_end().ends_with("PRIMARY'"))
}

/// Tags of events, the first of which has this position.
fn tags_from(events: &[Event], first: i64) -> Vec<(&str, i64)> {
    let tagged = |(event, position)| rows::tags(event).into_iter().map(move |tag| (tag, position));
    events.iter().zip(first..).flat_map(tagged).collect()
}

fn json(tags: &[(&str, i64)]) -> Value {
    Value::Text(serde_json::to_string(tags).ok())
}
