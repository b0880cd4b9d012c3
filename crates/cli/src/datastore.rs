//! `tidegate datastore`: where disks live.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use tidegate_api::datastore::{
    Datastore as Answer, DatastoreAdd, DatastoreList, DatastoreSettings, IoMode,
};
use tidegate_api::name::Name;
use tidegate_api::problem::ProblemCode;
use tidegate_api::routes;

use crate::failure::{Failure, sentences};
use crate::output::{Detail, Gone, Shown, names};
use crate::session::Session;
use crate::{complete, figures, table};

mod control;
mod set;

/// Add, change and remove datastores, the places for disks
#[derive(Debug, Subcommand)]
pub(crate) enum Datastore {
    Add(Add),
    List(List),
    Show(Show),
    Set(set::Set),
    Remove(Remove),
}

impl Datastore {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Datastore::Add(verb) => verb.run(session),
            Datastore::List(verb) => verb.run(session),
            Datastore::Show(verb) => verb.run(session),
            Datastore::Set(verb) => verb.run(session),
            Datastore::Remove(verb) => verb.run(session),
        }
    }
}

/// Add a datastore
///
/// Disks that are already in the directory are listed at once.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate datastore add fast --kind dir --path /srv/nvme
  tidegate datastore add far --kind nbd --uri nbd://storage.example
  tidegate datastore add scratch --kind memory
  tidegate datastore add array --kind emulated --model raid5-8x10k+cache

Kinds:
  dir       a directory on any file system, local or shared: --path, --io
  nbd       an NBD server; each disk is one of its exports: --uri
  memory    the daemon's memory; data is lost when the disk is detached
  null      no storage: writes vanish, reads are zeroes; for measuring
  emulated  a modelled array of disks or SSDs in real time, its data in memory: --model")]
pub(crate) struct Add {
    /// The datastore's name, unique on this host
    name: Name,

    /// The kind of datastore
    #[arg(long, value_enum, default_value = "dir")]
    kind: Kind,

    /// The directory (kind dir); it must exist
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    path: Option<PathBuf>,

    /// How images are opened (kind dir)
    ///
    /// direct bypasses the page cache, or fails; buffered uses it; auto is direct if the file system supports it.
    #[arg(long, value_enum)]
    io: Option<Io>,

    #[arg(
        long,
        help = "The server (kind nbd): nbd://HOST[:PORT] or nbd+unix:///?socket=PATH"
    )]
    uri: Option<String>,

    /// The array (kind emulated): 7k, 10k, 15k, ssd or nvme, or several of them as raid5-8x10k+cache
    #[arg(long)]
    model: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    Dir,
    Nbd,
    Memory,
    Null,
    Emulated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Io {
    Auto,
    Direct,
    Buffered,
}

impl Add {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let add = DatastoreAdd {
            name: self.name.clone(),
            settings: self.settings()?,
        };
        let added = session.client()?.order(routes::DATASTORE_ADD, &[], &add)?;
        let message = format!(
            "datastore {0} added; put a disk on it: tidegate disk create NAME --datastore {0} --size 10G",
            added.name
        );
        session.console.done(&added, &message)
    }

    /// The settings of the kind that was asked for; a flag of another kind is a mistake, not a trifle.
    fn settings(self) -> Result<DatastoreSettings, Failure> {
        let Add {
            name,
            kind,
            path,
            io,
            uri,
            model,
        } = self;
        let belongs = |flag: &str, given: bool, to: Kind| {
            let refuse = || {
                Failure::usage(
                    format!(
                        "--{flag} means nothing to a datastore of kind {}",
                        word(kind)
                    ),
                    format!("leave it out, or say --kind {}", word(to)),
                )
            };
            if given && kind != to {
                Err(refuse())
            } else {
                Ok(())
            }
        };
        belongs("path", path.is_some(), Kind::Dir)?;
        belongs("io", io.is_some(), Kind::Dir)?;
        belongs("uri", uri.is_some(), Kind::Nbd)?;
        belongs("model", model.is_some(), Kind::Emulated)?;
        let missing = |flag: &str, example: &str| {
            Failure::usage(
                format!("datastore {name} of kind {} needs --{flag}", word(kind)),
                format!("say for example --{flag} {example}"),
            )
        };
        Ok(match kind {
            Kind::Dir => {
                let path = path.ok_or_else(|| missing("path", "/srv/disks"))?;
                let path = std::path::absolute(&path)
                    .map_err(|e| Failure::io(format!("cannot use {}", path.display()), &e))?;
                let io = match io.unwrap_or(Io::Auto) {
                    Io::Auto => IoMode::Auto,
                    Io::Direct => IoMode::Direct,
                    Io::Buffered => IoMode::Buffered,
                };
                DatastoreSettings::Dir { path, io }
            }
            Kind::Nbd => DatastoreSettings::Nbd {
                uri: uri.ok_or_else(|| missing("uri", "nbd://storage.example"))?,
            },
            Kind::Memory => DatastoreSettings::Memory {},
            Kind::Null => DatastoreSettings::Null {},
            Kind::Emulated => DatastoreSettings::Emulated {
                model: model.ok_or_else(|| missing("model", "10k"))?,
            },
        })
    }
}

fn word(kind: Kind) -> String {
    let value = clap::ValueEnum::to_possible_value(&kind).expect("no kind is hidden");
    value.get_name().to_owned()
}

/// List datastores
#[derive(Debug, Args)]
#[command(
    visible_alias = "ls",
    after_help = "\
Examples:
  tidegate datastore list
  tidegate datastore list -o json | jq '.datastores[] | {name, free_bytes}'"
)]
pub(crate) struct List {}

impl List {
    fn run(self, session: &Session) -> Result<(), Failure> {
        session.show(routes::DATASTORES, &[])
    }
}

/// Show one datastore
///
/// If a disk of the datastore is attached on this host, this also shows whether I/O control is engaged and why, the hosts
/// that share the datastore, and each disk's demand, entitlement and throughput. Windows, demands and costs count random reads
/// of 4 KiB.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate datastore show local
  tidegate datastore show shared -o json | jq '.control.shares[] | {disk, got_iops, entitled_iops}'")]
pub(crate) struct Show {
    /// The datastore
    #[arg(add = complete::datastores())]
    name: Name,
}

impl Show {
    fn run(self, session: &Session) -> Result<(), Failure> {
        session.show(routes::DATASTORE, &[self.name.as_str()])
    }
}

/// Remove a datastore from this host; its disks stay on it
///
/// None of its disks may be attached. If you add the datastore again, its disks are there again.
#[derive(Debug, Args)]
#[command(
    visible_aliases = ["rm", "delete"],
    after_help = "Example:\n  tidegate datastore remove fast"
)]
pub(crate) struct Remove {
    /// The datastore
    #[arg(add = complete::datastores())]
    name: Name,
}

impl Remove {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let name = self.name.as_str();
        let client = session.client()?;
        // One whose record cannot be read must be removable, too.
        let before = client.look(routes::DATASTORE, &[name]).ok();
        client.erase(routes::DATASTORE_REMOVE, &[name])?;
        session
            .console
            .done(&Gone { name }, &removed(name, before.as_ref()))
    }
}

/// What to say of a datastore that was removed. Only of one that answered is it known that its content is there.
fn removed(name: &str, before: Option<&Answer>) -> String {
    let reached = before.filter(|datastore| {
        let problem = datastore.problem.as_ref();
        problem.is_none_or(|problem| problem.code == ProblemCode::Full)
    });
    match (reached, before) {
        (Some(datastore), _) if datastore.disks > 0 => {
            let disks = match datastore.disks {
                1 => "1 disk has".to_owned(),
                count => format!("{count} disks have"),
            };
            format!(
                "datastore {name} removed; what lies on it is still there: {disks} data that cannot be used until you add the \
                 datastore again"
            )
        }
        (Some(_), _) => format!("datastore {name} removed; what lies on it is still there"),
        (None, Some(gone)) => format!(
            "datastore {name} removed; {} could not be reached",
            place(&gone.settings)
        ),
        (None, None) => format!("datastore {name} removed"),
    }
}

/// Where it is, in one text.
fn place(settings: &DatastoreSettings) -> String {
    match settings {
        DatastoreSettings::Dir { path, .. } => path.display().to_string(),
        DatastoreSettings::Nbd { uri } => uri.clone(),
        DatastoreSettings::Emulated { model } => model.clone(),
        DatastoreSettings::Memory {} | DatastoreSettings::Null {} | DatastoreSettings::Pool {} => {
            figures::dash()
        }
    }
}

fn state(datastore: &Answer) -> String {
    match datastore.problem.as_ref().map(|problem| problem.code) {
        None => "ok",
        Some(_) if datastore.read_only => "read-only",
        Some(ProblemCode::Full) => "full",
        Some(_) => "problem",
    }
    .to_owned()
}

impl Shown for Answer {
    fn names(&self) -> Vec<String> {
        vec![self.name.to_string()]
    }

    fn table(&self, _: Detail) -> String {
        let mut pairs = vec![
            ("name", self.name.to_string()),
            ("kind", self.settings.kind().to_owned()),
            ("place", place(&self.settings)),
        ];
        if let DatastoreSettings::Dir { io, .. } = &self.settings {
            let io = match io {
                IoMode::Auto => "auto: direct if the file system supports it",
                IoMode::Direct => "direct",
                IoMode::Buffered => "buffered",
            };
            pairs.push(("io", io.to_owned()));
        }
        pairs.push((
            "disks",
            format!("{}, {} attached", self.disks, self.attached),
        ));
        pairs.push(("capacity", figures::bytes_or_dash(self.capacity_bytes)));
        pairs.push(("free", figures::bytes_or_dash(self.free_bytes)));
        if let Some(problem) = &self.problem {
            pairs.push(("problem", sentences(problem)));
        }
        pairs.extend(control::settings(&self.io_control, self.control.as_ref()));
        match &self.control {
            Some(now) => {
                pairs.extend(control::state(now));
                table::pairs(&pairs) + &control::tables(now)
            }
            None => {
                let idle = "no: no disk of it is attached on this host";
                pairs.push(("engaged", idle.to_owned()));
                table::pairs(&pairs)
            }
        }
    }
}

impl Shown for DatastoreList {
    fn names(&self) -> Vec<String> {
        names(&self.datastores, |datastore| &datastore.name)
    }

    fn table(&self, detail: Detail) -> String {
        let mut head = vec![
            "NAME", "KIND", "DISKS", "ATTACHED", "CAPACITY", "FREE", "STATE",
        ];
        if detail == Detail::Wide {
            head.push("PLACE");
        }
        let row = |datastore: &Answer| {
            let mut row = vec![
                datastore.name.to_string(),
                datastore.settings.kind().to_owned(),
                datastore.disks.to_string(),
                datastore.attached.to_string(),
                figures::bytes_or_dash(datastore.capacity_bytes),
                figures::bytes_or_dash(datastore.free_bytes),
                state(datastore),
            ];
            if detail == Detail::Wide {
                row.push(place(&datastore.settings));
            }
            row
        };
        table::columns(&head, &self.datastores.iter().map(row).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        add: Add,
    }

    fn settings(words: &[&str]) -> Result<DatastoreSettings, Failure> {
        let words = ["add", "ds1"].iter().chain(words);
        Line::try_parse_from(words).unwrap().add.settings()
    }

    #[test]
    fn a_removed_datastore_is_said_to_be_there_only_if_it_answered() {
        let with = |disks: u64, problem: &str| {
            let settings = r#""name":"n1","settings":{"kind":"dir","path":"/srv/n1"}"#;
            let json = format!(r#"{{{settings},"disks":{disks},"attached":0{problem}}}"#);
            removed("n1", Some(&serde_json::from_str(&json).unwrap()))
        };
        let told = |problem: &str| with(0, problem);
        assert!(told("").ends_with("still there"));
        assert!(with(1, "").contains("still there: 1 disk has data that cannot be used until"));
        assert!(with(2, "").contains("still there: 2 disks have data that"));
        let problem = |code: &str| format!(r#","problem":{{"code":"{code}","what":"x"}}"#);
        assert!(told(&problem("full")).contains("still there"));
        assert_eq!(
            told(&problem("datastore")),
            "datastore n1 removed; /srv/n1 could not be reached"
        );
        assert_eq!(removed("n1", None), "datastore n1 removed");
    }

    #[test]
    fn each_kind_takes_what_it_needs() {
        assert_eq!(
            settings(&["--path", "/srv/x"]).unwrap(),
            DatastoreSettings::Dir {
                path: "/srv/x".into(),
                io: IoMode::Auto
            }
        );
        assert_eq!(
            settings(&["--kind", "dir", "--path", "/srv/x", "--io", "direct"]).unwrap(),
            DatastoreSettings::Dir {
                path: "/srv/x".into(),
                io: IoMode::Direct
            }
        );
        assert_eq!(
            settings(&["--kind", "memory"]).unwrap(),
            DatastoreSettings::Memory {}
        );
        assert_eq!(
            settings(&["--kind", "emulated", "--model", "10k"]).unwrap(),
            DatastoreSettings::Emulated {
                model: "10k".to_owned()
            }
        );
    }

    #[test]
    fn a_relative_path_is_the_daemons_too() {
        let DatastoreSettings::Dir { path, .. } = settings(&["--path", "disks"]).unwrap() else {
            panic!("a directory")
        };
        assert_eq!(path, std::env::current_dir().unwrap().join("disks"));
    }

    #[test]
    fn a_flag_that_is_missing_or_of_another_kind_is_a_usage_error() {
        for (words, says) in [
            (&["--kind", "dir"][..], "needs --path"),
            (&["--kind", "nbd"], "needs --uri"),
            (&["--kind", "emulated"], "needs --model"),
            (&["--kind", "null", "--path", "/x"], "--path means nothing"),
            (
                &["--kind", "nbd", "--uri", "nbd://h", "--io", "direct"],
                "--io means nothing",
            ),
        ] {
            match settings(words) {
                Err(Failure::Usage(problem)) => {
                    assert!(problem.to_string().contains(says), "{problem}")
                }
                other => panic!("{words:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_datastore_that_is_full_or_read_only_is_listed_as_that() {
        let listed = |code: Option<&str>, read_only: bool| {
            let problem = code.map(|code| {
                serde_json::json!({ "code": code, "what": "it is bad", "remedy": "mend it" })
            });
            let datastore = serde_json::json!({
                "name": "fast", "settings": { "kind": "dir", "path": "/srv" }, "disks": 1,
                "attached": 0, "read_only": read_only, "problem": problem,
            });
            let datastore: Answer = serde_json::from_value(datastore).unwrap();
            let shown = datastore.table(Detail::Usual);
            assert_eq!(shown.contains("mend it"), code.is_some(), "{shown}");
            let table = DatastoreList {
                datastores: vec![datastore],
            }
            .table(Detail::Usual);
            let line = table.lines().last().unwrap_or_default().to_owned();
            line.split_whitespace()
                .last()
                .unwrap_or_default()
                .to_owned()
        };
        assert_eq!(listed(None, false), "ok");
        assert_eq!(listed(Some("full"), false), "full");
        assert_eq!(listed(Some("datastore"), true), "read-only");
        assert_eq!(listed(Some("datastore"), false), "problem");
    }
}
