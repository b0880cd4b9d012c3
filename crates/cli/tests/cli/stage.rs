//! A daemon that is played: a REST server on a root's Unix socket that answers as a test says, and the program on it.

#![expect(
    clippy::unwrap_used,
    reason = "a stage that cannot be set ends the test there and then"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;

/// What the program asked.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// Method and path: `GET /v1/disks`.
    pub(crate) line: String,
    /// The body; null if there was none.
    pub(crate) body: Value,
}

/// Status and body; none: the connection ends without an answer. A body `{"stream": [...]}` becomes one of events.
pub(crate) type Answer = Option<(u16, Value)>;

/// How a run ended, and what it said.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A root, with a played daemon or without.
pub(crate) struct Stage {
    root: TempDir,
    asked: Arc<Mutex<Vec<Ask>>>,
}

impl Stage {
    /// Nobody plays the daemon.
    pub(crate) fn empty() -> Stage {
        Stage {
            root: TempDir::new().unwrap(),
            asked: Arc::default(),
        }
    }

    /// One question has an answer; any other is broken off.
    pub(crate) fn answering(line: &'static str, status: u16, body: Value) -> Stage {
        Stage::playing(move |ask| (ask.line == line).then(|| (status, body.clone())))
    }

    /// `play` answers.
    pub(crate) fn playing(play: impl Fn(&Ask) -> Answer + Send + 'static) -> Stage {
        Stage::counting(move |_, ask| play(ask))
    }

    /// `play` answers, and is told how many questions came before.
    pub(crate) fn counting(play: impl Fn(usize, &Ask) -> Answer + Send + 'static) -> Stage {
        let stage = Stage::empty();
        std::fs::create_dir(stage.path("run")).unwrap();
        let listener = UnixListener::bind(stage.path("run/tidegate.sock")).unwrap();
        let asked = Arc::clone(&stage.asked);
        // It ends with the test's process: nobody connects after the root is gone.
        thread::spawn(move || {
            for connection in listener.incoming() {
                let connection = connection.unwrap();
                let Some(ask) = read(&connection) else {
                    continue;
                };
                let nth = {
                    let mut asked = asked.lock().unwrap();
                    asked.push(ask.clone());
                    asked.len() - 1
                };
                if let Some((status, body)) = play(nth, &ask) {
                    write(connection, status, &body);
                }
            }
        });
        stage
    }

    /// A path below the root.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// What was asked so far.
    pub(crate) fn asked(&self) -> Vec<Ask> {
        self.asked.lock().unwrap().clone()
    }

    /// Runs the program without a terminal.
    pub(crate) fn run(&self, words: &[&str]) -> Run {
        let output = self.command().args(words).output().unwrap();
        Run {
            status: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs the program with an output that nobody reads any more.
    pub(crate) fn run_unread(&self, words: &[&str]) -> Run {
        let mut command = self.command();
        let mut child = command
            .args(words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        Run {
            status: output.status.code().unwrap(),
            out: String::new(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Asks the program as bash does when a person wants the last of `words` completed.
    pub(crate) fn complete(&self, words: &[&str]) -> Run {
        let mut command = self.command();
        command
            .env("COMPLETE", "bash")
            .env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
        command
            .env("_CLAP_COMPLETE_COMP_TYPE", "9")
            .env("_CLAP_COMPLETE_SPACE", "true")
            .env("_CLAP_IFS", "\n");
        let output = command.arg("--").args(words).output().unwrap();
        Run {
            status: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The program on this root, without a terminal.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command
            .env("TIDEGATE_ROOT", self.root.path())
            .current_dir(self.root.path());
        command.env_remove("LISTEN_FDS").stdin(Stdio::null());
        command
    }
}

fn read(connection: &UnixStream) -> Option<Ask> {
    let mut reader = BufReader::new(connection);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let mut words = first.split_whitespace();
    let line = format!("{} {}", words.next()?, words.next()?);
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        if header.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = if body.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&body).ok()?
    };
    Some(Ask { line, body })
}

fn write(mut connection: UnixStream, status: u16, body: &Value) {
    let (kind, body) = match (body, &body["stream"]) {
        (Value::Null, _) => ("application/json", String::new()),
        (_, Value::Array(events)) => {
            let event = |value: &Value| format!("event: sample\ndata: {value}\n\n");
            ("text/event-stream", events.iter().map(event).collect())
        }
        (body, _) => ("application/json", body.to_string()),
    };
    let length = body.len();
    // A 204 has neither body nor length; the others end where their length says.
    let head = match status {
        204 => "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n".to_owned(),
        _ => format!(
            "HTTP/1.1 {status} Played\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
        ),
    };
    // A program that has read enough closes its end first.
    let _ = connection.write_all(head.as_bytes());
    let _ = connection.write_all(body.as_bytes());
}
