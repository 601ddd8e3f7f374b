//! The inbox on SQL: an insert that reports whether it was the first.

use std::collections::{BTreeSet, HashSet};

use super::dialect::{Database, Dialect, Value};
use super::store::SqlStore;
use crate::error::Result;

/// Maximum number of ids in one statement.
const CHUNK: usize = 1_000;

impl<DB: Database> SqlStore<DB> {
    /// Records in the transaction of this connection that a consumer has received an event. False:
    /// it was recorded before.
    pub(crate) async fn once(&self, conn: &mut DB::Connection, consumer: &str, id: &str) -> Result<bool> {
        let values = vec![Value::text(consumer), Value::text(id)];
        let inserted = DB::run(conn, self.render(DB::ONCE), values).await;
        Ok(inserted.map_err(|e| self.explain(e.into()))? > 0)
    }

    /// Records events like [`once`](Self::once), and returns for each whether it is new; an id that
    /// is listed twice is new the first time.
    pub(crate) async fn once_each(
        &self,
        conn: &mut DB::Connection,
        consumer: &str,
        ids: &[&str],
    ) -> Result<Vec<bool>> {
        // In one order, so that two transactions never deadlock.
        let sorted: Vec<&str> = ids.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let mut new = HashSet::with_capacity(sorted.len());
        for some in sorted.chunks(CHUNK) {
            let stored = DB::once_each(self.renderer(), conn, consumer, Value::texts(some.iter().copied()));
            new.extend(stored.await.map_err(|e| self.explain(e.into()))?);
        }
        Ok(ids.iter().map(|id| new.remove(*id)).collect())
    }
}

/// Inserts many entries, and returns the new ones from the result of the statement.
pub(super) async fn returned<DB: Dialect>(
    conn: &mut DB::Connection,
    statement: super::names::Statement,
    values: Vec<Value>,
) -> Result<Vec<String>, sqlx::Error> {
    let rows = DB::fetch(conn, statement, values).await?;
    let ids = rows.iter().map(|row| DB::text(row, 0)).collect::<Result<Vec<_>, _>>()?;
    Ok(ids.into_iter().flatten().collect())
}
