//! The HTTP client of a webhook.

use std::sync::Arc;

use reqwest::{Certificate, Client, Identity, Response};

use super::address::{Checked, Gate};
use super::settings::WebhookSettings;
use crate::Text;

/// How much of an answer is read: enough to use its connection again.
const MOST_OF_AN_ANSWER: usize = 64 * 1024;

/// The one client of a webhook; it keeps connections.
pub(super) fn client(settings: &WebhookSettings, gate: Arc<Gate>) -> Result<Client, String> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Somebody else may be quicker, which is fine: there is one then.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let mut builder = Client::builder()
        .dns_resolver(Arc::new(Checked(gate)))
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .referer(false)
        .connect_timeout(settings.connect_timeout)
        .user_agent(concat!("outbox/", env!("CARGO_PKG_VERSION")));
    if let Some(file) = &settings.tls.ca_file {
        let certificates = Certificate::from_pem_bundle(&read("ca_file", file)?);
        let certificates = certificates.ok().filter(|all| !all.is_empty());
        builder =
            builder.tls_certs_only(certificates.ok_or("tls.ca_file: there is no PEM certificate in it")?);
    } else if settings.url.expose().starts_with("http://") {
        // Needs none, and a small container has none.
        builder = builder.tls_certs_only([]);
    }
    builder = match (&settings.tls.cert_file, &settings.tls.key_file) {
        (Some(certificate), Some(key)) => {
            let mut pem = read("cert_file", certificate)?;
            pem.push(b'\n');
            pem.extend(read("key_file", key)?);
            let identity = Identity::from_pem(&pem);
            builder.identity(
                identity.map_err(|_| "tls: cert_file and key_file are no certificate and key in PEM")?,
            )
        }
        (None, None) => builder,
        _ => return Err("tls: cert_file and key_file go together".to_owned()),
    };
    builder.build().map_err(|error| format!("tls: {}", cause(&error)))
}

fn read(setting: &str, file: &Text) -> Result<Vec<u8>, String> {
    std::fs::read(file.as_str()).map_err(|error| format!("tls.{setting}: {}: {error}", file.as_str()))
}

/// Reads on, so that the connection can be used again. A long answer is not worth it.
pub(super) async fn drain(mut response: Response) {
    let mut left = MOST_OF_AN_ANSWER;
    while let Ok(Some(chunk)) = response.chunk().await {
        match left.checked_sub(chunk.len()) {
            Some(rest) => left = rest,
            None => return,
        }
    }
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
