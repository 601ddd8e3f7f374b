//! Failed attempts: `settle.rs` writes them in the transaction of their verdicts.

use std::time::Duration;

use super::dialect::{Database, Value};
use super::store::SqlStore;
use crate::error::Result;
use crate::event::EventId;
use crate::store::{Attempt, NodeId};

const PURGE: &str =
    "DELETE {from listed attempts attempt_id ints $1} {where listed attempts attempt_id ints $1}";

impl<DB: Database> SqlStore<DB> {
    pub(super) async fn list_attempts(&self, id: &EventId, limit: usize) -> Result<Vec<Attempt>> {
        let text = format!(
            "SELECT failed_at, {{int number}}, node, {{int fatal}}, error FROM {{attempts}} \
             WHERE event_id = $1 ORDER BY attempt_id DESC LIMIT {limit}"
        );
        let rows = self.fetch(&text, vec![Value::text(id.as_str())]).await?;
        let mut attempts = Vec::with_capacity(rows.len());
        for row in rows.iter().rev() {
            attempts.push(Attempt {
                at: DB::time(row, 0)?.unwrap_or_default(),
                number: DB::int(row, 1)?.unwrap_or_default() as u32,
                node: NodeId::from(DB::text(row, 2)?.unwrap_or_default()),
                fatal: DB::int(row, 3)? == Some(1),
                error: DB::text(row, 4)?.unwrap_or_default(),
            });
        }
        Ok(attempts)
    }

    pub(super) async fn purge_old_attempts(&self, older_than: Duration, limit: usize) -> Result<u64> {
        let text = format!(
            "SELECT attempt_id FROM {{attempts}} WHERE failed_at < {{earlier $1}} ORDER BY failed_at LIMIT {limit}"
        );
        let rows = self.fetch(&text, vec![Value::micros(older_than)]).await?;
        let ids = rows.iter().map(|row| DB::int(row, 0)).collect::<Result<Vec<_>, _>>()?;
        if ids.is_empty() {
            return Ok(0);
        }
        self.run(PURGE, vec![Value::Ints(ids)]).await
    }
}
