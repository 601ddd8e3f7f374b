//! A test of code that writes events and of a handler, as the body of a `#[tokio::test]`: an outbox
//! in memory, assertions on written events, and a relay that is awaited instead of a sleep. Needs
//! the feature `testing`, in your dev-dependencies.
//!
//! ```sh
//! cargo run --example testing
//! ```

use outbox::{Context, Event, Failure, Handled, LatchPublisher, Message, Outbox, Status, testing};
use serde::{Deserialize, Serialize};
use sqlx::Sqlite;

#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct OrderPlaced {
    order: u64,
}

impl Message for OrderPlaced {
    const TYPE: &'static str = "order.placed";
}

// The code under test.

async fn place(outbox: &Outbox<Sqlite>, order: u64) -> outbox::Result<()> {
    outbox.send(OrderPlaced { order }).await?;
    Ok(())
}

async fn confirm(placed: OrderPlaced, _: Context) -> Handled {
    if placed.order == 0 { Err(Failure::dead("there is no order 0")) } else { Ok(()) }
}

// The tests.

async fn placing_an_order_writes_one_event() -> outbox::Result<()> {
    let outbox = testing::outbox().await; // in memory, with tables
    place(&outbox, 42).await?;

    let written = testing::written(&outbox).await;
    assert_eq!(written.one("order.placed").payload::<OrderPlaced>().ok(), Some(OrderPlaced { order: 42 }));
    written.none("order.cancelled");
    Ok(())
}

async fn an_order_without_a_number_is_dead() -> outbox::Result<()> {
    let outbox = testing::outbox().await;
    let relay = outbox.single_node().on(confirm).start().await?;
    place(&outbox, 42).await?;
    place(&outbox, 0).await?;
    relay.idle().await?; // no event is due or in flight
    relay.stop().await?;

    let written = testing::written(&outbox).await;
    let status: Vec<Status> = written.all().iter().map(|stored| stored.status).collect();
    assert_eq!(status, [Status::Done, Status::Dead]);
    Ok(())
}

async fn a_message_reaches_the_publisher() -> outbox::Result<()> {
    let outbox = testing::outbox().await;
    let latch = LatchPublisher::expecting(1);
    let relay = outbox.single_node().forward(["mail.send"], latch.clone()).start().await?;
    outbox.send(Event::new("mail.send").json("ada@example.org")).await?;

    let arrived = latch.wait(std::time::Duration::from_secs(30)).await.expect("it arrives");
    assert_eq!(arrived[0].payload::<String>().ok().as_deref(), Some("ada@example.org"));
    relay.stop().await
}

#[tokio::main]
async fn main() -> outbox::Result<()> {
    placing_an_order_writes_one_event().await?;
    println!("placing_an_order_writes_one_event: ok");
    an_order_without_a_number_is_dead().await?;
    println!("an_order_without_a_number_is_dead: ok");
    a_message_reaches_the_publisher().await?;
    println!("a_message_reaches_the_publisher: ok");
    Ok(())
}
