//! Lets arbitrary bytes be an NBD server: the handshake, then replies.
//!
//! Input: one byte of preferences; the rest is what the server sends.
//!
//! # Always true
//! - Cut into single bytes, the stream is understood in the same way.
//! - A waiting client says how much it waits for, more than there is and no more than its limit.
//! - Data is only ever placed within what was asked for.

use tidegate_core::request::{Flags, Op};
use tidegate_front::nbd::client::handshake::{ANSWER_MAX, Handshake, Preferences, Step};
use tidegate_front::nbd::client::requests::{Part, Replies, Sent, Step as Heard, What};
use tidegate_front::nbd::wire::ANSWER_BYTES;

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let Some((preferences, said)) = input.split_first() else {
        return;
    };
    let preferences = Preferences {
        export: "disk0".to_owned(),
        structured: preferences & 1 != 0,
        extents: preferences & 2 != 0,
        tls: preferences & 4 != 0,
    };
    let whole = negotiate(&preferences, said, usize::MAX);
    let bytewise = negotiate(&preferences, said, 1);
    assert_eq!(
        whole, bytewise,
        "how the stream was cut changed the outcome"
    );
    let (used, step, _) = whole;
    if let Step::Finished(negotiated) = step {
        hear(&Replies::new(&negotiated), &said[used..]);
    }
}

fn negotiate(preferences: &Preferences, said: &[u8], piece: usize) -> (usize, Step, Vec<u8>) {
    let mut client = Handshake::new(preferences.clone());
    let (mut used, mut out) = (0, Vec::new());
    let mut seen = piece.min(said.len());
    loop {
        let (took, step) = client.advance(&said[used..seen], &mut out);
        used += took;
        match step {
            Step::StartTls => client = client.inside_tls(),
            Step::Need(bytes) => {
                assert!(bytes > seen - used, "waits for what it has");
                assert!(
                    bytes <= ANSWER_BYTES + ANSWER_MAX,
                    "waits for more than its limit"
                );
                if seen == said.len() {
                    return (used, Step::Need(bytes), out);
                }
                seen = seen.saturating_add(piece).min(said.len());
            }
            step => return (used, step, out),
        }
    }
}

fn hear(replies: &Replies, mut said: &[u8]) {
    // The low bits of a cookie say what was asked, so that every kind of request is in flight.
    let sent = |cookie: u64| {
        let op = Op::ALL[usize::try_from(cookie % 8).expect("small").min(6)];
        (cookie < 1 << 16).then_some(Sent {
            op,
            flags: Flags::NONE,
            offset: 4096,
            len: 8192,
        })
    };
    loop {
        let Part {
            cookie,
            what,
            consumed,
            ..
        } = match replies.decode(said, sent) {
            Heard::Violation(_) => return,
            Heard::Need(bytes) => {
                assert!(bytes > said.len(), "waits for what it has");
                return assert!(bytes <= 8 << 10, "waits for more than any header");
            }
            Heard::Part(part) => part,
        };
        assert!((1..=said.len()).contains(&consumed));
        let follows = match what {
            What::Data { offset, len } => {
                within(offset, len);
                assert_eq!(sent(cookie).map(|sent| sent.op), Some(Op::Read));
                len
            }
            What::Zeroes { offset, len } => {
                within(offset, len);
                0
            }
            What::Extents { bytes } => bytes,
            What::Nothing | What::Failed(_) => 0,
        };
        let end = consumed.saturating_add(usize::try_from(follows).expect("a length fits"));
        said = said.get(end..).unwrap_or_default();
    }
}

fn within(offset: u64, len: u32) {
    assert!(
        offset >= 4096 && offset + u64::from(len) <= 4096 + 8192,
        "out of place"
    );
}
