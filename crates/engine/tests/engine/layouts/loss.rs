//! Mirrors whose I/O waits after the loss of every member in sync.

use super::*;
use crate::rig::raw;
use std::io::Write;
use tempfile::TempDir;
use tidegate_core::layout::OnLoss;
use tidegate_engine::nbd::client::requests::Sent;

/// A mirror that waits, whose only member is on an NBD server.
struct Stage {
    disk: Disk,
    engine: Engine,
    server: Server,
    _upstream: Engine,
    _place: TempDir,
}

fn stage() -> Stage {
    let place = tempdir();
    let size = LayoutSpec::Mirror.member_size(SIZE, 2);
    let upstream = engine(1);
    let image = memory::open(size).expect("memory");
    let exported = upstream.attach(spec("upstream", size), image);
    let exported = exported.expect("the disk attaches");
    let server = Server::start(
        place.path(),
        &exported,
        all_abilities(),
        BlockSizes::default(),
    );
    let options = nbd::Options {
        patience: Duration::from_millis(50),
        ..nbd::Options::default()
    };
    let uri = server.path.display().to_string();
    let members = vec![
        Some(nbd::open(&uri, &options).expect("it opens")),
        Some(memory::open(size).expect("memory")),
    ];
    let spec = DiskSpec {
        layout_options: LayoutOptions {
            on_loss: OnLoss::Wait,
            ..LayoutOptions::default()
        },
        ..layout(LayoutSpec::Mirror, SIZE)
    };
    let engine = engine(1);
    let disk = engine.attach_members(spec, members, PATIENCE);
    let disk = disk.expect("the disk attaches");
    disk.order_layout(LayoutOrder::Drop(Target(1)))
        .expect("the other member stays");
    Stage {
        disk,
        engine,
        server,
        _upstream: upstream,
        _place: place,
    }
}

/// A request to write this.
fn write_of(bytes: &[u8]) -> Vec<u8> {
    let sent = Sent {
        op: Op::Write,
        flags: Flags::NONE,
        offset: 0,
        len: u32::try_from(bytes.len()).expect("a short request"),
    };
    [&sent.encode(1)[..], bytes].concat()
}

impl Stage {
    fn waits(&self) -> bool {
        let report = self.disk.layout().expect("it is attached");
        report.is_some_and(|report| report.waiting)
    }
}

#[test]
fn a_write_waits_for_a_mirrors_last_member_and_goes_on_when_its_server_is_back() {
    let stage = stage();
    let bytes = pattern(0, 1, 65_536);
    let (mut near, written) = (client(&stage.disk), bytes.clone());
    stage.server.close();
    let write = std::thread::spawn(move || near.write(0, &written));
    eventually("the write waits", || stage.waits());
    assert!(!write.is_finished());
    stage.server.open();
    let outcome = write.join().expect("the client does not panic");
    outcome.expect("no error");
    assert!(!stage.waits());
    assert!(client(&stage.disk).read(0, 65_536).expect("a read") == bytes);
    // A disk that waits is detached, and what waits fails.
    stage.server.close();
    let (mut near, _) = raw(&stage.disk);
    near.write_all(&write_of(&[1; 512])).expect("it is read");
    eventually("the write waits", || stage.waits());
    stage.disk.detach(PATIENCE).expect("the disk is detached");
}

#[test]
fn clients_that_disconnect_while_a_mirror_waits_leave_neither_requests_nor_connections() {
    let stage = stage();
    stage.server.close();
    let message = write_of(&vec![7; 4 << 20]);
    for _ in 0..3 {
        let gone: Vec<_> = (0..5)
            .map(|_| {
                let (mut stream, _) = raw(&stage.disk);
                stream.write_all(&message).expect("it is read");
                stream
            })
            .collect();
        let in_flight = || stage.disk.report().expect("it is attached").in_flight;
        eventually("the writes wait", || in_flight() == 5 && stage.waits());
        drop(gone);
        let connections = || stage.engine.threads().expect("it runs")[0].connections;
        eventually("the connections are dropped", || connections() == 0);
        assert_eq!(in_flight(), 0);
    }
    stage.server.open();
    let write = client(&stage.disk).write(0, &[1; 512]);
    write.expect("the member is back");
}
