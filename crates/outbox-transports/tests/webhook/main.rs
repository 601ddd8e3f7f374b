//! Webhooks against a real HTTP server.
#![cfg(feature = "webhook")]

#[path = "../common/mod.rs"]
mod common;
mod harness;
mod receiver;
mod refusals;
mod relayed;
mod requests;
mod tls;

use outbox::{Event, EventResult, Outgoing, PublishError};

/// An event without a key.
fn event(number: usize) -> Outgoing {
    Outgoing::new(Event::new("order.placed").json(&number).build().unwrap())
}

/// An event with a key.
fn keyed(key: &str, number: usize) -> Outgoing {
    Outgoing::new(Event::new("order.placed").ordering_key(key).json(&number).build().unwrap())
}

/// The result of each event.
fn fates(error: &PublishError, count: usize) -> Vec<EventResult> {
    (0..count).map(|index| error.fate(index).unwrap()).collect()
}
