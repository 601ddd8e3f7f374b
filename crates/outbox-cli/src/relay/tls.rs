//! TLS certificate and key of the HTTP server.

use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Reads certificate and key in PEM format. Errors do not contain their contents.
pub(crate) fn acceptor(certificate: &str, key: &str) -> Result<TlsAcceptor> {
    let certificates = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("`tls-cert`: cannot read {certificate}"))?;
    let key = PrivateKeyDer::from_pem_file(key).with_context(|| format!("`tls-key`: cannot read {key}"))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(certificates, key))
        .context("`tls-cert` and `tls-key` do not match")?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
