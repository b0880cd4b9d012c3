//! Accepts connections to the REST interface's Unix socket, a bounded number at a time.
//!
//! Each connection has buffers, and a stream of samples has a picture of all disks. A program that opens them in a
//! loop must not exhaust the daemon's memory or descriptors. The socket's permissions decide which users may connect.
//! Among those, clients that send no whole request must not block others.
//!
//! # Always true
//! - At most [`CONNECTIONS`] are served, plus [`RESERVED`] for the superuser and the daemon's own user.
//! - A connection without a whole request is closed after [`PATIENCE`], or earlier when another client needs its
//!   place. The longest-waiting connection is closed first. A client of another user never displaces one of the
//!   superuser's.
//! - When every connection has a request in progress, a further client receives an error with the reason. This is
//!   logged once until a client is served.

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tidegate_api::problem::{Problem, ProblemCode};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::accept;
use crate::os_error;
use crate::rest;

/// Simultaneous clients of an administrator, with room to spare: a scraper, a few viewers, scripts.
const CONNECTIONS: usize = 256;

/// Places for the superuser and the daemon's own user, which other users cannot take.
const RESERVED: usize = 16;

/// How long a client may take for a whole request, including the next one on the same connection. A scraper with an
/// interval of 15 seconds does not lose its connection.
const PATIENCE: Duration = Duration::from_secs(30);

/// Minimum waiting time before a client can be displaced: the daemon may not have read yet what it has sent.
const GRACE: Duration = Duration::from_millis(250);

/// Limit of a request's head and of a connection's buffer, in bytes.
const HEAD: usize = 64 << 10;

/// Excess connections that are answered at a time; further ones are closed without an answer.
const REFUSALS: usize = 16;

/// How long an excess connection may take for the head of its request.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct ApiListener {
    listener: UnixListener,
    router: TowerToHyperService<Router>,
    places: Arc<Places>,
    patience: Duration,
    refusals: Arc<Semaphore>,
    told: bool,
}

impl ApiListener {
    pub(crate) fn new(listener: UnixListener, router: Router) -> ApiListener {
        ApiListener::with(listener, router, Places::new(CONNECTIONS, GRACE), PATIENCE)
    }

    fn with(
        listener: UnixListener,
        router: Router,
        places: Places,
        patience: Duration,
    ) -> ApiListener {
        // glossary: axum's word
        let router = router.layer(middleware::from_fn(move |request, next| {
            heed(request, next, patience)
        }));
        ApiListener {
            listener,
            router: TowerToHyperService::new(router),
            places: Arc::new(places),
            patience,
            refusals: Arc::new(Semaphore::new(REFUSALS)),
            told: false,
        }
    }

    /// Serves until `stop`, and then until the requests in progress are answered.
    pub(crate) async fn serve(mut self, stop: CancellationToken) {
        let mut open = JoinSet::new();
        loop {
            let next = accept::next("cannot handle the request", |cx| {
                self.listener.poll_accept(cx)
            });
            tokio::select! {
                (socket, _) = next => self.admit(socket, &mut open, &stop),
                Some(_) = open.join_next() => {}
                () = stop.cancelled() => break,
            }
        }
        while open.join_next().await.is_some() {}
    }

    fn admit(&mut self, socket: UnixStream, open: &mut JoinSet<()>, stop: &CancellationToken) {
        if let Some(place) = self.places.take(is_privileged(&socket)) {
            self.told = false;
            let (router, patience) = (self.router.clone(), self.patience);
            open.spawn(talk(socket, router, place, patience, stop.clone()));
            return;
        }
        if !std::mem::replace(&mut self.told, true) {
            let problem = too_many(self.places.most);
            tracing::warn!(%problem, "a connection to the REST interface is refused");
        }
        // Beyond those that can be answered, a connection is closed here.
        if let Ok(permit) = Arc::clone(&self.refusals).try_acquire_owned() {
            let problem = too_many(self.places.most);
            open.spawn(async move {
                refuse(socket, problem).await;
                drop(permit);
            });
        }
    }
}

/// Whether the peer is the superuser or the daemon's own user.
fn is_privileged(socket: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    socket
        .peer_cred()
        .is_ok_and(|peer| peer.uid() == 0 || peer.uid() == own)
}

fn too_many(most: usize) -> Problem {
    let what = "the daemon accepts no more connections for now";
    Problem::new(ProblemCode::Exhausted, what)
        .because(format!(
            "{most} connections to its REST interface are open, each with a request in progress"
        ))
        .remedy(
            "end programs that hold connections open, such as `tidegate top` or `tidegate events`, then try again",
        )
}

/// Serves one client until it closes, times out, is displaced, or the daemon stops.
async fn talk(
    socket: UnixStream,
    router: TowerToHyperService<Router>,
    place: Place,
    patience: Duration,
    stop: CancellationToken,
) {
    let place = Arc::new(place);
    let answer = service_fn(|mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&place));
        hyper::service::Service::call(&router, request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(patience)
        .max_buf_size(HEAD);
    let mut talk = pin!(http.serve_connection(TokioIo::new(socket), answer));
    // The peer's way of closing does not matter.
    tokio::select! {
        _ = talk.as_mut() => {}
        () = place.leave.cancelled() => {}
        () = stop.cancelled() => {
            // Do not wait for a client without a request.
            if place.is_at_work() {
                talk.as_mut().graceful_shutdown();
                let _ = talk.await;
            }
        }
    }
}

/// Answers one excess connection with the reason.
async fn refuse(socket: UnixStream, problem: Problem) {
    let answer = service_fn(|_: hyper::Request<Incoming>| {
        let response = rest::failure(problem.clone());
        async move { Ok::<_, std::convert::Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    http.keep_alive(false)
        .max_buf_size(HEAD)
        .timer(TokioTimer::new())
        .header_read_timeout(REFUSAL_PATIENCE);
    let refused = http.serve_connection(TokioIo::new(socket), answer);
    // The client may not read the answer either.
    let _ = tokio::time::timeout(2 * REFUSAL_PATIENCE, refused).await;
}

/// Reads a request to its end. From then on its connection has a request in progress, until the response has been
/// read.
async fn heed(request: Request, next: Next, patience: Duration) -> Response {
    let place = request.extensions().get::<Arc<Place>>().cloned();
    let (parts, body) = request.into_parts();
    let read = axum::body::to_bytes(body, rest::BODY + 1);
    let body = match tokio::time::timeout(patience, read).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) if is_too_long(&error) => return rest::failure(rest::too_long()),
        Ok(Err(error)) => return rest::failure(rest::broken_off(&error.to_string())),
        Err(_) => {
            let problem = os_error::invalid("cannot read the request's body");
            let why = format!("it did not come within {} s", patience.as_secs());
            return rest::failure(problem.because(why).remedy("send it again"));
        }
    };
    let work = place.map(Work::begin);
    let response = next.run(Request::from_parts(parts, body.into())).await;
    let (parts, body) = response.into_parts();
    Response::from_parts(parts, Body::new(Answer { body, _work: work }))
}

/// Whether reading a body failed because it is too long.
fn is_too_long(error: &axum::Error) -> bool {
    let mut error: Option<&dyn std::error::Error> = Some(error);
    while let Some(one) = error {
        if one.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        error = one.source();
    }
    false
}

/// A response's body. Its connection has a request in progress until it is dropped.
struct Answer {
    body: Body,
    _work: Option<Work>,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The connections that are served.
struct Places {
    most: usize,
    grace: Duration,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    last: u64,
    taken: BTreeMap<u64, Taken>,
}

struct Taken {
    /// Whether it belongs to the superuser or the daemon's own user.
    is_privileged: bool,
    /// Since when it has had no request in progress.
    waits: Option<Instant>,
    leave: CancellationToken,
}

/// A connection's place, until dropped.
struct Place {
    places: Arc<Places>,
    number: u64,
    /// Cancelled when another client needs the place.
    leave: CancellationToken,
}

impl Places {
    fn new(most: usize, grace: Duration) -> Places {
        Places {
            most,
            grace,
            table: Mutex::default(),
        }
    }

    /// Finds a place for one more, if necessary by displacing a client that has sent no whole request. Clients of
    /// other users are displaced first; the superuser's only for one of its own.
    fn take(self: &Arc<Places>, is_privileged: bool) -> Option<Place> {
        let most = self.most + if is_privileged { RESERVED } else { 0 };
        let mut table = self.table();
        // Waiting clients are displaced before the reserve is used.
        if table.taken.len() >= self.most {
            let waiting = table.taken.iter().filter_map(|(number, taken)| {
                let since = taken.waits.filter(|since| since.elapsed() >= self.grace)?;
                let may_go = is_privileged || !taken.is_privileged;
                may_go.then_some((taken.is_privileged, since, *number))
            });
            let first = waiting.min();
            if let Some(gone) = first.and_then(|(_, _, number)| table.taken.remove(&number)) {
                gone.leave.cancel();
            } else if table.taken.len() >= most {
                return None;
            }
        }
        table.last += 1;
        let (number, leave) = (table.last, CancellationToken::new());
        let taken = Taken {
            is_privileged,
            waits: Some(Instant::now()),
            leave: leave.clone(),
        };
        table.taken.insert(number, taken);
        Some(Place {
            places: Arc::clone(self),
            number,
            leave,
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No panic leaves it half changed.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    fn set_waits(&self, waits: Option<Instant>) {
        if let Some(taken) = self.places.table().taken.get_mut(&self.number) {
            taken.waits = waits;
        }
    }
}

impl Place {
    fn is_at_work(&self) -> bool {
        let table = self.places.table();
        let taken = table.taken.get(&self.number);
        taken.is_some_and(|taken| taken.waits.is_none())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.table().taken.remove(&self.number);
    }
}

/// Marks its connection as having a request in progress, until dropped.
struct Work(Arc<Place>);

impl Work {
    fn begin(place: Arc<Place>) -> Work {
        place.set_waits(None);
        Work(place)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.0.set_waits(Some(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing;
    use std::path::PathBuf;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::Notify;

    const ASK: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

    /// A socket with this number of places; `/hang` is answered when `go` is notified.
    struct Stage {
        path: PathBuf,
        go: Arc<Notify>,
        stop: CancellationToken,
        served: tokio::task::JoinHandle<()>,
        _place: tempfile::TempDir,
    }

    fn stage(connections: usize, grace: Duration, patience: Duration) -> Stage {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("socket");
        let go = Arc::new(Notify::new());
        let gone = Arc::clone(&go);
        let hang = move || {
            let go = Arc::clone(&gone);
            async move {
                go.notified().await;
                "went"
            }
        };
        let router = Router::new()
            .route("/", routing::get(|| async { "here" }))
            .route("/", routing::post(|body: Bytes| async { body }))
            .route("/hang", routing::get(hang));
        let listener = UnixListener::bind(&path).unwrap();
        let endpoint =
            ApiListener::with(listener, router, Places::new(connections, grace), patience);
        let stop = CancellationToken::new();
        let served = tokio::spawn(endpoint.serve(stop.clone()));
        Stage {
            path,
            go,
            stop,
            served,
            _place: place,
        }
    }

    const LONG: Duration = Duration::from_secs(3600);

    impl Stage {
        async fn send(&self, bytes: &[u8]) -> UnixStream {
            let mut socket = UnixStream::connect(&self.path).await.unwrap();
            socket.write_all(bytes).await.unwrap();
            socket
        }

        async fn ask(&self) -> String {
            heard(self.send(ASK).await).await
        }
    }

    /// Reads all bytes until the other end closes.
    async fn heard(mut socket: UnixStream) -> String {
        let mut heard = Vec::new();
        // The connection may be reset after the data was sent.
        let _ = socket.read_to_end(&mut heard).await;
        String::from_utf8(heard).unwrap()
    }

    #[tokio::test]
    async fn clients_that_send_no_whole_request_keep_nobody_out() {
        let stage = stage(4, Duration::ZERO, LONG);
        let mut halves = Vec::new();
        for half in [
            "",
            "GET / HT",
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nab",
            "",
        ] {
            halves.push(stage.send(half.as_bytes()).await);
        }
        for _ in 0..4 {
            let answer = stage.ask().await;
            assert!(
                answer.starts_with("HTTP/1.1 200") && answer.ends_with("here"),
                "{answer}"
            );
        }
        // The longest-waiting clients were displaced, one for each new client that found no room.
        assert_eq!(heard(halves.remove(0)).await, "");
    }

    #[tokio::test]
    async fn a_client_that_was_answered_and_asks_nothing_more_makes_room() {
        let stage = stage(1, Duration::ZERO, LONG);
        let mut idle = stage.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        let mut first = [0; 12];
        idle.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        let answer = stage.ask().await;
        assert!(answer.ends_with("here"), "{answer}");
        assert!(heard(idle).await.ends_with("here"));
    }

    #[tokio::test]
    async fn a_connection_too_many_is_told_so_and_there_is_room_again_when_one_ends() {
        let stage = stage(1, LONG, LONG);
        let mut busy = Vec::new();
        // The test runs as the daemon's own user, so it can use the reserve too.
        for _ in 0..=RESERVED {
            busy.push(stage.send(b"GET /hang HTTP/1.1\r\nhost: x\r\n\r\n").await);
        }
        let refused = stage.ask().await;
        assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
        assert!(
            refused.contains("connections to its REST interface"),
            "{refused}"
        );
        assert!(refused.contains("try again"), "{refused}");
        drop(busy);
        while !stage.ask().await.ends_with("here") {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn who_takes_too_long_for_a_request_is_let_go() {
        let stage = stage(4, LONG, Duration::from_millis(50));
        assert_eq!(heard(stage.send(b"").await).await, "");
        assert_eq!(heard(stage.send(b"GET / HT").await).await, "");
        let slow = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nab";
        let answer = heard(stage.send(slow.as_bytes()).await).await;
        assert!(answer.contains("did not come within"), "{answer}");
    }

    #[tokio::test]
    async fn what_is_at_work_when_the_daemon_stops_is_answered() {
        let stage = stage(4, LONG, LONG);
        let idle = stage.send(b"").await;
        let busy = stage.send(b"GET /hang HTTP/1.1\r\nhost: x\r\n\r\n").await;
        // The request is in progress once a later one has been answered.
        stage.ask().await;
        stage.stop.cancel();
        stage.go.notify_one();
        assert!(heard(busy).await.ends_with("went"));
        assert_eq!(heard(idle).await, "");
        stage.served.await.unwrap();
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_told_from_one_that_is_too_long() {
        let stage = stage(4, LONG, LONG);
        let head = |field: &str| format!("POST / HTTP/1.1\r\nhost: x\r\n{field}\r\n\r\n");
        let chunks = head("transfer-encoding: chunked") + "ZZ\r\nabc";
        let answer = heard(stage.send(chunks.as_bytes()).await).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(answer.contains("send as many bytes"), "{answer}");
        let long = head("content-length: 10000000") + &"x".repeat(rest::BODY + 2);
        let answer = heard(stage.send(long.as_bytes()).await).await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    }

    #[test]
    fn no_client_of_another_user_takes_the_place_of_one_of_the_superusers() {
        let places = Arc::new(Places::new(2, Duration::ZERO));
        let take = |is_privileged| places.take(is_privileged).map(Arc::new);
        let others = [take(false), take(false)].map(|place| place.map(Work::begin));
        assert!(others.iter().all(Option::is_some));
        let idle = take(true).expect("of the reserve");
        assert!(take(false).is_none());
        assert!(!idle.leave.is_cancelled());
        // The superuser's own clients may displace it once the reserve is used up.
        let reserved: Vec<_> = (0..RESERVED).map(|_| take(true).map(Work::begin)).collect();
        assert!(reserved.iter().all(Option::is_some) && idle.leave.is_cancelled());
        assert!(take(true).is_none());
    }

    #[test]
    fn the_superuser_finds_room_when_others_have_taken_all() {
        let places = Arc::new(Places::new(2, LONG));
        let take = |is_privileged| {
            let place = Arc::new(places.take(is_privileged)?);
            Some(Work::begin(place))
        };
        let others = [take(false), take(false)];
        assert!(others.iter().all(Option::is_some) && take(false).is_none());
        let reserved: Vec<_> = (0..RESERVED).map(|_| take(true)).collect();
        assert!(reserved.iter().all(Option::is_some) && take(true).is_none());
    }
}
