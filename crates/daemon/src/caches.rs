//! The flash caches of this host: their records, their devices, and which chunks each disk has.
//!
//! The disk service calls this. A record is the authority on who has which chunk, and is replaced as a whole before a chunk
//! is used. Nothing on flash but a label says which cache a device belongs to.
//!
//! # Always true
//! - a chunk has one disk at most, and the record says so before the disk uses it
//! - the record says that a part may have what its disk does not, before the disk's descriptor says so, until it does not
//! - a chunk is used only after a device has the generation of a record that gives it; an older record is not used
//! - a device is used only if its label names this cache and this place in it
//!
//! # Picture
//! ```text
//! STATE/caches/NAME.toml        identity, devices, chunks by disk
//! STATE/caches/NAME.*           what may still be written, and what policies have learned
//! device: chunk 0: label        chunks 1 ..: the disks' parts
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_api::cache::{CacheCreate, CacheData};
use tidegate_api::descriptor::Uuid;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::units::Size;
use tidegate_core::layout::cache::area::Area;
use tidegate_core::layout::cache::label::DeviceLabel;
use tidegate_engine::datastore::OpenedImage;
use tidegate_engine::datastore::dir::SharedFile;

use crate::os_error::{self, Outcome};
use crate::store::Identity;
use crate::text::new_uuid;
use astray::Astray;
use budgets::Budgets;
pub(crate) use budgets::Left;
use chunks::{Part, Wanted};
pub(crate) use exchange::{Changing, NewDevice, OldDevice, must_not_be_at_stake};
use policies::Policies;
use record::PLACES;
pub(crate) use record::Record;
pub(crate) use totals::Total;
use totals::Totals;

pub(crate) mod astray;
mod budgets;
pub(crate) mod chunks;
pub(crate) mod devices;
mod exchange;
pub(crate) mod policies;
mod record;
mod totals;

/// The least and the most bytes of a cache.
const SIZES: [u64; 2] = [64 << 20, 4 << 40];
/// The smallest and the largest chunk. Origin: 16 MiB is the design's unit; a small cache has smaller ones, so that several
/// disks fit.
const CHUNKS: [u64; 2] = [1 << 20, 16 << 20];
/// Chunks of a cache, roughly, while they are smaller than the largest. Origin: hundreds of disks fit.
const CHUNKS_WANTED: u64 = 4096;

/// See the module.
pub(crate) struct Caches {
    folder: PathBuf,
    /// Devices that are open, by cache. A lock is held while its devices are opened, which can take long.
    open: Mutex<BTreeMap<Name, Arc<OpenDevices>>>,
    /// What they may still write.
    pub(crate) budgets: Budgets,
    /// What disks have done with them.
    pub(crate) totals: Totals,
    /// What their policies have learned.
    pub(crate) policies: Policies,
    /// Their devices to which the paths do not lead.
    pub(crate) astray: Astray,
    /// Serialises changes of records.
    changing: Mutex<()>,
    /// Caches whose devices are being changed.
    exchanging: Arc<Mutex<BTreeSet<Name>>>,
}

/// The open devices of a cache, or why one cannot be used.
pub(crate) struct Devices([Option<Device>; PLACES as usize]);

/// The devices of one cache. None: they have not been opened since the daemon has started.
type OpenDevices = Mutex<Option<Arc<Devices>>>;

struct Device {
    file: Outcome<Arc<SharedFile>>,
    label: DeviceLabel,
    /// Whether a disk could not get an image of it.
    failed: AtomicBool,
}

impl Device {
    fn new(file: Outcome<Arc<SharedFile>>, label: DeviceLabel) -> Device {
        Device {
            file,
            label,
            failed: AtomicBool::new(false),
        }
    }

    /// Whether disks can have images of it. One that failed is tried again.
    fn is_usable(&self) -> bool {
        match self.failed.load(Ordering::Relaxed) {
            true => self.image().is_some(),
            false => self.file.is_ok(),
        }
    }

    /// An image for one disk. None: it is away, or another device is there now.
    fn image(&self) -> Option<OpenedImage> {
        let image = self.file.as_ref().ok()?.image_of(&self.label.encode());
        self.failed.store(image.is_err(), Ordering::Relaxed);
        image.ok()
    }
}

impl Devices {
    /// Images of the devices for one disk, by place. None: away, or the place has none.
    pub(crate) fn images(&self) -> Vec<Option<OpenedImage>> {
        (0..PLACES).map(|nth| self.image(nth)).collect()
    }

    /// An image of one of them. None: away, or the place has none.
    pub(crate) fn image(&self, nth: u8) -> Option<OpenedImage> {
        self.at(nth)?.image()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.all().count()
    }

    /// Places without a device, one bit each.
    pub(crate) fn empty(&self) -> u32 {
        let empty = (0..PLACES).filter(|nth| self.at(*nth).is_none());
        empty.map(|nth| 1 << nth).sum()
    }

    /// Why a device cannot be used, by number.
    pub(crate) fn problems(&self) -> Vec<Option<Problem>> {
        let problem = |device: &Option<Device>| device.as_ref()?.file.as_ref().err().cloned();
        self.0.iter().map(problem).collect()
    }

    /// Whether none can be used.
    pub(crate) fn are_all_away(&self) -> bool {
        !self.all().any(Device::is_usable)
    }

    fn at(&self, nth: u8) -> Option<&Device> {
        self.0.get(usize::from(nth))?.as_ref()
    }

    fn all(&self) -> impl Iterator<Item = &Device> {
        self.0.iter().flatten()
    }

    /// Those that are open.
    fn files(&self) -> impl Iterator<Item = &Arc<SharedFile>> {
        self.all().flat_map(|device| &device.file)
    }
}

impl Caches {
    /// The caches of a root's state directory.
    pub(crate) fn new(state: &Path) -> Caches {
        let folder = state.join("caches");
        Caches {
            budgets: Budgets::new(&folder),
            totals: Totals::default(),
            policies: Policies::new(&folder),
            astray: Astray::default(),
            folder,
            open: Mutex::default(),
            changing: Mutex::default(),
            exchanging: Arc::default(),
        }
    }

    /// All records, each read or with the reason why it cannot be.
    pub(crate) fn all(&self) -> Outcome<BTreeMap<Name, Outcome<Record>>> {
        record::names(&self.folder).map(|names| {
            let read = |name: Name| {
                let record = self.record(&name);
                (name, record)
            };
            names.into_iter().map(read).collect()
        })
    }

    /// The record of a cache.
    pub(crate) fn record(&self, name: &Name) -> Outcome<Record> {
        record::read(&self.folder, name)
    }

    /// Creates a cache. `must_be_free` fails if a file or device is used otherwise.
    pub(crate) fn create(
        &self,
        order: &CacheCreate,
        must_be_free: impl Fn(&Path) -> Outcome<()>,
    ) -> Outcome<()> {
        let _changing = locked(&self.changing);
        let name = &order.name;
        record::must_be_new(&self.folder, name)?;
        if !matches!(order.devices.len(), 1 | 2) {
            return Err(
                os_error::invalid("a cache has one device, or two with the same bytes")
                    .remedy("give one --device, and one --mirror or none"),
            );
        }
        if order
            .endurance_dwpd
            .is_some_and(|dwpd| !(dwpd > 0.0 && dwpd <= 1000.0))
        {
            return Err(os_error::invalid(
                "the endurance is not above 0 and at most 1000 writes a day",
            )
            .remedy("give it as on the device's data sheet, such as --endurance 1dwpd"));
        }
        for path in &order.devices {
            must_be_free(path)?;
            self.must_be_of_no_cache(path, None)?;
        }
        let made = devices::prepare(&order.devices, order.size_bytes)?;
        let files = made.open()?;
        let smallest = files.iter().map(SharedFile::size).min().unwrap_or(0);
        let size = order.size_bytes.unwrap_or(smallest);
        must_be_possible(size, smallest)?;
        let uuid = new_uuid()?;
        let (chunk, count) = (chunk_of(size), u8::try_from(files.len()).unwrap_or(2));
        if order.data == CacheData::Keep {
            for file in &files {
                devices::must_be_empty(file)?;
            }
        }
        for (device, file) in (0..).zip(&files) {
            let label = DeviceLabel {
                cache: uuid.0,
                device,
                devices: count,
                serial: 0,
                chunk,
                size,
            };
            devices::write_label(file, &label)?;
        }
        let record = Record::new(uuid, size, chunk, order);
        self.budgets.forget(name);
        record::write(&self.folder, name, &record)?;
        for file in &files {
            devices::write_seen(file, &record)?;
        }
        made.keep();
        let mut open = [const { None }; PLACES as usize];
        for ((nth, file), place) in (0..).zip(files).zip(&mut open) {
            *place = Some(Device::new(Ok(Arc::new(file)), record.label(nth)));
        }
        *locked(&self.opened(name)) = Some(Arc::new(Devices(open)));
        Ok(())
    }

    /// Fails if a path is a device of a cache of this host. `into` is the identity of the cache that is to have it, if that exists.
    pub(crate) fn must_be_of_no_cache(&self, path: &Path, into: Option<Uuid>) -> Outcome<()> {
        let there = Identity::at(path).ok();
        let is_same =
            |device: &Path| device == path || there.is_some() && Identity::at(device).ok() == there;
        for (name, record) in self.all()? {
            let Ok(record) = record else {
                continue;
            };
            if record.devices().any(|(_, path)| is_same(path)) {
                return Err(Problem::new(
                    ProblemCode::Busy,
                    format!("{} is a device of cache {name}", path.display()),
                )
                .remedy(match into == Some(record.uuid) {
                    true => "name another file or device".to_owned(),
                    false => format!(
                        "name another file or device, or remove that cache first: tidegate cache remove {name}"
                    ),
                }));
            }
        }
        Ok(())
    }

    /// Removes a cache of which no disk has a part.
    pub(crate) fn remove(&self, name: &Name) -> Outcome<()> {
        let _changing = locked(&self.changing);
        let record = self.record(name)?;
        if let Some(part) = record.parts.first() {
            return Err(
                Problem::new(ProblemCode::Busy, format!("cannot remove cache {name}"))
                    .because(format!("disk {} has a part of it", part.disk))
                    .remedy(format!(
                        "take it off each of its disks first: tidegate disk set {} --cache none",
                        part.disk
                    )),
            );
        }
        record::remove(&self.folder, name)?;
        self.budgets.forget(name);
        self.totals.forget(name);
        self.astray.forget(name);
        let open = locked(&self.open).remove(name);
        if let Some(devices) = open.and_then(|open| locked(&open).take()) {
            // Without its label, a device can become another cache.
            for file in devices.files() {
                devices::clear_label(file)?;
            }
        }
        Ok(())
    }

    fn opened(&self, name: &Name) -> Arc<OpenDevices> {
        Arc::clone(locked(&self.open).entry(name.clone()).or_default())
    }

    /// The devices of a cache. One that could not be used is tried again. Only the first time, and only for this cache, it
    /// waits for a daemon before this one.
    pub(crate) fn devices(&self, name: &Name, record: &Record) -> Arc<Devices> {
        let opened = self.opened(name);
        let mut open = locked(&opened);
        if let Some(devices) = &*open
            && devices.all().all(Device::is_usable)
        {
            return Arc::clone(devices);
        }
        let before = open.take();
        let patience = match before {
            None => devices::PATIENCE,
            Some(_) => Duration::ZERO,
        };
        // One that cannot be used is closed before it is opened again.
        let mut kept = [const { None }; PLACES as usize];
        if let Some(before) = before {
            for (nth, kept) in (0..).zip(&mut kept) {
                let device = before.at(nth).filter(|device| device.is_usable());
                let file = device.and_then(|device| device.file.clone().ok());
                *kept = file.zip(device.map(|device| device.label));
            }
        }
        let mut places = [const { None }; PLACES as usize];
        for ((nth, kept), place) in (0..).zip(kept).zip(&mut places) {
            let Some(path) = record.device(nth) else {
                continue;
            };
            *place = Some(match kept {
                Some((file, label)) => Device::new(Ok(file), label),
                None => match devices::open(name, path, nth, record, patience) {
                    Ok((file, label)) => Device::new(Ok(Arc::new(file)), label),
                    Err(problem) => Device::new(Err(problem), record.label(nth)),
                },
            });
        }
        let devices = Arc::new(Devices(places));
        *open = Some(Arc::clone(&devices));
        devices
    }

    /// A disk's part of a cache: the one that it has, or a new one. `None`: it has none and there is no room.
    pub(crate) fn grant(
        &self,
        name: &Name,
        disk: &Name,
        uuid: Uuid,
        wanted: Wanted,
    ) -> Outcome<Option<Area>> {
        let _changing = locked(&self.changing);
        let mut record = self.record(name)?;
        if let Some(part) = record.parts.iter_mut().find(|part| part.uuid == uuid) {
            let is_renamed = part.disk != *disk || part.shares != wanted.shares;
            (part.disk, part.shares) = (disk.clone(), wanted.shares);
            let area = part.area(record.chunk.0);
            if is_renamed {
                record::write(&self.folder, name, &record)?;
            }
            self.show(name, &record)?;
            return Ok(area);
        }
        let Some(chunks) = chunks::choose(record.chunks(), &record.parts, wanted) else {
            return Ok(None);
        };
        let journal = wanted.journal(record.chunks(), record.chunk.0);
        let mut part = Part {
            disk: disk.clone(),
            dirty: false,
            uuid,
            shares: wanted.shares,
            // A part that is too small for that has a shorter one, and cannot grow much.
            journal: journal
                .filter(|journal| 2 * journal <= chunks.len())
                .unwrap_or(0),
            chunks,
        };
        part.keep_journal(record.chunk.0);
        let area = part.area(record.chunk.0);
        record.parts.push(part);
        self.put(name, record)?;
        Ok(area)
    }

    /// Gives a disk more chunks, up to its fair part: the first one, and how many. The disk uses them after this.
    pub(crate) fn extend(
        &self,
        name: &Name,
        uuid: Uuid,
        wanted: Wanted,
    ) -> Outcome<Option<(u32, u32)>> {
        let _changing = locked(&self.changing);
        let mut record = self.record(name)?;
        let Some((first, count)) = record.offer(uuid, wanted) else {
            return Ok(None);
        };
        for part in record.parts.iter_mut().filter(|part| part.uuid == uuid) {
            part.chunks.extend(first..first + count);
        }
        self.put(name, record)?;
        Ok(Some((first, count)))
    }

    /// Takes these chunks of a disk's part from it, which it does not use any more. Those that it does not have do not count.
    pub(crate) fn take(
        &self,
        name: &Name,
        uuid: Uuid,
        chunks: impl IntoIterator<Item = u32>,
    ) -> Outcome<()> {
        let taken: BTreeSet<u32> = chunks.into_iter().collect();
        self.change_part(name, uuid, |part, chunk| {
            part.keep_journal(chunk);
            part.chunks.retain(|chunk| !taken.contains(chunk));
        })
    }

    /// Stores a record that gives more than the one before, as the next generation.
    fn put(&self, name: &Name, mut record: Record) -> Outcome<()> {
        // An older record must not give anything: nobody knows whose it is.
        self.show(name, &record)?;
        record.generation += 1;
        record::write(&self.folder, name, &record)?;
        self.show(name, &record)
    }

    /// Shows the devices of a cache its record, before a disk uses what that gives. Fails if one has seen a newer record, or if
    /// none can be written.
    fn show(&self, name: &Name, record: &Record) -> Outcome<()> {
        let devices = self.devices(name, record);
        let mut shown = Err(devices.problems().into_iter().flatten().next());
        for file in devices.files() {
            let newest = devices::must_be_newest(name, file, record);
            match newest.and_then(|()| devices::write_seen(file, record)) {
                Ok(()) => shown = Ok(()),
                // Whatever the other one says.
                Err(problem) if problem.code == ProblemCode::Corrupt => return Err(problem),
                Err(problem) => shown = shown.map_err(|_| Some(problem)),
            }
        }
        shown.map_err(|problem| {
            problem.unwrap_or_else(|| {
                os_error::invalid(format!("cache {name} has no device"))
                    .remedy(format!("see `tidegate cache show {name}`"))
            })
        })
    }

    /// Leaves a disk only so many chunks. The disk does not use the cache now, and what it had there is void.
    pub(crate) fn shrink(&self, name: &Name, uuid: Uuid, chunks: usize) -> Outcome<()> {
        self.change_part(name, uuid, |part, chunk| part.truncate(chunks, chunk))
    }

    /// Records whether a disk's part may have what the disk does not. Returns whether there is such a part.
    pub(crate) fn set_dirty(&self, name: &Name, uuid: Uuid, dirty: bool) -> Outcome<bool> {
        let _changing = locked(&self.changing);
        let mut record = self.record(name)?;
        let part = record.parts.iter_mut().find(|part| part.uuid == uuid);
        let Some(part) = part else {
            return Ok(false);
        };
        let was_dirty = std::mem::replace(&mut part.dirty, dirty);
        match (was_dirty, dirty) {
            (false, true) => self.put(name, record)?,
            (true, false) => record::write(&self.folder, name, &record)?,
            _ => {}
        }
        Ok(true)
    }

    /// Takes a disk's part from it. The disk does not use the cache any more.
    pub(crate) fn release(&self, name: &Name, uuid: Uuid) -> Outcome<()> {
        self.change_part(name, uuid, |part, _| part.chunks.clear())?;
        self.policies.forget(name, uuid);
        Ok(())
    }

    fn change_part(
        &self,
        name: &Name,
        uuid: Uuid,
        change: impl FnOnce(&mut Part, u64),
    ) -> Outcome<()> {
        let _changing = locked(&self.changing);
        let mut record = self.record(name)?;
        let chunk = record.chunk.0;
        let Some(part) = record.parts.iter_mut().find(|part| part.uuid == uuid) else {
            return Ok(());
        };
        change(part, chunk);
        record.parts.retain(|part| !part.chunks.is_empty());
        record::write(&self.folder, name, &record)
    }
}

/// The unit of a cache of this size.
fn chunk_of(size: u64) -> u64 {
    let chunk = (size / CHUNKS_WANTED).max(1);
    let [least, most] = CHUNKS;
    (1 << chunk.ilog2()).clamp(least, most)
}

fn must_be_possible(size: u64, smallest: u64) -> Outcome<()> {
    let [least, most] = SIZES;
    let problem =
        |why: String| os_error::invalid("a cache of this size is not possible").because(why);
    if size > smallest {
        return Err(problem(format!(
            "{} are wanted, and the smallest device has {}",
            Size(size),
            Size(smallest)
        ))
        .remedy("give a smaller --size, or leave it out"));
    }
    if size < least || size > most {
        return Err(problem(format!(
            "it would have {}, and a cache has from {} to {}",
            Size(size),
            Size(least),
            Size(most)
        ))
        .remedy("give a --size from 64MiB to 4TiB"));
    }
    Ok(())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change to these tables is complete, so another thread's panic leaves no partial state.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
