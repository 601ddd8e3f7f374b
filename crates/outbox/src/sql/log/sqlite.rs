//! The log on SQLite: one writer at a time, so rows are committed in their order.

use sqlx::Row as _;
use sqlx::sqlite::{Sqlite, SqliteConnection, SqliteRow};

use super::rows::{self, stored, tags_from_json};
use super::{Append, AppendOutcome, LogDialect, statements};
use crate::error::Result;
use crate::event::Event;
use crate::log::{Item, Position, Tag, Watermark};
use crate::sql::dialect::{Dialect as _, Render};

/// Maximum number of events in one INSERT: below SQLite's limit of 32,766 placeholders.
const CHUNK: usize = 500;

impl LogDialect for Sqlite {
    const READS_APART: bool = true;
    const PURGE_TAGS: &'static str = "DELETE FROM {log_tags} WHERE (tag, position) IN (\
             SELECT CASE WHEN instr(j.value, '=') = 0 THEN j.value || '=' ELSE j.value END, l.position \
             FROM {log} l JOIN json_each(l.tags) j WHERE l.position {in ints $1})";
    // The highest position ever assigned, that of deleted rows included.
    const HEAD: &'static str =
        "SELECT seq FROM sqlite_sequence WHERE name = trim('{log}', '\"') COLLATE NOCASE";

    async fn append(
        sql: &dyn Render,
        conn: &mut SqliteConnection,
        append: &Append<'_>,
    ) -> Result<AppendOutcome> {
        if !append.checks.is_empty() {
            let head =
                statements::position::<Self>(&Self::fetch(conn, sql.render(Self::HEAD), Vec::new()).await?)?;
            for check in &append.checks {
                if check.after > head {
                    return Ok(append.beyond(head).unwrap_or(AppendOutcome::Already));
                }
                let (text, values) = statements::find(check.item, check.after, "");
                if !Self::fetch(conn, sql.render(&text), values).await?.is_empty() {
                    return Ok(AppendOutcome::found(check));
                }
            }
        }
        if append.events.len() <= CHUNK {
            return Ok(AppendOutcome::New(write(sql, conn, append.events).await?));
        }
        // The caller's transaction may continue after an error, so the append is all or nothing.
        Self::script(conn, "SAVEPOINT outbox_log_append".to_owned()).await?;
        let written = write(sql, conn, append.events).await;
        if written.is_err() {
            Self::script(conn, "ROLLBACK TO outbox_log_append".to_owned()).await?;
        }
        Self::script(conn, "RELEASE outbox_log_append".to_owned()).await?;
        Ok(AppendOutcome::New(written?))
    }

    async fn settle(sql: &dyn Render, conn: &mut SqliteConnection, _: &[Item], _: bool) -> Result<Position> {
        Ok(statements::position::<Self>(&Self::fetch(conn, sql.render(Self::HEAD), Vec::new()).await?)?)
    }

    async fn look(sql: &dyn Render, conn: &mut SqliteConnection, watermark: &mut Watermark) -> Result<()> {
        let rows = Self::fetch(conn, sql.render(Self::HEAD), Vec::new()).await?;
        let end = statements::position::<Self>(&rows)?;
        watermark.ends_at(end);
        watermark.reach(end);
        Ok(())
    }

    stored!(tags, check_json: false);
}

fn tags(row: &SqliteRow) -> Result<Vec<Tag>, String> {
    tags_from_json(row.try_get(2).map_err(|e| e.to_string())?)
}

async fn write(sql: &dyn Render, conn: &mut SqliteConnection, events: &[Event]) -> Result<Vec<Position>> {
    let mut positions = Vec::with_capacity(events.len());
    for events in events.chunks(CHUNK) {
        let (mut text, values) = rows::insert(events, None);
        text.push_str(" RETURNING position");
        for row in Sqlite::fetch(conn, sql.render(&text), values).await? {
            positions.push(Position::new(row.try_get(0)?));
        }
    }
    // Positions rise; RETURNING guarantees no order.
    positions.sort_unstable();
    Ok(positions)
}
