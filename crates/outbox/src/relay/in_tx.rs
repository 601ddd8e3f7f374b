//! Handling in a transaction that settles as well.
//!
//! The event is taken as any other. Its handler runs in a transaction; when it says done, the same transaction settles
//! the event, fenced like every settlement, and then commits. Either all of it happened, or nothing did and the event
//! comes again. Two holders that handle one event at a time, because a lease ran out, meet at its row: one commits.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::dispatch::{HANDLER, guarded};
use super::held::{Held, Tag};
use crate::error::Error;
use crate::escape::Escaped;
use crate::handler::{Cx, Failure, Outcome, TxHandler};
use crate::outbox::Outbox;
use crate::sql::Database;
use crate::store::{Completion, Holder, Settled, Settlement};
use crate::tx::Tx;

/// When to come again if it is the database that is in trouble, and not the handler.
const TROUBLE: Duration = Duration::from_secs(1);

/// How long to wait for a rollback.
const ROLLBACK: Duration = Duration::from_secs(5);

/// An outbox whose database is not known.
pub(crate) type AnyOutbox = Arc<dyn Any + Send + Sync>;

/// A handler that gets a transaction, whatever the database.
#[async_trait]
pub(crate) trait InTx: Send + Sync {
    /// Why this outbox has no transaction for it.
    fn misfit(&self, outbox: Option<&AnyOutbox>) -> Option<Error>;

    /// Handles and settles.
    async fn run(&self, outbox: Option<&AnyOutbox>, cx: Cx, end: &End<'_>) -> Ended;
}

/// How the event is to be settled.
pub(crate) struct End<'a> {
    /// The name of the store, for log lines.
    pub(crate) store: &'a str,
    pub(crate) settlement: Settlement,
    /// Says whether the event is still this node's to handle, and under which claim.
    pub(crate) held: &'a Held,
    pub(crate) tag: Tag,
    pub(crate) completion: Completion,
    /// How long the handler may take.
    pub(crate) limit: Duration,
    /// In whose name to settle, when it comes to that.
    pub(crate) by: Holder,
    /// How long settling and committing may take, where a database that hangs must not keep what others wait for.
    pub(crate) patience: Option<Duration>,
}

/// How handling in a transaction ended.
pub(crate) enum Ended {
    /// Done and settled. `wrote`: what follows a join was written with it.
    Settled { wrote: bool },
    /// The event is somebody else's by now, and nothing has happened.
    Stale,
    /// Rolled back, and this is to be settled.
    Said(Result<Outcome, Failure>),
}

/// A [`TxHandler`] for one kind of database.
pub(crate) struct Transactional<DB: Database>(Box<dyn TxHandler<DB>>);

impl<DB: Database> Transactional<DB> {
    pub(crate) fn new(handler: impl TxHandler<DB>) -> Self {
        Self(Box::new(handler))
    }

    /// Settles in the handler's transaction. `None`: the event is not ours any more.
    async fn settle(tx: &mut Tx<'static, DB>, end: &End<'_>) -> Result<Option<Settled>, Error> {
        let mut settlement = [end.settlement.clone()];
        if matches!(end.by, Holder::Lease { .. }) {
            end.held.update_claims(&mut settlement);
        }
        let settled = tx.settle(&end.by, end.completion, &settlement).await?;
        Ok(Some(settled).filter(|settled| settled.moved > 0))
    }

    /// The handler is done: settles and commits.
    async fn finish(mut tx: Tx<'static, DB>, end: &End<'_>) -> Ended {
        match Self::settle(&mut tx, end).await {
            Ok(Some(Settled { wrote, .. })) => match tx.commit().await {
                Ok(()) => Ended::Settled { wrote },
                Err(error) => trouble(end, "commit", &error),
            },
            Ok(None) => {
                roll_back(tx).await;
                Ended::Stale
            }
            Err(error) => {
                roll_back(tx).await;
                trouble(end, "settle in its transaction", &error)
            }
        }
    }
}

#[async_trait]
impl<DB: Database> InTx for Transactional<DB> {
    fn misfit(&self, outbox: Option<&AnyOutbox>) -> Option<Error> {
        let fits = outbox.is_some_and(|outbox| outbox.is::<Outbox<DB>>());
        (!fits).then(|| {
            let database = DB::NAME;
            Error::Setting(format!(
                "a handler wants a transaction of {database}: start its relay from an outbox of {database}"
            ))
        })
    }

    async fn run(&self, outbox: Option<&AnyOutbox>, cx: Cx, end: &End<'_>) -> Ended {
        let Some(outbox) = outbox.and_then(|outbox| outbox.downcast_ref::<Outbox<DB>>()) else {
            let wanted =
                format!("the handler wants a transaction of {}, and this is another database", DB::NAME);
            return Ended::Said(Err(Failure::dead(wanted)));
        };
        let mut tx = match outbox.begin_for_handler().await {
            Ok(tx) => tx,
            Err(error) => return trouble(end, "begin its transaction", &error),
        };
        // To begin may have taken longer than the lease lasts.
        if !end.held.start(&end.settlement.id, end.tag, Instant::now()) {
            roll_back(tx).await;
            return Ended::Stale;
        }
        let result = guarded(HANDLER, end.limit, async { self.0.handle(cx, &mut tx).await }).await;
        if result != Ok(Outcome::Done) {
            roll_back(tx).await;
            return Ended::Said(result);
        }
        let finished = async {
            let ended = Self::finish(tx, end).await;
            if matches!(ended, Ended::Settled { .. }) {
                outbox.sql_store().let_go(&end.settlement.id);
            }
            ended
        };
        match end.patience {
            None => finished.await,
            Some(limit) => tokio::time::timeout(limit, finished).await.unwrap_or_else(|_| {
                let (store, event) = (end.store, &end.settlement.id);
                tracing::warn!(store, event = %Escaped(event), "no answer to a commit within {limit:?}: the event comes again if there was none");
                Ended::Said(Ok(Outcome::RetryAfter(TROUBLE)))
            }),
        }
    }
}

/// A rollback that fails is one as well: the connection is lost. One that takes long, because a statement of a handler that
/// ran out of time still waits for a lock, goes on without us.
async fn roll_back<DB: Database>(tx: Tx<'static, DB>) {
    let _ = tokio::time::timeout(ROLLBACK, tx.rollback()).await;
}

/// What the database refuses may be the handler's fault: then it counts. A lost connection or a deadlock is not.
///
/// If the commit's answer was lost, the event may be settled: then what is said here is stale and changes nothing.
fn trouble(end: &End<'_>, what: &str, error: &Error) -> Ended {
    if error.is_transient() {
        let (store, event) = (end.store, &end.settlement.id);
        tracing::warn!(store, event = %Escaped(event), %error, "could not {what}: the event comes again");
        return Ended::Said(Ok(Outcome::RetryAfter(TROUBLE)));
    }
    Ended::Said(Err(Failure::retry(format!("could not {what}: {error}"))))
}
