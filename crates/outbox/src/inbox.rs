//! The inbox: which events a consumer has processed, recorded in the consumer's transaction.

use crate::error::{Error, Result};
use crate::event::check_text;
use crate::sql::Database;
use crate::tx::Tx;

/// The longest name of a consumer, in characters.
const MAX_CONSUMER: usize = 128;
/// The longest id, in characters. Longer than an event id of this crate: ids may come from other
/// systems.
const MAX_ID: usize = 255;

fn check(consumer: &str, id: &str) -> Result<()> {
    check_text("consumer", consumer, MAX_CONSUMER).map_err(Error::Inbox)?;
    check_text("the event's id", id, MAX_ID).map_err(Error::Inbox)
}

impl<DB: Database> Tx<'_, DB> {
    /// Whether a consumer sees an event for the first time: `true` once, `false` ever after.
    ///
    /// For consumers behind a broker, which redelivers after every crash and lost acknowledgement.
    /// The answer is recorded in the consumer's own transaction, together with its writes: both are
    /// committed, or neither.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// # sqlx::query("CREATE TABLE account (balance INTEGER)").execute(outbox.pool()).await?;
    /// # let event_id = "01JD2MYZ3V6ZJ9CJ7W2YH4M0QK";
    /// # for _ in 0..2 {
    /// let mut tx = outbox.begin().await?;
    /// if tx.once("billing", event_id).await? {
    ///     sqlx::query("INSERT INTO account VALUES (995)").execute(&mut *tx).await?;
    /// }
    /// tx.commit().await?;                                     // then acknowledge to the broker
    /// # }
    /// # let booked: i64 = sqlx::query_scalar("SELECT count(*) FROM account").fetch_one(outbox.pool()).await?;
    /// # assert_eq!(booked, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// Another transaction that asks for the same event meanwhile waits for the end of this one,
    /// and gets `false` if it was committed and `true` if not. As with any two transactions, the
    /// database may end one of them with an error instead (a deadlock, a serialization failure, a
    /// lock timeout): [`Error::is_transient`], retry it.
    ///
    /// Ids have 1 to 255 characters and consumers 1 to 128, without control characters; they are
    /// compared exactly. Entries are deleted when they are
    /// [purged](crate::PurgeSettings::inbox_retention), after 30 days if not set: a redelivery
    /// after that would be new.
    pub async fn once(&mut self, consumer: &str, id: impl AsRef<str>) -> Result<bool> {
        let id = id.as_ref();
        check(consumer, id)?;
        let outbox = self.outbox().clone();
        let first = outbox.sql_store().once(self.connection(), consumer, id).await;
        self.received(first.is_ok());
        first
    }

    /// [`once`](Tx::once) for many events, in one statement for each thousand. The answers are
    /// in the order of the ids; an id that is named twice is new the first time only.
    pub async fn once_each(
        &mut self,
        consumer: &str,
        ids: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Vec<bool>> {
        let ids: Vec<String> = ids.into_iter().map(|id| id.as_ref().to_owned()).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        for id in &ids {
            check(consumer, id)?;
        }
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let outbox = self.outbox().clone();
        let first = outbox.sql_store().once_each(self.connection(), consumer, &ids).await;
        self.received(first.is_ok());
        first
    }
}
