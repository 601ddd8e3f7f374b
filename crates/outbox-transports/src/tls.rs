//! TLS files: trusted certificate authority and client certificate.

use serde::Deserialize;

use crate::Text;

/// TLS files in PEM format. Server certificates are always verified, against the public certificate
/// authorities or `ca_file`. The files are read again for every connection, so they may be renewed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
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
    /// Whether any file is set.
    #[cfg(any(test, feature = "amqp", feature = "mqtt", feature = "nats", feature = "redis"))]
    pub(crate) fn is_used(&self) -> bool {
        self.ca_file.is_some() || self.cert_file.is_some() || self.key_file.is_some()
    }

    /// Reads the files. Errors never contain file contents.
    pub(crate) fn read(&self) -> Result<Pems, String> {
        let read = |name: &str, file: &Option<Text>| match file {
            None => Ok(None),
            Some(file) => std::fs::read_to_string(file.as_str())
                .map(Some)
                .map_err(|error| format!("{name} `{}`: {error}", file.as_str())),
        };
        let ca = read("ca_file", &self.ca_file)?;
        let identity = match (read("cert_file", &self.cert_file)?, read("key_file", &self.key_file)?) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) => return Err("cert_file needs key_file as well".to_owned()),
            (None, Some(_)) => return Err("key_file needs cert_file as well".to_owned()),
        };
        Ok(Pems { ca, identity })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_named() {
        let only_cert = Tls { cert_file: Some("/dev/null".into()), ..Tls::default() };
        assert_eq!(only_cert.read().err().unwrap(), "cert_file needs key_file as well");
        let no_file = Tls { ca_file: Some("/no/such/file".into()), ..Tls::default() };
        assert!(no_file.read().err().unwrap().starts_with("ca_file `/no/such/file`: "));
        assert!(no_file.is_used() && !Tls::default().is_used());
    }
}
