//! The client's negotiation: it asks for one export with all extensions that the server offers.
//!
//! The caller feeds [`Handshake::advance`] with what the server sent, sends what it appends, and carries out its
//! [`Step`]s. What the server does not know is done without, down to EXPORT_NAME; only TLS, where it is wished for,
//! is never done without.
//!
//! # Always true
//! - An answer is kept only until it is understood, and is at most [`ANSWER_MAX`] bytes.
//! - Without TLS where [`Wishes::tls`] says so, nothing is sent but the wish for it.
//!
//! # Picture
//! ```text
//! greeting -> (STARTTLS -> StartTls -> inside_tls()) -> (STRUCTURED_REPLY -> (SET_META_CONTEXT))
//!          -> GO -> Finished
//!             `-- not known --> EXPORT_NAME -> Finished
//! ```

use crate::nbd::handshake::BlockSizes;
use crate::nbd::wire::{
    ANSWER, ANSWER_BYTES, Abilities, BASE_ALLOCATION, Fields, GREETING, GREETING_BYTES, OPTION,
    PADDING_BYTES, PAYLOAD_MAX, STRING_MAX, hello, info, len32, option, reply,
};
use std::fmt;

/// The longest answer that is read: an export's description, with room to spare.
pub const ANSWER_MAX: usize = 8 << 10;
/// Answers that one server may give. GO has one for each kind of fact, of which there are four.
const ANSWERS_MAX: u32 = 256;

/// What the caller would like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// The export's name; empty for the default one.
    pub export: String,
    /// Whether reads may be answered in chunks.
    pub structured: bool,
    /// Whether to ask for extents, which needs `structured`.
    pub extents: bool,
    /// Whether to insist on TLS.
    pub tls: bool,
}

/// What both sides agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Bytes of the export.
    pub size: u64,
    /// What the server offers to do.
    pub abilities: Abilities,
    /// Sizes of requests that the server takes. If it tells none: at least 512 bytes, 32 MiB at most, as the
    /// protocol advises.
    pub block: BlockSizes,
    /// Whether reads are answered in chunks.
    pub structured: bool,
    /// The number of `base:allocation`, if extents may be asked for.
    pub context: Option<u32>,
}

/// What the caller does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Call again when at least so many unconsumed bytes are there.
    Need(usize),
    /// Make the connection a TLS one and go on with [`Handshake::inside_tls`].
    StartTls,
    /// The negotiation is over; what was not consumed is not expected, and belongs to replies.
    Finished(Negotiated),
    /// It came to nothing: close.
    Failed(Failure),
}

/// Why a negotiation came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The server does not greet like an NBD server.
    NotNbd,
    /// The server speaks the protocol's first form only, which nobody should.
    TooOld,
    /// TLS is wished for, and the server cannot.
    NoTls,
    /// The server said no.
    Refused {
        /// Its answer, of [`reply`].
        code: u32,
        /// Its words, if it had any.
        words: String,
    },
    /// An answer that fits no question, or has no sense.
    BadAnswer,
    /// An answer too long to be one, or too many.
    TooMuch,
    /// Sizes of requests that contradict each other.
    BadBlockSizes,
    /// The wished-for name is longer than the protocol allows.
    NameTooLong,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = match self {
            Failure::NotNbd => "it does not greet like an NBD server: is this the right port?",
            Failure::TooOld => "the server speaks oldstyle NBD only: use a newer server",
            Failure::NoTls => "the server does not offer TLS: enable it there, or use nbd:// here",
            Failure::BadAnswer => "the server's answer makes no sense",
            Failure::TooMuch => "the server's answer is too long",
            Failure::BadBlockSizes => "the server's block sizes contradict each other",
            Failure::NameTooLong => "an export's name has at most 4096 bytes",
            Failure::Refused { code, words } => {
                f.write_str(match *code {
                    reply::ERR_UNKNOWN => "the server has no such export",
                    reply::ERR_TLS_REQD => {
                        "the server requires TLS, which this client does not speak yet"
                    }
                    reply::ERR_POLICY => "the server does not allow it",
                    reply::ERR_SHUTDOWN => "the server is shutting down",
                    _ => "the server refused",
                })?;
                return match words.is_empty() {
                    true => Ok(()),
                    false => write!(f, " (it says: {})", plain_words(words)),
                };
            }
        };
        f.write_str(plain)
    }
}

impl std::error::Error for Failure {}

/// A server's words without what would change a terminal; quotes stay as they are.
fn plain_words(words: &str) -> String {
    let mut plain = String::with_capacity(words.len());
    for c in words.chars() {
        match c {
            '"' | '\'' | '\\' => plain.push(c),
            c => plain.extend(c.escape_debug()),
        }
    }
    plain
}

/// The negotiation of one connection.
#[derive(Clone, Debug)]
pub struct Handshake {
    wishes: Wishes,
    state: State,
    no_zeroes: bool,
    structured: bool,
    context: Option<u32>,
    told: Option<(u64, Abilities)>,
    block: BlockSizes,
    answers: u32,
}

#[derive(Clone, Debug)]
enum State {
    Greeting,
    /// Private now: the options begin with the next move.
    InsideTls,
    /// This option was sent and has not had its last answer.
    Asked(u32),
    ExportName,
    Ended(Step),
}

impl Handshake {
    /// For a fresh connection.
    pub fn new(wishes: Wishes) -> Handshake {
        let state = match wishes.export.len() {
            0..=STRING_MAX => State::Greeting,
            _ => State::Ended(Step::Failed(Failure::NameTooLong)),
        };
        Handshake {
            wishes,
            state,
            no_zeroes: false,
            structured: false,
            context: None,
            told: None,
            block: BlockSizes {
                minimum: 512,
                preferred: 4096,
                payload: PAYLOAD_MAX,
            },
            answers: 0,
        }
    }

    /// For the same connection after [`Step::StartTls`], now private. Nothing heard in the clear is kept but whether
    /// the padding is left out.
    #[must_use]
    pub fn inside_tls(&self) -> Handshake {
        let mut fresh = Handshake::new(self.wishes.clone());
        fresh.no_zeroes = self.no_zeroes;
        fresh.state = State::InsideTls;
        fresh
    }

    /// Goes as far as `input` allows. Answers with how much of it was consumed and what is to be done; what was
    /// appended to `out` is to be sent in every case.
    pub fn advance(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Step) {
        let mut used = 0;
        loop {
            match self.turn(&input[used..], out) {
                Ok(took) => used += took,
                Err(Step::Need(bytes)) => return (used, Step::Need(bytes)),
                Err(step) => {
                    self.state = State::Ended(step.clone());
                    return (used, step);
                }
            }
        }
    }

    /// One move: how much it took, or what the caller does.
    fn turn(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, Step> {
        match &self.state {
            State::Greeting => self.greeting(input, out),
            State::InsideTls => {
                self.ask_for_dialect(out);
                Ok(0)
            }
            State::Asked(option) => self.answer(*option, input, out),
            State::ExportName => self.export_name(input),
            State::Ended(step) => Err(step.clone()),
        }
    }

    fn greeting(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, Step> {
        let mut fields = Fields(input);
        let (Some(first), Some(second)) = (fields.u64(), fields.u64()) else {
            return Err(Step::Need(GREETING_BYTES));
        };
        if first != GREETING {
            return Err(Step::Failed(Failure::NotNbd));
        }
        if second != OPTION {
            return Err(Step::Failed(Failure::TooOld));
        }
        let offered = fields.u16().ok_or(Step::Need(GREETING_BYTES))?;
        let flags = offered & (hello::FIXED_NEWSTYLE | hello::NO_ZEROES);
        let fixed = flags & hello::FIXED_NEWSTYLE != 0;
        if self.wishes.tls && !fixed {
            return Err(Step::Failed(Failure::NoTls));
        }
        self.no_zeroes = flags & hello::NO_ZEROES != 0;
        out.extend_from_slice(&u32::from(flags).to_be_bytes());
        match (fixed, self.wishes.tls) {
            (true, true) => self.ask(option::STARTTLS, &[], out),
            (true, false) => self.ask_for_dialect(out),
            (false, _) => self.ask_plainly(out),
        }
        Ok(GREETING_BYTES)
    }

    fn ask_for_dialect(&mut self, out: &mut Vec<u8>) {
        match self.wishes.structured {
            true => self.ask(option::STRUCTURED_REPLY, &[], out),
            false => self.ask_to_go(out),
        }
    }

    fn ask_for_context(&mut self, out: &mut Vec<u8>) {
        let name = self.wishes.export.clone();
        let (name_len, query_len) = (len32(name.len()), len32(BASE_ALLOCATION.len()));
        let parts: &[&[u8]] = &[
            &name_len.to_be_bytes(),
            name.as_bytes(),
            &1_u32.to_be_bytes(),
            &query_len.to_be_bytes(),
            BASE_ALLOCATION.as_bytes(),
        ];
        self.ask(option::SET_META_CONTEXT, parts, out);
    }

    fn ask_to_go(&mut self, out: &mut Vec<u8>) {
        let name = self.wishes.export.clone();
        let parts: &[&[u8]] = &[
            &len32(name.len()).to_be_bytes(),
            name.as_bytes(),
            &1_u16.to_be_bytes(),
            &info::BLOCK_SIZE.to_be_bytes(),
        ];
        self.ask(option::GO, parts, out);
    }

    fn ask_plainly(&mut self, out: &mut Vec<u8>) {
        let name = self.wishes.export.clone();
        self.ask(option::EXPORT_NAME, &[name.as_bytes()], out);
        self.state = State::ExportName;
    }

    fn ask(&mut self, option: u32, parts: &[&[u8]], out: &mut Vec<u8>) {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        out.extend_from_slice(&OPTION.to_be_bytes());
        out.extend_from_slice(&option.to_be_bytes());
        out.extend_from_slice(&len32(len).to_be_bytes());
        parts.iter().for_each(|part| out.extend_from_slice(part));
        self.state = State::Asked(option);
    }

    /// Takes one answer, once it is whole.
    fn answer(&mut self, asked: u32, input: &[u8], out: &mut Vec<u8>) -> Result<usize, Step> {
        let mut header = Fields(input);
        let header = (header.u64(), header.u32(), header.u32(), header.u32());
        let (Some(magic), Some(option), Some(code), Some(len)) = header else {
            return Err(Step::Need(ANSWER_BYTES));
        };
        if magic != ANSWER || option != asked {
            return Err(Step::Failed(Failure::BadAnswer));
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.answers += 1;
        if len > ANSWER_MAX || self.answers > ANSWERS_MAX {
            return Err(Step::Failed(Failure::TooMuch));
        }
        let whole = ANSWER_BYTES + len;
        let Some(data) = input.get(ANSWER_BYTES..whole) else {
            self.answers -= 1;
            return Err(Step::Need(whole));
        };
        if let Err(step) = self.understand(asked, code, data, out) {
            self.state = State::Ended(step);
        }
        Ok(whole)
    }

    fn understand(
        &mut self,
        asked: u32,
        code: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Step> {
        let failed = code & reply::ERROR != 0;
        match (asked, code) {
            (option::STARTTLS, reply::ACK) => return Err(Step::StartTls),
            (option::STARTTLS, _) if failed => return Err(Step::Failed(Failure::NoTls)),
            (option::STRUCTURED_REPLY, reply::ACK) => {
                self.structured = true;
                match self.wishes.extents {
                    true => self.ask_for_context(out),
                    false => self.ask_to_go(out),
                }
            }
            (option::STRUCTURED_REPLY, _) if failed => self.ask_to_go(out),
            (option::SET_META_CONTEXT, reply::META_CONTEXT) => {
                let number = Fields(data).u32();
                let ours = data.get(4..) == Some(BASE_ALLOCATION.as_bytes());
                self.context = number.filter(|_| ours).or(self.context);
            }
            (option::SET_META_CONTEXT, reply::ACK) => self.ask_to_go(out),
            (option::SET_META_CONTEXT, _) if failed => {
                self.context = None;
                self.ask_to_go(out);
            }
            (option::GO, reply::INFO) => self.fact(data)?,
            (option::GO, reply::ACK) => return Err(self.finish()),
            (option::GO, reply::ERR_UNSUP) => self.ask_plainly(out),
            (option::GO, _) if failed => {
                let words = String::from_utf8_lossy(&data[..data.len().min(STRING_MAX)]);
                let words = words.into_owned();
                return Err(Step::Failed(Failure::Refused { code, words }));
            }
            _ => return Err(Step::Failed(Failure::BadAnswer)),
        }
        Ok(())
    }

    fn fact(&mut self, data: &[u8]) -> Result<(), Step> {
        let bad = || Step::Failed(Failure::BadAnswer);
        let mut fields = Fields(data);
        match fields.u16().ok_or_else(bad)? {
            info::EXPORT => {
                let (size, flags) = fields.u64().zip(fields.u16()).ok_or_else(bad)?;
                self.told = Some((size, Abilities::from_bits(flags)));
            }
            info::BLOCK_SIZE => {
                let mut size = || fields.u32().ok_or_else(bad);
                let (minimum, preferred, payload) = (size()?, size()?, size()?);
                let sane = minimum.is_power_of_two()
                    && preferred.is_power_of_two()
                    && minimum <= preferred
                    && minimum <= payload;
                if !sane {
                    return Err(Step::Failed(Failure::BadBlockSizes));
                }
                self.block = BlockSizes {
                    minimum,
                    preferred,
                    payload,
                };
            }
            _ => return Ok(()),
        }
        fields.is_empty().then_some(()).ok_or_else(bad)
    }

    fn export_name(&mut self, input: &[u8]) -> Result<usize, Step> {
        let padding = if self.no_zeroes { 0 } else { PADDING_BYTES };
        let whole = 10 + padding;
        if input.len() < whole {
            return Err(Step::Need(whole));
        }
        let mut fields = Fields(input);
        self.told = fields.u64().zip(fields.u16().map(Abilities::from_bits));
        self.state = State::Ended(self.finish());
        Ok(whole)
    }

    fn finish(&self) -> Step {
        match self.told {
            None => Step::Failed(Failure::BadAnswer),
            Some((size, abilities)) => Step::Finished(Negotiated {
                size,
                abilities,
                block: self.block,
                structured: self.structured,
                context: self.context,
            }),
        }
    }
}

#[cfg(test)]
mod tests;
