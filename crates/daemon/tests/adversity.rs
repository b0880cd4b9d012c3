//! Daemons in adversity: strangers at their port, starts that fail or are broken off, and nobody who hears what they
//! say.
//!
//! Each runs as a process of its own (this test's binary, told by the environment what to serve).

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on ends; where, its message says"
)]

use std::cell::Cell;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate_api::config::Threads;
use tidegate_daemon::{OneOptions, ServeOptions};

/// Not a test of its own: what a child process of the tests below runs.
#[test]
fn the_program_itself() {
    let named = |variable| std::env::var_os(variable).map(PathBuf::from);
    let (root, image) = (named("TIDEGATE_TEST_ROOT"), named("TIDEGATE_TEST_IMAGE"));
    if root.is_none() && image.is_none() {
        return;
    }
    eprintln!("{BEGINS}");
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
    let ended = match image {
        Some(image) => {
            let mut options = OneOptions::new(image.to_str().unwrap());
            options.nbd = named("TIDEGATE_TEST_SOCKET");
            tidegate_daemon::serve_one(options)
        }
        None => tidegate_daemon::serve(ServeOptions {
            root,
            threads: Some(Threads::Count(1)),
            ..Default::default()
        }),
    };
    if let Err(error) = ended {
        eprintln!("{error}");
        std::process::exit(1);
    }
    std::process::exit(0);
}

/// What such a process says before it waits for the end of its input.
const BEGINS: &str = "it begins";

fn program() -> Command {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program
        .args(["the_program_itself", "--exact", "--nocapture"])
        .env_remove("RUST_LOG")
        .env_remove("JOURNAL_STREAM")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    program
}

fn daemon(root: &Path) -> Command {
    let mut program = program();
    program.env("TIDEGATE_TEST_ROOT", root);
    program
}

fn server_of_one(image: &Path, socket: &Path) -> Command {
    let mut program = program();
    program
        .env("TIDEGATE_TEST_IMAGE", image)
        .env("TIDEGATE_TEST_SOCKET", socket);
    program
}

/// A process that does not outlive its test.
struct Process {
    child: Child,
    /// What it says, until nobody needs to hear more.
    says: Option<BufReader<ChildStderr>>,
}

impl Process {
    fn start(mut program: Command) -> Process {
        let mut child = program.spawn().unwrap();
        let says = child.stderr.take().map(BufReader::new);
        Process { child, says }
    }

    /// The same, with nobody at the other end of its output from its beginning.
    fn start_unheard(mut program: Command) -> Process {
        program.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(program);
        process.hear_until(|line| line == BEGINS);
        drop(process.child.stdout.take());
        drop(process.child.stdin.take());
        process
    }

    /// Waits until a daemon says that it serves.
    fn until_it_serves(mut self) -> Process {
        self.hear_until(serves);
        let mut rest = self.says.take().unwrap();
        // Nobody reads on, and a full pipe would stop it.
        std::thread::spawn(move || io::copy(&mut rest, &mut io::sink()));
        self
    }

    fn hear_until(&mut self, enough: impl Fn(&str) -> bool) {
        let mut seen = String::new();
        for line in self.says.as_mut().unwrap().lines() {
            let line = line.unwrap();
            if enough(&line) {
                return;
            }
            seen += &(line + "\n");
        }
        panic!("it ended: {seen}");
    }

    fn ask_to_end(&self) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(sent.unwrap().success());
    }

    fn end(mut self) -> ExitStatus {
        self.ask_to_end();
        self.child.wait().unwrap()
    }

    /// Waits until a daemon that cannot start has ended.
    fn fails(mut self) {
        for line in self.says.take().unwrap().lines().map_while(Result::ok) {
            assert!(!serves(&line), "{line}");
        }
        assert!(!self.child.wait().unwrap().success());
    }

    /// Whether a server of one disk says where it is, rather than ending.
    fn is_heard_to_serve(&mut self) -> bool {
        let says = BufReader::new(self.child.stdout.take().unwrap());
        let mut lines = says.lines().map_while(Result::ok);
        lines.any(|line| line.starts_with("nbd+unix:"))
    }

    fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

fn is_root() -> bool {
    let own = fs::metadata("/proc/self").unwrap();
    std::os::unix::fs::MetadataExt::uid(&own) == 0
}

/// Whether a daemon says by this line that it serves.
fn serves(line: &str) -> bool {
    line.contains("serving") && line.contains("disks")
}

impl Drop for Process {
    fn drop(&mut self) {
        // A failed test leaves no process behind; one that ended is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One order: its status and JSON (null where there is no body).
fn ask(root: &Path, method: &str, path: &str) -> (u16, Value) {
    let (status, body) = ask_text(root, method, path);
    (status, serde_json::from_str(&body).unwrap_or(Value::Null))
}

fn ask_text(root: &Path, method: &str, path: &str) -> (u16, String) {
    let mut socket = UnixStream::connect(root.join("run/tidegate.sock")).unwrap();
    write!(
        socket,
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

/// Hears an NBD server's greeting.
fn is_greeted(client: &mut impl Read) -> bool {
    client.read_exact(&mut [0; 18]).is_ok()
}

/// Chooses a disk and asks something of it: whether it is answered.
fn is_served(client: &mut (impl Read + Write), disk: &str) -> bool {
    let mut words = Vec::new();
    words.extend(3_u32.to_be_bytes());
    words.extend(b"IHAVEOPT");
    words.extend(1_u32.to_be_bytes());
    words.extend(u32::try_from(disk.len()).unwrap().to_be_bytes());
    words.extend(disk.as_bytes());
    let mut flush = [0; 28];
    flush[..8].copy_from_slice(&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, 3]);
    client.write_all(&words).is_ok()
        && client.read_exact(&mut [0; 10]).is_ok()
        && client.write_all(&flush).is_ok()
        && client.read_exact(&mut [0; 16]).is_ok()
}

#[test]
fn strangers_who_say_nothing_keep_no_client_out() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path();
    let config =
        "[nbd]\nmax_connections = 1\n[[nbd.tcp]]\nlisten = \"127.0.0.1:0\"\nplaintext = true\n";
    fs::write(root.join("tidegate.toml"), config).unwrap();
    let daemon = Process::start(daemon(root)).until_it_serves();
    let (_, status) = ask(root, "GET", "/v1/status");
    let listeners = status["nbd_listeners"].as_array().unwrap().iter();
    let address = |told: &Value| told["address"].as_str()?.parse().ok();
    let port: SocketAddr = listeners.filter_map(address).next().unwrap();
    let by_tcp = || TcpStream::connect(port).unwrap();
    let by_unix = || UnixStream::connect(root.join("run/nbd.sock")).unwrap();

    let mut idle: Vec<_> = (0..8).map(|_| by_tcp()).collect();
    assert!(idle.iter_mut().all(is_greeted));
    let mut one = by_tcp();
    assert!(is_greeted(&mut one) && is_served(&mut one, "disk0"));
    let mut other = by_unix();
    assert!(is_greeted(&mut other) && is_served(&mut other, "disk0"));

    // Each of them has the only seat there.
    assert!(!is_greeted(&mut by_tcp()));
    assert!(!is_served(&mut idle[0], "disk0"));
    assert!(!is_greeted(&mut by_unix()));
    drop(one);
    // It is free again as soon as the daemon has seen that.
    while !is_greeted(&mut by_tcp()) {
        std::thread::yield_now();
    }
    assert!(is_served(&mut idle[1], "disk0"));
    drop((idle, other));
    assert!(daemon.end().success());
}

#[test]
fn a_server_of_one_disk_that_waits_for_its_image_ends_at_a_signal() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().canonicalize().unwrap();
    let image = folder.join("image");
    fs::write(&image, [0; 4096]).unwrap();
    let socket = place.path().join("first");
    let mut first = Process::start(server_of_one(&image, &socket));
    wait_until_it_greets(&mut first, &socket);

    let mut second = Process::start(server_of_one(&image, &place.path().join("second")));
    let open = format!("/proc/{}/fd", second.child.id());
    while !has_open(&open, &image) {
        assert!(!second.is_over());
        std::thread::yield_now();
    }
    assert_eq!(second.end().signal(), Some(15));
    assert!(first.end().success());
}

/// Whether one of a process's descriptors is of this file.
fn has_open(descriptors: &str, file: &Path) -> bool {
    let mut all = fs::read_dir(descriptors).into_iter().flatten().flatten();
    all.any(|one| fs::read_link(one.path()).is_ok_and(|path| path == file))
}

fn wait_until_it_greets(process: &mut Process, socket: &Path) {
    while !UnixStream::connect(socket).is_ok_and(|mut client| is_greeted(&mut client)) {
        assert!(!process.is_over(), "it ended");
        std::thread::yield_now();
    }
}

#[test]
fn a_server_of_one_disk_goes_on_when_nobody_hears_where_it_is() {
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("nbd");
    let mut server = Process::start_unheard(server_of_one("memory:1M".as_ref(), &socket));
    wait_until_it_greets(&mut server, &socket);
    assert!(server.end().success());
}

#[test]
fn a_first_run_goes_on_when_nobody_hears_its_welcome() {
    let place = tempfile::tempdir().unwrap();
    let daemon = Process::start_unheard(daemon(place.path())).until_it_serves();
    assert!(daemon.end().success());
}

#[test]
fn a_first_run_is_made_up_for_once_starts_do_not_fail_any_more() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path();
    // A port that is taken: it does not come as far as the first run.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap();
    let config = format!("[[nbd.tcp]]\nlisten = \"{port}\"\nplaintext = true\n");
    fs::write(root.join("tidegate.toml"), config).unwrap();
    Process::start(daemon(root)).fails();
    drop(taken);
    // Something in the place of the disk's socket: the first run fails.
    fs::remove_file(root.join("tidegate.toml")).unwrap();
    let socket = root.join("run/disks/disk0.sock");
    fs::write(&socket, "no socket").unwrap();
    Process::start(daemon(root)).fails();
    fs::remove_file(&socket).unwrap();

    let daemon = Process::start(daemon(root)).until_it_serves();
    let (_, disk) = ask(root, "GET", "/v1/disks/disk0");
    assert_eq!(disk["attached"], json!(true), "{disk}");
    assert!(daemon.end().success());
}

#[test]
fn disks_of_a_datastore_that_comes_after_the_daemon_are_served_then() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path();
    let first = Process::start(daemon(root)).until_it_serves();
    assert!(first.end().success());
    // As a file system that is not mounted yet.
    let (there, away) = (root.join("local"), root.join("away"));
    fs::rename(&there, &away).unwrap();

    let daemon = Process::start(daemon(root)).until_it_serves();
    let problems = || ask(root, "GET", "/v1/status").1["problems"].clone();
    assert_ne!(problems(), json!([]));
    fs::rename(&away, &there).unwrap();
    // It is tried every few seconds.
    let deadline = Instant::now() + Duration::from_secs(60);
    while problems() != json!([]) {
        assert!(Instant::now() < deadline, "{}", problems());
        std::thread::sleep(Duration::from_millis(50));
    }
    let (_, disk) = ask(root, "GET", "/v1/disks/disk0");
    assert_eq!(disk["attached"], json!(true), "{disk}");
    assert!(daemon.end().success());
}

#[test]
fn what_the_first_run_made_does_not_come_back_once_it_was_removed() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path();
    let first = Process::start(daemon(root)).until_it_serves();
    for (method, path) in [
        ("POST", "/v1/disks/disk0/detach"),
        ("DELETE", "/v1/disks/disk0"),
        ("DELETE", "/v1/datastores/local"),
    ] {
        let (status, answer) = ask(root, method, path);
        assert!(status < 300, "{method} {path}: {answer}");
    }
    assert!(first.end().success());
    fs::remove_dir_all(root.join("local")).unwrap();

    let again = Process::start(daemon(root)).until_it_serves();
    let (_, status) = ask(root, "GET", "/v1/status");
    assert_eq!(
        (&status["datastores"], &status["disks"]),
        (&json!(0), &json!(0))
    );
    assert!(!root.join("local").exists());
    assert!(again.end().success());
}

#[test]
fn a_certificate_that_has_expired_is_served_and_told_in_log_status_metrics_and_events() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2023, 1, 1);
    let certificate = params.self_signed(&key).unwrap();
    fs::write(root.join("cert.pem"), certificate.pem()).unwrap();
    fs::write(root.join("key.pem"), key.serialize_pem()).unwrap();
    let tls = "tls = { certificate = 'cert.pem', key = 'key.pem' }";
    let config = format!("[[nbd.tcp]]\nlisten = '127.0.0.1:0'\n{tls}\n");
    fs::write(root.join("tidegate.toml"), config).unwrap();
    let mut daemon = Process::start(daemon(root));
    let (told, served) = (Cell::new(false), Cell::new(false));
    daemon.hear_until(|line| {
        told.set(
            told.get() || line.contains("WARN") && line.contains("cert.pem at nbd 127.0.0.1:"),
        );
        served.set(served.get() || serves(line));
        told.get() && served.get()
    });
    let (_, status) = ask(root, "GET", "/v1/status");
    let shown = &status["tls_certificates"][0];
    assert_eq!(shown["expires_at_ms"], 1_672_531_200_000_u64, "{status}");
    assert!(shown["days_left"].as_i64().unwrap() < -1000, "{status}");
    let problem = status["problems"].to_string();
    assert!(
        problem.contains("days ago") && problem.contains("restart the daemon"),
        "{problem}"
    );
    let (_, page) = ask_text(root, "GET", "/metrics");
    let left = page
        .lines()
        .find(|line| line.starts_with("tidegate_tls_certificate_left_days{"));
    let left = left.unwrap().rsplit(' ').next().unwrap();
    assert!(left.parse::<f64>().unwrap() < -1000.0, "{left}");
    let (_, events) = ask(root, "GET", "/v1/events/kept");
    let event = &events["events"][0];
    assert_eq!(
        (&event["event"], &event["state"]),
        (&json!("certificate"), &json!("expired"))
    );
    assert_eq!(event.get("datastore"), None, "{event}");
}

#[test]
fn too_little_locked_memory_names_the_limit_and_a_value_that_is_enough() {
    let place = tempfile::tempdir().unwrap();
    let start = |kib: u64| {
        let socket = place.path().join(format!("{kib}.sock"));
        let one = server_of_one(Path::new("null:1G"), &socket);
        // The superuser's memory is not counted, but for one who may not lock as much as it likes.
        let mut limited = Command::new("prlimit");
        if is_root() {
            limited = Command::new("setpriv");
            limited.args([
                "--bounding-set=-ipc_lock",
                "--inh-caps=-ipc_lock",
                "prlimit",
            ]);
        }
        limited
            .arg(format!("--memlock={0}:{0}", kib << 10))
            .arg(one.get_program())
            .args(one.get_args())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (name, value) in one.get_envs() {
            match value {
                Some(value) => limited.env(name, value),
                None => limited.env_remove(name),
            };
        }
        Process::start(limited)
    };
    let mut small = start(64);
    if small.is_heard_to_serve() {
        // A kernel that does not count rings, as before 6.14, has no such limit.
        return;
    }
    let mut said = String::new();
    small
        .says
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(
        said.contains("RLIMIT_MEMLOCK") && said.contains("from 64 KiB"),
        "{said}"
    );
    assert!(!said.contains("free some memory"), "{said}");
    let enough = said.split("ulimit -l ").nth(1).unwrap();
    let enough = enough.split('`').next().unwrap().parse().unwrap();
    assert!(
        start(enough).is_heard_to_serve(),
        "{enough} KiB are not enough"
    );
}

#[test]
fn others_write_to_nothing_of_the_daemons_whatever_its_umask() {
    for umask in ["000", "777", "027"] {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("root");
        let serve = daemon(&root);
        let mut masked = Command::new("sh");
        masked
            .args(["-c", &format!("umask {umask}; exec \"$@\""), "sh"])
            .arg(serve.get_program())
            .args(serve.get_args())
            .env("TIDEGATE_TEST_ROOT", &root)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let daemon = Process::start(masked).until_it_serves();
        let mut left = vec![root.clone()];
        let mut files = 0;
        while let Some(path) = left.pop() {
            let facts = fs::symlink_metadata(&path).unwrap();
            let kind = facts.file_type();
            let mode = facts.permissions().mode() & 0o777;
            // Sockets have modes of their own: a group may be let in.
            if !kind.is_socket() {
                let told = format!("umask {umask}: {} has mode {mode:o}", path.display());
                assert_eq!(mode & 0o022, 0, "{told}");
                assert_eq!(mode & 0o600, 0o600, "{told}");
                assert!(umask != "027" || mode & 0o007 == 0, "{told}");
                files += 1;
            }
            if kind.is_dir() {
                left.extend(
                    fs::read_dir(&path)
                        .unwrap()
                        .map(|entry| entry.unwrap().path()),
                );
            }
        }
        assert!(files > 8, "{files}");
        assert!(daemon.end().success());
    }
}
