//! The client's negotiation: it requests one export with all extensions that the server offers.
//!
//! The caller passes the server's bytes to [`Handshake::advance`], sends the bytes that it appends, and carries out its
//! [`Step`]s. Every feature that the server lacks is left out, down to EXPORT_NAME. Only TLS is mandatory if it is
//! requested.
//!
//! # Always true
//! - A reply is stored only until it is decoded, and has at most [`ANSWER_MAX`] bytes.
//! - With [`Preferences::tls`], nothing but STARTTLS is sent before TLS.
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

/// The longest reply that is read: an export's description, with some margin.
pub const ANSWER_MAX: usize = 8 << 10;
/// The most replies that one server may send. GO has one for each kind of information, and there are four.
const ANSWERS_MAX: u32 = 256;

/// What the caller wants to negotiate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preferences {
    /// The export's name; empty for the default one.
    pub export: String,
    /// Whether reads may be answered in chunks.
    pub structured: bool,
    /// Whether to request extents, which needs `structured`.
    pub extents: bool,
    /// Whether to require TLS.
    pub tls: bool,
}

/// What both sides agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Bytes of the export.
    pub size: u64,
    /// What the server offers to do.
    pub abilities: Abilities,
    /// Request sizes that the server accepts. If it reports none: 512 bytes to 32 MiB, as the protocol advises.
    pub block: BlockSizes,
    /// Whether reads are answered in chunks.
    pub structured: bool,
    /// The id of `base:allocation`, if extents may be requested.
    pub context: Option<u32>,
}

/// What the caller does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Call again with at least this many unconsumed bytes.
    Need(usize),
    /// Start TLS on the connection and continue with [`Handshake::inside_tls`].
    StartTls,
    /// The negotiation has succeeded. Unconsumed bytes are unexpected: they belong to replies.
    Finished(Negotiated),
    /// The negotiation has failed: close.
    Failed(Failure),
}

/// Why a negotiation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The server's greeting is not NBD.
    NotNbd,
    /// The server supports only the oldstyle handshake.
    TooOld,
    /// TLS is required, and the server does not offer it.
    NoTls,
    /// The server rejected an option.
    Refused {
        /// Its error code, of [`reply`].
        code: u32,
        /// Its message, if it sent one.
        message: String,
    },
    /// A reply to another option, or a malformed one.
    BadAnswer,
    /// A reply that is too long, or too many replies.
    TooMuch,
    /// Request sizes that contradict each other.
    BadBlockSizes,
    /// The export's name is longer than the protocol allows.
    NameTooLong,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = match self {
            Failure::NotNbd => "it does not greet like an NBD server: is this the right port?",
            Failure::TooOld => "the server speaks oldstyle NBD only: use a newer server",
            Failure::NoTls => "the server does not offer TLS: enable it there, or use nbd:// here",
            Failure::BadAnswer => "the server's reply is malformed",
            Failure::TooMuch => "the server's reply is too long",
            Failure::BadBlockSizes => "the server's block sizes contradict each other",
            Failure::NameTooLong => "an export's name has at most 4096 bytes",
            Failure::Refused { code, message } => {
                f.write_str(match *code {
                    reply::ERR_UNKNOWN => "the server has no such export",
                    reply::ERR_TLS_REQD => {
                        "the server requires TLS, which this client does not speak yet"
                    }
                    reply::ERR_POLICY => "the server does not allow it",
                    reply::ERR_SHUTDOWN => "the server is shutting down",
                    _ => "the server refused",
                })?;
                return match message.is_empty() {
                    true => Ok(()),
                    false => write!(f, " (it says: {})", printable(message)),
                };
            }
        };
        f.write_str(plain)
    }
}

impl std::error::Error for Failure {}

/// A server's message with control characters escaped. Quotes are unchanged.
fn printable(message: &str) -> String {
    let mut plain = String::with_capacity(message.len());
    for c in message.chars() {
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
    preferences: Preferences,
    state: State,
    no_zeroes: bool,
    structured: bool,
    context: Option<u32>,
    export_info: Option<(u64, Abilities)>,
    block: BlockSizes,
    answers: u32,
}

#[derive(Clone, Debug)]
enum State {
    Greeting,
    /// TLS is active. The next step sends the options.
    InsideTls,
    /// This option was sent and its last reply has not arrived.
    Sent(u32),
    ExportName,
    Ended(Step),
}

impl Handshake {
    /// For a new connection.
    pub fn new(preferences: Preferences) -> Handshake {
        let state = match preferences.export.len() {
            0..=STRING_MAX => State::Greeting,
            _ => State::Ended(Step::Failed(Failure::NameTooLong)),
        };
        Handshake {
            preferences,
            state,
            no_zeroes: false,
            structured: false,
            context: None,
            export_info: None,
            block: BlockSizes {
                minimum: 512,
                preferred: 4096,
                payload: PAYLOAD_MAX,
            },
            answers: 0,
        }
    }

    /// For the same connection after [`Step::StartTls`], with TLS active. It forgets everything from before TLS except
    /// whether the padding is left out.
    #[must_use]
    pub fn inside_tls(&self) -> Handshake {
        let mut fresh = Handshake::new(self.preferences.clone());
        fresh.no_zeroes = self.no_zeroes;
        fresh.state = State::InsideTls;
        fresh
    }

    /// Processes as much of `input` as possible. Returns the number of consumed bytes and the next step. The caller
    /// sends the bytes appended to `out` in every case.
    pub fn advance(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Step) {
        let mut used = 0;
        loop {
            match self.step(&input[used..], out) {
                Ok(took) => used += took,
                Err(Step::Need(bytes)) => return (used, Step::Need(bytes)),
                Err(step) => {
                    self.state = State::Ended(step.clone());
                    return (used, step);
                }
            }
        }
    }

    /// One step: the number of consumed bytes, or what the caller does.
    fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, Step> {
        match &self.state {
            State::Greeting => self.greeting(input, out),
            State::InsideTls => {
                self.request_structured_replies(out);
                Ok(0)
            }
            State::Sent(option) => self.answer(*option, input, out),
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
        if self.preferences.tls && !fixed {
            return Err(Step::Failed(Failure::NoTls));
        }
        self.no_zeroes = flags & hello::NO_ZEROES != 0;
        out.extend_from_slice(&u32::from(flags).to_be_bytes());
        match (fixed, self.preferences.tls) {
            (true, true) => self.send_option(option::STARTTLS, &[], out),
            (true, false) => self.request_structured_replies(out),
            (false, _) => self.request_export_name(out),
        }
        Ok(GREETING_BYTES)
    }

    fn request_structured_replies(&mut self, out: &mut Vec<u8>) {
        match self.preferences.structured {
            true => self.send_option(option::STRUCTURED_REPLY, &[], out),
            false => self.request_go(out),
        }
    }

    fn request_context(&mut self, out: &mut Vec<u8>) {
        let name = self.preferences.export.clone();
        let (name_len, query_len) = (len32(name.len()), len32(BASE_ALLOCATION.len()));
        let parts: &[&[u8]] = &[
            &name_len.to_be_bytes(),
            name.as_bytes(),
            &1_u32.to_be_bytes(),
            &query_len.to_be_bytes(),
            BASE_ALLOCATION.as_bytes(),
        ];
        self.send_option(option::SET_META_CONTEXT, parts, out);
    }

    fn request_go(&mut self, out: &mut Vec<u8>) {
        let name = self.preferences.export.clone();
        let parts: &[&[u8]] = &[
            &len32(name.len()).to_be_bytes(),
            name.as_bytes(),
            &1_u16.to_be_bytes(),
            &info::BLOCK_SIZE.to_be_bytes(),
        ];
        self.send_option(option::GO, parts, out);
    }

    fn request_export_name(&mut self, out: &mut Vec<u8>) {
        let name = self.preferences.export.clone();
        self.send_option(option::EXPORT_NAME, &[name.as_bytes()], out);
        self.state = State::ExportName;
    }

    fn send_option(&mut self, option: u32, parts: &[&[u8]], out: &mut Vec<u8>) {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        out.extend_from_slice(&OPTION.to_be_bytes());
        out.extend_from_slice(&option.to_be_bytes());
        out.extend_from_slice(&len32(len).to_be_bytes());
        parts.iter().for_each(|part| out.extend_from_slice(part));
        self.state = State::Sent(option);
    }

    /// Processes one reply once it is complete.
    fn answer(&mut self, sent: u32, input: &[u8], out: &mut Vec<u8>) -> Result<usize, Step> {
        let mut header = Fields(input);
        let header = (header.u64(), header.u32(), header.u32(), header.u32());
        let (Some(magic), Some(option), Some(code), Some(len)) = header else {
            return Err(Step::Need(ANSWER_BYTES));
        };
        if magic != ANSWER || option != sent {
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
        if let Err(step) = self.handle_reply(sent, code, data, out) {
            self.state = State::Ended(step);
        }
        Ok(whole)
    }

    fn handle_reply(
        &mut self,
        sent: u32,
        code: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Step> {
        let failed = code & reply::ERROR != 0;
        match (sent, code) {
            (option::STARTTLS, reply::ACK) => return Err(Step::StartTls),
            (option::STARTTLS, _) if failed => return Err(Step::Failed(Failure::NoTls)),
            (option::STRUCTURED_REPLY, reply::ACK) => {
                self.structured = true;
                match self.preferences.extents {
                    true => self.request_context(out),
                    false => self.request_go(out),
                }
            }
            (option::STRUCTURED_REPLY, _) if failed => self.request_go(out),
            (option::SET_META_CONTEXT, reply::META_CONTEXT) => {
                let number = Fields(data).u32();
                let ours = data.get(4..) == Some(BASE_ALLOCATION.as_bytes());
                self.context = number.filter(|_| ours).or(self.context);
            }
            (option::SET_META_CONTEXT, reply::ACK) => self.request_go(out),
            (option::SET_META_CONTEXT, _) if failed => {
                self.context = None;
                self.request_go(out);
            }
            (option::GO, reply::INFO) => self.fact(data)?,
            (option::GO, reply::ACK) => return Err(self.finish()),
            (option::GO, reply::ERR_UNSUP) => self.request_export_name(out),
            (option::GO, _) if failed => {
                let message = String::from_utf8_lossy(&data[..data.len().min(STRING_MAX)]);
                let message = message.into_owned();
                return Err(Step::Failed(Failure::Refused { code, message }));
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
                self.export_info = Some((size, Abilities::from_bits(flags)));
            }
            info::BLOCK_SIZE => {
                let mut size = || fields.u32().ok_or_else(bad);
                let (minimum, preferred, payload) = (size()?, size()?, size()?);
                let valid = minimum.is_power_of_two()
                    && preferred.is_power_of_two()
                    && minimum <= preferred
                    && minimum <= payload;
                if !valid {
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
        self.export_info = fields.u64().zip(fields.u16().map(Abilities::from_bits));
        self.state = State::Ended(self.finish());
        Ok(whole)
    }

    fn finish(&self) -> Step {
        match self.export_info {
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
