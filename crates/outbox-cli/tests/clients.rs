//! HTTP server of a relay: clients that do not read or send nothing, and requests with wrong host
//! names.

mod daemons;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use daemons::{Daemon, TestDir, retry_while_starting, wait_until};
use outbox_testbed::Certificates;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpSocket;

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

const TOKENS: &str = "tokens = [{ name = \"ops\", role = \"read\", token = \"canary-token-of-ops\" }]\n";

/// Address after this prefix in the log.
fn address(relay: &Daemon, prefix: &str) -> String {
    let log = relay.log();
    let rest = log.split(prefix).nth(1).unwrap_or_else(|| panic!("{log}")).split("://").nth(1).unwrap();
    rest.split('/').next().unwrap().to_owned()
}

const MAIN: &str = "probes and metrics: ";
const PROBES: &str = "probes and metrics only: ";

/// Sends a request, and returns the whole response.
fn raw(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(address: &str, path: &str, hosts: &[&str]) -> u16 {
    let hosts: String = hosts.iter().map(|host| format!("Host: {host}\r\n")).collect();
    retry_while_starting(|| {
        let answer = raw(address, &format!("GET {path} HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n"));
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        status.unwrap_or_else(|| panic!("{answer:?}"))
    })
}

/// A client that sends many requests for a large file, and reads nothing.
async fn non_reading_client(address: &str) -> tokio::net::TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut stream = socket.connect(address.parse().unwrap()).await.unwrap();
    let requests = "GET /chart.js HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1_000);
    // The server may have evicted this connection already.
    let _ = tokio::time::timeout(Duration::from_millis(100), stream.write_all(requests.as_bytes())).await;
    stream
}

/// E-13: with `OUTBOX_TEST_GREEDY` clients, or twice as many as the limit of connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_are_answered_while_clients_that_do_not_read_use_all_connections() {
    let clients = std::env::var("OUTBOX_TEST_GREEDY").ok().and_then(|count| count.parse().ok());
    let dir = TestDir::new();
    dir.outbox("shop.db").await;
    let bound = if clients.is_some() { "" } else { "max-connections = 32\n" };
    let http = format!("[http]\nlisten = \"127.0.0.1:0\"\n{bound}{TOKENS}");
    let relay = dir.relay("relay", &dir.config(&format!("{RELAY}{http}")), &[]);
    relay.wait_for_log("relay started").await;
    let address = address(&relay, MAIN);
    let mut held = Vec::new();
    for _ in 0..clients.unwrap_or(64) {
        held.push(non_reading_client(&address).await);
    }
    // More clients connect meanwhile, so that the probes are answered at the limit of connections.
    for path in ["/healthz", "/readyz", "/metrics"] {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            held.push(non_reading_client(&address).await);
            let began = Instant::now();
            assert_eq!(get(&address, path, &["localhost"]), 200, "{path}");
            let took = began.elapsed();
            eprintln!("{path}: {took:?} with {} clients that do not read", held.len());
            // The machine may be busy.
            if took < Duration::from_secs(1) {
                break;
            }
            assert!(Instant::now() < end, "{path} takes {took:?}");
        }
    }
}

/// E-13: an orchestrator and a scraper can use a separate address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_and_metrics_have_a_listener_of_their_own() {
    let dir = TestDir::new();
    dir.outbox("shop.db").await;
    let files = Certificates::make(&dir.path(""));
    let http = format!(
        "[http]\nlisten = \"0.0.0.0:0\"\nprobes-listen = \"127.0.0.1:0\"\ntls-cert = \"{}\"\ntls-key = \"{}\"\n{TOKENS}",
        files.server.0.display(),
        files.server.1.display()
    );
    let relay = dir.relay("relay", &dir.config(&format!("{RELAY}{http}")), &[]);
    relay.wait_for_log("relay started").await;
    let probes = address(&relay, PROBES);
    assert_eq!(["/healthz", "/readyz", "/metrics"].map(|path| get(&probes, path, &["127.0.0.1"])), [200; 3]);
    assert_eq!(
        ["/", "/api/outbox/whoami", "/api/docs"].map(|path| get(&probes, path, &["127.0.0.1"])),
        [404; 3]
    );
    // Requests with a host name of another site are refused, even if that name points to this
    // machine.
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(get(&probes, path, &["evil.example"]), 421, "{path}");
    }

    // Also without the API, and by a flag.
    let alone = dir.relay("alone", &dir.config(RELAY), &["--probes-listen", "127.0.0.1:0"]);
    alone.wait_for_log("relay started").await;
    assert_eq!(get(&address(&alone, PROBES), "/readyz", &["localhost"]), 200);
    assert!(!alone.log().contains("dashboard: "), "{}", alone.log());

    let mut refused = dir.relay("refused", &dir.config(RELAY), &["--probes-listen", "0.0.0.0:0"]);
    assert_eq!(refused.wait_for_exit().await.code(), Some(2), "{}", refused.log());
    assert!(refused.log().contains("`allow-remote = true`"), "{}", refused.log());
}

/// A site could let its own name point to this machine, and read the endpoints through a browser on
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_path_requires_a_host_name_of_this_server() {
    let dir = TestDir::new();
    dir.outbox("shop.db").await;
    let http = format!("[http]\nlisten = \"127.0.0.1:0\"\nhosts = [\"outbox.example.com\"]\n{TOKENS}");
    let relay = dir.relay("relay", &dir.config(&format!("{RELAY}{http}")), &[]);
    relay.wait_for_log("relay started").await;
    let here = address(&relay, MAIN);
    for path in ["/healthz", "/readyz", "/metrics", "/", "/api/docs"] {
        for host in ["localhost", "127.0.0.1:9090", "10.1.2.3", "[::1]:80", "outbox.example.com"] {
            assert_eq!(get(&here, path, &[host]), 200, "{path} {host}");
        }
        assert_eq!(get(&here, path, &["evil.example"]), 421, "{path}");
        assert_eq!(get(&here, path, &["localhost", "evil.example"]), 400, "{path}");
        assert_eq!(get(&here, &format!("http://evil.example{path}"), &["localhost"]), 421, "{path}");
        assert!(raw(&here, &format!("GET {path} HTTP/1.0\r\n\r\n")).contains(" 421 "), "{path}");
    }
    drop(relay);

    // Reachable from other machines, without an API: a scraper uses a name that the relay cannot
    // know, so names are checked only if `hosts` is set.
    for (hosts, status) in [("", 200), ("hosts = [\"outbox.example.com\"]\n", 421)] {
        let config = dir.config(&format!("{RELAY}[http]\n{hosts}"));
        let open = dir.relay("open", &config, &["--listen", "0.0.0.0:0", "--allow-remote"]);
        open.wait_for_log("relay started").await;
        let port = address(&open, MAIN).rsplit(':').next().unwrap().to_owned();
        assert_eq!(get(&format!("127.0.0.1:{port}"), "/metrics", &["scraped-relay:9090"]), status, "{hosts}");
        assert_eq!(get(&format!("127.0.0.1:{port}"), "/metrics", &["10.1.2.3:9090"]), 200, "{hosts}");
    }
}

/// `hosts` has the names of the dashboard; a scraper uses the name of the relay's container.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_checked_at_probes_listen_on_a_loopback_address_only() {
    let dir = TestDir::new();
    dir.outbox("shop.db").await;
    let http = format!("[http]\nlisten = \"127.0.0.1:0\"\nhosts = [\"outbox.example.com\"]\n{TOKENS}");
    let config = dir.config(&format!("{RELAY}{http}"));
    for (probes, status) in [("0.0.0.0:0", 200), ("127.0.0.1:0", 421)] {
        let relay = dir.relay("relay", &config, &["--probes-listen", probes, "--allow-remote"]);
        relay.wait_for_log("relay started").await;
        let port = address(&relay, PROBES).rsplit(':').next().unwrap().to_owned();
        let here = format!("127.0.0.1:{port}");
        for path in ["/healthz", "/readyz", "/metrics"] {
            assert_eq!(get(&here, path, &["scraped-relay:9091"]), status, "{probes} {path}");
            assert_eq!(get(&here, path, &["outbox.example.com"]), 200, "{probes} {path}");
        }
        // The main listener still checks `hosts`.
        assert_eq!(get(&address(&relay, MAIN), "/healthz", &["scraped-relay:9091"]), 421, "{probes}");
    }
}

/// Other code of the process opens files, too: at the limit of open files a connection is evicted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_are_answered_when_the_process_may_open_few_files() {
    let dir = TestDir::new();
    dir.outbox("shop.db").await;
    let config = dir.config(&format!("{RELAY}[http]\nmax-connections = 1000\n{TOKENS}"));
    let relay = dir.relay_with_files("relay", &config, &["--listen", "127.0.0.1:0"], 80);
    relay.wait_for_log("relay started").await;
    relay.wait_for_log("`max-connections` of `[http]` is 1000").await;
    let address = address(&relay, MAIN);
    let mut held = Vec::new();
    for _ in 0..120 {
        held.push(non_reading_client(&address).await);
    }
    wait_until(
        "a probe is answered",
        || {
            let began = Instant::now();
            get(&address, "/healthz", &["localhost"]) == 200 && began.elapsed() < Duration::from_secs(1)
        },
        || relay.log(),
    )
    .await;
}
