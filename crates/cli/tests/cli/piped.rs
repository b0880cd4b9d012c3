//! `tidegate disk import -`: what is piped in becomes a disk, and its temporary file never stays.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::channel;

use serde_json::json;

use crate::job;
use crate::stage::{Run, Stage};

/// An import whose standard input is a pipe, and whose temporary files lie in the stage's `spool`.
fn import(stage: &Stage, words: &[&str]) -> Child {
    fs::create_dir_all(stage.path("spool")).expect("a test can");
    let mut command = stage.command();
    command
        .args(["disk", "import", "-", "web1"])
        .args(words)
        .env("TMPDIR", stage.path("spool"));
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    piped.stderr(Stdio::piped()).spawn().expect("a test can")
}

/// Pipes bytes in, to the end.
fn pipe(stage: &Stage, words: &[&str], bytes: &[u8]) -> Run {
    let mut child = import(stage, words);
    // Who refuses does not read.
    let _ = child.stdin.take().expect("a test can").write_all(bytes);
    told(child.wait_with_output().expect("a test can"))
}

fn told(output: Output) -> Run {
    Run {
        status: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).expect("a test can"),
        err: String::from_utf8(output.stderr).expect("a test can"),
    }
}

/// The temporary files that are there.
fn spooled(stage: &Stage) -> Vec<PathBuf> {
    let listed = fs::read_dir(stage.path("spool")).expect("a test can");
    listed
        .map(|entry| entry.expect("a test can").path())
        .collect()
}

#[test]
fn standard_input_is_imported_from_a_private_file_that_is_removed() {
    let (seen, sees) = channel();
    let stage = Stage::playing(move |ask| match ask.line.as_str() {
        "POST /v1/import" => {
            let path = PathBuf::from(ask.body["file"].as_str().expect("a test can"));
            let there = fs::metadata(&path).expect("a test can");
            let sparse = there.blocks() * 512 < 1 << 20;
            let mode = there.permissions().mode() & 0o777;
            seen.send((fs::read(&path).expect("a test can"), mode, sparse))
                .expect("a test can");
            Some((202, job("running", 0)))
        }
        "GET /v1/jobs/7" => Some((200, job("done", 1 << 30))),
        _ => None,
    });
    let mut image = vec![0; 8 << 20];
    image[5_000_000..5_000_100].fill(7);
    let run = pipe(&stage, &[], &image);
    assert_eq!(run.status, 0, "{run:?}");
    let (bytes, mode, sparse) = sees.recv().expect("a test can");
    assert!(bytes == image, "it differs");
    assert_eq!((mode, sparse), (0o600, true));
    assert_eq!(spooled(&stage), Vec::<PathBuf>::new());
}

#[test]
fn a_refused_import_leaves_no_file_and_its_hint_names_none() {
    let stage = Stage::playing(|ask| {
        let file = ask.body["file"].as_str()?;
        let problem = json!({"code": "invalid", "what": format!("cannot read the image {file}"),
            "why": ["it is compressed by gzip"], "remedy": format!("unpack it: `gunzip -k {file}`")});
        Some((422, problem))
    });
    let run = pipe(&stage, &[], b"\x1f\x8b");
    assert_eq!(run.status, 1, "{run:?}");
    assert!(
        run.err.contains("write the image to a file FILE") && run.err.contains("gunzip -k FILE"),
        "{run:?}"
    );
    assert!(!run.err.contains("tidegate-import"), "{run:?}");
    assert_eq!(spooled(&stage), Vec::<PathBuf>::new());
}

#[test]
fn an_import_that_is_interrupted_while_it_reads_leaves_no_file() {
    let stage = Stage::playing(|_| panic!("nothing may be ordered"));
    let signal = "TERM";
    let mut child = import(&stage, &[]);
    let mut input = child.stdin.take().expect("a test can");
    // More than a pipe holds: when all is written, the program has its file.
    input.write_all(&vec![1; 1 << 20]).expect("a test can");
    assert_eq!(spooled(&stage).len(), 1);
    let kill = Command::new("kill")
        .args(["-s", signal, &child.id().to_string()])
        .status();
    assert!(kill.expect("a test can").success());
    let output = child.wait_with_output().expect("a test can");
    assert!(!output.status.success());
    assert_eq!(spooled(&stage), Vec::<PathBuf>::new(), "{signal}");
    drop(input);
}

#[test]
fn what_cannot_be_piped_is_refused_with_what_can() {
    let stage = Stage::playing(|_| panic!("nothing may be ordered"));
    for (words, says) in [
        (&["-", "web1", "--no-wait"][..], "omit --no-wait"),
        (&["x.img", "web1", "--spool-dir", "/tmp"], "write `-`"),
        (&["/dev/stdin", "web1"], "disk import - NAME"),
        (&["/dev/fd/63", "web1"], "disk import - NAME"),
        // Its standard input is /dev/null.
        (&["-", "web1", "--spool-dir", "/tmp"], "it is empty"),
    ] {
        let run = stage.run(&[&["disk", "import"], words].concat());
        assert_eq!(run.status, 2, "{words:?}: {run:?}");
        assert!(run.err.contains(says), "{words:?}: {run:?}");
    }
    let run = pipe(&stage, &["--spool-dir", "/proc/nowhere"], b"x");
    assert_eq!(run.status, 1, "{run:?}");
    assert!(
        run.err
            .contains("name a directory with --spool-dir where you may write"),
        "{run:?}"
    );
}

#[test]
fn a_terminal_is_not_read_as_an_image() {
    let stage = Stage::playing(|_| panic!("nothing may be ordered"));
    let program = env!("CARGO_BIN_EXE_tidegate");
    let mut command = Command::new("script");
    let output = command
        .args([
            "-qec",
            &format!("{program} disk import - web1"),
            "/dev/null",
        ])
        .env("TIDEGATE_ROOT", stage.path(""))
        .stdin(Stdio::null())
        .output()
        .expect("a test can");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("that is a terminal"), "{said}");
}

/// A daemon of this program on the stage's root; killed with the test.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn images_that_are_piped_in_are_read_back_the_same() {
    let stage = Stage::empty();
    let mut command = stage.command();
    let serve = command.args(["serve", "--threads", "1"]);
    let quiet = serve.stdout(Stdio::null()).stderr(Stdio::null());
    let _served = Served(quiet.spawn().expect("a test can"));
    let run = stage.run(&["status", "--wait", "60s"]);
    assert_eq!(run.status, 0, "{run:?}");

    let raw = File::create(stage.path("in.img")).expect("a test can");
    raw.set_len(8 << 20).expect("a test can");
    raw.write_all_at(&[0x5a; 300_000], 1_234_567)
        .expect("a test can");
    let image = fs::read(stage.path("in.img")).expect("a test can");
    let run = pipe(&stage, &["--format", "raw"], &image);
    assert_eq!(run.status, 0, "{run:?}");
    for (disk, out) in [("web1", "out.qcow2"), ("web2", "out.img")] {
        if disk == "web2" {
            let qcow2 = File::open(stage.path("out.qcow2")).expect("a test can");
            let run = from(&stage, qcow2, disk);
            assert_eq!(run.status, 0, "{run:?}");
        }
        let run = stage.run(&["disk", "export", disk, out]);
        assert_eq!(run.status, 0, "{run:?}");
    }
    let mut back = Vec::new();
    let mut file = File::open(stage.path("out.img")).expect("a test can");
    file.read_to_end(&mut back).expect("a test can");
    assert!(back == image, "it differs");
    assert_eq!(spooled(&stage), Vec::<PathBuf>::new());
}

/// Imports with a file as standard input.
fn from(stage: &Stage, file: File, disk: &str) -> Run {
    let mut command = stage.command();
    let import = command.args(["disk", "import", "-", disk, "--spool-dir", "spool"]);
    told(import.stdin(file).output().expect("a test can"))
}
