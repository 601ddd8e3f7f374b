//! A publisher of your own: it gets events in batches and reports a result for each. While it is
//! unavailable its events wait, and no attempt is counted.
//!
//! ```sh
//! cargo run --example publisher
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use outbox::{
    DeadFilter, Destination, Event, EventBuilder, EventResult, Failure, Outbox, Outgoing, PublishError,
    Publisher, Unavailable,
};
use tokio::sync::mpsc;

/// A gateway that sends mails.
struct Gateway {
    is_up: Arc<AtomicBool>,
    sent: mpsc::UnboundedSender<String>,
}

#[async_trait]
impl Publisher for Gateway {
    fn name(&self) -> &str {
        "mail-gateway"
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        self.health().await.map_err(PublishError::unavailable)?;
        let mut results = Vec::new();
        for event in events {
            let address: String = event.payload()?;
            results.push(if address.contains('@') {
                let _ = self.sent.send(address);
                EventResult::Published
            } else {
                EventResult::Failed(Failure::dead(format!("{address} is not an address")))
            });
        }
        // `Ok(())` means that all were published.
        if results.iter().all(|result| *result == EventResult::Published) {
            return Ok(());
        }
        Err(PublishError::each(results))
    }

    async fn health(&self) -> Result<(), Unavailable> {
        Unavailable::unless(self.is_up.load(Ordering::SeqCst), "connection refused")
    }
}

fn mail(to: &str) -> EventBuilder {
    Event::new("mail.send").json(to)
}

#[tokio::main]
async fn main() -> outbox::Result<()> {
    let outbox = Outbox::sqlite(":memory:").await?;
    outbox.migrate().await?;
    let is_up = Arc::new(AtomicBool::new(false));
    let (sent, mut arrivals) = mpsc::unbounded_channel();
    let gateway = Destination::new(Gateway { is_up: is_up.clone(), sent });
    let relay = outbox.multi_node().forward(["mail.send"], gateway.clone()).start().await?;

    outbox.send(mail("ada@example.org")).await?;
    relay.idle().await?;
    let outage = gateway.outage().map(|outage| outage.reason);
    println!("{} is unavailable: {}", gateway.name(), outage.unwrap_or_default());
    println!("{} event waits", outbox.admin().backlog().await?.pending);

    is_up.store(true, Ordering::SeqCst);
    println!("sent to {}", arrivals.recv().await.unwrap_or_default());
    relay.idle().await?;

    outbox.send_all([mail("grace@example.org"), mail("nowhere")]).await?;
    println!("sent to {}", arrivals.recv().await.unwrap_or_default());
    relay.idle().await?;
    for dead in outbox.admin().dead(&DeadFilter::default(), 10).await? {
        println!("{} after {} attempts: {}", dead.status, dead.attempts, dead.last_error.unwrap_or_default());
    }
    relay.stop().await
}
