//! A web service with a database per tenant, and one relay for all of them with four connections.
//!
//! ```sh
//! cargo run --example tenants                            # drives itself, then ends
//! cargo run --example tenants -- --listen 127.0.0.1:8080 # serves until Ctrl-C
//!
//! curl -X POST localhost:8080/tenants/acme
//! curl localhost:8080/tenants/acme/orders --json '{"item": "tea"}'
//! curl localhost:8080/tenants/acme/orders
//! curl localhost:8080/databases
//! ```

use std::error::Error as StdError;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use outbox::fleet::{DatabaseState, Discovery, FleetDatabase};
use outbox::{Error, EventBuilder, Fleet, Handled, HandlerTx, Message, Outbox};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::Sqlite;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

type Failed = Box<dyn StdError + Send + Sync>;

const MAX_CONNECTIONS: usize = 4;
const ORDERS: &str = "CREATE TABLE IF NOT EXISTS orders (
    id INTEGER PRIMARY KEY, item TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'placed')";

// ---- The tenants: one file per tenant, in one directory.

#[derive(Clone)]
struct Folder(Arc<PathBuf>);

impl Folder {
    fn file(&self, tenant: &str) -> PathBuf {
        self.0.join(format!("{tenant}.db"))
    }
}

#[async_trait]
impl Discovery for Folder {
    async fn discover(&self) -> Result<Vec<FleetDatabase>, Failed> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&*self.0)? {
            let file = entry?.path();
            let name = file.file_name().and_then(|name| name.to_str());
            if let Some(tenant) = name.and_then(|name| name.strip_suffix(".db")) {
                found.push(FleetDatabase::new(tenant, format!("sqlite:{}", file.display())));
            }
        }
        Ok(found)
    }
}

/// The name becomes a file name, so its characters are restricted.
fn is_a_name(tenant: &str) -> bool {
    (1..=40).contains(&tenant.len()) && tenant.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

// ---- The event, and its handler.

#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    order: i64,
}

impl Message for OrderPlaced {
    const TYPE: &'static str = "order.placed";

    fn describe(&self, event: EventBuilder) -> EventBuilder {
        event.aggregate("order", self.order.to_string())
    }
}

/// Runs in a transaction of the database that the event came from: the tenant's own.
async fn confirm(OrderPlaced { order }: OrderPlaced, mut tx: HandlerTx<Sqlite>) -> Handled {
    sqlx::query("UPDATE orders SET state = 'confirmed' WHERE id = $1").bind(order).execute(&mut **tx).await?;
    Ok(())
}

// ---- The web service.

#[derive(Clone)]
struct App {
    fleet: Fleet,
    folder: Folder,
}

/// An error as an HTTP response.
struct Problem(StatusCode, String);

type Answer<T> = Result<T, Problem>;

impl<E: Into<Error>> From<E> for Problem {
    fn from(error: E) -> Self {
        match error.into() {
            Error::UnknownRoute { key } => Self(StatusCode::NOT_FOUND, format!("there is no tenant {key:?}")),
            busy if busy.is_transient() => Self(StatusCode::SERVICE_UNAVAILABLE, "try again".to_owned()),
            error => Self::internal(&error),
        }
    }
}

impl Problem {
    /// Logs the details and does not return them to the caller.
    fn internal(error: &dyn StdError) -> Self {
        eprintln!("{error}");
        Self(StatusCode::INTERNAL_SERVER_ERROR, "something went wrong".to_owned())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

impl App {
    fn router(self) -> Router {
        Router::new()
            .route("/tenants/{tenant}", post(make_tenant))
            .route("/tenants/{tenant}/orders", post(place_order).get(list_orders))
            .route("/databases", get(list_databases))
            .with_state(self)
    }

    fn outbox(&self, tenant: &str) -> Answer<Outbox<Sqlite>> {
        Ok(self.fleet.outbox(tenant)?)
    }
}

/// Idempotent: an existing tenant stays unchanged.
async fn make_tenant(State(app): State<App>, Path(tenant): Path<String>) -> Answer<StatusCode> {
    if !is_a_name(&tenant) {
        return Err(Problem(
            StatusCode::BAD_REQUEST,
            "a name is 1 to 40 letters, digits and hyphens".to_owned(),
        ));
    }
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(app.folder.file(&tenant));
    opened.map_err(|error| Problem::internal(&error))?;
    app.fleet.refresh().await?; // do not wait for the interval
    let mut tx = app.outbox(&tenant)?.begin().await?;
    sqlx::query(ORDERS).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(StatusCode::CREATED)
}

#[derive(Deserialize)]
struct NewOrder {
    item: String,
}

/// The order and its event are written in one transaction of the tenant's database.
async fn place_order(
    State(app): State<App>,
    Path(tenant): Path<String>,
    Json(new): Json<NewOrder>,
) -> Answer<(StatusCode, Json<Value>)> {
    let outbox = app.outbox(&tenant)?;
    let mut tx = outbox.begin().await?;
    let insert = sqlx::query_scalar("INSERT INTO orders (item) VALUES ($1) RETURNING id");
    let order: i64 = insert.bind(new.item).fetch_one(&mut *tx).await?;
    tx.write(OrderPlaced { order }).await?;
    tx.commit().await?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "order": order }))))
}

async fn list_orders(State(app): State<App>, Path(tenant): Path<String>) -> Answer<Json<Value>> {
    let mut tx = app.outbox(&tenant)?.begin().await?;
    let orders = sqlx::query_as("SELECT id, item, state FROM orders ORDER BY id");
    let orders: Vec<(i64, String, String)> = orders.fetch_all(&mut *tx).await?;
    tx.rollback().await?;
    let shown = |(order, item, state)| json!({ "order": order, "item": item, "state": state });
    Ok(Json(orders.into_iter().map(shown).collect()))
}

async fn list_databases(State(app): State<App>) -> Json<Value> {
    let databases = app.fleet.databases().into_iter().map(|database| match database.state {
        DatabaseState::Failing { reason } => {
            json!({ "name": database.name, "state": "Failing", "reason": reason })
        }
        state => json!({ "name": database.name, "state": format!("{state:?}") }),
    });
    Json(json!({
        "connections": app.fleet.connections(),
        "max_connections": MAX_CONNECTIONS,
        "databases": databases.collect::<Value>(),
    }))
}

// ---- A client that drives the service, and shows the results.

async fn drive(address: SocketAddr) -> Result<(), Failed> {
    let tenants: Vec<String> = (1..=12).map(|n| format!("tenant-{n:02}")).collect();
    for tenant in &tenants {
        request(address, "POST", &format!("/tenants/{tenant}"), None).await?;
    }
    for (n, tenant) in tenants.iter().enumerate() {
        for item in ["tea", "coffee", "milk", "sugar"].iter().take(1 + n % 4) {
            request(address, "POST", &format!("/tenants/{tenant}/orders"), Some(json!({ "item": item })))
                .await?;
        }
    }
    let (unknown, _) = request(address, "GET", "/tenants/unknown/orders", None).await?;
    println!("orders of an unknown tenant: {unknown}\n");

    println!("{:<12} {:>6} {:>9}", "tenant", "orders", "confirmed");
    let (mut all, mut most) = (0, 0);
    for tenant in &tenants {
        let orders = loop {
            let (_, orders) = request(address, "GET", &format!("/tenants/{tenant}/orders"), None).await?;
            let orders = orders.as_array().cloned().unwrap_or_default();
            if orders.iter().all(|order| order["state"] == "confirmed") {
                break orders.len();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let (_, fleet) = request(address, "GET", "/databases", None).await?;
        most = fleet["connections"].as_u64().unwrap_or_default().max(most);
        all += orders;
        println!("{tenant:<12} {orders:>6} {orders:>9}");
    }
    println!(
        "\nall {all} orders of {} tenants are confirmed, with {most} connections at most",
        tenants.len()
    );
    Ok(())
}

/// A minimal HTTP client for one request.
async fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: Option<Value>,
) -> Result<(u16, Value), Failed> {
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("an answer without an end")?;
    let status: u16 = head.split(' ').nth(1).ok_or("an answer without a status")?.parse()?;
    if status >= 500 {
        return Err(format!("{method} {path}: {status} {body}").into());
    }
    Ok((status, serde_json::from_str(body).unwrap_or_default()))
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let listen = match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => None,
        ["--listen", address] => Some(address.parse::<SocketAddr>()?),
        _ => return Err("usage: tenants [--listen ADDRESS:PORT]".into()),
    };
    let temporary = tempfile::tempdir()?;
    let folder = Folder(Arc::new(temporary.path().to_owned()));
    let fleet = Fleet::builder()
        .discovery(folder.clone())
        .max_connections(MAX_CONNECTIONS)
        .migrate(true)
        .open()
        .await?;
    let relay = fleet.multi_node().on(confirm).start().await?;

    let listener = TcpListener::bind(listen.unwrap_or(([127, 0, 0, 1], 0).into())).await?;
    let address = listener.local_addr()?;
    let app = App { fleet: fleet.clone(), folder }.router();
    println!("serving {} on http://{address}", temporary.path().display());
    let (ends, end) = tokio::sync::oneshot::channel::<()>();
    let server = axum::serve(listener, app).with_graceful_shutdown(async {
        let _ = end.await;
    });
    let server = tokio::spawn(server.into_future());
    let driven = match listen {
        Some(_) => tokio::signal::ctrl_c().await.map_err(Failed::from),
        None => drive(address).await,
    };

    // In this order: stop the writers, then the delivery, then the connections.
    drop(ends);
    server.await??;
    relay.stop().await?;
    fleet.close().await;
    println!("stopped, with {} connections", fleet.connections());
    driven
}
