//! The transaction of a handler.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard};

use super::extract::{FromContext, Needs};
use super::{Context, Failure};
use crate::fleet::Fleet;
use crate::relay::tx_dispatch::Transactional;
use crate::sql::Database;
use crate::tx::Tx;

/// A transaction that also settles the event, as an argument of a handler. Dereferences to [`Tx`].
///
/// Writes in it are committed together with the settlement of the event, or not at all: they take
/// effect exactly once, whatever crashes. The relay commits after the handler has returned `Done`;
/// a failure, a snooze and a dead event roll back.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// use outbox::{Event, Handled, HandlerTx, Message, Outbox};
/// use sqlx::Sqlite;
/// # use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Booked { account: String, amount: i64 }
/// impl Message for Booked { const TYPE: &'static str = "booked"; }
///
/// async fn book(booked: Booked, mut tx: HandlerTx<Sqlite>) -> Handled {
///     sqlx::query("UPDATE account SET balance = balance + $1 WHERE name = $2")
///         .bind(booked.amount).bind(&booked.account).execute(&mut **tx).await?;
///     tx.write(Event::new("account.changed").json(&booked.account)).await?;
///     Ok(())
/// }
///
/// let outbox = Outbox::sqlite(":memory:").await?;
/// # outbox.migrate().await?;
/// # sqlx::query("CREATE TABLE account (name TEXT, balance INTEGER)").execute(outbox.pool()).await?;
/// let relay = outbox.multi_node().on(book).start().await?;
/// # relay.stop().await?;
/// # Ok(()) }
/// ```
///
/// The transaction is open while the handler runs: keep it short, above all on SQLite, which has
/// one writer. Write further events with [`Tx::write`]: `outbox.send` would wait for another
/// connection, on SQLite for ever.
///
/// The database is that of the relay's outbox; another one does not compile:
///
/// ```compile_fail,E0277
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
/// async fn book(tx: outbox::HandlerTx<sqlx::Postgres>) {}
/// let relay = outbox.multi_node().on_type("booked", book).start().await?;
/// # Ok(()) }
/// ```
#[must_use = "the transaction is for the writes of the handler"]
pub struct HandlerTx<DB: Database> {
    /// `None` once it is returned to the slot.
    tx: Option<Tx<'static, DB>>,
    slot: Arc<TxSlot>,
}

/// Holds the transaction of an attempt while no [`HandlerTx`] has it.
#[derive(Default)]
pub(crate) struct TxSlot(Mutex<SlotState>);

#[derive(Default)]
enum SlotState {
    /// The handler has the transaction, or had none.
    #[default]
    Empty,
    /// The transaction, with its database erased.
    Here(Box<dyn Any + Send>),
    /// The attempt is over: a transaction that is returned later is rolled back.
    Closed,
}

impl TxSlot {
    pub(crate) fn new<DB: Database>(tx: Tx<'static, DB>) -> Self {
        Self(Mutex::new(SlotState::Here(Box::new(tx))))
    }

    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.0.lock().expect("no code panics while it holds this lock")
    }

    /// Ends the attempt. `None` if the handler has kept the transaction.
    pub(crate) fn close<DB: Database>(&self) -> Option<Tx<'static, DB>> {
        let last = std::mem::replace(&mut *self.state(), SlotState::Closed);
        Self::transaction(last)
    }

    fn take<DB: Database>(&self) -> Option<Tx<'static, DB>> {
        let mut state = self.state();
        match &*state {
            SlotState::Here(tx) if tx.is::<Tx<'static, DB>>() => {
                Self::transaction(std::mem::take(&mut *state))
            }
            _ => None,
        }
    }

    fn transaction<DB: Database>(state: SlotState) -> Option<Tx<'static, DB>> {
        let SlotState::Here(tx) = state else { return None };
        tx.downcast().ok().map(|tx| *tx)
    }

    fn put_back<DB: Database>(&self, tx: Tx<'static, DB>) {
        let mut state = self.state();
        if let SlotState::Closed = *state {
            // Its drop rolls back.
            drop(state);
            return drop(tx);
        }
        *state = SlotState::Here(Box::new(tx));
    }
}

impl<DB: Database> HandlerTx<DB> {
    fn new(cx: &Context) -> Result<Self, Failure> {
        let name = DB::NAME;
        let Some(slot) = cx.tx.clone() else {
            return Err(Failure::retry(format!("the relay began no transaction of {name}")));
        };
        let Some(tx) = slot.take() else {
            return Err(Failure::dead(format!(
                "there is no transaction of {name}: a handler takes one `HandlerTx`, of the event's database"
            )));
        };
        Ok(Self { tx: Some(tx), slot })
    }
}

/// A handler on an outbox takes a transaction of its database.
impl<DB: Database> FromContext<DB> for HandlerTx<DB> {
    async fn from_context(cx: &Context) -> Result<Self, Failure> {
        Self::new(cx)
    }

    fn needs() -> Needs {
        Needs::transaction(Transactional::<DB>::new())
    }
}

/// The databases of a fleet are known when its relay starts, which checks them.
impl<DB: Database> FromContext<Fleet> for HandlerTx<DB> {
    async fn from_context(cx: &Context) -> Result<Self, Failure> {
        Self::new(cx)
    }

    fn needs() -> Needs {
        Needs::transaction(Transactional::<DB>::new())
    }
}

impl<DB: Database> Deref for HandlerTx<DB> {
    type Target = Tx<'static, DB>;

    fn deref(&self) -> &Self::Target {
        self.tx.as_ref().expect("only the drop takes it")
    }
}

impl<DB: Database> DerefMut for HandlerTx<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.tx.as_mut().expect("only the drop takes it")
    }
}

impl<DB: Database> Drop for HandlerTx<DB> {
    fn drop(&mut self) {
        if let Some(tx) = self.tx.take() {
            self.slot.put_back(tx);
        }
    }
}

impl<DB: Database> fmt::Debug for HandlerTx<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HandlerTx").field(&self.tx).finish()
    }
}
