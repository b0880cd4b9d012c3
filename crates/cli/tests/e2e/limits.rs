//! Odd sizes, truncated images, damaged files, resources in use, and very many disks.
//!
//! Each is refused with an error that says what to do, or it works; and who has nothing to do with it goes on.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use tidegate_testing::vhost::{Vm, VmOptions};

use crate::support::daemon::Daemon;
use crate::support::place::{MIB, Place};
use crate::support::program::{PATIENCE, Program, Service, find, nbdsh_on};
use crate::support::server::{Server, Serving, TIDEGATE, wait_until_it_answers};

/// What a refused command says, in one line; fails the test unless it is refused.
fn refusal(output: &std::process::Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        output.status.code(),
        Some(1),
        "it is refused, with this exit code: {said}"
    );
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn assert_says(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "no `{word}` in: {said}");
    }
}

/// `serve-one` with these arguments, which must end by itself with an error; what it says.
fn refused_serve_one(args: &[&str]) -> String {
    refusal(&Program::at(TIDEGATE).arg("serve-one").args(args).output())
}

#[test]
fn an_image_of_odd_size_is_served_to_its_last_byte() {
    const SIZE: u64 = 1_000_001;
    let place = Place::new();
    let image = place.image("image", SIZE);
    let server = Server::start(&place, Serving::image(&image));
    nbdsh_on(
        &server.uri(),
        "
size = h.get_size()
assert size == 1000001, size
h.pwrite(b'Z', size - 1)
h.pwrite(b'tide', size - 700)
h.flush()
assert h.pread(1, size - 1) == b'Z'
assert h.pread(700, size - 700) == b'tide' + bytes(695) + b'Z'
h.zero(600, size - 600)
assert h.pread(600, size - 600) == bytes(600)
h.pwrite(b'end', size - 3)
h.flush()
h.set_strict_mode(0)
try:
    h.pwrite(b'beyond', size - 3)
    assert False, 'a write beyond the end'
except nbd.Error:
    pass
",
    );
    // A guest counts in sectors: it is told of the whole ones only.
    let vm = Vm::connect(VmOptions::new(server.vhost_user(), 8)).expect("a guest can connect");
    assert_eq!(vm.config().size, SIZE / 512 * 512);
    let bytes = fs::read(&image).expect("the image can be read");
    assert_eq!(bytes.len() as u64, SIZE, "the image keeps its size");
    assert_eq!(&bytes[bytes.len() - 3..], b"end");
}

#[test]
fn a_disk_whose_image_was_cut_fails_alone_and_is_attached_again_once_mended() {
    let place = Place::new();
    let daemon = Daemon::start(&place);
    daemon.run(&["disk", "create", "cut", "--size", "8M", "--attach"]);
    daemon.run(&["disk", "create", "whole", "--size", "8M", "--attach"]);
    let image = place.join("root/local/cut/image");
    let resize = |bytes: u64| {
        let file = fs::File::options().write(true).open(&image);
        file.expect("the image is where the datastore's manual says")
            .set_len(bytes)
            .expect("an image can be cut");
    };
    let cut = daemon.nbd_uri("cut");
    nbdsh_on(
        &cut,
        "h.pwrite(b'a' * 4096, 0)\nh.pwrite(b'b' * 4096, 6 << 20)",
    );
    resize(4 * MIB);
    nbdsh_on(
        &cut,
        "
assert h.pread(4096, 0) == b'a' * 4096
try:
    h.pread(4096, 6 << 20)
    assert False, 'a read of what is gone'
except nbd.Error as error:
    assert error.errno == 'EIO', error.errno
assert h.pread(4096, 0) == b'a' * 4096
",
    );
    nbdsh_on(
        &daemon.nbd_uri("whole"),
        "h.pwrite(b'c' * 4096, 6 << 20)\nassert h.pread(4096, 6 << 20) == b'c' * 4096",
    );
    assert_says(
        &daemon.run(&["disk", "show", "cut"]),
        &["shortened", "detach"],
    );
    let problem = |name| daemon.json(&["disk", "show", name])["problem"].clone();
    assert_eq!(problem("whole"), serde_json::Value::Null);
    let problems = || daemon.json(&["status"])["problems"].clone();
    assert_eq!(problems(), serde_json::json!([problem("cut")]));

    daemon.run(&["disk", "detach", "cut"]);
    let said = refusal(&daemon.attempt(&["disk", "attach", "cut"]));
    assert_says(&said, &["cut", "8388608", "4194304", "resize"]);
    resize(8 * MIB);
    daemon.run(&["disk", "attach", "cut"]);
    assert_eq!(problem("cut"), serde_json::Value::Null);
    assert_eq!(problems(), serde_json::json!([]));
    nbdsh_on(
        &daemon.nbd_uri("cut"),
        "assert h.pread(4096, 0) == b'a' * 4096",
    );
}

#[test]
fn a_damaged_descriptor_keeps_its_own_disk_away_and_no_other() {
    let place = Place::new();
    let daemon = Daemon::start(&place);
    daemon.run(&["disk", "create", "broken", "--size", "8M", "--attach"]);
    daemon.run(&["disk", "create", "sound", "--size", "8M", "--attach"]);
    assert!(daemon.stop("TERM").success());
    let file = place.join("root/local/broken/disk.toml");
    let good = fs::read_to_string(&file).expect("a disk has a descriptor");
    let bad = good.replacen("size = ", "size = = ", 1);
    assert_ne!(good, bad, "a descriptor has a size");
    let line = bad
        .lines()
        .position(|line| line.starts_with("size = ="))
        .map(|n| n + 1);
    let line = format!("line {}", line.expect("it was put there"));
    fs::write(&file, bad).expect("a descriptor can be damaged");

    let daemon = Daemon::start(&place);
    Program::new("nbdinfo").arg(daemon.nbd_uri("sound")).run();
    Program::new("nbdinfo").arg(daemon.nbd_uri("disk0")).run();
    let path = file.display().to_string();
    for place_told in [
        daemon.run(&["status"]),
        refusal(&daemon.attempt(&["disk", "attach", "broken"])),
        daemon.said(),
    ] {
        assert_says(&place_told, &["broken", &path, &line]);
    }
    fs::write(&file, good).expect("a descriptor can be mended");
    daemon.run(&["disk", "attach", "broken"]);
    Program::new("nbdinfo").arg(daemon.nbd_uri("broken")).run();
}

#[test]
fn two_daemons_may_share_a_datastore_but_not_a_disk() {
    let place = Place::new();
    let shared = place.join("shared");
    fs::create_dir(&shared).expect("a datastore's directory can be made");
    let shared = shared.display().to_string();
    let add = [
        "datastore",
        "add",
        "shared",
        "--kind",
        "dir",
        "--path",
        &shared,
    ];
    let mut first = Daemon::start_with(&place, "first", &[]);
    first.run(&add);
    let create = [
        "disk", "create", "common", "--size", "8M", "-d", "shared", "--attach",
    ];
    first.run(&create);
    nbdsh_on(
        &first.nbd_uri("common"),
        "h.pwrite(b'a' * 4096, 0)\nh.flush()",
    );

    let second = Daemon::start_with(&place, "second", &[]);
    second.run(&add);
    let said = refusal(&second.attempt(&["disk", "attach", "common"]));
    assert_says(&said, &["common", "in use by another daemon", "detach"]);
    nbdsh_on(
        &first.nbd_uri("common"),
        "assert h.pread(4096, 0) == b'a' * 4096",
    );
    Program::new("nbdinfo").arg(second.nbd_uri("disk0")).run();

    first.kill();
    second.run(&["disk", "attach", "common"]);
    nbdsh_on(
        &second.nbd_uri("common"),
        "assert h.pread(4096, 0) == b'a' * 4096",
    );
}

#[test]
fn a_second_daemon_names_the_owner_of_the_root() {
    let place = Place::new();
    let daemon = Daemon::start(&place);
    let said = refusal(&daemon.attempt(&["serve"]));
    assert_says(&said, &["another tidegate daemon", "process", "--root DIR"]);
    Program::new("nbdinfo").arg(daemon.nbd_uri("disk0")).run();
}

#[test]
fn only_a_stale_socket_is_replaced() {
    let place = Place::new();
    for flag in ["--nbd", "--vhost-user"] {
        let socket = place.join(&format!("socket{flag}"));
        let path = socket.display().to_string();
        fs::write(&socket, "mine").expect("a file can be made");
        let said = refused_serve_one(&["null:1M", flag, &path]);
        assert_says(&said, &[&path, "not a socket", "another path"]);
        assert_eq!(fs::read(&socket).expect("it is still there"), b"mine");
        fs::remove_file(&socket).expect("a file can be removed");

        let live = UnixListener::bind(&socket).expect("a socket can be bound");
        let said = refused_serve_one(&["null:1M", flag, &path]);
        assert_says(&said, &[&path, "another process listens there"]);
        UnixStream::connect(&socket).expect("whoever was there is still there");

        drop(live);
        // A program that another test is about to start has a copy for a moment.
        while UnixStream::connect(&socket).is_ok() {
            std::thread::yield_now();
        }
        let args = ["serve-one", "null:1M", flag, &path].map(str::to_owned);
        let mut server = Service::start("serve-one", TIDEGATE.as_ref(), &args, &[]);
        wait_until_it_answers(&mut server, &socket);
        assert!(server.stop("TERM").success());
    }
}

#[test]
fn a_tcp_port_in_use_is_named() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port can be had");
    let address = taken.local_addr().expect("it has an address").to_string();
    let said = refusal(
        &Program::at(TIDEGATE)
            .env("TIDEGATE_ROOT", place.join("root"))
            .args(["serve", "--nbd-tcp", &address, "--plaintext"])
            .output(),
    );
    assert_says(&said, &[&address, "another port"]);
}

#[test]
fn a_root_or_an_image_without_the_right_to_it_is_refused() {
    let place = Place::new();
    let image = place.image("image", MIB);
    let root = place.join("root");
    fs::create_dir(&root).expect("a root can be made");
    let lock = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is the test's own");
    };
    lock(&image, 0o400);
    lock(&root, 0o500);
    // Somebody else may not look into the directory where the tests were built.
    let program = place.join("tidegate");
    fs::copy(TIDEGATE, &program).expect("the program can be copied");
    let superuser = fs::metadata(&root).expect("it was made").uid() == 0;
    let somebody = || {
        if superuser {
            Program::new("setpriv")
                .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
                .arg(&program)
        } else {
            Program::at(&program)
        }
    };
    let said = refusal(&somebody().env("TIDEGATE_ROOT", &root).arg("serve").output());
    let path = root.display().to_string();
    assert_says(&said, &[&path, "Permission denied", "to do:"]);
    let said = refusal(
        &somebody()
            .args([&"serve-one".into(), &image, &"--nbd".into()])
            .arg(place.join("socket"))
            .output(),
    );
    assert_says(&said, &[&image.display().to_string(), "Permission denied"]);
    lock(&root, 0o700);
}

#[test]
fn five_hundred_disks_are_served_by_one_daemon() {
    const DISKS: usize = 500;
    /// How many create and attach them at once.
    const CLIENTS: usize = 4;
    /// The longest that stopping may take, as the manual says.
    const STOP: Duration = Duration::from_secs(20);
    let place = Place::new();
    let root = place.join("root").display().to_string();
    // What an ordinary login gives: the daemon must see to its own needs.
    let start = || {
        let args = ["--nofile=1024:", TIDEGATE, "serve"].map(str::to_owned);
        let env = [("TIDEGATE_ROOT", root.clone())];
        Service::start("tidegate serve", find("prlimit").as_os_str(), &args, &env)
    };
    let tidegate = |args: &[&str]| Program::at(TIDEGATE).env("TIDEGATE_ROOT", &root).args(args);
    let mut service = start();
    tidegate(&["status", "--wait", "20s"]).run();
    let process = crate::support::process::Process::of(service.id());
    let socket = place.join("root/run/tidegate.sock");
    let before = process.resident_kib();
    // Each is made durable, which is what takes the time: several at once share it.
    std::thread::scope(|scope| {
        for first in 0..CLIENTS {
            let mut rest = crate::support::rest::Rest::connect(&socket);
            scope.spawn(move || {
                for number in (first..DISKS).step_by(CLIENTS) {
                    let body = format!(r#"{{"name": "d{number}", "size_bytes": 1048576}}"#);
                    rest.ask("POST", "/v1/disks", &body);
                    rest.ask("POST", &format!("/v1/disks/d{number}/attach"), "{}");
                }
            });
        }
    });
    let grown = process.resident_kib() - before;
    assert!(
        grown < 1024 * DISKS as u64,
        "{DISKS} idle disks take {grown} KiB: more than 1 MiB each"
    );
    let all_are_there = || {
        let list = tidegate(&["disk", "list"]).run();
        let attached = list.lines().filter(|line| line.contains("attached"));
        assert_eq!(attached.count(), DISKS + 1, "{list}");
        let socket = place.join("root/run/nbd.sock");
        let last = format!("nbd+unix:///d{}?socket={}", DISKS - 1, socket.display());
        nbdsh_on(
            &last,
            "h.pwrite(b'a' * 4096, 0)\nassert h.pread(4096, 0) == b'a' * 4096",
        );
    };
    all_are_there();
    let asked = Instant::now();
    assert!(service.stop("TERM").success());
    assert!(
        asked.elapsed() < STOP,
        "stopping took {:?}",
        asked.elapsed()
    );
    service = start();
    tidegate(&["status", "--wait", "60s"]).run();
    all_are_there();
    assert!(service.stop("TERM").success());
}

#[test]
fn a_daemon_that_runs_out_of_open_files_says_which_limit_to_raise() {
    const FILES: usize = 128;
    let place = Place::new();
    let root = place.join("root").display().to_string();
    // The hard limit too: the daemon raises the other itself.
    let limit = format!("--nofile={FILES}:{FILES}");
    let args = [&limit, TIDEGATE, "serve"].map(str::to_owned);
    let env = [("TIDEGATE_ROOT", root.clone())];
    let mut service = Service::start("tidegate serve", find("prlimit").as_os_str(), &args, &env);
    let tidegate = |args: &[&str]| Program::at(TIDEGATE).env("TIDEGATE_ROOT", &root).args(args);
    tidegate(&["status", "--wait", "20s"]).run();
    let remedy = [
        "open files",
        &FILES.to_string(),
        "LimitNOFILE=",
        "ulimit -n",
    ];

    let create = |name: &str| {
        tidegate(&["disk", "create", name, "--size", "1M"]).run();
    };
    let attach = |name: &str| tidegate(&["disk", "attach", name]).output();
    let mut disks = 0;
    let said = loop {
        let name = format!("d{disks}");
        create(&name);
        let output = attach(&name);
        if !output.status.success() {
            break refusal(&output);
        }
        disks += 1;
        assert!(disks < FILES, "a disk takes a file at least");
    };
    assert!(disks > 0, "not one disk was attached: {said}");
    assert_says(&said, &["cannot attach disk d"]);
    assert_says(&said, &remedy);

    // Nobody is let in who would take the last ones, and orders find room all the same.
    let socket = place.join("root/run/nbd.sock");
    let mut client = UnixStream::connect(&socket).expect("the daemon listens");
    let mut greeting = Vec::new();
    let turned_away = client.read_to_end(&mut greeting).expect("it is closed");
    assert_eq!(turned_away, 0, "{greeting:?}");
    let told = service
        .said
        .wait("word of an NBD client", 0, PATIENCE, |said| {
            let mut lines = said.lines();
            lines
                .find(|line| line.contains("an NBD client was refused by its limit"))
                .map(str::to_owned)
        });
    assert_says(&told, &remedy);
    tidegate(&["disk", "detach", "d0"]).run();
    tidegate(&["disk", "attach", "d0"]).run();
    assert!(service.stop("TERM").success());
}
