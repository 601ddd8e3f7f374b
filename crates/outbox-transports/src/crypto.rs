//! One TLS crypto provider for all clients.

use rustls::crypto::{CryptoProvider, ring};

/// Installs the default crypto provider unless the application has installed one. Clients that
/// build their own TLS configuration use the provider of the process, and panic if several are
/// compiled in and none is installed.
pub(crate) fn install_provider() {
    if CryptoProvider::get_default().is_none() {
        // Another thread may have installed a provider in the meantime.
        let _ = ring::default_provider().install_default();
    }
}
