//! The first run: a datastore, a disk, and the lines with which one reaches it, so that there is something to see.

use std::fmt::Write;
use std::fs;

use tidegate_api::datastore::{DatastoreSettings, IoMode};
use tidegate_api::disk::{DiskAttach, DiskCreate, SnippetFor};
use tidegate_api::name::Name;

use crate::keeper::Keeper;
use crate::root::Root;
use crate::trouble::{self, Outcome};

const DATASTORE: &str = "local";
const DISK: &str = "disk0";

/// Large enough to install something on; thin, so it costs nothing.
const SIZE: u64 = 1 << 30;

/// Whether nothing was ever served from this root.
pub(crate) fn is_due(root: &Root) -> bool {
    !root.state().exists() && !root.local_datastore().exists()
}

/// Makes datastore and disk, attaches it, and answers with what to tell the user.
pub(crate) fn make(keeper: &Keeper) -> Outcome<String> {
    let datastore: Name = DATASTORE.parse().expect("the constant is a name");
    let disk: Name = DISK.parse().expect("the constant is a name");
    let path = keeper.root().local_datastore();
    fs::create_dir_all(&path)
        .map_err(|e| trouble::io(format!("cannot create {}", path.display()), &e))?;
    keeper.add_datastore(
        &datastore,
        DatastoreSettings::Dir {
            path: path.clone(),
            io: IoMode::Auto,
        },
    )?;
    keeper.create(&DiskCreate::new(disk.clone(), SIZE))?;
    keeper.attach(&disk, DiskAttach::default())?;
    welcome(keeper, &disk)
}

fn welcome(keeper: &Keeper, disk: &Name) -> Outcome<String> {
    let mut text = format!(
        "This is the first run: it made the datastore `{DATASTORE}` in {}\n\
         and on it the disk `{DISK}` (1 GiB, thin). Reach it so:\n",
        keeper.root().local_datastore().display(),
    );
    let programs = [
        ("with NBD tools", SnippetFor::Nbd),
        ("with fio", SnippetFor::Fio),
        ("in QEMU", SnippetFor::Qemu),
        ("in libvirt", SnippetFor::Libvirt),
    ];
    for (with, program) in programs {
        // Without an NBD socket in the configuration there are no such lines to show.
        let Ok(snippet) = keeper.snippet(disk, program) else {
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
