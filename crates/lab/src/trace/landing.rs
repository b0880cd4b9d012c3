//! The file of a recording: the daemon writes it, and the user owns it.
//!
//! The daemon may be another user: the superuser, under systemd. So the file is made here first, with its owner, in a
//! directory of its own beside the place where it is to lie, and the daemon appends to it. A directory of its own, because
//! the kernel does not let any user, the superuser included, open other users' files in /tmp for writing if that may create
//! them (`fs.protected_regular`); and because a file is to have its name only once it is whole. A daemon that is neither
//! the superuser nor the same user is let in by the group of its socket, which is the group by which it lets us in.
//!
//! # Always true
//! - The place is removed only when the daemon has let go of the file: a disk whose trace filter has lost its file cannot be
//!   attached again.
//!
//! # Picture
//! ```text
//!   DIR/.NAME.PID/trace   made by us, opened by the daemon ... closed by the daemon   ──rename──>  DIR/NAME
//! ```
//! # Source
//! inotify(7): who opened a file and has closed it again is reported, so the end of the last write is known.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tidegate_core::filter::trace::format::{HEADER, Header, Record, TracedDisk};
use tidegate_core::units::Time;
use tidegate_sim::trace::Scan;

use super::{Figures, Sum};

/// Who is to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    /// The daemon's user, where it is known.
    pub user: Option<u32>,
    /// The group of the socket where it listens.
    pub group: u32,
}

/// A place that is ready.
#[derive(Debug)]
pub struct Landing {
    goal: PathBuf,
    dir: PathBuf,
    file: PathBuf,
    /// What the file is to look like when it is whole.
    mode: u32,
    group: u32,
    watch: Inotify,
    opened: u64,
    closed: u64,
}

/// What has landed.
#[derive(Clone, Debug, PartialEq)]
pub struct Landed {
    /// What it holds.
    pub figures: Figures,
    /// I/Os that the filter could not record.
    pub lost: u64,
    /// Bytes at its end that were no whole block, and were cut off.
    pub cut_off: u64,
    /// Its size.
    pub bytes: u64,
}

impl Landing {
    /// Makes a place from which a file will go to `goal`.
    ///
    /// # Errors
    /// It cannot be made there, or the daemon could not write there.
    pub fn new(goal: &Path, writer: Writer) -> Result<Landing> {
        let goal = std::path::absolute(goal).context("the file's path makes no sense")?;
        let Some(name) = goal.file_name().and_then(|name| name.to_str()) else {
            bail!("the path names no file that a trace filter can write to");
        };
        let dir = goal.with_file_name(format!(".{name}.{}", std::process::id()));
        // As the filter's words have it: a comma would begin another option.
        if dir.to_str().is_none_or(|dir| dir.contains(',')) {
            bail!("a trace filter can write to no path with a comma in it, or that is no UTF-8");
        }
        let mut builder = fs::DirBuilder::new();
        builder
            .mode(0o700)
            .create(&dir)
            .with_context(|| format!("cannot make a directory in {}", parent(&goal)))?;
        let landing = Landing::in_place(goal, dir.clone(), writer);
        if landing.is_err() {
            // What could not be made ready holds nothing that anybody wants.
            let _gone = fs::remove_dir_all(&dir);
        }
        landing
    }

    fn in_place(goal: PathBuf, dir: PathBuf, writer: Writer) -> Result<Landing> {
        let file = dir.join("trace");
        let made = File::create_new(&file)
            .and_then(|mut made| {
                // The daemon appends to traces only. It puts its disk's name into one that is blank.
                made.write_all(&blank())?;
                made.metadata()
            })
            .with_context(|| format!("cannot make {}", file.display()))?;
        let (mode, group, own) = (made.mode() & 0o777, made.gid(), made.uid());
        // A daemon whose user is not known is asked all the same, and reports itself what it cannot do.
        if writer.user.is_some_and(|user| user != 0 && user != own) {
            let let_in = |path: &Path, mode: u32| {
                chown(path, None, Some(writer.group))?;
                fs::set_permissions(path, fs::Permissions::from_mode(mode))
            };
            // To read too: the daemon looks at a file's head before it appends.
            let_in(&file, mode | 0o060)
                .and_then(|()| let_in(&dir, 0o710))
                .with_context(|| {
                    format!(
                        "the daemon is another user ({}) and can be let in by the group of its socket ({}) only",
                        writer.user.unwrap_or(0),
                        writer.group
                    )
                })?;
        }
        let watch = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)
            .context("cannot watch files")?;
        let what = AddWatchFlags::IN_OPEN | AddWatchFlags::IN_CLOSE;
        watch
            .add_watch(&file, what)
            .with_context(|| format!("cannot watch {}", file.display()))?;
        Ok(Landing {
            goal,
            dir,
            file,
            mode,
            group,
            watch,
            opened: 0,
            closed: 0,
        })
    }

    /// What the daemon is to write to.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// How much there is by now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        fs::metadata(&self.file).map_or(0, |there| there.len())
    }

    /// Waits until the daemon has closed the file, which it does when the last record is in it. Whether it has.
    ///
    /// # Errors
    /// The file cannot be watched.
    pub fn is_let_go(&mut self, patience: Duration) -> Result<bool> {
        let deadline = Instant::now() + patience;
        loop {
            self.heed()?;
            if self.opened > 0 && self.closed >= self.opened {
                return Ok(true);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let mut fds = [PollFd::new(self.watch.as_fd(), PollFlags::POLLIN)];
            let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut fds, left) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error).context("cannot wait for the daemon"),
            }
        }
    }

    /// Takes notice of who has opened and closed the file.
    ///
    /// # Errors
    /// The file cannot be watched.
    pub fn heed(&mut self) -> Result<()> {
        loop {
            match self.watch.read_events() {
                Ok(events) => {
                    for event in events {
                        let is = |flag| u64::from(event.mask.intersects(flag));
                        self.opened += is(AddWatchFlags::IN_OPEN);
                        self.closed += is(AddWatchFlags::IN_CLOSE);
                    }
                }
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error).context("cannot watch the daemon's writing"),
            }
        }
    }

    /// Looks at what there is and gives it its name. None where there is nothing: then nothing is left.
    ///
    /// # Errors
    /// It cannot be read, or cannot have its name: it stays where it is.
    pub fn land(self) -> Result<Option<Landed>> {
        let landed = self.look()?;
        let Some(landed) = landed else {
            self.abandon();
            return Ok(None);
        };
        let named = chown(&self.file, None, Some(self.group))
            .and_then(|()| fs::set_permissions(&self.file, fs::Permissions::from_mode(self.mode)))
            .and_then(|()| fs::rename(&self.file, &self.goal));
        named.with_context(|| {
            format!(
                "what was recorded stays in {}: it cannot become {}",
                self.file.display(),
                self.goal.display()
            )
        })?;
        self.abandon();
        Ok(Some(landed))
    }

    fn look(&self) -> Result<Option<Landed>> {
        let unread = || format!("cannot read {}", self.file.display());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&self.file)
            .with_context(unread)?;
        let mut sum = Sum::default();
        let (mut begins, mut ends) = (Time::NEVER, Time::ZERO);
        let mut count = |record: &Record| {
            begins = begins.min(record.arrived);
            ends = ends.max(record.arrived + record.latency);
            sum.add(record.op, record.len, record.latency);
        };
        let scan = Scan::of(&mut BufReader::with_capacity(1 << 20, &file), &mut count);
        let scan = scan.with_context(unread)?;
        let written = file.metadata().with_context(unread)?.len();
        if scan.broken.is_some() {
            // A file system that is full takes a part of a block.
            file.set_len(scan.whole)
                .with_context(|| format!("cannot cut {} off", self.file.display()))?;
        }
        let figures = sum.over(ends.since(begins));
        Ok((figures.ios > 0).then_some(Landed {
            figures,
            lost: scan.lost,
            cut_off: written - scan.whole,
            bytes: scan.whole,
        }))
    }

    /// Removes the place and what is in it. The daemon must have let go, or never have taken hold.
    pub fn abandon(&self) {
        // It is a leftover of ours at worst, and hidden.
        let _gone = fs::remove_dir_all(&self.dir);
    }
}

/// The header of a trace of no disk, without records.
fn blank() -> [u8; HEADER] {
    let header = Header {
        disk: TracedDisk::default(),
        records: 0,
        dropped: 0,
    };
    header.encode()
}

fn parent(path: &Path) -> String {
    path.parent().unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::request::{Flags, Op};
    use tidegate_core::units::Span;
    use tidegate_sim::trace::Trace;

    const OWN: Writer = Writer {
        user: None,
        group: 0,
    };

    fn block() -> Vec<u8> {
        let header = Header {
            disk: TracedDisk::default(),
            records: 1,
            dropped: 2,
        };
        let record = Record {
            arrived: Time::ZERO,
            op: Op::Read,
            flags: Flags::NONE,
            offset: 0,
            len: 512,
            latency: Span::from_micros(80),
            outcome: Ok(()),
            sequence: 0,
        };
        [&header.encode()[..], &record.encode()[..]].concat()
    }

    fn append(landing: &Landing) -> File {
        let file = OpenOptions::new().append(true).open(landing.file());
        file.expect("it is there")
    }

    #[test]
    fn it_has_its_name_once_the_writer_has_closed_it_and_nothing_else_is_left() {
        let place = tempfile::tempdir().expect("a scratch directory");
        let goal = place.path().join("a.trace");
        let mut landing = Landing::new(&goal, OWN).expect("it can be made");
        let mut writer = append(&landing);
        writer.write_all(&block()).expect("it can be written");
        assert!(
            !landing
                .is_let_go(Duration::ZERO)
                .expect("it can be watched")
        );
        drop(writer);
        assert!(
            landing
                .is_let_go(Duration::ZERO)
                .expect("it can be watched")
        );
        let landed = landing.land().expect("it lands").expect("there is one");
        assert_eq!((landed.figures.ios, landed.lost, landed.cut_off), (1, 2, 0));
        let left = fs::read_dir(place.path()).expect("it is there");
        assert_eq!(left.count(), 1, "the file alone");
        let expected = [&blank()[..], &block()].concat();
        assert_eq!(fs::read(&goal).expect("it is there"), expected);
    }

    #[test]
    fn half_a_block_is_cut_off_and_reported() {
        let place = tempfile::tempdir().expect("a scratch directory");
        let goal = place.path().join("a.trace");
        let landing = Landing::new(&goal, OWN).expect("it can be made");
        let written = [&block()[..], &block()[..70]].concat();
        append(&landing)
            .write_all(&written)
            .expect("it can be written");
        let landed = landing.land().expect("it lands").expect("there is one");
        assert_eq!((landed.figures.ios, landed.cut_off), (1, 70));
        Trace::open(&goal).expect("what is left is a whole trace");
    }

    #[test]
    fn of_nothing_nothing_is_left() {
        let place = tempfile::tempdir().expect("a scratch directory");
        let landing = Landing::new(&place.path().join("a.trace"), OWN).expect("it can be made");
        assert_eq!(landing.land().expect("it can be read"), None);
        let left = fs::read_dir(place.path()).expect("it is there");
        assert_eq!(left.count(), 0);
    }

    #[test]
    fn a_path_that_no_filter_can_be_told_is_refused() {
        let place = tempfile::tempdir().expect("a scratch directory");
        for name in ["a,b.trace", ".."] {
            Landing::new(&place.path().join(name), OWN).expect_err(name);
        }
        let left = fs::read_dir(place.path()).expect("it is there");
        assert_eq!(left.count(), 0);
    }
}
