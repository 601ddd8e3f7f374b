//! Errors as problem details (RFC 9457): `application/problem+json`.
//!
//! A problem never contains a payload, a token, the password of a URL, or a database's message
//! about rows.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use outbox::{Error, JoinError};
use serde::Serialize;
use utoipa::ToSchema;

/// Media type of problem details.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// Result of every handler.
pub(crate) type ApiResult<T> = Result<T, Problem>;

/// Kinds of problems. Each has a unique name, by which clients distinguish them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    BadRequest,
    Unauthorized,
    NoAccess,
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
    /// Name, title and status code.
    fn definition(self) -> (&'static str, &'static str, StatusCode) {
        match self {
            Kind::BadRequest => ("bad-request", "Bad request", StatusCode::BAD_REQUEST),
            Kind::Unauthorized => ("unauthorized", "Authentication required", StatusCode::UNAUTHORIZED),
            Kind::NoAccess => ("no-access", "No access", StatusCode::FORBIDDEN),
            Kind::Forbidden => ("forbidden", "Role not sufficient", StatusCode::FORBIDDEN),
            Kind::BadCsrf => ("csrf", "CSRF token missing or wrong", StatusCode::FORBIDDEN),
            Kind::BadOrigin => ("origin", "Cross-site request rejected", StatusCode::FORBIDDEN),
            Kind::NotFound => ("not-found", "Not found", StatusCode::NOT_FOUND),
            Kind::MethodNotAllowed => {
                ("method-not-allowed", "Method not allowed", StatusCode::METHOD_NOT_ALLOWED)
            }
            Kind::Conflict => ("conflict", "Conflict with the current state", StatusCode::CONFLICT),
            Kind::TooLarge => ("too-large", "Body too large", StatusCode::PAYLOAD_TOO_LARGE),
            Kind::NotJson => ("not-json", "Body is not JSON", StatusCode::UNSUPPORTED_MEDIA_TYPE),
            Kind::BadHost => ("host", "Unknown host name", StatusCode::MISDIRECTED_REQUEST),
            Kind::Invalid => ("invalid", "Invalid request", StatusCode::UNPROCESSABLE_ENTITY),
            Kind::NotConfirmed => {
                ("not-confirmed", "Confirmation required", StatusCode::UNPROCESSABLE_ENTITY)
            }
            Kind::TooManyAttempts => {
                ("too-many-attempts", "Too many wrong tokens", StatusCode::TOO_MANY_REQUESTS)
            }
            Kind::TooMany => ("too-many", "Limit reached", StatusCode::TOO_MANY_REQUESTS),
            Kind::Internal => ("internal", "Internal error", StatusCode::INTERNAL_SERVER_ERROR),
            Kind::Unavailable => ("unavailable", "Database unavailable", StatusCode::SERVICE_UNAVAILABLE),
            Kind::TimedOut => ("timed-out", "Timed out", StatusCode::GATEWAY_TIMEOUT),
        }
    }
}

/// A problem: what failed, and what to do next.
#[derive(Debug)]
pub(crate) struct Problem {
    kind: Kind,
    detail: String,
    advice: Option<String>,
    retry_after: Option<Duration>,
}

/// Error response (RFC 9457).
#[derive(Serialize, ToSchema)]
#[schema(as = Problem, example = json!({
    "type": "urn:outbox:problem:not-found",
    "title": "Not found",
    "status": 404,
    "detail": "event `01JD2Q7M3T5V9XKQ` not found",
    "advice": "It may have been purged; GET /api/outbox/events lists events.",
}))]
pub(crate) struct ProblemBody<'a> {
    /// The kind of problem: `urn:outbox:problem:` and a name.
    #[serde(rename = "type")]
    of_type: String,
    /// Short description of the kind of problem.
    title: &'a str,
    /// The HTTP status code.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// The failure of this request.
    detail: &'a str,
    /// Advice on how to proceed.
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

    /// Problem for a panic or an unexpected error; details are only logged.
    pub(crate) fn internal() -> Self {
        Self::new(Kind::Internal, "the request failed").advice("The log of this process has the cause.")
    }

    /// The detail, for log lines and audit entries.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// How to proceed.
    pub(crate) fn advised(&self) -> &str {
        self.advice.as_deref().unwrap_or_default()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (name, title, status) = self.kind.definition();
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

/// `Retry-After` while a database is unavailable.
const UNAVAILABLE_RETRY: Duration = Duration::from_secs(5);

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let unavailable =
            |detail: String| Problem::new(Kind::Unavailable, detail).retry_after(UNAVAILABLE_RETRY);
        match &error {
            Error::UnknownSubscription { .. } => Problem::not_found(error.to_string())
                .advice("GET /api/outbox/publishers lists publishers; a publisher is listed once it has been started."),
            Error::BeyondHead { .. } => {
                Problem::invalid(error.to_string()).advice("Use `\"to\": \"end\"` for the end of the log.")
            }
            Error::Join(JoinError::Unknown { .. }) => Problem::not_found(error.to_string()),
            Error::Join(_) => Problem::conflict(error.to_string()),
            Error::Event(_) | Error::Setting { .. } => Problem::invalid(error.to_string()),
            Error::UnknownRoute { .. } => Problem::not_found(error.to_string()),
            Error::NotMigrated { .. } | Error::SchemaTooOld { .. } | Error::SchemaTooNew { .. } => {
                tracing::warn!(%error, "API request failed: schema version not supported");
                unavailable(error.to_string())
            }
            Error::Unavailable { .. } => {
                tracing::warn!(%error, "API request failed: database unavailable");
                unavailable("the database does not respond".to_owned())
            }
            Error::Database(cause) if cause.is_transient() => {
                tracing::warn!(%error, "API request failed: database unavailable");
                unavailable("the database does not respond, or is busy".to_owned())
            }
            _ => {
                tracing::error!(%error, "API request failed");
                Problem::internal()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_unique_name() {
        use Kind::*;
        let kinds = [
            BadRequest,
            Unauthorized,
            NoAccess,
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
        let names: std::collections::HashSet<_> = kinds.iter().map(|kind| kind.definition().0).collect();
        assert_eq!(names.len(), kinds.len());
    }

    #[test]
    fn a_problem_is_encoded_as_the_rfc_requires() {
        let response = Problem::not_found("event not found").advice("list the events").into_response();
        assert_eq!(response.status(), 404);
        assert_eq!(response.headers()[header::CONTENT_TYPE], PROBLEM_JSON);
        let wait = Problem::new(Kind::TooMany, "x").retry_after(Duration::from_millis(1_500)).into_response();
        assert_eq!(wait.headers()[header::RETRY_AFTER], "2");
        assert!(
            Problem::new(Kind::Unauthorized, "x").into_response().headers().contains_key("www-authenticate")
        );
    }
}
