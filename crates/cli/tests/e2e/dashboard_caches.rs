//! The dashboard's page of flash caches, in a real browser.

use crate::dashboard::{ask, look_at, open, start, text};
use crate::support::browser::Browser;
use crate::support::place::Place;
use crate::support::program::Program;

#[test]
fn the_page_of_flash_caches_shows_who_has_how_much_and_what_is_left_of_the_budget() {
    let place = Place::new();
    let (daemon, url) = start(&place, "listen = '127.0.0.1:0'");
    let browser = Browser::start(&place);
    open(
        &browser,
        &url,
        "#/caches",
        "document.body.textContent.includes('has no flash cache')",
    );
    let [one, two] = ["flash0", "flash1"].map(|name| place.join(name).display().to_string());
    let words = [
        "cache", "create", "fast", "--device", &one, "--mirror", &two,
    ];
    daemon.run(&[&words[..], &["--size", "64M", "--endurance", "1dwpd"]].concat());
    daemon.run(&["disk", "create", "d", "--size", "32M", "--attach"]);
    daemon.run(&["disk", "set", "d", "--cache", "fast"]);
    for _ in 0..3 {
        Program::new("qemu-io")
            .args(["-f", "raw", "-c", "read 0 64k"])
            .arg(daemon.nbd_uri("d"))
            .run();
    }
    let row = browser.until(
        "the disk's part, and reads of it",
        "(() => {
            const row = document.querySelector('[data-cache=fast] tbody tr');
            return row && /%/.test(row.textContent) ? row.textContent : null; })()",
    );
    let row = text(&row);
    for part in ["d", "write-through", "63.0\u{202f}MiB"] {
        assert!(row.contains(part), "{part}: {row}");
    }
    let shown = ask(&daemon, "/v1/caches/fast");
    assert_eq!(shown["budget_bytes_per_day"], 64 << 20);
    let card = "[data-cache=fast]";
    let figure = |name| browser.text(&format!("{card} [data-figure={name}]"));
    assert_eq!(figure("budget"), "64.0\u{202f}MiB");
    assert!(figure("left").ends_with("MiB"), "{}", figure("left"));
    assert_eq!(figure("size"), figure("used"));
    let badge = browser.text(&format!("{card} .badge"));
    assert_eq!(badge, "in order");
    browser.until(
        "a link from everywhere",
        "document.querySelector('nav a[href=\"#/caches\"][aria-current=page]')",
    );
    look_at(&browser, "caches");
    daemon.run(&["disk", "set", "d", "--cache", "none"]);
    daemon.run(&["cache", "remove", "fast"]);
    browser.until(
        "that it is gone",
        "!document.querySelector('[data-cache=fast]')
        && document.body.textContent.includes('has no flash cache')",
    );
}
