//! The writer of log lines, which never blocks: lines that do not fit while no reader takes them are lost and counted.
//!
//! Standard error may be a pager that waits for a key, a terminal stopped by Ctrl-S, or a collector that hangs. A
//! blocking write would stop the control plane. It would also stop an I/O thread whose datastore fails, with all its
//! disks.
//!
//! # Always true
//! - A line is written only if the kernel has room for it at once. Of a longer line, only the part that fits is
//!   written.
//! - A writer has exclusive access to standard error: no other writer of this process uses the room that it found.
//! - A loss of lines is logged before the next line that can be written.
//!
//! # Source
//! poll(2); pipe(7): a writable pipe has room for `PIPE_BUF` bytes.

use std::io::{self, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::lost::{self, Lost};

/// The most that is written at once (`PIPE_BUF`): longer lines are written in pieces.
const AT_ONCE: usize = 4096;
const NO_TIME: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// The target of one line, to which its writer has exclusive access.
pub(super) struct Line<'a, W> {
    pub(super) to: W,
    pub(super) lost: &'a Lost,
}

impl<W: Write + AsFd> Write for Line<'_, W> {
    /// Takes a piece of a line; takes the whole line if it is lost.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if has_room(&self.to) {
            tell(self.lost);
        }
        // The loss report may have used up the room.
        if has_room(&self.to) {
            match self.to.write(&line[..line.len().min(AT_ONCE)]) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {}
                taken => return taken,
            }
        }
        self.lost.one_more();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs the lost lines that have not been reported yet, in the log's own format.
fn tell(lost: &Lost) {
    let lines = lost.take_untold();
    if lines > 0 {
        tracing::warn!(lines, "{}", lost::WORDS);
    }
}

/// Whether the kernel takes a piece at once, or reports at once that it never will.
fn has_room(to: &impl AsFd) -> bool {
    let mut asked = [PollFd::new(to, PollFlags::OUT)];
    // A target that cannot be polled is written to without a check.
    poll(&mut asked, Some(&NO_TIME)).map_or(true, |_| !asked[0].revents().is_empty())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{PipeWriter, Read};

    use super::*;

    const LINE: &[u8] = &[b'x'; 100];

    /// Writes until there is no room; returns how many lines fitted.
    fn fill(line: &mut Line<'_, &PipeWriter>) -> usize {
        let mut fitted = 0;
        loop {
            line.write_all(LINE).expect("nobody hears of a failure");
            if line.lost.ever() > 0 {
                return fitted;
            }
            fitted += 1;
        }
    }

    #[test]
    fn what_nobody_reads_is_lost_and_counted_until_somebody_does() {
        let (mut reader, writer) = io::pipe().expect("a pipe can be made");
        let lost = Lost::none();
        let mut line = Line {
            to: &writer,
            lost: &lost,
        };
        let fitted = fill(&mut line);
        for _ in 0..9 {
            line.write_all(LINE).expect("nobody hears of a failure");
        }
        let untold = lost.take_untold();
        assert_eq!((lost.ever(), untold), (10, 10));
        lost.give_back(untold);

        let mut read = vec![0; fitted * LINE.len()];
        reader.read_exact(&mut read).expect("what fitted is there");
        line.write_all(b"again\n")
            .expect("nobody hears of a failure");
        assert_eq!((lost.ever(), lost.take_untold()), (10, 0));
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).expect("the rest is text");
        assert_eq!(rest, "again\n");
    }

    #[test]
    fn a_line_that_is_longer_than_what_is_taken_at_once_arrives_whole() {
        let mut file = tempfile::tempfile().expect("a file can be made");
        let long: Vec<u8> = (0..=250).cycle().take(3 * AT_ONCE + 5).collect();
        let lost = Lost::none();
        let to: &File = &file;
        let mut line = Line { to, lost: &lost };
        line.write_all(&long).expect("nobody hears of a failure");
        let mut found = Vec::new();
        io::Seek::rewind(&mut file).expect("a file has a beginning");
        file.read_to_end(&mut found).expect("a file can be read");
        assert!(found == long && lost.ever() == 0);
    }

    #[test]
    fn lines_to_who_has_gone_are_lost_and_are_no_failure() {
        let (reader, writer) = io::pipe().expect("a pipe can be made");
        drop(reader);
        let lost = Lost::none();
        let mut line = Line {
            to: &writer,
            lost: &lost,
        };
        line.write_all(LINE).expect("nobody hears of a failure");
        assert_eq!(lost.ever(), 1);
    }
}
