//! Each error of the verbs on datastores and disks, provoked once; what it says to do is done, and the verb succeeds.
//!
//! What is done in a row is shell. There, `tidegate` is the program on the test's daemon, and `$P` the test's place.

mod datastores;
mod disks;
mod images;
mod others;

use std::process::Output;

use crate::support::daemon::Daemon;
use crate::support::place::Place;
use crate::support::program::Program;
use crate::support::server::TIDEGATE;

/// One error.
pub(crate) struct Row {
    /// What makes it come about. Its last command is the one that fails.
    pub(crate) provoke: &'static str,
    /// What failed, or why: each of these is in the message.
    pub(crate) says: &'static [&'static str],
    /// What its hint says to do: this is in it.
    pub(crate) hint: &'static str,
    /// The hint, followed; the last command is the verb, and succeeds.
    pub(crate) follow: &'static str,
}

/// Shorthand for a row.
pub(crate) const fn row(
    provoke: &'static str,
    says: &'static [&'static str],
    hint: &'static str,
    follow: &'static str,
) -> Row {
    Row {
        provoke,
        says,
        hint,
        follow,
    }
}

/// Provokes all, follows all, and tells of every row that is not as it should be.
fn check(rows: &[Row]) {
    let place = Place::new();
    let root = place.join("root");
    let daemon = Daemon::start_with(&place, "root", &["--threads", "1"]);
    let stage = Stage {
        root: root.display().to_string(),
        place: place.path().display().to_string(),
    };
    stage.sh("mkdir $P/ds && tidegate datastore add ds --path $P/ds");
    let wrong: Vec<String> = rows.iter().filter_map(|row| stage.fault_of(row)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n----\n"));
    assert!(daemon.stop("TERM").success());
}

struct Stage {
    root: String,
    place: String,
}

impl Stage {
    fn sh(&self, script: &str) -> Output {
        let line = format!("tidegate() {{ \"$TIDEGATE\" \"$@\"; }}\n{script}");
        Program::new("sh")
            .env("TIDEGATE_ROOT", &self.root)
            .env("TIDEGATE", TIDEGATE)
            .env("P", &self.place)
            .args(["-e", "-c", &line])
            .output()
    }

    /// What is not as the row says.
    fn fault_of(&self, row: &Row) -> Option<String> {
        let refused = self.sh(row.provoke);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        let wrong =
            |what: &str, more: &str| Some(format!("{}\n{what}: {more}\n{said}", row.provoke));
        if refused.status.success() {
            return wrong("it did not fail", "");
        }
        if row.says.is_empty() || row.hint.is_empty() || row.follow.is_empty() {
            return wrong("the row is empty", "");
        }
        // What the program makes itself of a line that it cannot read has its hint in the message.
        let (message, hint) = said.split_once("\n  to do: ").unwrap_or((&said, &said));
        if !said.contains("\n  to do: ") && !said.contains("For more information, try '--help'") {
            return wrong("there is no hint", "");
        }
        let expand = |text: &str| text.replace("$P", &self.place);
        if let Some(absent) = row
            .says
            .iter()
            .find(|text| !message.contains(&expand(text)))
        {
            return wrong("the message does not say", absent);
        }
        if !hint.contains(&expand(row.hint)) {
            return wrong("the hint does not say", row.hint);
        }
        let followed = self.sh(row.follow);
        match followed.status.success() {
            true => None,
            false => wrong(
                "the hint does not help",
                &String::from_utf8_lossy(&followed.stderr),
            ),
        }
    }
}

#[test]
fn each_error_of_datastore_verbs_has_a_hint_that_works() {
    check(datastores::ROWS);
}

#[test]
fn each_error_of_creating_and_changing_disks_has_a_hint_that_works() {
    check(disks::MADE);
}

#[test]
fn each_error_of_serving_disks_has_a_hint_that_works() {
    check(disks::SERVED);
}

#[test]
fn each_error_of_import_and_export_has_a_hint_that_works() {
    check(images::ROWS);
}

#[test]
fn errors_of_the_verbs_around_them_have_hints_that_work() {
    check(others::ROWS);
}
