//! `tidegate serve` with a root of its own, and the command line that talks to it.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output};

use super::place::Place;
use super::process::Process;
use super::program::{Program, Service, find};
use super::rest::Rest;
use super::server::TIDEGATE;

/// A running daemon of a host.
pub(crate) struct Daemon {
    service: Service,
    root: String,
}

impl Daemon {
    /// Starts one whose root is in `place`, and waits until it serves.
    pub(crate) fn start(place: &Place) -> Daemon {
        let root = place.join("root").display().to_string();
        let service = Service::start(
            "tidegate serve",
            TIDEGATE.as_ref(),
            &["serve".to_owned()],
            &[("TIDEGATE_ROOT", root.clone())],
        );
        let daemon = Daemon { service, root };
        daemon.run(&["status", "--wait", "20s"]);
        daemon
    }

    /// Starts one whose root is `root` in `place`, with more arguments to `serve`.
    pub(crate) fn start_with(place: &Place, root: &str, args: &[&str]) -> Daemon {
        let root = place.join(root).display().to_string();
        let mut words = vec!["serve".to_owned()];
        words.extend(args.iter().map(|arg| (*arg).to_owned()));
        let service = Service::start(
            "tidegate serve",
            TIDEGATE.as_ref(),
            &words,
            &[("TIDEGATE_ROOT", root.clone())],
        );
        let daemon = Daemon { service, root };
        daemon.run(&["status", "--wait", "20s"]);
        daemon
    }

    /// Starts one with two I/O threads, between which nothing moves disks by itself.
    pub(crate) fn start_with_two_threads(place: &Place) -> Daemon {
        let root = place.join("root");
        std::fs::create_dir_all(&root).expect("a directory can be made");
        let config = "[io]\nthreads = 2\npolicy = 'none'\n";
        std::fs::write(root.join("tidegate.toml"), config).expect("a file can be written");
        Daemon::start(place)
    }

    /// As [`Daemon::start`], but its log goes to a file.
    pub(crate) fn start_logging_to(place: &Place, log: &Path) -> Daemon {
        let root = place.join("root").display().to_string();
        let line = "exec \"$1\" serve 2> \"$2\"";
        let log = log.display().to_string();
        let service = Service::start(
            "tidegate serve",
            find("sh").as_os_str(),
            &["-c", line, "sh", TIDEGATE, &log].map(str::to_owned),
            &[("TIDEGATE_ROOT", root.clone())],
        );
        let daemon = Daemon { service, root };
        daemon.run(&["status", "--wait", "20s"]);
        daemon
    }

    /// Its root.
    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    /// Its process's number.
    pub(crate) fn id(&self) -> u32 {
        self.service.id()
    }

    /// Its process, as `/proc` shows it.
    pub(crate) fn process(&self) -> Process {
        Process::of(self.service.id())
    }

    /// A connection to its REST interface.
    pub(crate) fn rest(&self) -> Rest {
        Rest::connect(&PathBuf::from(&self.root).join("run/tidegate.sock"))
    }

    /// `tidegate ARGS`, whatever becomes of it.
    pub(crate) fn attempt(&self, args: &[&str]) -> Output {
        Program::at(TIDEGATE)
            .env("TIDEGATE_ROOT", &self.root)
            .args(args)
            .output()
    }

    /// `tidegate ARGS`, which must succeed. What it printed.
    pub(crate) fn run(&self, args: &[&str]) -> String {
        Program::at(TIDEGATE)
            .env("TIDEGATE_ROOT", &self.root)
            .args(args)
            .run()
    }

    /// What `tidegate ARGS -o json` answers.
    pub(crate) fn json(&self, args: &[&str]) -> serde_json::Value {
        let args: Vec<&str> = args.iter().copied().chain(["-o", "json"]).collect();
        serde_json::from_str(&self.run(&args)).expect("-o json is JSON")
    }

    /// The NBD address of a disk, as `disk show` tells it.
    pub(crate) fn nbd_uri(&self, disk: &str) -> String {
        self.shown(disk, "nbd_uri")
    }

    /// The vhost-user-blk socket of a disk, as `disk show` tells it.
    pub(crate) fn vhost_user(&self, disk: &str) -> PathBuf {
        self.shown(disk, "vhost_user_socket").into()
    }

    fn shown(&self, disk: &str, field: &str) -> String {
        let shown = self.json(&["disk", "show", disk]);
        let told = shown[field].as_str();
        told.unwrap_or_else(|| {
            panic!(
                "no {field} in:
{shown:#}"
            )
        })
        .to_owned()
    }

    /// All that it has said.
    pub(crate) fn said(&self) -> String {
        self.service.said.text()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.service.kill();
    }

    /// Asks it to stop with a signal; how it ended.
    pub(crate) fn stop(mut self, signal: &str) -> ExitStatus {
        self.service.stop(signal)
    }

    /// `kill -9`, then the same command again.
    pub(crate) fn crash_and_restart(&mut self) {
        self.service.kill();
        self.service = Service::start_again(
            &self.service.said.clone(),
            TIDEGATE.as_ref(),
            &["serve".to_owned()],
            &[("TIDEGATE_ROOT", self.root.clone())],
        );
        self.run(&["status", "--wait", "20s"]);
    }
}
