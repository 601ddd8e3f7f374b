//! Jobs: their progress, and stopping them.

use axum::Json;
use axum::extract::{OriginalUri, Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use crate::audit::{AuditedChange, Changed};
use crate::auth::Caller;
use crate::jobs::{Job, JobView};
use crate::problem::{ApiResult, Problem};
use crate::state::Shared;
use crate::text;

/// Jobs since the start of the server; the latest hundred.
#[derive(Serialize, ToSchema)]
pub(crate) struct JobList {
    /// The jobs, newest first.
    jobs: Vec<JobView>,
}

/// Path of a job.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(crate) struct JobPath {
    /// The id of the job.
    #[param(min_length = 1, max_length = 36, example = "01jd2q7m3t5v9xkq8b4n6c0zra")]
    id: String,
}

/// List jobs
#[utoipa::path(get, path = "/outbox/jobs", tag = "jobs",
    responses((status = 200, description = "The jobs, newest first", body = JobList)))]
pub(crate) async fn list(State(web): State<Shared>) -> Json<JobList> {
    Json(JobList { jobs: web.jobs.list() })
}

/// Get a job
#[utoipa::path(get, path = "/outbox/jobs/{id}", tag = "jobs", params(JobPath),
    responses((status = 200, description = "The job", body = JobView)))]
pub(crate) async fn one(State(web): State<Shared>, Path(id): Path<String>) -> ApiResult<Json<JobView>> {
    web.jobs.find(&id).map(|job| Json(job.view())).ok_or_else(|| unknown(&id))
}

/// Stop a job
///
/// The job stops after its current batch. Changes made before that remain.
#[utoipa::path(post, path = "/outbox/jobs/{id}/stop", tag = "jobs", params(JobPath),
    responses((status = 200, description = "The job stops", body = JobView), (status = 409, description = "The job has already ended")))]
pub(crate) async fn stop(
    State(web): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
) -> ApiResult<Json<JobView>> {
    let job = web.jobs.find(&id).ok_or_else(|| unknown(&id))?;
    if !job.is_running() {
        return Err(Problem::conflict(format!("job `{id}` has already ended")));
    }
    let database = web.databases.resolve(Some(job.database()))?;
    AuditedChange::new(&database, &caller, "job.stop", job.id())
        .carry_out(async {
            job.stop.cancel();
            Ok(Changed { count: 1, outcome: () })
        })
        .await?;
    Ok(Json(job.view()))
}

/// A 202 response with the path of the job.
pub(crate) fn accepted(OriginalUri(uri): &OriginalUri, job: &Job) -> Response {
    // The application may have mounted the router below a path.
    let prefix = uri.path().rsplit_once("/api/outbox/").map_or("", |(prefix, _)| prefix);
    let location = format!("{prefix}/api/outbox/jobs/{}", job.id());
    let location = HeaderValue::from_str(&location).unwrap_or(HeaderValue::from_static("/api/outbox/jobs"));
    (StatusCode::ACCEPTED, [(header::LOCATION, location)], Json(job.view())).into_response()
}

fn unknown(id: &str) -> Problem {
    Problem::not_found(format!("job `{}` not found", text::printable(id))).advice(
        "Only the latest hundred jobs since the start of the server are kept; the audit has an entry for every job.",
    )
}
