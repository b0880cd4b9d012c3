//! Doors to the daemon itself: how it is, what it offers, what it measures.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use tidegate_api::problem::Problem;
use tidegate_api::status::Status;

use super::{Answer, Failure, Shared, State, json, work};
use crate::os_error;

/// How the daemon is
#[utoipa::path(get, path = "/v1/status", tag = "daemon", responses(
    (status = 200, description = "It answers, so it lives", body = Status),
    (status = "default", description = "What failed, why, and what to do", body = Problem),
))]
pub(super) async fn status(State(daemon): Shared) -> Answer<Status> {
    work(move || daemon.status()).await
}

/// This document
#[utoipa::path(get, path = "/openapi.json", tag = "daemon", responses(
    (status = 200, description = "OpenAPI 3.1", content_type = "application/json"),
))]
pub(super) async fn openapi() -> Response {
    json(super::document())
}

/// Prometheus metrics
#[utoipa::path(get, path = "/metrics", tag = "daemon", responses(
    (status = 200, description = "Prometheus text format", content_type = "text/plain"),
))]
pub(super) async fn metrics(State(daemon): Shared) -> Result<Response, Failure> {
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
