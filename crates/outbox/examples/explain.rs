//! Why an event is not delivered: the decisive reason as a value, and as text with advice.
//!
//! ```sh
//! cargo run --example explain
//! ```

use std::time::Duration;

use chrono::{DateTime, Utc};
use outbox::{Clock, Context, Event, EventId, Failure, FrozenClock, Outbox, OutboxBuilder, Reason};
use sqlx::Sqlite;

/// Prints the explanation of an event, and its reason in one word.
async fn explain(outbox: &Outbox<Sqlite>, id: &str) -> outbox::Result<()> {
    let explained = outbox.admin().explain(&EventId::from(id)).await?;
    let reason = match explained.reason() {
        Reason::NotDue { .. } => "not due",
        Reason::Unrouted { .. } => "unrouted",
        Reason::Behind { .. } => "behind another event",
        Reason::Dead { .. } => "dead",
        Reason::Done { .. } => "done",
        _ => "another reason",
    };
    println!("[{reason}]");
    println!("{explained}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let now: DateTime<Utc> = "2030-01-01T08:00:00Z".parse()?;
    let clock = Clock::Frozen(FrozenClock::at(now));
    let outbox = OutboxBuilder::new().clock(clock).sqlite(":memory:").await?;
    outbox.migrate().await?;
    let relay = outbox
        .multi_node()
        .node("shop-1")
        .on_type("reminder", async |_: Context| ())
        .on_type("order.pay", async |_: Context| Err::<(), _>(Failure::dead("the card was refused")))
        .on_type("order.ship", async |_: Context| ())
        .start()
        .await?;

    let hour = Duration::from_secs(3_600);
    outbox.send(Event::new("reminder").id("reminder-1").deliver_after(hour).json(&())).await?;
    outbox.send(Event::new("order.refund").id("refund-1").json(&())).await?;
    // Events of one key: the second waits for the first.
    outbox.send(Event::new("order.pay").id("pay-1").ordering_key("order-42").json(&())).await?;
    outbox.send(Event::new("order.ship").id("ship-1").ordering_key("order-42").json(&())).await?;
    relay.idle().await?;

    for id in ["reminder-1", "refund-1", "pay-1", "ship-1"] {
        explain(&outbox, id).await?;
    }
    relay.stop().await?;
    Ok(())
}
