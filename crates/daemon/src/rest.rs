//! The REST interface: HTTP over a Unix socket, each route of [`routes`] with its handler, and errors as problems.
//!
//! Handlers only translate: a request becomes a call of the disk_service on a thread that may block, its answer JSON. The
//! document that describes them all is made of the same handlers ([`document`]).
//!
//! # Always true
//! - Whatever goes wrong, the answer is a [`Problem`] with a status of 400 or more: also for bad JSON and unknown paths.
//! - A body of more than [`BODY`] bytes is refused before it is read.

use std::sync::Arc;

use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{self, MethodFilter};
use axum::{Json, Router};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::routes::{self, Route};
use utoipa::OpenApi;

use crate::daemon::Daemon;
use crate::disks::disk_service::DiskService;
use crate::os_error::{self, Outcome};

pub(crate) mod api_listener;
mod daemon;
pub(crate) mod dashboard;
mod datastores;
mod disks;
mod events;
mod explain;
mod groups;
mod jobs;
mod stats;

/// The largest order: far more than any of ours needs.
pub(crate) const BODY: usize = 256 << 10;

type Shared = State<Arc<Daemon>>;

/// All routes.
pub(crate) fn router(daemon: Arc<Daemon>) -> Router {
    let router = Router::new();
    let router = add(
        router,
        routes::STATUS,
        routing::on(FILTER_GET, daemon::status),
    );
    let router = add(
        router,
        routes::OPENAPI,
        routing::on(FILTER_GET, daemon::openapi),
    );
    let router = add(
        router,
        routes::METRICS,
        routing::on(FILTER_GET, daemon::metrics),
    );
    let router = add(
        router,
        routes::DATASTORES,
        routing::on(FILTER_GET, datastores::list),
    );
    let router = add(
        router,
        routes::DATASTORE_ADD,
        routing::on(FILTER_POST, datastores::add),
    );
    let router = add(
        router,
        routes::DATASTORE,
        routing::on(FILTER_GET, datastores::show),
    );
    let router = add(
        router,
        routes::DATASTORE_SET,
        routing::on(FILTER_PATCH, datastores::set),
    );
    let router = add(
        router,
        routes::DATASTORE_REMOVE,
        routing::on(FILTER_DELETE, datastores::remove),
    );
    let router = add(router, routes::DISKS, routing::on(FILTER_GET, disks::list));
    let router = add(
        router,
        routes::DISK_CREATE,
        routing::on(FILTER_POST, disks::create),
    );
    let router = add(router, routes::DISK, routing::on(FILTER_GET, disks::show));
    let router = add(
        router,
        routes::DISK_SET,
        routing::on(FILTER_PATCH, disks::set),
    );
    let router = add(
        router,
        routes::DISK_DELETE,
        routing::on(FILTER_DELETE, disks::delete),
    );
    let router = add(
        router,
        routes::DISK_ATTACH,
        routing::on(FILTER_POST, disks::attach),
    );
    let router = add(
        router,
        routes::DISK_DETACH,
        routing::on(FILTER_POST, disks::detach),
    );
    let router = add(
        router,
        routes::DISK_RESIZE,
        routing::on(FILTER_POST, disks::resize),
    );
    let router = add(
        router,
        routes::DISK_SNIPPET,
        routing::on(FILTER_GET, disks::snippet),
    );
    let router = add(
        router,
        routes::DISK_EXPORT,
        routing::on(FILTER_POST, jobs::export),
    );
    let router = add(
        router,
        routes::DISK_IMPORT,
        routing::on(FILTER_POST, jobs::import),
    );
    let router = add(
        router,
        routes::GROUPS,
        routing::on(FILTER_GET, groups::list),
    );
    let router = add(router, routes::GROUP, routing::on(FILTER_GET, groups::show));
    let router = add(
        router,
        routes::GROUP_SET,
        routing::on(FILTER_PATCH, groups::set),
    );
    let router = add(
        router,
        routes::GROUP_REMOVE,
        routing::on(FILTER_DELETE, groups::remove),
    );
    let router = add(router, routes::JOBS, routing::on(FILTER_GET, jobs::list));
    let router = add(router, routes::JOB, routing::on(FILTER_GET, jobs::show));
    let router = add(
        router,
        routes::JOB_CANCEL,
        routing::on(FILTER_DELETE, jobs::cancel),
    );
    let router = add(
        router,
        routes::DISK_STATS,
        routing::on(FILTER_GET, stats::disk),
    );
    let router = add(
        router,
        routes::DISK_EXPLAIN,
        routing::on(FILTER_GET, explain::disk),
    );
    let router = add(
        router,
        routes::EVENTS,
        routing::on(FILTER_GET, events::stream),
    );
    let router = add(
        router,
        routes::EVENTS_KEPT,
        routing::on(FILTER_GET, events::kept),
    );
    let router = add(router, routes::STATS, routing::on(FILTER_GET, stats::all));
    let router = add(
        router,
        routes::STATS_STREAM,
        routing::on(FILTER_GET, stats::stream),
    );
    dashboard::routes(router)
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY))
        .with_state(daemon)
}

const FILTER_GET: MethodFilter = MethodFilter::GET;
const FILTER_POST: MethodFilter = MethodFilter::POST;
const FILTER_PATCH: MethodFilter = MethodFilter::PATCH;
const FILTER_DELETE: MethodFilter = MethodFilter::DELETE;

fn add<Q, A>(
    router: Router<Arc<Daemon>>,
    route: Route<Q, A>,
    handler: routing::MethodRouter<Arc<Daemon>>,
) -> Router<Arc<Daemon>> {
    router.route(route.path, handler)
}

async fn unknown(request: Request) -> Failure {
    let problem = Problem::new(
        ProblemCode::NotFound,
        format!("there is no {} {}", request.method(), request.uri().path()),
    );
    Failure(problem.remedy("see /openapi.json for what there is"))
}

/// A route is there, but not for this method. Which it is for, axum adds as `Allow`.
async fn wrong_method(request: Request) -> Failure {
    let path = request.uri().path();
    let problem = Problem::new(
        ProblemCode::WrongMethod,
        format!("{path} takes no {}", request.method()),
    );
    Failure(problem.remedy("use a method that the answer's Allow header or /openapi.json names"))
}

/// A problem as an answer.
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

/// The same for what stands before the routes.
pub(crate) fn failure(problem: Problem) -> Response {
    Failure(problem).into_response()
}

type Answer<T> = Result<Json<T>, Failure>;

/// Answers with what blocking work makes.
async fn work<T: Serialize + Send + 'static>(
    work: impl FnOnce() -> Outcome<T> + Send + 'static,
) -> Answer<T> {
    Ok(Json(os_error::blocking(work).await?))
}

/// Answers with what blocking work on the thing of a name makes.
async fn work_on<T: Serialize + Send + 'static>(
    daemon: Arc<Daemon>,
    of: String,
    order: impl FnOnce(&Arc<DiskService>, &Name) -> Outcome<T> + Send + 'static,
) -> Answer<T> {
    work(move || order(&daemon.services.disk_service, &name(&of)?)).await
}

/// Does blocking work that leaves nothing of the thing of a name to answer with.
async fn erase(
    daemon: Arc<Daemon>,
    of: String,
    order: impl FnOnce(&Arc<DiskService>, &Name) -> Outcome<()> + Send + 'static,
) -> Result<StatusCode, Failure> {
    os_error::blocking(move || order(&daemon.services.disk_service, &name(&of)?)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A JSON body, or a problem that says what is wrong with it. No body at all is the empty object.
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
                os_error::invalid("the request's body makes no sense")
                    .because(error)
                    .remedy("see /openapi.json for what is expected"),
            )
        })
    }
}

/// Why a body could not be read.
fn unread(error: &BytesRejection) -> Problem {
    match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_long(),
        _ => broken_off(&error.body_text()),
    }
}

/// A request's body did not come whole.
pub(crate) fn broken_off(why: &str) -> Problem {
    os_error::invalid("cannot read the request's body")
        .because(why)
        .remedy("send the whole body: Content-Length says how long it is")
}

/// A request's body is longer than any that makes sense.
pub(crate) fn too_long() -> Problem {
    Problem::new(ProblemCode::TooLarge, "cannot read the request's body")
        .because(format!("it is longer than {} KiB", BODY >> 10))
        .remedy("send a shorter one: see /openapi.json for what is expected")
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
                    os_error::invalid("the request's path makes no sense")
                        .because(error.body_text())
                        .remedy("see /openapi.json for what there is"),
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
        .remedy("give a name that is listed (`tidegate disk list`, `tidegate datastore list`)")
    })
}

/// The interface as OpenAPI has it.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tidegate",
        description = "Virtual disks of one host: what there is, what it does, and orders. HTTP over a Unix socket.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(
        daemon::status,
        daemon::openapi,
        daemon::metrics,
        datastores::list,
        datastores::add,
        datastores::show,
        datastores::set,
        datastores::remove,
        disks::list,
        disks::create,
        disks::show,
        disks::set,
        disks::delete,
        disks::attach,
        disks::detach,
        disks::resize,
        disks::snippet,
        groups::list,
        groups::show,
        groups::set,
        groups::remove,
        jobs::export,
        jobs::import,
        jobs::list,
        jobs::show,
        jobs::cancel,
        explain::disk,
        events::stream,
        events::kept,
        stats::disk,
        stats::all,
        stats::stream,
    ),
    components(schemas(Problem))
)]
struct Document;

/// The document, as it is served and checked in.
pub(crate) fn document() -> String {
    let mut text = Document::openapi()
        .to_pretty_json()
        .expect("the document is plain data");
    text.push('\n');
    text
}

/// The media type of JSON, for answers that are text already.
fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_documented_and_nothing_else_is() {
        let document: serde_json::Value = serde_json::from_str(&document()).unwrap();
        for (method, path) in routes::ALL {
            let method = method.as_str().to_lowercase();
            assert!(
                document["paths"][path].get(&method).is_some(),
                "{method} {path}"
            );
        }
        let told: usize = document["paths"]
            .as_object()
            .unwrap()
            .values()
            .map(|methods| methods.as_object().unwrap().len())
            .sum();
        assert_eq!(told, routes::ALL.len());
        assert_eq!(document["openapi"], "3.1.0");
    }
}
