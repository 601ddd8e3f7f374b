//! The event log: a seat is booked on the condition that it is free, and a subscription publishes
//! all bookings in order. The example `wallets` has concurrent decisions.
//!
//! ```sh
//! cargo run --example event_log
//! ```

use outbox::{
    Appended, Condition, Error, EventBuilder, Log, Message, Outbox, Query, StatisticsPublisher, Topic,
};
use serde::{Deserialize, Serialize};
use sqlx::Sqlite;

const SEATS: usize = 2;

#[derive(Serialize, Deserialize)]
struct SeatBooked {
    seat: String,
    guest: String,
}

impl Message for SeatBooked {
    const TYPE: &'static str = "SeatBooked";

    /// Conditions and topics select events by tags.
    fn describe(&self, event: EventBuilder) -> EventBuilder {
        event.tag("seat", &self.seat).tag("guest", &self.guest)
    }
}

/// Books a seat for a guest: a seat is booked once, and a repeated request changes nothing.
async fn book(log: &Log<Sqlite>, seat: &str, guest: &str) -> outbox::Result<&'static str> {
    let booked = SeatBooked { seat: seat.into(), guest: guest.into() };
    let is_free = Condition::unless(Query::tag("seat", seat));
    let same_request = Query::tag("seat", seat).and_tag("guest", guest);
    match log.append_if([booked], is_free.once(same_request)).await {
        Ok(Appended::New(_)) => Ok("booked"),
        Ok(Appended::Already) => Ok("booked before"),
        Err(Error::Conflict { .. }) => Ok("taken"),
        Err(error) => Err(error),
    }
}

#[tokio::main]
async fn main() -> outbox::Result<()> {
    let outbox = Outbox::sqlite(":memory:").await?;
    outbox.migrate().await?;
    let log = outbox.log();
    let counts = StatisticsPublisher::new(); // any `Publisher`: see the example `publisher`
    let topic = Topic::new("bookings").types([SeatBooked::TYPE]);
    let relay = outbox.log_only().publish(topic.to(counts.clone())).start().await?;

    for (seat, guest) in [("1A", "ada"), ("1A", "grace"), ("1A", "ada"), ("1B", "grace")] {
        println!("{seat} for {guest}: {}", book(&log, seat, guest).await?);
    }

    // A decision on many events: fold them, decide, append if no matching event was appended since.
    let bookings = Query::of_types([SeatBooked::TYPE]);
    let sold = log.project(bookings, 0, |count, _| count + 1).await?;
    println!("{} of {SEATS} seats sold", sold.state);
    book(&log, "1C", "joan").await?;
    let closed = outbox::Event::new("SalesClosed").json(&sold.state);
    match log.append_if([closed], sold.unchanged()).await {
        Err(Error::Conflict { .. }) => println!("a seat was sold meanwhile: decide again"),
        other => println!("closed: {}", other.is_ok()),
    }

    relay.idle().await?;
    println!("published: {} bookings", counts.statistics().of(SeatBooked::TYPE));
    for subscription in outbox.log_admin().lag().await? {
        println!("{} is {}, {} behind", subscription.id, subscription.status, subscription.behind);
    }
    relay.stop().await
}
