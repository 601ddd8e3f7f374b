//! Changes made by operators, with audit entries.

use super::Admin;
use crate::error::Result;
use crate::event::EventId;
use crate::store::{Audit, AuditEntry, Edit, NodeId};

impl Admin {
    /// Settles a dead event: it becomes DONE by this operator, keeps its error, and unblocks its
    /// key. False if there is no such dead event. As a step of a join it stays failed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// use outbox::{Event, Failure, Status};
    ///
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let relay = outbox.single_node().on_type("e", async || Err::<(), _>(Failure::dead("no"))).start().await?;
    /// let id = outbox.send(Event::new("e").json(&())).await?.id;
    /// relay.idle().await?;
    ///
    /// let admin = outbox.admin();
    /// assert!(admin.skip(&id, &"ada".into()).await?);
    /// let skipped = admin.find(&id).await?.expect("it is still there");
    /// assert_eq!((skipped.status, skipped.last_error.as_deref()), (Status::Done, Some("no")));
    /// assert!(!admin.skip(&id, &"ada".into()).await?);
    /// # relay.stop().await
    /// # }
    /// ```
    pub async fn skip(&self, id: &EventId, by: &NodeId) -> Result<bool> {
        self.store.skip(id, by).await
    }

    /// Replaces the payload of a dead event. The event stays dead until it is
    /// [replayed](Admin::replay). False if there is no such dead event.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// use outbox::Event;
    /// use outbox::store::Edit;
    ///
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let id = outbox.send(Event::new("e").json(&1)).await?.id;
    /// let edited = outbox.admin().edit(&id, &Edit::json("2")?).await?;
    /// assert!(!edited, "it is not dead");
    /// # Ok(()) }
    /// ```
    pub async fn edit(&self, id: &EventId, edit: &Edit) -> Result<bool> {
        self.store.edit(id, edit).await
    }

    /// Writes an audit entry before the change is made. Returns the id of the entry.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// use outbox::store::AuditEntry;
    ///
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let admin = outbox.admin();
    /// let entry = AuditEntry { actor: "ada".into(), via: "script".into(), action: "dead.replay".into(), ..AuditEntry::default() };
    /// let id = admin.audit(&entry).await?;
    /// let replayed = admin.replay_all(&Default::default(), 100).await?;
    /// admin.finish_audit(id, "done", Some(replayed)).await?;
    ///
    /// let last = admin.audits(None, 1).await?.remove(0);
    /// assert_eq!((last.actor.as_str(), last.outcome.as_deref(), last.count), ("ada", Some("done"), Some(0)));
    /// # Ok(()) }
    /// ```
    pub async fn audit(&self, entry: &AuditEntry) -> Result<i64> {
        self.store.audit(entry).await
    }

    /// Completes an audit entry with its outcome and the number of changed rows.
    pub async fn finish_audit(&self, id: i64, outcome: &str, count: Option<u64>) -> Result<()> {
        self.store.finish_audit(id, outcome, count).await
    }

    /// Writes an audit entry before the change is made: without an entry there is no change. The
    /// entry is completed by [`OpenAudit::carry_out`] or [`OpenAudit::finish`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// use outbox::store::AuditEntry;
    ///
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let admin = outbox.admin();
    /// let entry = AuditEntry { actor: "ada".into(), via: "script".into(), action: "dead.replay".into(), ..AuditEntry::default() };
    /// let replay = async { admin.replay_all(&Default::default(), 100).await.map(|count| (count, ())) };
    /// let (replayed, ()) = admin.begin_audit(entry).await?.carry_out(replay, outbox::Error::to_string).await?;
    ///
    /// let last = admin.audits(None, 1).await?.remove(0);
    /// assert_eq!((last.outcome.as_deref(), last.count), (Some("done"), Some(replayed)));
    /// # Ok(()) }
    /// ```
    pub async fn begin_audit(&self, entry: AuditEntry) -> Result<OpenAudit> {
        let id = self.store.audit(&entry).await?;
        Ok(OpenAudit { admin: self.clone(), id, entry })
    }

    /// Audit entries before this id, newest first.
    pub async fn audits(&self, before: Option<i64>, limit: usize) -> Result<Vec<Audit>> {
        self.store.audits(before, limit).await
    }
}

/// Audit entry of a change that has begun. If dropped unfinished, the entry stays without an
/// outcome, which means that the process ended before the change was completed.
#[derive(Debug)]
#[must_use = "the entry has no outcome yet"]
pub struct OpenAudit {
    admin: Admin,
    id: i64,
    entry: AuditEntry,
}

impl OpenAudit {
    /// Makes the change and completes the entry: with the number of changed rows, or with `refused:
    /// ` and the reason.
    pub async fn carry_out<T, E>(
        self,
        change: impl Future<Output = Result<(u64, T), E>>,
        reason: impl FnOnce(&E) -> String,
    ) -> Result<(u64, T), E> {
        let changed = change.await;
        match &changed {
            Ok((count, _)) => self.finish("done", Some(*count)).await,
            Err(error) => self.finish(&format!("refused: {}", reason(error)), None).await,
        }
        changed
    }

    /// Completes the entry. If that fails, the log has the outcome.
    pub async fn finish(&self, outcome: &str, count: Option<u64>) {
        let AuditEntry { actor, via, action, target, .. } = &self.entry;
        let (store, target) = (self.admin.store.name(), target.as_deref().unwrap_or_default());
        tracing::info!(who = actor, via, action, target, store, outcome, count, "operator change");
        if let Err(error) = self.admin.finish_audit(self.id, outcome, count).await {
            tracing::error!(store, %error, id = self.id, "could not write the outcome of a change to its audit entry");
        }
    }
}
