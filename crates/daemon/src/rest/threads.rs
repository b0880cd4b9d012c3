//! Routes of I/O threads, and of disks that move between them.

use axum::http::StatusCode;
use tidegate_api::thread::{DiskThread, DiskThreadSet, Thread, ThreadList};
use utoipa_axum::routes;

use super::{Answer, Body, Failure, Path, Routes, Shared, State, work, work_on};
use crate::os_error;

/// The routes of I/O threads.
pub(super) fn routes() -> Routes {
    Routes::default()
        .routes(routes!(list, create))
        .routes(routes!(show, remove))
        .routes(routes!(lock))
        .routes(routes!(unlock))
        .routes(routes!(move_disk))
}

/// All I/O threads
#[utoipa::path(get, path = "/v1/threads", tag = "threads", responses(
    (status = 200, description = "In the order of their numbers, parked ones included", body = ThreadList),
    Failure,
))]
async fn list(State(daemon): Shared) -> Answer<ThreadList> {
    work(move || {
        Ok(ThreadList {
            threads: daemon.services.disk_service.threads()?,
        })
    })
    .await
}

/// Takes a parked I/O thread into use
#[utoipa::path(post, path = "/v1/threads", tag = "threads", responses(
    (status = 200, description = "Active", body = Thread),
    Failure,
))]
async fn create(State(daemon): Shared) -> Answer<Thread> {
    work(move || {
        let disk_service = &daemon.services.disk_service;
        disk_service.thread(disk_service.create_thread()?)
    })
    .await
}

/// One I/O thread
#[utoipa::path(get, path = "/v1/threads/{thread}", tag = "threads", params(("thread" = u32, Path)), responses(
    (status = 200, description = "As it is now", body = Thread),
    Failure,
))]
async fn show(State(daemon): Shared, Path(thread): Path<u32>) -> Answer<Thread> {
    work(move || daemon.services.disk_service.thread(thread)).await
}

/// Parks an I/O thread that is locked and has no disks
#[utoipa::path(delete, path = "/v1/threads/{thread}", tag = "threads", params(("thread" = u32, Path)), responses(
    (status = 204, description = "It parks as soon as the I/O that it started has ended"),
    Failure,
))]
async fn remove(State(daemon): Shared, Path(thread): Path<u32>) -> Result<StatusCode, Failure> {
    os_error::blocking(move || daemon.services.disk_service.remove_thread(thread)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Locks an I/O thread: it gets no more disks
#[utoipa::path(post, path = "/v1/threads/{thread}/lock", tag = "threads", params(("thread" = u32, Path)), responses(
    (status = 200, description = "Locked; also if it was already", body = Thread),
    Failure,
))]
async fn lock(State(daemon): Shared, Path(thread): Path<u32>) -> Answer<Thread> {
    work(move || {
        daemon.services.disk_service.lock_thread(thread)?;
        daemon.services.disk_service.thread(thread)
    })
    .await
}

/// Unlocks an I/O thread
#[utoipa::path(post, path = "/v1/threads/{thread}/unlock", tag = "threads", params(("thread" = u32, Path)), responses(
    (status = 200, description = "Active; also if it was already", body = Thread),
    Failure,
))]
async fn unlock(State(daemon): Shared, Path(thread): Path<u32>) -> Answer<Thread> {
    work(move || {
        daemon.services.disk_service.unlock_thread(thread)?;
        daemon.services.disk_service.thread(thread)
    })
    .await
}

/// Moves an attached disk to another I/O thread, with its I/O in flight
#[utoipa::path(post, path = "/v1/disks/{name}/thread", tag = "threads", params(("name" = String, Path)),
    request_body = DiskThreadSet, responses(
    (status = 200, description = "Moved; with the pause", body = DiskThread),
    Failure,
))]
async fn move_disk(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<DiskThreadSet>,
) -> Answer<DiskThread> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.move_to_thread(name, order.thread)
    })
    .await
}
