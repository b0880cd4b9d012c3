//! Disks that are changed in every way while they move between I/O threads and clients verify them.
//!
//! One thread moves the disk at random, two clients write and read it, and the test changes it: filters, shares, limits, size,
//! members, the image of a disk of one, and a flash cache with its devices, size and mode. In the end the images themselves have
//! the bytes that the clients have written.

use super::{End, SIZE, begin_to_verify, engine, moves, nothing_is_left};
use crate::caches::Devices;
use crate::client::Random;
use crate::control::{limited, settings};
use crate::rig::{PATIENCE, client, eventually, filters, image, open_file, spec, tempdir};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidegate_core::coalesce::{Batch, Coalesce};
use tidegate_core::governor::Threshold;
use tidegate_core::iocontrol::{DiskKey, Policy};
use tidegate_core::layout::cache::CacheMode;
use tidegate_core::layout::{
    CacheReport, LayoutOrder, LayoutReport, LayoutSpec, MemberState, Target,
};
use tidegate_core::request::Fault;
use tidegate_core::round_robin::{IoClass, Share, Weight};
use tidegate_engine::control::{Control, Settings, UnderControl};
use tidegate_engine::datastore::OpenedImage;
use tidegate_engine::{Disk, DiskSpec, Engine, IoSettings, Kind, Result};

/// A disk grows by so much at a time, up to [`LARGEST`].
const GROWTH: u64 = 128 << 10;
const LARGEST: u64 = SIZE + 16 * GROWTH;
/// A chunk of the flash devices that the disk's part gets when it grows.
const MORE: u32 = 7;

/// A disk that is changed, and its things.
struct Changing<'a> {
    disk: &'a Disk,
    engine: &'a Engine,
    place: &'a Path,
    controls: &'a [Control; 2],
    devices: Devices,
    random: Random,
    /// The images of its members; a member that is away has none.
    paths: Vec<Option<PathBuf>>,
    images: u32,
    uses: u64,
    done: BTreeMap<&'static str, u32>,
}

/// A new image with room for the disk at its largest, on one of two datastores under control.
fn new_image(
    place: &Path,
    number: u32,
    layout: LayoutSpec,
    controls: &[Control; 2],
) -> (PathBuf, OpenedImage) {
    let size = layout.member_size(LARGEST, 2);
    let path = image(place, &format!("image{number}"), size);
    let under = UnderControl {
        control: controls[number as usize % 2].clone(),
        key: DiskKey(1),
        policy: Policy::default(),
    };
    let opened = open_file(&path).under_control(under);
    (path, opened)
}

/// Tries again while something that goes on by itself is in the way.
fn when_possible<T>(mut act: impl FnMut() -> Result<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match act() {
            Ok(done) => return done,
            Err(error) if error.kind() == Kind::Busy && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("it cannot be changed: {error}"),
        }
    }
}

impl Changing<'_> {
    fn layout(&self) -> Option<LayoutReport> {
        self.disk.layout().expect("it is attached")
    }

    fn cache(&self) -> CacheReport {
        let cache = self.layout().and_then(|layout| layout.cache);
        cache.expect("it has a cache")
    }

    fn is_mirror(&self) -> bool {
        self.paths.len() > 1
    }

    fn order(&self, order: LayoutOrder) {
        when_possible(|| self.disk.order_layout(order));
    }

    fn image(&mut self) -> (PathBuf, OpenedImage) {
        self.images += 1;
        let layout = match self.is_mirror() {
            true => LayoutSpec::Mirror,
            false => LayoutSpec::Plain,
        };
        new_image(self.place, self.images, layout, self.controls)
    }

    /// Waits until each member that is there has everything.
    fn settle(&self) {
        eventually("all members are in sync", || {
            let members = self.layout().map_or_else(Vec::new, |layout| layout.members);
            let mut members = members.iter().zip(&self.paths);
            members.all(|(member, path)| member.state == MemberState::InSync || path.is_none())
        });
    }

    /// Changes something.
    fn change(&mut self) {
        let what = match self.random.below(10) {
            0 => self.filters(),
            1 => self.io(),
            2 => self.policy(),
            3 => self.grow(),
            4 => self.read(),
            5 | 6 if self.disk.is_cached() => self.change_cache(),
            5 | 6 => self.begin_cache(),
            _ if self.is_mirror() => self.members(),
            _ => self.transfer(),
        };
        *self.done.entry(what).or_default() += 1;
    }

    fn filters(&mut self) -> &'static str {
        let trace = format!("trace:path={}", self.place.join("trace").display());
        let stacks: [&[&str]; 5] = [
            &["stats"],
            &["null", "stats"],
            &["stats", "fault:delay=50us,probability=0.3"],
            &[&trace, "stats"],
            &[],
        ];
        let stack = stacks[usize::try_from(self.random.below(5)).expect("few")];
        let changed = self.disk.restack(&filters(stack), PATIENCE);
        changed.expect("the filters change");
        "filters"
    }

    fn io(&mut self) -> &'static str {
        let coalesce = [
            None,
            Some(Coalesce::Off),
            Some(Coalesce::Adaptive),
            Some(Coalesce::Static(Batch::dense())),
        ];
        let class = [IoClass::Normal, IoClass::Latency];
        let io = IoSettings {
            share: Share {
                class: class[usize::try_from(self.random.below(2)).expect("few")],
                weight: Weight::new(1 + u32::try_from(self.random.below(100)).expect("few"))
                    .expect("a weight"),
            },
            coalesce: coalesce[usize::try_from(self.random.below(4)).expect("few")],
        };
        self.disk.set_io(io).expect("it is attached");
        "share"
    }

    fn policy(&mut self) -> &'static str {
        let policy = match self.random.below(3) {
            0 => Policy::default(),
            // It delays most requests a little.
            1 => limited(2_000, 8),
            _ => Policy {
                shares: 2_000,
                ..Policy::default()
            },
        };
        self.disk.set_policy(&policy).expect("it is under control");
        "limits"
    }

    fn grow(&mut self) -> &'static str {
        let size = self.disk.size() + GROWTH;
        if size <= LARGEST {
            self.disk.resize(size).expect("its images are large enough");
            assert_eq!(self.disk.size(), size);
        }
        "size"
    }

    /// Everything that can be asked of it.
    fn read(&mut self) -> &'static str {
        assert!(self.disk.report().is_ok());
        self.disk.curves().expect("it is attached");
        let learned = self.disk.policy_state().expect("its thread lives");
        assert_eq!(learned.is_some(), self.disk.is_cached());
        let reports = self.engine.threads().expect("they answer");
        assert!(reports.iter().all(|report| report.strays == 0));
        "questions"
    }

    fn begin_cache(&mut self) -> &'static str {
        self.uses += 10;
        let flash = self.devices.flash(self.uses, false);
        let begun = self.disk.begin_cache(flash, PATIENCE);
        begun.expect("it gets a cache");
        self.order(LayoutOrder::CacheMode(CacheMode::WriteBack));
        "cache attached"
    }

    fn clean(&self) {
        self.order(LayoutOrder::CacheMode(CacheMode::WriteThrough));
        eventually("everything is on the disk", || !self.cache().keeps_dirty);
    }

    fn change_cache(&mut self) -> &'static str {
        match self.random.below(3) {
            0 => {
                self.clean();
                let old = self.disk.end_cache(PATIENCE);
                let old = old.expect("it loses the cache");
                old.wait(PATIENCE).expect("the devices are closed");
                "cache detached"
            }
            1 => {
                let before = self.cache().pages;
                let (first, count) = (MORE, 1);
                self.order(LayoutOrder::GrowCache { first, count });
                eventually("it is larger", || self.cache().pages > before);
                self.order(LayoutOrder::ShrinkCache { count });
                eventually("it is as before", || self.cache().pages == before);
                "cache resized"
            }
            _ => {
                let nth = u8::from(self.random.below(2) == 1);
                let target = Target(u8::try_from(self.paths.len()).expect("few") + nth);
                self.order(LayoutOrder::Drop(target));
                let device = self.devices.open[usize::from(nth)].image();
                let mut device = Some(device.expect("it opens"));
                let old = when_possible(|| self.disk.set_flash_device(nth, device.take()));
                old.wait(PATIENCE).expect("the old one is closed");
                self.order(LayoutOrder::Replace(target));
                eventually("both devices have everything", || {
                    let cache = self.cache();
                    cache.devices == 0b11 && !cache.resyncing
                });
                "flash device replaced"
            }
        }
    }

    fn members(&mut self) -> &'static str {
        self.settle();
        let away = self.paths.iter().position(Option::is_none);
        match (self.random.below(4), away) {
            (0, _) if self.paths.len() < 4 => {
                let (path, image) = self.image();
                let added = self.disk.add_member(Some(image), PATIENCE);
                let added = added.expect("it is added");
                assert_eq!(usize::from(added.0), self.paths.len());
                self.paths.push(Some(path));
                self.order(LayoutOrder::Replace(added));
                "member added"
            }
            (1, None) => {
                let at = self.any_member();
                let gone = self.disk.set_member(Target(at), None);
                gone.expect("it is away")
                    .wait(PATIENCE)
                    .expect("the old image is closed");
                self.paths[usize::from(at)] = None;
                "member removed"
            }
            (2, None) => {
                self.order(LayoutOrder::Scrub { repair: false });
                eventually("they are compared", || {
                    let scrub = self.layout().map(|layout| layout.scrub);
                    scrub.flatten().is_some_and(|scrub| !scrub.running)
                });
                "members compared"
            }
            (_, away) => {
                let at = away.map(|at| u8::try_from(at).expect("few"));
                let at = at.unwrap_or_else(|| self.any_member());
                let target = Target(at);
                // One that is away has failed before, if it was written.
                let state = |report: LayoutReport| report.members[usize::from(at)].state;
                if self.layout().map(state) != Some(MemberState::OutOfSync) {
                    self.order(LayoutOrder::Drop(target));
                }
                let (path, image) = self.image();
                let old = self.disk.set_member(target, Some(image));
                let old = old.expect("the member is not in use");
                old.wait(PATIENCE).expect("the old image is closed");
                self.paths[usize::from(at)] = Some(path);
                self.order(LayoutOrder::Replace(target));
                "member replaced"
            }
        }
    }

    fn any_member(&mut self) -> u8 {
        let members = self.paths.len() as u64;
        u8::try_from(self.random.below(members)).expect("few")
    }

    /// The disk of one image gets another one, or keeps its own.
    fn transfer(&mut self) -> &'static str {
        let (path, image) = self.image();
        let begun = self.disk.begin_transfer(image, PATIENCE);
        begun.expect("it begins");
        let ends = self.random.below(3) > 0;
        if ends {
            eventually("everything is copied", || {
                let members = self.layout().map(|layout| layout.members);
                members.is_some_and(|members| members[1].state == MemberState::InSync)
            });
        }
        let whole = ends && self.disk.pause_transfer(PATIENCE).expect("it pauses");
        assert_eq!(whole, ends);
        let old = self.disk.end_transfer(Target(whole.into()), PATIENCE);
        let old = old.expect("it ends");
        old.wait(PATIENCE).expect("the other image is closed");
        if whole {
            self.paths[0] = Some(path);
        }
        match whole {
            true => "image exchanged",
            false => "exchange ended",
        }
    }

    /// Nothing goes on by itself any more, and the images have everything.
    fn end(&mut self) {
        if self.is_mirror() {
            self.settle();
        }
        if self.disk.is_cached() {
            self.clean();
            let ended = self.disk.end_cache(PATIENCE);
            ended.expect("it loses the cache");
        }
    }
}

fn is_changed_while_it_moves(layout: LayoutSpec, changes: u32, all: &[&str]) {
    let place = tempdir();
    let engine = engine(3);
    let controls = ["a", "b"].map(|name| {
        let settings = Settings {
            name: name.into(),
            ..settings(1, Threshold::Off)
        };
        engine.control(settings).expect("the control starts")
    });
    let spec = || DiskSpec {
        layout,
        ..spec("disk", SIZE)
    };
    let members = if layout.is_plain() { 1 } else { 2 };
    let made = (0..members).map(|number| new_image(place.path(), number, layout, &controls));
    let (paths, mut opened): (Vec<_>, Vec<_>) = made.unzip();
    let disk = match layout.is_plain() {
        true => engine.attach(spec(), opened.remove(0)),
        false => engine.attach_members(spec(), opened.into_iter().map(Some).collect(), PATIENCE),
    };
    let disk = disk.expect("the disk attaches");
    let mut changing = Changing {
        disk: &disk,
        engine: &engine,
        place: place.path(),
        controls: &controls,
        devices: Devices::new(place.path()),
        random: Random(17),
        paths: paths.into_iter().map(Some).collect(),
        images: members,
        uses: 0,
        done: BTreeMap::new(),
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        begin_to_verify(scope, &disk, &over);
        scope.spawn(|| {
            let mut random = Random(7);
            while !over.load(Ordering::Relaxed) {
                let to = usize::try_from(random.below(3)).expect("few");
                disk.move_to(to).expect("it moves");
            }
        });
        scope.spawn(|| {
            // A file's answer comes from the blocking worker, while the disk may be on another thread.
            let mut asking = client(&disk);
            let all = u32::try_from(SIZE).expect("small");
            while !over.load(Ordering::Relaxed) {
                let found = asking.try_extents(0, all);
                assert!(
                    matches!(found, Ok(_) | Err(Fault::Unsupported)),
                    "{found:?}"
                );
            }
        });
        let _end = End(&over);
        for _ in 0..changes {
            changing.change();
        }
        changing.end();
    });
    println!("{:?}", changing.done);
    let missing: Vec<_> = all
        .iter()
        .filter(|what| !changing.done.contains_key(**what))
        .collect();
    assert!(missing.is_empty(), "not tried: {missing:?}");
    let whole = |disk: &Disk| client(disk).read(0, u32::try_from(SIZE).expect("small"));
    let written = whole(&disk).expect("a read");
    disk.set_policy(&Policy::default()).expect("no limits");
    disk.detach(PATIENCE).expect("the disk is detached");
    nothing_is_left(&engine);
    assert_images_have(&changing.paths, &written);
}

/// Each image of a disk has its bytes.
fn assert_images_have(paths: &[Option<PathBuf>], written: &[u8]) {
    let at = match paths {
        [_] => 0,
        _ => usize::try_from(tidegate_core::layout::DATA_AT).expect("small"),
    };
    for path in paths.iter().flatten() {
        let bytes = std::fs::read(path).expect("an image");
        assert!(bytes[at..at + written.len()] == *written, "{path:?}");
    }
}

const ALWAYS: [&str; 9] = [
    "filters",
    "share",
    "limits",
    "size",
    "questions",
    "cache attached",
    "cache detached",
    "cache resized",
    "flash device replaced",
];

#[test]
fn a_mirror_is_changed_in_every_way_while_it_moves() {
    let of_mirror = [
        "member added",
        "member removed",
        "member replaced",
        "members compared",
    ];
    let all = [&ALWAYS[..], &of_mirror].concat();
    is_changed_while_it_moves(LayoutSpec::Mirror, (moves() / 5).max(80), &all);
}

#[test]
fn a_disk_of_one_image_is_changed_in_every_way_while_it_moves() {
    let all = [&ALWAYS[..], &["image exchanged", "exchange ended"]].concat();
    is_changed_while_it_moves(LayoutSpec::Plain, (moves() / 5).max(80), &all);
}
