//! What decides when one event is delivered, gathered from the tables.

use super::dialect::{Database, Value};
use super::statements as sql;
use super::store::SqlStore;
use crate::error::Result;
use crate::event::EventId;
use crate::explain::{Circumstances, MOST_COUNTED};
use crate::store::{Filter, NodeId, Status, Store, StoredEvent};

impl<DB: Database> SqlStore<DB> {
    pub(super) async fn look_around(&self, id: &EventId) -> Result<Circumstances> {
        let event = self.find(id).await?;
        // The time after the event: what is due was due when it was read.
        let rows = self.fetch(sql::SURROUNDINGS, Vec::new()).await?;
        let mut circumstances = Circumstances::default();
        if let Some(row) = rows.first() {
            circumstances.now = DB::time(row, 0)?.unwrap_or_default();
            circumstances.leader = DB::text(row, 1)?.map(NodeId::from);
            circumstances.last_settled = DB::time(row, 2)?;
            circumstances.somebody_holds = DB::int(row, 3)? == Some(1);
        }
        circumstances.nodes = self.nodes().await?;
        let pending = event.as_ref().filter(|event| event.status.is_pending());
        if let Some(event) = pending {
            circumstances.due_before = self.due_before(event).await?;
            if let Some(key) = event.event.as_ref().ok().and_then(|event| event.ordering_key()) {
                let ahead = Filter {
                    ordering_key: Some(key.to_owned()),
                    upto_seq: Some(event.seq - 1),
                    ..Filter::default()
                };
                // One search for each: only so does every database's index give the first row without a sort.
                let pending = Filter { pending: true, ..ahead.clone() };
                circumstances.pending_ahead = self.list(&pending, 1).await?.pop();
                let dead = Filter { status: Some(Status::Dead), ..ahead };
                circumstances.dead_ahead = self.list(&dead, 1).await?.pop();
            }
        }
        circumstances.event = event;
        Ok(circumstances)
    }

    async fn due_before(&self, event: &StoredEvent) -> Result<u64> {
        let place = vec![Value::Time(Some(event.available_at)), Value::Int(event.seq)];
        let rows = self.fetch(&sql::due_before(MOST_COUNTED), place).await?;
        Ok(rows.first().map(|row| DB::int(row, 0)).transpose()?.flatten().unwrap_or_default().unsigned_abs())
    }
}
