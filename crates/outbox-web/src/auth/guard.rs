//! What every request goes through before a handler sees it, and every answer before somebody reads it.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;

use super::token::Role;
use super::{Caller, peer};
use crate::problem::{Answer, Kind, PROBLEM_JSON, Problem};
use crate::state::Shared;

/// Bounds on reading a body.
struct Bounds {
    bytes: usize,
    time: Duration,
}

/// For a caller that has shown a token or a session.
const KNOWN: Bounds = Bounds { bytes: 1024 * 1024, time: PATIENCE };

/// For a caller that has not: any client can send a body on every connection that it can open. The body
/// of a sign-in holds a token of 1,000 characters, of which JSON may write each in 12 bytes.
const UNKNOWN: Bounds = Bounds { bytes: 16 * 1024, time: Duration::from_secs(5) };

/// How long a request may take, reading it included. A stream may last longer once it has begun.
const PATIENCE: Duration = Duration::from_secs(30);

/// The header that shows that a request comes from a page of this server.
pub(crate) const CSRF: &str = "x-csrf-token";

/// Lets in who has a token or a session, and nobody else.
pub(crate) async fn guard(State(web): State<Shared>, request: Request, next: Next) -> Response {
    let is_signing_in = request.method() == Method::POST && request.uri().path() == "/outbox/session";
    pass(&web, !is_signing_in, request, next).await
}

/// The same for routes that are not of the API.
pub(crate) async fn guard_others(State(web): State<Shared>, request: Request, next: Next) -> Response {
    pass(&web, true, request, next).await
}

/// Lets everybody in who asks for this server by a name of its own: for what holds no data.
pub(crate) async fn welcome(State(web): State<Shared>, request: Request, next: Next) -> Response {
    pass(&web, false, request, next).await
}

async fn pass(web: &Shared, by_name: bool, request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let answered = async {
        match admit(web, by_name, request).await {
            Ok(request) => next.run(request).await,
            Err(problem) => problem.into_response(),
        }
    };
    let answered = AssertUnwindSafe(answered).catch_unwind();
    let response = match tokio::time::timeout(PATIENCE, answered).await {
        Ok(Ok(response)) => response,
        // The panic's own words may hold anything; the hook of the process has told them already.
        Ok(Err(_)) => {
            tracing::error!(%method, path, "a request panicked");
            Problem::internal().into_response()
        }
        Err(_) => {
            tracing::warn!(%method, path, "a request took too long");
            Problem::new(Kind::TimedOut, format!("no answer within {} s", PATIENCE.as_secs())).into_response()
        }
    };
    finish(response)
}

async fn admit(web: &Shared, by_name: bool, request: Request) -> Answer<Request> {
    let (mut parts, body) = request.into_parts();
    web.hosts.check_host(&parts.headers, &parts.uri)?;
    let changes = !matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE);
    if changes {
        web.hosts.check_origin(&parts.headers, &parts.uri)?;
    }
    if by_name {
        let caller = web.porter.recognise(&parts.headers, &parts.uri, peer(&parts.extensions))?;
        if changes && let Some(session) = &caller.session {
            let said = parts.headers.get(CSRF).and_then(|value| value.to_str().ok()).unwrap_or_default();
            if !session.has_csrf(said) {
                return Err(Problem::new(Kind::BadCsrf, "the header X-CSRF-Token does not fit the session")
                    .advice("Send the `csrf` of POST session or GET whoami in it."));
            }
        }
        parts.extensions.insert(caller);
    }
    if !changes {
        return Ok(Request::from_parts(parts, Body::empty()));
    }
    let body = read(&parts.headers, body, if by_name { KNOWN } else { UNKNOWN }).await?;
    Ok(Request::from_parts(parts, body))
}

/// Reads the body of a change: JSON of a bounded size, or nothing.
async fn read(headers: &HeaderMap, body: Body, bounds: Bounds) -> Answer<Body> {
    let Bounds { bytes: largest, time } = bounds;
    let too_large = || {
        Problem::new(Kind::TooLarge, format!("the body has more than {largest} bytes"))
            .advice("Send less at once.")
    };
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: usize| length > largest) {
        return Err(too_large());
    }
    let not_json = || {
        Problem::new(Kind::NotJson, "the body is not `Content-Type: application/json`").advice(
            "Send JSON, and say so. Other kinds are refused so that no form of another site is taken.",
        )
    };
    let kind = headers.get(header::CONTENT_TYPE).map(|kind| kind.to_str().unwrap_or_default());
    let is_json = |kind: &str| {
        kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
    };
    if kind.is_some_and(|kind| !is_json(kind)) {
        return Err(not_json());
    }
    // An error here is a body without end, or one that breaks off.
    let read = tokio::time::timeout(time, to_bytes(body, largest)).await;
    let late = |_| Problem::new(Kind::TimedOut, format!("no body within {} s", time.as_secs()));
    let bytes = read.map_err(late)?.map_err(|_| too_large())?;
    if !bytes.is_empty() && kind.is_none() {
        return Err(not_json());
    }
    Ok(Body::from(bytes))
}

/// Lets through who has at least this role.
pub(crate) async fn require(
    State(role): State<Role>,
    caller: Caller,
    request: Request,
    next: Next,
) -> Response {
    if caller.role >= role {
        return next.run(request).await;
    }
    let detail = format!("this needs the role {role}, and the token `{}` has {}", caller.name, caller.role);
    Problem::new(Kind::Forbidden, detail)
        .advice("Ask somebody with that role, or use another token.")
        .into_response()
}

/// Makes a problem of every error, and has no answer kept, framed or sniffed.
pub(crate) fn finish(response: Response) -> Response {
    let mut response = as_problem(response);
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: &'static str| {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    };
    set(header::CACHE_CONTROL, "no-store");
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::REFERRER_POLICY, "no-referrer");
    set(header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'");
    set(HeaderName::from_static("cross-origin-resource-policy"), "same-origin");
    response
}

/// The router's own refusals are told like all others.
fn as_problem(response: Response) -> Response {
    let status = response.status();
    let is_told = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == PROBLEM_JSON);
    if is_told || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let allow = response.headers().get(header::ALLOW).cloned();
    let problem = match status {
        StatusCode::NOT_FOUND => Problem::not_found("there is nothing at this path")
            .advice("/api/openapi.json tells what there is."),
        StatusCode::METHOD_NOT_ALLOWED => {
            Problem::new(Kind::MethodNotAllowed, "this path does not take this method")
                .advice("The header Allow tells which it takes.")
        }
        status if status.is_client_error() => Problem::bad("the path or the request cannot be read"),
        _ => Problem::internal(),
    };
    let mut response = problem.into_response();
    if let Some(allow) = allow {
        response.headers_mut().insert(header::ALLOW, allow);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_body_of_a_caller_that_is_not_known_arrives_within_five_seconds() {
        let body = Body::from_stream(futures_util::stream::pending::<std::io::Result<Vec<u8>>>());
        let asked = tokio::time::Instant::now();
        let problem = read(&HeaderMap::new(), body, UNKNOWN).await.unwrap_err();
        assert_eq!(problem.into_response().status(), StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(asked.elapsed().as_secs(), 5);
    }
}
