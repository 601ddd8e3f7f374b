//! Manual changes of dead events, and audit entries.

use std::time::Duration;

use super::begin::begin_on;
use super::dialect::{Database, Value};
use super::store::SqlStore;
use crate::error::Result;
use crate::event::{EventId, Payload};
use crate::store::{Audit, AuditEntry, Edit, NodeId, short, short_error};

/// Dead events are not leased, and a late settlement finds the status DEAD: the status is a
/// sufficient fence.
const SKIP: &str =
    "UPDATE {events} SET status = 1, done_at = {now}, done_by = $2 WHERE event_id = $1 AND status = 3";

const EDIT: &str = "UPDATE {events} SET payload = {to json $2}, payload_bytes = $3, content_type = $4 WHERE event_id = $1 AND status = 3";
const EDIT_HEADERS: &str = "UPDATE {events} SET payload = {to json $2}, payload_bytes = $3, content_type = $4, \
     headers = {to json $5} WHERE event_id = $1 AND status = 3";

const AUDIT: &str =
    "INSERT INTO {audits} (made_at, actor, via, action, target, details) VALUES ({now}, $1, $2, $3, $4, $5)";
const AUDITED: &str = "UPDATE {audits} SET outcome = $2, affected = $3 WHERE audit_id = $1";
const AUDITED_UNCOUNTED: &str = "UPDATE {audits} SET outcome = $2 WHERE audit_id = $1";

const PURGE: &str = "DELETE {from listed audits audit_id ints $1} {where listed audits audit_id ints $1}";

/// Maximum length of stored details, in characters.
const MAX_DETAILS: usize = 16_000;

impl<DB: Database> SqlStore<DB> {
    pub(super) async fn skip_dead(&self, id: &EventId, by: &NodeId) -> Result<bool> {
        let values = vec![Value::text(id.as_str()), Value::text(short(by.as_str(), 128))];
        Ok(self.run(SKIP, values).await? > 0)
    }

    pub(super) async fn edit_dead(&self, id: &EventId, edit: &Edit) -> Result<bool> {
        let (payload, bytes, content_type) = match edit.payload() {
            Payload::Json(text) => (Some(text.clone()), None, None),
            Payload::Bytes { content_type, data } => (None, Some(data.clone()), Some(content_type.clone())),
        };
        let mut values = vec![
            Value::text(id.as_str()),
            Value::Text(payload),
            Value::Bytes(bytes),
            Value::Text(content_type),
        ];
        let Some(headers) = edit.new_headers() else { return Ok(self.run(EDIT, values).await? > 0) };
        values.push(Value::Text(
            Some(headers).filter(|h| !h.is_empty()).and_then(|h| serde_json::to_string(h).ok()),
        ));
        Ok(self.run(EDIT_HEADERS, values).await? > 0)
    }

    pub(super) async fn write_audit_entry(&self, entry: &AuditEntry) -> Result<i64> {
        let AuditEntry { actor, via, action, target, details } = entry;
        let values = vec![
            Value::text(short(actor, 255)),
            Value::text(short(via, 64)),
            Value::text(short(action, 64)),
            Value::Text(target.as_deref().map(|text| short(text, 255))),
            Value::Text(details.as_deref().map(|text| short(text, MAX_DETAILS))),
        ];
        // In a transaction, because the generated number may have to be read on the same
        // connection.
        let mut tx = begin_on(&self.pools.relay).await?;
        let rows = match DB::LAST_ID {
            None => {
                let returning = format!("{AUDIT} RETURNING audit_id");
                DB::fetch(&mut tx, self.render(&returning), values).await?
            }
            Some(query) => {
                DB::run(&mut tx, self.render(AUDIT), values).await?;
                DB::fetch(&mut tx, self.render(query), Vec::new()).await?
            }
        };
        let id = rows.first().map(|row| DB::int(row, 0)).transpose()?.flatten().unwrap_or_default();
        tx.commit().await?;
        Ok(id)
    }

    pub(super) async fn write_outcome(&self, id: i64, outcome: &str, count: Option<u64>) -> Result<()> {
        let mut values = vec![Value::Int(id), Value::text(short_error(outcome))];
        let statement = match count {
            Some(count) => {
                values.push(Value::Int(i64::try_from(count).unwrap_or(i64::MAX)));
                AUDITED
            }
            None => AUDITED_UNCOUNTED,
        };
        self.run(statement, values).await?;
        Ok(())
    }

    /// Checks only the first `limit` entries: times rise with ids, and there is no index by time.
    pub(super) async fn purge_old_audits(&self, older_than: Duration, limit: usize) -> Result<u64> {
        let text = format!(
            "SELECT f.audit_id FROM (SELECT audit_id, made_at FROM {{audits}} ORDER BY audit_id LIMIT {limit}) f \
             WHERE f.made_at < {{earlier $1}}"
        );
        let rows = self.fetch(&text, vec![Value::micros(older_than)]).await?;
        let ids = rows.iter().map(|row| DB::int(row, 0)).collect::<Result<Vec<_>, _>>()?;
        if ids.is_empty() {
            return Ok(0);
        }
        self.run(PURGE, vec![Value::Ints(ids)]).await
    }

    pub(super) async fn list_audit_entries(&self, before: Option<i64>, limit: usize) -> Result<Vec<Audit>> {
        let text = format!(
            "SELECT audit_id, made_at, actor, via, action, target, details, outcome, affected FROM {{audits}} \
             WHERE audit_id < $1 ORDER BY audit_id DESC LIMIT {limit}"
        );
        let rows = self.fetch(&text, vec![Value::Int(before.unwrap_or(i64::MAX))]).await?;
        let mut entries = Vec::with_capacity(rows.len());
        for row in &rows {
            entries.push(Audit {
                id: DB::int(row, 0)?.unwrap_or_default(),
                at: DB::time(row, 1)?.unwrap_or_default(),
                actor: DB::text(row, 2)?.unwrap_or_default(),
                via: DB::text(row, 3)?.unwrap_or_default(),
                action: DB::text(row, 4)?.unwrap_or_default(),
                target: DB::text(row, 5)?,
                details: DB::text(row, 6)?,
                outcome: DB::text(row, 7)?,
                count: DB::int(row, 8)?.map(i64::unsigned_abs),
            });
        }
        Ok(entries)
    }
}
