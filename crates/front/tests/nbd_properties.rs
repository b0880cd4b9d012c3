//! Properties of NBD streams: splitting changes nothing, client and server agree, requests decode unchanged.

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_core::request::{Flags, Op};
use tidegate_front::nbd::client::handshake as client;
use tidegate_front::nbd::client::requests::Sent;
use tidegate_front::nbd::handshake::{
    BlockSizes, ExportInfo, Handshake, Negotiated, Refusal, Step, Tls,
};
use tidegate_front::nbd::session::{Session, Step as Decoded};
use tidegate_front::nbd::wire::{Abilities, PAYLOAD_MAX};

#[path = "../../../fuzz/bodies/nbd_client.rs"]
mod client_body;
#[path = "../../../fuzz/bodies/nbd_handshake.rs"]
mod handshake_body;
#[path = "../../../fuzz/bodies/nbd_session.rs"]
mod session_body;

fn disk(name: &str, size: u64, abilities: Abilities) -> ExportInfo {
    ExportInfo {
        bitmaps: vec!["monday".to_owned()],
        name: name.to_owned(),
        description: "a disk".to_owned(),
        size,
        abilities,
        block: BlockSizes::default(),
    }
}

/// A byte stream in one direction.
#[derive(Default)]
struct Pipe {
    sent: Vec<u8>,
    arrived: usize,
    used: usize,
}

impl Pipe {
    /// Delivers up to `bytes` more. Returns whether any were delivered.
    fn carry(&mut self, bytes: usize) -> bool {
        let before = self.arrived;
        self.arrived = self.sent.len().min(before + bytes);
        self.arrived > before
    }

    fn arrived(&self) -> &[u8] {
        &self.sent[self.used..self.arrived]
    }
}

/// Connects client and server, and delivers their bytes in pieces of the given sizes. The server has one `disk`.
fn negotiate(
    preferences: client::Preferences,
    tls: Tls,
    disk: &ExportInfo,
    pieces: &[usize],
) -> (
    Option<Negotiated>,
    Result<client::Negotiated, client::Failure>,
) {
    let mut server = Handshake::new(tls);
    let mut client_side = client::Handshake::new(preferences);
    let (mut up, mut down) = (Pipe::default(), Pipe::default());
    let mut served = None;
    for round in 0..100_000 {
        let piece = pieces[round % pieces.len()];
        up.carry(piece);
        if served.is_none() {
            let (used, step) = server.advance(up.arrived(), &mut down.sent);
            up.used += used;
            match step {
                Step::Lookup(name) if name.is_empty() || name == disk.name => {
                    server.found(Ok(disk.clone()), &mut down.sent);
                }
                Step::Lookup(_) => server.found(Err(Refusal::Unknown), &mut down.sent),
                Step::StartTls => server = server.inside_tls(),
                Step::Finished(negotiated) => served = Some(negotiated),
                Step::Need(_) => {}
                other => panic!("our client made our server return {other:?}"),
            }
        }
        down.carry(piece);
        let (used, step) = client_side.advance(down.arrived(), &mut up.sent);
        down.used += used;
        match step {
            client::Step::Need(_) => {}
            client::Step::StartTls => client_side = client_side.inside_tls(),
            client::Step::Finished(negotiated) => return (served, Ok(negotiated)),
            client::Step::Failed(failure) => return (served, Err(failure)),
        }
    }
    panic!("the negotiation did not end")
}

fn abilities() -> impl Strategy<Value = Abilities> {
    any::<u16>().prop_map(Abilities::from_bits)
}

proptest! {
    #[test]
    fn client_and_server_agree_however_their_messages_are_split(
        structured: bool,
        extents: bool,
        tls: bool,
        by_default: bool,
        size: u64,
        abilities in abilities(),
        pieces in vec(1_usize..64, 1..8),
    ) {
        let disk = disk("disk0", size, abilities);
        let export = if by_default { String::new() } else { disk.name.clone() };
        let preferences = client::Preferences { export, structured, extents, tls };
        let policy = if tls { Tls::Required } else { Tls::Off };
        let (served, client) = negotiate(preferences, policy, &disk, &pieces);
        let (served, client) = (served.unwrap(), client.unwrap());
        prop_assert_eq!(client.size, size);
        prop_assert_eq!(client.abilities, served.export.abilities);
        prop_assert_eq!(client.block, served.export.block);
        prop_assert_eq!((client.structured, served.structured), (structured, structured));
        prop_assert_eq!(client.context, served.context);
        prop_assert_eq!(client.context.is_some(), structured && extents);
    }

    #[test]
    fn every_request_decodes_unchanged(
        op in proptest::sample::select(Op::ALL.to_vec()),
        fua: bool,
        unmap: bool,
        fast: bool,
        cookie: u64,
        offset in 0..u64::MAX / 2,
        len in 1..=PAYLOAD_MAX,
    ) {
        let mut flags = Flags::NONE;
        if fua && op.modifies() {
            flags = flags.with(Flags::FUA);
        }
        if op == Op::WriteZeroes {
            flags = flags.with(if unmap { Flags::MAY_UNMAP } else { Flags::NONE });
            flags = flags.with(if fast { Flags::FAST_ONLY } else { Flags::NONE });
        }
        let (offset, len) = if op == Op::Flush { (0, 0) } else { (offset, len) };
        let all = Abilities::from_bits(u16::MAX).without(Abilities::READ_ONLY);
        let session = Session::new(&Negotiated {
            bitmaps: Vec::new(),
            export: disk("disk0", u64::MAX, all),
            structured: true,
            context: Some(1),
        });
        let decoded = session.decode(&Sent { op, flags, offset, len }.encode(cookie));
        let Decoded::Request(received) = decoded else { panic!("decoded as {decoded:?}") };
        prop_assert_eq!((received.op, received.flags, received.cookie), (op, flags, cookie));
        prop_assert_eq!((received.offset, received.len), (offset, len));
    }

    #[test]
    fn malformed_client_negotiations_are_handled(
        choice: u8,
        mut input in vec(any::<u8>(), 0..64),
        options in vec((0_u32..12, vec(0_u8..4, 0..24)), 0..8),
    ) {
        let mut stream = vec![choice, 0, 0, 0, 3];
        for (option, data) in options {
            stream.extend(b"IHAVEOPT");
            stream.extend(option.to_be_bytes());
            stream.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
            stream.extend(data);
        }
        stream.append(&mut input);
        handshake_body::run(&stream);
    }

    #[test]
    fn malformed_requests_are_handled(
        disk: [u8; 4],
        requests in vec((0_u16..40, 0_u16..10, any::<u64>(), any::<u64>(), any::<u32>()), 0..16),
    ) {
        let mut stream = disk.to_vec();
        for (flags, command, cookie, offset, len) in requests {
            stream.extend(0x2560_9513_u32.to_be_bytes());
            stream.extend(flags.to_be_bytes());
            stream.extend(command.to_be_bytes());
            stream.extend(cookie.to_be_bytes());
            stream.extend((offset >> (cookie % 64)).to_be_bytes());
            stream.extend((len >> (cookie % 32)).to_be_bytes());
        }
        session_body::run(&stream);
    }

    #[test]
    fn malformed_server_messages_are_handled(
        preferences: u8,
        answers in vec((1_u32..12, 0_u32..12, any::<bool>(), vec(0_u8..4, 0..24)), 0..8),
        chunks in vec((0_u16..2, 0_u16..7, any::<bool>(), 0_u64..16, vec(0_u8..2, 0..24)), 0..8),
    ) {
        let mut stream = vec![preferences];
        stream.extend(b"NBDMAGICIHAVEOPT\0\x03");
        for (option, code, failed, data) in answers {
            stream.extend(0x0003_e889_0455_65a9_u64.to_be_bytes());
            stream.extend(option.to_be_bytes());
            stream.extend((code | u32::from(failed) << 31).to_be_bytes());
            stream.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
            stream.extend(data);
        }
        for (flags, kind, failed, cookie, data) in chunks {
            stream.extend(0x668e_33ef_u32.to_be_bytes());
            stream.extend(flags.to_be_bytes());
            stream.extend((kind | u16::from(failed) << 15).to_be_bytes());
            stream.extend(cookie.to_be_bytes());
            stream.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
            stream.extend(data);
        }
        client_body::run(&stream);
    }
}

#[test]
fn an_unknown_export_is_reported_to_the_client() {
    let disk = disk("disk0", 512, Abilities::NONE);
    let preferences = client::Preferences {
        export: "disk1".to_owned(),
        ..client::Preferences::default()
    };
    let (served, client) = negotiate(preferences, Tls::Off, &disk, &[7]);
    assert_eq!(served, None);
    let failure = client.unwrap_err().to_string();
    assert!(
        failure.starts_with("the server has no such export"),
        "{failure}"
    );
}

#[test]
fn required_tls_is_reported_to_a_client_without_it() {
    let disk = disk("disk0", 512, Abilities::NONE);
    let preferences = client::Preferences {
        export: "disk0".to_owned(),
        ..client::Preferences::default()
    };
    let (_, client) = negotiate(preferences, Tls::Required, &disk, &[7]);
    let failure = client.unwrap_err().to_string();
    assert!(
        failure.starts_with("the server requires TLS, which"),
        "{failure}"
    );
}
