//! A guest's driver for one ring.

use super::memory::Memory;
use tidegate_front::vhost::queue::QueueConfig;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// The memory layout: rings from 0, and requests in [`ROOM`] and across its end, where the second region begins.
pub(crate) const ROOM: u64 = 0x10_0000;
/// The second region begins here, where the first ends. The memory is contiguous for the guest, not for the host.
pub(crate) const SEAM: u64 = 0x20_0000;
/// The end of the second region. No memory follows.
pub(crate) const END: u64 = 0x21_0000;
/// A region at the very end of the address space.
pub(crate) const TOP: u64 = u64::MAX - 0xfff;

/// Three regions: two that are adjacent, and one at the highest addresses.
pub(crate) fn memory() -> Memory {
    Memory::new([
        (0, vec![0; 0x20_0000]),
        (SEAM, vec![0; 0x1_0000]),
        (TOP, vec![0; 0xfff]),
    ])
}

/// One descriptor, as the guest writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Desc {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    pub(crate) next: u16,
}

impl Desc {
    /// The device reads it.
    pub(crate) fn read(addr: u64, len: u32) -> Desc {
        Desc {
            addr,
            len,
            flags: 0,
            next: 0,
        }
    }

    /// The device writes it.
    pub(crate) fn write(addr: u64, len: u32) -> Desc {
        Desc {
            flags: WRITE,
            ..Desc::read(addr, len)
        }
    }

    pub(crate) fn encode(self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.addr.to_le_bytes());
        out[8..12].copy_from_slice(&self.len.to_le_bytes());
        out[12..14].copy_from_slice(&self.flags.to_le_bytes());
        out[14..].copy_from_slice(&self.next.to_le_bytes());
        out
    }
}

/// Links descriptors into a chain that uses the table's entries from `first` on.
pub(crate) fn linked(pieces: &[Desc], first: u16) -> Vec<Desc> {
    let mut out = Vec::new();
    for (next, piece) in (first + 1..).zip(pieces) {
        out.push(Desc {
            flags: piece.flags | NEXT,
            next,
            ..*piece
        });
    }
    if let Some(last) = out.last_mut() {
        last.flags &= !NEXT;
    }
    out
}

/// The 16 bytes of a request's header.
pub(crate) fn header(kind: u32, sector: u64) -> [u8; 16] {
    let mut out = [0; 16];
    out[..4].copy_from_slice(&kind.to_le_bytes());
    out[8..].copy_from_slice(&sector.to_le_bytes());
    out
}

/// See the module.
#[derive(Clone)]
pub(crate) struct Driver {
    pub(crate) memory: Memory,
    pub(crate) size: u16,
    avail: u64,
    used: u64,
    base: u16,
    /// Number of chains ever made available.
    pub(crate) avail_idx: u16,
    /// Number of used entries ever collected.
    pub(crate) used_seen: u16,
}

impl Driver {
    /// A ring of `size` entries whose indices both start at `base`.
    pub(crate) fn new(memory: &Memory, size: u16, base: u16) -> Driver {
        let avail = 16 * u64::from(size);
        let used = (avail + 6 + 2 * u64::from(size)).next_multiple_of(4);
        let driver = Driver {
            memory: memory.clone(),
            size,
            avail,
            used,
            base,
            avail_idx: base,
            used_seen: base,
        };
        driver.put(avail + 2, base);
        driver.put(used + 2, base);
        driver
    }

    /// The device's configuration, with neither event-idx nor indirect descriptors.
    pub(crate) fn config(&self) -> QueueConfig {
        QueueConfig {
            size: self.size,
            desc: 0,
            avail: self.avail,
            used: self.used,
            base: self.base,
            event_idx: false,
            indirect: true,
            log_used: None,
        }
    }

    fn put(&self, addr: u64, value: u16) {
        self.memory.poke(addr, &value.to_le_bytes());
    }

    fn get(&self, addr: u64) -> u16 {
        u16::from_le_bytes(self.memory.look(addr))
    }

    /// Writes an entry of the descriptor table.
    pub(crate) fn describe(&self, index: u16, desc: Desc) {
        self.memory.poke(16 * u64::from(index), &desc.encode());
    }

    /// Writes a chain into the table from entry `first` on.
    pub(crate) fn chain(&self, first: u16, pieces: &[Desc]) {
        for (index, desc) in (first..).zip(linked(pieces, first)) {
            self.describe(index, desc);
        }
    }

    /// Writes a chain into an indirect table at `table`, and its descriptor into entry `head`.
    pub(crate) fn indirect(&self, head: u16, table: u64, pieces: &[Desc]) {
        let mut at = table;
        for desc in linked(pieces, 0) {
            self.memory.poke(at, &desc.encode());
            at += 16;
        }
        let len = u32::try_from(at - table).expect("a table is short");
        self.describe(
            head,
            Desc {
                flags: INDIRECT,
                ..Desc::read(table, len)
            },
        );
    }

    /// Puts a head into the available ring, not yet visible.
    pub(crate) fn offer(&mut self, head: u16) {
        let slot = u64::from(self.avail_idx & (self.size - 1));
        self.put(self.avail + 4 + 2 * slot, head);
        self.avail_idx = self.avail_idx.wrapping_add(1);
    }

    /// Publishes all offered heads.
    pub(crate) fn show(&self) {
        self.put(self.avail + 2, self.avail_idx);
    }

    /// Makes one chain available.
    pub(crate) fn add(&mut self, head: u16) {
        self.offer(head);
        self.show();
    }

    /// Whether the device wants a kick for the heads published since `old`.
    pub(crate) fn must_kick(&self, old: u16, event_idx: bool) -> bool {
        if event_idx {
            let event = self.get(self.used + 4 + 8 * u64::from(self.size));
            self.avail_idx.wrapping_sub(event).wrapping_sub(1) < self.avail_idx.wrapping_sub(old)
        } else {
            self.get(self.used) & 1 == 0
        }
    }

    /// Requests a call once the device's used index passes `event` (event-idx).
    pub(crate) fn call_me_at(&self, event: u16) {
        self.put(self.avail + 4 + 2 * u64::from(self.size), event);
    }

    /// Enables or disables calls (without event-idx).
    pub(crate) fn want_calls(&self, wanted: bool) {
        self.put(self.avail, u16::from(!wanted));
    }

    /// The device's published used index.
    pub(crate) fn used_idx(&self) -> u16 {
        self.get(self.used + 2)
    }

    /// Collects all used entries: head and bytes written.
    pub(crate) fn collect(&mut self) -> Vec<(u16, u32)> {
        let mut out = Vec::new();
        while self.used_seen != self.used_idx() {
            let slot = u64::from(self.used_seen & (self.size - 1));
            let entry = u64::from_le_bytes(self.memory.look(self.used + 4 + 8 * slot));
            let head = u16::try_from(entry & 0xffff_ffff).expect("a head has 16 bits");
            out.push((head, u32::try_from(entry >> 32).expect("32 bits are left")));
            self.used_seen = self.used_seen.wrapping_add(1);
        }
        out
    }
}
