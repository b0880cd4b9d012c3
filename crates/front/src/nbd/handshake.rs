//! The server's negotiation: the export, and the extensions of the protocol.
//!
//! A control thread feeds [`Handshake::advance`] with what a client sent, sends what it appends, and carries out its
//! [`Step`]s; it ends with a [`Negotiated`], from which a [`Session`](super::session::Session) is made on the disk's
//! I/O thread. Exports are known only through answers to [`Step::Lookup`] and [`Step::List`].
//!
//! # Always true
//! - Nothing agreed in the clear outlives STARTTLS but the client's flags: [`Handshake::inside_tls`] begins anew, so
//!   an attacker on the wire cannot choose a dialect for the encrypted part.
//! - An option's data is looked at only when it is whole, and is at most [`OPTION_MAX`] bytes.
//! - After [`Step::Finished`], [`Step::Aborted`], [`Step::StartTls`] or [`Step::Violation`] no more input is taken.
//!
//! # Picture
//! ```text
//! greeting -> client flags -> options -+-> Finished      GO, EXPORT_NAME
//!                              ^   |   +-> StartTls      -> inside_tls() -> options
//!          found(), listed()   +---+   +-> Aborted, Violation
//!          after Lookup, List
//! ```

mod facts;
mod meta;

use super::wire::{
    ANSWER, Abilities, Fields, GREETING, OPTION, OPTION_BYTES, PADDING_BYTES, PAYLOAD_MAX, hello,
    len32, option, reply,
};
use facts::Facts;
use meta::MetaQuery;
use std::fmt;

/// The longest option data that is read: a name of 4096 bytes with room for many queries.
pub const OPTION_MAX: usize = 8 << 10;
/// Longer options are skipped and refused up to here; a client that sends still longer ones is not negotiating.
const SKIP_MAX: u32 = 64 << 10;
/// Options that one connection may send. A client that asks three questions about each of 500 disks needs 1,500.
const OPTIONS_MAX: u32 = 4096;
/// The only metadata context's number.
const CONTEXT: u32 = 1;

/// Whether a connection is, or must become, private.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// In the clear; STARTTLS is not known.
    Off,
    /// Nothing but STARTTLS (and ABORT) is heard.
    Required,
}

/// Smallest, best and largest request of an export, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths should be multiples of this.
    pub minimum: u32,
    /// They do best as multiples of this.
    pub preferred: u32,
    /// The most that one read or write may carry.
    pub payload: u32,
}

impl Default for BlockSizes {
    /// Any byte range; best in pages; 32 MiB.
    fn default() -> BlockSizes {
        BlockSizes {
            minimum: 1,
            preferred: 4096,
            payload: PAYLOAD_MAX,
        }
    }
}

/// What a client is told of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportInfo {
    /// Its canonical name; the client may have asked by another (the empty one, for the default export).
    pub name: String,
    /// Words for people; may be empty.
    pub description: String,
    /// Bytes.
    pub size: u64,
    /// What can be done with it. The handshake adds what follows from the dialect.
    pub abilities: Abilities,
    /// Sizes of requests.
    pub block: BlockSizes,
}

/// Why an export is not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is none of that name.
    Unknown,
    /// Not for this client.
    NotAllowed,
    /// The host is shutting down.
    ShuttingDown,
}

/// What both sides agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The export, its abilities as the client was told them.
    pub export: ExportInfo,
    /// Whether reads are answered in chunks.
    pub structured: bool,
    /// The number of `base:allocation`, if the client may ask for block status.
    pub context: Option<u32>,
}

/// What the caller does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Call again when at least so many unconsumed bytes are there.
    Need(usize),
    /// Look up an export by name (the empty name asks for the default one), then call [`Handshake::found`].
    Lookup(String),
    /// Call [`Handshake::listed`].
    List,
    /// Send what was appended, make the connection a TLS one whose first bytes are those not consumed, and go on
    /// with [`Handshake::inside_tls`].
    StartTls,
    /// Send what was appended; what was not consumed are requests already.
    Finished(Negotiated),
    /// The client said goodbye: send what was appended and close.
    Aborted,
    /// The client broke the protocol: close.
    Violation(Violation),
}

/// How a client broke the protocol, where no answer is possible or deserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Client flags that were not offered.
    UnknownClientFlags,
    /// An option does not begin with `IHAVEOPT`.
    BadMagic,
    /// An option too long even to skip, or an export name that cannot be answered.
    OptionTooLong,
    /// More options than any honest client sends.
    TooManyOptions,
    /// EXPORT_NAME named what is not there or not allowed, and has no other way to hear no.
    ExportRefused,
    /// EXPORT_NAME in the clear where TLS is required.
    TlsRequired,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Violation::UnknownClientFlags => "the client set flags that were not offered",
            Violation::BadMagic => "an option did not begin with its magic number",
            Violation::OptionTooLong => "an option was too long to be one",
            Violation::TooManyOptions => "too many options",
            Violation::ExportRefused => "an export that is not to be had, asked for by EXPORT_NAME",
            Violation::TlsRequired => "TLS is required",
        })
    }
}

/// The negotiation of one connection.
#[derive(Clone, Debug)]
pub struct Handshake {
    state: State,
    tls: Tls,
    no_zeroes: bool,
    structured: bool,
    /// The canonical name of the export whose `base:allocation` was chosen last.
    context: Option<String>,
    options: u32,
    /// It was told that TLS is required.
    in_the_clear: bool,
}

#[derive(Clone, Debug)]
enum State {
    Greeting,
    ClientFlags,
    Options,
    /// So many more bytes of a refused option's data are to be thrown away.
    Skipping(usize),
    Looking(Wanted),
    Listing,
    Ended(Step),
}

/// Why an export is being looked up.
#[derive(Clone, Debug)]
enum Wanted {
    ExportName,
    Info { option: u32, facts: Facts },
    Meta { option: u32, matched: bool },
}

impl Handshake {
    /// For a fresh connection.
    pub fn new(tls: Tls) -> Handshake {
        Handshake {
            state: State::Greeting,
            tls,
            no_zeroes: false,
            structured: false,
            context: None,
            options: 0,
            in_the_clear: false,
        }
    }

    /// Whether the client asked for anything without TLS where that is required.
    pub fn asked_in_the_clear(&self) -> bool {
        self.in_the_clear
    }

    /// For the same connection after [`Step::StartTls`], now private: no new greeting, and everything but the
    /// client's flags forgotten.
    #[must_use]
    pub fn inside_tls(&self) -> Handshake {
        Handshake {
            state: State::Options,
            no_zeroes: self.no_zeroes,
            options: self.options,
            ..Handshake::new(Tls::Off)
        }
    }

    /// Goes as far as `input` allows. Answers with how much of it was consumed and what is to be done; what was
    /// appended to `out` is to be sent in every case, before anything else.
    pub fn advance(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Step) {
        let mut used = 0;
        loop {
            let (took, step) = self.turn(&input[used..], out);
            used += took;
            if let Some(step) = step {
                return (used, step);
            }
        }
    }

    /// The answer to [`Step::Lookup`].
    ///
    /// # Panics
    /// If nothing is being looked up.
    pub fn found(&mut self, export: Result<ExportInfo, Refusal>, out: &mut Vec<u8>) {
        let State::Looking(wanted) = std::mem::replace(&mut self.state, State::Options) else {
            panic!("an export was found that nobody looked for");
        };
        match (wanted, export) {
            (Wanted::ExportName, Ok(export)) => self.finish_plainly(export, out),
            (Wanted::ExportName, Err(_)) => self.violate(Violation::ExportRefused),
            (Wanted::Info { option, facts }, Ok(export)) => {
                let negotiated = self.negotiate(export);
                facts.tell(&negotiated.export, option, out);
                if option == option::GO {
                    self.state = State::Ended(Step::Finished(negotiated));
                }
            }
            (Wanted::Meta { option, matched }, Ok(export)) => {
                meta::answer(option, CONTEXT, matched, out);
                if option == option::SET_META_CONTEXT && matched {
                    self.context = Some(export.name);
                }
            }
            (Wanted::Info { option, .. } | Wanted::Meta { option, .. }, Err(refusal)) => {
                let (code, why) = match refusal {
                    Refusal::Unknown => (reply::ERR_UNKNOWN, "no such export"),
                    Refusal::NotAllowed => (reply::ERR_POLICY, "this export is not for you"),
                    Refusal::ShuttingDown => (reply::ERR_SHUTDOWN, "shutting down"),
                };
                answer(out, option, code, why.as_bytes());
            }
        }
    }

    /// The answer to [`Step::List`]: names and descriptions of the exports that this client may know of, or why it
    /// may not ask. Names longer than the protocol's 4096 bytes are left out.
    ///
    /// # Panics
    /// If no list was asked for.
    pub fn listed<'a>(
        &mut self,
        exports: Result<impl IntoIterator<Item = (&'a str, &'a str)>, Refusal>,
        out: &mut Vec<u8>,
    ) {
        assert!(
            matches!(self.state, State::Listing),
            "exports were listed that nobody asked for"
        );
        self.state = State::Options;
        let Ok(exports) = exports else {
            answer(
                out,
                option::LIST,
                reply::ERR_POLICY,
                b"listing is not allowed",
            );
            return;
        };
        for (name, description) in exports {
            if name.len() > super::wire::STRING_MAX {
                continue;
            }
            let description = clip(description);
            answer_head(
                out,
                option::LIST,
                reply::SERVER,
                4 + name.len() + description.len(),
            );
            out.extend_from_slice(&len32(name.len()).to_be_bytes());
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(description.as_bytes());
        }
        answer(out, option::LIST, reply::ACK, b"");
    }

    /// One move: how much it took, and a step if the caller has something to do.
    fn turn(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Option<Step>) {
        match &mut self.state {
            State::Greeting => {
                out.extend_from_slice(&GREETING.to_be_bytes());
                out.extend_from_slice(&OPTION.to_be_bytes());
                out.extend_from_slice(&(hello::FIXED_NEWSTYLE | hello::NO_ZEROES).to_be_bytes());
                self.state = State::ClientFlags;
                (0, None)
            }
            State::ClientFlags => match Fields(input).u32() {
                None => (0, Some(Step::Need(4))),
                Some(flags) => {
                    self.client_flags(flags);
                    (4, None)
                }
            },
            State::Options => self.option(input, out),
            State::Skipping(left) => {
                let took = input.len().min(*left);
                *left -= took;
                match *left {
                    0 => self.state = State::Options,
                    // Small pieces will do: nothing of it is kept.
                    _ => return (took, Some(Step::Need(1))),
                }
                (took, None)
            }
            State::Looking(_) | State::Listing => {
                panic!("the negotiation was advanced while it waits for an answer")
            }
            State::Ended(step) => (0, Some(step.clone())),
        }
    }

    fn client_flags(&mut self, flags: u32) {
        let known = u32::from(hello::FIXED_NEWSTYLE | hello::NO_ZEROES);
        if flags & !known != 0 {
            return self.violate(Violation::UnknownClientFlags);
        }
        self.no_zeroes = flags & u32::from(hello::NO_ZEROES) != 0;
        self.state = State::Options;
    }

    /// Takes one option, once it is whole.
    fn option(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Option<Step>) {
        let mut header = Fields(input);
        let (magic, option, len) = match (header.u64(), header.u32(), header.u32()) {
            (Some(magic), Some(option), Some(len)) => (magic, option, len),
            _ => return (0, Some(Step::Need(OPTION_BYTES))),
        };
        if magic != OPTION {
            self.violate(Violation::BadMagic);
            return (0, None);
        }
        if self.options == OPTIONS_MAX {
            self.violate(Violation::TooManyOptions);
            return (0, None);
        }
        let whole = OPTION_BYTES.saturating_add(usize::try_from(len).unwrap_or(usize::MAX));
        if whole - OPTION_BYTES > OPTION_MAX {
            self.options += 1;
            self.overlong(option, len, out);
            return (OPTION_BYTES, None);
        }
        let Some(data) = input.get(OPTION_BYTES..whole) else {
            return (0, Some(Step::Need(whole)));
        };
        self.options += 1;
        (whole, self.obey(option, data, out))
    }

    fn overlong(&mut self, option: u32, len: u32, out: &mut Vec<u8>) {
        if option == option::EXPORT_NAME || len > SKIP_MAX {
            return self.violate(Violation::OptionTooLong);
        }
        answer(out, option, reply::ERR_TOO_BIG, b"this option is too long");
        self.state = State::Skipping(usize::try_from(len).unwrap_or(usize::MAX));
    }

    fn obey(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Option<Step> {
        if self.tls == Tls::Required && !matches!(option, option::STARTTLS | option::ABORT) {
            self.in_the_clear = true;
            match option {
                option::EXPORT_NAME => self.violate(Violation::TlsRequired),
                _ => answer(
                    out,
                    option,
                    reply::ERR_TLS_REQD,
                    b"TLS is required: use nbds://",
                ),
            }
            return None;
        }
        match option {
            option::EXPORT_NAME => self.export_name(data),
            option::ABORT => {
                answer(out, option, reply::ACK, b"");
                self.state = State::Ended(Step::Aborted);
                None
            }
            option::INFO | option::GO => self.info(option, data, out),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta(option, data, out),
            option::LIST | option::STARTTLS | option::STRUCTURED_REPLY if !data.is_empty() => {
                answer(
                    out,
                    option,
                    reply::ERR_INVALID,
                    b"this option takes no data",
                );
                None
            }
            option::LIST => {
                self.state = State::Listing;
                Some(Step::List)
            }
            option::STARTTLS if self.tls == Tls::Required => {
                answer(out, option, reply::ACK, b"");
                self.state = State::Ended(Step::StartTls);
                None
            }
            option::STRUCTURED_REPLY => {
                self.structured = true;
                answer(out, option, reply::ACK, b"");
                None
            }
            _ => {
                answer(out, option, reply::ERR_UNSUP, b"this option is not known");
                None
            }
        }
    }

    fn export_name(&mut self, data: &[u8]) -> Option<Step> {
        match std::str::from_utf8(data) {
            Ok(name) if name.len() <= super::wire::STRING_MAX => {
                self.state = State::Looking(Wanted::ExportName);
                Some(Step::Lookup(name.to_owned()))
            }
            _ => {
                self.violate(Violation::ExportRefused);
                None
            }
        }
    }

    fn info(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Option<Step> {
        let Some((name, facts)) = Facts::read(data) else {
            answer(
                out,
                option,
                reply::ERR_INVALID,
                b"this request for facts is malformed",
            );
            return None;
        };
        self.state = State::Looking(Wanted::Info { option, facts });
        Some(Step::Lookup(name.to_owned()))
    }

    fn meta(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Option<Step> {
        if option == option::SET_META_CONTEXT {
            // Even one that fails replaces what was chosen before.
            self.context = None;
        }
        if !self.structured {
            answer(
                out,
                option,
                reply::ERR_INVALID,
                b"ask for structured replies first",
            );
            return None;
        }
        let Some(MetaQuery { export, matched }) = MetaQuery::read(option, data) else {
            answer(
                out,
                option,
                reply::ERR_INVALID,
                b"this metadata query is malformed",
            );
            return None;
        };
        self.state = State::Looking(Wanted::Meta { option, matched });
        Some(Step::Lookup(export.to_owned()))
    }

    fn negotiate(&self, mut export: ExportInfo) -> Negotiated {
        let mut abilities = export
            .abilities
            .with(Abilities::HAS_FLAGS)
            .without(Abilities::DF);
        if self.structured {
            abilities = abilities.with(Abilities::DF);
        }
        if abilities.has(Abilities::READ_ONLY) {
            let writing = Abilities::TRIM.with(Abilities::WRITE_ZEROES);
            abilities = abilities.without(writing.with(Abilities::FAST_ZERO));
        }
        export.abilities = abilities;
        let chosen = self
            .context
            .as_ref()
            .is_some_and(|name| *name == export.name);
        Negotiated {
            structured: self.structured,
            context: (self.structured && chosen).then_some(CONTEXT),
            export,
        }
    }

    /// Answers EXPORT_NAME, which has a form of its own.
    fn finish_plainly(&mut self, export: ExportInfo, out: &mut Vec<u8>) {
        let negotiated = self.negotiate(export);
        out.extend_from_slice(&negotiated.export.size.to_be_bytes());
        out.extend_from_slice(&negotiated.export.abilities.bits().to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; PADDING_BYTES]);
        }
        self.state = State::Ended(Step::Finished(negotiated));
    }

    fn violate(&mut self, violation: Violation) {
        self.state = State::Ended(Step::Violation(violation));
    }
}

/// As much of a text as the protocol allows a string to have.
fn clip(text: &str) -> &str {
    let mut end = text.len().min(super::wire::STRING_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn answer_head(out: &mut Vec<u8>, option: u32, reply: u32, len: usize) {
    out.extend_from_slice(&ANSWER.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&reply.to_be_bytes());
    out.extend_from_slice(&len32(len).to_be_bytes());
}

fn answer(out: &mut Vec<u8>, option: u32, reply: u32, data: &[u8]) {
    answer_head(out, option, reply, data.len());
    out.extend_from_slice(data);
}

#[cfg(test)]
mod tests;
