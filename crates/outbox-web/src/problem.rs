//! What went wrong, as RFC 9457 has it: `application/problem+json`.
//!
//! A problem never holds a payload, a token, a URL's password or what a database says about rows.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use outbox::{Error, JoinError};
use serde::Serialize;
use utoipa::ToSchema;

/// The media type of problems.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// The result of every handler.
pub(crate) type Answer<T> = Result<T, Problem>;

/// What can go wrong. Each has a name of its own, by which programs tell it from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    BadRequest,
    Unauthorized,
    Forbidden,
    BadCsrf,
    BadOrigin,
    NotFound,
    MethodNotAllowed,
    Conflict,
    TooLarge,
    NotJson,
    BadHost,
    Invalid,
    NotConfirmed,
    TooManyAttempts,
    TooMany,
    Internal,
    Unavailable,
    TimedOut,
}

impl Kind {
    /// Its name, its title, its status.
    fn facts(self) -> (&'static str, &'static str, StatusCode) {
        match self {
            Kind::BadRequest => ("bad-request", "The request cannot be understood", StatusCode::BAD_REQUEST),
            Kind::Unauthorized => ("unauthorized", "Say who you are", StatusCode::UNAUTHORIZED),
            Kind::Forbidden => ("forbidden", "Your role does not allow that", StatusCode::FORBIDDEN),
            Kind::BadCsrf => ("csrf", "The CSRF token is missing or wrong", StatusCode::FORBIDDEN),
            Kind::BadOrigin => ("origin", "The request comes from another site", StatusCode::FORBIDDEN),
            Kind::NotFound => ("not-found", "There is no such thing", StatusCode::NOT_FOUND),
            Kind::MethodNotAllowed => {
                ("method-not-allowed", "That cannot be done here", StatusCode::METHOD_NOT_ALLOWED)
            }
            Kind::Conflict => ("conflict", "It is not in the state for that", StatusCode::CONFLICT),
            Kind::TooLarge => ("too-large", "The body is too large", StatusCode::PAYLOAD_TOO_LARGE),
            Kind::NotJson => ("not-json", "The body is not JSON", StatusCode::UNSUPPORTED_MEDIA_TYPE),
            Kind::BadHost => ("host", "This server has another name", StatusCode::MISDIRECTED_REQUEST),
            Kind::Invalid => {
                ("invalid", "The request cannot be carried out", StatusCode::UNPROCESSABLE_ENTITY)
            }
            Kind::NotConfirmed => {
                ("not-confirmed", "That would be everything", StatusCode::UNPROCESSABLE_ENTITY)
            }
            Kind::TooManyAttempts => {
                ("too-many-attempts", "Too many wrong tokens", StatusCode::TOO_MANY_REQUESTS)
            }
            Kind::TooMany => ("too-many", "Too much at once", StatusCode::TOO_MANY_REQUESTS),
            Kind::Internal => ("internal", "Something is wrong here", StatusCode::INTERNAL_SERVER_ERROR),
            Kind::Unavailable => {
                ("unavailable", "The database is not available", StatusCode::SERVICE_UNAVAILABLE)
            }
            Kind::TimedOut => ("timed-out", "That took too long", StatusCode::GATEWAY_TIMEOUT),
        }
    }
}

/// What went wrong, and what to do about it.
#[derive(Debug)]
pub(crate) struct Problem {
    kind: Kind,
    detail: String,
    advice: Option<String>,
    retry_after: Option<Duration>,
}

/// What went wrong, and what to do about it (RFC 9457).
#[derive(Serialize, ToSchema)]
#[schema(as = Problem, example = json!({
    "type": "urn:outbox:problem:not-found",
    "title": "There is no such thing",
    "status": 404,
    "detail": "there is no event `01JD2Q7M3T5V9XKQ`",
    "advice": "It may have been purged; look at GET /api/outbox/events.",
}))]
pub(crate) struct ProblemBody<'a> {
    /// Tells what kind of problem it is: `urn:outbox:problem:` and a name.
    #[serde(rename = "type")]
    of_type: String,
    /// The same in a few words, always the same ones.
    title: &'a str,
    /// The status of the answer.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// What it was this time.
    detail: &'a str,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<&'a str>,
}

impl Problem {
    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), advice: None, retry_after: None }
    }

    pub(crate) fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    pub(crate) fn retry_after(mut self, time: Duration) -> Self {
        self.retry_after = Some(time);
        self
    }

    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Self::new(Kind::BadRequest, detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, detail)
    }

    pub(crate) fn conflict(detail: impl Into<String>) -> Self {
        Self::new(Kind::Conflict, detail)
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, detail)
    }

    /// A panic, or what nobody thought of: the log knows more.
    pub(crate) fn internal() -> Self {
        Self::new(Kind::Internal, "the request could not be carried out")
            .advice("The log of this process says why.")
    }

    /// What is told of it in a log line or an audit.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (name, title, status) = self.kind.facts();
        let body = ProblemBody {
            of_type: format!("urn:outbox:problem:{name}"),
            title,
            status: status.as_u16(),
            detail: &self.detail,
            advice: self.advice.as_deref(),
        };
        let body = serde_json::to_vec(&body).unwrap_or_default();
        let mut response = (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], body).into_response();
        let headers = response.headers_mut();
        if self.kind == Kind::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"outbox\""));
        }
        if let Some(time) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(time.as_secs_f64().ceil().max(1.0) as u64));
        }
        response
    }
}

/// How long to wait for a database that is away.
const AGAIN: Duration = Duration::from_secs(5);

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let away = |detail: String| Problem::new(Kind::Unavailable, detail).retry_after(AGAIN);
        match &error {
            Error::UnknownPair { .. } => Problem::not_found(error.to_string())
                .advice("GET /api/outbox/publishers lists them; one appears when it is first started."),
            Error::BeyondHead { .. } => {
                Problem::invalid(error.to_string()).advice("Use `\"to\": \"end\"` for the end of the log.")
            }
            Error::Join(JoinError::Unknown { .. }) => Problem::not_found(error.to_string()),
            Error::Join(_) => Problem::conflict(error.to_string()),
            Error::Event(_) | Error::Setting(_) => Problem::invalid(error.to_string()),
            Error::UnknownRoute { .. } => Problem::not_found(error.to_string()),
            Error::NotMigrated { .. } | Error::SchemaTooOld { .. } | Error::SchemaTooNew { .. } => {
                tracing::warn!(%error, "the API cannot use the tables");
                away(error.to_string())
            }
            Error::Unavailable { .. } => {
                tracing::warn!(%error, "the API cannot reach a database");
                away("the database does not answer".to_owned())
            }
            Error::Database(cause) if cause.is_transient() => {
                tracing::warn!(%error, "the API cannot reach a database");
                away("the database does not answer, or is busy".to_owned())
            }
            _ => {
                tracing::error!(%error, "the API could not carry out a request");
                Problem::internal()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_name_of_its_own() {
        use Kind::*;
        let kinds = [
            BadRequest,
            Unauthorized,
            Forbidden,
            BadCsrf,
            BadOrigin,
            NotFound,
            MethodNotAllowed,
            Conflict,
            TooLarge,
            NotJson,
            BadHost,
            Invalid,
            NotConfirmed,
            TooManyAttempts,
            TooMany,
            Internal,
            Unavailable,
            TimedOut,
        ];
        let names: std::collections::HashSet<_> = kinds.iter().map(|kind| kind.facts().0).collect();
        assert_eq!(names.len(), kinds.len());
    }

    #[test]
    fn a_problem_is_told_as_the_rfc_has_it() {
        let response = Problem::not_found("no such event").advice("look").into_response();
        assert_eq!(response.status(), 404);
        assert_eq!(response.headers()[header::CONTENT_TYPE], PROBLEM_JSON);
        let wait = Problem::new(Kind::TooMany, "x").retry_after(Duration::from_millis(1_500)).into_response();
        assert_eq!(wait.headers()[header::RETRY_AFTER], "2");
        assert!(
            Problem::new(Kind::Unauthorized, "x").into_response().headers().contains_key("www-authenticate")
        );
    }
}
