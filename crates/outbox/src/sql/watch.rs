//! Sleeping until something is written, on PostgreSQL.
//!
//! `NOTIFY` makes all commits that send one wait for each other, so writers send one only while somebody sleeps. Whether
//! somebody does, an advisory lock says: the one who sleeps holds it alone, and whoever writes tries to share it, without
//! waiting. One who gets a share keeps it to the end of the transaction, and as long as that is open nobody goes to sleep: so no
//! commit is missed. The trigger of `0006_node.sql` is the other half.

use async_trait::async_trait;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};

use super::names::Names;
use crate::error::Result;
use crate::store::Watch;

/// The first half of the key of the lock; the second is the table's number.
const ASLEEP: i64 = 1_819_047_777 << 32;
/// The same for the lock of the one who has the watch.
const WATCH: i64 = 1_819_047_778 << 32;

/// On a connection of its own, which holds the locks: they end with it.
pub(super) struct PgWatch {
    line: PgListener,
    table: i64,
    is_ours: bool,
}

impl PgWatch {
    pub(super) async fn open(options: PgConnectOptions, names: &Names) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
        let mut line = PgListener::connect_with(&pool).await?;
        // A new connection would not have our locks.
        line.eager_reconnect(false);
        let (table,): (i64,) = sqlx::query_as("SELECT $1::text::regclass::oid::bigint")
            .bind(names.events())
            .fetch_one(&mut line)
            .await?;
        line.listen(&format!("outbox_due_{table}")).await?;
        Ok(Self { line, table, is_ours: false })
    }

    async fn ask(&mut self, question: &'static str, lock: i64) -> Result<bool> {
        let (answer,): (bool,) =
            sqlx::query_as(question).bind(lock | self.table).fetch_one(&mut self.line).await?;
        Ok(answer)
    }
}

#[async_trait]
impl Watch for PgWatch {
    async fn is_ours(&mut self) -> Result<bool> {
        if !self.is_ours {
            self.is_ours = self.ask("SELECT pg_try_advisory_lock($1)", WATCH).await?;
        }
        Ok(self.is_ours)
    }

    async fn lie_down(&mut self) -> Result<bool> {
        self.ask("SELECT pg_try_advisory_lock($1)", ASLEEP).await
    }

    async fn get_up(&mut self) -> Result<()> {
        self.ask("SELECT pg_advisory_unlock($1)", ASLEEP).await?;
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
}
