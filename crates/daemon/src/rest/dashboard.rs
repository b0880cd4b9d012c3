//! Routes of the dashboard: its pages, their live data, the last minutes, and the one change that pages can make.
//!
//! These routes are private to the pages, change with them, and are in no document. Programs use the REST interface.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body as HttpBody;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query};
use axum::http::header;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing;
use futures_util::stream;
use serde::{Deserialize, Serialize};
use tidegate_api::disk::{Disk, DiskSet, PolicySet, Unpromised};
use tokio::sync::watch;

use super::{Answer, Body, Failure, Path, Shared, State, name, unknown, work, work_on};
use crate::daemon::Daemon;
use crate::observe::dashboard::feed::{Frame, event};
use crate::observe::dashboard::files::{FILES, File};
use crate::observe::dashboard::history;
use crate::observe::dashboard::history::History;
use crate::observe::dashboard::host_sample;
use crate::os_error;

mod guard;
pub(crate) mod listener;
mod peer_uid;

use guard::May;

/// The dashboard's routes, which the OpenAPI document does not describe.
pub(super) fn routes() -> Router<Arc<Daemon>> {
    Router::new()
        .route("/", routing::get(page))
        .route("/dashboard", routing::get(home))
        .route("/dashboard/stream", routing::get(live))
        .route("/dashboard/past", routing::get(before))
        .route("/dashboard/disks/{name}/policy", routing::patch(policy))
        .route("/dashboard/{file}", routing::get(file))
}

async fn page() -> Response {
    (&FILES[0]).into_response()
}

async fn home() -> Redirect {
    Redirect::permanent("/")
}

async fn file(Path(name): Path<String>, request: axum::extract::Request) -> Response {
    match File::find(&name) {
        Some(file) => file.into_response(),
        None => unknown(request).await.into_response(),
    }
}

/// The query of a page's stream.
#[derive(Deserialize)]
struct Wish {
    /// The disk whose page is open, if any.
    disk: Option<String>,
    /// The last event that the page has.
    after: Option<u64>,
}

/// The first message of the stream.
#[derive(Serialize)]
struct Hello {
    version: &'static str,
    pid: u32,
    /// Milliseconds since 1970, by this host's clock.
    at: u64,
    may: May,
    columns: Columns,
}

/// The columns of the rows.
#[derive(Serialize)]
struct Columns {
    threads: &'static [&'static str],
    datastores: &'static [&'static str],
    hosts: &'static [&'static str],
    others: &'static [&'static str],
    disks: &'static [&'static str],
    did: &'static [&'static str],
    past: &'static [&'static str],
    level: &'static [&'static str],
}

/// Streams all live data on one connection, because browsers limit their number.
async fn live(
    State(daemon): Shared,
    may: Option<Extension<May>>,
    wish: Result<Query<Wish>, QueryRejection>,
) -> Result<Response, Failure> {
    let bad = |why: String| {
        Failure(
            os_error::invalid("cannot stream")
                .because(why)
                .remedy("reload the page: it may be from another version"),
        )
    };
    let Query(wish) = wish.map_err(|error| bad(error.body_text()))?;
    let disk = wish.disk.as_deref().map(name).transpose()?;
    let hello = Hello {
        version: env!("CARGO_PKG_VERSION"),
        pid: std::process::id(),
        at: host_sample::now_ms(),
        may: may.map_or(May::Change, |Extension(may)| may),
        columns: Columns {
            threads: &host_sample::THREADS,
            datastores: &host_sample::DATASTORES,
            hosts: &host_sample::HOSTS,
            others: &host_sample::OTHERS,
            disks: &host_sample::DISKS,
            did: &host_sample::DID,
            past: &history::PAST,
            level: &history::LEVEL,
        },
    };
    let mut happened = daemon.monitor.journal().latest();
    happened.mark_changed();
    let watcher = Watcher {
        host: daemon.dashboard.watch(),
        disk: disk.map(|disk| daemon.dashboard.watch_disk(&disk)),
        happened,
        last: wish.after.unwrap_or(0),
        ready: VecDeque::from([event("hello", &hello)]),
        daemon,
    };
    let frames = stream::unfold(watcher, |mut watcher| async move {
        let frame = watcher.next().await?;
        Some((Ok::<_, Infallible>(frame), watcher))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, HttpBody::from_stream(frames)).into_response())
}

/// An open page.
struct Watcher {
    daemon: Arc<Daemon>,
    host: watch::Receiver<Frame>,
    disk: Option<watch::Receiver<Frame>>,
    happened: watch::Receiver<u64>,
    /// The number of the last event that was sent to it.
    last: u64,
    ready: VecDeque<Frame>,
}

impl Watcher {
    /// The next frame to send; `None` when the daemon stops.
    async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(frame);
            }
            let disk = async {
                match self.disk.as_mut() {
                    Some(disk) => disk.changed().await,
                    None => std::future::pending().await,
                }
            };
            let frame = tokio::select! {
                changed = self.host.changed() => {
                    changed.ok()?;
                    self.host.borrow_and_update().clone()
                }
                changed = disk => {
                    changed.ok()?;
                    self.disk.as_mut()?.borrow_and_update().clone()
                }
                changed = self.happened.changed() => {
                    changed.ok()?;
                    // Marked as seen before it is read: an event that arrives meanwhile is another change.
                    self.happened.borrow_and_update();
                    let events = self.daemon.monitor.journal().since(self.last);
                    let Some(latest) = events.last() else { continue };
                    self.last = latest.number;
                    event("events", &events)
                }
                () = self.daemon.services.stopped() => return None,
            };
            // Empty: there was no sample yet.
            if !frame.is_empty() {
                self.ready.push_back(frame);
            }
        }
    }
}

/// The query: the disk or datastore whose history is requested.
#[derive(Deserialize)]
struct Whose {
    disk: Option<String>,
    datastore: Option<String>,
}

/// The last minutes of a disk or a datastore.
async fn before(
    State(daemon): Shared,
    whose: Result<Query<Whose>, QueryRejection>,
) -> Answer<History> {
    let bad = |why: String| {
        Failure(
            os_error::invalid("cannot show the history")
                .because(why)
                .remedy("reload the page: it may be from another version"),
        )
    };
    let Query(whose) = whose.map_err(|error| bad(error.body_text()))?;
    work(move || match (whose.disk, whose.datastore) {
        (Some(disk), None) => daemon.monitor.history_of_disk(&name(&disk)?),
        (None, Some(datastore)) => Ok(daemon.monitor.history_of_datastore(&name(&datastore)?)),
        _ => Err(os_error::invalid("cannot show the history")
            .because("name either a disk or a datastore")
            .remedy("use disk=NAME or datastore=NAME")),
    })
    .await
}

/// Changes to a disk's policy only.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Terms {
    policy: PolicySet,
    #[serde(default)]
    unpromised: Unpromised,
}

async fn policy(
    State(daemon): Shared,
    Path(of): Path<String>,
    Body(terms): Body<Terms>,
) -> Answer<Disk> {
    let order = DiskSet {
        policy: Some(terms.policy),
        unpromised: terms.unpromised,
        ..DiskSet::default()
    };
    work_on(daemon, of, move |disk_service, name| {
        disk_service.set(name, &order)
    })
    .await
}
