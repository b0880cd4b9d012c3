//! The route that explains what limits a disk.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use serde::Deserialize;
use tidegate_api::explain::Explanation;
use tidegate_api::units;
use tidegate_core::units::Span;
use utoipa_axum::routes;

use super::{Answer, Failure, Path, Routes, Shared, State, name, work};
use crate::observe::explain::timeline::REACH;
use crate::os_error;

/// The routes of explanations.
pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(disk))
}

/// The shortest span: less has too few samples.
const LEAST: Span = Span::from_secs(1);
/// The default span: long enough for a mean, short enough to be current.
const USUAL: Span = Span::from_secs(30);

/// The query: the span to judge.
#[derive(Deserialize)]
struct Last {
    last: Option<String>,
}

/// Why a disk is as fast as it is
#[utoipa::path(get, path = "/v1/disks/{name}/explain", tag = "stats", params(("name" = String, Path),
    ("last" = Option<String>, Query, description = "By what it did in this time: 1s to 5min; 30s if not given")),
    responses(
    (status = 200, description = "What limits it, the numbers behind that, and what would change it", body = Explanation),
    Failure,
))]
async fn disk(
    State(daemon): Shared,
    Path(of): Path<String>,
    last: Result<Query<Last>, QueryRejection>,
) -> Answer<Explanation> {
    let bad = |why: String| {
        Failure(
            os_error::invalid("cannot explain the disk")
                .because(why)
                .remedy("use last=30s, or any time from 1s to 5min"),
        )
    };
    let Query(Last { last }) = last.map_err(|error| bad(error.body_text()))?;
    let last = match last {
        None => USUAL,
        Some(text) => {
            let span: units::Span = text.parse().map_err(|e| bad(format!("last: {e}")))?;
            Span::from_nanos(span.0)
        }
    };
    if !(LEAST..=REACH).contains(&last) {
        return Err(bad(
            "last is less than a second or more than five minutes".to_owned()
        ));
    }
    work(move || daemon.monitor.explain(&name(&of)?, last)).await
}
