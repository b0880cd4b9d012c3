//! A host: one Tidegate daemon with a root of its own, set up by its command line as an administrator would do it.
//!
//! Scenarios, A/B tests, the demonstration and the bench use it.
//!
//! # Always true
//! - The daemon has ended once the value is dropped.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use tidegate_testing::server::{Launch, Server};

/// How long a daemon may take for an answer, and until it serves.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often it is asked whether it serves.
const RETRY: Duration = Duration::from_millis(10);
/// How long it may take to stop before it is killed.
const STOPS_WITHIN: Duration = Duration::from_secs(5);

/// How to start a host.
#[derive(Clone, Debug)]
pub struct HostOptions<'a> {
    /// The binary.
    pub program: &'a Path,
    /// The host's name in messages.
    pub name: &'a str,
    /// The daemon's root; it is created.
    pub root: &'a Path,
    /// The text of `tidegate.toml`.
    pub config: &'a str,
    /// The one CPU on which the daemon runs; none for anywhere.
    pub cpu: Option<usize>,
    /// Whether a terminal's signals must not reach the daemon.
    pub own_group: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Host {
    name: String,
    program: PathBuf,
    root: PathBuf,
    server: Server,
    status: Value,
}

impl Host {
    /// Starts the daemon and waits until it serves.
    ///
    /// # Errors
    /// The root cannot be made, or the daemon does not serve in time.
    pub fn start(options: &HostOptions<'_>) -> Result<Self> {
        let root = options.root;
        std::fs::create_dir_all(root)
            .with_context(|| format!("cannot create {}", root.display()))?;
        let config = root.join("tidegate.toml");
        std::fs::write(&config, options.config)
            .with_context(|| format!("cannot write {}", config.display()))?;
        let launch = Launch {
            own_group: options.own_group,
            ..daemon(options.program, root, Vec::new(), options.cpu)
        };
        let mut host = Self {
            name: options.name.to_owned(),
            program: options.program.to_owned(),
            root: root.to_owned(),
            server: Server::start(&launch, root)?,
            status: Value::Null,
        };
        let deadline = Instant::now() + PATIENCE;
        host.status = loop {
            match host.get("/v1/status") {
                Ok(status) => break status,
                Err(late) if Instant::now() > deadline => {
                    return Err(late.context(host.server.log_tail()));
                }
                Err(_) => host.check_alive()?,
            }
            std::thread::sleep(RETRY);
        };
        Ok(host)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its daemon's root.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The address of its dashboard; empty if it has none.
    #[must_use]
    pub fn dashboard(&self) -> &str {
        self.status["dashboard"].as_str().unwrap_or_default()
    }

    /// The daemon's process.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Runs `tidegate --root ROOT WORDS`; returns its output.
    ///
    /// # Errors
    /// The command fails; the error has what it printed.
    pub fn run(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        command
            .arg("--root")
            .arg(&self.root)
            .args(words)
            .stdin(Stdio::null());
        let output = command.output();
        let output = output.with_context(|| format!("cannot start {}", self.program.display()))?;
        if !output.status.success() {
            let says = String::from_utf8_lossy(&output.stderr);
            bail!("tidegate {}: {}", words.join(" "), says.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs a command with `-o json`; returns the document.
    ///
    /// # Errors
    /// The command fails, or prints no JSON.
    pub fn json(&self, words: &[&str]) -> Result<Value> {
        let text = self.run(&[words, &["-o", "json"]].concat())?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} -o json is not JSON", words.join(" ")))
    }

    /// Creates and attaches a disk; returns its vhost-user socket.
    ///
    /// # Errors
    /// The daemon refuses.
    pub fn create_disk(&self, name: &str, datastore: &str, more: &[&str]) -> Result<PathBuf> {
        let create = [
            "disk",
            "create",
            name,
            "--datastore",
            datastore,
            "--size",
            "1G",
            "--attach",
        ];
        let created = self.json(&[&create[..], more].concat())?;
        let socket = created["vhost_user_socket"].as_str();
        let socket = socket.with_context(|| format!("disk {name} has no vhost_user_socket"))?;
        Ok(socket.into())
    }

    /// The answer of its REST interface to `GET path`.
    ///
    /// # Errors
    /// It does not answer, or not with a document.
    pub fn get(&self, path: &str) -> Result<Value> {
        let asked = || -> Result<Value> {
            let stream = UnixStream::connect(self.root.join("run/tidegate.sock"))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            serde_json::from_str(&http_get(stream, "localhost", path)?)
                .context("the answer is no JSON")
        };
        asked().with_context(|| format!("{} does not answer to GET {path}", self.name))
    }

    /// Fails if the daemon has ended.
    ///
    /// # Errors
    /// It has ended; the error has its last words.
    pub fn check_alive(&mut self) -> Result<()> {
        match self.server.ended()? {
            None => Ok(()),
            Some(status) => bail!(
                "the daemon of {} has ended, {status}: {}",
                self.name,
                self.server.log_tail()
            ),
        }
    }

    /// Asks the daemon to stop and does not wait.
    pub fn terminate(&self) {
        self.server.terminate();
    }

    /// Waits a while for the daemon that was asked to stop; then it is killed.
    pub fn wait(mut self) {
        let deadline = Instant::now() + STOPS_WITHIN;
        while matches!(self.server.ended(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(RETRY);
        }
    }

    /// Its daemon alone.
    #[must_use]
    pub fn into_server(self) -> Server {
        self.server
    }

    /// Stops the daemon.
    ///
    /// # Errors
    /// It does not stop.
    pub fn stop(self) -> Result<()> {
        self.server.stop()
    }
}

/// The body of the answer to `GET path`.
///
/// # Errors
/// There is no answer, or one with another status than 200.
pub fn http_get(mut stream: impl Read + Write, host: &str, path: &str) -> Result<String> {
    let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
        _ => bail!("GET {path}: {answer}"),
    }
}

/// The command line of a daemon whose root is there.
#[must_use]
pub fn daemon(program: &Path, root: &Path, sockets: Vec<PathBuf>, cpu: Option<usize>) -> Launch {
    Launch {
        name: "tidegate".into(),
        program: program.to_owned(),
        arguments: vec!["--root".into(), root.into(), "serve".into()],
        sockets,
        cpu,
        own_group: false,
    }
}
