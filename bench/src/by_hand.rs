//! The baseline of a relay: loops of plain SQL that deliver each event at least once and do nothing
//! else. They have no retries, ordering keys, delayed events or verdicts, and their handler only
//! reads the bytes.

use std::time::{Duration, Instant};

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgPool, Row as _};
use tokio::task::JoinSet;

use crate::environment::{BATCH, Environment};

/// How a loop excludes other loops from its rows.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Claim {
    /// No exclusion: there is one loop. Reads a batch, deletes it.
    None,
    /// Row locks: reads, delivers and deletes in one transaction, which is open as long as the
    /// handler runs.
    Locked,
    /// A lease in the row: the claim outlives its transaction, as the outbox's does.
    Leased,
}

impl Claim {
    fn take(self, table: &str) -> String {
        let due = format!(
            "FROM {table} WHERE status IN (0, 2) AND available_at <= now() ORDER BY available_at, seq LIMIT {BATCH}"
        );
        match self {
            Self::None => format!("SELECT event_id, payload::text {due}"),
            Self::Locked => format!("SELECT event_id, payload::text {due} FOR UPDATE SKIP LOCKED"),
            Self::Leased => {
                let due = due.replace("ORDER", "AND (locked_until IS NULL OR locked_until < now()) ORDER");
                format!(
                    "UPDATE {table} SET locked_by = 'by hand', locked_until = now() + interval '1 minute', \
                     claims = claims + 1 \
                     WHERE event_id = ANY(ARRAY(SELECT event_id {due} FOR UPDATE SKIP LOCKED)) \
                     RETURNING event_id, payload::text"
                )
            }
        }
    }
}

/// Empties a table by this many loops, with a connection each; returns the duration.
pub(crate) async fn drain(
    env: &Environment,
    table: &str,
    claim: Claim,
    loops: usize,
) -> anyhow::Result<Duration> {
    let mut pools = Vec::new();
    for _ in 0..loops {
        pools.push(env.pool(1).await?);
    }
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for pool in pools {
        let (take, delete) = (claim.take(table), format!("DELETE FROM {table} WHERE event_id = ANY($1)"));
        tasks.spawn(async move {
            while batch(&pool, claim, &take, &delete).await? {}
            anyhow::Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(began.elapsed())
}

/// Takes, delivers and deletes a batch; returns whether there was one.
async fn batch(pool: &PgPool, claim: Claim, take: &str, delete: &str) -> anyhow::Result<bool> {
    if claim == Claim::Leased {
        let ids = delivered(&sqlx::query(AssertSqlSafe(take)).fetch_all(pool).await?);
        sqlx::query(AssertSqlSafe(delete)).bind(&ids).execute(pool).await?;
        return Ok(!ids.is_empty());
    }
    let mut tx = pool.begin().await?;
    let ids = delivered(&sqlx::query(AssertSqlSafe(take)).fetch_all(&mut *tx).await?);
    sqlx::query(AssertSqlSafe(delete)).bind(&ids).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(!ids.is_empty())
}

/// The handler.
fn delivered(rows: &[PgRow]) -> Vec<String> {
    let mut bytes = 0;
    let ids = rows.iter().map(|row| {
        bytes += row.get::<&str, _>(1).len();
        row.get::<String, _>(0)
    });
    let ids = ids.collect();
    std::hint::black_box(bytes);
    ids
}
