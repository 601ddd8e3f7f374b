//! How a server is trusted, and how this side shows who it is.

use serde::Deserialize;

use crate::Text;

/// Files for connections by TLS, in PEM format. Servers are always checked, against the public certificate authorities or one of
/// your own. Files are read again for every connection, so they may be renewed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// A certificate authority of your own, which is then the only one that is trusted.
    pub ca_file: Option<Text>,
    /// The certificate by which this side shows who it is. Needs `key_file`.
    pub cert_file: Option<Text>,
    /// The private key of that certificate.
    pub key_file: Option<Text>,
}

/// What the files hold.
pub(crate) struct Pems {
    pub(crate) ca: Option<String>,
    /// Certificate and key.
    pub(crate) identity: Option<(String, String)>,
}

impl Tls {
    /// Whether any file is named.
    #[cfg(any(test, feature = "nats", feature = "redis"))]
    pub(crate) fn is_used(&self) -> bool {
        self.ca_file.is_some() || self.cert_file.is_some() || self.key_file.is_some()
    }

    /// What the files hold. Never says what is in them.
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
    fn what_is_missing_is_named() {
        let only_cert = Tls { cert_file: Some("/dev/null".into()), ..Tls::default() };
        assert_eq!(only_cert.read().err().unwrap(), "cert_file needs key_file as well");
        let no_file = Tls { ca_file: Some("/no/such/file".into()), ..Tls::default() };
        assert!(no_file.read().err().unwrap().starts_with("ca_file `/no/such/file`: "));
        assert!(no_file.is_used() && !Tls::default().is_used());
    }
}
