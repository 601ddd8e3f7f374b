//! Callers that the application identifies by its own sign-in, in place of tokens or beside them.

mod common;

use axum::http::header;
use axum::http::request::Parts;
use common::{ADMIN, ApiResponse, READ, TestServer, operations, store_at, with_tokens};
use outbox::{Event, EventId};
use outbox_web::{Actor, Role, Web, WebBuilder};
use reqwest::RequestBuilder;
use serde_json::json;

/// The sign-in of the application: its cookie is `shop=NAME:ROLE`, percent-encoded.
fn identify(parts: &Parts) -> Option<Actor> {
    let cookies = parts.headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let shop =
        cookies.flat_map(|cookies| cookies.split("; ")).find_map(|cookie| cookie.strip_prefix("shop="))?;
    let (name, role) = shop.rsplit_once(':')?;
    let role = match role {
        "read" => Role::Read,
        "operate" => Role::Operate,
        "admin" => Role::Admin,
        _ => return None,
    };
    let name = reqwest::Url::parse(&format!("http://localhost/?name={name}")).unwrap();
    Some(Actor::new(name.query_pairs().next()?.1, role))
}

async fn server_with(configure: impl FnOnce(WebBuilder) -> WebBuilder) -> TestServer {
    let (store, folder) = store_at(None).await.unwrap();
    let builder = Web::builder().outbox("main", store.clone()).actor(identify);
    TestServer::serve(configure(builder).build().unwrap(), store, folder).await
}

/// A server that only the application's users can use.
async fn server() -> TestServer {
    server_with(|builder| builder).await
}

/// A browser in which a user of the application is signed in, with the dashboard open.
struct Browser {
    cookies: String,
    csrf: String,
}

async fn open(server: &TestServer, user: &str) -> Browser {
    let user = format!("shop={user}");
    let who = server.send(server.request("GET", "/api/outbox/whoami").header("cookie", &user)).await;
    assert_eq!(who.status, 200, "{}", who.text);
    let ours = who.header("set-cookie").split(';').next().unwrap();
    let csrf = who.json()["csrf"].as_str().unwrap().to_owned();
    Browser { cookies: format!("{user}; {ours}"), csrf }
}

impl Browser {
    /// A change, as the dashboard sends it.
    async fn post(&self, server: &TestServer, path: &str) -> ApiResponse {
        server.send(self.request(server, path).header("x-csrf-token", &self.csrf)).await
    }

    /// A change without the CSRF token.
    fn request(&self, server: &TestServer, path: &str) -> RequestBuilder {
        server.request("POST", path).header("cookie", &self.cookies)
    }
}

async fn dead_event(server: &TestServer) -> (EventId, String) {
    let id = server.dead(Event::new("order").json(&1), "no").await;
    let replay = format!("/api/outbox/events/{id}/replay");
    (id, replay)
}

#[tokio::test]
async fn the_application_says_who_makes_a_change_and_the_audit_shows_the_name() {
    let server = server().await;
    let (id, replay) = dead_event(&server).await;
    let ada = open(&server, "ada%40example.com:operate").await;
    let who =
        server.send(server.request("GET", "/api/outbox/whoami").header("cookie", &ada.cookies)).await.json();
    assert_eq!((&who["actor"], &who["role"]), (&json!("ada@example.com"), &json!("operate")));
    assert_eq!((&who["session"], &who["csrf"]), (&json!(false), &json!(ada.csrf)), "the cookie is kept");
    let done = ada.post(&server, &replay).await;
    assert_eq!(done.status, 200, "{}", done.text);
    assert_eq!(server.status_of(&id).await, "NEW");
    let audit = server.store.audits(None, 10).await.unwrap();
    assert_eq!((audit[0].actor.as_str(), audit[0].action.as_str()), ("ada@example.com", "event.replay"));
}

#[tokio::test]
async fn a_change_needs_the_same_proofs_as_in_a_session() {
    let server = server().await;
    let (id, replay) = dead_event(&server).await;
    let ada = open(&server, "ada:operate").await;
    let (same_name, bob) = (open(&server, "ada:operate").await, open(&server, "bob:admin").await);
    let problem = async |request: RequestBuilder| {
        let response = server.send(request).await;
        assert_eq!(response.status, 403, "{}", response.text);
        response.problem()
    };
    let change = |cookies: &str, csrf: Option<&str>| {
        let request = server.request("POST", &replay).header("cookie", cookies);
        csrf.into_iter().fold(request, |request, csrf| request.header("x-csrf-token", csrf))
    };
    // The application's cookie is not enough, nor is the token without the cookie that belongs to
    // it.
    assert_eq!(problem(change("shop=ada:operate", None)).await, "csrf");
    assert_eq!(problem(change("shop=ada:operate", Some(&ada.csrf))).await, "csrf");
    assert_eq!(problem(change(&ada.cookies, None)).await, "csrf");
    for wrong in ["", "wrong", &same_name.csrf, &bob.csrf] {
        assert_eq!(problem(change(&ada.cookies, Some(wrong))).await, "csrf", "{wrong}");
    }
    // A cookie that another site managed to set, with the token that it got for it in its own name.
    let forged = bob.cookies.replace("shop=bob:admin", "shop=ada:operate");
    assert_eq!(problem(change(&forged, Some(&bob.csrf))).await, "csrf");
    let nonce = ada.cookies.rsplit('=').next().unwrap();
    assert_eq!(problem(change(&ada.cookies, Some(nonce))).await, "csrf");
    // Also with the token a page of another site changes nothing.
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("origin", "http://localhost:1"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        let request = change(&ada.cookies, Some(&ada.csrf)).header(name, value);
        assert_eq!(problem(request).await, "origin", "{name}: {value}");
    }
    let form = change(&ada.cookies, Some(&ada.csrf)).header("content-type", "text/plain").body("{}");
    assert_eq!(server.send(form).await.status, 415);
    assert_eq!(server.status_of(&id).await, "DEAD");
    assert_eq!(server.audit().await, []);
    let ours = change(&ada.cookies, Some(&ada.csrf)).header("origin", &server.url);
    assert_eq!(server.send(ours.header("sec-fetch-site", "same-origin")).await.status, 200);
    assert_eq!(server.status_of(&id).await, "NEW");
}

/// A browser may send the application's cookie along with an image or a link of another site.
#[tokio::test]
async fn another_site_reads_nothing_in_the_name_of_a_user() {
    let server = server().await;
    let (id, _) = dead_event(&server).await;
    let ada = open(&server, "ada:operate").await;
    let payload = format!("/api/outbox/events/{id}/payload");
    let read = |site: &str| {
        server.request("GET", &payload).header("cookie", &ada.cookies).header("sec-fetch-site", site)
    };
    for site in ["cross-site", "same-site"] {
        let rejected = server.send(read(site)).await;
        assert_eq!((rejected.status.as_u16(), rejected.problem().as_str()), (403, "origin"), "{site}");
    }
    assert_eq!(server.audit().await, [], "no entry in the name of ada");
    for site in ["same-origin", "none"] {
        assert_eq!(server.send(read(site)).await.status, 200, "{site}");
    }
}

#[tokio::test]
async fn a_request_that_the_application_does_not_know_gets_nothing() {
    let server = server().await;
    for (method, path, _) in operations() {
        let path = path.replace(['{', '}'], "");
        for credentials in [("cookie", "shop=eve:none"), ("authorization", &*format!("Bearer {ADMIN}"))] {
            let request = server.request(&method, &path).header(credentials.0, credentials.1);
            let rejected = server.send(request.json(&json!({"token": ADMIN}))).await;
            assert_eq!(rejected.status, 403, "{method} {path}: {}", rejected.text);
            assert_eq!(rejected.problem(), "no-access", "{method} {path}");
            assert!(
                !rejected.headers.contains_key("set-cookie")
                    && !rejected.headers.contains_key("www-authenticate")
            );
        }
    }
    // The page says so; it has no form, and no scripts.
    let page = server.request("GET", "/").send().await.unwrap();
    assert_eq!((page.status().as_u16(), page.headers()["cache-control"].as_bytes()), (403, &b"no-store"[..]));
    assert!(page.headers()["content-security-policy"].to_str().unwrap().contains("frame-ancestors 'none'"));
    let text = page.text().await.unwrap();
    assert!(text.contains("the application has not signed you in") && !text.contains("<script"), "{text}");
    assert!(!text.contains('{'), "{text}");
    let style = server.request("GET", "/css/base.css").send().await.unwrap();
    assert_eq!(style.status(), 200);
    let page = server.request("GET", "/").header("cookie", "shop=ada:read").send().await.unwrap();
    assert_eq!(page.status(), 200);
}

#[tokio::test]
async fn a_user_cannot_take_a_higher_role() {
    let server = server().await;
    let (id, replay) = dead_event(&server).await;
    let (bob, root) = (open(&server, "bob:read").await, open(&server, "root:admin").await);
    for (method, path, operation) in operations() {
        let role = operation["security"][0]["bearer"][0].as_str();
        if !matches!(role, Some("operate" | "admin")) {
            continue;
        }
        let path = path.replace(['{', '}'], "");
        let request = server.request(&method, &path).header("cookie", &bob.cookies);
        let request = request.header("x-csrf-token", &bob.csrf).json(&json!({}));
        // Headers and parameters of the request have no influence.
        let request = request.header("x-role", "admin").header("x-actor", "root").bearer_auth(ADMIN);
        let rejected = server.send(request).await;
        assert_eq!(
            (rejected.status.as_u16(), rejected.problem().as_str()),
            (403, "forbidden"),
            "{method} {path}"
        );
        assert!(rejected.text.contains("`bob` has read"), "{}", rejected.text);
    }
    // The cookie and the token of another user do not make one that user.
    let ours = root.cookies.split_once("; ").unwrap().1;
    let taken = server.request("POST", &replay).header("cookie", format!("shop=bob:read; {ours}"));
    let rejected = server.send(taken.header("x-csrf-token", &root.csrf)).await;
    assert_eq!((rejected.status.as_u16(), rejected.problem().as_str()), (403, "csrf"));
    assert_eq!((server.status_of(&id).await.as_str(), server.audit().await.len()), ("DEAD", 0));
    // A role that the application takes away is gone with the next request.
    let demoted = root.cookies.replace("root:admin", "root:read");
    let rejected =
        server.request("POST", &replay).header("cookie", demoted).header("x-csrf-token", &root.csrf);
    assert_eq!(server.send(rejected).await.problem(), "forbidden");
}

#[tokio::test]
async fn hostile_names_are_rejected_and_appear_nowhere() {
    let server = server_with(with_tokens).await;
    let (_, replay) = dead_event(&server).await;
    let long = "x".repeat(10_000);
    for name in
        ["", "ada%0Aroot", "ada%00", "%1b]0;owned%07", "%C2%9B2J", "%E2%80%AEada", "ops", "root", &long]
    {
        let cookie = format!("shop={name}:admin");
        for (method, path) in [("GET", "/api/outbox/whoami"), ("GET", "/api/outbox/live"), ("POST", &*replay)]
        {
            let rejected = server.send(server.request(method, path).header("cookie", &cookie)).await;
            assert_eq!(
                (rejected.status.as_u16(), rejected.problem().as_str()),
                (403, "no-access"),
                "{name} {path}"
            );
            assert!(rejected.text.len() < 500 && !rejected.text.contains("owned"), "{}", rejected.text);
            assert!(!rejected.headers.contains_key("set-cookie"));
        }
    }
    assert_eq!(server.audit().await, []);
    // Text that is only unusual is a name, and fits into every column.
    for (name, shown) in
        [("%D0%90%D0%B4%D0%B0%20%3Cb%3E", "Ада <b>".to_owned()), (&*"%C3%A4".repeat(120), "ä".repeat(120))]
    {
        let (id, replay) = dead_event(&server).await;
        let browser = open(&server, &format!("{name}:admin")).await;
        assert_eq!(browser.post(&server, &replay).await.status, 200, "{name}");
        let skip = format!("/api/outbox/events/{}/cancel", server.write(Event::new("order").json(&1)).await);
        let cancelled = browser.post(&server, &skip).await;
        assert_eq!(cancelled.status, 200, "{}", cancelled.text);
        assert!(
            server.store.audits(None, 10).await.unwrap().iter().any(|entry| entry.actor == shown),
            "{id}"
        );
    }
}

#[tokio::test]
async fn the_longest_name_fits_into_the_columns_of_every_database() {
    let servers = TestServer::on_all_databases_with(|builder| builder.actor(identify)).await;
    for server in servers {
        let (id, replay) = dead_event(&server).await;
        let browser = open(&server, &format!("{}:admin", "%F0%9F%A6%80".repeat(120))).await;
        assert_eq!(browser.post(&server, &replay).await.status, 200);
        let cancelled = browser.post(&server, &format!("/api/outbox/events/{id}/cancel")).await;
        assert_eq!(cancelled.status, 200, "{}", cancelled.text);
        assert_eq!(server.store.audits(None, 1).await.unwrap()[0].actor, "🦀".repeat(120));
    }
}

#[tokio::test]
async fn tokens_work_beside_the_applications_users() {
    let server = server_with(|builder| with_tokens(builder).wrong_tokens_per_minute(1)).await;
    let (_, replay) = dead_event(&server).await;
    let who = async |request: RequestBuilder| {
        let response = server.send(request).await;
        if response.status == 200 {
            response.json()["actor"].as_str().unwrap().to_owned()
        } else {
            response.problem()
        }
    };
    let request = || server.request("GET", "/api/outbox/whoami");
    assert_eq!(who(request().bearer_auth(READ)).await, "reader");
    assert_eq!(
        who(request().bearer_auth(READ).header("cookie", "shop=ada:admin")).await,
        "reader",
        "as asked for"
    );
    // A token of the application, or its password, is no wrong token of ours.
    for _ in 0..3 {
        let own = request().header("cookie", "shop=ada:admin");
        assert_eq!(who(own.try_clone().unwrap().bearer_auth("a-token-of-the-application")).await, "ada");
        assert_eq!(who(own.basic_auth("ada", Some("secret"))).await, "ada");
    }
    // The caller with a token sends no cookie, so no other site can make a browser send the
    // request.
    assert_eq!(server.send(server.request("POST", &replay).bearer_auth(ADMIN)).await.status, 200);
    assert_eq!(who(request().bearer_auth("certainly-not-a-token")).await, "unauthorized");
    assert_eq!(who(request().bearer_auth("certainly-not-a-token")).await, "too-many-attempts");
    assert_eq!(who(request()).await, "unauthorized");
    // The page has the form to sign in.
    assert_eq!(server.request("GET", "/").send().await.unwrap().status(), 200);
    let session =
        server.send(server.request("POST", "/api/outbox/session").json(&json!({"token": READ}))).await;
    let cookie = session.header("set-cookie").split(';').next().unwrap();
    assert_eq!(who(request().header("cookie", format!("shop=ada:admin; {cookie}"))).await, "reader");
    assert_eq!(who(request().header("cookie", "shop=ada:admin")).await, "ada");
}

#[tokio::test]
async fn instances_with_one_secret_accept_each_others_csrf_tokens() {
    let secret = |builder: WebBuilder| builder.csrf_secret("a-secret-of-all-instances");
    let (first, second, other) = (server_with(secret).await, server_with(secret).await, server().await);
    // The name of the cookie has the port: as behind a load balancer, all have the same.
    let request = |server: &TestServer, method: &str, path: &str| {
        server.request(method, path).header("host", "localhost")
    };
    let who =
        first.send(request(&first, "GET", "/api/outbox/whoami").header("cookie", "shop=ada:operate")).await;
    let cookie = who.header("set-cookie").split(';').next().unwrap();
    let cookies = format!("shop=ada:operate; {cookie}");
    for (server, status) in [(&first, 200), (&second, 200), (&other, 403)] {
        let (_, replay) = dead_event(server).await;
        let change = request(server, "POST", &replay).header("cookie", &cookies);
        let changed = server.send(change.header("x-csrf-token", who.json()["csrf"].as_str().unwrap())).await;
        assert_eq!(changed.status, status, "{}", changed.text);
    }
}

#[tokio::test]
async fn the_csrf_cookie_is_for_this_site_only_and_with_tls_for_tls_only() {
    for (tls, start, end) in
        [(false, "outbox_csrf=", "Max-Age=43200"), (true, "__Host-outbox_csrf=", "; Secure")]
    {
        let server = server_with(|builder| builder.tls(tls)).await;
        let request = server.request("GET", "/api/outbox/whoami").header("host", "localhost");
        let cookie =
            server.send(request.header("cookie", "shop=ada:read")).await.header("set-cookie").to_owned();
        assert!(cookie.starts_with(start) && cookie.ends_with(end), "{cookie}");
        assert!(cookie.contains("; HttpOnly; SameSite=Strict; Path=/;"), "{cookie}");
    }
}

#[tokio::test]
async fn other_routes_know_the_applications_users_too() {
    let (store, folder) = store_at(None).await.unwrap();
    let web = Web::builder().outbox("main", store.clone()).actor(identify).build().unwrap();
    let routes = axum::Router::new().route("/metrics", axum::routing::get(async || "metrics"));
    let app = web.protect(Role::Operate, routes);
    let get = async |cookie: &str| {
        use tower::ServiceExt as _;
        let request =
            axum::http::Request::get("/metrics").header("host", "localhost").header("cookie", cookie);
        let request = request.header("sec-fetch-site", "cross-site").body(axum::body::Body::empty()).unwrap();
        app.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    assert_eq!(get("shop=ada:operate").await, 200, "a link of another site leads to a page");
    assert_eq!((get("shop=bob:read").await, get("").await), (403, 403));
    drop(folder);
}

#[tokio::test]
async fn an_application_that_checks_hosts_itself_is_reached_by_every_name() {
    let server = server_with(WebBuilder::any_host).await;
    let (id, replay) = dead_event(&server).await;
    let ada = async |host: &str| {
        let request = server.request("GET", "/api/outbox/whoami").header("host", host);
        server.send(request.header("cookie", "shop=ada:operate")).await
    };
    let who = ada("shop.example.org").await;
    assert_eq!(who.status, 200, "{}", who.text);
    let ours = who.header("set-cookie").split(';').next().unwrap().to_owned();
    let change = |origin: &str| {
        let request =
            server.request("POST", &replay).header("host", "shop.example.org").header("origin", origin);
        let request = request.header("cookie", format!("shop=ada:operate; {ours}"));
        request.header("x-csrf-token", who.json()["csrf"].as_str().unwrap())
    };
    let rejected = server.send(change("https://evil.example")).await;
    assert_eq!((rejected.status.as_u16(), rejected.problem().as_str()), (403, "origin"));
    assert!(
        rejected.text.contains("`WebBuilder::host`") && rejected.text.contains("`hosts`"),
        "{}",
        rejected.text
    );
    assert_eq!(server.status_of(&id).await, "DEAD");
    assert_eq!(server.send(change("https://shop.example.org")).await.status, 200);
}

#[tokio::test]
async fn a_function_that_panics_reveals_nothing() {
    let (store, folder) = store_at(None).await.unwrap();
    let web = Web::builder().outbox("main", store.clone()).actor(|_| panic!("canary in a panic"));
    let server = TestServer::serve(web.build().unwrap(), store, folder).await;
    for path in ["/", "/api/outbox/whoami"] {
        let response = server.send(server.request("GET", path)).await;
        assert_eq!((response.status.as_u16(), response.problem().as_str()), (500, "internal"));
        assert!(!response.text.contains("canary"), "{}", response.text);
    }
}
