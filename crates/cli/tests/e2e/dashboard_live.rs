//! The freshness of the dashboard in a real browser: old measurements disappear.

use serde_json::Value;

use crate::dashboard::{disks, load, open, start, text};
use crate::support::browser::Browser;
use crate::support::place::Place;

/// Before a page's own scripts: keeps from them what is named in `held`, and notes in `heard` what has come.
const HOLD: &str = "
    window.held = new Set(['beat']);
    window.heard = new Set();
    const listen = EventTarget.prototype.addEventListener;
    EventSource.prototype.addEventListener = function (name, take) {
      listen.call(this, name, (event) => {
        heard.add(name);
        if (!held.has(name)) take(event);
      });
    };";

/// In the page: lets it be looked at, or not.
const LOOKED_AT: &str = "
    Object.defineProperty(document, 'hidden', { get: () => window.away, configurable: true });
    window.lookedAt = (looked) => {
      window.away = !looked;
      document.dispatchEvent(new Event('visibilitychange'));
    };";

const STATE: &str = "document.getElementById('state').textContent";

#[test]
fn measurements_are_removed_with_a_detached_disk_or_an_unused_datastore() {
    let place = Place::new();
    let (daemon, url) = start(&place, "listen = '127.0.0.1:0'");
    disks(&daemon);
    let browser = Browser::start(&place);
    let load_of_disk = load(&daemon, "web1");
    open(
        &browser,
        &url,
        "#/disk/web1",
        "Number.parseInt(document.querySelector('[data-figure=iops]').textContent) > 0
        && document.querySelector('tr[data-op=read]')",
    );
    // It has much to show up to the moment at which it goes.
    daemon.run(&["disk", "detach", "web1", "--disconnect", "--yes"]);
    browser.until(
        "a disk that shows nothing old",
        "document.querySelector('.title .badge').textContent === 'not attached'
        && !document.querySelector('.title .badge').dataset.look
        && document.querySelector('[data-figure=because]').textContent.includes('not attached')
        && [...document.querySelectorAll('.tile dd')].every((one) => one.textContent === '–')
        && ![...document.querySelectorAll('.tile, .chart, tr[data-op]')].some((one) => one.checkVisibility())",
    );
    drop(load_of_disk);
    daemon.run(&["disk", "attach", "web1"]);
    browser.until(
        "a disk that is attached again",
        "[...document.querySelectorAll('.tile, .chart')].every((one) => one.checkVisibility())
        && document.querySelector('[data-figure=iops]').textContent.startsWith('0')
        && !document.querySelector('[data-figure=because]').textContent.includes('not attached')",
    );

    let _load = load(&daemon, "web1");
    open(
        &browser,
        &url,
        "#/datastore/array",
        "document.querySelectorAll('.board .row').length === 3
        && Number.parseInt(document.querySelector('[data-figure=cost]').textContent) > 0",
    );
    for disk in ["web1", "db1", "batch"] {
        daemon.run(&["disk", "detach", disk, "--disconnect", "--yes"]);
    }
    browser.until(
        "a datastore that shows nothing old",
        "document.querySelector('.title .badge').textContent === 'not in use on this host'
        && !document.querySelector('.title .badge').dataset.look
        && document.querySelector('.lead').textContent.startsWith('None of its disks is attached')
        && [...document.querySelectorAll('.tile dd')].every((one) => one.textContent === '–')
        && ![...document.querySelectorAll('.tile, .chart, .board .row, tbody tr')].some((one) => one.checkVisibility())",
    );
    daemon.run(&["disk", "attach", "db1"]);
    browser.until(
        "a datastore that is in use again",
        "document.querySelectorAll('.board .row').length === 1
        && document.querySelector('.tile').checkVisibility()
        && !document.querySelector('.lead').textContent.startsWith('None of its disks')",
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_page_updates_only_while_samples_arrive_and_it_is_visible() {
    let place = Place::new();
    let (daemon, url) = start(&place, "listen = '127.0.0.1:0'");
    let browser = Browser::start(&place);
    browser.prepare(HOLD);
    let is = |state: &str| format!("{STATE} === '{state}'");

    // All that comes but beats does not make it live, nor keep it so.
    open(
        &browser,
        &url,
        "#/disk/disk0",
        "heard.has('hello') && heard.has('disk') && heard.has('beat')",
    );
    assert_eq!(text(&browser.look(STATE)), "connecting");
    browser.look("held.clear()");
    browser.until("that it is live", &is("live"));
    browser.look("held.add('beat')");
    browser.until("that no beat comes", &is("no answer"));
    browser.look("heard.clear()");
    browser.until(
        "that it is there without a beat",
        "heard.has('hello') && heard.has('disk')",
    );
    assert_eq!(text(&browser.look(STATE)), "no answer");
    browser.look("held.clear()");
    browser.until("that it is live again", &is("live"));

    // Who comes back after a minute is told that it is not live, and soon that it is.
    browser.run(&format!(
        "{LOOKED_AT}
         const later = window.setTimeout;
         window.setTimeout = (act, ms) => later(act, ms === 60000 ? 0 : ms);
         lookedAt(false);
         done();"
    ));
    let stale = "document.body.classList.contains('stale')";
    browser.until(
        "that nobody looks",
        &format!("{} && {stale}", is("connecting")),
    );
    browser.look("lookedAt(true)");
    browser.until(
        "that somebody looks",
        &format!("{} && !{stale}", is("live")),
    );

    // The same where the browser has held the page still.
    let state = browser.run(&format!(
        "const now = Date.now;
         Date.now = () => now() + 4000;
         held.add('beat');
         lookedAt(true);
         done({STATE});"
    ));
    assert_eq!(state, Value::from("connecting"));
    browser.look("held.clear()");
    browser.until("that it goes on", &is("live"));
    drop(daemon);
}
