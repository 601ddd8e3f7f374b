//! Helpers for tests of code that writes events, and the conformance suite for other stores.
//!
//! Behind the feature `testing`. Further helpers: [`Relay::idle`](crate::Relay::idle) waits until
//! all due events are handled, [`Relay::poll_once`](crate::Relay::poll_once) polls once, and a
//! [`FrozenClock`](crate::FrozenClock) stands still until it is advanced.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
//! use outbox::{Event, testing};
//!
//! let outbox = testing::outbox().await;
//! outbox.send(Event::new("order.placed").json(&42)).await?;       // your code does this
//!
//! let written = testing::written(&outbox).await;
//! assert_eq!(written.one("order.placed").payload::<u32>().unwrap(), 42);
//! written.none("order.cancelled");
//! # Ok(()) }
//! ```

pub mod conformance;

use std::time::Duration;

use crate::error::Result;
use crate::event::{Event, EventId, EventType};
use crate::outbox::Outbox;
use crate::sql::dialect::{BirthLease, NewRow};
use crate::sql::{Database, SqlStore};
use crate::store::{Filter, NodeId, StoredEvent};

/// A migrated in-memory outbox.
///
/// # Panics
///
/// If SQLite cannot be opened in memory.
#[cfg(feature = "sqlite")]
pub async fn outbox() -> Outbox<sqlx::Sqlite> {
    let outbox = Outbox::sqlite(":memory:").await.expect("SQLite opens in memory");
    outbox.migrate().await.expect("the tables can be created");
    outbox
}

/// All events of an outbox, oldest first: see [`WrittenEvents`].
///
/// # Panics
///
/// If it cannot be read.
pub async fn written<DB: Database>(outbox: &Outbox<DB>) -> WrittenEvents {
    let all = outbox.store().list(&Filter::default(), 1_000_000).await;
    WrittenEvents(all.expect("the outbox can be read"))
}

/// Writes events like a process whose own relay is about to handle them: those with `true` are
/// leased to the relay's node on insert, so that no other node takes them. Returns the ids that
/// were stored.
///
/// For tests of how a database treats such rows: [`Tx::write`](crate::Tx::write) decides by itself
/// which events are leased on insert.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// # use std::time::Duration;
/// use outbox::{Event, NodeId, SqlStore, StoreOptions, store::Store, testing};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let url = format!("sqlite:{}?mode=rwc", folder.path().join("outbox.db").display());
/// let store = SqlStore::<sqlx::Sqlite>::open(&url, &StoreOptions::default()).await?;
/// store.migrate().await?;
/// let event = Event::new("greeting").json(&"hello").build()?;
/// let node = NodeId::from("a");
/// let ids = testing::write_leased(&store, &[(event, true)], &node, Duration::from_secs(30)).await?;
/// let (holder, _until) = store.find(&ids[0]).await?.unwrap().lease.unwrap();
/// assert_eq!(holder, node);
/// # Ok(()) }
/// ```
pub async fn write_leased<DB: Database>(
    store: &SqlStore<DB>,
    events: &[(Event, bool)],
    owner: &NodeId,
    lease: Duration,
) -> Result<Vec<EventId>> {
    let rows: Vec<NewRow> =
        events.iter().map(|(event, leased)| NewRow { event: event.clone(), leased: *leased }).collect();
    let birth = BirthLease { owner: owner.clone(), lease };
    let mut tx = store.begin().await?;
    let stored = store.write(&mut tx, &rows, Some(&birth), false).await?;
    tx.commit().await?;
    Ok(stored.iter().map(|(event, _)| event.id().clone()).collect())
}

/// Written events, with assertions that list the found events when they fail.
#[derive(Debug)]
pub struct WrittenEvents(Vec<StoredEvent>);

impl WrittenEvents {
    /// All events, with their states.
    pub fn all(&self) -> &[StoredEvent] {
        &self.0
    }

    /// The events of a type.
    pub fn of_type(&self, event_type: impl Into<EventType>) -> Vec<&Event> {
        let event_type = event_type.into();
        let events = self.0.iter().filter_map(|stored| stored.event.as_ref().ok());
        events.filter(|event| *event.event_type() == event_type).collect()
    }

    /// The one event of a type.
    ///
    /// # Panics
    ///
    /// If there is none, or more than one.
    #[track_caller]
    pub fn one(&self, event_type: impl Into<EventType>) -> &Event {
        let event_type = event_type.into();
        self.count(&event_type, 1);
        self.of_type(event_type)[0]
    }

    /// Asserts that no event of a type was written.
    ///
    /// # Panics
    ///
    /// If there is one.
    #[track_caller]
    pub fn none(&self, event_type: impl Into<EventType>) {
        self.count(event_type, 0);
    }

    /// Asserts how many events of a type were written.
    ///
    /// # Panics
    ///
    /// If there are more or fewer.
    #[track_caller]
    pub fn count(&self, event_type: impl Into<EventType>, expected: usize) {
        let event_type = event_type.into();
        let found = self.of_type(&event_type).len();
        let there: Vec<&str> = self
            .0
            .iter()
            .filter_map(|s| s.event.as_ref().ok())
            .map(|event| event.event_type().as_str())
            .collect();
        assert_eq!(found, expected, "expected {expected} of {event_type:?}, the outbox holds {there:?}");
    }
}
