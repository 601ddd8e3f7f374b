//! What makes the dashboard worth a look, beside the orders: keys that somebody has to unblock, fan-outs, a destination that goes
//! away and comes back, and a log with publishers that lag. None of it is in the ledger: what becomes of it is up to whoever looks.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox::{
    Cx, Event, EventId, Failure, Handled, Message, Outbox, Outcome, Outgoing, PublishError, Publisher,
    RelayBuilder, Topic, Unavailable,
};
use rand::Rng;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::shop::Shop;

/// How often something happens in the scenes.
const TICK: Duration = Duration::from_millis(250);

/// Whose invoices are sent one after another.
const ACCOUNTS: u64 = 8;
/// Of how many accounts an invoice may lie dead at a time, and how many others may wait behind it.
const MOST_BLOCKED: usize = 3;
const MOST_BEHIND: u64 = 25;

/// How many parcels a shipment has.
const PARCELS: u32 = 12;

/// An invoice for an account, in the order of the account.
#[derive(Serialize, Deserialize)]
struct InvoiceIssued {
    account: u64,
    number: u64,
    /// The tax service refuses it at first. Replayed, it goes through.
    refused: bool,
}

impl Message for InvoiceIssued {
    const TYPE: &'static str = "invoice.issued";
}

/// A step of a shipment.
#[derive(Serialize, Deserialize)]
struct PackParcel {
    shipment: u32,
    parcel: u32,
    is_lost: bool,
}

impl Message for PackParcel {
    const TYPE: &'static str = "parcel.pack";
}

/// All parcels of a shipment are packed.
#[derive(Serialize, Deserialize)]
struct ShipmentReady {
    shipment: u32,
}

impl Message for ShipmentReady {
    const TYPE: &'static str = "shipment.ready";
}

/// Some parcel of it could not be packed.
#[derive(Serialize, Deserialize)]
struct ShipmentDelayed {
    shipment: u32,
}

impl Message for ShipmentDelayed {
    const TYPE: &'static str = "shipment.delayed";
}

/// Goes to a destination that is away now and then.
const NEWSLETTER: &str = "newsletter.sent";

/// Events of the log.
const STOCK_MOVED: &str = "StockMoved";

/// What writers and handlers remember.
#[derive(Default)]
struct Memory {
    /// Invoices that the tax service has refused.
    refused: HashSet<EventId>,
    /// How many invoices of an account wait behind a refused one.
    behind: HashMap<u64, u64>,
    /// Parcels that somebody has begun to pack.
    begun: HashSet<EventId>,
}

/// The scenes, as those who write and those who handle share them.
#[derive(Clone, Default)]
pub(crate) struct Scenes(Arc<Mutex<Memory>>);

impl Scenes {
    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.0.lock().expect("no one panics while holding the memory")
    }

    /// Adds their handlers and publishers to the relay.
    pub(crate) fn add_to(&self, relay: RelayBuilder) -> RelayBuilder {
        let (accounting, warehouse) = (self.clone(), self.clone());
        let stock = Topic::new("stock").types([STOCK_MOVED]);
        relay
            .on(move |invoice: InvoiceIssued, cx: Cx| {
                let accounting = accounting.clone();
                async move { accounting.invoice(&invoice, &cx) }
            })
            .on(move |parcel: PackParcel, cx: Cx| {
                let warehouse = warehouse.clone();
                async move { warehouse.pack(&parcel, &cx) }
            })
            .on(async |_: ShipmentReady, _: Cx| {})
            .on(async |_: ShipmentDelayed, _: Cx| {})
            .forward([NEWSLETTER], Branch::new("mail-provider").away(20, 75))
            .publish(stock.to(Branch::new("search-index")))
            .publish(stock.to(Branch::new("partner-api").away(15, 60)))
            .publish(stock.to(Branch::new("data-lake").slow(Duration::from_millis(270))).batch(5))
    }

    fn invoice(&self, invoice: &InvoiceIssued, cx: &Cx) -> Handled {
        let mut memory = self.memory();
        if invoice.refused && memory.refused.insert(cx.id().clone()) {
            memory.behind.insert(invoice.account, 0);
            return Err(Failure::dead(format!(
                "the tax service refuses invoice {} of account {}: 422, it does not know the account yet",
                invoice.number, invoice.account
            )));
        }
        memory.behind.remove(&invoice.account);
        Ok(())
    }

    /// Takes its time, and nobody's. One parcel of some shipments is nowhere to be found.
    fn pack(&self, parcel: &PackParcel, cx: &Cx) -> Result<Outcome, Failure> {
        let mut rng = rand::rng();
        if self.memory().begun.insert(cx.id().clone()) {
            return Ok(Outcome::RetryAfter(Duration::from_millis(rng.random_range(500..12_000))));
        }
        let (number, shelf) = (parcel.parcel, rng.random_range(1..40));
        if parcel.is_lost && cx.attempt() < 3 {
            return Err(Failure::retry(format!("parcel {number} is not on shelf {shelf}: looking on")));
        }
        if parcel.is_lost {
            return Err(Failure::dead(format!("parcel {number} is not on shelf {shelf}, nor on any other")));
        }
        self.memory().begun.remove(cx.id());
        Ok(Outcome::Done)
    }

    /// Writes until it is stopped.
    pub(crate) async fn run<DB: Shop>(
        self,
        outbox: Outbox<DB>,
        stop: CancellationToken,
    ) -> outbox::Result<()> {
        let mut numbers = [0; ACCOUNTS as usize];
        for turn in 0.. {
            tokio::select! {
                () = tokio::time::sleep(TICK) => {}
                () = stop.cancelled() => break,
            }
            if let Some(invoice) = self.next_invoice(turn, &mut numbers) {
                let key = format!("account-{}", invoice.account);
                outbox.send(Event::new(InvoiceIssued::TYPE).ordering_key(key).json(&invoice)).await?;
            }
            outbox.send(Event::new(NEWSLETTER).json(&turn)).await?;
            let moved = Event::new(STOCK_MOVED).tag("warehouse", turn % 3).json(&turn);
            outbox.log().append([moved]).await?;
            if turn % 40 == 4 {
                ship(&outbox, turn / 40).await?;
            }
        }
        Ok(())
    }

    /// Every now and then one that is refused; none for an account with many that wait.
    fn next_invoice(&self, turn: u32, numbers: &mut [u64]) -> Option<InvoiceIssued> {
        let mut memory = self.memory();
        let account = rand::rng().random_range(0..ACCOUNTS);
        let blocked = memory.behind.len();
        if let Some(behind) = memory.behind.get_mut(&account) {
            *behind += 1;
            if *behind > MOST_BEHIND {
                return None;
            }
        }
        let number = &mut numbers[account as usize];
        *number += 1;
        let refused = turn % 50 == 20 && blocked < MOST_BLOCKED;
        Some(InvoiceIssued { account, number: *number, refused })
    }
}

/// A fan-out: its parcels are packed side by side, and then it is ready. Of every fourth one a parcel is lost.
async fn ship<DB: Shop>(outbox: &Outbox<DB>, shipment: u32) -> outbox::Result<()> {
    let parcels = (1..=PARCELS).map(|parcel| PackParcel {
        shipment,
        parcel,
        is_lost: shipment % 4 == 1 && parcel == PARCELS,
    });
    outbox
        .fan_out(parcels)
        .then(ShipmentReady { shipment })
        .if_failed(ShipmentDelayed { shipment })
        .group(format!("shipment-{shipment}"))
        .send()
        .await?;
    Ok(())
}

/// Somewhere else, which may be slow, or away for a while.
struct Branch {
    name: &'static str,
    each: Duration,
    /// Away for so many seconds out of so many.
    away: Option<(u64, u64)>,
    /// Whether somebody has found that out.
    is_known: AtomicBool,
    began: Instant,
}

impl Branch {
    fn new(name: &'static str) -> Self {
        Self { name, each: Duration::ZERO, away: None, is_known: false.into(), began: Instant::now() }
    }

    fn slow(self, each: Duration) -> Self {
        Self { each, ..self }
    }

    fn away(self, seconds: u64, out_of: u64) -> Self {
        Self { away: Some((seconds, out_of)), ..self }
    }

    fn is_away(&self) -> bool {
        // Not at first: somebody who has just come should see it work.
        self.away.is_some_and(|(seconds, out_of)| self.began.elapsed().as_secs() % out_of >= out_of - seconds)
    }
}

#[async_trait]
impl Publisher for Branch {
    fn name(&self) -> &str {
        self.name
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        let is_away = self.is_away();
        self.is_known.store(is_away, Ordering::Relaxed);
        if is_away {
            return Err(PublishError::unavailable(format!("{}: 503, back soon", self.name)));
        }
        tokio::time::sleep(self.each * events.len() as u32).await;
        Ok(())
    }

    async fn health(&self) -> Result<(), Unavailable> {
        // An outage starts with a failed publish, whose error carries the reason.
        let away = self.is_away() && self.is_known.load(Ordering::Relaxed);
        Unavailable::unless(!away, format!("{}: 503, back soon", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_a_few_accounts_are_blocked_and_no_more_than_some_invoices_wait() {
        let scenes = Scenes::default();
        scenes.memory().behind.extend([(0, 0), (1, 0), (2, 0)]);
        let mut numbers = [0; ACCOUNTS as usize];
        let mut waiting = 0;
        for turn in 0..10_000 {
            if let Some(invoice) = scenes.next_invoice(turn, &mut numbers) {
                assert!(!invoice.refused, "three accounts are blocked already");
                waiting += u64::from(invoice.account < 3);
            }
        }
        assert_eq!(waiting, 3 * MOST_BEHIND);
    }

    #[tokio::test]
    async fn a_branch_that_goes_away_is_there_at_first() {
        let branch = Branch::new("b").away(10, 30);
        assert!(branch.health().await.is_ok());
        let gone = Branch { began: Instant::now() - Duration::from_secs(25), ..branch };
        assert!(gone.publish_batch(&[]).await.unwrap_err().is_unavailable());
        assert!(gone.health().await.is_err());
    }
}
