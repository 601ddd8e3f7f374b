//! Sleeping until something is written, on PostgreSQL.
//!
//! `NOTIFY` makes all commits that send one wait for each other, so writers send one only while somebody sleeps. Whether
//! somebody does, an advisory lock says: the one who sleeps holds it alone, and whoever writes tries to share it, without
//! waiting. One who gets a share keeps it to the end of the transaction, and as long as that is open nobody goes to sleep: so no
//! commit is missed. The trigger of `0006_node.sql` is the other half.

use async_trait::async_trait;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPool, PgPoolOptions};

use super::names::Names;
use crate::error::Result;
use crate::store::{AppendNotifications, AppendNotifier, InsertNotifier};

/// The table's number, and those of its locks: of the one who sleeps, as in the trigger, and of the one who has the watch.
const NUMBERS: &str = "SELECT c.oid::bigint, hashtextextended(n.nspname || '.' || c.relname, 11), \
     hashtextextended(n.nspname || '.' || c.relname, 12) \
     FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1::text::regclass";

/// On a connection of its own, which holds the locks: they end with it.
pub(super) struct PgWatch {
    line: PgListener,
    /// The pool of the one connection.
    pool: PgPool,
    /// Held while asleep.
    asleep: i64,
    /// Held by the one who has the watch.
    watch: i64,
    is_ours: bool,
}

impl PgWatch {
    pub(super) async fn open(options: PgConnectOptions, names: &Names) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
        let opened = Self::on_pool(&pool, names).await;
        if opened.is_err() {
            // Closed before the caller hears of it: a fleet counts connections.
            pool.close().await;
        }
        opened
    }

    async fn on_pool(pool: &PgPool, names: &Names) -> Result<Self> {
        let mut line = PgListener::connect_with(pool).await?;
        // A new connection would not have our locks.
        line.eager_reconnect(false);
        let (table, asleep, watch): (i64, i64, i64) =
            sqlx::query_as(NUMBERS).bind(names.events()).fetch_one(&mut line).await?;
        line.listen(&format!("outbox_due_{table}")).await?;
        Ok(Self { line, pool: pool.clone(), asleep, watch, is_ours: false })
    }

    async fn ask(&mut self, question: &'static str, lock: i64) -> Result<bool> {
        let (answer,): (bool,) = sqlx::query_as(question).bind(lock).fetch_one(&mut self.line).await?;
        Ok(answer)
    }
}

#[async_trait]
impl InsertNotifier for PgWatch {
    async fn is_ours(&mut self) -> Result<bool> {
        if !self.is_ours {
            self.is_ours = self.ask("SELECT pg_try_advisory_lock($1)", self.watch).await?;
        }
        Ok(self.is_ours)
    }

    async fn lie_down(&mut self) -> Result<bool> {
        self.ask("SELECT pg_try_advisory_lock($1)", self.asleep).await
    }

    async fn get_up(&mut self) -> Result<()> {
        self.ask("SELECT pg_advisory_unlock($1)", self.asleep).await?;
        Ok(())
    }

    async fn called(&mut self) -> Result<()> {
        match self.line.try_recv().await? {
            Some(_) => {
                // All that are there: one look serves them.
                while self.line.next_buffered().is_some() {}
                Ok(())
            }
            None => Err(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()).into()),
        }
    }

    async fn end(self: Box<Self>) {
        let Self { line, pool, .. } = *self;
        drop(line);
        pool.close().await;
    }
}

/// The log's number, those of its locks, this session's, whether the log has the trigger that notifies, and whether transactions
/// that append are prepared: those notify nothing.
const LOG_NUMBERS: &str = "SELECT c.oid::bigint, hashtextextended(n.nspname || '.' || c.relname, 13), \
     hashtextextended(n.nspname || '.' || c.relname, 14), pg_backend_pid()::bigint, \
     EXISTS (SELECT 1 FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = $2 AND t.tgenabled IN ('O', 'A')) \
     AND COALESCE(current_setting('outbox.two_phase', TRUE), '') <> 'on' \
     FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1::text::regclass";

/// Notifications of appends to the log, on a connection of its own, which holds the locks.
///
/// Each relay leads other publishers, so all of them have to hear of an append. While the relay that has the watch is awake, writers
/// do not notify: it passes on that there may be something each time it asks for calls.
pub(super) struct PgEar {
    line: PgListener,
    /// Where relays and the library notify of appends.
    channel: String,
    /// Held by the relay for which writers notify.
    asleep: i64,
    /// Held by the relay that may ask them to.
    watch: i64,
    is_ours: bool,
    session: i64,
    can_sleep: bool,
}

impl PgEar {
    pub(super) async fn open(options: PgConnectOptions, names: &Names, channel: &str) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
        let mut line = PgListener::connect_with(&pool).await?;
        // A new connection would not have our locks.
        line.eager_reconnect(false);
        let (log, trigger) = (names.fill("log"), format!("{}_log_written", names.table));
        let (table, asleep, watch, session, can_sleep): (i64, i64, i64, i64, bool) =
            sqlx::query_as(LOG_NUMBERS).bind(log).bind(trigger).fetch_one(&mut line).await?;
        line.listen(channel).await?;
        line.listen(&format!("outbox_due_{table}")).await?;
        let channel = channel.to_owned();
        Ok(Self { line, channel, asleep, watch, is_ours: false, session, can_sleep })
    }
}

#[async_trait]
impl AppendNotifier for PgEar {
    async fn heard(&mut self) -> Result<()> {
        loop {
            match self.line.try_recv().await? {
                Some(word) if i64::from(word.process_id()) == self.session => {}
                Some(_) => {
                    // All that are there: one look serves them.
                    while self.line.next_buffered().is_some() {}
                    return Ok(());
                }
                None => return Err(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()).into()),
            }
        }
    }

    async fn ask_for_calls(&mut self) -> Result<AppendNotifications> {
        if !self.can_sleep {
            return Ok(AppendNotifications::Unsupported);
        }
        if !self.is_ours {
            let ask = sqlx::query_as("SELECT pg_try_advisory_lock($1)").bind(self.watch);
            (self.is_ours,) = ask.fetch_one(&mut self.line).await?;
        }
        if !self.is_ours {
            return Ok(AppendNotifications::ByAnother);
        }
        let ask = sqlx::query_as("SELECT pg_try_advisory_lock($1), pg_notify($2, '')::text");
        let ask = ask.bind(self.asleep).bind(&self.channel);
        let (armed, _): (bool, Option<String>) = ask.fetch_one(&mut self.line).await?;
        Ok(if armed { AppendNotifications::Armed } else { AppendNotifications::NotYet })
    }

    async fn end_calls(&mut self) -> Result<()> {
        sqlx::query("SELECT pg_advisory_unlock($1)").bind(self.asleep).execute(&mut self.line).await?;
        Ok(())
    }
}
