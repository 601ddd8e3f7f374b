//! Handlers as functions: arguments in any order, state, a transaction, errors of any type, options
//! of a route, code around every handler, and a relay that pauses an event type.
//!
//! ```sh
//! cargo run --example handlers
//! ```

use std::str::FromStr;
use std::time::Duration;

use outbox::{
    Backoff, Context, Event, EventHeader, Handled, HandlerTx, Header, Message, Next, OrDead, Outbox, State,
    on,
};
use serde::{Deserialize, Serialize};
use sqlx::Sqlite;

/// Shared by all handlers.
#[derive(Clone)]
struct App {
    sender: String,
}

#[derive(Serialize, Deserialize, Message)]
#[message(type = "mail.wanted")]
struct MailWanted {
    to: String,
}

#[derive(Serialize, Deserialize, Message)]
#[message(type = "paid", key = "account-{account}")]
struct Paid {
    account: i64,
    amount: i64,
}

#[derive(Serialize, Deserialize, Message)]
#[message(type = "image.resize")]
struct Resize {
    width: String,
}

struct Locale(String);

impl FromStr for Locale {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Locale(text.to_owned()))
    }
}

impl EventHeader for Locale {
    const NAME: &'static str = "locale";
}

/// Any error type: `?` retries by the policy, `or_dead` says that a retry cannot help.
async fn send_mail(
    mail: MailWanted,
    State(app): State<App>,
    locale: Option<Header<Locale>>,
) -> anyhow::Result<()> {
    let locale = locale.map_or_else(|| "en".to_owned(), |Header(Locale(locale))| locale);
    println!("mail from {} to {} in {locale}", app.sender, mail.to);
    Ok(())
}

/// Its writes are committed together with the settlement of the event, or not at all.
async fn book(mut tx: HandlerTx<Sqlite>, paid: Paid) -> Handled {
    let add = "UPDATE account SET balance = balance + $1 WHERE id = $2";
    sqlx::query(add).bind(paid.amount).bind(paid.account).execute(&mut **tx).await?;
    tx.write(MailWanted { to: format!("owner of {}", paid.account) }).await?;
    Ok(())
}

async fn resize(Resize { width }: Resize, cx: Context) -> Handled {
    let width: u32 = width.parse().or_dead()?;
    println!("attempt {} to resize to {width}", cx.attempt());
    Ok(())
}

/// Code around every handler.
async fn timed(cx: Context, next: Next) -> Result<outbox::Outcome, outbox::Failure> {
    let event_type = cx.event_type().clone();
    let result = next.run(cx).await;
    println!("{event_type}: {}", if result.is_ok() { "handled" } else { "failed" });
    result
}

#[tokio::main]
async fn main() -> outbox::Result<()> {
    let outbox = Outbox::sqlite(":memory:").await?;
    outbox.migrate().await?;
    sqlx::raw_sql("CREATE TABLE account (id INTEGER, balance INTEGER); INSERT INTO account VALUES (7, 0)")
        .execute(outbox.pool())
        .await?;
    let relay = outbox
        .single_node()
        .state(App { sender: "shop@example.org".to_owned() })
        .around(timed)
        .on(send_mail)
        .on(book)
        .route(on(resize).retry(Backoff::never()).timeout(Duration::from_secs(20)).max_concurrent(2))
        .start()
        .await?;

    outbox.send(Paid { account: 7, amount: 995 }).await?;
    let german =
        Event::new(MailWanted::TYPE).json(&MailWanted { to: "ada".to_owned() }).header("locale", "de");
    outbox.send(german).await?;
    outbox.send(Resize { width: "wide".to_owned() }).await?;
    relay.idle().await?;
    let balance: i64 = sqlx::query_scalar("SELECT balance FROM account").fetch_one(outbox.pool()).await?;
    println!("balance {balance}");

    relay.pause("image.resize");
    outbox.send(Resize { width: "640".to_owned() }).await?;
    relay.idle().await?;
    println!("pending while paused: {}", outbox.admin().backlog().await?.pending);
    relay.resume("image.resize");
    relay.idle().await?;

    // A service waits for a signal here: `tokio::signal::ctrl_c()`.
    relay.until(async {}).await?;
    let stats = outbox.admin().stats().await?;
    println!("{} done, {} dead", stats.done, stats.dead);
    Ok(())
}
