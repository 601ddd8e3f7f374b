//! Files of the dashboard, embedded in the binary. They contain no data and are served without
//! authentication.

use std::borrow::Cow;

use axum::Router;
use axum::extract::{OriginalUri, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use rust_embed::RustEmbed;
use sha2::{Digest as _, Sha256};

use crate::auth::guard::ErrorPage;
use crate::problem::{Kind, Problem};
use crate::state::Shared;

/// Allows resources from this server only, and no inline scripts or styles.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      font-src 'self'; manifest-src 'self'; base-uri 'self'; form-action 'none'; frame-ancestors 'none'";

/// Depth up to which a path can be a page.
const MAX_DEPTH: usize = 8;

#[derive(RustEmbed)]
#[folder = "ui/"]
struct Files;

/// Routes of the dashboard: its page, and one for each of its files.
pub(crate) fn routes() -> Router<Shared> {
    let files = Files::iter().filter(|name| !name.ends_with(".html") && !name.starts_with("docs/"));
    let page = Router::new().route("/", get(page)).route("/index.html", get(page));
    files.fold(page, |routes, name| routes.route(&format!("/{name}"), get(file)))
}

async fn file(uri: Uri, headers: HeaderMap) -> Response {
    let name = uri.path().trim_start_matches('/');
    match Files::get(name) {
        Some(file) => respond(name, file.data, &headers),
        None => Problem::not_found("page not found").into_response(),
    }
}

/// Serves the dashboard. If only the application identifies callers, one without access gets a page
/// that says so.
async fn page(State(web): State<Shared>, OriginalUri(original): OriginalUri, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let base = base(original.path(), parts.uri.path());
    let html = |name: &str| {
        let file = Files::get(name).map(|file| String::from_utf8_lossy(&file.data).into_owned());
        file.unwrap_or_default().replace("{base}", &escaped(&base))
    };
    if web.authenticator.is_of_application()
        && let Err(problem) = web.authenticator.authenticate(&parts)
    {
        let html = html("no-access.html")
            .replace("{detail}", &escaped(problem.detail()))
            .replace("{advice}", &escaped(problem.advised()));
        let headers = [
            (header::CONTENT_TYPE, content_type("no-access.html")),
            (header::CONTENT_SECURITY_POLICY, POLICY),
        ];
        let mut response = (StatusCode::FORBIDDEN, headers, html).into_response();
        response.extensions_mut().insert(ErrorPage);
        return response;
    }
    respond("index.html", html("index.html").into_bytes().into(), &parts.headers)
}

/// Serves the dashboard for every path that looks like a page: the dashboard routes on the client.
pub(crate) async fn any_page(web: State<Shared>, original: OriginalUri, request: Request) -> Response {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let rejected = Problem::new(Kind::MethodNotAllowed, "files are read-only");
        return ([(header::ALLOW, "GET,HEAD")], rejected).into_response();
    }
    if is_page(request.uri().path()) && accepts_html(request.headers()) {
        return page(web, original, request).await;
    }
    Problem::not_found("page not found").into_response()
}

/// Serves the page that shows the OpenAPI document, and its files: `docs`, `docs.js`, `docs.css`.
pub(crate) async fn docs(uri: Uri, headers: HeaderMap) -> Response {
    let requested = uri.path().rsplit('/').next();
    let name = requested.filter(|name| matches!(*name, "docs.js" | "docs.css")).unwrap_or("docs.html");
    match Files::get(&format!("docs/{name}")) {
        Some(file) => respond(name, file.data, &headers),
        None => Problem::not_found("page not found").into_response(),
    }
}

fn is_page(path: &str) -> bool {
    !path.contains('.') && path.matches('/').count() <= MAX_DEPTH
}

/// URL of the router, relative to a page that the browser knows as `original` and the router as
/// `path`. Relative, because a proxy may have removed a prefix.
fn base(original: &str, path: &str) -> String {
    match path.matches('/').count() {
        depth @ 2.. => "../".repeat(depth - 1),
        _ if path.len() > 1 || original.ends_with('/') => "./".to_owned(),
        // Mounted at a path without a slash at the end: relative to `/ops`, `app.js` is `/app.js`.
        _ => format!("./{}/", original.rsplit('/').next().unwrap_or_default()),
    }
}

/// Text for an element or a quoted attribute.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Whether the client accepts HTML, as browsers do. Other clients get a 404 for an unknown path.
fn accepts_html(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT).and_then(|accepted| accepted.to_str().ok());
    accepted.is_some_and(|accepted| accepted.contains("text/html"))
}

fn respond(name: &str, data: Cow<'static, [u8]>, requested: &HeaderMap) -> Response {
    let tag: String = Sha256::digest(&data)[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let tag = HeaderValue::from_str(&format!("\"{tag}\"")).unwrap_or(HeaderValue::from_static("\"\""));
    let known = requested.get(header::IF_NONE_MATCH).is_some_and(|known| known == tag);
    let mut response = if known { Vec::new() } else { data.into_owned() }.into_response();
    if known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type(name)));
    headers.insert(header::ETAG, tag);
    // Cached, but revalidated on each request.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    response
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("json" | "webmanifest") => "application/json",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("ico") => "image/x-icon",
        Some("woff2") => "font/woff2",
        Some("txt" | "md") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_path_without_an_extension_is_a_page() {
        assert!(is_page("/events/01J"));
        for other in ["/app.js", "/.env", "/a/b.css", "/../Cargo.toml", &"/a".repeat(100)] {
            assert!(!is_page(other), "{other}");
        }
    }

    #[test]
    fn the_base_leads_from_a_page_to_the_router() {
        for (original, path, router) in [
            ("/", "/", "/"),
            ("/events/01J", "/events/01J", "/"),
            ("/ops", "/", "/ops/"),
            ("/ops/", "/", "/ops/"),
            ("/a/b", "/", "/a/b/"),
            ("/a/b/index.html", "/index.html", "/a/b/"),
            ("/ops/events/01J", "/events/01J", "/ops/"),
            ("/a:b", "/", "/a:b/"),
        ] {
            let page = reqwest::Url::parse("http://localhost").unwrap().join(original).unwrap();
            assert_eq!(page.join(&base(original, path)).unwrap().path(), router, "{original}");
        }
    }

    #[test]
    fn every_file_has_a_known_content_type() {
        for name in Files::iter() {
            assert_ne!(content_type(&name), "application/octet-stream", "{name}");
        }
    }

    #[test]
    fn no_file_loads_from_other_hosts_or_has_inline_scripts() {
        for name in Files::iter().filter(|name| name.ends_with(".html")) {
            let file = Files::get(&name).unwrap();
            let text = String::from_utf8(file.data.to_vec()).unwrap();
            for wrong in ["http://", "https://", " onclick=", " style=", "<style", "javascript:"] {
                assert!(!text.contains(wrong), "{name} has {wrong}");
            }
            assert!(
                text.split("<script").skip(1).all(|tag| tag.split('>').next().unwrap().contains("src=")),
                "{name}"
            );
        }
    }
}
