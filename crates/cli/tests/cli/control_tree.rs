//! The control tree and I/O threads by commands: what is asked, printed and completed.

use serde_json::{Value, json};

use crate::stage::{Answer, Ask, Stage};

fn node(path: &str, value: &str) -> Value {
    json!({"path": path, "kind": "file", "access": "rw", "about": "something", "value": value})
}

fn directory(path: &str, entries: &[(&str, &str)]) -> Value {
    let entry = |(name, kind): &(&str, &str)| json!({"name": name, "kind": kind, "access": "r"});
    let entries: Vec<_> = entries.iter().map(entry).collect();
    json!({"path": path, "kind": "directory", "access": "r", "about": "some", "entries": entries})
}

fn play(ask: &Ask) -> Answer {
    let answer = match ask.line.as_str() {
        "GET /v1/tree/" => directory("/", &[("thread", "directory"), ("now_ns", "file")]),
        "GET /v1/tree/thread" => directory("/thread", &[("default", "file"), ("0", "directory")]),
        "GET /v1/tree/thread%2Fdefault" => node("/thread/default", "auto\n"),
        "PUT /v1/tree/thread%2Fdefault" => json!({"path": "/thread/default", "result": ""}),
        "PUT /v1/tree/device%2Fdb1%2Fthread" => {
            json!({"path": "/device/db1/thread", "result": "pause_us 38.2"})
        }
        "PUT /v1/tree/thread%2Fremove" => {
            let problem = json!({
                "code": "busy", "what": "cannot write /thread/remove (EBUSY)", "why": ["it has disks"],
                "remedy": "move them", "errno": "EBUSY"
            });
            return Some((409, problem));
        }
        "POST /v1/disks/db1/thread" => {
            json!({"disk": "db1", "from": 0, "thread": 1, "pause_us": 38.2, "in_flight": 12})
        }
        _ => return None,
    };
    Some((200, answer))
}

#[test]
fn a_node_is_printed_as_it_is_and_a_directory_one_name_a_line() {
    let stage = Stage::playing(play);
    assert_eq!(stage.run(&["get", "/thread/default"]).out, "auto\n");
    assert_eq!(stage.run(&["get", "thread/default"]).out, "auto\n");
    assert_eq!(stage.run(&["get", "/thread"]).out, "default\n0/\n");
    let json = stage.run(&["get", "/thread/default", "-o", "json"]);
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["value"], "auto\n");
}

#[test]
fn a_write_sends_its_value_and_prints_the_result_or_the_error_by_name() {
    let stage = Stage::playing(play);
    let run = stage.run(&["set", "/thread/default", "auto"]);
    assert_eq!((run.status, run.out.as_str()), (0, ""), "{run:?}");
    assert!(run.err.contains("/thread/default is written"), "{run:?}");
    assert_eq!(stage.asked()[0].body, json!({"value": "auto"}));
    let run = stage.run(&["set", "/device/db1/thread", "1"]);
    assert_eq!(run.out, "pause_us 38.2\n");
    let run = stage.run(&["set", "/thread/remove", "-1"]);
    assert_eq!(run.status, 1);
    assert!(
        run.err.contains("(EBUSY)") && run.err.contains("move them"),
        "{run:?}"
    );
    let run = stage.run(&["thread", "move", "db1", "1"]);
    assert!(
        run.err
            .contains("it paused for 38.2us, with 12 I/Os in flight"),
        "{run:?}"
    );
    assert_eq!(stage.asked().last().unwrap().body, json!({"thread": 1}));
}

#[test]
fn paths_are_completed_one_part_at_a_time() {
    let stage = Stage::playing(play);
    let completed = |typed: &str| {
        let run = stage.complete(&["tidegate", "get", typed]);
        let lines = run.out.lines().filter(|line| line.starts_with('/'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(completed("/"), ["/thread/", "/now_ns"]);
    assert_eq!(completed("th"), ["/thread/"]);
    assert_eq!(completed("/thread/d"), ["/thread/default"]);
    let nobody = Stage::empty().complete(&["tidegate", "get", "/"]);
    assert_eq!(nobody.err, "", "a prompt is no place for errors");
}

#[test]
fn without_a_daemon_nothing_is_mounted() {
    let stage = Stage::empty();
    let run = stage.run(&["mount", "."]);
    assert_eq!(run.status, 3, "{run:?}");
}
