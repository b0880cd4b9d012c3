//! The first minute with the daemon: nothing is configured, and yet a disk is there to be used.

use crate::support::daemon::Daemon;
use crate::support::place::{MIB, Place};
use crate::support::program::{PATIENCE, Program, Service, find};
use crate::support::server::{Server, Serving, TIDEGATE, wait_until_it_answers};

#[test]
fn a_first_run_serves_a_disk_that_clients_reach_as_it_says() {
    let place = Place::new();
    let daemon = Daemon::start(&place);
    let uri = daemon.nbd_uri("disk0");
    assert_eq!(
        Program::new("nbdinfo").args(["--size", &uri]).run().trim(),
        "1073741824"
    );
    let said = daemon.said();
    for client in ["qemu", "nbdinfo", "fio"] {
        assert!(
            said.contains(client),
            "a first run says how {client} reaches the disk:\n{said}"
        );
    }
    Program::new("qemu-io")
        .args(["-f", "raw", "-c", "write -P 5 0 1M", "-c", "flush", &uri])
        .run();
    Program::new("qemu-io")
        .args(["-f", "raw", "-c", "read -P 5 0 1M", &uri])
        .run();
}

#[test]
fn a_daemon_that_is_asked_to_stop_does_so_and_its_disks_are_there_again_at_the_next_start() {
    let place = Place::new();
    for (pattern, signal) in [(1, "TERM"), (2, "INT")] {
        let daemon = Daemon::start(&place);
        let uri = daemon.nbd_uri("disk0");
        if pattern > 1 {
            let before = format!("read -P {} 0 1M", pattern - 1);
            let said = Program::new("qemu-io")
                .args(["-f", "raw", "-c", &before, &uri])
                .run();
            assert!(!said.contains("verification failed"), "{said}");
        }
        let write = format!("write -P {pattern} 0 1M");
        Program::new("qemu-io")
            .args(["-f", "raw", "-c", &write, &uri])
            .run();
        let status = daemon.stop(signal);
        assert!(status.success(), "SIG{signal} ends it with {status}");
    }
}

#[test]
fn a_second_daemon_on_the_same_root_is_refused_and_the_first_goes_on() {
    let place = Place::new();
    let daemon = Daemon::start(&place);
    let second = daemon.attempt(&["serve"]);
    assert!(!second.status.success(), "two daemons on one root");
    let why = String::from_utf8_lossy(&second.stderr);
    assert!(!why.trim().is_empty(), "a refusal says why");
    let uri = daemon.nbd_uri("disk0");
    Program::new("nbdinfo").arg(&uri).run();
}

#[test]
fn an_image_has_one_server_at_a_time_and_another_takes_over_after_a_kill() {
    let place = Place::new();
    let image = place.image("image", 64 * MIB);
    let mut first = Server::start_named(&place, "first", Serving::image(&image));
    let second = place.join("second");
    let args = [
        "serve-one".to_owned(),
        image.display().to_string(),
        "--nbd".to_owned(),
        second.display().to_string(),
    ];
    let mut refused = Service::start("the second server", TIDEGATE.as_ref(), &args, &[]);
    assert!(!refused.end().success(), "two servers of one image");
    assert!(!refused.said.text().trim().is_empty(), "a refusal says why");
    Program::new("nbdinfo").arg(first.uri()).run();

    first.kill();
    let mut next = Service::start("the next server", TIDEGATE.as_ref(), &args, &[]);
    wait_until_it_answers(&mut next, &second);
    Program::new("nbdinfo")
        .arg(format!("nbd+unix:///?socket={}", second.display()))
        .run();
    let status = next.stop("TERM");
    assert!(
        status.success(),
        "SIGTERM ends it with {status} (waited up to {PATIENCE:?})"
    );
}

#[test]
fn a_server_without_a_writable_output_serves_its_disk() {
    let place = Place::new();
    let (nbd, vhost_user) = (place.join("nbd"), place.join("vhost"));
    let line =
        "exec \"$0\" serve-one null:1M --nbd \"$1\" --vhost-user \"$2\" > /dev/full 2> /dev/full";
    let args = [
        "-c".to_owned(),
        line.to_owned(),
        TIDEGATE.to_owned(),
        nbd.display().to_string(),
        vhost_user.display().to_string(),
    ];
    let mut server = Service::start("the server", find("sh").as_os_str(), &args, &[]);
    wait_until_it_answers(&mut server, &nbd);
    Program::new("nbdinfo")
        .arg(format!("nbd+unix:///?socket={}", nbd.display()))
        .run();
    let status = server.stop("TERM");
    assert!(status.success(), "SIGTERM ends it with {status}");
}
