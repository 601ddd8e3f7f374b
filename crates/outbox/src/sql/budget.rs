//! The connections of a fleet, counted together: at most so many exist at any moment, whatever the number of databases.
//!
//! Two things are counted. A [`Permit`] is the right to *use* a connection for one operation: there are as many as
//! connections may exist, and they are given out in the order of asking. A [`Ticket`] goes with each connection from
//! before it is opened until after it is closed: tickets are what is exact. Connections stay open between operations;
//! one who needs a ticket when there are none closes the connection that has been idle for longest, of whatever
//! database. Since whoever asks for a ticket has a permit, there is always one that is idle or about to be.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use metrics::Gauge;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::error::{Error, Result};

/// How long one may stand in line for a permit.
const IN_LINE: Duration = Duration::from_secs(30);

/// The first pause after trouble, and the longest. Each failure doubles it.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// What all databases of a fleet share.
pub(crate) struct Budget {
    limit: usize,
    permits: Arc<Semaphore>,
    /// Databases in trouble share these few, so that the others have the rest.
    troubled: Arc<Semaphore>,
    /// Connections that wait for notifications are at most so many: nothing else can use them.
    lookouts: Arc<Semaphore>,
    books: Mutex<Books>,
    /// Told when a ticket is free, or a connection idle.
    freed: Notify,
    open_gauge: Gauge,
    troubled_gauge: Gauge,
}

#[derive(Default)]
struct Books {
    /// How many tickets are out.
    open: usize,
    in_trouble: usize,
    lines: Vec<Weak<dyn Idles>>,
}

/// One whose idle connections may be closed for others.
pub(crate) trait Idles: Send + Sync {
    /// Since when its oldest connection is idle; `None` if none is.
    fn idle_since(&self) -> Option<Instant>;
    /// Closes that connection, and hands over its ticket.
    fn give_up(&self) -> Option<BoxFuture<'static, Ticket>>;
}

impl Budget {
    pub(crate) fn new(limit: usize, open_gauge: Gauge, troubled_gauge: Gauge) -> Arc<Self> {
        Arc::new(Self {
            limit,
            permits: Arc::new(Semaphore::new(limit)),
            troubled: Arc::new(Semaphore::new((limit / 4).max(1))),
            lookouts: Arc::new(Semaphore::new(limit / 4)),
            books: Mutex::default(),
            freed: Notify::new(),
            open_gauge,
            troubled_gauge,
        })
    }

    /// How many connections there may be.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// How many there are.
    pub(crate) fn open(&self) -> usize {
        self.books().open
    }

    /// How many permits one database may have, so that one that hangs does not eat all: `most` it can use.
    fn share(&self, most: usize) -> usize {
        most.min((self.limit / 4).max(1))
    }

    fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        self.books.lock().expect("no one panics while holding the books")
    }

    /// Takes part in closing idle connections for others.
    pub(crate) fn enlist(&self, line: Weak<dyn Idles>) {
        let mut books = self.books();
        books.lines.retain(|line| line.strong_count() > 0);
        books.lines.push(line);
    }

    /// A ticket for a new connection. Only for those who have a permit.
    pub(crate) async fn ticket(self: &Arc<Self>) -> Ticket {
        loop {
            let freed = self.freed.notified();
            let mut freed = std::pin::pin!(freed);
            // From here on nothing that becomes free is missed.
            freed.as_mut().enable();
            if let Some(ticket) = self.free_ticket() {
                return ticket;
            }
            match self.longest_idle() {
                Some(closed) => return closed.await,
                None => freed.await,
            }
        }
    }

    /// A connection that waits for notifications, for as long as the result exists. `None` if a
    /// quarter of all connections do so: the database is polled.
    pub(crate) async fn lookout(self: &Arc<Self>) -> Option<Lookout> {
        let lookout = self.lookouts.clone().try_acquire_owned().ok()?;
        let permit = self.permits.clone().acquire_owned().await.ok()?;
        Some(Lookout { _ticket: self.ticket().await, _permit: permit, _lookout: lookout })
    }

    fn free_ticket(self: &Arc<Self>) -> Option<Ticket> {
        let mut books = self.books();
        if books.open >= self.limit {
            return None;
        }
        books.open += 1;
        self.open_gauge.set(books.open as f64);
        Some(Ticket(self.clone()))
    }

    fn longest_idle(&self) -> Option<BoxFuture<'static, Ticket>> {
        let lines: Vec<_> = self.books().lines.iter().filter_map(Weak::upgrade).collect();
        let oldest =
            lines.iter().filter_map(|line| Some((line.idle_since()?, line))).min_by_key(|(at, _)| *at);
        // It may be in use again by now: then somebody else's is.
        let of_oldest = oldest.and_then(|(_, line)| line.give_up());
        of_oldest.or_else(|| lines.iter().find_map(|line| line.give_up()))
    }

    /// A connection has become idle.
    pub(crate) fn has_idle(&self) {
        self.freed.notify_waiters();
    }
}

/// Goes with a connection for as long as it exists.
pub(crate) struct Ticket(Arc<Budget>);

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut books = self.0.books();
        books.open -= 1;
        self.0.open_gauge.set(books.open as f64);
        drop(books);
        self.0.freed.notify_waiters();
    }
}

/// A connection that waits for notifications. It has a permit, because it is never idle: those who have
/// the other permits still find a connection.
pub(crate) struct Lookout {
    _ticket: Ticket,
    _permit: OwnedSemaphorePermit,
    _lookout: OwnedSemaphorePermit,
}

/// The right to use a connection.
pub(crate) struct Permit {
    _own: OwnedSemaphorePermit,
    _troubled: Option<OwnedSemaphorePermit>,
    _one: OwnedSemaphorePermit,
    _handling: Option<OwnedSemaphorePermit>,
}

/// The place of one database in the budget, and how it is doing.
pub(crate) struct Seat {
    pub(crate) name: String,
    pub(crate) budget: Arc<Budget>,
    /// How long one operation may take.
    pub(crate) patience: Duration,
    own: Arc<Semaphore>,
    /// One fewer than all, if there are several: handlers that take long must not keep leases from being renewed.
    handling: Arc<Semaphore>,
    share: u32,
    health: Mutex<Health>,
}

#[derive(Default)]
struct Health {
    /// Why the last operation failed. `None`: all is well.
    trouble: Option<String>,
    failures: u32,
    /// Not to be tried before.
    not_before: Option<Instant>,
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Seat {
    /// A place for a database that uses `most` connections at a time.
    pub(crate) fn new(name: &str, budget: Arc<Budget>, patience: Duration, most: usize) -> Self {
        let share = budget.share(most);
        Self {
            name: name.to_owned(),
            own: Arc::new(Semaphore::new(share)),
            handling: Arc::new(Semaphore::new(share.saturating_sub(1).max(1))),
            share: u32::try_from(share).unwrap_or(u32::MAX),
            budget,
            patience,
            health: Mutex::default(),
        }
    }

    fn health(&self) -> std::sync::MutexGuard<'_, Health> {
        self.health.lock().expect("no one panics while holding this lock")
    }

    /// Why the database cannot be used at present.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.health().trouble.clone()
    }

    pub(crate) fn is_troubled(&self) -> bool {
        self.health().trouble.is_some()
    }

    /// How often in a row it failed.
    pub(crate) fn failures(&self) -> u32 {
        self.health().failures
    }

    /// The database answered.
    pub(crate) fn is_well(&self) {
        let was = std::mem::take(&mut *self.health());
        if was.trouble.is_some() {
            self.count_troubled(|n| n.saturating_sub(1));
            tracing::info!(store = self.name, "the database answers again");
        }
    }

    /// The database did not answer, or could not be reached.
    pub(crate) fn is_in_trouble(&self, reason: &str) {
        let mut health = self.health();
        let pause = PAUSE.0.saturating_mul(1 << health.failures.min(10)).min(PAUSE.1);
        // Spread, so that those who failed together do not come back together.
        let pause = pause.mul_f64(rand::random_range(0.75..=1.25));
        health.failures = health.failures.saturating_add(1);
        health.not_before = Some(Instant::now() + pause);
        let first = health.trouble.replace(reason.to_owned()).is_none();
        drop(health);
        if first {
            self.count_troubled(|n| n + 1);
            tracing::error!(store = self.name, reason, "the database is in trouble: trying it less often");
        }
    }

    fn count_troubled(&self, count: impl Fn(usize) -> usize) {
        let mut books = self.budget.books();
        books.in_trouble = count(books.in_trouble);
        self.budget.troubled_gauge.set(books.in_trouble as f64);
    }

    pub(crate) fn unavailable(&self, reason: impl Into<String>) -> Error {
        Error::Unavailable { store: self.name.clone(), reason: reason.into() }
    }

    /// A permit to use a connection; an error at once while the database is left alone after trouble.
    pub(crate) async fn enter(&self) -> Result<Permit> {
        self.may_be_tried()?;
        let permit = self.stand_in_line().await?;
        // Somebody before us in the line may just have found out.
        self.may_be_tried()?;
        Ok(permit)
    }

    /// The same for the transaction of a handler.
    pub(crate) async fn enter_to_handle(&self) -> Result<Permit> {
        let handling = self.handling.clone().acquire_owned().await.ok();
        Ok(Permit { _handling: handling, ..self.enter().await? })
    }

    fn may_be_tried(&self) -> Result<()> {
        let health = self.health();
        match (&health.trouble, health.not_before) {
            (Some(reason), Some(time)) if Instant::now() < time => {
                Err(self.unavailable(format!("{reason}; left alone for a moment")))
            }
            _ => Ok(()),
        }
    }

    /// A permit to use a connection, also if the database is in trouble: for people's own transactions.
    pub(crate) async fn stand_in_line(&self) -> Result<Permit> {
        let acquire = async {
            let own = self.own.clone().acquire_owned().await?;
            let troubled = match self.is_troubled() {
                true => Some(self.budget.troubled.clone().acquire_owned().await?),
                false => None,
            };
            let one = self.budget.permits.clone().acquire_owned().await?;
            Ok::<_, tokio::sync::AcquireError>(Permit {
                _own: own,
                _troubled: troubled,
                _one: one,
                _handling: None,
            })
        };
        match tokio::time::timeout(IN_LINE, acquire).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_closed)) => Err(self.unavailable("it was removed from the fleet")),
            Err(_) => Err(self.unavailable(format!(
                "no connection became free within {IN_LINE:?}: raise max_connections or shorten transactions"
            ))),
        }
    }

    /// Waits for those who have permits, for as long as patience allows; nobody gets one any more.
    pub(crate) async fn leave(&self) {
        let all = self.own.acquire_many(self.share);
        let _ = tokio::time::timeout(self.patience, all).await;
        self.own.close();
        self.is_forgotten();
    }

    /// What is removed is not in trouble.
    fn is_forgotten(&self) {
        if std::mem::take(&mut *self.health()).trouble.is_some() {
            self.count_troubled(|n| n.saturating_sub(1));
        }
    }
}
