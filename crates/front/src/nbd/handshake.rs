//! The server's negotiation: it selects the export and the protocol extensions.
//!
//! A control thread passes the client's bytes to [`Handshake::advance`], sends the bytes that it appends, and carries
//! out its [`Step`]s. It ends with a [`Negotiated`], from which the disk's I/O thread makes a
//! [`Session`](super::session::Session). The handshake learns of exports only through the results of [`Step::Lookup`]
//! and [`Step::List`].
//!
//! # Always true
//! - Only the client's flags survive STARTTLS: [`Handshake::inside_tls`] starts again. So an attacker on the network
//!   cannot choose the options of the encrypted part.
//! - An option's data is processed only when complete, and has at most [`OPTION_MAX`] bytes.
//! - After [`Step::Finished`], [`Step::Aborted`], [`Step::StartTls`] or [`Step::Violation`] no more input is consumed.
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
pub use meta::BITMAPS_MAX;
use meta::{MetaQuery, Selected};
use std::fmt;

/// The longest option data that is read: a name of 4096 bytes and many queries.
pub const OPTION_MAX: usize = 8 << 10;
/// Longer options are skipped and rejected up to this size. Beyond it the connection is closed.
const SKIP_MAX: u32 = 64 << 10;
/// The most options on one connection. A client that sends three options about each of 500 disks needs 1,500.
const OPTIONS_MAX: u32 = 4096;

/// Whether a connection uses TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// No TLS. STARTTLS is an unknown option.
    Off,
    /// Only STARTTLS (and ABORT) is accepted before TLS.
    Required,
}

/// The smallest, preferred and largest request of an export, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths should be multiples of this.
    pub minimum: u32,
    /// Multiples of this perform best.
    pub preferred: u32,
    /// The most bytes of one read or write.
    pub payload: u32,
}

impl Default for BlockSizes {
    /// Any byte range; preferably 4 KiB; at most 32 MiB.
    fn default() -> BlockSizes {
        BlockSizes {
            minimum: 1,
            preferred: 4096,
            payload: PAYLOAD_MAX,
        }
    }
}

/// The information about an export that a client gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportInfo {
    /// Its canonical name. The client may have used another name (the empty one, for the default export).
    pub name: String,
    /// A description for people; may be empty.
    pub description: String,
    /// Size in bytes.
    pub size: u64,
    /// What it supports. The handshake adds the flags of the negotiated extensions.
    pub abilities: Abilities,
    /// Request sizes.
    pub block: BlockSizes,
    /// The names of its dirty bitmaps.
    pub bitmaps: Vec<String>,
}

/// Why an export is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no export of that name.
    Unknown,
    /// This client may not use it.
    NotAllowed,
    /// The host is shutting down.
    ShuttingDown,
}

/// What both sides agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The export, with the abilities that the client was sent.
    pub export: ExportInfo,
    /// Whether reads are answered in chunks.
    pub structured: bool,
    /// The id of `base:allocation`, if the client may request block status.
    pub context: Option<u32>,
    /// The ids and names of the dirty bitmaps whose block status the client may request.
    pub bitmaps: Vec<(u32, String)>,
}

/// What the caller does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Call again with at least this many unconsumed bytes.
    Need(usize),
    /// Look up an export by name (the empty name is the default export), then call [`Handshake::found`].
    Lookup(String),
    /// Call [`Handshake::listed`].
    List,
    /// Send the appended bytes and start TLS, whose first bytes are the unconsumed ones. Then continue with
    /// [`Handshake::inside_tls`].
    StartTls,
    /// Send the appended bytes. The unconsumed bytes are requests.
    Finished(Negotiated),
    /// The client aborted: send the appended bytes and close.
    Aborted,
    /// The client broke the protocol: close.
    Violation(Violation),
}

/// A protocol violation of a client that gets no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Client flags that were not offered.
    UnknownClientFlags,
    /// An option does not begin with `IHAVEOPT`.
    BadMagic,
    /// An option too long to skip, or an export name that cannot be rejected with a reply.
    OptionTooLong,
    /// More options than any correct client sends.
    TooManyOptions,
    /// EXPORT_NAME named an export that does not exist or is not allowed. The option has no error reply.
    ExportRefused,
    /// EXPORT_NAME without TLS where TLS is required.
    TlsRequired,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Violation::UnknownClientFlags => "the client set flags that were not offered",
            Violation::BadMagic => "an option did not begin with its magic number",
            Violation::OptionTooLong => "an option was too long",
            Violation::TooManyOptions => "too many options",
            Violation::ExportRefused => "EXPORT_NAME named an export that is not available",
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
    /// The canonical name of the export whose contexts were selected last, and these.
    contexts: Option<(String, Selected)>,
    options: u32,
    /// An option was rejected because TLS is required.
    requested_without_tls: bool,
}

#[derive(Clone, Debug)]
enum State {
    Greeting,
    ClientFlags,
    Options,
    /// This many bytes of a rejected option's data are still to be discarded.
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
    Meta { option: u32, wanted: meta::Wanted },
}

impl Handshake {
    /// For a new connection.
    pub fn new(tls: Tls) -> Handshake {
        Handshake {
            state: State::Greeting,
            tls,
            no_zeroes: false,
            structured: false,
            contexts: None,
            options: 0,
            requested_without_tls: false,
        }
    }

    /// Whether the client sent an option without TLS where TLS is required.
    pub fn requested_without_tls(&self) -> bool {
        self.requested_without_tls
    }

    /// For the same connection after [`Step::StartTls`], with TLS active. There is no new greeting, and only the
    /// client's flags are retained.
    #[must_use]
    pub fn inside_tls(&self) -> Handshake {
        Handshake {
            state: State::Options,
            no_zeroes: self.no_zeroes,
            options: self.options,
            ..Handshake::new(Tls::Off)
        }
    }

    /// Processes as much of `input` as possible. Returns the number of consumed bytes and the next step. The caller
    /// sends the bytes appended to `out` first, in every case.
    pub fn advance(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Step) {
        let mut used = 0;
        loop {
            let (took, step) = self.step(&input[used..], out);
            used += took;
            if let Some(step) = step {
                return (used, step);
            }
        }
    }

    /// The result of [`Step::Lookup`].
    ///
    /// # Panics
    /// If no lookup is pending.
    pub fn found(&mut self, export: Result<ExportInfo, Refusal>, out: &mut Vec<u8>) {
        let State::Looking(wanted) = std::mem::replace(&mut self.state, State::Options) else {
            panic!("found() without a pending lookup");
        };
        match (wanted, export) {
            (Wanted::ExportName, Ok(export)) => self.finish_export_name(export, out),
            (Wanted::ExportName, Err(_)) => self.violate(Violation::ExportRefused),
            (Wanted::Info { option, facts }, Ok(export)) => {
                let negotiated = self.negotiate(export);
                facts.answer(&negotiated.export, option, out);
                if option == option::GO {
                    self.state = State::Ended(Step::Finished(negotiated));
                }
            }
            (Wanted::Meta { option, wanted }, Ok(export)) => {
                let named = meta::answer(option, &wanted, &export, out);
                if option == option::SET_META_CONTEXT {
                    self.contexts = Some((export.name, named));
                }
            }
            (Wanted::Info { option, .. } | Wanted::Meta { option, .. }, Err(refusal)) => {
                let (code, why) = match refusal {
                    Refusal::Unknown => (reply::ERR_UNKNOWN, "no such export"),
                    Refusal::NotAllowed => {
                        (reply::ERR_POLICY, "access to this export is not allowed")
                    }
                    Refusal::ShuttingDown => (reply::ERR_SHUTDOWN, "shutting down"),
                };
                answer(out, option, code, why.as_bytes());
            }
        }
    }

    /// The result of [`Step::List`]: names and descriptions of the exports that this client may see, or why it may not
    /// list them. Names longer than the protocol's 4096 bytes are left out.
    ///
    /// # Panics
    /// If no list is pending.
    pub fn listed<'a>(
        &mut self,
        exports: Result<impl IntoIterator<Item = (&'a str, &'a str)>, Refusal>,
        out: &mut Vec<u8>,
    ) {
        assert!(
            matches!(self.state, State::Listing),
            "listed() without a pending list"
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

    /// One step: the number of consumed bytes, and what the caller does, if anything.
    fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Option<Step>) {
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
                    // Any amount will do: the data is not stored.
                    _ => return (took, Some(Step::Need(1))),
                }
                (took, None)
            }
            State::Looking(_) | State::Listing => {
                panic!("advance() while a result is pending")
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

    /// Processes one option once it is complete.
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
        (whole, self.handle_option(option, data, out))
    }

    fn overlong(&mut self, option: u32, len: u32, out: &mut Vec<u8>) {
        if option == option::EXPORT_NAME || len > SKIP_MAX {
            return self.violate(Violation::OptionTooLong);
        }
        answer(out, option, reply::ERR_TOO_BIG, b"this option is too long");
        self.state = State::Skipping(usize::try_from(len).unwrap_or(usize::MAX));
    }

    fn handle_option(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Option<Step> {
        if self.tls == Tls::Required && !matches!(option, option::STARTTLS | option::ABORT) {
            self.requested_without_tls = true;
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
                answer(
                    out,
                    option,
                    reply::ERR_UNSUP,
                    b"this option is not supported",
                );
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
                b"this information request is malformed",
            );
            return None;
        };
        self.state = State::Looking(Wanted::Info { option, facts });
        Some(Step::Lookup(name.to_owned()))
    }

    fn meta(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Option<Step> {
        if option == option::SET_META_CONTEXT {
            // A failed request replaces the previous selection too.
            self.contexts = None;
        }
        if !self.structured {
            answer(
                out,
                option,
                reply::ERR_INVALID,
                b"request structured replies first",
            );
            return None;
        }
        let Some(MetaQuery { export, wanted }) = MetaQuery::read(option, data) else {
            answer(
                out,
                option,
                reply::ERR_INVALID,
                b"this metadata query is malformed",
            );
            return None;
        };
        self.state = State::Looking(Wanted::Meta { option, wanted });
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
        let selected = self.contexts.as_ref();
        let selected = selected.filter(|(name, _)| self.structured && *name == export.name);
        let selected = selected.map(|(_, selected)| selected.clone());
        let Selected {
            allocation,
            bitmaps,
        } = selected.unwrap_or_default();
        Negotiated {
            structured: self.structured,
            context: allocation,
            bitmaps,
            export,
        }
    }

    /// Answers EXPORT_NAME, whose reply has its own format.
    fn finish_export_name(&mut self, export: ExportInfo, out: &mut Vec<u8>) {
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

/// The text, cut to the protocol's longest string.
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
