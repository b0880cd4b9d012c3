//! Routes of the control tree: one node, the stream of its changes, and writes.
//!
//! A path is sent as it is, `/v1/tree/thread/0/state`, or as one encoded word, as our client does.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing;
use futures_util::stream;
use serde::Deserialize;
use tidegate_api::tree::{TreeChange, TreeNode, TreeSet};
use tokio::time::{Interval, MissedTickBehavior};
use utoipa_axum::routes;

use super::{Answer, Body, Failure, Path, Routes, Shared, State, work};
use crate::daemon::Daemon;
use crate::os_error::{self, Outcome};
use crate::tree;

/// Allowed intervals between two looks at a node that is watched.
const INTERVALS_MS: std::ops::RangeInclusive<u64> = 100..=60_000;

/// The routes of the control tree. A wildcard matches no empty path, so the root has routes of its own.
pub(super) fn routes() -> Routes {
    Routes::default()
        .route("/v1/tree", routing::get(root).put(write_root))
        .route("/v1/tree/", routing::get(root).put(write_root))
        .routes(routes!(node, write))
}

/// The query: whether changes are streamed, and how often they are looked for.
#[derive(Deserialize)]
struct Watch {
    watch: Option<String>,
    interval_ms: Option<u64>,
}

type Asked = Result<Query<Watch>, QueryRejection>;

async fn root(state: Shared, watch: Asked) -> Result<Response, Failure> {
    answer(state, String::from("/"), watch).await
}

/// The root is a directory: the tree says so, as of any other one.
async fn write_root(state: Shared, body: Body<TreeSet>) -> Answer<TreeChange> {
    write(state, Path(String::from("/")), body).await
}

/// A node of the control tree
#[utoipa::path(get, path = "/v1/tree/{*path}", tag = "tree", params(
    ("path" = String, Path, description = "Such as thread/0/state; empty for the whole tree"),
    ("watch" = Option<String>, Query, description = "Any value: the answer is a stream of server-sent events named `node`, one for each change that is seen"),
    ("interval_ms" = Option<u64>, Query, description = "How often to look for changes: 100 to 60000; 1000 if not given"),
), responses(
    (status = 200, description = "As it is now", content((TreeNode = "application/json"), (TreeNode = "text/event-stream"))),
    Failure,
))]
async fn node(state: Shared, Path(path): Path<String>, watch: Asked) -> Result<Response, Failure> {
    answer(state, path, watch).await
}

/// Writes a file of the control tree
#[utoipa::path(put, path = "/v1/tree/{*path}", tag = "tree",
    params(("path" = String, Path, description = "Such as device/db1/thread")), request_body = TreeSet, responses(
    (status = 200, description = "It took effect", body = TreeChange),
    Failure,
))]
async fn write(
    State(daemon): Shared,
    Path(path): Path<String>,
    Body(order): Body<TreeSet>,
) -> Answer<TreeChange> {
    work(move || tree::write(&*daemon, &path, &order.value)).await
}

/// The node, or the stream of its changes.
async fn answer(State(daemon): Shared, path: String, watch: Asked) -> Result<Response, Failure> {
    let bad = |why: String| {
        Failure(
            os_error::invalid("cannot read the control tree")
                .because(why)
                .remedy("/openapi.json describes the query"),
        )
    };
    let Query(asked) = watch.map_err(|error| bad(error.body_text()))?;
    let interval_ms = asked.interval_ms.unwrap_or(1_000);
    if !INTERVALS_MS.contains(&interval_ms) {
        return Err(bad(format!(
            "interval_ms is not from {} to {}",
            INTERVALS_MS.start(),
            INTERVALS_MS.end()
        )));
    }
    let first = look(&daemon, &path).await?;
    if asked.watch.is_none() {
        return Ok(Json(first).into_response());
    }
    let mut ticks = tokio::time::interval(Duration::from_millis(interval_ms));
    // A slow reader gets fewer events, not a burst of old ones.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let watcher = Watcher {
        daemon,
        path,
        ticks,
        ready: Some(first),
        last: None,
    };
    let events = stream::unfold(watcher, |mut watcher| async move {
        let event = watcher.next().await?;
        Some((Ok::<_, Infallible>(event), watcher))
    });
    Ok(Sse::new(events)
        .keep_alive(KeepAlive::default())
        .into_response())
}

async fn look(daemon: &Arc<Daemon>, path: &str) -> Outcome<TreeNode> {
    let (daemon, path) = (Arc::clone(daemon), path.to_owned());
    os_error::blocking(move || tree::read(&*daemon, &path)).await
}

/// A client that watches a node.
struct Watcher {
    daemon: Arc<Daemon>,
    path: String,
    ticks: Interval,
    /// Read, and not sent yet.
    ready: Option<TreeNode>,
    last: Option<TreeNode>,
}

impl Watcher {
    /// The next change; `None` when the node is gone or the daemon stops.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(node) = self.ready.take()
                && self.last.as_ref() != Some(&node)
            {
                let event = Event::default().event("node").json_data(&node).ok()?;
                self.last = Some(node);
                return Some(event);
            }
            tokio::select! {
                _ = self.ticks.tick() => {}
                () = self.daemon.services.stopped() => return None,
            }
            self.ready = Some(look(&self.daemon, &self.path).await.ok()?);
        }
    }
}
