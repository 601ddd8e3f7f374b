//! Signatures of webhooks, in the manner of [Standard Webhooks](https://www.standardwebhooks.com).

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, TimeDelta, Utc};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// The header with the event's id.
pub(super) const ID: &str = "webhook-id";
/// The header with the seconds since 1970 when it was sent.
pub(super) const TIMESTAMP: &str = "webhook-timestamp";
/// The header with the signatures.
pub(super) const SIGNATURE: &str = "webhook-signature";

/// How far a receiver's clock and ours may be apart.
const TOLERANCE: TimeDelta = TimeDelta::minutes(5);

/// The shortest secret that is taken, in bytes.
const SHORTEST: usize = 16;

/// A secret to sign with.
#[derive(Clone)]
pub(super) struct Key(Hmac<Sha256>);

impl Key {
    /// Of `whsec_` and Base64, or of any other text as it is.
    pub(super) fn new(secret: &str) -> Result<Self, String> {
        let bytes = match secret.strip_prefix("whsec_") {
            Some(encoded) => STANDARD
                .decode(encoded)
                .map_err(|_| "a secret that starts with `whsec_` goes on in Base64, and this one does not")?,
            None => secret.as_bytes().to_vec(),
        };
        if bytes.len() < SHORTEST {
            return Err(format!("a secret has at least {SHORTEST} bytes, and this one has {}", bytes.len()));
        }
        Ok(Self(Hmac::new_from_slice(&bytes).map_err(|error| error.to_string())?))
    }

    fn over(&self, id: &str, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
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

/// What stands in the header: a signature for each key.
pub(super) fn sign(keys: &[Key], id: &str, timestamp: &str, body: &[u8]) -> String {
    let one = |key: &Key| {
        let code = key.over(id, timestamp, body).finalize().into_bytes();
        format!("v1,{}", STANDARD.encode(code))
    };
    keys.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// For those who receive webhooks: whether this one is from someone who knows one of `secrets`, as it was sent, within the last
/// five minutes. `header` looks a header of the request up; the body must be as it came, to the byte.
///
/// Within these five minutes, and when a delivery is repeated, the same request may come again: tell by the `webhook-id`,
/// which is the event's id.
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
///     Ok(()) => println!("from a friend"),
///     Err(reason) => println!("answer 401: {reason}"),
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
    let keys: Result<Vec<Key>, String> = secrets.iter().map(|secret| Key::new(secret)).collect();
    let keys = keys.map_err(Unverified::Secret)?;
    let given = signatures.split(' ').filter_map(|one| STANDARD.decode(one.strip_prefix("v1,")?).ok());
    for signature in given {
        // Takes as long for a good one as for a bad one.
        if keys.iter().any(|key| key.over(id, timestamp, body).verify_slice(&signature).is_ok()) {
            return Ok(());
        }
    }
    Err(Unverified::Signature)
}

/// Why a webhook is not to be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unverified {
    /// It lacks this header.
    Missing(&'static str),
    /// It was not sent within the last five minutes, or the two clocks are that far apart.
    Old,
    /// No signature is by one of the secrets: it is from someone else, or was changed on its way.
    Signature,
    /// A secret of ours is no secret.
    Secret(String),
}

impl fmt::Display for Unverified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unverified::Missing(header) => write!(f, "the header {header} is missing"),
            Unverified::Old => f.write_str("the webhook was not sent within the last five minutes"),
            Unverified::Signature => f.write_str("no signature of the webhook is by a secret that is known"),
            Unverified::Secret(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for Unverified {}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SENT: i64 = 1_614_265_330;

    /// As a receiver sees it, so many seconds after it was sent.
    fn seen(secrets: &[&str], signatures: &str, body: &[u8], seconds: i64) -> Result<(), Unverified> {
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
    fn the_signature_is_the_one_of_the_standard() {
        assert_eq!(signed(&[SECRET]), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn while_a_secret_is_changed_the_old_one_and_the_new_one_verify() {
        let (old, new, other) = (SECRET, "the new secret of the shop", "some other secret altogether");
        let both = signed(&[new, old]);
        assert_eq!(both.split(' ').count(), 2);
        for secrets in [&[old][..], &[new], &[other, new], &[new, old]] {
            assert_eq!(seen(secrets, &both, BODY, 0), Ok(()), "{secrets:?}");
        }
        for secrets in [&[other][..], &[]] {
            assert_eq!(seen(secrets, &both, BODY, 0), Err(Unverified::Signature), "{secrets:?}");
        }
    }

    #[test]
    fn what_was_changed_or_is_old_or_unsigned_is_refused() {
        let good = signed(&[SECRET]);
        assert_eq!(seen(&[SECRET], &good, b"{\"test\": 2432232315}", 0), Err(Unverified::Signature));
        for (seconds, result) in
            [(300, Ok(())), (-300, Ok(())), (301, Err(Unverified::Old)), (-301, Err(Unverified::Old))]
        {
            assert_eq!(seen(&[SECRET], &good, BODY, seconds), result, "{seconds}");
        }
        assert_eq!(seen(&[SECRET], "", BODY, 0), Err(Unverified::Missing(SIGNATURE)));
        for bad in ["v1,", "v1,AAAA", "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", "g0hM9SsE+OTPJTGt"] {
            assert_eq!(seen(&[SECRET], bad, BODY, 0), Err(Unverified::Signature), "{bad}");
        }
    }

    #[test]
    fn a_secret_that_is_none_is_named_but_not_shown() {
        for (secret, said) in
            [("whsec_%%%", "goes on in Base64"), ("short", "at least 16 bytes"), ("whsec_", "has 0")]
        {
            let error = Key::new(secret).unwrap_err();
            assert!(error.contains(said) && !error.contains("%%%") && !error.contains("short,"), "{error}");
        }
    }
}
