//! Files of the dashboard, embedded in the binary. They contain no data and are served without
//! authentication.

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use rust_embed::{EmbeddedFile, RustEmbed};

use crate::auth::guard::finish;
use crate::problem::{Kind, Problem};

/// Allows resources from this server only, and no inline scripts or styles.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      font-src 'self'; manifest-src 'self'; base-uri 'self'; form-action 'none'; frame-ancestors 'none'";

#[derive(RustEmbed)]
#[folder = "ui/"]
struct Files;

/// Serves every path outside the API.
pub(crate) async fn serve(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    if !matches!(method, Method::GET | Method::HEAD) {
        let rejected = Problem::new(Kind::MethodNotAllowed, "files are read-only").into_response();
        let (mut parts, body) = rejected.into_parts();
        parts.headers.insert(header::ALLOW, HeaderValue::from_static("GET,HEAD"));
        return finish(Response::from_parts(parts, body));
    }
    let path = uri.path().trim_start_matches('/');
    let name = if path.is_empty() { "index.html" } else { path };
    let found = Files::get(name).map(|file| (name, file));
    let page = || page(path).filter(|_| accepts_html(&headers));
    match found.or_else(|| page().and_then(|name| Some((name, Files::get(name)?)))) {
        Some((name, file)) => finish(respond(name, &file, &headers)),
        None => finish(Problem::not_found("page not found").into_response()),
    }
}

/// Serves the page that shows the OpenAPI document, and its files: `docs`, `docs.js`, `docs.css`.
pub(crate) async fn docs(uri: Uri, headers: HeaderMap) -> Response {
    let requested = uri.path().rsplit('/').next();
    let name = requested.filter(|name| matches!(*name, "docs.js" | "docs.css")).unwrap_or("docs.html");
    match Files::get(&format!("docs/{name}")) {
        Some(file) => finish(respond(name, &file, &headers)),
        None => finish(Problem::not_found("page not found").into_response()),
    }
}

/// Serves the dashboard for every path that looks like a page: the dashboard routes on the client.
fn page(path: &str) -> Option<&'static str> {
    let is_page = !path.contains('.') && !path.starts_with("api/") && path != "api";
    is_page.then_some("index.html")
}

/// Whether the client accepts HTML, as browsers do. Other clients get a 404 for an unknown path.
fn accepts_html(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT).and_then(|accepted| accepted.to_str().ok());
    accepted.is_some_and(|accepted| accepted.contains("text/html"))
}

fn respond(name: &str, file: &EmbeddedFile, requested: &HeaderMap) -> Response {
    let digest = file.metadata.sha256_hash();
    let tag: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let tag = HeaderValue::from_str(&format!("\"{tag}\"")).unwrap_or(HeaderValue::from_static("\"\""));
    let known = requested.get(header::IF_NONE_MATCH).is_some_and(|known| known == tag);
    let body = if known { Vec::new() } else { file.data.to_vec() };
    let mut response = body.into_response();
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
        assert_eq!(page("events/01J"), Some("index.html"));
        for other in ["app.js", "api", "api/x", ".env", "a/b.css", "../Cargo.toml"] {
            assert_eq!(page(other), None, "{other}");
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
