//! The HTTP client of a webhook.

use std::sync::Arc;

use reqwest::{Certificate, Client, Identity, Response};

use super::address::{AddressPolicy, CheckedResolver};
use super::settings::WebhookSettings;
use crate::{PublisherSettingsError, TlsFileError, crypto};

/// Maximum number of bytes read from a response to make its connection reusable.
const MAX_DRAINED_BYTES: usize = 64 * 1024;

/// Creates the client of a webhook, which pools connections.
pub(super) fn client(
    settings: &WebhookSettings,
    policy: Arc<AddressPolicy>,
) -> Result<Client, PublisherSettingsError> {
    crypto::install_provider();
    let mut builder = Client::builder()
        .dns_resolver(Arc::new(CheckedResolver(policy)))
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .referer(false)
        .connect_timeout(settings.connect_timeout)
        .user_agent(concat!("outbox/", env!("CARGO_PKG_VERSION")));
    let pems = settings.tls.read()?;
    if let Some(pem) = pems.ca {
        let certificates = Certificate::from_pem_bundle(pem.as_bytes());
        let certificates = certificates.ok().filter(|all| !all.is_empty());
        let empty = TlsFileError::Empty { setting: "ca_file", expected: "certificate" };
        builder = builder.tls_certs_only(certificates.ok_or(empty)?);
    } else if settings.url.expose().starts_with("http://") {
        // Plain HTTP needs no root certificates, and a minimal container has none.
        builder = builder.tls_certs_only([]);
    }
    if let Some((certificate, key)) = pems.identity {
        let identity = Identity::from_pem(format!("{certificate}\n{key}").as_bytes());
        // The error of the parser is dropped, since it could repeat a line of the file.
        builder = builder.identity(identity.map_err(|_| TlsFileError::Refused {
            setting: "cert_file and key_file",
            reason: "not a certificate and key in PEM format".to_owned(),
            source: None,
        })?);
    }
    builder
        .build()
        .map_err(|error| PublisherSettingsError::value("tls", cause(&error)).caused_by(error.without_url()))
}

/// Number of bytes of a response that are kept for operators.
const EXCERPT_BYTES: usize = 512;

/// Reads the response body so that the connection can be reused. Stops after [`MAX_DRAINED_BYTES`].
/// Appends the start of the body to `excerpt`, up to [`EXCERPT_BYTES`] bytes.
pub(super) async fn drain(mut response: Response, excerpt: &mut Vec<u8>) {
    let mut remaining = MAX_DRAINED_BYTES;
    while let Ok(Some(chunk)) = response.chunk().await {
        excerpt.extend(chunk.iter().take(EXCERPT_BYTES - excerpt.len()));
        match remaining.checked_sub(chunk.len()) {
            Some(rest) => remaining = rest,
            None => return,
        }
    }
}

/// Formats the start of a response as one line of printable text; `None` if the response was empty.
pub(super) fn printable(excerpt: &[u8]) -> Option<String> {
    let mut text = String::new();
    for c in String::from_utf8_lossy(excerpt).chars() {
        // Escapes control characters, and characters that change the direction or width of the text
        // after them.
        let hidden = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        if c.is_control() || hidden {
            text.extend(c.escape_default());
        } else {
            text.push(c);
        }
    }
    (!text.is_empty()).then_some(text)
}

/// The innermost error. Outer errors may contain the URL.
pub(super) fn cause(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    if innermost.is::<reqwest::Error>() {
        return "the request failed".to_owned();
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_one_line_of_printable_text() {
        assert_eq!(printable(b""), None);
        let body = "no\r\nstock \u{1b}[31m ü \u{202e}";
        assert_eq!(printable(body.as_bytes()).unwrap(), r"no\r\nstock \u{1b}[31m ü \u{202e}");
        assert_eq!(printable(&[b'a', 0xff]).unwrap(), "a\u{fffd}");
    }
}
