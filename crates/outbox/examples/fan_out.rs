//! Many events and a follow-up when all of them are settled: one follow-up for success, another if
//! a step is dead. The example `etl` has several stages and a replay.
//!
//! ```sh
//! cargo run --example fan_out
//! ```

use outbox::{Context, Event, Failure, Handled, Outbox};
use sqlx::Sqlite;

async fn fetch(cx: Context) -> Handled {
    match cx.payload::<u32>()? {
        13 => Err(Failure::dead("page 13 does not exist")),
        _ => Ok(()),
    }
}

async fn merge(cx: Context) -> Handled {
    println!("merge the pages of {}", cx.payload::<String>()?);
    Ok(())
}

async fn alert(cx: Context) -> Handled {
    println!("alert: {} has failed pages", cx.payload::<String>()?);
    Ok(())
}

/// Writes the steps and the follow-ups in one transaction.
async fn start(outbox: &Outbox<Sqlite>, run: &str, pages: &[u32]) -> outbox::Result<outbox::JoinId> {
    let fanned_out = outbox
        .fan_out(pages.iter().map(|page| Event::new("page.fetch").json(page)))
        .then(Event::new("pages.merge").json(run))
        .if_failed(Event::new("pages.alert").json(run))
        .group(run)
        .send()
        .await?;
    Ok(fanned_out.join)
}

#[tokio::main]
async fn main() -> outbox::Result<()> {
    let outbox = Outbox::sqlite(":memory:").await?;
    outbox.migrate().await?;
    let relay = outbox
        .single_node()
        .on_type("page.fetch", fetch)
        .on_type("pages.merge", merge)
        .on_type("pages.alert", alert)
        .start()
        .await?;

    for (run, pages) in [("run 1", [1, 2, 3]), ("run 2", [12, 13, 14])] {
        let id = start(&outbox, run, &pages).await?;
        relay.idle().await?;
        let join = outbox.admin().join(&id).await?.expect("closed joins stay until they are purged");
        println!("{run}: {}, {} completed, {} failed", join.status, join.completed, join.failed);
    }
    relay.stop().await
}
