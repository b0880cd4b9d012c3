//! The record of a pool in the host's state: its identity and where its members are. All else is on the members.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidegate_api::descriptor::Uuid;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::toml_error;

use crate::files;
use crate::os_error::{self, Outcome};

const VERSION: u32 = 1;
/// The largest record that is read: all members with the longest paths.
const MOST: usize = 256 << 10;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    version: u32,
    pub(crate) uuid: Uuid,
    /// In any order: each member's superblock says which one it is.
    pub(crate) members: Vec<PathBuf>,
}

impl Record {
    pub(super) fn new(uuid: Uuid, members: Vec<PathBuf>) -> Record {
        Record {
            version: VERSION,
            uuid,
            members,
        }
    }
}

/// The names of all records.
pub(super) fn names(folder: &Path) -> Outcome<Vec<Name>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|e| os_error::io("cannot list the pools", &e))?,
    };
    let mut names = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let stem = name.strip_suffix(".toml");
        names.extend(stem.and_then(|stem| stem.parse::<Name>().ok()));
    }
    names.sort();
    Ok(names)
}

pub(super) fn read(folder: &Path, name: &Name) -> Outcome<Record> {
    let path = file(folder, name);
    let bytes = files::read(&path, MOST).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => {
            Problem::new(ProblemCode::NotFound, format!("there is no pool {name}"))
                .remedy("see `tidegate pool list`")
        }
        _ => os_error::io(format!("cannot read the record of pool {name}"), &e),
    })?;
    parse(&bytes).map_err(|why| {
        Problem::new(
            ProblemCode::Corrupt,
            format!("{} is damaged", path.display()),
        )
        .because(why)
        .remedy("repair it by hand: it has the pool's uuid and the paths of its members")
    })
}

fn parse(bytes: &[u8]) -> Result<Record, String> {
    let text = std::str::from_utf8(bytes).map_err(|e| e.to_string())?;
    let record: Record = toml::from_str(text).map_err(|e| toml_error::message(&e))?;
    match record.version {
        VERSION => Ok(record),
        other => Err(format!("its format is version {other}, not {VERSION}")),
    }
}

pub(super) fn write(folder: &Path, name: &Name, record: &Record) -> Outcome<()> {
    let what = || format!("cannot store the record of pool {name}");
    let text = toml::to_string(record).map_err(|e| {
        os_error::invalid(what())
            .because_of(&e)
            .remedy("use paths in UTF-8")
    })?;
    fs::create_dir_all(folder)
        .and_then(|()| files::replace(&file(folder, name), text.as_bytes()))
        .map_err(|e| os_error::io(what(), &e))
}

pub(super) fn remove(folder: &Path, name: &Name) -> Outcome<()> {
    fs::remove_file(file(folder, name))
        .and_then(|()| files::sync_folder(folder))
        .map_err(|e| os_error::io(format!("cannot remove the record of pool {name}"), &e))
}

/// Whether there is a record of this name, readable or not.
pub(super) fn exists(folder: &Path, name: &Name) -> bool {
    file(folder, name).exists()
}

fn file(folder: &Path, name: &Name) -> PathBuf {
    folder.join(format!("{name}.toml"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_a_damaged_one_refused() {
        let folder = tempfile::tempdir().unwrap();
        let name: Name = "p".parse().unwrap();
        let record = Record::new(Uuid([7; 16]), vec!["/dev/a".into(), "/b c".into()]);
        write(folder.path(), &name, &record).unwrap();
        assert_eq!(read(folder.path(), &name), Ok(record));
        assert_eq!(names(folder.path()).unwrap(), std::slice::from_ref(&name));
        for text in ["version = 2\nuuid = \"\"\nmembers = []", "\u{1}", ""] {
            fs::write(file(folder.path(), &name), text).unwrap();
            let refused = read(folder.path(), &name).unwrap_err();
            assert_eq!(refused.code, ProblemCode::Corrupt, "{text}");
        }
        remove(folder.path(), &name).unwrap();
        let gone = read(folder.path(), &name).unwrap_err();
        assert_eq!(gone.code, ProblemCode::NotFound);
    }
}
