//! Routes of groups of disks.

use axum::http::StatusCode;
use tidegate_api::group::{Group, GroupList, GroupSet};
use utoipa_axum::routes;

use super::{Answer, Body, Failure, Path, Routes, Shared, State, erase, work, work_on};

/// The routes of groups.
pub(super) fn routes() -> Routes {
    Routes::default()
        .routes(routes!(list))
        .routes(routes!(show, set, remove))
}

/// All groups of disks
#[utoipa::path(get, path = "/v1/groups", tag = "groups", responses(
    (status = 200, description = "In the order of their names", body = GroupList),
    Failure,
))]
async fn list(State(daemon): Shared) -> Answer<GroupList> {
    work(move || {
        Ok(GroupList {
            groups: daemon.services.disk_service.groups()?,
        })
    })
    .await
}

/// One group
#[utoipa::path(get, path = "/v1/groups/{name}", tag = "groups", params(("name" = String, Path)), responses(
    (status = 200, description = "As it is now", body = Group),
    Failure,
))]
async fn show(State(daemon): Shared, Path(of): Path<String>) -> Answer<Group> {
    work_on(daemon, of, |disk_service, name| disk_service.group(name)).await
}

/// Changes a group, or makes it
#[utoipa::path(patch, path = "/v1/groups/{name}", tag = "groups", params(("name" = String, Path)),
    request_body = GroupSet, responses(
    (status = 200, description = "Changed; its disks are held to it from now on", body = Group),
    Failure,
))]
async fn set(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<GroupSet>,
) -> Answer<Group> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.set_group(name, &order)
    })
    .await
}

/// Forgets a group of which no disk is attached
#[utoipa::path(delete, path = "/v1/groups/{name}", tag = "groups", params(("name" = String, Path)), responses(
    (status = 204, description = "Forgotten"),
    Failure,
))]
async fn remove(State(daemon): Shared, Path(of): Path<String>) -> Result<StatusCode, Failure> {
    erase(daemon, of, |disk_service, name| {
        disk_service.remove_group(name)
    })
    .await
}
