//! Routes of statistics of disks and I/O threads: one sample, or a stream of them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Query;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream};
use serde::Deserialize;
use tidegate_api::curve::DiskCurve;
use tidegate_api::stats::{DiskStats, Sample};
use tokio::time::{Interval, MissedTickBehavior};
use utoipa_axum::routes;

use super::{Answer, Failure, Path, Routes, Shared, State, name, work};
use crate::daemon::Daemon;
use crate::observe::counters::Counters;
use crate::os_error::{self, Outcome};

/// The routes of statistics.
pub(super) fn routes() -> Routes {
    Routes::default()
        .routes(routes!(disk))
        .routes(routes!(curve))
        .routes(routes!(all))
        .routes(routes!(stream))
}

/// Allowed intervals of a stream: fast enough for any viewer, slow enough not to load the I/O threads.
const INTERVALS_MS: std::ops::RangeInclusive<u64> = 100..=60_000;

/// What a disk has done since it was attached
#[utoipa::path(get, path = "/v1/disks/{name}/stats", tag = "stats", params(("name" = String, Path)), responses(
    (status = 200, description = "Counters, rates and latencies", body = DiskStats),
    Failure,
))]
async fn disk(State(daemon): Shared, Path(of): Path<String>) -> Answer<DiskStats> {
    work(move || daemon.services.disk_stats(&name(&of)?)).await
}

/// What a flash cache of each size would miss of a disk's reads and writes
#[utoipa::path(get, path = "/v1/disks/{name}/curve", tag = "stats", params(("name" = String, Path)), responses(
    (status = 200, description = "The miss-ratio curve since the disk was attached, and whether to rely on it", body = DiskCurve),
    Failure,
))]
async fn curve(State(daemon): Shared, Path(of): Path<String>) -> Answer<DiskCurve> {
    work(move || daemon.services.disk_curve(&name(&of)?)).await
}

/// What all disks and I/O threads have done since they began
#[utoipa::path(get, path = "/v1/stats", tag = "stats", responses(
    (status = 200, description = "Everything at one moment", body = Sample),
    Failure,
))]
async fn all(State(daemon): Shared) -> Answer<Sample> {
    work(move || Ok(daemon.services.counters()?.sample(None))).await
}

/// The query: the interval of a stream.
#[derive(Deserialize)]
struct Often {
    interval_ms: Option<u64>,
}

/// The same, live: server-sent events named `sample`, each over the time since the one before
#[utoipa::path(get, path = "/v1/stats/stream", tag = "stats",
    params(("interval_ms" = Option<u64>, Query, description = "How often: 100 to 60000; 1000 if not given")), responses(
    (status = 200, description = "Events until the client goes", body = Sample, content_type = "text/event-stream"),
    Failure,
))]
async fn stream(
    State(daemon): Shared,
    often: Result<Query<Often>, axum::extract::rejection::QueryRejection>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Failure> {
    let bad = |why: String| {
        Failure(
            os_error::invalid("cannot stream statistics")
                .because(why)
                .remedy("/openapi.json describes the query"),
        )
    };
    let Query(often) = often.map_err(|error| bad(error.body_text()))?;
    let interval_ms = often.interval_ms.unwrap_or(1_000);
    if !INTERVALS_MS.contains(&interval_ms) {
        return Err(bad(format!(
            "interval_ms is not from {} to {}",
            INTERVALS_MS.start(),
            INTERVALS_MS.end()
        )));
    }
    let mut ticks = tokio::time::interval(Duration::from_millis(interval_ms));
    // A slow reader gets fewer and longer samples, not a burst of old ones.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let first = moment(&daemon).await?;
    let events = stream::unfold(
        (daemon, ticks, first),
        |(daemon, mut ticks, before)| async move {
            let (now, event) = next(&daemon, &mut ticks, &before).await?;
            Some((Ok(event), (daemon, ticks, now)))
        },
    );
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

/// The next sample when it is due; `None` when the daemon stops.
async fn next(
    daemon: &Arc<Daemon>,
    ticks: &mut Interval,
    before: &Counters,
) -> Option<(Counters, Event)> {
    tokio::select! {
        _ = ticks.tick() => {}
        () = daemon.services.stopped() => return None,
    }
    let now = moment(daemon).await.ok()?;
    let event = Event::default()
        .event("sample")
        .json_data(now.sample(Some(before)))
        .ok()?;
    Some((now, event))
}

async fn moment(daemon: &Arc<Daemon>) -> Outcome<Counters> {
    let daemon = Arc::clone(daemon);
    os_error::blocking(move || daemon.services.counters()).await
}
