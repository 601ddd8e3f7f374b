//! Checks on every request before its handler, and headers on every response.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;

use super::token::Role;
use super::{Caller, Credential};
use crate::problem::{ApiResult, Kind, PROBLEM_JSON, Problem};
use crate::state::Shared;

/// Limits on reading a body.
struct Bounds {
    bytes: usize,
    time: Duration,
}

/// Limits for an authenticated caller.
const AUTHENTICATED: Bounds = Bounds { bytes: 1024 * 1024, time: TIMEOUT };

/// Limits for an unauthenticated caller: any client can send a body on every connection that it can
/// open. The body of a sign-in contains a token of up to 1,000 characters, each of which may take
/// 12 bytes in JSON.
const UNAUTHENTICATED: Bounds = Bounds { bytes: 16 * 1024, time: Duration::from_secs(5) };

/// Timeout of a request, including reading its body. A stream may last longer once it has started.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Header that proves that a request comes from a page of this server.
pub(crate) const CSRF: &str = "x-csrf-token";

/// Requirements of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// A caller, on a path of the API.
    Api,
    /// A caller, on a path of the application.
    Protected,
    /// No caller: the path serves no data.
    Anonymous,
}

/// Requires a caller, except for signing in.
pub(crate) async fn guard(State(web): State<Shared>, request: Request, next: Next) -> Response {
    let is_signing_in = request.method() == Method::POST && request.uri().path() == "/outbox/session";
    handle(&web, if is_signing_in { Access::Anonymous } else { Access::Api }, request, next).await
}

/// Requires a caller on routes outside the API.
pub(crate) async fn guard_routes(State(web): State<Shared>, request: Request, next: Next) -> Response {
    handle(&web, Access::Protected, request, next).await
}

/// Checks host and origin, without authentication: for routes that serve no data.
pub(crate) async fn allow_anonymous(State(web): State<Shared>, request: Request, next: Next) -> Response {
    handle(&web, Access::Anonymous, request, next).await
}

async fn handle(web: &Shared, access: Access, request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response_future = async {
        match check_request(web, access, request).await {
            Ok(request) => next.run(request).await,
            Err(problem) => problem.into_response(),
        }
    };
    let response_future = AssertUnwindSafe(response_future).catch_unwind();
    let response = match tokio::time::timeout(TIMEOUT, response_future).await {
        Ok(Ok(response)) => response,
        // The panic message may contain any data; the panic hook of the process has printed it
        // already.
        Ok(Err(_)) => {
            tracing::error!(%method, path, "request handler panicked");
            Problem::internal().into_response()
        }
        Err(_) => {
            tracing::warn!(%method, path, "request timed out");
            Problem::new(Kind::TimedOut, format!("no response within {} s", TIMEOUT.as_secs()))
                .into_response()
        }
    };
    finish(response)
}

async fn check_request(web: &Shared, access: Access, request: Request) -> ApiResult<Request> {
    let (mut parts, body) = request.into_parts();
    web.hosts.check_host(&parts.headers, &parts.uri)?;
    let changes = !matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE);
    if changes {
        web.hosts.check_origin(&parts.headers, &parts.uri)?;
    }
    if access != Access::Anonymous {
        let caller = web.authenticator.authenticate(&parts)?;
        if access == Access::Api && matches!(caller.credential, Credential::Application(_)) {
            // The browser may send the application's cookie along with requests of other sites.
            // Such a read could not see the response, but would put an entry into the audit and use
            // up streams in the name of the user. The cookie of a session is not sent at all.
            web.hosts.check_origin(&parts.headers, &parts.uri)?;
        }
        let sent = parts.headers.get(CSRF).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if changes && !web.authenticator.has_csrf(&caller, sent) {
            return Err(Problem::new(
                Kind::BadCsrf,
                "the header X-CSRF-Token does not match the caller and the cookies",
            )
            .advice("Send `csrf` of POST /api/outbox/session or GET /api/outbox/whoami in it."));
        }
        parts.extensions.insert(caller);
    }
    if !changes {
        return Ok(Request::from_parts(parts, Body::empty()));
    }
    let bounds = if access == Access::Anonymous { UNAUTHENTICATED } else { AUTHENTICATED };
    let body = read(&parts.headers, body, bounds).await?;
    Ok(Request::from_parts(parts, body))
}

/// Reads the body of a changing request: JSON of limited size, or an empty body.
async fn read(headers: &HeaderMap, body: Body, bounds: Bounds) -> ApiResult<Body> {
    let Bounds { bytes: largest, time } = bounds;
    let too_large = || {
        Problem::new(Kind::TooLarge, format!("the body is larger than {largest} bytes"))
            .advice("Send a smaller body.")
    };
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: usize| length > largest) {
        return Err(too_large());
    }
    let not_json = || {
        Problem::new(Kind::NotJson, "the body is not `Content-Type: application/json`").advice(
            "Send JSON with this header. Other types are rejected so that a form of another site has no effect.",
        )
    };
    let kind = headers.get(header::CONTENT_TYPE).map(|kind| kind.to_str().unwrap_or_default());
    let is_json = |kind: &str| {
        kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
    };
    if kind.is_some_and(|kind| !is_json(kind)) {
        return Err(not_json());
    }
    // An error here is a body over the limit, or one that ends early.
    let read = tokio::time::timeout(time, to_bytes(body, largest)).await;
    let late =
        |_| Problem::new(Kind::TimedOut, format!("the body did not arrive within {} s", time.as_secs()));
    let bytes = read.map_err(late)?.map_err(|_| too_large())?;
    if !bytes.is_empty() && kind.is_none() {
        return Err(not_json());
    }
    Ok(Body::from(bytes))
}

/// Requires at least this role.
pub(crate) async fn require(
    State(role): State<Role>,
    caller: Caller,
    request: Request,
    next: Next,
) -> Response {
    if caller.role >= role {
        return next.run(request).await;
    }
    let detail = format!("this operation needs the role {role}; `{}` has {}", caller.name, caller.role);
    let advice = match caller.credential {
        Credential::Token | Credential::Session(_) => "Use a token with that role.",
        Credential::Application(_) => "The application decides on your role.",
    };
    Problem::new(Kind::Forbidden, detail).advice(advice).into_response()
}

/// Marks an error response that is a page for people, and stays as it is.
#[derive(Clone, Copy)]
pub(crate) struct ErrorPage;

/// Turns every error into a problem, and sets headers against caching, framing and sniffing.
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

/// Turns the router's own error responses into problems.
fn as_problem(response: Response) -> Response {
    let status = response.status();
    let is_problem = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == PROBLEM_JSON);
    let is_page = response.extensions().get::<ErrorPage>().is_some();
    if is_problem || is_page || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let allow = response.headers().get(header::ALLOW).cloned();
    let problem = match status {
        StatusCode::NOT_FOUND => {
            Problem::not_found("path not found").advice("/api/openapi.json lists all paths.")
        }
        StatusCode::METHOD_NOT_ALLOWED => {
            Problem::new(Kind::MethodNotAllowed, "method not supported by this path")
                .advice("The header Allow lists the supported methods.")
        }
        status if status.is_client_error() => Problem::bad("invalid path or request"),
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
    async fn the_body_of_an_unauthenticated_caller_times_out_after_five_seconds() {
        let body = Body::from_stream(futures_util::stream::pending::<std::io::Result<Vec<u8>>>());
        let started = tokio::time::Instant::now();
        let problem = read(&HeaderMap::new(), body, UNAUTHENTICATED).await.unwrap_err();
        assert_eq!(problem.into_response().status(), StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(started.elapsed().as_secs(), 5);
    }
}
