//! `tidegate lab demo` as scripts meet it: what it tells, that shares hold in it, and that it leaves nothing.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tempfile::TempDir;

/// By how much a disk's part may differ from what its shares say.
const OFF: f64 = 0.1;
/// Seconds after a change that are not judged: the hosts have not agreed yet.
const SETTLING: f64 = 2.5;
/// What the array does in a second in which it is the bound: nine tenths of what it can. A machine that is too busy for that
/// divides by rules of its own.
const BOUND: f64 = 600.0;
/// How many seconds are judged, and how many may pass until there were so many in which the array was the bound.
const JUDGED: usize = 5;
const PATIENCE: usize = 90;
/// The shares before, and what `--act` makes of them.
const BEFORE: [u64; 4] = [500, 1000, 1000, 2000];
const AFTER: [u64; 4] = [500, 1000, 1000, 4000];

/// One demonstration at a time: they would only be in each other's way.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn demo(places: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command
        .args(["lab", "demo", "-o", "json"])
        .args(words)
        .env("TMPDIR", places)
        .stdin(Stdio::null());
    command
}

fn places() -> TempDir {
    TempDir::new().expect("a scratch directory")
}

/// How many entries a directory has.
fn left(place: &Path) -> usize {
    fs::read_dir(place).expect("it is there").count()
}

fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

fn shares(second: &Value) -> Vec<u64> {
    let disks = second["disks"].as_array().expect("disks");
    let shares = disks.iter().map(|row| row["terms"]["shares"].as_u64());
    shares.collect::<Option<_>>().expect("all are attached")
}

/// What it says first, and the rest of its lines to come.
fn begun(child: &mut Child) -> (Value, impl Iterator<Item = String> + use<>) {
    let out = child.stdout.take().expect("it is piped");
    let mut lines = BufReader::new(out).lines().map_while(Result::ok);
    let first = lines.next().expect("it says that it has begun");
    (json(&first), lines)
}

fn told(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

/// The middle one of what a disk got in several seconds.
fn middle(seconds: &[Value], disk: usize) -> f64 {
    let rows = seconds.iter().map(|second| &second["disks"][disk]);
    let got = rows.map(|row| row["got_ratio"].as_f64().expect("a number"));
    let mut got: Vec<f64> = got.collect();
    got.sort_by(f64::total_cmp);
    got[got.len() / 2]
}

#[test]
fn a_change_of_shares_is_followed_told_and_nothing_is_left() {
    let _turn = turn();
    let places = places();
    let mut child = demo(places.path(), &["--act"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let (first, mut lines) = begun(&mut child);
    for host in first["hosts"].as_array().expect("hosts") {
        let dashboard = host["dashboard"].as_str().expect("an address");
        assert!(dashboard.starts_with("http://127.0.0.1:"), "{dashboard}");
    }

    let (mut before, mut changed, mut judged, mut said) = (false, None, Vec::new(), Vec::new());
    let mut was_bound = false;
    for line in lines.by_ref().take(PATIENCE) {
        let second = json(&line);
        assert_eq!(second["kind"], "second");
        let disks = second["disks"].as_array().expect("disks");
        assert!(disks.iter().all(|row| row["errors"] == 0), "{second:#}");
        said.extend(second["said"].as_str().map(str::to_owned));
        let at = second["at_s"].as_f64().expect("a time");
        match shares(&second) {
            now if now == BEFORE => before = true,
            now => {
                assert_eq!(now, AFTER);
                changed = changed.or(Some(at));
            }
        }
        let is_bound = second["iops"].as_f64() >= Some(BOUND);
        let is_settled = changed.is_some_and(|changed| at >= changed + SETTLING);
        if is_settled && is_bound && was_bound {
            judged.push(second);
        }
        was_bound = is_bound;
        if judged.len() >= JUDGED && !said.is_empty() {
            break;
        }
    }
    let pid = child.id().to_string();
    assert!(told(Command::new("kill").args(["-INT", &pid])));
    let rest: Vec<String> = lines.collect();
    assert!(child.wait().expect("it ends").success());
    assert_eq!(left(places.path()), 0, "daemons and their roots are gone");
    let last = rest.last().expect("it says that it ends");
    assert_eq!(json(last)["kind"], "ended");

    assert!(before, "it begins with other shares");
    assert!(
        judged.len() >= JUDGED,
        "the array was the bound in {} seconds only: the machine is too busy",
        judged.len()
    );
    // Of each disk's seconds the middle one: one in which the machine held a host up says nothing of shares.
    let whole: u64 = AFTER.iter().sum();
    for (disk, due) in AFTER.iter().enumerate() {
        let (is, due) = (middle(&judged, disk), *due as f64 / whole as f64);
        assert!(
            (is / due - 1.0).abs() <= OFF,
            "disk {} gets {is:.3} where {due:.3} are due: {judged:#?}",
            disk + 1
        );
    }
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].starts_with("vm4, shares 2000 -> 4000: it got "),
        "{said:?}"
    );
}

#[test]
fn it_ends_by_itself_when_its_time_is_over() {
    let _turn = turn();
    let places = places();
    let output = demo(places.path(), &["--for", "2s"]).output();
    let output = output.expect("the program can be started");
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{said}");
    assert!(said.contains("The demonstration is over"), "{said}");
    assert_eq!(left(places.path()), 0, "daemons and their roots are gone");
    let told = String::from_utf8(output.stdout).expect("text");
    let kinds: Vec<Value> = told.lines().map(|line| json(line)["kind"].take()).collect();
    assert_eq!(kinds, ["begun", "second", "second", "ended"]);
}

#[test]
fn a_daemon_that_dies_is_told_and_the_other_one_is_stopped() {
    let _turn = turn();
    let places = places();
    let mut command = demo(places.path(), &[]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let (first, lines) = begun(&mut child);
    let root = first["hosts"][1]["root"].as_str().expect("a root");
    let mut status = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let status = status.args(["--root", root, "status", "-o", "json"]);
    let status = status.output().expect("the program can be started");
    let status = json(&String::from_utf8_lossy(&status.stdout));
    assert!(told(
        Command::new("kill").args(["-KILL", &status["pid"].to_string()])
    ));
    assert!(lines.count() < 1000, "it ends");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the daemon of host2 has ended"), "{said}");
    assert_eq!(left(places.path()), 0, "daemons and their roots are gone");
}
