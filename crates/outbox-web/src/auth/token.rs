//! Bearer tokens and roles.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::RngCore as _;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use utoipa::ToSchema;

use crate::builder::BuildError;

/// Minimum length of a secret, in characters.
pub(crate) const MIN_SECRET_LEN: usize = 16;

/// Permissions of a caller. Each role includes the permissions of the roles before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Read everything except payloads.
    Read,
    /// Also read payloads, replay, skip, cancel, pause and resume.
    Operate,
    /// Also edit payloads, reset publishers and purge.
    Admin,
}

impl Role {
    /// Name of the role in settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Operate => "operate",
            Role::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A bearer token: its name and its role. Only the digest of the secret is stored.
///
/// ```
/// use outbox_web::{Role, Token};
///
/// let token = Token::new("ops", Role::Operate, "a-secret-of-some-length");
/// assert!(!format!("{token:?}").contains("secret"));
///
/// // In a settings file the digest is enough: `printf %s "$TOKEN" | sha256sum`.
/// let same = Token::of_digest(
///     "ops",
///     Role::Operate,
///     "sha256:6fa9ea56f4e6a2d2a5eb9a9e0f5d1d9e0f9a2a8a3a55a7c7d1b4a0a2d2b0c0de",
/// );
/// assert!(same.is_ok());
/// ```
#[derive(Clone)]
pub struct Token {
    pub(crate) name: String,
    pub(crate) role: Role,
    digest: [u8; 32],
    /// Whether the secret was too short; not known of a token that was given as a digest.
    pub(crate) is_short: bool,
}

impl Token {
    /// A token with this secret, of at least 16 characters. The name appears in audit entries.
    pub fn new(name: impl Into<String>, role: Role, secret: impl AsRef<str>) -> Self {
        let secret = secret.as_ref();
        let is_short = secret.chars().count() < MIN_SECRET_LEN;
        Self { name: name.into(), role, digest: digest(secret), is_short }
    }

    /// A token given by the digest of its secret: `sha256:` and 64 hexadecimal digits.
    pub fn of_digest(name: impl Into<String>, role: Role, digest: &str) -> Result<Self, BuildError> {
        let name = name.into();
        let digits = digest.strip_prefix("sha256:").unwrap_or_default();
        let digest = from_hex(digits).ok_or_else(|| BuildError::InvalidDigest { name: name.clone() })?;
        Ok(Self { name, role, digest, is_short: false })
    }

    /// A token with a secret of 256 random bits. Returns the token and the secret.
    pub fn random(name: impl Into<String>, role: Role) -> (Self, String) {
        let secret = random_text();
        (Self::new(name, role, &secret), secret)
    }

    /// The name of the token.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The role of the token.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Compares in constant time.
    pub(crate) fn is(&self, digest: &[u8; 32]) -> bool {
        self.digest.ct_eq(digest).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("name", &self.name).field("role", &self.role).finish_non_exhaustive()
    }
}

pub(crate) fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

/// 256 random bits, base64url-encoded.
pub(crate) fn random_text() -> String {
    let mut bytes = [0; 32];
    rand::rng().fill_bytes(&mut bytes);
    URL_SAFE_NO_PAD.encode(bytes)
}

fn from_hex(digits: &str) -> Option<[u8; 32]> {
    // `from_str_radix` would accept a sign.
    if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_same_as_its_secret() {
        let hex: String = digest("a-secret-of-some-length").iter().map(|b| format!("{b:02x}")).collect();
        let token = Token::of_digest("ops", Role::Read, &format!("sha256:{hex}")).unwrap();
        assert!(token.is(&digest("a-secret-of-some-length")));
        assert!(!token.is(&digest("another-secret-of-some-length")));
    }

    #[test]
    fn an_invalid_digest_is_rejected_without_showing_it() {
        let (no_digits, signs) =
            (format!("sha256:{}", "g".repeat(64)), format!("sha256:{}", "+f".repeat(32)));
        for wrong in ["", "sha256:", "sha256:12", "md5:00", &no_digits, &signs, "hunter2"] {
            let error = Token::of_digest("ops", Role::Read, wrong).unwrap_err().to_string();
            assert!(error.contains("ops") && (wrong.is_empty() || !error.contains("hunter2")), "{error}");
        }
    }

    #[test]
    fn roles_include_those_before_them() {
        assert!(Role::Read < Role::Operate && Role::Operate < Role::Admin);
    }

    #[test]
    fn random_tokens_differ_and_are_long() {
        let (a, b) = (random_text(), random_text());
        assert!(a != b && a.len() == 43);
    }
}
