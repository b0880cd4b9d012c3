//! Routes of the daemon itself: its status, its OpenAPI document and its metrics.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use tidegate_api::status::Status;
use utoipa_axum::routes;

use super::{Answer, Failure, Routes, Shared, State, json, work};
use crate::os_error;

/// The routes of the daemon itself.
pub(super) fn routes() -> Routes {
    Routes::default()
        .routes(routes!(status))
        .routes(routes!(openapi))
        .routes(routes!(metrics))
}

/// How the daemon is
#[utoipa::path(get, path = "/v1/status", tag = "daemon", responses(
    (status = 200, description = "It answers, so it lives", body = Status),
    Failure,
))]
async fn status(State(daemon): Shared) -> Answer<Status> {
    work(move || daemon.status()).await
}

/// This document
#[utoipa::path(get, path = "/openapi.json", tag = "daemon", responses(
    (status = 200, description = "OpenAPI 3.1", content_type = "application/json"),
))]
async fn openapi() -> Response {
    json(super::document())
}

/// Prometheus metrics
#[utoipa::path(get, path = "/metrics", tag = "daemon", responses(
    (status = 200, description = "Prometheus text format", content_type = "text/plain"),
))]
async fn metrics(State(daemon): Shared) -> Result<Response, Failure> {
    let text = os_error::blocking(move || daemon.metrics()).await?;
    Ok((
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        text,
    )
        .into_response())
}
