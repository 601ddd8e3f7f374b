//! Changes: written down before they are made, then what came of them.

use outbox::store::Deed;

use crate::auth::Caller;
use crate::databases::Chosen;
use crate::problem::{Answer, Problem};

/// One change that somebody asks for.
pub(crate) struct Deeds<'a> {
    database: &'a Chosen,
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
    id: i64,
    deed: Deed,
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
        let id = self.database.store.audit(&self.deed).await?;
        Ok(Noted { database: self.database.clone(), id, deed: self.deed })
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
        let noted = self.note().await?;
        let done = work.await;
        match &done {
            Ok(happened) => noted.end("done", Some(happened.count)).await,
            Err(problem) => noted.end(&format!("refused: {}", problem.detail()), None).await,
        }
        done
    }
}

impl Noted {
    /// What came of it. If that cannot be written down, the log has it.
    pub(crate) async fn end(&self, outcome: &str, count: Option<u64>) {
        let Deed { actor, action, target, .. } = &self.deed;
        let (database, target) = (&self.database.name, target.as_deref().unwrap_or_default());
        tracing::info!(who = actor, action, target, database, outcome, count, "changed by hand");
        if let Err(error) = self.database.store.audited(self.id, outcome, count).await {
            tracing::error!(%error, id = self.id, "could not write down what came of a change");
        }
    }
}

/// There was nothing that could be changed.
pub(crate) fn nothing(detail: impl Into<String>) -> Problem {
    Problem::conflict(detail)
}
