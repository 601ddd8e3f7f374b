//! A library relay with handlers that record their runs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use outbox::{
    Backoff, Completion, Context, HandlerTx, OnDead, Outbox, Relay, RelayBuilder, Topic, Unrouted, on_type,
};
use tokio::signal::unix::{SignalKind, signal};

use super::ProcessOptions;
use super::handlers::RecordingHandler;
use super::publisher::RecordingPublisher;
use crate::arena::{Arena, PUBLISHERS, TOPIC, WORN_OUT_AFTER};
use crate::database::TestDatabase;
use crate::history::Writer;
use crate::poison;
use crate::work::Kind;

/// Runs a relay until SIGTERM.
pub async fn run<DB: TestDatabase>(options: &ProcessOptions) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let history = Arc::new(Writer::new(&options.folder, &options.process)?);
    let starting = async {
        let outbox = options.open::<DB>().await;
        start(&outbox, options, &history).await
    };
    let relay = tokio::select! {
        relay = starting => relay,
        _ = terminate.recv() => return Ok(()),
    };
    terminate.recv().await;
    stop(relay).await
}

/// Stops a relay. Events that it cannot release because the database is unreachable become
/// available when their leases expire.
pub(super) async fn stop(relay: Relay) -> Result<()> {
    match relay.stop().await {
        Err(error) if error.is_transient() => {
            tracing::warn!(%error, "could not release all leases");
            Ok(())
        }
        result => Ok(result?),
    }
}

/// Starts a relay in the arena's mode; retries while the database is unreachable.
pub(super) async fn start<DB: TestDatabase>(
    outbox: &Outbox<DB>,
    options: &ProcessOptions,
    history: &Arc<Writer>,
) -> Relay {
    loop {
        match build(outbox, options, history).start().await {
            Ok(relay) => return relay,
            Err(error) => {
                tracing::warn!(%error, "cannot start the relay; retrying");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

fn build<DB: TestDatabase>(
    outbox: &Outbox<DB>,
    options: &ProcessOptions,
    history: &Arc<Writer>,
) -> RelayBuilder<DB> {
    let handler = RecordingHandler::new(history.clone(), options.folder.clone());
    let plain = |handler: &RecordingHandler| {
        let handler = handler.clone();
        move |cx: Context| handler.clone().handle(cx)
    };
    let foreign = handler.clone();
    let (book, table) = (handler.clone(), Arc::<str>::from(options.table()));
    let worn = soon().max_attempts(WORN_OUT_AFTER);
    let mut relay = match options.arena {
        Arena::Single => outbox.single_node().completion(Completion::Delete),
        Arena::Multi | Arena::Broker => {
            outbox.multi_node().lease(Duration::from_millis(u64::from(options.lease)))
        }
    };
    relay = relay
        .node(options.process.as_str())
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
        .on_type(poison::EVENT_TYPE, move |cx: Context| foreign.clone().handle_foreign(cx))
        .route(on_type(Kind::Worn.event_type(), plain(&handler)).retry(worn))
        .on_type(Kind::Book.event_type(), move |cx: Context, tx: HandlerTx<DB>| {
            book.clone().book(table.clone(), cx, tx)
        });
    for kind in [Kind::Plain, Kind::Doomed, Kind::Then, Kind::Sorry] {
        relay = relay.on_type(kind.event_type(), plain(&handler));
    }
    for generation in 1..=options.generation {
        relay = relay.on_type(Kind::Generation(generation).event_type(), plain(&handler));
    }
    if options.arena.has_log() {
        for name in PUBLISHERS {
            relay =
                relay.publish(Topic::new(TOPIC).to(RecordingPublisher { name, history: history.clone() }));
        }
    }
    relay
}

fn soon() -> Backoff {
    Backoff::default().base(Duration::from_millis(50)).max(Duration::from_secs(1))
}
