//! Failed attempts, snoozes and dead letters: a handler decides between a retry, a later delivery
//! and a dead letter, which is replayed when its cause is repaired.
//!
//! ```sh
//! cargo run --example retries
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::Utc;
use outbox::{
    Backoff, Clock, Context, DeadFilter, Event, Failure, FrozenClock, OutboxBuilder, Outcome, on_type,
};

const SECOND: Duration = Duration::from_secs(1);

async fn charge(cx: Context, is_repaired: bool) -> Result<Outcome, Failure> {
    let order: String = cx.payload()?;
    println!("{order}: attempt {}", cx.attempt());
    match order.as_str() {
        // Retried by the policy, which gives up after some attempts.
        "books" if cx.attempt() < 3 => Err(Failure::retry("the bank does not answer")),
        // Delivered again later; not an attempt.
        "shoes" if !is_repaired => Ok(Outcome::Snooze(SECOND * 60)),
        // Dead at once: a retry cannot help.
        "house" if !is_repaired => Err(Failure::dead("the card was refused")),
        _ => Ok(Outcome::Done),
    }
}

#[tokio::main]
async fn main() -> outbox::Result<()> {
    let clock = FrozenClock::at(Utc::now());
    let outbox = OutboxBuilder::new().clock(Clock::Frozen(clock.clone())).sqlite(":memory:").await?;
    outbox.migrate().await?;
    let repaired = Arc::new(AtomicBool::new(false));
    let state = repaired.clone();
    let relay = outbox
        .single_node()
        .route(
            on_type("order.charge", move |cx: Context| charge(cx, state.load(Ordering::SeqCst)))
                .retry(Backoff::default().base(SECOND).max_attempts(5).no_jitter()),
        )
        .start()
        .await?;

    // Three attempts: the second after 1 s, the third after another 2 s.
    outbox.send(Event::new("order.charge").json("books")).await?;
    relay.idle().await?;
    for wait in [1, 2] {
        clock.advance(SECOND * wait);
        relay.idle().await?;
    }

    outbox.send(Event::new("order.charge").json("house")).await?;
    relay.idle().await?;
    for dead in outbox.admin().dead(&DeadFilter::default().event_type("order.charge"), 10).await? {
        println!("{}: {}", dead.status, dead.last_error.unwrap_or_default());
    }

    outbox.send(Event::new("order.charge").json("shoes")).await?;
    relay.idle().await?;
    repaired.store(true, Ordering::SeqCst);
    clock.advance(SECOND * 60);
    relay.idle().await?;

    println!("replayed: {}", outbox.admin().replay_all(&DeadFilter::default(), 100).await?);
    relay.idle().await?;
    relay.stop().await?;
    let stats = outbox.admin().stats().await?;
    println!("done: {}, dead: {}", stats.done, stats.dead);
    Ok(())
}
