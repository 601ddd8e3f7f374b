//! Connection budget of a fleet: a limit on open connections over all databases.
//!
//! Two things are counted. A [`Permit`] is the right to *use* a connection for one operation: there
//! are as many permits as connections may be open, and they are granted in the order of requests. A
//! [`Ticket`] belongs to each connection from before it is opened until after it is closed: tickets
//! enforce the exact limit. Connections stay open between operations; a request for a ticket when
//! none is left closes the connection that has been idle for longest, of any database. Since every
//! such request holds a permit, there is always a connection that is idle or about to be.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use metrics::Gauge;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::error::{Error, Result};

/// Maximum wait for a permit.
const IN_LINE: Duration = Duration::from_secs(30);

/// Initial and maximum pause after a failure. Each failure doubles the pause.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Budget that all databases of a fleet share.
pub(crate) struct Budget {
    limit: usize,
    permits: Arc<Semaphore>,
    /// Permits that unavailable databases share, a quarter, so that the others have the rest.
    troubled: Arc<Semaphore>,
    /// Limits the connections that wait for notifications: no other operation can use them.
    lookouts: Arc<Semaphore>,
    books: Mutex<Books>,
    /// Notified when a ticket is free or a connection is idle.
    freed: Notify,
    open_gauge: Gauge,
    troubled_gauge: Gauge,
}

#[derive(Default)]
struct Books {
    /// Number of tickets in use.
    open: usize,
    in_trouble: usize,
    lines: Vec<Weak<dyn Idles>>,
}

/// Pool whose idle connections may be closed for other databases.
pub(crate) trait Idles: Send + Sync {
    /// Time since which the oldest idle connection is idle; `None` if none is idle.
    fn idle_since(&self) -> Option<Instant>;
    /// Closes that connection and returns its ticket.
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

    /// Maximum number of open connections.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Number of open connections.
    pub(crate) fn open(&self) -> usize {
        self.books().open
    }

    /// Number of permits for one database, at most `most`: a database that hangs must not hold them
    /// all.
    fn share(&self, most: usize) -> usize {
        most.min((self.limit / 4).max(1))
    }

    fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        self.books.lock().expect("no code panics while it holds this lock")
    }

    /// Registers a pool whose idle connections may be closed for other databases.
    pub(crate) fn enlist(&self, line: Weak<dyn Idles>) {
        let mut books = self.books();
        books.lines.retain(|line| line.strong_count() > 0);
        books.lines.push(line);
    }

    /// Waits for a ticket for a new connection. The caller must hold a permit.
    pub(crate) async fn ticket(self: &Arc<Self>) -> Ticket {
        loop {
            let freed = self.freed.notified();
            let mut freed = std::pin::pin!(freed);
            // From here on no notification is missed.
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

    /// Reserves a connection that waits for notifications, until the result is dropped. `None` if a
    /// quarter of all connections do so already: the database is polled.
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
        // The oldest may be in use again: then use an idle connection of another database.
        let of_oldest = oldest.and_then(|(_, line)| line.give_up());
        of_oldest.or_else(|| lines.iter().find_map(|line| line.give_up()))
    }

    /// Signals that a connection has become idle.
    pub(crate) fn has_idle(&self) {
        self.freed.notify_waiters();
    }
}

/// Counts one connection while it exists.
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

/// A connection that waits for notifications. It holds a permit because it is never idle: holders
/// of the other permits still find a connection.
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

/// Share of one database in the budget, and its circuit breaker.
pub(crate) struct Seat {
    pub(crate) name: String,
    pub(crate) budget: Arc<Budget>,
    /// Timeout of one operation.
    pub(crate) patience: Duration,
    own: Arc<Semaphore>,
    /// Permits for handlers: one fewer than all, if there are several, so that long handlers do not
    /// keep leases from being renewed.
    handling: Arc<Semaphore>,
    share: u32,
    health: Mutex<Health>,
}

#[derive(Default)]
struct Health {
    /// Why the last operation failed; `None` if the database is available.
    trouble: Option<String>,
    failures: u32,
    /// End of the pause before the next attempt.
    not_before: Option<Instant>,
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Seat {
    /// Creates the share of a database that uses at most `most` connections.
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
        self.health.lock().expect("no code panics while it holds this lock")
    }

    /// Why the database is unavailable; `None` if it is available.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.health().trouble.clone()
    }

    pub(crate) fn is_troubled(&self) -> bool {
        self.health().trouble.is_some()
    }

    /// Number of failures in a row.
    pub(crate) fn failures(&self) -> u32 {
        self.health().failures
    }

    /// Records a response of the database: closes the breaker.
    pub(crate) fn is_well(&self) {
        let was = std::mem::take(&mut *self.health());
        if was.trouble.is_some() {
            self.count_troubled(|n| n.saturating_sub(1));
            tracing::info!(store = self.name, "database available again");
        }
    }

    /// Records a failure to connect or to respond in time: opens the breaker.
    pub(crate) fn is_in_trouble(&self, reason: &str) {
        let mut health = self.health();
        let pause = PAUSE.0.saturating_mul(1 << health.failures.min(10)).min(PAUSE.1);
        // Jitter, so that databases that failed together are not retried together.
        let pause = pause.mul_f64(rand::random_range(0.75..=1.25));
        health.failures = health.failures.saturating_add(1);
        health.not_before = Some(Instant::now() + pause);
        let first = health.trouble.replace(reason.to_owned()).is_none();
        drop(health);
        if first {
            self.count_troubled(|n| n + 1);
            tracing::error!(store = self.name, reason, "database unavailable: retrying with longer pauses");
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

    /// Waits for a permit to use a connection. Fails immediately during the pause after a failure.
    pub(crate) async fn enter(&self) -> Result<Permit> {
        self.may_be_tried()?;
        let permit = self.acquire().await?;
        // An operation ahead in the queue may just have failed.
        self.may_be_tried()?;
        Ok(permit)
    }

    /// Waits for a permit to use a connection for the transaction of a handler.
    pub(crate) async fn acquire_for_handler(&self) -> Result<Permit> {
        let handling = self.handling.clone().acquire_owned().await.ok();
        Ok(Permit { _handling: handling, ..self.enter().await? })
    }

    fn may_be_tried(&self) -> Result<()> {
        let health = self.health();
        match (&health.trouble, health.not_before) {
            (Some(reason), Some(time)) if Instant::now() < time => {
                Err(self.unavailable(format!("{reason}; next attempt after a pause")))
            }
            _ => Ok(()),
        }
    }

    /// Waits for a permit to use a connection, even if the database is unavailable: for the
    /// application's own transactions.
    pub(crate) async fn acquire(&self) -> Result<Permit> {
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
            Ok(Err(_closed)) => Err(self.unavailable("database removed from the fleet")),
            Err(_) => Err(self.unavailable(format!(
                "no connection became free within {IN_LINE:?}: raise max_connections or shorten transactions"
            ))),
        }
    }

    /// Waits until all permits are returned, up to the operation timeout. No permit is granted
    /// afterwards.
    pub(crate) async fn leave(&self) {
        let all = self.own.acquire_many(self.share);
        let _ = tokio::time::timeout(self.patience, all).await;
        self.own.close();
        self.is_forgotten();
    }

    /// Closes the breaker: a removed database does not count as unavailable.
    fn is_forgotten(&self) {
        if std::mem::take(&mut *self.health()).trouble.is_some() {
            self.count_troubled(|n| n.saturating_sub(1));
        }
    }
}
