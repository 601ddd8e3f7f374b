//! A consumer behind a broker that delivers messages more than once. The inbox records each message
//! in the transaction of its effect, so the effect happens exactly once.
//!
//! ```sh
//! cargo run --example inbox
//! ```

use outbox::Outbox;
use sqlx::Sqlite;

/// A message as the broker delivers it.
struct Payment {
    id: &'static str,
    amount: i64,
}

/// Books a payment. Returns whether it was the first delivery of the message.
async fn book(outbox: &Outbox<Sqlite>, payment: &Payment, crashes: bool) -> outbox::Result<bool> {
    let mut tx = outbox.begin().await?;
    let first = tx.once("bookkeeping", payment.id).await?;
    if first {
        sqlx::query("UPDATE account SET balance = balance + $1")
            .bind(payment.amount)
            .execute(&mut *tx)
            .await?;
    }
    if crashes {
        return tx.rollback().await.map(|()| first); // as a crash before the commit would do
    }
    tx.commit().await?;
    Ok(first)
}

#[tokio::main]
async fn main() -> outbox::Result<()> {
    let outbox = Outbox::sqlite(":memory:").await?;
    outbox.migrate().await?;
    sqlx::raw_sql("CREATE TABLE account (balance INTEGER); INSERT INTO account VALUES (0)")
        .execute(outbox.pool())
        .await?;

    let deliveries = [
        (Payment { id: "payment-1", amount: 100 }, false),
        (Payment { id: "payment-1", amount: 100 }, false), // the broker missed the acknowledgement
        (Payment { id: "payment-2", amount: 20 }, true),   // the consumer crashes before its commit
        (Payment { id: "payment-2", amount: 20 }, false),
    ];
    for (payment, crashes) in deliveries {
        let first = book(&outbox, &payment, crashes).await?;
        let result = match (first, crashes) {
            (true, true) => "crashed, nothing is booked",
            (true, false) => "booked",
            (false, _) => "booked before",
        };
        println!("{}: {result}", payment.id);
    }

    let balance: i64 = sqlx::query_scalar("SELECT balance FROM account").fetch_one(outbox.pool()).await?;
    println!("balance: {balance}");
    Ok(())
}
