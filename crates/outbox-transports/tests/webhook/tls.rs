//! TLS certificates.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use outbox::Publisher as _;
use outbox_transports::{Webhook, WebhookSettings};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::event;

/// Creates a self-signed certificate for `localhost`.
fn certificate(folder: &Path) -> (String, String) {
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output()
        .expect("openssl is there");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (cert.to_str().unwrap().to_owned(), key.to_str().unwrap().to_owned())
}

/// Starts a TLS server that answers 200 to every request. Returns its port.
fn serve(cert: &str, key: &str) -> u16 {
    let certs = CertificateDer::pem_file_iter(cert).unwrap().map(Result::unwrap).collect();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certs, PrivateKeyDer::from_pem_file(key).unwrap())
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let session = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut stream = rustls::StreamOwned::new(session, connection.unwrap());
            let mut request = [0; 16 * 1024];
            if stream.read(&mut request).is_ok() {
                let _ =
                    stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            }
        }
    });
    port
}

#[tokio::test]
async fn a_certificate_must_be_trusted_and_be_for_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = certificate(folder.path());
    let port = serve(&cert, &key);
    let publish = async |host: &str, ca_file: Option<&str>| {
        let mut settings = WebhookSettings::new(format!("https://{host}:{port}/").as_str());
        settings.allow = vec!["localhost".into(), "127.0.0.1".into()];
        settings.tls.ca_file = ca_file.map(Into::into);
        Webhook::new("hooks", settings).unwrap().publish_batch(&[event(1)]).await
    };
    publish("localhost", Some(&cert)).await.unwrap();
    for (host, ca_file) in [("localhost", None), ("127.0.0.1", Some(cert.as_str()))] {
        let error = publish(host, ca_file).await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        let expected = format!("no connection to https://{host}:{port}: invalid peer certificate");
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
}
