//! System errors as [`Problem`]s: code, causes and remedy.

use std::io;

use tidegate_api::descriptor::OutOfRange;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_engine::datastore::condition::Harm;

pub(crate) mod limits;

/// The result of everything in the daemon that can fail.
pub(crate) type Outcome<T> = Result<T, Problem>;

/// Describes harm to an image and its consequence, each as half of a sentence.
pub(crate) fn harm(harm: Harm) -> (&'static str, &'static str) {
    match harm {
        Harm::FlushesFail => ("its flushes fail", "data written to it may not be durable"),
        Harm::Cut => (
            "it is read-only now",
            "another program shortened its image; the remaining part can be read",
        ),
        Harm::Torn => (
            "it rejects all I/O now",
            "another program shortened its image while it was written; data may be missing",
        ),
    }
}

/// A problem whose cause is an I/O error. The error's kind determines its code and, where useful, its remedy.
pub(crate) fn io(what: impl Into<String>, error: &io::Error) -> Problem {
    if let Some(remedy) = limits::remedy(error) {
        return Problem::new(ProblemCode::Exhausted, what)
            .because_of(error)
            .remedy(remedy);
    }
    Problem::new(code(error.kind()), what)
        .because_of(error)
        .remedy(remedy(error.kind()))
}

/// The problem code of an I/O error's kind.
fn code(kind: io::ErrorKind) -> ProblemCode {
    match kind {
        io::ErrorKind::NotFound => ProblemCode::NotFound,
        io::ErrorKind::AlreadyExists => ProblemCode::Exists,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ProblemCode::Full,
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename => ProblemCode::Invalid,
        _ => ProblemCode::Datastore,
    }
}

/// The remedy for a system error of which only the kind is known.
pub(crate) fn remedy(kind: io::ErrorKind) -> String {
    let remedy = match kind {
        io::ErrorKind::NotFound => {
            "correct the path, or create what is missing: `namei -l PATH` shows the missing part"
        }
        io::ErrorKind::AlreadyExists => "choose another name, or move the existing file away",
        io::ErrorKind::StorageFull => "free some space on its file system (see `df`)",
        io::ErrorKind::QuotaExceeded => {
            "free some space, or raise the quota of the daemon's user (see `quota`)"
        }
        io::ErrorKind::PermissionDenied => return permit(),
        io::ErrorKind::ReadOnlyFilesystem => {
            "mount its file system writable: mount -o remount,rw MOUNTPOINT"
        }
        io::ErrorKind::NotADirectory => {
            "name a path below a directory: a part of this one is a file"
        }
        io::ErrorKind::IsADirectory => "name a file: this is a directory",
        io::ErrorKind::InvalidFilename => {
            "use a shorter name: most file systems take 255 bytes, and 4095 for the whole path"
        }
        io::ErrorKind::InvalidInput => {
            "put the plain file or directory itself there: a symbolic link is not followed"
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => {
            "get the file again from its source, or restore a copy: it is truncated or damaged"
        }
        io::ErrorKind::FileTooLarge => {
            "use another file system: this one cannot hold a file of that size"
        }
        io::ErrorKind::Unsupported => "use another file system: this one cannot do that",
        io::ErrorKind::ConnectionRefused => {
            "start the server that should listen there, or correct the address"
        }
        io::ErrorKind::TimedOut | io::ErrorKind::StaleNetworkFileHandle => {
            "check whether its file server responds, then try again"
        }
        io::ErrorKind::ResourceBusy | io::ErrorKind::WouldBlock => {
            "end the programs that use it (see `lsof` or `lsblk`), then try again"
        }
        io::ErrorKind::AddrInUse => {
            "end the program that listens there (see `ss -lp`), or choose another address"
        }
        io::ErrorKind::AddrNotAvailable => "choose an address of this host (see `ip address`)",
        _ => "see the kernel's log (dmesg) for errors of its device or file server",
    };
    remedy.to_owned()
}

/// The remedy for a missing permission of this process.
pub(crate) fn permit() -> String {
    format!(
        "let user {} do that, who the daemon runs as (see `namei -l` for each directory of the path), or run it as another",
        rustix::process::geteuid().as_raw()
    )
}

/// A problem caused by an invalid request.
pub(crate) fn invalid(what: impl Into<String>) -> Problem {
    Problem::new(ProblemCode::Invalid, what)
}

/// A problem of a value that is out of range for a disk.
pub(crate) fn out_of_range(what: impl Into<String>, error: &OutOfRange) -> Problem {
    invalid(what).because_of(error).remedy(&error.remedy)
}

/// Runs blocking work on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Outcome<T> + Send + 'static,
) -> Outcome<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => Err(failed(&error)),
    }
}

/// A problem caused by a failure of the daemon itself.
pub(crate) fn failed(error: &dyn std::error::Error) -> Problem {
    Problem::new(ProblemCode::Internal, "the daemon failed while it did this")
        .because(error)
        .remedy("see its log, and report this as a bug")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Sources without commands on disks or datastores: the daemon's own start and end, and browsers.
    const OTHERS: [&str; 4] = ["serve.rs", "one.rs", "tls.rs", "dashboard"];

    #[test]
    fn an_error_of_the_system_comes_with_what_to_do_whatever_its_kind() {
        use io::ErrorKind::*;
        for kind in [
            NotFound,
            AlreadyExists,
            InvalidInput,
            PermissionDenied,
            StorageFull,
            QuotaExceeded,
            ReadOnlyFilesystem,
            NotADirectory,
            IsADirectory,
            FileTooLarge,
            Unsupported,
            TimedOut,
            ResourceBusy,
            Other,
        ] {
            let problem = io("cannot do it", &io::Error::from(kind));
            let told = problem.remedy.unwrap_or_default();
            assert!(told.len() > 10, "{kind:?}: {told}");
        }
    }

    /// Each place in the source that creates a problem states its remedy before the next problem is created.
    #[test]
    fn no_problem_of_a_disk_or_datastore_is_made_without_a_remedy() {
        let mut made = 0;
        let mut without = Vec::new();
        each_source(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
            &mut |file, text| {
                let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text);
                let makers = ["Problem::new(", "Problem::of(", "os_error::invalid("];
                let mut places: Vec<usize> = makers
                    .iter()
                    .flat_map(|maker| text.match_indices(maker).map(|(at, _)| at))
                    .collect();
                places.sort_unstable();
                made += places.len();
                places.push(text.len());
                for pair in places.windows(2) {
                    if !text[pair[0]..pair[1]].contains(".remedy(") {
                        let line = text[..pair[0]].lines().count();
                        without.push(format!("{}:{line}", file.display()));
                    }
                }
            },
        );
        assert!(made > 100, "only {made} were found");
        assert!(without.is_empty(), "no remedy: {without:?}");
    }

    fn each_source(folder: &Path, look: &mut dyn FnMut(&Path, &str)) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if OTHERS.contains(&name) || name.starts_with("tests") || name == "os_error.rs" {
                continue;
            }
            match path.is_dir() {
                true => each_source(&path, look),
                false => look(&path, &fs::read_to_string(&path).unwrap()),
            }
        }
    }
}
