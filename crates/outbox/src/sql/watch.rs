//! Waits for notifications of inserts and appends, on PostgreSQL.
//!
//! `NOTIFY` serializes all commits that send one, so writers notify only while a relay waits. An
//! advisory lock shows that: a waiting relay holds it exclusively, and a writer tries to share it,
//! without waiting. A writer that gets a share keeps it to the end of its transaction, and while
//! that is open no relay can start to wait: so no commit is missed. The trigger of `0006_node.sql`
//! is the other half.

use async_trait::async_trait;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPool, PgPoolOptions};

use super::names::Names;
use crate::error::Result;
use crate::store::{AppendNotifications, AppendNotifier, InsertNotifier};

/// Oid of the table, and the keys of its locks: the one of the waiting relay, as in the trigger,
/// and the one of the relay that may wait.
const NUMBERS: &str = "SELECT c.oid::bigint, hashtextextended(n.nspname || '.' || c.relname, 11), \
     hashtextextended(n.nspname || '.' || c.relname, 12) \
     FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1::text::regclass";

/// Insert notifier on a connection of its own, which holds the locks: they end with it.
pub(super) struct PgWatch {
    line: PgListener,
    /// Pool of the one connection.
    pool: PgPool,
    /// Lock that is held while the relay waits.
    asleep: i64,
    /// Lock that is held by the one relay that may wait.
    watch: i64,
    is_ours: bool,
}

impl PgWatch {
    pub(super) async fn open(options: PgConnectOptions, names: &Names) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
        let opened = Self::on_pool(&pool, names).await;
        if opened.is_err() {
            // Closed before the error is returned: a fleet counts connections.
            pool.close().await;
        }
        opened
    }

    async fn on_pool(pool: &PgPool, names: &Names) -> Result<Self> {
        let mut line = PgListener::connect_with(pool).await?;
        // A new connection would not hold the locks.
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

    async fn arm(&mut self) -> Result<bool> {
        self.ask("SELECT pg_try_advisory_lock($1)", self.asleep).await
    }

    async fn disarm(&mut self) -> Result<()> {
        self.ask("SELECT pg_advisory_unlock($1)", self.asleep).await?;
        Ok(())
    }

    async fn called(&mut self) -> Result<()> {
        match self.line.try_recv().await? {
            Some(_) => {
                // Drops all buffered notifications: one poll serves them all.
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

/// Oid of the log, the keys of its locks, the pid of this session, and whether writers can notify:
/// the log has the enabled trigger, and appending transactions are not prepared ones, which cannot
/// notify.
const LOG_NUMBERS: &str = "SELECT c.oid::bigint, hashtextextended(n.nspname || '.' || c.relname, 13), \
     hashtextextended(n.nspname || '.' || c.relname, 14), pg_backend_pid()::bigint, \
     EXISTS (SELECT 1 FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = $2 AND t.tgenabled IN ('O', 'A')) \
     AND COALESCE(current_setting('outbox.two_phase', TRUE), '') <> 'on' \
     FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1::text::regclass";

/// Notifications of appends to the log, on a connection of its own, which holds the locks.
///
/// Each relay leads other publishers, so all of them need to be notified of an append. While the
/// relay that holds the lock `watch` is not waiting, writers do not notify: that relay notifies the
/// others of possible appends each time it asks for notifications.
pub(super) struct PgEar {
    line: PgListener,
    /// Channel on which relays and the library notify of appends.
    channel: String,
    /// Lock of the relay for which writers notify.
    asleep: i64,
    /// Lock of the relay that may ask writers to notify.
    watch: i64,
    is_ours: bool,
    session: i64,
    can_sleep: bool,
}

impl PgEar {
    pub(super) async fn open(options: PgConnectOptions, names: &Names, channel: &str) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
        let mut line = PgListener::connect_with(&pool).await?;
        // A new connection would not hold the locks.
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
                    // Drops all buffered notifications: one poll serves them all.
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
