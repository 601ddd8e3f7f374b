//! All routes, by required role. This is the only place that assigns roles; the OpenAPI document is
//! generated from it.

mod audit;
mod databases;
mod dead;
mod event;
mod event_actions;
mod events;
mod jobs;
mod joins;
mod keys;
pub(crate) mod nodes;
mod overview;
pub(crate) mod payload;
mod publisher_actions;
pub(crate) mod publishers;
mod purge;
mod session;

use axum::Router;
use axum::middleware::from_fn_with_state;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::guard::require;
use crate::auth::token::Role;
use crate::openapi;
use crate::problem::Problem;
use crate::state::Shared;

/// Answers a path without a route.
pub(crate) async fn not_found() -> Problem {
    Problem::not_found("path not found").advice("/api/openapi.json lists all paths.")
}

/// Router of everything below `/api`, and its OpenAPI document.
pub(crate) fn all() -> (Router<Shared>, OpenApi) {
    let groups = [
        (None, OpenApiRouter::new().routes(routes!(session::sign_in))),
        (Some(Role::Read), read()),
        (Some(Role::Operate), operate()),
        (Some(Role::Admin), admin()),
    ];
    let mut router = Router::new();
    let mut document = openapi::empty();
    for (role, group) in groups {
        let (routes, mut of_group) = group.split_for_parts();
        openapi::complete(&mut of_group, role);
        document.merge(of_group);
        router = router.merge(match role {
            Some(role) => routes.route_layer(from_fn_with_state(role, require)),
            None => routes,
        });
    }
    (router, document)
}

fn read() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(openapi::show))
        .routes(routes!(session::who_am_i))
        .routes(routes!(session::sign_out))
        .routes(routes!(overview::overview))
        .routes(routes!(overview::live))
        .routes(routes!(events::list))
        .routes(routes!(event::one))
        .routes(routes!(event::explain))
        .routes(routes!(dead::types))
        .routes(routes!(jobs::list))
        .routes(routes!(jobs::one))
        .routes(routes!(keys::list))
        .routes(routes!(publishers::list))
        .routes(routes!(publishers::lag))
        .routes(routes!(publishers::one))
        .routes(routes!(joins::list))
        .routes(routes!(joins::one))
        .routes(routes!(joins::steps))
        .routes(routes!(databases::list))
        .routes(routes!(nodes::list))
        .routes(routes!(audit::list))
}

fn operate() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(payload::show))
        .routes(routes!(event_actions::replay))
        .routes(routes!(event_actions::skip))
        .routes(routes!(event_actions::cancel))
        .routes(routes!(dead::replay))
        .routes(routes!(jobs::stop))
        .routes(routes!(keys::replay))
        .routes(routes!(keys::skip))
        .routes(routes!(publisher_actions::pause))
        .routes(routes!(publisher_actions::resume))
        .routes(routes!(publisher_actions::pause_in))
        .routes(routes!(publisher_actions::resume_in))
        .routes(routes!(joins::cancel))
        .routes(routes!(nodes::release))
}

fn admin() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(payload::edit))
        .routes(routes!(publisher_actions::reset))
        .routes(routes!(purge::purge))
}
