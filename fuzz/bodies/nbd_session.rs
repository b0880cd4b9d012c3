//! Lets arbitrary bytes be an NBD client's requests, and answers them in every way there is.
//!
//! Input: two bytes choose the disk's abilities, one the dialect, one the disk's size; the rest is the stream.
//!
//! # Always true
//! - What is passed on lies within the disk and the limits, and modifies no read-only disk.
//! - Every request can be answered, well or badly, by a reply that our own client understands as just that.

use tidegate_core::request::{Extent, ExtentKind, Fault, Op};
use tidegate_front::nbd::client::requests::{Part, Replies, Sent, Step as Heard, What};
use tidegate_front::nbd::client::{handshake, requests};
use tidegate_front::nbd::handshake::{BlockSizes, ExportInfo, Negotiated};
use tidegate_front::nbd::session::{ClientRequest, Session, Step};
use tidegate_front::nbd::wire::{Abilities, PAYLOAD_MAX, REQUEST_BYTES, errno_of, fault_of};

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let Some(([high, low, dialect, size], mut stream)) = input.split_first_chunk::<4>() else {
        return;
    };
    let abilities = Abilities::from_bits(u16::from_be_bytes([*high, *low]));
    let structured = dialect & 1 != 0;
    let negotiated = Negotiated {
        bitmaps: Vec::new(),
        export: ExportInfo {
            size: (1_u64 << (size % 64)) - 1,
            abilities,
            block: BlockSizes::default(),
            ..ExportInfo::default()
        },
        structured,
        context: (structured && dialect & 2 != 0).then_some(u32::from(*dialect)),
    };
    let session = Session::new(&negotiated);
    loop {
        let (request, outcome) = match session.decode(stream) {
            Step::Need(bytes) => return assert!(bytes > stream.len()),
            Step::Disconnect | Step::Violation(_) => return,
            Step::Request(request) => {
                check(&request, &negotiated);
                (request, Ok(()))
            }
            Step::Refuse(request, fault) => (request, Err(fault)),
        };
        if outcome.is_ok() {
            succeed(&session, &request, &negotiated);
        }
        fail(
            &session,
            &request,
            outcome.err().unwrap_or(Fault::Io),
            &negotiated,
        );
        let payload = usize::try_from(request.payload).expect("at most 64 MiB");
        stream = &stream[REQUEST_BYTES..];
        stream = stream.get(payload..).unwrap_or_default();
    }
}

fn check(request: &ClientRequest, negotiated: &Negotiated) {
    let ClientRequest {
        op,
        offset,
        len,
        payload,
        ..
    } = *request;
    let export = &negotiated.export;
    assert!(
        offset
            .checked_add(u64::from(len))
            .is_some_and(|end| end <= export.size)
    );
    assert_eq!(payload, if op == Op::Write { len } else { 0 });
    assert!(!matches!(op, Op::Read | Op::Write) || len <= PAYLOAD_MAX);
    assert_eq!(len == 0, op == Op::Flush);
    assert!(!(op.modifies() && export.abilities.has(Abilities::READ_ONLY)));
    assert!(op != Op::Extents || negotiated.context.is_some());
}

fn succeed(session: &Session, request: &ClientRequest, negotiated: &Negotiated) {
    match request.op {
        Op::Read => {
            let what = What::Data {
                offset: request.offset,
                len: request.len,
            };
            assert_eq!(
                hear(session.data(request).as_bytes(), request, negotiated),
                what
            );
        }
        Op::Extents => {
            let mut reply = Vec::new();
            let kinds = [ExtentKind::Data, ExtentKind::Hole, ExtentKind::Hole];
            let extents = kinds.map(|kind| Extent { len: 1 << 16, kind });
            session.extents(request, extents, &mut reply);
            let What::Extents { bytes } = hear(&reply, request, negotiated) else {
                panic!("extents were heard as something else")
            };
            let bytes = usize::try_from(bytes).expect("few");
            let told = requests::extents(&reply[reply.len() - bytes..]);
            assert!(told.map(|extent| extent.len).sum::<u64>() <= u64::from(request.len));
        }
        _ => {
            let head = session.done(request, Ok(()));
            assert_eq!(hear(head.as_bytes(), request, negotiated), What::Nothing);
        }
    }
}

fn fail(session: &Session, request: &ClientRequest, fault: Fault, negotiated: &Negotiated) {
    let head = session.done(request, Err(fault));
    let what = What::Failed(fault_of(errno_of(fault, request.op)));
    assert_eq!(hear(head.as_bytes(), request, negotiated), what);
}

/// What our client makes of a reply.
fn hear(reply: &[u8], request: &ClientRequest, negotiated: &Negotiated) -> What {
    let replies = Replies::new(&handshake::Negotiated {
        size: negotiated.export.size,
        abilities: negotiated.export.abilities,
        block: negotiated.export.block,
        structured: negotiated.structured,
        context: negotiated.context,
    });
    let ClientRequest {
        op,
        flags,
        offset,
        len,
        ..
    } = *request;
    let heard = replies.decode(reply, |cookie| {
        (cookie == request.cookie).then_some(Sent {
            op,
            flags,
            offset,
            len,
        })
    });
    match heard {
        Heard::Part(Part {
            what, last: true, ..
        }) => what,
        other => panic!("our own reply was heard as {other:?}"),
    }
}
