//! Opens a pool's members: locks and leases them, reads their superblocks, and refuses what is not this pool.
//!
//! # Always true
//! - a member's catalog is read and written only under the member's lock and lease
//! - what was read before the leases were taken is read again
//!
//! # Picture
//! ```text
//!   lock paths ── superblocks: is it this pool? ── leases ── superblocks again ── catalog
//! ```

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::pool::LEASE_AT;
use tidegate_core::pool::members::{Found, Refusal, Standing, Why, judge, judge_without};
use tidegate_engine::datastore::dir::SharedFile;
use tidegate_engine::lease::{Guard, Lease, Leases, Refused, Takeover};

use super::member_set::superblocks;
use super::record::Record;
use super::store::{MemberFile, Store};
use super::uses::InUse;
use crate::caches::devices::lock;
use crate::host::{self, Opened};
use crate::os_error::Outcome;

/// A member that is locked.
pub(super) struct Locked {
    pub(super) path: PathBuf,
    pub(super) file: Arc<SharedFile>,
}

/// A member that is locked and leased. The lease is released after the file is closed.
pub(super) struct Held {
    pub(super) path: PathBuf,
    pub(super) file: Arc<SharedFile>,
    /// Released once the pool and all images of disks are closed.
    lease: Arc<Lease>,
}

impl Held {
    /// Its bytes, which are written only while the lease is held.
    pub(super) fn store(&self) -> Arc<dyn Store> {
        Arc::new(MemberFile {
            file: Arc::clone(&self.file),
            lease: self.lease.watch(),
        })
    }

    /// An image of it for one disk.
    pub(super) fn image(&self, in_use: InUse) -> Outcome<Opened> {
        let held = (Arc::clone(&self.lease), in_use);
        host::open_shared(&self.file, self.lease.watch(), held)
    }
}

/// The members of a pool that are there, by path of its record, and what may be done with them.
pub(super) struct OpenedPool {
    pub(super) standing: Standing,
    pub(super) held: Vec<Option<Held>>,
}

/// Opens the members of a pool that exists. Waits so long for a daemon before this one whose operations have not ended.
pub(super) fn open(
    name: &Name,
    record: &Record,
    leases: &Leases,
    patience: Duration,
    given_up: &[u16],
) -> Outcome<OpenedPool> {
    let mut locked = Vec::new();
    let mut away = Vec::new();
    for path in &record.members {
        match lock(path, patience) {
            Ok(file) => locked.push(Some(Locked {
                path: path.clone(),
                file: Arc::new(file),
            })),
            Err(problem) if problem.code == ProblemCode::Busy => {
                let what = format!("pool {name} is in use");
                return Err(Problem::new(ProblemCode::Locked, what)
                    .because_problem(&problem)
                    .remedy("stop the daemon or the program that uses it; see `lsof` or `lsblk`"));
            }
            Err(problem) => {
                away.push(problem);
                locked.push(None);
            }
        }
    }
    let judged = |found: &[Found]| {
        judge_without(record.uuid.0, found, given_up)
            .map_err(|refusal| refused(name, record, refusal, &away))
    };
    let before = judged(&found(locked.iter().map(Option::as_ref)))?;
    let number_of = |path: usize| {
        let mut seats = (0..).zip(&before.members);
        let seat = seats.find(|(_, seat)| seat.path == Some(path));
        seat.map(|(number, _)| number)
    };
    let locked = locked.into_iter().enumerate();
    let ours = locked.map(|(path, one)| number_of(path).zip(one));
    let held = take(name, record.uuid.0, ours.collect(), leases)?;
    // Another host may have changed them before it gave its leases up.
    let again = held.iter().map(|one| {
        one.as_ref().and_then(|one| {
            let store = MemberFile {
                file: Arc::clone(&one.file),
                lease: None,
            };
            superblocks(&store).ok()
        })
    });
    let mut standing = judged(&again.collect::<Vec<_>>())?;
    standing.unused = before.unused;
    Ok(OpenedPool { standing, held })
}

/// The members that are held already, by path of the record, and what may be done with them now.
pub(super) fn look_again(
    name: &Name,
    record: &Record,
    held: &[Option<&Held>],
) -> Outcome<Standing> {
    let found: Vec<Found> = held
        .iter()
        .map(|one| one.and_then(|one| superblocks(&*one.store()).ok()))
        .collect();
    judge(record.uuid.0, &found).map_err(|refusal| refused(name, record, refusal, &[]))
}

/// The superblocks at each path.
pub(super) fn found<'a>(members: impl Iterator<Item = Option<&'a Locked>>) -> Vec<Found> {
    let read = |one: &Locked| {
        let store = MemberFile {
            file: Arc::clone(&one.file),
            lease: None,
        };
        superblocks(&store).ok()
    };
    members.map(|one| one.and_then(read)).collect()
}

/// Takes the leases of members, which come with their numbers, all at once.
pub(super) fn take(
    pool: &Name,
    uuid: [u8; 16],
    members: Vec<Option<(u16, Locked)>>,
    leases: &Leases,
) -> Outcome<Vec<Option<Held>>> {
    let one = &|(number, member): (u16, Locked)| -> Outcome<Held> {
        let problem = |refused: Refused| not_leased(pool, &member.path, &refused);
        let place = member
            .file
            .lease_at(LEASE_AT)
            .map_err(|e| host::problem(&e))?;
        let lease = leases
            .take_on(
                place,
                lease_id(uuid, number),
                &format!("pool {pool}"),
                guard(&member.path),
                Takeover::Guarded,
            )
            .map_err(problem)?;
        Ok(Held {
            path: member.path,
            file: member.file,
            lease: Arc::new(lease),
        })
    };
    std::thread::scope(|scope| {
        let taking: Vec<_> = members
            .into_iter()
            .map(|member| member.map(|member| scope.spawn(move || one(member))))
            .collect();
        let mut held = Vec::new();
        for thread in taking {
            held.push(match thread {
                None => None,
                Some(thread) => Some(thread.join().unwrap_or_else(|_| {
                    Err(Problem::new(
                        ProblemCode::Internal,
                        "a thread that takes a lease has failed",
                    )
                    .remedy("try again; the daemon's log says why it failed"))
                })?),
            });
        }
        Ok(held)
    })
}

/// The identity of a member's lease: the same on each host.
fn lease_id(mut uuid: [u8; 16], member: u16) -> [u8; 16] {
    let [high, low] = member.to_be_bytes();
    uuid[14] ^= high;
    uuid[15] ^= low;
    uuid
}

/// What keeps others from a member: other hosts may reach a block device.
fn guard(path: &Path) -> Guard {
    let is_device = std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device());
    match is_device {
        true => Guard::Lease,
        false => Guard::of(path.parent().unwrap_or(path), path),
    }
}

fn not_leased(pool: &Name, path: &Path, refused: &Refused) -> Problem {
    let locked = |by: &dyn std::fmt::Display| {
        Problem::new(
            ProblemCode::Locked,
            format!("pool {pool} is open on host {by}"),
        )
    };
    match refused {
        Refused::Live(by) => locked(by)
            .because("that host runs: it has just renewed its lease of the pool")
            .remedy("a pool belongs to one host at a time: stop the daemon there first"),
        Refused::Silent(by) => locked(by)
            .because("that host stopped renewing its lease, and nothing would stop its writes if it still runs")
            .remedy(format!(
                "start the daemon there and stop it again; if that host will not return, and is off, overwrite the lease: \
                 dd if=/dev/zero of={} bs=4096 seek={} count=1 conv=notrunc",
                path.display(),
                LEASE_AT / 4096
            )),
        Refused::Unseen(by, _) => locked(by)
            .because("that host uses a lock that is not visible on this host")
            .remedy("stop the daemon there first"),
        Refused::Trouble(error) => host::problem(error),
    }
}

/// Why a pool cannot be opened.
fn refused(name: &Name, record: &Record, refusal: Refusal, away: &[Problem]) -> Problem {
    let path = refusal.path.and_then(|path| record.members.get(path));
    let path = path.map_or_else(|| "a member".to_owned(), |path| path.display().to_string());
    let (code, why, remedy) = match refusal.why {
        Why::NoPool => (
            ProblemCode::Corrupt,
            "none of its members has a superblock".to_owned(),
            "put the right devices at the paths of its record".to_owned(),
        ),
        Why::Foreign => (
            ProblemCode::Corrupt,
            format!("{path} was overwritten by another program"),
            "put the right device there".to_owned(),
        ),
        Why::Damaged => (
            ProblemCode::Corrupt,
            format!("both superblocks of {path} are damaged"),
            "put the right device there".to_owned(),
        ),
        Why::Newer(version) => (
            ProblemCode::Unsupported,
            format!("a newer version of Tidegate wrote {path} (format {version})"),
            "use that version".to_owned(),
        ),
        Why::OtherPool(_) => (
            ProblemCode::Corrupt,
            format!("{path} is a member of another pool"),
            "put the right device there".to_owned(),
        ),
        Why::Twice(member) => (
            ProblemCode::Corrupt,
            format!("two paths lead to its member {member}, or one is a copy of the other"),
            "disconnect the copy".to_owned(),
        ),
        Why::Missing(member) => (
            ProblemCode::NotFound,
            format!("its member {member} is not there, and may have the newest catalog"),
            format!(
                "put the device back at its path, which is in the pool's record; if it is lost for good: tidegate pool give-up {name} \
                 {member}"
            ),
        ),
        Why::Contradiction => (
            ProblemCode::Corrupt,
            format!("{path} contradicts another member about the pool"),
            "disconnect the member that was changed without the others".to_owned(),
        ),
        Why::NoneCurrent => (
            ProblemCode::Corrupt,
            "none of its members has a current catalog".to_owned(),
            "put the missing devices back at their paths".to_owned(),
        ),
    };
    let mut problem = Problem::new(code, format!("cannot open pool {name}")).because(why);
    if let (Why::Missing(_) | Why::NoPool, Some(away)) = (refusal.why, away.first()) {
        problem = problem.because(&away.what);
    }
    problem.remedy(remedy)
}
