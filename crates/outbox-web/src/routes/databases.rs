//! Databases that are looked after.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::state::Shared;

/// All databases.
#[derive(Serialize, ToSchema)]
pub(crate) struct DatabaseList {
    /// By name.
    databases: Vec<DatabaseView>,
}

/// A database, and how it is doing.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"name": "main", "state": "active", "reason": null}))]
pub(crate) struct DatabaseView {
    /// Its name: what `?database=` takes.
    name: String,
    /// How it is doing: `open`, `active`, `standing by`, `starting`, `failing`, …
    state: String,
    /// Why it fails, if it does.
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
