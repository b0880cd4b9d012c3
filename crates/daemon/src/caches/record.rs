//! The record of a cache: one file in the host's state, replaced as a whole.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidegate_api::cache::CacheCreate;
use tidegate_api::descriptor::Uuid;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::toml_error;
use tidegate_api::units::Size;
use tidegate_core::layout::cache::label::DeviceLabel;

use super::chunks::{self, Part, Wanted};
use crate::files;
use crate::os_error::{self, Outcome};

const VERSION: u32 = 1;
/// Devices of a cache at most.
pub(super) const PLACES: u8 = 2;
/// The largest record that is read: every second chunk of the largest cache, with its comma.
const MOST: usize = 8 << 20;

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    version: u32,
    /// Grows with each change that gives a disk something. The devices have the newest one.
    #[serde(default)]
    pub(super) generation: u64,
    pub(crate) uuid: Uuid,
    /// Bytes of each device that the cache uses.
    pub(crate) size: Size,
    /// Bytes of a chunk.
    pub(crate) chunk: Size,
    /// How often a device may be written in a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) endurance_dwpd: Option<f64>,
    /// By place. An empty path: the place has no device.
    pub(super) devices: Vec<PathBuf>,
    /// The numbers in their labels, by place. None: 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) serials: Vec<u32>,
    /// The disks' parts, in the order in which they came.
    #[serde(default, rename = "part", skip_serializing_if = "Vec::is_empty")]
    pub(crate) parts: Vec<Part>,
}

impl Record {
    pub(super) fn new(uuid: Uuid, size: u64, chunk: u64, order: &CacheCreate) -> Record {
        Record {
            version: VERSION,
            generation: 1,
            uuid,
            size: Size(size),
            chunk: Size(chunk),
            endurance_dwpd: order.endurance_dwpd,
            devices: order.devices.clone(),
            serials: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// How many chunks it has, with the one of the label.
    pub(crate) fn chunks(&self) -> u32 {
        u32::try_from(self.size.0 / self.chunk.0.max(1)).unwrap_or(u32::MAX)
    }

    /// Free chunks for a disk that has less than its fair part: the first one, and how many.
    pub(crate) fn offer(&self, uuid: Uuid, wanted: Wanted) -> Option<(u32, u32)> {
        let (mine, others): (Vec<Part>, Vec<Part>) = self
            .parts
            .iter()
            .cloned()
            .partition(|part| part.uuid == uuid);
        let has = mine.first()?.chunks.len();
        let fair = wanted.fair(self.chunks(), &others);
        let missing = fair.checked_sub(has).filter(|missing| *missing > 0)?;
        chunks::free_run(self.chunks(), &self.parts, missing)
    }

    /// Bytes that may be written to each device in a day, if there is a budget.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a budget is positive, and needs no exact bytes"
    )]
    pub(crate) fn budget(&self) -> Option<u64> {
        let dwpd = self.endurance_dwpd?;
        Some((dwpd * crate::text::float(self.size.0)) as u64)
    }

    /// How many chunks have so many bytes.
    pub(crate) fn in_chunks(&self, bytes: u64) -> usize {
        usize::try_from(bytes.div_ceil(self.chunk.0.max(1))).unwrap_or(usize::MAX)
    }

    /// The device in a place, if there is one.
    pub(crate) fn device(&self, nth: u8) -> Option<&Path> {
        let path = self.devices.get(usize::from(nth))?;
        (!path.as_os_str().is_empty()).then_some(path)
    }

    /// Its devices, with their places.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (u8, &Path)> {
        (0..PLACES).filter_map(|nth| Some((nth, self.device(nth)?)))
    }

    /// The place without a device, if there is one.
    pub(crate) fn empty_place(&self) -> Option<u8> {
        (0..PLACES).find(|nth| self.device(*nth).is_none())
    }

    /// A place has another device from now on, with this number in its label, or none.
    pub(super) fn set_device(&mut self, nth: u8, device: Option<(PathBuf, u32)>) {
        let (path, serial) = device.unwrap_or_default();
        let (places, nth) = (usize::from(PLACES), usize::from(nth));
        self.devices.resize(places, PathBuf::new());
        self.serials.resize(places, 0);
        (self.devices[nth], self.serials[nth]) = (path, serial);
    }

    /// The label of one of its devices.
    pub(super) fn label(&self, device: u8) -> DeviceLabel {
        let serial = self.serials.get(usize::from(device));
        DeviceLabel {
            cache: self.uuid.0,
            device,
            devices: u8::try_from(self.devices.len()).unwrap_or(u8::MAX),
            serial: serial.copied().unwrap_or(0),
            chunk: self.chunk.0,
            size: self.size.0,
        }
    }

    /// Fails if it does not make sense: nothing may be written by it.
    fn check(&self) -> Result<(), &'static str> {
        let mut seen = BTreeSet::new();
        let chunks = self.chunks();
        let mut all = self.parts.iter().flat_map(|part| &part.chunks);
        if self.chunk.0 == 0 || !self.chunk.0.is_multiple_of(1 << 20) {
            return Err("its chunk is no multiple of 1 MiB");
        }
        if self.devices.len() > PLACES.into() || self.devices().next().is_none() {
            return Err("it has not one or two devices");
        }
        match all.all(|chunk| (1..chunks).contains(chunk) && seen.insert(*chunk)) {
            true => Ok(()),
            false => Err("a chunk is given twice, or is not there"),
        }
    }
}

/// The names of all records.
pub(super) fn names(folder: &Path) -> Outcome<Vec<Name>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(os_error::io("cannot list the flash caches", &error)),
    };
    let name = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        name.strip_suffix(".toml")?.parse::<Name>().ok()
    };
    let mut names: Vec<Name> = entries.flatten().filter_map(name).collect();
    names.sort();
    Ok(names)
}

pub(super) fn read(folder: &Path, name: &Name) -> Outcome<Record> {
    let path = file(folder, name);
    let bytes = files::read(&path, MOST).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Problem::new(
            ProblemCode::NotFound,
            format!("there is no flash cache {name}"),
        )
        .remedy("see `tidegate cache list`"),
        _ => os_error::io(format!("cannot read the record of cache {name}"), &e),
    })?;
    let damaged = |why: String| {
        Problem::new(
            ProblemCode::Corrupt,
            format!("{} is damaged", path.display()),
        )
        .because(why)
        .remedy("repair it by hand or restore a copy; nothing was changed")
    };
    let text = std::str::from_utf8(&bytes).map_err(|e| damaged(e.to_string()))?;
    let record: Record = toml::from_str(text).map_err(|e| damaged(toml_error::message(&e)))?;
    if record.version != VERSION {
        return Err(damaged(format!(
            "its format is version {}; this program supports version {VERSION}",
            record.version
        )));
    }
    record.check().map_err(|why| damaged(why.to_owned()))?;
    Ok(record)
}

pub(super) fn write(folder: &Path, name: &Name, record: &Record) -> Outcome<()> {
    let what = || format!("cannot store the record of cache {name}");
    fs::create_dir_all(folder).map_err(|e| os_error::io(what(), &e))?;
    let text = toml::to_string(record).map_err(|e| {
        os_error::invalid(what())
            .because_of(&e)
            .remedy("use paths that are valid UTF-8")
    })?;
    files::replace(&file(folder, name), text.as_bytes()).map_err(|e| os_error::io(what(), &e))
}

pub(super) fn remove(folder: &Path, name: &Name) -> Outcome<()> {
    fs::remove_file(file(folder, name))
        .and_then(|()| files::sync_folder(folder))
        .map_err(|e| os_error::io(format!("cannot remove the record of cache {name}"), &e))
}

pub(super) fn must_be_new(folder: &Path, name: &Name) -> Outcome<()> {
    let is_mode = matches!(
        name.as_str(),
        "none" | "off" | "write-back" | "writeback" | "write-through" | "writethrough"
    );
    if is_mode {
        return Err(
            os_error::invalid(format!("a cache cannot be called {name}"))
                .because("that is a value of `tidegate disk set --cache`")
                .remedy("choose another name"),
        );
    }
    if !file(folder, name).exists() {
        return Ok(());
    }
    Err(Problem::new(
        ProblemCode::Exists,
        format!("there is a flash cache {name} already"),
    )
    .remedy(format!(
        "choose another name, or remove that one first: tidegate cache remove {name}"
    )))
}

fn file(folder: &Path, name: &Name) -> PathBuf {
    folder.join(format!("{name}.toml"))
}
