//! Routes of the datastores' events: the stored ones, or a stream that a client can resume.
//!
//! # Source
//! WHATWG HTML, "Server-sent events": an event's number is its id. A client that reconnects sends the last id it
//! received in `Last-Event-ID`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::http::HeaderMap;
use axum::response::sse::{self, KeepAlive, Sse};
use futures_util::stream::{self, Stream};
use tidegate_api::events::{Event, EventList};
use tokio::sync::watch;
use utoipa_axum::routes;

use super::{Answer, Failure, Routes, Shared, State};
use crate::daemon::Daemon;
use crate::os_error;

/// The routes of events.
pub(super) fn routes() -> Routes {
    Routes::default()
        .routes(routes!(stream))
        .routes(routes!(kept))
}

/// What has happened on datastores
#[utoipa::path(get, path = "/v1/events/kept", tag = "events", responses(
    (status = 200, description = "The latest thousand", body = EventList),
    Failure,
))]
async fn kept(State(daemon): Shared) -> Answer<EventList> {
    // Those of the last second are not there yet.
    daemon.monitor.gather_decisions();
    let events = daemon.monitor.journal().since(0);
    Ok(Json(EventList { events }))
}

/// What happens on datastores, live: server-sent events named `event`, first those that are kept
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(("Last-Event-ID" = Option<u64>, Header, description = "Only those after this number")), responses(
    (status = 200, description = "Events until the client goes", body = Event, content_type = "text/event-stream"),
    Failure,
))]
async fn stream(
    State(daemon): Shared,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>>>, Failure> {
    let bad = || {
        Failure(
            os_error::invalid("cannot stream events")
                .because("Last-Event-ID is not the number of an event")
                .remedy("omit it, or send the id of the last event received"),
        )
    };
    let last = match headers.get("last-event-id") {
        None => 0,
        Some(id) => {
            let id = id.to_str().map_err(|_| bad())?;
            id.trim().parse().map_err(|_| bad())?
        }
    };
    let listener = Listener {
        latest: daemon.monitor.journal().latest(),
        daemon,
        last,
        ready: VecDeque::new(),
    };
    let events = stream::unfold(listener, |mut listener| async move {
        let event = listener.next().await?;
        Some((Ok(event), listener))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

/// A client that reads the stream.
struct Listener {
    daemon: Arc<Daemon>,
    latest: watch::Receiver<u64>,
    /// The number of the last event that was sent to it.
    last: u64,
    ready: VecDeque<Event>,
}

impl Listener {
    /// The next event; `None` when the daemon stops.
    async fn next(&mut self) -> Option<sse::Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.last = event.number;
                let told = sse::Event::default()
                    .event("event")
                    .id(event.number.to_string());
                return told.json_data(event).ok();
            }
            // Marked as seen before it is read: an event that arrives meanwhile is another change.
            self.latest.borrow_and_update();
            self.ready = self.daemon.monitor.journal().since(self.last).into();
            if self.ready.is_empty() {
                tokio::select! {
                    changed = self.latest.changed() => changed.ok()?,
                    () = self.daemon.services.stopped() => return None,
                }
            }
        }
    }
}
