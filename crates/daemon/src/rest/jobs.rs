//! Routes of jobs, which import and export disks in the background.

use tidegate_api::job::{DiskExport, DiskImport, Job, JobList};
use utoipa_axum::routes;

use super::{Answer, Body, Failure, Path, Routes, Shared, State, work, work_on};

/// The routes of jobs.
pub(super) fn routes() -> Routes {
    Routes::default()
        .routes(routes!(import))
        .routes(routes!(export))
        .routes(routes!(list))
        .routes(routes!(show, cancel))
}

/// Makes a disk of an image file
#[utoipa::path(post, path = "/v1/import", tag = "jobs", request_body = DiskImport, responses(
    (status = 200, description = "Begun: ask for the job", body = Job),
    Failure,
))]
async fn import(State(daemon): Shared, Body(order): Body<DiskImport>) -> Answer<Job> {
    work(move || daemon.services.disk_service.import(order)).await
}

/// Writes a disk to an image file
#[utoipa::path(post, path = "/v1/disks/{name}/export", tag = "jobs", params(("name" = String, Path)),
    request_body = DiskExport, responses(
    (status = 200, description = "Begun: ask for the job", body = Job),
    Failure,
))]
async fn export(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<DiskExport>,
) -> Answer<Job> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.export(name, order)
    })
    .await
}

/// All jobs
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", responses(
    (status = 200, description = "Those that run and the latest that are over", body = JobList),
    Failure,
))]
async fn list(State(daemon): Shared) -> Answer<JobList> {
    work(move || {
        Ok(JobList {
            jobs: daemon.services.disk_service.jobs().list(),
        })
    })
    .await
}

/// One job
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs", params(("id" = u64, Path)), responses(
    (status = 200, description = "How far it is", body = Job),
    Failure,
))]
async fn show(State(daemon): Shared, Path(id): Path<u64>) -> Answer<Job> {
    work(move || daemon.services.disk_service.jobs().job(id)).await
}

/// Stops a job
#[utoipa::path(delete, path = "/v1/jobs/{id}", tag = "jobs", params(("id" = u64, Path)), responses(
    (status = 200, description = "Told to stop, if it still ran; it is over soon after", body = Job),
    Failure,
))]
async fn cancel(State(daemon): Shared, Path(id): Path<u64>) -> Answer<Job> {
    work(move || daemon.services.disk_service.jobs().cancel(id)).await
}
