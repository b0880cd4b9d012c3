//! The sender of records to the systemd journal, which never blocks: records that the journal does not take are lost
//! and counted.
//!
//! A journal may hang: the file system of its files hangs, or it is being restarted. No thread may wait for it, least
//! of all an I/O thread: the journal's files may be on one of its own disks. (`tracing-journald` uses a blocking
//! socket that is private to it.)
//!
//! # Picture
//! A record is one datagram with one field per line. A value that contains line breaks has its length before it:
//! ```text
//! MESSAGE=the datastore fails disk=7 error="of two\nlines"
//! PRIORITY=4
//! F_DISK=7
//! F_ERROR\n<8 bytes, little-endian: the length>of two\nlines\n
//! ```
//!
//! # Always true
//! - A record is sent only if the kernel takes it at once.
//! - A loss of records is logged before the next record that is taken.
//!
//! # Source
//! <https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>; names of fields: systemd.journal-fields(7). Ours begin with `F_`, as
//! those of `tracing-journald` do.

use std::fmt::Debug;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use super::lost::{self, Lost};

/// The socket where the journal listens.
const SOCKET: &str = "/run/systemd/journal/socket";
/// The identifier of our records (`journalctl -t`).
const IDENTIFIER: &str = "tidegate";
/// The longest value that is sent, in bytes: a record must fit into one datagram.
const LONGEST: usize = 16 * 1024;

/// See the module.
pub(super) struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
    lost: &'static Lost,
}

impl Journal {
    /// The machine's journal.
    ///
    /// # Errors
    /// There is no journal, or none that listens.
    pub(super) fn of_this_machine(lost: &'static Lost) -> io::Result<Journal> {
        Journal::at(Path::new(SOCKET), lost)
    }

    fn at(path: &Path, lost: &'static Lost) -> io::Result<Journal> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        match socket.send_to(&[], path) {
            // A journal that is busy now still exists.
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
        let path = path.to_owned();
        Ok(Journal { socket, path, lost })
    }

    /// Sends a record if it is taken at once. Before it, reports the loss of others.
    fn send(&self, record: &Record) {
        let untold = self.lost.take_untold();
        if untold > 0 && !self.takes(&Record::of_lost(untold)) {
            self.lost.give_back(untold);
            self.lost.one_more();
        } else if !self.takes(record) {
            self.lost.one_more();
        }
    }

    fn takes(&self, record: &Record) -> bool {
        loop {
            match self.socket.send_to(&record.0, &self.path) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                sent => return sent.is_ok(),
            }
        }
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let told = event.metadata();
        let mut record = Record::new(*told.level());
        record.put("TARGET", told.target());
        if let Some(file) = told.file() {
            record.put("CODE_FILE", file);
        }
        if let Some(line) = told.line() {
            record.put("CODE_LINE", &line.to_string());
        }
        let mut words = Words::default();
        event.record(&mut Both {
            record: &mut record,
            words: &mut words,
        });
        record.put("MESSAGE", &words.line());
        self.send(&record);
    }
}

/// The content of one datagram.
struct Record(Vec<u8>);

impl Record {
    fn new(level: Level) -> Record {
        // As in `tracing-journald`: every level has a priority of its own, and INFO is NOTICE.
        let priority = match level {
            Level::ERROR => "3",
            Level::WARN => "4",
            Level::INFO => "5",
            Level::DEBUG => "6",
            Level::TRACE => "7",
        };
        let mut record = Record(Vec::with_capacity(512));
        record.put("PRIORITY", priority);
        record.put("SYSLOG_IDENTIFIER", IDENTIFIER);
        record
    }

    /// A record that reports this number of lost records.
    fn of_lost(records: u64) -> Record {
        let mut record = Record::new(Level::WARN);
        record.put("MESSAGE", &format!("{} lines={records}", lost::WORDS));
        record.put("F_LINES", &records.to_string());
        record
    }

    fn put(&mut self, name: &str, value: &str) {
        let mut end = value.len().min(LONGEST);
        while !value.is_char_boundary(end) {
            end -= 1;
        }
        let value = &value[..end];
        self.0.extend_from_slice(name.as_bytes());
        if value.contains('\n') {
            self.0.push(b'\n');
            self.0
                .extend_from_slice(&(value.len() as u64).to_le_bytes());
        } else {
            self.0.push(b'=');
        }
        self.0.extend_from_slice(value.as_bytes());
        self.0.push(b'\n');
    }
}

/// The message that the journal lists, which shows no fields: the text, and the fields formatted as in text lines.
#[derive(Default)]
struct Words {
    message: String,
    fields: String,
}

impl Words {
    fn line(mut self) -> String {
        self.message.push_str(&self.fields);
        self.message
    }
}

/// The two outputs of an event's fields.
struct Both<'a> {
    record: &'a mut Record,
    words: &'a mut Words,
}

impl Both<'_> {
    fn put(&mut self, field: &Field, value: &str, shown: &str) {
        self.record.put(&name(field.name()), value);
        let fields = [" ", field.name(), "=", shown];
        self.words.fields.extend(fields);
    }
}

impl Visit for Both<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value, &format!("{value:?}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let value = format!("{value:?}");
        if field.name() == "message" {
            self.words.message = value;
        } else {
            self.put(field, &value, &value);
        }
    }
}

/// Converts a field's name for the journal, which accepts capitals, digits and underscores.
fn name(field: &str) -> String {
    let letters = field.chars().filter_map(|letter| match letter {
        '.' => Some('_'),
        '_' | '0'..='9' | 'a'..='z' | 'A'..='Z' => Some(letter.to_ascii_uppercase()),
        _ => None,
    });
    "F_".chars().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A test journal that reads records.
    struct Reader(UnixDatagram);

    impl Reader {
        /// Receives records until one is not empty, and returns its fields.
        fn next(&self) -> BTreeMap<String, String> {
            let mut bytes = vec![0; 1 << 18];
            loop {
                let len = self.0.recv(&mut bytes).expect("a record comes");
                if len > 0 {
                    return fields(&bytes[..len]);
                }
            }
        }
    }

    /// Parses a record by the protocol's rules.
    fn fields(mut record: &[u8]) -> BTreeMap<String, String> {
        let mut fields = BTreeMap::new();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("it is text");
        while !record.is_empty() {
            let end = record.iter().position(|&b| b == b'\n');
            let end = end.expect("a line ends");
            let (line, rest) = (&record[..end], &record[end + 1..]);
            let (name, value) = if let Some(at) = line.iter().position(|&b| b == b'=') {
                record = rest;
                (&line[..at], &line[at + 1..])
            } else {
                let (len, rest) = rest.split_first_chunk().expect("it has a length");
                let len = usize::try_from(u64::from_le_bytes(*len)).expect("a short one");
                assert_eq!(rest[len], b'\n');
                record = &rest[len + 1..];
                (line, &rest[..len])
            };
            fields.insert(text(name), text(value));
        }
        fields
    }

    fn journal() -> (tempfile::TempDir, Reader, Journal) {
        let place = tempfile::tempdir().expect("a directory can be made");
        let path = place.path().join("socket");
        let reader = UnixDatagram::bind(&path).expect("a socket can be bound");
        let waits = reader.set_read_timeout(Some(PATIENCE));
        waits.expect("its patience can be set");
        let lost = Box::leak(Box::new(Lost::none()));
        let journal = Journal::at(&path, lost).expect("it listens");
        (place, Reader(reader), journal)
    }

    #[test]
    fn a_record_has_the_words_the_fields_and_where_it_comes_from() {
        let (_place, reader, journal) = journal();
        let long = "ä".repeat(LONGEST);
        let error = "of two\nlines";
        tracing::subscriber::with_default(tracing_subscriber::registry().with(journal), || {
            tracing::warn!(disk = 7, error, on.r#where = %"there", long, "it {}", "fails");
        });
        let fields = reader.next();
        for (name, value) in [
            ("PRIORITY", "4"),
            ("SYSLOG_IDENTIFIER", "tidegate"),
            ("TARGET", module_path!()),
            ("CODE_FILE", file!()),
            ("F_DISK", "7"),
            ("F_ERROR", error),
            ("F_ON_WHERE", "there"),
            ("F_LONG", &long[..LONGEST]),
        ] {
            assert_eq!(fields.get(name).map(String::as_str), Some(value), "{name}");
        }
        let words = r#"it fails disk=7 error="of two\nlines" on.where=there long=""#;
        assert!(fields["MESSAGE"].starts_with(words), "{fields:?}");
        let line = fields["CODE_LINE"].parse::<u32>();
        assert!(line.is_ok_and(|line| line > 0));
    }

    #[test]
    fn a_journal_that_stands_still_holds_nobody_up_and_hears_later_what_it_missed() {
        let (_place, reader, journal) = journal();
        let lost = journal.lost;
        let say = |journal: &Journal, word: &str| {
            let mut record = Record::new(Level::INFO);
            record.put("MESSAGE", word);
            journal.send(&record);
        };
        // In a thread of its own, because a blocking send to such a journal would never return.
        let (told, hears) = mpsc::channel();
        thread::spawn(move || {
            let mut fitted = 0;
            loop {
                say(&journal, "early");
                if lost.ever() > 0 {
                    break;
                }
                fitted += 1;
            }
            for _ in 0..9 {
                say(&journal, "late");
            }
            let _ = told.send((journal, fitted));
        });
        let (journal, fitted) = hears.recv_timeout(PATIENCE).expect("nobody is held up");
        assert_eq!(lost.ever(), 10);

        for _ in 0..fitted {
            assert_eq!(reader.next()["MESSAGE"], "early");
        }
        say(&journal, "again");
        let missed = reader.next();
        assert_eq!(missed["MESSAGE"], format!("{} lines=10", lost::WORDS));
        assert_eq!(missed["F_LINES"], "10");
        assert_eq!(reader.next()["MESSAGE"], "again");
        drop(reader);
        say(&journal, "to nobody");
        assert_eq!(lost.ever(), 11);
    }

    #[test]
    fn where_nothing_listens_there_is_no_journal() {
        let place = tempfile::tempdir().expect("a directory can be made");
        let lost = Box::leak(Box::new(Lost::none()));
        assert!(Journal::at(&place.path().join("socket"), lost).is_err());
    }
}
