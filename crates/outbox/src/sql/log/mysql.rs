//! The log on MySQL and MariaDB: a counter, whose row is locked by whoever appends until the end of its transaction.
//!
//! Under REPEATABLE READ a transaction does not see what was committed after its first read. What decides is therefore read
//! with a lock, which reads what there is.

use sqlx::Row as _;
use sqlx::mysql::{MySql, MySqlConnection, MySqlRow};

use super::rows::{self, stored, tags_from_json};
use super::{Append, LogDialect, Outcome, statements};
use crate::error::Result;
use crate::event::Event;
use crate::log::{Item, Position, Tag, Watermark};
use crate::sql::dialect::{Dialect as _, Render, Value};
use crate::sql::names::Names;
use crate::sql::tidb;

/// How many events go into one INSERT: well below the 65,535 placeholders that the protocol allows.
const CHUNK: usize = 1_000;

/// Adds to the counter, and gives its new value as the id of what was inserted: no second statement is needed for it.
const COUNT: &str = "UPDATE {log_head} SET position = LAST_INSERT_ID(position + $1) WHERE id = 1";

/// Sets the counter, whose row is locked.
const MOVE: &str = "UPDATE {log_head} SET position = $1 WHERE id = 1";

/// Finds the taken positions from `$1` on, which the counter has not reached. A locking read, to
/// see all that is committed.
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

    async fn append(sql: &dyn Render, conn: &mut MySqlConnection, append: &Append<'_>) -> Result<Outcome> {
        if append.own {
            return append_all(sql, conn, append).await;
        }
        // The caller's transaction may go on after an error: with all of it or with none of it. If the error has ended the
        // transaction, as a deadlock does, there is no savepoint any more, and nothing is undone that is not ours.
        Self::script(conn, "SAVEPOINT outbox_log_append".to_owned()).await?;
        let appended = append_all(sql, conn, append).await;
        let end = if matches!(appended, Ok(Outcome::New(_))) {
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
        // Positions are committed in their order, so what there is is decided.
        let lock = if to_stay { " FOR UPDATE" } else { "" };
        let statement = sql.render(&format!("{}{lock}", Self::HEAD));
        Ok(statements::position::<Self>(&Self::fetch(conn, statement, Vec::new()).await?)?)
    }

    async fn look(sql: &dyn Render, conn: &mut MySqlConnection, frontier: &mut Watermark) -> Result<()> {
        let rows = Self::fetch(conn, sql.render(Self::HEAD), Vec::new()).await?;
        let end = statements::position::<Self>(&rows)?;
        frontier.ends_at(end);
        frontier.reach(end);
        Ok(())
    }

    // JSON_VALID refuses deep JSON that is valid, so the table takes any text.
    stored!(tags, check_json: true);
}

fn tags(row: &MySqlRow) -> Result<Vec<Tag>, String> {
    tags_from_json(row.try_get(2).map_err(|e| e.to_string())?)
}

/// Draws the positions, checks the conditions, writes the events.
async fn append_all(sql: &dyn Render, conn: &mut MySqlConnection, append: &Append<'_>) -> Result<Outcome> {
    let count = i64::try_from(append.events.len()).unwrap_or(i64::MAX);
    let counted =
        sqlx::query(sqlx::AssertSqlSafe(sql.render(COUNT).text)).bind(count).execute(&mut *conn).await?;
    let last = i64::try_from(counted.last_insert_id()).unwrap_or(i64::MAX);
    let head = last - count;
    if let Some(refused) = refused(sql, conn, append, Position::new(head)).await? {
        return Ok(refused);
    }
    Ok(Outcome::New(write(sql, conn, append.events, head + 1).await?))
}

/// Why the events cannot be appended to a log that ends here. Nobody else appends meanwhile.
async fn refused(
    sql: &dyn Render,
    conn: &mut MySqlConnection,
    append: &Append<'_>,
    head: Position,
) -> Result<Option<Outcome>> {
    for check in &append.checks {
        if check.after > head {
            return Ok(append.beyond(head));
        }
        let (text, values) = statements::find(check.item, check.after, MySql::CURRENT);
        if !MySql::fetch(conn, sql.render(&text), values).await?.is_empty() {
            return Ok(Some(Outcome::found(check)));
        }
    }
    Ok(None)
}

/// Writes events from this position on. Returns their positions, which rise and may leave some out.
///
/// Nothing keeps a writer from a position that it has not drawn. Where rows are in the way, the
/// events go behind them, and so does the counter: otherwise no append would succeed any more.
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
                // The statement that failed has written nothing.
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
        // IGNORE: another writer may have put the same tag there. Tags are neither NULL nor too
        // long.
        let insert =
            format!("INSERT IGNORE INTO {{log_tags}} (tag, position) SELECT j.tag, j.position FROM {LIST}");
        MySql::run(conn, sql.render(&insert), vec![json(&tags)]).await?;
    }
    Ok(())
}

/// Moves the counter behind the rows that are in the way, to the first gap of `count` positions.
/// Returns the first of these.
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
        "positions of the log were taken without being drawn; passed over"
    );
    let last = next.saturating_add(count - 1);
    MySql::run(conn, sql.render(MOVE), vec![Value::Int(last)]).await?;
    Ok(next)
}

/// Whether the error says that a position is taken, and not an event's id.
fn is_taken_position(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|e| e.is_unique_violation() && e.message().trim_end().ends_with("PRIMARY'"))
}

/// The tags of events, the first of which has this position.
fn tags_from(events: &[Event], first: i64) -> Vec<(&str, i64)> {
    let tagged = |(event, position)| rows::tags(event).into_iter().map(move |tag| (tag, position));
    events.iter().zip(first..).flat_map(tagged).collect()
}

fn json(tags: &[(&str, i64)]) -> Value {
    Value::Text(serde_json::to_string(tags).ok())
}
