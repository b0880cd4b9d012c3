//! The dashboards of hosts that share a datastore, in a real browser.
//!
//! `TIDEGATE_PICTURES=DIR` has the pictures made that README shows, which takes five minutes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::dashboard::{look_at, open, text};
use crate::support::browser::Browser;
use crate::support::place::Place;
use crate::support::program::{PATIENCE, Service};
use crate::support::rest::Rest;
use crate::support::server::TIDEGATE;

/// By how much a number that changes all the time may differ from what is told of it a moment before or after, at a moment
/// at which it is calm.
const OFF: f64 = 0.1;

/// The width of a picture, and the height of a screen that is higher than the page.
const PICTURE: (u32, u32) = (1180, 2000);

/// The demonstration, running.
struct Demo {
    service: Service,
    hosts: Vec<Host>,
}

struct Host {
    name: String,
    root: PathBuf,
    url: String,
}

impl Demo {
    fn start(place: &Place) -> Demo {
        let places = place.join("demo");
        fs::create_dir(&places).expect("a directory can be made");
        let words = ["lab", "demo", "-o", "json"].map(str::to_owned);
        let env = [("TMPDIR", places.display().to_string())];
        let service = Service::start("tidegate lab demo", TIDEGATE.as_ref(), &words, &env);
        let first = service.said.wait("first line", 0, PATIENCE, |said| {
            let (first, _) = said.split_once('\n')?;
            serde_json::from_str::<Value>(first).ok()
        });
        let hosts = first["hosts"].as_array().expect("hosts").iter();
        let hosts = hosts.map(|host| Host {
            name: text(&host["name"]).to_owned(),
            root: text(&host["root"]).into(),
            url: text(&host["dashboard"]).trim_end_matches('/').to_owned(),
        });
        let hosts = hosts.collect();
        Demo { service, hosts }
    }

    /// The latest second that it told of.
    fn second(&self) -> Value {
        self.until("a second has passed", |_| true)
    }

    /// Waits until the latest second is as it should be.
    fn until(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let said = self.service.said.text();
            let lines = said.lines().rev();
            let mut lines = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let second = lines.find(|told| told["kind"] == "second");
            if let Some(second) = second.as_ref().filter(|second| is(second)) {
                return second.clone();
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: not so in {second:#?}");
            self.service.said.pause(Duration::from_millis(200));
        }
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // Killed it would leave its daemons behind.
        let pid = self.service.id().to_string();
        let asked = Command::new("kill").args(["-INT", &pid]).status();
        let begun = Instant::now();
        while asked.is_ok() && self.service.alive() && begun.elapsed() < PATIENCE {
            self.service.said.pause(Duration::from_millis(50));
        }
    }
}

impl Host {
    fn ask(&self, path: &str) -> Value {
        let mut rest = Rest::connect(&self.root.join("run/tidegate.sock"));
        serde_json::from_str(&rest.ask("GET", path, "")).expect("REST answers with JSON")
    }

    fn control(&self) -> Value {
        self.ask("/v1/datastores/shared")["control"].take()
    }

    fn run(&self, words: &[&str]) {
        let ordered = Command::new(TIDEGATE)
            .arg("--root")
            .arg(&self.root)
            .args(words)
            .stdout(Stdio::null())
            .status();
        assert!(ordered.expect("it starts").success(), "{words:?}");
    }
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

/// What a page calls a host: by the name that the demonstration has given it, which no other has.
fn called(control: &Value, host: &Value) -> String {
    let hosts = list(control, "hosts");
    let known = hosts.iter().find(|known| known["host"] == *host);
    let name = text(&known.expect("a host that is known")["name"]);
    let so_called = hosts.iter().filter(|known| known["name"] == name);
    assert_eq!(so_called.count(), 1, "{name}");
    name.to_owned()
}

/// The first number in a text whose thousands are apart.
fn number(text: &str) -> f64 {
    let text = text.replace('\u{202f}', "");
    let from = text.find(|c: char| c.is_ascii_digit());
    let digits = text[from.unwrap_or_else(|| panic!("no number in {text}"))..].chars();
    let digits: String = digits
        .take_while(|c| c.is_ascii_digit() || *c == '.')
        .collect();
    digits.parse().expect("a number")
}

/// What differs between a page and what is told elsewhere.
#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn note(&mut self, what: &str, shown: f64, told: f64) {
        if (shown - told).abs() > OFF * told.max(shown) + 2.0 {
            self.0
                .push(format!("{what}: the page shows {shown}, told is {told}"));
        }
    }
}

/// What a page of the datastore says of a disk.
struct Row {
    /// Its name, its host, its shares.
    who: String,
    /// What is read out.
    label: String,
    what: String,
}

fn row(browser: &Browser, disk: &str) -> Row {
    let part = |of: &str| browser.text(&format!("[data-disk={disk}] {of}"));
    let label =
        format!("document.querySelector('[data-disk={disk}] svg').getAttribute('aria-label')");
    Row {
        who: part(".who"),
        label: text(&browser.look(&label)).to_owned(),
        what: part(".what"),
    }
}

/// One host's page of the datastore, against what its REST interface tells, and what guests got.
fn compare(browser: &Browser, demo: &Demo, host: &Host) {
    open(
        browser,
        &host.url,
        "#/datastore/shared",
        "document.querySelectorAll('.board .row[data-disk^=vm]').length === 4",
    );
    browser.until(
        "congestion",
                "document.querySelector('.title .badge').textContent.includes('shares are applied')
        && document.querySelectorAll('.board [class=part-of], .board [class=part-told]').length === 4",
    );
    browser.until(
        "why",
                "document.querySelector('.lead').textContent.includes('shares and reservations are applied')",
    );
    assert_eq!(browser.text("[data-figure=threshold]"), "60.0\u{202f}ms");
    // Numbers change all the time: at some moment they are what is told at that moment.
    let begun = Instant::now();
    loop {
        let Differences(different) = differences(browser, demo, host);
        if different.is_empty() {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{}", different.join("\n"));
        demo.service.said.pause(Duration::from_millis(200));
    }
}

fn differences(browser: &Browser, demo: &Demo, host: &Host) -> Differences {
    let mut differences = Differences::default();
    let (control, second) = (host.control(), demo.second());
    let here = &list(&control, "hosts")[0]["host"];
    assert_eq!(list(&control, "shares").len(), 4);
    for share in list(&control, "shares") {
        let disk = text(&share["disk"]);
        let Row { who, label, what } = row(browser, disk);
        let shares = share["shares"].to_string().replace("000", "\u{202f}000");
        assert!(who.contains(&format!("shares {shares}")), "{disk}: {who}");
        let entitled = share["entitled_iops"].as_f64().expect("a number");
        let (_, part) = label.split_once("entitled to").expect("it has a part");
        differences.note(&format!("{disk}'s part"), number(part), entitled);
        let rows = list(&second, "disks").iter();
        let got = rows
            .filter(|row| row["disk"] == disk)
            .map(|row| row["iops"].as_f64());
        let got = got.flatten().next().expect("its guest counts");
        // Nobody tells a host what the disks of another get; their part is what they get, since they always ask for more.
        differences.note(&format!("what {disk} gets"), number(&what), got);
        if share["host"] == *here {
            assert!(!who.contains("on "), "{disk} is here: {who}");
        } else {
            let on = called(&control, &share["host"]);
            assert!(
                who.contains(&format!("on {on} ")),
                "{disk} is on {on}: {who}"
            );
            assert!(what.contains("entitled"), "{disk}: {what}");
        }
    }
    let lines = browser.look(
        "[...document.querySelectorAll('[aria-labelledby=h-hosts] tbody tr')]
        .map((tr) => [...tr.children].map((cell) => cell.textContent))",
    );
    let lines = lines.as_array().expect("rows").clone();
    assert_eq!(lines.len(), 2);
    for (line, known) in lines.iter().zip(list(&control, "hosts")) {
        let name = called(&control, &known["host"]);
        let this = if known["here"] == true {
            " (this host)"
        } else {
            ""
        };
        assert_eq!(text(&line[0]), format!("{name}{this}"));
        assert_eq!(text(&line[5]), known["disks"].to_string());
        for (column, field, unit) in [
            (1, "window", 1.0),
            (3, "latency_us", 1e3),
            (4, "cost_per_s", 1.0),
        ] {
            let told = known[field].as_f64().expect("a number") / unit;
            differences.note(
                &format!("{field} of {name}"),
                number(text(&line[column])),
                told,
            );
        }
    }
    differences
}

#[test]
fn a_datastore_of_two_hosts_shows_the_disks_of_both_as_rest_and_guests_report_them() {
    let place = Place::new();
    let demo = Demo::start(&place);
    let browser = Browser::start(&place);
    demo.until("shares hold", |second| {
        let rows = list(second, "disks").iter();
        let part = |row: &Value, of: &str| row[of].as_f64().unwrap_or(0.0);
        let mut off = rows.map(|row| part(row, "got_ratio") / part(row, "due_ratio") - 1.0);
        second["engaged"] == true && off.all(|off| off.abs() < 0.15)
    });
    for host in &demo.hosts {
        let control = host.control();
        let here = list(&control, "hosts")
            .iter()
            .find(|known| known["here"] == true);
        assert_eq!(here.map(|here| text(&here["name"])), Some(&*host.name));
        compare(&browser, &demo, host);
        look_at(&browser, &format!("datastore-of-two-{}", host.name));
    }

    // What another host serves can be looked up and changed here.
    let (first, second) = (&demo.hosts[0], &demo.hosts[1]);
    open(
        &browser,
        &first.url,
        "#/datastore/shared",
        "document.querySelector('[data-disk=vm4] a')",
    );
    browser.click("[data-disk=vm4] a");
    let on = {
        let control = first.control();
        called(&control, &list(&control, "hosts")[1]["host"])
    };
    browser.until(
        "where it is",
        &format!("document.querySelector('.title .badge').textContent === 'on {on}'"),
    );
    assert!(browser.text(".lead").contains("serves it"));
    look_at(&browser, "disk-elsewhere");
    browser.fill("#f-shares", "4000");
    let said = browser.text("[data-figure=outcome]");
    for words in [
        "goes from 44\u{202f}% to 62\u{202f}%",
        "3 other disks",
        "at once",
    ] {
        assert!(said.contains(words), "no '{words}' in: {said}");
    }
    browser.click(".policy button.main");
    browser.until(
        "that it was applied",
        "document.querySelector('.done').textContent.includes('Applied')",
    );
    assert_eq!(second.ask("/v1/disks/vm4")["policy"]["shares"], 4000);
    demo.until("vm4 gets more", |second| {
        let vm4 = &list(second, "disks")[3];
        vm4["terms"]["shares"] == 4000 && vm4["got_ratio"].as_f64() > Some(0.55)
    });
    browser.press("u");
    browser.until(
        "its new shares",
        "document.querySelector('[data-disk=vm4] .who').textContent.includes('shares 4\u{202f}000 (62\u{202f}%)')",
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());
    if let Some(folder) = std::env::var_os("TIDEGATE_PICTURES") {
        make_pictures(&browser, first, Path::new(&folder));
    }
}

/// The pictures that README shows: what shares, a reservation and a limit look like, after some minutes.
fn make_pictures(browser: &Browser, host: &Host, folder: &Path) {
    let promise = ["--reservation", "40", "--best-effort"];
    host.run(&[&["disk", "set", "vm1"][..], &promise].concat());
    host.run(&["disk", "set", "vm2", "--limit", "200"]);
    // As many as a wait of the browser's may take, several times.
    for minute in 1..=4 {
        let passed = format!("performance.now() > {}", minute * 60_000);
        browser.until("another minute", &passed);
    }
    let (width, height) = PICTURE;
    let drawn = || {
        browser.run("requestAnimationFrame(() => requestAnimationFrame(() => done(true)))");
    };
    for scheme in ["light", "dark"] {
        browser.screen(width, height, scheme);
        drawn();
        let end = browser.look(
            "Math.ceil(document.querySelector('main').lastElementChild.getBoundingClientRect().bottom)",
        );
        let end = end.as_u64().and_then(|end| u32::try_from(end).ok());
        browser.screen(width, end.expect("the page has an end") + 16, scheme);
        drawn();
        // A second that stands for the others: what is due is what is got.
        browser.until(
            "a calm second",
            "[...document.querySelectorAll('.board svg')].every((svg) => {
               const told = svg.getAttribute('aria-label').replaceAll('\u{202f}', '');
               const [, got, part] = told.match(/gets (.*?)\\/s, its part is (.*?)\\/s/) || [0, 1, 1];
               return Math.abs(got / part - 1) < 0.08; })",
        );
        browser.picture_to(&folder.join(format!("dashboard-{scheme}.png")));
    }
}
