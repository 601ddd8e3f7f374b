//! The source of a store's connections: its own pools, or the shared pool of a fleet.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use sqlx::Pool;

use super::budget::Permit;
use super::dialect::Dialect;
use super::line::{Borrowed, Line};
use super::warm::{First, Used, Warm};
use crate::error::Result;

/// Source of connections.
#[doc(hidden)]
pub enum Source<DB: Dialect> {
    /// A pool of this store, or of the application.
    Pool(Arc<Warm<DB>>),
    /// The shared pool of a database in a fleet. Every caller needs a permit.
    Line(Arc<Line<DB>>),
}

impl<DB: Dialect> Clone for Source<DB> {
    fn clone(&self) -> Self {
        match self {
            Source::Pool(pool) => Source::Pool(pool.clone()),
            Source::Line(line) => Source::Line(line.clone()),
        }
    }
}

impl<DB: Dialect> Source<DB> {
    /// Returns a connection for one or more statements, inside a transaction if its session is
    /// shared.
    pub(crate) async fn acquire(&self) -> Result<Conn<DB>, sqlx::Error> {
        Ok(match self {
            Source::Pool(pool) => Conn::Pool(pool.acquire().await?),
            Source::Line(line) => Conn::Line(line.acquire().await?),
        })
    }

    /// Begins a transaction of the application.
    pub(crate) async fn begin_for_user(&self) -> Result<Work<'static, DB>> {
        match self {
            Source::Pool(pool) => Ok(Work::Pool(pool.begin(First::default()).await?)),
            Source::Line(line) => begin_on_line(line, line.seat.acquire().await?).await,
        }
    }

    /// Begins the transaction of a handler, which ends with the settlement of its event.
    pub(crate) async fn begin_for_handler(&self) -> Result<Work<'static, DB>> {
        match self {
            Source::Pool(pool) => {
                let first = First { before: DB::BEFORE_HANDLER, script: None };
                Ok(Work::Pool(pool.begin(first).await?))
            }
            Source::Line(line) => begin_on_line(line, line.seat.acquire_for_handler().await?).await,
        }
    }

    /// The pool itself; in a fleet, a pool that the fleet does not count.
    pub(crate) fn pool(&self) -> &Pool<DB> {
        match self {
            Source::Pool(pool) => pool.pool(),
            Source::Line(line) => line.pool(),
        }
    }

    pub(crate) async fn close(&self) {
        match self {
            Source::Pool(pool) => pool.close().await,
            Source::Line(line) => line.close().await,
        }
    }
}

/// Begins a transaction on a database of a fleet. The transaction keeps the permit until its end.
async fn begin_on_line<DB: Dialect>(line: &Arc<Line<DB>>, permit: Permit) -> Result<Work<'static, DB>> {
    let seat = &line.seat;
    let Ok(begun) = tokio::time::timeout(seat.patience, line.begin(None)).await else {
        let reason = format!("no answer within {:?}", seat.patience);
        seat.is_in_trouble(&reason);
        return Err(seat.unavailable(reason));
    };
    let begun = begun?;
    seat.is_well();
    Ok(Work::Line(begun.with(permit)))
}

/// A connection in use.
pub(crate) enum Conn<DB: Dialect> {
    Pool(Used<DB>),
    Line(Borrowed<DB>),
}

impl<DB: Dialect> Conn<DB> {
    /// Finishes the use of the connection, and commits if its session is shared. A fleet closes a
    /// connection that is dropped without this call, because it may be in the middle of a
    /// statement.
    pub(crate) async fn finish(self) -> Result<(), sqlx::Error> {
        match self {
            Conn::Pool(used) => used.finish().await,
            Conn::Line(borrowed) => borrowed.finish().await,
        }
    }

    /// Finishes the use of the connection after a failed statement.
    pub(crate) async fn give_up(self) -> Result<(), sqlx::Error> {
        match self {
            Conn::Pool(used) => used.give_up().await,
            Conn::Line(borrowed) => borrowed.give_up().await,
        }
    }
}

impl<DB: Dialect> Deref for Conn<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        match self {
            Conn::Pool(conn) => conn,
            Conn::Line(conn) => conn,
        }
    }
}

impl<DB: Dialect> DerefMut for Conn<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        match self {
            Conn::Pool(conn) => conn,
            Conn::Line(conn) => conn,
        }
    }
}

/// A transaction. Drop rolls it back, unless it is bound.
pub(crate) enum Work<'c, DB: Dialect> {
    /// Begun by the application.
    Sqlx(sqlx::Transaction<'c, DB>),
    /// Begun by the application, which also ends it.
    Bound(&'c mut DB::Connection),
    Pool(Used<DB>),
    Line(Borrowed<DB>),
}

impl<DB: Dialect> Work<'_, DB> {
    /// Whether the application ends the transaction. Neither [`commit`](Self::commit) nor
    /// [`rollback`](Self::rollback) has an effect on it, nor a drop.
    pub(crate) fn is_bound(&self) -> bool {
        matches!(self, Work::Bound(_))
    }

    pub(crate) async fn commit(self) -> Result<(), sqlx::Error> {
        match self {
            Work::Sqlx(tx) => tx.commit().await,
            Work::Bound(_) => Ok(()),
            Work::Pool(used) => used.commit().await,
            Work::Line(borrowed) => borrowed.commit().await,
        }
    }

    pub(crate) async fn rollback(self) -> Result<(), sqlx::Error> {
        match self {
            Work::Sqlx(tx) => tx.rollback().await,
            Work::Bound(_) => Ok(()),
            Work::Pool(used) => used.rollback().await,
            Work::Line(borrowed) => borrowed.rollback().await,
        }
    }

    /// Rolls back in the background.
    pub(crate) fn abandon(self) {
        if let Work::Line(borrowed) = self {
            borrowed.rollback_later();
        }
    }
}

impl<'c, DB: Dialect> From<sqlx::Transaction<'c, DB>> for Work<'c, DB> {
    fn from(tx: sqlx::Transaction<'c, DB>) -> Self {
        Work::Sqlx(tx)
    }
}

impl<DB: Dialect> Deref for Work<'_, DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        match self {
            Work::Sqlx(tx) => tx,
            Work::Bound(conn) => conn,
            Work::Pool(used) => used,
            Work::Line(conn) => conn,
        }
    }
}

impl<DB: Dialect> DerefMut for Work<'_, DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        match self {
            Work::Sqlx(tx) => tx,
            Work::Bound(conn) => conn,
            Work::Pool(used) => used,
            Work::Line(conn) => conn,
        }
    }
}
