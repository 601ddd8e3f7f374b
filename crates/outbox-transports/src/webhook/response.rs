//! Maps an HTTP response to the result of the event.

use std::time::Duration;

use chrono::{DateTime, Utc};
use outbox::Failure;
use reqwest::header::{HeaderMap, LOCATION, RETRY_AFTER};
use reqwest::{StatusCode, Url};

/// Longest `Retry-After` that is honored.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3_600);

/// Result of sending one event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RequestOutcome {
    /// The receiver confirmed the event.
    Published,
    /// The event was refused, or its result is unknown.
    Failed(Failure),
    /// The receiver refuses everything at the moment, or refuses this publisher, or refuses only
    /// this event. The results of the other events decide which.
    Refused(Failure),
    /// The receiver is unreachable.
    Unavailable(String),
    /// The event was not sent.
    NotAttempted,
}

/// Classifies a response by its status and headers. `origin` identifies the receiver in errors.
pub(super) fn classify(
    status: StatusCode,
    headers: &HeaderMap,
    sent_to: &Url,
    origin: &str,
    now: DateTime<Utc>,
) -> RequestOutcome {
    let summary = match status.canonical_reason() {
        Some(reason) => format!("{origin} answers {} {reason}", status.as_u16()),
        None => format!("{origin} answers {}", status.as_u16()),
    };
    let wait = retry_after(headers, now);
    match (status.as_u16(), wait) {
        (200..=299, _) => RequestOutcome::Published,
        (300..=399, _) => RequestOutcome::Failed(Failure::retry(match redirect(headers, sent_to) {
            Some(to) => {
                format!("{summary} to {to}; redirects are not followed: set the url to the new address")
            }
            None => format!("{summary}; redirects are not followed"),
        })),
        // The receiver is gone permanently, or can never accept this event.
        (410 | 413 | 415 | 422, _) => RequestOutcome::Failed(Failure::dead(summary)),
        (429, Some(wait)) => RequestOutcome::Failed(retry_after_failure(wait, &summary)),
        (502..=504, Some(wait)) => RequestOutcome::Refused(retry_after_failure(wait, &summary)),
        (401 | 403 | 502..=504, _) => RequestOutcome::Refused(Failure::retry(summary)),
        _ => RequestOutcome::Failed(Failure::retry(summary)),
    }
}

fn retry_after_failure(wait: Duration, summary: &str) -> Failure {
    Failure::retry_after(wait, format!("{summary}, and asks to wait {} s", wait.as_secs()))
}

/// The origin of a redirect's target. The rest of the URL may contain a token.
fn redirect(headers: &HeaderMap, sent_to: &Url) -> Option<String> {
    let to = sent_to.join(headers.get(LOCATION)?.to_str().ok()?).ok()?;
    Some(to.origin().ascii_serialization())
}

/// The delay of `Retry-After`: in seconds, or until a date.
fn retry_after(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let until = DateTime::parse_from_rfc2822(text).ok()?;
            (until.to_utc() - now).to_std().unwrap_or_default()
        }
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: &str = "https://hooks.example.com";

    fn outcome(status: u16, header: Option<(&'static str, &'static str)>) -> RequestOutcome {
        let headers: HeaderMap =
            header.into_iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let url = Url::parse("https://hooks.example.com/in?token=hunter2").unwrap();
        let now = DateTime::parse_from_rfc3339("2026-10-21T07:28:00Z").unwrap().to_utc();
        classify(StatusCode::from_u16(status).unwrap(), &headers, &url, ORIGIN, now)
    }

    #[test]
    fn every_status_is_classified() {
        for status in [200, 201, 202, 204, 299] {
            assert_eq!(outcome(status, None), RequestOutcome::Published, "{status}");
        }
        for status in [400, 404, 405, 408, 409, 425, 429, 500, 501, 505, 599] {
            let RequestOutcome::Failed(failure) = outcome(status, None) else { panic!("{status}") };
            assert_eq!(failure, Failure::retry(&failure), "{status}");
            assert!(failure.to_string().starts_with(&format!("{ORIGIN} answers {status}")), "{failure}");
        }
        for status in [410, 413, 415, 422] {
            let RequestOutcome::Failed(failure) = outcome(status, None) else { panic!("{status}") };
            assert_eq!(failure, Failure::dead(&failure), "{status}");
        }
        for status in [401, 403, 502, 503, 504] {
            let RequestOutcome::Refused(failure) = outcome(status, None) else { panic!("{status}") };
            assert_eq!(failure, Failure::retry(&failure), "{status}");
        }
    }

    #[test]
    fn retry_after_is_honored_up_to_an_hour() {
        for (status, after, seconds) in [
            (429, "7", 7),
            (503, "120", 120),
            (503, "Wed, 21 Oct 2026 07:28:30 GMT", 30),
            (503, "Wed, 21 Oct 2015 07:28:00 GMT", 0),
            (502, "99999999", 3_600),
        ] {
            let failure = match outcome(status, Some(("retry-after", after))) {
                RequestOutcome::Failed(failure) if status == 429 => failure,
                RequestOutcome::Refused(failure) if status != 429 => failure,
                outcome => panic!("{status} {after}: {outcome:?}"),
            };
            let wait = Duration::from_secs(seconds);
            assert_eq!(failure, Failure::retry_after(wait, &failure), "{after}");
        }
        assert!(matches!(outcome(503, Some(("retry-after", "soon"))), RequestOutcome::Refused(_)));
        assert!(matches!(outcome(500, Some(("retry-after", "7"))), RequestOutcome::Failed(_)));
    }

    #[test]
    fn a_redirect_is_a_failure_that_names_only_the_host() {
        for (to, host) in [
            ("http://10.0.0.1/admin?token=hunter2", "http://10.0.0.1"),
            ("/elsewhere?token=hunter2", "https://hooks.example.com"),
        ] {
            let RequestOutcome::Failed(failure) = outcome(301, Some(("location", to))) else {
                panic!("{to}")
            };
            assert_eq!(
                failure.to_string(),
                format!(
                    "{ORIGIN} answers 301 Moved Permanently to {host}; redirects are not followed: set the url to the new address"
                )
            );
        }
        assert!(matches!(outcome(304, None), RequestOutcome::Failed(_)));
    }
}
