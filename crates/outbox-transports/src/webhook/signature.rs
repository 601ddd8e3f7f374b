//! Webhook signatures as specified by [Standard Webhooks](https://www.standardwebhooks.com).

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, TimeDelta, Utc};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Header with the event's id.
pub(super) const ID: &str = "webhook-id";
/// Header with the time of sending, in Unix seconds.
pub(super) const TIMESTAMP: &str = "webhook-timestamp";
/// Header with the signatures.
pub(super) const SIGNATURE: &str = "webhook-signature";

/// Maximum difference between the clocks of sender and receiver.
const TOLERANCE: TimeDelta = TimeDelta::minutes(5);

/// Minimum length of a secret, in bytes.
const MIN_SECRET_BYTES: usize = 16;

/// A signing key.
#[derive(Clone)]
pub(super) struct Key(Hmac<Sha256>);

impl Key {
    /// Creates a key from `whsec_` followed by Base64, or from any other text as it is.
    pub(super) fn new(secret: &str) -> Result<Self, SigningSecretError> {
        let bytes = match secret.strip_prefix("whsec_") {
            // The error of the decoder is dropped, since it contains a byte of the secret.
            Some(encoded) => STANDARD.decode(encoded).map_err(|_| SigningSecretError::NotBase64)?,
            None => secret.as_bytes().to_vec(),
        };
        if bytes.len() < MIN_SECRET_BYTES {
            return Err(SigningSecretError::TooShort { bytes: bytes.len() });
        }
        Ok(Self(Hmac::new_from_slice(&bytes).expect("HMAC accepts keys of any length")))
    }

    fn mac(&self, id: &str, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        mac
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The value of the signature header: one signature per key.
pub(super) fn sign(keys: &[Key], id: &str, timestamp: &str, body: &[u8]) -> String {
    let encode = |key: &Key| {
        let code = key.mac(id, timestamp, body).finalize().into_bytes();
        format!("v1,{}", STANDARD.encode(code))
    };
    keys.iter().map(encode).collect::<Vec<_>>().join(" ")
}

/// Verifies a received webhook: that the sender knows one of `secrets`, that the request is
/// unchanged, and that it was sent within the last five minutes. `header` looks up a header of the
/// request. `body` must be the received body, byte for byte.
///
/// The same request may be received again, by a repeated delivery or by a replay within these five
/// minutes. Deduplicate by `webhook-id`, which is the event's id.
///
/// ```
/// use outbox_transports::{Unverified, verify_webhook};
///
/// # let sent = [("webhook-id", "01JC3Y"), ("webhook-timestamp", "0"), ("webhook-signature", "v1,AAAA")];
/// # let header = |name: &str| sent.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
/// # let body = br#"{"total":42}"#;
/// // In axum: let header = |name: &str| headers.get(name)?.to_str().ok();
/// let secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"];
/// match verify_webhook(&secrets, header, body) {
///     Ok(()) => println!("verified"),
///     Err(reason) => println!("respond with 401: {reason}"),
/// }
/// # assert_eq!(verify_webhook(&secrets, header, body), Err(Unverified::Old));
/// ```
pub fn verify_webhook<'a>(
    secrets: &[&str],
    header: impl Fn(&'static str) -> Option<&'a str>,
    body: &[u8],
) -> Result<(), Unverified> {
    verify_at(Utc::now(), secrets, header, body)
}

pub(super) fn verify_at<'a>(
    now: DateTime<Utc>,
    secrets: &[&str],
    header: impl Fn(&'static str) -> Option<&'a str>,
    body: &[u8],
) -> Result<(), Unverified> {
    let header = |name| header(name).ok_or(Unverified::Missing(name));
    let (id, timestamp, signatures) = (header(ID)?, header(TIMESTAMP)?, header(SIGNATURE)?);
    let sent = timestamp.parse().ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    if sent.is_none_or(|sent| (now - sent).abs() > TOLERANCE) {
        return Err(Unverified::Old);
    }
    let keys: Vec<Key> = secrets.iter().map(|secret| Key::new(secret)).collect::<Result<_, _>>()?;
    let given = signatures.split(' ').filter_map(|entry| STANDARD.decode(entry.strip_prefix("v1,")?).ok());
    for signature in given {
        // Compares in constant time.
        if keys.iter().any(|key| key.mac(id, timestamp, body).verify_slice(&signature).is_ok()) {
            return Ok(());
        }
    }
    Err(Unverified::Signature)
}

/// Reason why a webhook could not be verified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unverified {
    /// This header is missing.
    #[error("the header {0} is missing")]
    Missing(&'static str),
    /// The webhook was not sent within the last five minutes, or the two clocks differ by more.
    #[error("the webhook was not sent within the last five minutes")]
    Old,
    /// No signature matches a secret: another sender, or a changed request.
    #[error("no signature of the webhook matches a known secret")]
    Signature,
    /// One of the receiver's secrets is invalid.
    #[error("{0}")]
    Secret(#[from] SigningSecretError),
}

/// Reason why a text cannot be a secret of [webhook signatures](verify_webhook). Never contains the
/// text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SigningSecretError {
    /// `whsec_` is followed by a text that is not Base64.
    #[error("a secret that starts with `whsec_` must continue in Base64")]
    NotBase64,
    /// The secret is too easy to guess.
    #[error("a secret must have at least {MIN_SECRET_BYTES} bytes, and this one has {bytes}")]
    #[non_exhaustive]
    TooShort {
        /// Length of the secret.
        bytes: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proptests::all_texts;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SENT: i64 = 1_614_265_330;

    /// Verifies as a receiver does, `seconds` after the webhook was sent.
    fn verify_after(secrets: &[&str], signatures: &str, body: &[u8], seconds: i64) -> Result<(), Unverified> {
        let now = DateTime::from_timestamp(SENT + seconds, 0).unwrap();
        let timestamp = SENT.to_string();
        let header = |name: &'static str| match name {
            ID => Some("msg_p5jXN8AQM9LWM0D4loKWxJek"),
            TIMESTAMP => Some(timestamp.as_str()),
            SIGNATURE if !signatures.is_empty() => Some(signatures),
            _ => None,
        };
        verify_at(now, secrets, header, body)
    }

    fn signed(secrets: &[&str]) -> String {
        let keys: Vec<Key> = secrets.iter().map(|secret| Key::new(secret).unwrap()).collect();
        sign(&keys, "msg_p5jXN8AQM9LWM0D4loKWxJek", &SENT.to_string(), BODY)
    }

    #[test]
    fn the_signature_matches_the_example_of_the_standard() {
        assert_eq!(signed(&[SECRET]), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn during_a_rotation_the_old_and_the_new_secret_verify() {
        let (old, new, other) = (SECRET, "the new secret of the shop", "some other secret altogether");
        let both = signed(&[new, old]);
        assert_eq!(both.split(' ').count(), 2);
        for secrets in [&[old][..], &[new], &[other, new], &[new, old]] {
            assert_eq!(verify_after(secrets, &both, BODY, 0), Ok(()), "{secrets:?}");
        }
        for secrets in [&[other][..], &[]] {
            assert_eq!(verify_after(secrets, &both, BODY, 0), Err(Unverified::Signature), "{secrets:?}");
        }
    }

    #[test]
    fn a_changed_or_old_or_unsigned_webhook_is_refused() {
        let good = signed(&[SECRET]);
        assert_eq!(verify_after(&[SECRET], &good, b"{\"test\": 2432232315}", 0), Err(Unverified::Signature));
        for (seconds, result) in
            [(300, Ok(())), (-300, Ok(())), (301, Err(Unverified::Old)), (-301, Err(Unverified::Old))]
        {
            assert_eq!(verify_after(&[SECRET], &good, BODY, seconds), result, "{seconds}");
        }
        assert_eq!(verify_after(&[SECRET], "", BODY, 0), Err(Unverified::Missing(SIGNATURE)));
        for bad in ["v1,", "v1,AAAA", "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", "g0hM9SsE+OTPJTGt"] {
            assert_eq!(verify_after(&[SECRET], bad, BODY, 0), Err(Unverified::Signature), "{bad}");
        }
    }

    #[test]
    fn an_invalid_secret_is_reported_but_not_shown() {
        for (secret, expected) in
            [("whsec_%%%", "must continue in Base64"), ("short", "at least 16 bytes"), ("whsec_", "has 0")]
        {
            let error = Key::new(secret).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
            let texts = all_texts(&Unverified::from(error));
            assert!(!texts.contains("%%%") && !texts.contains("short,"), "{texts}");
        }
    }
}
