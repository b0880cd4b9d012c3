//! `tidegate disk snippet`: lines to paste, so that a program reaches a disk.

use clap::Args;
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser;
use tidegate_api::disk::{Snippet as Answer, SnippetFor};
use tidegate_api::name::Name;
use tidegate_api::routes;

use crate::complete;
use crate::failure::Failure;
use crate::output::{Detail, Shown};
use crate::session::Session;

/// Print the configuration with which a program uses a disk
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate disk snippet web1 --for qemu
  tidegate disk snippet web1 --for libvirt >> web1.xml
  tidegate disk snippet web1 --for fio | sh")]
pub(crate) struct Snippet {
    /// The disk, which must be attached
    #[arg(add = complete::disks())]
    name: Name,

    /// The program
    #[arg(long = "for", value_name = "PROGRAM", value_parser = programs())]
    program: SnippetFor,
}

fn programs() -> impl TypedValueParser<Value = SnippetFor> {
    let words = SnippetFor::ALL.map(SnippetFor::as_str);
    PossibleValuesParser::new(words).try_map(|word| word.parse::<SnippetFor>())
}

impl Snippet {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let arguments = [self.name.as_str(), self.program.as_str()];
        session.show(routes::DISK_SNIPPET, &arguments)
    }
}

impl Shown for Answer {
    fn names(&self) -> Vec<String> {
        vec![self.r#for.as_str().to_owned()]
    }

    fn table(&self, _: Detail) -> String {
        format!("{}\n", self.text.trim_end())
    }
}
