//! A guest's memory as byte vectors, with a hook between any two accesses.
//!
//! The queue under test accesses it as [`GuestMemory`]. The simulated guest reads and writes the same bytes directly.
//! [`Memory::between`] runs a step of the guest just before the device's n-th access, so that tests can try every
//! interleaving. [`Memory::die_after`] discards the device's stores after the n-th, as if the device had been killed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tidegate_front::vhost::{Area, GuestMemory};

/// An action of the test between two accesses of the device.
type Step = Box<dyn FnOnce()>;

/// See the module. Clones are the same memory.
#[derive(Clone)]
pub(crate) struct Memory {
    regions: Rc<Vec<Region>>,
    tape: Rc<Tape>,
}

struct Region {
    guest: u64,
    bytes: Rc<RefCell<Vec<u8>>>,
}

/// The state of the device's accesses to shared memory.
#[derive(Default)]
struct Tape {
    accesses: Cell<u64>,
    steps: RefCell<Vec<(u64, Step)>>,
    stores_left: Cell<Option<u64>>,
    dirty: RefCell<Vec<(u64, usize)>>,
    prefetched: RefCell<Vec<u64>>,
}

/// A segment of guest memory, by region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    region: usize,
    at: usize,
    len: usize,
}

/// A range of one region, or of other shared memory (an in-flight region).
pub(crate) struct View {
    bytes: Rc<RefCell<Vec<u8>>>,
    start: usize,
    len: usize,
    tape: Rc<Tape>,
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "regions are small, and bounds are checked"
)]
impl Memory {
    /// Regions with these guest addresses and contents.
    pub(crate) fn new(regions: impl IntoIterator<Item = (u64, Vec<u8>)>) -> Memory {
        let regions = regions.into_iter().map(|(guest, bytes)| Region {
            guest,
            bytes: Rc::new(RefCell::new(bytes)),
        });
        Memory {
            regions: Rc::new(regions.collect()),
            tape: Rc::default(),
        }
    }

    fn find(&self, addr: u64) -> Option<(usize, usize, usize)> {
        self.regions.iter().enumerate().find_map(|(index, region)| {
            let at = addr.checked_sub(region.guest)?;
            let len = region.bytes.borrow().len() as u64;
            (at < len).then(|| (index, at as usize, (len - at) as usize))
        })
    }

    /// The guest stores bytes.
    pub(crate) fn poke(&self, addr: u64, bytes: &[u8]) {
        for (i, byte) in (0u64..).zip(bytes) {
            let (region, at, _) = self.find(addr + i).expect("the guest writes to its memory");
            self.regions[region].bytes.borrow_mut()[at] = *byte;
        }
    }

    /// The guest loads `N` bytes.
    pub(crate) fn look<const N: usize>(&self, addr: u64) -> [u8; N] {
        let mut out = [0; N];
        for (i, byte) in (0u64..).zip(&mut out) {
            let (region, at, _) = self.find(addr + i).expect("the guest reads its memory");
            *byte = self.regions[region].bytes.borrow()[at];
        }
        out
    }

    /// The guest addresses of every byte of these segments, in order.
    pub(crate) fn addresses(&self, segments: &[Segment]) -> Vec<u64> {
        let mut out = Vec::new();
        for segment in segments {
            let from = self.regions[segment.region].guest + segment.at as u64;
            out.extend(from..from + segment.len as u64);
        }
        out
    }

    /// Shared memory outside the guest's.
    pub(crate) fn view(&self, bytes: &Rc<RefCell<Vec<u8>>>) -> View {
        View {
            bytes: Rc::clone(bytes),
            start: 0,
            len: bytes.borrow().len(),
            tape: Rc::clone(&self.tape),
        }
    }

    /// Runs `step` just before the device's `access`-th access from now on (the first is 0).
    pub(crate) fn between(&self, access: u64, step: Step) {
        let at = self.tape.accesses.get() + access;
        self.tape.steps.borrow_mut().push((at, step));
    }

    /// Number of the device's accesses to shared memory.
    pub(crate) fn accesses(&self) -> u64 {
        self.tape.accesses.get()
    }

    /// Runs the steps of [`Memory::between`] that were not reached.
    pub(crate) fn run_rest(&self) {
        let rest = std::mem::take(&mut *self.tape.steps.borrow_mut());
        for (_, step) in rest {
            step();
        }
    }

    /// The device dies after `stores` stores.
    pub(crate) fn die_after(&self, stores: u64) {
        self.tape.stores_left.set(Some(stores));
    }

    /// Whether it has died.
    pub(crate) fn is_dead(&self) -> bool {
        self.tape.stores_left.get() == Some(0)
    }

    /// A new device starts.
    pub(crate) fn revive(&self) {
        self.tape.stores_left.set(None);
    }

    /// The ranges recorded for live migration.
    pub(crate) fn dirty(&self) -> Vec<(u64, usize)> {
        self.tape.dirty.borrow().clone()
    }

    /// The addresses prefetched since the last call.
    pub(crate) fn prefetched(&self) -> Vec<u64> {
        self.tape.prefetched.take()
    }
}

impl Tape {
    fn access(&self) {
        let now = self.accesses.get();
        self.accesses.set(now + 1);
        loop {
            let mut steps = self.steps.borrow_mut();
            let Some(at) = steps.iter().position(|(at, _)| *at <= now) else {
                return;
            };
            let (_, step) = steps.remove(at);
            drop(steps);
            step();
        }
    }

    fn may_store(&self) -> bool {
        match self.stores_left.get() {
            None => true,
            Some(0) => false,
            Some(left) => {
                self.stores_left.set(Some(left - 1));
                true
            }
        }
    }
}

impl GuestMemory for Memory {
    type Area = View;
    type Segment = Segment;

    fn area(&self, addr: u64, len: usize) -> Option<View> {
        let (region, start, left) = self.find(addr)?;
        (len <= left).then(|| View {
            bytes: Rc::clone(&self.regions[region].bytes),
            start,
            len,
            tape: Rc::clone(&self.tape),
        })
    }

    fn load_pair(&self, addr: u64) -> Option<[u64; 2]> {
        self.area(addr, 16).map(|view| view.load_pair(0))
    }

    fn segment(&self, addr: u64, len: u32) -> Option<Segment> {
        let (region, at, left) = self.find(addr)?;
        let len = len as usize;
        (len > 0 && len <= left).then_some(Segment { region, at, len })
    }

    fn segments(&self, mut addr: u64, len: u32, out: &mut Vec<Segment>) -> bool {
        let mut need = len as usize;
        while need > 0 {
            let Some((region, at, left)) = self.find(addr) else {
                return false;
            };
            let len = need.min(left);
            out.push(Segment { region, at, len });
            need -= len;
            let Some(next) = addr.checked_add(len as u64) else {
                return need == 0;
            };
            addr = next;
        }
        true
    }

    fn peek(&self, segments: &[Segment], bytes: &mut [u8]) -> usize {
        let mut done = 0;
        for segment in segments {
            let take = segment.len.min(bytes.len() - done);
            let from = self.regions[segment.region].bytes.borrow();
            bytes[done..done + take].copy_from_slice(&from[segment.at..segment.at + take]);
            done += take;
        }
        done
    }

    fn segment_pair(&self, segment: &Segment) -> Option<[u64; 2]> {
        let mut bytes = [[0; 8]; 2];
        let whole = self.peek(&[*segment], bytes.as_flattened_mut()) == 16;
        whole.then(|| bytes.map(u64::from_le_bytes))
    }

    fn segment_len(segment: &Segment) -> usize {
        segment.len
    }

    fn segment_skip(segment: &Segment, bytes: usize) -> Segment {
        assert!(bytes <= segment.len, "skips at most its length");
        Segment {
            at: segment.at + bytes,
            len: segment.len - bytes,
            ..*segment
        }
    }

    fn segment_take(segment: &Segment, bytes: usize) -> Segment {
        assert!(bytes <= segment.len, "takes at most its length");
        Segment {
            len: bytes,
            ..*segment
        }
    }

    fn prefetch(&self, addr: u64) {
        self.tape.prefetched.borrow_mut().push(addr);
    }

    fn mark_dirty(&self, addr: u64, len: usize) {
        self.tape.dirty.borrow_mut().push((addr, len));
    }
}

impl View {
    fn load<const N: usize>(&self, at: usize, aligned: bool) -> [u8; N] {
        assert!(
            at + N <= self.len && (!aligned || (self.start + at).is_multiple_of(N)),
            "loads {N} bytes at {at} of {}",
            self.len
        );
        self.tape.access();
        let bytes = self.bytes.borrow();
        let mut out = [0; N];
        out.copy_from_slice(&bytes[self.start + at..self.start + at + N]);
        out
    }

    fn store<const N: usize>(&self, at: usize, value: [u8; N], aligned: bool) {
        assert!(
            at + N <= self.len && (!aligned || (self.start + at).is_multiple_of(N)),
            "stores {N} bytes at {at} of {}",
            self.len
        );
        self.tape.access();
        if self.tape.may_store() {
            self.bytes.borrow_mut()[self.start + at..self.start + at + N].copy_from_slice(&value);
        }
    }
}

impl Area for View {
    fn load_u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.load(at, true))
    }
    fn acquire_u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.load(at, true))
    }
    fn store_u16(&self, at: usize, value: u16) {
        self.store(at, value.to_le_bytes(), true);
    }
    fn release_u16(&self, at: usize, value: u16) {
        self.store(at, value.to_le_bytes(), true);
    }
    fn load_u8(&self, at: usize) -> u8 {
        u8::from_le_bytes(self.load(at, true))
    }
    fn store_u8(&self, at: usize, value: u8) {
        self.store(at, [value], true);
    }
    fn load_u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.load(at, true))
    }
    fn store_u64(&self, at: usize, value: u64) {
        // In two halves, so that the device may die between them.
        let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
        self.store(at, [a, b, c, d], true);
        self.store(at + 4, [e, f, g, h], true);
    }
    fn load_pair(&self, at: usize) -> [u64; 2] {
        let bytes: [u8; 16] = self.load(at, false);
        let (low, high) = bytes.split_at(8);
        [low, high].map(|half| u64::from_le_bytes(half.try_into().expect("half of sixteen")))
    }
}
