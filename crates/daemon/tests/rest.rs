//! A whole daemon in a temporary root, spoken to as its users do: REST over its Unix socket, NBD over another.
//!
//! The daemon runs as a process of its own (this test's binary, told by the environment to serve), so that signals,
//! locks and exit statuses are what they will be.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on ends; where, its message says"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::{Value, json};

/// Not a test of its own: what a child process of the tests below runs.
#[test]
fn the_daemon_itself() {
    if let Some(root) = std::env::var_os("TIDEGATE_TEST_SERVE") {
        let options = tidegate_daemon::ServeOptions {
            root: Some(root.into()),
            threads: Some(tidegate_api::config::Threads::Count(1)),
            ..Default::default()
        };
        if let Err(error) = tidegate_daemon::serve(options) {
            eprintln!("{error}");
            std::process::exit(1);
        }
        std::process::exit(0);
    }
}

struct Daemon {
    child: Child,
    root: PathBuf,
}

impl Daemon {
    /// Starts one and waits until it says that it serves.
    fn start(root: &Path) -> Daemon {
        let mut child = spawn(root);
        let stderr = child.stderr.take().unwrap();
        let mut lines = BufReader::new(stderr).lines();
        let mut seen = Vec::new();
        loop {
            let line = lines.next().and_then(Result::ok);
            let line = line.unwrap_or_else(|| panic!("it did not serve: {}", seen.join("\n")));
            let serves = line.contains("serving") && line.contains("disks");
            seen.push(line);
            if serves {
                break;
            }
        }
        // Nobody reads on, and a full pipe would stop it.
        std::thread::spawn(move || lines.for_each(drop));
        Daemon {
            child,
            root: root.to_owned(),
        }
    }

    /// One request: its status and JSON (null where there is no body).
    fn ask(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let (status, text) = self.ask_text(method, path, body);
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    fn ask_text(&self, method: &str, path: &str, body: Value) -> (u16, String) {
        let mut socket = UnixStream::connect(self.root.join("run/tidegate.sock")).unwrap();
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let length = body.len();
        write!(
            socket,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }

    fn get(&self, path: &str) -> Value {
        let (status, value) = self.ask("GET", path, Value::Null);
        assert_eq!(status, 200, "{path}: {value}");
        value
    }

    fn stop(mut self) -> ExitStatus {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &pid])
                .status()
                .unwrap()
                .success()
        );
        self.child.wait().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // A failed test leaves no process behind; one that was stopped is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(root: &Path) -> Child {
    command(root).stderr(Stdio::piped()).spawn().unwrap()
}

fn command(root: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["the_daemon_itself", "--exact", "--nocapture"])
        .env("TIDEGATE_TEST_SERVE", root)
        .env_remove("RUST_LOG")
        .env_remove("JOURNAL_STREAM")
        .stdout(Stdio::null());
    command
}

#[test]
fn the_first_run_serves_a_disk_that_a_restart_serves_again() {
    let root = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(root.path());
    let disk = daemon.get("/v1/disks/disk0");
    assert_eq!(disk["attached"], true);
    assert_eq!(disk["size_bytes"], 1 << 30);
    let socket = root.path().join("run/disks/disk0.sock");
    assert_eq!(disk["vhost_user_socket"], socket.to_str().unwrap());
    assert!(
        disk["nbd_uri"]
            .as_str()
            .unwrap()
            .starts_with("nbd+unix:///disk0?socket=")
    );
    assert_eq!(daemon.get("/v1/status")["state"], "serving");
    assert!(daemon.stop().success());
    assert!(!socket.exists());

    let again = Daemon::start(root.path());
    assert_eq!(again.get("/v1/disks/disk0")["attached"], true);
    assert_eq!(again.get("/v1/disks/disk0")["uuid"], disk["uuid"]);
    assert!(again.stop().success());
}

#[test]
fn a_disks_life_goes_through_every_door() {
    let root = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(root.path());
    let create = json!({"name": "db1", "size_bytes": 64 << 20, "filters": ["stats", "null"], "policy": {"shares": 2000}});
    let (status, disk) = daemon.ask("POST", "/v1/disks", create.clone());
    assert_eq!(status, 200, "{disk}");
    assert_eq!(
        (&disk["attached"], &disk["policy"]["shares"]),
        (&json!(false), &json!(2000))
    );
    let (status, problem) = daemon.ask("POST", "/v1/disks", create);
    assert_eq!((status, &problem["code"]), (409, &json!("exists")));

    let (status, disk) = daemon.ask("POST", "/v1/disks/db1/attach", Value::Null);
    assert_eq!((status, &disk["attached"]), (200, &json!(true)), "{disk}");
    let (status, problem) = daemon.ask("DELETE", "/v1/disks/db1", Value::Null);
    assert_eq!(
        (status, &problem["code"]),
        (409, &json!("busy")),
        "{problem}"
    );

    let (status, disk) = daemon.ask(
        "PATCH",
        "/v1/disks/db1",
        json!({"filters": ["null"], "policy": {"limit_iops": 500}}),
    );
    assert_eq!(status, 200, "{disk}");
    assert_eq!(
        (&disk["filters"], &disk["policy"]["limit_iops"]),
        (&json!(["null"]), &json!(500))
    );
    let (_, disk) = daemon.ask(
        "PATCH",
        "/v1/disks/db1",
        json!({"policy": {"limit_iops": null}}),
    );
    assert_eq!(
        (&disk["policy"]["limit_iops"], &disk["policy"]["shares"]),
        (&Value::Null, &json!(2000))
    );
    let (status, problem) = daemon.ask("PATCH", "/v1/disks/db1", json!({"filters": ["nonesuch"]}));
    assert_eq!(status, 400, "{problem}");
    let (status, problem) = daemon.ask("PATCH", "/v1/disks/db1", json!({"serial": "X"}));
    assert_eq!(status, 409, "{problem}");

    let (status, disk) = daemon.ask(
        "POST",
        "/v1/disks/db1/resize",
        json!({"size_bytes": 128 << 20}),
    );
    assert_eq!(
        (status, &disk["size_bytes"]),
        (200, &json!(128 << 20)),
        "{disk}"
    );
    let (status, _) = daemon.ask(
        "POST",
        "/v1/disks/db1/resize",
        json!({"size_bytes": 1 << 20}),
    );
    assert_eq!(status, 400);

    let stats = daemon.get("/v1/stats");
    assert_eq!(stats["threads"].as_array().unwrap().len(), 1);
    assert_eq!(stats["disks"].as_array().unwrap().len(), 2);
    assert_eq!(daemon.get("/v1/disks/disk0/stats")["measured"], true);
    let snippet = daemon.get("/v1/disks/db1/snippets/qemu");
    assert!(
        snippet["text"]
            .as_str()
            .unwrap()
            .contains("vhost-user-blk-pci")
    );
    let (_, metrics) = daemon.ask_text("GET", "/metrics", Value::Null);
    assert!(
        metrics.contains("tidegate_disk_size_bytes{disk=\"db1\",datastore=\"local\"} 134217728\n"),
        "{metrics}"
    );

    let (status, disk) = daemon.ask("POST", "/v1/disks/db1/detach", Value::Null);
    assert_eq!((status, &disk["attached"]), (200, &json!(false)), "{disk}");
    let (status, problem) = daemon.ask("DELETE", "/v1/disks/db1", Value::Null);
    assert_eq!(status, 204, "{problem}");
    assert_eq!(daemon.ask("GET", "/v1/disks/db1", Value::Null).0, 404);
    assert!(daemon.stop().success());
}

#[test]
fn disks_go_out_and_come_in_as_jobs() {
    let root = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(root.path());
    daemon.ask("POST", "/v1/disks/disk0/detach", Value::Null);
    let file = root.path().join("out.qcow2");
    let (status, job) = daemon.ask("POST", "/v1/disks/disk0/export", json!({"file": file}));
    assert_eq!(status, 200, "{job}");
    over(&daemon, &job);
    let (status, job) = daemon.ask("POST", "/v1/import", json!({"file": file, "name": "copy"}));
    assert_eq!(status, 200, "{job}");
    over(&daemon, &job);
    assert_eq!(daemon.get("/v1/disks/copy")["size_bytes"], 1 << 30);
    assert_eq!(daemon.get("/v1/disks/copy")["attached"], false);
    assert!(daemon.stop().success());
}

#[test]
fn an_import_attaches_its_disk_when_it_is_complete_and_keeps_one_that_cannot_be() {
    let root = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(root.path());
    let file = root.path().join("image");
    std::fs::write(&file, [7; 4096]).unwrap();
    let import = |name: &str| {
        let order = json!({"file": file, "name": name, "attach": true});
        let (status, job) = daemon.ask("POST", "/v1/import", order);
        assert_eq!(status, 200, "{job}");
        job
    };
    over(&daemon, &import("good"));
    assert_eq!(daemon.get("/v1/disks/good")["attached"], true);

    // Its socket's path is taken by something that nobody may remove.
    std::fs::create_dir_all(root.path().join("run/disks/bad.sock/x")).unwrap();
    let job = ended(&daemon, &import("bad"));
    assert_eq!(job["state"], "failed");
    let what = job["problem"]["what"].as_str().unwrap();
    assert_eq!(what, "disk bad is imported, but not attached");
    assert_eq!(daemon.get("/v1/disks/bad")["attached"], false);
    assert!(daemon.stop().success());
}

/// A job when it is over.
fn ended(daemon: &Daemon, job: &Value) -> Value {
    let path = format!("/v1/jobs/{}", job["id"]);
    loop {
        let job = daemon.get(&path);
        if job["state"] != "running" {
            return job;
        }
        std::thread::yield_now();
    }
}

fn over(daemon: &Daemon, job: &Value) {
    let job = ended(daemon, job);
    assert_eq!(job["state"], "done", "{job}");
}

#[test]
fn whatever_is_wrong_is_answered_by_a_problem() {
    let root = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(root.path());
    for (method, path, body, status) in [
        ("GET", "/v2/disks", Value::Null, 404),
        ("PUT", "/v1/disks", Value::Null, 405),
        ("DELETE", "/v1/status", Value::Null, 405),
        ("POST", "/v1/disks/disk0", json!({}), 405),
        ("POST", "/v1/disks", json!("x".repeat(256 << 10)), 413),
        ("GET", "/v1/disks/..%2F..%2Fetc", Value::Null, 404),
        (
            "POST",
            "/v1/disks",
            json!({"name": "../x", "size_bytes": 512}),
            400,
        ),
        ("POST", "/v1/disks", json!({"name": "x", "size": 512}), 400),
        (
            "POST",
            "/v1/disks",
            json!({"name": "x", "size_bytes": 1000}),
            400,
        ),
        ("POST", "/v1/disks", json!({"name": "x"}), 400),
        ("GET", "/v1/jobs/many", Value::Null, 400),
        ("GET", "/v1/stats/stream?interval_ms=1", Value::Null, 400),
        ("GET", "/v1/disks/disk0/explain?last=soon", Value::Null, 400),
        ("GET", "/v1/disks/disk0/explain?last=1h", Value::Null, 400),
        ("GET", "/v1/disks/nonesuch/explain", Value::Null, 404),
        (
            "POST",
            "/v1/datastores",
            json!({"name": "d", "settings": {"kind": "dir", "path": "/nonesuch"}}),
            400,
        ),
    ] {
        let (got, problem) = daemon.ask(method, path, body);
        assert_eq!(got, status, "{method} {path}: {problem}");
        assert!(
            problem["what"].is_string() && problem["code"].is_string(),
            "{method} {path}: {problem}"
        );
    }
    assert!(daemon.stop().success());
}

#[test]
fn a_second_daemon_on_the_root_says_who_has_it_and_exits_with_an_error() {
    let root = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(root.path());
    let second = spawn(root.path()).wait_with_output().unwrap();
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        said.contains(&format!("process {}", daemon.child.id())) && said.contains("--root"),
        "{said}"
    );
    assert!(daemon.stop().success());
}

#[test]
fn a_disk_that_cannot_be_attached_is_told_and_hinders_no_other() {
    let root = tempfile::tempdir().unwrap();
    assert!(Daemon::start(root.path()).stop().success());
    std::fs::write(
        root.path().join("local/disk0/disk.toml"),
        "version = 1\nnonsense",
    )
    .unwrap();
    let daemon = Daemon::start(root.path());
    let status = daemon.get("/v1/status");
    assert_eq!(status["problems"].as_array().unwrap().len(), 1, "{status}");
    let disks = daemon.get("/v1/disks");
    assert_eq!(disks["disks"][0]["problem"]["code"], "corrupt");
    let told = disks["disks"][0]["problem"].to_string();
    assert_eq!(told.matches("TOML parse error").count(), 1, "{told}");
    assert_eq!(disks["disks"][0]["wanted"], true);
    assert!(daemon.stop().success());
}

#[test]
fn a_datastore_whose_record_is_damaged_is_told_and_can_be_removed() {
    let root = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(root.path());
    let record = root.path().join("state/datastores/broken.toml");
    std::fs::write(record, "version = 1\nnonsense").unwrap();
    let problems = daemon.get("/v1/status")["problems"].clone();
    let told = problems[0].to_string();
    assert!(
        told.contains("datastore broken cannot be used") && told.contains("broken.toml is damaged"),
        "{problems}"
    );
    let (status, problem) = daemon.ask("DELETE", "/v1/datastores/broken", Value::Null);
    assert_eq!(status, 204, "{problem}");
    assert_eq!(daemon.get("/v1/status")["problems"], json!([]));
    assert!(daemon.stop().success());
}

#[test]
fn the_service_manager_is_asked_for_time_until_disks_are_served() {
    let root = tempfile::tempdir().unwrap();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    // Longer than any start of one empty root; a daemon that says nothing ends the test.
    let patience = std::time::Duration::from_secs(60);
    manager.set_read_timeout(Some(patience)).unwrap();
    let child = command(root.path())
        .env("NOTIFY_SOCKET", &path)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let daemon = Daemon {
        child,
        root: root.path().to_owned(),
    };
    let mut told = Vec::new();
    while told
        .last()
        .is_none_or(|last: &String| !last.contains("READY=1"))
    {
        let mut words = [0; 4096];
        let length = manager.recv(&mut words).unwrap();
        told.push(String::from_utf8_lossy(&words[..length]).into_owned());
    }
    assert!(told[0].contains("EXTEND_TIMEOUT_USEC=30000000"), "{told:?}");
    assert!(told[0].contains("STATUS=attaching disks"), "{told:?}");
    assert!(daemon.stop().success());
}

#[test]
fn the_stream_of_statistics_sends_samples() {
    let root = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(root.path());
    let mut socket = UnixStream::connect(root.path().join("run/tidegate.sock")).unwrap();
    write!(
        socket,
        "GET /v1/stats/stream?interval_ms=100 HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    .unwrap();
    let mut samples = BufReader::new(socket)
        .lines()
        .map_while(Result::ok)
        .filter_map(|line| {
            line.strip_prefix("data: ")
                .map(|data| serde_json::from_str::<Value>(data).unwrap())
        });
    for _ in 0..2 {
        let sample = samples.next().unwrap();
        assert_eq!(sample["disks"][0]["name"], "disk0");
        assert!(sample["threads"][0]["window_s"].as_f64().unwrap() > 0.0);
    }
    // A listener does not keep it from stopping.
    assert!(daemon.stop().success());
}

#[test]
fn a_disk_explains_itself_and_nobody_is_told_of_what_did_not_happen() {
    let root = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(root.path());
    let explained = daemon.get("/v1/disks/disk0/explain?last=5s");
    assert_eq!(
        (&explained["cause"], &explained["disk"]),
        (&json!("idle"), &json!("disk0")),
        "{explained}"
    );
    assert_eq!(explained["control"]["mode"], "on", "{explained}");
    assert_eq!(daemon.get("/v1/events/kept"), json!({"events": []}));
    let metrics = daemon.ask_text("GET", "/metrics", Value::Null).1;
    for line in [
        "tidegate_datastore_control_engaged{datastore=\"local\"} 0",
        "tidegate_datastore_hosts{datastore=\"local\"} 1",
        "tidegate_datastore_window_ios{datastore=\"local\"} 256",
    ] {
        assert!(metrics.contains(line), "no {line} in\n{metrics}");
    }
    // A listener that waits for events, of which there are none, does not keep it from stopping.
    let mut socket = UnixStream::connect(root.path().join("run/tidegate.sock")).unwrap();
    write!(
        socket,
        "GET /v1/events HTTP/1.1\r\nHost: x\r\nLast-Event-ID: 7\r\n\r\n"
    )
    .unwrap();
    let mut first = String::new();
    BufReader::new(socket).read_line(&mut first).unwrap();
    assert!(first.contains("200"), "{first}");
    let (status, problem) = daemon.ask("GET", "/v1/disks/disk0/explain?last=0s", Value::Null);
    assert_eq!(status, 400, "{problem}");
    assert!(daemon.stop().success());
}

#[test]
fn an_order_that_fails_names_itself_once_and_each_reason_once() {
    let root = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(root.path());
    daemon.ask("POST", "/v1/disks/disk0/detach", Value::Null);
    let image = root.path().join("local/disk0/image");
    std::fs::File::options()
        .write(true)
        .open(&image)
        .and_then(|file| file.set_len(4096))
        .unwrap();
    let attach = |why: &[&str]| {
        let (status, problem) = daemon.ask("POST", "/v1/disks/disk0/attach", Value::Null);
        assert!(status >= 400, "{problem}");
        assert_eq!(problem["what"], "cannot attach disk disk0", "{problem}");
        let told = problem["why"].as_array().unwrap();
        assert_eq!(told.len(), why.len(), "{problem}");
        for (told, why) in told.iter().zip(why) {
            assert!(told.as_str().unwrap().contains(why), "{problem}");
        }
    };
    attach(&["its image has only 4096"]);
    std::fs::remove_file(&image).unwrap();
    attach(&["cannot open the image", "No such file"]);
    assert!(daemon.stop().success());
}

/// The least NBD client: it reads the first sector, again and again.
struct NbdClient(UnixStream);

impl NbdClient {
    fn connect(root: &Path, export: &str) -> NbdClient {
        let mut socket = UnixStream::connect(root.join("run/nbd.sock")).unwrap();
        let mut greeting = [0; 18];
        socket.read_exact(&mut greeting).unwrap();
        // Fixed newstyle without zeroes; then NBD_OPT_EXPORT_NAME.
        let mut words = 3_u32.to_be_bytes().to_vec();
        words.extend(b"IHAVEOPT\0\0\0\x01");
        words.extend(u32::try_from(export.len()).unwrap().to_be_bytes());
        words.extend(export.as_bytes());
        socket.write_all(&words).unwrap();
        let mut size_and_flags = [0; 10];
        socket.read_exact(&mut size_and_flags).unwrap();
        NbdClient(socket)
    }

    fn ask_for_a_sector(&mut self) {
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        // No flags, read, cookie and offset: zeroes.
        request.extend([0; 20]);
        request.extend(512_u32.to_be_bytes());
        self.0.write_all(&request).unwrap();
    }

    /// The answer, which must be good.
    fn sector(&mut self) {
        let mut answer = [0; 16 + 512];
        self.0.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..4], 0x6744_6698_u32.to_be_bytes());
        assert_eq!(answer[4..8], [0; 4], "no error");
    }
}

#[test]
fn what_happens_to_an_upstream_is_counted() {
    let upstream_root = tempfile::tempdir().unwrap();
    let root = tempfile::tempdir().unwrap();
    let upstream = Daemon::start(upstream_root.path());
    let daemon = Daemon::start(root.path());
    let socket = upstream_root.path().join("run/nbd.sock");
    let uri = format!("nbd+unix://?socket={}", socket.display());
    let add = json!({"name": "far", "settings": {"kind": "nbd", "uri": uri}});
    let (status, answer) = daemon.ask("POST", "/v1/datastores", add);
    assert_eq!(status, 200, "{answer}");
    let create = json!({"name": "d", "datastore": "far", "export": "disk0"});
    let (status, answer) = daemon.ask("POST", "/v1/disks", create);
    assert_eq!(status, 200, "{answer}");
    let (status, disk) = daemon.ask("POST", "/v1/disks/d/attach", Value::Null);
    assert_eq!(status, 200, "{disk}");
    let rings = json!({"nonsense_total": 0, "broken_total": 0});
    assert_eq!(disk["rings"], rings, "{disk}");
    assert_eq!(disk["upstream"]["lost_total"], 0, "{disk}");
    assert_eq!(daemon.get("/v1/disks/disk0")["upstream"], Value::Null);

    let wait_for = |line: &str| {
        let line = format!("{line}\n");
        while !daemon
            .ask_text("GET", "/metrics", Value::Null)
            .1
            .contains(&line)
        {
            std::thread::yield_now();
        }
    };
    let mut client = NbdClient::connect(root.path(), "d");
    client.ask_for_a_sector();
    client.sector();
    assert!(upstream.stop().success());
    client.ask_for_a_sector();
    let labels = "disk=\"d\",datastore=\"far\"";
    wait_for(&format!(
        "tidegate_disk_upstream_losses_total{{{labels},cause=\"end\"}} 1"
    ));
    wait_for(&format!(
        "tidegate_disk_upstream_attempts_total{{{labels},outcome=\"refused\"}} 1"
    ));
    let upstream = Daemon::start(upstream_root.path());
    wait_for(&format!(
        "tidegate_disk_upstream_attempts_total{{{labels},outcome=\"returned\"}} 1"
    ));
    client.sector();
    assert_eq!(daemon.get("/v1/disks/d")["upstream"]["returned_total"], 1);
    assert!(daemon.stop().success());
    assert!(upstream.stop().success());
}

#[test]
fn a_disk_grows_no_further_than_its_upstreams_export() {
    let upstream_root = tempfile::tempdir().unwrap();
    let root = tempfile::tempdir().unwrap();
    let upstream = Daemon::start(upstream_root.path());
    let daemon = Daemon::start(root.path());
    let socket = upstream_root.path().join("run/nbd.sock");
    let uri = format!("nbd+unix://?socket={}", socket.display());
    let add = json!({"name": "far", "settings": {"kind": "nbd", "uri": uri}});
    daemon.ask("POST", "/v1/datastores", add);
    let exported = 1 << 30;
    let create =
        json!({"name": "d", "datastore": "far", "export": "disk0", "size_bytes": exported / 4});
    let (status, answer) = daemon.ask("POST", "/v1/disks", create);
    assert_eq!(status, 200, "{answer}");
    let resize =
        |bytes: u64| daemon.ask("POST", "/v1/disks/d/resize", json!({"size_bytes": bytes}));
    let size = || daemon.get("/v1/disks/d")["size_bytes"].clone();

    let (status, refused) = resize(2 * exported);
    assert_eq!(status, 400, "{refused}");
    assert_eq!(size(), exported / 4);
    assert_eq!(resize(exported / 2).0, 200);
    let (status, answer) = daemon.ask("POST", "/v1/disks/d/attach", Value::Null);
    assert_eq!(status, 200, "{answer}");
    let (status, refused) = resize(2 * exported);
    assert_eq!(status, 400, "{refused}");
    assert_eq!(size(), exported / 2);
    assert_eq!(resize(exported).0, 200);
    assert!(daemon.stop().success());
    assert!(upstream.stop().success());
}

#[test]
fn io_control_is_ordered_and_told_through_every_door() {
    let root = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(root.path());
    let set = |path: &str, body: Value, status: u16| {
        let (got, answer) = daemon.ask("PATCH", path, body);
        assert_eq!(got, status, "{path}: {answer}");
        answer
    };
    let group = set("/v1/groups/t", json!({"limit_iops": 500}), 200);
    assert_eq!(group["limits"], json!({"limit_iops": 500}));
    set("/v1/groups/t", json!({"limit_iops": 0}), 400);
    let policy = json!({"policy": {"limit_iops": 100, "burst_iops": 300, "latency_target_us": 5000, "group": "t"}});
    let disk = set("/v1/disks/disk0", policy, 200);
    assert_eq!(disk["policy"]["burst_iops"], 300, "{disk}");
    for nonsense in [
        json!({"shares": 50}),
        json!({"burst_iops": 50}),
        json!({"burst_seconds": 0}),
        json!({"latency_target_us": 0}),
        json!({"group": "../x"}),
        json!({"reservation_iops": 1_u64 << 40}),
    ] {
        set("/v1/disks/disk0", json!({"policy": nonsense}), 400);
    }
    assert_eq!(
        daemon.get("/v1/groups")["groups"][0]["disks"],
        json!(["disk0"])
    );
    assert_eq!(daemon.ask("DELETE", "/v1/groups/t", Value::Null).0, 409);
    let disk = set(
        "/v1/disks/disk0",
        json!({"policy": {"limit_iops": null, "group": null}}),
        200,
    );
    assert_eq!(disk["policy"]["burst_iops"], Value::Null, "{disk}");
    assert_eq!(daemon.ask("DELETE", "/v1/groups/t", Value::Null).0, 204);
    assert_eq!(daemon.ask("GET", "/v1/groups/t", Value::Null).0, 404);

    let change = json!({"io_control": {"mode": "observe", "congestion_threshold": "12ms"}});
    let datastore = set("/v1/datastores/local", change, 200);
    assert_eq!(datastore["io_control"]["mode"], "observe", "{datastore}");
    let control = &datastore["control"];
    assert_eq!(control["congestion_threshold"], "12ms", "{datastore}");
    assert_eq!(control["hosts"][0]["here"], true, "{datastore}");
    for nonsense in [
        json!({"congestion_threshold": "1s"}),
        json!({"io_unit_bytes": 1024}),
        json!({"coordination": "/srv"}),
        json!({"mode": "maybe"}),
    ] {
        set("/v1/datastores/local", json!({"io_control": nonsense}), 400);
    }
    daemon.ask("POST", "/v1/disks/disk0/detach", Value::Null);
    let idle = daemon.get("/v1/datastores/local");
    assert_eq!(idle["control"], Value::Null, "{idle}");
    assert_eq!(idle["io_control"]["congestion_threshold"], "12ms", "{idle}");
    assert!(daemon.stop().success());
}
