//! Moves of attached disks to another datastore, while guests use them.
//!
//! # Always true
//! - Until the switch, the source is whole: a crash, a failure or a cancelled job leaves the disk where it was.
//! - The switch is one replacement of the source's descriptor, which then names the target. After that, the target is whole.
//! - The target is a draft until all bytes are there. A draft of a daemon that died is removed like any other.
//!
//! # Picture
//! ```text
//!   draft on target ─ copy, writes to both ─ publish (moved_from) ─ source: moved_to ─ end ─ delete source
//!                                                                   the switch
//! ```

use std::sync::Arc;
use std::time::Duration;

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::descriptor::Descriptor;
use tidegate_api::disk::Allocation;
use tidegate_api::job::Job;
use tidegate_api::layout::DiskMove;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::{LayoutOrder, MemberState};

use super::claims::Claim;
use super::datastores::space;
use super::members::{OpenMembers, Opening};
use super::pooled::must_not_be_pooled;
use super::{DiskService, layouts};
use crate::config::plan::layout;
use crate::disks::attached::{Attached, OpenImage};
use crate::disks::copy::Progress;
use crate::host::{Described, Keep, OldMember};
use crate::os_error::{self, Outcome};
use crate::store::{DESCRIPTOR, Found, Identity, NewFolder, Unpublished};

/// How often the job asks how far the copy is.
const EVERY: Duration = Duration::from_millis(100);

/// How long the switch waits until the engine has closed the old image.
const CLOSING: Duration = Duration::from_secs(10);

/// How long a move may take to begin: longer than I/O in flight takes to end.
const BEGINNING: Duration = Duration::from_secs(60);

/// A move that has begun.
struct Moving {
    live: Arc<Attached>,
    /// The disk where it was.
    source: Found,
    /// The disk where it will be. Its directory is a draft.
    target: Found,
    draft: Unpublished,
    open: OpenMembers,
    described: Described,
}

impl DiskService {
    /// Moves an attached disk to another datastore.
    pub(crate) fn relocate(self: &Arc<Self>, name: &Name, order: &DiskMove) -> Outcome<Job> {
        let what = format!("cannot move disk {name} to datastore {}", order.to);
        let claim = self.claim(name, &what)?;
        claim.keep(&order.to);
        let source = self.find(name)?;
        let live = self.must_be_attached(name).map_err(|e| e.within(&what))?;
        let settings = self
            .store
            .datastore(&order.to)
            .map_err(|e| e.within(&what))?;
        must_be_movable(&source, &settings, order).map_err(|e| e.within(&what))?;
        self.must_have_no_snapshots(&source, "they do not move with it")
            .map_err(|e| e.within(&what))?;
        self.must_be_in_place(&live).map_err(|e| e.within(&what))?;
        let moving = self
            .begin_move(live, source, order, settings)
            .map_err(|e| e.within(&what))?;
        let (service, rate) = (Arc::clone(self), order.rate_bytes_per_s);
        let job = format!("move disk {name} to datastore {}", order.to);
        let remedy = format!(
            "see where the disk is: tidegate disk show {name}; it is whole there. If that is not datastore {0}, repeat the command: \
             tidegate disk move {name} --to {0}",
            order.to
        );
        Ok(self
            .jobs
            .start_once(job, name.clone(), remedy, move |progress| {
                service
                    .carry_out(&claim, moving, rate, progress)
                    .map_err(|e| e.within(what))
            }))
    }

    /// Creates the new image, and begins to write to both.
    fn begin_move(
        &self,
        live: Arc<Attached>,
        source: Found,
        order: &DiskMove,
        settings: DatastoreSettings,
    ) -> Outcome<Moving> {
        let size = live.size();
        let descriptor = Descriptor {
            device: None,
            export: None,
            moved_from: Some(source.datastore.clone()),
            ..source.descriptor.clone()
        };
        let mut target = Found {
            name: source.name.clone(),
            datastore: order.to.clone(),
            settings,
            folder: Default::default(),
            descriptor,
            is_copy: false,
        };
        self.must_be_usable(std::slice::from_ref(&target), true, "it cannot be there")?;
        must_have_space(&target, size)?;
        layouts::must_hold(0, &target)?;
        let is_dir = matches!(target.settings, DatastoreSettings::Dir { .. });
        let draft = self.store.begin_folder(&NewFolder {
            datastore: &target.datastore,
            settings: &target.settings,
            name: &target.name,
            descriptor: &target.descriptor,
            file: DESCRIPTOR,
            image: is_dir.then_some((size, Allocation::Thin)),
        })?;
        target.folder = draft.path().to_owned();
        let mut open = OpenMembers::default();
        let opening = Opening {
            order: &Default::default(),
            is_borrowed: false,
        };
        let begun = self
            .open_member(&target, 0, &opening, &mut open)
            .and_then(|()| {
                let opened = open.opened.pop().flatten();
                let opened = opened.ok_or_else(|| {
                    os_error::invalid("the new image is not open").remedy("try again")
                })?;
                live.begin_transfer(opened)
            });
        match begun {
            Ok(described) => Ok(Moving {
                live,
                source,
                target,
                draft,
                open,
                described,
            }),
            Err(problem) => Err(draft.give_up(problem)),
        }
    }

    fn carry_out(
        &self,
        claim: &Claim,
        moving: Moving,
        rate: Option<u64>,
        progress: &Progress,
    ) -> Outcome<()> {
        let live = Arc::clone(&moving.live);
        let copied = match rate {
            Some(rate) => live.order(LayoutOrder::Rate(rate)),
            None => Ok(()),
        };
        let react = || self.react_while_claimed(&live);
        let copied = copied.and_then(|()| follow(&live, progress, react));
        // From here on the guests wait, until the disk has one image again.
        let paused = copied.and_then(|()| live.pause_transfer());
        let switched = paused.and_then(|()| self.switch(&moving));
        match switched {
            Ok(()) => self.leave_source(claim, moving),
            Err(problem) => {
                let ended = self.end_move(&live, &Keep::Old);
                if let Ok(old) = &ended {
                    // The draft's image is removed once it is closed, as far as that can be waited for.
                    let _ = old.is_closed_within(CLOSING);
                }
                drop(moving.open);
                Err(moving.draft.give_up(problem))
            }
        }
    }

    /// Ends a move. While I/O in flight does not end, it is tried again: the disk's descriptor may say already which image is
    /// the disk's.
    fn end_move(&self, live: &Attached, keep: &Keep) -> Outcome<OldMember> {
        loop {
            match live.end_transfer(keep) {
                Err(problem) if problem.code == ProblemCode::Datastore && is_moving(live) => {
                    tracing::warn!(disk = %live.name(), %problem, "the move does not end yet");
                    self.react_while_claimed(live);
                }
                ended => return ended,
            }
        }
    }

    /// Makes the new image the disk's: one replacement of a file.
    fn switch(&self, moving: &Moving) -> Outcome<()> {
        let (source, target) = (&moving.source, &moving.target);
        let settling = moving.live.settling();
        // Settings may have changed during the copy.
        let now = self.store.reread(source)?;
        let descriptor = Descriptor {
            device: None,
            export: None,
            moved_from: Some(source.datastore.clone()),
            ..now.descriptor.clone()
        };
        moving.draft.publish_disk(&descriptor)?;
        let void = Found {
            descriptor: Descriptor {
                moved_to: Some(target.datastore.clone()),
                ..now.descriptor
            },
            ..source.clone()
        };
        let switched = self.store.write_descriptor(&void);
        drop(settling);
        let is_switched = || {
            let there = self.store.reread(source);
            there.is_ok_and(|there| there.descriptor.moved_to.is_some())
        };
        match switched {
            Err(problem) if !is_switched() => {
                let published = self.published(moving, descriptor);
                match self.store.delete_disk(&published, ()) {
                    Ok(()) => Err(problem),
                    Err(second) => Err(problem.because(second)),
                }
            }
            _ => Ok(()),
        }
    }

    /// The disk where it is after the switch.
    fn published(&self, moving: &Moving, descriptor: Descriptor) -> Found {
        Found {
            folder: moving.draft.folder().to_owned(),
            descriptor,
            ..moving.target.clone()
        }
    }

    /// The disk is on the target: ends the use of the source, and deletes it.
    fn leave_source(&self, claim: &Claim, moving: Moving) -> Outcome<()> {
        let Moving {
            live,
            source,
            target,
            draft,
            open,
            described,
        } = moving;
        let old = self.end_move(&live, &Keep::New(described))?;
        let (name, from, to) = (&source.name, &source.datastore, &target.datastore);
        let published = Found {
            folder: draft.folder().to_owned(),
            ..target.clone()
        };
        let standing = Descriptor {
            device: None,
            export: None,
            ..live
                .descriptor()
                .unwrap_or_else(|| target.descriptor.clone())
        };
        let path = published.image();
        let is_dir = matches!(published.settings, DatastoreSettings::Dir { .. });
        let image = is_dir.then(|| Identity::at(&path).ok()).flatten();
        let image = image.map(|identity| OpenImage {
            member: 0,
            datastore: to.clone(),
            path,
            identity,
        });
        live.has_moved(to, standing, published.descriptor_file(), image, open.uses);
        self.remember(|disks| {
            disks.insert(name.clone(), to.clone());
        })?;
        self.agree(&published)?;
        claim.keep(to);
        if old.is_closed_within(CLOSING) {
            self.finish_move(&self.store.reread(&published)?)?;
        }
        self.forget_agreed(&source)?;
        self.notices.add_move(name, from, to);
        Ok(())
    }

    /// Deletes what a finished move left at the source, and the mark that says so.
    pub(super) fn finish_move(&self, disk: &Found) -> Outcome<()> {
        let Some(from) = &disk.descriptor.moved_from else {
            return Ok(());
        };
        let Ok(settings) = self.store.datastore(from) else {
            return self.clear_mark(disk);
        };
        let there = self.lies_on(&disk.name, from, &settings)?;
        if there {
            let source = self.read(&disk.name, from, settings)?;
            if source.descriptor.moved_to.as_ref() != Some(&disk.datastore) {
                return Ok(());
            }
            self.store.delete_disk(&source, ())?;
        }
        self.clear_mark(disk)
    }

    fn clear_mark(&self, disk: &Found) -> Outcome<()> {
        let mut disk = self.store.reread(disk)?;
        disk.descriptor.moved_from = None;
        self.store.write_descriptor(&disk)
    }

    /// Where a disk is that was moved, or whose move did not end.
    pub(super) fn after_move(&self, found: Found) -> Outcome<Found> {
        let name = found.name.clone();
        if found.is_copy {
            return Ok(found);
        }
        if let Some(to) = &found.descriptor.moved_to {
            return self.read(&name, to, self.store.datastore(to)?);
        }
        let Some(from) = found.descriptor.moved_from.clone() else {
            return Ok(found);
        };
        let Ok(settings) = self.store.datastore(&from) else {
            // The source does not exist any more.
            return Ok(found);
        };
        let unknown = |problem: Problem| {
            problem.within(format!(
                "it is not known whether the move of disk {name} from datastore {from} has ended"
            ))
        };
        let source = match self.lies_on(&name, &from, &settings) {
            Ok(false) => return Ok(found),
            Ok(true) => self.read(&name, &from, settings),
            Err(problem) => Err(problem),
        };
        let source = match source {
            // A new home that was not committed: the other members say where the disk is.
            Err(problem) if found.descriptor.has_layout() => {
                return self.find_copy(&name, unknown(problem));
            }
            source => source.map_err(unknown)?,
        };
        match source.descriptor.moved_to.as_ref() == Some(&found.datastore) {
            true => Ok(found),
            false => Ok(source),
        }
    }
}

/// Fails if a datastore has less free space than an image takes once everything is copied to it: also what the guest never
/// wrote.
pub(super) fn must_have_space(image: &Found, takes: u64) -> Outcome<()> {
    match space(&image.settings).map(|space| space.free) {
        Some(free) if free < takes => Err(Problem::new(
            ProblemCode::Full,
            format!("datastore {} is too full", image.datastore),
        )
        .because(format!(
            "the copy takes {takes} bytes, and {free} are free there"
        ))
        .remedy("free space there, or name another datastore")),
        _ => Ok(()),
    }
}

/// Fails if a disk cannot be moved as ordered.
fn must_be_movable(disk: &Found, to: &DatastoreSettings, order: &DiskMove) -> Outcome<()> {
    let name = &disk.name;
    must_not_be_pooled(
        disk,
        "create a disk elsewhere, attach both, and copy over NBD, as `nbdcopy FROM TO`",
    )?;
    if let Some(layout) = &disk.descriptor.layout {
        let remedy = match layout::of(&disk.descriptor)?.is_redundant() {
            true => format!(
                "replace its members one by one: tidegate disk member replace {name} MEMBER --on {}",
                order.to
            ),
            false => {
                "its members cannot be replaced: create another disk, and copy over NBD".to_owned()
            }
        };
        let what = format!("its layout is {layout}");
        return Err(Problem::new(ProblemCode::Unsupported, what).remedy(remedy));
    }
    if disk.datastore == order.to {
        return Err(
            os_error::invalid(format!("it is on datastore {} already", order.to))
                .remedy("name another datastore (see `tidegate datastore list`)"),
        );
    }
    if order.rate_bytes_per_s == Some(0) {
        return Err(os_error::invalid("a rate of 0 would never end")
            .remedy("give more, or leave the rate out"));
    }
    match to {
        DatastoreSettings::Dir { .. } | DatastoreSettings::Nbd { .. } => Ok(()),
        DatastoreSettings::Pool {} => Err(Problem::new(
            ProblemCode::Unsupported,
            "disks are not moved to pools",
        )
        .remedy("create a disk there, attach both, and copy over NBD, as `nbdcopy FROM TO`")),
        other => Err(Problem::new(
            ProblemCode::Unsupported,
            format!(
                "a datastore of kind {} does not keep what is written",
                other.kind()
            ),
        )
        .remedy("name a datastore of kind dir or nbd")),
    }
}

/// Whether an attached disk has two images, because it moves.
fn is_moving(live: &Attached) -> bool {
    live.layout().is_some_and(|report| report.members.len() > 1)
}

/// Follows the copy until the new image has all bytes. `react` is called again and again.
fn follow(live: &Attached, progress: &Progress, react: impl Fn()) -> Outcome<()> {
    let mut begun = false;
    let since = std::time::Instant::now();
    loop {
        let report = live.layout();
        let copy = report.as_ref().and_then(|report| report.members.get(1));
        match copy {
            Some(copy) => {
                begun = true;
                progress.expect(copy.to_copy);
                progress.is_at(copy.copied);
                match copy.state {
                    MemberState::InSync => {
                        // Everything was copied. The mirror no longer counts it.
                        progress.expect(live.size());
                        progress.is_at(live.size());
                        return Ok(());
                    }
                    MemberState::Rebuilding => {}
                    MemberState::OutOfSync => {
                        return Err(Problem::new(
                            ProblemCode::Datastore,
                            "the new image has failed",
                        )
                        .because(format!("{} of its I/Os failed", copy.faults))
                        .remedy(
                            "check the datastore that the disk was to move to, and try again",
                        ));
                    }
                }
            }
            None if begun || since.elapsed() > BEGINNING => {
                return Err(Problem::new(ProblemCode::Busy, "the move was interrupted")
                    .because("the disk was detached, or its I/O in flight did not end")
                    .remedy(format!(
                        "the disk is whole where it was; attach it if it is not (tidegate disk attach {}), and move it again",
                        live.name()
                    )));
            }
            None => {}
        }
        progress.check()?;
        react();
        std::thread::sleep(EVERY);
    }
}
