//! A running guest goes from one QEMU to another: live migration, with a look at its memory between the two.
//!
//! Memory is copied while the guest runs, and what it or its disks write meanwhile is copied again, pass after pass. At
//! the end both QEMUs stand still, and then their memories must be the same: [`Guest::pages_lost`].
//!
//! # Always true
//! - A guest that has gone is not run any more here, so that no two run on one disk.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use super::guest::{Guest, Hardware};
use super::place::Place;
use super::program::PATIENCE;

/// The memory of a guest that is to move: no multiple of 256 KiB. From one that is, QEMU 7.2 loses pages that the guest
/// itself writes while it moves, with any disk or none, if its processor is emulated (TCG): where it collects written
/// pages 64 at a time, it does not tell the emulator, which goes on writing to them unnoticed.
const MEMORY: &str = "524416K";
const EVENTS: &str = r#"{"capabilities": [{"capability": "events", "state": true}]}"#;
const PAGE: usize = 4096;

impl Guest {
    /// Boots one that can move.
    pub(crate) fn boot_to_move(place: &Place, hardware: &Hardware) -> Guest {
        let guest = Guest::power_on(place, hardware, MEMORY, &[]);
        guest.wait_for_boot(0);
        guest
    }

    /// Starts a QEMU for the guest of another, whose hardware it must have.
    pub(crate) fn expect_arrival(place: &Place, hardware: &Hardware) -> Guest {
        let incoming = format!("unix:{}", door(place));
        let more = ["-S", "-incoming", &incoming];
        let mut guest = Guest::power_on(place, hardware, MEMORY, &more);
        guest.qmp("migrate-set-capabilities", EVENTS);
        guest
    }

    /// Begins to send the running guest to the QEMU that expects it at `place`. It stays here until [`Guest::leave`].
    /// Returns when all of its memory has been sent: what was written meanwhile is sent again, so slowly that it is not
    /// done before the guest is to leave.
    pub(crate) fn begin_to_leave(&mut self, place: &Place) {
        self.qmp("migrate-set-capabilities", EVENTS);
        // To be let go at once, it would have to leave less than 32 KiB to be sent again.
        let once = r#"{"downtime-limit": 1, "max-bandwidth": 33554432}"#;
        self.qmp("migrate-set-parameters", once);
        let mark = self.monitor.said.mark();
        self.qmp("migrate", &format!(r#"{{"uri": "unix:{}"}}"#, door(place)));
        self.wait_for_event(mark, "MIGRATION_PASS", r#""pass": 2}"#);
        self.qmp("migrate-set-parameters", r#"{"max-bandwidth": 40960}"#);
    }

    /// Lets the guest go; it has arrived at `destination` then, and stands still in both places.
    pub(crate) fn leave(&mut self, destination: &mut Guest) {
        let (sent, arrived) = (self.monitor.said.mark(), destination.monitor.said.mark());
        let go = r#"{"downtime-limit": 20000, "max-bandwidth": 4294967296}"#;
        self.qmp("migrate-set-parameters", go);
        self.wait_for_event(sent, "\"MIGRATION\"", "completed");
        destination.wait_for_event(arrived, "\"MIGRATION\"", "completed");
        destination.commands = self.commands;
    }

    /// Runs the guest that has arrived.
    pub(crate) fn go_on(&mut self) {
        self.qmp("cont", "{}");
    }

    /// How many pages of the guest's memory are not the same in `destination`.
    pub(crate) fn pages_lost(&self, destination: &Guest) -> usize {
        let (here, there) = (self.memory(), destination.memory());
        let (mut mine, mut theirs) = (vec![0; 256 * PAGE], vec![0; 256 * PAGE]);
        let mut at = 0;
        let mut lost = 0;
        loop {
            let got = here.read_at(&mut mine, at).expect("memory can be read");
            if got == 0 {
                return lost;
            }
            there
                .read_exact_at(&mut theirs[..got], at)
                .expect("both have as much memory");
            let pages = mine[..got].chunks(PAGE).zip(theirs[..got].chunks(PAGE));
            lost += pages.filter(|(mine, theirs)| mine != theirs).count();
            at += got as u64;
        }
    }

    fn memory(&self) -> File {
        let open = format!("/proc/{}/fd", self.qemu.id());
        fs::read_dir(open)
            .expect("QEMU runs")
            .flatten()
            .map(|entry| entry.path())
            .find(|path| {
                fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("memory-backend"))
            })
            .map(|path| File::open(path).expect("its memory is a file"))
            .expect("QEMU keeps the guest's memory open")
    }

    fn wait_for_event(&self, mark: usize, event: &str, with: &str) {
        self.monitor.said.wait(event, mark, PATIENCE, |said| {
            // The last line may be half of one.
            let whole = &said[..said.rfind('\n')?];
            whole
                .lines()
                .find(|l| l.contains("\"event\"") && l.contains(event) && l.contains(with))
                .map(drop)
        });
    }
}

/// Where a QEMU waits for a guest to arrive.
fn door(place: &Place) -> String {
    place.join("incoming").display().to_string()
}
