//! Which rows stay and for how long: done events until they are purged, dead events until an
//! operator decides, and no done events at all with `Completion::Delete`.
//!
//! ```sh
//! cargo run --example retention
//! ```

use std::time::Duration;

use chrono::Utc;
use outbox::{
    Clock, Completion, Context, Event, Failure, FrozenClock, Handled, Outbox, OutboxBuilder, PurgeSettings,
};
use sqlx::Sqlite;

const DAY: Duration = Duration::from_secs(86_400);

async fn handle(cx: Context) -> Handled {
    if cx.payload::<u32>()? == 0 { Err(Failure::dead("there is no order 0")) } else { Ok(()) }
}

async fn show(outbox: &Outbox<Sqlite>, when: &str) -> outbox::Result<()> {
    let stats = outbox.admin().stats().await?;
    println!("{when}: {} new, {} done, {} dead", stats.new, stats.done, stats.dead);
    Ok(())
}

#[tokio::main]
async fn main() -> outbox::Result<()> {
    let clock = FrozenClock::at(Utc::now());
    let outbox = OutboxBuilder::new().clock(Clock::Frozen(clock.clone())).sqlite(":memory:").await?;
    outbox.migrate().await?;
    let orders = |from: u32, to: u32| (from..=to).map(|order| Event::new("order.placed").json(&order));

    // A relay purges by itself: every hour unless set, and first within a minute of its start.
    let purge = PurgeSettings::default().retention(3 * DAY).dead_retention(30 * DAY).every(DAY / 24);
    let relay = outbox.single_node().purge(purge).on_type("order.placed", handle).start().await?;
    outbox.send_all(orders(0, 3)).await?;
    outbox.send(Event::new("order.audit").json(&0)).await?; // no handler: stays pending
    relay.idle().await?;
    relay.stop().await?;
    show(&outbox, "after the delivery").await?;

    // The same by hand, for a relay with `no_purge()` or none at all.
    let admin = outbox.admin();
    println!("purged at once: {}", admin.purge(3 * DAY).await?);
    clock.advance(4 * DAY);
    println!("purged after 4 days: {}", admin.purge(3 * DAY).await?);
    show(&outbox, "pending and dead events stay").await?;
    clock.advance(30 * DAY);
    println!("dead events purged after 34 days: {}", admin.purge_dead(30 * DAY).await?);

    // Without history: a done event is deleted when it is settled.
    let relay = outbox
        .single_node()
        .completion(Completion::Delete)
        .no_purge()
        .on_type("order.placed", handle)
        .start()
        .await?;
    outbox.send_all(orders(4, 6)).await?;
    relay.idle().await?;
    relay.stop().await?;
    show(&outbox, "with completion delete").await
}
