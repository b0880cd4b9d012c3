//! The first run: creates a datastore and a disk, and prints how to connect to it, so that there is something to see.
//!
//! # Always true
//! - It runs until it has succeeded once or the user has a datastore. If a start fails, the next start tries again.
//! - If the user removes what it created, it is not created again.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use tidegate_api::datastore::{DatastoreSettings, IoMode};
use tidegate_api::disk::{DiskAttach, DiskCreate, SnippetFor};
use tidegate_api::name::Name;
use tidegate_api::problem::Problem;

use crate::config::root::Root;
use crate::disks::disk_service::DiskService;
use crate::os_error::{self, Outcome};
use crate::store::Store;

const DATASTORE: &str = "local";
const DISK: &str = "disk0";

/// Large enough to install something on. The disk is thin, so it costs no space.
const SIZE: u64 = 1 << 30;

/// Whether nothing was ever served from this root.
pub(crate) fn is_due(root: &Root, store: &Store) -> Outcome<bool> {
    // The file is written when the first disk is attached, and never removed: an empty list stays on disk.
    let served = root.state().join("attached.toml").exists();
    Ok(!served && store.datastores()?.is_empty() && is_bare(&root.local_datastore()))
}

/// Whether a folder can contain no disks: it does not exist, or has only the files by which hosts coordinate.
fn is_bare(folder: &Path) -> bool {
    match fs::read_dir(folder) {
        Ok(mut entries) => entries.all(|entry| {
            entry.is_ok_and(|entry| entry.file_name().as_encoded_bytes().starts_with(b"."))
        }),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Creates the datastore and the disk, attaches it, and returns the text for the user. A failure leaves nothing behind
/// that would obstruct the next attempt.
pub(crate) fn make(disk_service: &DiskService) -> Outcome<String> {
    let datastore: Name = DATASTORE.parse().expect("the constant is a valid name");
    let disk: Name = DISK.parse().expect("the constant is a valid name");
    let path = disk_service.root().local_datastore();
    fs::create_dir_all(&path)
        .map_err(|e| os_error::io(format!("cannot create {}", path.display()), &e))?;
    disk_service.add_datastore(
        &datastore,
        DatastoreSettings::Dir {
            path: path.clone(),
            io: IoMode::Auto,
        },
    )?;
    let created = disk_service.create(&DiskCreate::new(disk.clone(), SIZE));
    let attached = created.and_then(|_| {
        let attached = disk_service.attach(&disk, DiskAttach::default());
        attached.map_err(|problem| after(problem, disk_service.delete(&disk)))
    });
    attached.map_err(|problem| after(problem, disk_service.remove_datastore(&datastore)))?;
    welcome(disk_service, &disk)
}

/// The failure, followed by the failure to undo it, if that failed too.
fn after(problem: Problem, undone: Outcome<()>) -> Problem {
    match undone {
        Ok(()) => problem,
        Err(second) => problem.because(second),
    }
}

fn welcome(disk_service: &DiskService, disk: &Name) -> Outcome<String> {
    let mut text = format!(
        "This is the first run. The daemon created the datastore `{DATASTORE}` in {}\nand on it the disk `{DISK}` \
         (1 GiB, thin). Connect to it:\n",
        disk_service.root().local_datastore().display(),
    );
    let programs = [
        ("with NBD tools", SnippetFor::Nbd),
        ("with fio", SnippetFor::Fio),
        ("in QEMU", SnippetFor::Qemu),
        ("in libvirt", SnippetFor::Libvirt),
    ];
    for (with, program) in programs {
        // Without an NBD socket in the configuration there are no such lines.
        let Ok(snippet) = disk_service.snippet(disk, program) else {
            continue;
        };
        let _ = write!(text, "\n{with}:\n\n");
        for line in snippet.text.lines() {
            let _ = writeln!(text, "    {line}");
        }
    }
    text.push_str(
        "\nMore: `tidegate --help`, `tidegate disk create --help`, `tidegate top`. Ctrl-C stops.\n",
    );
    Ok(text)
}

/// The text for the user at every later start: one line, to be followed by the dashboard's address.
pub(crate) fn later(disks: usize) -> String {
    match disks {
        0 => "No disk is attached. Attach one: tidegate disk attach NAME. ".to_owned(),
        1 => "Serving 1 disk. Connect to it: tidegate disk snippet NAME. ".to_owned(),
        disks => format!("Serving {disks} disks. Connect to one: tidegate disk snippet NAME. "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_start_is_told_in_one_line() {
        assert!([0, 1, 2].iter().all(|disks| !later(*disks).contains('\n')));
        assert!(later(1).starts_with("Serving 1 disk. "));
    }

    #[test]
    fn it_is_due_until_something_was_served_from_the_root_or_can_be() {
        let place = tempfile::tempdir().unwrap();
        let root = Root::find(Some(place.path().join("root"))).unwrap();
        root.create().unwrap();
        let _lock = root.lock().unwrap();
        let store = Store::open(root.state()).unwrap();
        root.host_id().unwrap();
        let is_due = || is_due(&root, &store).unwrap();
        assert!(is_due(), "a start that failed leaves nothing else");

        let local = root.local_datastore();
        fs::create_dir_all(local.join(".tidegate")).unwrap();
        assert!(is_due(), "nothing lies there");
        fs::create_dir(local.join("db1")).unwrap();
        assert!(!is_due(), "somebody's disk lies there");
        fs::remove_dir_all(&local).unwrap();

        let memory: Name = "memory".parse().unwrap();
        let settings = DatastoreSettings::Memory {};
        store.add_datastore(&memory, settings).unwrap();
        assert!(!is_due(), "there is a datastore");
        store.remove_datastore(&memory).unwrap();
        assert!(is_due());

        store.set_attached(Default::default()).unwrap();
        assert!(!is_due(), "a disk was attached once");
    }
}
