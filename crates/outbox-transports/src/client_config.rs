//! TLS for clients that take a rustls configuration.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::{Tls, TlsFileError};

impl Tls {
    /// Builds the client configuration: trusted roots and client certificate.
    pub(crate) fn client_config(&self) -> Result<ClientConfig, TlsFileError> {
        let pems = self.read()?;
        let mut roots = RootCertStore::empty();
        match &pems.ca {
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Some(ca) => {
                for certificate in certificates("ca_file", ca)? {
                    roots.add(certificate).map_err(|error| refused("ca_file", error))?;
                }
            }
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default versions")
            .with_root_certificates(roots);
        match &pems.identity {
            None => Ok(config.with_no_client_auth()),
            Some((certificate, key)) => {
                // The error of the parser is dropped, since it could repeat a line of the file.
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
                    .map_err(|_| TlsFileError::Empty { setting: "key_file", expected: "private key" })?;
                config
                    .with_client_auth_cert(certificates("cert_file", certificate)?, key)
                    .map_err(|error| refused("cert_file and key_file", error))
            }
        }
    }
}

fn refused(setting: &'static str, error: rustls::Error) -> TlsFileError {
    TlsFileError::Refused { setting, reason: error.to_string(), source: Some(error.into()) }
}

fn certificates(setting: &'static str, pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    // The error of the parser is dropped, since it could repeat a line of the file.
    certificates
        .ok()
        .filter(|certificates| !certificates.is_empty())
        .ok_or(TlsFileError::Empty { setting, expected: "certificate" })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Text;
    use crate::proptests::{SECRET, all_texts, broken_pem};

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_error_shows_the_content_of_a_file(ca in prop::option::of(broken_pem()), certificate in broken_pem(), key in broken_pem()) {
            let folder = tempfile::tempdir().unwrap();
            let file = |name: &str, content: &str| {
                let path = folder.path().join(name);
                std::fs::write(&path, content).unwrap();
                Text::from(path.to_str().unwrap())
            };
            let mut tls = Tls::default()
                .with_client_certificate(file("cert.pem", &certificate), file("key.pem", &key));
            tls.ca_file = ca.map(|ca| file("ca.pem", &ca));
            let error = tls.client_config().unwrap_err();
            prop_assert!(!all_texts(&error).contains(SECRET), "{:?}", error);
        }
    }
}
