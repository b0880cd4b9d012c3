//! Lets arbitrary bytes be a guest's memory with a ring in it, and the region that tells what was in flight.
//!
//! Input: one byte for the ring's size and what was negotiated, two for the base, one for how much of the rest is the
//! in-flight region (in 16 bytes, from the front); what is left fills guest memory from 0: descriptors, available ring,
//! used ring, and whatever they point at.
//!
//! # Always true
//! - What is understood lies within guest memory and the limits; its status is one byte.
//! - No head is in flight twice, and none lies beyond the ring.
//! - Everything taken can be given back, and a successor that dies at once finds the same.

use memory::{Memory, Segment};
use std::cell::RefCell;
use std::rc::Rc;
use tidegate_front::vhost::GuestMemory;
use tidegate_front::vhost::block::{Kind, MAX_DATA};
use tidegate_front::vhost::queue::{MAX_SEGMENTS, Queue, QueueConfig, Taken};

#[path = "../../crates/front/tests/vhost_guest/memory.rs"]
#[expect(dead_code, reason = "the guest of the unit tests uses more of it")]
mod memory;

/// The first region's length; a second one touches it, and a third ends where addresses end.
const SEAM: u64 = 0x2000;
const SECOND: usize = 0x1000;
/// Chains taken from one input: a guest that fills its ring for ever is no news.
const MOST: usize = 200;

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let Some(([choice, low, high, region], rest)) = input.split_first_chunk::<4>() else {
        return;
    };
    let size = 1_u16 << (choice & 7);
    let (region, bytes) = rest.split_at((usize::from(*region) * 16).min(rest.len()));
    let seam = usize::try_from(SEAM).expect("small");
    let mut first = bytes[..bytes.len().min(seam)].to_vec();
    first.resize(seam, 0);
    let mut second = bytes.get(seam..).unwrap_or_default().to_vec();
    second.resize(SECOND, 0);
    let memory = Memory::new([
        (0, first),
        (SEAM, second),
        (u64::MAX - 0x100, vec![0x55; 0x100]),
    ]);
    let avail = 16 * u64::from(size);
    let config = QueueConfig {
        size,
        desc: 0,
        avail,
        used: (avail + 6 + 2 * u64::from(size)).next_multiple_of(4),
        base: u16::from_le_bytes([*low, *high]),
        event_idx: choice & 8 != 0,
        indirect: choice & 16 != 0,
        log_used: (choice & 32 != 0).then_some(u64::MAX - 7),
    };
    let Ok(mut queue) = Queue::new(&memory, config) else {
        return;
    };
    if choice & 64 != 0 {
        let region = Rc::new(RefCell::new(region.to_vec()));
        tracked(&memory, &mut queue, config, &region);
    } else {
        serve(&memory, &mut queue, Vec::new());
    }
}

/// Goes on from a region, then dies with everything in flight: a successor finds at least that.
fn tracked(
    memory: &Memory,
    queue: &mut Queue<Memory>,
    config: QueueConfig,
    region: &Rc<RefCell<Vec<u8>>>,
) {
    let len = region.borrow().len();
    let Ok(heads) = queue.track(memory.view(region), len) else {
        return;
    };
    let mut successor = Queue::new(memory, config).expect("the rings are where they were");
    let again = successor.track(memory.view(region), len);
    assert_eq!(
        again.as_ref(),
        Ok(&heads),
        "an account reads the same twice"
    );
    serve(memory, queue, heads);
    let mut last = Queue::new(memory, config).expect("the rings are where they were");
    let left = last
        .track(memory.view(region), len)
        .expect("it fitted before");
    assert_eq!(left, [], "everything was given back");
}

fn serve(memory: &Memory, queue: &mut Queue<Memory>, left_behind: Vec<u16>) {
    let (mut data, mut in_flight) = (Vec::new(), Vec::new());
    for head in left_behind {
        let taken = queue.retake(memory, head, &mut data);
        in_flight.push(check(memory, &taken.expect("a head of this ring"), &data));
    }
    for _ in 0..MOST {
        match queue.next(memory, &mut data) {
            Ok(Some(taken)) => in_flight.push(check(memory, &taken, &data)),
            Ok(None) => break,
            Err(_) => {
                assert!(queue.next(memory, &mut data).is_err(), "it stays broken");
                break;
            }
        }
        assert_eq!(usize::from(queue.in_flight()), in_flight.len());
        if in_flight.len() % 3 == 2 {
            queue.complete(in_flight.swap_remove(0), 1);
            queue.publish(memory);
            queue.wants_call();
        }
    }
    queue.want_kicks(memory);
    queue.silence_kicks(memory);
    in_flight.sort_unstable();
    assert!(
        in_flight.windows(2).all(|pair| pair[0] != pair[1]),
        "a head is in flight twice"
    );
    assert!(in_flight.iter().all(|&head| head < queue.size()));
    for head in in_flight {
        queue.complete(head, u32::MAX);
    }
    queue.publish(memory);
    queue.wants_call();
    assert_eq!(queue.in_flight(), 0);
}

/// Whether what was understood makes sense; returns its head.
fn check(memory: &Memory, taken: &Taken<Segment>, data: &[Segment]) -> u16 {
    let total: u64 = data.iter().map(|s| Memory::segment_len(s) as u64).sum();
    let (head, status) = match taken {
        Taken::Bad { head, status, .. } => (*head, *status),
        Taken::Request(request) => {
            assert!(data.len() <= MAX_SEGMENTS);
            match request.kind {
                Kind::Read { len, offset } | Kind::Write { len, offset } => {
                    assert!(len == total && len <= MAX_DATA);
                    assert!(len.is_multiple_of(512) && offset.is_multiple_of(512));
                }
                Kind::GetId { len } => assert_eq!(len, total),
                Kind::Discard { len, .. } | Kind::WriteZeroes { len, .. } => {
                    assert!(u32::try_from(len).is_ok() && data.is_empty());
                }
                Kind::Flush => assert!(data.is_empty()),
                Kind::Unknown => {}
            }
            (request.head, Some(request.status))
        }
    };
    if let Some(status) = status {
        assert_eq!(memory.addresses(&[status]).len(), 1, "a status is one byte");
    }
    head
}
