//! Tests of the guard's rules, one for each.

use super::*;

const TOKEN: &[u8] = b"0123456789abcdef0123";

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, value.parse().unwrap());
    }
    headers
}

fn status(guard: &Guard, method: Method, path: &str, pairs: &[(&'static str, &str)]) -> u16 {
    match guard.judge(&method, path, &headers(pairs)) {
        Ok(()) => 200,
        Err(refusal) => refusal.into_response().status().as_u16(),
    }
}

#[test]
fn who_knows_the_metrics_token_reads_metrics_and_nothing_else() {
    const METRICS_TOKEN: &str = "metrics-0123456789abcdef";
    let token = Some(METRICS_TOKEN.as_bytes().to_vec());
    let guard = Guard::new(Some(TOKEN.to_vec()), true).with_metrics_token(token);
    let bearer = format!("Bearer {METRICS_TOKEN}");
    let asked = |method, path, said: &str| {
        status(&guard, method, path, &[HERE, OURS, ("authorization", said)])
    };
    assert_eq!(asked(Method::GET, "/metrics", &bearer), 200);
    assert_eq!(asked(Method::GET, "/v1/disks", &bearer), 401);
    assert_eq!(asked(Method::PATCH, POLICY, &bearer), 401);
    let said = format!("Bearer {}", String::from_utf8_lossy(TOKEN));
    for wrong in ["Bearer ", "Bearer wrong", METRICS_TOKEN, said.as_str()] {
        assert_eq!(asked(Method::GET, "/metrics", wrong), 401, "{wrong}");
    }
    // Without a metrics token, metrics need a login.
    let guard = Guard::new(Some(TOKEN.to_vec()), true);
    let empty = [HERE, ("authorization", "Bearer ")];
    assert_eq!(status(&guard, Method::GET, "/metrics", &empty), 401);
}

const POLICY: &str = "/dashboard/disks/web1/policy";
const HERE: (&str, &str) = ("host", "127.0.0.1:8433");
const OURS: (&str, &str) = ("x-tidegate", "1");

#[test]
fn without_a_token_only_names_that_nobody_can_point_here_are_answered() {
    let guard = Guard::new(None, false);
    for host in [
        "127.0.0.1:8433",
        "localhost:1",
        "LOCALHOST",
        "[::1]:8433",
        "192.0.2.7",
    ] {
        assert_eq!(
            status(&guard, Method::GET, "/", &[("host", host)]),
            200,
            "{host}"
        );
    }
    for host in [
        "evil.example:8433",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "[",
        "",
    ] {
        assert_eq!(
            status(&guard, Method::GET, "/", &[("host", host)]),
            403,
            "{host}"
        );
    }
    assert_eq!(status(&guard, Method::GET, "/", &[]), 403);
    assert_eq!(
        status(&guard, Method::GET, "/", &[HERE, ("host", "localhost")]),
        403
    );
}

#[test]
fn what_another_sites_page_sends_is_refused() {
    let guard = Guard::new(None, false);
    let of = |site| [HERE, ("sec-fetch-site", site)];
    for (site, expected) in [
        ("same-origin", 200),
        ("none", 200),
        ("cross-site", 403),
        ("same-site", 403),
    ] {
        assert_eq!(
            status(&guard, Method::GET, "/v1/disks", &of(site)),
            expected,
            "{site}"
        );
    }
    // A link may lead only to the page.
    let link = [
        HERE,
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-mode", "navigate"),
    ];
    assert_eq!(status(&guard, Method::GET, "/", &link), 200);
    assert_eq!(status(&guard, Method::GET, "/v1/disks", &link), 403);
    let from = |origin| [HERE, OURS, ("origin", origin)];
    for (origin, expected) in [
        ("http://127.0.0.1:8433", 200),
        ("http://127.0.0.1:9000", 403),
        ("http://evil.example", 403),
        ("null", 403),
    ] {
        assert_eq!(
            status(&guard, Method::PATCH, POLICY, &from(origin)),
            expected,
            "{origin}"
        );
    }
}

#[test]
fn nothing_but_a_policy_is_changed_and_only_with_our_header() {
    let guard = Guard::new(None, false);
    assert_eq!(status(&guard, Method::PATCH, POLICY, &[HERE, OURS]), 200);
    assert_eq!(status(&guard, Method::PATCH, POLICY, &[HERE]), 403);
    for (method, path) in [
        (Method::DELETE, "/v1/disks/web1"),
        (Method::POST, "/v1/disks"),
        (Method::PATCH, "/v1/disks/web1"),
        (Method::PATCH, "/v1/datastores/fast"),
        (Method::PUT, POLICY),
        (Method::PATCH, "/dashboard/disks//policy"),
        (Method::PATCH, "/dashboard/disks/a/b/policy"),
    ] {
        assert_eq!(status(&guard, method, path, &[HERE, OURS]), 403, "{path}");
    }
}

#[test]
fn with_a_token_only_the_pages_are_given_to_who_has_not_logged_in() {
    let guard = Guard::new(Some(TOKEN.to_vec()), true);
    let named = ("host", "pve1.example");
    for path in ["/", "/dashboard/app.js", "/dashboard/style.css"] {
        assert_eq!(status(&guard, Method::GET, path, &[named]), 200, "{path}");
    }
    for path in [
        "/v1/status",
        "/metrics",
        "/dashboard/stream",
        "/dashboard/past",
        "/dashboard/none.js",
    ] {
        assert_eq!(status(&guard, Method::GET, path, &[named]), 401, "{path}");
    }
    assert_eq!(status(&guard, Method::POST, LOGIN, &[named, OURS]), 200);
    assert_eq!(status(&guard, Method::POST, LOGIN, &[named]), 403);
    assert_eq!(status(&guard, Method::PATCH, POLICY, &[named, OURS]), 401);
}

fn address() -> ClientAddress {
    ClientAddress {
        peer: "192.0.2.1:5000".parse().unwrap(),
        here: "192.0.2.2:8433".parse().unwrap(),
    }
}

async fn log_in(guard: &Guard, token: &str) -> Response {
    let body = serde_json::json!({ "token": token }).to_string();
    guard.login(&address(), Request::new(body.into())).await
}

#[tokio::test]
async fn who_knows_the_token_is_known_until_logged_out() {
    let guard = Guard::new(Some(TOKEN.to_vec()), true);
    let wrong = log_in(&guard, "0123456789abcdef0124").await;
    assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED);
    let right = log_in(&guard, "0123456789abcdef0123\n").await;
    let cookie = right.headers()[header::SET_COOKIE].to_str().unwrap();
    for word in ["HttpOnly", "SameSite=Strict", "Secure", "Path=/"] {
        assert!(cookie.contains(word), "{cookie}");
    }
    let told = cookie.split(';').next().unwrap().to_owned();
    let known = headers(&[("cookie", &format!("a=b; {told}"))]);
    assert!(guard.is_known(&known));
    assert_eq!(guard.may(&address()), May::Change);
    assert!(!guard.is_known(&headers(&[("cookie", "tidegate=")])));
    guard.logout(&known);
    assert!(!guard.is_known(&known));
}

#[tokio::test]
async fn an_order_that_does_not_come_to_its_end_is_not_waited_for() {
    let moment = Duration::from_millis(50);
    let silent = futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>();
    let silent = Request::new(body::Body::from_stream(silent));
    assert!(whole(silent, moment).await.is_err());
    let long = Request::new(vec![b' '; BODY_MAX + 1].into());
    let refused = whole(long, moment).await.unwrap_err();
    let answer = refused.into_response();
    assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let order = whole(Request::new("{}".into()), moment).await.unwrap();
    let order = body::to_bytes(order.into_body(), BODY_MAX).await.unwrap();
    assert_eq!(order, "{}");
}

#[test]
fn a_token_file_is_long_enough_and_not_for_everybody() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    assert!(read_token(&path).is_err());
    fs::write(&path, "0123456789abcdef\n").unwrap();
    mode(0o640);
    assert_eq!(read_token(&path).unwrap(), b"0123456789abcdef");
    mode(0o644);
    assert!(
        read_token(&path)
            .unwrap_err()
            .to_string()
            .contains("every user")
    );
    fs::write(&path, "0123456789abcde\n").unwrap();
    mode(0o600);
    let short = read_token(&path).unwrap_err();
    assert!(short.to_string().contains("fewer than 16"), "{short}");
}

#[test]
fn the_kernel_tells_whose_a_connection_is() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, peer) = listener.accept().unwrap();
    let here = theirs.local_addr().unwrap();
    assert_eq!(owner(peer, here), Some(rustix::process::geteuid().as_raw()));
    assert_eq!(
        Guard::new(None, false).may(&ClientAddress { peer, here }),
        May::Change
    );
    // A connection without an owner: read-only access.
    let peer = "127.0.0.1:1".parse().unwrap();
    let nobody = ClientAddress { peer, here };
    assert_eq!(Guard::new(None, false).may(&nobody), May::Look);
    drop(ours);
}

#[test]
fn who_closes_before_being_asked_may_only_look() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let guard = Guard::new(None, false);
    let come = || {
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, peer) = listener.accept().unwrap();
        let here = theirs.local_addr().unwrap();
        let address = ClientAddress { peer, here };
        assert_eq!(guard.may(&address), May::Change);
        (client, theirs, address)
    };
    // On loopback, an end is visible as closed before the call that closes it returns.
    let (client, _theirs, address) = come();
    drop(client);
    assert_eq!(guard.may(&address), May::Look, "FIN_WAIT2 without an owner");
    let (client, theirs, address) = come();
    drop(client);
    drop(theirs);
    assert_eq!(guard.may(&address), May::Look, "TIME_WAIT");
    let (client, _theirs, address) = come();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(guard.may(&address), May::Look, "half closed");
}
