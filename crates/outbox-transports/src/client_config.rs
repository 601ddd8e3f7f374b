//! TLS for clients that take a rustls configuration.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::Tls;

impl Tls {
    /// Builds the client configuration: trusted roots and client certificate.
    pub(crate) fn client_config(&self) -> Result<ClientConfig, String> {
        let pems = self.read()?;
        let mut roots = RootCertStore::empty();
        match &pems.ca {
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Some(ca) => {
                for certificate in certificates("ca_file", ca)? {
                    roots.add(certificate).map_err(|error| format!("ca_file: {error}"))?;
                }
            }
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        match &pems.identity {
            None => Ok(config.with_no_client_auth()),
            Some((certificate, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
                let key = key.map_err(|_| "key_file: contains no private key".to_owned())?;
                config
                    .with_client_auth_cert(certificates("cert_file", certificate)?, key)
                    .map_err(|error| format!("cert_file and key_file: {error}"))
            }
        }
    }
}

fn certificates(name: &str, pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    certificates
        .ok()
        .filter(|certificates| !certificates.is_empty())
        .ok_or_else(|| format!("{name}: contains no certificate"))
}
