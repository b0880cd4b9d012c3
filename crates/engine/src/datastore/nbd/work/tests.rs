//! The pipeline to an upstream server: what is sent, in which order, and which replies are valid.

use super::*;
use std::sync::Arc;

const ALL: Offer = Offer {
    abilities: Abilities::HAS_FLAGS
        .with(Abilities::FLUSH)
        .with(Abilities::FUA)
        .with(Abilities::TRIM)
        .with(Abilities::WRITE_ZEROES),
    minimum: 512,
    payload: 8192,
    extents: true,
    size: 1 << 30,
};

fn job(op: Op, offset: u64, len: u64) -> Job {
    Job {
        io: IoId::from_bits(1),
        op,
        flags: Flags::NONE,
        offset,
        len,
        data: Data {
            buffer: 0,
            start: 0,
        },
    }
}

fn cookies(work: &mut Work) -> Vec<(u64, u64, u32)> {
    let mut all = Vec::new();
    while let Some((_, part)) = work.next() {
        all.push((part.cookie, part.sent.offset, part.sent.len));
    }
    all
}

#[test]
fn a_large_write_is_split_to_the_servers_maximum_and_ends_once() {
    let mut work = Work::new(Arc::default());
    work.begin(&ALL, job(Op::Write, 4096, 20_480), Op::Write, false, None);
    let parts = cookies(&mut work);
    let ranges: Vec<_> = parts
        .iter()
        .map(|(_, offset, len)| (*offset, *len))
        .collect();
    assert_eq!(ranges, [(4096, 8192), (12_288, 8192), (20_480, 4096)]);
    for (cookie, ..) in &parts {
        assert!(work.ended.is_empty());
        work.answered(&ALL, *cookie).expect("a plain answer");
    }
    assert_eq!(work.ended, [(IoId::from_bits(1), Ok(()))]);
    assert!(work.is_empty());
}

#[test]
fn a_durable_write_without_fua_is_followed_by_a_flush() {
    let offer = Offer {
        abilities: Abilities::FLUSH,
        ..ALL
    };
    let durable = Job {
        flags: Flags::FUA,
        ..job(Op::Write, 0, 512)
    };
    assert_eq!(
        Plan::of(&offer, &durable),
        Plan::Send {
            op: Op::Write,
            flush: true
        }
    );
    let mut work = Work::new(Arc::default());
    work.begin(&offer, durable, Op::Write, true, None);
    let (_, part) = work.next().expect("a request is queued");
    assert_eq!(
        part.sent.flags,
        Flags::NONE,
        "the server would reject the flag"
    );
    let cookie = part.cookie;
    work.answered(&offer, cookie).expect("a plain answer");
    assert!(work.ended.is_empty(), "the flush is missing");
    let flush = cookies(&mut work);
    assert_eq!((flush[0].1, flush[0].2), (0, 0));
    work.answered(&offer, flush[0].0).expect("a plain answer");
    assert_eq!(work.ended.len(), 1);
}

#[test]
fn missing_server_features_are_emulated_or_refused() {
    let nothing = Offer {
        abilities: Abilities::HAS_FLAGS,
        extents: false,
        ..ALL
    };
    let fast = Job {
        flags: Flags::FAST_ONLY,
        ..job(Op::WriteZeroes, 0, 512)
    };
    for (job, plan) in [
        (job(Op::Flush, 0, 0), Plan::Done(Ok(()))),
        (job(Op::Discard, 0, 512), Plan::Done(Ok(()))),
        (
            job(Op::WriteZeroes, 0, 512),
            Plan::SendZeroes { flush: false },
        ),
        (fast, Plan::Done(Err(Fault::Unsupported))),
        (job(Op::Extents, 0, 512), Plan::AllData),
        (job(Op::Read, 1, 512), Plan::Done(Err(Fault::Invalid))),
    ] {
        assert_eq!(Plan::of(&nothing, &job), plan, "{job:?}");
    }
}

#[test]
fn unfinished_requests_are_replayed_in_order_after_a_loss() {
    let mut work = Work::new(Arc::default());
    work.sequence = u32::MAX - 1;
    for at in 0..5 {
        work.begin(&ALL, job(Op::Write, at * 512, 512), Op::Write, false, None);
    }
    let first = cookies(&mut work);
    work.answered(&ALL, first[1].0).expect("a plain answer");
    work.begin(&ALL, job(Op::Write, 5 * 512, 512), Op::Write, false, None);
    work.replay(&ALL);
    assert!(
        work.sent(first[0].0).is_none(),
        "nothing was sent on the new connection yet"
    );
    let offsets: Vec<u64> = cookies(&mut work).iter().map(|part| part.1 / 512).collect();
    assert_eq!(offsets, [0, 2, 3, 4, 5]);
}

/// Replies to all queued requests, until no more are queued.
fn answer_all(work: &mut Work, offer: &Offer) -> Vec<Op> {
    let mut ops = Vec::new();
    while let Some((_, part)) = work.next() {
        let cookie = part.cookie;
        ops.push(part.sent.op);
        work.answered(offer, cookie).expect("a plain answer");
    }
    ops
}

const NO_FUA: Offer = Offer {
    abilities: Abilities::HAS_FLAGS.with(Abilities::FLUSH),
    ..ALL
};

#[test]
fn a_write_whose_flush_has_no_reply_is_replayed_before_the_flush() {
    let mut work = Work::new(Arc::default());
    let durable = Job {
        flags: Flags::FUA,
        ..job(Op::Write, 0, 2 * 8192)
    };
    work.begin(&NO_FUA, durable, Op::Write, true, None);
    for (cookie, ..) in cookies(&mut work) {
        work.answered(&NO_FUA, cookie).expect("a plain answer");
    }
    let (_, flush) = work.next().expect("the flush is queued");
    assert_eq!(flush.sent.op, Op::Flush);
    assert!(!work.connection_lost(), "the write was never acknowledged");
    work.replay(&NO_FUA);
    assert_eq!(
        answer_all(&mut work, &NO_FUA),
        [Op::Write, Op::Write, Op::Flush]
    );
    assert_eq!(work.ended, [(IoId::from_bits(1), Ok(()))]);
}

#[test]
fn a_partly_acknowledged_write_is_replayed_completely() {
    let mut work = Work::new(Arc::default());
    work.begin(&ALL, job(Op::Write, 0, 3 * 8192), Op::Write, false, None);
    let parts = cookies(&mut work);
    work.answered(&ALL, parts[0].0).expect("a plain answer");
    assert!(!work.connection_lost(), "the write was never acknowledged");
    work.replay(&ALL);
    let offsets: Vec<u64> = cookies(&mut work).iter().map(|part| part.1).collect();
    assert_eq!(offsets, [0, 8192, 2 * 8192]);
}

#[test]
fn an_unanswered_flush_fails_if_writes_may_be_lost_and_is_replayed_otherwise() {
    for written in [false, true] {
        let mut work = Work::new(Arc::default());
        if written {
            work.begin(&ALL, job(Op::Write, 0, 512), Op::Write, false, None);
            answer_all(&mut work, &ALL);
            work.ended.clear();
        }
        work.begin(&ALL, job(Op::Flush, 0, 0), Op::Flush, true, None);
        assert_eq!(cookies(&mut work).len(), 1);
        assert_eq!(work.connection_lost(), written);
        work.replay(&ALL);
        let again = answer_all(&mut work, &ALL);
        assert_eq!(again.is_empty(), written);
        let outcome = if written { Err(Fault::Io) } else { Ok(()) };
        assert_eq!(work.ended, [(IoId::from_bits(1), outcome)]);
        assert_eq!(work.may_have_lost_writes(), written);
    }
}

#[test]
fn only_a_loss_with_unflushed_writes_counts() {
    let no_flush = Offer {
        abilities: Abilities::HAS_FLAGS,
        ..ALL
    };
    let durable = |op| Job {
        flags: Flags::FUA,
        ..job(op, 0, 512)
    };
    for (offer, job, matters) in [
        (ALL, job(Op::Write, 0, 512), true),
        (ALL, job(Op::WriteZeroes, 0, 512), true),
        (NO_FUA, job(Op::Write, 0, 512), true),
        (ALL, durable(Op::Write), false),
        (ALL, durable(Op::WriteZeroes), false),
        (NO_FUA, durable(Op::Write), false),
        (ALL, job(Op::Discard, 0, 512), false),
        (ALL, job(Op::Extents, 0, 512), false),
        (no_flush, job(Op::Write, 0, 512), false),
    ] {
        let mut work = Work::new(Arc::default());
        let flush = job.flags.has(Flags::FUA) && !offer.abilities.has(Abilities::FUA);
        work.begin(&offer, job, job.op, flush, None);
        while let Some((_, part)) = work.next() {
            let cookie = part.cookie;
            part.extents_received = (1, 512);
            work.answered(&offer, cookie).expect("a plain answer");
        }
        assert_eq!(work.ended.len(), 1);
        assert_eq!(work.connection_lost(), matters, "{job:?}");
    }
}

#[test]
fn after_a_failed_flush_later_ones_fail_if_writes_may_be_lost() {
    for written in [false, true] {
        let mut work = Work::new(Arc::default());
        if written {
            work.begin(&ALL, job(Op::Write, 0, 512), Op::Write, false, None);
            answer_all(&mut work, &ALL);
            work.ended.clear();
        }
        for _ in 0..2 {
            work.begin(&ALL, job(Op::Flush, 0, 0), Op::Flush, true, None);
        }
        let sent = cookies(&mut work);
        work.fail(sent[0].0, Fault::Io);
        for (cookie, ..) in sent {
            work.answered(&ALL, cookie).expect("a plain answer");
        }
        assert_eq!(work.may_have_lost_writes(), written);
        let second = if written { Err(Fault::Io) } else { Ok(()) };
        let outcomes: Vec<_> = work.ended.iter().map(|(_, outcome)| *outcome).collect();
        assert_eq!(outcomes, [Err(Fault::Io), second]);
    }
}

#[test]
fn a_flush_sent_before_a_writes_reply_does_not_cover_it() {
    let mut work = Work::new(Arc::default());
    work.begin(&ALL, job(Op::Write, 0, 512), Op::Write, false, None);
    work.begin(&ALL, job(Op::Flush, 0, 0), Op::Flush, true, None);
    // Both are sent before either is replied to.
    for (cookie, ..) in cookies(&mut work) {
        work.answered(&ALL, cookie).expect("a plain answer");
    }
    assert_eq!(work.ended.len(), 2);
    assert!(work.connection_lost());
}

#[test]
fn a_read_reported_complete_without_all_its_bytes_is_invalid() {
    let mut work = Work::new(Arc::default());
    work.begin(&ALL, job(Op::Read, 4096, 1024), Op::Read, false, None);
    let (cookie, ..) = cookies(&mut work)[0];
    assert_eq!(
        work.cover(cookie, 4608, 512),
        Ok(Data {
            buffer: 0,
            start: 512
        })
    );
    assert_eq!(work.cover(cookie, 4608, 512), Err(InvalidReply));
    assert_eq!(work.answered(&ALL, cookie), Err(InvalidReply));
}

#[test]
fn a_reply_that_arrives_during_the_send_waits_for_its_end() {
    let mut work = Work::new(Arc::default());
    work.begin(&ALL, job(Op::Write, 0, 512), Op::Write, false, None);
    let (at, part) = work.next().expect("a request is queued");
    part.in_message = true;
    let cookie = part.cookie;
    work.answered(&ALL, cookie).expect("a plain answer");
    assert!(work.ended.is_empty(), "the kernel still reads its buffer");
    assert!(work.sent(cookie).is_none(), "a second reply has no request");
    work.message_sent(&ALL, at);
    assert_eq!(work.ended.len(), 1);
}

#[test]
fn a_failed_job_sends_no_more_requests() {
    let mut work = Work::new(Arc::default());
    work.begin(&ALL, job(Op::Write, 0, 40 * 8192), Op::Write, false, None);
    let parts = cookies(&mut work);
    assert_eq!(parts.len(), 16);
    work.fail(parts[3].0, Fault::NoSpace);
    for (cookie, ..) in &parts {
        work.answered(&ALL, *cookie).expect("a plain answer");
    }
    // Each reply before the failure queued one more request.
    let late = cookies(&mut work);
    assert_eq!(late.len(), 3);
    for (cookie, ..) in late {
        work.answered(&ALL, cookie).expect("a plain answer");
    }
    assert_eq!(work.ended, [(IoId::from_bits(1), Err(Fault::NoSpace))]);
}

#[test]
fn extents_are_cut_to_the_request_and_to_their_room() {
    let mut work = Work::new(Arc::default());
    work.begin(&ALL, job(Op::Extents, 0, 8192), Op::Extents, false, None);
    let (cookie, ..) = cookies(&mut work)[0];
    let kind = tidegate_core::request::ExtentKind::Hole;
    let extent = |len| Extent { len, kind };
    assert_eq!(
        work.answered(&ALL, cookie),
        Err(InvalidReply),
        "a reply without an extent"
    );
    let placed = work.place_extent(cookie, extent(4096), 48).expect("room");
    assert_eq!((placed.0.start, placed.1.len), (0, 4096));
    let placed = work
        .place_extent(cookie, extent(1 << 40), 48)
        .expect("room");
    assert_eq!((placed.0.start, placed.1.len), (16, 4096));
    assert!(work.place_extent(cookie, extent(1), 48).is_none());
    work.answered(&ALL, cookie).expect("it has some");
}

#[test]
fn a_reconnected_server_must_offer_as_much_as_before() {
    assert!(ALL.covers(&ALL));
    for worse in [
        Offer {
            abilities: ALL.abilities.without(Abilities::FUA),
            ..ALL
        },
        Offer {
            abilities: ALL.abilities.with(Abilities::READ_ONLY),
            ..ALL
        },
        Offer { size: 1, ..ALL },
        Offer {
            minimum: 4096,
            ..ALL
        },
        Offer {
            payload: 4096,
            ..ALL
        },
        Offer {
            extents: false,
            ..ALL
        },
    ] {
        assert!(!worse.covers(&ALL), "{worse:?}");
        assert!(ALL.covers(&worse), "{worse:?}");
    }
}
