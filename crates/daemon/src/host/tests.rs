//! Tests of reports about disks with images of different kinds.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;

use super::*;

const SIZE: u64 = 1 << 20;

/// An NBD server that requires requests aligned to 512 bytes. It does the handshake, then waits until the client
/// disconnects.
fn upstream_of_sectors(path: &Path) {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut handshake = nbd::Handshake::new(nbd::Tls::Off);
        let (mut input, mut output) = (Vec::new(), Vec::new());
        loop {
            let (used, step) = handshake.advance(&input, &mut output);
            input.drain(..used);
            if let nbd::Step::Lookup(name) = step {
                let export = nbd::ExportInfo {
                    name,
                    size: SIZE,
                    block: nbd::BlockSizes {
                        minimum: 512,
                        ..Default::default()
                    },
                    ..Default::default()
                };
                handshake.found(Ok(export), &mut output);
            }
            stream.write_all(&output).unwrap();
            output.clear();
            let mut bytes = [0; 4096];
            match stream.read(&mut bytes) {
                Ok(got) if got > 0 => input.extend_from_slice(&bytes[..got]),
                _ => return,
            }
        }
    });
}

fn plan(image: ImagePlan) -> DiskPlan {
    DiskPlan {
        name: "a".to_owned(),
        uuid: [1; 16],
        size: SIZE,
        block_size: 4096,
        write_back: true,
        read_only: false,
        serial: "a".to_owned(),
        queues: 1,
        seg_max: 126,
        filters: Vec::new(),
        layout: tidegate_core::layout::LayoutSpec::Plain,
        layout_options: Default::default(),
        io: tidegate_engine::IoSettings::default(),
        members: vec!["here".to_owned()],
        image,
    }
}

#[test]
fn what_to_do_about_a_cut_image_is_a_command_that_is_not_refused() {
    let resize = |has, block_size| mend_cut("w", has, block_size);
    assert!(resize(700_000, 4096).ends_with("tidegate disk resize w 696320 --yes"));
    assert!(resize(700_000, 512).ends_with("tidegate disk resize w 699904 --yes"));
    assert!(resize(8192, 4096).ends_with("tidegate disk resize w 8192 --yes"));
    assert!(resize(511, 512).ends_with("tidegate disk delete w"));
}

#[test]
fn nbd_clients_of_a_disk_on_an_upstream_are_told_what_its_requests_must_be_multiples_of() {
    let place = tempfile::tempdir().unwrap();
    let (file, socket) = (place.path().join("image"), place.path().join("socket"));
    std::fs::File::create(&file)
        .and_then(|file| file.set_len(SIZE))
        .unwrap();
    upstream_of_sectors(&socket);
    let threads = ThreadsPlan::fixed(1);
    let host = Host::start(&threads).unwrap();
    let upstream = ImagePlan::Nbd {
        uri: format!("nbd+unix:///a?socket={}", socket.display()),
        block_size: 4096,
    };
    let file = ImagePlan::File {
        path: file,
        io: IoMode::Auto,
        named_by: NamedBy::Operator,
    };
    // An upstream has its own alignment, not the disk's block size; a local file accepts any byte.
    for (image, minimum) in [(upstream, 512), (file, 1)] {
        let plan = plan(image);
        let opened = open(&plan.image, false).unwrap();
        let disk = host.attach(&plan, opened, None).unwrap();
        let told = disk.export_info("a").block;
        assert_eq!((told.minimum, told.preferred), (minimum, 4096));
        disk.detach(Some(Duration::from_secs(60))).unwrap();
    }
}

#[test]
fn of_an_upstream_that_cannot_be_opened_the_hint_names_what_to_correct() {
    let remedy = |error: &tidegate_engine::Error| {
        let problem = upstream_unopened(error, "nbd://host/gone");
        problem.remedy.unwrap()
    };
    let text = "failed to lookup address information: Name or service not known";
    let lost = std::io::Error::other(text);
    let unknown = tidegate_engine::Error::io("cannot reach the NBD server", lost);
    assert!(remedy(&unknown).contains("correct the host in the datastore's URI"));
    let text = "cannot use the NBD server: the server has no such export";
    let missing = tidegate_engine::Error::new(Kind::Io, text);
    assert!(remedy(&missing).contains("--export: `nbdinfo --list 'nbd://host/'`"));
}

#[test]
fn a_device_of_a_cache_that_cannot_be_read_leads_to_the_other_one_first() {
    let plan = plan(ImagePlan::Memory { size: SIZE });
    let cache = "fast".parse().unwrap();
    let target = tidegate_core::layout::Target(2);
    for refusal in [
        tidegate_core::layout::Refusal::Failed(target, tidegate_core::request::Fault::Io),
        tidegate_core::layout::Refusal::Missing(target),
    ] {
        let problem = flash::refused(&plan, Some(&cache), refusal).unwrap();
        let remedy = problem.remedy.unwrap();
        let without = remedy.find("tidegate disk attach a --without-flash 1");
        assert!(without.unwrap() < remedy.find("--discard-cache").unwrap());
    }
}
