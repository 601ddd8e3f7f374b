//! A transactional outbox. Events are written in the same transaction as the business change and
//! delivered at least once, in order per ordering key where requested, with retries, dead letters
//! and tools to inspect and repair every event.
//!
//! The crate is built on sqlx 0.9 and chrono 0.4, whose types are in its signatures; both are
//! re-exported as `outbox::sqlx` and `outbox::chrono`.
//!
//! # The flow
//!
//! ```text
//! business transaction                          relay (same process, another process, or many)
//!   Tx::write ──────► outbox_event ──► take ──► dispatch ──► settle ──► outbox_event
//!         │                             ▲
//!         └── after commit: hot path ───┘   (same process: no read-back, no poll wait)
//! ```
//!
//! # Map of the code
//!
//! | module | contents |
//! | --- | --- |
//! | `event` | [`Event`], [`Message`]: the data that is written and delivered |
//! | `outbox`, `tx`, `write`, `hook` | [`Outbox`], [`Tx`], [`Write`]: writing events in your transaction |
//! | [`store`] | [`Store`](store::Store): the port through which the relay uses a database |
//! | `sql` | the store on SQLite, PostgreSQL, MySQL and MariaDB |
//! | `relay` | [`Relay`]: take, dispatch, settle |
//! | [`fleet`] | [`Fleet`]: one relay for many databases |
//! | `handler`, `retry` | handlers and their outcomes; when a failed event is retried |
//! | `join` | [`Outbox::fan_out`], [`Joins`]: many events, and a follow-up once all are settled |
//! | `inbox` | [`Tx::once`]: deduplication in a consumer |
//! | `log` | [`Log`]: an append-only event log, queried by tags, with conditional appends |
//! | `queue` | [`WorkQueue`]: claiming work items without a relay |
//! | `admin` | [`Admin`]: dead events, cancelling, purging, statistics |
//! | `explain` | [`Explanation`]: why an event has not been delivered yet |
//! | [`escape`] | escapes text from rows for log lines and terminals |
//! | [`metrics`] | names of the metrics |
//! | `settings` | settings from a file and the environment, as the daemon reads them (feature `settings`) |
//! | [`text`] | setting values with variables and secrets in them |
//! | `testing` | helpers for your tests, and the conformance suite for other stores (feature `testing`) |
//!
//! Start with [`Outbox`].

// Without a database feature only the port and the types are used: by crates that publish events.
#![cfg_attr(not(any(feature = "sqlite", feature = "postgres", feature = "mysql")), allow(unused))]

mod admin;
pub mod connect;
mod destination;
mod error;
pub mod escape;
mod event;
mod explain;
pub mod fleet;
mod handler;
mod hook;
mod inbox;
mod join;
mod log;
pub mod metrics;
mod outbox;
mod poison;
mod queue;
mod relay;
mod retry;
#[cfg(feature = "settings")]
pub mod settings;
mod sql;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
pub mod text;
mod trace;
mod tx;
mod write;

/// Log target of the INFO lines that are about one event each. `outbox::events=warn` silences them.
pub(crate) const EVENTS: &str = "outbox::events";

// Their types are in signatures: a dependent that uses these has the same versions.
pub use chrono;
pub use sqlx;

pub use admin::{Admin, DeadFilter, OpenAudit};
pub use connect::Pooler;
pub use destination::{Destination, Outage, Router};
pub use error::{DatabaseError, DecodeError, Error, EventError, Result, StorageFault};
pub use event::{
    AggregateType, Event, EventBuilder, EventId, EventType, FromEvent, GLOBAL, IntoEvent, JSON, MAX_PAYLOAD,
    MESSAGE_VERSION, Message, Payload, PayloadError, UpcastError,
};
pub use explain::{EventFacts, Explanation, Reason};
pub use fleet::Fleet;
pub use handler::{
    Context, EventHeader, Failure, FromContext, Handled, Handler, HandlerFuture, HandlerTx, Header,
    Interceptor, IntoFailure, IntoOutcome, IntoSuccess, Middleware, Next, OrDead, Outcome, Route, State,
    Unrouted, on, on_aggregate, on_any, on_type, split_detail,
};
pub use hook::{HookError, WriterHook};
pub use join::{
    FanOut, FannedOut, Join, JoinAt, JoinError, JoinId, JoinStatus, JoinWait, Joins, NewJoin, Step,
};
pub use log::{
    Appended, Condition, DecideError, Decided, Decision, EventResult, Lag, LatchError, LatchPublisher, Log,
    LogAdmin, LogEvent, MAX_APPEND, MAX_TAG, MAX_TAGS, Outgoing, Position, Projection, PublishError,
    Publisher, Query, Statistics, StatisticsPublisher, Subscription, SubscriptionId, SubscriptionState,
    SubscriptionStatus, Tag, Topic, TracingPublisher, Unavailable,
};
pub use outbox::{Outbox, OutboxBuilder};
pub use queue::{WorkItem, WorkItemId, WorkItemIdError, WorkQueue};
pub use relay::{PurgeSettings, Relay, RelayBuilder, RelaySource, StoreOnly};
pub use retry::{Backoff, RetryPolicy};
pub use sql::dialect::FrozenClock;
pub use sql::{
    Clock, Database, DatabaseKind, DatabaseRole, SqlStore, StoreOptions, grants_sql, migration_sql,
    migration_sql_from, open_store,
};
pub use store::{Completion, NodeId, OnDead, Status};
pub use tx::{BoundTx, Receipt, Tx};
pub use write::{Write, WriteOutcome, Written};

/// Parts that the code of `#[derive(Message)]` uses.
#[cfg(feature = "macros")]
#[doc(hidden)]
pub mod __private {
    pub use serde;
    pub use serde_json;

    pub use crate::event::read;
}

/// Compiles the examples of the README and of the guide.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../README.md")]
    struct CrateReadme;
    #[doc = include_str!("../../../docs/guide/writing.md")]
    struct Writing;
    #[doc = include_str!("../../../docs/guide/delivering.md")]
    struct Delivering;
    #[doc = include_str!("../../../docs/guide/operating.md")]
    struct Operating;
    #[doc = include_str!("../../../docs/guide/testing.md")]
    struct Testing;
    #[doc = include_str!("../../../docs/guide/queue.md")]
    struct Queue;
    #[doc = include_str!("../../../docs/guide/inbox.md")]
    struct Inbox;
    #[doc = include_str!("../../../docs/guide/exactly-once.md")]
    struct ExactlyOnce;
    #[doc = include_str!("../../../docs/guide/joins.md")]
    struct Joins;
    #[doc = include_str!("../../../docs/guide/fleet.md")]
    struct Fleet;
    #[doc = include_str!("../../../docs/guide/log.md")]
    struct Log;
    #[doc = include_str!("../../../docs/guide/settings.md")]
    struct Settings;
}
