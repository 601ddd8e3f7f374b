//! The document of the API, OpenAPI 3.1, made from the code.

use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use utoipa::openapi::path::Operation;
use utoipa::openapi::response::Response as Documented;
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{
    ComponentsBuilder, Content, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, PathItem, Ref, RefOr,
};
use utoipa::{PartialSchema as _, ToSchema as _};

use crate::auth::sessions::COOKIE;
use crate::auth::token::Role;
use crate::problem::{PROBLEM_JSON, ProblemBody};

const DESCRIPTION: &str = "\
What an outbox does, why an event is where it is, and how to set it right.

**Who may ask.** Send `Authorization: Bearer TOKEN`. A token has a role: `read` sees everything but payloads, `operate` also sees \
payloads and replays, skips, cancels, pauses and resumes, `admin` also edits, resets and purges. Each operation names the role \
that it needs. Browsers exchange a token for a session (`POST /api/outbox/session`) and send its CSRF token along with changes.

**Where there are several databases** every question takes `?database=NAME`.

**Lists** are read page by page: `next` of a page is the cursor of the following one.

**What goes wrong** is told as `application/problem+json` (RFC 9457), with `detail` for what happened and `advice` for what to do.

**Long work** is a job: the answer is 202 with a `Location` that tells how far it is.";

/// A document without paths.
pub(crate) fn empty() -> OpenApi {
    let license = LicenseBuilder::new().name("MIT OR Apache-2.0").build();
    let info = InfoBuilder::new()
        .title("outbox")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(DESCRIPTION))
        .license(Some(license));
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("A token of the server's settings."));
    let session = ApiKeyValue::with_description(
        COOKIE,
        "The session of a browser; `_PORT` is added where the port is not the usual one, and `__Host-` in front with TLS. \
         Changes need `X-CSRF-Token` as well.",
    );
    let components = ComponentsBuilder::new()
        .schema(ProblemBody::name(), ProblemBody::schema())
        .security_scheme("bearer", SecurityScheme::Http(bearer.build()))
        .security_scheme("session", SecurityScheme::ApiKey(ApiKey::Cookie(session)));
    OpenApiBuilder::new().info(info).components(Some(components.build())).build()
}

/// What can happen to every request.
const ALWAYS: [(&str, &str); 7] = [
    ("400", "The query or the path cannot be understood"),
    ("404", "There is no such thing"),
    ("421", "The request asks for this server by a name that it does not have"),
    ("429", "Too many wrong tokens came from this address, or too much goes on at once"),
    ("500", "Something is wrong with the server; its log says what"),
    ("503", "The database is not available, or has not been migrated"),
    ("504", "It took too long"),
];

/// What can happen to changes.
const CHANGES: [(&str, &str); 3] = [
    ("403", "The role does not allow it, the CSRF token is wrong, or the request comes from another site"),
    ("413", "The body has more than 1 MiB"),
    ("415", "The body is not JSON"),
];

/// Tells of every operation of a group which role it needs, and what can go wrong.
pub(crate) fn complete(document: &mut OpenApi, role: Option<Role>) {
    for (path, item) in &mut document.paths.paths {
        let PathItem { get, post, put, delete, .. } = item;
        for (method, operation) in [("get", get), ("post", post), ("put", put), ("delete", delete)] {
            let Some(operation) = operation else { continue };
            let changes = method != "get";
            // One that no other has: handlers of different resources have the same names.
            let words = path.split(['/', '.', '{', '}']).filter(|word| !word.is_empty() && *word != "outbox");
            operation.operation_id = Some([method].into_iter().chain(words).collect::<Vec<_>>().join("_"));
            tell_role(operation, role);
            tell_problems(operation, changes, role);
        }
    }
}

fn tell_role(operation: &mut Operation, role: Option<Role>) {
    let Some(role) = role else {
        operation.security = Some(Vec::new());
        return;
    };
    let needs = |scheme| SecurityRequirement::new(scheme, [role.as_str()]);
    operation.security = Some(vec![needs("bearer"), needs("session")]);
    let said = operation.description.take().map(|said| format!("{said}\n\n")).unwrap_or_default();
    operation.description = Some(format!("{said}Needs the role `{role}`."));
}

fn tell_problems(operation: &mut Operation, changes: bool, role: Option<Role>) {
    let responses = &mut operation.responses.responses;
    let mut tell = |status: &str, what: &str| {
        responses.entry(status.to_owned()).or_insert_with(|| RefOr::T(Documented::new(what)));
    };
    ALWAYS.iter().for_each(|(status, what)| tell(status, what));
    tell("401", "The token or the session is missing or wrong");
    if changes {
        CHANGES.iter().for_each(|(status, what)| tell(status, what));
    } else if role > Some(Role::Read) {
        tell("403", "The role does not allow it");
    }
    if operation.request_body.is_some() {
        tell("422", "The body is JSON, but not of this form");
    }
    for (status, response) in responses.iter_mut() {
        if let RefOr::T(response) = response
            && response.content.is_empty()
            && status.starts_with(['4', '5'])
        {
            let content = Content::new(Some(RefOr::<utoipa::openapi::Schema>::Ref(Ref::from_schema_name(
                ProblemBody::name(),
            ))));
            response.content.insert(PROBLEM_JSON.to_owned(), RefOr::T(content));
        }
    }
}

/// The document
#[utoipa::path(get, path = "/openapi.json", tag = "document",
    responses((status = 200, description = "This document", body = Object)))]
pub(crate) async fn show() -> Response {
    static TEXT: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let text = TEXT.get_or_init(|| document().to_json().unwrap_or_default());
    ([(header::CONTENT_TYPE, "application/json")], text.as_str()).into_response()
}

/// The whole document.
pub(crate) fn document() -> OpenApi {
    let (_, of_api) = crate::routes::all();
    empty().nest("/api", of_api)
}
