//! TLS files: trusted certificate authority and client certificate.

use serde::Deserialize;

use crate::{Text, TlsFileError};

/// TLS files in PEM format. Server certificates are always verified, against the public certificate
/// authorities or `ca_file`. The files are read again for every connection, so they may be renewed.
///
/// ```
/// use outbox_transports::Tls;
///
/// let tls = Tls::default().with_ca_file("ca.pem").with_client_certificate("client.pem", "client.key");
/// assert_eq!(tls.key_file.unwrap().as_str(), "client.key");
/// ```
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Tls {
    /// A private certificate authority. If it is set, it is the only trusted authority.
    pub ca_file: Option<Text>,
    /// The client certificate. Needs `key_file`.
    pub cert_file: Option<Text>,
    /// The private key of the client certificate.
    pub key_file: Option<Text>,
}

/// Contents of the files.
pub(crate) struct Pems {
    pub(crate) ca: Option<String>,
    /// Client certificate and its key.
    pub(crate) identity: Option<(String, String)>,
}

impl Tls {
    /// Trusts only this certificate authority.
    #[must_use]
    pub fn with_ca_file(mut self, file: impl Into<Text>) -> Self {
        self.ca_file = Some(file.into());
        self
    }

    /// Presents this client certificate, with its private key.
    #[must_use]
    pub fn with_client_certificate(mut self, certificate: impl Into<Text>, key: impl Into<Text>) -> Self {
        self.cert_file = Some(certificate.into());
        self.key_file = Some(key.into());
        self
    }

    /// Whether any file is set.
    #[cfg(any(test, feature = "amqp", feature = "mqtt", feature = "nats", feature = "redis"))]
    pub(crate) fn is_used(&self) -> bool {
        self.ca_file.is_some() || self.cert_file.is_some() || self.key_file.is_some()
    }

    /// Checks that a client certificate has its key. Reads no file.
    pub(crate) fn check_pair(&self) -> Result<(), TlsFileError> {
        match (&self.cert_file, &self.key_file) {
            (Some(_), None) => Err(TlsFileError::Incomplete { setting: "cert_file", missing: "key_file" }),
            (None, Some(_)) => Err(TlsFileError::Incomplete { setting: "key_file", missing: "cert_file" }),
            _ => Ok(()),
        }
    }

    /// Reads the files.
    pub(crate) fn read(&self) -> Result<Pems, TlsFileError> {
        self.check_pair()?;
        Ok(Pems {
            ca: read("ca_file", self.ca_file.as_ref())?,
            identity: read("cert_file", self.cert_file.as_ref())?
                .zip(read("key_file", self.key_file.as_ref())?),
        })
    }
}

fn read(setting: &'static str, file: Option<&Text>) -> Result<Option<String>, TlsFileError> {
    let Some(path) = file.map(Text::as_str) else { return Ok(None) };
    let pem = std::fs::read_to_string(path);
    pem.map(Some).map_err(|source| TlsFileError::Read { setting, path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn a_missing_file_is_named() {
        let only_cert = Tls { cert_file: Some("/dev/null".into()), ..Tls::default() };
        let error = only_cert.read().err().unwrap();
        assert!(matches!(error, TlsFileError::Incomplete { .. }));
        assert_eq!(error.to_string(), "cert_file needs key_file as well");
        let no_file = Tls::default().with_ca_file("/no/such/file");
        let error = no_file.read().err().unwrap();
        assert!(error.to_string().starts_with("ca_file `/no/such/file`: "), "{error}");
        let source = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
        assert_eq!(source.unwrap().kind(), std::io::ErrorKind::NotFound);
        assert!(no_file.is_used() && !Tls::default().is_used());
    }
}
