//! The program as scripts meet it: exit status, standard output, standard error.
//!
//! Each test has a root of its own with a daemon that is played by `stage`: what is tested is what the program asks
//! and what it makes of the answers. The real daemon is met in `e2e`.

#[path = "cli/control_tree.rs"]
mod control_tree;
#[path = "cli/piped.rs"]
mod piped;
#[path = "cli/refusals.rs"]
mod refusals;
#[path = "cli/stage.rs"]
mod stage;

use serde_json::{Value, json};
use stage::{Run, Stage};

fn disk(name: &str, size: u64) -> Value {
    json!({
        "name": name, "datastore": "local", "uuid": "0b5e1c7e-9f0e-4f0e-8a53-0d7b6f3f3f11",
        "size_bytes": size, "block_size_bytes": 512, "cache": "write-back", "read_only": false,
        "serial": "0b5e1c7e9f0e4f0e8a53", "queues": 16, "filters": ["stats"],
        "policy": {"shares": 1000, "reservation_iops": 0, "limit_iops": null, "limit_bytes_per_s": null},
        "wanted": true, "attached": true, "thread": 0, "io": "direct",
        "nbd_uri": format!("nbd+unix:///{name}?socket=/run/nbd.sock"),
        "vhost_user_socket": format!("/run/disks/{name}.sock"), "clients": []
    })
}

fn status(state: &str) -> Value {
    json!({
        "state": state, "version": "0.1.0", "pid": 7, "uptime_s": 61, "root": "/r", "api_socket": "/r/run/x.sock",
        "nbd_listeners": [{"address": "/r/run/nbd.sock", "security": "unix"}], "threads": 2, "datastores": 1,
        "disks": 1, "attached": 1, "clients": 0, "problems": []
    })
}

fn job(state: &str, done: u64) -> Value {
    json!({
        "id": 7, "what": "import /srv/x.img as disk web1", "disk": "web1", "state": state, "done_bytes": done,
        "total_bytes": 1 << 30, "copied_bytes": done, "elapsed_s": 1.0
    })
}

#[test]
fn without_a_daemon_the_status_is_3_and_the_message_says_what_to_do() {
    let stage = Stage::empty();
    for words in [
        &["disk", "list"][..],
        &["status"],
        &["status", "--wait", "100ms"],
        &["top", "-b"],
        &["stats"],
    ] {
        let run = stage.run(words);
        assert_eq!(
            (run.status, run.out.as_str()),
            (3, ""),
            "{words:?}: {run:?}"
        );
        assert!(
            run.err
                .contains("is the daemon running? start it with `tidegate serve`"),
            "{run:?}"
        );
    }
}

#[test]
fn nonsense_has_status_2_and_nothing_is_asked() {
    let stage = Stage::playing(|_| panic!("nothing may be asked"));
    for words in [
        &["disk", "creat", "x"][..],
        &["disk", "create", "../x", "--size", "1G"],
        &["disk", "create", "x", "--size", "1Q"],
        &["disk", "set", "x"],
        &["datastore", "add", "x", "--kind", "nbd"],
        &["serve-one", "null:1G"],
        &["serve", "--nbd-tcp", "0.0.0.0:10809"],
        &["stats", "--interval", "5s"],
        &["top"],
    ] {
        let run = stage.run(words);
        assert_eq!(run.status, 2, "{words:?}: {run:?}");
        assert!(!run.err.is_empty());
    }
}

#[test]
fn json_is_the_rest_answer_as_it_came() {
    let stage = Stage::answering("GET /v1/disks/web1", 200, disk("web1", 1 << 30));
    let run = stage.run(&["disk", "show", "web1", "-o", "json"]);
    assert_eq!(run.status, 0, "{run:?}");
    let shown: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(shown["nbd_uri"], "nbd+unix:///web1?socket=/run/nbd.sock");
    assert_eq!(shown["vhost_user_socket"], "/run/disks/web1.sock");
    assert_eq!(shown["size_bytes"], 1 << 30);
    assert_eq!(run.err, "");
}

#[test]
fn lists_come_as_table_wide_names_and_yaml() {
    let stage = Stage::answering(
        "GET /v1/disks",
        200,
        json!({"disks": [disk("db1", 10 << 30), disk("web1", 512)]}),
    );
    let table = stage.run(&["disk", "list"]).out;
    assert!(
        table.starts_with("NAME  SIZE   USED  DATASTORE  STATE     CLIENTS  FILTERS\ndb1   10GiB"),
        "{table}"
    );
    let wide = stage.run(&["disk", "list", "-o", "wide"]).out;
    assert!(
        wide.contains("RESERVATION") && wide.contains("0b5e1c7e-9f0e"),
        "{wide}"
    );
    assert_eq!(stage.run(&["disk", "ls", "-o", "name"]).out, "db1\nweb1\n");
    let yaml = stage.run(&["disk", "list", "-o", "yaml"]).out;
    assert!(
        yaml.starts_with("disks:\n  - attached: true\n    block_size_bytes: 512\n"),
        "{yaml}"
    );
}

#[test]
fn disks_of_one_datastore_are_asked_for_and_a_missing_one_stands_out() {
    let mut missing = disk("db1", 512);
    missing["attached"] = json!(true);
    missing["problem"] = json!({"code": "not-found", "what": "its directory is missing"});
    let line = "GET /v1/disks?datastore=fast";
    let stage = Stage::answering(line, 200, json!({"disks": [missing]}));
    let run = stage.run(&["disk", "list", "--datastore", "fast"]);
    assert!(run.out.contains("attached, missing"), "{run:?}");
}

#[test]
fn a_full_datastore_is_called_full() {
    let datastore = json!({
        "name": "fast", "settings": {"kind": "dir", "path": "/srv"}, "disks": 1, "attached": 0,
        "problem": {"code": "full", "what": "datastore fast is full"},
    });
    let list = json!({"datastores": [datastore]});
    let stage = Stage::answering("GET /v1/datastores", 200, list);
    let run = stage.run(&["datastore", "list"]);
    assert!(run.out.trim_end().ends_with("full"), "{run:?}");
}

#[test]
fn an_import_that_is_not_waited_for_is_attached_by_the_daemon() {
    let stage = Stage::answering("POST /v1/import", 200, job("running", 0));
    let run = stage.run(&["disk", "import", "/x.img", "web1", "--attach", "--no-wait"]);
    assert_eq!(run.status, 0, "{run:?}");
    assert_eq!(stage.asked()[0].body["attach"], true);
}

#[test]
fn a_problem_has_status_1_and_is_told_whole() {
    let problem = json!({"code": "locked", "what": "cannot attach disk db1", "why": ["process 9 holds it"],
        "remedy": "detach it there"});
    let stage = Stage::answering("POST /v1/disks/db1/attach", 423, problem);
    let run = stage.run(&["disk", "attach", "db1"]);
    assert_eq!((run.status, run.out.as_str()), (1, ""));
    assert_eq!(
        run.err,
        "error: cannot attach disk db1\n  because process 9 holds it\n  to do: detach it there\n"
    );
    let run = stage.run(&["disk", "attach", "db1", "-o", "json"]);
    let told: Value = serde_json::from_str(&run.err).unwrap();
    assert_eq!(told["problem"]["code"], "locked");
}

#[test]
fn a_server_that_is_not_ours_is_told_from_one_that_is() {
    let stage = Stage::answering("GET /v1/disks", 404, json!("nothing here"));
    let run = stage.run(&["disk", "list"]);
    assert_eq!(run.status, 1);
    assert!(
        run.err.contains("HTTP status 404") && run.err.contains("nothing here"),
        "{run:?}"
    );
}

#[test]
fn an_answer_that_breaks_off_has_status_3() {
    let stage = Stage::playing(|_| None);
    let run = stage.run(&["disk", "list"]);
    assert_eq!(run.status, 3, "{run:?}");
    assert!(run.err.contains("lost the daemon"), "{run:?}");
}

#[test]
fn create_sends_what_was_said_and_attach_follows() {
    let stage = Stage::playing(|ask| match ask.line.as_str() {
        "POST /v1/disks" => Some((201, disk("web1", 10 << 30))),
        "POST /v1/disks/web1/attach" => Some((200, disk("web1", 10 << 30))),
        _ => None,
    });
    let run = stage.run(&[
        "disk", "create", "web1", "--size", "10G", "--filter", "stats", "--filter", "null",
        "--attach",
    ]);
    assert_eq!((run.status, run.out.as_str()), (0, ""), "{run:?}");
    assert!(run.err.contains("created and attached"), "{run:?}");
    let asked = stage.asked();
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0].body["size_bytes"], 10u64 << 30);
    assert_eq!(asked[0].body["filters"], json!(["stats", "null"]));
    assert_eq!(asked[1].line, "POST /v1/disks/web1/attach");
}

#[test]
fn quiet_says_nothing_and_names_are_for_scripts() {
    let stage = Stage::answering("POST /v1/disks", 201, disk("web1", 1 << 30));
    let quiet = stage.run(&["-q", "disk", "create", "web1", "--size", "1G"]);
    assert_eq!(
        (quiet.status, quiet.out.as_str(), quiet.err.as_str()),
        (0, "", "")
    );
    let named = stage.run(&["disk", "create", "web1", "--size", "1G", "-o", "name"]);
    assert_eq!((named.out.as_str(), named.err.as_str()), ("web1\n", ""));
}

#[test]
fn destruction_without_a_terminal_takes_yes() {
    let mut detached = disk("web1", 10 << 30);
    detached["attached"] = json!(false);
    let stage = Stage::playing(move |ask| match ask.line.as_str() {
        "GET /v1/disks/web1" => Some((200, detached.clone())),
        "DELETE /v1/disks/web1" => Some((204, Value::Null)),
        "POST /v1/disks/web1/resize" => Some((200, disk("web1", 5 << 30))),
        _ => None,
    });
    for words in [
        &["disk", "delete", "web1"][..],
        &["disk", "resize", "web1", "5G"],
    ] {
        let run = stage.run(words);
        assert_eq!(run.status, 2, "{run:?}");
        assert!(
            run.err.contains("web1") && run.err.contains("--yes"),
            "{run:?}"
        );
    }
    assert!(
        stage.asked().iter().all(|ask| ask.line.starts_with("GET ")),
        "nothing was changed"
    );
    assert_eq!(stage.run(&["disk", "delete", "web1", "--yes"]).status, 0);
    assert_eq!(
        stage.run(&["disk", "resize", "web1", "5G", "--yes"]).status,
        0
    );
    let last = stage.asked().pop().unwrap();
    assert_eq!(
        last.body,
        json!({"size_bytes": 5u64 << 30, "data": "may-cut-off"})
    );
}

#[test]
fn growing_asks_nothing_and_may_not_cut() {
    let stage = Stage::playing(|ask| match ask.line.as_str() {
        "GET /v1/disks/web1" => Some((200, disk("web1", 10 << 30))),
        "POST /v1/disks/web1/resize" => Some((200, disk("web1", 20 << 30))),
        _ => None,
    });
    let run = stage.run(&["disk", "resize", "web1", "20G"]);
    assert_eq!(run.status, 0, "{run:?}");
    assert!(run.err.contains("from 10GiB to 20GiB"), "{run:?}");
    assert_eq!(
        stage.asked()[1].body,
        json!({"size_bytes": 20u64 << 30, "data": "keep"})
    );
}

#[test]
fn detaching_a_disk_in_memory_is_destruction() {
    let stage = Stage::playing(|ask| match ask.line.as_str() {
        "GET /v1/disks/web1" => Some((200, disk("web1", 1 << 30))),
        "GET /v1/datastores/local" => Some((
            200,
            json!({"name": "local", "settings": {"kind": "memory"}, "disks": 1, "attached": 1}),
        )),
        "POST /v1/disks/web1/detach" => Some((200, disk("web1", 1 << 30))),
        _ => None,
    });
    let refused = stage.run(&["disk", "detach", "web1"]);
    assert_eq!(refused.status, 2, "{refused:?}");
    let agreed = stage.run(&["disk", "detach", "web1", "--yes", "--disconnect"]);
    assert_eq!(agreed.status, 0, "{agreed:?}");
    assert_eq!(
        stage.asked().pop().unwrap().body,
        json!({"clients": "disconnect"})
    );
}

#[test]
fn status_waits_until_the_daemon_serves() {
    let stage =
        Stage::counting(|nth, _| Some((200, status(if nth < 3 { "starting" } else { "serving" }))));
    let run = stage.run(&["status", "--wait", "20s"]);
    assert_eq!(run.status, 0, "{run:?}");
    assert!(
        run.out.starts_with("state:") && run.out.contains("serving for 1min 1s"),
        "{run:?}"
    );
    assert_eq!(stage.asked().len(), 4);
}

#[test]
fn status_that_waited_in_vain_has_status_1() {
    let stage = Stage::answering("GET /v1/status", 200, status("starting"));
    let run = stage.run(&["status", "--wait", "120ms"]);
    assert_eq!(run.status, 1, "{run:?}");
    assert!(run.err.contains("it is starting"), "{run:?}");
    assert_eq!(
        stage.run(&["status"]).status,
        0,
        "who does not wait is told how it is"
    );
}

#[test]
fn a_filter_is_changed_within_its_stack() {
    let stage = Stage::playing(|ask| match ask.line.as_str() {
        "GET /v1/disks/web1" | "PATCH /v1/disks/web1" => Some((200, disk("web1", 1 << 30))),
        _ => None,
    });
    assert_eq!(
        stage
            .run(&["filter", "add", "web1", "null", "--at", "1"])
            .status,
        0
    );
    assert_eq!(
        stage.asked().pop().unwrap().body,
        json!({"filters": ["null", "stats"]})
    );
    assert_eq!(stage.run(&["filter", "remove", "web1", "stats"]).status, 0);
    assert_eq!(stage.asked().pop().unwrap().body, json!({"filters": []}));
    assert_eq!(stage.run(&["filter", "remove", "web1", "fault"]).status, 2);
    assert_eq!(
        stage.run(&["filter", "list", "web1"]).out,
        "PLACE  FILTER\n1      stats\n"
    );
}

#[test]
fn an_import_is_followed_to_its_end() {
    let stage = Stage::counting(|nth, ask| match (ask.line.as_str(), nth) {
        ("POST /v1/import", _) => Some((202, job("running", 0))),
        ("GET /v1/jobs/7", 1) => Some((200, job("running", 1 << 29))),
        ("GET /v1/jobs/7", _) => Some((200, job("done", 1 << 30))),
        _ => None,
    });
    let run = stage.run(&["disk", "import", "x.img", "web1"]);
    assert_eq!(run.status, 0, "{run:?}");
    assert!(
        run.err.contains("tidegate job watch 7") && run.err.contains("disk web1 imported"),
        "{run:?}"
    );
    let file = stage.asked()[0].body["file"].as_str().unwrap().to_owned();
    assert!(file.starts_with('/') && file.ends_with("/x.img"), "{file}");
}

#[test]
fn an_import_that_fails_has_status_1_and_its_reason() {
    let mut failed = job("failed", 0);
    failed["problem"] =
        json!({"code": "full", "what": "cannot import x.img", "why": ["no space left"]});
    let stage = Stage::playing(move |ask| match ask.line.as_str() {
        "POST /v1/import" => Some((202, job("running", 0))),
        "GET /v1/jobs/7" => Some((200, failed.clone())),
        _ => None,
    });
    let run = stage.run(&["disk", "import", "/x.img", "web1"]);
    assert_eq!(run.status, 1, "{run:?}");
    assert!(
        run.err.contains("cannot import x.img") && run.err.contains("no space left"),
        "{run:?}"
    );
}

fn explanation() -> Value {
    let part = |part: &str, mean_us: f64, ratio: f64| json!({"part": part, "mean_us": mean_us, "ratio": ratio});
    let waiting = |reason: &str, mean_us: f64, ratio: f64| json!({"part": "turn", "reason": reason, "mean_us": mean_us, "ratio": ratio});
    json!({
        "disk": "web1", "datastore": "fast", "covers_s": 30.0, "cause": "limit",
        "because": "its limit of 500 units a second: it started 500 a second",
        "remedy": "a higher limit: tidegate disk set web1 --limit N (or unlimited)",
        "notes": ["the disk uses its burst"],
        "load": {"ios": 15000, "iops": 500.0, "units_per_s": 500.0, "bytes_per_s": 2048000.0,
            "outstanding_mean": 16.0, "latency_mean_us": 32000.0},
        "parts": [part("queue", 0.0, 0.0), part("filters", 1.0, 0.0), waiting("limit", 31500.0, 0.98),
            waiting("shares", 0.0, 0.0), part("datastore", 499.0, 0.02)],
        "thread": {"thread": 1, "busy_ratio": 0.1, "polling_ratio": 0.2, "sleeping_ratio": 0.7},
        "control": {"mode": "on", "engaged_ratio": 0.0, "latency_us": 499.0, "threshold_us": 5000.0, "shares": 1000,
            "reservation_iops": 0, "limit_iops": 500, "burst_left": 5}
    })
}

#[test]
fn an_explanation_says_what_limits_a_disk_and_where_its_time_went() {
    let stage = Stage::answering("GET /v1/disks/web1/explain?last=5s", 200, explanation());
    let run = stage.run(&["explain", "web1", "--last", "5s"]);
    assert_eq!(run.status, 0, "{run:?}");
    for line in [
        "limited by:   its limit of 500 units a second: it started 500 a second",
        "to change it: a higher limit: tidegate disk set web1 --limit N (or unlimited)",
        "note:         the disk uses its burst",
        "waiting in the scheduler (its limit)  31.5ms  98%",
        "1: 10% busy, 20% polling, 70% sleeping",
    ] {
        assert!(run.out.contains(line), "no '{line}' in\n{}", run.out);
    }
    assert!(!run.out.contains("other disks' shares"), "{}", run.out);
    let json = stage.run(&["explain", "web1", "--last", "5s", "-o", "json"]);
    let shown: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(shown["cause"], "limit");
    let nonsense = stage.run(&["explain", "web1", "--last", "1h"]);
    assert_eq!(nonsense.status, 2, "{nonsense:?}");
}

#[test]
fn events_are_told_as_they_were_and_as_they_come() {
    let event = |number: u64| {
        json!({"number": number, "at_ms": 951_782_400_000_u64, "datastore": "fast", "event": "burst-low",
            "disk": "web1", "percent": 20, "text": "less than 20 % is left of the burst of disk web1"})
    };
    let stage = Stage::playing(move |ask| match ask.line.as_str() {
        "GET /v1/events/kept" => Some((200, json!({"events": [event(1)]}))),
        "GET /v1/events" => Some((200, json!({"stream": [event(1), event(2)]}))),
        other => panic!("{other}"),
    });
    let kept = stage.run(&["events"]);
    assert_eq!(
        kept.out,
        "TIME                  DATASTORE  EVENT      WHAT\n\
         2000-02-29T00:00:00Z  fast       burst-low  less than 20 % is left of the burst of disk web1\n"
    );
    let coming = stage.run(&["events", "--follow", "-o", "json"]);
    let numbers: Vec<_> = coming
        .out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["number"].clone())
        .collect();
    assert_eq!(numbers, [1, 2], "{coming:?}");
    assert_eq!(coming.status, 3, "a stream that ends is told: {coming:?}");
}

#[test]
fn a_datastore_under_control_shows_why_the_hosts_and_who_gets_what() {
    let host = |host: &str, here: bool| {
        json!({"host": host.repeat(16), "here": here, "silent_s": 0.2, "suspect": false, "engaged": true,
            "window": 20.0, "in_flight": 18.0, "latency_us": 12000.0, "cost_per_s": 1500.0, "disks": 1})
    };
    let share = |disk: &str, host: &str, got: Value| {
        json!({"disk": disk, "key": "00".repeat(8), "host": host.repeat(16), "shares": 2000, "reservation_iops": 500,
            "limit_iops": 5000, "demand": 32.0, "window": 20.0, "entitled_iops": 1500, "got_iops": got,
            "unmet": disk == "db1", "merged": false})
    };
    let shown = json!({
        "name": "shared", "settings": {"kind": "dir", "path": "/srv/shared"}, "disks": 2, "attached": 1,
        "io_control": {"mode": "on", "congestion_threshold": "auto", "io_unit_bytes": 32768},
        "control": {
            "mode": "observe", "congestion_threshold": "12ms", "io_unit_bytes": 16384, "engaged": true,
            "why": "the datastore's latency is 12.00 ms", "latency_us": 12000.0, "threshold_us": 12000.0,
            "window_all": 40.0, "window": 20.0, "in_flight": 36.0, "cost_per_s": 3000.0, "peak_cost_per_s": 3300.0,
            "saturated": true, "reservations_met": 0.5, "external_load": true, "alone": false, "mute": false,
            "unreadable_slots_total": 0, "directory": "/srv/shared", "slot": 3,
            "hosts": [host("ab", true), host("cd", false)],
            "shares": [share("db1", "ab", json!(700)), share("web1", "cd", Value::Null)]
        }
    });
    let stage = Stage::answering("GET /v1/datastores/shared", 200, shown);
    let run = stage.run(&["datastore", "show", "shared"]);
    assert_eq!(run.status, 0, "{run:?}");
    // What holds now was set on another host.
    for line in [
        "I/O control:     observe",
        "threshold:       12ms",
        "I/O unit:        16KiB",
        "engaged:         yes: the datastore's latency is 12.00 ms",
        "window:          20 for this host, 40 for all hosts; 36 in flight on all hosts",
        "throughput:      3000 a second on all hosts",
        "highest seen:    3300 a second: the datastore's maximum",
        "reservations:    50% of each is met",
        "note:            something other than these hosts loads the datastore",
        "slot file:       /srv/shared/.tidegate/hosts.v1, slot 3",
        "abababab  here, engaged",
        "db1   abababab  2000    500          5000   32      20      1500      700         reservation not met",
        "web1  cdcdcdcd  2000    500          5000   32      20      1500      -",
    ] {
        assert!(run.out.contains(line), "no '{line}' in\n{}", run.out);
    }
}

#[test]
fn top_prints_as_many_samples_as_were_asked_for() {
    let stage = Stage::playing(|ask| {
        assert_eq!(ask.line, "GET /v1/stats/stream?interval_ms=500");
        Some((
            200,
            json!({"stream": [
                {"at_ms": 1, "disks": [], "threads": []}, {"at_ms": 2, "disks": [], "threads": []},
                {"at_ms": 3, "disks": [], "threads": []}
            ]}),
        ))
    });
    let run = stage.run(&["top", "-b", "-n", "2", "-d", "0.5", "-o", "json"]);
    assert_eq!(run.status, 0, "{run:?}");
    let at: Vec<_> = run
        .out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["at_ms"].clone())
        .collect();
    assert_eq!(at, [1, 2]);
    let csv = stage.run(&["top", "-b", "-n", "3", "-d", "500ms"]);
    assert!(csv.out.starts_with("at_ms,disk,datastore,"), "{csv:?}");
    let ended = stage.run(&["top", "-b", "-n", "4", "-d", "500ms"]);
    assert_eq!(
        ended.status, 3,
        "a stream that ends early is told: {ended:?}"
    );
}

#[test]
fn completions_know_the_names_of_disks() {
    let stage = Stage::answering(
        "GET /v1/disks",
        200,
        json!({"disks": [disk("db1", 1 << 30), disk("web1", 1 << 30)]}),
    );
    let run = stage.complete(&["tidegate", "disk", "show", ""]);
    assert!(
        run.out.contains("db1") && run.out.contains("web1"),
        "{run:?}"
    );
    assert_eq!(
        stage
            .complete(&["tidegate", "disk", "show", "w"])
            .out
            .lines()
            .next(),
        Some("web1")
    );
    let nobody = Stage::empty().complete(&["tidegate", "disk", "show", ""]);
    assert_eq!(nobody.err, "", "a prompt is no place for errors");
}

#[test]
fn completions_know_the_members_of_the_disk_that_a_line_names() {
    let mirror = |name: &str, on: [&str; 2]| {
        let mut disk = disk(name, 1 << 30);
        let member = |nth: usize| json!({"member": nth, "datastore": on[nth], "size_bytes": 1, "state": "in-sync"});
        disk["members"] = json!([member(0), member(1)]);
        disk
    };
    let disks = [
        mirror("db1", ["ssd1", "ssd2"]),
        mirror("db2", ["ssd3", "ssd4"]),
    ];
    let stage = Stage::answering("GET /v1/disks", 200, json!({"disks": disks}));
    for words in [
        &["member", "remove", "db2", ""][..],
        &["member", "replace", "db2", ""],
        &["attach", "db2", "--without", ""],
    ] {
        let run = stage.complete(&[&["tidegate", "disk"], words].concat());
        let lines: Vec<_> = run.out.lines().take(2).collect();
        assert!(
            matches!(lines[..], [one, two] if one.starts_with('0') && two.starts_with('1')),
            "{run:?}"
        );
    }
    let unknown = stage.complete(&["tidegate", "disk", "member", "remove", "db3", ""]);
    assert!(!unknown.out.starts_with('0'), "{unknown:?}");
}

#[test]
fn a_reader_that_stops_early_is_no_error() {
    let many: Vec<_> = (0..3000)
        .map(|nth| disk(&format!("disk{nth}"), 512))
        .collect();
    let stage = Stage::answering("GET /v1/disks", 200, json!({"disks": many}));
    let Run { status, err, .. } = stage.run_unread(&["disk", "list", "-o", "json"]);
    assert_eq!((status, err.as_str()), (0, ""));
}

#[test]
fn manual_pages_and_references_are_written_where_they_are_asked_for() {
    let stage = Stage::empty();
    let man = stage.path("man");
    assert_eq!(
        stage.run(&["man", "--dir", man.to_str().unwrap()]).status,
        0
    );
    let page = std::fs::read_to_string(man.join("tidegate-disk-create.1")).unwrap();
    assert!(
        page.contains(".TH") && page.contains("EXAMPLES") || page.contains("Examples"),
        "{page}"
    );
    let docs = stage.path("docs");
    assert_eq!(
        stage.run(&["internal-docs", docs.to_str().unwrap()]).status,
        0
    );
    for file in ["cli.md", "config.md", "openapi.json", "metrics.md"] {
        assert!(docs.join(file).metadata().unwrap().len() > 2, "{file}");
    }
    assert_eq!(stage.run(&["man", "disk", "create"]).status, 0);
    assert_eq!(stage.run(&["man", "disk", "fly"]).status, 2);
}
