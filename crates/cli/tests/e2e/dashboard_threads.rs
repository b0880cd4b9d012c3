//! The dashboard's page of I/O threads, in a real browser.

use crate::dashboard::{ask, look_at, open, start, text};
use crate::support::browser::Browser;
use crate::support::place::Place;

#[test]
fn the_page_of_io_threads_shows_who_lives_where_and_each_move() {
    let place = Place::new();
    let (daemon, url) = start(
        &place,
        "listen = '127.0.0.1:0'\n[io]\nthreads = 2\npolicy = 'none'",
    );
    let browser = Browser::start(&place);
    daemon.run(&["disk", "create", "d", "--size", "32M", "--attach"]);
    open(
        &browser,
        &url,
        "#/threads",
        "document.querySelectorAll('section[aria-label=\"I/O threads\"] tbody tr').length === 2",
    );
    browser.until(
        "a link from everywhere",
        "document.querySelector('nav a[href=\"#/threads\"][aria-current=page]')",
    );
    let home = "(() => {
        const parts = document.querySelectorAll('[data-disk=d] .home');
        return parts.length ? [...parts].map((part) => part.dataset.thread).join() : null; })()";
    let before = text(&browser.until("where the disk lives", home)).to_owned();
    let from = daemon.run(&["get", "/device/d/thread"]);
    assert_eq!(before, from.trim());
    let to = if before == "0" { "1" } else { "0" };
    daemon.run(&["thread", "move", "d", to]);
    let row = browser.until(
        "the move",
        "(() => {
            const row = document.querySelector('section[aria-labelledby=h-moves] tbody tr a');
            return row ? row.closest('tr').textContent : null; })()",
    );
    let row = text(&row);
    assert!(
        row.starts_with('d') && row.ends_with(&format!("{before}{to}")),
        "{row}"
    );
    let after = format!("{home} === '{before},{to}'");
    browser.until("where it lived, and where it lives", &after);
    daemon.run(&["thread", "lock", &before]);
    browser.until(
        "that a thread is locked",
        "document.querySelector('section[aria-label=\"I/O threads\"]').textContent.includes('locked')",
    );
    let told = ask(&daemon, "/v1/threads");
    let nth: usize = before.parse().expect("a number");
    assert_eq!(told["threads"][nth]["state"], "locked", "{told:#}");
    look_at(&browser, "threads");
}
