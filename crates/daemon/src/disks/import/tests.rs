//! Tests of all kinds of sources: files, pipes, images in use, and a source that never responds.

use super::*;
use crate::disks::export;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use tidegate_api::job::Existing;

const SIZE: u64 = 40 << 20;

fn pattern(folder: &Path) -> PathBuf {
    let path = folder.join("raw");
    let file = File::create(&path).unwrap();
    file.set_len(SIZE).unwrap();
    file.write_all_at(&[0x5a; 300_000], 1_234_567).unwrap();
    file.write_all_at(b"the end", SIZE - 7).unwrap();
    path
}

fn empty(folder: &Path) -> PathBuf {
    let path = folder.join("copy");
    File::create(&path).unwrap().set_len(SIZE).unwrap();
    path
}

fn order(file: &Path, format: Option<ImageFormat>) -> DiskImport {
    DiskImport {
        file: file.to_owned(),
        format,
        name: "a".parse().unwrap(),
        datastore: None,
        attach: false,
        device: None,
        existing: Existing::Keep,
    }
}

fn opened(file: &Path) -> Outcome<Feed> {
    begin(&order(file, None), |_| Ok(()))
}

/// The error of a command that must fail.
fn refused(file: &Path) -> Problem {
    match opened(file) {
        Err(problem) => problem,
        Ok(_) => panic!("it was opened"),
    }
}

#[test]
fn a_disk_goes_out_as_qcow2_and_comes_back_the_same_and_as_sparse() {
    let folder = tempfile::tempdir().unwrap();
    let raw = pattern(folder.path());
    let qcow2 = folder.path().join("out.qcow2");
    let source = RawFile::new(File::open(&raw).unwrap(), SIZE);
    let progress = Progress::default();
    let (format, existing) = (ImageFormat::Qcow2, Existing::Keep);
    let draft = export::draft(&qcow2).unwrap();
    export::write(&source, &draft, &qcow2, format, existing, &progress).unwrap();
    assert!(fs::metadata(&qcow2).unwrap().len() < 2 << 20);

    let mut feed = opened(&qcow2).unwrap();
    assert_eq!(feed.size(&progress).unwrap(), SIZE);
    let copy = empty(folder.path());
    feed.copy_to(&copy, &progress).unwrap();
    assert!(fs::read(&copy).unwrap() == fs::read(&raw).unwrap());
    assert!(fs::metadata(&copy).unwrap().blocks() * 512 < 2 << 20);
}

#[test]
fn a_raw_image_comes_in_with_its_holes() {
    let folder = tempfile::tempdir().unwrap();
    let raw = pattern(folder.path());
    let copy = empty(folder.path());
    let mut feed = opened(&raw).unwrap();
    feed.copy_to(&copy, &Progress::default()).unwrap();
    assert!(fs::read(&copy).unwrap() == fs::read(&raw).unwrap());
    assert!(fs::metadata(&copy).unwrap().blocks() * 512 < 2 << 20);
}

#[test]
fn a_pipe_is_refused_at_once_whether_somebody_writes_to_it_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    for other in [folder.path(), Path::new("/dev/null")] {
        assert_eq!(refused(other).code, ProblemCode::Invalid);
    }
    let text = refused(&pipe).to_string();
    assert!(
        text.contains("a pipe") && text.contains("`tidegate disk import - NAME`"),
        "{text}"
    );
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    let end = File::options()
        .read(true)
        .custom_flags(nonblock)
        .open(&pipe);
    let writer = File::options().write(true).open(&pipe).unwrap();
    drop(end);
    assert_eq!(refused(&pipe).code, ProblemCode::Invalid);
    drop(writer);
}

#[test]
fn a_job_whose_source_never_answers_ends_when_it_is_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let raw = pattern(folder.path());
    let (answers, waits) = channel::<()>();
    // Simulates an open that hangs, as on a server that is gone.
    let hang = move |_: &Metadata| {
        let _never = waits.recv();
        Ok(())
    };
    let mut feed = begin_within(Duration::ZERO, &order(&raw, None), hang).unwrap();
    let progress = Arc::new(Progress::default());
    let (own, (ended, end)) = (Arc::clone(&progress), channel());
    let job = std::thread::spawn(move || ended.send(feed.size(&own)));
    progress.cancel();
    let outcome = end.recv_timeout(Duration::from_secs(60)).expect("it ends");
    assert_eq!(outcome.unwrap_err().code, ProblemCode::Stopping);
    job.join().unwrap().unwrap();
    drop(answers);
}

#[test]
fn an_image_that_another_daemon_has_attached_is_refused_until_it_lets_go() {
    let folder = tempfile::tempdir().unwrap();
    let raw = pattern(folder.path());
    let held = dir::open(&raw, dir::Options::default()).unwrap();
    assert_eq!(refused(&raw).code, ProblemCode::Locked);
    drop(held);
    opened(&raw).unwrap();
}

#[test]
fn a_damaged_qcow2_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.qcow2");
    for length in [4usize, 20, 72, 200, 4096] {
        let mut bytes = vec![0xff; length];
        bytes[..4].copy_from_slice(b"QFI\xfb");
        fs::write(&path, bytes).unwrap();
        assert!(opened(&path).is_err(), "{length}");
    }
}
