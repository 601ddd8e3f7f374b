//! The router as part of an application: next to its routes, below a path, in front of its own
//! pages.

mod common;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::routing::get;
use common::{ADMIN, READ, store_at, with_tokens};
use outbox::Event;
use outbox_web::{BuildError, Role, Token, Web};
use reqwest::Url;
use serde_json::json;
use tower::ServiceExt as _;

/// Serves an application; returns its URL and a client.
async fn serve(app: Router) -> (String, reqwest::Client) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (url, reqwest::Client::builder().no_proxy().build().unwrap())
}

async fn web() -> (Web, Option<tempfile::TempDir>) {
    let (store, folder) = store_at(None).await.unwrap();
    store.insert(&[Event::new("order").json(&1).build().unwrap()]).await.unwrap();
    (with_tokens(Web::builder().outbox("main", store)).build().unwrap(), folder)
}

/// The parts of a text between two others.
fn between<'t>(text: &'t str, start: &'t str, end: &'t str) -> impl Iterator<Item = &'t str> {
    text.split(start).skip(1).filter_map(move |rest| Some(rest.split_once(end)?.0))
}

/// Loads a page as a browser does: every file that it refers to, and the files that those import.
/// Returns the URLs of all files.
async fn load(client: &reqwest::Client, page: &str) -> BTreeSet<Url> {
    let mut open = vec![Url::parse(page).unwrap()];
    let mut seen = BTreeSet::new();
    while let Some(url) = open.pop() {
        if !seen.insert(url.clone()) {
            continue;
        }
        let response = client.get(url.clone()).header("accept", "text/html").send().await.unwrap();
        assert_eq!(response.status(), 200, "{url}, from {page}");
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        let text = response.text().await.unwrap();
        let references: Vec<&str> = match kind.split(';').next().unwrap() {
            "text/html" => between(&text, "href=\"", "\"").chain(between(&text, "src=\"", "\"")).collect(),
            "text/javascript" => between(&text, " from \"", "\"").collect(),
            "text/css" => between(&text, "url(", ")").collect(),
            other => {
                assert_eq!(other, "image/svg+xml", "{url}");
                Vec::new()
            }
        };
        // The document of the API needs a token.
        let references = references.into_iter().filter(|reference| !reference.ends_with("openapi.json"));
        open.extend(references.map(|reference| url.join(reference).unwrap()));
    }
    seen
}

/// Loads the dashboard from a page, calls the API as the page does, and follows the link to the
/// documentation and back.
async fn visit(client: &reqwest::Client, page: &str) {
    let files = load(client, page).await;
    assert!(files.len() > 40, "{page}: {} files", files.len());
    let of_api = files.iter().find(|url| url.path().ends_with("/api.js")).expect("the client of the API");
    let overview = of_api.join("api/outbox/").unwrap().join("overview").unwrap();
    let response = client.get(overview).bearer_auth(READ).send().await.unwrap();
    assert_eq!(response.status(), 200, "{page}");
    assert_eq!(response.json::<serde_json::Value>().await.unwrap()["due"]["count"], 1, "{page}");
    let docs = load(client, of_api.join("api/docs").unwrap().as_str()).await;
    assert!(docs.iter().any(|url| url.path().ends_with("/app.js")), "the link back to the dashboard");
}

async fn text(client: &reqwest::Client, url: &str) -> (u16, String) {
    let response = client.get(url).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dashboard_loads_wherever_it_is_mounted() {
    let (web, _folder) = web().await;
    let nested = |path: &str| Router::new().nest(path, web.router());
    let service = |path: &str| Router::new().nest_service(path, web.router());
    for (app, pages) in [
        (nested("/ops"), &["/ops", "/ops?from=mail"][..]),
        (nested("/ops/"), &["/ops/"]),
        (service("/ops"), &["/ops", "/ops/", "/ops/index.html"]),
        (service("/ops/"), &["/ops/"]),
        (Router::new().nest("/a", nested("/b")), &["/a/b"]),
        (Router::new().nest("/a", service("/b")), &["/a/b", "/a/b/"]),
        (Router::new().nest_service("/a", service("/b")), &["/a/b", "/a/b/"]),
        (service("/{tenant}/ops"), &["/acme/ops", "/a%20b:c/ops/"]),
        (service("/{tenant}"), &["/acme", "/a:b", "/a%22b"]),
        (Router::new().merge(web.router()), &["/", "/index.html"]),
        (web.standalone(), &["/", "/events/01J", "/events/"]),
        (Router::new().nest_service("/ops", web.standalone()), &["/ops", "/ops/", "/ops/events/01J"]),
    ] {
        let (url, client) = serve(app).await;
        for page in pages {
            visit(&client, &format!("{url}{page}")).await;
        }
    }
}

/// As a proxy does that serves `/shop/…` with the application's `/…`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dashboard_loads_behind_a_proxy_that_removes_a_prefix() {
    let (web, _folder) = web().await;
    let app = Router::new().nest_service("/ops", web.router());
    let proxied = app.map_request(|mut request: Request| {
        let path = request.uri().path_and_query().unwrap().as_str();
        *request.uri_mut() =
            path.strip_prefix("/shop").expect("the proxy serves this prefix").parse().unwrap();
        request
    });
    let (url, client) = serve(Router::new().fallback_service(proxied)).await;
    for page in ["/shop/ops", "/shop/ops/"] {
        visit(&client, &format!("{url}{page}")).await;
    }
}

#[tokio::test]
async fn a_path_is_text_in_the_page() {
    let (web, _folder) = web().await;
    let app = Router::new().nest_service("/{tenant}", web.router());
    for (path, in_page) in
        [("/a\"onload=\"x", "./a&quot;onload=&quot;x/app.js"), ("/a&amp;b", "./a&amp;amp;b/app.js")]
    {
        let request = Request::get(path).header("host", "localhost").body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 200);
        let page = axum::body::to_bytes(response.into_body(), 100_000).await.unwrap();
        let page = std::str::from_utf8(&page).unwrap();
        assert!(page.contains(in_page), "{page}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_application_keeps_its_fallback_and_its_own_paths() {
    let (web, _folder) = web().await;
    let shop = || {
        Router::new()
            .route("/hello", get(async || "hello"))
            .route("/api/orders", get(async || "orders"))
            .fallback(async || (StatusCode::NOT_FOUND, "the shop has no such page"))
    };
    let with_docs =
        || shop().route("/", get(async || "home")).route("/api/docs", get(async || "the shop's docs"));
    let missing = (404, "the shop has no such page".to_owned());
    for (app, prefix) in [
        (with_docs().nest("/ops", web.router()), "/ops"),
        (with_docs().nest("/a", Router::new().nest("/ops", web.router())), "/a/ops"),
        (with_docs().nest("/ops", web.api()), "/ops"),
        (with_docs().nest_service("/ops", web.router()), "/ops"),
        (shop().merge(web.router()), ""),
        (web.router().merge(shop()), ""),
        (shop().merge(web.api()), ""),
    ] {
        let (url, client) = serve(app).await;
        for path in ["/nothing", "/api/nothing", "/api", "/events/01J", "/opsx"] {
            assert_eq!(text(&client, &format!("{url}{path}")).await, missing, "{prefix}: {path}");
        }
        assert_eq!(text(&client, &format!("{url}/hello")).await, (200, "hello".to_owned()));
        assert_eq!(text(&client, &format!("{url}/api/orders")).await, (200, "orders".to_owned()));
        if !prefix.is_empty() {
            assert_eq!(text(&client, &format!("{url}/api/docs")).await.1, "the shop's docs");
        }
        assert!(text(&client, &format!("{url}{prefix}/api/docs")).await.1.contains("outbox API"));
        // Below the path of the API an unknown path is the API's own: it needs a caller.
        for path in ["/api/outbox/nothing", "/api/outbox", "/api/outbox/"] {
            let unknown = format!("{url}{prefix}{path}");
            assert_eq!(client.get(&unknown).send().await.unwrap().status(), 401, "{unknown}");
            let found = client.get(&unknown).bearer_auth(READ).send().await.unwrap();
            assert_eq!(
                (found.status().as_u16(), found.headers()["content-type"].as_bytes()),
                (404, &b"application/problem+json"[..])
            );
        }
    }
    // Without a fallback of the application, axum's answers.
    let (url, client) = serve(Router::new().merge(web.router())).await;
    assert_eq!(text(&client, &format!("{url}/nothing")).await, (404, String::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_works_below_a_path() {
    let (web, _folder) = web().await;
    let (url, client) = serve(Router::new().nest("/ops", web.router())).await;
    let get = async |path: &str| client.get(format!("{url}{path}")).bearer_auth(ADMIN).send().await.unwrap();
    let sign_in = client.post(format!("{url}/ops/api/outbox/session")).json(&json!({"token": READ}));
    assert_eq!(sign_in.send().await.unwrap().status(), 200);
    let replay = client.post(format!("{url}/ops/api/outbox/dead/replay")).bearer_auth(ADMIN);
    let job = replay.json(&json!({"confirm_all": true})).send().await.unwrap();
    let location = job.headers()["location"].to_str().unwrap().to_owned();
    assert!(location.starts_with("/ops/api/outbox/jobs/"), "{location}");
    assert_eq!(get(&location).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_its_own_serves_pages_to_browsers_and_404_for_missing_files() {
    let (web, _folder) = web().await;
    let (url, client) = serve(web.standalone()).await;
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
    let short = good().actor(|_| None).csrf_secret("canary-short").build().unwrap_err();
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
