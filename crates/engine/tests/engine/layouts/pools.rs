//! Disks in a pool: their images are shared files, and a small catalog gives them grants.

use super::*;
use std::sync::mpsc::{Receiver, channel};
use tidegate_core::layout::pool::{Geometry, Grant, PoolReport, PoolSetup};
use tidegate_engine::PoolDisk;
use tidegate_engine::datastore::dir::SharedFile;

/// Grants of 4 MiB in members of 32 MiB.
const GEOMETRY: Geometry = Geometry {
    sub_block: 64 << 10,
    extents: 4,
    headers: 126,
    data_at: 1 << 20,
};
const MEMBER: u64 = 33 << 20;
const ON_A_MEMBER: u32 = 8;

/// The pool's members, and what its catalog says of one disk.
struct Pool {
    members: Vec<SharedFile>,
    grants: Arc<Mutex<Vec<Option<Grant>>>>,
    size: u64,
}

/// An attached disk, and what its layout reports.
struct InPool {
    disk: Disk,
    notices: Receiver<LayoutNotice>,
}

impl Pool {
    fn new(place: &Path, members: usize, size: u64) -> Pool {
        let open = |nth: usize| {
            let path = image(place, &format!("member{nth}"), MEMBER);
            SharedFile::open(&path, Duration::ZERO).expect("it opens")
        };
        Pool {
            members: (0..members).map(open).collect(),
            grants: Arc::default(),
            size,
        }
    }

    fn images(&self) -> Vec<Option<OpenedImage>> {
        let images = self.members.iter();
        images
            .map(|member| Some(member.image().expect("an image")))
            .collect()
    }

    fn attach_to(
        &self,
        engine: &Engine,
        images: Vec<Option<OpenedImage>>,
    ) -> Result<InPool, tidegate_engine::Error> {
        let columns = (0..images.len()).map(|nth| Target(u8::try_from(nth).expect("few")));
        let setup = PoolSetup {
            pool: [1; 16],
            disk: [7; 16],
            size: self.size,
            geometry: GEOMETRY,
            columns: columns.collect(),
            members: Vec::new(),
            grants: self.grants.lock().expect("no panic").clone(),
            ancestors: Vec::new(),
            thick: false,
        };
        let (sender, notices) = channel();
        let sink = NoticeSink(Arc::new(move |notice| {
            // The receiver is gone only at the end of the test.
            let _ = sender.send(notice);
        }));
        let spec = DiskSpec {
            layout_options: LayoutOptions {
                notices: Some(sink),
                pool: Some(Arc::new(PoolDisk { setup, view: None })),
                ..LayoutOptions::default()
            },
            ..spec("disk", self.size)
        };
        let disk = engine.attach_members(spec, images, PATIENCE)?;
        Ok(InPool { disk, notices })
    }

    fn attach(&self, engine: &Engine) -> InPool {
        self.attach_to(engine, self.images()).expect("it attaches")
    }

    /// Answers what the layout has asked for: with grants, round the columns, as long as there are any below `most`.
    fn serve(&self, of: &InPool, most: u32) {
        for notice in of.notices.try_iter() {
            match notice {
                LayoutNotice::GrantWanted { .. } => {
                    let order = match self.next(most) {
                        Some((index, grant)) => LayoutOrder::Grant { index, grant },
                        None => LayoutOrder::NoSpace,
                    };
                    of.disk.order_layout(order).expect("it is carried out");
                }
                LayoutNotice::GrantEmpty { index } => {
                    self.grants.lock().expect("no panic")[index as usize] = None;
                }
                other => panic!("a pool reports {other:?}"),
            }
        }
    }

    fn next(&self, most: u32) -> Option<(u32, Grant)> {
        let mut grants = self.grants.lock().expect("no panic");
        let columns = u32::try_from(self.members.len()).expect("few");
        let given = u32::try_from(grants.len()).expect("few");
        if given >= most.min(columns * ON_A_MEMBER) {
            return None;
        }
        let grant = Grant {
            column: u16::try_from(given % columns).expect("few"),
            number: given / columns,
            life: u64::from(given) + 1,
        };
        grants.push(Some(grant));
        Some((given, grant))
    }

    /// Serves the disk while something is done with it.
    fn during<T: Send>(&self, of: &InPool, most: u32, act: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let acting = scope.spawn(act);
            while !acting.is_finished() {
                self.serve(of, most);
                std::thread::yield_now();
            }
            acting.join().expect("no panic")
        })
    }
}

fn report(disk: &Disk) -> PoolReport {
    let report = disk.layout().expect("it is attached").expect("a layout");
    report.pool.expect("it is in a pool")
}

#[test]
fn a_pools_disk_keeps_its_bytes_over_a_move_and_a_detach() {
    let place = tempdir();
    let pool = Pool::new(place.path(), 2, SIZE);
    let engine = engine(2);
    let all = pattern(0, 7, LEN as usize);
    {
        let of = pool.attach(&engine);
        pool.during(&of, 8, || {
            let mut client = client(&of.disk);
            client.write(0, &all[..1 << 20]).expect("a write");
            // The other thread has no buffers for layouts yet.
            for thread in [1, 0, 1] {
                of.disk.move_to(thread).expect("it moves");
                assert_eq!(of.disk.thread(), thread);
            }
            client.write(1 << 20, &all[1 << 20..]).expect("a write");
            client.flush().expect("a flush");
            assert!(client.read(0, LEN).expect("a read") == all);
        });
        let report = report(&of.disk);
        assert_eq!(report.mapped, SIZE >> 20);
        assert!(report.grants >= 2, "{report:?}");
        of.disk.detach(PATIENCE).expect("it is detached");
    }
    let of = pool.attach(&engine);
    assert_eq!(report(&of.disk).mapped, SIZE >> 20);
    let mut reader = client(&of.disk);
    assert!(reader.read(0, LEN).expect("a read") == all);
    pool.during(&of, 8, || verify(&of.disk, 5));
    of.disk.detach(PATIENCE).expect("it is detached");
}

#[test]
fn a_pools_disk_moves_between_threads_while_it_is_verified() {
    let place = tempdir();
    let pool = Pool::new(place.path(), 2, SIZE);
    let engine = engine(3);
    let of = pool.attach(&engine);
    pool.during(&of, 8, || {
        super::super::moves::moved_under_load(&engine, &of.disk, 50);
    });
    of.disk.detach(PATIENCE).expect("it is detached");
    super::super::moves::nothing_is_left(&engine);
}

#[test]
fn a_pool_that_is_full_fails_new_space_only_and_goes_on_with_another_column() {
    let place = tempdir();
    let mut pool = Pool::new(place.path(), 1, 64 << 20);
    let engine = engine(1);
    let of = pool.attach(&engine);
    let mut client = client(&of.disk);
    let piece = pattern(0, 3, 1 << 20);
    let (client, written) = pool.during(&of, 2, || {
        let mut written = 0;
        while client.write(written << 20, &piece).is_ok() {
            written += 1;
            assert!(written < 64, "the pool is full");
        }
        (client, written)
    });
    let mut client = client;
    // Seven of eight extents: one has metadata.
    assert_eq!(written, 7);
    assert_eq!(client.write(written << 20, &piece), Err(Fault::NoSpace));
    client
        .write(0, &pattern(0, 4, 1 << 20))
        .expect("mapped space");
    client.flush().expect("a flush");
    let more = image(place.path(), "more", MEMBER);
    pool.members
        .push(SharedFile::open(&more, Duration::ZERO).expect("it opens"));
    let column = pool.members[1].image().expect("an image");
    let added = of.disk.add_member(Some(column), PATIENCE);
    assert_eq!(added.expect("it is added"), Target(1));
    assert_eq!(of.disk.members(), 2);
    // A grant that comes without having been wanted ends the refusal at once.
    let grant = Grant {
        column: 1,
        number: 0,
        life: 3,
    };
    pool.grants.lock().expect("no panic").push(Some(grant));
    let order = LayoutOrder::Grant { index: 2, grant };
    of.disk.order_layout(order).expect("it is carried out");
    client.write(written << 20, &piece).expect("there is space");
    assert!(client.read(written << 20, 1 << 20).expect("a read") == piece);
    of.disk.detach(PATIENCE).expect("it is detached");
    let of = pool.attach(&engine);
    let mut client = super::client(&of.disk);
    assert!(client.read(written << 20, 1 << 20).expect("a read") == piece);
    of.disk.detach(PATIENCE).expect("it is detached");
}

#[test]
fn a_disk_without_a_grant_on_a_lost_member_is_attached_without_it() {
    let place = tempdir();
    let pool = Pool::new(place.path(), 2, SIZE);
    let engine = engine(1);
    let of = pool.attach(&engine);
    let piece = pattern(0, 5, 1 << 20);
    pool.during(&of, 1, || {
        let mut client = client(&of.disk);
        client.write(0, &piece).expect("a write");
        client.flush().expect("a flush");
    });
    of.disk.detach(PATIENCE).expect("it is detached");
    let mut images = pool.images();
    images[1] = None;
    let of = pool.attach_to(&engine, images).expect("it attaches");
    let mut client = client(&of.disk);
    assert!(client.read(0, 1 << 20).expect("a read") == piece);
    client.write(0, &pattern(0, 6, 4096)).expect("a write");
    client.flush().expect("a flush");
    of.disk.detach(PATIENCE).expect("it is detached");
    let mut images = pool.images();
    images[0] = None;
    let refused = pool
        .attach_to(&engine, images)
        .err()
        .expect("it is refused");
    assert_eq!(
        refused.refusal(),
        Some(Refusal::Failed(Target(0), Fault::Gone))
    );
}

#[test]
fn what_pools_disks_do_not_do_is_refused_and_they_go_on() {
    let place = tempdir();
    let pool = Pool::new(place.path(), 2, SIZE);
    let engine = engine(1);
    let of = pool.attach(&engine);
    let begun = of
        .disk
        .begin_transfer(memory::open(SIZE).expect("memory"), PATIENCE);
    assert_eq!(begun.err().map(|error| error.kind()), Some(Kind::Invalid));
    let dropped = of.disk.order_layout(LayoutOrder::Drop(Target(1)));
    assert_eq!(
        dropped.err().map(|error| error.kind()),
        Some(Kind::Unsupported)
    );
    let grant = Grant {
        column: 2,
        number: 0,
        life: 1,
    };
    let order = LayoutOrder::Grant { index: 0, grant };
    let refused = of.disk.order_layout(order).err().map(|error| error.kind());
    assert_eq!(refused, Some(Kind::Invalid), "there is no such column");
    of.disk.resize(2 * SIZE).expect("it grows");
    pool.during(&of, 8, || {
        let mut client = client(&of.disk);
        client
            .write(2 * SIZE - 4096, &pattern(0, 1, 4096))
            .expect("a write");
    });
    of.disk.detach(PATIENCE).expect("it is detached");
}
