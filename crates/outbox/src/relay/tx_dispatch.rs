//! Handling in a transaction that also settles the event.
//!
//! The event is taken as any other. Its handler runs in a transaction; when the handler returns
//! `Done`, the same transaction settles the event, fenced like every settlement, and then commits.
//! Either everything took effect, or nothing did and the event is redelivered. Two holders that
//! handle one event at the same time, because a lease ran out, conflict on its row: one commits.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use super::dispatch::{HANDLER, guarded};
use super::in_flight::{Fence, InFlight};
use crate::error::Error;
use crate::escape::Escaped;
use crate::handler::{Context, Failure, Outcome, TxSlot};
use crate::outbox::Outbox;
use crate::sql::Database;
use crate::store::{Completion, Holder, Settled, Settlement};
use crate::tx::Tx;

/// Delay of the next attempt if the database failed, and not the handler.
const DATABASE_RETRY: Duration = Duration::from_secs(1);

/// Time limit of a rollback.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(5);

/// An outbox whose database type is erased.
pub(crate) type ErasedOutbox = Arc<dyn Any + Send + Sync>;

/// Begins the transaction of a handler and settles in it, whatever the database.
#[async_trait]
pub trait TxDispatch: Send + Sync {
    /// Error if this outbox has no transactions for the handler.
    fn check_compatible(&self, outbox: Option<&ErasedOutbox>) -> Option<Error>;

    /// Calls the handler and settles.
    async fn run(
        &self,
        outbox: Option<&ErasedOutbox>,
        cx: Context,
        settling: &SettleOnCommit<'_>,
        call: &CallHandler<'_>,
    ) -> TxOutcome;
}

/// Calls a handler.
pub(crate) type CallHandler<'a> =
    dyn Fn(Context) -> BoxFuture<'a, Result<Outcome, Failure>> + Send + Sync + 'a;

/// How the transaction settles the event.
pub(crate) struct SettleOnCommit<'a> {
    /// Name of the store, for log lines.
    pub(crate) store: &'a str,
    pub(crate) settlement: Settlement,
    /// Knows whether this node still holds the event, and under which claim.
    pub(crate) in_flight: &'a InFlight,
    pub(crate) fence: Fence,
    pub(crate) completion: Completion,
    /// Time limit of the handler.
    pub(crate) limit: Duration,
    /// The holder to settle as.
    pub(crate) by: Holder,
    /// Time limit of settling and committing, in a fleet: a database that hangs must not keep
    /// shared limits occupied.
    pub(crate) commit_timeout: Option<Duration>,
}

/// Result of handling in a transaction.
pub(crate) enum TxOutcome {
    /// Done and settled. `wrote`: the follow-up event of a join was written too.
    Settled { wrote: bool },
    /// Another node holds the event by now; nothing has happened.
    Stale,
    /// Rolled back; this result is to be settled.
    Returned(Result<Outcome, Failure>),
}

/// Transactions of one kind of database.
pub(crate) struct Transactional<DB>(PhantomData<fn() -> DB>);

impl<DB: Database> Transactional<DB> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }

    /// Settles in the handler's transaction. `None`: this node no longer holds the event.
    async fn settle(
        tx: &mut Tx<'static, DB>,
        settling: &SettleOnCommit<'_>,
    ) -> Result<Option<Settled>, Error> {
        let mut settlement = [settling.settlement.clone()];
        if matches!(settling.by, Holder::Lease { .. }) {
            settling.in_flight.update_claims(&mut settlement);
        }
        let settled = tx.settle(&settling.by, settling.completion, &settlement).await?;
        Ok(Some(settled).filter(|settled| settled.moved > 0))
    }

    /// Settles and commits after the handler returned `Done`.
    async fn finish(mut tx: Tx<'static, DB>, settling: &SettleOnCommit<'_>) -> TxOutcome {
        match Self::settle(&mut tx, settling).await {
            Ok(Some(Settled { wrote, .. })) => match tx.commit().await {
                Ok(()) => TxOutcome::Settled { wrote },
                Err(error) => classify(settling, "commit", &error),
            },
            Ok(None) => {
                roll_back(tx).await;
                TxOutcome::Stale
            }
            Err(error) => {
                roll_back(tx).await;
                classify(settling, "settle in its transaction", &error)
            }
        }
    }
}

#[async_trait]
impl<DB: Database> TxDispatch for Transactional<DB> {
    fn check_compatible(&self, outbox: Option<&ErasedOutbox>) -> Option<Error> {
        let fits = outbox.is_some_and(|outbox| outbox.is::<Outbox<DB>>());
        (!fits).then(|| {
            let database = DB::NAME;
            Error::setting(format!(
                "a handler needs a transaction of {database}: start its relay from an outbox of {database}"
            ))
        })
    }

    async fn run(
        &self,
        outbox: Option<&ErasedOutbox>,
        cx: Context,
        settling: &SettleOnCommit<'_>,
        call: &CallHandler<'_>,
    ) -> TxOutcome {
        let Some(outbox) = outbox.and_then(|outbox| outbox.downcast_ref::<Outbox<DB>>()) else {
            let wanted = format!(
                "the handler needs a transaction of {}, but the event is in another database",
                DB::NAME
            );
            return TxOutcome::Returned(Err(Failure::dead(wanted)));
        };
        let tx = match outbox.begin_for_handler().await {
            Ok(tx) => tx,
            Err(error) => return classify(settling, "begin its transaction", &error),
        };
        // To begin may have taken longer than the lease lasts.
        if !settling.in_flight.start(&settling.settlement.id, settling.fence, Instant::now()) {
            roll_back(tx).await;
            return TxOutcome::Stale;
        }
        let slot = Arc::new(TxSlot::new(tx));
        let cx = cx.with_tx(slot.clone());
        let result = guarded(HANDLER, settling.limit, async { call(cx).await }).await;
        let Some(tx) = slot.close::<DB>() else {
            let kept = "the handler kept its transaction: it has to be dropped before the handler returns";
            return TxOutcome::Returned(result.and(Err(Failure::retry(kept))));
        };
        if result != Ok(Outcome::Done) {
            roll_back(tx).await;
            return TxOutcome::Returned(result);
        }
        let finished = async {
            let outcome = Self::finish(tx, settling).await;
            if matches!(outcome, TxOutcome::Settled { .. }) {
                outbox.sql_store().release(&settling.settlement.id);
            }
            outcome
        };
        match settling.commit_timeout {
            None => finished.await,
            Some(limit) => tokio::time::timeout(limit, finished).await.unwrap_or_else(|_| {
                let (store, event) = (settling.store, &settling.settlement.id);
                tracing::warn!(store, event = %Escaped(event), "no answer to a commit within {limit:?}: the event is redelivered if it was not committed");
                TxOutcome::Returned(Ok(Outcome::Snooze(DATABASE_RETRY)))
            }),
        }
    }
}

/// Rolls back. A rollback that fails is one as well: the connection is lost. A rollback that takes
/// long, because a statement of a timed-out handler still waits for a lock, goes on in the
/// background.
async fn roll_back<DB: Database>(tx: Tx<'static, DB>) {
    let _ = tokio::time::timeout(ROLLBACK_TIMEOUT, tx.rollback()).await;
}

/// Decides who is to blame for a database error. An error that the handler may have caused counts
/// as an attempt. A lost connection or a deadlock does not.
///
/// If the commit's answer was lost, the event may be settled: then the outcome returned here is
/// stale and changes nothing.
fn classify(settling: &SettleOnCommit<'_>, what: &str, error: &Error) -> TxOutcome {
    if error.is_transient() {
        let (store, event) = (settling.store, &settling.settlement.id);
        tracing::warn!(store, event = %Escaped(event), %error, "could not {what}: the event is redelivered");
        return TxOutcome::Returned(Ok(Outcome::Snooze(DATABASE_RETRY)));
    }
    TxOutcome::Returned(Err(Failure::retry(format!("could not {what}: {error}"))))
}
