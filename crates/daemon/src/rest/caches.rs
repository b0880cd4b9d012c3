//! Routes of flash caches, and of disks' use of them.

use axum::http::StatusCode;
use tidegate_api::cache::{
    Cache, CacheCreate, CacheDeviceAdd, CacheFlush, CacheList, DiskFlashSet,
};
use tidegate_api::job::Job;
use utoipa_axum::routes;

use super::{Answer, Body, Failure, Path, Routes, Shared, State, erase, work, work_on};

/// The routes of flash caches.
pub(super) fn routes() -> Routes {
    Routes::default()
        .routes(routes!(list, create))
        .routes(routes!(show, remove))
        .routes(routes!(flush))
        .routes(routes!(add_device))
        .routes(routes!(replace_device))
        .routes(routes!(remove_device))
        .routes(routes!(set_flash))
}

/// All flash caches
#[utoipa::path(get, path = "/v1/caches", tag = "caches", responses(
    (status = 200, description = "In the order of their names", body = CacheList),
    Failure,
))]
async fn list(State(daemon): Shared) -> Answer<CacheList> {
    work(move || {
        Ok(CacheList {
            caches: daemon.services.disk_service.caches()?,
        })
    })
    .await
}

/// Creates a flash cache
#[utoipa::path(post, path = "/v1/caches", tag = "caches", request_body = CacheCreate, responses(
    (status = 200, description = "Created; no disk uses it yet", body = Cache),
    Failure,
))]
async fn create(State(daemon): Shared, Body(order): Body<CacheCreate>) -> Answer<Cache> {
    work(move || daemon.services.disk_service.create_cache(&order)).await
}

/// One flash cache
#[utoipa::path(get, path = "/v1/caches/{name}", tag = "caches", params(("name" = String, Path)), responses(
    (status = 200, description = "As it is now", body = Cache),
    Failure,
))]
async fn show(State(daemon): Shared, Path(of): Path<String>) -> Answer<Cache> {
    work_on(daemon, of, |disk_service, name| disk_service.cache(name)).await
}

/// Removes a flash cache of which no disk has a part
#[utoipa::path(delete, path = "/v1/caches/{name}", tag = "caches", params(("name" = String, Path)), responses(
    (status = 204, description = "Gone; its devices stay, without their labels"),
    Failure,
))]
async fn remove(State(daemon): Shared, Path(of): Path<String>) -> Result<StatusCode, Failure> {
    erase(daemon, of, |disk_service, name| {
        disk_service.remove_cache(name)
    })
    .await
}

/// Brings to the datastores what only a flash cache has
#[utoipa::path(post, path = "/v1/caches/{name}/flush", tag = "caches", params(("name" = String, Path)),
    request_body = CacheFlush, responses(
    (status = 200, description = "Begun: ask for the job", body = Job),
    Failure,
))]
async fn flush(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<CacheFlush>,
) -> Answer<Job> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.flush_cache(name, &order)
    })
    .await
}

/// Gives a flash cache a second device
#[utoipa::path(post, path = "/v1/caches/{name}/devices", tag = "caches", params(("name" = String, Path)),
    request_body = CacheDeviceAdd, responses(
    (status = 200, description = "Begun: ask for the job", body = Job),
    Failure,
))]
async fn add_device(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<CacheDeviceAdd>,
) -> Answer<Job> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.add_cache_device(name, &order)
    })
    .await
}

/// Replaces a device of a flash cache
#[utoipa::path(post, path = "/v1/caches/{name}/devices/{device}/replace", tag = "caches",
    params(("name" = String, Path), ("device" = u8, Path)), request_body = CacheDeviceAdd, responses(
    (status = 200, description = "Begun: ask for the job", body = Job),
    Failure,
))]
async fn replace_device(
    State(daemon): Shared,
    Path((of, device)): Path<(String, u8)>,
    Body(order): Body<CacheDeviceAdd>,
) -> Answer<Job> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.replace_cache_device(name, device, &order)
    })
    .await
}

/// Removes one of two devices of a flash cache
#[utoipa::path(delete, path = "/v1/caches/{name}/devices/{device}", tag = "caches",
    params(("name" = String, Path), ("device" = u8, Path)), responses(
    (status = 204, description = "Gone; the disks go on with the other one"),
    Failure,
))]
async fn remove_device(
    State(daemon): Shared,
    Path((of, device)): Path<(String, u8)>,
) -> Result<StatusCode, Failure> {
    erase(daemon, of, move |disk_service, name| {
        disk_service.remove_cache_device(name, device)
    })
    .await
}

/// Gives a disk a flash cache, changes it, or takes it off
#[utoipa::path(post, path = "/v1/disks/{name}/flash", tag = "caches", params(("name" = String, Path)),
    request_body = DiskFlashSet, responses(
    (status = 200, description = "Begun: ask for the job", body = Job),
    Failure,
))]
async fn set_flash(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<DiskFlashSet>,
) -> Answer<Job> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.set_flash(name, &order)
    })
    .await
}
