//! The OpenAPI 3.1 document, generated from the code.

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
Inspect an outbox, find out why an event has not been delivered, and repair it.

**Authentication.** Send `Authorization: Bearer TOKEN`. A token has a role: `read` reads everything except payloads, `operate` also reads \
payloads and replays, skips, cancels, pauses and resumes, `admin` also edits, resets and purges. Each operation names the role \
that it needs. Browsers exchange a token for a session (`POST /api/outbox/session`) and send its CSRF token with every change. \
An application that serves this API may identify its users itself, by its own sign-in: their changes need `X-CSRF-Token` and the \
cookie of `GET /api/outbox/whoami` as well.

**Databases.** If there are several databases, every request takes `?database=NAME`.

**Lists** are paginated: `next` of a page is the cursor of the following page.

**Errors** are `application/problem+json` (RFC 9457), with `detail` for what failed and `advice` for what to do next.

**Long-running operations** are jobs: the response is 202 with the `Location` of the job.";

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
        .description(Some("A token from the settings of the server."));
    let session = ApiKeyValue::with_description(
        COOKIE,
        "The session of a browser; the name has the suffix `_PORT` if the port is not the default port, and the prefix `__Host-` with TLS. \
         Changes also need `X-CSRF-Token`.",
    );
    let components = ComponentsBuilder::new()
        .schema(ProblemBody::name(), ProblemBody::schema())
        .security_scheme("bearer", SecurityScheme::Http(bearer.build()))
        .security_scheme("session", SecurityScheme::ApiKey(ApiKey::Cookie(session)));
    OpenApiBuilder::new().info(info).components(Some(components.build())).build()
}

/// Error responses of every operation.
const ALWAYS: [(&str, &str); 7] = [
    ("400", "Invalid path or query"),
    ("404", "Not found"),
    ("421", "The requested host is not a name of this server"),
    ("429", "Too many wrong tokens from this address, or a limit on jobs or streams is reached"),
    ("500", "Internal error; the log of the server has the cause"),
    ("503", "The database is unavailable, or has not been migrated"),
    ("504", "Timed out"),
];

/// Additional error responses of changing operations.
const CHANGES: [(&str, &str); 3] = [
    (
        "403",
        "The role is not sufficient, the CSRF token is wrong, the request comes from another site, or the application gives \
         the caller no access",
    ),
    ("413", "The body is larger than 1 MiB"),
    ("415", "The body is not JSON"),
];

/// Adds the required role and the error responses to every operation of a group.
pub(crate) fn complete(document: &mut OpenApi, role: Option<Role>) {
    for (path, item) in &mut document.paths.paths {
        let PathItem { get, post, put, delete, .. } = item;
        for (method, operation) in [("get", get), ("post", post), ("put", put), ("delete", delete)] {
            let Some(operation) = operation else { continue };
            let changes = method != "get";
            // Operation ids must be unique: handlers of different resources have the same names.
            let words = path.split(['/', '.', '{', '}']).filter(|word| !word.is_empty() && *word != "outbox");
            operation.operation_id = Some([method].into_iter().chain(words).collect::<Vec<_>>().join("_"));
            add_role(operation, role);
            add_problems(operation, changes);
        }
    }
}

fn add_role(operation: &mut Operation, role: Option<Role>) {
    let Some(role) = role else {
        operation.security = Some(Vec::new());
        return;
    };
    let needs = |scheme| SecurityRequirement::new(scheme, [role.as_str()]);
    operation.security = Some(vec![needs("bearer"), needs("session")]);
    let description =
        operation.description.take().map(|description| format!("{description}\n\n")).unwrap_or_default();
    operation.description = Some(format!("{description}Needs the role `{role}`."));
}

fn add_problems(operation: &mut Operation, changes: bool) {
    let responses = &mut operation.responses.responses;
    let mut add = |status: &str, what: &str| {
        responses.entry(status.to_owned()).or_insert_with(|| RefOr::T(Documented::new(what)));
    };
    ALWAYS.iter().for_each(|(status, what)| add(status, what));
    add("401", "The token or the session is missing or wrong");
    if changes {
        CHANGES.iter().for_each(|(status, what)| add(status, what));
    } else {
        add("403", "The role is not sufficient, or the application gives the caller no access");
    }
    if operation.request_body.is_some() {
        add("422", "The body is JSON, but does not match the schema");
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

/// OpenAPI document
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
