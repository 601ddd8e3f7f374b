//! Sign-in, sign-out, and the current caller.

use axum::Json;
use axum::extract::{FromRequest as _, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::auth::hosts::port;
use crate::auth::sessions::{SESSION_LIFETIME, cookie_name};
use crate::auth::token::Role;
use crate::auth::{Caller, peer};
use crate::extract::Input;
use crate::problem::ApiResult;
use crate::state::Shared;

/// A token to sign in with.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignIn {
    /// The secret of a token.
    #[schema(min_length = 1, max_length = 1_000, example = "a-secret-of-some-length")]
    token: String,
}

/// The authenticated caller.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"actor": "ops", "role": "operate", "session": true, "csrf": "6mS0cMzSQ0", "databases": ["main"],
                          "version": "0.1.0"}))]
pub(crate) struct WhoAmI {
    /// The name of the token, as in audit entries.
    actor: String,
    /// The role of the token.
    role: Role,
    /// Whether the caller authenticated with a session; `csrf` is set in this case.
    session: bool,
    /// The value of the header `X-CSRF-Token` for changes.
    csrf: Option<String>,
    /// The names of all databases.
    databases: Vec<String>,
    /// The version of the server.
    version: &'static str,
}

impl WhoAmI {
    fn new(web: &Shared, actor: String, role: Role, csrf: Option<String>) -> Self {
        let databases = web.databases.list().into_iter().map(|database| database.name).collect();
        Self { actor, role, session: csrf.is_some(), csrf, databases, version: env!("CARGO_PKG_VERSION") }
    }
}

/// Sign in
///
/// Exchanges a token for a session: a cookie that scripts cannot read, and a CSRF token to send
/// with every change.
#[utoipa::path(post, path = "/outbox/session", tag = "session", request_body = SignIn,
    responses((status = 200, description = "Signed in", body = WhoAmI,
               headers(("set-cookie" = String, description = "The session"))),
              (status = 413, description = "The body is larger than 16 KiB"),
              (status = 504, description = "The body did not arrive within 5 s, or the request timed out")))]
pub(crate) async fn sign_in(State(web): State<Shared>, request: Request) -> ApiResult<Response> {
    let peer = peer(request.extensions());
    let name = cookie_name(web.authenticator.tls, port(request.headers(), request.uri()));
    let Input(SignIn { token }) = Input::from_request(request, &()).await?;
    let token = web.authenticator.token(&token, peer)?;
    let (cookie, csrf) = web.authenticator.sessions.begin(&token.name, token.role);
    tracing::info!(who = token.name, role = %token.role, "signed in");
    let who = WhoAmI::new(&web, token.name.clone(), token.role, Some(csrf));
    Ok(([(header::SET_COOKIE, set_cookie(&web, &name, &cookie, SESSION_LIFETIME.as_secs()))], Json(who))
        .into_response())
}

/// Sign out
///
/// Ends the session of this browser. No effect on a token.
#[utoipa::path(delete, path = "/outbox/session", tag = "session",
    responses((status = 204, description = "Signed out",
               headers(("set-cookie" = String, description = "Clears the session cookie")))))]
pub(crate) async fn sign_out(State(web): State<Shared>, uri: Uri, headers: HeaderMap) -> Response {
    web.authenticator.cookies(&headers, &uri).for_each(|cookie| web.authenticator.sessions.end(cookie));
    let name = cookie_name(web.authenticator.tls, port(&headers, &uri));
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, set_cookie(&web, &name, "", 0))]).into_response()
}

/// Get the current caller
#[utoipa::path(get, path = "/outbox/whoami", tag = "session",
    responses((status = 200, description = "The name and role of the token or session", body = WhoAmI)))]
pub(crate) async fn who_am_i(State(web): State<Shared>, caller: Caller) -> Json<WhoAmI> {
    let csrf = caller.session.map(|session| session.csrf);
    Json(WhoAmI::new(&web, caller.name, caller.role, csrf))
}

fn set_cookie(web: &Shared, name: &str, value: &str, seconds: u64) -> HeaderValue {
    let secure = if web.authenticator.tls { "; Secure" } else { "" };
    let text = format!("{name}={value}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}{secure}");
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(""))
}
