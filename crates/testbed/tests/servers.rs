//! Every server starts, restarts on its port, can be suspended, and is removed with its directory.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use outbox_testbed::{Plan, Server};

fn connects(server: &Server) -> bool {
    TcpStream::connect(("127.0.0.1", server.port())).is_ok()
}

fn starts_stops_and_goes_away(plan: Plan) {
    if !plan.is_here() {
        return;
    }
    let mut server = plan.start();
    assert!(connects(&server));
    let (port, folder) = (server.port(), server.folder().to_owned());
    assert!(server.url().contains(&format!("127.0.0.1:{port}")), "{}", server.url());
    server.stop();
    assert!(!connects(&server));
    server.start();
    assert!(connects(&server) && server.port() == port);
    server.kill();
    assert!(!connects(&server));
    server.start();
    assert!(connects(&server));
    drop(server);
    assert!(!folder.exists() && TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn nats_starts_stops_and_goes_away() {
    starts_stops_and_goes_away(Plan::nats());
    starts_stops_and_goes_away(Plan::nats().user("ada", "secret").mutual_tls().config("max_payload: 1000"));
}

#[test]
fn redis_starts_stops_and_goes_away() {
    starts_stops_and_goes_away(Plan::redis());
    starts_stops_and_goes_away(Plan::redis().user("ada", "secret").mutual_tls().config("maxmemory 10mb"));
}

#[test]
fn mosquitto_starts_stops_and_goes_away() {
    starts_stops_and_goes_away(Plan::mosquitto());
    starts_stops_and_goes_away(
        Plan::mosquitto().user("ada", "secret").mutual_tls().config("message_size_limit 1000"),
    );
}

#[test]
fn rabbitmq_starts_stops_and_goes_away() {
    starts_stops_and_goes_away(
        Plan::rabbitmq().user("ada", "secret").tls().config("max_message_size = 1000"),
    );
}

#[test]
fn redis_keeps_its_data_through_a_crash_and_does_not_answer_while_frozen() {
    if !Plan::redis().is_here() {
        return;
    }
    let mut redis = Server::redis();
    let send = |command: &str, timeout: Duration| {
        let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).unwrap();
        stream.set_read_timeout(Some(timeout)).unwrap();
        write!(stream, "{command}\r\n").unwrap();
        let mut answer = [0; 64];
        stream.read(&mut answer).map(|read| String::from_utf8_lossy(&answer[..read]).into_owned())
    };
    let minute = Duration::from_secs(60);
    assert_eq!(send("SET a 1", minute).unwrap(), "+OK\r\n");
    redis.freeze();
    assert!(send("GET a", Duration::from_millis(300)).is_err());
    redis.thaw();
    assert_eq!(send("GET a", minute).unwrap(), "$1\r\n1\r\n");
    redis.kill();
    redis.start();
    let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).unwrap();
    stream.write_all(b"GET a\r\n").unwrap();
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"$1\r\n1\r\n");
}

#[test]
fn a_server_ends_with_a_test_that_panics() {
    if !Plan::redis().is_here() {
        return;
    }
    let ended: (u16, PathBuf) = std::thread::spawn(|| {
        let server = Server::redis();
        let location = (server.port(), server.folder().to_owned());
        std::panic::panic_any(location);
    })
    .join()
    .map_err(|location| *location.downcast().unwrap())
    .unwrap_err();
    assert!(TcpStream::connect(("127.0.0.1", ended.0)).is_err() && !ended.1.exists());
}
