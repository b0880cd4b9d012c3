//! A stock guest on a mirrored disk, while the daemon is killed and a member goes and comes back.

use std::fs;

use crate::support::daemon::Daemon;
use crate::support::guest::{Guest, Hardware};
use crate::support::place::Place;

/// Makes a file system with a file of noise, and copies that again and again until told to stop. Each copy is read back
/// from the disk and compared.
const LOAD: &str = "mkfs.ext4 -q /dev/vda && mount /dev/vda /mnt && cd /mnt \
    && dd if=/dev/urandom of=noise bs=64k count=64 2>/dev/null && sha256sum noise >sum && sync \
    && { ( n=0; while test ! -e /run/stop; do \
        dd if=noise of=copy bs=64k conv=fsync 2>/dev/null || touch /run/bad; \
        echo 3 >/proc/sys/vm/drop_caches; cmp noise copy || touch /run/bad; \
        n=$((n + 1)); echo $n >/run/rounds; done; touch /run/stopped ) & }";

/// Waits until the guest has copied once more from beginning to end.
fn another_round(guest: &mut Guest) {
    let rounds = guest.run("cat /run/rounds 2>/dev/null || echo 0");
    guest.eventually(&format!(
        "test $(cat /run/rounds 2>/dev/null || echo 0) -gt $(({rounds} + 1))"
    ));
}

#[test]
fn a_guest_on_a_mirrored_disk_sees_no_crash_of_the_daemon_and_no_loss_of_a_member() {
    let place = Place::new();
    let mut daemon = Daemon::start(&place);
    for name in ["one", "two"] {
        let path = place.join(name);
        fs::create_dir(&path).expect("a directory can be created");
        let path = path.display().to_string();
        daemon.run(&["datastore", "add", name, "--path", &path]);
    }
    let create = "disk create d --size 64M --attach --layout mirror --on one --on two";
    daemon.run(&create.split(' ').collect::<Vec<_>>());
    let socket = daemon.vhost_user("d");
    let mut guest = Guest::boot(
        &place,
        &Hardware {
            disks: &[&socket],
            cpus: 2,
        },
    );
    guest.run(LOAD);
    for _ in 0..3 {
        another_round(&mut guest);
        daemon.crash_and_restart();
    }
    another_round(&mut guest);
    daemon.run(&["disk", "member", "remove", "d", "1", "--yes"]);
    another_round(&mut guest);
    daemon.run(&["disk", "member", "add", "d", "--on", "two"]);
    another_round(&mut guest);
    guest.run("touch /run/stop");
    guest.eventually("test -e /run/stopped");
    guest.run("test ! -e /run/bad && umount /mnt && e2fsck -fn /dev/vda");
    assert_eq!(guest.complaints(), "");
    daemon.run(&["disk", "scrub", "d"]);
    let shown = daemon.json(&["disk", "show", "d"]);
    assert_eq!(shown["scrub"]["different"], 0, "{shown:#}");
    daemon.crash_and_restart();
    guest.run("mount /dev/vda /mnt && cd /mnt && sha256sum -c sum");
    assert_eq!(guest.complaints(), "");
}
