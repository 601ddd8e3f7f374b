//! Order by aggregate for rows that other programs write.
//!
//! A trigger of the table, which a flag enables, gives a row the key of its aggregate when the row
//! is inserted. This module gives older rows their keys.

use super::dialect::{Database, Value};
use super::statements as sql;
use super::store::SqlStore;
use crate::error::{Error, Result};

/// Without the trigger, rows of an open transaction could become visible behind later rows of their
/// aggregate.
const KEYS_ARE_NOT_GIVEN: &str = "mode ordered needs triggers, which TiDB does not have: give events ordering keys, or \
     let the writer do so by OutboxBuilder::order_by_aggregate, and run the relay in mode multi_node";

impl<DB: Database> SqlStore<DB> {
    /// Enables the flag, then gives pending rows their keys: a row that is inserted in between has
    /// its key from the trigger. The oldest rows come first, so that an event with a key has no
    /// predecessor without one. A transaction that was open when the flag was enabled may still
    /// commit rows without keys; [`take`](crate::store::Store::take) leaves those out and counts
    /// them.
    pub(super) async fn key_by_aggregate(&self) -> Result<u64> {
        let mut conn = self.pools.relay.acquire().await?;
        let gives_keys = DB::gives_keys(&mut conn, self.renderer().names()).await?;
        conn.finish().await?;
        if !gives_keys {
            return Err(Error::setting(KEYS_ARE_NOT_GIVEN));
        }
        self.run(DB::by_aggregate(self.renderer().names()), Vec::new()).await?;
        let mut keyed = 0;
        loop {
            let mut seqs = Vec::new();
            for row in self.fetch(sql::UNKEYED, Vec::new()).await? {
                seqs.extend(DB::int(&row, 0)?);
            }
            if seqs.is_empty() {
                return Ok(keyed);
            }
            keyed += self.run(sql::KEY_BY_AGGREGATE, vec![Value::ints(seqs)]).await?;
        }
    }
}
