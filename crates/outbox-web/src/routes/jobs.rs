//! Jobs: how far they are, and stopping them.

use axum::Json;
use axum::extract::{OriginalUri, Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use crate::auth::Caller;
use crate::deeds::{Deeds, Happened};
use crate::jobs::{Job, JobView};
use crate::problem::{Answer, Problem};
use crate::state::Shared;
use crate::text;

/// Jobs of this server since it started; the last hundred.
#[derive(Serialize, ToSchema)]
pub(crate) struct JobList {
    /// The newest first.
    jobs: Vec<JobView>,
}

/// Which job.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "tells the document of the path")]
pub(crate) struct WhichJob {
    /// The id of the job.
    #[param(min_length = 1, max_length = 36, example = "01jd2q7m3t5v9xkq8b4n6c0zra")]
    id: String,
}

/// List jobs
#[utoipa::path(get, path = "/outbox/jobs", tag = "jobs",
    responses((status = 200, description = "The newest first", body = JobList)))]
pub(crate) async fn list(State(web): State<Shared>) -> Json<JobList> {
    Json(JobList { jobs: web.jobs.list() })
}

/// One job
#[utoipa::path(get, path = "/outbox/jobs/{id}", tag = "jobs", params(WhichJob),
    responses((status = 200, description = "How far it is", body = JobView)))]
pub(crate) async fn one(State(web): State<Shared>, Path(id): Path<String>) -> Answer<Json<JobView>> {
    web.jobs.find(&id).map(|job| Json(job.view())).ok_or_else(|| unknown(&id))
}

/// Stop a job
///
/// After the batch that it is at. What it has done stays done.
#[utoipa::path(post, path = "/outbox/jobs/{id}/stop", tag = "jobs", params(WhichJob),
    responses((status = 200, description = "It stops", body = JobView), (status = 409, description = "It has ended already")))]
pub(crate) async fn stop(
    State(web): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<Json<JobView>> {
    let job = web.jobs.find(&id).ok_or_else(|| unknown(&id))?;
    if !job.runs() {
        return Err(Problem::conflict(format!("the job `{id}` has ended already")));
    }
    let database = web.databases.choose(Some(job.database()))?;
    Deeds::new(&database, &caller, "job.stop", job.id())
        .carry_out(async {
            job.stop.cancel();
            Ok(Happened { count: 1, outcome: () })
        })
        .await?;
    Ok(Json(job.view()))
}

/// 202, and where to look.
pub(crate) fn accepted(OriginalUri(uri): &OriginalUri, job: &Job) -> Response {
    // Whoever mounts the router elsewhere has something before this.
    let before = uri.path().split("/api/outbox/").next().unwrap_or_default();
    let place = format!("{before}/api/outbox/jobs/{}", job.id());
    let place = HeaderValue::from_str(&place).unwrap_or(HeaderValue::from_static("/api/outbox/jobs"));
    (StatusCode::ACCEPTED, [(header::LOCATION, place)], Json(job.view())).into_response()
}

fn unknown(id: &str) -> Problem {
    Problem::not_found(format!("there is no job `{}`", text::shown(id))).advice(
        "Jobs are forgotten when the server restarts, and after a hundred others; the audit remembers.",
    )
}
