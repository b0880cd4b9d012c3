//! The NBD clients that people use: libnbd's tools, QEMU's tools and fio, each against one small server.

use std::fs;
use std::path::Path;

use crate::support::place::{MIB, Place, allocated};
use crate::support::program::{Program, nbdsh};
use crate::support::server::{Server, Serving, TIDEGATE};

fn same(a: &Path, b: &Path) -> bool {
    fs::read(a).expect("a test's file can be read")
        == fs::read(b).expect("a test's file can be read")
}

#[test]
fn nbdinfo_sees_the_size_and_what_the_disk_can_do() {
    let place = Place::new();
    let image = place.image("image", 64 * MIB);
    let server = Server::start(&place, Serving::image(&image));
    assert_eq!(
        Program::new("nbdinfo")
            .args(["--size", &server.uri()])
            .run()
            .trim(),
        "67108864"
    );
    let info = Program::new("nbdinfo").arg(server.uri()).run();
    for able in [
        "can_flush: true",
        "can_fua: true",
        "can_trim: true",
        "can_zero: true",
        "can_multi_conn: true",
    ] {
        assert!(info.contains(able), "no `{able}` in:\n{info}");
    }
    assert!(
        info.contains("is_read_only: false") && info.contains("base:allocation"),
        "{info}"
    );
}

#[test]
fn one_client_on_standard_input_is_served_by_a_name_with_a_slash_and_the_server_ends_with_it() {
    let place = Place::new();
    let image = place.image("image", MIB);
    for name in ["/", "/disk", "disk", ""] {
        // libnbd waits for the server's end when the handle is closed.
        let script = format!(
            "h.set_export_name({name:?})\n\
             h.connect_command([{TIDEGATE:?}, 'serve-one', {:?}, '--single'])\n\
             print(h.get_size())\n\
             h.pwrite(b'x' * 512, 0)\n\
             h.flush()\n\
             h.shutdown()\n\
             del h\n",
            image.display().to_string()
        );
        let said = nbdsh().args(["-c", &script]).run();
        assert_eq!(said.trim(), "1048576", "{name:?}");
        let bytes = fs::read(&image).expect("a test's file can be read");
        assert!(bytes[..512].iter().all(|byte| *byte == b'x'));
    }
}

#[test]
fn nbdinfo_maps_what_is_allocated_and_what_is_a_hole() {
    let place = Place::new();
    let image = place.image("image", 64 * MIB);
    let server = Server::start(&place, Serving::image(&image));
    Program::new("qemu-io")
        .args([
            "-f",
            "raw",
            "-c",
            "write -P 7 16M 1M",
            "-c",
            "flush",
            &server.uri(),
        ])
        .run();
    let map = Program::new("nbdinfo").args(["--map", &server.uri()]).run();
    let rows: Vec<Vec<&str>> = map
        .lines()
        .map(|line| line.split_whitespace().take(3).collect())
        .collect();
    assert_eq!(
        rows,
        [
            ["0", "16777216", "3"],
            ["16777216", "1048576", "0"],
            ["17825792", "49283072", "3"]
        ],
        "the map was:\n{map}"
    );
}

#[test]
fn nbdcopy_brings_a_file_in_and_out_unchanged() {
    let place = Place::new();
    let image = place.image("image", 32 * MIB);
    let noise = place.noise("noise", 32 * MIB);
    let back = place.join("back");
    let server = Server::start(&place, Serving::image(&image));
    Program::new("nbdcopy")
        .arg("--flush")
        .arg(&noise)
        .arg(server.uri())
        .run();
    assert!(same(&noise, &image), "the image is not what nbdcopy wrote");
    Program::new("nbdcopy").arg(server.uri()).arg(&back).run();
    assert!(same(&noise, &back), "nbdcopy read back something else");
}

#[test]
fn nbdsh_reads_what_it_wrote_zeroed_and_trimmed() {
    const SCRIPT: &str = "
import nbd
block = b'tidegate' * 512
h.pwrite(block * 16, 1 << 20)
assert h.pread(4096 * 16, 1 << 20) == block * 16
h.pwrite(block, 3, nbd.CMD_FLAG_FUA)                  # no alignment is asked of an NBD client
assert h.pread(4096, 3) == block
h.zero(4096, (1 << 20) + 4096)
assert h.pread(4096, (1 << 20) + 4096) == bytes(4096)
h.zero(4096, (1 << 20) + 8192, nbd.CMD_FLAG_NO_HOLE)
assert h.pread(4096, (1 << 20) + 8192) == bytes(4096)
assert h.pread(4096, (1 << 20) + 12288) == block
h.trim(1 << 16, 1 << 20)
h.flush()
h.pwrite(bytes([9]) * (32 << 20), 0)                  # the largest request there is
assert h.pread(32 << 20, 0) == bytes([9]) * (32 << 20)
size = h.get_size()
def refused(act):
    try:
        act()
    except nbd.Error as error:
        return error.errno
    return None
h.set_strict_mode(0)
assert refused(lambda: h.pread(4096, size)) == 'EINVAL'
assert refused(lambda: h.pwrite(block, size - 1)) in ('ENOSPC', 'EINVAL')
assert h.pread(1, size - 1) == bytes([0])             # the connection has outlived its errors
seen = []
h.pread_structured(8192, 0, lambda buf, at, status, err: seen.append((at, len(buf))))
assert sum(n for _, n in seen) == 8192
print('content')
";
    let place = Place::new();
    let image = place.image("image", 64 * MIB);
    let server = Server::start(&place, Serving::image(&image));
    let said = nbdsh().args(["-u", &server.uri(), "-c", SCRIPT]).run();
    assert!(said.contains("content"), "{said}");
}

#[test]
fn several_nbdsh_connections_see_each_others_flushed_writes() {
    const SCRIPT: &str = "
import os
others = []
for n in range(8):
    other = nbd.NBD()
    other.connect_uri(os.environ['URI'])
    assert other.can_multi_conn()
    others.append(other)
for n, other in enumerate(others):
    other.pwrite(bytes([n + 1]) * 4096, n * 4096)
    other.flush()
    for reader in others:
        assert reader.pread(4096, n * 4096) == bytes([n + 1]) * 4096
print('content')
";
    let place = Place::new();
    let image = place.image("image", 16 * MIB);
    let server = Server::start(&place, Serving::image(&image));
    let said = nbdsh().env("URI", server.uri()).args(["-c", SCRIPT]).run();
    assert!(said.contains("content"), "{said}");
}

#[test]
fn a_read_only_disk_refuses_writes_and_its_image_stays_as_it_is() {
    const SCRIPT: &str = "
assert h.is_read_only()
h.set_strict_mode(0)
for act in (lambda: h.pwrite(bytes(512), 0), lambda: h.zero(512, 0), lambda: h.trim(512, 0)):
    try:
        act()
    except nbd.Error as error:
        assert error.errno in ('EPERM', 'EROFS', 'EINVAL'), error
    else:
        raise SystemExit('a read-only disk was changed')
print('content')
";
    let place = Place::new();
    let image = place.noise("image", MIB);
    let before = fs::read(&image).expect("the image can be read");
    let server = Server::start(
        &place,
        Serving {
            read_only: true,
            ..Serving::image(&image)
        },
    );
    let said = nbdsh().args(["-u", &server.uri(), "-c", SCRIPT]).run();
    assert!(said.contains("content"), "{said}");
    assert!(
        fs::read(&image).expect("the image can be read") == before,
        "the image has changed"
    );
}

#[test]
fn qemu_img_converts_onto_the_disk_and_finds_both_alike() {
    let place = Place::new();
    let image = place.image("image", 32 * MIB);
    let noise = place.noise("noise", 32 * MIB);
    let server = Server::start(&place, Serving::image(&image));
    let (qcow2, back) = (place.join("noise.qcow2"), place.join("back.qcow2"));
    let convert = |args: &[&str]| Program::new("qemu-img").arg("convert").args(args).run();
    convert(&[
        "-f",
        "raw",
        "-O",
        "qcow2",
        &noise.to_string_lossy(),
        &qcow2.to_string_lossy(),
    ]);
    convert(&[
        "-n",
        "-f",
        "qcow2",
        "-O",
        "raw",
        &qcow2.to_string_lossy(),
        &server.uri(),
    ]);
    Program::new("qemu-img")
        .args(["compare", "-f", "raw", "-F", "raw"])
        .arg(&noise)
        .arg(server.uri())
        .run();
    convert(&[
        "-f",
        "raw",
        "-O",
        "qcow2",
        &server.uri(),
        &back.to_string_lossy(),
    ]);
    Program::new("qemu-img").arg("check").arg(&back).run();
    Program::new("qemu-img")
        .arg("compare")
        .arg(&back)
        .arg(&qcow2)
        .run();
}

#[test]
fn a_qcow2_that_lives_on_the_disk_stays_sound() {
    let place = Place::new();
    let image = place.image("image", 64 * MIB);
    let server = Server::start(&place, Serving::image(&image));
    let uri = server.uri();
    Program::new("qemu-img")
        .args(["create", "-f", "qcow2", &uri, "32M"])
        .run();
    Program::new("qemu-io")
        .args([
            "-f",
            "qcow2",
            "-c",
            "write -P 3 1M 4M",
            "-c",
            "write -z 2M 1M",
            "-c",
            "read -P 3 1M 1M",
            &uri,
        ])
        .run();
    Program::new("qemu-img")
        .args(["check", "-f", "qcow2", &uri])
        .run();
    Program::new("qemu-io")
        .args([
            "-f",
            "qcow2",
            "-c",
            "read -P 0 2M 1M",
            "-c",
            "read -P 3 3M 2M",
            &uri,
        ])
        .run();
}

#[test]
fn qemu_io_finds_its_patterns_again() {
    let place = Place::new();
    let image = place.image("image", 64 * MIB);
    let server = Server::start(&place, Serving::image(&image));
    let said = Program::new("qemu-io")
        .args(["-f", "raw", "-t", "writeback", "-d", "unmap"])
        .args(["-c", "write -P 0xaa 0 8M", "-c", "write -P 0xbb 1M 512"])
        .args([
            "-c",
            "aio_write -P 0xcc 2M 1M",
            "-c",
            "aio_write -z 3M 1M",
            "-c",
            "aio_flush",
        ])
        .args([
            "-c",
            "write -z -u 4M 1M",
            "-c",
            "discard 5M 1M",
            "-c",
            "flush",
        ])
        .args([
            "-c",
            "read -P 0xbb 1M 512",
            "-c",
            "read -P 0xaa 1049088 512",
            "-c",
            "read -P 0xcc 2M 1M",
        ])
        .args(["-c", "read -P 0 3M 2M", "-c", "read -P 0xaa 6M 2M"])
        .arg(server.uri())
        .run();
    assert!(!said.contains("verification failed"), "{said}");
}

#[test]
fn discarded_and_zeroed_ranges_give_their_space_back() {
    let place = Place::new();
    let image = place.image("image", 64 * MIB);
    let server = Server::start(&place, Serving::image(&image));
    let io = |command: &str| {
        Program::new("qemu-io")
            .args(["-f", "raw", "-d", "unmap", "-c", command, &server.uri()])
            .run()
    };
    io("write -P 1 0 32M");
    assert!(allocated(&image) >= 32 * MIB);
    io("discard 0 16M");
    assert!(
        allocated(&image) <= 17 * MIB,
        "{} after a discard",
        allocated(&image)
    );
    io("write -z -u 16M 16M");
    assert!(
        allocated(&image) <= MIB,
        "{} after zeroes that may unmap",
        allocated(&image)
    );
}

#[test]
fn fio_verifies_every_block_it_wrote() {
    let place = Place::new();
    let image = place.image("image", 64 * MIB);
    let server = Server::start(&place, Serving::image(&image));
    let said = Program::new("fio")
        .args([
            "--name=verify",
            "--ioengine=nbd",
            "--rw=randwrite",
            "--bsrange=512-128k",
            "--size=48M",
        ])
        .args([
            "--iodepth=32",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--do_verify=1",
            "--fsync=64",
        ])
        .arg(format!("--uri={}", server.uri()))
        .run();
    assert!(said.contains("err= 0"), "{said}");
}

#[test]
fn fio_mixes_reads_and_trims_on_four_connections() {
    let place = Place::new();
    let image = place.image("image", 64 * MIB);
    let server = Server::start(&place, Serving::image(&image));
    let said = Program::new("fio")
        .args([
            "--name=mix",
            "--ioengine=nbd",
            "--rw=randrw",
            "--bs=4k",
            "--size=16M",
            "--numjobs=4",
        ])
        .args([
            "--offset_increment=16M",
            "--iodepth=16",
            "--verify=crc32c",
            "--verify_fatal=1",
        ])
        .args(["--group_reporting", "--thread"])
        .arg(format!("--uri={}", server.uri()))
        .run();
    assert!(said.contains("err= 0"), "{said}");
}
