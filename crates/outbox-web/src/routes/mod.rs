//! All routes, by the role that they need. What needs which role is said here and nowhere else; the document is told the same.

mod audit;
mod databases;
mod dead;
mod events;
mod jobs;
mod joins;
mod keys;
mod nodes;
mod overview;
mod payload;
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
use crate::state::Shared;

/// Everything below `/api`, and the document of it.
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
        .routes(routes!(events::one))
        .routes(routes!(events::explain))
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
        .routes(routes!(events::replay))
        .routes(routes!(events::skip))
        .routes(routes!(events::cancel))
        .routes(routes!(dead::replay))
        .routes(routes!(jobs::stop))
        .routes(routes!(keys::replay))
        .routes(routes!(keys::skip))
        .routes(routes!(publishers::pause))
        .routes(routes!(publishers::resume))
        .routes(routes!(publishers::pause_in))
        .routes(routes!(publishers::resume_in))
        .routes(routes!(joins::cancel))
}

fn admin() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(payload::edit))
        .routes(routes!(publishers::reset))
        .routes(routes!(purge::purge))
}
