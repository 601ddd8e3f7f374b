//! The environment of scenarios: the server, the amounts of work, the number of rounds.

use std::path::PathBuf;
use std::time::Duration;

use outbox::{Event, Outbox, OutboxBuilder};
use sqlx::{AssertSqlSafe, PgPool, Postgres};

use crate::peers::Peers;

/// Rows in a batch, the same for all contestants.
pub(crate) const BATCH: usize = 500;

/// Amount of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    Full,
    Quick,
    /// Only to check that scenarios run.
    Tiny,
}

/// The environment of scenarios.
pub(crate) struct Environment {
    pub(crate) database: String,
    pub(crate) rounds: usize,
    pub(crate) scale: Scale,
    /// The command `outbox`, built for release.
    pub(crate) relay: PathBuf,
    /// The other tools, if they are measured too.
    pub(crate) peers: Option<Peers>,
}

impl Environment {
    /// A count for a full run, a fifth of it for a quick one.
    pub(crate) fn count(&self, full: usize) -> usize {
        match self.scale {
            Scale::Full => full,
            Scale::Quick => full / 5,
            Scale::Tiny => (full / 500).max(1),
        }
    }

    /// A duration for a full run, a fifth of it for a quick one.
    pub(crate) fn time(&self, full: Duration) -> Duration {
        match self.scale {
            Scale::Full => full,
            Scale::Quick => full / 5,
            Scale::Tiny => full / 50,
        }
    }

    /// Creates an empty outbox in a table of this name, with at most this many connections.
    pub(crate) async fn outbox(&self, table: &str, connections: usize) -> anyhow::Result<Outbox<Postgres>> {
        let pool = self.pool(1).await?;
        let left = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND starts_with(tablename, $1)";
        for name in sqlx::query_scalar::<_, String>(left).bind(table).fetch_all(&pool).await? {
            sqlx::query(AssertSqlSafe(format!("DROP TABLE IF EXISTS {name} CASCADE"))).execute(&pool).await?;
        }
        let sequences = format!("DROP SEQUENCE IF EXISTS {table}_log_seq, {table}_by_aggregate CASCADE");
        sqlx::query(AssertSqlSafe(sequences)).execute(&pool).await?;
        let outbox = self.handle(table, connections).await?;
        outbox.migrate().await?;
        Ok(outbox)
    }

    /// Opens an existing outbox with another pool, as another process would.
    pub(crate) async fn handle(&self, table: &str, connections: usize) -> anyhow::Result<Outbox<Postgres>> {
        let builder = OutboxBuilder::new().table(table).max_connections(u32::try_from(connections)?);
        Ok(builder.postgres(&self.database).await?)
    }

    pub(crate) async fn pool(&self, connections: usize) -> anyhow::Result<PgPool> {
        let options = sqlx::postgres::PgPoolOptions::new().max_connections(u32::try_from(connections)?);
        Ok(options.connect(&self.database).await?)
    }

    /// Runs statements that prepare a scenario.
    pub(crate) async fn execute(&self, statements: &[&str]) -> anyhow::Result<()> {
        let pool = self.pool(1).await?;
        for statement in statements {
            sqlx::query(AssertSqlSafe(*statement)).execute(&pool).await?;
        }
        pool.close().await;
        Ok(())
    }

    /// Has the server write out its dirty pages, so that one measurement does not slow down the
    /// next.
    pub(crate) async fn settle(&self, table: &str) -> anyhow::Result<()> {
        // A server that tests share may have much to write out, and nothing is measured.
        if self.scale == Scale::Tiny {
            return Ok(());
        }
        self.execute(&[&format!("VACUUM ANALYZE {table}"), "CHECKPOINT"]).await
    }
}

/// The order of contestants in a round; each comes first in some round.
pub(crate) fn turns<T: Clone>(round: usize, of: &[T]) -> Vec<T> {
    let mut order = of.to_vec();
    order.rotate_left(round % of.len().max(1));
    order
}

/// The same order, then the reverse: a trend during a round affects all contestants equally.
pub(crate) fn turns_and_back<T: Clone>(round: usize, of: &[T]) -> Vec<T> {
    let there = turns(round, of);
    let back = there.clone().into_iter().rev();
    there.iter().cloned().chain(back).collect()
}

/// Backlog of a drain: large enough that starting and stopping a relay hardly matters.
pub(crate) fn backlog(env: &Environment) -> usize {
    env.count(150_000).min(100_000)
}

/// A payload of 256 bytes.
pub(crate) fn payload() -> serde_json::Value {
    serde_json::json!({ "order": 4711, "text": "x".repeat(232) })
}

/// Fills an outbox with events; with ordering keys if `keys` is not 0.
pub(crate) async fn fill(outbox: &Outbox<Postgres>, events: usize, keys: usize) -> anyhow::Result<()> {
    let payload = payload();
    for start in (0..events).step_by(1_000) {
        let batch = (start..events.min(start + 1_000)).map(|i| {
            let event = Event::new("bench").json(&payload);
            if keys == 0 { event } else { event.ordering_key(format!("key-{}", i % keys)) }
        });
        outbox.send_all(batch).await?;
    }
    Ok(())
}

/// Rate per second.
pub(crate) fn per_second(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_contestant_comes_first_in_some_round() {
        assert_eq!(turns(0, &["a", "b", "c"]), ["a", "b", "c"]);
        assert_eq!(turns(1, &["a", "b", "c"]), ["b", "c", "a"]);
        assert_eq!(turns(5, &["a", "b", "c"]), ["c", "a", "b"]);
    }

    #[test]
    fn a_payload_has_256_bytes() {
        assert_eq!(payload().to_string().len(), 256);
    }
}
