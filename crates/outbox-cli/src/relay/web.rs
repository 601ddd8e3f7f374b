//! The API and the dashboard of a relay.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use outbox::store::SharedStore;
use outbox_web::{DatabaseInfo, Databases, Role, Token, Web};

use super::health::SharedHealth;
use crate::Usage;
use crate::config::Http;

/// Databases of a relay, as its health reports them.
struct Served {
    health: SharedHealth,
    /// Name of the database, if there is only one.
    name: String,
}

impl Databases for Served {
    fn list(&self) -> Vec<DatabaseInfo> {
        self.health.databases(&self.name)
    }

    fn store(&self, name: &str) -> Option<SharedStore> {
        self.health.store(&self.name, name)
    }
}

/// The API, and the secret of a random token if the settings have no tokens.
pub(crate) struct Api {
    pub(crate) web: Web,
    pub(crate) secret: Option<String>,
}

impl Api {
    pub(crate) fn new(http: &Http, database: Option<&str>, health: &SharedHealth) -> Result<Self> {
        let tokens = http.tokens.iter().map(|token| token.get_ref().token());
        let mut tokens: Vec<Token> = tokens.collect::<Result<_, _>>().map_err(Usage)?;
        let mut secret = None;
        if tokens.is_empty() {
            let (token, random) = Token::random("local", Role::Admin);
            (tokens, secret) = (vec![token], Some(random));
        }
        let health_of_destinations = health.clone();
        let served = Served { health: health.clone(), name: database.unwrap_or("main").to_owned() };
        let mut builder = Web::builder()
            .databases(served)
            .tokens(tokens)
            .tls(http.is_behind_tls())
            .destinations(move || health_of_destinations.destinations());
        for host in http.host_names() {
            builder = builder.host(host);
        }
        let web = builder.build().map_err(|error| Usage(format!("`[http]`: {error}")))?;
        Ok(Self { web, secret })
    }

    /// Logs the address of the dashboard. The secret is printed to a terminal only, because other
    /// outputs may be stored.
    pub(crate) fn log_address(&self, scheme: &str, address: SocketAddr, interactive: bool) {
        match &self.secret {
            // Browsers do not send the part after `#`, and the page removes it from its address.
            Some(secret) if interactive => eprintln!("dashboard: {scheme}://{address}/#token={secret}"),
            Some(_) => {
                tracing::info!(
                    "dashboard: {scheme}://{address}/ needs a token: set `tokens` under `[http]`, or start the relay at a \
                     terminal, where a link with a token is printed"
                );
            }
            None => tracing::info!("dashboard: {scheme}://{address}/"),
        }
    }
}

/// TLS acceptor, if TLS is configured.
pub(crate) fn tls(http: &Http) -> Result<Option<tokio_rustls::TlsAcceptor>> {
    match (&http.tls_cert, &http.tls_key) {
        (Some(certificate), Some(key)) => {
            super::tls::acceptor(certificate.as_str(), key.as_str()).map(Some).context("cannot serve TLS")
        }
        _ => Ok(None),
    }
}
