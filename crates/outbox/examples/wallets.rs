//! Wallets in an event log: no table of balances, only events. A transfer is decided on the balance
//! and appended only if no event of either wallet was appended since; otherwise it is decided
//! again. Two publishers follow the log: a journal of all events, and an alert on large deposits.
//!
//! ```sh
//! cargo run --example wallets
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use outbox::{
    Appended, DecideError, Decision, EventBuilder, Log, LogEvent, Message, Outbox, Outgoing, Position,
    PublishError, Publisher, Query, Tag, Topic,
};
use serde::{Deserialize, Serialize};
use sqlx::Sqlite;

const WALLETS: [&str; 3] = ["ada", "grace", "joan"];

// Events of wallets. Tags name the wallets.

#[derive(Serialize, Deserialize)]
struct Opened {
    wallet: String,
    balance: i64,
}

#[derive(Serialize, Deserialize)]
struct Transferred {
    from: String,
    to: String,
    amount: i64,
    request: String,
}

impl Message for Opened {
    const TYPE: &'static str = "WalletOpened";

    fn describe(&self, event: EventBuilder) -> EventBuilder {
        event.tag("wallet", &self.wallet)
    }
}

impl Message for Transferred {
    const TYPE: &'static str = "MoneyTransferred";

    fn describe(&self, event: EventBuilder) -> EventBuilder {
        event.tag("wallet", &self.from).tag("wallet", &self.to).tag("request", &self.request)
    }
}

/// Balances, complete for the wallets whose events a query selects.
#[derive(Clone, Default)]
struct Balances(BTreeMap<String, i64>);

impl Balances {
    fn of(&self, wallet: &str) -> i64 {
        self.0.get(wallet).copied().unwrap_or_default()
    }

    fn apply(mut self, event: &LogEvent) -> Self {
        match event.event_type().as_str() {
            Opened::TYPE => {
                if let Ok(opened) = event.payload::<Opened>() {
                    *self.0.entry(opened.wallet).or_default() += opened.balance;
                }
            }
            Transferred::TYPE => {
                if let Ok(transfer) = event.payload::<Transferred>() {
                    *self.0.entry(transfer.from).or_default() -= transfer.amount;
                    *self.0.entry(transfer.to).or_default() += transfer.amount;
                }
            }
            _ => {}
        }
        self
    }

    /// Decides on a transfer.
    fn transfer(&self, transfer: Transferred) -> Result<[Transferred; 1], TooLittle> {
        let balance = self.of(&transfer.from);
        if balance < transfer.amount { Err(TooLittle(balance)) } else { Ok([transfer]) }
    }
}

/// Refusal of a transfer.
#[derive(Debug, thiserror::Error)]
#[error("the balance is only {0}")]
struct TooLittle(i64);

/// Outcome of a transfer.
#[derive(Debug, PartialEq)]
enum Transfer {
    Made,
    MadeBefore,
    Refused,
}

/// Transfers money if the balance suffices. A transfer that another one has overtaken is decided
/// again on the new balances.
async fn transfer(
    log: &Log<Sqlite>,
    from: &str,
    to: &str,
    amount: i64,
    request: &str,
) -> Result<Transfer, DecideError<TooLittle>> {
    // A repeated request transfers the money once. Each of the concurrent transfers below may be
    // overtaken by all others.
    let wallets = Query::tag("wallet", from).or(Query::tag("wallet", to));
    let decision = Decision::on(wallets).once(Query::tag("request", request)).tries(40);
    let wanted = || Transferred { from: from.into(), to: to.into(), amount, request: request.into() };
    let decided =
        log.decide(decision, Balances::default(), Balances::apply, |balances| balances.transfer(wanted()));
    match decided.await {
        Ok(decided) if decided.appended == Appended::Already => Ok(Transfer::MadeBefore),
        Ok(_) => Ok(Transfer::Made),
        Err(DecideError::Refused(_)) => Ok(Transfer::Refused),
        Err(error) => Err(error),
    }
}

/// Records all published events, in the order of the log.
#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Vec<String>>>);

#[async_trait]
impl Publisher for Journal {
    fn name(&self) -> &str {
        "journal"
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        let mut lines = self.0.lock().expect("writing does not panic");
        for event in events {
            let wallets: Vec<&str> =
                event.tags().iter().filter(|t| t.name() == "wallet").map(Tag::value).collect();
            let position = event.position().map_or(0, Position::get);
            lines.push(format!("{position:>3}  {:<16}  {}", event.event_type(), wallets.join(" -> ")));
        }
        Ok(())
    }
}

/// Alerts on large transfers.
struct Alerts;

#[async_trait]
impl Publisher for Alerts {
    fn name(&self) -> &str {
        "alerts"
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        for event in events {
            let transfer: Transferred = event.payload()?;
            if transfer.amount >= 50 {
                println!("alert: {} sent {} to {}", transfer.from, transfer.amount, transfer.to);
            }
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let outbox = Outbox::sqlite(":memory:").await?;
    outbox.migrate().await?;
    let log = outbox.log();

    let journal = Journal::default();
    let relay = outbox
        .log_only()
        .publish(Topic::new("wallets").required_tags(["wallet"]).to(journal.clone()))
        .publish(Topic::new("transfers").types([Transferred::TYPE]).to(Alerts))
        .start()
        .await?;

    for wallet in WALLETS {
        let opened = Opened { wallet: wallet.into(), balance: 100 };
        log.append([opened]).await?;
    }

    println!("ada sends 50 to grace:  {:?}", transfer(&log, "ada", "grace", 50, "r1").await?);
    println!("the same request again: {:?}", transfer(&log, "ada", "grace", 50, "r1").await?);
    println!("ada sends 70 to joan:   {:?}", transfer(&log, "ada", "joan", 70, "r2").await?);

    // Thirty concurrent transfers among three wallets: conflicts are decided again, and the total
    // stays the same.
    let mut busy = tokio::task::JoinSet::new();
    for n in 0..30 {
        let log = log.clone();
        busy.spawn(async move {
            transfer(&log, WALLETS[n % 3], WALLETS[(n + 1) % 3], 5, &format!("many-{n}")).await
        });
    }
    let answers = busy.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let made = answers.iter().filter(|answer| **answer == Transfer::Made).count();

    let all = log.project(Query::all(), Balances::default(), Balances::apply).await?;
    let total: i64 = WALLETS.iter().map(|wallet| all.state.of(wallet)).sum();
    println!("{made} of 30 small transfers made, and there are still {total} in all");

    relay.idle().await?;
    relay.stop().await?;
    let lines = journal.0.lock().expect("writing does not panic");
    println!("the journal has {} lines, the first of them:", lines.len());
    lines.iter().take(4).for_each(|line| println!("{line}"));
    Ok(())
}
