//! Wallets in an event log: no table of balances, only events. A transfer is decided on the balance
//! and appended only if no event of either wallet was appended since. Two publishers follow the
//! log: a journal of all events, and an alert on large deposits.
//!
//! ```sh
//! cargo run --example wallets
//! ```

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use outbox::{
    Appended, Condition, Error, EventBuilder, Log, LogEvent, Message, Outbox, Outgoing, Position, Projection,
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

/// The balance of a wallet, from all its events.
async fn balance(log: &Log<Sqlite>, wallet: &str) -> outbox::Result<Projection<i64>> {
    let about = Query::tag("wallet", wallet);
    log.project(about, 0, |balance, event: &LogEvent| match event.event_type().as_str() {
        Opened::TYPE => balance + event.payload::<Opened>().map_or(0, |opened| opened.balance),
        Transferred::TYPE => match event.payload::<Transferred>() {
            Ok(transfer) if transfer.from == wallet => balance - transfer.amount,
            Ok(transfer) => balance + transfer.amount,
            Err(_) => balance,
        },
        _ => balance,
    })
    .await
}

/// Outcome of a transfer.
#[derive(Debug, PartialEq)]
enum Transfer {
    Made,
    MadeBefore,
    Refused,
}

/// Transfers money if the balance suffices. Decides again after a conflict.
async fn transfer(
    log: &Log<Sqlite>,
    from: &str,
    to: &str,
    amount: i64,
    request: &str,
) -> outbox::Result<Transfer> {
    loop {
        let source = balance(log, from).await?;
        let target = balance(log, to).await?;
        // A repeated request gets the same answer, and the money is transferred once.
        let once = Condition::only_once(Query::tag("request", request));
        if source.state < amount {
            return Ok(Transfer::Refused);
        }
        let made = Transferred { from: from.into(), to: to.into(), amount, request: request.into() };
        match log.append_if([made], source.unchanged().and(target.unchanged()).and(once)).await {
            Ok(Appended::New(_)) => return Ok(Transfer::Made),
            Ok(Appended::Already) => return Ok(Transfer::MadeBefore),
            Err(Error::Conflict { .. }) => {}
            Err(error) => return Err(error),
        }
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
async fn main() -> outbox::Result<()> {
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
    let answers = busy.join_all().await.into_iter().collect::<outbox::Result<Vec<_>>>()?;
    let made = answers.iter().filter(|answer| **answer == Transfer::Made).count();

    let mut total = 0;
    for wallet in WALLETS {
        total += balance(&log, wallet).await?.state;
    }
    println!("{made} of 30 small transfers made, and there are still {total} in all");

    relay.idle().await?;
    relay.stop().await?;
    let lines = journal.0.lock().expect("writing does not panic");
    println!("the journal has {} lines, the first of them:", lines.len());
    lines.iter().take(4).for_each(|line| println!("{line}"));
    Ok(())
}
