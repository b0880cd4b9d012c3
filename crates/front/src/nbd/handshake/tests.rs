//! The server's negotiation with clients of every kind.

use super::*;
use crate::nbd::wire::info;

const FIXED: u32 = 3;

/// A client's bytes: its flags, then its options.
fn hello_from(flags: u32, options: &[(u32, &[u8])]) -> Vec<u8> {
    let mut bytes = flags.to_be_bytes().to_vec();
    for (option, data) in options {
        bytes.extend(OPTION.to_be_bytes());
        bytes.extend(option.to_be_bytes());
        bytes.extend(len32(data.len()).to_be_bytes());
        bytes.extend(*data);
    }
    bytes
}

fn go(name: &str, facts: &[u16]) -> Vec<u8> {
    let mut data = len32(name.len()).to_be_bytes().to_vec();
    data.extend(name.bytes());
    data.extend(u16::try_from(facts.len()).unwrap().to_be_bytes());
    facts
        .iter()
        .for_each(|fact| data.extend(fact.to_be_bytes()));
    data
}

fn meta_query(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = len32(name.len()).to_be_bytes().to_vec();
    data.extend(name.bytes());
    data.extend(len32(queries.len()).to_be_bytes());
    for query in queries {
        data.extend(len32(query.len()).to_be_bytes());
        data.extend(query.bytes());
    }
    data
}

fn disk0() -> ExportInfo {
    ExportInfo {
        name: "disk0".to_owned(),
        description: "a disk".to_owned(),
        size: 1 << 20,
        abilities: Abilities::FLUSH.with(Abilities::TRIM),
        block: BlockSizes::default(),
        bitmaps: vec!["monday".to_owned(), "tuesday".to_owned()],
    }
}

/// Runs a server that has `disk0` (also under the empty name) to its last step. Returns the reply codes.
fn run(tls: Tls, input: &[u8]) -> (Step, Vec<(u32, u32)>) {
    let mut server = Handshake::new(tls);
    let (step, out) = finish(&mut server, input);
    (step, codes(&out[18..]))
}

fn finish(server: &mut Handshake, mut input: &[u8]) -> (Step, Vec<u8>) {
    let mut out = Vec::new();
    loop {
        let (used, step) = server.advance(input, &mut out);
        input = &input[used..];
        match step {
            Step::Lookup(name) => {
                let known = name.is_empty() || name == "disk0";
                let answer = if known {
                    Ok(disk0())
                } else {
                    Err(Refusal::Unknown)
                };
                server.found(answer, &mut out);
            }
            Step::List => server.listed(Ok([("disk0", "a disk"), ("disk1", "")]), &mut out),
            step => return (step, out),
        }
    }
}

/// The options and codes of a sequence of replies.
fn codes(mut out: &[u8]) -> Vec<(u32, u32)> {
    let mut codes = Vec::new();
    while out.starts_with(&ANSWER.to_be_bytes()) {
        let mut fields = Fields(&out[8..]);
        let (option, code) = (fields.u32().unwrap(), fields.u32().unwrap());
        let len = usize::try_from(fields.u32().unwrap()).unwrap();
        codes.push((option, code));
        out = &out[20 + len..];
    }
    codes
}

#[test]
fn go_returns_the_requested_information() {
    let data = go(
        "disk0",
        &[info::NAME, info::BLOCK_SIZE, info::DESCRIPTION, 99],
    );
    let (step, codes) = run(Tls::Off, &hello_from(FIXED, &[(option::GO, &data)]));
    let Step::Finished(negotiated) = step else {
        panic!("{step:?}")
    };
    assert_eq!(codes.len(), 5);
    assert_eq!(codes[4], (option::GO, reply::ACK));
    let abilities = disk0().abilities.with(Abilities::HAS_FLAGS);
    assert_eq!(negotiated.export.abilities, abilities);
    assert!(!negotiated.structured);
    assert_eq!(negotiated.context, None);
}

#[test]
fn info_does_not_end_the_negotiation() {
    let data = go("disk0", &[]);
    let input = hello_from(FIXED, &[(option::INFO, &data), (option::LIST, &[])]);
    let (step, codes) = run(Tls::Off, &input);
    assert_eq!(step, Step::Need(OPTION_BYTES));
    assert_eq!(codes.last(), Some(&(option::LIST, reply::ACK)));
    let servers = codes.iter().filter(|(_, code)| *code == reply::SERVER);
    assert_eq!(servers.count(), 2);
}

#[test]
fn export_name_is_answered_with_padding_unless_both_sides_agreed_to_omit_it() {
    for (flags, len) in [(FIXED, 10), (1, 10 + PADDING_BYTES)] {
        let mut server = Handshake::new(Tls::Off);
        let input = hello_from(flags, &[(option::EXPORT_NAME, b"")]);
        let (step, out) = finish(&mut server, &input);
        assert!(matches!(step, Step::Finished(_)));
        assert_eq!(out.len(), GREETING_LEN + len);
    }
    let input = hello_from(FIXED, &[(option::EXPORT_NAME, b"nope")]);
    let (step, _) = run(Tls::Off, &input);
    assert_eq!(step, Step::Violation(Violation::ExportRefused));
}

const GREETING_LEN: usize = crate::nbd::wire::GREETING_BYTES;

#[test]
fn block_status_needs_the_export_whose_context_was_selected_last() {
    let (chosen, unknown) = (
        meta_query("", &["base:allocation"]),
        meta_query("", &["x:y"]),
    );
    let data = go("disk0", &[]);
    let structured: (u32, &[u8]) = (option::STRUCTURED_REPLY, &[]);
    let set: (u32, &[u8]) = (option::SET_META_CONTEXT, &chosen);
    let unset: (u32, &[u8]) = (option::SET_META_CONTEXT, &unknown);
    let go: (u32, &[u8]) = (option::GO, &data);
    for (options, context) in [
        (vec![structured, set, go], Some(1)),
        (vec![structured, set, unset, go], None),
        (vec![set, structured, go], None),
        (vec![structured, go], None),
    ] {
        let (step, _) = run(Tls::Off, &hello_from(FIXED, &options));
        let Step::Finished(negotiated) = step else {
            panic!("{step:?}")
        };
        assert_eq!(negotiated.context, context);
        assert!(negotiated.structured == negotiated.export.abilities.has(Abilities::DF));
    }
}

#[test]
fn a_context_selected_for_one_export_does_not_apply_to_another() {
    let (query, data) = (meta_query("disk0", &["base:allocation"]), go("disk1", &[]));
    let input = hello_from(
        FIXED,
        &[
            (option::STRUCTURED_REPLY, &[]),
            (option::SET_META_CONTEXT, &query),
            (option::GO, &data),
        ],
    );
    let mut server = Handshake::new(Tls::Off);
    let mut out = Vec::new();
    let (used, step) = server.advance(&input, &mut out);
    assert_eq!(step, Step::Lookup("disk0".to_owned()));
    server.found(Ok(disk0()), &mut out);
    let (_, step) = server.advance(&input[used..], &mut out);
    assert_eq!(step, Step::Lookup("disk1".to_owned()));
    let disk1 = ExportInfo {
        name: "disk1".to_owned(),
        ..disk0()
    };
    server.found(Ok(disk1), &mut out);
    let (_, Step::Finished(negotiated)) = server.advance(&[], &mut out) else {
        panic!("not finished")
    };
    assert_eq!(negotiated.context, None);
}

#[test]
fn contexts_are_listed_by_name_by_namespace_and_all_together() {
    for (queries, count) in [
        (vec![], 3),
        (vec!["base:"], 1),
        (vec!["base:allocation", "base:"], 1),
        (vec!["qemu:"], 2),
        (vec!["qemu:dirty-bitmap:"], 2),
        (vec!["qemu:dirty-bitmap:tuesday", "base:allocation"], 2),
        (vec!["qemu:dirty-bitmap:friday"], 0),
        (vec!["qemu:dirty-bitmap"], 0),
        (vec!["qemu:allocation-depth"], 0),
    ] {
        let query = meta_query("disk0", &queries);
        let input = hello_from(
            FIXED,
            &[
                (option::STRUCTURED_REPLY, &[]),
                (option::LIST_META_CONTEXT, &query),
            ],
        );
        let (_, codes) = run(Tls::Off, &input);
        let contexts = codes
            .iter()
            .filter(|(_, code)| *code == reply::META_CONTEXT);
        assert_eq!(contexts.count(), count, "{queries:?}");
    }
}

/// What a client that selects these contexts of `disk0` ends up with, and the replies.
fn selected(export: &ExportInfo, queries: &[&str]) -> (Negotiated, Vec<(u32, u32)>) {
    let (query, data) = (meta_query("disk0", queries), go("disk0", &[]));
    let structured: (u32, &[u8]) = (option::STRUCTURED_REPLY, &[]);
    let set: (u32, &[u8]) = (option::SET_META_CONTEXT, &query);
    let input = hello_from(FIXED, &[structured, set, (option::GO, &data)]);
    let (mut server, mut out) = (Handshake::new(Tls::Off), Vec::new());
    let mut rest = &input[..];
    loop {
        let (used, step) = server.advance(rest, &mut out);
        rest = &rest[used..];
        match step {
            Step::Lookup(_) => server.found(Ok(export.clone()), &mut out),
            Step::Finished(negotiated) => return (negotiated, codes(&out[18..])),
            step => panic!("{step:?}"),
        }
    }
}

#[test]
fn bitmaps_are_selected_by_their_names_and_not_by_wildcards() {
    let bitmaps = |queries: &[&str]| selected(&disk0(), queries).0.bitmaps;
    let named = |id: u32, name: &str| (id, name.to_owned());
    let tuesday = "qemu:dirty-bitmap:tuesday";
    assert_eq!(bitmaps(&[tuesday]), [named(3, "tuesday")]);
    let both = [
        tuesday,
        "base:allocation",
        "qemu:dirty-bitmap:monday",
        tuesday,
    ];
    assert_eq!(bitmaps(&both), [named(2, "monday"), named(3, "tuesday")]);
    assert_eq!(selected(&disk0(), &both).0.context, Some(1));
    assert_eq!(selected(&disk0(), &[tuesday]).0.context, None);
    for none in ["qemu:", "qemu:dirty-bitmap:", "qemu:dirty-bitmap:friday"] {
        assert_eq!(bitmaps(&[none]), [], "{none}");
    }
}

#[test]
fn a_client_that_selects_too_many_bitmaps_gets_an_error_and_none() {
    let names = |count: usize| (0..count).map(|nth| format!("s{nth}")).collect::<Vec<_>>();
    let queries = |count: usize| {
        let names = names(count).into_iter();
        names
            .map(|name| format!("qemu:dirty-bitmap:{name}"))
            .collect::<Vec<_>>()
    };
    let export = ExportInfo {
        bitmaps: names(40),
        ..disk0()
    };
    for (count, left, code) in [
        (BITMAPS_MAX, BITMAPS_MAX, reply::ACK),
        (BITMAPS_MAX + 1, 0, reply::ERR_TOO_BIG),
    ] {
        let queries = queries(count);
        let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
        let (negotiated, codes) = selected(&export, &queries);
        assert_eq!(negotiated.bitmaps.len(), left);
        assert!(codes.contains(&(option::SET_META_CONTEXT, code)), "{count}");
    }
}

#[test]
fn malformed_options_get_an_error_and_the_negotiation_continues() {
    let unknown_export = go("nope", &[]);
    let mut short_facts = go("disk0", &[]);
    short_facts.extend([0, 0]);
    let too_big = vec![0; OPTION_MAX + 1];
    let wrong_queries = [0, 0, 0, 0, 255, 255, 255, 255];
    for (option, data, code) in [
        (4711, &b"?"[..], reply::ERR_UNSUP),
        (option::EXTENDED_HEADERS, b"", reply::ERR_UNSUP),
        (option::STARTTLS, b"", reply::ERR_UNSUP),
        (option::LIST, b"?", reply::ERR_INVALID),
        (option::STRUCTURED_REPLY, b"?", reply::ERR_INVALID),
        (option::INFO, b"", reply::ERR_INVALID),
        (option::GO, &short_facts, reply::ERR_INVALID),
        (option::GO, &unknown_export, reply::ERR_UNKNOWN),
        (option::INFO, &too_big, reply::ERR_TOO_BIG),
        (option::SET_META_CONTEXT, &wrong_queries, reply::ERR_INVALID),
    ] {
        let input = hello_from(FIXED, &[(option, data), (option::ABORT, b"")]);
        let (step, codes) = run(Tls::Off, &input);
        assert_eq!(codes, [(option, code), (option::ABORT, reply::ACK)]);
        assert_eq!(step, Step::Aborted);
    }
}

#[test]
fn a_protocol_violation_closes_the_connection() {
    let (step, _) = run(Tls::Off, &hello_from(4, &[]));
    assert_eq!(step, Step::Violation(Violation::UnknownClientFlags));
    let (step, _) = run(Tls::Off, &[[0, 0, 0, 3].as_slice(), &[7; 16]].concat());
    assert_eq!(step, Step::Violation(Violation::BadMagic));
    let mut endless = hello_from(FIXED, &[(option::LIST, &[])]);
    endless[16..].copy_from_slice(&u32::MAX.to_be_bytes());
    let (step, _) = run(Tls::Off, &endless);
    assert_eq!(step, Step::Violation(Violation::OptionTooLong));
    let name = vec![b'a'; 4097];
    let (step, _) = run(
        Tls::Off,
        &hello_from(FIXED, &[(option::EXPORT_NAME, &name)]),
    );
    assert_eq!(step, Step::Violation(Violation::ExportRefused));
    for data in [&[][..], &[0; OPTION_MAX + 1]] {
        let (step, codes) = run(Tls::Off, &hello_from(FIXED, &vec![(4711, data); 4097]));
        assert_eq!(step, Step::Violation(Violation::TooManyOptions));
        assert_eq!(codes.len(), 4096);
    }
}

#[test]
fn where_tls_is_required_other_options_are_rejected_before_it() {
    let data = go("disk0", &[]);
    let input = hello_from(
        FIXED,
        &[
            (option::STRUCTURED_REPLY, &[]),
            (option::GO, &data),
            (option::STARTTLS, b"?"),
            (option::STARTTLS, &[]),
        ],
    );
    let mut server = Handshake::new(Tls::Required);
    let (step, out) = finish(&mut server, &input);
    assert_eq!(step, Step::StartTls);
    let sent_codes: Vec<u32> = codes(&out[18..]).iter().map(|(_, code)| *code).collect();
    let required = reply::ERR_TLS_REQD;
    assert_eq!(
        sent_codes,
        [required, required, reply::ERR_INVALID, reply::ACK]
    );

    let input = hello_from(FIXED, &[(option::EXPORT_NAME, b"disk0")]);
    let (step, _) = run(Tls::Required, &input);
    assert_eq!(step, Step::Violation(Violation::TlsRequired));
}

#[test]
fn starttls_forgets_everything_negotiated_before_it_except_the_padding() {
    let mut clear = Handshake::new(Tls::Required);
    let mut out = Vec::new();
    let input = hello_from(FIXED, &[(option::STARTTLS, &[])]);
    clear.advance(&input, &mut out);
    // An attacker on the network could have set this.
    clear.structured = true;
    let mut inside = clear.inside_tls();
    let options = hello_from(0, &[(option::EXPORT_NAME, b"disk0")]);
    let (step, out) = finish(&mut inside, &options[4..]);
    assert_eq!(out.len(), 10, "no greeting, and no padding");
    let Step::Finished(negotiated) = step else {
        panic!("{step:?}")
    };
    assert!(!negotiated.structured);
}

#[test]
fn a_read_only_export_offers_no_modifying_operations() {
    let mut server = Handshake::new(Tls::Off);
    let mut out = Vec::new();
    let data = go("disk0", &[]);
    server.advance(&hello_from(FIXED, &[(option::GO, &data)]), &mut out);
    let all = Abilities::from_bits(u16::MAX);
    let export = ExportInfo {
        abilities: all,
        ..disk0()
    };
    server.found(Ok(export), &mut out);
    let (_, Step::Finished(negotiated)) = server.advance(&[], &mut out) else {
        panic!("not finished")
    };
    let abilities = negotiated.export.abilities;
    assert!(abilities.has(Abilities::READ_ONLY));
    for ability in [
        Abilities::TRIM,
        Abilities::WRITE_ZEROES,
        Abilities::FAST_ZERO,
        Abilities::DF,
    ] {
        assert!(!abilities.has(ability), "{ability:?}");
    }
}

#[test]
fn a_name_longer_than_the_protocol_allows_is_not_listed() {
    let mut server = Handshake::new(Tls::Off);
    let mut out = Vec::new();
    let (_, step) = server.advance(&hello_from(FIXED, &[(option::LIST, &[])]), &mut out);
    assert_eq!(step, Step::List);
    let (long, description) = ("n".repeat(4097), "ü".repeat(4000));
    server.listed(Ok([(&*long, ""), ("disk0", &*description)]), &mut out);
    let list: Vec<u32> = codes(&out[18..]).iter().map(|(_, code)| *code).collect();
    assert_eq!(list, [reply::SERVER, reply::ACK]);
}
