//! Derived messages: attributes of the event as templates, versions of a payload, and an enum with
//! an event type for each variant.
//!
//! ```sh
//! cargo run --example message_derive
//! ```

use std::time::Duration;

use outbox::{
    Backoff, Context, Event, FromEvent, LogEvent, MESSAGE_VERSION, Message, Outbox, PayloadError, Query,
    UpcastError,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Message, Serialize, Deserialize)]
#[message(type = "order.placed", version = 2, upcast = upcast)]
#[message(aggregate = "order/{order}", key = "customer-{customer}")]
struct OrderPlaced {
    order: u64,
    customer: String,
    cents: u64,
}

/// Version 1 had the total in euros.
fn upcast(_: u32, mut payload: Value) -> Result<Value, UpcastError> {
    let euros = payload["total"].as_u64().ok_or_else(|| UpcastError::new("the total is not a number"))?;
    payload["cents"] = json!(euros * 100);
    Ok(payload)
}

async fn confirm(placed: OrderPlaced, _: Context) {
    println!("order {} is placed by {}, for {} cents", placed.order, placed.customer, placed.cents);
}

/// The events of a room. Each variant is an event type, and needs no derive of serde.
#[derive(Message)]
#[message(tags(room = "{room}"))]
enum Room {
    #[message(type = "SeatBooked", tags(guest = "{guest}"))]
    Booked { room: String, guest: String },
    #[message(type = "SeatCancelled", tags(guest = "{guest}"))]
    Cancelled { room: String, guest: String },
}

/// The guests of a room, or the first event that cannot be read.
type Guests = Result<Vec<String>, PayloadError>;

fn apply(guests: Guests, event: &LogEvent) -> Guests {
    let mut guests = guests?;
    match event.message()? {
        Room::Booked { guest, .. } => guests.push(guest),
        Room::Cancelled { guest, .. } => guests.retain(|other| *other != guest),
    }
    Ok(guests)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let outbox = Outbox::sqlite(":memory:").await?;
    outbox.migrate().await?;
    let an_hour = Backoff::default().base(Duration::from_secs(3_600)).max(Duration::from_secs(3_600));
    let relay = outbox.single_node().retry(an_hour).on(confirm).start().await?;

    outbox.send(OrderPlaced { order: 42, customer: "ada".into(), cents: 995 }).await?;
    relay.idle().await?;

    // Events of another build: an older one, and a newer one that this build cannot read.
    let old = json!({ "order": 41, "customer": "ada", "total": 5 });
    outbox.send(Event::new("order.placed").aggregate("order", "41").json(&old)).await?;
    relay.idle().await?;
    let new = json!({ "order": 40, "buyer": { "name": "ada" } });
    let newer = Event::new("order.placed").id("order-40").aggregate("order", "40");
    let id = outbox.send(newer.header(MESSAGE_VERSION, "3").json(&new)).await?.id;
    relay.idle().await?;

    let log = outbox.log();
    let booked = |guest: &str| Room::Booked { room: "12".into(), guest: guest.into() };
    log.append([booked("ada"), booked("grace"), booked("joan")]).await?;
    log.append([Room::Cancelled { room: "12".into(), guest: "grace".into() }]).await?;
    let room = Query::tag("room", "12").types(Room::TYPES.iter().copied());
    let guests = log.project(room, Ok(Vec::new()), apply).await?.state?;
    println!("seats: {}", guests.join(", "));

    relay.stop().await?;
    let waiting = outbox.admin().find(&id).await?.expect("it is not done");
    println!("{id} is {} after {} attempt", waiting.status, waiting.attempts);
    println!("{}", waiting.last_error.unwrap_or_default());
    Ok(())
}
