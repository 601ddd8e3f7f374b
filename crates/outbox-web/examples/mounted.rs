//! An application with its own outbox, its own pages and its own sign-in, and the dashboard and the
//! API below `/ops`.
//!
//! ```sh
//! cargo run -p outbox-web --example mounted                  # http://127.0.0.1:8080/
//! cargo run -p outbox-web --example mounted 127.0.0.1:9000 my-token-of-some-length
//! ```
//!
//! The second form accepts a token beside the sign-in of the application.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use outbox::{Context, Event, Failure, Outbox, Topic, TracingPublisher};
use outbox_web::{Actor, Role, Token, Web};
use sqlx::Sqlite;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let tokens = arguments.next().map(|secret| Token::new("program", Role::Admin, secret));

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
        // Who asks, and what for, is known from the sign-in of the shop.
        .actor(|parts| {
            let User(name) = parts.extensions.get()?;
            match name.as_str() {
                "ada" => Some(Actor::new(name, Role::Admin)),
                "bob" => Some(Actor::new(name, Role::Read)),
                _ => None,
            }
        })
        .tokens(tokens)
        // API tests send many wrong tokens.
        .wrong_tokens_per_minute(100_000)
        .build()?;
    let shop = Shop::default();
    let app = Router::new()
        .route("/", get(home))
        .route("/sign-in/{name}", post(sign_in))
        .route("/sign-out", post(sign_out))
        // Neither this path nor the fallback collides with those of the dashboard.
        .route("/api/docs", get(async || "the API of the shop"))
        .nest_service("/ops", web.router())
        .fallback(async || (StatusCode::NOT_FOUND, "the shop has no such page"))
        .layer(from_fn_with_state(shop.clone(), find_user))
        .with_state(shop);

    let listener = TcpListener::bind(&address).await?;
    println!("http://{}/", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    relay.stop().await?;
    Ok(())
}

/// The sessions of the shop: the name of the user, by the value of the cookie.
#[derive(Clone, Default)]
struct Shop {
    sessions: Arc<Mutex<HashMap<String, String>>>,
}

/// The user who sends a request.
#[derive(Clone)]
struct User(String);

const COOKIE: &str = "shop_session";

fn session(headers: &HeaderMap) -> Option<&str> {
    let mut cookies = headers.get(header::COOKIE)?.to_str().ok()?.split("; ");
    cookies.find_map(|cookie| cookie.strip_prefix(COOKIE)?.strip_prefix('='))
}

/// Adds the [`User`] to each request of a session.
async fn find_user(State(shop): State<Shop>, mut request: Request, next: Next) -> Response {
    let sessions = || shop.sessions.lock().expect("no thread panics with the lock");
    let name = session(request.headers()).and_then(|id| sessions().get(id).cloned());
    if let Some(name) = name {
        request.extensions_mut().insert(User(name));
    }
    next.run(request).await
}

/// Signs in without a password: a real application asks for one.
async fn sign_in(State(shop): State<Shop>, Path(name): Path<String>) -> Response {
    let (_, id) = Token::random("a random text", Role::Read);
    let cookie = format!("{COOKIE}={id}; HttpOnly; SameSite=Lax; Path=/");
    shop.sessions.lock().expect("no thread panics with the lock").insert(id, name);
    ([(header::SET_COOKIE, cookie)], Redirect::to("/ops")).into_response()
}

async fn sign_out(State(shop): State<Shop>, headers: HeaderMap) -> Redirect {
    let mut sessions = shop.sessions.lock().expect("no thread panics with the lock");
    session(&headers).and_then(|id| sessions.remove(id));
    Redirect::to("/")
}

async fn home() -> Html<&'static str> {
    Html(
        r#"<!doctype html><title>The shop</title><link rel="icon" href="/ops/icon.svg"><h1>The shop</h1>
        <form method="post" action="/sign-in/ada"><button>Sign in as ada, who may change everything</button></form>
        <form method="post" action="/sign-in/bob"><button>Sign in as bob, who may look</button></form>
        <form method="post" action="/sign-in/eve"><button>Sign in as eve, who has no access</button></form>
        <form method="post" action="/sign-out"><button>Sign out</button></form>
        <p><a href="/ops">Dashboard</a></p>"#,
    )
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
