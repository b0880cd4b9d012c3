//! Routes of snapshots.

use axum::http::StatusCode;
use tidegate_api::disk::Disk;
use tidegate_api::snapshot::{
    DiskClone, DiskRollback, Snapshot, SnapshotCreate, SnapshotList, SnapshotsTaken,
};
use utoipa_axum::routes;

use super::{Answer, Body, Failure, Path, Routes, Shared, State, erase, name, work_on};

/// The routes of snapshots.
pub(super) fn routes() -> Routes {
    Routes::default()
        .routes(routes!(list, create))
        .routes(routes!(show, delete))
        .routes(routes!(roll_back))
        .routes(routes!(clone))
}

/// The snapshots of a disk
#[utoipa::path(get, path = "/v1/disks/{name}/snapshots", tag = "snapshots", params(("name" = String, Path)), responses(
    (status = 200, description = "The oldest first; a parent comes before its children", body = SnapshotList),
    Failure,
))]
async fn list(State(daemon): Shared, Path(of): Path<String>) -> Answer<SnapshotList> {
    work_on(daemon, of, |disk_service, name| {
        disk_service.snapshots(name)
    })
    .await
}

/// Takes a snapshot of a disk, and of others at the same moment
#[utoipa::path(post, path = "/v1/disks/{name}/snapshots", tag = "snapshots", params(("name" = String, Path)),
    request_body = SnapshotCreate, responses(
    (status = 200, description = "Taken: one of each disk", body = SnapshotsTaken),
    Failure,
))]
async fn create(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<SnapshotCreate>,
) -> Answer<SnapshotsTaken> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.take_snapshots(name, &order)
    })
    .await
}

/// One snapshot of a disk
#[utoipa::path(get, path = "/v1/disks/{name}/snapshots/{snapshot}", tag = "snapshots",
    params(("name" = String, Path), ("snapshot" = String, Path)), responses(
    (status = 200, description = "As it is now", body = Snapshot),
    Failure,
))]
async fn show(
    State(daemon): Shared,
    Path((of, snapshot)): Path<(String, String)>,
) -> Answer<Snapshot> {
    work_on(daemon, of, move |disk_service, disk| {
        disk_service.snapshot(disk, &name(&snapshot)?)
    })
    .await
}

/// Deletes a snapshot
#[utoipa::path(delete, path = "/v1/disks/{name}/snapshots/{snapshot}", tag = "snapshots",
    params(("name" = String, Path), ("snapshot" = String, Path)), responses(
    (status = 204, description = "Gone"),
    Failure,
))]
async fn delete(
    State(daemon): Shared,
    Path((of, snapshot)): Path<(String, String)>,
) -> Result<StatusCode, Failure> {
    erase(daemon, of, move |disk_service, disk| {
        disk_service.delete_snapshot(disk, &name(&snapshot)?)
    })
    .await
}

/// Gives a disk the content of one of its snapshots
#[utoipa::path(post, path = "/v1/disks/{name}/rollback", tag = "snapshots", params(("name" = String, Path)),
    request_body = DiskRollback, responses(
    (status = 200, description = "Rolled back: what was written since is lost", body = Disk),
    Failure,
))]
async fn roll_back(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<DiskRollback>,
) -> Answer<Disk> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.roll_back(name, &order)
    })
    .await
}

/// Makes a disk of a snapshot
#[utoipa::path(post, path = "/v1/disks/{name}/clone", tag = "snapshots", params(("name" = String, Path)),
    request_body = DiskClone, responses(
    (status = 200, description = "Created, and not attached", body = Disk),
    Failure,
))]
async fn clone(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<DiskClone>,
) -> Answer<Disk> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.clone_disk(name, &order)
    })
    .await
}
