//! Events that make the dashboard interesting, beside the orders: blocked keys, fan-outs, a
//! destination with outages, and a log with publishers that lag. The ledger does not record them,
//! because the user may replay, skip or cancel them in the dashboard.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox::{
    Context, Event, EventId, Failure, Handled, Message, Outbox, Outcome, Outgoing, PublishError, Publisher,
    RelayBuilder, RelaySource, Topic, Unavailable,
};
use rand::Rng;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::shop::Shop;

/// Interval of writes.
const TICK: Duration = Duration::from_millis(250);

/// Number of accounts; an account is the ordering key of its invoices.
const ACCOUNTS: u64 = 8;
/// Maximum number of accounts that a dead invoice blocks, and of invoices that wait behind it.
const MAX_BLOCKED_ACCOUNTS: usize = 3;
const MAX_WAITING_INVOICES: u64 = 25;

/// Number of parcels of a shipment.
const PARCELS: u32 = 12;

/// An invoice for an account, delivered in order per account.
#[derive(Serialize, Deserialize)]
struct InvoiceIssued {
    account: u64,
    number: u64,
    /// The tax service refuses the invoice at first, and accepts it after a replay.
    refused: bool,
}

impl Message for InvoiceIssued {
    const TYPE: &'static str = "invoice.issued";
}

/// A step of the join of a shipment.
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

/// A parcel of the shipment could not be packed.
#[derive(Serialize, Deserialize)]
struct ShipmentDelayed {
    shipment: u32,
}

impl Message for ShipmentDelayed {
    const TYPE: &'static str = "shipment.delayed";
}

/// Event type that is forwarded to a destination with outages.
const NEWSLETTER: &str = "newsletter.sent";

/// Event type of the log.
const STOCK_MOVED: &str = "StockMoved";

/// State that the writer and the handlers share.
#[derive(Default)]
struct TrafficState {
    /// Invoices that the tax service has refused.
    refused: HashSet<EventId>,
    /// Number of invoices that wait behind a refused one, by account.
    waiting_behind: HashMap<u64, u64>,
    /// Parcels whose packing has started.
    started: HashSet<EventId>,
}

/// Writer and handlers of the events for the dashboard.
#[derive(Clone, Default)]
pub(crate) struct DashboardTraffic(Arc<Mutex<TrafficState>>);

impl DashboardTraffic {
    fn state(&self) -> std::sync::MutexGuard<'_, TrafficState> {
        self.0.lock().expect("no code panics while holding the state")
    }

    /// Adds the handlers and publishers to the relay.
    pub(crate) fn add_to<D: RelaySource>(&self, relay: RelayBuilder<D>) -> RelayBuilder<D> {
        let (accounting, warehouse) = (self.clone(), self.clone());
        let stock = Topic::new("stock").types([STOCK_MOVED]);
        relay
            .on(move |invoice: InvoiceIssued, cx: Context| {
                let accounting = accounting.clone();
                async move { accounting.invoice(&invoice, &cx) }
            })
            .on(move |parcel: PackParcel, cx: Context| {
                let warehouse = warehouse.clone();
                async move { warehouse.pack(&parcel, &cx) }
            })
            .on(async |_: ShipmentReady, _: Context| {})
            .on(async |_: ShipmentDelayed, _: Context| {})
            .forward([NEWSLETTER], SimulatedDestination::new("mail-provider").outages(20, 75))
            .publish(stock.to(SimulatedDestination::new("search-index")))
            .publish(stock.to(SimulatedDestination::new("partner-api").outages(15, 60)))
            .publish(
                stock.to(SimulatedDestination::new("data-lake").slow(Duration::from_millis(270))).batch(5),
            )
    }

    fn invoice(&self, invoice: &InvoiceIssued, cx: &Context) -> Handled {
        let mut state = self.state();
        if invoice.refused && state.refused.insert(cx.id().clone()) {
            state.waiting_behind.insert(invoice.account, 0);
            return Err(Failure::dead(format!(
                "the tax service refuses invoice {} of account {}: 422, it does not know the account yet",
                invoice.number, invoice.account
            )));
        }
        state.waiting_behind.remove(&invoice.account);
        Ok(())
    }

    /// Snoozes at first, to simulate work without occupying a worker. One parcel of some shipments
    /// is lost.
    fn pack(&self, parcel: &PackParcel, cx: &Context) -> Result<Outcome, Failure> {
        let mut rng = rand::rng();
        if self.state().started.insert(cx.id().clone()) {
            return Ok(Outcome::Snooze(Duration::from_millis(rng.random_range(500..12_000))));
        }
        let (number, bay) = (parcel.parcel, rng.random_range(1..40));
        if parcel.is_lost && cx.attempt() < 3 {
            return Err(Failure::retry(format!("parcel {number} is not in bay {bay}: searching")));
        }
        if parcel.is_lost {
            return Err(Failure::dead(format!("parcel {number} is not in bay {bay}, nor in any other")));
        }
        self.state().started.remove(cx.id());
        Ok(Outcome::Done)
    }

    /// Writes events until stopped.
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

    /// Next invoice; now and then one that is refused. `None` if too many invoices of the account
    /// wait.
    fn next_invoice(&self, turn: u32, numbers: &mut [u64]) -> Option<InvoiceIssued> {
        let mut state = self.state();
        let account = rand::rng().random_range(0..ACCOUNTS);
        let blocked = state.waiting_behind.len();
        if let Some(waiting_behind) = state.waiting_behind.get_mut(&account) {
            *waiting_behind += 1;
            if *waiting_behind > MAX_WAITING_INVOICES {
                return None;
            }
        }
        let number = &mut numbers[account as usize];
        *number += 1;
        let refused = turn % 50 == 20 && blocked < MAX_BLOCKED_ACCOUNTS;
        Some(InvoiceIssued { account, number: *number, refused })
    }
}

/// Writes a fan-out: its parcels are packed concurrently, then the shipment is ready. In every
/// fourth shipment a parcel is lost.
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

/// A publisher that may be slow, or have outages.
struct SimulatedDestination {
    name: &'static str,
    time_per_event: Duration,
    /// Length and period of outages in seconds.
    outages: Option<(u64, u64)>,
    /// Whether a publish has failed since the outage began.
    is_outage_reported: AtomicBool,
    began: Instant,
}

impl SimulatedDestination {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            time_per_event: Duration::ZERO,
            outages: None,
            is_outage_reported: false.into(),
            began: Instant::now(),
        }
    }

    fn slow(self, time_per_event: Duration) -> Self {
        Self { time_per_event, ..self }
    }

    fn outages(self, seconds: u64, out_of: u64) -> Self {
        Self { outages: Some((seconds, out_of)), ..self }
    }

    fn is_unavailable(&self) -> bool {
        // The outage is at the end of each period, so that the demo starts without one.
        self.outages
            .is_some_and(|(seconds, out_of)| self.began.elapsed().as_secs() % out_of >= out_of - seconds)
    }
}

#[async_trait]
impl Publisher for SimulatedDestination {
    fn name(&self) -> &str {
        self.name
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        let is_unavailable = self.is_unavailable();
        self.is_outage_reported.store(is_unavailable, Ordering::Relaxed);
        if is_unavailable {
            return Err(PublishError::unavailable(format!("{}: 503, back soon", self.name)));
        }
        tokio::time::sleep(self.time_per_event * events.len() as u32).await;
        Ok(())
    }

    async fn health(&self) -> Result<(), Unavailable> {
        // An outage starts with a failed publish, whose error carries the reason.
        let unavailable = self.is_unavailable() && self.is_outage_reported.load(Ordering::Relaxed);
        Unavailable::unless(!unavailable, format!("{}: 503, back soon", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_a_few_accounts_are_blocked_and_no_more_than_some_invoices_wait() {
        let traffic = DashboardTraffic::default();
        traffic.state().waiting_behind.extend([(0, 0), (1, 0), (2, 0)]);
        let mut numbers = [0; ACCOUNTS as usize];
        let mut waiting = 0;
        for turn in 0..10_000 {
            if let Some(invoice) = traffic.next_invoice(turn, &mut numbers) {
                assert!(!invoice.refused, "three accounts are blocked already");
                waiting += u64::from(invoice.account < 3);
            }
        }
        assert_eq!(waiting, 3 * MAX_WAITING_INVOICES);
    }

    #[tokio::test]
    async fn a_destination_with_outages_is_available_at_first() {
        let destination = SimulatedDestination::new("b").outages(10, 30);
        assert!(destination.health().await.is_ok());
        let unavailable =
            SimulatedDestination { began: Instant::now() - Duration::from_secs(25), ..destination };
        assert!(unavailable.publish_batch(&[]).await.unwrap_err().is_unavailable());
        assert!(unavailable.health().await.is_err());
    }
}
