//! A type for each kind of event, by hand: a handler gets its own type, and a payload that does not
//! parse is a dead letter at once. The example `message_derive` derives such types.
//!
//! ```sh
//! cargo run --example typed_messages
//! ```

use outbox::{Context, DeadFilter, EventBuilder, Handled, Message, Outbox};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
    customer: String,
}

#[derive(Serialize, Deserialize)]
struct OrderCancelled {
    order: u64,
    reason: String,
}

impl Message for OrderPlaced {
    const TYPE: &'static str = "order.placed";

    fn describe(&self, event: EventBuilder) -> EventBuilder {
        event.aggregate("order", self.order.to_string()).header("source", "web")
    }
}

impl Message for OrderCancelled {
    const TYPE: &'static str = "order.cancelled";

    fn describe(&self, event: EventBuilder) -> EventBuilder {
        event.aggregate("order", self.order.to_string())
    }
}

async fn confirm(placed: OrderPlaced, cx: Context) -> Handled {
    let source = cx.header("source").unwrap_or("an unknown source");
    println!("{}: order {} of {}, from {source}", cx.event_type(), placed.order, placed.customer);
    Ok(())
}

async fn refund(cancelled: OrderCancelled, cx: Context) -> Handled {
    println!("{}: order {}: {}", cx.event_type(), cancelled.order, cancelled.reason);
    Ok(())
}

#[tokio::main]
async fn main() -> outbox::Result<()> {
    let outbox = Outbox::sqlite(":memory:").await?;
    outbox.migrate().await?;
    let relay = outbox.single_node().on(confirm).on(refund).start().await?;

    outbox.send(OrderPlaced { order: 42, customer: "ada".into() }).await?;
    relay.idle().await?;
    outbox.send(OrderCancelled { order: 42, reason: "out of stock".into() }).await?;
    relay.idle().await?;

    // Another program may insert rows, and make mistakes.
    sqlx::query(
        "INSERT INTO outbox_event (event_type, payload) VALUES ('order.placed', '{\"order\": \"x\"}')",
    )
    .execute(outbox.pool())
    .await?;
    relay.idle().await?;
    relay.stop().await?;
    for dead in outbox.admin().dead(&DeadFilter::default(), 10).await? {
        println!("{} after {} attempts: {}", dead.status, dead.attempts, dead.last_error.unwrap_or_default());
    }
    Ok(())
}
