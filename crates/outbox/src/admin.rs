//! Looking into an outbox, and repairing it.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::event::EventId;
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

/// Which dead events: of a type, of an aggregate type, or all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadFilter {
    event_type: Option<String>,
    aggregate_type: Option<String>,
}

impl DeadFilter {
    /// Only this event type.
    pub fn event_type(mut self, event_type: impl AsRef<str>) -> Self {
        self.event_type = Some(event_type.as_ref().to_owned());
        self
    }

    /// Only this aggregate type.
    pub fn aggregate_type(mut self, aggregate_type: impl AsRef<str>) -> Self {
        self.aggregate_type = Some(aggregate_type.as_ref().to_owned());
        self
    }

    fn filter(&self) -> Filter {
        Filter {
            status: Some(Status::Dead),
            event_type: self.event_type.clone(),
            aggregate_type: self.aggregate_type.clone(),
            ..Filter::default()
        }
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

    /// How many dead events there are.
    pub async fn count_dead(&self, filter: &DeadFilter) -> Result<u64> {
        self.store.count(&filter.filter()).await
    }

    /// Makes a dead event new again, with no attempts behind it. False if there is no such dead event.
    pub async fn replay(&self, id: &EventId) -> Result<bool> {
        let filter = Filter { id: Some(id.clone()), ..Filter::default() };
        Ok(self.store.replay(&filter, 1).await? > 0)
    }

    /// Replays all dead events that match, `batch` at a time. Returns how many. One that dies again while this runs is
    /// not replayed twice.
    pub async fn replay_all(&self, filter: &DeadFilter, batch: usize) -> Result<u64> {
        if batch == 0 {
            return Err(Error::Setting("the batch of replay_all must be greater than 0".to_owned()));
        }
        let mut filter = filter.filter();
        let mut total = 0;
        loop {
            // By place in the table: what dies again stays behind.
            let page = self.store.list(&filter, batch).await?;
            let Some(last) = page.last().map(|event| event.seq) else { return Ok(total) };
            total += self.store.replay(&filter, page.len()).await?;
            filter.after_seq = Some(last);
        }
    }

    /// Takes a pending event back. False if it is done, dead, gone, or being handled right now.
    pub async fn cancel(&self, id: &EventId) -> Result<bool> {
        self.store.cancel(id).await
    }

    /// One event and where it stands.
    pub async fn find(&self, id: &EventId) -> Result<Option<StoredEvent>> {
        self.store.find(id).await
    }

    /// Events that match, oldest first.
    pub async fn list(&self, filter: &Filter, limit: usize) -> Result<Vec<StoredEvent>> {
        self.store.list(filter, limit).await
    }

    /// How many events there are by status. Counts the whole table: see [`backlog`](Admin::backlog) for a cheap look.
    pub async fn stats(&self) -> Result<Stats> {
        self.store.stats().await
    }

    /// What is still to be delivered.
    pub async fn backlog(&self) -> Result<Backlog> {
        self.store.backlog().await
    }

    /// One join and where it stands.
    pub async fn join(&self, id: &JoinId) -> Result<Option<Join>> {
        let filter = JoinFilter { id: Some(id.clone()), ..JoinFilter::default() };
        Ok(self.store.joins(&filter, 1).await?.pop())
    }

    /// Joins that match, oldest first.
    pub async fn joins(&self, filter: &JoinFilter, limit: usize) -> Result<Vec<Join>> {
        self.store.joins(filter, limit).await
    }

    /// The steps of a join, by id, after this one: which events, and what became of them.
    pub async fn steps(
        &self,
        join: &JoinId,
        after: Option<&EventId>,
        limit: usize,
    ) -> Result<Vec<(EventId, Option<Step>)>> {
        self.store.steps(join, after, limit).await
    }

    /// Deletes joins that were closed longer ago than this, with their steps, 500 at a time. Returns how many.
    pub async fn purge_joins(&self, older_than: Duration) -> Result<u64> {
        purge_all_joins(&*self.store, older_than, 500, &CancellationToken::new()).await
    }

    /// Deletes DONE and DEAD rows that became so longer ago than this, 500 at a time. Returns how many. Steps of joins
    /// that are still open stay.
    pub async fn purge(&self, older_than: Duration) -> Result<u64> {
        let what = Purge { what: Purgeable::Finished, older_than, limit: 500 };
        purge_all(&*self.store, what, &CancellationToken::new()).await
    }

    /// Deletes DONE rows only.
    pub async fn purge_done(&self, older_than: Duration) -> Result<u64> {
        let what = Purge { what: Purgeable::Done, older_than, limit: 500 };
        purge_all(&*self.store, what, &CancellationToken::new()).await
    }

    /// Deletes inbox entries older than this, 500 at a time. Returns how many. What is delivered again after that is new.
    pub async fn purge_inbox(&self, older_than: Duration) -> Result<u64> {
        purge_inbox(&*self.store, older_than, 500, &CancellationToken::new()).await
    }
}

/// Purges batch by batch until there is nothing left to purge.
pub(crate) async fn purge_all(store: &dyn Store, purge: Purge, stop: &CancellationToken) -> Result<u64> {
    until_drained(purge.limit, stop, || store.purge(purge)).await
}

/// The same for joins.
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

/// The same for the inbox.
pub(crate) async fn purge_inbox(
    store: &dyn Store,
    older_than: Duration,
    batch: usize,
    stop: &CancellationToken,
) -> Result<u64> {
    until_drained(batch, stop, || store.purge_inbox(older_than, batch)).await
}
