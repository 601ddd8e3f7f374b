//! Changes with an audit entry: stored before the change, completed with its outcome.

use outbox::store::AuditEntry;
use outbox::{Admin, OpenAudit};

use crate::auth::Caller;
use crate::databases::Database;
use crate::problem::{ApiResult, Problem};

/// A change to be made, with its audit entry.
pub(crate) struct AuditedChange<'a> {
    pub(crate) database: &'a Database,
    entry: AuditEntry,
}

/// Result of a change.
pub(crate) struct Changed<T> {
    /// Number of rows changed.
    pub(crate) count: u64,
    pub(crate) outcome: T,
}

/// An audit entry that is stored and has no outcome yet.
pub(crate) struct Pending {
    pub(crate) database: Database,
    audit: OpenAudit,
}

impl<'a> AuditedChange<'a> {
    pub(crate) fn new(
        database: &'a Database,
        caller: &Caller,
        action: &str,
        target: impl Into<String>,
    ) -> Self {
        let entry = AuditEntry {
            actor: caller.name.clone(),
            via: "api".to_owned(),
            action: action.to_owned(),
            target: Some(target.into()),
            details: None,
        };
        Self { database, entry }
    }

    /// Sets the details of the audit entry. Never a payload.
    pub(crate) fn details(mut self, details: &serde_json::Value) -> Self {
        self.entry.details = Some(details.to_string());
        self
    }

    /// Stores the audit entry. If that fails, the change must not be made.
    pub(crate) async fn begin(self) -> ApiResult<Pending> {
        let audit = Admin::new(self.database.store.clone()).begin_audit(self.entry).await?;
        Ok(Pending { database: self.database.clone(), audit })
    }

    /// Stores the audit entry, makes the change, and completes the entry with the outcome.
    pub(crate) async fn carry_out<T>(
        self,
        work: impl Future<Output = ApiResult<Changed<T>>>,
    ) -> ApiResult<T> {
        self.run(work).await.map(|changed| changed.outcome)
    }

    /// Like [`carry_out`](Self::carry_out), for changes without a result besides the count.
    pub(crate) async fn counted(self, work: impl Future<Output = ApiResult<Changed<()>>>) -> ApiResult<u64> {
        self.run(work).await.map(|changed| changed.count)
    }

    async fn run<T>(self, work: impl Future<Output = ApiResult<Changed<T>>>) -> ApiResult<Changed<T>> {
        let Pending { audit, .. } = self.begin().await?;
        let work = async { work.await.map(|changed| (changed.count, changed.outcome)) };
        let (count, outcome) = audit.carry_out(work, |problem| problem.detail().to_owned()).await?;
        Ok(Changed { count, outcome })
    }
}

impl Pending {
    /// Completes the audit entry with the outcome.
    pub(crate) async fn finish(&self, outcome: &str, count: Option<u64>) {
        self.audit.finish(outcome, count).await;
    }
}

/// Problem for an object that is not in the required state.
pub(crate) fn wrong_state(detail: impl Into<String>) -> Problem {
    Problem::conflict(detail)
}
