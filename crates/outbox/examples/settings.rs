//! Settings from a file and the environment, as the daemon `outbox relay` reads them, and an error
//! that lists all mistakes.
//!
//! ```sh
//! cargo run -p outbox --example settings --features settings
//! ```

use outbox::settings::Settings;
use outbox::{Context, Event};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("outbox.toml");
    let database = folder.path().join("shop.db");
    let text = format!(
        r#"
        mode = "single-node"
        migrate = true

        [database]
        url = "sqlite:{}"
        table = "shop_event"

        [dispatcher]
        workers = 2

        [retry]
        max-attempts = 3
        "#,
        database.display()
    );
    std::fs::write(&path, &text)?;

    // The environment of the process takes precedence over the file.
    let settings = Settings::from_file(&path)?;
    println!("mode: {:?}", settings.mode());
    let outbox = settings.sqlite().await?; // or postgres(), mysql(); makes the tables, by `migrate`
    let relay = outbox
        .relay(&settings)
        .on_type("order.placed", async |_: Context| println!("order placed"))
        .start()
        .await?;
    outbox.send(Event::new("order.placed").json(&42)).await?;
    relay.idle().await?;
    relay.stop().await?;
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM shop_event").fetch_one(outbox.pool()).await?;
    println!("rows in shop_event: {rows}");

    // The same with given variables instead of the environment.
    let settings = Settings::from_toml_and_env(&text, [("OUTBOX_MODE", "ordered")])?;
    println!("mode with OUTBOX_MODE=ordered: {:?}", settings.mode());

    let mistakes = "[poller]\nintervall = \"1s\"\n\n[retry]\nmax-attempts = 0\n";
    if let Err(error) = Settings::from_toml(mistakes) {
        error.mistakes().for_each(|mistake| println!("{mistake}"));
    }
    Ok(())
}
