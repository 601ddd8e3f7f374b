//! Log lines: the specified levels, and never a payload.
//!
//! A separate test binary: a process has one subscriber.

#[path = "common/log_lines.rs"]
mod log_lines;
#[path = "common/polling.rs"]
mod polling;

use log_lines::LogLines;
use outbox::{Backoff, Context, Event, Failure, OutboxBuilder, Result, TracingPublisher, Unrouted};
use polling::until;
use tracing_subscriber::filter::LevelFilter;

const DAY: std::time::Duration = std::time::Duration::from_secs(86_400);
const LEASE: std::time::Duration = std::time::Duration::from_secs(30);
const CANARY: &str = "canary-4111111111111111";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_are_never_logged_and_dead_events_are_logged_as_errors() -> Result<()> {
    let lines = LogLines::capture(LevelFilter::TRACE);

    let outbox = OutboxBuilder::new().sqlite(":memory:").await?;
    outbox.migrate().await?;
    let relay = outbox
        .single_node()
        .hot_capacity(1)
        .retry(Backoff::default().base(std::time::Duration::from_millis(1)).max_attempts(2))
        .unrouted(Unrouted::Dead)
        .on_type("good", async |_: Context| tracing::info!("inside of a handler"))
        .on_type("bad", async |_: Context| Err::<(), _>(Failure::retry("no luck")))
        .on_type("typed", async |cx: Context| cx.payload::<u64>().map(drop))
        .forward(["forwarded"], TracingPublisher::new())
        .start()
        .await?;
    for event_type in ["good", "bad", "typed", "forwarded", "unrouted"] {
        outbox.send(Event::new(event_type).json(CANARY)).await?;
        outbox.send(Event::new(event_type).bytes("text/plain", CANARY)).await?;
    }
    // More events at once than the hot queue holds.
    outbox.send_all((0..50).map(|_| Event::new("good").json(CANARY))).await?;
    // An error in which the database itself would quote the row.
    outbox.send(Event::new("good").id("twice").json(CANARY)).await?;
    let refused = outbox.send(Event::new("good").id("twice").json(CANARY)).await.unwrap_err();
    relay.idle().await?;
    let bad = outbox.send(Event::new("bad").json(CANARY)).await?.id;
    relay.idle().await?;
    // A row that cannot be decoded, and a database that returns errors.
    sqlx::query(
        "INSERT INTO outbox_event (event_id, event_type, payload, headers) VALUES ('unread', 'good', '1', '[1]')",
    )
    .execute(outbox.pool())
    .await?;
    relay.idle().await?;
    sqlx::query("ALTER TABLE outbox_event RENAME TO away").execute(outbox.pool()).await?;
    relay.wake();
    until("a take fails", async || lines.text().contains("could not take events")).await;
    sqlx::query("ALTER TABLE away RENAME TO outbox_event").execute(outbox.pool()).await?;
    relay.idle().await?;
    let queue = outbox.queue();
    let me = outbox::NodeId::from("worker");
    outbox.send(Event::new("later").correlation("story-7").json(CANARY).deliver_after(DAY)).await?;
    for _ in 0..2 {
        assert!(queue.claim(&me, LEASE, 10).await?.is_empty(), "the relay holds the table");
    }
    let dead = outbox.admin().dead(&Default::default(), 100).await?;
    relay.stop().await?;
    let relay = outbox.single_node().unrouted(Unrouted::Retry).start().await?;
    outbox.send(Event::new("unknown").json(CANARY)).await?;
    relay.idle().await?;
    relay.stop().await?;
    outbox.send_all((0..3).map(|_| Event::new("work").json(CANARY))).await?;
    let items = queue.claim(&me, std::time::Duration::from_millis(1), 10).await?;
    assert_eq!(items.len(), 3);
    queue.fail(&me, [items[0].id()], "no such address").await?;
    queue.abandon(&me, [items[1].id()], "busy").await?;
    until("the lease of 1 ms expires", async || queue.reap_expired().await.unwrap() > 0).await;
    assert!(!format!("{items:?}").contains(CANARY));

    #[cfg(feature = "postgres")]
    if let Ok(url) = std::env::var("OUTBOX_TEST_POSTGRES") {
        // The rule for local addresses treats 127.1 as a remote server.
        let url = url.replacen("@127.0.0.1:", &format!(":{CANARY}@127.1:"), 1);
        OutboxBuilder::new().postgres(&format!("{url}?sslmode=disable")).await?;
        let text = lines.text();
        let warned = |line: &&str| line.contains("WARN") && line.contains("is not verified: sslmode=disable");
        assert_eq!(text.lines().filter(warned).count(), usize::from(url.contains(CANARY)), "{text}");
        // The direct URL as well, with a pool of the application.
        let outbox = OutboxBuilder::new().direct_url(format!("{url}?sslmode=disable"));
        outbox.on_pool(&sqlx::PgPool::connect_lazy("postgres://localhost/none")?)?;
        let text = lines.text();
        assert_eq!(text.lines().filter(warned).count(), 2 * usize::from(url.contains(CANARY)), "{text}");
    }

    let text = lines.text();
    assert!(text.lines().any(|line| line.contains("ERROR") && line.contains("event is dead")), "{text}");
    assert!(text.lines().any(|line| line.contains("ERROR") && line.contains("handler failed")), "{text}");
    assert!(
        text.lines().any(|line| line.contains("WARN") && line.contains("the hot queue is full")),
        "{text}"
    );
    assert!(text.lines().any(|line| line.contains("INFO") && line.contains("relay started")), "{text}");
    let inside = text.lines().find(|line| line.contains("inside of a handler")).unwrap();
    assert!(inside.contains("outbox.handle") && inside.contains("event_type=good"), "{inside}");
    assert!(text.contains("outbox.write"), "writing has a span of its own");
    let line = |words: &[&str]| {
        let lines = text.lines().filter(|line| words.iter().all(|word| line.contains(word))).count();
        assert!(lines > 0, "no line with {words:?} in {text}");
        lines
    };
    // OBX-105: which event, and why.
    let of_bad = format!("event={bad}");
    line(&["ERROR", "handler failed", "no luck", "event_type=bad", &of_bad, "attempt=1", "store="]);
    line(&["ERROR", "event is dead", "no luck", "event_type=bad", &of_bad, "attempt=2", "store="]);
    // errors of the relay's tasks.
    line(&["ERROR", "an event cannot be decoded", "event=unread", "headers", "store="]);
    line(&["ERROR", "could not take events", "retry_in=", "store="]);
    line(&["WARN", "no handler yet", "no handler for event type", "event_type=unknown", "store="]);
    line(&["INFO", "outbox::events", "handled", "event_type=good", "event=", "store="]);
    line(&[
        "INFO",
        "outbox::events",
        "event written",
        "event_type=later",
        "correlation_id=\"story-7\"",
        "store=",
    ]);
    line(&["DEBUG", "claimed work items", "count=3", "owner=worker", "store="]);
    line(&["ERROR", "event is dead", "no such address", "store="]);
    line(&["WARN", "work item was abandoned", "busy", "store="]);
    line(&["INFO", "freed work items whose lease had run out", "count=1", "store="]);
    let published =
        ["INFO", "event published", "publisher=\"log\"", "event_type=forwarded", "event=", "tags=0"];
    assert_eq!(line(&published), 2);
    assert_eq!(line(&["WARN", "nothing can be claimed", "store="]), 1, "logged once");
    let leak = text.lines().find(|line| line.contains(CANARY));
    assert_eq!(leak, None, "a payload was logged");
    assert!(!refused.to_string().contains(CANARY) && !format!("{refused:?}").contains(CANARY));
    assert_eq!(dead.len(), 8);
    for event in &dead {
        assert!(!event.last_error.as_deref().unwrap_or_default().contains(CANARY));
        assert!(!format!("{event:?}").contains(CANARY));
    }
    Ok(())
}
