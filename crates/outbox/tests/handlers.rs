//! Handlers as functions: their arguments, the error types that they return, options of a route,
//! middleware, and control of a running relay.

mod common;

use std::convert::Infallible;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{Gate, Seen, TestDb, numbered, until};
use outbox::store::Status;
use outbox::{
    Backoff, Context, Error, Event, EventHeader, Failure, FromContext, HandlerTx, Header, Interceptor,
    Message, Next, OrDead, Outcome, State, on_type,
};
use serde::{Deserialize, Serialize};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);

#[derive(Serialize, Deserialize)]
struct Paid {
    order: u64,
}

impl Message for Paid {
    const TYPE: &'static str = "paid";
}

type Sqlite = TestDb<sqlx::Sqlite>;

async fn fresh() -> Sqlite {
    TestDb::new().await.unwrap()
}

async fn deliver(
    db: &Sqlite,
    relay: outbox::RelayBuilder<sqlx::Sqlite>,
    event: impl outbox::IntoEvent,
) -> outbox::store::StoredEvent {
    let relay = relay.start().await.unwrap();
    let id = db.outbox.send(event).await.unwrap().id;
    relay.idle().await.unwrap();
    relay.stop().await.unwrap();
    db.find(&id).await
}

#[derive(Clone)]
struct Shop {
    name: &'static str,
}

struct Locale(String);

impl FromStr for Locale {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.len() {
            2 => Ok(Locale(text.to_owned())),
            _ => Err(format!("{text:?} is not a locale")),
        }
    }
}

impl EventHeader for Locale {
    const NAME: &'static str = "locale";
}

struct Tenant(String);

impl<D> FromContext<D> for Tenant {
    async fn from_context(cx: &Context) -> Result<Self, Failure> {
        Ok(Tenant(cx.tenant_id().ok_or_else(|| Failure::dead("no tenant"))?.to_owned()))
    }
}

/// Notified when a handler has returned.
#[derive(Clone, Default)]
struct Returned(Arc<tokio::sync::Notify>);

impl Interceptor for Returned {
    fn after(&self, _: &Context, _: &Result<Outcome, Failure>) {
        self.0.notify_one();
    }
}

on_every_database! {
    /// A message, a state, a header, an argument of the application and a transaction: in any
    /// order.
    async fn arguments_come_in_any_order(|db|) {
        db.run("CREATE TABLE {t}_booked (number bigint NOT NULL)").await.unwrap();
        let table = db.table.clone();
        let calls = Arc::new(AtomicUsize::new(0));
        let count = calls.clone();
        let relay = db.outbox.multi_node().state(Shop { name: "books" }).on(
            move |mut tx: HandlerTx<DB>, State(shop): State<Shop>, Tenant(tenant): Tenant, paid: Paid,
                  Header(locale): Header<Locale>, cx: Context, event: Event| {
                let (table, count) = (table.clone(), count.clone());
                async move {
                    assert_eq!((shop.name, tenant.as_str(), locale.0.as_str()), ("books", "acme", "de"));
                    assert_eq!((cx.id(), cx.attempt()), (event.id(), 1));
                    DB::execute_sql(&mut tx, &format!("INSERT INTO {table}_booked VALUES ({})", paid.order)).await?;
                    count.fetch_add(1, Ordering::SeqCst);
                    Ok::<_, sqlx::Error>(())
                }
            },
        );
        let relay = relay.start().await.unwrap();
        let event = Event::new("paid").json(&Paid { order: 7 }).tenant("acme").header("locale", "de");
        let id = db.outbox.send(event).await.unwrap().id;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(db.find(&id).await.last_error, None);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        assert_eq!(db.number("SELECT number FROM {t}_booked").await, 7);
    }

    /// A handler gives its transaction back when it returns; one that is still in use elsewhere
    /// cannot settle the event.
    async fn a_handler_that_keeps_its_transaction_has_failed(|db|) {
        let (kept, returned) = (Arc::new(std::sync::Mutex::new(None)), Returned::default());
        let keeps = kept.clone();
        let relay = db.outbox.multi_node().interceptor(returned.clone()).route(on_type("e", move |tx: HandlerTx<DB>| {
            *keeps.lock().unwrap() = Some(tx);
            async {}
        }).retry(Backoff::never()));
        let relay = relay.start().await.unwrap();
        let id = db.outbox.send(numbered("e", 1)).await.unwrap().id;
        returned.0.notified().await;
        // SQLite has one writer, which the kept transaction is.
        drop(kept.lock().unwrap().take());
        until("the event is dead", async || db.status(&id).await == Status::Dead).await;
        let error = db.find(&id).await.last_error.unwrap();
        assert!(error.contains("kept its transaction"), "{error}");
        relay.stop().await.unwrap();
    }

    /// Sixteen slow events before one fast one, which does not wait for them.
    async fn events_of_a_limited_handler_leave_the_workers_to_others(|db|) {
        for relay in [db.outbox.single_node(), db.outbox.multi_node()] {
            let (gate, slow, fast) = (Gate::closed(), Seen::default(), Seen::default());
            let relay = relay.workers(4).cold_capacity(100)
                .route(on_type("slow", slow.behind(&gate)).max_concurrent(2))
                .on_type("fast", fast.handler()).start().await.unwrap();
            db.outbox.send_all((0..300).map(|n| numbered("slow", n))).await.unwrap();
            slow.reach(2).await;
            db.outbox.send(numbered("fast", 1)).await.unwrap();
            db.outbox.send_all((2..20).map(|n| numbered("fast", n).ordering_key("k"))).await.unwrap();
            fast.reach(19).await;
            assert_eq!(slow.count(), 2, "no more than the limit");
            gate.open();
            relay.idle().await.unwrap();
            slow.assert_each_once(0..300);
            relay.stop().await.unwrap();
        }
    }

    /// The limit also holds for events with keys, whose order it keeps.
    async fn a_limit_keeps_the_order_of_keys(|db|) {
        let running = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
        let (seen, counts) = (Seen::default(), running.clone());
        let noted = seen.clone();
        let relay = db.outbox.multi_node().workers(8).route(on_type("e", move |cx: Context| {
            let (counts, noted) = (counts.clone(), noted.clone());
            async move {
                let now = counts.0.fetch_add(1, Ordering::SeqCst) + 1;
                counts.1.fetch_max(now, Ordering::SeqCst);
                noted.record(&cx);
                tokio::task::yield_now().await;
                counts.0.fetch_sub(1, Ordering::SeqCst);
            }
        }).max_concurrent(3));
        let relay = relay.start().await.unwrap();
        let events = (0..400u64).map(|n| numbered("e", n).ordering_key(format!("k{}", n % 20)));
        db.outbox.send_all(events).await.unwrap();
        db.outbox.send_all((400..500).map(|n| numbered("e", n))).await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        seen.assert_each_once(0..500);
        for key in 0..20 {
            let numbers = seen.of_key(&format!("k{key}"));
            assert!(numbers.is_sorted(), "k{key}: {numbers:?}");
        }
        assert!(running.1.load(Ordering::SeqCst) <= 3, "{running:?}");
    }

    async fn a_paused_type_stays_in_the_table_until_it_is_resumed(|db|) {
        for relay in [db.outbox.single_node(), db.outbox.multi_node()] {
            let (mail, other) = (Seen::default(), Seen::default());
            let relay = relay.on_type("mail", mail.handler()).on_type("other", other.handler()).start().await.unwrap();
            assert!(relay.pause("mail") && !relay.pause("mail"));
            assert_eq!(relay.paused(), ["mail"]);
            let hot = db.outbox.send(numbered("mail", 0)).await.unwrap().id;
            db.outbox.send_all((1..5).map(|n| numbered("mail", n).ordering_key("k"))).await.unwrap();
            db.outbox.send_all([numbered("other", 5).ordering_key("k"), numbered("other", 6)]).await.unwrap();
            other.reach(1).await;
            relay.idle().await.unwrap();
            assert_eq!((mail.count(), other.numbers()), (0, vec![6]), "the key waits behind its first event");
            let stored = db.find(&hot).await;
            assert_eq!((stored.status, stored.attempts), (Status::New, 0));
            assert!(relay.resume("mail") && !relay.resume("mail"));
            relay.idle().await.unwrap();
            mail.assert_each_once(0..5);
            assert_eq!(other.numbers(), [6, 5]);
            relay.stop().await.unwrap();
        }
    }

    async fn events_that_a_handler_writes_get_the_correlation_id_of_its_event(|db|) {
        let outbox = db.outbox.clone();
        let relay = db.outbox.multi_node().on_type("e", move |cx: Context, mut tx: HandlerTx<DB>| {
            let outbox = outbox.clone();
            async move {
                tx.write(numbered("in its transaction", 1)).await?;
                if cx.header("sqlite").is_none() {
                    outbox.send(numbered("in another", 2)).await?;
                }
                tx.write(numbered("with its own", 3).correlation("own")).await?;
                Ok::<_, Error>(())
            }
        });
        let relay = relay.start().await.unwrap();
        let first = Event::new("e").json(&1).correlation("order-7");
        // SQLite has one writer, which the handler is.
        let first = if db.url().contains("://") { first } else { first.header("sqlite", "yes") };
        db.outbox.send(first).await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        let written = outbox::testing::written(&db.outbox).await;
        assert_eq!(written.one("in its transaction").correlation_id(), Some("order-7"));
        assert_eq!(written.one("with its own").correlation_id(), Some("own"));
        for event in written.of_type("in another") {
            assert_eq!(event.correlation_id(), Some("order-7"));
        }
        let uncorrelated = db.outbox.send(numbered("alone", 1)).await.unwrap().id;
        assert_eq!(db.find(&uncorrelated).await.event.unwrap().correlation_id(), None);
    }
}

#[tokio::test]
async fn a_header_that_is_missing_or_cannot_be_read_is_dead_at_once() {
    let db = fresh().await;
    let relay = || db.outbox.single_node().on_type("e", async |_: Header<Locale>| {});
    let missing = deliver(&db, relay(), numbered("e", 1)).await;
    assert_eq!((missing.status, missing.attempts), (Status::Dead, 0));
    assert_eq!(missing.last_error.as_deref(), Some("the header \"locale\" is missing"));
    let unreadable = deliver(&db, relay(), numbered("e", 2).header("locale", "s3cret")).await;
    assert_eq!((unreadable.status, unreadable.attempts), (Status::Dead, 0));
    let error = unreadable.last_error.unwrap();
    let (reason, detail) = outbox::split_detail(&error);
    assert_eq!(reason, "the header \"locale\" cannot be read", "the value may be a secret");
    assert_eq!(detail, Some("\"s3cret\" is not a locale"));

    let optional = || {
        db.outbox.single_node().on_type("e", async |locale: Option<Header<Locale>>| {
            assert!(locale.is_none());
        })
    };
    assert_eq!(deliver(&db, optional(), numbered("e", 3)).await.status, Status::Done);
    let unreadable = deliver(&db, optional(), numbered("e", 4).header("locale", "english")).await;
    assert_eq!(unreadable.status, Status::Dead);
}

#[tokio::test]
async fn an_argument_that_fails_is_a_failed_attempt_without_a_call() {
    let db = fresh().await;
    let called = Arc::new(AtomicUsize::new(0));
    let count = called.clone();
    let relay = db.outbox.single_node().on_type("e", move |_: Tenant| {
        count.fetch_add(1, Ordering::SeqCst);
        async {}
    });
    let stored = deliver(&db, relay, numbered("e", 1)).await;
    assert_eq!((stored.status, stored.last_error.as_deref()), (Status::Dead, Some("no tenant")));
    assert_eq!(called.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_missing_or_doubled_state_keeps_the_relay_from_starting() {
    let db = fresh().await;
    let needs_shop = async |_: State<Shop>, _: Context| {};
    let error = db.outbox.single_node().on_type("e", needs_shop).start().await.unwrap_err();
    assert!(matches!(error, Error::Setting { .. }), "{error:?}");
    assert!(error.to_string().contains("Shop>`, but the relay has no such state"), "{error}");
    // In any order.
    let relay = db.outbox.single_node().on_type("e", needs_shop).state(Shop { name: "books" });
    relay.start().await.unwrap().stop().await.unwrap();
    let twice = db.outbox.single_node().state(Shop { name: "a" }).state(Shop { name: "b" });
    assert!(twice.start().await.unwrap_err().to_string().contains("given twice"));
}

#[tokio::test]
async fn a_message_is_read_for_the_event_type_that_a_route_names() {
    let db = fresh().await;
    let relay = db.outbox.single_node().on_type("paid.again", async |paid: Paid| assert_eq!(paid.order, 7));
    let stored = deliver(&db, relay, Event::new("paid.again").json(&Paid { order: 7 })).await;
    assert_eq!(stored.status, Status::Done);
}

/// Its text contains the causes, and a failure inside keeps its meaning.
#[tokio::test]
async fn any_error_type_may_be_returned() {
    type BoxError = Box<dyn std::error::Error + Send + Sync>;
    async fn boxed(cx: Context) -> Result<(), BoxError> {
        Err(format!("boxed {}", cx.attempt()))?
    }
    async fn with_context() -> anyhow::Result<()> {
        let lost = std::io::Error::other("connection reset");
        Err(anyhow::Error::new(lost).context("charging the card"))
    }
    async fn text() -> Result<Outcome, String> {
        Err("text".to_owned())
    }
    async fn permanent() -> anyhow::Result<()> {
        "seven".parse::<u8>().or_dead()?;
        Ok(())
    }
    async fn permanent_with_context() -> anyhow::Result<Outcome> {
        use anyhow::Context as _;
        permanent().await.context("reading the port")?;
        Ok(Outcome::Done)
    }
    async fn later() -> Result<(), BoxError> {
        Err(Failure::retry_after(SEC * 3_600, "busy").with_detail("s3cret"))?
    }
    async fn payload(cx: Context) -> anyhow::Result<()> {
        let _: String = cx.payload()?;
        Ok(())
    }
    async fn unlucky() -> anyhow::Result<()> {
        with_context().await.map_err(Failure::retry)?;
        Ok(())
    }
    let db = fresh().await;
    let relay = || {
        db.outbox
            .single_node()
            .retry(Backoff::default().base(SEC * 60))
            .on_type("boxed", boxed)
            .on_type("context", with_context)
            .on_type("text", text)
            .on_type("permanent", permanent)
            .on_type("permanent with context", permanent_with_context)
            .on_type("later", later)
            .on_type("payload", payload)
            .on_type("unlucky", unlucky)
    };
    let digit = "invalid digit found in string";
    for (event_type, status, attempts, error) in [
        ("boxed", Status::Retry, 1, "boxed 1".to_owned()),
        ("context", Status::Retry, 1, "charging the card: connection reset".to_owned()),
        ("text", Status::Retry, 1, "text".to_owned()),
        ("permanent", Status::Dead, 0, digit.to_owned()),
        ("permanent with context", Status::Dead, 0, format!("reading the port: {digit}")),
        ("later", Status::Retry, 1, "busy\n[detail] s3cret".to_owned()),
        ("unlucky", Status::Retry, 1, "charging the card: connection reset".to_owned()),
    ] {
        let stored = deliver(&db, relay(), numbered(event_type, 1)).await;
        assert_eq!((stored.status, stored.attempts), (status, attempts), "{event_type}");
        assert_eq!(stored.last_error.as_deref(), Some(error.as_str()), "{event_type}");
    }
    let stored = deliver(&db, relay(), numbered("payload", 1)).await;
    assert_eq!((stored.status, stored.attempts), (Status::Dead, 0), "it never parses");
    let waits = deliver(&db, relay(), numbered("later", 2)).await.available_at - chrono::Utc::now();
    assert!(waits > chrono::Duration::minutes(50), "{waits}");
}

#[tokio::test]
async fn middleware_wraps_handlers_from_the_outside_in() {
    tokio::task_local! { static TENANT: Option<String>; }
    let db = fresh().await;
    let calls = Arc::new(std::sync::Mutex::new(Vec::new()));
    let note = |name: &'static str| {
        let calls = calls.clone();
        move |cx: Context, next: Next| {
            let calls = calls.clone();
            async move {
                calls.lock().unwrap().push(format!("{name} in"));
                let result = next.run(cx).await;
                calls.lock().unwrap().push(format!("{name} out {}", result.is_ok()));
                result
            }
        }
    };
    let inside = calls.clone();
    let relay = db
        .outbox
        .single_node()
        .around(note("outer"))
        .around(note("inner"))
        .around(async |cx: Context, next: Next| {
            TENANT.scope(cx.tenant_id().map(str::to_owned), next.run(cx)).await
        })
        .on(move |paid: Paid, tx: HandlerTx<sqlx::Sqlite>| {
            let inside = inside.clone();
            async move {
                drop(tx);
                inside.lock().unwrap().push(format!("{} of {:?}", paid.order, TENANT.get()));
            }
        });
    let event = Event::new("paid").json(&Paid { order: 7 }).tenant("acme");
    assert_eq!(deliver(&db, relay, event).await.status, Status::Done);
    let expected = ["outer in", "inner in", "7 of Some(\"acme\")", "inner out true", "outer out true"];
    assert_eq!(*calls.lock().unwrap(), expected);
}

#[tokio::test]
async fn middleware_may_refuse_change_panic_and_hang() {
    async fn refuse(_: Context, _: Next) -> Result<Outcome, Failure> {
        Err(Failure::dead("refused"))
    }
    async fn forgive(cx: Context, next: Next) -> Outcome {
        next.run(cx).await.unwrap_or(Outcome::Done)
    }
    async fn bomb(_: Context, _: Next) {
        panic!("on purpose")
    }
    async fn hang(_: Context, _: Next) {
        std::future::pending::<()>().await;
    }
    let db = fresh().await;
    let relay = |called: &Seen| {
        let failing = called.returning(|_| Err(Failure::retry("no luck")));
        db.outbox.single_node().retry(Backoff::never()).handler_timeout(50 * MS).on_type("e", failing)
    };
    let called = Seen::default();
    let refused = deliver(&db, relay(&called).around(refuse), numbered("e", 1)).await;
    assert_eq!((refused.status, refused.last_error.as_deref()), (Status::Dead, Some("refused")));
    let panicked = deliver(&db, relay(&called).around(bomb), numbered("e", 2)).await;
    assert_eq!(panicked.last_error.as_deref(), Some("the handler panicked: on purpose"));
    let late = deliver(&db, relay(&called).around(hang), numbered("e", 3)).await;
    assert_eq!(late.last_error.as_deref(), Some("the handler did not finish within 50ms"));
    assert_eq!(called.count(), 0);
    let forgiven = deliver(&db, relay(&called).around(forgive), numbered("e", 4)).await;
    assert_eq!((forgiven.status, called.count()), (Status::Done, 1));
}

#[tokio::test]
async fn layers_of_tower_wrap_handlers() {
    use tower::ServiceBuilder;
    let db = fresh().await;
    let layer = ServiceBuilder::new().timeout(50 * MS);
    let relay = || {
        db.outbox
            .single_node()
            .retry(Backoff::never())
            .layer(layer.clone())
            .on_type("quick", async || {})
            .on_type("slow", async || {
                std::future::pending::<()>().await;
            })
    };
    assert_eq!(deliver(&db, relay(), numbered("quick", 1)).await.status, Status::Done);
    let late = deliver(&db, relay(), numbered("slow", 2)).await;
    assert_eq!((late.status, late.last_error.as_deref()), (Status::Dead, Some("request timed out")));
}

#[tokio::test]
async fn state_is_available_to_middleware() {
    let db = fresh().await;
    let relay = db
        .outbox
        .single_node()
        .state(Shop { name: "books" })
        .around(async |cx: Context, next: Next| {
            assert_eq!(cx.state::<Shop>().map(|shop| shop.name), Some("books"));
            assert!(cx.state::<Infallible>().is_none());
            next.run(cx).await
        })
        .on_type("e", async || {});
    assert_eq!(deliver(&db, relay, numbered("e", 1)).await.status, Status::Done);
}

#[tokio::test]
async fn a_handler_hears_that_its_relay_stops() {
    let db = fresh().await;
    let seen = Seen::default();
    let begun = seen.clone();
    let handler = move |cx: Context| {
        begun.record(&cx);
        async move {
            assert!(!cx.is_stopping());
            cx.stopping().await;
            Outcome::Snooze(Duration::ZERO)
        }
    };
    let relay = db.outbox.single_node().drain(SEC * 200).on_type("e", handler).start().await.unwrap();
    let id = db.outbox.send(numbered("e", 1)).await.unwrap().id;
    seen.reach(1).await;
    common::in_time(relay.stop()).await.unwrap();
    let stored = db.find(&id).await;
    assert_eq!((stored.status, stored.attempts), (Status::New, 0));
}

#[tokio::test]
async fn a_relay_runs_until_a_future_is_ready() {
    let db = fresh().await;
    let seen = Seen::default();
    let relay = db.outbox.single_node().on_type("e", seen.handler()).start().await.unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(relay.until(stopped));
    db.outbox.send(numbered("e", 1)).await.unwrap();
    seen.reach(1).await;
    assert!(!running.is_finished());
    stop.send(()).unwrap();
    common::in_time(running).await.unwrap().unwrap();
    assert!(db.outbox.single_node().start().await.is_ok(), "it has stopped");
}
