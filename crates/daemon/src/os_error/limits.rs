//! The limits of this process on open files and locked memory: raised as far as possible, and reported when exhausted.
//!
//! Every problem made from a system error is checked here first ([`remedy`]). Code that needs many descriptors checks
//! for room before it starts ([`must_have_room`]).
//!
//! # Always true
//! - Guests, clients and attached disks leave some descriptors for commands, so the daemon can always report why it
//!   refuses.

use std::error::Error;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};
use tidegate_api::problem::{Problem, ProblemCode};

use crate::os_error::{self, Outcome};

/// Descriptors reserved for commands: some requests at a time, each with the files that it reads.
const RESERVE: u64 = 24;

/// Multiple of each ring's own need that is demanded as locked memory. When a daemon restarts, the kernel may still
/// count its predecessor's memory.
const LOCKED_TIMES: u64 = 2;

/// Raises the limits of descriptors and locked memory to their maximum. The default of 1024 descriptors is too low for
/// some hundred disks, which need three or more each. It is low only for programs that call `select`.
pub(crate) fn raise_all() {
    raise_to_maximum(Resource::Nofile, "the limit of open files stays as it is");
    raise_to_maximum(
        Resource::Memlock,
        "the limit of locked memory stays as it is",
    );
}

fn raise_to_maximum(resource: Resource, otherwise: &str) {
    let maximum = getrlimit(resource).maximum;
    let most = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(error) = setrlimit(resource, most) {
        tracing::warn!(%error, "{otherwise}");
    }
}

/// Clears write permission of the group and others on all files that this process creates, and never restricts its own
/// user. A stricter umask still restricts reading.
pub(crate) fn mask_modes() {
    let before = umask(Mode::empty());
    umask((before & (Mode::RWXG | Mode::RWXO)) | Mode::WGRP | Mode::WOTH);
}

/// The remedy when the kernel has no memory for the I/O threads' rings, if RLIMIT_MEMLOCK is the cause.
pub(crate) fn locked_memory(error: &(dyn Error + 'static), threads: usize) -> Option<String> {
    let number = first_cause(error)?.raw_os_error()?;
    let limit = getrlimit(Resource::Memlock).current?;
    let enough = enough_locked(threads);
    (Errno::from_raw_os_error(number) == Errno::NOMEM && limit < enough)
        .then(|| raise_locked(limit, enough, threads))
}

/// Bytes of locked memory that this number of I/O threads needs to start.
fn enough_locked(threads: usize) -> u64 {
    let threads = u64::try_from(threads).unwrap_or(u64::MAX);
    tidegate_engine::RING_LOCKED
        .saturating_mul(LOCKED_TIMES)
        .saturating_mul(threads)
}

fn raise_locked(limit: u64, enough: u64, threads: usize) -> String {
    let [limit, enough] = [limit, enough].map(|bytes| bytes.div_ceil(1024));
    let whose = match threads {
        1 => "1 I/O thread".to_owned(),
        more => format!("{more} I/O threads"),
    };
    format!(
        "raise the limit of locked memory (RLIMIT_MEMLOCK) from {limit} KiB to {enough} KiB, which is enough for \
         {whose}: LimitMEMLOCK={enough}K in the daemon's systemd unit (systemctl edit tidegate), or `ulimit -l \
         {enough}` in the shell that starts it; other programs of the same user count too"
    )
}

/// Fails while only the reserved descriptors are left; `what` is the failed action.
pub(crate) fn must_have_room(what: &str) -> Outcome<()> {
    // The system returns the lowest free number, so all below it are in use.
    let probe = File::open("/").map_err(|e| os_error::io(what, &e))?;
    let used = u64::try_from(probe.as_raw_fd()).unwrap_or(0);
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if used.saturating_add(RESERVE) < limit {
        return Ok(());
    }
    let problem = Problem::new(ProblemCode::Exhausted, what).because(format!(
        "{used} files are open, and the last ones are reserved for requests"
    ));
    Err(problem.remedy(raise()))
}

fn raise() -> String {
    let limit = match getrlimit(Resource::Nofile).current {
        Some(limit) => format!("which is {limit}"),
        None => "which is the system's own (fs.nr_open)".to_owned(),
    };
    format!(
        "raise the daemon's limit of open files, {limit}: LimitNOFILE= in its systemd unit (systemctl edit tidegate), \
         or `ulimit -n` in the shell that starts it"
    )
}

/// The remedy for an error that reports an exhausted resource; `None` for other errors.
pub(crate) fn remedy(error: &(dyn Error + 'static)) -> Option<String> {
    let number = first_cause(error)?.raw_os_error()?;
    match Errno::from_raw_os_error(number) {
        Errno::MFILE => Some(raise()),
        Errno::NFILE => Some(
            "raise the host's limit of open files (sysctl fs.file-max), or close some".to_owned(),
        ),
        Errno::NOMEM => Some("free some memory on this host".to_owned()),
        _ => None,
    }
}

/// The system error at the end of a chain, if there is one.
fn first_cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a io::Error> {
    let mut found = None;
    let mut next = Some(error);
    while let Some(error) = next {
        found = error.downcast_ref::<io::Error>().or(found);
        next = error.source();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_out_of_descriptors_says_which_limit_and_how_to_raise_it() {
        let error = io::Error::from(Errno::MFILE);
        let remedy = remedy(&error).unwrap();
        assert!(
            remedy.contains("LimitNOFILE=") && remedy.contains("ulimit -n"),
            "{remedy}"
        );
        let limit = getrlimit(Resource::Nofile).current.unwrap().to_string();
        assert!(remedy.contains(&limit), "{remedy}");
    }

    #[test]
    fn too_little_locked_memory_names_the_limit_and_a_value_that_is_enough() {
        let told = raise_locked(64 << 10, enough_locked(2), 2);
        assert!(
            told.contains("RLIMIT_MEMLOCK") && told.contains("from 64 KiB to 656 KiB"),
            "{told}"
        );
        assert!(
            told.contains("ulimit -l 656") && told.contains("LimitMEMLOCK=656K"),
            "{told}"
        );
        let other = io::Error::from(Errno::PERM);
        assert_eq!(locked_memory(&other, usize::MAX), None);
    }

    #[test]
    fn there_is_room_while_few_files_are_open() {
        raise_all();
        must_have_room("cannot do anything").unwrap();
    }

    #[test]
    fn other_errors_are_left_to_others() {
        assert_eq!(remedy(&io::Error::from(Errno::NOENT)), None);
        assert_eq!(remedy(&io::Error::other("not a number")), None);
    }
}
