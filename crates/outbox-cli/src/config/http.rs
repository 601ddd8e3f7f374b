//! Where probes and metrics are served.

use std::net::SocketAddr;

use serde::Deserialize;
use toml::Spanned;

/// The `[http]` group.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Http {
    pub(crate) listen: Option<Spanned<SocketAddr>>,
    pub(crate) allow_remote: Option<bool>,
}

impl Http {
    /// What is wrong with this address, if anything is.
    pub(crate) fn refusal(listen: SocketAddr, allow_remote: bool) -> Option<String> {
        if listen.ip().is_loopback() || allow_remote {
            return None;
        }
        Some(format!(
            "{listen} can be reached from other machines, and nobody is asked for a password: listen on \
             127.0.0.1, or say `allow-remote = true` (--allow-remote)"
        ))
    }
}
