//! Routes of backups, which are made, checked and restored in the background.

use std::path::PathBuf;

use tidegate_api::backup::{BackupCreate, BackupList, BackupRestore, BackupVerify};
use tidegate_api::job::Job;
use utoipa_axum::routes;

use super::{Answer, Body, Failure, Path, Routes, Shared, State, work, work_on};

/// The routes of backups.
pub(super) fn routes() -> Routes {
    Routes::default()
        .routes(routes!(create))
        .routes(routes!(list))
        .routes(routes!(verify))
        .routes(routes!(restore))
}

/// Backs a disk up to a directory
#[utoipa::path(post, path = "/v1/disks/{name}/backup", tag = "backups", params(("name" = String, Path)),
    request_body = BackupCreate, responses(
    (status = 200, description = "Begun: ask for the job", body = Job),
    Failure,
))]
async fn create(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<BackupCreate>,
) -> Answer<Job> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.back_up(name, order)
    })
    .await
}

/// The backups of a directory
#[utoipa::path(get, path = "/v1/backups/{dir}", tag = "backups",
    params(("dir" = String, Path, description = "The directory's absolute path, percent-encoded")), responses(
    (status = 200, description = "The oldest first", body = BackupList),
    Failure,
))]
async fn list(State(daemon): Shared, Path(dir): Path<String>) -> Answer<BackupList> {
    let dir = PathBuf::from(dir);
    work(move || daemon.services.disk_service.backups(&dir)).await
}

/// Compares the files of backups with their checksums
#[utoipa::path(post, path = "/v1/backups/verify", tag = "backups", request_body = BackupVerify, responses(
    (status = 200, description = "Begun: ask for the job", body = Job),
    Failure,
))]
async fn verify(State(daemon): Shared, Body(order): Body<BackupVerify>) -> Answer<Job> {
    work(move || daemon.services.disk_service.verify_backups(order)).await
}

/// Restores a backup to a file or a new disk
#[utoipa::path(post, path = "/v1/backups/restore", tag = "backups", request_body = BackupRestore, responses(
    (status = 200, description = "Begun: ask for the job", body = Job),
    Failure,
))]
async fn restore(State(daemon): Shared, Body(order): Body<BackupRestore>) -> Answer<Job> {
    work(move || daemon.services.disk_service.restore(order)).await
}
