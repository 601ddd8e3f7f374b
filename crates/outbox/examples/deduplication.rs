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

    // The result has the id of the event, and whether it is new. For a duplicate the id is that of
    // the event that exists.
    println!("first request: written {}", outbox.send(invoice(42)).await?.is_new());
    println!("same request again: written {}", outbox.send(invoice(42)).await?.is_new());

    // With `Keep`, the default, the key is taken until the event is purged. With `Delete` it is
    // free when the event is done.
    let relay =
        outbox.single_node().completion(Completion::Delete).on_type("invoice.send", send).start().await?;
    relay.idle().await?;
    relay.stop().await?;
    println!("request after the delivery: written {}", outbox.send(invoice(42)).await?.is_new());

    // A batch returns a result for each event.
    let written = outbox.send_all([invoice(43), invoice(44), invoice(43)]).await?;
    println!("of three in a batch: written {}", written.iter().filter(|written| written.is_new()).count());
    Ok(())
}
