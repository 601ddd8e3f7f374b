//! Authentication, roles, and rejected requests.

mod common;

use std::io::{Read as _, Write as _};

use common::{ADMIN, OPERATE, READ, TestServer, document, operations};
use outbox::Event;
use serde_json::json;

/// Fills the parameters of a path template.
fn fill_path(template: &str) -> String {
    let parts = template.split('/').map(|part| if part.starts_with('{') { "nothing" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

/// The role that an operation needs, according to the OpenAPI document.
fn role_of(operation: &serde_json::Value) -> Option<&str> {
    operation["security"].as_array().unwrap().first()?["bearer"][0].as_str()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_of_the_document_needs_a_token_and_its_role() {
    let server = TestServer::with(|builder| builder.wrong_tokens_per_minute(10_000)).await;
    let operations = operations();
    assert!(operations.len() >= 37, "{}", operations.len());
    let mut open = Vec::new();
    for (method, path, operation) in &operations {
        let request = || server.request(method, &fill_path(path)).json(&json!({}));
        let Some(role) = role_of(operation) else {
            open.push(format!("{method} {path}"));
            continue;
        };
        let missing = server.send(request()).await;
        assert_eq!(missing.status, 401, "{method} {path}");
        assert!(missing.header("www-authenticate").starts_with("Bearer"), "{method} {path}");
        let wrong = server.send(request().bearer_auth("certainly-not-a-token")).await;
        assert_eq!(wrong.status, 401, "{method} {path}");
        let lower = match role {
            "read" => None,
            "operate" => Some(READ),
            "admin" => Some(OPERATE),
            other => panic!("{other}"),
        };
        if let Some(lower) = lower {
            let rejected = server.send(request().bearer_auth(lower)).await;
            assert_eq!(rejected.status, 403, "{method} {path}: {}", rejected.text);
            assert!(rejected.text.contains(role), "{}", rejected.text);
        }
        let enough = match role {
            "read" => READ,
            "operate" => OPERATE,
            _ => ADMIN,
        };
        let accepted = request().bearer_auth(enough).send().await.unwrap().status();
        assert!(
            accepted != 401 && accepted != 403 && !accepted.is_server_error(),
            "{method} {path}: {accepted}"
        );
    }
    assert_eq!(open, ["POST /api/outbox/session"]);
    assert_eq!(server.get("/healthz").await.status, 404, "health checks are served by the application");
}

#[tokio::test]
async fn changes_need_more_than_the_role_read() {
    for (method, path, operation) in operations() {
        let role = role_of(operation);
        if method != "GET" && !path.ends_with("/session") {
            assert!(matches!(role, Some("operate" | "admin")), "{method} {path}: {role:?}");
        }
        for status in ["401", "421", "429", "500"] {
            assert!(operation["responses"][status].is_object(), "{method} {path} {status}");
        }
        assert!(operation["summary"].is_string(), "{method} {path}");
    }
    assert_eq!(document()["openapi"], "3.1.0");
    assert_eq!(document()["components"]["securitySchemes"]["bearer"]["scheme"], "bearer");
}

#[tokio::test]
async fn the_detail_of_an_attempt_needs_a_role_that_reads_payloads() {
    const RESPONSE: &str = "canary-in-a-response";
    let server = TestServer::start().await;
    let error = format!("http://hooks answers 500\n[detail] the response begins with: {RESPONSE}");
    let id = server.dead(Event::new("order").json(&1), &error).await;
    let one = format!("/api/outbox/events/{id}");
    let explain = format!("{one}/explain");
    for path in [&one, &explain, "/api/outbox/events?status=dead", "/api/outbox/overview"] {
        let response = server.send(server.request("GET", path).bearer_auth(READ)).await;
        assert_eq!(response.status, 200, "{path}: {}", response.text);
        assert!(!response.text.contains(RESPONSE), "{path}: {}", response.text);
    }
    for (token, sees) in [(READ, false), (OPERATE, true), (ADMIN, true)] {
        let response = server.send(server.request("GET", &one).bearer_auth(token)).await.json();
        let attempt = &response["attempts"][0];
        assert_eq!(attempt["error"], "http://hooks answers 500");
        let detail = attempt["detail"].as_str();
        assert_eq!(detail.is_some_and(|detail| detail.ends_with(RESPONSE)), sees, "{attempt}");
    }
}

#[tokio::test]
async fn repeated_wrong_tokens_are_throttled() {
    let server = TestServer::with(|builder| builder.wrong_tokens_per_minute(3)).await;
    for _ in 0..3 {
        let wrong =
            server.send(server.request("GET", "/api/outbox/whoami").bearer_auth("a-guess-at-a-token")).await;
        assert_eq!(wrong.status, 401);
    }
    let wrong = server.request("GET", "/api/outbox/whoami").bearer_auth("a-guess-at-a-token");
    let rejected = server.send(wrong).await;
    assert_eq!((rejected.status.as_u16(), rejected.problem().as_str()), (429, "too-many-attempts"));
    assert!(rejected.header("retry-after").parse::<u64>().unwrap() >= 1);
    let sign_in = async |token: &str| {
        let request = server.request("POST", "/api/outbox/session").json(&json!({"token": token}));
        server.send(request).await.status.as_u16()
    };
    assert_eq!(sign_in("a-guess-at-a-token").await, 429, "sign-ins are throttled too");
    // Behind a proxy all callers have one address: wrong tokens of one caller do not lock out the
    // others.
    assert_eq!(server.get("/api/outbox/whoami").await.status, 200);
    assert_eq!(sign_in(ADMIN).await, 200);
}

#[tokio::test]
async fn a_browser_signs_in_and_has_to_show_its_csrf_token() {
    let server = TestServer::start().await;
    let id = server.dead(Event::new("order").json(&1), "no").await;
    let session =
        server.send(server.request("POST", "/api/outbox/session").json(&json!({"token": OPERATE}))).await;
    assert_eq!(session.status, 200, "{}", session.text);
    let cookie = session.header("set-cookie").to_owned();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && cookie.contains("Path=/"),
        "{cookie}"
    );
    assert!(!cookie.contains("Secure") && !cookie.contains(OPERATE), "{cookie}");
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let csrf = session.json()["csrf"].as_str().unwrap().to_owned();

    let who = server.send(server.request("GET", "/api/outbox/whoami").header("cookie", &cookie)).await.json();
    assert_eq!((&who["actor"], &who["role"], &who["csrf"]), (&json!("ops"), &json!("operate"), &json!(csrf)));
    assert_eq!(who["databases"], json!(["main"]));

    let replay = || {
        let path = format!("/api/outbox/events/{id}/replay");
        server.request("POST", &path).header("cookie", &cookie)
    };
    let without = server.send(replay()).await;
    assert_eq!((without.status.as_u16(), without.problem().as_str()), (403, "csrf"));
    assert_eq!(server.send(replay().header("x-csrf-token", "wrong")).await.status, 403);
    assert_eq!(server.status_of(&id).await, "DEAD");
    assert_eq!(server.send(replay().header("x-csrf-token", &csrf)).await.status, 200);
    assert_eq!(server.status_of(&id).await, "NEW");

    let out = server.request("DELETE", "/api/outbox/session").header("cookie", &cookie);
    assert_eq!(server.send(out.try_clone().unwrap()).await.status, 403, "signing out is a change");
    assert_eq!(server.send(out.header("x-csrf-token", &csrf)).await.status, 204);
    let gone = server.send(server.request("GET", "/api/outbox/whoami").header("cookie", &cookie)).await;
    assert_eq!(gone.status, 401);
    let wrong =
        server.send(server.request("POST", "/api/outbox/session").json(&json!({"token": "wrong"}))).await;
    assert_eq!(wrong.status, 401);
    assert!(!wrong.headers.contains_key("set-cookie"));
}

#[tokio::test]
async fn with_tls_cookies_are_restricted_to_tls() {
    let server = TestServer::with(|builder| builder.tls(true)).await;
    let session =
        server.send(server.request("POST", "/api/outbox/session").json(&json!({"token": READ}))).await;
    let cookie = session.header("set-cookie");
    assert!(cookie.ends_with("; Secure") && cookie.starts_with("__Host-outbox_session_"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let who = server.send(server.request("GET", "/api/outbox/whoami").header("cookie", &cookie)).await;
    assert_eq!(who.status, 200);
    // A page without TLS can set a cookie without the prefix, but that cookie is ignored.
    let plain = cookie.trim_start_matches("__Host-");
    let who = server.send(server.request("GET", "/api/outbox/whoami").header("cookie", plain)).await;
    assert_eq!(who.status, 401);
}

/// Browsers share cookies between all ports of a host.
#[tokio::test]
async fn servers_at_two_ports_of_a_host_do_not_share_a_cookie() {
    let server = TestServer::start().await;
    let sign_in = async |host: &str| {
        let request = server.request("POST", "/api/outbox/session").header("host", host);
        let session = server.send(request.json(&json!({"token": READ}))).await;
        session.header("set-cookie").split(';').next().unwrap().to_owned()
    };
    let (here, there) = (sign_in("localhost:8080").await, sign_in("localhost:9090").await);
    assert!(here.starts_with("outbox_session_8080=") && there.starts_with("outbox_session_9090="), "{here}");
    assert!(sign_in("localhost").await.starts_with("outbox_session="));
    let both = format!("{there}; {here}");
    let who = async |host: &str, cookie: &str| {
        let request =
            server.request("GET", "/api/outbox/whoami").header("host", host).header("cookie", cookie);
        server.send(request).await.status.as_u16()
    };
    assert_eq!((who("localhost:8080", &both).await, who("localhost:9090", &both).await), (200, 200));
    assert_eq!((who("localhost:8080", &there).await, who("localhost:9090", &here).await), (401, 401));
}

#[tokio::test]
async fn pages_of_other_sites_change_nothing() {
    let server = TestServer::start().await;
    let id = server.dead(Event::new("order").json(&1), "no").await;
    let path = format!("/api/outbox/events/{id}/replay");
    let replay =
        |name: &str, value: &str| server.request("POST", &path).bearer_auth(ADMIN).header(name, value);
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("origin", "http://localhost:1"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        let rejected = server.send(replay(name, value)).await;
        assert_eq!(
            (rejected.status.as_u16(), rejected.problem().as_str()),
            (403, "origin"),
            "{name}: {value}"
        );
    }
    assert_eq!(server.status_of(&id).await, "DEAD");
    assert_eq!(server.send(replay("origin", &server.url)).await.status, 200);
}

#[tokio::test]
async fn only_names_of_this_server_are_accepted() {
    let server = TestServer::with(|builder| builder.host("outbox.example.com")).await;
    for (host, status) in [
        ("localhost:1234", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("outbox.example.com", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
    ] {
        for path in ["/api/outbox/whoami", "/api/docs"] {
            let response =
                server.send(server.request("GET", path).bearer_auth(READ).header("host", host)).await;
            assert_eq!(response.status, status, "{host} {path}");
            if status == 421 {
                let advice = response.json()["advice"].as_str().unwrap().to_owned();
                assert!(advice.contains("`hosts`") && advice.contains("`WebBuilder::host`"), "{advice}");
            }
        }
    }
}

#[tokio::test]
async fn only_json_of_a_bounded_size_is_read() {
    let server = TestServer::start().await;
    let post = |kind: Option<&str>, body: Vec<u8>| {
        let request = server.request("POST", "/api/outbox/dead/replay").bearer_auth(ADMIN).body(body);
        match kind {
            Some(kind) => request.header("content-type", kind),
            None => request,
        }
    };
    let dry = br#"{"dry_run": true}"#.to_vec();
    for (kind, status) in [
        (Some("application/json"), 200),
        (Some("application/json; charset=utf-8"), 200),
        (Some("text/plain"), 415),
        (Some("application/x-www-form-urlencoded"), 415),
        (Some("application/jsonp"), 415),
        (None, 415),
    ] {
        assert_eq!(server.send(post(kind, dry.clone())).await.status, status, "{kind:?}");
    }
    let large = vec![b' '; 1024 * 1024 + 1];
    let rejected = server.send(post(Some("application/json"), large.clone())).await;
    assert_eq!((rejected.status.as_u16(), rejected.problem().as_str()), (413, "too-large"));
    let stream = futures_util::stream::iter(
        large.chunks(8_192).map(|c| Ok::<_, std::io::Error>(c.to_vec())).collect::<Vec<_>>(),
    );
    let chunked = server.request("POST", "/api/outbox/dead/replay").bearer_auth(ADMIN);
    let chunked = chunked.header("content-type", "application/json").body(reqwest::Body::wrap_stream(stream));
    assert_eq!(server.send(chunked).await.status, 413, "also without Content-Length");
    for (body, status) in
        [("{", 400), ("", 400), ("[]", 422), (r#"{"dryrun": true}"#, 422), (r#"{"rate": 0}"#, 422)]
    {
        assert_eq!(server.send(post(Some("application/json"), body.into())).await.status, status, "{body}");
    }
}

/// Any client can send a sign-in: an unauthenticated request must not use much memory or time.
#[tokio::test]
async fn bodies_of_unauthenticated_callers_are_limited() {
    let server = TestServer::start().await;
    let json = |path: &str, bytes: usize| {
        let body = format!("{}{{\"token\": \"{ADMIN}\"}}", " ".repeat(bytes));
        let body = body[body.len() - bytes..].to_owned();
        server.request("POST", path).header("content-type", "application/json").body(body)
    };
    assert_eq!(server.send(json("/api/outbox/session", 16_384)).await.status, 200);
    // The dashboard's files accept no changes and need no token.
    for path in ["/api/outbox/session", "/", "/api/docs"] {
        let rejected = server.send(json(path, 16_385)).await;
        assert_eq!((rejected.status.as_u16(), rejected.problem().as_str()), (413, "too-large"), "{path}");
    }
    let stream = futures_util::stream::iter((0..5).map(|_| Ok::<_, std::io::Error>(vec![b' '; 4_096])));
    let chunked = server.request("POST", "/api/outbox/session").header("content-type", "application/json");
    let chunked = server.send(chunked.body(reqwest::Body::wrap_stream(stream))).await;
    assert_eq!(chunked.status, 413, "also without Content-Length");
}

#[tokio::test]
async fn errors_are_problem_details() {
    let server = TestServer::start().await;
    for (method, path, status) in [
        ("GET", "/api/outbox/nothing", 404),
        ("GET", "/api/nothing", 404),
        ("GET", "/api/outbox/events/nothing", 404),
        ("GET", "/api/outbox/events/%00", 404),
        ("GET", "/api/outbox/events/%ff", 400),
        ("GET", "/api/outbox/joins/nothing", 404),
        ("GET", "/api/outbox/jobs/nothing", 404),
        ("GET", "/api/outbox/publishers/nothing", 404),
        ("POST", "/api/outbox/publishers/nothing/pause", 404),
        ("POST", "/api/outbox/publishers/%00/pause", 404),
        ("POST", "/api/outbox/keys/nothing/replay", 404),
        ("GET", "/api/outbox/events?limit=501", 400),
        ("GET", "/api/outbox/events?limit=0", 400),
        ("GET", "/api/outbox/events?limit=many", 400),
        ("GET", "/api/outbox/events?status=lost", 400),
        ("GET", "/api/outbox/events?evnt_type=x", 400),
        ("GET", "/api/outbox/events?cursor=AAAA", 422),
        ("GET", "/api/outbox/events?event_type=%00", 400),
        ("GET", "/api/outbox/events?within=yesterday", 400),
        ("GET", "/api/outbox/overview?database=other", 404),
        ("GET", "/app.js.map", 404),
        ("GET", "/.env", 404),
        ("POST", "/", 405),
    ] {
        let response = server.send(server.request(method, path).bearer_auth(ADMIN)).await;
        assert_eq!(response.status, status, "{method} {path}: {}", response.text);
    }
}

#[tokio::test]
async fn other_methods_are_rejected_with_the_allowed_methods() {
    let server = TestServer::start().await;
    for method in ["PUT", "PATCH", "DELETE", "TRACE", "OPTIONS", "PROPFIND"] {
        let response = server.send(server.request(method, "/api/outbox/overview").bearer_auth(ADMIN)).await;
        assert_eq!((response.status.as_u16(), response.header("allow")), (405, "GET,HEAD"), "{method}");
    }
    let post = server.send(server.request("GET", "/api/outbox/dead/replay").bearer_auth(ADMIN)).await;
    assert_eq!((post.status.as_u16(), post.header("allow")), (405, "POST"));
    let head = server.request("HEAD", "/api/outbox/whoami").bearer_auth(READ).send().await.unwrap();
    assert_eq!(head.status(), 200);
}

#[tokio::test]
async fn the_docs_page_has_a_strict_content_security_policy() {
    let server = TestServer::start().await;
    for (path, kind) in [
        ("/api/docs", "text/html; charset=utf-8"),
        ("/api/docs.js", "text/javascript; charset=utf-8"),
        ("/api/docs.css", "text/css; charset=utf-8"),
    ] {
        let response = server.send(server.request("GET", path)).await;
        assert_eq!((response.status.as_u16(), response.header("content-type")), (200, kind), "{path}");
        let policy = response.header("content-security-policy");
        assert!(policy.contains("script-src 'self'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(response.header("cache-control"), "no-cache");
        let tag = response.header("etag").to_owned();
        let same = server.request("GET", path).header("if-none-match", tag).send().await.unwrap();
        assert_eq!(same.status(), 304);
    }
    assert_eq!(server.send(server.request("GET", "/api/openapi.json")).await.status, 401);
    assert_eq!(&server.read("/api/openapi.json").await, document());
}

/// Sends raw bytes, and returns the response.
async fn raw(server: &TestServer, request: String) -> String {
    let address = server.url.trim_start_matches("http://").to_owned();
    let response = tokio::task::spawn_blocking(move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    });
    response.await.unwrap()
}

/// A request without a `Host` header, as other clients may send it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_a_host_is_rejected() {
    let server = TestServer::start().await;
    let request = format!("GET /api/outbox/whoami HTTP/1.0\r\nAuthorization: Bearer {ADMIN}\r\n\r\n");
    let response = raw(&server, request).await;
    assert!(response.contains(" 421 "), "{response}");
}

/// A proxy and this server could each check a different one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_with_two_hosts_or_a_foreign_target_is_rejected() {
    let server = TestServer::start().await;
    let send = async |target: &str, hosts: &[&str]| {
        let hosts: String = hosts.iter().map(|host| format!("Host: {host}\r\n")).collect();
        let rest = format!("Authorization: Bearer {READ}\r\nConnection: close\r\n\r\n");
        let response = raw(&server, format!("GET {target} HTTP/1.1\r\n{hosts}{rest}")).await;
        response.split(' ').nth(1).unwrap().to_owned()
    };
    for path in ["/api/outbox/whoami", "/api/docs"] {
        assert_eq!(send(path, &["localhost"]).await, "200", "{path}");
        assert_eq!(send(path, &["localhost", "evil.example"]).await, "400", "{path}");
        assert_eq!(send(path, &["localhost", "localhost"]).await, "400", "{path}");
        assert_eq!(send(&format!("http://localhost{path}"), &["localhost"]).await, "200", "{path}");
        assert_eq!(send(&format!("http://evil.example{path}"), &["localhost"]).await, "421", "{path}");
        assert_eq!(send(&format!("http://localhost{path}"), &["evil.example"]).await, "421", "{path}");
    }
}
