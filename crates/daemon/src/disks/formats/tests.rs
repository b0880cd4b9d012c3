//! Tests with small hand-made images, so that no other program is needed. `tests/images.rs` uses real ones from
//! qemu-img.

use super::*;
use crate::disks::copy::{self, Bytes};
use std::os::unix::fs::FileExt;

/// A file of this length with these bytes, and zeroes elsewhere.
fn file(length: u64, parts: &[(u64, &[u8])]) -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(length).unwrap();
    for (at, bytes) in parts {
        file.write_all_at(bytes, *at).unwrap();
    }
    file
}

fn opened(file: &File, format: Option<ImageFormat>) -> Outcome<Image> {
    let file = file.try_clone().unwrap();
    let length = file.metadata().unwrap().len();
    open(file, length, Path::new("/srv/it's one.img"), format)
}

/// All bytes of an image.
fn content(image: &Image) -> Vec<u8> {
    let mut bytes = Vec::new();
    copy::each_piece(&**image, &mut |piece| {
        match piece.bytes {
            Bytes::Zero(length) => bytes.resize(bytes.len() + usize::try_from(length).unwrap(), 0),
            Bytes::Data(data) => bytes.extend_from_slice(data),
        }
        Ok(())
    })
    .unwrap();
    bytes
}

const BLOCK: usize = 1 << 20;

/// Three blocks. Only the second has data, in block 0 of the file.
fn expected() -> Vec<u8> {
    let mut bytes = vec![0; 3 * BLOCK - 512];
    bytes[BLOCK..2 * BLOCK].fill(7);
    bytes
}

fn vdi() -> File {
    let (table, data) = (512_u32, 1024_u32);
    let size = expected().len() as u64;
    file(
        1024 + BLOCK as u64,
        &[
            (0x40, &vdi::MAGIC.1),
            (0x44, &0x0001_0001_u32.to_le_bytes()),
            (0x4c, &1_u32.to_le_bytes()),
            (0x154, &table.to_le_bytes()),
            (0x158, &data.to_le_bytes()),
            (0x170, &size.to_le_bytes()),
            (0x178, &u32::try_from(BLOCK).unwrap().to_le_bytes()),
            (0x180, &3_u32.to_le_bytes()),
            (512, &[0xff; 4]),
            (516, &[0; 4]),
            (520, &[0xfe, 0xff, 0xff, 0xff]),
            (1024, &[7; BLOCK]),
        ],
    )
}

fn vpc_footer(kind: u32, size: u64) -> [u8; 512] {
    let mut footer = [0; 512];
    footer[..8].copy_from_slice(vpc::MAGIC);
    footer[0x10..0x18].copy_from_slice(&512_u64.to_be_bytes());
    footer[0x1c..0x20].copy_from_slice(b"win ");
    footer[0x30..0x38].copy_from_slice(&size.to_be_bytes());
    footer[0x3c..0x40].copy_from_slice(&kind.to_be_bytes());
    let sum: u32 = footer.iter().map(|byte| u32::from(*byte)).sum();
    footer[0x40..0x44].copy_from_slice(&(!sum).to_be_bytes());
    footer
}

fn vpc() -> File {
    let footer = vpc_footer(3, expected().len() as u64);
    file(
        4096 + 512 + BLOCK as u64,
        &[
            (0, &footer),
            (512, b"cxsparse"),
            (512 + 0x10, &2048_u64.to_be_bytes()),
            (512 + 0x1c, &3_u32.to_be_bytes()),
            (512 + 0x20, &u32::try_from(BLOCK).unwrap().to_be_bytes()),
            (2048, &[0xff; 12]),
            (2052, &8_u32.to_be_bytes()),
            (4096 + 512, &[7; BLOCK]),
        ],
    )
}

const DESCRIPTION: &str = "# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\n\
                           createType=\"monolithicSparse\"\nRW 6143 SPARSE \"x.vmdk\"\n";

fn vmdk(description: &str) -> File {
    let grain = u64::try_from(BLOCK).unwrap() / 512;
    file(
        4096 + BLOCK as u64,
        &[
            (0, vmdk::MAGIC),
            (4, &1_u32.to_le_bytes()),
            (8, &1_u32.to_le_bytes()),
            (12, &(expected().len() as u64 / 512).to_le_bytes()),
            (20, &grain.to_le_bytes()),
            (28, &1_u64.to_le_bytes()),
            (36, &2_u64.to_le_bytes()),
            (44, &512_u32.to_le_bytes()),
            (56, &3_u64.to_le_bytes()),
            (512, description.as_bytes()),
            (3 * 512, &4_u32.to_le_bytes()),
            (4 * 512 + 4, &8_u32.to_le_bytes()),
            (4096, &[7; BLOCK]),
        ],
    )
}

fn qcow2() -> File {
    let bits = BLOCK.trailing_zeros();
    let cluster = BLOCK as u64;
    file(
        4 * cluster,
        &[
            (0, qcow2::MAGIC),
            (4, &3_u32.to_be_bytes()),
            (20, &bits.to_be_bytes()),
            (24, &(expected().len() as u64).to_be_bytes()),
            (36, &1_u32.to_be_bytes()),
            (40, &cluster.to_be_bytes()),
            (96, &4_u32.to_be_bytes()),
            (100, &104_u32.to_be_bytes()),
            (cluster, &(2 * cluster).to_be_bytes()),
            (2 * cluster + 8, &(3 * cluster).to_be_bytes()),
            (2 * cluster + 16, &1_u64.to_be_bytes()),
            (3 * cluster, &[7; BLOCK]),
        ],
    )
}

#[test]
fn images_of_each_format_are_recognised_and_read() {
    for (name, file) in [
        ("vdi", vdi()),
        ("vpc", vpc()),
        ("vmdk", vmdk(DESCRIPTION)),
        ("qcow2", qcow2()),
    ] {
        let image = opened(&file, None).unwrap_or_else(|problem| panic!("{name}: {problem}"));
        assert!(content(&image) == expected(), "{name}");
        // An explicit raw format gives the file's own bytes.
        let raw = opened(&file, Some(ImageFormat::Raw)).unwrap();
        assert_eq!(raw.size(), file.metadata().unwrap().len(), "{name}");
    }
}

#[test]
fn a_vhd_of_fixed_size_is_its_data_without_the_footer() {
    let footer = vpc_footer(2, 8192);
    let file = file(8192 + 512, &[(0, &[9; 8192]), (8192, &footer)]);
    assert!(content(&opened(&file, None).unwrap()) == [9; 8192]);
    // A damaged footer is the last sector of a raw image.
    file.write_all_at(&[1], 8192 + 100).unwrap();
    assert_eq!(opened(&file, None).unwrap().size(), 8192 + 512);
}

#[test]
fn what_is_known_to_be_something_else_is_refused_by_name_with_the_command_that_helps() {
    let ustar = [&[b'a'; 257][..], b"ustar"].concat();
    let qcow1 = [qcow2::MAGIC, &1_u32.to_be_bytes()].concat();
    let mut encrypted = [qcow2::MAGIC, &3_u32.to_be_bytes()].concat();
    encrypted.resize(32, 0);
    encrypted.extend(2_u32.to_be_bytes());
    let described = b"\n# a comment\n  version = 1\nRW 1 FLAT \"/etc/passwd\" 0\n";
    let cases: [(&[u8], &str, &str); 21] = [
        (b"QED\0", "qed", "convert -f qed"),
        (b"WithoutFreeSpace", "Parallels", "convert -f parallels"),
        (b"WithouFreSpacExt", "Parallels", "convert -f parallels"),
        (b"COWD", "ESX", "convert -f vmdk"),
        (b"\xbe\xba\xfe\xca\0\0\0\0", "sesparse", "convert -f vmdk"),
        (
            b"# Disk DescriptorFile\nversion=1\n",
            "description",
            "convert -f vmdk",
        ),
        (described, "description", "convert -f vmdk"),
        (&qcow1, "version 1", "convert -f qcow"),
        (b"LUKS\xba\xbe\0\x01", "LUKS", "--object secret"),
        (b"LUKS\xba\xbe\0\x02", "LUKS", "--format raw"),
        (&encrypted, "encrypted", "encrypt.key-secret=key"),
        (b"\x1f\x8b\x08\0", "gzip", "gzip -dk '/srv/"),
        (b"\xfd7zXZ\0", "xz", "xz -dk"),
        (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dk"),
        (b"\x04\x22\x4d\x18", "lz4", "lz4 -dk"),
        (b"BZh91AY&SY", "bzip2", "bzip2 -dk"),
        (b"PK\x03\x04", "zip", "unzip"),
        (b"7z\xbc\xaf\x27\x1c", "7-Zip", "7z x"),
        (&ustar, "tar", "tar -xf"),
        (b"Bochs Virtual HD Image", "Bochs", "convert -f bochs"),
        (b"LZIP\x01", "lzip", "lzip -dk"),
    ];
    for (head, name, way) in cases {
        let file = file(1 << 16, &[(0, head)]);
        let Err(refused) = opened(&file, None) else {
            panic!("{name} was taken")
        };
        assert_eq!(refused.code, ProblemCode::Unsupported, "{refused}");
        let text = refused.to_string();
        assert!(text.contains(name) && text.contains(way), "{text}");
        assert!(text.contains(r"/srv/it"), "{text}");
        let forced = opened(&file, Some(ImageFormat::Raw)).unwrap();
        assert_eq!(forced.size(), 1 << 16, "{name}");
    }
    // A compressed or encrypted image is distinguished from one that only has the name of its format.
    assert!(opened(&file(512, &[]), Some(ImageFormat::Qcow2)).is_err());
}

#[test]
fn an_image_that_names_other_files_is_refused_and_none_is_opened() {
    let backed = qcow2();
    backed.write_all_at(&4096_u64.to_be_bytes(), 8).unwrap();
    backed.write_all_at(&11_u32.to_be_bytes(), 16).unwrap();
    backed.write_all_at(b"/etc/passwd", 4096).unwrap();
    let data_file = qcow2();
    data_file.write_all_at(&4_u64.to_be_bytes(), 72).unwrap();
    let branched = DESCRIPTION.replace("parentCID=ffffffff", "parentCID=0123abcd");
    let hinted = format!("{DESCRIPTION}parentFileNameHint=\"/etc/passwd\"\n");
    let split = format!("{DESCRIPTION}RW 1 FLAT \"/etc/passwd\" 0\n");
    let vdi_branch = vdi();
    vdi_branch.write_all_at(&[1; 16], 0x1b8).unwrap();
    let vpc_branch = vpc();
    let size = expected().len() as u64;
    vpc_branch.write_all_at(&vpc_footer(4, size), 0).unwrap();
    let cases = [
        ("backing file", backed),
        ("data file", data_file),
        ("parent", vmdk(&branched)),
        ("hint", vmdk(&hinted)),
        ("several extents", vmdk(&split)),
        ("no description", vmdk("")),
        ("vdi", vdi_branch),
        ("vhd", vpc_branch),
    ];
    for (name, file) in cases {
        let Err(refused) = opened(&file, None) else {
            panic!("{name} was taken")
        };
        let text = refused.to_string();
        assert_eq!(refused.code, ProblemCode::Unsupported, "{name}: {text}");
        assert!(text.contains("another file"), "{name}: {text}");
        assert!(text.contains("qemu-img convert -f "), "{name}: {text}");
    }
}

#[test]
fn an_image_that_was_cut_is_an_error_and_never_zeroes() {
    for (name, file) in [
        ("vdi", vdi()),
        ("vpc", vpc()),
        ("vmdk", vmdk(DESCRIPTION)),
        ("qcow2", qcow2()),
    ] {
        let whole = file.metadata().unwrap().len();
        file.set_len(whole - 4096).unwrap();
        let read = opened(&file, None).and_then(|image| copy::each_piece(&*image, &mut |_| Ok(())));
        let text = read.expect_err(name).to_string();
        assert!(text.contains("it may be truncated"), "{name}: {text}");
    }
}

#[test]
fn damage_anywhere_in_the_tables_ends_nobody() {
    let makes: [fn() -> File; 4] = [vdi, vpc, || vmdk(DESCRIPTION), qcow2];
    for make in makes {
        let file = make();
        let length = file.metadata().unwrap().len();
        let tables = (0..640).chain(2048..2064);
        for at in tables.chain(BLOCK as u64..BLOCK as u64 + 16) {
            let mut before = [0];
            if at >= length || file.read_exact_at(&mut before, at).is_err() {
                continue;
            }
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                file.write_all_at(&[value], at).unwrap();
                look_over(&file);
            }
            file.write_all_at(&before, at).unwrap();
        }
    }
}

/// Opens an image and reads parts of it; the result does not matter.
fn look_over(file: &File) {
    let Ok(image) = opened(file, None) else {
        return;
    };
    let size = image.size();
    let mut buffer = [0; 4096];
    for offset in [0, 4096, size / 3, size / 2, size.saturating_sub(4096)] {
        let left = size - offset;
        if left > 0 {
            let _either = image.extent(offset, left);
            let most = usize::try_from(left).unwrap_or(4096).min(4096);
            let _either = image.read(&mut buffer[..most], offset);
        }
    }
}

#[test]
fn the_first_bytes_of_every_format_alone_are_an_error() {
    let known: [(usize, &[u8]); 5] = [
        (0, qcow2::MAGIC),
        (0, vmdk::MAGIC),
        (vdi::MAGIC.0, &vdi::MAGIC.1),
        (0, vhdx::MAGIC),
        (0, vpc::MAGIC),
    ];
    for (at, magic) in known {
        for length in [at + magic.len(), 512, 4096, 1 << 20] {
            let length = u64::try_from(length).unwrap();
            let file = file(length, &[(at as u64, magic)]);
            assert!(opened(&file, None).is_err(), "{magic:?} {length}");
        }
    }
}

#[test]
fn short_files_are_raw() {
    for length in [0, 1, 511, 512, 513] {
        assert_eq!(opened(&file(length, &[]), None).unwrap().size(), length);
    }
}

#[test]
fn a_check_is_advised_only_where_it_can_help() {
    let changed = |parts: &[(u64, &[u8])]| {
        let file = qcow2();
        for (at, bytes) in parts {
            file.write_all_at(bytes, *at).unwrap();
        }
        file
    };
    let remedy = |file: &File| {
        let refused = opened(file, None).err().unwrap();
        (refused.to_string(), refused.remedy.unwrap())
    };
    for impossible in [
        changed(&[(4, &7_u32.to_be_bytes())]),
        changed(&[(20, &77_u32.to_be_bytes())]),
        changed(&[(20, &0_u32.to_be_bytes())]),
        changed(&[(36, &0_u32.to_be_bytes())]),
    ] {
        let (told, remedy) = remedy(&impossible);
        assert!(remedy.starts_with("get it again"), "{told}: {remedy}");
    }
    // Its header is valid and marks the image as corrupt.
    let (told, remedy) = remedy(&changed(&[
        (4, &3_u32.to_be_bytes()),
        (72, &2_u64.to_be_bytes()),
        (100, &104_u32.to_be_bytes()),
    ]));
    assert!(remedy.contains("qemu-img check"), "{told}: {remedy}");
}

#[test]
fn the_name_of_another_file_is_shown_as_far_as_it_goes() {
    let file = qcow2();
    for (at, bytes) in [
        (8, &400_u64.to_be_bytes()[..]),
        (16, &40_u32.to_be_bytes()),
        (400, b"ba\x1bse.img\0\0\0\0rest"),
    ] {
        file.write_all_at(bytes, at).unwrap();
    }
    let refused = opened(&file, None).err().unwrap().to_string();
    assert!(refused.contains("(ba\\u{1b}se.img)"), "{refused}");
}

#[test]
fn a_vhd_of_fixed_size_is_read_as_one_whatever_its_guest_wrote_first_if_somebody_says_so() {
    let footer = vpc_footer(2, 8192);
    for head in [b"\x1f\x8b\x08", &b"QED\0"[..], qcow2::MAGIC, vpc::MAGIC] {
        let file = file(8192 + 512, &[(0, &[9; 8192]), (0, head), (8192, &footer)]);
        let image = opened(&file, Some(ImageFormat::Vpc)).unwrap();
        let bytes = content(&image);
        assert!(bytes.len() == 8192 && bytes.starts_with(head));
        match opened(&file, None) {
            Ok(image) => assert!(head == vpc::MAGIC && image.size() == 8192),
            Err(refused) => {
                let remedy = refused.remedy.unwrap();
                assert!(remedy.contains("--format vpc"), "{remedy}");
            }
        }
    }
}
