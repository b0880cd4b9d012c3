//! Tests of an image's lock: a second opening is refused until the first holder is gone.

use super::rig::{image, tempdir};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tidegate_engine::Kind;
use tidegate_engine::datastore::dir;

/// The variable with the path of the image that a child process is to hold.
const HELD: &str = "TIDEGATE_TEST_HOLDS";

/// Refused at once if the image is locked.
const NO_WAIT: dir::Options = dir::Options {
    read_only: false,
    buffered: false,
    patience: Duration::ZERO,
    place: dir::Place::Anywhere,
};

/// Part of the tests below, which start this binary again with the variable set; otherwise it does nothing.
#[test]
fn a_process_that_holds_an_image() {
    let Some(path) = std::env::var_os(HELD) else {
        return;
    };
    let opened = dir::open(Path::new(&path), dir::Options::default());
    let engine = super::rig::engine(1);
    let disk = super::rig::attach(&engine, opened.expect("the image opens"));
    let mut client = super::rig::client(&disk);
    std::io::stdout().write_all(b"\nholding\n").unwrap();
    // Writes until it is killed.
    loop {
        client.write(0, &[1; 65_536]).expect("a write");
    }
}

fn holder(path: &PathBuf) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "locks::a_process_that_holds_an_image",
            "--nocapture",
        ])
        .env(HELD, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let ready = out
        .lines()
        .map_while(Result::ok)
        .any(|line| line == "holding");
    assert!(ready, "the child holds the image");
    child
}

#[test]
fn a_second_opening_is_refused_and_succeeds_after_the_holder_was_killed() {
    let dir = tempdir();
    let path = image(dir.path(), "image", 1 << 20);
    let mut child = holder(&path);
    let reader = dir::Options {
        read_only: true,
        ..NO_WAIT
    };
    for options in [NO_WAIT, reader] {
        let refused = dir::open(&path, options).err().map(|e| e.kind());
        assert_eq!(refused, Some(Kind::Busy), "{options:?}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(dir::open(&path, dir::Options::default()).is_ok());
}

#[test]
fn a_second_opening_in_the_same_process_is_refused() {
    let dir = tempdir();
    let path = image(dir.path(), "image", 1 << 20);
    let held = dir::open(&path, dir::Options::default()).unwrap();
    let refused = dir::open(&path, NO_WAIT).err().map(|e| e.kind());
    assert_eq!(refused, Some(Kind::Busy));
    drop(held);
    assert!(dir::open(&path, dir::Options::default()).is_ok());
}

#[test]
fn an_opening_waits_for_the_holder_up_to_its_timeout() {
    let dir = tempdir();
    let path = image(dir.path(), "image", 1 << 20);
    let held = dir::open(&path, dir::Options::default()).unwrap();
    std::thread::scope(|scope| {
        let (began, waits) = std::sync::mpsc::channel();
        let waiting = scope.spawn({
            let path = &path;
            move || {
                began.send(()).unwrap();
                dir::open(path, dir::Options::default()).map(drop)
            }
        });
        waits.recv().unwrap();
        for _ in 0..100 {
            assert!(dir::open(&path, NO_WAIT).is_err(), "the image is locked");
        }
        drop(held);
        waiting.join().unwrap().unwrap();
    });
}
