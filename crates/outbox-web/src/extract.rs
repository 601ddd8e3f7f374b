//! Extractors for queries and bodies. Their errors never repeat values, which may be secrets.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use crate::databases::Database;
use crate::problem::{ApiResult, Problem};
use crate::state::Shared;

/// Query parameters of a request.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> ApiResult<Self> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Self(params)),
            Err(rejection) => Err(Problem::bad(format!("invalid query: {}", cause(&rejection)))
                .advice("/api/openapi.json describes the parameters of this path.")),
        }
    }
}

/// The innermost cause, which names the invalid parameter.
fn cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    crate::text::printable(&without_value(&error.to_string()))
}

/// Removes a value that is not one of the expected ones from an error message.
fn without_value(message: &str) -> String {
    match (message.split_once("unknown variant `"), message.rsplit_once(", expected ")) {
        (Some((parameter, _)), Some((_, expected))) => format!("{parameter}expected {expected}"),
        _ => message.to_owned(),
    }
}

/// A JSON body.
pub(crate) struct Input<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Input<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> ApiResult<Self> {
        let body =
            Bytes::from_request(request, state).await.map_err(|_| Problem::bad("the body ended early"))?;
        if body.is_empty() {
            return Err(Problem::bad("the body is empty").advice("Send a JSON object, at least `{}`."));
        }
        serde_json::from_slice(&body).map(Self).map_err(|error| json_problem(&error))
    }
}

/// Problem for invalid JSON: names fields and positions, but repeats no values.
fn json_problem(error: &serde_json::Error) -> Problem {
    let at = format!("line {}, column {}", error.line(), error.column());
    if !error.is_data() {
        return Problem::bad(format!("the body is not valid JSON: {at}"));
    }
    let message = error.to_string();
    let named = ["unknown field `", "missing field `", "duplicate field `"];
    let detail = if named.iter().any(|start| message.starts_with(start)) {
        message
    } else if let Some((_, expected)) = message.rsplit_once(", expected ") {
        format!("expected {expected}")
    } else {
        format!("invalid value at {at}")
    };
    Problem::invalid(format!("invalid body: {detail}"))
        .advice("/api/openapi.json describes the body of this path.")
}

/// Selects the database.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DatabaseQuery {
    /// The name of the database, if there are several.
    #[param(max_length = 64, example = "main")]
    pub(crate) database: Option<String>,
}

impl DatabaseQuery {
    pub(crate) fn resolve(&self, web: &Shared) -> ApiResult<Database> {
        find_database(web, self.database.as_deref())
    }
}

pub(crate) fn find_database(web: &Shared, name: Option<&str>) -> ApiResult<Database> {
    web.databases.resolve(name)
}

/// Default number of rows per page.
pub(crate) const DEFAULT_PAGE: usize = 50;

/// Maximum number of rows per page.
pub(crate) const MAX_PAGE: usize = 500;

/// Validates the number of rows per page.
pub(crate) fn page_size(limit: Option<usize>) -> ApiResult<usize> {
    match limit {
        None => Ok(DEFAULT_PAGE),
        Some(limit) if (1..=MAX_PAGE).contains(&limit) => Ok(limit),
        Some(_) => {
            Err(Problem::bad(format!("`limit` must be 1 to {MAX_PAGE}"))
                .advice("Request the next page instead."))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct Sample {
        name: String,
        kind: Choice,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Choice {
        This,
        That,
    }

    #[test]
    fn errors_of_a_body_do_not_repeat_its_values() {
        for (body, expected) in [
            (r#"{"name": "#, "not valid JSON"),
            (r#"{"name": 5154, "kind": "this"}"#, "expected a string"),
            (r#"{"name": "hunter2"}"#, "missing field `kind`"),
            (r#"{"name": "x", "kind": "hunter2"}"#, "`this` or `that`"),
            (r#"{"name": "hunter2", "nam": 1}"#, "unknown field `nam`"),
            (r#"["hunter2"]"#, "invalid body"),
            (r#"{"name": "x", "kind": "y, expected hunter2"}"#, "expected `this` or `that`"),
        ] {
            let problem = json_problem(&serde_json::from_str::<Sample>(body).unwrap_err());
            let message = problem.detail();
            assert!(
                message.contains(expected) && !message.contains("hunter2") && !message.contains("5154"),
                "{message}"
            );
        }
    }

    #[test]
    fn errors_of_a_query_do_not_repeat_its_values() {
        for (query, expected) in [
            ("name=x&kind=hunter2", "kind: expected `this` or `that`"),
            ("name=x&kind=y,+expected+hunter2", "expected `this` or `that`"),
            (&format!("name=x&kind=hunter2{}", "x".repeat(200)), "expected `this` or `that`"),
            ("name=hunter2&nam=x", "unknown field `nam`"),
            ("name=hunter2", "missing field `kind`"),
        ] {
            let uri = format!("/?{query}").parse().unwrap();
            let rejection = Query::<Sample>::try_from_uri(&uri).unwrap_err();
            let message = cause(&rejection);
            assert!(message.contains(expected) && !message.contains("hunter2"), "{message}");
        }
    }

    #[test]
    fn pages_are_bounded() {
        assert_eq!(page_size(None).unwrap(), DEFAULT_PAGE);
        assert_eq!(page_size(Some(500)).unwrap(), 500);
        assert!(page_size(Some(0)).is_err() && page_size(Some(501)).is_err());
    }
}
