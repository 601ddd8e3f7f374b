//! One way of encrypting for all clients.

use rustls::crypto::{CryptoProvider, ring};

/// Clients that build their own configuration ask the process for its provider, and panic if several were built in and none was
/// chosen. The application's choice stands.
pub(crate) fn choose_provider() {
    if CryptoProvider::get_default().is_none() {
        // Somebody else may have been quicker.
        let _ = ring::default_provider().install_default();
    }
}
