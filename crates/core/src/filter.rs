//! Filters: layers of a disk's stack that see each I/O on submission and on completion.
//!
//! The stack ([`crate::stack`]) calls a filter's hooks; a filter answers with a [`Verdict`] and asks for more
//! through its [`Cx`]. It never calls its neighbour, never waits, never reads a clock. Each filter is one file in
//! this folder, its manual page beside the others in `docs/filters/`; [`FilterSpec`] is the table they are chosen from.
//!
//! # Always true
//! Rules F1-F5, which the stack keeps for every filter and `tests/stack.rs` checks against a dumb model:
//! - F1: `submit` is called top filter first, `complete` bottom filter first.
//! - F2: an I/O that a filter ends on its way down is completed only through the filters above that one.
//! - F3: each `submit` that was answered [`Verdict::Pass`] is followed by exactly one `complete`.
//! - F4, F5: a filter that answers a write or a flush itself has made durable what that answer promises.
//! - F6: a guest's I/O is not edited; a filter that commands other offsets or lengths sends its own ([`Cx::lower`]).
//!
//! # Source
//! The verdicts are those that VMware's program page lists for I/O filters (pass, complete, fail, defer).

use crate::iocontrol::Cost;
use crate::request::{Data, DiskId, Flags, IoId, Op, Outcome, Target, Token};
use crate::units::Time;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use options::{OptionsError, refuse};

pub use batch::Batch;

pub(crate) mod batch;
pub mod fault;
pub mod null;
pub mod options;
pub mod stats;
pub mod trace;

/// How many filters one disk may carry: more than any sensible stack, few enough for a small fixed index.
pub const MAX_FILTERS: usize = 16;

/// A layer of a disk's stack. All hooks must return at once.
///
/// I/Os come in batches: all that are on their way at one moment. A filter looks at each by itself (`submit`, `complete`),
/// or, where it can do less for all of them together, at the batch (`submit_all`, `complete_all`; the other is not called
/// then).
pub trait Filter: Send {
    /// Its name in configuration, reports and manual.
    fn name(&self) -> &'static str;

    /// An I/O on its way down.
    ///
    /// `Pass` hands it to the next layer, `Done` ends it here, `Defer` keeps it: the filter must then answer it
    /// exactly once with [`Cx::resume`].
    fn submit(&mut self, _cx: &mut Cx<'_>, _io: &Io) -> Verdict {
        Verdict::Pass
    }

    /// An I/O that this filter had passed, on its way up; `io.outcome` is what the layers below made of it.
    ///
    /// `Pass` hands that up, `Done` replaces it, `Defer` keeps the I/O as above.
    fn complete(&mut self, _cx: &mut Cx<'_>, _io: &Io) -> Verdict {
        Verdict::Pass
    }

    /// All I/Os that are on their way down at this moment, in order.
    fn submit_all(&mut self, cx: &mut Cx<'_>, batch: &mut Batch<'_>) {
        batch.each(|io| self.submit(cx, io));
    }

    /// All I/Os that are on their way up at this moment, in order.
    fn complete_all(&mut self, cx: &mut Cx<'_>, batch: &mut Batch<'_>) {
        batch.each(|io| self.complete(cx, io));
    }

    /// An I/O of this filter's own ([`Cx::lower`]) has ended.
    fn lower_done(&mut self, _cx: &mut Cx<'_>, _tag: u64, _outcome: Outcome) {}

    /// Bytes that this filter sent aside ([`Cx::side_write`]) are written, or could not be; the buffer comes back.
    fn side_done(&mut self, _cx: &mut Cx<'_>, _buffer: Vec<u8>, _outcome: Outcome) {}

    /// When it next commands [`Filter::tick`], and why. Must not be in the past after a tick.
    fn deadline(&self) -> Option<(Time, Why)> {
        None
    }

    /// Whether [`Filter::deadline`] is ever anything but `None`: most filters are never asked.
    fn timed(&self) -> bool {
        false
    }

    /// Its deadline has passed.
    fn tick(&mut self, _cx: &mut Cx<'_>) {}

    /// It is to be taken out as soon as nothing is inside the stack. What it holds back for time alone goes on at once, and
    /// from now on it holds nothing back so. It sees I/Os until [`Filter::retire`].
    fn release(&mut self, _cx: &mut Cx<'_>) {}

    /// Whoever asked for some I/Os is gone. Those of them that the filter keeps on their way down end now, with
    /// [`Fault::Gone`](crate::request::Fault::Gone): nothing below has seen them. `gone` tells which they are.
    fn abandon(&mut self, _cx: &mut Cx<'_>, _gone: &dyn Fn(IoId) -> bool) {}

    /// The I/O that waits for the end of the filter's own one with this tag ([`Cx::lower`]), if one does.
    fn owner(&self, _tag: u64) -> Option<IoId> {
        None
    }

    /// It is being taken out of the stack, with none of its I/Os in flight: last chance to send bytes aside.
    fn retire(&mut self, _cx: &mut Cx<'_>) {}

    /// What it has seen, for the outside.
    fn report(&self) -> FilterReport {
        FilterReport::Nothing
    }

    /// The sums of what it measures, if it measures I/Os: far less than its report.
    fn pulse(&self) -> Option<stats::Pulse> {
        None
    }
}

/// What a filter makes of an I/O.
// With a tag of its own: packed into the outcome's byte, `Pass` takes four instructions to be told from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// Carry on.
    Pass,
    /// It ends here, so.
    Done(Outcome),
    /// The filter owns it now and resumes it later, exactly once.
    Defer,
}

/// Why something commands to be woken, for traces and the dashboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A filter holds an I/O back for a time.
    Delay,
    /// Buffered records should not wait for more.
    Records,
    /// A limit lets an I/O go to the datastore.
    Limit,
    /// A layout tries a member again, copies at a rate, or waits for a target.
    Layout,
}

/// An I/O inside a stack, as its filters see it.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    /// Its name inside the shard.
    pub id: IoId,
    /// What is asked.
    pub op: Op,
    /// How.
    pub flags: Flags,
    /// Where on the disk, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub len: u64,
    /// The bytes.
    pub data: Data,
    /// Whether it begins where the guest's one before, of the same operation, ended. Never so for a filter's own.
    pub follows: bool,
    /// When the front end first saw it waiting.
    pub arrived: Time,
    /// When it entered the stack.
    pub entered: Time,
    /// When it reached the stack's bottom: from then on it waited for its turn.
    pub offered: Time,
    /// When it was given to the datastore.
    pub issued: Time,
    /// What I/O control charged for it, and for those that it stands for; nothing for these, and where the disk has no
    /// control.
    pub cost: Cost,
    /// When the datastore answered.
    pub returned: Time,
    /// How it ended so far; `Ok` on its way down.
    pub outcome: Outcome,
    /// For how many I/Os I/O control counts it; nothing for one that another stands for, and where there is no control.
    pub(crate) times: u16,
    pub(crate) origin: Origin,
    /// Which target it goes to, and where on it.
    pub(crate) target: Target,
    pub(crate) at: u64,
    /// The layout that sent it there.
    pub(crate) node: u8,
    /// Which of the disk's controls counts it, if the disk has layouts.
    pub(crate) via: u8,
    /// How often it has failed on a target.
    pub(crate) tries: u8,
    /// Which of the images that its target has had.
    pub(crate) image: u8,
    /// Which fence of the disk's layouts counts it, once it is mapped to a target ([`LayoutCx::fence`](crate::layout::LayoutCx::fence)); or zero.
    pub(crate) fence: u8,
    /// What the layout calls it, if that checks what is read ([`Layout::hit`](crate::layout::Layout::hit)); or zero.
    pub(crate) mark: u64,
    /// The filter that deferred it, and which way it was going. Below the lowest filter: it waits for its turn.
    /// [`GATHERED`]: it is about to go. Nothing while the datastore has it.
    pub(crate) parked: Option<(u8, Way)>,
}

impl Io {
    /// Whether nobody waits for it.
    pub(crate) fn is_background(&self) -> bool {
        matches!(self.origin, Origin::Layout { background, .. } if background)
    }
}

/// No filter's level: an I/O is gathered, and goes with others.
pub(crate) const GATHERED: u8 = u8::MAX;

/// No filter's level: the disk's layout has the I/O.
pub(crate) const IN_LAYOUT: u8 = u8::MAX - 1;

/// Who waits for an I/O's end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    Guest(Token),
    Filter {
        level: u8,
        tag: u64,
    },
    /// `background`: nobody waits for it.
    Layout {
        node: u8,
        tag: u64,
        background: bool,
    },
}

/// Which way an I/O goes through the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Down,
    Up,
}

/// Names a filter of a stack, also after others were put above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilterKey(pub u32);

/// A filter's own I/O, which enters the stack just below it.
#[derive(Clone, Copy, Debug)]
pub struct Lower {
    /// What is asked.
    pub op: Op,
    /// How.
    pub flags: Flags,
    /// Where on the disk, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub len: u64,
    /// The bytes: a part of a deferred guest's buffer, which stays valid until that guest's I/O is resumed.
    pub data: Data,
}

/// What a filter may ask for while one of its hooks runs.
pub struct Cx<'a> {
    pub(crate) now: Time,
    pub(crate) disk: DiskId,
    pub(crate) level: u8,
    pub(crate) commands: &'a mut VecDeque<Command>,
}

/// A command of a filter, executed by the stack after the hook returns.
pub(crate) enum Command {
    Lower {
        level: u8,
        tag: u64,
        lower: Lower,
    },
    Resume {
        level: u8,
        io: IoId,
        verdict: Verdict,
    },
    Side {
        level: u8,
        buffer: Vec<u8>,
    },
}

impl Cx<'_> {
    /// The time of the event that is being handled.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The disk whose stack this is.
    pub fn disk(&self) -> DiskId {
        self.disk
    }

    /// Sends an I/O of the filter's own to the layers below; [`Filter::lower_done`] gets `tag` back with its end.
    pub fn lower(&mut self, tag: u64, lower: Lower) {
        self.commands.push_back(Command::Lower {
            level: self.level,
            tag,
            lower,
        });
    }

    /// Lets a deferred I/O go on in the direction it had: `Pass`, or `Done` with an outcome.
    ///
    /// # Panics
    /// When the stack finds that this filter does not hold `io`, or when the verdict is `Defer`: answering an I/O
    /// twice would tell a guest that data is safe which is not.
    pub fn resume(&mut self, io: IoId, verdict: Verdict) {
        self.commands.push_back(Command::Resume {
            level: self.level,
            io,
            verdict,
        });
    }

    /// Appends `buffer` to the filter's side file; it comes back, to be used again, in [`Filter::side_done`].
    pub fn side_write(&mut self, buffer: Vec<u8>) {
        self.commands.push_back(Command::Side {
            level: self.level,
            buffer,
        });
    }
}

/// What a filter tells about itself.
#[derive(Clone, Debug, Default)]
pub enum FilterReport {
    /// It has nothing to tell.
    #[default]
    Nothing,
    /// [`stats`].
    Stats(Box<stats::StatsReport>),
    /// [`fault`].
    Fault(fault::FaultReport),
    /// [`trace`].
    Trace(trace::TraceReport),
}

/// Which filter, with its settings: how configuration names one.
#[derive(Clone, Debug, PartialEq)]
pub enum FilterSpec {
    /// [`null`].
    Null,
    /// [`stats`].
    Stats,
    /// [`fault`].
    Fault(fault::FaultSpec),
    /// [`trace`].
    Trace(trace::TraceSpec),
}

impl FilterSpec {
    /// Makes the filter.
    pub fn build(&self) -> Box<dyn Filter> {
        match self {
            FilterSpec::Null => Box::new(null::Null),
            FilterSpec::Stats => Box::new(stats::Stats::new()),
            FilterSpec::Fault(spec) => Box::new(fault::FaultFilter::new(spec.clone())),
            FilterSpec::Trace(spec) => Box::new(trace::Trace::new(spec)),
        }
    }
}

impl FromStr for FilterSpec {
    type Err = OptionsError;

    /// Reads `NAME` or `NAME:OPTIONS`, as on the command line.
    fn from_str(text: &str) -> Result<FilterSpec, OptionsError> {
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        match name {
            "null" | "stats" if !options.is_empty() => Err(refuse!(
                "the {name} filter has no options: write only {name}"
            )),
            "null" => Ok(FilterSpec::Null),
            "stats" => Ok(FilterSpec::Stats),
            "fault" => options.parse().map(FilterSpec::Fault),
            "trace" => options.parse().map(FilterSpec::Trace),
            _ => Err(refuse!(
                "there is no filter `{name}`; the filters are null, stats, fault and trace"
            )),
        }
    }
}

impl fmt::Display for FilterSpec {
    /// As [`FilterSpec::from_str`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilterSpec::Null => f.write_str("null"),
            FilterSpec::Stats => f.write_str("stats"),
            FilterSpec::Fault(spec) => write!(f, "fault:{spec}"),
            FilterSpec::Trace(spec) => write!(f, "trace:{spec}"),
        }
    }
}
