//! The programs that some fast tests run, and which tests `check` leaves out where a program is missing.
//!
//! `check` installs nothing. A test that needs a program which is not on the path is left out, and named. `test` leaves out
//! nothing: it installs what is missing, and a test fails without its program.

use crate::workspace::Workspace;
use anyhow::ensure;
use std::path::Path;

/// Tests, and the programs that they run.
struct Need {
    tests: Tests,
    programs: &'static [&'static str],
}

/// Some of the fast tests.
#[derive(Clone, Copy)]
enum Tests {
    /// All of a test target.
    Target(&'static str),
    /// Those whose names contain this.
    Named(&'static str),
}

const NEEDS: &[Need] = &[
    Need {
        tests: Tests::Target("nbd_peers"),
        programs: &[
            "nbdcopy", "nbdinfo", "nbdkit", "nbdsh", "qemu-img", "qemu-io", "qemu-nbd",
        ],
    },
    Need {
        tests: Tests::Target("images"),
        programs: &["qemu-img", "qemu-io", "losetup"],
    },
    Need {
        tests: Tests::Target("bench"),
        programs: &["fio", "nbdkit", "taskset", "valgrind"],
    },
    Need {
        tests: Tests::Target("clients"),
        programs: &["nbdkit", "qemu-storage-daemon"],
    },
    Need {
        tests: Tests::Target("rest"),
        programs: &["kill"],
    },
    Need {
        tests: Tests::Target("adversity"),
        programs: &["kill", "prlimit", "setpriv"],
    },
    Need {
        tests: Tests::Target("lab"),
        programs: &["kill"],
    },
    Need {
        tests: Tests::Target("demo"),
        programs: &["kill"],
    },
    Need {
        tests: Tests::Named("piped::"),
        programs: &["kill", "script"],
    },
    Need {
        tests: Tests::Named("an_nbd_server_of_another_make"),
        programs: &["nbdkit"],
    },
    Need {
        tests: Tests::Named("listen::tls::tests::"),
        programs: &["openssl"],
    },
];

/// What is left out of the fast tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// Whole test targets.
    pub(crate) targets: Vec<&'static str>,
    /// Parts of test names.
    pub(crate) names: Vec<&'static str>,
}

impl LeftOut {
    /// What needs programs that are not on the path; prints each with the programs.
    pub(crate) fn here(workspace: &Workspace) -> anyhow::Result<LeftOut> {
        for need in NEEDS {
            if let Tests::Target(name) = need.tests {
                ensure!(
                    workspace.test_targets().any(|target| target == name),
                    "xtask/src/needs.rs names {name}, which is no test target: bring it up to date"
                );
            }
        }
        Ok(LeftOut::without(is_on_the_path))
    }

    fn without(is_there: impl Fn(&str) -> bool) -> LeftOut {
        let mut left_out = LeftOut::default();
        for need in NEEDS {
            let programs = need.programs.iter().copied();
            let missing: Vec<&str> = programs.filter(|program| !is_there(program)).collect();
            if missing.is_empty() {
                continue;
            }
            let name = match need.tests {
                Tests::Target(name) => {
                    left_out.targets.push(name);
                    name
                }
                Tests::Named(name) => {
                    left_out.names.push(name);
                    name
                }
            };
            println!(
                "  left out: the tests `{name}`, which need {}; `cargo xtask test` installs that",
                missing.join(", ")
            );
        }
        left_out
    }
}

fn is_on_the_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Programs of the superuser are not on everybody's path.
    let mut places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    places.any(|place| Path::new(&place).join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_out_where_every_program_is_there() {
        assert_eq!(LeftOut::without(|_| true), LeftOut::default());
    }

    #[test]
    fn what_needs_a_missing_program_is_left_out_and_nothing_else() {
        let left_out = LeftOut::without(|program| program != "qemu-img");
        assert_eq!(left_out.targets, ["nbd_peers", "images"]);
        assert_eq!(left_out.names, [""; 0]);
        let left_out = LeftOut::without(|program| program != "openssl");
        assert_eq!(left_out.names, ["listen::tls::tests::"]);
    }
}
