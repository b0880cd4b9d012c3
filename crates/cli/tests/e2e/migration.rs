//! A running guest moves to another QEMU while it works with its disk, and notices nothing.
//!
//! While QEMU copies the guest's memory, the disk writes there behind QEMU's back: blocks that the guest reads, statuses,
//! used rings. What it writes must be noted for QEMU, which copies it again; what is not noted stays behind. First with a
//! pretended guest, where it is known to the page what must be noted; then with a real one, whose memory is compared.

use tidegate_testing::load::{Load, Source};
use tidegate_testing::tally::Until;
use tidegate_testing::vhost::{GuestDriver, Vm, VmOptions, Wait};

use crate::support::guest::{Guest, Hardware};
use crate::support::place::{MIB, Place};
use crate::support::program::PATIENCE;
use crate::support::server::{Server, Serving};

/// Answers `count` requests of `load` in each queue.
fn answer(driver: &mut GuestDriver, load: &Load, count: u64) {
    let mut sources: Vec<Source> = (0..driver.queues())
        .map(|_| Source::new(load.clone()))
        .collect();
    let tallies = driver
        .run(&mut sources, Until::Count(count), &mut |_| {})
        .expect("a sound server");
    assert!(tallies.iter().all(|tally| tally.errors == 0));
}

#[test]
fn whatever_a_disk_writes_to_a_guest_that_moves_is_noted_and_nothing_else() {
    const DEPTH: u16 = 16;
    let place = Place::new();
    let image = place.noise("image", 8 * MIB);
    let server = Server::start(&place, Serving::image(&image));
    let reads = Load {
        block: 8192,
        ..Load::random_reads(DEPTH, 8 * MIB)
    };
    let writes = Load {
        read_percent: 0,
        ..reads.clone()
    };
    for (indirect, event_idx) in [(false, false), (true, true)] {
        let vm = Vm::connect(VmOptions {
            block: reads.block,
            indirect,
            event_idx,
            ..VmOptions::new(server.vhost_user(), DEPTH)
        });
        let mut driver = GuestDriver::new(vec![vm.expect("a guest can connect")], Wait::Sleep);
        answer(&mut driver, &reads, 500);

        let first = driver.vms_mut()[0].start_logging().expect("a log is kept");
        answer(&mut driver, &writes, 500);
        // A guest whose memory grows has another log; nothing may be lost between the two.
        let second = driver.vms_mut()[0].start_logging().expect("a log is kept");
        answer(&mut driver, &reads, 500);
        let vm = &mut driver.vms_mut()[0];
        vm.stop().expect("rings can be stopped");

        let noted = [&first, &second].map(|log| log.pages().expect("addresses have 64 bits"));
        assert_eq!(noted[0], vm.pages_to_note(false), "of writes");
        assert_eq!(noted[1], vm.pages_to_note(true), "of reads");
    }
}

/// Writes 4 KiB blocks all over 8 MiB and verifies them, pass after pass, each with other bytes, until it is asked
/// to stop or finds something wrong. It leaves the page cache alone, which it would else empty with each pass.
const LOAD: &str = "pass=0; code=0; \
    while [ $code = 0 ] && [ ! -e /run/stop ]; do pass=$((pass + 1)); \
    fio --name=load --filename=/dev/vda --size=8M --direct=1 --ioengine=libaio --iodepth=16 --invalidate=0 \
    --rw=randwrite --bs=4k --verify=crc32c --verify_backlog=256 --verify_fatal=1 --randseed=$pass \
    >/run/fio.log 2>&1; code=$?; done; echo $code >/run/fio.code";

/// Writes the same 32 MiB of memory until the guest is to leave, so that QEMU has something left to send.
const STAY: &str = "dd if=/dev/urandom of=/run/seed bs=1M count=8 2>/dev/null; \
    while [ ! -e /run/go ]; do cat /run/seed /run/seed /run/seed /run/seed 1<>/run/busy; done";

/// Reads again and again into the same memory, which nobody but the disk writes: the guest's kernel clears what it hands
/// out, so that what is read into fresh memory would be noted without the disk's doing.
const READS: &str = "fio --name=reads --filename=/dev/vda --offset=32M --size=64M --direct=1 --ioengine=libaio \
    --iodepth=16 --invalidate=0 --rw=randread --bs=32k --time_based --runtime=100000 >/run/reads.log 2>&1";

/// What of the disk is noise, in the words of dd: behind what the load writes.
const NOISE: &str = "if=/dev/vda bs=1M skip=32 count=64";

/// How much the guest has completed, reads and writes, as its kernel counts it.
const COMPLETED: &str = "awk '{print $1 + $5}' /sys/block/vda/stat";

/// Requests that show that the load goes on.
const PROGRESS: u64 = 500;

fn wait_for_progress(guest: &mut Guest, when: &str) {
    let now = guest.run(COMPLETED);
    let now: u64 = now.parse().expect("the kernel counts in numbers");
    let until = now + PROGRESS;
    let more =
        format!("while [ $({COMPLETED}) -lt {until} ]; do test ! -e /run/fio.code || exit 1; done");
    let (code, said) = guest.attempt(&more, PATIENCE);
    if code != 0 {
        let report = guest.run("cat /run/fio.log; dmesg | tail -20");
        panic!("the load ended {when}: {said}\n{report}");
    }
}

#[test]
fn a_guest_moves_to_another_qemu_while_it_writes_and_verifies() {
    let (place, here, there) = (Place::new(), Place::new(), Place::new());
    let image = place.noise("image", 96 * MIB);
    let server = Server::start(&place, Serving::image(&image));
    let hardware = Hardware {
        disks: &[server.vhost_user()],
        cpus: 1,
    };
    let mut source = Guest::boot_to_move(&here, &hardware);
    let sum = source.run(&format!("dd {NOISE} iflag=direct 2>/dev/null | sha256sum"));
    // The page cache of a block device lasts while somebody has it open.
    source.run("tail -f /dev/null </dev/vda &");
    source.run(&format!("{{ {LOAD}; }} &"));
    source.run(&format!("{{ {READS}; }} &"));
    source.run(&format!("{{ {STAY}; }} &"));
    wait_for_progress(&mut source, "before the move");

    let mut destination = Guest::expect_arrival(&there, &hardware);
    source.begin_to_leave(&there);
    // Into memory that has been copied already.
    source.run(&format!("dd {NOISE} of=/dev/null 2>/dev/null"));
    wait_for_progress(&mut source, "while its guest was leaving");
    source.run("touch /run/go");
    source.leave(&mut destination);
    assert_eq!(source.pages_lost(&destination), 0, "pages stayed behind");

    destination.go_on();
    wait_for_progress(&mut destination, "after the move");
    let cached = destination.run("awk '/^Buffers/ {print $2}' /proc/meminfo");
    let cached: u64 = cached.parse().expect("the kernel counts in numbers");
    assert!(
        cached >= 64 << 10,
        "of 64 MiB that were read during the move, {cached} KiB came along: the test shows nothing"
    );
    let came_along = destination.run(&format!("dd {NOISE} 2>/dev/null | sha256sum"));
    assert_eq!(came_along, sum, "what was read during the move has changed");
    drop(source);
    wait_for_progress(&mut destination, "when the source had gone");

    destination.run("touch /run/stop");
    destination.eventually("test -e /run/fio.code");
    let report = destination.run("cat /run/fio.code /run/fio.log");
    assert!(
        report.starts_with("0\n") && report.contains("err= 0"),
        "fio complains:\n{report}"
    );
    let on_disk = destination.run(&format!("dd {NOISE} iflag=direct 2>/dev/null | sha256sum"));
    assert_eq!(on_disk, sum, "the disk has changed where nobody wrote");
    assert_eq!(destination.complaints(), "");
}
