//! An order and its event in one transaction, a handler that fails once, and the resulting
//! statistics.
//!
//! ```sh
//! cargo run --example orders
//! ```

use std::time::Duration;

use outbox::{Backoff, Context, EventBuilder, Failure, Message, Outbox};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    order: i64,
    total: i64,
}

impl Message for OrderPlaced {
    const TYPE: &'static str = "order.placed";

    fn describe(&self, event: EventBuilder) -> EventBuilder {
        event.aggregate("order", self.order.to_string())
    }
}

async fn bill(placed: OrderPlaced, cx: Context) -> Result<(), Failure> {
    if cx.attempt() == 1 {
        return Err(Failure::retry("the printer is out of paper"));
    }
    println!("billed {} for order {}, at attempt {}", placed.total, placed.order, cx.attempt());
    Ok(())
}

#[tokio::main]
async fn main() -> outbox::Result<()> {
    let outbox = Outbox::sqlite(":memory:").await?;
    outbox.migrate().await?;
    sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)").execute(outbox.pool()).await?;
    let relay = outbox
        .single_node()
        .retry(Backoff::default().base(Duration::from_millis(10)))
        .on(bill)
        .start()
        .await?;

    let mut tx = outbox.begin().await?;
    sqlx::query("INSERT INTO orders (id, total) VALUES (42, 995)").execute(&mut *tx).await?;
    tx.write(OrderPlaced { order: 42, total: 995 }).await?;
    tx.commit().await?;

    while outbox.admin().backlog().await?.pending > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    relay.stop().await?;
    println!("{:?}", outbox.admin().stats().await?);
    Ok(())
}
