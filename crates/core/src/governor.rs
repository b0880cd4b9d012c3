//! The governor: it sets a host's window on one datastore a few times a second.
//!
//! Each datastore has one governor. The engine reports the schedulers' counts ([`Governor::observe`]) and the slots of
//! all hosts ([`Governor::heard`]). At [`Governor::deadline`] it calls [`Governor::tick`] for orders and for a slot to
//! publish. The governor does not know files or threads. All hosts are equal; none leads.
//!
//! # Always true
//! - The window of the orders is between one and `window_most` reference I/Os, whatever the other hosts published.
//! - While control is not engaged, no I/O is delayed: the window is `window_most`.
//! - A tick moves the deadline.
//! - While reads of the slots fail, the governor decides neither on the age of other hosts nor on the window.
//!
//! # Picture
//! ```text
//!   usage --> disks ---+--> window (how much in all) --+--> division (how much is ours) --> orders
//!   slots --> peers ---+--> threshold, external -------+      |                       \--> our slot
//!                                                             \--> parts (limits of single disks)
//! ```
//!
//! # Units
//! Internally: reference I/Os (a 4 KiB random read), nanoseconds, rates per second. In [`Orders`]: 1/256 of a reference
//! I/O.
//!
//! # Source
//! PARDA (FAST 2009) for the setting: latency as the common signal, and one slot for each host on the datastore. The
//! window and its division are two separate laws here.

pub mod admission;
pub mod alone;
mod common;
mod disks;
pub mod division;
pub mod external;
pub mod learn;
pub mod lease;
pub mod name;
mod number;
pub mod pace;
mod parts;
pub mod peers;
pub mod report;
pub mod slot;
mod steer;
pub mod threshold;
pub mod window;

pub use admission::Admission;
pub use report::{DiskReport, HostReport, Report, ToldDisk};

use crate::iocontrol::{Bin, CostModel, DiskKey, Mode, Orders, Policy, Usage};
use crate::units::{Span, Time};
use alloc::vec::Vec;
use disks::{Disks, Meter};
use external::Watch;
use learn::Learner;
use name::Name;
use number::{span, whole, whole32};
use pace::Pace;
use peers::Peers;
use slot::{Common, Flags, SLOT};
use threshold::{Curve, Pressure, Seeker};
use window::Sight;

/// The congestion threshold of a datastore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threshold {
    /// Determined automatically while serving.
    #[default]
    Auto,
    /// A fixed latency, 0.2 ms to 100 ms.
    Fixed(Span),
    /// Never.
    Off,
}

/// The kind of a datastore, as far as known. It selects the initial costs and threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// No moving parts.
    Flash,
    /// Rotating disks.
    Rotational,
    /// Unknown.
    #[default]
    Unknown,
}

impl Kind {
    /// The initial cost model.
    pub const fn costs(self) -> CostModel {
        match self {
            Kind::Flash => CostModel::flash(),
            Kind::Rotational => CostModel::rotational(),
            Kind::Unknown => CostModel::unknown(),
        }
    }

    /// The initial threshold, in nanoseconds. Origin: 30 ms is Storage I/O Control's default (vSphere); the others are
    /// chosen.
    const fn threshold(self) -> f64 {
        match self {
            Kind::Flash => 5e6,
            Kind::Rotational => 30e6,
            Kind::Unknown => 10e6,
        }
    }
}

/// The fixed settings of a governor.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// This host.
    pub host: [u8; 16],
    /// A random number of this start of the daemon.
    pub incarnation: u64,
    /// The mode of control, until slot 0 states another.
    pub mode: Mode,
    /// The threshold, until slot 0 states another.
    pub threshold: Threshold,
    /// Bytes of a unit of reservations and limits, until slot 0 states another.
    pub io_unit: u32,
    /// The kind of the datastore.
    pub kind: Kind,
    /// The widest window of this host, in reference I/Os, up to 256: the depth of its path to the datastore.
    pub window_most: u32,
    /// Whether costs are learned. Otherwise those of the kind apply.
    pub learn: bool,
}

/// The slots could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadFailed;

/// The result of a tick.
#[derive(Clone, Debug)]
pub struct Tick {
    /// The orders for every scheduler of the datastore.
    pub orders: Orders,
    /// This host's slot, to be written now. Report the result with [`Governor::published`].
    pub publish: Option<[u8; SLOT]>,
    /// The events since the last tick.
    pub events: Vec<GovernorEvent>,
}

/// An event for administrators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GovernorEvent {
    /// The datastore is congested; shares and windows apply from now on.
    Engaged {
        /// The datastore's latency.
        latency: Span,
        /// The exceeded threshold.
        threshold: Span,
    },
    /// The datastore is no longer congested.
    Disengaged,
    /// A disk had I/O queued all the time and got less than its reservation, for a second.
    ReservationUnmet {
        /// The disk.
        key: DiskKey,
    },
    /// All reservations together exceed the datastore's throughput: each is met in proportion.
    ReservationsShrunk {
        /// The fraction that is met, in percent.
        percent: u32,
    },
    /// A disk's burst is nearly or fully spent.
    BurstLow {
        /// The disk.
        key: DiskKey,
        /// The remaining percentage is below this: 20 or 0.
        percent: u64,
    },
    /// Another host uses this datastore.
    HostSeen {
        /// The host.
        host: [u8; 16],
    },
    /// A host no longer uses this datastore.
    HostLost {
        /// The host.
        host: [u8; 16],
        /// Whether it announced its leaving; otherwise it fell silent.
        left: bool,
    },
    /// Load that no host of the cluster causes.
    ExternalLoad {
        /// Detected, or ended.
        on: bool,
    },
    /// This host cannot read the other hosts' slots.
    Alone {
        /// Whether the condition begins or ends.
        on: bool,
    },
    /// The other hosts do not see this one: its writes fail.
    Mute {
        /// Whether the condition begins or ends.
        on: bool,
    },
    /// The automatic threshold differs by a tenth from its last reported value.
    ThresholdMoved {
        /// Its current value.
        to: Span,
    },
    /// Slot 0 has a generation that administrators' changes cannot have reached: it is ignored.
    GenerationRefused {
        /// The generation.
        generation: u64,
    },
    /// Another host uses our slot, or our name ([`Governor::host`]): take another slot.
    Displaced,
    /// This daemon was paused so long that the other hosts considered it dead. It joins again.
    Paused {
        /// The length of the pause.
        span: Span,
    },
}

/// The I/O control of one datastore on one host.
#[derive(Clone, Debug)]
pub struct Governor {
    settings: Settings,
    name: Name,
    common: Common,
    slot: Option<u16>,
    disks: Disks,
    peers: Peers,
    pace: Pace,
    curve: Curve,
    seeker: Seeker,
    pressure: Pressure,
    watch: Watch,
    learner: Learner,
    moment: (u64, [f64; learn::FEATURES]),
    meter: Meter,
    sight: Sight,
    /// The cluster's window.
    cluster: f64,
    /// This host's part of it.
    part: f64,
    /// The effective threshold; nanoseconds.
    target: f64,
    /// The threshold without latency targets.
    base: f64,
    /// The latency as the window law uses it, with each host's contribution bounded.
    felt: f64,
    smooth: f64,
    /// The residence time of a unit of our cost relative to that of all hosts: 0.5 to 2.
    stay: f64,
    /// The last two values of it.
    stays: [f64; 2],
    /// Whether every unit of the last division was demanded.
    short: bool,
    theta: f64,
    engaged: bool,
    /// Ticks of the law since then.
    since_engaged: u32,
    /// Whether a host appeared after the last tick of the law.
    met: bool,
    /// The recent peak throughput, decaying.
    busiest: f64,
    /// Consecutive ticks above the threshold.
    over: u32,
    /// Since when the latency is far below it.
    under: Option<Time>,
    joined: bool,
    frozen: bool,
    /// The ignored generation of slot 0, once reported.
    refused: Option<u64>,
    alone: bool,
    mute: bool,
    heard: Option<Time>,
    ticked: Option<Time>,
    /// The planned interval at the last tick. Reads that succeed again replan before it ends.
    planned: Span,
    alone_at: Option<Time>,
    sequence: u64,
    published_at: Option<Time>,
    /// The interval in the last published slot.
    said: Span,
    published_part: f64,
    pending: Option<f64>,
    failing: Option<Time>,
    dither: common::Dither,
    told_threshold: f64,
    /// The fraction of the last seconds in which disks of other hosts were short at a division: 0 to 1.
    others_lack: bool,
    others_lacked: f64,
    unreadable: u64,
    events: Vec<GovernorEvent>,
}

impl Governor {
    /// A governor that knows no other host yet.
    pub fn new(settings: Settings) -> Governor {
        let window_most = settings.window_most.clamp(1, 256);
        let settings = Settings {
            window_most,
            ..settings
        };
        let (threshold_mode, threshold) = common::words(settings.threshold);
        let common = Common {
            mode: common::mode_word(settings.mode),
            threshold_mode,
            threshold,
            io_unit: settings.io_unit.clamp(4 << 10, 128 << 10),
            ..Common::default()
        };
        let target = common::target(&common, settings.kind.threshold());
        Governor {
            settings,
            name: Name::default(),
            common,
            slot: None,
            disks: Disks::default(),
            peers: Peers::default(),
            pace: Pace::default(),
            curve: Curve::default(),
            seeker: Seeker::new(settings.kind.threshold()),
            pressure: Pressure::default(),
            watch: Watch::default(),
            learner: Learner::new(common::factors(&settings.kind.costs())),
            moment: (0, [0.0; learn::FEATURES]),
            meter: Meter::default(),
            sight: Sight {
                hosts: 1,
                ..Sight::default()
            },
            cluster: f64::from(window_most),
            part: f64::from(window_most),
            target,
            base: target,
            felt: 0.0,
            smooth: 0.0,
            stay: 1.0,
            stays: [1.0; 2],
            short: false,
            theta: 1.0,
            engaged: false,
            since_engaged: 0,
            met: false,
            busiest: 0.0,
            over: 0,
            under: None,
            joined: false,
            frozen: false,
            refused: None,
            alone: false,
            mute: false,
            heard: None,
            ticked: None,
            planned: Span::ZERO,
            alone_at: None,
            sequence: 0,
            published_at: None,
            said: Span::ZERO,
            published_part: f64::from(window_most),
            pending: None,
            failing: None,
            dither: common::Dither::default(),
            told_threshold: target,
            others_lack: false,
            others_lacked: 0.0,
            unreadable: 0,
            events: Vec::new(),
        }
    }

    /// This host's name for the others. It changes if another live daemon uses it as well.
    pub fn host(&self) -> [u8; 16] {
        self.settings.host
    }

    /// Sets the display name of this host, which the others show.
    pub fn call(&mut self, name: Name) {
        self.name = name;
    }

    /// Sets our slot's number, once the engine has claimed one.
    pub fn sits_at(&mut self, slot: u16) {
        self.slot = Some(slot);
    }

    /// Sets the datastore's common settings. They apply on this host at once. Write the returned bytes to slot 0; the
    /// other hosts read them there.
    pub fn set(&mut self, now: Time, mode: Mode, threshold: Threshold, io_unit: u32) -> [u8; SLOT] {
        let (threshold_mode, threshold) = common::words(threshold);
        self.common = Common {
            generation: Common::next_generation(self.common.generation, 0),
            mode: common::mode_word(mode),
            threshold_mode,
            threshold,
            io_unit: io_unit.clamp(4 << 10, 128 << 10),
            backend: self.common.backend,
        };
        self.pace.hurry(now);
        self.common.encode()
    }

    /// The common settings of the datastore.
    pub fn common(&self) -> Common {
        self.common
    }

    /// Takes the counts of all threads' schedulers since the last call. After urgent news the deadline is now.
    pub fn observe(&mut self, now: Time, usage: &[Usage], bins: &[Bin]) {
        let change = self.disks.saw(now, usage, &mut self.events);
        if change.changed {
            self.pace.hurry(now);
        }
        let ratio = change.latency / self.target;
        let off = self.threshold_off();
        if self.engaged {
            // Latency depends on the window only while the window delays our I/Os.
            if change.latency > 0.0 && self.binding() && !steer::NEAR.contains(&ratio) {
                self.pace.wake(now);
            }
        } else if ratio > 1.0 && !off {
            self.pace.wake(now);
        }
        self.learn(bins);
    }

    /// Returns new events, for callers that do not wait for the next tick.
    pub fn noticed(&mut self) -> Vec<GovernorEvent> {
        core::mem::take(&mut self.events)
    }

    /// Whether the governor is idle: no I/O is delayed, nothing urgent is to be published, and hosts see each other.
    pub fn rests(&self) -> bool {
        let trouble = self.alone || self.mute || self.frozen || self.failing.is_some();
        !self.engaged && self.over == 0 && !self.pace.changed_recently() && !trouble
    }

    /// Applies the content of slot 0.
    fn take_common(&mut self, now: Time, common: Common) {
        if common.supersedes(&self.common) {
            self.common = common;
            self.pace.hurry(now);
        }
        let generation = (!common.is_plausible()).then_some(common.generation);
        if core::mem::replace(&mut self.refused, generation) != generation
            && let Some(generation) = generation
        {
            let refused = GovernorEvent::GenerationRefused { generation };
            self.events.push(refused);
        }
    }

    /// Takes the slots as just read, including slot 0. An omitted slot counts as unchanged.
    pub fn heard(&mut self, now: Time, read: Result<&[(u16, &[u8])], ReadFailed>) {
        let Ok(slots) = read else {
            self.frozen = true;
            self.peers.unread();
            return;
        };
        if core::mem::take(&mut self.frozen) {
            // An I/O that hung together with our reads is complete now; its duration does not describe the present.
            let _hung = self.disks.meter();
            self.pace.ticked(now, self.engaged, false, self.cost(false));
        }
        self.heard = Some(now);
        if let Some((_, bytes)) = slots.iter().find(|(slot, _)| *slot == 0)
            && let Ok(common) = Common::decode(bytes)
        {
            self.take_common(now, common);
        }
        let me = (self.settings.host, self.settings.incarnation, self.slot);
        let hosts = || slots.iter().filter(|(slot, _)| *slot != 0).copied();
        let news = self.peers.heard(now, &hosts().collect::<Vec<_>>(), me);
        self.unreadable += u64::from(news.unreadable);
        self.events.extend(
            news.seen
                .iter()
                .map(|&host| GovernorEvent::HostSeen { host }),
        );
        let lost = news.lost.iter();
        self.events
            .extend(lost.map(|&(host, left)| GovernorEvent::HostLost { host, left }));
        self.met |= !news.seen.is_empty();
        if news.doubled {
            // If another daemon has our name, it keeps it; we take the next one.
            self.settings.host = u128::from_be_bytes(self.settings.host)
                .wrapping_add(1)
                .to_be_bytes();
        }
        if news.displaced || news.doubled {
            self.slot = None;
            self.events.push(GovernorEvent::Displaced);
        }
        if news.urgent || !news.lost.is_empty() {
            self.pace.wake(now);
        }
        if self.alone {
            self.alone = false;
            self.alone_at = None;
            self.joined = false;
            self.events.push(GovernorEvent::Alone { on: false });
        }
        if !self.joined {
            self.join();
        }
    }

    /// Decides again. Call it at the deadline, after reading the slots, if that is possible.
    pub fn tick(&mut self, now: Time) -> Tick {
        self.notice_pause(now);
        self.ticked = Some(now);
        self.notice_silence(now);
        let law = self.pace.due(now);
        if law {
            self.measure(now);
        }
        if self.alone {
            self.work_alone(now);
        } else if !self.frozen {
            if law {
                self.steer(now);
            }
            self.divide();
        }
        if self.engaged
            && !self.frozen
            && let Some(left) = self.peers.first_to_die()
        {
            // The next tick may be a second later.
            self.pace.look_at(now + left + Span::from_millis(1));
        }
        self.notice_mute(now);
        let publish = self.publish(now, law);
        self.planned = self.pace.planned();
        Tick {
            orders: self.orders(),
            publish,
            events: self.noticed(),
        }
    }

    /// Reports whether the slot of the last tick was written.
    pub fn published(&mut self, now: Time, ok: bool) {
        let part = self.pending.take();
        if ok {
            self.failing = None;
            self.published_part = part.unwrap_or(self.published_part);
        } else if self.failing.is_none() {
            self.failing = Some(now);
        }
    }

    /// The time of the next call of [`Governor::tick`].
    pub fn deadline(&self) -> Time {
        self.pace.deadline()
    }

    /// The final slot of a stopping daemon. Other hosts divide our part as soon as they read it.
    pub fn leave(&mut self) -> [u8; SLOT] {
        self.sequence += 1;
        let mut record = self.record();
        record.flags = record.flags.with(Flags::LEAVING, true);
        record.disks.clear();
        record.encode()
    }

    /// Whether this disk's reservation can be accepted together with all others. `key`: the disk, if it is known
    /// already; its old reservation then does not count.
    pub fn admit(&self, key: Option<DiskKey>, policy: &Policy) -> Admission {
        let (own, foreign) = self.all_disks();
        let mut unit_cost = 1.0;
        let mut reserved = 0.0;
        for disk in own.into_iter().chain(foreign) {
            if Some(disk.key) == key.map(|key| key.0) {
                unit_cost = disk.unit_cost;
            } else {
                reserved += f64::from(disk.reservation) * disk.unit_cost;
            }
        }
        let asked = f64::from(policy.reservation) * unit_cost;
        let knee = self.curve.knee().unwrap_or_default();
        admission::admit(reserved, asked, knee.peak, knee.saturated)
    }

    fn orders(&self) -> Orders {
        let mode = common::mode(self.common.mode);
        let engaged = (self.engaged || self.alone) && mode != Mode::Off;
        let window = if engaged {
            self.part
        } else {
            f64::from(self.settings.window_most)
        };
        Orders {
            mode,
            engaged,
            window: whole(window * 256.0 + 0.5),
            theta: if engaged {
                whole32(self.theta * 65_536.0)
            } else {
                1 << 16
            },
            costs: common::costs(&self.settings.kind.costs(), &self.learner.factors()),
            latency_p99: span(self.meter.p99),
            per_second: whole(self.meter.rate * 256.0),
            io_unit: self.common.io_unit,
            parts: if engaged { self.parts() } else { Vec::new() },
        }
    }
}
