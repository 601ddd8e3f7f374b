//! The dashboard of the demo, on a loopback address only.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use outbox::store::SharedStore;
use outbox_web::{Role, Token, Web};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::Usage;

/// Default address.
const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// Server of the dashboard. Stops when dropped.
pub(crate) struct Dashboard {
    /// URL with a token that grants the admin role.
    pub(crate) link: String,
    task: JoinHandle<()>,
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Dashboard {
    /// Serves the dashboard at this address; without one at the default address, or on any port if
    /// that is in use.
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
            None => match TcpListener::bind(DEFAULT_ADDRESS).await {
                Ok(listener) => listener,
                Err(_) => {
                    TcpListener::bind((DEFAULT_ADDRESS.ip(), 0)).await.context("cannot listen on any port")?
                }
            },
        };
        let address = listener.local_addr().context("cannot determine the port")?;
        let (token, secret) = Token::random("you", Role::Admin);
        let router = Web::builder().outbox("shop", store).token(token).build()?.standalone();
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "dashboard server failed");
            }
        });
        Ok(Self { link: format!("http://{address}/#token={secret}"), task })
    }
}
