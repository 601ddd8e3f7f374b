//! Who may ask what, and what is refused.

mod site;

use std::io::{Read as _, Write as _};

use outbox::Event;
use serde_json::json;
use site::{ADMIN, OPERATE, READ, Site, document, operations};

/// A path with something in place of names in braces.
fn filled(template: &str) -> String {
    let parts = template.split('/').map(|part| if part.starts_with('{') { "nothing" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

/// The role that an operation needs, as the document tells it.
fn role_of(told: &serde_json::Value) -> Option<&str> {
    told["security"].as_array().unwrap().first()?["bearer"][0].as_str()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_of_the_document_needs_a_token_and_its_role() {
    let site = Site::with(|builder| builder.wrong_tokens_per_minute(10_000)).await;
    let operations = operations();
    assert!(operations.len() >= 37, "{}", operations.len());
    let mut open = Vec::new();
    for (method, path, told) in &operations {
        let request = || site.request(method, &filled(path)).json(&json!({}));
        let Some(role) = role_of(told) else {
            open.push(format!("{method} {path}"));
            continue;
        };
        let missing = site.send(request()).await;
        assert_eq!(missing.status, 401, "{method} {path}");
        assert!(missing.header("www-authenticate").starts_with("Bearer"), "{method} {path}");
        let wrong = site.send(request().bearer_auth("not-a-token-of-anybody")).await;
        assert_eq!(wrong.status, 401, "{method} {path}");
        let lower = match role {
            "read" => None,
            "operate" => Some(READ),
            "admin" => Some(OPERATE),
            other => panic!("{other}"),
        };
        if let Some(lower) = lower {
            let refused = site.send(request().bearer_auth(lower)).await;
            assert_eq!(refused.status, 403, "{method} {path}: {}", refused.text);
            assert!(refused.text.contains(role), "{}", refused.text);
        }
        let enough = match role {
            "read" => READ,
            "operate" => OPERATE,
            _ => ADMIN,
        };
        let let_in = request().bearer_auth(enough).send().await.unwrap().status();
        assert!(let_in != 401 && let_in != 403 && !let_in.is_server_error(), "{method} {path}: {let_in}");
    }
    assert_eq!(open, ["POST /api/outbox/session"]);
    assert_eq!(site.get("/healthz").await.status, 404, "that is for whoever serves it");
}

#[tokio::test]
async fn what_changes_something_needs_more_than_reading() {
    for (method, path, told) in operations() {
        let role = role_of(told);
        if method != "GET" && !path.ends_with("/session") {
            assert!(matches!(role, Some("operate" | "admin")), "{method} {path}: {role:?}");
        }
        for status in ["401", "421", "429", "500"] {
            assert!(told["responses"][status].is_object(), "{method} {path} {status}");
        }
        assert!(told["summary"].is_string(), "{method} {path}");
    }
    assert_eq!(document()["openapi"], "3.1.0");
    assert_eq!(document()["components"]["securitySchemes"]["bearer"]["scheme"], "bearer");
}

#[tokio::test]
async fn the_detail_of_an_attempt_is_for_those_who_may_see_payloads() {
    const ANSWER: &str = "canary-in-an-answer";
    let site = Site::start().await;
    let error = format!("http://hooks answers 500\n[detail] the response begins with: {ANSWER}");
    let id = site.dead(Event::new("order").json(&1), &error).await;
    let one = format!("/api/outbox/events/{id}");
    let explain = format!("{one}/explain");
    for path in [&one, &explain, "/api/outbox/events?status=dead", "/api/outbox/overview"] {
        let answer = site.send(site.request("GET", path).bearer_auth(READ)).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        assert!(!answer.text.contains(ANSWER), "{path}: {}", answer.text);
    }
    for (token, sees) in [(READ, false), (OPERATE, true), (ADMIN, true)] {
        let answer = site.send(site.request("GET", &one).bearer_auth(token)).await.json();
        let attempt = &answer["attempts"][0];
        assert_eq!(attempt["error"], "http://hooks answers 500");
        let detail = attempt["detail"].as_str();
        assert_eq!(detail.is_some_and(|detail| detail.ends_with(ANSWER)), sees, "{attempt}");
    }
}

#[tokio::test]
async fn whoever_guesses_tokens_has_to_wait() {
    let site = Site::with(|builder| builder.wrong_tokens_per_minute(3)).await;
    for _ in 0..3 {
        let wrong =
            site.send(site.request("GET", "/api/outbox/whoami").bearer_auth("a-guess-at-a-token")).await;
        assert_eq!(wrong.status, 401);
    }
    let wrong = site.request("GET", "/api/outbox/whoami").bearer_auth("a-guess-at-a-token");
    let refused = site.send(wrong).await;
    assert_eq!((refused.status.as_u16(), refused.problem().as_str()), (429, "too-many-attempts"));
    assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 1);
    let sign_in = async |token: &str| {
        let request = site.request("POST", "/api/outbox/session").json(&json!({"token": token}));
        site.send(request).await.status.as_u16()
    };
    assert_eq!(sign_in("a-guess-at-a-token").await, 429, "signing in is guessing as well");
    // Behind a proxy all callers have one address: the guesses of one do not lock out the others.
    assert_eq!(site.get("/api/outbox/whoami").await.status, 200);
    assert_eq!(sign_in(ADMIN).await, 200);
}

#[tokio::test]
async fn a_browser_signs_in_and_has_to_show_its_csrf_token() {
    let site = Site::start().await;
    let id = site.dead(Event::new("order").json(&1), "no").await;
    let session =
        site.send(site.request("POST", "/api/outbox/session").json(&json!({"token": OPERATE}))).await;
    assert_eq!(session.status, 200, "{}", session.text);
    let cookie = session.header("set-cookie").to_owned();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && cookie.contains("Path=/"),
        "{cookie}"
    );
    assert!(!cookie.contains("Secure") && !cookie.contains(OPERATE), "{cookie}");
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let csrf = session.json()["csrf"].as_str().unwrap().to_owned();

    let who = site.send(site.request("GET", "/api/outbox/whoami").header("cookie", &cookie)).await.json();
    assert_eq!((&who["actor"], &who["role"], &who["csrf"]), (&json!("ops"), &json!("operate"), &json!(csrf)));
    assert_eq!(who["databases"], json!(["main"]));

    let replay = || {
        let path = format!("/api/outbox/events/{id}/replay");
        site.request("POST", &path).header("cookie", &cookie)
    };
    let without = site.send(replay()).await;
    assert_eq!((without.status.as_u16(), without.problem().as_str()), (403, "csrf"));
    assert_eq!(site.send(replay().header("x-csrf-token", "wrong")).await.status, 403);
    assert_eq!(site.status_of(&id).await, "DEAD");
    assert_eq!(site.send(replay().header("x-csrf-token", &csrf)).await.status, 200);
    assert_eq!(site.status_of(&id).await, "NEW");

    let out = site.request("DELETE", "/api/outbox/session").header("cookie", &cookie);
    assert_eq!(site.send(out.try_clone().unwrap()).await.status, 403, "that changes something too");
    assert_eq!(site.send(out.header("x-csrf-token", &csrf)).await.status, 204);
    let gone = site.send(site.request("GET", "/api/outbox/whoami").header("cookie", &cookie)).await;
    assert_eq!(gone.status, 401);
    let wrong = site.send(site.request("POST", "/api/outbox/session").json(&json!({"token": "wrong"}))).await;
    assert_eq!(wrong.status, 401);
    assert!(!wrong.headers.contains_key("set-cookie"));
}

#[tokio::test]
async fn cookies_are_for_tls_only_where_there_is_tls() {
    let site = Site::with(|builder| builder.tls(true)).await;
    let session = site.send(site.request("POST", "/api/outbox/session").json(&json!({"token": READ}))).await;
    let cookie = session.header("set-cookie");
    assert!(cookie.ends_with("; Secure") && cookie.starts_with("__Host-outbox_session_"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let who = site.send(site.request("GET", "/api/outbox/whoami").header("cookie", &cookie)).await;
    assert_eq!(who.status, 200);
    // A page without TLS can set a cookie of the plain name, but none that counts.
    let plain = cookie.trim_start_matches("__Host-");
    let who = site.send(site.request("GET", "/api/outbox/whoami").header("cookie", plain)).await;
    assert_eq!(who.status, 401);
}

/// Browsers keep the cookies of all ports of a host together.
#[tokio::test]
async fn servers_at_two_ports_of_a_host_do_not_share_a_cookie() {
    let site = Site::start().await;
    let sign_in = async |host: &str| {
        let request = site.request("POST", "/api/outbox/session").header("host", host);
        let session = site.send(request.json(&json!({"token": READ}))).await;
        session.header("set-cookie").split(';').next().unwrap().to_owned()
    };
    let (here, there) = (sign_in("localhost:8080").await, sign_in("localhost:9090").await);
    assert!(here.starts_with("outbox_session_8080=") && there.starts_with("outbox_session_9090="), "{here}");
    assert!(sign_in("localhost").await.starts_with("outbox_session="));
    let both = format!("{there}; {here}");
    let who = async |host: &str, cookie: &str| {
        let request = site.request("GET", "/api/outbox/whoami").header("host", host).header("cookie", cookie);
        site.send(request).await.status.as_u16()
    };
    assert_eq!((who("localhost:8080", &both).await, who("localhost:9090", &both).await), (200, 200));
    assert_eq!((who("localhost:8080", &there).await, who("localhost:9090", &here).await), (401, 401));
}

#[tokio::test]
async fn pages_of_other_sites_change_nothing() {
    let site = Site::start().await;
    let id = site.dead(Event::new("order").json(&1), "no").await;
    let path = format!("/api/outbox/events/{id}/replay");
    let replay = |name: &str, value: &str| site.request("POST", &path).bearer_auth(ADMIN).header(name, value);
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("origin", "http://localhost:1"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        let refused = site.send(replay(name, value)).await;
        assert_eq!((refused.status.as_u16(), refused.problem().as_str()), (403, "origin"), "{name}: {value}");
    }
    assert_eq!(site.status_of(&id).await, "DEAD");
    assert_eq!(site.send(replay("origin", &site.url)).await.status, 200);
}

#[tokio::test]
async fn only_names_of_this_server_are_answered() {
    let site = Site::with(|builder| builder.host("outbox.example.com")).await;
    for (host, status) in [
        ("localhost:1234", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("outbox.example.com", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
    ] {
        for path in ["/api/outbox/whoami", "/api/docs"] {
            let answer = site.send(site.request("GET", path).bearer_auth(READ).header("host", host)).await;
            assert_eq!(answer.status, status, "{host} {path}");
        }
    }
}

#[tokio::test]
async fn only_json_of_a_bounded_size_is_read() {
    let site = Site::start().await;
    let post = |kind: Option<&str>, body: Vec<u8>| {
        let request = site.request("POST", "/api/outbox/dead/replay").bearer_auth(ADMIN).body(body);
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
        assert_eq!(site.send(post(kind, dry.clone())).await.status, status, "{kind:?}");
    }
    let large = vec![b' '; 1024 * 1024 + 1];
    let refused = site.send(post(Some("application/json"), large.clone())).await;
    assert_eq!((refused.status.as_u16(), refused.problem().as_str()), (413, "too-large"));
    let stream = futures_util::stream::iter(
        large.chunks(8_192).map(|c| Ok::<_, std::io::Error>(c.to_vec())).collect::<Vec<_>>(),
    );
    let chunked = site.request("POST", "/api/outbox/dead/replay").bearer_auth(ADMIN);
    let chunked = chunked.header("content-type", "application/json").body(reqwest::Body::wrap_stream(stream));
    assert_eq!(site.send(chunked).await.status, 413, "also without a length");
    for (body, status) in
        [("{", 400), ("", 400), ("[]", 422), (r#"{"dryrun": true}"#, 422), (r#"{"rate": 0}"#, 422)]
    {
        assert_eq!(site.send(post(Some("application/json"), body.into())).await.status, status, "{body}");
    }
}

/// Any client can sign in: the memory and the time of a request without a token are the server's.
#[tokio::test]
async fn little_is_read_of_a_caller_that_is_not_known() {
    let site = Site::start().await;
    let json = |path: &str, bytes: usize| {
        let body = format!("{}{{\"token\": \"{ADMIN}\"}}", " ".repeat(bytes));
        let body = body[body.len() - bytes..].to_owned();
        site.request("POST", path).header("content-type", "application/json").body(body)
    };
    assert_eq!(site.send(json("/api/outbox/session", 16_384)).await.status, 200);
    // The dashboard's files take no changes, and ask for no token.
    for path in ["/api/outbox/session", "/", "/api/docs"] {
        let refused = site.send(json(path, 16_385)).await;
        assert_eq!((refused.status.as_u16(), refused.problem().as_str()), (413, "too-large"), "{path}");
    }
    let stream = futures_util::stream::iter((0..5).map(|_| Ok::<_, std::io::Error>(vec![b' '; 4_096])));
    let chunked = site.request("POST", "/api/outbox/session").header("content-type", "application/json");
    let chunked = site.send(chunked.body(reqwest::Body::wrap_stream(stream))).await;
    assert_eq!(chunked.status, 413, "also without a length");
}

#[tokio::test]
async fn what_is_not_there_is_told_as_a_problem() {
    let site = Site::start().await;
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
        let answer = site.send(site.request(method, path).bearer_auth(ADMIN)).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text);
    }
}

#[tokio::test]
async fn other_methods_are_refused_and_told_which_there_are() {
    let site = Site::start().await;
    for method in ["PUT", "PATCH", "DELETE", "TRACE", "OPTIONS", "PROPFIND"] {
        let answer = site.send(site.request(method, "/api/outbox/overview").bearer_auth(ADMIN)).await;
        assert_eq!((answer.status.as_u16(), answer.header("allow")), (405, "GET,HEAD"), "{method}");
    }
    let post = site.send(site.request("GET", "/api/outbox/dead/replay").bearer_auth(ADMIN)).await;
    assert_eq!((post.status.as_u16(), post.header("allow")), (405, "POST"));
    let head = site.request("HEAD", "/api/outbox/whoami").bearer_auth(READ).send().await.unwrap();
    assert_eq!(head.status(), 200);
}

#[tokio::test]
async fn the_docs_page_is_strict_about_where_things_come_from() {
    let site = Site::start().await;
    for (path, kind) in [
        ("/api/docs", "text/html; charset=utf-8"),
        ("/api/docs.js", "text/javascript; charset=utf-8"),
        ("/api/docs.css", "text/css; charset=utf-8"),
    ] {
        let answer = site.send(site.request("GET", path)).await;
        assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, kind), "{path}");
        let policy = answer.header("content-security-policy");
        assert!(policy.contains("script-src 'self'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("cache-control"), "no-cache");
        let tag = answer.header("etag").to_owned();
        let same = site.request("GET", path).header("if-none-match", tag).send().await.unwrap();
        assert_eq!(same.status(), 304);
    }
    assert_eq!(site.send(site.request("GET", "/api/openapi.json")).await.status, 401);
    assert_eq!(&site.read("/api/openapi.json").await, document());
}

/// Sends these lines, and returns the answer.
async fn raw(site: &Site, request: String) -> String {
    let address = site.url.trim_start_matches("http://").to_owned();
    let answer = tokio::task::spawn_blocking(move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    answer.await.unwrap()
}

/// Clients of other kinds: what is no HTTP, or no Host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_a_host_is_refused() {
    let site = Site::start().await;
    let request = format!("GET /api/outbox/whoami HTTP/1.0\r\nAuthorization: Bearer {ADMIN}\r\n\r\n");
    let answer = raw(&site, request).await;
    assert!(answer.contains(" 421 "), "{answer}");
}

/// A proxy and this server could each believe another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_with_two_hosts_or_a_foreign_target_is_refused() {
    let site = Site::start().await;
    let ask = async |target: &str, hosts: &[&str]| {
        let hosts: String = hosts.iter().map(|host| format!("Host: {host}\r\n")).collect();
        let rest = format!("Authorization: Bearer {READ}\r\nConnection: close\r\n\r\n");
        let answer = raw(&site, format!("GET {target} HTTP/1.1\r\n{hosts}{rest}")).await;
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    for path in ["/api/outbox/whoami", "/api/docs"] {
        assert_eq!(ask(path, &["localhost"]).await, "200", "{path}");
        assert_eq!(ask(path, &["localhost", "evil.example"]).await, "400", "{path}");
        assert_eq!(ask(path, &["localhost", "localhost"]).await, "400", "{path}");
        assert_eq!(ask(&format!("http://localhost{path}"), &["localhost"]).await, "200", "{path}");
        assert_eq!(ask(&format!("http://evil.example{path}"), &["localhost"]).await, "421", "{path}");
        assert_eq!(ask(&format!("http://localhost{path}"), &["evil.example"]).await, "421", "{path}");
    }
}
