//! The REST client: one connection to the daemon's Unix socket for each request.
//!
//! Verbs call [`Client::look`], [`Client::order`], [`Client::erase`] and [`Client::stream`] with a route of
//! `tidegate_api::routes`, so that path, question and answer always belong together. Nothing here knows what they
//! mean.
//!
//! # Always true
//! - A failure to reach the daemon is [`Failure::Unreachable`]; whatever it answers that is not a success is
//!   [`Failure::Failed`], as the daemon told it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::routes::{Method, Nothing, Route};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

use crate::failure::Failure;

mod events;

pub(crate) use events::Stream;

/// How long a look may take: the daemon answers from memory, so this long means that it hangs.
const LOOK: Duration = Duration::from_secs(20);

/// How long an order may take. Allocating a thick disk on a slow file system takes minutes; people can interrupt.
const ORDER: Duration = Duration::from_secs(3600);

/// How long shell completion waits: a person is in the middle of a word.
const GLANCE: Duration = Duration::from_millis(300);

/// A way to the daemon. Nothing is connected until something is asked.
#[derive(Debug)]
pub(crate) struct Client {
    socket: PathBuf,
    runtime: Runtime,
}

impl Client {
    /// To the daemon that listens at `socket`.
    pub(crate) fn new(socket: PathBuf) -> Result<Client, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Failure::io("cannot wait for input and output", &e))?;
        Ok(Client { socket, runtime })
    }

    /// The socket that it speaks to.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The user that the daemon runs as.
    pub(crate) fn daemon_user(&self) -> Result<u32, Failure> {
        let asked = async {
            let stream = UnixStream::connect(&self.socket)
                .await
                .map_err(|e| cannot_connect(&self.socket, &e))?;
            let peer = stream.peer_cred();
            peer.map(|peer| peer.uid())
                .map_err(|e| Failure::io("cannot learn as which user the daemon runs", &e))
        };
        self.within(LOOK, asked)
    }

    /// Asks without changing anything (or with nothing to say but the path).
    pub(crate) fn look<A: DeserializeOwned>(
        &self,
        route: Route<Nothing, A>,
        arguments: &[&str],
    ) -> Result<A, Failure> {
        self.answer(&self.exchange(route.method, &route.url(arguments), None, LOOK)?)
    }

    /// The same, with a query: `key=value`.
    pub(crate) fn look_by<A: DeserializeOwned>(
        &self,
        route: Route<Nothing, A>,
        arguments: &[&str],
        query: &str,
    ) -> Result<A, Failure> {
        let url = format!("{}?{query}", route.url(arguments));
        self.answer(&self.exchange(route.method, &url, None, LOOK)?)
    }

    /// The same for shell completion, which would rather have nothing than wait.
    pub(crate) fn glance<A: DeserializeOwned>(
        &self,
        route: Route<Nothing, A>,
    ) -> Result<A, Failure> {
        self.glance_at(route, &[])
    }

    /// The same for a route with arguments.
    pub(crate) fn glance_at<A: DeserializeOwned>(
        &self,
        route: Route<Nothing, A>,
        arguments: &[&str],
    ) -> Result<A, Failure> {
        self.answer(&self.exchange(route.method, &route.url(arguments), None, GLANCE)?)
    }

    /// Gives an order and returns what came of it.
    pub(crate) fn order<Q: Serialize, A: DeserializeOwned>(
        &self,
        route: Route<Q, A>,
        arguments: &[&str],
        order: &Q,
    ) -> Result<A, Failure> {
        let body = serde_json::to_vec(order)
            .map_err(|e| Failure::io("cannot write the order as JSON", &io::Error::other(e)))?;
        self.answer(&self.exchange(route.method, &route.url(arguments), Some(body), ORDER)?)
    }

    /// Has something deleted. The answer is empty.
    pub(crate) fn erase(
        &self,
        route: Route<Nothing, Nothing>,
        arguments: &[&str],
    ) -> Result<(), Failure> {
        self.exchange(route.method, &route.url(arguments), None, ORDER)
            .map(drop)
    }

    /// The same, with a query: `key=value`.
    pub(crate) fn erase_by(
        &self,
        route: Route<Nothing, Nothing>,
        arguments: &[&str],
        query: &str,
    ) -> Result<(), Failure> {
        let url = format!("{}?{query}", route.url(arguments));
        self.exchange(route.method, &url, None, ORDER).map(drop)
    }

    /// Opens a stream of server-sent events; it owns this client from then on. `query` may be empty.
    pub(crate) fn stream<A: DeserializeOwned>(
        self,
        route: Route<Nothing, A>,
        query: &str,
        patience: Duration,
    ) -> Result<Stream<A>, Failure> {
        self.stream_of(route, &[], query, patience)
    }

    /// The same for a route with arguments.
    pub(crate) fn stream_of<A: DeserializeOwned>(
        self,
        route: Route<Nothing, A>,
        arguments: &[&str],
        query: &str,
        patience: Duration,
    ) -> Result<Stream<A>, Failure> {
        let url = match query {
            "" => route.url(arguments),
            query => format!("{}?{query}", route.url(arguments)),
        };
        let opened = async {
            success(
                send(&self.socket, route.method, &url, None).await?,
                &self.socket,
            )
            .await
        };
        let response = self.within(LOOK, opened)?;
        Ok(Stream::new(self, response.into_body(), patience))
    }

    fn exchange(
        &self,
        method: Method,
        url: &str,
        body: Option<Vec<u8>>,
        patience: Duration,
    ) -> Result<Bytes, Failure> {
        let exchanged = async {
            let response =
                success(send(&self.socket, method, url, body).await?, &self.socket).await?;
            whole(response, &self.socket).await
        };
        self.within(patience, exchanged)
    }

    /// Waits for `work`, but no longer than `patience`.
    fn within<T>(
        &self,
        patience: Duration,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let waited = self
            .runtime
            .block_on(async { tokio::time::timeout(patience, work).await });
        waited.unwrap_or_else(|_| {
            Err(Failure::Unreachable(
                unreachable(&self.socket)
                    .because(format!(
                        "it did not answer within {} ms",
                        patience.as_millis()
                    ))
                    .remedy("it seems to hang: see its log (journalctl -u tidegate)"),
            ))
        })
    }

    fn answer<A: DeserializeOwned>(&self, body: &[u8]) -> Result<A, Failure> {
        serde_json::from_slice(body).map_err(|error| {
            Failure::Failed(
                Problem::new(
                    ProblemCode::Internal,
                    "cannot understand the daemon's answer",
                )
                .because(error)
                .remedy("use a tidegate of the daemon's own version; `tidegate status` tells it"),
            )
        })
    }
}

async fn send(
    socket: &Path,
    method: Method,
    url: &str,
    body: Option<Vec<u8>>,
) -> Result<Response<Incoming>, Failure> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|e| cannot_connect(socket, &e))?;
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(|e| broken_off(socket, &e))?;
    // The connection's own end is told by the answer's body, or by its absence.
    tokio::spawn(async { drop(connection.await) });
    let request = Request::builder()
        .method(method.as_str())
        .uri(url)
        .header("host", "localhost")
        .header(
            "user-agent",
            concat!("tidegate/", env!("CARGO_PKG_VERSION")),
        )
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.unwrap_or_default())))
        .expect("routes make valid requests");
    match sender.send_request(request).await {
                // A daemon that died meanwhile sends no greeting.
        Err(_) if greets_as_nbd(socket).await => {
            Err(Failure::Unreachable(
                unreachable(socket)
                    .because("NBD is spoken there, and no REST")
                    .remedy(
                        "name the REST socket: `tidegate serve` prints it; run/tidegate.sock below the daemon's root unless configured",
                    ),
            ))
        }
        answered => answered.map_err(|e| broken_off(socket, &e)),
    }
}

/// Whether an NBD server listens there: it speaks first.
async fn greets_as_nbd(socket: &Path) -> bool {
    let greeting = async {
        let mut stream = UnixStream::connect(socket).await?;
        let mut magic = [0; 8];
        stream.read_exact(&mut magic).await?;
        Ok::<_, io::Error>(magic)
    };
    let greeting = tokio::time::timeout(GLANCE, greeting).await;
    matches!(greeting, Ok(Ok(magic)) if &magic == b"NBDMAGIC")
}

/// The response if it is a success, else the problem in it.
async fn success(
    response: Response<Incoming>,
    socket: &Path,
) -> Result<Response<Incoming>, Failure> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let body = whole(response, socket).await?;
    let problem = serde_json::from_slice(&body).unwrap_or_else(|_| strange(status, &body, socket));
    Err(Failure::Failed(problem))
}

async fn whole(response: Response<Incoming>, socket: &Path) -> Result<Bytes, Failure> {
    let collected = response.into_body().collect().await;
    collected
        .map(http_body_util::Collected::to_bytes)
        .map_err(|e| broken_off(socket, &e))
}

fn unreachable(socket: &Path) -> Problem {
    Problem::new(
        ProblemCode::Internal,
        format!("cannot reach the daemon at {}", socket.display()),
    )
}

fn cannot_connect(socket: &Path, error: &io::Error) -> Failure {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "be root or in the socket's group, or name another daemon's root with --root DIR or its socket with --socket PATH"
        }
        _ => {
            "is the daemon running? start it with `tidegate serve`; if it has another root, name that with --root DIR, or its socket with --socket PATH"
        }
    };
    Failure::Unreachable(unreachable(socket).because(error).remedy(remedy))
}

fn broken_off(socket: &Path, error: &hyper::Error) -> Failure {
    Failure::Unreachable(
        Problem::new(
            ProblemCode::Internal,
            "lost the daemon before it had answered",
        )
        .because_of(error)
        .because(format!("the socket was {}", socket.display()))
        .remedy("try again; if that fails too, its log says whether it ended or had too many connections (journalctl -u tidegate)"),
    )
}

/// An error that our daemon would not send: something else listens there.
fn strange(status: StatusCode, body: &[u8], socket: &Path) -> Problem {
    let text: String = String::from_utf8_lossy(body).chars().take(200).collect();
    Problem::new(
        ProblemCode::Internal,
        format!("{} answered with HTTP status {status}", socket.display()),
    )
    .because(if text.trim().is_empty() {
        "it said nothing more"
    } else {
        text.trim()
    })
    .remedy("make sure that a tidegate daemon of this version listens there")
}
