//! The shop, an example of an application with an outbox: its events, its handlers, its business
//! transaction.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outbox::store::{Filter, Status};
use outbox::{
    Backoff, Context, Event, Failure, Handled, Interceptor, Message, OnDead, Outbox, Outcome, PurgeSettings,
    RelayBuilder,
};
use rand::Rng;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::ledger::{Attempt, Expectation, Ledger};

/// The outbox's table.
pub(crate) const EVENTS: &str = "outbox_demo_event";

/// The shop's own table.
pub(crate) const ORDERS: &str = "outbox_demo_orders";
const CREATE_ORDERS: &str = "\
    CREATE TABLE outbox_demo_orders (id bigint PRIMARY KEY, customer bigint NOT NULL, cents bigint NOT NULL)";

/// All tables of the demo, without the common prefix of their names. `orders` is dropped last: its
/// existence means that a demo runs.
const TABLES: [&str; 18] = [
    "event",
    "event_lease",
    "event_key",
    "event_join_member",
    "event_join",
    "event_inbox",
    "event_node",
    "event_attempt",
    "event_batch",
    "event_claim_lock",
    "event_audit",
    "log_tag",
    "log_head",
    "log_unreadable",
    "log",
    "topic_progress",
    "event_schema",
    "orders",
];

/// Drops the other objects of the demo in PostgreSQL.
const DROP_IN_POSTGRES: [&str; 9] = [
    "DROP FUNCTION IF EXISTS outbox_demo_event_call",
    "DROP FUNCTION IF EXISTS outbox_demo_event_order_key",
    "DROP FUNCTION IF EXISTS outbox_demo_log_lock",
    "DROP FUNCTION IF EXISTS outbox_demo_log_settled",
    "DROP FUNCTION IF EXISTS outbox_demo_log_append",
    "DROP FUNCTION IF EXISTS outbox_demo_log_insert",
    "DROP FUNCTION IF EXISTS outbox_demo_log_refuse",
    "DROP SEQUENCE IF EXISTS outbox_demo_log_seq",
    "DROP SEQUENCE IF EXISTS outbox_demo_event_by_aggregate",
];

/// Maximum number of attempts of an event.
const MAX_ATTEMPTS: u32 = 10;

/// Percentage of failures up to which no order is dead-lettered in practice. With more, some are,
/// and would block their customers for good.
pub(crate) const MAX_FAILURES_TO_HOLD: u8 = 15;

/// Delay of a review reminder.
const REMIND_AFTER: Duration = Duration::from_millis(750);

/// Header with the ledger's number of the event.
const NUMBER: &str = "demo-number";

/// Number of events in flight above which writers wait.
const MAX_IN_FLIGHT: u64 = 10_000;

/// An order was placed. The orders of a customer are delivered in order.
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: u64,
    number: u64,
}

impl Message for OrderPlaced {
    const TYPE: &'static str = "order.placed";
}

/// A receipt is to be mailed.
#[derive(Serialize, Deserialize)]
struct ReceiptWanted {
    customer: u64,
    cents: i64,
}

impl Message for ReceiptWanted {
    const TYPE: &'static str = "receipt.wanted";
}

/// A card was charged. Some payloads cannot be decoded by the handler.
#[derive(Serialize, Deserialize)]
struct CardCharged {
    cents: i64,
}

const CARD_CHARGED: &str = "card.charged";

/// A customer is to be asked for a review, after a delay.
#[derive(Serialize, Deserialize)]
struct ReviewDue {
    customer: u64,
}

impl Message for ReviewDue {
    const TYPE: &'static str = "review.due";
}

/// All event types that the ledger records.
const TYPES: [&str; 4] = [OrderPlaced::TYPE, ReceiptWanted::TYPE, CARD_CHARGED, ReviewDue::TYPE];

/// Creates the relay with all handlers. `fail` percent of the attempts at orders and receipts fail.
pub(crate) fn relay<DB: Shop>(outbox: &Outbox<DB>, ledger: &Arc<Ledger>, fail: u8) -> RelayBuilder<DB> {
    outbox
        .single_node()
        .on(move |_: OrderPlaced, _: Context| async move { sometimes_fail(fail, "the warehouse is busy") })
        .on(move |_: ReceiptWanted, _: Context| async move { sometimes_fail(fail, "the mail server is busy") })
        .on(async |_: ReviewDue, _: Context| {})
        .on_type(CARD_CHARGED, async |cx: Context| match cx.payload::<CardCharged>() {
            Ok(_) => Outcome::Done,
            Err(unreadable) => Outcome::Dead(unreadable.to_string()),
        })
        .interceptor(LedgerInterceptor(ledger.clone()))
        .retry(
            Backoff::default()
                .base(Duration::from_millis(50))
                .max(Duration::from_millis(200))
                .max_attempts(MAX_ATTEMPTS),
        )
        .on_dead(OnDead::Skip)
        // Short, so that a demo that runs over night does not fill the disk.
        .purge(PurgeSettings::default().retention(Duration::from_secs(60)).every(Duration::from_secs(10)))
}

fn sometimes_fail(percent: u8, reason: &str) -> Handled {
    let mut rng = rand::rng();
    if rng.random_range(0..100) >= percent {
        return Ok(());
    }
    // Like real errors, the texts differ slightly between attempts.
    Err(Failure::retry(format!("{reason}: {} are waiting already", rng.random_range(20..90))))
}

/// Records arrivals and outcomes in the ledger.
struct LedgerInterceptor(Arc<Ledger>);

impl Interceptor for LedgerInterceptor {
    fn before(&self, cx: &Context) -> Result<(), Failure> {
        if !TYPES.iter().any(|known| cx.event_type() == *known) {
            return Ok(());
        }
        // Only events of the hot path have no sequence number.
        let hot = cx.seq().is_none();
        self.0.arrived(number(cx), hot, Instant::now());
        Ok(())
    }

    fn after(&self, cx: &Context, result: &Result<Outcome, Failure>) {
        let attempt = match result {
            Ok(Outcome::Done) => Attempt::Done,
            Ok(Outcome::Dead(_)) => Attempt::Dead,
            Err(_) if cx.attempt() >= MAX_ATTEMPTS => Attempt::Dead,
            Ok(Outcome::Snooze(_)) | Err(_) => Attempt::Again,
        };
        if let Some(number) = number(cx) {
            self.0.finished(number, attempt, Instant::now());
        }
    }
}

fn number(cx: &Context) -> Option<u64> {
    cx.header(NUMBER)?.parse().ok()
}

/// Kinds of events that a transaction may write.
#[derive(Clone, Copy)]
enum EventKind {
    Order,
    Charge,
    /// A charge whose payload cannot be decoded.
    Poison,
    Receipt,
    Review,
}

impl EventKind {
    /// Events of the n-th transaction of a writer.
    fn of_turn(turn: u64) -> Vec<Self> {
        let charge = if turn % 100 == 10 { EventKind::Poison } else { EventKind::Charge };
        let mut kinds = vec![EventKind::Order, charge, EventKind::Receipt];
        if turn % 5 == 2 {
            kinds.push(EventKind::Review);
        }
        kinds
    }

    fn expectation(self, order: &Order) -> Expectation {
        Expectation {
            delay: if matches!(self, EventKind::Review) { REMIND_AFTER } else { Duration::ZERO },
            key_position: matches!(self, EventKind::Order).then_some((order.customer, order.number)),
        }
    }

    fn event(self, order: &Order, number: u64) -> outbox::EventBuilder {
        let &Order { customer, number: nth, cents, .. } = order;
        match self {
            EventKind::Order => Event::new(OrderPlaced::TYPE)
                .ordering_key(format!("customer-{customer}"))
                .json(&OrderPlaced { customer, number: nth }),
            EventKind::Charge => Event::new(CARD_CHARGED).json(&CardCharged { cents }),
            EventKind::Poison => Event::new(CARD_CHARGED).json(&"no charge at all"),
            EventKind::Receipt => Event::new(ReceiptWanted::TYPE).json(&ReceiptWanted { customer, cents }),
            EventKind::Review => {
                Event::new(ReviewDue::TYPE).deliver_after(REMIND_AFTER).json(&ReviewDue { customer })
            }
        }
        .header(NUMBER, number.to_string())
    }
}

/// A row of the shop's own table.
pub(crate) struct Order {
    id: u64,
    customer: u64,
    /// Position among the orders of its customer.
    number: u64,
    cents: i64,
}

/// Number of events that may still be committed.
pub(crate) struct Quota(AtomicU64);

impl Quota {
    pub(crate) fn new(events: Option<u64>) -> Self {
        Self(AtomicU64::new(events.unwrap_or(u64::MAX)))
    }

    /// Takes up to this many from the quota. Returns the number taken.
    fn take(&self, events: usize) -> usize {
        let left = self.0.load(Ordering::Relaxed);
        if left == u64::MAX {
            return events;
        }
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            Some(left.saturating_sub(events as u64))
        });
        events.min(usize::try_from(before.unwrap_or_default()).unwrap_or(usize::MAX))
    }
}

/// Limits the events per second of all writers together.
pub(crate) struct RateLimiter {
    began: Instant,
    sent: AtomicU64,
    rate: u32,
}

impl RateLimiter {
    /// Creates a limiter; a rate of 0 means no limit.
    pub(crate) fn new(rate: u32) -> Self {
        Self { began: Instant::now(), sent: AtomicU64::new(0), rate }
    }

    /// Waits until this many events may be sent.
    async fn wait(&self, events: usize) {
        if self.rate > 0 {
            let before = self.sent.fetch_add(events as u64, Ordering::Relaxed);
            let at = self.began + Duration::from_secs_f64(before as f64 / f64::from(self.rate));
            tokio::time::sleep_until(at.into()).await;
        }
    }
}

/// Places orders, one transaction after another. No two writers share a customer, so that each
/// writer knows the order of its customers' commits.
pub(crate) struct Writer<DB: Shop> {
    pub(crate) outbox: Outbox<DB>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) quota: Arc<Quota>,
    pub(crate) rate_limiter: Arc<RateLimiter>,
    pub(crate) stop: CancellationToken,
    pub(crate) customers: Range<u64>,
}

impl<DB: Shop> Writer<DB> {
    /// Writes until stopped, or until the quota is used up.
    pub(crate) async fn run(self) -> outbox::Result<()> {
        let mut orders_of = vec![0; self.customers.clone().count()];
        for turn in 0.. {
            let mut kinds = EventKind::of_turn(turn);
            let rolls_back = turn % 16 == 7;
            if !rolls_back {
                kinds.truncate(self.quota.take(kinds.len()));
            }
            if kinds.is_empty() {
                break;
            }
            tokio::select! {
                () = self.rate_limiter.wait(kinds.len()) => {}
                () = self.stop.cancelled() => break,
            }
            while self.ledger.totals().in_flight() > MAX_IN_FLIGHT && !self.stop.is_cancelled() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let index = rand::rng().random_range(0..orders_of.len());
            let order = Order {
                id: 0,
                customer: self.customers.start + index as u64,
                number: orders_of[index],
                cents: rand::rng().random_range(100..100_000),
            };
            if rolls_back {
                self.place_and_roll_back(order, &kinds, turn % 32 == 7).await?;
            } else {
                self.place(order, &kinds).await?;
                orders_of[index] += 1;
            }
        }
        Ok(())
    }

    /// The business transaction: writes the order and its events atomically.
    async fn place(&self, order: Order, kinds: &[EventKind]) -> outbox::Result<()> {
        let (tx, numbers) = self.prepare(order, kinds).await?;
        tx.commit().await?;
        self.ledger.committed(numbers, Instant::now());
        Ok(())
    }

    /// Like `place`, but rolls back, explicitly or by dropping the transaction.
    async fn place_and_roll_back(
        &self,
        order: Order,
        kinds: &[EventKind],
        by_drop: bool,
    ) -> outbox::Result<()> {
        let (tx, numbers) = self.prepare(order, kinds).await?;
        if by_drop {
            drop(tx);
        } else {
            tx.rollback().await?;
        }
        self.ledger.rolled_back(numbers);
        Ok(())
    }

    async fn prepare(
        &self,
        mut order: Order,
        kinds: &[EventKind],
    ) -> outbox::Result<(outbox::Tx<'static, DB>, Range<u64>)> {
        let expected: Vec<_> = kinds.iter().map(|kind| kind.expectation(&order)).collect();
        let mut tx = self.outbox.begin().await?;
        let numbers = self.ledger.open(&expected, Instant::now());
        order.id = numbers.start;
        DB::place(&mut tx, &order).await?;
        let events = kinds.iter().zip(numbers.clone()).map(|(kind, number)| kind.event(&order, number));
        tx.write_all(events).await?;
        Ok((tx, numbers))
    }
}

/// Creates the shop's table. Fails if it exists.
pub(crate) async fn open<DB: Shop>(outbox: &Outbox<DB>) -> sqlx::Result<()> {
    DB::execute(&mut *outbox.pool().acquire().await?, CREATE_ORDERS.to_owned()).await
}

/// Drops all of the demo's tables.
pub(crate) async fn close<DB: Shop>(outbox: &Outbox<DB>) -> sqlx::Result<()> {
    let mut connection = outbox.pool().acquire().await?;
    for table in TABLES {
        DB::execute(&mut *connection, format!("DROP TABLE IF EXISTS outbox_demo_{table}")).await?;
    }
    for drop in DB::DROP_OTHER_OBJECTS {
        DB::execute(&mut *connection, (*drop).to_owned()).await?;
    }
    Ok(())
}

/// Counts the shop's waiting and dead events, and checks the audit for manual changes, after which
/// the ledger cannot know the expected outcome.
pub(crate) async fn stored_counts<DB: Shop>(outbox: &Outbox<DB>) -> outbox::Result<StoredCounts> {
    let admin = outbox.admin();
    let mut stored_counts = StoredCounts {
        changed_manually: !admin.audits(None, 1).await?.is_empty(),
        ..StoredCounts::default()
    };
    for event_type in TYPES {
        let of_type = Filter { event_type: Some(event_type.to_owned()), ..Filter::default() };
        let dead = Filter { status: Some(Status::Dead), ..of_type.clone() };
        stored_counts.dead += admin.count(&dead).await?;
        stored_counts.waiting += admin.count(&Filter { pending: true, ..of_type }).await?;
    }
    Ok(stored_counts)
}

/// Counts of the shop's events in the outbox's table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StoredCounts {
    pub(crate) waiting: u64,
    pub(crate) dead: u64,
    pub(crate) changed_manually: bool,
}

/// Counts the orders.
pub(crate) async fn count_orders<DB: Shop>(outbox: &Outbox<DB>) -> sqlx::Result<u64> {
    let count = DB::count(&mut *outbox.pool().acquire().await?).await?;
    Ok(u64::try_from(count).unwrap_or_default())
}

/// A database for the shop: the shop's own SQL, which needs the concrete types of each database.
pub(crate) trait Shop: outbox::Database {
    /// Statements that drop objects other than tables.
    const DROP_OTHER_OBJECTS: &'static [&'static str];

    fn execute(
        connection: &mut Self::Connection,
        sql: String,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    fn place(
        connection: &mut Self::Connection,
        order: &Order,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    fn count(connection: &mut Self::Connection) -> impl Future<Output = sqlx::Result<i64>> + Send;
}

macro_rules! shop {
    ($database:ty, $drops:expr) => {
        impl Shop for $database {
            const DROP_OTHER_OBJECTS: &'static [&'static str] = $drops;

            async fn execute(connection: &mut Self::Connection, sql: String) -> sqlx::Result<()> {
                sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(connection).await.map(drop)
            }

            // Not prepared, so that both statements also run behind a pooler.
            async fn place(connection: &mut Self::Connection, order: &Order) -> sqlx::Result<()> {
                let Order { id, customer, cents, .. } = order;
                let columns = "outbox_demo_orders (id, customer, cents)";
                Self::execute(connection, format!("INSERT INTO {columns} VALUES ({id}, {customer}, {cents})"))
                    .await
            }

            async fn count(connection: &mut Self::Connection) -> sqlx::Result<i64> {
                let count = sqlx::raw_sql("SELECT count(*) FROM outbox_demo_orders");
                sqlx::Row::try_get(&count.fetch_one(connection).await?, 0)
            }
        }
    };
}

shop!(sqlx::Sqlite, &[]);
shop!(sqlx::MySql, &[]);
shop!(sqlx::Postgres, &DROP_IN_POSTGRES);
