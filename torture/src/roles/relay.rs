//! A relay of the library, with handlers that write down what they see.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use outbox::{Backoff, Completion, OnDead, Outbox, Relay, RelayBuilder, Topic, Unrouted};
use tokio::signal::unix::{SignalKind, signal};

use super::Told;
use super::handlers::{Book, Foreign, Hand};
use super::publisher::Recorder;
use crate::arena::{Arena, PUBLISHERS, TOPIC, WORN_OUT_AFTER};
use crate::base::Base;
use crate::history::Scribe;
use crate::poison;
use crate::work::Kind;

/// Relays until SIGTERM.
pub async fn play<DB: Base>(told: &Told) -> Result<()> {
    let mut enough = signal(SignalKind::terminate())?;
    let scribe = Arc::new(Scribe::new(&told.folder, &told.process)?);
    let starting = async {
        let outbox = told.open::<DB>().await;
        start(&outbox, told, &scribe).await
    };
    let relay = tokio::select! {
        relay = starting => relay,
        _ = enough.recv() => return Ok(()),
    };
    enough.recv().await;
    stop(relay).await
}

/// Stops a relay. What it cannot give back, because the database is away just now, is free when the leases run out.
pub(super) async fn stop(relay: Relay) -> Result<()> {
    match relay.stop().await {
        Err(error) if error.is_transient() => {
            tracing::warn!(%error, "could not give back everything");
            Ok(())
        }
        result => Ok(result?),
    }
}

/// Starts a relay as the arena wants it. The database may be away just now: then tries until it is back.
pub(super) async fn start<DB: Base>(outbox: &Outbox<DB>, told: &Told, scribe: &Arc<Scribe>) -> Relay {
    loop {
        match build(outbox, told, scribe).start().await {
            Ok(relay) => return relay,
            Err(error) => {
                tracing::warn!(%error, "cannot start yet");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

fn build<DB: Base>(outbox: &Outbox<DB>, told: &Told, scribe: &Arc<Scribe>) -> RelayBuilder {
    let hand = Hand::new(scribe.clone(), told.folder.clone());
    let book = Book { hand: hand.clone(), table: told.table() };
    let worn = soon().max_attempts(WORN_OUT_AFTER);
    let mut relay = match told.arena {
        Arena::Single => outbox.single_node().completion(Completion::Delete),
        Arena::Multi | Arena::Broker => {
            outbox.multi_node().lease(Duration::from_millis(u64::from(told.lease)))
        }
    };
    relay = relay
        .node(told.process.as_str())
        .workers(4)
        .hot_capacity(40)
        .cold_capacity(40)
        .batch(20)
        .poll_interval(Duration::from_millis(300))
        .retry(soon().max_attempts(1_000))
        .unrouted(Unrouted::Retry)
        .on_dead(OnDead::Skip)
        .drain(Duration::from_secs(2))
        .no_purge()
        .handler("__GLOBAL__", poison::EVENT_TYPE, Foreign(hand.clone()))
        .handler_with_retry("__GLOBAL__", Kind::Worn.event_type(), hand.clone(), worn)
        .tx_handler::<DB>("__GLOBAL__", Kind::Book.event_type(), book);
    for kind in [Kind::Plain, Kind::Doomed, Kind::Then, Kind::Sorry] {
        relay = relay.handler("__GLOBAL__", kind.event_type(), hand.clone());
    }
    for generation in 1..=told.generation {
        relay = relay.handler("__GLOBAL__", Kind::Generation(generation).event_type(), hand.clone());
    }
    if told.arena.has_log() {
        for name in PUBLISHERS {
            relay = relay.publish(Topic::new(TOPIC).to(Recorder { name, scribe: scribe.clone() }));
        }
    }
    relay
}

fn soon() -> Backoff {
    Backoff::default().base(Duration::from_millis(50)).max(Duration::from_secs(1))
}
