//! Two services share one table: each relay takes only the events that it has a handler for, and
//! leaves the others pending. Events that no running relay routes are listed.
//!
//! ```sh
//! cargo run --example two_services
//! ```

use outbox::store::Filter;
use outbox::{Context, Event, Outbox};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("shop.db").display().to_string();

    // Two services, with connections of their own, as in two processes. Modes `multi_node` and
    // `ordered` share a table; a `single_node` relay would hold all of it.
    let shop_outbox = Outbox::sqlite(&file).await?;
    shop_outbox.migrate().await?;
    let shop = shop_outbox
        .multi_node()
        .node("shop")
        .on_type("order.placed", async |_: Context| ())
        .on_type("order.shipped", async |_: Context| ())
        .start()
        .await?;
    let bank_outbox = Outbox::sqlite(&file).await?;
    let bank = bank_outbox
        .multi_node()
        .node("bank")
        .on_type("order.refunded", async |_: Context| ())
        .start()
        .await?;

    // Each service writes events, also for the other one.
    shop_outbox.send(Event::new("order.placed").json(&1)).await?;
    shop_outbox.send(Event::new("order.refunded").json(&1)).await?;
    bank_outbox.send(Event::new("order.shipped").json(&1)).await?;
    bank_outbox.send(Event::new("order.audited").json(&1)).await?;
    shop.idle().await?;
    bank.idle().await?;

    let admin = shop_outbox.admin();
    for stored in admin.list(&Filter::default(), 10).await? {
        let by = stored.done_by.map_or("no relay".to_owned(), |node| node.to_string());
        println!("{}: {}, by {by}", stored.event?.event_type(), stored.status);
    }
    for unrouted in admin.unrouted(1_000).await?.types {
        println!("no running relay routes {}: {} pending", unrouted.event_type, unrouted.count);
    }
    shop.stop().await?;
    bank.stop().await?;
    Ok(())
}
