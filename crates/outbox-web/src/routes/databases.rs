//! List of databases.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::state::Shared;

/// All databases.
#[derive(Serialize, ToSchema)]
pub(crate) struct DatabaseList {
    /// The databases, by name.
    databases: Vec<DatabaseView>,
}

/// A database and its state.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"name": "main", "state": "active", "reason": null}))]
pub(crate) struct DatabaseView {
    /// The name: the value of `?database=`.
    name: String,
    /// The state: `open`, `active`, `standby`, `starting`, `failing`, …
    state: String,
    /// Why the database is failing.
    reason: Option<String>,
}

/// List databases
#[utoipa::path(get, path = "/outbox/databases", tag = "databases",
    responses((status = 200, description = "All databases", body = DatabaseList)))]
pub(crate) async fn list(State(web): State<Shared>) -> Json<DatabaseList> {
    let view =
        |info: crate::DatabaseInfo| DatabaseView { name: info.name, state: info.state, reason: info.reason };
    Json(DatabaseList { databases: web.databases.list().into_iter().map(view).collect() })
}
