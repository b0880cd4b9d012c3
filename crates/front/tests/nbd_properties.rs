//! Properties of NBD streams: cuts change nothing, both halves agree, requests survive the wire.

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_core::request::{Flags, Op};
use tidegate_front::nbd::client::handshake as client;
use tidegate_front::nbd::client::requests::Sent;
use tidegate_front::nbd::handshake::{
    BlockSizes, ExportInfo, Handshake, Negotiated, Refusal, Step, Tls,
};
use tidegate_front::nbd::session::{Session, Step as Heard};
use tidegate_front::nbd::wire::{Abilities, PAYLOAD_MAX};

#[path = "../../../fuzz/bodies/nbd_client.rs"]
mod client_body;
#[path = "../../../fuzz/bodies/nbd_handshake.rs"]
mod handshake_body;
#[path = "../../../fuzz/bodies/nbd_session.rs"]
mod session_body;

fn disk(name: &str, size: u64, abilities: Abilities) -> ExportInfo {
    ExportInfo {
        name: name.to_owned(),
        description: "a disk".to_owned(),
        size,
        abilities,
        block: BlockSizes::default(),
    }
}

/// Bytes on their way from one side to the other.
#[derive(Default)]
struct Pipe {
    sent: Vec<u8>,
    arrived: usize,
    used: usize,
}

impl Pipe {
    /// Lets up to `bytes` more arrive; tells whether any did.
    fn carry(&mut self, bytes: usize) -> bool {
        let before = self.arrived;
        self.arrived = self.sent.len().min(before + bytes);
        self.arrived > before
    }

    fn arrived(&self) -> &[u8] {
        &self.sent[self.used..self.arrived]
    }
}

/// Lets both halves talk, each hearing the other in pieces of the given sizes; the server has one `disk`.
fn meet(
    wishes: client::Wishes,
    tls: Tls,
    disk: &ExportInfo,
    pieces: &[usize],
) -> (
    Option<Negotiated>,
    Result<client::Negotiated, client::Failure>,
) {
    let mut server = Handshake::new(tls);
    let mut asker = client::Handshake::new(wishes);
    let (mut up, mut down) = (Pipe::default(), Pipe::default());
    let mut served = None;
    for turn in 0..100_000 {
        let piece = pieces[turn % pieces.len()];
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
                other => panic!("our own client made our server {other:?}"),
            }
        }
        down.carry(piece);
        let (used, step) = asker.advance(down.arrived(), &mut up.sent);
        down.used += used;
        match step {
            client::Step::Need(_) => {}
            client::Step::StartTls => asker = asker.inside_tls(),
            client::Step::Finished(negotiated) => return (served, Ok(negotiated)),
            client::Step::Failed(failure) => return (served, Err(failure)),
        }
    }
    panic!("the two never came to an end")
}

fn abilities() -> impl Strategy<Value = Abilities> {
    any::<u16>().prop_map(Abilities::from_bits)
}

proptest! {
    #[test]
    fn our_two_halves_agree_however_their_words_are_cut(
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
        let wishes = client::Wishes { export, structured, extents, tls };
        let policy = if tls { Tls::Required } else { Tls::Off };
        let (served, asked) = meet(wishes, policy, &disk, &pieces);
        let (served, asked) = (served.unwrap(), asked.unwrap());
        prop_assert_eq!(asked.size, size);
        prop_assert_eq!(asked.abilities, served.export.abilities);
        prop_assert_eq!(asked.block, served.export.block);
        prop_assert_eq!((asked.structured, served.structured), (structured, structured));
        prop_assert_eq!(asked.context, served.context);
        prop_assert_eq!(asked.context.is_some(), structured && extents);
    }

    #[test]
    fn every_request_survives_the_wire(
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
            export: disk("disk0", u64::MAX, all),
            structured: true,
            context: Some(1),
        });
        let heard = session.decode(&Sent { op, flags, offset, len }.encode(cookie));
        let Heard::Request(asked) = heard else { panic!("heard as {heard:?}") };
        prop_assert_eq!((asked.op, asked.flags, asked.cookie), (op, flags, cookie));
        prop_assert_eq!((asked.offset, asked.len), (offset, len));
    }

    #[test]
    fn a_client_without_sense_is_survived(
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
    fn requests_without_sense_are_survived(
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
    fn a_server_without_sense_is_survived(
        wishes: u8,
        answers in vec((1_u32..12, 0_u32..12, any::<bool>(), vec(0_u8..4, 0..24)), 0..8),
        chunks in vec((0_u16..2, 0_u16..7, any::<bool>(), 0_u64..16, vec(0_u8..2, 0..24)), 0..8),
    ) {
        let mut stream = vec![wishes];
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
fn a_client_that_asks_for_what_is_not_there_is_told_so() {
    let disk = disk("disk0", 512, Abilities::NONE);
    let wishes = client::Wishes {
        export: "disk1".to_owned(),
        ..client::Wishes::default()
    };
    let (served, asked) = meet(wishes, Tls::Off, &disk, &[7]);
    assert_eq!(served, None);
    let failure = asked.unwrap_err().to_string();
    assert!(
        failure.starts_with("the server has no such export"),
        "{failure}"
    );
}

#[test]
fn a_client_in_the_clear_is_told_that_tls_is_required() {
    let disk = disk("disk0", 512, Abilities::NONE);
    let wishes = client::Wishes {
        export: "disk0".to_owned(),
        ..client::Wishes::default()
    };
    let (_, asked) = meet(wishes, Tls::Required, &disk, &[7]);
    let failure = asked.unwrap_err().to_string();
    assert!(
        failure.starts_with("the server requires TLS, which"),
        "{failure}"
    );
}
