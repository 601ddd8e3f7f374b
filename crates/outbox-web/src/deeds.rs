//! Changes with an audit entry: stored before the change, completed with its outcome.

use outbox::store::Deed;
use outbox::{Admin, OpenAudit};

use crate::auth::Caller;
use crate::databases::Chosen;
use crate::problem::{Answer, Problem};

/// A change to be made, with its audit entry.
pub(crate) struct Deeds<'a> {
    pub(crate) database: &'a Chosen,
    deed: Deed,
}

/// Result of a change.
pub(crate) struct Happened<T> {
    /// Number of rows changed.
    pub(crate) count: u64,
    pub(crate) outcome: T,
}

/// An audit entry that is stored and has no outcome yet.
pub(crate) struct Noted {
    pub(crate) database: Chosen,
    audit: OpenAudit,
}

impl<'a> Deeds<'a> {
    pub(crate) fn new(
        database: &'a Chosen,
        caller: &Caller,
        action: &str,
        target: impl Into<String>,
    ) -> Self {
        let deed = Deed {
            actor: caller.name.clone(),
            via: "api".to_owned(),
            action: action.to_owned(),
            target: Some(target.into()),
            details: None,
        };
        Self { database, deed }
    }

    /// Sets the details of the audit entry. Never a payload.
    pub(crate) fn details(mut self, details: &serde_json::Value) -> Self {
        self.deed.details = Some(details.to_string());
        self
    }

    /// Stores the audit entry. If that fails, the change must not be made.
    pub(crate) async fn note(self) -> Answer<Noted> {
        let audit = Admin::new(self.database.store.clone()).begin_audit(self.deed).await?;
        Ok(Noted { database: self.database.clone(), audit })
    }

    /// Stores the audit entry, makes the change, and completes the entry with the outcome.
    pub(crate) async fn carry_out<T>(self, work: impl Future<Output = Answer<Happened<T>>>) -> Answer<T> {
        self.happened(work).await.map(|happened| happened.outcome)
    }

    /// Like [`carry_out`](Self::carry_out), for changes without a result besides the count.
    pub(crate) async fn counted(self, work: impl Future<Output = Answer<Happened<()>>>) -> Answer<u64> {
        self.happened(work).await.map(|happened| happened.count)
    }

    async fn happened<T>(self, work: impl Future<Output = Answer<Happened<T>>>) -> Answer<Happened<T>> {
        let Noted { audit, .. } = self.note().await?;
        let work = async { work.await.map(|happened| (happened.count, happened.outcome)) };
        let (count, outcome) = audit.carry_out(work, |problem| problem.detail().to_owned()).await?;
        Ok(Happened { count, outcome })
    }
}

impl Noted {
    /// Completes the audit entry with the outcome.
    pub(crate) async fn end(&self, outcome: &str, count: Option<u64>) {
        self.audit.finish(outcome, count).await;
    }
}

/// Problem for an object that is not in the required state.
pub(crate) fn nothing(detail: impl Into<String>) -> Problem {
    Problem::conflict(detail)
}
