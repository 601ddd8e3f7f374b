//! Events for later: after a delay, at a time, not after a time, and cancelled before they are due.
//!
//! ```sh
//! cargo run --example scheduled
//! ```

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use outbox::{Clock, Context, DeadFilter, Event, FrozenClock, Handled, OutboxBuilder};

const HOUR: Duration = Duration::from_secs(3_600);

async fn remind(cx: Context) -> Handled {
    println!("  reminder: {}", cx.payload::<String>()?);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A clock that this program moves, so that it need not wait for hours.
    let morning: DateTime<Utc> = "2030-01-01T08:00:00Z".parse()?;
    let clock = FrozenClock::at(morning);
    let outbox = OutboxBuilder::new().clock(Clock::Frozen(clock.clone())).sqlite(":memory:").await?;
    outbox.migrate().await?;

    let reminder = |text: &str| Event::new("reminder").json(text);
    outbox.send(reminder("tea, after an hour").deliver_after(HOUR)).await?;
    outbox.send(reminder("lunch, at noon").available_at(morning + TimeDelta::hours(4))).await?;
    outbox.send(reminder("breakfast, before nine").expires_at(morning + TimeDelta::hours(1))).await?;
    let dentist =
        outbox.send(reminder("dentist, at ten").available_at(morning + TimeDelta::hours(2))).await?;

    println!("dentist cancelled: {}", outbox.admin().cancel(&dentist.id).await?);

    // The relay is started too late for breakfast.
    clock.advance(HOUR);
    let relay = outbox.single_node().on_type("reminder", remind).start().await?;
    for _ in 0..4 {
        println!("{}", clock.now().format("%H:%M"));
        relay.idle().await?;
        clock.advance(HOUR);
    }
    relay.stop().await?;

    for dead in outbox.admin().dead(&DeadFilter::default(), 10).await? {
        println!("dead: {}, {}", dead.event?.payload::<String>()?, dead.last_error.unwrap_or_default());
    }
    Ok(())
}
