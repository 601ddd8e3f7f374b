//! Changes: written down before they are made, then what came of them.

use outbox::store::Deed;
use outbox::{Admin, OpenAudit};

use crate::auth::Caller;
use crate::databases::Chosen;
use crate::problem::{Answer, Problem};

/// One change that somebody asks for.
pub(crate) struct Deeds<'a> {
    pub(crate) database: &'a Chosen,
    deed: Deed,
}

/// What a change led to.
pub(crate) struct Happened<T> {
    /// How many things were changed.
    pub(crate) count: u64,
    pub(crate) outcome: T,
}

/// A change that was written down, and whose end was not.
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

    /// What else there is to say. Never a payload.
    pub(crate) fn details(mut self, details: &serde_json::Value) -> Self {
        self.deed.details = Some(details.to_string());
        self
    }

    /// Writes it down. What cannot be written down is not done.
    pub(crate) async fn note(self) -> Answer<Noted> {
        let audit = Admin::new(self.database.store.clone()).begin_audit(self.deed).await?;
        Ok(Noted { database: self.database.clone(), audit })
    }

    /// Writes it down, does it, and writes down what came of it.
    pub(crate) async fn carry_out<T>(self, work: impl Future<Output = Answer<Happened<T>>>) -> Answer<T> {
        self.happened(work).await.map(|happened| happened.outcome)
    }

    /// The same for changes of which only the number counts.
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
    /// What came of it.
    pub(crate) async fn end(&self, outcome: &str, count: Option<u64>) {
        self.audit.finish(outcome, count).await;
    }
}

/// There was nothing that could be changed.
pub(crate) fn nothing(detail: impl Into<String>) -> Problem {
    Problem::conflict(detail)
}
