//! Functions as handlers.

use std::marker::PhantomData;

use super::extract::{FromContext, Needs};
use super::{Context, HandlerFuture, IntoOutcome};
use crate::event::GLOBAL;

/// An async function that handles events: `async fn` or a closure that returns a future, with up to
/// eight arguments in any order, each of which implements [`FromContext`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// use outbox::{Context, HandlerTx, Message, Outbox, State};
/// use serde::{Deserialize, Serialize};
/// use sqlx::Sqlite;
///
/// #[derive(Clone)]
/// struct Shop { name: String }
///
/// #[derive(Serialize, Deserialize)]
/// struct Paid { order: i64 }
/// impl Message for Paid { const TYPE: &'static str = "paid"; }
///
/// // Writes of this handler are committed together with the settlement of the event.
/// async fn book(paid: Paid, State(shop): State<Shop>, mut tx: HandlerTx<Sqlite>) -> Result<(), sqlx::Error> {
///     sqlx::query("INSERT INTO booked (shop, number) VALUES ($1, $2)")
///         .bind(&shop.name).bind(paid.order).execute(&mut **tx).await?;
///     Ok(())
/// }
///
/// let outbox = Outbox::sqlite(":memory:").await?;
/// # outbox.migrate().await?;
/// # sqlx::query("CREATE TABLE booked (shop TEXT, number INTEGER)").execute(outbox.pool()).await?;
/// let seen = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
/// let relay = outbox
///     .single_node()
///     .state(Shop { name: "books".to_owned() })
///     .on(book)
///     .on_type("audit", move |cx: Context| {
///         let seen = seen.clone();
///         async move { println!("{}: {}", seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed), cx.id()) }
///     })
///     .start()
///     .await?;
/// outbox.send(Paid { order: 42 }).await?;
/// relay.stop().await?;
/// # let booked: i64 = sqlx::query_scalar("SELECT count(*) FROM booked").fetch_one(outbox.pool()).await?;
/// # assert_eq!(booked, 1);
/// # Ok(()) }
/// ```
///
/// An event may be delivered more than once: its [`id`](crate::Event::id) stays the same. `D` is
/// the kind of relay (the database of its outbox, [`Fleet`](crate::Fleet), or
/// [`StoreOnly`](crate::StoreOnly)), `Args` the tuple of the arguments.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler for a relay of `{D}`",
    label = "not a handler",
    note = "a handler is an `async fn` with up to eight arguments in any order: a type that implements `outbox::Message` (with `serde::Deserialize`), `Context`, `State<T>`, `Header<T>`, `HandlerTx<DB>` with the database of the outbox",
    note = "it returns `()`, `Outcome`, or a `Result` of one of them with any error type, and its future is `Send`"
)]
pub trait Handler<D, Args>: Send + Sync + 'static {
    /// How many arguments are messages.
    #[doc(hidden)]
    const MESSAGES: usize;

    /// Event types of the message.
    #[doc(hidden)]
    fn types() -> &'static [&'static str];

    /// Aggregate type of the message.
    #[doc(hidden)]
    fn aggregate_type() -> &'static str;

    /// The requirements of the arguments.
    #[doc(hidden)]
    fn needs() -> Vec<Needs>;

    /// Creates the arguments and calls the function.
    #[doc(hidden)]
    fn call(&self, cx: Context) -> HandlerFuture<'_>;
}

macro_rules! handler_of {
    ($($arg:ident),*) => {
        impl<F, Fut, D: 'static, $($arg),*> Handler<D, ($($arg,)*)> for F
        where
            F: Fn($($arg),*) -> Fut + Send + Sync + 'static,
            Fut: Future<Output: IntoOutcome> + Send,
            $($arg: FromContext<D>,)*
        {
            const MESSAGES: usize = 0 $(+ !$arg::TYPES.is_empty() as usize)*;

            fn types() -> &'static [&'static str] {
                let all: [&'static [&'static str]; _] = [$($arg::TYPES),*];
                all.into_iter().find(|types| !types.is_empty()).unwrap_or_default()
            }

            fn aggregate_type() -> &'static str {
                $(if !$arg::TYPES.is_empty() { return $arg::AGGREGATE_TYPE; })*
                GLOBAL
            }

            fn needs() -> Vec<Needs> {
                vec![$($arg::needs()),*]
            }

            #[allow(non_snake_case, reason = "an argument has the name of its type")]
            fn call(&self, cx: Context) -> HandlerFuture<'_> {
                Box::pin(async move {
                    $(let $arg = $arg::from_context(&cx).await?;)*
                    drop(cx);
                    self($($arg),*).await.into_outcome()
                })
            }
        }
    };
}

handler_of!();
handler_of!(A1);
handler_of!(A1, A2);
handler_of!(A1, A2, A3);
handler_of!(A1, A2, A3, A4);
handler_of!(A1, A2, A3, A4, A5);
handler_of!(A1, A2, A3, A4, A5, A6);
handler_of!(A1, A2, A3, A4, A5, A6, A7);
handler_of!(A1, A2, A3, A4, A5, A6, A7, A8);

/// A handler whose arguments are erased.
pub(crate) trait ErasedHandler: Send + Sync {
    fn call(&self, cx: Context) -> HandlerFuture<'_>;
}

/// A function with its arguments.
pub(super) struct Function<H, D, Args>(H, PhantomData<fn() -> (D, Args)>);

impl<H, D, Args> Function<H, D, Args> {
    pub(super) fn new(handler: H) -> Self {
        Self(handler, PhantomData)
    }
}

impl<D: 'static, Args: 'static, H: Handler<D, Args>> ErasedHandler for Function<H, D, Args> {
    fn call(&self, cx: Context) -> HandlerFuture<'_> {
        self.0.call(cx)
    }
}
