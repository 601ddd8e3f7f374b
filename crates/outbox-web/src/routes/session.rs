//! Sign-in, sign-out, and the current caller.

use axum::Json;
use axum::extract::{FromRequest as _, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::auth::csrf::{self, Nonce};
use crate::auth::hosts::port;
use crate::auth::sessions::{self, SESSION_LIFETIME, cookie_name};
use crate::auth::token::Role;
use crate::auth::{Caller, Credential, peer};
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
    /// The name of the token, or of the application's user, as in audit entries.
    actor: String,
    /// The role of the caller.
    role: Role,
    /// Whether the caller authenticated with a session, which can be signed out.
    session: bool,
    /// The value of the header `X-CSRF-Token` for changes; null for a caller with a token.
    csrf: Option<String>,
    /// The names of all databases.
    databases: Vec<String>,
    /// The version of the server.
    version: &'static str,
}

impl WhoAmI {
    fn new(web: &Shared, caller: &Caller) -> Self {
        Self {
            actor: caller.name.clone(),
            role: caller.role,
            session: matches!(caller.credential, Credential::Session(_)),
            csrf: web.authenticator.csrf_token(caller),
            databases: web.databases.list().into_iter().map(|database| database.name).collect(),
            version: env!("CARGO_PKG_VERSION"),
        }
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
    let cookie_header = CookieHeader::new(&web, sessions::COOKIE, request.headers(), request.uri());
    let Input(SignIn { token }) = Input::from_request(request, &()).await?;
    let token = web.authenticator.token(&token, peer)?;
    let (cookie, session) = web.authenticator.sessions.begin(&token.name, token.role);
    tracing::info!(who = token.name, role = %token.role, "signed in");
    let caller =
        Caller { name: token.name.clone(), role: token.role, credential: Credential::Session(session) };
    let set_cookie = cookie_header.value(&cookie, SESSION_LIFETIME.as_secs());
    Ok(([(header::SET_COOKIE, set_cookie)], Json(WhoAmI::new(&web, &caller))).into_response())
}

/// Sign out
///
/// Ends the session of this browser. No effect on a token.
#[utoipa::path(delete, path = "/outbox/session", tag = "session",
    responses((status = 204, description = "Signed out",
               headers(("set-cookie" = String, description = "Clears the session cookie")))))]
pub(crate) async fn sign_out(State(web): State<Shared>, uri: Uri, headers: HeaderMap) -> Response {
    let cookies = web.authenticator.cookies(&headers, &uri, sessions::COOKIE);
    cookies.for_each(|cookie| web.authenticator.sessions.end(cookie));
    let cleared = CookieHeader::new(&web, sessions::COOKIE, &headers, &uri).value("", 0);
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cleared)]).into_response()
}

/// Get the current caller
///
/// For a user of the application it sets the cookie that belongs to the CSRF token.
#[utoipa::path(get, path = "/outbox/whoami", tag = "session",
    responses((status = 200, description = "The name and role of the caller", body = WhoAmI)))]
pub(crate) async fn who_am_i(
    State(web): State<Shared>,
    mut caller: Caller,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let Credential::Application(nonce) = &mut caller.credential else {
        return Json(WhoAmI::new(&web, &caller)).into_response();
    };
    // A known nonce is kept: other tabs of the browser use tokens derived from it.
    let nonce = nonce.get_or_insert_with(Nonce::generate);
    let set_cookie = CookieHeader::new(&web, csrf::COOKIE, &headers, &uri)
        .value(nonce.as_str(), SESSION_LIFETIME.as_secs());
    ([(header::SET_COOKIE, set_cookie)], Json(WhoAmI::new(&web, &caller))).into_response()
}

/// Writes the header that sets one cookie.
struct CookieHeader {
    name: String,
    tls: bool,
}

impl CookieHeader {
    fn new(web: &Shared, base: &str, headers: &HeaderMap, uri: &Uri) -> Self {
        let tls = web.authenticator.tls;
        Self { name: cookie_name(base, tls, port(headers, uri)), tls }
    }

    fn value(&self, value: &str, seconds: u64) -> HeaderValue {
        let (name, secure) = (&self.name, if self.tls { "; Secure" } else { "" });
        let text = format!("{name}={value}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}{secure}");
        HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(""))
    }
}
