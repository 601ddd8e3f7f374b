//! The shop: what an application with an outbox looks like. Its events, its handlers, its business transaction.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outbox::store::{Filter, Status};
use outbox::{
    Backoff, Cx, Event, Failure, Handled, Interceptor, Message, OnDead, Outbox, Outcome, PurgeSettings,
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

/// Everything that the demo leaves in any database, without what all names start with. The orders last: while they are there, a
/// demo runs.
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

/// What else there is in PostgreSQL.
const IN_POSTGRES: [&str; 9] = [
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

/// How often a failing event is tried in all.
const ATTEMPTS: u32 = 10;

/// With up to this many percent of failures no order dies in practice. With more some do, and would hold up their customers for ever.
pub(crate) const MOST_FAILURES_TO_HOLD: u8 = 15;

/// How long a reminder waits.
const REMIND_AFTER: Duration = Duration::from_millis(750);

/// The header with the ledger's number, by which an event is recognised when it arrives.
const NUMBER: &str = "demo-number";

/// More events than this are not left waiting: then writers wait.
const MOST_IN_FLIGHT: u64 = 10_000;

/// An order was placed. A customer's orders are delivered one after another.
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

/// A card was charged. Now and then the payload is one that no handler can read.
#[derive(Serialize, Deserialize)]
struct CardCharged {
    cents: i64,
}

const CARD_CHARGED: &str = "card.charged";

/// A customer is to be asked for a review, some time later.
#[derive(Serialize, Deserialize)]
struct ReviewDue {
    customer: u64,
}

impl Message for ReviewDue {
    const TYPE: &'static str = "review.due";
}

/// All types of the shop's events: those that the ledger knows.
const TYPES: [&str; 4] = [OrderPlaced::TYPE, ReceiptWanted::TYPE, CARD_CHARGED, ReviewDue::TYPE];

/// The relay with all handlers. `fail` percent of the attempts at orders and receipts fail.
pub(crate) fn relay<DB: Shop>(outbox: &Outbox<DB>, ledger: &Arc<Ledger>, fail: u8) -> RelayBuilder {
    outbox
        .single_node()
        .on(move |_: OrderPlaced, _: Cx| async move { sometimes_fail(fail, "the warehouse is busy") })
        .on(move |_: ReceiptWanted, _: Cx| async move { sometimes_fail(fail, "the mail server is busy") })
        .on(async |_: ReviewDue, _: Cx| {})
        .on_type(CARD_CHARGED, async |cx: Cx| match cx.payload::<CardCharged>() {
            Ok(_) => Outcome::Done,
            Err(unreadable) => Outcome::Dead(unreadable.to_string()),
        })
        .interceptor(Watch(ledger.clone()))
        .retry(
            Backoff::default()
                .base(Duration::from_millis(50))
                .max(Duration::from_millis(200))
                .max_attempts(ATTEMPTS),
        )
        .on_dead(OnDead::Skip)
        // So that a demo left running over night does not fill the disk.
        .purge(PurgeSettings::default().retention(Duration::from_secs(60)).every(Duration::from_secs(10)))
}

fn sometimes_fail(percent: u8, reason: &str) -> Handled {
    let mut rng = rand::rng();
    if rng.random_range(0..100) >= percent {
        return Ok(());
    }
    // As real ones do, errors differ a little from attempt to attempt.
    Err(Failure::retry(format!("{reason}: {} are waiting already", rng.random_range(20..90))))
}

/// Tells the ledger what arrives and what became of it.
struct Watch(Arc<Ledger>);

impl Interceptor for Watch {
    fn before(&self, cx: &Cx) -> Result<(), Failure> {
        if !TYPES.iter().any(|known| cx.event_type() == *known) {
            return Ok(());
        }
        // Only what was handed over straight after its commit has no place in the table yet.
        let hot = cx.seq().is_none();
        self.0.arrived(number(cx), hot, Instant::now());
        Ok(())
    }

    fn after(&self, cx: &Cx, result: &Result<Outcome, Failure>) {
        let attempt = match result {
            Ok(Outcome::Done) => Attempt::Done,
            Ok(Outcome::Dead(_)) => Attempt::Dead,
            Err(_) if cx.attempt() >= ATTEMPTS => Attempt::Dead,
            Ok(Outcome::RetryAfter(_)) | Err(_) => Attempt::Again,
        };
        if let Some(number) = number(cx) {
            self.0.finished(number, attempt, Instant::now());
        }
    }
}

fn number(cx: &Cx) -> Option<u64> {
    cx.header(NUMBER)?.parse().ok()
}

/// The events that a transaction may write.
#[derive(Clone, Copy)]
enum Kind {
    Order,
    Charge,
    /// A charge that nobody can read.
    Poison,
    Receipt,
    Review,
}

impl Kind {
    /// What the n-th transaction of a writer writes.
    fn of_turn(turn: u64) -> Vec<Self> {
        let charge = if turn % 100 == 10 { Kind::Poison } else { Kind::Charge };
        let mut kinds = vec![Kind::Order, charge, Kind::Receipt];
        if turn % 5 == 2 {
            kinds.push(Kind::Review);
        }
        kinds
    }

    fn expectation(self, order: &Order) -> Expectation {
        Expectation {
            delay: if matches!(self, Kind::Review) { REMIND_AFTER } else { Duration::ZERO },
            place: matches!(self, Kind::Order).then_some((order.customer, order.number)),
        }
    }

    fn event(self, order: &Order, number: u64) -> outbox::EventBuilder {
        let &Order { customer, number: nth, cents, .. } = order;
        match self {
            Kind::Order => Event::new(OrderPlaced::TYPE)
                .ordering_key(format!("customer-{customer}"))
                .json(&OrderPlaced { customer, number: nth }),
            Kind::Charge => Event::new(CARD_CHARGED).json(&CardCharged { cents }),
            Kind::Poison => Event::new(CARD_CHARGED).json(&"no charge at all"),
            Kind::Receipt => Event::new(ReceiptWanted::TYPE).json(&ReceiptWanted { customer, cents }),
            Kind::Review => {
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
    /// The how-manieth of its customer.
    number: u64,
    cents: i64,
}

/// How many events may still be committed.
pub(crate) struct Quota(AtomicU64);

impl Quota {
    pub(crate) fn new(events: Option<u64>) -> Self {
        Self(AtomicU64::new(events.unwrap_or(u64::MAX)))
    }

    /// Takes up to this many. Returns how many.
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

/// So many events a second, for all writers together.
pub(crate) struct Pace {
    began: Instant,
    sent: AtomicU64,
    rate: u32,
}

impl Pace {
    /// A rate of 0 is as fast as it goes.
    pub(crate) fn new(rate: u32) -> Self {
        Self { began: Instant::now(), sent: AtomicU64::new(0), rate }
    }

    /// Waits until it is time to send this many.
    async fn wait(&self, events: usize) {
        if self.rate > 0 {
            let before = self.sent.fetch_add(events as u64, Ordering::Relaxed);
            let at = self.began + Duration::from_secs_f64(before as f64 / f64::from(self.rate));
            tokio::time::sleep_until(at.into()).await;
        }
    }
}

/// Places orders, one transaction after another, for customers of its own: so it knows in which order their
/// transactions were committed.
pub(crate) struct Writer<DB: Shop> {
    pub(crate) outbox: Outbox<DB>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) quota: Arc<Quota>,
    pub(crate) pace: Arc<Pace>,
    pub(crate) stop: CancellationToken,
    pub(crate) customers: Range<u64>,
}

impl<DB: Shop> Writer<DB> {
    /// Writes until it is stopped or the quota is used up.
    pub(crate) async fn run(self) -> outbox::Result<()> {
        let mut orders_of = vec![0; self.customers.clone().count()];
        for turn in 0.. {
            let mut kinds = Kind::of_turn(turn);
            let rolls_back = turn % 16 == 7;
            if !rolls_back {
                kinds.truncate(self.quota.take(kinds.len()));
            }
            if kinds.is_empty() {
                break;
            }
            tokio::select! {
                () = self.pace.wait(kinds.len()) => {}
                () = self.stop.cancelled() => break,
            }
            while self.ledger.tally().in_flight() > MOST_IN_FLIGHT && !self.stop.is_cancelled() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let which = rand::rng().random_range(0..orders_of.len());
            let order = Order {
                id: 0,
                customer: self.customers.start + which as u64,
                number: orders_of[which],
                cents: rand::rng().random_range(100..100_000),
            };
            if rolls_back {
                self.change_of_mind(order, &kinds, turn % 32 == 7).await?;
            } else {
                self.place(order, &kinds).await?;
                orders_of[which] += 1;
            }
        }
        Ok(())
    }

    /// The business transaction: the order and its events, together or not at all.
    async fn place(&self, order: Order, kinds: &[Kind]) -> outbox::Result<()> {
        let (tx, numbers) = self.prepare(order, kinds).await?;
        tx.commit().await?;
        self.ledger.committed(numbers, Instant::now());
        Ok(())
    }

    /// The same, but it does not happen: by a rollback, or because the transaction was dropped on the way.
    async fn change_of_mind(&self, order: Order, kinds: &[Kind], by_drop: bool) -> outbox::Result<()> {
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
        kinds: &[Kind],
    ) -> outbox::Result<(outbox::Tx<'static, DB>, Range<u64>)> {
        let expected: Vec<_> = kinds.iter().map(|kind| kind.expectation(&order)).collect();
        let mut tx = self.outbox.begin().await?;
        let numbers = self.ledger.open(&expected, Instant::now());
        order.id = numbers.start;
        DB::place(&mut tx, &order).await?;
        let events = kinds.iter().zip(numbers.clone()).map(|(kind, number)| kind.event(&order, number));
        self.outbox.write_all(&mut tx, events).await?;
        Ok((tx, numbers))
    }
}

/// Creates the shop's table. An error if it is there.
pub(crate) async fn open<DB: Shop>(outbox: &Outbox<DB>) -> sqlx::Result<()> {
    DB::execute(&mut *outbox.pool().acquire().await?, CREATE_ORDERS.to_owned()).await
}

/// Drops all of the demo's tables.
pub(crate) async fn close<DB: Shop>(outbox: &Outbox<DB>) -> sqlx::Result<()> {
    let mut connection = outbox.pool().acquire().await?;
    for table in TABLES {
        DB::execute(&mut *connection, format!("DROP TABLE IF EXISTS outbox_demo_{table}")).await?;
    }
    for drop in DB::ELSE {
        DB::execute(&mut *connection, (*drop).to_owned()).await?;
    }
    Ok(())
}

/// How many of the shop's events there are, but for those that are done, and whether somebody has changed any by hand: then the
/// ledger cannot tell what should have become of them.
pub(crate) async fn standing<DB: Shop>(outbox: &Outbox<DB>) -> outbox::Result<Standing> {
    let admin = outbox.admin();
    let mut standing = Standing { by_hand: !admin.audits(None, 1).await?.is_empty(), ..Standing::default() };
    for event_type in TYPES {
        let of_type = Filter { event_type: Some(event_type.to_owned()), ..Filter::default() };
        let dead = Filter { status: Some(Status::Dead), ..of_type.clone() };
        standing.dead += admin.count(&dead).await?;
        standing.waiting += admin.count(&Filter { pending: true, ..of_type }).await?;
    }
    Ok(standing)
}

/// What the outbox's table says of the shop's events.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standing {
    pub(crate) waiting: u64,
    pub(crate) dead: u64,
    pub(crate) by_hand: bool,
}

/// How many orders there are.
pub(crate) async fn count_orders<DB: Shop>(outbox: &Outbox<DB>) -> sqlx::Result<u64> {
    let count = DB::count(&mut *outbox.pool().acquire().await?).await?;
    Ok(u64::try_from(count).unwrap_or_default())
}

/// A database that the shop can live in: the shop's own SQL, which needs the concrete types of each.
pub(crate) trait Shop: outbox::Database {
    /// How to drop what is no table.
    const ELSE: &'static [&'static str];

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
    ($database:ty, $else:expr) => {
        impl Shop for $database {
            const ELSE: &'static [&'static str] = $else;

            async fn execute(connection: &mut Self::Connection, sql: String) -> sqlx::Result<()> {
                sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(connection).await.map(drop)
            }

            // Neither is prepared, so that they also run behind a pooler.
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
shop!(sqlx::Postgres, &IN_POSTGRES);
