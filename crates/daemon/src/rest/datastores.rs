//! Routes of datastores.

use axum::http::StatusCode;
use tidegate_api::datastore::{Datastore, DatastoreAdd, DatastoreList, DatastoreSet};
use utoipa_axum::routes;

use super::{Answer, Body, Failure, Path, Routes, Shared, State, erase, work, work_on};

/// The routes of datastores.
pub(super) fn routes() -> Routes {
    Routes::default()
        .routes(routes!(list, add))
        .routes(routes!(show, set, remove))
}

/// All datastores
#[utoipa::path(get, path = "/v1/datastores", tag = "datastores", responses(
    (status = 200, description = "In the order of their names", body = DatastoreList),
    Failure,
))]
async fn list(State(daemon): Shared) -> Answer<DatastoreList> {
    work(move || {
        Ok(DatastoreList {
            datastores: daemon.services.disk_service.datastores()?,
        })
    })
    .await
}

/// Adds a datastore
#[utoipa::path(post, path = "/v1/datastores", tag = "datastores", request_body = DatastoreAdd, responses(
    (status = 200, description = "Added", body = Datastore),
    Failure,
))]
async fn add(State(daemon): Shared, Body(order): Body<DatastoreAdd>) -> Answer<Datastore> {
    work(move || {
        daemon
            .services
            .disk_service
            .add_datastore(&order.name, order.settings)
    })
    .await
}

/// One datastore
#[utoipa::path(get, path = "/v1/datastores/{name}", tag = "datastores", params(("name" = String, Path)), responses(
    (status = 200, description = "As it is now", body = Datastore),
    Failure,
))]
async fn show(State(daemon): Shared, Path(of): Path<String>) -> Answer<Datastore> {
    work_on(daemon, of, |disk_service, name| {
        disk_service.datastore(name)
    })
    .await
}

/// Changes how a datastore is controlled
#[utoipa::path(patch, path = "/v1/datastores/{name}", tag = "datastores", params(("name" = String, Path)),
    request_body = DatastoreSet, responses(
    (status = 200, description = "Changed; where its hosts share a directory, all of them take it up", body = Datastore),
    Failure,
))]
async fn set(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<DatastoreSet>,
) -> Answer<Datastore> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.set_datastore(name, &order)
    })
    .await
}

/// Forgets a datastore; what lies on it stays
#[utoipa::path(delete, path = "/v1/datastores/{name}", tag = "datastores", params(("name" = String, Path)), responses(
    (status = 204, description = "Forgotten"),
    Failure,
))]
async fn remove(State(daemon): Shared, Path(of): Path<String>) -> Result<StatusCode, Failure> {
    erase(daemon, of, |disk_service, name| {
        disk_service.remove_datastore(name)
    })
    .await
}
