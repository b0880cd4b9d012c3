//! The REST interface: HTTP over a Unix socket, each route with its handler, and errors as problems.
//!
//! A handler only translates. A request becomes a call of the disk service on a thread that may block, and the result
//! becomes JSON. Each file below has a `routes` function with its handlers. [`routes`] merges them, and makes both the
//! router and the OpenAPI document ([`document`]).
//!
//! # Always true
//! - Every [`tidegate_api::routes::Route`] has a handler, and every handler has such a route (tested below).
//! - Every failure is answered with a [`Problem`] and a status of 400 or more, including bad JSON and unknown paths.
//! - A body of more than [`BODY`] bytes is refused before it is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use utoipa::OpenApi;
use utoipa::openapi::{self, Content, RefOr};
use utoipa_axum::router::OpenApiRouter;

use crate::daemon::Daemon;
use crate::disks::disk_service::DiskService;
use crate::os_error::{self, Outcome};

pub(crate) mod api_listener;
mod backups;
mod caches;
mod daemon;
pub(crate) mod dashboard;
mod datastores;
mod disks;
mod events;
mod explain;
mod groups;
mod jobs;
mod layouts;
mod pools;
mod snapshots;
mod stats;
mod threads;
mod tree;

/// The largest request body: far more than any command needs.
pub(crate) const BODY: usize = 256 << 10;

type Shared = State<Arc<Daemon>>;

/// Routes with their handlers and with their part of the OpenAPI document.
type Routes = OpenApiRouter<Arc<Daemon>>;

/// All documented routes, each by the path that its handler declares.
///
/// These are the routes of [`tidegate_api::routes`], which clients use; a test compares the two.
fn routes() -> Routes {
    Routes::with_openapi(Document::openapi())
        .merge(daemon::routes())
        .merge(datastores::routes())
        .merge(disks::routes())
        .merge(snapshots::routes())
        .merge(groups::routes())
        .merge(caches::routes())
        .merge(pools::routes())
        .merge(layouts::routes())
        .merge(jobs::routes())
        .merge(backups::routes())
        .merge(stats::routes())
        .merge(explain::routes())
        .merge(events::routes())
        .merge(threads::routes())
        .merge(tree::routes())
}

/// The daemon's whole HTTP interface: the documented routes and the dashboard's.
pub(crate) fn router(daemon: Arc<Daemon>) -> Router {
    Router::from(routes())
        .merge(dashboard::routes())
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY))
        .with_state(daemon)
}

async fn unknown(request: Request) -> Failure {
    let problem = Problem::new(
        ProblemCode::NotFound,
        format!("there is no {} {}", request.method(), request.uri().path()),
    );
    Failure(problem.remedy("/openapi.json lists all paths"))
}

/// The path exists, but not for this method. Axum adds the allowed methods as `Allow`.
async fn wrong_method(request: Request) -> Failure {
    let path = request.uri().path();
    let problem = Problem::new(
        ProblemCode::WrongMethod,
        format!("{path} does not support {}", request.method()),
    );
    Failure(problem.remedy("use a method that the answer's Allow header or /openapi.json names"))
}

/// A problem as an HTTP response.
struct Failure(Problem);

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        Failure(problem)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.http_status());
        (
            status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            Json(self.0),
        )
            .into_response()
    }
}

/// The failure of every route in the OpenAPI document.
impl utoipa::IntoResponses for Failure {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        let content = Content::new(Some(openapi::Ref::from_schema_name("Problem")));
        let response = openapi::ResponseBuilder::new()
            .description("What failed, why, and what to do")
            .content("application/json", content);
        BTreeMap::from([("default".to_owned(), RefOr::T(response.build()))])
    }
}

/// The same for layers in front of the routes.
pub(crate) fn failure(problem: Problem) -> Response {
    Failure(problem).into_response()
}

type Answer<T> = Result<Json<T>, Failure>;

/// Answers with the result of blocking work.
async fn work<T: Serialize + Send + 'static>(
    work: impl FnOnce() -> Outcome<T> + Send + 'static,
) -> Answer<T> {
    Ok(Json(os_error::blocking(work).await?))
}

/// Answers with the result of blocking work on the named object.
async fn work_on<T: Serialize + Send + 'static>(
    daemon: Arc<Daemon>,
    of: String,
    order: impl FnOnce(&Arc<DiskService>, &Name) -> Outcome<T> + Send + 'static,
) -> Answer<T> {
    work(move || order(&daemon.services.disk_service, &name(&of)?)).await
}

/// Does blocking work that removes the named object; the answer has no body.
async fn erase(
    daemon: Arc<Daemon>,
    of: String,
    order: impl FnOnce(&Arc<DiskService>, &Name) -> Outcome<()> + Send + 'static,
) -> Result<StatusCode, Failure> {
    os_error::blocking(move || order(&daemon.services.disk_service, &name(&of)?)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A JSON body, or a problem that describes its error. A missing body counts as the empty object.
struct Body<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Body<T>, Failure> {
        let bytes = axum::body::Bytes::from_request(request, state)
            .await
            .map_err(|error| Failure(unread(&error)))?;
        let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        serde_json::from_slice(bytes).map(Body).map_err(|error| {
            Failure(
                os_error::invalid("the request's body is invalid")
                    .because(error)
                    .remedy("/openapi.json describes the body"),
            )
        })
    }
}

/// The problem of a body that could not be read.
fn unread(error: &BytesRejection) -> Problem {
    match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_long(),
        _ => broken_off(&error.body_text()),
    }
}

/// The problem of a request body that arrived incomplete.
pub(crate) fn broken_off(why: &str) -> Problem {
    os_error::invalid("cannot read the request's body")
        .because(why)
        .remedy("send as many bytes as Content-Length says")
}

/// The problem of a request body that is longer than [`BODY`].
pub(crate) fn too_long() -> Problem {
    Problem::new(ProblemCode::TooLarge, "cannot read the request's body")
        .because(format!("it is longer than {} KiB", BODY >> 10))
        .remedy("send a shorter one: /openapi.json describes the body")
}

/// Arguments in the path.
struct Path<T>(T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Failure;

    async fn from_request_parts(
        parts: &mut axum::http::request::Parts,
        state: &S,
    ) -> Result<Path<T>, Failure> {
        let path = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        path.map(|axum::extract::Path(value)| Path(value))
            .map_err(|error| {
                Failure(
                    os_error::invalid("the request's path is invalid")
                        .because(error.body_text())
                        .remedy("/openapi.json lists all paths"),
                )
            })
    }
}

/// A name in the path.
fn name(text: &str) -> Outcome<Name> {
    text.parse().map_err(|error| {
        Problem::new(
            ProblemCode::NotFound,
            format!("there is nothing called '{text}'"),
        )
        .because_of(&error)
        .remedy("use a name from `tidegate disk list` or `tidegate datastore list`")
    })
}

/// The head of the OpenAPI document; [`routes`] adds the routes and their types.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tidegate",
        description = "Virtual disks of one host: what there is, what it does, and orders. HTTP over a Unix socket.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    components(schemas(Problem))
)]
struct Document;

/// The OpenAPI document, as `/openapi.json` serves it and `docs/` stores it.
pub(crate) fn document() -> String {
    let text = routes()
        .into_openapi()
        .to_pretty_json()
        .expect("the document is plain data");
    // OpenAPI has no wildcards: a path in the path is a parameter like others.
    let mut text = text.replace("{*", "{");
    text.push('\n');
    text
}

/// A JSON response whose text is already serialised.
fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_has_a_handler_and_every_handler_a_route() {
        let document: serde_json::Value = serde_json::from_str(&document()).unwrap();
        for (method, path) in tidegate_api::routes::ALL {
            let method = method.as_str().to_lowercase();
            assert!(
                document["paths"][path].get(&method).is_some(),
                "{method} {path}"
            );
        }
        let handlers: usize = document["paths"]
            .as_object()
            .unwrap()
            .values()
            .map(|methods| methods.as_object().unwrap().len())
            .sum();
        assert_eq!(handlers, tidegate_api::routes::ALL.len());
        assert_eq!(document["openapi"], "3.1.0");
    }
}
