//! A disk grows while its guest runs, and the guest sees it.

use crate::support::daemon::Daemon;
use crate::support::guest::{Guest, Hardware};
use crate::support::place::{MIB, Place};
use crate::support::program::Program;

#[test]
fn a_running_guest_sees_that_its_disk_has_grown_and_can_use_the_new_part() {
    let place = Place::new();
    let daemon = Daemon::start(&place);
    daemon.run(&["disk", "create", "system", "--size", "32M", "--attach"]);
    let socket = daemon.vhost_user("system");
    let mut guest = Guest::boot(
        &place,
        &Hardware {
            disks: &[&socket],
            cpus: 2,
        },
    );
    assert_eq!(
        guest.run("cat /sys/block/vda/size"),
        (32 * MIB / 512).to_string()
    );

    daemon.run(&["disk", "resize", "system", "64M"]);
    guest.eventually(&format!(
        "[ $(cat /sys/block/vda/size) = {} ]",
        64 * MIB / 512
    ));
    guest.run("mkfs.ext4 -q /dev/vda && mount /dev/vda /mnt");
    guest.run("dd if=/dev/urandom of=/mnt/noise bs=1M count=45 2>/dev/null && sync && umount /mnt");
    guest.run("e2fsck -fn /dev/vda");
    assert_eq!(guest.complaints(), "");
    let size = Program::new("nbdinfo")
        .args(["--size", &daemon.nbd_uri("system")])
        .run();
    assert_eq!(size.trim(), (64 * MIB).to_string());
}
