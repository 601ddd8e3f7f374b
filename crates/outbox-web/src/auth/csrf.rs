//! CSRF tokens of callers that the application identifies.
//!
//! The application's cookie alone must not authorize a change: a browser may send it along with a
//! request of another site. A change needs two further values, as in a session: a cookie with
//! random bits, which a browser sends to no request of another site (`SameSite=Strict`) and which
//! scripts cannot read, and a header with a token derived from these bits, the name of the caller
//! and a key of the server. Another site can read none of them, and a cookie that it manages to
//! set (from another host of the domain) is of no use without the key.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::token::{digest, random_text};

/// Base name of the cookie; see [`cookie_name`](super::sessions::cookie_name).
pub(crate) const COOKIE: &str = "outbox_csrf";

/// Derives the tokens.
pub(crate) struct CsrfKey(Hmac<Sha256>);

/// The random bits in the cookie of one browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nonce(String);

impl Nonce {
    pub(crate) fn generate() -> Self {
        Self(random_text())
    }

    /// The value of a cookie, if it has the form of a generated one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        (text.len() == 43 && text.bytes().all(is_letter)).then(|| Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl CsrfKey {
    /// A key that is valid as long as this process runs.
    pub(crate) fn generate() -> Self {
        Self::of_secret(&random_text())
    }

    /// The same key for the same secret, in each process.
    pub(crate) fn of_secret(secret: &str) -> Self {
        // A key shorter than a block of the hash is padded with zeros.
        let mut block = [0; 64];
        block[..32].copy_from_slice(&digest(secret));
        Self(Hmac::new(&block.into()))
    }

    /// The token of a caller in the browser with this cookie. The nonce has a fixed length, so that
    /// no other pair of nonce and name is the same text.
    pub(crate) fn token(&self, nonce: &Nonce, name: &str) -> String {
        let mac = self.0.clone().chain_update(b"outbox csrf ").chain_update(&nonce.0).chain_update(name);
        URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_belongs_to_one_name_one_cookie_and_one_key() {
        let key = CsrfKey::of_secret("a-secret-of-some-length");
        let (nonce, other) = (Nonce::generate(), Nonce::generate());
        let token = key.token(&nonce, "ada");
        assert_eq!(token, CsrfKey::of_secret("a-secret-of-some-length").token(&nonce, "ada"));
        assert_ne!(token, key.token(&nonce, "bob"));
        assert_ne!(token, key.token(&other, "ada"));
        assert_ne!(token, CsrfKey::generate().token(&nonce, "ada"));
    }

    #[test]
    fn only_a_generated_cookie_is_a_nonce() {
        let nonce = Nonce::generate();
        assert_eq!(Nonce::parse(nonce.as_str()), Some(nonce));
        for wrong in ["", "short", &"ä".repeat(22), &"x".repeat(44), &format!("{};", "x".repeat(42))] {
            assert_eq!(Nonce::parse(wrong), None, "{wrong}");
        }
    }
}
