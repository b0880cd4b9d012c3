//! The question before something is destroyed.
//!
//! # Always true
//! - Nothing is destroyed unless a person at a terminal said yes, or the command line did with `--yes`.

use std::io::{self, BufRead, IsTerminal, Write};

use tidegate_api::problem::{Problem, ProblemCode};

use crate::failure::Failure;

/// The consent that a destructive verb needs.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Consent {
    /// Do it without asking
    ///
    /// Required if there is no terminal.
    #[arg(short, long)]
    yes: bool,
}

/// Whether there is a person to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Person {
    Present,
    Absent,
}

impl Consent {
    /// Comes back if `loss` ("disk db1 and its 10GiB will be gone") is agreed to.
    pub(crate) fn obtain(self, loss: &str) -> Result<(), Failure> {
        let both = io::stdin().is_terminal() && io::stderr().is_terminal();
        let person = if both {
            Person::Present
        } else {
            Person::Absent
        };
        self.ask(
            loss,
            person,
            &mut io::stdin().lock(),
            &mut io::stderr().lock(),
        )
    }

    fn ask(
        self,
        loss: &str,
        person: Person,
        answers: &mut dyn BufRead,
        questions: &mut dyn Write,
    ) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        if person == Person::Absent {
            return Err(Failure::usage(
                format!("{loss}, and there is no terminal to ask on"),
                "add --yes if that is what you want",
            ));
        }
        write!(questions, "{loss}. Go on? [y/N] ")?;
        questions.flush()?;
        let mut answer = String::new();
        answers
            .read_line(&mut answer)
            .map_err(|e| Failure::io("cannot read the answer", &e))?;
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => Err(Failure::Failed(
                Problem::new(ProblemCode::Invalid, "nothing was changed")
                    .remedy("answer y, or add --yes, if that is what you want"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(yes: bool, person: Person, answer: &str) -> (Result<(), Failure>, String) {
        let mut asked = Vec::new();
        let result = Consent { yes }.ask(
            "disk db1 will be gone",
            person,
            &mut answer.as_bytes(),
            &mut asked,
        );
        (result, String::from_utf8(asked).unwrap())
    }

    #[test]
    fn a_person_is_asked_and_only_yes_is_yes() {
        for (answer, agreed) in [
            ("y\n", true),
            ("YES\n", true),
            ("\n", false),
            ("n\n", false),
            ("", false),
            ("yup\n", false),
        ] {
            let (result, asked) = ask(false, Person::Present, answer);
            assert_eq!(result.is_ok(), agreed, "{answer:?}");
            assert_eq!(asked, "disk db1 will be gone. Go on? [y/N] ");
        }
    }

    #[test]
    fn without_a_terminal_it_takes_yes_or_nothing_happens() {
        let (refused, asked) = ask(false, Person::Absent, "y\n");
        let Err(Failure::Usage(problem)) = refused else {
            panic!("{refused:?}")
        };
        assert!(problem.to_string().contains("--yes"), "{problem}");
        assert_eq!(asked, "");
        let (agreed, asked) = ask(true, Person::Absent, "");
        assert!(agreed.is_ok());
        assert_eq!(asked, "", "who said --yes is not asked");
    }
}
