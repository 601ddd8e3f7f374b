//! Creates and upgrades the tables.
//!
//! A statement that alters a table waits for every transaction that uses the table, and later
//! writers wait behind the statement. So a migration waits for a lock only for a moment, rolls
//! back, and tries again after a pause in which writers get through.

use std::time::Duration;

use tokio::time::Instant;

use super::begin::begin_on;
use super::dialect::{Database, Dialect, Value};
use super::names::render;
use super::statements as sql;
use super::store::SqlStore;
use crate::error::{Error, Result};
use crate::store::Store as _;

/// A migration fails if a lock is not free for this long.
const PATIENCE: Duration = Duration::from_secs(300);
/// Initial pause after a lock was not free.
const PAUSE: Duration = Duration::from_millis(500);
/// Maximum pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// Version of the tables that this build creates.
pub(super) fn newest_version<DB: Dialect>() -> i64 {
    i64::try_from(DB::MIGRATIONS.len()).unwrap_or(i64::MAX)
}

impl<DB: Database> SqlStore<DB> {
    pub(super) async fn migrate_patiently(&self) -> Result<()> {
        until_locked(self.name(), || self.try_to_migrate()).await
    }

    /// Migrates in one transaction, where the database supports that. False: a lock was not free.
    async fn try_to_migrate(&self) -> Result<bool> {
        let names = self.renderer().names();
        let mut tx = begin_on(&self.pools.write).await?;
        let migrated = match DB::lock_migrations(&mut tx, names).await {
            Ok(true) => {
                let migrated = self.migrate_in(&mut tx).await;
                let unlocked = DB::unlock_migrations(&mut tx, names).await;
                migrated.and(unlocked).map(|()| true)
            }
            not_locked => not_locked,
        };
        match migrated {
            Ok(true) => {
                tx.commit().await?;
                Ok(true)
            }
            Ok(false) => {
                tx.rollback().await?;
                Ok(false)
            }
            Err(Error::Database(error)) if DB::is_lock_timeout(error.inner()) => {
                tx.rollback().await?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    async fn migrate_in(&self, conn: &mut DB::Connection) -> Result<()> {
        let known = newest_version::<DB>();
        DB::script(conn, self.render(sql::MAKE_VERSION).text.to_string()).await?;
        let rows = DB::fetch(conn, self.render(sql::SEE_VERSION), Vec::new()).await?;
        let found = rows.first().map(|row| DB::int(row, 0)).transpose()?.flatten().unwrap_or(0);
        if found > known {
            return Err(Error::SchemaTooNew { found, known });
        }
        if found < known {
            let names = self.renderer().names();
            let scripts = DB::migrations(names)[found as usize..].iter().filter(|script| !script.is_empty());
            for script in scripts {
                let ran = DB::script(conn, render(script, names, &DB::fragment)).await;
                match ran {
                    Err(e) if DB::is_already_there(&e) => {}
                    ran => drop(ran?),
                }
            }
            DB::run(conn, self.render(sql::CLEAR_VERSION), Vec::new()).await?;
            DB::run(conn, self.render(sql::PUT_VERSION), vec![Value::Int(known)]).await?;
            tracing::info!(store = self.name(), from = found, to = known, "migrated the outbox tables");
        }
        if !DB::create_order_trigger(conn, self.renderer().names()).await? {
            tracing::warn!(
                store = self.name(),
                "the server refuses the trigger that keeps plain SQL writers of one ordering key in order \
                 (with a binary log it requires log_bin_trust_function_creators = 1; TiDB has no triggers). Events that \
                 this library writes are in order without the trigger. If possible, permit the trigger and migrate again"
            );
        }
        Ok(())
    }
}

/// Repeats an attempt until it gets its locks, for [`PATIENCE`] at most.
async fn until_locked<F: Future<Output = Result<bool>>>(store: &str, attempt: impl Fn() -> F) -> Result<()> {
    let (begun, mut pause) = (Instant::now(), PAUSE);
    while !attempt().await? {
        if begun.elapsed() + pause > PATIENCE {
            let text = format!(
                "the outbox tables were not migrated: a lock that the migration needs was not free for {} s. \
                 End the transactions that use the tables, or the migration that runs elsewhere, and migrate again",
                PATIENCE.as_secs()
            );
            return Err(Error::Store(text.into()));
        }
        tracing::warn!(store, "migration waits for a lock on the outbox tables; next attempt in {pause:?}");
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_is_free_later_is_waited_for() {
        let attempts = AtomicU32::new(0);
        let attempt = || async { Ok(attempts.fetch_add(1, Ordering::Relaxed) == 3) };
        until_locked("s", attempt).await.unwrap();
        assert_eq!(attempts.into_inner(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_is_never_free_is_an_error_after_some_minutes() {
        let begun = tokio::time::Instant::now();
        let error = until_locked("s", || async { Ok(false) }).await.unwrap_err().to_string();
        assert!(error.contains("not free for 300 s") && error.contains("migrate again"), "{error}");
        let waited = begun.elapsed();
        assert!((PATIENCE - LONGEST_PAUSE..=PATIENCE).contains(&waited), "{waited:?}");
    }
}
