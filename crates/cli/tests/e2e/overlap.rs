//! Overlapping requests of different sizes, in flight together: from a client that people use (`qemu-io`), and over both
//! front ends while the server is killed.

use crate::support::devices::{FuseFile, Loop};
use crate::support::guest::{Guest, Hardware};
use crate::support::place::{MIB, Place};
use crate::support::program::{PATIENCE, Program, Service, find, nbdsh_on};
use crate::support::server::{Server, Serving};
use std::fs;
use std::time::{Duration, Instant};
use tidegate_testing::load::{Kind, Operation};
use tidegate_testing::vhost::{Sent, Vm, VmOptions};

/// How often the slow device is tried: `TIDEGATE_OVERLAP_TIMES` says more.
fn times(few: u32) -> u32 {
    let times = std::env::var("TIDEGATE_OVERLAP_TIMES").ok();
    times.map_or(few, |times| times.parse().expect("a number of times"))
}

/// Runs qemu-io's commands on an export; fails the test when one of them fails or finds other bytes than it should.
fn qemu_io(uri: &str, commands: &[String]) {
    let mut program = Program::new("qemu-io").args(["-f", "raw"]);
    for command in commands {
        program = program.args(["-c", command]);
    }
    let said = program.arg(uri).run();
    for trouble in ["rror", "failed", "discrepancy"] {
        assert!(!said.contains(trouble), "{said}");
    }
}

/// A server whose writes take 15 ms each.
fn slow_upstream(place: &Place) -> (Service, String) {
    let socket = place.join("slow.sock");
    let args = [
        "--foreground",
        "--filter=delay",
        "--unix",
        &socket.display().to_string(),
        "memory",
        "32M",
        "wdelay=15ms",
    ]
    .map(str::to_owned);
    let mut service = Service::start("nbdkit", find("nbdkit").as_os_str(), &args, &[]);
    let deadline = Instant::now() + PATIENCE;
    while !socket.exists() {
        assert!(service.alive(), "nbdkit ended before it served");
        assert!(Instant::now() < deadline, "nbdkit never served");
        service.said.pause(Duration::from_millis(20));
    }
    (service, format!("nbd+unix:///?socket={}", socket.display()))
}

#[test]
fn a_small_write_into_a_large_one_on_a_slow_device_undoes_none_of_its_bytes() {
    let place = Place::new();
    let (_upstream, uri) = slow_upstream(&place);
    let file = FuseFile::mount(&place, &uri);
    for sector in ["512", "4096"] {
        let device = Loop::with(&file.file(), &["--direct-io=on", "--sector-size", sector]);
        let server = Server::start(&place, Serving::image(device.device.as_ref()));
        for round in 0..times(12) {
            let value = 1 + round % 200;
            let commands = [
                format!("aio_write -P {value} 0 8192"),
                format!("aio_write -P {value} 3584 512"),
                "aio_flush".to_owned(),
                "flush".to_owned(),
                format!("read -P {value} 0 8192"),
            ];
            qemu_io(&server.uri(), &commands);
        }
    }
}

#[test]
fn a_flush_succeeds_after_large_writes_that_overlap_by_all_but_a_sector() {
    let place = Place::new();
    let image = place.image("image", 16 * MIB);
    let server = Server::start(&place, Serving::image(&image));
    for round in 0..times(4) {
        for at in [1, 5, 9].map(|mib| mib * MIB) {
            let value = 1 + round % 200;
            let commands = [
                format!("aio_write -P {value} {at} 1M"),
                format!("aio_write -P {value} {} 1M", at + 512),
                "aio_flush".to_owned(),
                "flush".to_owned(),
                format!("read -P {value} {at} {}", MIB + 512),
            ];
            qemu_io(&server.uri(), &commands);
        }
    }
    drop(server);
    let bytes = fs::read(&image).expect("the image is there");
    let at = |mib: u64| usize::try_from(mib * MIB).expect("small");
    assert!(bytes[at(1)..=at(2)].iter().all(|byte| *byte != 0));
}

/// What the requests of a round share, in bytes.
const RANGE: u64 = 64 << 10;

/// The same numbers each time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % limit
    }

    /// An offset and a length, whole sectors.
    fn sectors(&mut self) -> (u64, u64) {
        let sectors = RANGE / 512;
        let most = 1 << (2 * self.below(3));
        let len = 1 + self.below(most);
        (self.below(sectors - len + 1) * 512, len * 512)
    }
}

/// By sector: which bytes it may hold after a round.
struct Model {
    sectors: Vec<u8>,
    allowed: Vec<Vec<u8>>,
}

impl Model {
    fn new() -> Model {
        let sectors = vec![0; usize::try_from(RANGE / 512).expect("small")];
        Model {
            allowed: sectors.iter().map(|sector| vec![*sector]).collect(),
            sectors,
        }
    }

    fn covered(at: u64, len: u64) -> std::ops::Range<usize> {
        let sector = |bytes: u64| usize::try_from(bytes / 512).expect("small");
        sector(at)..sector(at + len)
    }

    /// A write of this round. `sure`: it is answered before the round ends.
    fn write(&mut self, at: u64, len: u64, value: u8, sure: bool) {
        for index in Model::covered(at, len) {
            let before = self.sectors[index];
            if sure {
                self.allowed[index].retain(|other| *other != before);
            }
            self.allowed[index].push(value);
        }
    }

    /// What the range holds after the round.
    fn check(&mut self, bytes: &[u8], round: u32) {
        for (index, sector) in bytes.chunks(512).enumerate() {
            let allowed = &self.allowed[index];
            assert!(
                sector.iter().all(|byte| *byte == sector[0]) && allowed.contains(&sector[0]),
                "round {round}: sector {index} has {} and may have {allowed:?}",
                sector[0]
            );
            self.sectors[index] = sector[0];
            self.allowed[index] = vec![sector[0]];
        }
    }
}

/// The device has 4 KiB blocks: whatever is smaller has to be read, changed and written back.
#[test]
fn over_vhost_user_each_sector_holds_what_one_of_the_overlapping_writes_wrote_also_after_kills() {
    let place = Place::new();
    let image = place.image("image", 8 * MIB);
    let device = Loop::with(&image, &["--direct-io=on", "--sector-size", "4096"]);
    let mut server = Server::start(&place, Serving::image(device.device.as_ref()));
    let mut options = VmOptions::new(server.vhost_user(), 64);
    options.block = u32::try_from(RANGE).expect("small");
    options.reconnect = Some(PATIENCE);
    let mut vm = Vm::connect(options).expect("a guest can connect");
    let (mut chance, mut model) = (Chance(7), Model::new());
    for round in 0..times(60) {
        let mut batch: Vec<Sent> = (0..24)
            .map(|index| {
                let (at, len) = chance.sectors();
                let value = u8::try_from(1 + (round * 24 + index) % 240).expect("small");
                model.write(at, len, value, true);
                sent(
                    Kind::Write,
                    at,
                    len,
                    vec![value; usize::try_from(len).expect("small")],
                )
            })
            .collect();
        let kills = round % 10 == 9;
        let exchanged = vm.exchange(&mut batch, || {
            if kills {
                server.crash_and_restart();
            }
        });
        exchanged.expect("the server answers");
        assert!(batch.iter().all(|sent| sent.status == 0), "round {round}");
        let mut checks = [sent(Kind::Flush, 0, 0, Vec::new())];
        vm.exchange(&mut checks, || {}).expect("a flush");
        assert_eq!(checks[0].status, 0, "round {round}: a flush failed");
        let mut read = [sent(Kind::Read, 0, RANGE, Vec::new())];
        vm.exchange(&mut read, || {}).expect("a read");
        model.check(&read[0].bytes, round);
    }
}

fn sent(kind: Kind, offset: u64, len: u64, bytes: Vec<u8>) -> Sent {
    Sent {
        queue: 0,
        operation: Operation {
            kind,
            offset,
            length: u32::try_from(len).expect("small"),
            sequence: 0,
        },
        bytes,
        status: u8::MAX,
    }
}

/// Asks for the writes of a round at once, waits for half of them, and kills the server. Prints which were answered.
const HALF: &str = "
import os, signal
answered, failed = [], []
def ended(at):
    def note(error):
        (failed if error.value else answered).append(at)
        return 1
    return note
for at, (offset, length, value) in enumerate(WRITES):
    h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray([value]) * length), offset, ended(at))
while len(answered) < len(WRITES) // 2:
    h.poll(-1)
os.kill(SERVER, signal.SIGKILL)
print(*answered)
";

#[test]
fn over_nbd_what_was_answered_before_the_server_was_killed_is_there_whatever_overlapped_it() {
    let place = Place::new();
    let image = place.image("image", 8 * MIB);
    let device = Loop::with(&image, &["--direct-io=on", "--sector-size", "4096"]);
    let mut server = Server::start(&place, Serving::image(device.device.as_ref()));
    let (mut chance, mut model) = (Chance(11), Model::new());
    for round in 0..times(8) {
        let writes: Vec<(u64, u64, u8)> = (0..24)
            .map(|index| {
                let (at, len) = chance.sectors();
                (
                    at,
                    len,
                    u8::try_from(1 + (round * 24 + index) % 240).expect("small"),
                )
            })
            .collect();
        let listed: Vec<String> = writes
            .iter()
            .map(|(at, len, value)| format!("({at},{len},{value})"))
            .collect();
        let script = format!(
            "WRITES = [{}]\nSERVER = {}\n{HALF}",
            listed.join(","),
            server.id()
        );
        let said = nbdsh_on(&server.uri(), &script);
        let answered: Vec<usize> = said
            .split_whitespace()
            .map(|at| at.parse().expect("a number"))
            .collect();
        assert!(answered.len() >= writes.len() / 2);
        for (at, (offset, len, value)) in writes.iter().enumerate() {
            model.write(*offset, *len, *value, answered.contains(&at));
        }
        server.crash_and_restart();
        let hex = nbdsh_on(
            &server.uri(),
            &format!("print(h.pread({RANGE}, 0)[::512].hex())"),
        );
        let bytes: Vec<u8> = (0..hex.trim().len() / 2)
            .flat_map(|at| {
                let byte = u8::from_str_radix(&hex.trim()[2 * at..2 * at + 2], 16);
                [byte.expect("two digits"); 512]
            })
            .collect();
        model.check(&bytes, round);
    }
}

/// A guest writes all over its raw disk, in sectors and in pieces of 16 KiB that overlap, with a flush after each 64; beside it
/// a file system is worked on. `TIDEGATE_OVERLAP_SECONDS` says how long.
#[test]
fn a_guest_that_writes_overlapping_sectors_meets_no_error_and_its_file_system_stays_clean() {
    let seconds = std::env::var("TIDEGATE_OVERLAP_SECONDS");
    let seconds: u64 = seconds.map_or(5, |seconds| seconds.parse().expect("seconds"));
    let place = Place::new();
    let image = place.image("image", 64 * MIB);
    let device = Loop::with(&image, &["--direct-io=on", "--sector-size", "4096"]);
    let raw = Server::start_named(&place, "raw", Serving::image(device.device.as_ref()));
    let file = place.image("file", 128 * MIB);
    let files = Server::start_named(&place, "files", Serving::image(&file));
    let disks = [raw.vhost_user(), files.vhost_user()];
    let mut guest = Guest::boot(
        &place,
        &Hardware {
            disks: &disks,
            cpus: 2,
        },
    );
    guest.run("mkfs.ext4 -q /dev/vdb && mount /dev/vdb /mnt");
    let files = format!(
        "fio --name=files --directory=/mnt --size=16M --rw=randwrite --bs=4k --fsync=64 \
         --verify=crc32c --verify_backlog=512 --time_based --runtime={seconds} >/run/files.log 2>&1"
    );
    let sectors = format!(
        "fio --name=raw --filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=32 \
         --rw=randrw --rwmixread=20 --bsrange=512-16k --blockalign=512 --size=8M --norandommap \
         --fsync=64 --time_based --runtime={seconds} >/run/raw.log 2>&1"
    );
    guest.run(&format!(
        "{{ {files}; echo $? >/run/files.code; }} & {{ {sectors}; echo $? >/run/raw.code; }} &"
    ));
    let (code, said) = guest.attempt(
        "until test -e /run/files.code && test -e /run/raw.code; do sleep 0.1; done",
        PATIENCE + Duration::from_secs(seconds),
    );
    assert_eq!(code, 0, "{said}");
    for what in ["files", "raw"] {
        let report = guest.run(&format!("cat /run/{what}.code /run/{what}.log"));
        assert!(
            report.starts_with("0\n") && report.contains("err= 0"),
            "fio complains:\n{report}"
        );
    }
    guest.run("umount /mnt && e2fsck -fn /dev/vdb && mount /dev/vdb /mnt && sync /dev/vda");
    assert_eq!(guest.complaints(), "");
}
