//! Image files of every format, made by qemu-img, through a whole daemon.
//!
//! The daemon runs as a process of its own (this test's binary, told by the environment to serve).

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on ends; where, its message says"
)]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

/// Not a test of its own: what a child process of the tests below runs.
#[test]
fn the_daemon_itself() {
    if let Some(root) = std::env::var_os("TIDEGATE_TEST_IMAGES") {
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
    place: tempfile::TempDir,
}

impl Daemon {
    /// Starts one and waits until it says that it serves.
    fn start() -> Daemon {
        let place = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["the_daemon_itself", "--exact", "--nocapture"])
            .env("TIDEGATE_TEST_IMAGES", place.path().join("root"))
            .env_remove("RUST_LOG")
            .env_remove("JOURNAL_STREAM")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let serves = |line: &String| line.contains("serving") && line.contains("disks");
        let served = lines
            .by_ref()
            .filter_map(Result::ok)
            .any(|line| serves(&line));
        assert!(served, "it did not serve");
        // Nobody reads on, and a full pipe would stop it.
        std::thread::spawn(move || lines.for_each(drop));
        Daemon { child, place }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// One request: its status and JSON (null where there is no body).
    fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let mut socket = UnixStream::connect(self.path("root/run/tidegate.sock")).unwrap();
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
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
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    /// Imports a file as a disk, to its end: the image that the disk has then, or why there is none.
    fn import(&self, file: &Path, disk: &str, format: Option<&str>) -> Result<PathBuf, String> {
        let order = json!({"file": file, "name": disk, "format": format});
        let (status, job) = self.ask("POST", "/v1/import", &order);
        if status != 200 {
            return Err(job.to_string());
        }
        self.over(job)?;
        Ok(self.path("root/local").join(disk).join("image"))
    }

    /// Waits until a job is over: why it failed, if it did.
    fn over(&self, mut job: Value) -> Result<(), String> {
        while job["state"] == "running" {
            std::thread::yield_now();
            job = self
                .ask("GET", &format!("/v1/jobs/{}", job["id"]), &Value::Null)
                .1;
        }
        match job["state"] == "done" {
            true => Ok(()),
            false => Err(job["problem"].to_string()),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `qemu-img ARGS`.
fn qemu_img(args: &[&str]) {
    let output = Command::new("qemu-img").args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "qemu-img {args:?}: {said}");
}

/// A raw image with holes, data that compresses, data that does not, and an end that is no whole cluster.
fn raw(path: &Path) {
    let file = File::create(path).unwrap();
    file.set_len((9 << 20) + 512 * 7).unwrap();
    file.write_all_at(&[0x5a; 1 << 20], 1_234_567).unwrap();
    let mut state = 42_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state.to_be_bytes()[0]
    })
    .take(1 << 20)
    .collect();
    file.write_all_at(&noise, 4 << 20).unwrap();
    for part in 0..64 {
        let at = (6 << 20) + part * 40_960;
        file.write_all_at(&[u8::try_from(part).unwrap() + 1; 4096], at)
            .unwrap();
    }
    file.write_all_at(b"the end", (9 << 20) + 512 * 7 - 7)
        .unwrap();
}

/// Whether an image has the bytes of another one, and zeroes after them: some formats round sizes up.
fn is_same(image: &Path, expected: &Path) -> bool {
    let (image, expected) = (fs::read(image).unwrap(), fs::read(expected).unwrap());
    let (same, more) = image.split_at(expected.len());
    same == expected && more.iter().all(|byte| *byte == 0) && more.len() < 1 << 20
}

#[test]
fn what_comes_in_is_what_was_in_the_file_in_every_format_that_is_read() {
    let daemon = Daemon::start();
    let source = daemon.path("raw.img");
    raw(&source);
    let formats: [(&str, &[&str]); 17] = [
        ("qcow2", &[]),
        ("qcow2", &["-c"]),
        ("qcow2", &["-o", "compat=0.10"]),
        ("qcow2", &["-c", "-o", "compat=0.10,cluster_size=512"]),
        ("qcow2", &["-o", "cluster_size=2M"]),
        ("qcow2", &["-o", "preallocation=metadata"]),
        ("qcow2", &["-o", "extended_l2=on"]),
        ("qcow2", &["-c", "-o", "extended_l2=on"]),
        ("qcow2", &["-c", "-o", "compression_type=zstd"]),
        (
            "qcow2",
            &[
                "-c",
                "-o",
                "compression_type=zstd,extended_l2=on,cluster_size=256k",
            ],
        ),
        ("vmdk", &[]),
        ("vmdk", &["-o", "subformat=streamOptimized"]),
        ("vdi", &[]),
        ("vdi", &["-o", "static=on"]),
        ("vpc", &[]),
        ("vpc", &["-o", "subformat=fixed,force_size=on"]),
        ("vhdx", &[]),
    ];
    for (number, (format, options)) in formats.into_iter().enumerate() {
        let file = daemon.path(&format!("{number}.{format}"));
        let (from, to) = (source.to_str().unwrap(), file.to_str().unwrap());
        let convert = [
            &["convert", "-f", "raw", "-O", format],
            options,
            &[from, to],
        ]
        .concat();
        qemu_img(&convert);
        let disk = format!("d{number}");
        let image = daemon.import(&file, &disk, None);
        let image = image.unwrap_or_else(|why| panic!("{format} {options:?}: {why}"));
        assert!(is_same(&image, &source), "{format} {options:?}");
        // Who says what it is gets the same, and who says raw gets the container.
        let container = daemon
            .import(&file, &format!("raw{number}"), Some("raw"))
            .unwrap();
        let length = fs::metadata(&file).unwrap().len();
        let has = fs::metadata(container).unwrap().len();
        assert_eq!(has, length.next_multiple_of(512), "{format}");
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn an_image_that_was_written_to_in_parts_comes_in_as_qemu_reads_it() {
    let daemon = Daemon::start();
    for (format, options) in [
        ("qcow2", "extended_l2=on"),
        ("qcow2", "cluster_size=64k"),
        ("vhdx", "block_size=1M"),
        ("vmdk", "adapter_type=ide"),
        ("vdi", "static=off"),
        ("vpc", "subformat=dynamic"),
    ] {
        let file = daemon.path(&format!("image.{format}"));
        let (name, raw) = (file.to_str().unwrap(), daemon.path("expected.img"));
        qemu_img(&["create", "-q", "-f", format, "-o", options, name, "64M"]);
        let io = Command::new("qemu-io")
            .args([
                "-f",
                format,
                "-c",
                "write -P 1 4k 2k",
                "-c",
                "write -P 2 1M 3M",
            ])
            .args(["-c", "write -z 2M 64k", "-c", "write -P 3 33M 512", name])
            .args(["-c", "discard 1M 128k"])
            .output()
            .unwrap();
        assert!(io.status.success(), "{format}: {io:?}");
        qemu_img(&[
            "convert",
            "-f",
            format,
            "-O",
            "raw",
            name,
            raw.to_str().unwrap(),
        ]);
        let disk = options.replace(['_', '='], "-");
        let image = daemon.import(&file, &disk, None).unwrap();
        assert!(is_same(&image, &raw), "{format} {options}");
    }
}

#[test]
fn what_is_not_read_is_refused_and_the_command_that_it_is_told_with_works() {
    let daemon = Daemon::start();
    let create = |file: &str, options: &[&str]| {
        let path = daemon.path(file);
        let name = path.to_str().unwrap().to_owned();
        qemu_img(&[&["create", "-q"], options, &[&name, "4M"]].concat());
        path
    };
    let backing = create("backing.img", &["-f", "raw"]);
    let backed = format!("backing_file={},backing_fmt=raw", backing.display());
    let data = format!("data_file={}", daemon.path("data.raw").display());
    let cases = [
        create("a.qed", &["-f", "qed"]),
        create("a.hdd", &["-f", "parallels"]),
        create("a.qcow", &["-f", "qcow"]),
        create(
            "flat.vmdk",
            &["-f", "vmdk", "-o", "subformat=monolithicFlat"],
        ),
        create(
            "split.vmdk",
            &["-f", "vmdk", "-o", "subformat=twoGbMaxExtentSparse"],
        ),
        create("backed.qcow2", &["-f", "qcow2", "-o", &backed]),
        create("data.qcow2", &["-f", "qcow2", "-o", &data]),
    ];
    for (number, file) in cases.iter().enumerate() {
        let refused = daemon
            .import(file, "refused", None)
            .expect_err(&file.display().to_string());
        let refused = refused.replace("\\\"", "\"");
        let begins = refused
            .find("qemu-img convert ")
            .unwrap_or_else(|| panic!("{refused}"));
        let command = &refused[begins..];
        let command = &command[..command.find("NEWFILE.qcow2").unwrap() + "NEWFILE.qcow2".len()];
        let followed = Command::new("sh")
            .args(["-c", command])
            .current_dir(daemon.place.path())
            .output()
            .unwrap();
        assert!(followed.status.success(), "{command}: {followed:?}");
        let new = daemon.path("NEWFILE.qcow2");
        daemon.import(&new, &format!("d{number}"), None).unwrap();
        fs::remove_file(&new).unwrap();
    }
}

#[test]
fn what_is_compressed_is_refused_and_unpacked_as_it_is_told_comes_in() {
    let daemon = Daemon::start();
    let source = daemon.path("raw.img");
    raw(&source);
    for (program, ending) in [("gzip", "gz"), ("xz", "xz"), ("zstd", "zst")] {
        let packed = daemon.path(&format!("{program}.img.{ending}"));
        let file = File::create(&packed).unwrap();
        let mut pack = Command::new(program);
        pack.args(["-1", "-c"]).arg(&source).stdout(file);
        assert!(pack.status().unwrap().success());
        let refused = daemon.import(&packed, program, None).unwrap_err();
        let command = format!("{program} -dk {}", packed.display());
        assert!(refused.contains(&command), "{refused}");
        let followed = Command::new("sh").args(["-c", &command]).status().unwrap();
        assert!(followed.success(), "{command}");
        let image = daemon
            .import(&packed.with_extension(""), program, None)
            .unwrap();
        assert!(is_same(&image, &source), "{program}");
    }
}

/// A block device that is a file's, as long as this lives.
struct Device(PathBuf);

impl Device {
    fn of(file: &Path) -> Device {
        let made = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(file)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let path = String::from_utf8(made.stdout).unwrap();
        Device(path.trim().into())
    }

    /// Its content, from the device and not from a page cache of another name.
    fn content(&self) -> Vec<u8> {
        fs::read(&self.0).unwrap()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = Command::new("losetup")
            .arg("--detach")
            .arg(&self.0)
            .status();
    }
}

#[test]
fn a_disk_goes_to_a_block_device_and_comes_from_one() {
    let daemon = Daemon::start();
    let source = daemon.path("raw.img");
    raw(&source);
    let expected = fs::read(&source).unwrap();
    daemon.import(&source, "a", None).unwrap();
    // Larger than the disk, and full of something else.
    let length = expected.len() + (1 << 20);
    let files = ["one", "two"].map(|name| daemon.path(name));
    let devices = files.each_ref().map(|file| {
        fs::write(file, vec![0xee; length]).unwrap();
        Device::of(file)
    });
    let holds = |device: &Device| {
        let content = device.content();
        let (disk, rest) = content.split_at(expected.len());
        assert!(disk == expected && rest.iter().all(|byte| *byte == 0xee));
    };

    let path = "/v1/disks/a/export";
    let mut order = json!({"file": devices[0].0});
    let (status, refused) = daemon.ask("POST", path, &order);
    let remedy = refused["remedy"].as_str().unwrap_or_default();
    assert!(status == 409 && remedy.contains("--replace"), "{refused}");
    assert!(devices[0].content().iter().all(|byte| *byte == 0xee));
    order["existing"] = json!("replace");
    order["format"] = json!("qcow2");
    let (status, refused) = daemon.ask("POST", path, &order);
    assert_ne!(status, 200, "{refused}");
    order["format"] = Value::Null;
    let (status, job) = daemon.ask("POST", path, &order);
    assert_eq!(status, 200, "{job}");
    daemon.over(job).unwrap();
    holds(&devices[0]);

    let image = daemon.import(&devices[0].0, "b", None).unwrap();
    assert!(fs::read(image).unwrap() == devices[0].content());

    let mut order = json!({"file": source, "name": "c", "device": devices[1].0});
    order["existing"] = json!("replace");
    let (status, job) = daemon.ask("POST", "/v1/import", &order);
    assert_eq!(status, 200, "{job}");
    daemon.over(job).unwrap();
    holds(&devices[1]);
    let (status, disk) = daemon.ask("POST", "/v1/disks/c/attach", &json!({}));
    assert_eq!(
        (status, &disk["size_bytes"]),
        (200, &json!(expected.len())),
        "{disk}"
    );
    // A device that is a disk's, and is too small, is no target.
    let order = json!({"file": devices[1].0, "existing": "replace"});
    let (status, job) = daemon.ask("POST", path, &order);
    assert!(status != 200 || daemon.over(job).is_err());
    holds(&devices[1]);
}
