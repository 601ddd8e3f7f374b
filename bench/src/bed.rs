//! Where scenarios run: the server, how much of everything, how often.

use std::path::PathBuf;
use std::time::Duration;

use outbox::{Event, Outbox, OutboxBuilder};
use sqlx::{AssertSqlSafe, PgPool, Postgres};

use crate::peers::Peers;

/// How many rows a batch has, ours and everybody's.
pub(crate) const BATCH: usize = 500;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    Full,
    Quick,
    /// Only to see that it runs.
    Tiny,
}

/// Where scenarios run.
pub(crate) struct Bed {
    pub(crate) database: String,
    pub(crate) rounds: usize,
    pub(crate) scale: Scale,
    /// The command `outbox`, built for release.
    pub(crate) relay: PathBuf,
    /// The other tools, if they are to stand beside ours.
    pub(crate) peers: Option<Peers>,
}

impl Bed {
    /// So many of them in a full run, a fifth in a quick one.
    pub(crate) fn count(&self, full: usize) -> usize {
        match self.scale {
            Scale::Full => full,
            Scale::Quick => full / 5,
            Scale::Tiny => (full / 500).max(1),
        }
    }

    /// So long in a full run, a fifth of it in a quick one.
    pub(crate) fn time(&self, full: Duration) -> Duration {
        match self.scale {
            Scale::Full => full,
            Scale::Quick => full / 5,
            Scale::Tiny => full / 50,
        }
    }

    /// A fresh outbox in a table of this name, with at most this many connections.
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

    /// Another handle of an outbox that is there, with a pool of its own: what another process would have.
    pub(crate) async fn handle(&self, table: &str, connections: usize) -> anyhow::Result<Outbox<Postgres>> {
        let builder = OutboxBuilder::new().table(table).max_connections(u32::try_from(connections)?);
        Ok(builder.postgres(&self.database).await?)
    }

    pub(crate) async fn pool(&self, connections: usize) -> anyhow::Result<PgPool> {
        let options = sqlx::postgres::PgPoolOptions::new().max_connections(u32::try_from(connections)?);
        Ok(options.connect(&self.database).await?)
    }

    /// Runs statements that a scenario is made ready with.
    pub(crate) async fn execute(&self, statements: &[&str]) -> anyhow::Result<()> {
        let pool = self.pool(1).await?;
        for statement in statements {
            sqlx::query(AssertSqlSafe(*statement)).execute(&pool).await?;
        }
        pool.close().await;
        Ok(())
    }

    /// Lets the server write out what it has, so that one figure does not pay for another.
    pub(crate) async fn settle(&self, table: &str) -> anyhow::Result<()> {
        // A server that tests share may have much to write out, and no figure is at stake.
        if self.scale == Scale::Tiny {
            return Ok(());
        }
        self.execute(&[&format!("VACUUM ANALYZE {table}"), "CHECKPOINT"]).await
    }
}

/// In whose turn it is: everybody comes first in some round.
pub(crate) fn turns<T: Clone>(round: usize, of: &[T]) -> Vec<T> {
    let mut order = of.to_vec();
    order.rotate_left(round % of.len().max(1));
    order
}

/// The same, and then once more in the opposite order: what grows or sinks during a round is shared by all.
pub(crate) fn there_and_back<T: Clone>(round: usize, of: &[T]) -> Vec<T> {
    let there = turns(round, of);
    let back = there.clone().into_iter().rev();
    there.iter().cloned().chain(back).collect()
}

/// How many events a drain begins with: enough of them that starting and stopping a relay hardly counts.
pub(crate) fn backlog(bed: &Bed) -> usize {
    bed.count(150_000).min(100_000)
}

/// A payload of 256 bytes.
pub(crate) fn payload() -> serde_json::Value {
    serde_json::json!({ "order": 4711, "text": "x".repeat(232) })
}

/// Fills an outbox with events, of so many ordering keys if it is not 0.
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

/// How many there were a second.
pub(crate) fn per_second(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_comes_first_in_some_round() {
        assert_eq!(turns(0, &["a", "b", "c"]), ["a", "b", "c"]);
        assert_eq!(turns(1, &["a", "b", "c"]), ["b", "c", "a"]);
        assert_eq!(turns(5, &["a", "b", "c"]), ["c", "a", "b"]);
    }

    #[test]
    fn a_payload_has_256_bytes() {
        assert_eq!(payload().to_string().len(), 256);
    }
}
