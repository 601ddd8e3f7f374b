//! Arguments of handlers.

use std::any::TypeId;
use std::fmt;
use std::future::Future;
use std::str::FromStr;
use std::sync::Arc;

use super::{Context, Failure, States};
use crate::error::{Error, Result};
use crate::event::{Event, FromEvent, GLOBAL};
use crate::relay::tx_dispatch::TxDispatch;

/// Argument of a [handler](super::Handler), created from the event that is handled. An argument
/// that cannot be created is a failure of the attempt, and the handler is not called.
///
/// | argument | value |
/// | --- | --- |
/// | a [`Message`](crate::Message) of yours, or an enum of them | the payload |
/// | [`Context`] | the event and the facts of this attempt |
/// | [`Event`] | the event alone |
/// | [`State<T>`](State) | a value given to the relay with [`state`](crate::RelayBuilder::state) |
/// | [`Header<T>`](Header), `Option<Header<T>>` | a header of the event |
/// | [`HandlerTx<DB>`](super::HandlerTx) | a transaction that also settles the event |
///
/// Implement it for an argument of your own. `D` is the kind of relay, and rarely matters:
///
/// ```
/// use outbox::{Context, Failure, FromContext, Handled};
///
/// struct Tenant(String);
///
/// impl<D> FromContext<D> for Tenant {
///     async fn from_context(cx: &Context) -> Result<Self, Failure> {
///         let tenant = cx.tenant_id().ok_or_else(|| Failure::dead("the event has no tenant"))?;
///         Ok(Tenant(tenant.to_owned()))
///     }
/// }
///
/// async fn invoice(Tenant(tenant): Tenant, cx: Context) -> Handled {
///     println!("{} for {tenant}", cx.id());
///     Ok(())
/// }
/// # let _ = outbox::on_type::<outbox::StoreOnly, _>("e", invoice);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a handler on a relay of `{D}`",
    label = "not an argument of a handler",
    note = "arguments are a type that derives or implements `outbox::Message` (with `serde::Serialize` and `serde::Deserialize`), `Context`, `Event`, `State<T>`, `Header<T>`, `HandlerTx<DB>` with the database of the outbox, and types that implement `FromContext`"
)]
pub trait FromContext<D>: Sized + Send {
    /// The event types that this argument is read from, if it is a message.
    const TYPES: &'static [&'static str] = &[];

    /// The aggregate type of these events; [`GLOBAL`] for any.
    const AGGREGATE_TYPE: &'static str = GLOBAL;

    /// Creates the argument.
    fn from_context(cx: &Context) -> impl Future<Output = Result<Self, Failure>> + Send;

    /// The requirements of this argument.
    #[doc(hidden)]
    fn needs() -> Needs {
        Needs::default()
    }
}

/// Requirements of an argument: a relay without them does not start.
#[derive(Clone, Default)]
#[doc(hidden)]
pub struct Needs {
    state: Option<(TypeId, &'static str)>,
    pub(crate) transaction: Option<Arc<dyn TxDispatch>>,
}

impl fmt::Debug for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Needs").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Needs {
    pub(super) fn transaction(dispatch: impl TxDispatch + 'static) -> Self {
        Self { transaction: Some(Arc::new(dispatch)), ..Self::default() }
    }

    /// Error if the relay has no such state.
    pub(crate) fn check(&self, states: &States) -> Result<()> {
        match self.state {
            Some((of, name)) if !states.has(of) => Err(Error::setting(no_state(name))),
            _ => Ok(()),
        }
    }
}

fn no_state(name: &str) -> String {
    format!("a handler takes `State<{name}>`, but the relay has no such state: add `.state(…)` to it")
}

impl<M: FromEvent, D> FromContext<D> for M {
    const TYPES: &'static [&'static str] = M::TYPES;
    const AGGREGATE_TYPE: &'static str = M::AGGREGATE_TYPE;

    async fn from_context(cx: &Context) -> Result<Self, Failure> {
        Ok(M::from_event(cx)?)
    }
}

impl<D> FromContext<D> for Context {
    async fn from_context(cx: &Context) -> Result<Self, Failure> {
        Ok(cx.clone())
    }
}

impl<D> FromContext<D> for Event {
    async fn from_context(cx: &Context) -> Result<Self, Failure> {
        Ok(cx.event().clone())
    }
}

/// A value that handlers share, such as a client or a pool. Given to the relay once, with
/// [`state`](crate::RelayBuilder::state), and cloned for each call: put what is not cheap to clone
/// into an `Arc`. A relay has one state of each type; a handler whose state is missing keeps the
/// relay from starting.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// use outbox::{Message, Outbox, State};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Clone)]
/// struct Mailer { from: String }
///
/// #[derive(Serialize, Deserialize)]
/// struct Welcome { email: String }
/// impl Message for Welcome { const TYPE: &'static str = "user.welcome"; }
///
/// async fn greet(welcome: Welcome, State(mailer): State<Mailer>) {
///     println!("from {} to {}", mailer.from, welcome.email);
/// }
///
/// let outbox = Outbox::sqlite(":memory:").await?;
/// # outbox.migrate().await?;
/// let mailer = Mailer { from: "shop@example.org".to_owned() };
/// let relay = outbox.single_node().state(mailer).on(greet).start().await?;
/// outbox.send(Welcome { email: "ada@example.org".to_owned() }).await?;
/// relay.stop().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State<T>(pub T);

impl<T: Clone + Send + Sync + 'static, D> FromContext<D> for State<T> {
    async fn from_context(cx: &Context) -> Result<Self, Failure> {
        let state = cx.state::<T>().cloned();
        state.map(State).ok_or_else(|| Failure::retry(no_state(std::any::type_name::<T>())))
    }

    fn needs() -> Needs {
        Needs { state: Some((TypeId::of::<T>(), std::any::type_name::<T>())), ..Needs::default() }
    }
}

/// A type that is read from a header of an event, for [`Header`].
pub trait EventHeader: FromStr<Err: fmt::Display> + Send + 'static {
    /// Name of the header.
    const NAME: &'static str;
}

/// A header of the event, as a typed argument of a handler. An event without the header, or with a
/// value that does not parse, is dead at once; `Option<Header<T>>` allows it to be missing.
///
/// ```
/// use std::convert::Infallible;
/// use std::str::FromStr;
/// use outbox::{Context, EventHeader, Handled, Header};
///
/// struct Locale(String);
///
/// impl FromStr for Locale {
///     type Err = Infallible;
///     fn from_str(text: &str) -> Result<Self, Infallible> { Ok(Locale(text.to_owned())) }
/// }
///
/// impl EventHeader for Locale { const NAME: &'static str = "locale"; }
///
/// async fn greet(cx: Context, locale: Option<Header<Locale>>) -> Handled {
///     let locale = locale.map_or("en".to_owned(), |Header(Locale(locale))| locale);
///     println!("{} in {locale}", cx.id());
///     Ok(())
/// }
/// # let _ = outbox::on_type::<outbox::StoreOnly, _>("e", greet);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header<T>(pub T);

impl<T: EventHeader> Header<T> {
    fn read(cx: &Context) -> Result<Option<Self>, Failure> {
        let name = T::NAME;
        match cx.header(name).map(str::parse) {
            None => Ok(None),
            Some(Ok(value)) => Ok(Some(Header(value))),
            // The value may be a secret, and the text of the error may quote it.
            Some(Err::<T, _>(error)) => {
                Err(Failure::dead(format!("the header {name:?} cannot be read")).with_detail(error))
            }
        }
    }
}

impl<T: EventHeader, D> FromContext<D> for Header<T> {
    async fn from_context(cx: &Context) -> Result<Self, Failure> {
        Self::read(cx)?.ok_or_else(|| Failure::dead(format!("the header {:?} is missing", T::NAME)))
    }
}

impl<T: EventHeader, D> FromContext<D> for Option<Header<T>> {
    async fn from_context(cx: &Context) -> Result<Self, Failure> {
        Header::read(cx)
    }
}
