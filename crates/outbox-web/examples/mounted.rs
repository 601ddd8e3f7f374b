//! An application with its own outbox, and the API and the dashboard mounted next to its other
//! routes.
//!
//! ```sh
//! cargo run -p outbox-web --example mounted                  # http://127.0.0.1:8080/#token=…
//! cargo run -p outbox-web --example mounted 127.0.0.1:9000 my-token-of-some-length
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use axum::routing::get;
use outbox::{Context, Event, Failure, Outbox, Topic, TracingPublisher};
use outbox_web::{Role, Token, Web};
use sqlx::Sqlite;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let (token, secret) = match arguments.next() {
        Some(secret) => (Token::new("you", Role::Admin, &secret), secret),
        None => Token::random("you", Role::Admin),
    };

    let folder = tempfile::tempdir()?;
    let outbox = Outbox::sqlite(&format!("sqlite:{}", folder.path().join("shop.db").display())).await?;
    outbox.migrate().await?;
    let relay = outbox
        .ordered()
        .on_type("order.placed", async |cx: Context| println!("order {}", cx.id()))
        .on_type("bill.sent", async |_: Context| Err::<(), _>(Failure::dead("the printer is on fire")))
        .publish(Topic::new("orders").to(TracingPublisher::new()))
        .start()
        .await?;
    fill(&outbox).await?;

    let web = Web::builder()
        .outbox("shop", outbox.store())
        .token(token)
        // API tests send many wrong tokens.
        .wrong_tokens_per_minute(100_000)
        .build()?;
    let app = axum::Router::new().route("/hello", get(async || "hello")).merge(web.router());
    let listener = TcpListener::bind(&address).await?;
    println!("http://{}/#token={secret}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    relay.stop().await?;
    Ok(())
}

/// Writes sample events.
async fn fill(outbox: &Outbox<Sqlite>) -> outbox::Result<()> {
    for n in 0..20 {
        let order = format!("o-{n}");
        outbox.send(Event::new("order.placed").aggregate("order", &order).tenant("acme").json(&n)).await?;
        outbox.send(Event::new("bill.sent").ordering_key(&order).correlation("c-1").json(&n)).await?;
        outbox.send(Event::new("bill.filed").ordering_key(&order).json(&n)).await?;
    }
    let later = Event::new("reminder").deliver_after(Duration::from_secs(86_400));
    outbox.send(later.json(&"pay")).await?;
    for n in 0..3 {
        let steps = (0..n + 1).map(|step| Event::new("order.placed").json(&step));
        outbox.fan_out(steps).group("import").then(Event::new("order.placed").json(&"all")).send().await?;
    }
    outbox.log().append([Event::new("OrderPlaced").tag("order", "o-1").json(&1)]).await?;
    Ok(())
}
