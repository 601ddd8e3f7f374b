//! A handler in a transaction: its writes, the events that it writes and the settlement of its own
//! event are one commit. A failed attempt leaves nothing.
//!
//! ```sh
//! cargo run --example tx_handlers
//! ```

use std::time::Duration;

use outbox::{Context, Event, Failure, Handled, HandlerTx, Message, Outbox};
use serde::{Deserialize, Serialize};
use sqlx::Sqlite;

#[derive(Serialize, Deserialize)]
struct Paid {
    account: i64,
    amount: i64,
}

impl Message for Paid {
    const TYPE: &'static str = "account.paid";
}

async fn book(paid: Paid, cx: Context, mut tx: HandlerTx<Sqlite>) -> Handled {
    sqlx::query("UPDATE account SET balance = balance + $1 WHERE id = $2")
        .bind(paid.amount)
        .bind(paid.account)
        .execute(&mut **tx)
        .await?;
    tx.write(Event::new("receipt.send").json(&paid.amount)).await?;
    if cx.attempt() == 1 {
        println!("attempt 1 fails after its writes");
        return Err(Failure::retry_after(Duration::ZERO, "connection reset"));
    }
    println!("attempt {} succeeds", cx.attempt());
    Ok(())
}

async fn send_receipt(cx: Context) -> Handled {
    println!("receipt for {}", cx.payload::<i64>()?);
    Ok(())
}

#[tokio::main]
async fn main() -> outbox::Result<()> {
    let outbox = Outbox::sqlite(":memory:").await?;
    outbox.migrate().await?;
    sqlx::raw_sql("CREATE TABLE account (id INTEGER, balance INTEGER); INSERT INTO account VALUES (7, 0)")
        .execute(outbox.pool())
        .await?;
    let relay = outbox.multi_node().on(book).on_type("receipt.send", send_receipt).start().await?;

    outbox.send(Paid { account: 7, amount: 995 }).await?;
    relay.idle().await?;
    relay.stop().await?;

    let balance: i64 = sqlx::query_scalar("SELECT balance FROM account").fetch_one(outbox.pool()).await?;
    println!("balance: {balance}");
    Ok(())
}
