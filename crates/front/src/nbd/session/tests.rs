//! Requests that are accepted or rejected, and the replies.

use super::*;
use crate::nbd::handshake::{BlockSizes, ExportInfo};
use tidegate_core::request::ExtentKind;

const ALL: Abilities = Abilities::from_bits(u16::MAX).without(Abilities::READ_ONLY);
const SIZE: u64 = 64 << 20;

fn session(abilities: Abilities) -> Session {
    Session::new(&Negotiated {
        bitmaps: Vec::new(),
        export: ExportInfo {
            size: SIZE,
            abilities,
            block: BlockSizes::default(),
            ..ExportInfo::default()
        },
        structured: true,
        context: Some(1),
    })
}

fn ask(abilities: Abilities, command: u16, flags: u16, offset: u64, len: u32) -> Step {
    let header = RequestHeader {
        flags,
        command,
        cookie: 7,
        offset,
        len,
    };
    session(abilities).decode(&header.encode())
}

fn fault(step: Step) -> Option<Fault> {
    match step {
        Step::Refuse(_, fault) => Some(fault),
        Step::Request(_) => None,
        other => panic!("{other:?}"),
    }
}

fn request(op: Op, len: u32) -> ClientRequest {
    ClientRequest {
        op,
        offset: 4096,
        len,
        ..ClientRequest::unknown(7)
    }
}

#[test]
fn a_partial_message_needs_more_bytes_and_a_wrong_magic_is_a_violation() {
    assert_eq!(session(ALL).decode(&[0; 27]), Step::Need(28));
    let step = session(ALL).decode(&[0; 28]);
    assert_eq!(step, Step::Violation(Violation::BadMagic));
}

#[test]
fn every_command_becomes_its_core_operation() {
    let zeroes = Flags::FUA.with(Flags::FAST_ONLY);
    for (command, flags, op, meant) in [
        (command::READ, command_flag::DF, Op::Read, Flags::NONE),
        (command::READ, command_flag::FUA, Op::Read, Flags::NONE),
        (command::WRITE, command_flag::FUA, Op::Write, Flags::FUA),
        (command::TRIM, 0, Op::Discard, Flags::NONE),
        (command::CACHE, 0, Op::Prefetch, Flags::NONE),
        (command::WRITE_ZEROES, 0, Op::WriteZeroes, Flags::MAY_UNMAP),
        (command::WRITE_ZEROES, 1 | 2 | 16, Op::WriteZeroes, zeroes),
        (command::BLOCK_STATUS, 8, Op::Extents, Flags::NONE),
    ] {
        let Step::Request(received) = ask(ALL, command, flags, 512, 1024) else {
            panic!("{op:?} was rejected")
        };
        let request = received.request(Data::NONE, Time::ZERO);
        assert_eq!((request.op, request.flags), (op, meant));
        assert_eq!((request.offset, request.len), (512, 1024));
        let payload = if op == Op::Write { 1024 } else { 0 };
        assert_eq!(received.payload, payload);
        assert_eq!(received.first_only, op == Op::Extents);
    }
    assert!(matches!(
        ask(ALL, command::FLUSH, 0, 0, 0),
        Step::Request(_)
    ));
    assert_eq!(ask(ALL, command::DISCONNECT, 0, 0, 0), Step::Disconnect);
}

#[test]
fn a_range_past_the_end_is_rejected_with_the_protocols_error() {
    for (command, expected) in [
        (command::READ, Fault::Invalid),
        (command::WRITE, Fault::NoSpace),
        (command::WRITE_ZEROES, Fault::NoSpace),
        (command::TRIM, Fault::Invalid),
        (command::BLOCK_STATUS, Fault::Invalid),
        (command::CACHE, Fault::Invalid),
    ] {
        assert_eq!(fault(ask(ALL, command, 0, SIZE - 512, 512)), None);
        assert_eq!(fault(ask(ALL, command, 0, SIZE - 511, 512)), Some(expected));
        assert_eq!(fault(ask(ALL, command, 0, u64::MAX, 512)), Some(expected));
        assert_eq!(fault(ask(ALL, command, 0, 0, 0)), Some(Fault::Invalid));
    }
}

#[test]
fn a_grown_disk_accepts_requests_beyond_its_old_end() {
    let mut session = session(ALL);
    let header = RequestHeader {
        flags: 0,
        command: command::READ,
        cookie: 7,
        offset: SIZE,
        len: 512,
    };
    assert!(matches!(session.decode(&header.encode()), Step::Refuse(..)));
    session.resized(SIZE + 512);
    assert!(matches!(session.decode(&header.encode()), Step::Request(_)));
}

#[test]
fn a_rejected_write_returns_the_length_to_discard_and_a_huge_one_closes_the_connection() {
    let step = ask(ALL, command::WRITE, 0, 0, PAYLOAD_MAX + 1);
    let Step::Refuse(request, Fault::Invalid) = step else {
        panic!("{step:?}")
    };
    assert_eq!(request.payload, PAYLOAD_MAX + 1);
    assert_eq!(fault(ask(ALL, command::WRITE, 0, 0, PAYLOAD_MAX)), None);
    for len in [SKIP_MAX + 1, u32::MAX] {
        let step = ask(ALL, command::WRITE, 0, 0, len);
        assert_eq!(step, Step::Violation(Violation::WriteTooLong));
    }
    let step = ask(ALL, command::READ, 0, 0, u32::MAX);
    assert_eq!(fault(step), Some(Fault::Invalid));
}

#[test]
fn a_read_only_disk_rejects_modifying_requests_and_their_payload_still_follows() {
    let read_only = ALL.with(Abilities::READ_ONLY);
    for command in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
        let step = ask(read_only, command, 0, 0, 512);
        let Step::Refuse(request, Fault::ReadOnly) = step else {
            panic!("{step:?}")
        };
        assert_eq!(request.payload == 512, command == command::WRITE);
    }
    assert_eq!(fault(ask(read_only, command::READ, 0, 0, 512)), None);
}

#[test]
fn an_operation_that_was_not_offered_is_invalid() {
    for (command, len) in [
        (command::FLUSH, 0),
        (command::TRIM, 512),
        (command::CACHE, 512),
        (command::WRITE_ZEROES, 512),
        (8, 512),
        (u16::MAX, 512),
    ] {
        let step = ask(Abilities::NONE, command, 0, 0, len);
        assert_eq!(fault(step), Some(Fault::Invalid), "{command}");
    }
    for (command, flags) in [
        (command::READ, command_flag::REQ_ONE),
        (command::WRITE, command_flag::NO_HOLE),
        (command::TRIM, command_flag::FAST_ZERO),
        (command::READ, 1 << 15),
    ] {
        let step = ask(ALL, command, flags, 0, 512);
        assert_eq!(fault(step), Some(Fault::Invalid), "{command} {flags}");
    }
    let step = ask(Abilities::NONE, command::WRITE, command_flag::FUA, 0, 512);
    assert_eq!(fault(step), Some(Fault::Invalid));
    assert_eq!(
        fault(ask(ALL, command::FLUSH, 0, 1, 0)),
        Some(Fault::Invalid)
    );
}

#[test]
fn a_read_gets_one_chunk_or_a_simple_reply() {
    let mut session = session(ALL);
    let read = request(Op::Read, 512);
    let head = session.data(&read);
    assert_eq!(head.as_bytes().len(), 28);
    assert_eq!(head.as_bytes()[4..8], [0, 1, 0, 1]);
    assert_eq!(head.as_bytes()[16..20], 520_u32.to_be_bytes());
    let failed = session.done(&read, Err(Fault::Io));
    assert_eq!(failed.as_bytes()[4..8], [0, 1, 0x80, 1]);
    assert_eq!(failed.as_bytes()[16..], [0, 0, 0, 6, 0, 0, 0, 5, 0, 0]);
    session.structured = false;
    assert_eq!(session.data(&read).as_bytes().len(), 16);
    let failed = session.done(&read, Err(Fault::Gone));
    assert_eq!(
        failed.as_bytes()[..8],
        [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 108]
    );
}

#[test]
fn a_request_without_data_gets_a_simple_reply_with_and_without_structured_replies() {
    let done = session(ALL).done(&request(Op::Write, 512), Ok(()));
    assert_eq!(
        done.as_bytes(),
        [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]
    );
}

/// The extents in the reply as a client decodes them, in KiB.
fn decoded(request: &ClientRequest, extents: &[(u64, ExtentKind)]) -> Vec<(u64, ExtentKind)> {
    let mut out = b"before".to_vec();
    let extents = extents.iter().map(|(kib, kind)| Extent {
        len: kib << 10,
        kind: *kind,
    });
    session(ALL).extents(request, extents, &mut out);
    let reply = &out[6..];
    let len = reply.len() - CHUNK_BYTES;
    assert_eq!(reply[16..20], len32(len).to_be_bytes());
    crate::nbd::client::requests::extents(&reply[24..])
        .map(|extent| (extent.len >> 10, extent.kind))
        .collect()
}

#[test]
fn extents_are_merged_and_cut_at_the_end_of_the_request() {
    use ExtentKind::{Data, Hole, Zero};
    let all = request(Op::Extents, 64 << 10);
    assert_eq!(decoded(&all, &[]), [(64, Data)]);
    assert_eq!(decoded(&all, &[(u64::MAX >> 10, Hole)]), [(64, Hole)]);
    assert_eq!(
        decoded(&all, &[(4, Data), (4, Data), (8, Zero)]),
        [(8, Data), (8, Zero)]
    );
    assert_eq!(
        decoded(&all, &[(32, Data), (40, Hole), (9, Data)]),
        [(32, Data), (32, Hole)]
    );
    let first = ClientRequest {
        first_only: true,
        ..all
    };
    assert_eq!(
        decoded(&first, &[(4, Data), (4, Data), (8, Zero)]),
        [(8, Data)]
    );
    assert_eq!(decoded(&first, &[(4, Data)]), [(4, Data)]);
    let most = request(Op::Extents, u32::MAX);
    assert_eq!(
        decoded(&most, &[(1 << 30, Zero)])
            .first()
            .map(|(kib, _)| *kib),
        Some(4194303)
    );
}

#[test]
fn a_reply_of_extents_has_a_maximum_length() {
    let extents = (0..20_000).map(|i| Extent {
        len: 512,
        kind: if i % 2 == 0 {
            ExtentKind::Data
        } else {
            ExtentKind::Hole
        },
    });
    let mut out = Vec::new();
    session(ALL).extents(&request(Op::Extents, u32::MAX), extents, &mut out);
    assert_eq!(out.len(), Session::EXTENTS_REPLY_MAX);
}

/// A chunk of a reply: its flags, context and extents (length, state).
type Chunk = (u16, u32, Vec<(u32, u32)>);

fn chunks(mut reply: &[u8]) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    while !reply.is_empty() {
        let mut head = crate::nbd::wire::Fields(reply);
        assert_eq!(head.u32(), Some(CHUNK));
        let (flags, kind) = (head.u16().unwrap(), head.u16().unwrap());
        assert_eq!((kind, head.u64()), (chunk::BLOCK_STATUS, Some(7)));
        let payload = head.u32().unwrap() as usize;
        let context = head.u32().unwrap();
        let mut extents = Vec::new();
        for _ in 0..(payload - CONTEXT_BYTES) / EXTENT_BYTES {
            extents.push((head.u32().unwrap(), head.u32().unwrap()));
        }
        chunks.push((flags, context, extents));
        reply = &reply[CHUNK_BYTES + payload..];
    }
    chunks
}

#[test]
fn each_selected_context_has_its_chunk_and_the_last_one_ends_the_reply() {
    let data = Extent {
        len: 64 << 10,
        kind: ExtentKind::Data,
    };
    let monday = Bitmap::new(vec![0..8192, 16384..SIZE]);
    let bitmaps = vec![(2, monday), (5, Bitmap::default())];
    let whole = session(ALL).with_bitmaps(bitmaps.clone());
    let mut reply = Vec::new();
    whole.extents(&request(Op::Extents, 64 << 10), [data], &mut reply);
    let rest = (4096 + (64 << 10)) - 16384;
    let expected = [
        (0, 1, vec![(64 << 10, 0)]),
        (0, 2, vec![(4096, 1), (8192, 0), (rest, 1)]),
        (chunk::DONE, 5, vec![(64 << 10, 0)]),
    ];
    assert_eq!(chunks(&reply), expected);
    assert!(reply.len() <= whole.extents_room(&request(Op::Extents, 64 << 10), 1));
    let mut only = whole;
    only.context = None;
    let step = only.decode(
        &RequestHeader {
            flags: command_flag::REQ_ONE,
            command: command::BLOCK_STATUS,
            cookie: 7,
            offset: 4096,
            len: 64 << 10,
        }
        .encode(),
    );
    let Step::Request(first) = step else {
        panic!("{step:?}")
    };
    let mut reply = Vec::new();
    only.extents(&first, [data], &mut reply);
    let expected = [
        (0, 2, vec![(4096, 1)]),
        (chunk::DONE, 5, vec![(64 << 10, 0)]),
    ];
    assert_eq!(chunks(&reply), expected);
    assert!(reply.len() <= only.extents_room(&first, 1));
}

#[test]
fn a_bitmap_of_many_ranges_is_answered_in_parts() {
    let ranges = (0..10_000_u64).map(|nth| nth * 2048..nth * 2048 + 1024);
    let bitmap = Bitmap::new(ranges.collect());
    let session = session(ALL).with_bitmaps(vec![(2, bitmap)]);
    let all = ClientRequest {
        offset: 0,
        ..request(Op::Extents, 64 << 20)
    };
    let mut reply = Vec::new();
    session.extents(&all, [], &mut reply);
    assert!(reply.len() <= session.extents_room(&all, 1));
    let chunks = chunks(&reply);
    assert_eq!(chunks[1].2.len(), BITMAP_EXTENTS_MAX);
    assert!(chunks[1].2.iter().all(|(len, _)| *len == 1024));
}

#[test]
#[should_panic(expected = "must have data")]
fn a_read_cannot_be_done_without_its_data() {
    session(ALL).done(&request(Op::Read, 512), Ok(()));
}
