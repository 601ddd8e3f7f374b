//! A process that only writes and another one with the relay, on one database file. The program
//! starts itself a second time as the writer.
//!
//! ```sh
//! cargo run --example separate_relay
//! ```

use std::process::Command;

use outbox::{Context, Event, Handled, Outbox};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The writing process: an application server without handlers. It starts no relay, so its events
/// wait in the table.
async fn write(file: &str) -> Result<()> {
    let outbox = Outbox::sqlite(file).await?;
    let mut tx = outbox.begin().await?;
    for order in [1, 2, 3] {
        sqlx::query("INSERT INTO orders (id) VALUES ($1)").bind(order).execute(&mut *tx).await?;
        tx.write(Event::new("order.placed").ordering_key("orders").json(&order)).await?;
    }
    tx.commit().await?;
    println!("writer: 3 orders");
    Ok(())
}

async fn bill(cx: Context) -> Handled {
    println!("relay: bill for order {}", cx.payload::<i64>()?);
    Ok(())
}

/// The process of the relay: a worker, or the daemon `outbox relay`.
async fn relay(file: &str) -> Result<()> {
    let outbox = Outbox::sqlite(file).await?;
    println!("relay: {} events wait", outbox.admin().backlog().await?.pending);
    let relay = outbox.multi_node().on_type("order.placed", bill).start().await?;
    relay.idle().await?; // a worker waits for a signal here: see the example `shutdown`
    relay.stop().await?;
    println!("relay: {} events wait", outbox.admin().backlog().await?.pending);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    if let Some(file) = std::env::args().nth(1) {
        return write(&file).await;
    }
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("shop.db").display().to_string();
    let outbox = Outbox::sqlite(&file).await?;
    outbox.migrate().await?;
    sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY)").execute(outbox.pool()).await?;
    outbox.close().await;

    let writer = Command::new(std::env::current_exe()?).arg(&file).status()?;
    println!("writer ended: {}", writer.success());
    relay(&file).await
}
