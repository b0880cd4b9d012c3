//! `tidegate cache`: the flash caches of this host.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};
use tidegate_api::cache::{
    Cache as Answer, CacheCounts, CacheCreate, CacheData, CacheFlush, CacheList, CacheTarget,
    CachedDisk, FlashMode, TargetReason,
};
use tidegate_api::name::Name;
use tidegate_api::routes;
use tidegate_api::units::Size;

use crate::failure::{Failure, sentences};
use crate::output::{Detail, Gone, Shown, names};
use crate::prompt::Consent;
use crate::session::Session;
use crate::{complete, figures, job, table};

mod device;

/// Keep what disks use most on flash of this host
///
/// A cache is one flash device, or two with the same bytes. Disks on any datastores get parts of it:
/// `tidegate disk set DISK --cache NAME`.
#[derive(Debug, Subcommand)]
pub(crate) enum Cache {
    Create(Create),
    List(List),
    Show(Show),
    Flush(Flush),
    #[command(subcommand)]
    Device(device::Device),
    Remove(Remove),
}

impl Cache {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Cache::Create(verb) => verb.run(session),
            Cache::List(_) => session.show(routes::CACHES, &[]),
            Cache::Show(verb) => session.show(routes::CACHE, &[verb.name.as_str()]),
            Cache::Flush(verb) => verb.run(session),
            Cache::Device(verb) => verb.run(session),
            Cache::Remove(verb) => verb.run(session),
        }
    }
}

/// How often a whole device may be written in a day, such as `1dwpd`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Endurance(f64);

impl FromStr for Endurance {
    type Err = String;

    fn from_str(text: &str) -> Result<Endurance, String> {
        let lower = text.trim().to_ascii_lowercase();
        let number = lower.strip_suffix("dwpd").unwrap_or(&lower);
        let dwpd: f64 = number
            .trim()
            .parse()
            .map_err(|_| format!("'{text}' is no number of writes a day: write it as 1dwpd"))?;
        Ok(Endurance(dwpd))
    }
}

/// Make a file or a flash device a cache
///
/// Nothing may be on the devices. A file that does not exist is created, if --size is given.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate cache create nvme0 --device /dev/nvme0n1
  tidegate cache create nvme0 --device /dev/nvme0n1 --mirror /dev/nvme1n1 --endurance 1dwpd
  tidegate cache create small --device /var/cache/tidegate.flash --size 20G")]
pub(crate) struct Create {
    /// The new cache
    name: Name,

    /// The block device, or a file
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    device: PathBuf,

    /// A second device that gets the same bytes: a disk then survives the loss of one
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    mirror: Option<PathBuf>,

    /// How much of each device to use, 64MiB to 4TiB; default: all of it
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,

    /// How often a whole device may be written in a day, as on its data sheet: 1dwpd
    ///
    /// What is written is shown against this budget.
    #[arg(long, value_name = "DWPD")]
    endurance: Option<Endurance>,

    /// Overwrite what is on the devices
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    consent: Consent,
}

impl Create {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let mut devices = vec![absolute(self.device)?];
        devices.extend(self.mirror.map(absolute).transpose()?);
        if self.force {
            let on: Vec<_> = devices
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            self.consent
                .obtain(&format!("what is on {} will be lost", on.join(" and ")))?;
        }
        let order = CacheCreate {
            name: self.name,
            devices,
            size_bytes: self.size.map(|Size(bytes)| bytes),
            endurance_dwpd: self.endurance.map(|Endurance(dwpd)| dwpd),
            data: match self.force {
                true => CacheData::Overwrite,
                false => CacheData::Keep,
            },
        };
        let cache = session.client()?.order(routes::CACHE_CREATE, &[], &order)?;
        let name = &cache.name;
        session.console.done(
            &cache,
            &format!(
                "cache {name} created; give it to a disk: tidegate disk set DISK --cache {name}"
            ),
        )
    }
}

/// A path as the daemon finds it.
fn absolute(path: PathBuf) -> Result<PathBuf, Failure> {
    std::path::absolute(&path).map_err(|e| Failure::io(path.display().to_string(), &e))
}

/// List flash caches
#[derive(Debug, Args)]
#[command(
    visible_alias = "ls",
    after_help = "Example:\n  tidegate cache list -o json | jq '.caches[] | {name, dirty_bytes}'"
)]
pub(crate) struct List {}

/// Show one flash cache: which disks have how much of it, and what it does for them
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate cache show nvme0")]
pub(crate) struct Show {
    /// The cache
    #[arg(add = complete::caches())]
    name: Name,
}

/// Bring to the datastores what only a cache has
///
/// The disks go on to use the cache. Interrupting this command does not stop the work.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate cache flush nvme0
  tidegate cache flush nvme0 db1")]
pub(crate) struct Flush {
    /// The cache
    #[arg(add = complete::caches())]
    name: Name,

    /// Only of this disk
    #[arg(add = complete::disks())]
    disk: Option<Name>,

    /// Answer with the job at once
    #[arg(long)]
    no_wait: bool,
}

impl Flush {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let client = session.client()?;
        let order = CacheFlush { disk: self.disk };
        let name = self.name.as_str();
        let job = client.order(routes::CACHE_FLUSH, &[name], &order)?;
        job::follow_unless(
            session,
            &client,
            job,
            self.no_wait,
            &format!("cache {name} flushed"),
        )
    }
}

/// Remove a flash cache that no disk uses
///
/// Its devices stay as they are, and can become another cache.
#[derive(Debug, Args)]
#[command(
    visible_aliases = ["rm", "delete"],
    after_help = "Example:\n  tidegate cache remove nvme0"
)]
pub(crate) struct Remove {
    /// The cache
    #[arg(add = complete::caches())]
    name: Name,
}

impl Remove {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let name = self.name.as_str();
        session.client()?.erase(routes::CACHE_REMOVE, &[name])?;
        session
            .console
            .done(&Gone { name }, &format!("cache {name} removed"))
    }
}

/// The part of reads that flash answered, such as `87.5%`.
pub(crate) fn hit_ratio(counts: &CacheCounts) -> String {
    let all = counts.hits_total + counts.misses_total;
    if all == 0 {
        return figures::dash();
    }
    let percent = 100.0 * figures::to_f64(counts.hits_total) / figures::to_f64(all);
    format!("{percent:.1}%")
}

/// The state in one or a few words.
fn state(cache: &Answer) -> String {
    match (&cache.problem, cache.unreadable_pages) {
        (None, 0) => "ok".to_owned(),
        (Some(_), 0) => "problem".to_owned(),
        (_, pages) => unreadable(pages),
    }
}

/// The state, with the problem and what to do if pages cannot be read. The problem of a device stands beside the device.
fn full_state(cache: &Answer) -> String {
    match &cache.problem {
        Some(problem) if cache.unreadable_pages > 0 => {
            format!("{}\n{}", state(cache), sentences(problem))
        }
        _ => state(cache),
    }
}

/// How many pages cannot be read.
fn unreadable(pages: u64) -> String {
    match pages {
        1 => "1 page unreadable".to_owned(),
        _ => format!("{pages} pages unreadable"),
    }
}

fn devices(cache: &Answer) -> String {
    let paths = cache.devices.iter().map(|device| {
        let line = format!("{}: {}", device.device, device.path.display());
        match (&device.problem, device.behind_disks) {
            (Some(problem), _) => format!("{line}\n{}", sentences(problem)),
            (None, 0) => line,
            (None, 1) => format!("{line}, not complete for one disk"),
            (None, disks) => format!("{line}, not complete for {disks} disks"),
        }
    });
    paths.collect::<Vec<_>>().join("\n")
}

fn disk(disk: &CachedDisk) -> String {
    let size = figures::bytes(disk.size_bytes);
    let line = used(disk, &size);
    match &disk.target {
        Some(target) => format!("{line}\n  {}", aim(target)),
        None => line,
    }
}

/// How large a disk's part is to be, and why.
fn aim(target: &CacheTarget) -> String {
    let why = match target.reason {
        TargetReason::Hits => "more would add fewer hits than elsewhere",
        TargetReason::Shares => "its share, its curve is not known yet",
        TargetReason::Minimum => "the minimum, more would add no hits, or more elsewhere",
        TargetReason::Maximum => "its maximum",
        TargetReason::Rest => "what it gains from, and a share of the rest",
    };
    let misses = match (target.miss_ratio, target.target_miss_ratio) {
        (Some(now), Some(then)) => format!(
            ", misses {} now and {} then",
            figures::percent(now),
            figures::percent(then)
        ),
        _ => String::new(),
    };
    format!(
        "target {}: {why} ({} accesses/s, {} shares{misses})",
        figures::bytes(target.size_bytes),
        figures::count(target.accesses_per_s),
        target.shares
    )
}

fn used(disk: &CachedDisk, size: &str) -> String {
    let consent = match disk.single_device {
        true => ", write-back on one device allowed",
        false => "",
    };
    match &disk.at_work {
        None if disk.mode == Some(FlashMode::Off) => {
            format!("{}: off, no part of it{consent}", disk.disk)
        }
        None if disk.size_bytes == 0 => {
            format!("{}: no part of it until it is attached{consent}", disk.disk)
        }
        None => {
            let dirty = match disk.has_dirty {
                true => ", may have writes that are only on flash",
                false => "",
            };
            format!(
                "{}: {size}, not attached with it{dirty}{consent}",
                disk.disk
            )
        }
        Some(counts) => format!(
            "{}: {size}, {}{consent}, {} of reads hit, {} dirty{}, {} written",
            disk.disk,
            counts.mode,
            hit_ratio(counts),
            figures::bytes(counts.dirty_bytes),
            dirty_words(counts),
            figures::bytes(counts.flash_written_bytes_total)
        ),
    }
}

/// How much is dirty. Of a disk that is not attached, all of its part may be.
fn dirty(cache: &Answer) -> String {
    let unknown = |disk: &&CachedDisk| disk.at_work.is_none() && disk.has_dirty;
    let unknown: Vec<_> = cache.disks.iter().filter(unknown).collect();
    let most: u64 = unknown.iter().map(|disk| disk.size_bytes).sum();
    let most = figures::bytes(cache.dirty_bytes + most);
    match unknown.is_empty() {
        true => most,
        false => format!("up to {most}"),
    }
}

/// How old the oldest dirty data is, and when it is clean or how much of it cannot be read, in brackets.
pub(crate) fn dirty_words(counts: &CacheCounts) -> String {
    let Some(age) = counts.dirty_age_s else {
        return String::new();
    };
    let mut words = format!(" (for {}", rough(age));
    match (counts.unreadable_pages, counts.time_to_clean_s) {
        (0, Some(left)) => words.push_str(&format!(", clean in {}", rough(left))),
        (0, None) => {}
        (pages, _) => words.push_str(&format!(", {}", unreadable(pages))),
    }
    words + ")"
}

/// The write budget, and how much of it is left.
fn budget_words(budget: u64, cache: &Answer) -> String {
    let words = format!("{} a day on each device", figures::bytes(budget));
    match cache.budget_left_bytes {
        _ if cache.budget_is_spent => {
            format!("{words}, used up: nothing enters the cache, and writes go past it")
        }
        Some(left) => format!("{words}, {} left", figures::bytes(left)),
        None => words,
    }
}

/// Seconds, rounded up.
fn rough(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds.ceil());
    figures::seconds(whole.map_or(0, |whole| whole.as_secs()))
}

impl Shown for Answer {
    fn names(&self) -> Vec<String> {
        vec![self.name.to_string()]
    }

    fn table(&self, _: Detail) -> String {
        let mut pairs = vec![
            ("name", self.name.to_string()),
            ("state", full_state(self)),
            ("devices", devices(self)),
            ("size", figures::bytes(self.size_bytes)),
            ("free", figures::bytes(self.free_bytes)),
            (
                "dirty",
                match self.dirty_age_s {
                    Some(age) => format!("{}, the oldest for {}", dirty(self), rough(age)),
                    None => dirty(self),
                },
            ),
            (
                "written",
                format!(
                    "{}, {} of it journal",
                    figures::bytes(self.flash_written_bytes_total),
                    figures::bytes(self.flash_journal_bytes_total)
                ),
            ),
        ];
        if self.corrupt_blocks_total > 0 {
            let text = format!(
                "{} times a block was not as it was written: a device may be failing",
                self.corrupt_blocks_total
            );
            pairs.push(("corrupt", text));
        }
        if let Some(budget) = self.budget_bytes_per_day {
            pairs.push(("budget", budget_words(budget, self)));
        }
        let disks: Vec<_> = self.disks.iter().map(disk).collect();
        if !disks.is_empty() {
            pairs.push(("disks", disks.join("\n")));
        }
        pairs.push(("uuid", self.uuid.clone()));
        table::pairs(&pairs)
    }
}

impl Shown for CacheList {
    fn names(&self) -> Vec<String> {
        names(&self.caches, |cache| &cache.name)
    }

    fn table(&self, _: Detail) -> String {
        let row = |cache: &Answer| {
            vec![
                cache.name.to_string(),
                figures::bytes(cache.size_bytes),
                figures::bytes(cache.free_bytes),
                dirty(cache),
                cache.disks.len().to_string(),
                match cache.devices.len() {
                    2 => figures::yes_no(true),
                    _ => figures::yes_no(false),
                },
                state(cache),
            ]
        };
        let rows: Vec<_> = self.caches.iter().map(row).collect();
        table::columns(
            &[
                "NAME", "SIZE", "FREE", "DIRTY", "DISKS", "MIRRORED", "STATE",
            ],
            &rows,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_api::problem::{Problem, ProblemCode};

    #[test]
    fn an_endurance_is_read_with_its_unit_or_without() {
        assert_eq!("1dwpd".parse(), Ok(Endurance(1.0)));
        assert_eq!("0.3".parse(), Ok(Endurance(0.3)));
        let refused = "often".parse::<Endurance>().unwrap_err();
        assert!(refused.contains("1dwpd"), "{refused}");
    }

    #[test]
    fn the_age_of_dirty_data_is_shown_with_the_time_until_it_is_clean() {
        let mut counts = CacheCounts::default();
        assert_eq!(dirty_words(&counts), "");
        counts.dirty_age_s = Some(65.2);
        assert_eq!(dirty_words(&counts), " (for 1min 6s)");
        counts.time_to_clean_s = Some(0.5);
        assert_eq!(dirty_words(&counts), " (for 1min 6s, clean in 1s)");
        counts.unreadable_pages = 480;
        assert_eq!(dirty_words(&counts), " (for 1min 6s, 480 pages unreadable)");
    }

    #[test]
    fn a_disk_without_a_part_is_shown_with_the_reason() {
        let mut disk = CachedDisk {
            disk: "db1".parse().unwrap(),
            size_bytes: 0,
            mode: Some(FlashMode::Off),
            single_device: false,
            has_dirty: false,
            target: None,
            at_work: None,
        };
        assert_eq!(used(&disk, "0B"), "db1: off, no part of it");
        disk.mode = Some(FlashMode::WriteBack);
        disk.single_device = true;
        let text = used(&disk, "0B");
        let expected = "db1: no part of it until it is attached, write-back on one device allowed";
        assert_eq!(text, expected);
        disk.at_work = Some(CacheCounts::default());
        let text = used(&disk, "1MiB");
        assert!(text.contains("write-back on one device allowed"), "{text}");
    }

    #[test]
    fn writes_of_a_disk_that_is_not_attached_count_as_dirty() {
        let disk = |has_dirty| CachedDisk {
            disk: "db1".parse().unwrap(),
            size_bytes: 4 << 20,
            mode: Some(FlashMode::WriteBack),
            single_device: false,
            has_dirty,
            target: None,
            at_work: None,
        };
        let cache = |disk| Answer {
            name: "fast".parse().unwrap(),
            uuid: String::new(),
            devices: Vec::new(),
            size_bytes: 8 << 20,
            free_bytes: 4 << 20,
            chunk_bytes: 1 << 20,
            dirty_bytes: 64 << 10,
            unreadable_pages: 0,
            dirty_age_s: None,
            flash_written_bytes_total: 0,
            flash_journal_bytes_total: 0,
            corrupt_blocks_total: 0,
            budget_bytes_per_day: None,
            budget_left_bytes: None,
            budget_is_spent: false,
            disks: vec![disk],
            problem: None,
        };
        assert_eq!(dirty(&cache(disk(false))), "64KiB");
        let mut broken = cache(disk(true));
        assert_eq!(full_state(&broken), "ok");
        broken.unreadable_pages = 1;
        broken.problem = Some(Problem::new(ProblemCode::Corrupt, "lost").remedy("write it again"));
        assert_eq!(state(&broken), "1 page unreadable");
        let full = full_state(&broken);
        assert!(full.starts_with("1 page unreadable\n"), "{full}");
        assert!(full.contains("rite it again"), "{full}");
        assert_eq!(dirty(&cache(disk(true))), "up to 4.06MiB");
        let text = used(&disk(true), "4MiB");
        let expected = "db1: 4MiB, not attached with it, may have writes that are only on flash";
        assert_eq!(text, expected);
        assert_eq!(
            used(&disk(false), "4MiB"),
            "db1: 4MiB, not attached with it"
        );
    }

    #[test]
    fn a_disk_without_reads_has_no_hit_ratio() {
        let mut counts = CacheCounts::default();
        assert_eq!(hit_ratio(&counts), figures::dash());
        (counts.hits_total, counts.misses_total) = (7, 1);
        assert_eq!(hit_ratio(&counts), "87.5%");
    }
}
