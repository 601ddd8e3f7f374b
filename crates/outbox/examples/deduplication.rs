//! A deduplication key: while an event with the key is in the table, no other is written, so that a
//! repeated request has one event.
//!
//! ```sh
//! cargo run --example deduplication
//! ```

use outbox::{Completion, Context, Event, EventBuilder, Handled, Outbox};

fn invoice(order: u32) -> EventBuilder {
    Event::new("invoice.send").dedup_key(format!("invoice-{order}")).json(&order)
}

async fn send(cx: Context) -> Handled {
    println!("invoice of order {} is sent", cx.payload::<u32>()?);
    Ok(())
}

#[tokio::main]
async fn main() -> outbox::Result<()> {
    let outbox = Outbox::sqlite(":memory:").await?;
    outbox.migrate().await?;

    // `send` returns the id of the event, or `None` if an event with the key exists.
    println!("first request: written {}", outbox.send(invoice(42)).await?.is_some());
    println!("same request again: written {}", outbox.send(invoice(42)).await?.is_some());

    // With `Keep`, the default, the key is taken until the event is purged. With `Delete` it is
    // free when the event is done.
    let relay =
        outbox.single_node().completion(Completion::Delete).on_type("invoice.send", send).start().await?;
    relay.idle().await?;
    relay.stop().await?;
    println!("request after the delivery: written {}", outbox.send(invoice(42)).await?.is_some());

    // In a batch, the result has the ids of the events that were written.
    let written = outbox.send_all([invoice(43), invoice(44), invoice(43)]).await?;
    println!("of three in a batch: written {}", written.len());
    Ok(())
}
