//! What an answer means for the event that was sent.

use std::time::Duration;

use chrono::{DateTime, Utc};
use outbox::Failure;
use reqwest::header::{HeaderMap, LOCATION, RETRY_AFTER};
use reqwest::{StatusCode, Url};

/// The longest that an answer can make an event wait.
const LONGEST: Duration = Duration::from_secs(3_600);

/// What became of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The receiver has it.
    Published,
    /// It was refused, or nobody knows.
    Failed(Failure),
    /// The receiver takes nothing at the moment, or nothing from us; or it refuses only this event. What
    /// else is published tells which it is.
    Refused(Failure),
    /// The receiver is not there.
    Unavailable(String),
    /// It was not sent.
    Untried,
}

/// Reads an answer: its status, and of its headers those that say more. `origin` is who answered.
pub(super) fn read(
    status: StatusCode,
    headers: &HeaderMap,
    sent_to: &Url,
    origin: &str,
    now: DateTime<Utc>,
) -> Verdict {
    let said = match status.canonical_reason() {
        Some(reason) => format!("{origin} answers {} {reason}", status.as_u16()),
        None => format!("{origin} answers {}", status.as_u16()),
    };
    let wait = retry_after(headers, now);
    match (status.as_u16(), wait) {
        (200..=299, _) => Verdict::Published,
        (300..=399, _) => Verdict::Failed(Failure::retry(match redirect(headers, sent_to) {
            Some(to) => format!("{said} to {to}; redirects are not followed: set the url to where it went"),
            None => format!("{said}; redirects are not followed"),
        })),
        // The receiver is gone for good, or cannot take this event whatever happens.
        (410 | 413 | 415 | 422, _) => Verdict::Failed(Failure::dead(said)),
        (429, Some(wait)) => Verdict::Failed(asks_to_wait(wait, &said)),
        (502..=504, Some(wait)) => Verdict::Refused(asks_to_wait(wait, &said)),
        (401 | 403 | 502..=504, _) => Verdict::Refused(Failure::retry(said)),
        _ => Verdict::Failed(Failure::retry(said)),
    }
}

fn asks_to_wait(wait: Duration, said: &str) -> Failure {
    Failure::retry_after(wait, format!("{said}, and asks to wait {} s", wait.as_secs()))
}

/// Where a redirect leads: only the host, the rest may hold a token.
fn redirect(headers: &HeaderMap, sent_to: &Url) -> Option<String> {
    let to = sent_to.join(headers.get(LOCATION)?.to_str().ok()?).ok()?;
    Some(to.origin().ascii_serialization())
}

/// How long to wait: seconds, or until a date.
fn retry_after(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let until = DateTime::parse_from_rfc2822(text).ok()?;
            (until.to_utc() - now).to_std().unwrap_or_default()
        }
    };
    Some(wait.min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: &str = "https://hooks.example.com";

    fn answer(status: u16, header: Option<(&'static str, &'static str)>) -> Verdict {
        let headers: HeaderMap =
            header.into_iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let url = Url::parse("https://hooks.example.com/in?token=hunter2").unwrap();
        let now = DateTime::parse_from_rfc3339("2026-10-21T07:28:00Z").unwrap().to_utc();
        read(StatusCode::from_u16(status).unwrap(), &headers, &url, ORIGIN, now)
    }

    #[test]
    fn every_status_has_a_meaning() {
        for status in [200, 201, 202, 204, 299] {
            assert_eq!(answer(status, None), Verdict::Published, "{status}");
        }
        for status in [400, 404, 405, 408, 409, 425, 429, 500, 501, 505, 599] {
            let Verdict::Failed(failure) = answer(status, None) else { panic!("{status}") };
            assert_eq!(failure, Failure::retry(&failure), "{status}");
            assert!(failure.to_string().starts_with(&format!("{ORIGIN} answers {status}")), "{failure}");
        }
        for status in [410, 413, 415, 422] {
            let Verdict::Failed(failure) = answer(status, None) else { panic!("{status}") };
            assert_eq!(failure, Failure::dead(&failure), "{status}");
        }
        for status in [401, 403, 502, 503, 504] {
            let Verdict::Refused(failure) = answer(status, None) else { panic!("{status}") };
            assert_eq!(failure, Failure::retry(&failure), "{status}");
        }
    }

    #[test]
    fn who_asks_to_wait_is_waited_for_up_to_an_hour() {
        for (status, after, seconds) in [
            (429, "7", 7),
            (503, "120", 120),
            (503, "Wed, 21 Oct 2026 07:28:30 GMT", 30),
            (503, "Wed, 21 Oct 2015 07:28:00 GMT", 0),
            (502, "99999999", 3_600),
        ] {
            let failure = match answer(status, Some(("retry-after", after))) {
                Verdict::Failed(failure) if status == 429 => failure,
                Verdict::Refused(failure) if status != 429 => failure,
                verdict => panic!("{status} {after}: {verdict:?}"),
            };
            let wait = Duration::from_secs(seconds);
            assert_eq!(failure, Failure::retry_after(wait, &failure), "{after}");
        }
        assert!(matches!(answer(503, Some(("retry-after", "soon"))), Verdict::Refused(_)));
        assert!(matches!(answer(500, Some(("retry-after", "7"))), Verdict::Failed(_)));
    }

    #[test]
    fn a_redirect_is_a_failure_that_names_the_host_alone() {
        for (to, host) in [
            ("http://10.0.0.1/admin?token=hunter2", "http://10.0.0.1"),
            ("/elsewhere?token=hunter2", "https://hooks.example.com"),
        ] {
            let Verdict::Failed(failure) = answer(301, Some(("location", to))) else { panic!("{to}") };
            assert_eq!(
                failure.to_string(),
                format!(
                    "{ORIGIN} answers 301 Moved Permanently to {host}; redirects are not followed: set the url to where it went"
                )
            );
        }
        assert!(matches!(answer(304, None), Verdict::Failed(_)));
    }
}
