//! Routes of disks' layouts: their members, comparisons and moves.

use axum::http::StatusCode;
use tidegate_api::job::Job;
use tidegate_api::layout::{DiskMove, DiskScrub, MemberAdd, MemberList};
use utoipa_axum::routes;

use super::{Answer, Body, Failure, Path, Routes, Shared, State, erase, work_on};

/// The routes of layouts.
pub(super) fn routes() -> Routes {
    Routes::default()
        .routes(routes!(list, add))
        .routes(routes!(replace))
        .routes(routes!(remove))
        .routes(routes!(scrub))
        .routes(routes!(relocate))
}

/// The members of a disk
#[utoipa::path(get, path = "/v1/disks/{name}/members", tag = "disks", params(("name" = String, Path)), responses(
    (status = 200, description = "In the layout's order; none if the disk is plain", body = MemberList),
    Failure,
))]
async fn list(State(daemon): Shared, Path(of): Path<String>) -> Answer<MemberList> {
    work_on(daemon, of, |disk_service, name| {
        disk_service.disk_members(name)
    })
    .await
}

/// Gives a disk a member in an empty place, or a mirror one more
#[utoipa::path(post, path = "/v1/disks/{name}/members", tag = "disks", params(("name" = String, Path)),
    request_body = MemberAdd, responses(
    (status = 200, description = "It is being rebuilt: ask for the job", body = Job),
    Failure,
))]
async fn add(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<MemberAdd>,
) -> Answer<Job> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.add_member(name, order.on)
    })
    .await
}

/// Replaces a member of a disk
#[utoipa::path(post, path = "/v1/disks/{name}/members/{member}/replace", tag = "disks",
    params(("name" = String, Path), ("member" = u8, Path)), request_body = MemberAdd, responses(
    (status = 200, description = "The new one is being rebuilt: ask for the job", body = Job),
    Failure,
))]
async fn replace(
    State(daemon): Shared,
    Path((of, member)): Path<(String, u8)>,
    Body(order): Body<MemberAdd>,
) -> Answer<Job> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.replace_member(name, member.into(), order.on)
    })
    .await
}

/// Removes a member of a disk and its data
#[utoipa::path(delete, path = "/v1/disks/{name}/members/{member}", tag = "disks",
    params(("name" = String, Path), ("member" = u8, Path)), responses(
    (status = 204, description = "Gone; its place is empty"),
    Failure,
))]
async fn remove(
    State(daemon): Shared,
    Path((of, member)): Path<(String, u8)>,
) -> Result<StatusCode, Failure> {
    erase(daemon, of, move |disk_service, name| {
        disk_service.remove_member(name, member.into())
    })
    .await
}

/// Compares the members of a disk
#[utoipa::path(post, path = "/v1/disks/{name}/scrub", tag = "disks", params(("name" = String, Path)),
    request_body = DiskScrub, responses(
    (status = 200, description = "Begun: ask for the job; the disk has the result", body = Job),
    Failure,
))]
async fn scrub(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<DiskScrub>,
) -> Answer<Job> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.scrub(name, order)
    })
    .await
}

/// Moves a disk to another datastore
#[utoipa::path(post, path = "/v1/disks/{name}/move", tag = "disks", params(("name" = String, Path)),
    request_body = DiskMove, responses(
    (status = 200, description = "Begun: ask for the job", body = Job),
    Failure,
))]
async fn relocate(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<DiskMove>,
) -> Answer<Job> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.relocate(name, &order)
    })
    .await
}
