//! The dashboard in a real browser: what it shows, what it changes, and what it says when the daemon is gone.
//!
//! Numbers are compared with what REST tells before and after; pages are waited for, in the browser, until they show
//! something. `TIDEGATE_SCREENSHOTS=DIR` keeps pictures of every page.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::Value;

use crate::support::browser::Browser;
use crate::support::daemon::Daemon;
use crate::support::place::Place;
use crate::support::program::{Service, find, nbdsh_on};

/// Finds faults of accessibility. Vendored as it is published: see the licence beside it.
const AXE: &str = include_str!("dashboard/axe.min.js");

/// A daemon with a root in `place` and a dashboard as `config` says; its address without the last stroke.
pub(crate) fn start(place: &Place, config: &str) -> (Daemon, String) {
    let root = place.join("root");
    fs::create_dir_all(&root).expect("a directory can be made");
    let config = format!("[dashboard]\n{config}\n");
    fs::write(root.join("tidegate.toml"), config).expect("a configuration can be written");
    let daemon = Daemon::start(place);
    let status = ask(&daemon, "/v1/status");
    let url = status["dashboard"].as_str().expect("it has an address");
    let url = url.trim_end_matches('/').to_owned();
    (daemon, url)
}

pub(crate) fn ask(daemon: &Daemon, path: &str) -> Value {
    let answer = daemon.rest().ask("GET", path, "");
    serde_json::from_str(&answer).expect("REST answers with JSON")
}

/// A slow array with three disks: one with many shares, one with a reservation, one at its limit.
pub(crate) fn disks(daemon: &Daemon) {
    daemon.run(&[
        "datastore",
        "add",
        "array",
        "--kind",
        "emulated",
        "--model",
        "raid0-2x7k",
    ]);
    daemon.run(&[
        "datastore",
        "set",
        "array",
        "--congestion-threshold",
        "12ms",
    ]);
    for (name, words) in [
        ("web1", ["--shares", "high"].as_slice()),
        ("db1", &["--reservation", "40", "--best-effort"]),
        ("batch", &["--shares", "low", "--limit", "10"]),
    ] {
        let mut order = vec![
            "disk", "create", name, "-d", "array", "--size", "64M", "--attach",
        ];
        order.extend(words);
        daemon.run(&order);
    }
}

/// Reads of a disk without end, sixteen at a time, until it is dropped.
pub(crate) fn load(daemon: &Daemon, disk: &str) -> Service {
    let uri = daemon.nbd_uri(disk);
    let script = "
import itertools, nbd
for n in itertools.count():
    while h.aio_in_flight() >= 16:
        h.poll(-1)
    h.aio_pread(nbd.Buffer(4096), n * 7919 % 16384 * 4096, completion=lambda error: 1)
";
    let args = ["-u", &uri, "-c", script].map(str::to_owned);
    // Debian's nbdsh with Debian's Python.
    let path = "/usr/bin:/bin".to_owned();
    Service::start("nbdsh", find("nbdsh").as_os_str(), &args, &[("PATH", path)])
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Fails the test for every fault of accessibility that keeps somebody from using the page.
pub(crate) fn is_accessible(browser: &Browser, page: &str) {
    let faults = browser.run(&format!(
        "{AXE};
         axe.run(document, {{resultTypes: ['violations']}}).then((found) => done(found.violations
           .filter((one) => one.impact === 'serious' || one.impact === 'critical')
           .map((one) => one.id + ': ' + one.help + ': ' + one.nodes.slice(0, 3).map((node) => node.html + ' (' + node.failureSummary + ')').join('; '))),
           (error) => done(['axe does not run: ' + error]));"
    ));
    let faults: Vec<&str> = faults
        .as_array()
        .map_or_else(Vec::new, |all| all.iter().map(text).collect());
    assert!(faults.is_empty(), "{page}: {}", faults.join("\n"));
}

/// Opens a page by its link's end, and waits until something of it is there.
pub(crate) fn open(browser: &Browser, url: &str, hash: &str, shows: &str) {
    browser.open(&format!("{url}/{hash}"));
    // Only the part behind # may have changed, which loads nothing anew.
    browser.until(hash, shows);
}

/// A page, as a telephone and as a desk show it, in the dark and in the light.
pub(crate) fn look_at(browser: &Browser, page: &str) {
    for (screen, width, height) in [("phone", 390, 844), ("desk", 1280, 900)] {
        for scheme in ["dark", "light"] {
            browser.screen(width, height, scheme);
            let wider = browser.look("document.documentElement.scrollWidth > innerWidth + 1");
            assert_eq!(wider, false, "{page} is wider than a {screen}");
            browser.picture(&format!("{page}-{screen}-{scheme}"));
            is_accessible(browser, &format!("{page} on a {screen}, {scheme}"));
        }
    }
}

#[test]
fn each_page_loads_under_load_and_shows_what_rest_reports() {
    let place = Place::new();
    let (daemon, url) = start(&place, "listen = '127.0.0.1:0'");
    disks(&daemon);
    let _load = ["web1", "db1", "batch"].map(|disk| load(&daemon, disk));
    let browser = Browser::start(&place);

    open(
        &browser,
        &url,
        "#/",
        "[...document.querySelectorAll('.list tbody tr')].length >= 4
        && document.querySelector('[data-figure=iops]').textContent !== '0 /s'",
    );
    let status = ask(&daemon, "/v1/status");
    assert_eq!(
        browser.text("[data-figure=attached]"),
        status["attached"].to_string()
    );
    for disk in ask(&daemon, "/v1/disks")["disks"]
        .as_array()
        .expect("a list")
    {
        let name = text(&disk["name"]);
        let row = format!(
            "[...document.querySelectorAll('.list tbody tr')].find((tr) => tr.textContent.includes('{name}'))"
        );
        let shown = browser.look(&format!("{row}.textContent"));
        let shares = format!("{}", disk["policy"]["shares"]).replace("000", "\u{202f}000");
        assert!(
            text(&shown).contains(&shares),
            "{name} has {shares} shares: {shown}"
        );
        let chip = browser.look(&format!(
            "document.querySelector('[data-thread=\"{}\"] .chips').textContent",
            disk["thread"]
        ));
        assert!(text(&chip).contains(name), "{name} lives there: {chip}");
    }
    browser.until(
        "a thread's load",
        "/busy/.test(document.querySelector('[data-thread]').textContent)",
    );
    look_at(&browser, "host");

    open(
        &browser,
        &url,
        "#/datastore/array",
        "document.querySelectorAll('.board .row').length === 3",
    );
    browser.until(
        "congestion",
        "document.querySelector('.title .badge').textContent.includes('shares are applied')",
    );
    let shown = ask(&daemon, "/v1/datastores/array");
    assert_eq!(shown["control"]["threshold_us"], 12_000.0);
    assert_eq!(browser.text("[data-figure=threshold]"), "12.0\u{202f}ms");
    for share in shown["control"]["shares"].as_array().expect("a list") {
        let name = text(&share["disk"]);
        let row = browser.text(&format!(
            "[data-disk={name}] svg.share title, [data-disk={name}] .who"
        ));
        let shares = share["shares"].to_string().replace("000", "\u{202f}000");
        assert!(row.contains(&shares), "{name}: {row}");
        let told = browser.look(&format!(
            "document.querySelector('[data-disk={name}] svg').getAttribute('aria-label')"
        ));
        for (field, words) in [
            ("limit_iops", "no more than"),
            ("reservation_iops", "no less than"),
        ] {
            if let Some(number) = share[field].as_u64().filter(|number| *number > 0) {
                assert!(text(&told).contains(&format!("{words} {number}")), "{told}");
            }
        }
    }
    browser.until("the limit that holds", "document.querySelector('[data-disk=batch] .what').textContent.includes('at its limit of 10')");
    look_at(&browser, "datastore");

    open(
        &browser,
        &url,
        "#/disk/batch",
        "document.querySelector('tr[data-op=read]')
        && document.querySelector('[data-figure=because]').textContent.includes('limit of 10 units')",
    );
    let told = ask(&daemon, "/v1/disks/batch/explain?last=10s");
    assert_eq!(told["cause"], "limit", "{told:#}");
    browser.until(
        "what holds it",
        "document.querySelector('.title .badge').textContent.includes('its limit')",
    );
    let total = |stats: &Value| stats["all"]["ops_total"].as_u64().expect("a number");
    let before = total(&ask(&daemon, "/v1/disks/batch/stats"));
    let shown = browser.until("a later count", &format!("(() => {{
        const n = Number(document.querySelector('tr[data-op=read] td:last-child').textContent.replace(/\\D/g, ''));
        return n >= {before} ? n : null; }})()"));
    let after = total(&ask(&daemon, "/v1/disks/batch/stats"));
    let shown = shown.as_u64().expect("a number");
    assert!(
        (before..=after).contains(&shown),
        "{before} <= {shown} <= {after}"
    );
    browser.until(
        "a past",
        "document.querySelectorAll('path.area').length === 4",
    );
    look_at(&browser, "disk");

    // A fault that does not clear up by itself: another event.
    daemon.run(&[
        "datastore",
        "set",
        "array",
        "--congestion-threshold",
        "20ms",
    ]);
    open(
        &browser,
        &url,
        "#/events",
        "document.querySelector('.events tbody a')",
    );
    let kept = ask(&daemon, "/v1/events/kept");
    let engaged = kept["events"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|event| event["event"] == "engaged");
    let words = text(&engaged.expect("the array was congested")["text"]).to_owned();
    browser.until(
        "the event",
        &format!(
            "document.body.textContent.includes({})",
            serde_json::json!(words)
        ),
    );
    look_at(&browser, "events");

    browser.open(&format!("{url}/#/"));
    browser.until(
        "the list",
        "document.querySelectorAll('.list tbody tr').length >= 4",
    );
    browser.press("jj");
    browser.until(
        "the second row",
        "document.querySelectorAll('.list tbody tr')[1].classList.contains('chosen')",
    );
    browser.press("/");
    browser.press("web1");
    browser.until(
        "what was searched",
        "document.querySelectorAll('.list tbody tr').length === 1",
    );
    browser.press("\u{e00c}");
    browser.press("?");
    browser.until("the keys", "document.getElementById('help').open");
    browser.press("\u{e00c}");
    browser.until("the keys are gone", "!document.getElementById('help').open");
    browser.press("e");
    browser.until("events by a key", "location.hash === '#/events'");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn the_form_says_what_will_happen_and_then_it_happens() {
    let place = Place::new();
    let (daemon, url) = start(&place, "listen = '127.0.0.1:0'");
    disks(&daemon);
    let policy = || ask(&daemon, "/v1/disks/web1")["policy"].clone();
    let browser = Browser::start(&place);
    open(
        &browser,
        &url,
        "#/disk/web1",
        "document.getElementById('f-shares').value === '2000'",
    );
    let outcome = || browser.text("[data-figure=outcome]");
    assert!(
        browser
            .look("document.querySelector('.policy button.main').disabled")
            .as_bool()
            .unwrap_or(false)
    );

    browser.fill("#f-shares", "4000");
    browser.fill("#f-limit_iops", "250");
    let said = outcome();
    for words in [
        "If you apply this",
        "4\u{202f}000 shares instead of 2\u{202f}000",
        "at most 250 units a second",
        "at once",
    ] {
        assert!(said.contains(words), "no '{words}' in: {said}");
    }
    assert_eq!(
        policy()["shares"],
        2000,
        "nothing happens before it is applied"
    );
    browser.screen(1280, 900, "light");
    browser.picture("form-desk-light");
    browser.click(".policy button.main");
    browser.until(
        "that it was applied",
        "document.querySelector('.done').textContent.includes('Applied')",
    );
    assert_eq!(
        (&policy()["shares"], &policy()["limit_iops"]),
        (&Value::from(4000), &Value::from(250))
    );
    browser.until("the policy that holds", "document.querySelector('[data-figure=outcome]').textContent.includes('never more than 250')");

    assert_eq!(browser.complaints(), Vec::<String>::new());
    // What makes no sense is refused with its reason, and changes nothing.
    browser.fill("#f-reservation_iops", "300");
    browser.click(".policy button.main");
    browser.until(
        "why not",
        "document.querySelector('.policy .bad').textContent.includes('above limit')",
    );
    is_accessible(&browser, "the form with an error");
    assert_eq!(policy()["reservation_iops"], 0);

    // The browser itself notes every refusal.
    let complaints = browser.complaints();
    let noted = |line: &String| line.contains("400 (Bad Request)");
    assert!(
        complaints.len() == 1 && complaints.iter().all(noted),
        "{complaints:?}"
    );

    browser.fill("#f-reservation_iops", "");
    browser.click(".policy .buttons button:nth-child(3)");
    browser.until(
        "that it is undone",
        "document.querySelector('.done').textContent.includes('As before')",
    );
    assert_eq!(
        (&policy()["shares"], &policy()["limit_iops"]),
        (&Value::from(2000), &Value::Null)
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_truncated_image_is_shown_on_the_pages_of_its_disk_and_host() {
    let place = Place::new();
    let (daemon, url) = start(&place, "listen = '127.0.0.1:0'");
    let image = place.join("root/local/disk0/image");
    let image = fs::File::options().write(true).open(image);
    let image = image.expect("the image is where the datastore's manual says");
    image.set_len(4096).expect("an image can be cut");
    nbdsh_on(
        &daemon.nbd_uri("disk0"),
        "
try:
    h.pread(4096, 1 << 20)
    assert False, 'a read of what is gone'
except nbd.Error as error:
    assert error.errno == 'EIO', error.errno
",
    );
    let browser = Browser::start(&place);
    open(
        &browser,
        &url,
        "#/disk/disk0",
        "/has a problem/.test(document.querySelector('.title .badge').textContent)",
    );
    is_accessible(&browser, "a disk whose image was cut");
    browser.until(
        "what to do",
        "/shortened/.test(document.querySelector('main').textContent)",
    );
    browser.press("h");
    browser.until(
        "the host's problem",
        "/disk disk0/.test(document.querySelector('.card.warning').textContent)",
    );
}

#[test]
fn a_lost_daemon_is_shown_and_reconnected_to() {
    let place = Place::new();
    // The next daemon is to be found where the first was.
    let free = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = free.local_addr().expect("it has an address").port();
    drop(free);
    let (mut daemon, url) = start(&place, &format!("listen = '127.0.0.1:{port}'"));
    let browser = Browser::start(&place);
    open(
        &browser,
        &url,
        "#/disk/disk0",
        "document.getElementById('state').textContent === 'live'
        && document.querySelector('[data-figure=iops]').textContent",
    );
    let first = ask(&daemon, "/v1/status")["pid"].clone();
    daemon.kill();
    browser.until(
        "that it is lost",
        "document.getElementById('banner').textContent.includes('The daemon does not answer')",
    );
    assert_eq!(browser.text("#state"), "no answer");
    browser.picture("lost-desk-light");
    is_accessible(&browser, "a lost daemon");
    daemon.crash_and_restart();
    browser.until("that it is back", "document.getElementById('banner').hidden && document.getElementById('state').textContent === 'live'");
    let second = ask(&daemon, "/v1/status")["pid"].clone();
    assert_ne!(first, second);
    browser.press("h");
    browser.until(
        "the daemon of now",
        &format!("document.querySelector('main').textContent.includes('process {second}')"),
    );
}

#[test]
fn with_a_token_nothing_is_shown_before_login() {
    let place = Place::new();
    fs::create_dir_all(place.join("root")).expect("a directory can be made");
    let token = place.join("root/token");
    fs::write(&token, "correct horse battery\n").expect("a token can be written");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&token, private).expect("it is ours");
    let (daemon, url) = start(&place, "listen = '127.0.0.1:0'\ntoken_file = 'token'");
    let browser = Browser::start(&place);
    open(&browser, &url, "#/", "document.querySelector('#token')");
    assert_eq!(
        browser.look("document.querySelectorAll('.list tbody a').length"),
        0
    );
    is_accessible(&browser, "login");
    browser.picture("login-desk-light");
    browser.fill("#token", "wrong horse battery!");
    browser.click(".login button");
    browser.until(
        "that it is wrong",
        "document.querySelector('.login .bad').textContent.includes('not the token')",
    );
    browser.fill("#token", "correct horse battery");
    browser.click(".login button");
    browser.until(
        "the page",
        "document.getElementById('banner').hidden && document.querySelector('.list tbody a')",
    );
    assert_eq!(
        browser.look("document.cookie"),
        "",
        "no script sees the session"
    );
    drop(daemon);
}

/// What the dashboard's address answers to a request that is written by hand: its status.
fn raw(url: &str, request: &str) -> u16 {
    let address = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).expect("the dashboard listens");
    let request = request.replace("HERE", address);
    stream
        .write_all(format!("{request}\r\n\r\n").as_bytes())
        .expect("it listens");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("it answers");
    let answer = String::from_utf8_lossy(&answer).into_owned();
    answer[9..].parse().expect("a status is a number")
}

#[test]
fn the_address_refuses_other_host_names_origins_and_methods() {
    let place = Place::new();
    let (daemon, url) = start(&place, "listen = '127.0.0.1:0'");
    let disk = "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    for (status, request) in [
        (200, "GET / HTTP/1.1\r\nHost: HERE".to_owned()),
        (200, "GET /metrics HTTP/1.1\r\nHost: localhost:1".to_owned()),
        (403, "GET / HTTP/1.1\r\nHost: rebound.example".to_owned()),
        (
            403,
            "GET /v1/disks HTTP/1.1\r\nHost: HERE\r\nSec-Fetch-Site: cross-site".to_owned(),
        ),
        (
            403,
            format!("DELETE /v1/disks/disk0 HTTP/1.1\r\nHost: HERE\r\nX-Tidegate: 1\r\n{disk}"),
        ),
        (
            403,
            format!("PATCH /v1/disks/disk0 HTTP/1.1\r\nHost: HERE\r\nX-Tidegate: 1\r\n{disk}"),
        ),
        (
            403,
            format!("PATCH /dashboard/disks/disk0/policy HTTP/1.1\r\nHost: HERE\r\n{disk}"),
        ),
        (
            403,
            format!(
                "PATCH /dashboard/disks/disk0/policy HTTP/1.1\r\nHost: HERE\r\nX-Tidegate: 1\r\nOrigin: http://evil.example\r\n{disk}"
            ),
        ),
        (
            400,
            format!(
                "PATCH /dashboard/disks/disk0/policy HTTP/1.1\r\nHost: HERE\r\nX-Tidegate: 1\r\nOrigin: http://HERE\r\n{disk}"
            ),
        ),
        (
            404,
            "GET /dashboard/none.js HTTP/1.1\r\nHost: HERE".to_owned(),
        ),
    ] {
        assert_eq!(raw(&url, &request), status, "{request}");
    }
    // The REST interface's socket has the pages too, and its own rules.
    assert!(
        daemon
            .rest()
            .ask("GET", "/", "")
            .contains("<!doctype html>")
    );
    let said = daemon.said();
    assert!(said.contains(&format!("Dashboard: {url}/")), "{said}");
}
