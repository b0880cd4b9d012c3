//! What the system lets this process have: open files, above all. Raised as far as may be, and told when it is used up.
//!
//! Every problem that is made of a system's error asks here first ([`remedy`]); who would take many descriptors asks
//! before ([`must_have_room`]).
//!
//! # Always true
//! - Guests, clients and attached disks leave some descriptors to orders: one can always ask the daemon why it refuses.

use std::error::Error;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidegate_api::problem::{Problem, ProblemCode};

use crate::trouble::{self, Outcome};

/// Descriptors that are left to orders: some requests at a time, each with the files that it reads.
const RESERVE: u64 = 24;

/// Asks for as many descriptors as may be had: a login's 1024 are too few for some hundreds of disks, at three or more
/// for each. The small number is for programs that call `select`.
pub(crate) fn raise_descriptors() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let most = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, most) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

/// Fails while no descriptors are left but those for orders; `what` is then what cannot be done.
pub(crate) fn must_have_room(what: &str) -> Outcome<()> {
    // The system gives the lowest number that is free: all below it are in use.
    let probe = File::open("/").map_err(|e| trouble::io(what, &e))?;
    let used = u64::try_from(probe.as_raw_fd()).unwrap_or(0);
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if used.saturating_add(RESERVE) < limit {
        return Ok(());
    }
    let problem = Problem::new(ProblemCode::Exhausted, what).because(format!(
        "{used} files are open, and the last ones are kept for orders"
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

/// What to do about an error that says that something of the system's is used up; none: it says something else.
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

/// The system's own error at the end of a chain, if one is there.
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
    fn there_is_room_while_few_files_are_open() {
        raise_descriptors();
        must_have_room("cannot do anything").unwrap();
    }

    #[test]
    fn other_errors_are_left_to_others() {
        assert_eq!(remedy(&io::Error::from(Errno::NOENT)), None);
        assert_eq!(remedy(&io::Error::other("not a number")), None);
    }
}
