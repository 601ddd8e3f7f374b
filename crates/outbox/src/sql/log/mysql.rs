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
use crate::log::{Frontier, Item, Position, Tag};
use crate::sql::dialect::{Dialect as _, Render, Value};

/// How many events go into one INSERT: well below the 65,535 placeholders that the protocol allows.
const CHUNK: usize = 1_000;

/// Adds to the counter, and gives its new value as the id of what was inserted: no second statement is needed for it.
const COUNT: &str = "UPDATE {log_head} SET position = LAST_INSERT_ID(position + $1) WHERE id = 1";

/// Tags and positions as a table.
const LIST: &str = "JSON_TABLE($1, '$[*]' COLUMNS (\
     tag varchar(255) {exact} PATH '$[0]', position bigint PATH '$[1]')) j";

impl LogDialect for MySql {
    const CURRENT: &'static str = "LOCK IN SHARE MODE";
    const HEAD: &'static str = "SELECT position FROM {log_head}";

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

    async fn look(sql: &dyn Render, conn: &mut MySqlConnection, frontier: &mut Frontier) -> Result<()> {
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
    write(sql, conn, append.events, head + 1).await?;
    Ok(Outcome::New((head + 1..=last).map(Position::new).collect()))
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

async fn write(sql: &dyn Render, conn: &mut MySqlConnection, events: &[Event], first: i64) -> Result<()> {
    for (events, first) in events.chunks(CHUNK).zip((first..).step_by(CHUNK)) {
        let (text, values) = rows::insert(events, Some(first));
        MySql::run(conn, sql.render(&text), values).await?;
        let tags = tags_from(events, first);
        if !tags.is_empty() {
            let insert =
                format!("INSERT INTO {{log_tags}} (tag, position) SELECT j.tag, j.position FROM {LIST}");
            MySql::run(conn, sql.render(&insert), vec![json(&tags)]).await?;
        }
    }
    Ok(())
}

/// The tags of events, the first of which has this position.
fn tags_from(events: &[Event], first: i64) -> Vec<(&str, i64)> {
    let tagged = |(event, position)| rows::tags(event).into_iter().map(move |tag| (tag, position));
    events.iter().zip(first..).flat_map(tagged).collect()
}

fn json(tags: &[(&str, i64)]) -> Value {
    Value::Text(serde_json::to_string(tags).ok())
}
