//! What makes the dashboard worth a look, beside the orders: keys that somebody has to unblock, fan-outs, a destination that goes
//! away and comes back, and a log with publishers that lag. None of it is in the ledger: what becomes of it is up to whoever looks.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox::{
    Cx, Event, EventId, Failure, Handled, Message, Outbox, Outgoing, PublishError, Publisher, RelayBuilder,
    Topic,
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

/// The accounts, as the writer and the handler of their invoices see them.
#[derive(Default)]
struct Accounts {
    /// Invoices that the tax service has refused.
    refused: HashSet<EventId>,
    /// How many invoices wait behind a refused one.
    behind: HashMap<u64, u64>,
}

/// What the scenes remember.
#[derive(Clone, Default)]
pub(crate) struct Scenes(Arc<Mutex<Accounts>>);

impl Scenes {
    fn accounts(&self) -> std::sync::MutexGuard<'_, Accounts> {
        self.0.lock().expect("no one panics while holding the accounts")
    }

    /// Adds their handlers and publishers to the relay.
    pub(crate) fn add_to(&self, relay: RelayBuilder) -> RelayBuilder {
        let scenes = self.clone();
        let stock = Topic::new("stock").types([STOCK_MOVED]);
        relay
            .on(move |invoice: InvoiceIssued, cx: Cx| {
                let scenes = scenes.clone();
                async move { scenes.invoice(&invoice, &cx) }
            })
            .on(pack)
            .on(async |_: ShipmentReady, _: Cx| {})
            .on(async |_: ShipmentDelayed, _: Cx| {})
            .forward([NEWSLETTER], Branch::new("mail-provider").away(20, 75))
            .publish(stock.to(Branch::new("search-index")))
            .publish(stock.to(Branch::new("partner-api").away(15, 60)))
            .publish(stock.to(Branch::new("data-lake").slow(Duration::from_millis(350))))
    }

    fn invoice(&self, invoice: &InvoiceIssued, cx: &Cx) -> Handled {
        let mut accounts = self.accounts();
        if invoice.refused && accounts.refused.insert(cx.id().clone()) {
            accounts.behind.insert(invoice.account, 0);
            return Err(Failure::dead(format!(
                "the tax service refuses invoice {} of account {}: 422, it does not know the account yet",
                invoice.number, invoice.account
            )));
        }
        accounts.behind.remove(&invoice.account);
        Ok(())
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
        let mut accounts = self.accounts();
        let account = rand::rng().random_range(0..ACCOUNTS);
        let blocked = accounts.behind.len();
        if let Some(behind) = accounts.behind.get_mut(&account) {
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

/// Takes its time. One parcel of some shipments is nowhere to be found.
async fn pack(parcel: PackParcel, cx: Cx) -> Handled {
    let pause = rand::rng().random_range(100..1_500);
    tokio::time::sleep(Duration::from_millis(pause)).await;
    let shelf = rand::rng().random_range(1..40);
    if parcel.is_lost && cx.attempt() < 3 {
        return Err(Failure::retry(format!("parcel {} is not on shelf {shelf}: looking on", parcel.parcel)));
    }
    if parcel.is_lost {
        return Err(Failure::dead(format!(
            "parcel {} is not on shelf {shelf}, nor on any other",
            parcel.parcel
        )));
    }
    Ok(())
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
    began: Instant,
}

impl Branch {
    fn new(name: &'static str) -> Self {
        Self { name, each: Duration::ZERO, away: None, began: Instant::now() }
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
        if self.is_away() {
            return Err(PublishError::unavailable(format!("{}: 503, back soon", self.name)));
        }
        tokio::time::sleep(self.each * events.len() as u32).await;
        Ok(())
    }

    async fn is_healthy(&self) -> bool {
        !self.is_away()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_a_few_accounts_are_blocked_and_no_more_than_some_invoices_wait() {
        let scenes = Scenes::default();
        scenes.accounts().behind.extend([(0, 0), (1, 0), (2, 0)]);
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
        assert!(branch.is_healthy().await);
        let gone = Branch { began: Instant::now() - Duration::from_secs(25), ..branch };
        assert!(!gone.is_healthy().await);
        assert!(gone.publish_batch(&[]).await.unwrap_err().is_unavailable());
    }
}
