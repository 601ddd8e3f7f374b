//! Administration: inspecting and repairing an outbox.

mod audit;
mod inspect;

use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub use self::audit::OpenAudit;
use crate::error::{Error, Result};
use crate::event::{AggregateType, EventId, EventType};
use crate::explain::Explanation;
use crate::join::{Join, JoinId, Step};
use crate::store::{
    Backlog, Filter, JoinFilter, Purge, Purgeable, SharedStore, Stats, Status, Store, StoredEvent,
};

/// Dead events, cancelling, purging, statistics. Errors are returned, never swallowed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
/// # outbox.migrate().await?;
/// let admin = outbox.admin();
/// for dead in admin.dead(&Default::default(), 20).await? {
///     println!("{}: {}", dead.seq, dead.last_error.unwrap_or_default());
/// }
/// let replayed = admin.replay_all(&Default::default(), 100).await?;
/// assert_eq!(replayed, 0);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Admin {
    store: SharedStore,
}

/// Selects dead events: by type, aggregate, tenant, time of death, or all.
///
/// ```
/// use std::time::Duration;
///
/// use outbox::DeadFilter;
///
/// let recent = DeadFilter::default().event_type("order.placed").tenant("acme").within(Duration::from_secs(3_600));
/// # let _ = recent;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadFilter(Filter);

impl DeadFilter {
    /// Only this event type.
    pub fn event_type(mut self, event_type: impl Into<EventType>) -> Self {
        self.0.event_type = Some(event_type.into().to_string());
        self
    }

    /// Only this aggregate type.
    pub fn aggregate_type(mut self, aggregate_type: impl Into<AggregateType>) -> Self {
        self.0.aggregate_type = Some(aggregate_type.into().to_string());
        self
    }

    /// Only this aggregate, of any type.
    pub fn aggregate_id(mut self, id: impl Into<String>) -> Self {
        self.0.aggregate_id = Some(id.into());
        self
    }

    /// Only this tenant.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.0.tenant_id = Some(tenant.into());
        self
    }

    /// Only this ordering key.
    pub fn ordering_key(mut self, key: impl Into<String>) -> Self {
        self.0.ordering_key = Some(key.into());
        self
    }

    /// Only this correlation id.
    pub fn correlation(mut self, id: impl Into<String>) -> Self {
        self.0.correlation_id = Some(id.into());
        self
    }

    /// Only events that were dead-lettered more recently than this.
    pub fn within(mut self, age: Duration) -> Self {
        self.0.settled_within = Some(age);
        self
    }

    /// Only events that were dead-lettered longer ago than this.
    pub fn before(mut self, age: Duration) -> Self {
        self.0.settled_before = Some(age);
        self
    }

    /// Only events after this sequence number, to read page by page.
    pub fn after(mut self, seq: i64) -> Self {
        self.0.after_seq = Some(seq);
        self
    }

    fn filter(&self) -> Filter {
        Filter { status: Some(Status::Dead), ..self.0.clone() }
    }
}

impl Admin {
    /// For a store without an [`Outbox`](crate::Outbox).
    pub fn new(store: SharedStore) -> Self {
        Self { store }
    }

    /// Dead events, oldest first.
    pub async fn dead(&self, filter: &DeadFilter, limit: usize) -> Result<Vec<StoredEvent>> {
        self.store.list(&filter.filter(), limit).await
    }

    /// Number of dead events.
    pub async fn count_dead(&self, filter: &DeadFilter) -> Result<u64> {
        self.store.count(&filter.filter()).await
    }

    /// Resets a dead event to NEW, with zero attempts. False if there is no such dead event.
    pub async fn replay(&self, id: &EventId) -> Result<bool> {
        let filter = Filter { id: Some(id.clone()), ..Filter::default() };
        Ok(self.store.replay(&filter, 1).await?.moved > 0)
    }

    /// Replays all matching dead events, `batch` at a time. Returns how many. An event that is
    /// dead-lettered again while this runs is not replayed twice.
    pub async fn replay_all(&self, filter: &DeadFilter, batch: usize) -> Result<u64> {
        if batch == 0 {
            return Err(Error::setting("the batch of replay_all must be greater than 0"));
        }
        let mut filter = filter.filter();
        let mut total = 0;
        loop {
            let replayed = self.store.replay(&filter, batch).await?;
            total += replayed.moved;
            // By sequence number: an event that is dead-lettered again lies before the cursor.
            let Some(last) = replayed.last else { return Ok(total) };
            filter.after_seq = Some(last);
        }
    }

    /// Explains why an event has not been delivered yet, or how it was settled.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// use outbox::{Event, Reason};
    ///
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let later = Event::new("reminder").deliver_after(std::time::Duration::from_secs(3_600)).json(&());
    /// let id = outbox.send(later).await?.id;
    ///
    /// let explained = outbox.admin().explain(&id).await?;
    /// assert!(matches!(explained.reason(), Reason::NotDue { .. }));
    /// println!("{explained}");                      // … is not due for another 60 min …
    /// # Ok(()) }
    /// ```
    pub async fn explain(&self, id: &EventId) -> Result<Explanation> {
        let error = match self.store.delivery_facts(id).await {
            Ok(delivery_facts) => return Ok(Explanation::of(id, &delivery_facts)),
            Err(error) => error,
        };
        // Tables of another schema version may lack the columns of the query: then the version is
        // the cause.
        let error = if let Error::Database(_) = error {
            self.store.check_schema().await.err().unwrap_or(error)
        } else {
            error
        };
        match error {
            Error::NotMigrated { .. } | Error::SchemaTooOld { .. } | Error::SchemaTooNew { .. } => {
                Ok(Explanation::of_schema(id, &error))
            }
            error => Err(error),
        }
    }

    /// Number of matching events per type, the most frequent type first.
    pub async fn types(&self, filter: &Filter, limit: usize) -> Result<Vec<(String, u64)>> {
        self.store.types(filter, limit).await
    }

    /// Deletes a pending event. False if the event is done, dead, purged, or being handled right
    /// now.
    pub async fn cancel(&self, id: &EventId) -> Result<bool> {
        self.store.cancel(id).await
    }

    /// One event with its current state.
    pub async fn find(&self, id: &EventId) -> Result<Option<StoredEvent>> {
        self.store.find(id).await
    }

    /// Matching events, oldest first.
    pub async fn list(&self, filter: &Filter, limit: usize) -> Result<Vec<StoredEvent>> {
        self.store.list(filter, limit).await
    }

    /// Number of matching events. Reads all of them.
    pub async fn count(&self, filter: &Filter) -> Result<u64> {
        self.store.count(filter).await
    }

    /// Number of events by status. Counts the whole table; [`backlog`](Admin::backlog) is cheap.
    pub async fn stats(&self) -> Result<Stats> {
        self.store.stats().await
    }

    /// Events that are still to be delivered.
    pub async fn backlog(&self) -> Result<Backlog> {
        self.store.backlog().await
    }

    /// One join with its current state.
    pub async fn join(&self, id: &JoinId) -> Result<Option<Join>> {
        let filter = JoinFilter { id: Some(id.clone()), ..JoinFilter::default() };
        Ok(self.store.joins(&filter, 1).await?.pop())
    }

    /// Matching joins, oldest first.
    pub async fn joins(&self, filter: &JoinFilter, limit: usize) -> Result<Vec<Join>> {
        self.store.joins(filter, limit).await
    }

    /// The steps of a join and their outcomes, ordered by id, after this id.
    pub async fn steps(
        &self,
        join: &JoinId,
        after: Option<&EventId>,
        limit: usize,
    ) -> Result<Vec<(EventId, Option<Step>)>> {
        self.store.steps(join, after, limit).await
    }

    /// Deletes joins that were closed longer ago than this, with their steps, 500 at a time.
    /// Returns how many.
    pub async fn purge_joins(&self, older_than: Duration) -> Result<u64> {
        purge_all_joins(&*self.store, older_than, 500, &CancellationToken::new()).await
    }

    /// Deletes DONE rows that became so longer ago than this, 500 at a time. Returns how many.
    /// Steps of open joins stay. Failed attempts of over 30 days ago are deleted as well, and not
    /// counted. Dead events are left to [`purge_dead`](Admin::purge_dead).
    pub async fn purge(&self, older_than: Duration) -> Result<u64> {
        let purged = self.purge_done(older_than).await?;
        self.purge_attempts(ATTEMPTS_KEPT).await?;
        Ok(purged)
    }

    /// Deletes DONE rows, and no attempts.
    pub async fn purge_done(&self, older_than: Duration) -> Result<u64> {
        let what = Purge { what: Purgeable::Done, older_than, limit: 500 };
        purge_all(&*self.store, what, &CancellationToken::new()).await
    }

    /// Deletes DEAD rows that became so longer ago than this, 500 at a time. Returns how many. A
    /// dead event that blocks its key stays, as do steps of open joins.
    pub async fn purge_dead(&self, older_than: Duration) -> Result<u64> {
        let what = Purge { what: Purgeable::Dead, older_than, limit: 500 };
        purge_all(&*self.store, what, &CancellationToken::new()).await
    }

    /// Deletes inbox entries older than this, 500 at a time. Returns how many. A message whose
    /// entry was deleted counts as new when it is delivered again.
    pub async fn purge_inbox(&self, older_than: Duration) -> Result<u64> {
        purge_inbox(&*self.store, older_than, 500, &CancellationToken::new()).await
    }
}

/// Retention of failed attempts.
pub(crate) const ATTEMPTS_KEPT: Duration = Duration::from_secs(30 * 86_400);

/// Purges batch by batch until nothing is left to purge.
pub(crate) async fn purge_all(store: &dyn Store, purge: Purge, stop: &CancellationToken) -> Result<u64> {
    until_drained(purge.limit, stop, || store.purge(purge)).await
}

/// [`purge_all`] for joins.
pub(crate) async fn purge_all_joins(
    store: &dyn Store,
    older_than: Duration,
    batch: usize,
    stop: &CancellationToken,
) -> Result<u64> {
    until_drained(batch, stop, || store.purge_joins(older_than, batch)).await
}

async fn until_drained<F: Future<Output = Result<u64>>>(
    batch: usize,
    stop: &CancellationToken,
    purge: impl Fn() -> F,
) -> Result<u64> {
    let mut total = 0;
    while !stop.is_cancelled() {
        let purged = purge().await?;
        total += purged;
        if purged < batch as u64 {
            break;
        }
    }
    Ok(total)
}

/// [`purge_all`] for failed attempts.
pub(crate) async fn purge_attempts(
    store: &dyn Store,
    older_than: Duration,
    batch: usize,
    stop: &CancellationToken,
) -> Result<u64> {
    until_drained(batch, stop, || store.purge_attempts(older_than, batch)).await
}

/// [`purge_all`] for audit entries.
pub(crate) async fn purge_audits(
    store: &dyn Store,
    older_than: Duration,
    batch: usize,
    stop: &CancellationToken,
) -> Result<u64> {
    until_drained(batch, stop, || store.purge_audits(older_than, batch)).await
}

/// [`purge_all`] for events of the log; 0 if the store has no log.
pub(crate) async fn purge_log(
    store: &dyn Store,
    older_than: Duration,
    batch: usize,
    stop: &CancellationToken,
) -> Result<u64> {
    let Some(log) = store.log() else { return Ok(0) };
    until_drained(batch, stop, || log.purge_log(older_than, batch)).await
}

/// [`purge_all`] for the inbox.
pub(crate) async fn purge_inbox(
    store: &dyn Store,
    older_than: Duration,
    batch: usize,
    stop: &CancellationToken,
) -> Result<u64> {
    until_drained(batch, stop, || store.purge_inbox(older_than, batch)).await
}
