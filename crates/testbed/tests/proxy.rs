//! The proxy between a client and its server.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use outbox_testbed::Proxy;

/// Connects a client, and returns both ends of the connection.
fn connect(proxy: &Proxy, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    let (server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    }
    (client, server)
}

fn transfer(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8]) {
    from.write_all(bytes).unwrap();
    let mut received = vec![0; bytes.len()];
    to.read_exact(&mut received).unwrap();
    assert_eq!(received, bytes);
}

#[test]
fn a_muted_server_receives_everything_and_its_replies_are_lost() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::to(listener.local_addr().unwrap().port());
    let (mut client, mut server) = connect(&proxy, &listener);
    transfer(&mut client, &mut server, b"begin");
    transfer(&mut server, &mut client, b"begun");

    proxy.mute();
    transfer(&mut client, &mut server, b"commit");
    server.write_all(b"committed").unwrap();
    client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert!(client.read(&mut [0; 9]).is_err(), "no reply arrives");

    proxy.cut();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert!(
        matches!(client.read(&mut [0; 9]), Ok(0) | Err(_)),
        "the connection is closed, and the reply is lost"
    );
    let (mut client, mut server) = connect(&proxy, &listener);
    transfer(&mut client, &mut server, b"begin");
    transfer(&mut server, &mut client, b"begun");
}
