//! Helpers for tests of code that writes events, and the conformance suite for other stores.
//!
//! Behind the feature `testing`. Further helpers: [`Relay::idle`](crate::Relay::idle) waits until
//! all due events are handled, [`Relay::poll_once`](crate::Relay::poll_once) polls once, and a
//! [`FrozenClock`] stands still until it is advanced.
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
use crate::event::{Event, EventId, EventType, FromEvent, IntoEvent, MAX_PAYLOAD};
use crate::handler::Context;
use crate::outbox::Outbox;
use crate::relay::Relay;
use crate::sql::dialect::{BirthLease, FrozenClock, NewRow};
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

/// The context of an event that no relay has taken, to call a handler as the function that it is.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use outbox::{Context, Failure, Handled, Message, State, testing};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Message)]
/// #[message(type = "mail.wanted")]
/// struct MailWanted { to: String }
///
/// async fn send_mail(mail: MailWanted, cx: Context, State(limit): State<u32>) -> Handled {
///     if cx.attempt() > limit { Err(Failure::dead(format!("cannot reach {}", mail.to))) } else { Ok(()) }
/// }
///
/// let mail = || MailWanted { to: "ada".to_owned() };
/// let cx = testing::context(mail()).with_attempt(4);
/// assert!(send_mail(mail(), cx, State(3)).await.unwrap_err().is_dead());
/// # }
/// ```
///
/// # Panics
///
/// If the event is not valid.
#[track_caller]
pub fn context(event: impl IntoEvent) -> Context {
    match event.into_event(MAX_PAYLOAD) {
        Ok(event) => Context::of_event(event),
        Err(mistake) => panic!("the event is not valid: {mistake}"),
    }
}

/// Delivers everything: advances the clock to the time of the next pending event, again and again,
/// until none is scheduled. So retries and delays take no time in a test.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// use outbox::{Clock, Event, Failure, FrozenClock, OutboxBuilder, testing};
///
/// let clock = FrozenClock::at(chrono::Utc::now());
/// let outbox = OutboxBuilder::new().clock(Clock::Frozen(clock.clone())).sqlite(":memory:").await?;
/// # outbox.migrate().await?;
/// let relay = outbox.single_node().on_type("e", async || Err::<(), _>(Failure::retry("down"))).start().await?;
/// let id = outbox.send(Event::new("e").json(&1)).await?.id;
///
/// testing::run_due(&outbox, &relay, &clock).await?;
/// assert_eq!(outbox.admin().find(&id).await?.unwrap().attempts, 10);     // all of the default policy
/// relay.stop().await
/// # }
/// ```
///
/// # Panics
///
/// If events are still scheduled after a thousand times: a handler that snoozes forever.
pub async fn run_due<DB: Database>(outbox: &Outbox<DB>, relay: &Relay, clock: &FrozenClock) -> Result<()> {
    const MOST: u32 = 1_000;
    for _ in 0..MOST {
        relay.idle().await?;
        let pending = Filter { pending: true, ..Filter::default() };
        let pending = outbox.store().list(&pending, 100_000).await?;
        let scheduled = pending.iter().map(|stored| stored.available_at).filter(|at| *at > clock.now());
        match scheduled.min() {
            Some(next) => clock.set(next),
            None => return Ok(()),
        }
    }
    panic!("events are still scheduled after {MOST} times: does a handler snooze forever?")
}

/// Asserts that an outbox has an event that is a message of this form, a pattern of `matches!`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// use outbox::{Message, testing};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Message)]
/// #[message(type = "order.placed")]
/// struct OrderPlaced { order: u64, customer: String }
///
/// let outbox = testing::outbox().await;
/// outbox.send(OrderPlaced { order: 42, customer: "ada".to_owned() }).await?;
/// testing::assert_written!(outbox, OrderPlaced { order: 42, .. });
/// testing::assert_written!(outbox, OrderPlaced { order, customer } if *order > 40 && customer == "ada");
/// # Ok(()) }
/// ```
#[macro_export]
#[doc(hidden)]
macro_rules! __assert_written {
    ($outbox:expr, $($pattern:tt)+) => {
        $crate::testing::written(&$outbox)
            .await
            .has_message(::core::stringify!($($pattern)+), |message| ::core::matches!(message, $($pattern)+))
    };
}

#[doc(inline)]
pub use crate::__assert_written as assert_written;

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

    /// The events that are messages of this type, or enum, read from their payloads.
    pub fn messages<M: FromEvent>(&self) -> Vec<M> {
        let events = self.0.iter().filter_map(|stored| stored.event.as_ref().ok());
        events.filter_map(|event| event.message().ok()).collect()
    }

    /// Asserts that a message matches: see [`assert_written!`](crate::testing::assert_written).
    ///
    /// # Panics
    ///
    /// If there is none.
    #[doc(hidden)]
    #[track_caller]
    pub fn has_message<M: FromEvent>(&self, pattern: &str, matches: impl Fn(&M) -> bool) {
        if !self.messages().iter().any(matches) {
            panic!("no message matches `{pattern}`, the outbox holds {:?}", self.types());
        }
    }

    fn types(&self) -> Vec<&str> {
        let events = self.0.iter().filter_map(|stored| stored.event.as_ref().ok());
        events.map(|event| event.event_type().as_str()).collect()
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
        let there = self.types();
        assert_eq!(found, expected, "expected {expected} of {event_type:?}, the outbox holds {there:?}");
    }
}
