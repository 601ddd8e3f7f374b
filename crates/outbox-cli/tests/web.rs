//! The API and the dashboard of `outbox relay --listen`: the real binary and a real socket.

mod daemons;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use daemons::{Daemon, TestDir, retry_while_starting, wait_until};
use outbox::Event;
use outbox_testbed::Certificates;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

const RELAY: &str = r#"
[database]
name = "shop"
url = "sqlite:{}/shop.db"
[poller]
interval = "100ms"
[publishers.lines.file]
path = "{}/lines.jsonl"
[[routes]]
to = "lines"
"#;

/// Address of the relay, from its log.
fn address(relay: &Daemon) -> String {
    let log = relay.log();
    let rest =
        log.split("probes and metrics: ").nth(1).expect("the relay listens").split("://").nth(1).unwrap();
    rest.split('/').next().unwrap().to_owned()
}

/// Sends a request, and returns the status and the body of the response.
fn request(
    mut stream: impl std::io::Read + std::io::Write,
    method: &str,
    path: &str,
    token: Option<&str>,
) -> (u16, String) {
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n{token}\r\n"
    )
    .unwrap();
    let mut answer = Vec::new();
    // The server may end a TLS connection without `close_notify`; the response is still complete.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or_else(|| panic!("{answer:?}"));
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

fn connect(relay: &Daemon) -> TcpStream {
    let stream = TcpStream::connect(address(relay)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// TLS connection that verifies the certificate.
fn encrypted(tcp: TcpStream, files: &Certificates) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), tcp)
}

fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Journals and container logs are stored, and have many readers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_terminal_no_token_is_printed() {
    let dir = TestDir::new();
    dir.outbox("shop.db").await;
    let relay = dir.relay("relay", &dir.config(RELAY), &["--listen", "127.0.0.1:0"]);
    relay.wait_for_log("relay started").await;
    relay.wait_for_log("needs a token: set `tokens` under `[http]`").await;
    assert!(!relay.log().contains("#token="), "{}", relay.log());
    assert_eq!(request(connect(&relay), "GET", "/api/outbox/overview", None).0, 401);
}

/// D-07: the user who starts the relay can open the dashboard at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_a_terminal_without_tokens_a_link_with_one_is_printed() {
    let dir = TestDir::new();
    let outbox = dir.outbox("shop.db").await;
    let relay = dir.relay_at_a_terminal("relay", &dir.config(RELAY), &["--listen", "127.0.0.1:0"]);
    relay.wait_for_log("relay started").await;
    relay.wait_until_ready().await;
    let log = relay.log();
    let line = log.lines().find(|line| line.starts_with("dashboard: ")).expect(&log);
    let (site, token) = line.trim_start_matches("dashboard: ").split_once("/#token=").unwrap();
    assert_eq!(site, format!("http://{}", address(&relay)));
    assert_eq!(request(connect(&relay), "GET", "/api/outbox/overview", None).0, 401);
    outbox.send(Event::new("order").json(&1)).await.unwrap();
    wait_until("delivered", || dir.types("lines.jsonl").len() == 1, || relay.log()).await;
    let (status, body) = request(connect(&relay), "GET", "/api/outbox/databases", Some(token));
    assert_eq!((status, body.contains(r#""name":"shop""#)), (200, true), "{body}");
    // The line is written before its event is settled.
    let done = || request(connect(&relay), "GET", "/api/outbox/events?status=done", Some(token)).1;
    let count = || serde_json::from_str::<Value>(&done()).unwrap()["events"].as_array().unwrap().len();
    wait_until("one is done", || count() == 1, done).await;
    let (status, body) = request(connect(&relay), "GET", "/", None);
    assert_eq!((status, body.contains("<html")), (200, true), "the page itself contains no data");
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(retry_while_starting(|| request(connect(&relay), "GET", path, None).0), 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_the_settings_are_the_only_ones_and_are_not_logged() {
    let dir = TestDir::new();
    dir.outbox("shop.db").await;
    // Digest of "canary-token-of-the-reader".
    let digest = "sha256:DIGEST".replace("DIGEST", &sha256("canary-token-of-the-reader"));
    let http = format!(
        "[http]\nlisten = \"127.0.0.1:0\"\ntokens = [{{ name = \"ops\", role = \"operate\", token = \"canary-token-of-ops\" }}, \
         {{ name = \"reader\", role = \"read\", digest = \"{digest}\" }}]\n"
    );
    let relay = dir.relay("relay", &dir.config(&format!("{RELAY}{http}")), &["--log", "trace"]);
    relay.wait_for_log("relay started").await;
    let who = |token| request(connect(&relay), "GET", "/api/outbox/whoami", Some(token));
    assert!(who("canary-token-of-ops").1.contains(r#""role":"operate""#));
    assert!(who("canary-token-of-the-reader").1.contains(r#""role":"read""#));
    assert_eq!(who("another-unknown-token").0, 401);
    let replay =
        request(connect(&relay), "POST", "/api/outbox/events/x/replay", Some("canary-token-of-the-reader"));
    assert_eq!(replay.0, 403);
    assert!(
        relay.log().contains("dashboard: http://") && !relay.log().contains("canary-token"),
        "{}",
        relay.log()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_json_log_contains_no_token() {
    let dir = TestDir::new();
    dir.outbox("shop.db").await;
    let arguments = ["--listen", "127.0.0.1:0", "--log-format", "json"];
    let relay = dir.relay("relay", &dir.config(RELAY), &arguments);
    relay.wait_for_log("relay started").await;
    assert!(!relay.log().contains("#token="), "{}", relay.log());
    assert!(relay.log().contains("set `tokens` under `[http]`"), "{}", relay.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistakes_in_tokens_and_tls_are_reported_at_start() {
    let dir = TestDir::new();
    dir.outbox("shop.db").await;
    let good = "tokens = [{ name = \"ops\", role = \"read\", token = \"canary-token-of-ops\" }]\n";
    for (http, listen, code, message) in [
        (good, "0.0.0.0:0", 2, "`tls-cert`, `tls-key` and at least one of `tokens`"),
        ("tls-cert = \"c\"\ntls-key = \"k\"\n", "0.0.0.0:0", 2, "at least one of `tokens`"),
        ("tls-cert = \"c\"\n", "127.0.0.1:0", 2, "belong together"),
        (
            &format!("tls-cert = \"/no/such/file\"\ntls-key = \"k\"\n{good}"),
            "0.0.0.0:0",
            1,
            "cannot read /no/such/file",
        ),
        (
            "tokens = [{ name = \"ops\", role = \"read\", token = \"hunter2\" }]\n",
            "127.0.0.1:0",
            2,
            "at least 16 characters",
        ),
        (
            "tokens = [{ name = \"ops\", role = \"read\", digest = \"hunter2\" }]\n",
            "127.0.0.1:0",
            2,
            "64 hexadecimal digits",
        ),
        (
            "tokens = [{ name = \"ops\", role = \"boss\", token = \"x\" }]\n",
            "127.0.0.1:0",
            2,
            "`read`, `operate` or `admin`",
        ),
    ] {
        let config = dir.config(&format!("{RELAY}[http]\n{http}"));
        let mut relay = dir.relay("relay", &config, &["--listen", listen]);
        assert_eq!(relay.wait_for_exit().await.code(), Some(code), "{http}: {}", relay.log());
        assert!(relay.log().contains(message), "{http}: {}", relay.log());
        assert!(!relay.log().contains("hunter2") && !relay.log().contains("canary"), "{}", relay.log());
    }
}

/// Other machines need TLS and a token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_are_served_by_tls_and_only_with_a_token() {
    let dir = TestDir::new();
    dir.outbox("shop.db").await;
    let files = Certificates::make(&dir.path(""));
    let http = format!(
        "[http]\nlisten = \"0.0.0.0:0\"\ntls-cert = \"{}\"\ntls-key = \"{}\"\nhosts = [\"outbox.example.com\"]\n\
         tokens = [{{ name = \"ops\", role = \"read\", token = \"canary-token-of-ops\" }}]\n",
        files.server.0.display(),
        files.server.1.display()
    );
    // Next to an API, probes without a token need a separate listener.
    let arguments = ["--probes-listen", "0.0.0.0:0", "--allow-remote"];
    let relay = dir.relay("relay", &dir.config(&format!("{RELAY}{http}")), &arguments);
    relay.wait_for_log("relay started").await;
    let port = address(&relay).rsplit(':').next().unwrap().to_owned();
    let get = |path: &str, token: Option<&str>| {
        retry_while_starting(|| {
            let tcp = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
            tcp.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            request(encrypted(tcp, &files), "GET", path, token).0
        })
    };
    let token = Some("canary-token-of-ops");
    assert_eq!(get("/healthz", None), 200);
    for path in ["/readyz", "/metrics", "/api/outbox/whoami"] {
        assert_eq!((get(path, None), get(path, token)), (401, 200), "{path}");
    }
    let log = relay.log();
    let probes =
        log.split("probes and metrics only: http://0.0.0.0:").nth(1).unwrap().split('/').next().unwrap();
    for path in ["/healthz", "/readyz", "/metrics"] {
        let tcp = || TcpStream::connect(format!("127.0.0.1:{probes}")).unwrap();
        assert_eq!(retry_while_starting(|| request(tcp(), "GET", path, None).0), 200, "{path}");
    }
    // Browsers keep using TLS after the first visit, except for `localhost`, where other servers
    // have no TLS.
    for (host, strict) in
        [("outbox.example.com", true), ("outbox.example.com:8443", true), ("localhost", false)]
    {
        let tcp = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        let mut stream = encrypted(tcp, &files);
        write!(stream, "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).to_lowercase();
        assert!(answer.starts_with("http/1.1 200"), "{answer}");
        assert_eq!(answer.contains("strict-transport-security: max-age="), strict, "{host}: {answer}");
    }
    // A client without TLS gets no response, and does not block other clients.
    let mut plain = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    plain.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(plain, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("200 OK"));
    let _silent = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    assert_eq!(get("/healthz", None), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_allow_remote_there_are_probes_and_metrics_and_no_api() {
    let dir = TestDir::new();
    dir.outbox("shop.db").await;
    let relay = dir.relay("relay", &dir.config(RELAY), &["--listen", "0.0.0.0:0", "--allow-remote"]);
    relay.wait_for_log("relay started").await;
    assert!(!relay.log().contains("dashboard: "), "{}", relay.log());
    let port = address(&relay).rsplit(':').next().unwrap().to_owned();
    let tcp = || TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    let get = |path| retry_while_starting(|| request(tcp(), "GET", path, None).0);
    assert_eq!(["/healthz", "/readyz", "/metrics"].map(get), [200; 3]);
    assert_eq!(["/", "/api/outbox/whoami", "/api/docs"].map(get), [404; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_proxy_with_tls_cookies_are_for_tls_only() {
    let dir = TestDir::new();
    dir.outbox("shop.db").await;
    let tokens = "tokens = [{ name = \"ops\", role = \"read\", token = \"canary-token-of-ops\" }]\n";
    for (setting, secure) in [("", false), ("secure-cookies = true\n", true)] {
        let http =
            format!("[http]\nlisten = \"127.0.0.1:0\"\nhosts = [\"outbox.example.com\"]\n{setting}{tokens}");
        let relay = dir.relay("relay", &dir.config(&format!("{RELAY}{http}")), &[]);
        relay.wait_for_log("relay started").await;
        let mut stream = connect(&relay);
        let body = "{\"token\": \"canary-token-of-ops\"}";
        write!(
            stream,
            "POST /api/outbox/session HTTP/1.1\r\nHost: outbox.example.com\r\nOrigin: https://outbox.example.com\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert_eq!(
            answer.contains("; Secure\r\n") && answer.contains("__Host-outbox_session="),
            secure,
            "{answer}"
        );
        assert!(!answer.to_lowercase().contains("strict-transport-security"), "the proxy sets this header");
    }
}
