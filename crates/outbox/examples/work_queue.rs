//! Workers that pull, without a relay: they claim items for a time, extend the lease, and report
//! each item as done or failed. An item whose lease expired goes to another worker.
//!
//! ```sh
//! cargo run --example work_queue
//! ```

use std::time::Duration;

use chrono::Utc;
use outbox::{Clock, Event, FrozenClock, NodeId, OutboxBuilder, WorkItem};

const LEASE: Duration = Duration::from_secs(30);

fn show(worker: &NodeId, items: &[WorkItem]) {
    let images: Vec<String> = items.iter().filter_map(|item| item.payload().ok()).collect();
    println!("{worker} claims {images:?}");
}

#[tokio::main]
async fn main() -> outbox::Result<()> {
    let clock = FrozenClock::at(Utc::now());
    let outbox = OutboxBuilder::new().clock(Clock::Frozen(clock.clone())).sqlite(":memory:").await?;
    outbox.migrate().await?;
    outbox.send_all(["a.png", "b.png", "c.png"].map(|image| Event::new("image.resize").json(image))).await?;

    let queue = outbox.queue();
    let (ada, grace) = (NodeId::from("ada"), NodeId::from("grace")); // one name for each worker

    let items = queue.claim(&ada, LEASE, 2).await?;
    show(&ada, &items);
    println!("acknowledged: {}", queue.ack(&ada, [items[0].id()]).await?);
    println!("abandoned: {}", queue.abandon(&ada, [items[1].id()], "out of memory").await?);

    // The abandoned item is due again after 2 s.
    let items = queue.claim(&grace, LEASE, 10).await?;
    show(&grace, &items);
    clock.advance(Duration::from_secs(2));
    let again = queue.claim(&ada, LEASE, 10).await?;
    show(&ada, &again);
    println!("attempt {}, after: {}", again[0].attempt(), again[0].last_error().unwrap_or("no error"));

    // Grace renews the lease of her item, ada does not.
    clock.advance(Duration::from_secs(20));
    println!("extended: {}", queue.extend(&grace, LEASE, [items[0].id()]).await?.len());
    clock.advance(Duration::from_secs(20));
    let taken_over = queue.claim(&grace, LEASE, 10).await?;
    show(&grace, &taken_over);
    println!("late ack of ada takes effect: {}", queue.ack(&ada, [again[0].id()]).await? > 0);

    let ids = items.iter().chain(&taken_over).map(WorkItem::id);
    println!("acknowledged: {}", queue.ack(&grace, ids).await?);
    println!("done: {}", outbox.admin().stats().await?.done);
    Ok(())
}
