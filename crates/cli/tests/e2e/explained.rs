//! `tidegate explain` and `tidegate events` of disks that are under load.

use crate::support::daemon::Daemon;
use crate::support::place::Place;
use crate::support::program::{PATIENCE, Service, nbdsh_on};
use crate::support::server::TIDEGATE;

/// A disk of 64 MiB with such a policy, attached.
fn disk(daemon: &Daemon, name: &str, policy: &str) -> String {
    let mut rest = daemon.rest();
    let body = format!(r#"{{"name": "{name}", "size_bytes": 67108864, "policy": {policy}}}"#);
    rest.ask("POST", "/v1/disks", &body);
    rest.ask("POST", &format!("/v1/disks/{name}/attach"), "{}");
    daemon.nbd_uri(name)
}

/// Reads so many blocks of a disk, with 16 outstanding.
fn read(uri: &str, blocks: u32) {
    let script = format!(
        "
import nbd
for block in range({blocks}):
    while h.aio_in_flight() >= 16:
        h.poll(-1)
    h.aio_pread(nbd.Buffer(4096), block % 16384 * 4096, completion=lambda error: 1)
while h.aio_in_flight() > 0:
    h.poll(-1)
"
    );
    nbdsh_on(uri, &script);
}

/// A field of a JSON object that is one word.
fn word<'a>(json: &'a str, field: &str) -> &'a str {
    let mut words = json.split('"').skip_while(|word| *word != field).skip(2);
    words
        .next()
        .unwrap_or_else(|| panic!("no {field} in:\n{json}"))
}

#[test]
fn explain_names_the_limit_of_a_disk_at_its_limit() {
    let place = Place::new();
    let daemon = Daemon::start(&place);
    let uri = disk(&daemon, "web1", r#"{"limit_iops": 200}"#);
    let idle = daemon.run(&["explain", "web1", "-o", "json"]);
    assert_eq!(word(&idle, "cause"), "idle", "{idle}");
    read(&uri, 600);
    let json = daemon.run(&["explain", "web1", "--last", "10s", "-o", "json"]);
    assert_eq!(word(&json, "cause"), "limit", "{json}");
    let table = daemon.run(&["explain", "web1", "--last", "10s"]);
    for words in [
        "its limit of 200 units a second",
        "tidegate disk set web1 --limit",
        "waiting in the scheduler (its limit)",
    ] {
        assert!(table.contains(words), "no '{words}' in:\n{table}");
    }
    assert!(daemon.stop("TERM").success());
}

#[test]
fn the_end_of_a_burst_is_reported_on_the_stream_and_in_the_log() {
    let place = Place::new();
    let daemon = Daemon::start(&place);
    let policy = r#"{"limit_iops": 100, "burst_iops": 500, "burst_seconds": 1}"#;
    let uri = disk(&daemon, "web1", policy);
    let root = place.join("root").display().to_string();
    let follow = ["events", "--follow", "-o", "json"].map(str::to_owned);
    let listener = Service::start(
        "tidegate events",
        TIDEGATE.as_ref(),
        &follow,
        &[("TIDEGATE_ROOT", root)],
    );
    // Also a client that reaches no more than 200 a second has spent the 400 units well before its end.
    read(&uri, 1_000);
    let told = |said: &str, percent: &str| {
        let mut lines = said.lines();
        let event = lines.find(|line| line.contains("\"burst-low\"") && line.contains(percent))?;
        Some(event.to_owned())
    };
    let spent = listener.said.wait("end of the burst", 0, PATIENCE, |said| {
        told(said, "\"percent\":0")
    });
    assert_eq!(word(&spent, "disk"), "web1", "{spent}");
    let kept = daemon.run(&["events"]);
    assert!(
        kept.contains("burst-low") && kept.contains("disk web1"),
        "{kept}"
    );
    let logged = daemon.said();
    assert_eq!(
        logged.matches("the burst of disk web1 is used up").count(),
        1,
        "{logged}"
    );
    assert!(daemon.stop("TERM").success());
}
