//! Graceful shutdown: a relay that stops finishes its queued events. Events that do not end in time
//! are released, and another relay delivers them, without a counted attempt.
//!
//! ```sh
//! cargo run --example shutdown
//! ```

use std::sync::Arc;
use std::time::Duration;

use outbox::{Context, Event, Handled, Outbox};
use tokio::sync::{Notify, Semaphore, oneshot};

/// Exports a report as soon as the gate is open.
async fn export(cx: Context, gate: Arc<Semaphore>) -> Handled {
    let _permit = gate.acquire().await?;
    println!("exported {}, attempt {}", cx.payload::<u32>()?, cx.attempt());
    Ok(())
}

#[tokio::main]
async fn main() -> outbox::Result<()> {
    let outbox = Outbox::sqlite(":memory:").await?;
    outbox.migrate().await?;
    let reports = |from: u32, to: u32| (from..=to).map(|n| Event::new("report.export").json(&n));

    let gate = Arc::new(Semaphore::new(0));
    let exporter = {
        let gate = gate.clone();
        move |cx: Context| export(cx, gate.clone())
    };

    // A service: it runs until a signal, or until its relay has failed for good.
    let relay = outbox.single_node().workers(1).on_type("report.export", exporter.clone()).start().await?;
    let (signal, received) = oneshot::channel::<()>(); // in a service tokio::signal::ctrl_c()
    outbox.send_all(reports(1, 3)).await?;
    drop(signal);
    tokio::select! {
        ended = relay.stopped() => return ended,
        _ = received => println!("signal received"),
    }
    gate.add_permits(1); // until here the first report is in flight, and two are queued
    relay.stop().await?;
    println!("stopped, {} pending", outbox.admin().backlog().await?.pending);

    // A handler that does not end within the drain time.
    let began = Arc::new(Notify::new());
    let begins = began.clone();
    let stuck = move |_: Context| {
        begins.notify_one();
        std::future::pending::<()>()
    };
    let relay = outbox
        .single_node()
        .drain(Duration::from_millis(50)) // 5 s if not set
        .on_type("report.export", stuck)
        .start()
        .await?;
    outbox.send_all(reports(4, 4)).await?;
    began.notified().await;
    relay.stop().await?;
    println!("stopped, {} pending", outbox.admin().backlog().await?.pending);

    let relay = outbox.single_node().on_type("report.export", exporter).start().await?;
    relay.idle().await?;
    relay.stop().await
}
