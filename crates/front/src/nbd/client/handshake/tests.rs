//! The client's negotiation with servers of every kind. `tests/nbd_properties.rs` tests it with our own server.

use super::*;

fn greeting(flags: u16) -> Vec<u8> {
    let mut bytes = GREETING.to_be_bytes().to_vec();
    bytes.extend(OPTION.to_be_bytes());
    bytes.extend(flags.to_be_bytes());
    bytes
}

fn answer(option: u32, code: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = ANSWER.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend(code.to_be_bytes());
    bytes.extend(len32(data.len()).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn export(size: u64) -> Vec<u8> {
    let mut data = info::EXPORT.to_be_bytes().to_vec();
    data.extend(size.to_be_bytes());
    data.extend([0, 1]);
    answer(option::GO, reply::INFO, &data)
}

fn block(sizes: [u32; 3]) -> Vec<u8> {
    let mut data = info::BLOCK_SIZE.to_be_bytes().to_vec();
    sizes
        .iter()
        .for_each(|size| data.extend(size.to_be_bytes()));
    answer(option::GO, reply::INFO, &data)
}

fn ack(option: u32) -> Vec<u8> {
    answer(option, reply::ACK, &[])
}

fn plain() -> Preferences {
    Preferences {
        export: "disk0".to_owned(),
        ..Preferences::default()
    }
}

fn run(preferences: Preferences, replies: &[Vec<u8>]) -> (Step, Vec<u8>) {
    let mut out = Vec::new();
    let (_, step) = Handshake::new(preferences).advance(&replies.concat(), &mut out);
    (step, out)
}

#[test]
fn reported_block_sizes_are_used_if_they_are_consistent() {
    let replies = |sizes| vec![greeting(3), export(1 << 20), block(sizes), ack(option::GO)];
    let (step, _) = run(plain(), &replies([1, 4096, 1 << 25]));
    let Step::Finished(negotiated) = step else {
        panic!("{step:?}")
    };
    assert_eq!(negotiated.size, 1 << 20);
    assert_eq!(negotiated.block.minimum, 1);
    for sizes in [
        [0, 4096, 1 << 25],
        [3, 4096, 1 << 25],
        [4096, 512, 1 << 25],
        [512, 512, 1],
    ] {
        let (step, _) = run(plain(), &replies(sizes));
        assert_eq!(step, Step::Failed(Failure::BadBlockSizes));
    }
}

#[test]
fn a_server_without_go_gets_export_name() {
    for (greeting, no_zeroes) in [(greeting(3), true), (greeting(1), false)] {
        let mut replies = vec![greeting, answer(option::GO, reply::ERR_UNSUP, b"")];
        replies.push([&(1_u64 << 20).to_be_bytes()[..], &[0, 1]].concat());
        if !no_zeroes {
            replies.push(vec![0; PADDING_BYTES]);
        }
        let (step, out) = run(plain(), &replies);
        assert!(matches!(step, Step::Finished(negotiated) if negotiated.size == 1 << 20));
        assert!(out.ends_with(b"\0\0\0\x01\0\0\0\x05disk0"));
    }
}

#[test]
fn a_server_that_is_not_fixed_newstyle_gets_export_name_at_once() {
    let mut reply = (1_u64 << 20).to_be_bytes().to_vec();
    reply.extend([0, 1]);
    reply.extend([0; PADDING_BYTES]);
    let (step, out) = run(plain(), &[greeting(0), reply]);
    assert!(matches!(step, Step::Finished(_)));
    assert_eq!(out[..4], [0; 4]);
}

#[test]
fn unsupported_features_are_left_out() {
    let preferences = Preferences {
        structured: true,
        extents: true,
        ..plain()
    };
    let mut replies = vec![
        greeting(3),
        answer(option::STRUCTURED_REPLY, reply::ERR_UNSUP, b"no"),
        export(512),
        ack(option::GO),
    ];
    let (step, _) = run(preferences.clone(), &replies);
    assert!(matches!(step, Step::Finished(negotiated) if !negotiated.structured));
    replies[1] = ack(option::STRUCTURED_REPLY);
    replies.insert(2, answer(option::SET_META_CONTEXT, reply::ERR_UNSUP, b"no"));
    let (step, _) = run(preferences.clone(), &replies);
    assert!(matches!(step, Step::Finished(negotiated) if negotiated.context.is_none()));
    let context = [&9_u32.to_be_bytes()[..], b"base:allocation"].concat();
    replies[2] = answer(option::SET_META_CONTEXT, reply::META_CONTEXT, &context);
    replies.insert(3, ack(option::SET_META_CONTEXT));
    let (step, _) = run(preferences, &replies);
    assert!(matches!(step, Step::Finished(negotiated) if negotiated.context == Some(9)));
}

#[test]
fn required_tls_is_never_dropped() {
    let preferences = Preferences {
        tls: true,
        ..plain()
    };
    let (step, _) = run(preferences.clone(), &[greeting(2)]);
    assert_eq!(step, Step::Failed(Failure::NoTls));
    let no = answer(option::STARTTLS, reply::ERR_POLICY, b"");
    let (step, out) = run(preferences.clone(), &[greeting(3), no]);
    assert_eq!(step, Step::Failed(Failure::NoTls));
    assert_eq!(out.len(), 4 + 16, "flags and STARTTLS, and nothing else");

    let mut client = Handshake::new(preferences);
    let mut out = Vec::new();
    let injected = [greeting(3), ack(option::STARTTLS), export(1)].concat();
    let (used, step) = client.advance(&injected, &mut out);
    assert_eq!((used, step), (18 + 20, Step::StartTls));
    let mut inside = client.inside_tls();
    let replies = [export(512), ack(option::GO)].concat();
    let (_, step) = inside.advance(&replies, &mut out);
    assert!(matches!(step, Step::Finished(negotiated) if negotiated.size == 512));
}

#[test]
fn malformed_replies_fail_the_negotiation_with_a_reason() {
    let mut oldstyle = greeting(3);
    oldstyle[8] ^= 1;
    let refused = Failure::Refused {
        code: reply::ERR_UNKNOWN,
        message: "gone".to_owned(),
    };
    assert_eq!(
        refused.to_string(),
        "the server has no such export (it says: gone)"
    );
    let quoting = Failure::Refused {
        code: reply::ERR_UNKNOWN,
        message: "no \"x\"\u{1b}".to_owned(),
    };
    let message = quoting.to_string();
    assert!(message.ends_with(r#"(it says: no "x"\u{1b})"#), "{message}");
    let mut wrong = export(512);
    wrong[0] ^= 1;
    let endless = answer(option::GO, reply::INFO, &[0, 9]).repeat(257);
    for (replies, failure) in [
        (vec![vec![b'S'; 18]], Failure::NotNbd),
        (vec![oldstyle], Failure::TooOld),
        (
            vec![greeting(3), export(512), ack(option::LIST)],
            Failure::BadAnswer,
        ),
        (vec![greeting(3), ack(option::GO)], Failure::BadAnswer),
        (vec![greeting(3), wrong], Failure::BadAnswer),
        (
            vec![greeting(3), answer(option::GO, reply::SERVER, b"")],
            Failure::BadAnswer,
        ),
        (
            vec![greeting(3), answer(option::GO, reply::INFO, b"\0")],
            Failure::BadAnswer,
        ),
        (
            vec![greeting(3), answer(option::GO, reply::ERR_UNKNOWN, b"gone")],
            refused,
        ),
        (
            vec![greeting(3), answer(option::GO, reply::INFO, &[0; 8193])],
            Failure::TooMuch,
        ),
        (vec![greeting(3), endless], Failure::TooMuch),
    ] {
        let (step, _) = run(plain(), &replies);
        assert_eq!(step, Step::Failed(failure));
    }
    let long = Preferences {
        export: "a".repeat(4097),
        ..Preferences::default()
    };
    let (step, _) = run(long, &[]);
    assert_eq!(step, Step::Failed(Failure::NameTooLong));
}
