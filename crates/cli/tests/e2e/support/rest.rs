//! One connection to a daemon's REST interface, kept for thousands of requests: what a management program does.
//!
//! # Source
//! HTTP/1.1 over a Unix socket, with `Content-Length` both ways.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::program::PATIENCE;

/// A connection.
pub(crate) struct Rest {
    stream: BufReader<UnixStream>,
}

impl Rest {
    /// Connects.
    pub(crate) fn connect(socket: &Path) -> Rest {
        let stream = UnixStream::connect(socket).expect("the daemon listens");
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a deadline can be set");
        Rest {
            stream: BufReader::new(stream),
        }
    }

    /// Asks, and fails the test unless the daemon is content. What it answered.
    pub(crate) fn ask(&mut self, method: &str, path: &str, body: &str) -> String {
        let (status, answer) = self.attempt(method, path, body);
        assert!(
            (200..300).contains(&status),
            "{method} {path} {body}: {status}\n{answer}"
        );
        answer
    }

    /// Asks; the status, and what it answered.
    pub(crate) fn attempt(&mut self, method: &str, path: &str, body: &str) -> (u16, String) {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: tidegate\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream
            .get_mut()
            .write_all(request.as_bytes())
            .expect("the daemon listens");
        let status = self.line();
        let mut length = 0;
        loop {
            let header = self.line().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length is a number");
            }
        }
        let mut answer = vec![0; length];
        self.stream
            .read_exact(&mut answer)
            .expect("an answer is as long as it says");
        let code = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        (
            code.expect("an answer has a status"),
            String::from_utf8_lossy(&answer).into_owned(),
        )
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream
            .read_line(&mut line)
            .expect("the daemon answers in time");
        assert!(!line.is_empty(), "the daemon hung up");
        line.trim_end().to_owned()
    }
}
