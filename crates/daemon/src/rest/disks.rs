//! Routes of disks.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::http::StatusCode;
use serde::Deserialize;
use tidegate_api::disk::{
    Disk, DiskAttach, DiskCreate, DiskDetach, DiskList, DiskResize, DiskSet, Snippet, SnippetFor,
};
use tidegate_api::snapshot::Snapshots;
use utoipa_axum::routes;

use super::{Answer, Body, Failure, Path, Routes, Shared, State, erase, name, work, work_on};
use crate::os_error;

/// The routes of disks.
pub(super) fn routes() -> Routes {
    Routes::default()
        .routes(routes!(list, create))
        .routes(routes!(show, set, delete))
        .routes(routes!(attach))
        .routes(routes!(detach))
        .routes(routes!(resize))
        .routes(routes!(snippet))
}

/// The query: the datastore whose disks are listed.
#[derive(Deserialize)]
struct Which {
    datastore: Option<String>,
}

/// All disks
#[utoipa::path(get, path = "/v1/disks", tag = "disks",
    params(("datastore" = Option<String>, Query, description = "Only those on this datastore")),
    responses(
    (status = 200, description = "In the order of their names", body = DiskList),
    Failure,
))]
async fn list(
    State(daemon): Shared,
    which: Result<Query<Which>, QueryRejection>,
) -> Answer<DiskList> {
    let bad = |error: QueryRejection| {
        os_error::invalid("cannot list disks")
            .because(error.body_text())
            .remedy("use datastore=NAME, or no query")
    };
    let Query(Which { datastore }) = which.map_err(bad)?;
    work(move || {
        let datastore = datastore.as_deref().map(name).transpose()?;
        Ok(DiskList {
            disks: daemon.services.disk_service.disks(datastore.as_ref())?,
        })
    })
    .await
}

/// Creates a disk
#[utoipa::path(post, path = "/v1/disks", tag = "disks", request_body = DiskCreate, responses(
    (status = 200, description = "Created, and not attached", body = Disk),
    Failure,
))]
async fn create(State(daemon): Shared, Body(order): Body<DiskCreate>) -> Answer<Disk> {
    work(move || daemon.services.disk_service.create(&order)).await
}

/// One disk
#[utoipa::path(get, path = "/v1/disks/{name}", tag = "disks", params(("name" = String, Path)), responses(
    (status = 200, description = "As it is now", body = Disk),
    Failure,
))]
async fn show(State(daemon): Shared, Path(of): Path<String>) -> Answer<Disk> {
    work_on(daemon, of, |disk_service, name| disk_service.disk(name)).await
}

/// Changes a disk
#[utoipa::path(patch, path = "/v1/disks/{name}", tag = "disks", params(("name" = String, Path)),
    request_body = DiskSet, responses(
    (status = 200, description = "Changed", body = Disk),
    Failure,
))]
async fn set(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<DiskSet>,
) -> Answer<Disk> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.set(name, &order)
    })
    .await
}

/// The query: what to do about a disk's snapshots.
#[derive(Deserialize)]
struct WithIt {
    #[serde(default)]
    snapshots: Snapshots,
}

/// Deletes a disk and its data
#[utoipa::path(delete, path = "/v1/disks/{name}", tag = "disks",
    params(("name" = String, Path), ("snapshots" = Option<Snapshots>, Query,
        description = "`delete`: also its snapshots. Without it a disk with snapshots is refused")),
    responses(
    (status = 204, description = "Gone"),
    Failure,
))]
async fn delete(
    State(daemon): Shared,
    Path(of): Path<String>,
    with: Result<Query<WithIt>, QueryRejection>,
) -> Result<StatusCode, Failure> {
    let bad = |error: QueryRejection| {
        os_error::invalid("cannot delete a disk")
            .because(error.body_text())
            .remedy("use snapshots=delete, or no query")
    };
    let Query(WithIt { snapshots }) = with.map_err(bad)?;
    erase(daemon, of, move |disk_service, name| {
        disk_service.delete_with(name, snapshots)
    })
    .await
}

/// Attaches a disk
#[utoipa::path(post, path = "/v1/disks/{name}/attach", tag = "disks", params(("name" = String, Path)),
    request_body = DiskAttach, responses(
    (status = 200, description = "Attached; also if it was already", body = Disk),
    Failure,
))]
async fn attach(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<DiskAttach>,
) -> Answer<Disk> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.attach(name, order)
    })
    .await
}

/// Detaches a disk
#[utoipa::path(post, path = "/v1/disks/{name}/detach", tag = "disks", params(("name" = String, Path)),
    request_body = DiskDetach, responses(
    (status = 200, description = "Detached; also if it was already", body = Disk),
    Failure,
))]
async fn detach(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<DiskDetach>,
) -> Answer<Disk> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.detach(name, order)
    })
    .await
}

/// Changes a disk's size
#[utoipa::path(post, path = "/v1/disks/{name}/resize", tag = "disks", params(("name" = String, Path)),
    request_body = DiskResize, responses(
    (status = 200, description = "Of the new size; guests of an attached disk are told", body = Disk),
    Failure,
))]
async fn resize(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<DiskResize>,
) -> Answer<Disk> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.resize(name, order)
    })
    .await
}

/// How to reach a disk from some program
#[utoipa::path(get, path = "/v1/disks/{name}/snippets/{for}", tag = "disks",
    params(("name" = String, Path), ("for" = SnippetFor, Path)), responses(
    (status = 200, description = "Lines to paste", body = Snippet),
    Failure,
))]
async fn snippet(
    State(daemon): Shared,
    Path((of, program)): Path<(String, String)>,
) -> Answer<Snippet> {
    work_on(daemon, of, move |disk_service, name| {
        let program: SnippetFor = program.parse().map_err(|why: String| {
            let programs = SnippetFor::ALL.map(SnippetFor::as_str).join(", ");
            os_error::invalid("cannot make a snippet")
                .because(why)
                .remedy(format!("name one of these: {programs}"))
        })?;
        disk_service.snippet(name, program)
    })
    .await
}
