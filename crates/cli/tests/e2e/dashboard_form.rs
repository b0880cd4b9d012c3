//! The dashboard's policy form in a real browser: what it shows before and after a change.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::dashboard::{ask, disks, open, start};
use crate::support::browser::Browser;
use crate::support::daemon::Daemon;
use crate::support::place::Place;
use crate::support::program::{Service, find};

const APPLY: &str = ".policy button.main";
const UNDO: &str = ".policy .buttons button:nth-child(3)";

fn policy(daemon: &Daemon, disk: &str) -> Value {
    ask(daemon, &format!("/v1/disks/{disk}"))["policy"].clone()
}

fn outcome(browser: &Browser) -> String {
    browser.text("[data-figure=outcome]")
}

fn has_done(browser: &Browser, word: &str) {
    let done = format!("document.querySelector('.policy .done').textContent.includes('{word}')");
    browser.until(word, &done);
}

#[test]
fn settings_that_depend_on_a_limit_are_shown_and_restored_with_it() {
    let place = Place::new();
    let (daemon, url) = start(&place, "listen = '127.0.0.1:0'");
    disks(&daemon);
    daemon.run(&[
        "disk",
        "set",
        "web1",
        "--limit",
        "100",
        "--burst-iops",
        "300",
        "--burst-seconds",
        "5",
    ]);
    let before = policy(&daemon, "web1");
    let browser = Browser::start(&place);
    open(
        &browser,
        &url,
        "#/disk/web1",
        "document.getElementById('f-burst_iops').value === '300'",
    );
    browser.fill("#f-limit_iops", "");
    let said = outcome(&browser);
    let words = "its burst of 300 units a second for 5 s is removed too";
    assert!(said.contains(words), "no '{words}' in: {said}");
    browser.click(APPLY);
    has_done(&browser, "Applied");
    let now = policy(&daemon, "web1");
    for field in ["limit_iops", "burst_iops", "burst_seconds"] {
        assert!(now[field].is_null(), "{field}: {now}");
    }
    browser.click(UNDO);
    has_done(&browser, "As before");
    assert_eq!(policy(&daemon, "web1"), before);

    // What somebody else changes meanwhile stays, and is not said to be as it was.
    browser.fill("#f-limit_iops", "50");
    browser.click(APPLY);
    has_done(&browser, "Applied");
    daemon.run(&["disk", "set", "web1", "--shares", "700"]);
    browser.click(UNDO);
    has_done(&browser, "Undone. Changes by others");
    let now = policy(&daemon, "web1");
    assert_eq!(
        (&now["limit_iops"], &now["shares"]),
        (&Value::from(100), &Value::from(700))
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn the_form_offers_best_effort_for_a_reservation_that_cannot_be_promised() {
    let place = Place::new();
    let (daemon, url) = start(&place, "listen = '127.0.0.1:0'");
    daemon.run(&[
        "datastore",
        "add",
        "array",
        "--kind",
        "emulated",
        "--model",
        "fifo",
    ]);
    for disk in ["busy", "web1"] {
        daemon.run(&[
            "disk", "create", disk, "-d", "array", "--size", "64M", "--attach",
        ]);
    }
    let uri = format!("--uri={}", daemon.nbd_uri("busy"));
    let words = "--name=load --ioengine=nbd --rw=randread --bs=4k --iodepth=64 --time_based --runtime=300 --size=16M";
    let words: Vec<String> = words
        .split(' ')
        .chain([uri.as_str()])
        .map(str::to_owned)
        .collect();
    let mut load = Service::start("fio", find("fio").as_os_str(), &words, &[]);
    let browser = Browser::start(&place);
    open(
        &browser,
        &url,
        "#/disk/web1",
        "document.getElementById('f-shares').value === '1000'",
    );
    // Until the array was seen with much in flight and with little, nobody can say what it cannot do. The load alone does
    // not show both: control may engage before its depth has been seen for long. So the threshold does.
    let reserve = |units: &str| daemon.attempt(&["disk", "set", "web1", "--reservation", units]);
    for threshold in ["100ms", "5ms"].iter().cycle() {
        daemon.run(&[
            "datastore",
            "set",
            "array",
            "--congestion-threshold",
            threshold,
        ]);
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(3) && reserve("1000000").status.success() {
            assert!(reserve("0").status.success());
        }
        if !reserve("1000000").status.success() {
            break;
        }
        assert!(reserve("0").status.success());
        assert!(load.alive(), "it was never refused");
    }
    browser.until(
        "that nothing is reserved",
        "!document.querySelector('[data-figure=outcome]').textContent.includes('never less than')",
    );
    browser.fill("#f-reservation_iops", "1000000");
    let strict = "if that cannot be guaranteed, nothing changes";
    let loose = "if that cannot be guaranteed, it is met as far as possible";
    assert!(outcome(&browser).contains(strict), "{}", outcome(&browser));
    browser.click(APPLY);
    browser.until(
        "that it cannot be guaranteed",
        "document.querySelector('.policy .bad').textContent.includes('cannot be guaranteed')
        && document.getElementById('loose').checkVisibility()",
    );
    assert_eq!(policy(&daemon, "web1")["reservation_iops"], 0);
    for (expected, other) in [(loose, strict), (strict, loose), (loose, strict)] {
        browser.click("#loose");
        let said = outcome(&browser);
        assert!(said.contains(expected) && !said.contains(other), "{said}");
    }
    browser.click(APPLY);
    has_done(&browser, "Applied");
    assert_eq!(policy(&daemon, "web1")["reservation_iops"], 1_000_000);
    browser.click(UNDO);
    has_done(&browser, "As before");
    assert_eq!(policy(&daemon, "web1")["reservation_iops"], 0);
}
