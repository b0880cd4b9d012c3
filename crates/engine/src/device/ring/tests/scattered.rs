//! Requests over scattered guest memory on layouts of files: several parts of one buffer are in flight together.

use super::*;
use crate::datastore::dir;
use tempfile::TempDir;
use tidegate_core::layout::{LayoutSpec, Members};

const CHUNK: u64 = 4096;
/// The disk has whole rows of a stripe.
const DISK_SIZE: u64 = 48 * CHUNK;
/// Sectors of a request, in pieces of these many: no piece ends where a chunk does, except by chance.
const PIECES: [u64; 14] = [1, 7, 9, 3, 16, 2, 14, 11, 5, 8, 1, 13, 6, 4];
const SECTOR: u64 = 512;
/// Where a write's pieces are in the guest's memory, and a read's; each piece has a page or two.
const SOURCE: u64 = 0x2_0000;
const TARGET: u64 = 0x6_0000;
const SPACING: u64 = 0x2800;
const WRITE: u64 = 1;

/// A guest with a write of scattered pieces, and a read of the same range into others.
struct Scattered {
    guest: Guest,
    kick: EventFd,
}

impl Scattered {
    fn new() -> Scattered {
        let guest = Guest::with_memory(0xa_0000);
        for (request, (op, pieces)) in (0..).zip([(WRITE, SOURCE), (READ, TARGET)]) {
            guest.describe_chain(request, op, pieces);
        }
        for (piece, sectors) in (0..).zip(PIECES) {
            let area = guest.area(SOURCE + SPACING * piece, bytes(sectors * SECTOR));
            for word in 0..bytes(sectors * SECTOR / 8) {
                area.store_u64(8 * word, piece << 32 | word as u64);
            }
        }
        let kick = EventFd::new().expect("a descriptor");
        Scattered { guest, kick }
    }

    /// Makes the first `count` requests available, and waits until they are answered.
    fn submit(&self, count: u16) {
        let avail = self.guest.area(AVAIL, 4 + 2 * usize::from(SIZE));
        avail.store_u16(2, count);
        fence(Ordering::SeqCst);
        self.kick.signal();
        eventually("the requests are answered", || self.guest.used() == count);
        for request in 0..count {
            let status = self.guest.area(STATUS + 8 * u64::from(request), 8);
            assert_eq!(status.load_u64(0), 0, "request {request}");
        }
    }

    /// Checks that the read has found what the write wrote.
    fn check(&self) {
        for (piece, sectors) in (0..).zip(PIECES) {
            let len = bytes(sectors * SECTOR);
            let areas = [SOURCE, TARGET].map(|at| self.guest.area(at + SPACING * piece, len));
            for word in 0..len / 8 {
                let [written, read] = areas.each_ref().map(|area| area.load_u64(8 * word));
                assert_eq!(read, written, "word {word} of piece {piece}");
            }
        }
    }
}

impl Guest {
    /// Describes a request at the second sector of the disk: its pieces begin at `at`, [`SPACING`] bytes apart.
    fn describe_chain(&self, request: u16, op: u64, at: u64) {
        let header = HEADER + 16 * u64::from(request);
        let fields = self.area(header, 16);
        fields.store_u64(0, op);
        fields.store_u64(8, 1);
        let status = STATUS + 8 * u64::from(request);
        self.area(status, 8).store_u64(0, 0xff);
        let writable = u64::from(op == READ) << 1;
        let parts = [(header, 16, 0)].into_iter();
        let parts = parts.chain(
            (0..)
                .zip(PIECES)
                .map(|(piece, sectors)| (at + SPACING * piece, sectors * SECTOR, writable)),
        );
        let table = self.area(0, 16 * usize::from(SIZE));
        let first = 32 * request;
        let mut index = first;
        for (addr, len, flags) in parts {
            let rest = len | (flags | 1) << 32 | u64::from(index + 1) << 48;
            describe(&table, index, addr, rest);
            index += 1;
        }
        describe(&table, index, status, 1 | 2 << 32);
        let avail = self.area(AVAIL, 4 + 2 * usize::from(SIZE));
        avail.store_u16(4 + 2 * usize::from(request), first);
    }
}

fn bytes(len: u64) -> usize {
    usize::try_from(len).expect("small")
}

/// New images for the members of a disk.
fn members(place: &TempDir, layout: LayoutSpec, count: usize, buffered: bool) -> Vec<OpenedImage> {
    let size = layout.member_size(DISK_SIZE, count);
    let open = |number| {
        let path = place.path().join(format!("member{number}"));
        let file = std::fs::File::create(&path).expect("a file");
        file.set_len(size).expect("a sparse file");
        let options = dir::Options {
            buffered,
            ..dir::Options::default()
        };
        dir::open(&path, options).expect("it opens")
    };
    (0..count).map(open).collect()
}

#[test]
fn a_scattered_request_over_many_chunks_reaches_all_members_and_comes_back() {
    let stripe = LayoutSpec::Stripe { chunk: CHUNK };
    let both = LayoutSpec::MirrorStripe { chunk: CHUNK };
    let layouts = [(stripe, 3), (LayoutSpec::Mirror, 2), (both, 4)];
    let all = layouts.map(|layout| [(layout, false), (layout, true)]);
    for ((layout, count), buffered) in all.into_iter().flatten() {
        let place = TempDir::with_prefix("tidegate-scattered-").expect("a directory");
        let daemon = Daemon::empty(Span::ZERO);
        let parts = LayoutParts {
            spec: layout,
            members: Members::new([7; 16], DISK_SIZE, count),
            cache: None,
            pool: None,
        };
        let images = members(&place, layout, count, buffered);
        daemon.attach(DISK, DISK_SIZE, images, Some(parts));
        let scattered = Scattered::new();
        let facts = Arc::new(DeviceFacts::new(String::new(), String::new(), 8));
        let parts = Parts {
            kick: duplicate(&scattered.kick),
            ..scattered.guest.fresh(&facts)
        };
        let (reply, number) = channel();
        daemon.order(Command::AttachQueue(Box::new(AttachQueue { parts, reply })));
        received(&number);
        scattered.submit(1);
        scattered.submit(2);
        scattered.check();
        daemon.stop();
    }
}
