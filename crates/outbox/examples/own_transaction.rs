//! Events in transactions that the application begins itself, on its own sqlx pool: a change and
//! its event are committed together, or neither is.
//!
//! ```sh
//! cargo run --example own_transaction
//! ```

use outbox::{Context, Event, EventBuilder, OutboxBuilder};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

const INSERT: &str = "INSERT INTO orders (id) VALUES ($1)";

fn placed(order: i64) -> EventBuilder {
    Event::new("order.placed").json(&order)
}

async fn confirm(cx: Context) -> Result<(), outbox::PayloadError> {
    println!("order {} is confirmed", cx.payload::<i64>()?);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let file = SqliteConnectOptions::new().filename(folder.path().join("shop.db")).create_if_missing(true);
    let pool = SqlitePool::connect_with(file).await?;
    sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY)").execute(&pool).await?;

    let outbox = OutboxBuilder::new().on_pool(&pool)?;
    outbox.migrate().await?;
    let relay = outbox.single_node().on_type("order.placed", confirm).start().await?;

    // `adopt` takes the transaction over. Its commit hands the event to the relay at once.
    let tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    let mut tx = outbox.adopt(tx);
    sqlx::query(INSERT).bind(1).execute(&mut *tx).await?;
    tx.write(placed(1)).await?;
    tx.commit().await?;
    relay.idle().await?;

    // `bind` borrows the transaction: sqlx commits it, and the receipt wakes the relay.
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query(INSERT).bind(2).execute(&mut *tx).await?;
    let mut bound = outbox.bind(&mut tx);
    bound.write(placed(2)).await?;
    let receipt = bound.finish();
    tx.commit().await?;
    receipt.committed();
    relay.idle().await?;

    // A rollback removes the order and its event.
    let mut tx = outbox.adopt(pool.begin_with("BEGIN IMMEDIATE").await?);
    sqlx::query(INSERT).bind(3).execute(&mut *tx).await?;
    tx.write(placed(3)).await?;
    tx.after_rollback(|| println!("order 3 is rolled back"));
    tx.rollback().await?;
    relay.idle().await?;
    relay.stop().await?;

    let orders: i64 = sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&pool).await?;
    println!("{orders} orders, {} events delivered", outbox.admin().stats().await?.done);
    Ok(())
}
