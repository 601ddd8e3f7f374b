//! The HTTP client of a webhook.

use std::sync::Arc;

use reqwest::{Certificate, Client, Identity, Response};

use super::address::{Checked, Gate};
use super::settings::WebhookSettings;
use crate::crypto;

/// How much of an answer is read: enough to use its connection again.
const MOST_OF_AN_ANSWER: usize = 64 * 1024;

/// The one client of a webhook; it keeps connections.
pub(super) fn client(settings: &WebhookSettings, gate: Arc<Gate>) -> Result<Client, String> {
    crypto::choose_provider();
    let mut builder = Client::builder()
        .dns_resolver(Arc::new(Checked(gate)))
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .referer(false)
        .connect_timeout(settings.connect_timeout)
        .user_agent(concat!("outbox/", env!("CARGO_PKG_VERSION")));
    let pems = settings.tls.read().map_err(|error| format!("tls: {error}"))?;
    if let Some(pem) = pems.ca {
        let certificates = Certificate::from_pem_bundle(pem.as_bytes());
        let certificates = certificates.ok().filter(|all| !all.is_empty());
        builder = builder.tls_certs_only(certificates.ok_or("tls: there is no certificate in ca_file")?);
    } else if settings.url.expose().starts_with("http://") {
        // Needs none, and a small container has none.
        builder = builder.tls_certs_only([]);
    }
    if let Some((certificate, key)) = pems.identity {
        let identity = Identity::from_pem(format!("{certificate}\n{key}").as_bytes());
        let identity =
            identity.map_err(|_| "tls: cert_file and key_file are no certificate and key in PEM")?;
        builder = builder.identity(identity);
    }
    builder.build().map_err(|error| format!("tls: {}", cause(&error)))
}

/// How much of an answer is kept for operators.
const EXCERPT: usize = 512;

/// Reads the answer, so that the connection can be used again; a long answer is not worth it. Adds what was
/// read to the start of the answer in `excerpt`, which keeps [`EXCERPT`] bytes at most.
pub(super) async fn drain(mut response: Response, excerpt: &mut Vec<u8>) {
    let mut left = MOST_OF_AN_ANSWER;
    while let Ok(Some(chunk)) = response.chunk().await {
        excerpt.extend(chunk.iter().take(EXCERPT - excerpt.len()));
        match left.checked_sub(chunk.len()) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

/// The start of an answer as one line of printable text; `None` if the answer was empty.
pub(super) fn printable(excerpt: &[u8]) -> Option<String> {
    let mut text = String::new();
    for c in String::from_utf8_lossy(excerpt).chars() {
        // Control characters, and those that change the direction or the width of what follows.
        let hidden = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        if c.is_control() || hidden {
            text.extend(c.escape_default());
        } else {
            text.push(c);
        }
    }
    (!text.is_empty()).then_some(text)
}

/// Where an error began. What is around it may name the URL.
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
        let answer = "no\r\nstock \u{1b}[31m ü \u{202e}";
        assert_eq!(printable(answer.as_bytes()).unwrap(), r"no\r\nstock \u{1b}[31m ü \u{202e}");
        assert_eq!(printable(&[b'a', 0xff]).unwrap(), "a\u{fffd}");
    }
}
