//! Routes of pools.

use tidegate_api::pool::{
    Pool, PoolCheck, PoolCreate, PoolDestroy, PoolDestroyed, PoolGiveUp, PoolGroupAdd, PoolList,
};
use utoipa_axum::routes;

use super::{Answer, Body, Failure, Path, Routes, Shared, State, work, work_on};

/// The routes of pools.
pub(super) fn routes() -> Routes {
    Routes::default()
        .routes(routes!(list, create))
        .routes(routes!(show))
        .routes(routes!(add_group))
        .routes(routes!(give_up))
        .routes(routes!(check))
        .routes(routes!(destroy))
}

/// All pools
#[utoipa::path(get, path = "/v1/pools", tag = "pools", responses(
    (status = 200, description = "In the order of their names", body = PoolList),
    Failure,
))]
async fn list(State(daemon): Shared) -> Answer<PoolList> {
    work(move || {
        Ok(PoolList {
            pools: daemon.services.disk_service.pools()?,
        })
    })
    .await
}

/// Creates a pool
#[utoipa::path(post, path = "/v1/pools", tag = "pools", request_body = PoolCreate, responses(
    (status = 200, description = "Created, without disks", body = Pool),
    Failure,
))]
async fn create(State(daemon): Shared, Body(order): Body<PoolCreate>) -> Answer<Pool> {
    work(move || daemon.services.disk_service.create_pool(&order)).await
}

/// One pool
#[utoipa::path(get, path = "/v1/pools/{name}", tag = "pools", params(("name" = String, Path)), responses(
    (status = 200, description = "As it is now", body = Pool),
    Failure,
))]
async fn show(State(daemon): Shared, Path(of): Path<String>) -> Answer<Pool> {
    work_on(daemon, of, |disk_service, name| disk_service.pool(name)).await
}

/// Gives a pool another group
#[utoipa::path(post, path = "/v1/pools/{name}/groups", tag = "pools", params(("name" = String, Path)),
    request_body = PoolGroupAdd, responses(
    (status = 200, description = "Added: disks can use its space", body = Pool),
    Failure,
))]
async fn add_group(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<PoolGroupAdd>,
) -> Answer<Pool> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.add_pool_group(name, &order)
    })
    .await
}

/// Uses a pool without a member that is lost
#[utoipa::path(post, path = "/v1/pools/{name}/give-up", tag = "pools", params(("name" = String, Path)),
    request_body = PoolGiveUp, responses(
    (status = 200, description = "The catalog of the others counts", body = Pool),
    Failure,
))]
async fn give_up(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<PoolGiveUp>,
) -> Answer<Pool> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.give_up_member(name, &order)
    })
    .await
}

/// Checks a pool's catalog
#[utoipa::path(get, path = "/v1/pools/{name}/check", tag = "pools", params(("name" = String, Path)), responses(
    (status = 200, description = "What was found; nothing was changed", body = PoolCheck),
    Failure,
))]
async fn check(State(daemon): Shared, Path(of): Path<String>) -> Answer<PoolCheck> {
    work_on(daemon, of, |disk_service, name| {
        disk_service.check_pool(name)
    })
    .await
}

/// Destroys a pool without disks
#[utoipa::path(post, path = "/v1/pools/{name}/destroy", tag = "pools", params(("name" = String, Path)),
    request_body = PoolDestroy, responses(
    (status = 200, description = "Gone; its members can be used otherwise", body = PoolDestroyed),
    Failure,
))]
async fn destroy(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(order): Body<PoolDestroy>,
) -> Answer<PoolDestroyed> {
    work_on(daemon, of, move |disk_service, name| {
        disk_service.destroy_pool(name, &order)
    })
    .await
}
