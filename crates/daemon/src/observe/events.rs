//! The events of datastores: numbered, logged once, stored for a while, streamed.
//!
//! The monitor adds what the governors noticed. REST returns the stored events and waits for more. Nothing here
//! queries the engine.
//!
//! # Always true
//! - An event is logged once. The engine logs those of the slot file, which it notices first; this module logs all
//!   others.
//! - The latest [`KEPT`] events are stored. A client that reconnects gets all events that it has not seen, in order.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_api::dense::DenseConditions;
use tidegate_api::events::{Event, Happening};
use tidegate_api::name::Name;
use tidegate_api::pool::PoolLevel;
use tidegate_api::units::Size;
use tidegate_core::governor::GovernorEvent;
use tidegate_core::iocontrol::DiskKey;
use tidegate_core::units::Span;
use tidegate_engine::control;
use tokio::sync::watch;

use crate::disks::attached::part_plan;
use crate::listen::tls::expiry;
use crate::observe::explain::time;
use crate::observe::io_threads;
use crate::text::float;
use crate::text::hex;

/// A day of a busy datastore, at a few hundred bytes an event.
const KEPT: usize = 1024;

/// Digits of an identity that distinguish hosts of the same name.
const SHORT: usize = 8;

/// See the module.
pub(crate) struct Journal {
    kept: Mutex<VecDeque<Event>>,
    /// The number of the latest event.
    latest: watch::Sender<u64>,
}

impl Default for Journal {
    fn default() -> Journal {
        Journal {
            kept: Mutex::default(),
            latest: watch::Sender::new(0),
        }
    }
}

impl Journal {
    /// Stores and logs an event of a datastore, or of the host.
    pub(crate) fn add(&self, datastore: Option<&Name>, at_ms: u64, happening: Happening) {
        let mut kept = self.kept();
        let event = Event {
            number: *self.latest.borrow() + 1,
            at_ms,
            datastore: datastore.cloned(),
            text: match datastore {
                Some(datastore) => sentence(datastore, &happening),
                None => of_host(&happening),
            },
            happening,
        };
        let number = event.number;
        log(&event);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(event);
        // Sent before the next event can be added, so numbers grow by one.
        self.latest.send_replace(number);
    }

    /// The stored events after this number. A number that this daemon has not reached is another daemon's, so all are
    /// returned.
    pub(crate) fn since(&self, number: u64) -> Vec<Event> {
        let kept = self.kept();
        let number = if number > *self.latest.borrow() {
            0
        } else {
            number
        };
        let later = kept.iter().filter(|event| event.number > number);
        later.cloned().collect()
    }

    /// The number of the latest event, to wait for the next.
    pub(crate) fn latest(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Event>> {
        // No panic leaves it half changed.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Converts an event of a datastore's control to the API's type. `name_of` maps disk keys to names, and `host_name`
/// maps host identities to names.
pub(crate) fn happening(
    event: control::Event,
    name_of: impl Fn(DiskKey) -> Option<Name>,
    host_name: impl Fn([u8; 16]) -> Option<String>,
) -> Happening {
    let us = |span: Span| float(span.as_nanos()) / 1e3;
    let event = match event {
        control::Event::Trouble(trouble) => return Happening::Trouble { why: trouble.what },
        control::Event::TroubleOver => return Happening::TroubleOver,
        control::Event::Governor(event) => event,
    };
    match event {
        GovernorEvent::Engaged { latency, threshold } => Happening::Engaged {
            latency_us: us(latency),
            threshold_us: us(threshold),
        },
        GovernorEvent::Disengaged => Happening::Disengaged,
        GovernorEvent::ReservationUnmet { key } => {
            Happening::ReservationUnmet { disk: name_of(key) }
        }
        GovernorEvent::ReservationsShrunk { percent } => Happening::ReservationsShrunk { percent },
        GovernorEvent::BurstLow { key, percent } => Happening::BurstLow {
            disk: name_of(key),
            percent,
        },
        GovernorEvent::HostSeen { host } => Happening::HostSeen {
            host: hex(&host),
            name: host_name(host),
        },
        GovernorEvent::HostLost { host, left } => Happening::HostLost {
            host: hex(&host),
            name: host_name(host),
            left,
        },
        GovernorEvent::ExternalLoad { on } => Happening::ExternalLoad { on },
        GovernorEvent::Alone { on } => Happening::Alone { on },
        GovernorEvent::Mute { on } => Happening::Mute { on },
        GovernorEvent::ThresholdMoved { to } => Happening::ThresholdMoved {
            threshold_us: us(to),
        },
        GovernorEvent::GenerationRefused { generation } => {
            Happening::GenerationRefused { generation }
        }
        GovernorEvent::Displaced => Happening::Displaced,
        GovernorEvent::Paused { span } => Happening::Paused {
            for_s: float(span.as_nanos()) / 1e9,
        },
    }
}

/// The text of an event that belongs to no datastore.
fn of_host(happening: &Happening) -> String {
    match happening {
        Happening::CacheBudgetSpent {
            cache,
            budget_bytes_per_day,
        } => format!(
            "cache {cache} has used up its write budget ({} a day on each device): nothing enters it, and writes go to the datastores, \
             until an hour's budget has come",
            Size(*budget_bytes_per_day)
        ),
        Happening::CacheDeviceAstray {
            cache,
            device,
            path,
            why,
        } => format!(
            "device {device} of cache {cache} is not at {path} any more: {why}; what only it has is lost when the daemon stops: see \
             `tidegate cache show {cache}`"
        ),
        Happening::CacheDeviceInPlace {
            cache,
            device,
            path,
        } => format!("device {device} of cache {cache} is at {path} again"),
        Happening::CacheBudgetBack { cache } => {
            format!("cache {cache} has some of its write budget again, and is used as before")
        }
        Happening::CacheDeviceAdded {
            cache,
            device,
            path,
        } => format!("{path} is device {device} of cache {cache} now, and is being filled"),
        Happening::CacheDeviceFilled { cache, device } => {
            format!("device {device} of cache {cache} has everything")
        }
        Happening::CacheDeviceRemoved {
            cache,
            device,
            path,
        } => format!("{path} is not device {device} of cache {cache} any more"),
        Happening::PoolLevel {
            pool,
            level: PoolLevel::Ample,
            ..
        } => format!("pool {pool} has enough space again"),
        Happening::PoolLevel {
            pool,
            used_bytes,
            size_bytes,
            ..
        } => format!(
            "pool {pool} is {} % full: add a group (tidegate pool add-group {pool} PATH) or delete disks",
            percent(*used_bytes, *size_bytes)
        ),
        Happening::PoolFull { pool, disk } => format!(
            "pool {pool} has no space for disk {disk}, whose writes to new space fail: add a group (tidegate pool add-group {pool} \
             PATH) or delete disks"
        ),
        Happening::Certificate {
            listener,
            file,
            state,
            days_left,
        } => format!(
            "the TLS certificate {file} at {listener} {}: put a new one there and restart the daemon",
            expiry::words(*state, *days_left)
        ),
        Happening::DenseMode { on, conditions } => {
            let state = if *on { "on" } else { "off" };
            let why = conditions.as_ref().map_or_else(
                || "an administrator set it".to_owned(),
                DenseConditions::words,
            );
            format!("dense mode is {state} on this host: {why}")
        }
        Happening::IoThreads {
            action,
            disk,
            thread,
            why,
            failed,
            repeats,
            by: _,
        } => {
            let sentence = io_threads::Sentence {
                action: *action,
                disk: disk.as_ref(),
                thread: *thread,
                why,
                failed: failed.as_deref(),
                repeats: *repeats,
            };
            sentence.text()
        }
        other => format!("{} on this host", other.word()),
    }
}

fn sentence(datastore: &Name, happening: &Happening) -> String {
    let us = |us: &f64| time(us * 1e3);
    let disk = |disk: &Option<Name>| match disk {
        Some(name) => format!("disk {name}"),
        None => "a detached disk".to_owned(),
    };
    let whom = |host: &str, name: &Option<String>| match name {
        Some(name) => format!("host {name} ({})", host.get(..SHORT).unwrap_or(host)),
        None => format!("host {host}"),
    };
    match happening {
        Happening::Engaged {
            latency_us,
            threshold_us,
        } => format!(
            "datastore {datastore} is congested: latency {}, threshold {}; its disks are served by their shares",
            us(latency_us),
            us(threshold_us)
        ),
        Happening::Disengaged => {
            format!("datastore {datastore} is no longer congested: only limits delay I/O")
        }
        Happening::ReservationUnmet { disk: name } => format!(
            "{} requested I/O all the time and got less than its reservation on datastore {datastore}",
            disk(name)
        ),
        Happening::ReservationsShrunk { percent } => format!(
            "the reservations on datastore {datastore} exceed its throughput: {percent} % of each is met"
        ),
        Happening::BurstLow {
            disk: name,
            percent: 0,
        } => format!("the burst of {} is used up: its limit applies", disk(name)),
        Happening::BurstLow {
            disk: name,
            percent,
        } => format!(
            "less than {percent} % is left of the burst of {}",
            disk(name)
        ),
        Happening::HostSeen { host, name } => {
            format!("{} uses datastore {datastore} too", whom(host, name))
        }
        Happening::HostLost {
            host,
            name,
            left: true,
        } => format!("{} has left datastore {datastore}", whom(host, name)),
        Happening::HostLost {
            host,
            name,
            left: false,
        } => format!(
            "{} no longer writes its slot on datastore {datastore}: its part is divided among the other hosts",
            whom(host, name)
        ),
        Happening::ExternalLoad { on: true } => {
            format!("something other than our hosts loads datastore {datastore}")
        }
        Happening::ExternalLoad { on: false } => {
            format!("the external load on datastore {datastore} has ended")
        }
        Happening::Alone { on: true } => format!(
            "the other hosts' slots on datastore {datastore} cannot be read: this host decides alone"
        ),
        Happening::Alone { on: false } => {
            format!("the other hosts' slots on datastore {datastore} can be read again")
        }
        Happening::Mute { on: true } => format!(
            "this host's slot on datastore {datastore} cannot be written: it takes no more than it last published"
        ),
        Happening::Mute { on: false } => {
            format!("this host's slot on datastore {datastore} can be written again")
        }
        Happening::ThresholdMoved { threshold_us } => format!(
            "datastore {datastore} counts as congested from {} on",
            us(threshold_us)
        ),
        Happening::GenerationRefused { generation } => format!(
            "slot 0 of .tidegate/hosts.v1 on datastore {datastore} has the impossible generation {generation} and \
             is ignored; find out what wrote it, and set it again: tidegate datastore set {datastore} \
             --io-control on"
        ),
        Happening::Displaced => format!(
            "another daemon has this daemon's slot or identity on datastore {datastore}, so this one uses another: \
             if this daemon's root directory was copied (a cloned machine, a restored backup), stop one of the \
             two, remove state/host-id from its root and start it again; otherwise do nothing"
        ),
        Happening::Paused { for_s } => format!(
            "this daemon was paused for {}: it joins the hosts of datastore {datastore} again",
            time(for_s * 1e9)
        ),
        Happening::Trouble { why } => format!("datastore {datastore}: {why}"),
        Happening::TroubleOver => {
            format!("the slots of hosts on datastore {datastore} can be read and written again")
        }
        Happening::Certificate { .. }
        | Happening::DenseMode { .. }
        | Happening::CacheBudgetSpent { .. }
        | Happening::CacheBudgetBack { .. }
        | Happening::IoThreads { .. }
        | Happening::CacheDeviceAstray { .. }
        | Happening::CacheDeviceInPlace { .. }
        | Happening::CacheDeviceAdded { .. }
        | Happening::CacheDeviceFilled { .. }
        | Happening::CacheDeviceRemoved { .. }
        | Happening::PoolLevel { .. }
        | Happening::PoolFull { .. } => of_host(happening),
        Happening::MemberDropped { .. }
        | Happening::MemberRebuilding { .. }
        | Happening::MemberRebuilt { .. }
        | Happening::MemberRebuildFailed { .. }
        | Happening::MemberGivenUp { .. }
        | Happening::MemberImageMissing { .. }
        | Happening::MembersLost { .. }
        | Happening::IoWaiting { .. }
        | Happening::IoResumed { .. }
        | Happening::Scrubbed { .. }
        | Happening::DiskMoved { .. } => of_layout(datastore, happening),
        Happening::SnapshotTaken { .. }
        | Happening::SnapshotDeleted { .. }
        | Happening::DiskRolledBack { .. }
        | Happening::DiskCloned { .. } => of_snapshot(happening),
        Happening::CacheLost { .. }
        | Happening::CacheDeviceLost { .. }
        | Happening::CacheCorrupt { .. }
        | Happening::CacheDiscarded { .. }
        | Happening::CachePolicyForgotten { .. }
        | Happening::CacheTarget { .. } => of_cache(happening),
        Happening::Missed { count } => {
            format!(
                "{count} events on datastore {datastore} were lost before they could be reported"
            )
        }
    }
}

/// The text of an event of a disk's layout; `datastore` is the member's.
fn of_layout(datastore: &Name, happening: &Happening) -> String {
    match happening {
        Happening::MemberDropped { disk, member, why } => {
            format!("disk {disk} goes on without member {member} on datastore {datastore}: {why}")
        }
        Happening::MemberRebuilding {
            disk,
            member,
            total_bytes,
        } => format!(
            "member {member} of disk {disk} on datastore {datastore} is being rebuilt: {total_bytes} bytes to copy"
        ),
        Happening::MemberRebuilt { disk, member } => {
            format!("member {member} of disk {disk} on datastore {datastore} is in sync again")
        }
        Happening::MemberRebuildFailed { disk, member, why } => format!(
            "member {member} of disk {disk} on datastore {datastore} could not be rebuilt: {why}; it is tried again"
        ),
        Happening::MemberGivenUp { disk, member } => format!(
            "disk {disk} was attached without member {member} on datastore {datastore}, which was given up: what only that \
             member had is lost"
        ),
        Happening::MemberImageMissing { disk, member, why } => format!(
            "the image of member {member} of disk {disk} on datastore {datastore} is missing: {why}"
        ),
        Happening::MembersLost { disk } => format!(
            "disk {disk} has lost all members that have its bytes: its I/O fails; repair their datastores, then detach \
             and attach it"
        ),
        Happening::IoWaiting { disk } => format!(
            "disk {disk} has lost all members that have its bytes: its I/O waits until one of them is back; repair their \
             datastores"
        ),
        Happening::IoResumed { disk } => {
            format!("the I/O of disk {disk} goes on: a member that has all bytes is back")
        }
        Happening::Scrubbed {
            disk,
            different: 0,
            unreadable: 0,
            ..
        } => format!("all members of disk {disk} are equal"),
        Happening::Scrubbed {
            disk,
            different,
            repaired,
            unreadable,
            ..
        } => format!(
            "the members of disk {disk} differ in {different} pieces of 64 KiB, of which {repaired} were repaired; \
             {unreadable} could not be read"
        ),
        Happening::DiskMoved { disk, from } => {
            format!("disk {disk} was moved from datastore {from} to {datastore}")
        }
        other => format!("{} on datastore {datastore}", other.word()),
    }
}

/// The text of an event of a snapshot.
fn of_snapshot(happening: &Happening) -> String {
    match happening {
        Happening::SnapshotTaken {
            disk,
            snapshot,
            held_us,
        } => {
            let held = time(float(*held_us) * 1e3);
            format!("snapshot {disk}@{snapshot} was taken; writes waited {held}")
        }
        Happening::SnapshotDeleted { disk, snapshot } => {
            format!("snapshot {disk}@{snapshot} was deleted")
        }
        Happening::DiskRolledBack { disk, snapshot } => {
            format!("disk {disk} was rolled back to {disk}@{snapshot}")
        }
        Happening::DiskCloned { disk, of } => format!("disk {disk} was made of {of}"),
        other => other.word().to_owned(),
    }
}

/// The text of an event of a disk's flash cache.
fn of_cache(happening: &Happening) -> String {
    match happening {
        Happening::CacheLost {
            disk,
            cache,
            lost_bytes: 0,
        } => format!(
            "the devices of cache {cache} have failed: disk {disk} goes on without it, and nothing is lost"
        ),
        Happening::CacheLost {
            disk,
            cache,
            lost_bytes,
        } => format!(
            "the devices of cache {cache} have failed, with up to {lost_bytes} bytes of writes that disk {disk} does not have: it has \
             stopped; see `tidegate disk show {disk}`"
        ),
        Happening::CacheDeviceLost {
            disk,
            cache,
            device,
            why,
        } => format!(
            "disk {disk} goes on without device {device} of cache {cache}: {why}; replace that device"
        ),
        Happening::CacheCorrupt {
            disk,
            cache,
            offset_bytes,
        } => format!(
            "cache {cache} does not return what was written at byte {offset_bytes} of disk {disk}, which nothing else has: reads of \
             that page fail; `tidegate cache show {cache}` counts such blocks"
        ),
        Happening::CacheDiscarded { disk, cache } => format!(
            "disk {disk} was attached without what only cache {cache} had: these writes are lost"
        ),
        Happening::CachePolicyForgotten { disk, cache, why } => format!(
            "the policy of cache {cache} begins anew for disk {disk}, and pages that had left enter later: {why}"
        ),
        Happening::CacheTarget {
            disk,
            cache,
            part_bytes,
            target,
        } => part_plan::sentence(disk, cache, *part_bytes, target),
        other => other.word().to_owned(),
    }
}

fn log(event: &Event) {
    let (disk, host) = match &event.happening {
        Happening::ReservationUnmet { disk } | Happening::BurstLow { disk, .. } => {
            (disk.as_ref(), None)
        }
        Happening::MemberDropped { disk, .. }
        | Happening::MemberRebuilding { disk, .. }
        | Happening::MemberRebuilt { disk, .. }
        | Happening::MemberRebuildFailed { disk, .. }
        | Happening::MemberGivenUp { disk, .. }
        | Happening::MemberImageMissing { disk, .. }
        | Happening::MembersLost { disk }
        | Happening::IoWaiting { disk }
        | Happening::IoResumed { disk }
        | Happening::Scrubbed { disk, .. }
        | Happening::CacheLost { disk, .. }
        | Happening::CacheDeviceLost { disk, .. }
        | Happening::CacheCorrupt { disk, .. }
        | Happening::CacheDiscarded { disk, .. }
        | Happening::CachePolicyForgotten { disk, .. }
        | Happening::CacheTarget { disk, .. }
        | Happening::SnapshotTaken { disk, .. }
        | Happening::SnapshotDeleted { disk, .. }
        | Happening::DiskRolledBack { disk, .. }
        | Happening::DiskCloned { disk, .. }
        | Happening::PoolFull { disk, .. }
        | Happening::DiskMoved { disk, .. } => (Some(disk), None),
        Happening::IoThreads { disk, .. } => (disk.as_ref(), None),
        Happening::HostSeen { host, .. } | Happening::HostLost { host, .. } => (None, Some(host)),
        // The engine logged these when it noticed them.
        Happening::Trouble { .. } | Happening::TroubleOver => return,
        _ => (None, None),
    };
    let disk = disk.map(tracing::field::display);
    let host = host.map(tracing::field::display);
    let datastore = event.datastore.as_ref().map(tracing::field::display);
    let (word, text) = (event.happening.word(), &event.text);
    if wants_a_look(&event.happening) {
        tracing::warn!(datastore, event = word, disk, host, "{text}");
    } else {
        tracing::info!(datastore, event = word, disk, host, "{text}");
    }
}

/// How many percent of all bytes some are.
fn percent(some: u64, all: u64) -> u64 {
    u64::try_from(u128::from(some) * 100 / u128::from(all.max(1))).unwrap_or(u64::MAX)
}

/// Whether an administrator should look: a reservation is unmet, for instance, or hosts no longer agree.
fn wants_a_look(happening: &Happening) -> bool {
    matches!(
        happening,
        Happening::ReservationUnmet { .. }
            | Happening::ReservationsShrunk { .. }
            | Happening::HostLost { left: false, .. }
            | Happening::ExternalLoad { on: true }
            | Happening::Alone { on: true }
            | Happening::Mute { on: true }
            | Happening::GenerationRefused { .. }
            | Happening::Displaced
            | Happening::Paused { .. }
            | Happening::Certificate { .. }
            | Happening::Missed { .. }
            | Happening::MemberDropped { .. }
            | Happening::MemberRebuildFailed { .. }
            | Happening::MemberGivenUp { .. }
            | Happening::MemberImageMissing { .. }
            | Happening::MembersLost { .. }
            | Happening::IoWaiting { .. }
            | Happening::CacheLost { .. }
            | Happening::CacheDeviceLost { .. }
            | Happening::CacheCorrupt { .. }
            | Happening::CacheDiscarded { .. }
            | Happening::CachePolicyForgotten { .. }
            | Happening::CacheBudgetSpent { .. }
            | Happening::CacheDeviceAstray { .. }
            | Happening::PoolFull { .. }
            | Happening::PoolLevel {
                level: PoolLevel::Low | PoolLevel::Critical,
                ..
            }
    ) || matches!(
        happening,
        Happening::Scrubbed { different, unreadable, .. } if different + unreadable > 0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn numbers(events: &[Event]) -> Vec<u64> {
        events.iter().map(|event| event.number).collect()
    }

    #[test]
    fn numbers_grow_by_one_and_a_listener_gets_what_it_has_not_seen() {
        let journal = Journal::default();
        let latest = journal.latest();
        for at in 0..5 {
            journal.add(Some(&name("fast")), at, Happening::Disengaged);
        }
        assert!(latest.has_changed().unwrap());
        assert_eq!(numbers(&journal.since(0)), [1, 2, 3, 4, 5]);
        assert_eq!(numbers(&journal.since(3)), [4, 5]);
        assert!(journal.since(5).is_empty());
    }

    #[test]
    fn a_number_of_a_daemon_before_gets_everything() {
        let journal = Journal::default();
        journal.add(Some(&name("fast")), 0, Happening::Disengaged);
        assert_eq!(numbers(&journal.since(700)), [1]);
    }

    #[test]
    fn only_the_latest_are_kept() {
        let journal = Journal::default();
        for at in 0..2_000 {
            journal.add(Some(&name("fast")), at, Happening::Disengaged);
        }
        let kept = journal.since(0);
        assert_eq!((kept.len(), kept[0].number), (KEPT, 2_000 - 1024 + 1));
    }

    #[test]
    fn what_a_governor_tells_is_told_in_words() {
        let key = DiskKey(7);
        let told = |event| {
            let disk = |of| (of == key).then(|| name("web1"));
            let host = |of| (of == [0xcd; 16]).then(|| "pve1".to_owned());
            let happening = happening(control::Event::Governor(event), disk, host);
            (happening.word(), sentence(&name("fast"), &happening))
        };
        let (word, text) = told(GovernorEvent::Engaged {
            latency: Span::from_millis(6),
            threshold: Span::from_millis(5),
        });
        assert_eq!(word, "engaged");
        assert!(text.contains("latency 6ms, threshold 5ms"), "{text}");
        let (_, text) = told(GovernorEvent::BurstLow { key, percent: 20 });
        assert_eq!(text, "less than 20 % is left of the burst of disk web1");
        let (_, text) = told(GovernorEvent::ReservationUnmet { key: DiskKey(8) });
        assert!(text.starts_with("a detached disk"), "{text}");
        let (word, text) = told(GovernorEvent::HostLost {
            host: [0xab; 16],
            left: false,
        });
        assert_eq!(word, "host-lost");
        assert!(text.contains(&"ab".repeat(16)), "{text}");
        let host = [0xcd; 16];
        let (_, text) = told(GovernorEvent::HostSeen { host });
        assert_eq!(text, "host pve1 (cdcdcdcd) uses datastore fast too");
    }

    #[test]
    fn a_displaced_host_is_told_that_its_root_may_have_been_copied_and_what_to_do() {
        let displaced = control::Event::Governor(GovernorEvent::Displaced);
        let happening = happening(displaced, |_| None, |_| None);
        assert_eq!(happening.word(), "displaced");
        assert!(wants_a_look(&happening));
        assert_eq!(
            sentence(&name("fast"), &happening),
            "another daemon has this daemon's slot or identity on datastore fast, so this one uses another: \
             if this daemon's root directory was copied (a cloned machine, a restored backup), stop one of the two, \
             remove state/host-id from its root and start it again; otherwise do nothing"
        );
    }

    #[test]
    fn trouble_with_the_slot_file_is_told_with_its_reason() {
        let trouble = control::Trouble {
            what: "the slots cannot be read".to_owned(),
        };
        let happening = happening(control::Event::Trouble(trouble), |_| None, |_| None);
        assert_eq!(
            sentence(&name("fast"), &happening),
            "datastore fast: the slots cannot be read"
        );
    }
}
