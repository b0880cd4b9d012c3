//! The guard of the dashboard's address: which clients it admits, and which changes they may make.
//!
//! The REST interface's socket has file permissions; a TCP port has none. Any page of any site in a browser can send
//! requests to it. So each request is checked here before it reaches a route.
//!
//! # Always true
//! - Without a token the address is loopback, and a request's `Host` is `localhost` or an IP address. A name that an
//!   attacker has pointed at us (DNS rebinding) is refused.
//! - With a token, only the pages themselves are served before login, and metrics to clients with the metrics token.
//!   Tokens and sessions are compared in constant time for a given length.
//! - Requests that another site's page caused are refused, by `Origin` and `Sec-Fetch-Site`. Every change also needs a
//!   header that a page cannot send to another site without permission.
//! - Only a disk's policy can be changed. Without a token, this requires a process of the superuser or of the daemon's
//!   own user, as reported by the kernel. Other users of this host have read access.
//! - A connection has an owner only while a process has its other end open. For a closed or half-closed end, the
//!   kernel reports no user or user 0.
//!
//! # Source
//! W3C, Fetch Metadata Request Headers; RFC 6265bis, `SameSite`.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next; // glossary: axum's
use axum::response::{IntoResponse, Response};
use axum::{Json, body};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use tidegate_api::problem::{Problem, ProblemCode};

use super::peer_uid::owner;
use crate::observe::dashboard::files::{File, guarded};
use crate::os_error::{self, Outcome};

/// Time limit for each thing that a client sends; see the module.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The two addresses of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientAddress {
    pub(crate) peer: SocketAddr,
    /// The daemon's end.
    pub(crate) here: SocketAddr,
}

/// The header that every change must have; its value does not matter.
const HEADER: &str = "x-tidegate";

/// Paths of login and logout. Only this file knows these routes.
const LOGIN: &str = "/dashboard/login";
const LOGOUT: &str = "/dashboard/logout";

/// The path that Prometheus reads.
const METRICS: &str = "/metrics";

const COOKIE: &str = "tidegate";

/// A working day: a browser that stays open overnight must log in again.
const SESSION: Duration = Duration::from_secs(12 * 3600);

/// The most sessions at a time; the oldest one is removed for a new one.
const SESSIONS: usize = 64;

/// A token shorter than this can be guessed.
const TOKEN_MIN: usize = 16;

/// The largest token file that is read.
const TOKEN_MAX: u64 = 4096;

/// The largest body of a login or change that is read: a policy has a few hundred bytes.
const BODY_MAX: usize = 4096;

/// The delay after a wrong token.
const WRONG: Duration = Duration::from_secs(1);

/// The checks on clients that connect by TCP.
pub(crate) struct Guard {
    token: Option<Vec<u8>>,
    /// The token that allows reading metrics, and nothing else.
    metrics_token: Option<Vec<u8>>,
    /// Whether the connection is encrypted: then the cookie is never sent over an unencrypted one.
    encrypted: bool,
    sessions: Mutex<VecDeque<(Vec<u8>, Instant)>>,
}

/// The permission of a client, which the routes behind the guard read. A client on the Unix socket has none and may do
/// everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum May {
    /// Read, and change policies.
    Change,
    /// Read only.
    Look,
}

#[derive(Deserialize)]
struct Login {
    token: String,
}

/// The reason why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Refusal {
    /// Refused for every client; the reason.
    Refused(String),
    /// Its body is longer than allowed.
    TooLarge,
    /// The client has not logged in.
    Unknown,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Refusal::Refused(why) => {
                let told = Problem::new(ProblemCode::Invalid, "the request is refused");
                problem(StatusCode::FORBIDDEN, told.because(why))
            }
            Refusal::TooLarge => {
                let told = Problem::new(ProblemCode::TooLarge, "the request is refused");
                let why = format!("its body is longer than {BODY_MAX} bytes");
                problem(StatusCode::PAYLOAD_TOO_LARGE, told.because(why))
            }
            Refusal::Unknown => {
                let told = Problem::new(ProblemCode::Invalid, "nobody is logged in");
                let told = told.remedy(
                    "log in with the token that the daemon's configuration names (dashboard.token_file); Prometheus reads /metrics with that of dashboard.metrics_token_file",
                );
                problem(StatusCode::UNAUTHORIZED, told)
            }
        }
    }
}

impl Guard {
    /// A guard that admits clients of this host or, with a token, clients that log in with it.
    pub(crate) fn new(token: Option<Vec<u8>>, encrypted: bool) -> Guard {
        Guard {
            token,
            metrics_token: None,
            encrypted,
            sessions: Mutex::default(),
        }
    }

    /// The same guard, which also admits clients with this token to metrics without a login.
    #[must_use]
    pub(crate) fn with_metrics_token(self, metrics_token: Option<Vec<u8>>) -> Guard {
        Guard {
            metrics_token,
            ..self
        }
    }

    /// Judges a request by its head, before it is executed.
    fn judge(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = one(headers, header::HOST).ok_or_else(|| refused("it has no Host header"))?;
        if self.token.is_none() && !is_plain(host) {
            return Err(refused(format!(
                "it was sent to '{host}': without a token the dashboard answers to localhost and to IP addresses only"
            )));
        }
        let looks = *method == Method::GET || *method == Method::HEAD;
        let site = one(headers, "sec-fetch-site");
        // A link or a bookmark elsewhere may lead only to the page itself.
        let arrives = looks && path == "/" && one(headers, "sec-fetch-mode") == Some("navigate");
        if !arrives && site.is_some_and(|site| site != "same-origin" && site != "none") {
            return Err(refused("a page of another site sent it"));
        }
        if headers.contains_key(header::ORIGIN) && !is_ours(headers, host) {
            return Err(refused("a page of another site sent it"));
        }
        if !looks && !headers.contains_key(HEADER) {
            return Err(refused(format!("it has no header {HEADER}")));
        }
        if !looks && path != LOGIN && path != LOGOUT && !is_policy(method, path) {
            return Err(refused(
                "the dashboard's address can change disks' policies only: use the tidegate program, or the REST \
                 interface's socket",
            ));
        }
        if self.is_known(headers)
            || looks && (is_public(path) || self.may_scrape(path, headers))
            || path == LOGIN
        {
            Ok(())
        } else {
            Err(Refusal::Unknown)
        }
    }

    /// Whether this client needs no login, or has logged in.
    fn is_known(&self, headers: &HeaderMap) -> bool {
        if self.token.is_none() {
            return true;
        }
        let Some(told) = cookie(headers) else {
            return false;
        };
        let mut sessions = self.sessions();
        sessions.retain(|(_, since)| since.elapsed() < SESSION);
        let same = |(session, _): &(Vec<u8>, Instant)| is_same(session, told.as_bytes());
        sessions.iter().any(same)
    }

    /// Whether this is Prometheus with its own token.
    fn may_scrape(&self, path: &str, headers: &HeaderMap) -> bool {
        let told =
            one(headers, header::AUTHORIZATION).and_then(|told| told.strip_prefix("Bearer "));
        path == METRICS
            && self
                .metrics_token
                .as_ref()
                .zip(told)
                .is_some_and(|(token, told)| is_same(token, told.as_bytes()))
    }

    /// The permission of a client without a token. Queries the kernel about the connection, so it may block.
    fn may(&self, client: &ClientAddress) -> May {
        if self.token.is_some() {
            return May::Change;
        }
        let owner = owner(client.peer, client.here);
        let trusted = [0, rustix::process::geteuid().as_raw()];
        match owner.is_some_and(|owner| trusted.contains(&owner)) {
            true => May::Change,
            false => May::Look,
        }
    }

    async fn login(&self, client: &ClientAddress, request: Request) -> Response {
        let Some(token) = &self.token else {
            return StatusCode::NO_CONTENT.into_response();
        };
        let told = body::to_bytes(request.into_body(), BODY_MAX).await;
        let told = told
            .ok()
            .and_then(|told| serde_json::from_slice(&told).ok());
        let told: Login = told.unwrap_or(Login {
            token: String::new(),
        });
        if !is_same(token, told.token.trim().as_bytes()) {
            tracing::warn!(peer = %client.peer, "a login to the dashboard with a wrong token");
            tokio::time::sleep(WRONG).await;
            return Refusal::Unknown.into_response();
        }
        let session = match secret() {
            Ok(session) => session,
            Err(trouble) => return problem(StatusCode::SERVICE_UNAVAILABLE, trouble),
        };
        let mut sessions = self.sessions();
        if sessions.len() >= SESSIONS {
            sessions.pop_front();
        }
        sessions.push_back((session.clone().into_bytes(), Instant::now()));
        drop(sessions);
        tracing::info!(peer = %client.peer, "logged in to the dashboard");
        self.with_cookie(&session, SESSION)
    }

    fn logout(&self, headers: &HeaderMap) -> Response {
        if let Some(told) = cookie(headers) {
            let mut sessions = self.sessions();
            sessions.retain(|(session, _)| !is_same(session, told.as_bytes()));
        }
        self.with_cookie("", Duration::ZERO)
    }

    fn with_cookie(&self, session: &str, lasts: Duration) -> Response {
        let secure = if self.encrypted { "; Secure" } else { "" };
        let cookie = format!(
            "{COOKIE}={session}; HttpOnly; SameSite=Strict; Path=/; Max-Age={}{secure}",
            lasts.as_secs()
        );
        (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response()
    }

    fn sessions(&self) -> MutexGuard<'_, VecDeque<(Vec<u8>, Instant)>> {
        // No panic leaves it half changed.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks every request of the dashboard's address before its route.
pub(crate) async fn check(
    State(guard): State<Arc<Guard>>,
    ConnectInfo(client): ConnectInfo<ClientAddress>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path().to_owned();
    let judged = guard.judge(request.method(), &path, request.headers());
    let looks = *request.method() == Method::GET || *request.method() == Method::HEAD;
    if judged.is_ok() && !looks {
        request = match whole(request, PATIENCE).await {
            Ok(request) => request,
            Err(refusal) => return guarded(refusal.into_response()),
        };
    }
    let answer = match judged {
        Err(refusal) => refusal.into_response(),
        Ok(()) if path == LOGIN => guard.login(&client, request).await,
        Ok(()) if path == LOGOUT => guard.logout(request.headers()),
        Ok(()) if is_public(&path) => next.run(request).await,
        Ok(()) => {
            let looking = Arc::clone(&guard);
            let may = os_error::blocking(move || Ok(looking.may(&client))).await;
            let may = may.unwrap_or(May::Look);
            request.extensions_mut().insert(may);
            if may == May::Look && is_policy(request.method(), &path) {
                refused(
                    "without a token only the superuser and the daemon's own user can change policies on the \
                     dashboard; use the tidegate program, or give the dashboard a token_file",
                ).into_response()
            } else {
                next.run(request).await
            }
        }
    };
    guarded(answer)
}

/// Reads a request's whole body within a time limit; until then the client only occupies a seat.
async fn whole(request: Request, patience: Duration) -> Result<Request, Refusal> {
    let (parts, body) = request.into_parts();
    let read = tokio::time::timeout(patience, body::to_bytes(body, BODY_MAX)).await;
    let Ok(read) = read else {
        return Err(refused("its body did not arrive in time"));
    };
    // The body may also have been cut off, but then no client is left to answer.
    let read = read.map_err(|_| Refusal::TooLarge)?;
    Ok(Request::from_parts(parts, read.into()))
}

/// Reads the token in a file.
pub(crate) fn read_token(path: &Path) -> Outcome<Vec<u8>> {
    let what = format!("cannot use the dashboard's token file {}", path.display());
    let new = format!(
        "put a token in it that only the daemon's user may read: `(umask 077; rm -f {0}; openssl rand -hex 24 > {0})`",
        path.display()
    );
    let bad = |why: String| Err(os_error::invalid(&what).because(why).remedy(&new));
    let facts = match fs::metadata(path) {
        Ok(facts) => facts,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return bad(error.to_string()),
        Err(error) => return Err(os_error::io(&what, &error)),
    };
    if !facts.is_file() {
        return bad("it is not a plain file".to_owned());
    }
    if facts.permissions().mode() & 0o007 != 0 {
        return Err(os_error::invalid(&what)
            .because("every user of this host can read it")
            .remedy(format!(
                "remove that permission: `chmod o= {}`",
                path.display()
            )));
    }
    if facts.len() > TOKEN_MAX {
        return bad(format!("it is longer than {TOKEN_MAX} bytes"));
    }
    let token = match fs::read_to_string(path) {
        Ok(text) => text.trim().to_owned(),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => return bad(error.to_string()),
        Err(error) => return Err(os_error::io(&what, &error)),
    };
    if token.len() < TOKEN_MIN {
        return bad(format!("the token has fewer than {TOKEN_MIN} characters"));
    }
    Ok(token.into_bytes())
}

/// Whether a path is served before login: the pages, which contain no data.
fn is_public(path: &str) -> bool {
    let file = path.strip_prefix("/dashboard/");
    path == "/" || file.is_some_and(|file| File::find(file).is_some())
}

/// Whether this is the one change that is allowed.
fn is_policy(method: &Method, path: &str) -> bool {
    let disk = path.strip_prefix("/dashboard/disks/");
    let disk = disk.and_then(|rest| rest.strip_suffix("/policy"));
    *method == Method::PATCH && disk.is_some_and(|name| !name.is_empty() && !name.contains('/'))
}

/// Whether a `Host` cannot be a name that an attacker has pointed here.
fn is_plain(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Whether the page that sent the request was served from the address that the request is sent to.
fn is_ours(headers: &HeaderMap, host: &str) -> bool {
    one(headers, header::ORIGIN).is_some_and(|origin| {
        let from = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        from.is_some_and(|from| from.eq_ignore_ascii_case(host))
    })
}

/// The value of a header that must occur exactly once.
fn one(headers: &HeaderMap, name: impl header::AsHeaderName) -> Option<&str> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (Some(value), None) => HeaderValue::to_str(value).ok(),
        _ => None,
    }
}

/// The session in a browser's cookie.
fn cookie(headers: &HeaderMap) -> Option<&str> {
    let told = headers.get_all(header::COOKIE).iter();
    let pairs = told
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'));
    pairs
        .filter_map(|pair| pair.trim().split_once('='))
        .find_map(|(name, value)| (name == COOKIE).then_some(value))
}

/// Whether two secrets are equal. The duration depends only on their lengths.
fn is_same(ours: &[u8], told: &[u8]) -> bool {
    ours.ct_eq(told).into()
}

/// A new session's name, which cannot be guessed.
fn secret() -> Outcome<String> {
    let mut bytes = [0; 32];
    // Reads this short are never partial.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| os_error::io("cannot draw a random number", &e.into()))?;
    Ok(crate::text::hex(&bytes))
}

fn refused(why: impl Into<String>) -> Refusal {
    Refusal::Refused(why.into())
}

fn problem(status: StatusCode, problem: Problem) -> Response {
    (status, Json(problem)).into_response()
}

#[cfg(test)]
mod tests;
