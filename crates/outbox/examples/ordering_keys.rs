//! Events of one ordering key are delivered one after another, with any number of workers. A
//! failing event holds back its own key only.
//!
//! ```sh
//! cargo run --example ordering_keys
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::Utc;
use outbox::{Backoff, Clock, Context, Event, EventBuilder, Failure, FrozenClock, Handled, OutboxBuilder};

/// Delivered changes of each account, in the order of delivery.
type Delivered = Arc<Mutex<BTreeMap<String, Vec<u32>>>>;

fn change(account: &str, number: u32) -> EventBuilder {
    Event::new("account.changed").ordering_key(account).json(&number)
}

async fn apply(cx: Context, delivered: Delivered) -> Handled {
    let (account, number): (&str, u32) = (cx.ordering_key().unwrap_or_default(), cx.payload()?);
    if (account, number, cx.attempt()) == ("ada", 2, 1) {
        return Err(Failure::retry("ada's account is locked"));
    }
    delivered.lock().expect("no panic").entry(account.to_owned()).or_default().push(number);
    Ok(())
}

#[tokio::main]
async fn main() -> outbox::Result<()> {
    let clock = FrozenClock::at(Utc::now());
    let outbox = OutboxBuilder::new().clock(Clock::Frozen(clock.clone())).sqlite(":memory:").await?;
    outbox.migrate().await?;
    let delivered = Delivered::default();
    let handled = delivered.clone();
    let relay = outbox
        .multi_node()
        .workers(8)
        .retry(Backoff::default().base(Duration::from_secs(1)).no_jitter())
        .on_type("account.changed", move |cx: Context| apply(cx, handled.clone()))
        .start()
        .await?;

    let changes = (1..=5).flat_map(|number| ["ada", "grace", "joan"].map(|account| change(account, number)));
    outbox.send_all(changes).await?;

    relay.idle().await?;
    println!("while change 2 of ada waits for its retry:");
    show(&delivered);

    clock.advance(Duration::from_secs(1));
    relay.idle().await?;
    println!("after the retry:");
    show(&delivered);
    relay.stop().await
}

fn show(delivered: &Delivered) {
    for (account, numbers) in &*delivered.lock().expect("no panic") {
        println!("  {account}: {numbers:?}");
    }
}
