//! Metrics of a relay: any recorder of the `metrics` crate exports them. This program installs a
//! recorder that keeps them in memory, a service one for Prometheus or OpenTelemetry.
//!
//! ```sh
//! cargo run --example metrics
//! ```

use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use outbox::{Context, Event, Failure, OutboxBuilder, Outcome};

async fn handle(cx: Context) -> Result<Outcome, Failure> {
    match cx.payload::<u32>()? {
        1 => Err(Failure::dead("the card was refused")),
        2 => Ok(Outcome::Snooze(Duration::from_secs(3_600))),
        _ => Ok(Outcome::Done),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Before the relay is started: it looks its metrics up once.
    let recorder = DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    recorder.install()?;

    let outbox = OutboxBuilder::new().name("orders").sqlite(":memory:").await?;
    outbox.migrate().await?;
    let relay = outbox.single_node().on_type("order.placed", handle).start().await?;
    outbox.send_all((1..=5).map(|number| Event::new("order.placed").json(&number))).await?;
    relay.idle().await?;
    relay.stop().await?;

    let mut lines = Vec::new();
    for (key, _, _, value) in snapshots.snapshot().into_vec() {
        let labels: Vec<String> =
            key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let name = key.key().name();
        // Others count the ways into the relay, its queues, its lag and its errors.
        if let (true, DebugValue::Counter(count)) = (name.starts_with("outbox.dispatch."), value) {
            lines.push(format!("{name} {{{}}} {count}", labels.join(", ")));
        }
    }
    lines.sort();
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}
