//! The dashboard of the demo, on this machine only.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use outbox::store::SharedStore;
use outbox_web::{Role, Token, Web};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::Usage;

/// Where it is if nobody says otherwise.
const USUAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// Serves until it is dropped.
pub(crate) struct Dashboard {
    /// Where to look. Whoever has it may do everything.
    pub(crate) link: String,
    task: JoinHandle<()>,
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Dashboard {
    /// Serves it there; without an address at the usual one, or on any port if that is taken.
    pub(crate) async fn open(store: SharedStore, listen: Option<SocketAddr>) -> Result<Self> {
        let listener = match listen {
            Some(address) if !address.ip().is_loopback() => {
                return Err(Usage(format!(
                    "--listen {address}: the demo's dashboard is for this machine only; use 127.0.0.1:{}",
                    address.port()
                ))
                .into());
            }
            Some(address) => {
                TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?
            }
            None => match TcpListener::bind(USUAL).await {
                Ok(listener) => listener,
                Err(_) => TcpListener::bind((USUAL.ip(), 0)).await.context("cannot listen on any port")?,
            },
        };
        let address = listener.local_addr().context("cannot tell which port it is")?;
        let (token, secret) = Token::random("you", Role::Admin);
        let router = Web::builder().outbox("shop", store).token(token).build()?.router();
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the dashboard is not served any more");
            }
        });
        Ok(Self { link: format!("http://{address}/#token={secret}"), task })
    }
}
