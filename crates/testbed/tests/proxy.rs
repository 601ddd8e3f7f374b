//! What is between a client and its server.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use outbox_testbed::Proxy;

/// A client, and the server's end of its connection.
fn connect(proxy: &Proxy, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    let (server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    }
    (client, server)
}

fn says(from: &mut TcpStream, to: &mut TcpStream, what: &[u8]) {
    from.write_all(what).unwrap();
    let mut heard = vec![0; what.len()];
    to.read_exact(&mut heard).unwrap();
    assert_eq!(heard, what);
}

#[test]
fn a_muted_server_hears_everything_and_its_answers_are_lost() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::to(listener.local_addr().unwrap().port());
    let (mut client, mut server) = connect(&proxy, &listener);
    says(&mut client, &mut server, b"begin");
    says(&mut server, &mut client, b"begun");

    proxy.mute();
    says(&mut client, &mut server, b"commit");
    server.write_all(b"committed").unwrap();
    client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert!(client.read(&mut [0; 9]).is_err(), "nothing comes");

    proxy.cut();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert!(
        matches!(client.read(&mut [0; 9]), Ok(0) | Err(_)),
        "the connection is gone, and the answer with it"
    );
    let (mut client, mut server) = connect(&proxy, &listener);
    says(&mut client, &mut server, b"begin");
    says(&mut server, &mut client, b"begun");
}
