//! One image, one daemon: a second opening is refused until the first holder is gone, however it went.

use super::rig::{image, tempdir};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tidegate_engine::Kind;
use tidegate_engine::datastore::dir;

/// Names the image for a process that is to hold one.
const HELD: &str = "TIDEGATE_TEST_HOLDS";

/// A part of the tests below, which start this binary anew with the variable set; otherwise it has nothing to do.
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
    // Keeps writing until it is killed.
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
    let told = out
        .lines()
        .map_while(Result::ok)
        .any(|line| line == "holding");
    assert!(told, "the holder holds the image");
    child
}

#[test]
fn a_second_opening_is_refused_and_succeeds_after_the_holder_was_killed() {
    let dir = tempdir();
    let path = image(dir.path(), "image", 1 << 20);
    let mut child = holder(&path);
    let reader = dir::Options {
        read_only: true,
        ..Default::default()
    };
    let waiting = std::thread::spawn({
        let path = path.clone();
        move || dir::open(&path, reader).map(drop).map_err(|e| e.kind())
    });
    let refused = dir::open(&path, dir::Options::default())
        .err()
        .map(|e| e.kind());
    assert_eq!(refused, Some(Kind::Busy));
    assert_eq!(waiting.join().unwrap(), Err(Kind::Busy));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(dir::open(&path, dir::Options::default()).is_ok());
}

#[test]
fn a_second_opening_in_the_same_process_is_refused() {
    let dir = tempdir();
    let path = image(dir.path(), "image", 1 << 20);
    let held = dir::open(&path, dir::Options::default()).unwrap();
    let refused = dir::open(&path, dir::Options::default())
        .err()
        .map(|e| e.kind());
    assert_eq!(refused, Some(Kind::Busy));
    drop(held);
    assert!(dir::open(&path, dir::Options::default()).is_ok());
}
