//! Reuses a connection for the next caller instead of returning it to its pool at once.
//!
//! sqlx pings a connection when it is returned to its pool, and again when it is acquired. These
//! are two of the six round trips of a transaction with two statements. A connection that has just
//! been used is alive; so it is kept here for a few milliseconds, and returned to its pool if no
//! caller takes it.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use sqlx::pool::{PoolConnection, PoolOptions};
use sqlx::{Connection as _, Pool, SqlSafeStr as _};
use sqlx_core::transaction::TransactionManager as _;

use super::begin::Finished;
use super::dialect::Dialect;
use super::sessions::Sessions;

/// How long a connection is kept. A caller that asks the pool itself waits no longer than this for
/// it.
const WARM: Duration = Duration::from_millis(3);

/// How long a connection may stay out of its pool while it is reused. Only the pool replaces old
/// connections.
const OUTSIDE: Duration = Duration::from_secs(60);

/// How long a connection may have been idle before it is pinged.
const FRESH: Duration = Duration::from_secs(1);

/// Time limit for the recovery of a connection that was dropped in use, where the driver is not
/// cancel-safe. It occupies its place in the pool for so long, and is closed after that.
const RECOVERY: Duration = Duration::from_secs(1);

/// Options of a pool that pings a connection only if it was idle for a while. sqlx pings each time:
/// one more round trip for every statement and every transaction.
pub(super) fn pool<DB: Dialect>(max_connections: u32) -> PoolOptions<DB> {
    let pool = PoolOptions::new().max_connections(max_connections).test_before_acquire(false);
    let pool = pool.before_acquire(|conn: &mut DB::Connection, idle| {
        Box::pin(async move {
            if idle.idle_for >= FRESH {
                conn.ping().await?;
            }
            Ok(true)
        })
    });
    pool.after_release(|conn: &mut DB::Connection, _| {
        Box::pin(async move {
            if depth::<DB>(conn) > 0 {
                // A rollback that began when the transaction was dropped ends before the ping is
                // answered.
                conn.ping().await?;
            }
            Ok(leave_transaction::<DB>(conn).await)
        })
    })
}

fn depth<DB: Dialect>(conn: &DB::Connection) -> usize {
    DB::TransactionManager::get_transaction_depth(conn)
}

/// Rolls back a transaction that is still open according to the driver. False: the connection has
/// to be closed, because its transaction state is unknown. The next transaction would become part
/// of the open one, or never begin.
pub(super) async fn leave_transaction<DB: Dialect>(conn: &mut DB::Connection) -> bool {
    while depth::<DB>(conn) > 0 {
        let before = depth::<DB>(conn);
        let rolled_back = match DB::TransactionManager::rollback(conn).await {
            Ok(()) => true,
            Err(_) => {
                DB::reopen_transaction(conn, before).await
                    && DB::TransactionManager::rollback(conn).await.is_ok()
            }
        };
        if !rolled_back || depth::<DB>(conn) >= before {
            return false;
        }
    }
    true
}

/// Statements that a transaction begins with.
#[derive(Default)]
pub(crate) struct First {
    /// A statement that is sent before the transaction begins.
    pub(crate) before: Option<&'static str>,
    /// Statements of the transaction, without values. They are sent together with `BEGIN`, so they
    /// cost no round trip of their own.
    pub(crate) script: Option<String>,
}

/// Begins a transaction, and runs the script in it. After an error the connection must be closed:
/// the server may be in a transaction.
pub(super) async fn begin_with<DB: Dialect>(
    conn: &mut DB::Connection,
    statement: Option<&'static str>,
    script: &Option<String>,
) -> Result<(), sqlx::Error> {
    let statement = match script {
        Some(script) => {
            let begin = statement.unwrap_or("BEGIN");
            Some(sqlx::AssertSqlSafe(format!("{begin}; {script}")).into_sql_str())
        }
        None => statement.map(sqlx::SqlSafeStr::into_sql_str),
    };
    DB::TransactionManager::begin(conn, statement).await
}

/// How the transactions of a pool begin.
pub(crate) struct Begin {
    pub(crate) sessions: Sessions,
    /// The statement for shared sessions; `None`: the default of the database.
    pub(crate) shared: Option<&'static str>,
}

impl Begin {
    /// Without settings, for connections of the application.
    pub(crate) fn plain(sessions: &Sessions) -> Self {
        Self { sessions: sessions.clone(), shared: None }
    }

    fn statement<DB: Dialect>(&self) -> Option<&'static str> {
        self.sessions.begin(self.shared).or(DB::BEGIN)
    }
}

/// A pool, and its connections that were used a moment ago.
#[doc(hidden)]
pub struct Warm<DB: Dialect> {
    pool: Pool<DB>,
    /// How many connections may be kept here.
    room: usize,
    inner: Mutex<ReuseState<DB>>,
    begin: Begin,
}

struct ReuseState<DB: Dialect> {
    /// Ordered by last use, the most recent last.
    waiting: Vec<Waiting<DB>>,
    /// Whether a task runs that returns these connections to the pool.
    watched: bool,
}

struct Waiting<DB: Dialect> {
    conn: PoolConnection<DB>,
    since: Instant,
    /// When the connection was acquired from its pool.
    out: Instant,
}

impl<DB: Dialect> Warm<DB> {
    /// For a pool of the store. Half of its connections stay for callers of the pool itself.
    pub(crate) fn new(pool: Pool<DB>, begin: Begin) -> Arc<Self> {
        let room = pool.options().get_max_connections() as usize / 2;
        Self::with_room(pool, room, begin)
    }

    /// For a pool of the application, which may observe each returned connection: none is kept
    /// here.
    pub(crate) fn never(pool: Pool<DB>, begin: Begin) -> Arc<Self> {
        Self::with_room(pool, 0, begin)
    }

    fn with_room(pool: Pool<DB>, room: usize, begin: Begin) -> Arc<Self> {
        Arc::new(Self {
            pool,
            room,
            inner: Mutex::new(ReuseState { waiting: Vec::new(), watched: false }),
            begin,
        })
    }

    fn inner(&self) -> MutexGuard<'_, ReuseState<DB>> {
        self.inner.lock().expect("no thread panics while it holds this lock")
    }

    pub(crate) fn pool(&self) -> &Pool<DB> {
        &self.pool
    }

    /// Returns a connection for one or more statements, inside a transaction if its session is
    /// shared.
    pub(crate) async fn acquire(self: &Arc<Self>) -> Result<Used<DB>, sqlx::Error> {
        if self.begin.sessions.are_shared() { self.begin(First::default()).await } else { self.take().await }
    }

    async fn take(self: &Arc<Self>) -> Result<Used<DB>, sqlx::Error> {
        let warm = self.inner().waiting.pop();
        match warm {
            Some(Waiting { conn, out, .. }) => {
                Ok(Used { from: self.clone(), conn: Some(conn), out, open: false })
            }
            None => self.acquire_clean().await,
        }
    }

    /// Acquires a connection on which no transaction is open. A pool of the application may also
    /// hold connections that were returned in the middle of a transaction.
    async fn acquire_clean(self: &Arc<Self>) -> Result<Used<DB>, sqlx::Error> {
        loop {
            let conn = self.pool.acquire().await?;
            let mut used = Used { from: self.clone(), conn: Some(conn), out: Instant::now(), open: false };
            if leave_transaction::<DB>(&mut used).await {
                return Ok(used);
            }
            used.close();
        }
    }

    /// Begins a transaction that is going to write. May be cancelled at any time.
    ///
    /// A `BEGIN` that is dropped half way would leave its connection inside a transaction that the
    /// driver does not know of, and the next statement would become part of it. So a cancelled
    /// `BEGIN` is finished in the background and rolled back.
    pub(crate) async fn begin(self: &Arc<Self>, first: First) -> Result<Used<DB>, sqlx::Error> {
        let pool = self.clone();
        Finished::new(async move { pool.begin_on_live(&first).await }).await
    }

    async fn begin_on_live(self: &Arc<Self>, first: &First) -> Result<Used<DB>, sqlx::Error> {
        // A connection that broke a moment ago fails now. There are at most as many of them as
        // connections.
        let mut broken = self.pool.size();
        loop {
            let mut used = self.take().await?;
            match used.begin(first).await {
                Ok(()) => return Ok(used),
                Err(error) if broken > 0 && is_lost(&error) => broken -= 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Keeps a connection, if the limit allows it.
    fn keep(self: &Arc<Self>, conn: PoolConnection<DB>, out: Instant) {
        if self.room == 0 || self.pool.is_closed() || out.elapsed() > OUTSIDE {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut inner = self.inner();
        if inner.waiting.len() < self.room {
            inner.waiting.push(Waiting { conn, since: Instant::now(), out });
            if !std::mem::replace(&mut inner.watched, true) {
                runtime.spawn(self.clone().watch());
            }
        }
    }

    /// Returns connections that no caller took, until none is left.
    async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(WARM).await;
            let mut inner = self.inner();
            let cold = inner.waiting.partition_point(|waiting| waiting.since.elapsed() >= WARM);
            let cold: Vec<_> = inner.waiting.drain(..cold).collect();
            inner.watched = !inner.waiting.is_empty();
            let watched = inner.watched;
            drop(inner);
            drop(cold);
            if !watched {
                return;
            }
        }
    }

    pub(crate) async fn close(&self) {
        // Once the pool is closed, no connection is kept.
        let closing = self.pool.close();
        let waiting = std::mem::take(&mut self.inner().waiting);
        drop(waiting);
        closing.await;
    }
}

impl<DB: Dialect> Drop for Warm<DB> {
    fn drop(&mut self) {
        if tokio::runtime::Handle::try_current().is_ok() {
            return;
        }
        // A pool takes connections back in a task. Without a runtime the connections are only
        // closed.
        let inner = self.inner.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for Waiting { conn, .. } in inner.waiting.drain(..) {
            drop(conn.leak());
        }
    }
}

/// Whether the error is the loss of the connection, and no other error.
fn is_lost(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) => true,
        // Terminated by the server: PostgreSQL sends the reason as the answer to the next
        // statement.
        sqlx::Error::Database(error) => error.code().is_some_and(|code| code.starts_with("57P")),
        _ => false,
    }
}

/// A connection in use, or a transaction on it. Drop rolls the transaction back.
pub(crate) struct Used<DB: Dialect> {
    from: Arc<Warm<DB>>,
    conn: Option<PoolConnection<DB>>,
    out: Instant,
    open: bool,
}

impl<DB: Dialect> Used<DB> {
    async fn begin(&mut self, first: &First) -> Result<(), sqlx::Error> {
        if let Some(statement) = first.before {
            DB::script(self, statement.to_owned()).await?;
        }
        let statement = self.from.begin.statement::<DB>();
        if let Err(error) = begin_with::<DB>(self, statement, &first.script).await {
            // After a failed script the server is in a transaction that the driver does not know
            // of.
            self.close();
            return Err(error);
        }
        self.open = true;
        Ok(())
    }

    pub(crate) async fn commit(mut self) -> Result<(), sqlx::Error> {
        DB::TransactionManager::commit(&mut self).await?;
        self.open = false;
        self.mark_clean();
        Ok(())
    }

    pub(crate) async fn rollback(mut self) -> Result<(), sqlx::Error> {
        if let Err(error) = DB::TransactionManager::rollback(&mut self).await
            && !leave_transaction::<DB>(&mut self).await
        {
            self.close();
            return Err(error);
        }
        self.open = false;
        self.mark_clean();
        Ok(())
    }

    /// Finishes the use of a connection from [`acquire`](Warm::acquire): commits, if a transaction
    /// is open.
    pub(crate) async fn finish(self) -> Result<(), sqlx::Error> {
        if self.open {
            return self.commit().await;
        }
        self.mark_clean();
        Ok(())
    }

    /// Finishes the use of a connection after a failed statement: rolls back, if a transaction is
    /// open.
    pub(crate) async fn give_up(self) -> Result<(), sqlx::Error> {
        if self.open {
            return self.rollback().await;
        }
        self.mark_clean();
        Ok(())
    }

    /// Closes the connection in the background.
    fn close(&mut self) {
        if let Some(mut conn) = self.conn.take() {
            conn.close_on_drop();
        }
    }

    /// Marks the connection as clean and keeps it for reuse. Otherwise it returns to its pool,
    /// which checks whether it is in the middle of a statement.
    fn mark_clean(mut self) {
        // The next user would inherit an open transaction.
        let clean = |conn: &PoolConnection<DB>| depth::<DB>(conn) == 0;
        if let Some(conn) = self.conn.take_if(|conn| clean(conn)) {
            self.from.keep(conn, self.out);
        }
    }
}

const CONN: &str = "the connection is taken only when it is returned";

impl<DB: Dialect> Deref for Used<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        self.conn.as_ref().expect(CONN)
    }
}

impl<DB: Dialect> DerefMut for Used<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        self.conn.as_mut().expect(CONN)
    }
}

impl<DB: Dialect> Drop for Used<DB> {
    fn drop(&mut self) {
        let Some(mut conn) = self.conn.take() else { return };
        if DB::CANCEL_SAFE {
            if self.open {
                // The pool, to which the connection returns now, completes the rollback.
                DB::TransactionManager::start_rollback(&mut conn);
            }
            return;
        }
        // Dropped after an error or in the middle of a statement.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(recover::<DB>(conn))),
            Err(_) => conn.close_on_drop(),
        }
    }
}

/// Rolls back what a caller left open, and returns the connection to its pool if it can be used
/// again. Otherwise closes it, and the server rolls back.
async fn recover<DB: Dialect>(mut conn: PoolConnection<DB>) {
    let usable = async { leave_transaction::<DB>(&mut conn).await && DB::is_in_sync(&mut conn).await };
    if !matches!(tokio::time::timeout(RECOVERY, usable).await, Ok(true)) {
        conn.close_on_drop();
    }
}
