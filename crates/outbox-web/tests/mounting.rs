//! The router as part of an application: next to its routes, below a path, in front of its own
//! pages.

mod common;

use std::net::SocketAddr;

use axum::Router;
use axum::routing::get;
use common::{ADMIN, READ, store_at, with_tokens};
use outbox::Event;
use outbox_web::{BuildError, Role, Token, Web};
use serde_json::json;

/// Serves an application; returns its URL and a client.
async fn serve(app: Router) -> (String, reqwest::Client) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (url, reqwest::Client::builder().no_proxy().build().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_router_works_below_a_path_and_next_to_other_routes() {
    let (store, _folder) = store_at(None).await.unwrap();
    store.insert(&[Event::new("order").json(&1).build().unwrap()]).await.unwrap();
    let web = with_tokens(Web::builder().outbox("main", store)).build().unwrap();
    let app = Router::new().route("/hello", get(async || "hello")).nest("/ops", web.router());
    let (url, client) = serve(app).await;
    assert_eq!(client.get(format!("{url}/hello")).send().await.unwrap().text().await.unwrap(), "hello");
    let get = async |path: &str| client.get(format!("{url}{path}")).bearer_auth(ADMIN).send().await.unwrap();
    assert_eq!(get("/ops/api/outbox/overview").await.status(), 200);
    assert_eq!(get("/ops/api/docs").await.status(), 200);
    let sign_in = client.post(format!("{url}/ops/api/outbox/session")).json(&json!({"token": READ}));
    assert_eq!(sign_in.send().await.unwrap().status(), 200);
    let replay = client.post(format!("{url}/ops/api/outbox/dead/replay")).bearer_auth(ADMIN);
    let job = replay.json(&json!({"confirm_all": true})).send().await.unwrap();
    let location = job.headers()["location"].to_str().unwrap().to_owned();
    assert!(location.starts_with("/ops/api/outbox/jobs/"), "{location}");
    assert_eq!(get(&location).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dashboard_serves_pages_to_browsers_and_404_for_missing_files() {
    let (store, _folder) = store_at(None).await.unwrap();
    let web = with_tokens(Web::builder().outbox("main", store)).build().unwrap();
    let (url, client) = serve(web.router()).await;
    let get = async |path: &str, accept: &str| {
        let response = client.get(format!("{url}{path}")).header("accept", accept).send().await.unwrap();
        (response.status().as_u16(), response.headers()["content-type"].to_str().unwrap().to_owned())
    };
    let html = (200, "text/html; charset=utf-8".to_owned());
    assert_eq!(get("/", "*/*").await, html);
    assert_eq!(get("/events/01J", "text/html,*/*;q=0.8").await, html);
    let missing = (404, "application/problem+json".to_owned());
    assert_eq!(get("/events/01J", "*/*").await, missing);
    for path in
        ["/nothing.js", "/../Cargo.toml", "/%2e%2e/Cargo.toml", "/docs/../../Cargo.toml", "/api/nothing"]
    {
        let (status, _) = get(path, "text/html").await;
        assert!(matches!(status, 401 | 404), "{path}: {status}");
    }
    assert_eq!(get("/app.js", "*/*").await, (200, "text/javascript; charset=utf-8".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_routes_can_have_the_same_guard_and_a_panic_reveals_nothing() {
    let (store, _folder) = store_at(None).await.unwrap();
    let web = with_tokens(Web::builder().outbox("main", store)).build().unwrap();
    async fn panics() -> &'static str {
        panic!("canary in a panic")
    }
    let others = Router::new().route("/fine", get(async || "fine")).route("/panics", get(panics));
    let (url, client) =
        serve(Router::new().merge(web.protect(Role::Operate, others)).merge(web.router())).await;
    let status = async |path: &str, token: Option<&str>| {
        let request = client.get(format!("{url}{path}"));
        let request = token.into_iter().fold(request, reqwest::RequestBuilder::bearer_auth);
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    assert_eq!(status("/fine", None).await.0, 401);
    assert_eq!(status("/fine", Some(READ)).await.0, 403);
    assert_eq!(status("/fine", Some(ADMIN)).await, (200, "fine".to_owned()));
    let (code, text) = status("/panics", Some(ADMIN)).await;
    assert!(
        code == 500 && text.contains("urn:outbox:problem:internal") && !text.contains("canary"),
        "{text}"
    );
    assert_eq!(status("/api/outbox/whoami", Some(READ)).await.0, 200, "the server continues");
}

#[tokio::test]
async fn an_invalid_configuration_is_rejected() {
    let (store, _folder) = store_at(None).await.unwrap();
    let token = |name: &str, secret: &str| Token::new(name, Role::Read, secret);
    let good = || Web::builder().outbox("main", store.clone());
    assert!(matches!(good().build(), Err(BuildError::NoToken)));
    assert!(matches!(Web::builder().token(token("a", READ)).build(), Err(BuildError::NoDatabase)));
    assert!(matches!(good().token(token("", READ)).build(), Err(BuildError::InvalidName { .. })));
    assert!(matches!(
        good().token(token("a", READ)).token(token("a", ADMIN)).build(),
        Err(BuildError::DuplicateName { .. })
    ));
    let short = good().token(token("a", "canary-short")).build().unwrap_err();
    assert!(short.to_string().contains("16 characters") && !short.to_string().contains("canary"), "{short}");
}

#[tokio::test]
async fn a_database_failure_is_a_server_error_without_sql() {
    let (store, folder) = store_at(None).await.unwrap();
    let server = common::TestServer::of(store, folder, |builder| builder).await;
    assert_eq!(server.get("/api/outbox/overview").await.status, 200);
    let pool = sqlx::SqlitePool::connect(&format!("sqlite:{}", server.folder().join("outbox.db").display()))
        .await
        .unwrap();
    let tables: Vec<String> = sqlx::query_scalar(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
    )
    .fetch_all(&pool)
    .await
    .unwrap();
    for table in tables {
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!("DROP TABLE \"{table}\""))).execute(&pool).await.unwrap();
    }
    for path in ["/api/outbox/overview", "/api/outbox/events", "/api/outbox/audit"] {
        let response = server.get(path).await;
        assert!(response.status.is_server_error(), "{path}: {}", response.status);
        assert!(
            !response.text.contains("SELECT") && !response.text.contains("no such table"),
            "{}",
            response.text
        );
    }
}
