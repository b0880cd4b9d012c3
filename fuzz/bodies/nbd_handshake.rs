//! Lets arbitrary bytes negotiate with the NBD server, whole and byte by byte.
//!
//! Input: one byte chooses the TLS policy and how lookups are answered; the rest is what the client sends.
//!
//! # Always true
//! - Both ways consume the same, answer the same and end the same.
//! - A waiting server says how much it waits for, more than there is and no more than its limit.
//! - The answers are no longer than what the client sent, by a factor.

use tidegate_front::nbd::handshake::{
    ExportInfo, Handshake, Negotiated, OPTION_MAX, Refusal, Step, Tls,
};
use tidegate_front::nbd::wire::{Abilities, OPTION_BYTES};

/// Bytes of answer per byte of input: INFO for a long list of facts gives some 250 bytes for 22, a list 60 for 16.
const FACTOR: usize = 16;

/// How a conversation ended, and what was said in it.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    steps: Vec<Step>,
    used: usize,
    said: Vec<u8>,
}

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let Some((choice, sent)) = input.split_first() else {
        return;
    };
    let whole = converse(*choice, sent, usize::MAX);
    let bytewise = converse(*choice, sent, 1);
    assert_eq!(
        whole, bytewise,
        "how the stream was cut changed the outcome"
    );
    assert!(
        whole.said.len() <= 1024 + FACTOR * sent.len(),
        "answers out of proportion"
    );
}

fn converse(choice: u8, sent: &[u8], piece: usize) -> Ended {
    let tls = if choice & 1 == 0 {
        Tls::Off
    } else {
        Tls::Required
    };
    let mut server = Handshake::new(tls);
    let mut ended = Ended {
        steps: Vec::new(),
        used: 0,
        said: Vec::new(),
    };
    let mut seen = piece.min(sent.len());
    loop {
        let (used, step) = server.advance(&sent[ended.used..seen], &mut ended.said);
        ended.used += used;
        match step {
            Step::Need(bytes) => {
                assert!(bytes > seen - ended.used, "waits for what it has");
                assert!(
                    bytes <= OPTION_BYTES + OPTION_MAX,
                    "waits for more than its limit"
                );
                if seen == sent.len() {
                    return ended;
                }
                seen = seen.saturating_add(piece).min(sent.len());
                continue;
            }
            Step::Lookup(ref name) => server.found(answer(choice, name), &mut ended.said),
            Step::List => {
                let none = choice & 8 != 0;
                let list = [("disk0", "a disk"), ("disk1", "")];
                let answer = if none {
                    Err(Refusal::NotAllowed)
                } else {
                    Ok(list)
                };
                server.listed(answer, &mut ended.said);
            }
            Step::StartTls => {
                server = server.inside_tls();
            }
            Step::Finished(ref negotiated) => {
                check(negotiated);
                ended.steps.push(step);
                return ended;
            }
            Step::Aborted | Step::Violation(_) => {
                ended.steps.push(step);
                return ended;
            }
        }
        ended.steps.push(step);
    }
}

fn answer(choice: u8, name: &str) -> Result<ExportInfo, Refusal> {
    match (choice & 2 != 0, choice & 4 != 0) {
        (true, true) => Err(Refusal::ShuttingDown),
        (true, false) => Err(Refusal::NotAllowed),
        (false, true) if !name.is_empty() => Err(Refusal::Unknown),
        _ => Ok(ExportInfo {
            name: if name.is_empty() {
                "disk0".to_owned()
            } else {
                name.to_owned()
            },
            size: 1 << 30,
            abilities: Abilities::from_bits(u16::from(choice) << 2),
            ..ExportInfo::default()
        }),
    }
}

fn check(negotiated: &Negotiated) {
    let abilities = negotiated.export.abilities;
    assert!(abilities.has(Abilities::HAS_FLAGS));
    assert_eq!(abilities.has(Abilities::DF), negotiated.structured);
    assert!(negotiated.structured || negotiated.context.is_none());
}
