//! The governor: it sets a host's window on one datastore a few times a second.
//!
//! One governor for each datastore. The engine reports what its schedulers counted ([`Governor::observe`]) and what
//! stood in the slots of all hosts ([`Governor::heard`]); at [`Governor::deadline`] it asks for orders and for a slot to
//! publish ([`Governor::tick`]). The governor knows neither files nor threads; the hosts are equal, and none leads.
//!
//! # Always true
//! - The window of the orders lies between one and `window_most` reference I/Os, whatever the others wrote.
//! - Not engaged, nobody is held back: the window is `window_most`.
//! - A tick moves the deadline.
//! - While our reads fail, nothing is decided: not on others' ages, not on the window.
//!
//! # Picture
//! ```text
//!   usage --> disks ---+--> window (how much in all) --+--> division (how much is ours) --> orders
//!   slots --> peers ---+--> threshold, external -------+      |                       \--> our slot
//!                                                             \--> parts (who takes too much)
//! ```
//!
//! # Units
//! Inside: reference I/Os (a 4 KiB random read), nanoseconds, rates a second. In [`Orders`]: 1/256 of a reference I/O.
//!
//! # Source
//! PARDA (FAST 2009) for the setting (latency as the common signal, one slot for each host on the datastore), with the
//! window and its division as two laws.

pub mod admission;
pub mod alone;
mod block;
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

/// Where a datastore counts as congested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threshold {
    /// Found while serving.
    #[default]
    Auto,
    /// This latency, 0.2 ms to 100 ms.
    Fixed(Span),
    /// Never.
    Off,
}

/// What a datastore is made of, as far as that is known: the first guesses come from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// No moving parts.
    Flash,
    /// Spindles.
    Rotational,
    /// Anything.
    #[default]
    Unknown,
}

impl Kind {
    /// The first guess of costs.
    pub const fn costs(self) -> CostModel {
        match self {
            Kind::Flash => CostModel::flash(),
            Kind::Rotational => CostModel::rotational(),
            Kind::Unknown => CostModel::unknown(),
        }
    }

    /// The first guess of the threshold, in nanoseconds. Origin: 30 ms is Storage I/O Control's default (vSphere); the others
    /// are chosen.
    const fn threshold(self) -> f64 {
        match self {
            Kind::Flash => 5e6,
            Kind::Rotational => 30e6,
            Kind::Unknown => 10e6,
        }
    }
}

/// What a governor is told once.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// This host.
    pub host: [u8; 16],
    /// This start of its daemon: random.
    pub incarnation: u64,
    /// How far control goes, until slot 0 says otherwise.
    pub mode: Mode,
    /// Where it engages, until slot 0 says otherwise.
    pub threshold: Threshold,
    /// Bytes of a unit of reservations and limits, until slot 0 says otherwise.
    pub io_unit: u32,
    /// What the datastore is.
    pub kind: Kind,
    /// The widest window of this host, reference I/Os, up to 256: what its way to the datastore holds.
    pub window_most: u32,
    /// Whether costs are learned; else those of the kind stay.
    pub learn: bool,
}

/// The slots could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadFailed;

/// What a tick decided.
#[derive(Clone, Debug)]
pub struct Tick {
    /// For every scheduler of the datastore.
    pub orders: Orders,
    /// Our slot, to be written now; [`Governor::published`] demands to know how that went.
    pub publish: Option<[u8; SLOT]>,
    /// What happened since the last tick.
    pub events: Vec<GovernorEvent>,
}

/// What administrators hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GovernorEvent {
    /// The datastore is congested; shares and windows hold from now on.
    Engaged {
        /// The datastore's latency.
        latency: Span,
        /// The threshold that it passed.
        threshold: Span,
    },
    /// It is no longer.
    Disengaged,
    /// A disk asked all the time and got less than its reservation, for a second.
    ReservationUnmet {
        /// Which.
        key: DiskKey,
    },
    /// All reservations together are more than the datastore does: each is met in proportion.
    ReservationsShrunk {
        /// What part of them is met, in percent.
        percent: u32,
    },
    /// A disk's burst is nearly spent, or is.
    BurstLow {
        /// Which.
        key: DiskKey,
        /// Below what part of it: 20 or 0.
        percent: u64,
    },
    /// Another host serves this datastore.
    HostSeen {
        /// Which.
        host: [u8; 16],
    },
    /// It no longer does.
    HostLost {
        /// Which.
        host: [u8; 16],
        /// It said so; else it fell silent.
        left: bool,
    },
    /// Load that none of our hosts causes.
    ExternalLoad {
        /// Seen, or gone.
        on: bool,
    },
    /// We cannot hear the other hosts.
    Alone {
        /// So it is from now on, or no longer.
        on: bool,
    },
    /// The others cannot hear us: our writes fail.
    Mute {
        /// So it is from now on, or no longer.
        on: bool,
    },
    /// The automatic threshold is a tenth away from where it was last told.
    ThresholdMoved {
        /// Where it is.
        to: Span,
    },
    /// Slot 0 has a generation that no changes of administrators have led to: it is not believed.
    GenerationRefused {
        /// Which.
        generation: u64,
    },
    /// Somebody else sits in our slot, or has our name ([`Governor::host`]): take another slot.
    Displaced,
    /// This daemon stood still for so long that the others took it for dead; it joins anew.
    Paused {
        /// How long.
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
    /// Our part of it.
    part: f64,
    /// The threshold that holds now, all things considered; nanoseconds.
    target: f64,
    /// The one that holds without latency targets.
    base: f64,
    /// Its latency as the window law takes it: no host's counts for more than the law answers to.
    felt: f64,
    smooth: f64,
    /// How long a unit of our cost stays in flight, by how long one of all does: 0.5 to 2.
    stay: f64,
    /// The last two looks at that.
    stays: [f64; 2],
    /// All that was divided last was asked for.
    short: bool,
    theta: f64,
    engaged: bool,
    /// Ticks of the law since then.
    since_engaged: u32,
    /// A host is here that was not when the law last ticked.
    met: bool,
    /// The most that was done lately, forgotten by and by.
    busiest: f64,
    /// Ticks in a row above the threshold.
    over: u32,
    /// Since when latency is far below it.
    under: Option<Time>,
    joined: bool,
    frozen: bool,
    /// The generation of slot 0 that is not believed, since that was told.
    refused: Option<u64>,
    alone: bool,
    mute: bool,
    heard: Option<Time>,
    ticked: Option<Time>,
    /// How long the last tick meant to wait for the next: reads that work again plan anew before that comes.
    planned: Span,
    alone_at: Option<Time>,
    sequence: u64,
    published_at: Option<Time>,
    /// The interval that the last slot said.
    said: Span,
    published_part: f64,
    pending: Option<f64>,
    failing: Option<Time>,
    dither: common::Dither,
    told_threshold: f64,
    /// Disks of other hosts were short when last was divided, and for what part of the last seconds: 0 to 1.
    others_lack: bool,
    others_lacked: f64,
    unreadable: u64,
    events: Vec<GovernorEvent>,
}

impl Governor {
    /// A governor that knows nobody yet.
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

    /// The name under which the others know this host. It changes where another daemon that lives has it as well.
    pub fn host(&self) -> [u8; 16] {
        self.settings.host
    }

    /// What people call this host: the others show it.
    pub fn call(&mut self, name: Name) {
        self.name = name;
    }

    /// Our slot's number, as soon as the engine has claimed one.
    pub fn sits_at(&mut self, slot: u16) {
        self.slot = Some(slot);
    }

    /// Sets what holds for the whole datastore, from now on on this host. The bytes are slot 0, to be written; the
    /// other hosts take it up from there.
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

    /// What holds for the whole datastore.
    pub fn common(&self) -> Common {
        self.common
    }

    /// What the schedulers of all threads counted since the last call. If that should not wait, the deadline is now.
    pub fn observe(&mut self, now: Time, usage: &[Usage], bins: &[Bin]) {
        let change = self.disks.saw(now, usage, &mut self.events);
        if change.changed {
            self.pace.hurry(now);
        }
        let ratio = change.latency / self.target;
        let off = self.threshold_off();
        if self.engaged {
            // Only while the window holds us back is latency the window's doing.
            if change.latency > 0.0 && self.binding() && !steer::NEAR.contains(&ratio) {
                self.pace.wake(now);
            }
        } else if ratio > 1.0 && !off {
            self.pace.wake(now);
        }
        self.learn(bins);
    }

    /// What was noticed since it was last told, for who does not wait for the next tick to tell it.
    pub fn noticed(&mut self) -> Vec<GovernorEvent> {
        core::mem::take(&mut self.events)
    }

    /// Whether nothing moves: nobody is held back, nothing is told in a hurry, and the others hear and are heard.
    pub fn rests(&self) -> bool {
        let trouble = self.alone || self.mute || self.frozen || self.failing.is_some();
        !self.engaged && self.over == 0 && !self.pace.changed_recently() && !trouble
    }

    /// Slot 0 says this.
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

    /// The slots as they were just read, slot 0 among them; one that is left out counts as unchanged.
    pub fn heard(&mut self, now: Time, read: Result<&[(u16, &[u8])], ReadFailed>) {
        let Ok(slots) = read else {
            self.frozen = true;
            self.peers.unread();
            return;
        };
        if core::mem::take(&mut self.frozen) {
            // What hung with our reads has come back with them: how long it took says nothing of now.
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
            // Whoever has our name as well keeps it; ours is the next.
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

    /// Decides anew. To be called when the deadline has come, after the slots were read, if they can be.
    pub fn tick(&mut self, now: Time) -> Tick {
        self.notice_pause(now);
        self.ticked = Some(now);
        self.notice_silence(now);
        let law = self.pace.due(now);
        if law {
            self.look(now);
        }
        if self.alone {
            self.by_itself(now);
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
            // The next look may be a second after that.
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

    /// Whether the slot of the last tick was written.
    pub fn published(&mut self, now: Time, ok: bool) {
        let part = self.pending.take();
        if ok {
            self.failing = None;
            self.published_part = part.unwrap_or(self.published_part);
        } else if self.failing.is_none() {
            self.failing = Some(now);
        }
    }

    /// When it next demands [`Governor::tick`].
    pub fn deadline(&self) -> Time {
        self.pace.deadline()
    }

    /// Our last slot: who reads it divides our part at once. For a daemon that stops.
    pub fn leave(&mut self) -> [u8; SLOT] {
        self.sequence += 1;
        let mut record = self.record();
        record.flags = record.flags.with(Flags::LEAVING, true);
        record.disks.clear();
        record.encode()
    }

    /// Whether this disk's reservation can be promised beside all others. `key`: if it is known already, its old
    /// reservation does not count.
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
