//! Brokers with TLS, if this build supports it.
#![cfg(feature = "kafka-tls")]

use std::sync::Arc;
use std::time::Duration;

use outbox::Publisher as _;
use outbox_testbed::{Certificates, Plan};
use outbox_transports::{Kafka, KafkaSettings, Tls};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};

use crate::common::numbered;
use crate::reader::Reader;
use crate::tansu::create_topic;

/// Terminates TLS in front of a port: Tansu does not support TLS.
async fn terminate(certificates: &Certificates, listener: TcpListener, target: u16) {
    let (certificate, key) = &certificates.server;
    let chain = CertificateDer::pem_file_iter(certificate).unwrap().map(Result::unwrap).collect();
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap())
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut stream = acceptor.accept(stream).await?;
                let mut broker = TcpStream::connect(("127.0.0.1", target)).await?;
                tokio::io::copy_bidirectional(&mut stream, &mut broker).await
            });
        }
    });
}

/// A certificate of an authority that the system does not trust is an outage, and nothing is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unverified_broker_is_refused_until_its_authority_is_configured() {
    let plan = Plan::tansu();
    if !plan.is_here() {
        return;
    }
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let tansu = plan.advertised(port).start();
    let certificates = Certificates::make(tansu.folder());
    terminate(&certificates, listener, tansu.port()).await;
    let reader = Reader::of(&format!("127.0.0.1:{port}")).trusting(&certificates.ca);
    create_topic(reader.config(), "orders").await;
    let kafka = |host: &str, tls: Option<Tls>, timeout: u64| {
        let brokers = format!("{host}:{port}");
        let mut settings = KafkaSettings::new(brokers.as_str(), "orders".parse().unwrap());
        settings.tls = tls;
        settings.timeout = Duration::from_secs(timeout);
        Kafka::new("kafka", settings).unwrap()
    };
    let trusting = Tls::default().with_ca_file(certificates.ca.to_str().unwrap());
    let event = [numbered(1, None)];
    let unverified = kafka("127.0.0.1", Some(Tls::default()), 3).publish_batch(&event).await.unwrap_err();
    assert!(unverified.is_unavailable(), "{unverified}");
    assert!(unverified.to_string().contains("certificate verify failed"), "{unverified}");
    // The certificate is for other hosts.
    let wrong_host = kafka("127.0.0.2", Some(trusting.clone()), 3).publish_batch(&event).await.unwrap_err();
    assert!(wrong_host.to_string().contains("certificate verify failed"), "{wrong_host}");
    let plaintext = kafka("127.0.0.1", None, 3).publish_batch(&event).await.unwrap_err();
    assert!(plaintext.is_unavailable(), "{plaintext}");
    kafka("127.0.0.1", Some(trusting), 60).publish_batch(&event).await.unwrap();
    let records = tokio::task::block_in_place(|| reader.read("orders", 1));
    assert_eq!(records.len(), 1, "refused messages were not sent");
}
