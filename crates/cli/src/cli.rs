//! The command line: verbs, global flags and help.
//!
//! # Always true
//! - A verb, flag or value that was once released is never renamed and never changes its meaning: scripts and other
//!   people's software depend on it. A better name is added, and the old one stays as a hidden alias. The files in
//!   `tests/snapshots/help/` hold every help text, so that no word disappears unseen.

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueHint};

use crate::failure::Failure;
use crate::output::{Colour, Console, Format, Talk};
use crate::session::Session;
use crate::{
    backup, cache, datastore, disk, documents, events, explain, filter, group, job, lab, mount,
    pool, serve, stats, status, thread, top, tree,
};

/// Tidegate serves virtual disks from datastores to virtual machines and NBD clients
///
/// One daemon on each host (`tidegate serve`) serves disks to QEMU, libvirt and Cloud Hypervisor over vhost-user-blk,
/// and to other clients over NBD. Each I/O passes a stack of filters. The other verbs are clients of that daemon, or work
/// without one.
#[derive(Debug, Parser)]
#[command(
    name = "tidegate",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    subcommand_required = true,
    disable_help_subcommand = false,
    after_help = "Every verb has examples: tidegate disk create --help",
    after_long_help = AFTER
)]
pub(crate) struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

const AFTER: &str = "\
First steps:
  tidegate serve &                               start a daemon with a first disk, disk0
  tidegate status --wait 20s                     wait until it serves
  tidegate disk snippet disk0 --for qemu         print how QEMU uses the disk
  tidegate disk create web1 --size 10G --attach  create another disk
  tidegate top                                   watch the disks

Values:
  sizes   4096, 512MiB, 10G (powers of 1024), 10GB (powers of 1000)
  rates   200MiB/s
  times   25ms, 20s
  shares  low, normal, high or a number
  limits  2000iops, 200MiB/s, or `unlimited`

Answers go to standard output, everything else to standard error. `-o json` prints the answers of
the REST interface, which `curl --unix-socket SOCKET http://localhost/openapi.json` describes.

Exit status:
  0  success
  1  failure; the message says why
  2  the command line is wrong; nothing was tried
  3  the daemon cannot be reached

Released verbs and flags are never renamed.";

/// Flags of every verb.
#[derive(Debug, Args)]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct Globals {
    /// The daemon's root: its configuration, state and sockets
    ///
    /// Default: /var/lib/tidegate for the superuser, else $XDG_DATA_HOME/tidegate (~/.local/share/tidegate).
    #[arg(long, global = true, value_name = "DIR", env = "TIDEGATE_ROOT", hide_env_values = true, value_hint = ValueHint::DirPath)]
    root: Option<PathBuf>,

    /// The daemon's REST socket; default: the one in the root's configuration, else run/tidegate.sock below the root
    #[arg(long, global = true, value_name = "PATH", value_hint = ValueHint::FilePath)]
    socket: Option<PathBuf>,

    /// The form of the output
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        value_name = "FORM",
        default_value_t
    )]
    output: Format,

    /// Print only answers and errors
    #[arg(short, long, global = true)]
    quiet: bool,

    /// Print no colours; the variable NO_COLOR has the same effect
    #[arg(long, global = true)]
    no_color: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    ServeOne(Box<serve::ServeOne>),
    CheckConfig(serve::CheckConfig),
    Status(status::Status),
    #[command(subcommand)]
    Datastore(datastore::Datastore),
    #[command(subcommand)]
    Disk(disk::Disk),
    #[command(subcommand)]
    Filter(filter::Filter),
    #[command(subcommand)]
    Group(group::Group),
    #[command(subcommand)]
    Cache(cache::Cache),
    #[command(subcommand)]
    Pool(pool::Pool),
    Backup(backup::Backup),
    Restore(backup::Restore),
    #[command(subcommand)]
    Thread(thread::Thread),
    Get(tree::Get),
    Set(tree::Set),
    Mount(mount::Mount),
    #[command(subcommand)]
    Job(job::Job),
    Stats(stats::Stats),
    Explain(explain::Explain),
    Events(events::Events),
    Top(top::Top),
    #[command(subcommand)]
    Lab(lab::Lab),
    Completions(documents::Completions),
    Man(documents::Man),
    InternalDocs(documents::InternalDocs),
}

/// The whole command line, as clap knows it: for completion, man pages and the reference.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

impl Cli {
    /// How this run prints, and to which daemon it speaks.
    pub(crate) fn session(&self) -> Session {
        let globals = &self.globals;
        let no_color =
            globals.no_color || std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let colour = if no_color || dumb {
            Colour::Off
        } else {
            Colour::On
        };
        let talk = if globals.quiet {
            Talk::Quiet
        } else {
            Talk::Usual
        };
        let console = Console {
            format: globals.output,
            talk,
            colour,
        };
        Session {
            console,
            root: globals.root.clone(),
            socket: globals.socket.clone(),
        }
    }

    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        match self.command {
            Command::Serve(verb) => verb.run(session),
            Command::ServeOne(verb) => verb.run(session),
            Command::CheckConfig(verb) => verb.run(session),
            Command::Status(verb) => verb.run(session),
            Command::Datastore(verb) => verb.run(session),
            Command::Disk(verb) => verb.run(session),
            Command::Filter(verb) => verb.run(session),
            Command::Group(verb) => verb.run(session),
            Command::Cache(verb) => verb.run(session),
            Command::Pool(verb) => verb.run(session),
            Command::Backup(verb) => verb.run(session),
            Command::Restore(verb) => verb.run(session),
            Command::Thread(verb) => verb.run(session),
            Command::Get(verb) => verb.run(session),
            Command::Set(verb) => verb.run(session),
            Command::Mount(verb) => verb.run(session),
            Command::Job(verb) => verb.run(session),
            Command::Stats(verb) => verb.run(session),
            Command::Explain(verb) => verb.run(session),
            Command::Events(verb) => verb.run(session),
            Command::Top(verb) => verb.run(session),
            Command::Lab(verb) => verb.run(session),
            Command::Completions(verb) => verb.run(session),
            Command::Man(verb) => verb.run(session, command()),
            Command::InternalDocs(verb) => verb.run(session, command()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn a_socket_that_is_named_is_the_daemons() {
        let words = ["tidegate", "disk", "list", "--socket", "/run/x.sock"];
        let named = |words: &[&str]| {
            let session = Cli::try_parse_from(words).unwrap().session();
            session.client().unwrap().socket().to_owned()
        };
        assert_eq!(named(&words), std::path::Path::new("/run/x.sock"));
        let words = ["tidegate", "--root", "/srv/t", "disk", "list"];
        assert!(named(&words).starts_with("/srv/t"));
    }

    #[test]
    fn flags_of_every_verb_may_stand_anywhere() {
        for words in [
            ["tidegate", "-o", "json", "-q", "disk", "list"],
            ["tidegate", "disk", "-o", "json", "-q", "list"],
            ["tidegate", "disk", "list", "-q", "-o", "json"],
        ] {
            let console = Cli::try_parse_from(words).unwrap().session().console;
            assert_eq!((console.format, console.talk), (Format::Json, Talk::Quiet));
        }
    }
}
