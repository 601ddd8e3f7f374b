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
        let count = i64::try_from(append.events.len()).unwrap_or(i64::MAX);
        let last = move_counter(sql, conn, count).await?;
        let head = last - count;
        let refused = refused(sql, conn, append, Position::new(head)).await?;
        if let Some(refused) = refused {
            move_counter(sql, conn, -count).await?;
            return Ok(refused);
        }
        if let Err(error) = write(sql, conn, append.events, head + 1).await {
            // The caller's transaction may go on: with all of it or with none of it.
            take_back(sql, conn, append.events, head).await.ok();
            return Err(error);
        }
        Ok(Outcome::New((head + 1..=last).map(Position::new).collect()))
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
        frontier.reach(statements::position::<Self>(&rows)?);
        Ok(())
    }

    // JSON_VALID refuses deep JSON that is valid, so the table takes any text.
    stored!(tags, check_json: true);
}

fn tags(row: &MySqlRow) -> Result<Vec<Tag>, String> {
    tags_from_json(row.try_get(2).map_err(|e| e.to_string())?)
}

async fn move_counter(sql: &dyn Render, conn: &mut MySqlConnection, by: i64) -> Result<i64> {
    let count = sqlx::query(sqlx::AssertSqlSafe(sql.render(COUNT).text)).bind(by);
    let last = count.execute(conn).await?.last_insert_id();
    Ok(i64::try_from(last).unwrap_or(i64::MAX))
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

/// Undoes what was written of these events after this position.
async fn take_back(sql: &dyn Render, conn: &mut MySqlConnection, events: &[Event], head: i64) -> Result<()> {
    let untag = format!(
        "DELETE t FROM {LIST} STRAIGHT_JOIN {{log_tags}} t ON t.tag = j.tag AND t.position = j.position"
    );
    MySql::run(conn, sql.render(&untag), vec![json(&tags_from(events, head + 1))]).await?;
    let delete = sql.render("DELETE FROM {log} WHERE position > $1");
    MySql::run(conn, delete, vec![Value::Int(head)]).await?;
    move_counter(sql, conn, -i64::try_from(events.len()).unwrap_or(i64::MAX)).await?;
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
