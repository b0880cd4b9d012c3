//! Output: data on standard output in the requested form, messages on standard error.
//!
//! Every verb hands its answer to a [`Console`] as a value that knows its [`Shown`] forms. JSON and YAML are the
//! REST answers as they came: the same keys, the same units.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use tidegate_api::name::Name;
use tidegate_api::problem::Problem;

use crate::failure::{Failure, Told, sentences};
use crate::yaml;

/// The forms in which an answer is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Columns for people
    #[default]
    Table,
    /// The same with more columns
    Wide,
    /// The REST answer
    Json,
    /// The REST answer as YAML
    Yaml,
    /// Names only, one a line
    Name,
}

/// How many columns a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// What one mostly wants to know, in a terminal's width.
    Usual,
    /// All.
    Wide,
}

/// Whether what is done is also said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Talk {
    /// It is.
    Usual,
    /// Only errors are.
    Quiet,
}

/// Whether terminals are coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    /// They are.
    On,
    /// They are not.
    Off,
}

/// Something that can be printed in every form.
pub(crate) trait Shown: Serialize {
    /// The names of the things shown, for `-o name`.
    fn names(&self) -> Vec<String>;
    /// For people; ends with a line's end.
    fn table(&self, detail: Detail) -> String;
}

/// The names of many things, for `-o name`.
pub(crate) fn names<T>(things: &[T], name: impl Fn(&T) -> &Name) -> Vec<String> {
    things.iter().map(|thing| name(thing).to_string()).collect()
}

/// The name of something that is gone: what `delete` and `remove` answer.
#[derive(Serialize)]
pub(crate) struct Gone<'a> {
    /// The name it had.
    pub(crate) name: &'a str,
}

impl Shown for Gone<'_> {
    fn names(&self) -> Vec<String> {
        vec![self.name.to_owned()]
    }
    fn table(&self, _: Detail) -> String {
        format!("{}\n", self.name)
    }
}

/// Where a verb's words go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Console {
    /// The form of answers.
    pub(crate) format: Format,
    /// Whether what is done is also said.
    pub(crate) talk: Talk,
    /// Whether terminals are coloured.
    pub(crate) colour: Colour,
}

impl Console {
    /// Prints an answer.
    pub(crate) fn show(&self, value: &impl Shown) -> Result<(), Failure> {
        self.print(&self.rendered(value)?)
    }

    /// Prints an answer, then waits for no more: for answers that follow one another on a stream.
    pub(crate) fn show_next(&self, value: &impl Shown) -> Result<(), Failure> {
        let text = match self.format {
            Format::Json => to_json(value, Pretty::No)? + "\n",
            Format::Yaml => format!("---\n{}", self.rendered(value)?),
            Format::Table | Format::Wide | Format::Name => self.rendered(value)? + "\n",
        };
        self.print(&text)
    }

    /// The same for answers that are a line each.
    pub(crate) fn show_line(&self, value: &impl Shown) -> Result<(), Failure> {
        match self.format {
            Format::Table | Format::Wide | Format::Name => self.show(value),
            Format::Json | Format::Yaml => self.show_next(value),
        }
    }

    /// Reports that something was done. In a form for programs it prints the result.
    pub(crate) fn done(&self, value: &impl Shown, message: &str) -> Result<(), Failure> {
        match self.format {
            Format::Table | Format::Wide => {
                self.say(message);
                Ok(())
            }
            Format::Json | Format::Yaml | Format::Name => self.show(value),
        }
    }

    /// Prints text as it is.
    pub(crate) fn print(&self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(())
    }

    /// Says something to the person, unless none wants to hear.
    pub(crate) fn say(&self, message: &str) {
        if self.talk == Talk::Usual {
            // If standard error cannot be written, nobody reads it.
            let _ = writeln!(io::stderr().lock(), "{message}");
        }
    }

    /// Reports a failure: in sentences, or as JSON with `-o json`.
    pub(crate) fn complain(&self, problem: &Problem) {
        let text = match self.format {
            Format::Json => to_json(&Told { problem }, Pretty::No).unwrap_or_default(),
            _ => {
                let red = self.colour == Colour::On && io::stderr().is_terminal();
                let word = if red {
                    "\x1b[1;31merror:\x1b[0m"
                } else {
                    "error:"
                };
                format!("{word} {}", sentences(problem))
            }
        };
        let _ = writeln!(io::stderr().lock(), "{text}");
    }

    fn rendered(&self, value: &impl Shown) -> Result<String, Failure> {
        Ok(match self.format {
            Format::Table => value.table(Detail::Usual),
            Format::Wide => value.table(Detail::Wide),
            Format::Json => to_json(value, Pretty::Yes)? + "\n",
            Format::Yaml => yaml::write(&serde_json::to_value(value).map_err(unwritable)?),
            Format::Name => value
                .names()
                .iter()
                .map(|name| format!("{name}\n"))
                .collect(),
        })
    }
}

/// Whether JSON is spread over lines.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pretty {
    Yes,
    No,
}

fn to_json(value: &impl Serialize, pretty: Pretty) -> Result<String, Failure> {
    match pretty {
        Pretty::Yes => serde_json::to_string_pretty(value),
        Pretty::No => serde_json::to_string(value),
    }
    .map_err(unwritable)
}

fn unwritable(error: serde_json::Error) -> Failure {
    Failure::io("cannot write the answer as JSON", &io::Error::other(error))
}

/// Whether both ends of the conversation are a terminal.
pub(crate) fn on_a_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}
