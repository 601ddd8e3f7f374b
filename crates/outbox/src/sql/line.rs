//! Connections of one database of a fleet: few, opened on demand, closed when another database
//! needs the slot.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use sqlx::{Connection as _, Pool};
use sqlx_core::transaction::TransactionManager as _;
use tokio::runtime::Handle;
use tokio::sync::RwLock;

use super::budget::{Idles, Lookout, Permit, Seat, Ticket};
use super::dialect::{Dialect, Options};
use super::names::Names;
use super::sessions::Sessions;
use super::warm::{begin_with, leave_transaction};
use crate::error::{RedactedError, Result};
use crate::store::InsertNotifier;

/// Time limit for closing a connection; then it is dropped.
const CLOSING: Duration = Duration::from_secs(1);

/// Pool of connections to one database.
pub(crate) struct Line<DB: Dialect> {
    pub(crate) seat: Arc<Seat>,
    pub(crate) sessions: Sessions,
    options: Options<DB>,
    idle: Mutex<Vec<Idle<DB>>>,
    closed: AtomicBool,
    /// Whether the database existed: a database that was removed later is not created again.
    was_there: AtomicBool,
    /// Read-locked while a connection is being closed.
    closing: Arc<RwLock<()>>,
    /// Pool of sqlx's own, opened on request.
    pool: OnceLock<Pool<DB>>,
}

struct Idle<DB: Dialect> {
    conn: DB::Connection,
    ticket: Ticket,
    since: Instant,
}

impl<DB: Dialect> Line<DB> {
    pub(crate) fn new(seat: Arc<Seat>, options: Options<DB>, sessions: Sessions) -> Arc<Self> {
        let line = Arc::new(Self {
            seat,
            sessions,
            options,
            idle: Mutex::default(),
            closed: AtomicBool::new(false),
            was_there: AtomicBool::new(false),
            closing: Arc::default(),
            pool: OnceLock::new(),
        });
        let idles: Arc<dyn Idles> = line.clone();
        line.seat.budget.enlist(Arc::downgrade(&idles));
        line
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Idle<DB>>> {
        self.idle.lock().expect("no code panics while it holds this lock")
    }

    /// Connection options of the database.
    pub(crate) fn options(&self) -> &Options<DB> {
        &self.options
    }

    /// Opens an insert notifier whose connection counts in the budget; `None` if the budget's limit
    /// of such connections is reached, or the database has no notifications.
    pub(crate) async fn watch(
        &self,
        options: Options<DB>,
        names: &Names,
    ) -> Result<Option<Box<dyn InsertNotifier>>> {
        let Some(lookout) = self.seat.budget.lookout().await else { return Ok(None) };
        let Some(watch) = DB::watch(options, names).await? else { return Ok(None) };
        Ok(Some(Box::new(FleetWatch { inner: Some((watch, lookout)), closing: self.closing.clone() })))
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns a connection that responds: an idle one, or a new one. The caller must hold a
    /// permit.
    async fn borrow(self: &Arc<Self>) -> Result<Borrowed<DB>, sqlx::Error> {
        loop {
            // The most recently used: the others stay idle for longer, and can be closed for other
            // databases.
            let Some(Idle { conn, ticket, .. }) = self.idle().pop() else { break };
            let mut borrowed = Borrowed::new(self, conn, ticket);
            // A server that hangs must be detected by this ping, not by a claim that the server
            // executes when it resumes, without any relay knowing of it.
            match tokio::time::timeout(self.seat.patience, borrowed.ping()).await {
                Ok(Ok(())) => return Ok(borrowed),
                Ok(Err(_)) => {}
                Err(_) => return Err(self.hangs()),
            }
        }
        // SQLite keeps the file of a closed connection open while the process has another
        // connection to the same file.
        drop(self.closing.write().await);
        let ticket = self.seat.budget.ticket().await;
        if self.is_closed() {
            return Err(sqlx::Error::PoolClosed);
        }
        let create = !self.was_there.load(Ordering::Acquire);
        let options = DB::creating(self.options.clone(), create);
        match tokio::time::timeout(self.seat.patience, DB::connect_one(&options, &self.sessions)).await {
            Ok(Ok(conn)) => {
                self.was_there.store(true, Ordering::Release);
                Ok(Borrowed::new(self, conn, ticket))
            }
            Ok(Err(error)) => {
                self.seat.is_in_trouble(&RedactedError(&error).to_string());
                Err(error)
            }
            Err(_) => Err(self.hangs()),
        }
    }

    /// Records that the server did not respond, whatever the duration of the intended operation.
    fn hangs(&self) -> sqlx::Error {
        let reason = format!("no answer within {:?}", self.seat.patience);
        self.seat.is_in_trouble(&reason);
        std::io::Error::new(std::io::ErrorKind::TimedOut, reason).into()
    }

    /// Begins a writing transaction with these statements. The caller must hold a permit.
    pub(crate) async fn begin(self: &Arc<Self>, script: Option<String>) -> Result<Borrowed<DB>, sqlx::Error> {
        let mut borrowed = self.borrow().await?;
        borrowed.begin(&script).await?;
        Ok(borrowed)
    }

    /// Returns a connection for one or more statements, inside a transaction if its session is
    /// shared. The caller must hold a permit.
    pub(crate) async fn acquire(self: &Arc<Self>) -> Result<Borrowed<DB>, sqlx::Error> {
        let mut borrowed = self.borrow().await?;
        if self.sessions.are_shared() {
            borrowed.begin(&None).await?;
        }
        Ok(borrowed)
    }

    /// A pool of sqlx's own to the same database, which the budget does not count.
    pub(crate) fn pool(&self) -> &Pool<DB> {
        self.pool.get_or_init(|| {
            sqlx::pool::PoolOptions::new()
                .max_connections(u32::try_from(DB::AT_ONCE).unwrap_or(1))
                .connect_lazy_with(self.options.clone())
        })
    }

    /// Closes a connection, then returns its ticket.
    fn shut(&self, conn: DB::Connection, ticket: Ticket) -> impl Future<Output = Ticket> + Send + 'static {
        let closing = self.closing.clone().try_read_owned();
        async move {
            let _ = tokio::time::timeout(CLOSING, conn.close()).await;
            drop(closing);
            ticket
        }
    }

    /// Closes all connections. Connections in use are closed when they are returned.
    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.seat.leave().await;
        loop {
            let Some(Idle { conn, ticket, .. }) = self.idle().pop() else { break };
            self.shut(conn, ticket).await;
        }
        if let Some(pool) = self.pool.get() {
            pool.close().await;
        }
        drop(self.closing.write().await);
    }
}

impl<DB: Dialect> Idles for Line<DB> {
    fn idle_since(&self) -> Option<Instant> {
        self.idle().first().map(|idle| idle.since)
    }

    fn give_up(&self) -> Option<BoxFuture<'static, Ticket>> {
        let mut idle = self.idle();
        if idle.is_empty() {
            return None;
        }
        let Idle { conn, ticket, .. } = idle.remove(0);
        Some(Box::pin(self.shut(conn, ticket)))
    }
}

/// A connection in use. It returns to the pool only if its use has [ended](Borrowed::finish)
/// without an error: if it is dropped in the middle of an operation, its state is unknown, and it
/// is closed.
pub(crate) struct Borrowed<DB: Dialect> {
    line: Arc<Line<DB>>,
    inner: Option<(DB::Connection, Ticket)>,
    permit: Option<Permit>,
    well: bool,
}

impl<DB: Dialect> Borrowed<DB> {
    fn new(line: &Arc<Line<DB>>, conn: DB::Connection, ticket: Ticket) -> Self {
        Self { line: line.clone(), inner: Some((conn, ticket)), permit: None, well: false }
    }

    /// Holds a permit while the connection is in use.
    pub(crate) fn with(mut self, permit: Permit) -> Self {
        self.permit = Some(permit);
        self
    }

    async fn begin(&mut self, script: &Option<String>) -> Result<(), sqlx::Error> {
        let begin = self.line.sessions.begin(DB::BEGIN_SHARED).or(DB::BEGIN);
        begin_with::<DB>(self, begin, script).await
    }

    fn is_open(&self) -> bool {
        DB::TransactionManager::get_transaction_depth(self) > 0
    }

    /// Marks the connection as clean: its operation has ended.
    fn mark_clean(mut self) {
        self.well = true;
    }

    /// Ends the use after [`acquire`](Line::acquire): commits, if that began a transaction.
    pub(crate) async fn finish(self) -> Result<(), sqlx::Error> {
        if self.is_open() {
            return self.commit().await;
        }
        self.mark_clean();
        Ok(())
    }

    /// Ends the use after a statement failed: rolls back, if it was in a transaction.
    pub(crate) async fn give_up(self) -> Result<(), sqlx::Error> {
        if self.is_open() {
            return self.rollback().await;
        }
        self.mark_clean();
        Ok(())
    }

    pub(crate) async fn commit(mut self) -> Result<(), sqlx::Error> {
        DB::TransactionManager::commit(&mut self).await?;
        self.mark_clean();
        Ok(())
    }

    pub(crate) async fn rollback(mut self) -> Result<(), sqlx::Error> {
        if let Err(error) = DB::TransactionManager::rollback(&mut self).await
            && !leave_transaction::<DB>(&mut self).await
        {
            return Err(error);
        }
        self.mark_clean();
        Ok(())
    }

    /// Rolls back in the background, for callers that cannot wait. Closes the connection if that
    /// takes longer than the operation timeout.
    pub(crate) fn rollback_later(self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let patience = self.line.seat.patience;
        runtime.spawn(async move { tokio::time::timeout(patience, self.rollback()).await });
    }
}

/// Insert notifier of a database in a fleet. Its connection counts in the budget until it is
/// closed.
pub(super) struct FleetWatch {
    inner: Option<(Box<dyn InsertNotifier>, Lookout)>,
    closing: Arc<RwLock<()>>,
}

impl FleetWatch {
    fn watch(&mut self) -> &mut dyn InsertNotifier {
        &mut *self.inner.as_mut().expect(INNER).0
    }
}

#[async_trait]
impl InsertNotifier for FleetWatch {
    async fn is_ours(&mut self) -> Result<bool> {
        self.watch().is_ours().await
    }

    async fn arm(&mut self) -> Result<bool> {
        self.watch().arm().await
    }

    async fn disarm(&mut self) -> Result<()> {
        self.watch().disarm().await
    }

    async fn called(&mut self) -> Result<()> {
        self.watch().called().await
    }
}

impl Drop for FleetWatch {
    fn drop(&mut self) {
        let (Some((watch, lookout)), Ok(runtime)) = (self.inner.take(), Handle::try_current()) else {
            return;
        };
        let closing = self.closing.clone().try_read_owned();
        runtime.spawn(async move {
            let _ = tokio::time::timeout(CLOSING, watch.end()).await;
            drop((lookout, closing));
        });
    }
}

const INNER: &str = "present until dropped";

impl<DB: Dialect> Deref for Borrowed<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        &self.inner.as_ref().expect(INNER).0
    }
}

impl<DB: Dialect> DerefMut for Borrowed<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        &mut self.inner.as_mut().expect(INNER).0
    }
}

impl<DB: Dialect> Drop for Borrowed<DB> {
    fn drop(&mut self) {
        let Some((conn, ticket)) = self.inner.take() else { return };
        // A transaction that is still open would become part of the next use.
        let clean = self.well && DB::TransactionManager::get_transaction_depth(&conn) == 0;
        if clean && !self.line.is_closed() {
            self.line.idle().push(Idle { conn, ticket, since: Instant::now() });
            self.line.seat.budget.has_idle();
        } else if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(self.line.shut(conn, ticket));
        }
    }
}
