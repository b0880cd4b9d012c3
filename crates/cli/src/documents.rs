//! Generated documents: completions, manual pages, and the references in `docs/`.
//!
//! All of it comes from the command line's own description in `cli`, so that it cannot rot.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command, ValueHint};
use clap_complete::env::Shells;

use crate::daemon;
use crate::failure::Failure;
use crate::session::Session;

/// Print completions for a shell, including names of disks and datastores
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  source <(tidegate completions bash)
  tidegate completions zsh > ~/.zfunc/_tidegate
  tidegate completions fish > ~/.config/fish/completions/tidegate.fish")]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Completions {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        session.console.print(&completions(self.shell))
    }
}

/// A script that asks this program, wherever the search path finds it, at every press of the key.
fn completions(shell: Shell) -> String {
    let shell = match shell {
        Shell::Bash => "bash",
        Shell::Zsh => "zsh",
        Shell::Fish => "fish",
    };
    let shells = Shells::builtins();
    let completer = shells
        .completer(shell)
        .expect("clap_complete knows the shells that we offer");
    let mut script = Vec::new();
    let written =
        completer.write_registration("COMPLETE", "tidegate", "tidegate", "tidegate", &mut script);
    written.expect("memory can be written to");
    String::from_utf8(script).expect("scripts are text")
}

/// Print a manual page, or write all of them
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate man | man -l -
  tidegate man disk create | man -l -
  tidegate man --dir ~/.local/share/man/man1")]
pub(crate) struct Man {
    /// The verb; default: the program itself
    #[arg(conflicts_with = "dir")]
    verb: Vec<String>,

    /// Write a page for every verb into this directory
    #[arg(long, value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

impl Man {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session, root: Command) -> Result<(), Failure> {
        let Some(dir) = self.dir else {
            return session.console.print(&page(find(root, &self.verb)?));
        };
        let mut written = 0;
        create(&dir)?;
        for command in all(root) {
            write(&dir, &format!("{}.1", file_stem(&command)), &page(command))?;
            written += 1;
        }
        session.console.say(&format!(
            "{written} manual pages written to {}",
            dir.display()
        ));
        Ok(())
    }
}

/// Write the generated documents of `docs/`
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct InternalDocs {
    /// The directory: cli.md, config.md, control-tree.md, openapi.json and metrics.md go there
    dir: PathBuf,
}

impl InternalDocs {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session, root: Command) -> Result<(), Failure> {
        create(&self.dir)?;
        for (file, text) in [
            ("cli.md", cli_reference(root)),
            ("config.md", daemon::config_reference()),
            ("control-tree.md", daemon::control_tree_reference()),
            ("openapi.json", daemon::openapi_json()),
            ("metrics.md", daemon::metrics_reference()),
        ] {
            write(&self.dir, file, &text)?;
        }
        session
            .console
            .say(&format!("references written to {}", self.dir.display()));
        Ok(())
    }
}

/// Every verb that people may see, the program itself first, as `tidegate disk create` and so on.
fn all(root: Command) -> Vec<Command> {
    fn collect(command: &Command, into: &mut Vec<Command>) {
        into.push(command.clone());
        for verb in command
            .get_subcommands()
            .filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
        {
            collect(verb, into);
        }
    }
    let mut root = root.term_width(100);
    // Building hands the flags of every verb down to the verbs.
    root.build();
    let mut commands = Vec::new();
    collect(&root, &mut commands);
    commands
}

fn find(root: Command, verb: &[String]) -> Result<Command, Failure> {
    let name = std::iter::once("tidegate")
        .chain(verb.iter().map(String::as_str))
        .collect::<Vec<_>>()
        .join(" ");
    all(root)
        .into_iter()
        .find(|command| full_name(command) == name)
        .ok_or_else(|| {
            Failure::usage(
                format!("there is no verb `{name}`"),
                "see `tidegate --help` for those that there are",
            )
        })
}

fn full_name(command: &Command) -> String {
    command.get_bin_name().unwrap_or("tidegate").to_owned()
}

/// `tidegate-disk-create`
fn file_stem(command: &Command) -> String {
    full_name(command).replace(' ', "-")
}

fn page(command: Command) -> String {
    let stem = file_stem(&command);
    let page = clap_mangen::Man::new(command.display_name(stem.clone()))
        .title(stem)
        .manual("Tidegate")
        // A date would make each build's pages differ.
        .date("");
    let mut roff = Vec::new();
    page.render(&mut roff).expect("memory can be written to");
    String::from_utf8(roff).expect("manual pages are text")
}

/// The help of every verb, as one Markdown document.
fn cli_reference(root: Command) -> String {
    let mut text = String::from(
        "# Command line\n\nThe help of every verb, as `--help` prints it. Written by `tidegate internal-docs`; do not edit.\n",
    );
    for mut command in all(root) {
        let name = full_name(&command);
        let help = help(&mut command);
        text.push_str(&format!("\n## {name}\n\n```text\n{help}\n```\n"));
    }
    text
}

/// What `--help` prints, without trailing spaces.
fn help(command: &mut Command) -> String {
    let help = command.render_long_help().to_string();
    help.lines()
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n")
        .trim_end()
        .to_owned()
}

fn create(dir: &Path) -> Result<(), Failure> {
    fs::create_dir_all(dir).map_err(|e| Failure::io(format!("cannot create {}", dir.display()), &e))
}

fn write(dir: &Path, file: &str, text: &str) -> Result<(), Failure> {
    let path = dir.join(file);
    fs::write(&path, text).map_err(|e| Failure::io(format!("cannot write {}", path.display()), &e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Where the snapshots are; each verb has a file.
    fn snapshots() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/help")
    }

    #[test]
    fn every_verbs_help_is_as_it_was() {
        let update = std::env::var_os("TIDEGATE_UPDATE_SNAPSHOTS").is_some();
        let mut expected = BTreeSet::new();
        for mut command in all(crate::cli::command()) {
            let name = format!("{}.txt", file_stem(&command));
            let help = help(&mut command) + "\n";
            let path = snapshots().join(&name);
            if update {
                fs::create_dir_all(snapshots()).unwrap();
                fs::write(&path, &help).unwrap();
            }
            let before = fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(
                help, before,
                "the help in {name} has changed. Words that were released stay (add hidden aliases); if that is so, \
                 run this test with TIDEGATE_UPDATE_SNAPSHOTS=1 and commit the file"
            );
            expected.insert(name);
        }
        let there = fs::read_dir(snapshots()).unwrap();
        let there: BTreeSet<_> = there
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(
            there, expected,
            "a verb that was released has gone, or a snapshot was left behind"
        );
    }

    #[test]
    fn every_verb_says_what_it_is_and_shows_an_example() {
        for command in all(crate::cli::command()) {
            let name = full_name(&command);
            assert!(
                command.get_about().is_some(),
                "{name} does not say what it is"
            );
            if command.has_subcommands() {
                continue;
            }
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(help.contains(&name), "{name} shows no example");
        }
    }

    #[test]
    fn every_example_can_be_parsed() {
        for command in all(crate::cli::command()) {
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            for line in help
                .lines()
                .map(str::trim)
                .filter(|line| line.starts_with("tidegate "))
            {
                // What follows in a pipe, a list, a redirection or a comment is the shell's.
                let line = line.split(['|', '>', '&', '#']).next().unwrap_or_default();
                let words: Vec<_> = line.split_whitespace().collect();
                let parsed = crate::cli::command().try_get_matches_from(&words);
                assert!(
                    parsed.is_ok(),
                    "{line}: {}",
                    parsed.err().map(|e| e.to_string()).unwrap_or_default()
                );
            }
        }
    }

    #[test]
    fn every_verb_has_a_manual_page() {
        let pages: Vec<_> = all(crate::cli::command())
            .into_iter()
            .map(|command| (file_stem(&command), page(command)))
            .collect();
        assert!(pages.iter().any(|(stem, _)| stem == "tidegate-disk-create"));
        for (stem, page) in pages {
            assert!(
                page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"),
                "{stem}"
            );
        }
    }

    #[test]
    fn completions_ask_the_program_itself() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = completions(shell);
            assert!(
                script.contains("COMPLETE") && script.contains("tidegate"),
                "{shell:?}: {script}"
            );
        }
    }
}
