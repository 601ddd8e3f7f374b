//! A consumer behind the broker: records each arrival and books each event once, by its inbox.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use async_nats::jetstream::{self, AckKind, consumer};
use futures_util::StreamExt as _;
use outbox::Outbox;
use tokio::signal::unix::{SignalKind, signal};

use super::ProcessOptions;
use crate::database::TestDatabase;
use crate::history::{Op, Writer};

/// The stream of all events.
pub const STREAM: &str = "torture";

/// The consumer's name, in the broker and in the inbox.
pub const CONSUMER: &str = "reader";

/// The subject of events.
pub const SUBJECT: &str = "torture.{type}";

/// Creates the stream. Its duplicate window is short so that duplicates become visible.
pub async fn make_stream(broker: &str) -> Result<()> {
    let jetstream = jetstream::new(async_nats::connect(broker).await?);
    let config = jetstream::stream::Config {
        name: STREAM.into(),
        subjects: vec!["torture.>".into()],
        duplicate_window: Duration::from_millis(100),
        ..Default::default()
    };
    let stream = jetstream.create_stream(config).await?;
    let config = consumer::pull::Config {
        durable_name: Some(CONSUMER.into()),
        ack_wait: Duration::from_secs(5),
        ..Default::default()
    };
    stream.create_consumer(config).await?;
    Ok(())
}

/// Number of messages that are not delivered or not acknowledged.
pub async fn left(broker: &str) -> Result<u64> {
    let jetstream = jetstream::new(async_nats::connect(broker).await?);
    let stream = jetstream.get_stream(STREAM).await?;
    let info = stream.consumer_info(CONSUMER).await?;
    Ok(info.num_pending + info.num_ack_pending as u64)
}

/// Reads until SIGTERM.
pub async fn run<DB: TestDatabase>(options: &ProcessOptions) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let history = Arc::new(Writer::new(&options.folder, &options.process)?);
    let reading = async {
        let outbox = options.open::<DB>().await;
        loop {
            // The broker may be down.
            if let Err(error) = read(options, &outbox, &history).await {
                tracing::warn!(error = format!("{error:#}"), "cannot read from the broker; retrying");
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::select! {
        () = reading => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

async fn read<DB: TestDatabase>(
    options: &ProcessOptions,
    outbox: &Outbox<DB>,
    history: &Writer,
) -> Result<()> {
    let client = async_nats::connect(options.broker.as_str()).await?;
    let stream = jetstream::new(client).get_stream(STREAM).await?;
    let consumer: consumer::PullConsumer = stream.get_consumer(CONSUMER).await.map_err(|e| anyhow!("{e}"))?;
    let mut messages = consumer.messages().await?;
    while let Some(message) = messages.next().await {
        let message = message?;
        let place = message.info().map_err(|e| anyhow!("{e}"))?.stream_sequence;
        let headers = message.headers.as_ref().context("a message without headers")?;
        let id = headers.get("Nats-Msg-Id").context("a message without an id")?.to_string();
        let seq = headers.get("outbox-seq").and_then(|seq| seq.as_str().parse().ok());
        history.record(Op::Arrived { id: id.clone(), seq, place });
        if !options.arena.owns(&id) {
            message.ack().await.map_err(|e| anyhow!("{e}"))?;
            continue;
        }
        match book(options, outbox, &id).await {
            Ok(()) => message.ack().await.map_err(|e| anyhow!("{e}"))?,
            Err(error) => {
                tracing::warn!(%error, "booking failed; the message will be redelivered");
                let later = AckKind::Nak(Some(Duration::from_millis(200)));
                message.ack_with(later).await.map_err(|e| anyhow!("{e}"))?;
            }
        }
    }
    Ok(())
}

async fn book<DB: TestDatabase>(
    options: &ProcessOptions,
    outbox: &Outbox<DB>,
    id: &str,
) -> outbox::Result<()> {
    let mut tx = outbox.begin().await?;
    if tx.once(CONSUMER, id).await? {
        let table = options.table();
        DB::execute_sql(&mut tx, &format!("INSERT INTO {table}_ledger (event_id) VALUES ('{id}')")).await?;
        DB::execute_sql(&mut tx, &format!("UPDATE {table}_account SET balance = balance + 1")).await?;
    }
    tx.commit().await
}
