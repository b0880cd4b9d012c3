//! The `fault` filter: it fails, delays, tears or drops I/Os by rule, for tests and fire drills.
//!
//! One filter carries one rule, a [`FaultSpec`]; a disk may carry several. It decides on an I/O's way down and takes
//! no part in its way up. Its manual is `docs/filters/fault.md`.
//!
//! # Always true
//! - An I/O that the rule does not strike passes untouched.
//! - The same seed and the same I/Os in the same order are struck the same way.
//! - A delayed I/O goes on no earlier than its time, unless the rule is taken away; those of one rule go on in order.
//! - A torn write puts a part of the guest's bytes on the disk, never anything else.
//!
//! # Picture: who is struck
//! ```text
//! every I/O ─ op? ─ range? ─> matched ─ after? ─ every? ─ probability? ─ count? ─> struck
//! ```

use super::options::{self, OptionsError, refuse};
use super::{Batch, Cx, Filter, FilterReport, Io, Lower, Verdict, Why};
use crate::request::{Fault, IoId, Op, Outcome};
use crate::units::{Span, Time};
use alloc::collections::VecDeque;
use alloc::string::ToString;
use core::fmt;
use core::str::FromStr;

/// What befalls an I/O that the rule strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAct {
    /// It fails at once, and nothing below hears of it.
    Fail(Fault),
    /// It waits this long, then goes on; or then fails, where a fault is given.
    Delay(Span, Option<Fault>),
    /// Of a write, only the first bytes reach the layers below; then it is answered so.
    Torn {
        /// How many bytes; `None` for the first half, in whole sectors.
        keep: Option<u64>,
        /// What the guest is told.
        answer: Outcome,
    },
    /// It is answered as done, and nothing below hears of it.
    Lost,
}

/// A rule: what befalls whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultSpec {
    /// What.
    pub act: FaultAct,
    /// Only this operation; `None` for all.
    pub op: Option<Op>,
    /// Only I/Os that touch bytes from here ...
    pub from: u64,
    /// ... to before here. An operation without a range (a flush) matches any.
    pub to: u64,
    /// Of those, not the first so many.
    pub after: u64,
    /// Of those, every n-th; at least 1.
    pub every: u64,
    /// Of those, so many of a billion, by chance.
    pub billionths: u32,
    /// Which chances.
    pub seed: u64,
    /// No more than so many in all.
    pub count: u64,
}

/// All of a billion.
const ALWAYS: u32 = 1_000_000_000;
/// Disks tear at sectors; the smallest there are.
const SECTOR: u64 = 512;
/// The longest delay: an hour. Guests have given up long before, and sums stay far from overflow.
const LONGEST: Span = Span::from_secs(3_600);

/// What people call faults.
const FAULTS: [(&str, Fault); 6] = [
    ("eio", Fault::Io),
    ("enospc", Fault::NoSpace),
    ("einval", Fault::Invalid),
    ("erofs", Fault::ReadOnly),
    ("enotsup", Fault::Unsupported),
    ("eshutdown", Fault::Gone),
];

/// What people call operations.
const OPS: [(&str, Op); 7] = [
    ("read", Op::Read),
    ("write", Op::Write),
    ("write-zeroes", Op::WriteZeroes),
    ("discard", Op::Discard),
    ("flush", Op::Flush),
    ("extents", Op::Extents),
    ("prefetch", Op::Prefetch),
];

impl FaultSpec {
    /// The rule that strikes every I/O.
    pub const fn always(act: FaultAct) -> FaultSpec {
        FaultSpec {
            act,
            op: None,
            from: 0,
            to: u64::MAX,
            after: 0,
            every: 1,
            billionths: ALWAYS,
            seed: 0,
            count: u64::MAX,
        }
    }
}

impl FromStr for FaultSpec {
    type Err = OptionsError;

    /// Reads what follows `fault:`; see the manual.
    fn from_str(text: &str) -> Result<FaultSpec, OptionsError> {
        let mut spec = FaultSpec::always(FaultAct::Lost);
        let (mut error, mut delay, mut torn, mut lost) = (None, None, None, false);
        let (mut any_op, mut seeded) = (false, false);
        for (key, value) in options::each(text) {
            match key {
                "error" => error = Some(named(&FAULTS, key, value)?),
                "delay" => delay = Some(options::span(key, value)?),
                "torn" => {
                    torn = Some(value.map(|value| options::size(key, value)).transpose()?);
                }
                "lost" if value.is_none() => lost = true,
                "op" if value == Some("any") => any_op = true,
                "op" => spec.op = Some(named(&OPS, key, value)?),
                "range" => (spec.from, spec.to) = range(options::required(key, value)?)?,
                "after" => spec.after = options::number(key, value)?,
                "every" => spec.every = options::number(key, value)?,
                "probability" => spec.billionths = options::fraction(key, value)?,
                "seed" => (spec.seed, seeded) = (options::number(key, value)?, true),
                "count" => spec.count = options::number(key, value)?,
                "once" if value.is_none() => spec.count = 1,
                _ => {
                    return Err(refuse!(
                        "the fault filter has no option `{key}`{}: it has error=, delay=, torn, lost, op=, range=, \
                         after=, every=, probability=, seed=, count= and once",
                        value.map_or("", |_| " with a value"),
                    ));
                }
            }
        }
        spec.act = match (error, delay, torn, lost) {
            (Some(fault), None, None, false) => FaultAct::Fail(fault),
            (error, Some(span), None, false) => FaultAct::Delay(span, error),
            (error, None, Some(keep), false) => FaultAct::Torn {
                keep,
                answer: error.map_or(Ok(()), Err),
            },
            (None, None, None, true) => FaultAct::Lost,
            (None, None, None, false) => {
                return Err(refuse!(
                    "the fault filter needs an action: error=eio, delay=5ms, torn or lost"
                ));
            }
            _ => {
                return Err(refuse!(
                    "the fault filter takes one action: error=, delay=, torn or lost (delay and torn may add error=)"
                ));
            }
        };
        if spec.op.is_none()
            && !any_op
            && matches!(spec.act, FaultAct::Torn { .. } | FaultAct::Lost)
        {
            spec.op = Some(Op::Write);
        }
        if seeded && spec.billionths == ALWAYS {
            return Err(refuse!("seed= has no effect without probability="));
        }
        spec.validate()?;
        Ok(spec)
    }
}

impl FaultSpec {
    /// Whether the rule makes sense.
    pub fn validate(&self) -> Result<(), OptionsError> {
        if self.every == 0 {
            return Err(refuse!(
                "every=0 matches nothing: write 1 for each, 2 for every other"
            ));
        }
        if self.from >= self.to {
            return Err(refuse!("the range {}-{} is empty", self.from, self.to));
        }
        match (self.act, self.op) {
            (FaultAct::Torn { .. }, Some(Op::Write)) | (FaultAct::Fail(_), _) => Ok(()),
            (FaultAct::Torn { .. }, _) => Err(refuse!("only writes can be torn: write op=write")),
            (FaultAct::Delay(span, _), _) if span > LONGEST => {
                Err(refuse!("delay={span} is too long: at most an hour"))
            }
            (FaultAct::Delay(..), _) => Ok(()),
            (FaultAct::Lost, Some(op)) if op.modifies() || op == Op::Flush => Ok(()),
            (FaultAct::Lost, _) => Err(refuse!(
                "only changes of a disk can be lost: give op=write, write-zeroes, discard or flush"
            )),
        }
    }
}

/// The value that a word stands for.
fn named<T: Copy>(table: &[(&str, T)], key: &str, value: Option<&str>) -> Result<T, OptionsError> {
    let value = options::required(key, value)?;
    let found = table.iter().find(|(name, _)| *name == value);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let names = table
            .iter()
            .fold(alloc::string::String::new(), |all, (name, _)| {
                all + " " + name
            });
        refuse!("{key}={value} is unknown; the choices are{names}")
    })
}

/// `FROM-TO`, either of which may be left out.
fn range(text: &str) -> Result<(u64, u64), OptionsError> {
    let (from, to) = text
        .split_once('-')
        .ok_or_else(|| refuse!("range={text} is not a range: write FROM-TO, for example 1M-2M"))?;
    let end = |text, open| {
        if str::is_empty(text) {
            Ok(open)
        } else {
            options::size("range", text)
        }
    };
    Ok((end(from, 0)?, end(to, u64::MAX)?))
}

impl fmt::Display for FaultSpec {
    /// As [`FaultSpec::from_str`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = |fault: Fault| {
            FAULTS
                .iter()
                .find(|(_, f)| *f == fault)
                .map_or("eio", |(name, _)| *name)
        };
        match self.act {
            FaultAct::Fail(fault) => write!(f, "error={}", error(fault))?,
            FaultAct::Delay(span, fault) => {
                write!(f, "delay={}ns", span.as_nanos())?;
                fault.map_or(Ok(()), |fault| write!(f, ",error={}", error(fault)))?;
            }
            FaultAct::Torn { keep, answer } => {
                f.write_str("torn")?;
                keep.map_or(Ok(()), |keep| write!(f, "={keep}"))?;
                answer.or_else(|fault| write!(f, ",error={}", error(fault)))?;
            }
            FaultAct::Lost => f.write_str("lost")?,
        }
        if let Some(op) = self.op {
            write!(f, ",op={}", OPS[op.index()].0)?;
        }
        if (self.from, self.to) != (0, u64::MAX) {
            let to = if self.to == u64::MAX {
                "".into()
            } else {
                self.to.to_string()
            };
            write!(f, ",range={}-{to}", self.from)?;
        }
        let plain = [
            ("after", self.after, 0),
            ("every", self.every, 1),
            ("count", self.count, u64::MAX),
        ];
        for (key, value, default) in plain {
            if value != default {
                write!(f, ",{key}={value}")?;
            }
        }
        if self.billionths != ALWAYS {
            let (whole, places) = (self.billionths / ALWAYS, self.billionths % ALWAYS);
            write!(f, ",probability={whole}.{places:09},seed={}", self.seed)?;
        }
        Ok(())
    }
}

/// What a `fault` filter has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultReport {
    /// I/Os of the operation and range.
    pub matched: u64,
    /// Those of them that the act befell.
    pub struck: u64,
    /// Those that wait now.
    pub waiting: u64,
}

/// See the module.
#[derive(Debug)]
pub struct FaultFilter {
    spec: FaultSpec,
    random: u64,
    matched: u64,
    struck: u64,
    /// Delayed I/Os, the first to go on first: the delay is the same for all.
    waiting: VecDeque<(Time, IoId)>,
    /// It is to be taken out: nothing is delayed any more.
    leaving: bool,
}

impl FaultFilter {
    /// One that follows this rule.
    pub fn new(spec: FaultSpec) -> FaultFilter {
        FaultFilter {
            random: spec.seed,
            spec,
            matched: 0,
            struck: 0,
            waiting: VecDeque::new(),
            leaving: false,
        }
    }

    /// Lets those go on whose delay ends by then.
    fn let_go(&mut self, cx: &mut Cx<'_>, end: Time) {
        let FaultAct::Delay(_, fault) = self.spec.act else {
            return;
        };
        while let Some((until, io)) = self.waiting.front().copied()
            && until <= end
        {
            self.waiting.pop_front();
            cx.resume(io, after_delay(fault));
        }
    }

    /// Whether the rule strikes this I/O; counts it.
    fn strikes(&mut self, io: &Io) -> bool {
        let FaultSpec {
            op,
            from,
            to,
            after,
            every,
            billionths,
            count,
            ..
        } = self.spec;
        let elsewhere =
            io.op != Op::Flush && (io.offset >= to || io.offset.saturating_add(io.len) <= from);
        if op.is_some_and(|op| op != io.op) || elsewhere {
            return false;
        }
        self.matched += 1;
        let turn = self
            .matched
            .checked_sub(after)
            .is_some_and(|n| n > 0 && n % every == 0);
        let struck = turn
            && self.struck < count
            && (billionths == ALWAYS || self.draw() % u64::from(ALWAYS) < u64::from(billionths));
        self.struck += u64::from(struck);
        struck
    }

    /// SplitMix64: eight bytes of state, and any seed will do.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// What becomes of an I/O whose delay is over.
fn after_delay(fault: Option<Fault>) -> Verdict {
    fault.map_or(Verdict::Pass, |fault| Verdict::Done(Err(fault)))
}

impl Filter for FaultFilter {
    fn name(&self) -> &'static str {
        "fault"
    }

    fn submit(&mut self, cx: &mut Cx<'_>, io: &Io) -> Verdict {
        if !self.strikes(io) {
            return Verdict::Pass;
        }
        match self.spec.act {
            FaultAct::Fail(fault) => Verdict::Done(Err(fault)),
            FaultAct::Lost => Verdict::Done(Ok(())),
            FaultAct::Delay(_, fault) if self.leaving => after_delay(fault),
            FaultAct::Delay(span, _) => {
                self.waiting.push_back((cx.now() + span, io.id));
                Verdict::Defer
            }
            FaultAct::Torn { keep, answer } => {
                let keep = keep.unwrap_or(io.len / 2 / SECTOR * SECTOR).min(io.len);
                if keep == 0 {
                    return Verdict::Done(answer);
                }
                let Io {
                    op,
                    flags,
                    offset,
                    data,
                    ..
                } = *io;
                cx.lower(
                    io.id.to_bits(),
                    Lower {
                        op,
                        flags,
                        offset,
                        len: keep,
                        data,
                    },
                );
                Verdict::Defer
            }
        }
    }

    fn complete_all(&mut self, _cx: &mut Cx<'_>, _batch: &mut Batch<'_>) {}

    fn lower_done(&mut self, cx: &mut Cx<'_>, tag: u64, outcome: Outcome) {
        let FaultAct::Torn { answer, .. } = self.spec.act else {
            unreachable!("only a torn write sends an I/O below");
        };
        cx.resume(IoId::from_bits(tag), Verdict::Done(outcome.and(answer)));
    }

    fn deadline(&self) -> Option<(Time, Why)> {
        self.waiting.front().map(|(until, _)| (*until, Why::Delay))
    }

    fn timed(&self) -> bool {
        matches!(self.spec.act, FaultAct::Delay(..))
    }

    fn tick(&mut self, cx: &mut Cx<'_>) {
        self.let_go(cx, cx.now());
    }

    fn release(&mut self, cx: &mut Cx<'_>) {
        self.leaving = true;
        self.let_go(cx, Time::NEVER);
    }

    fn abandon(&mut self, cx: &mut Cx<'_>, gone: &dyn Fn(IoId) -> bool) {
        self.waiting.retain(|&(_, io)| {
            let gone = gone(io);
            if gone {
                cx.resume(io, Verdict::Done(Err(Fault::Gone)));
            }
            !gone
        });
    }

    fn owner(&self, tag: u64) -> Option<IoId> {
        matches!(self.spec.act, FaultAct::Torn { .. }).then(|| IoId::from_bits(tag))
    }

    fn report(&self) -> FilterReport {
        let FaultFilter {
            matched,
            struck,
            waiting,
            ..
        } = self;
        FilterReport::Fault(FaultReport {
            matched: *matched,
            struck: *struck,
            waiting: waiting.len() as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> FaultSpec {
        text.parse()
            .unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn rules_read_as_people_write_them() {
        let spec = parse("error=eio,op=write,every=100");
        assert_eq!(
            (spec.act, spec.op, spec.every),
            (FaultAct::Fail(Fault::Io), Some(Op::Write), 100)
        );
        let spec = parse("delay=5ms, probability=0.01, seed=7");
        assert_eq!(spec.act, FaultAct::Delay(Span::from_millis(5), None));
        assert_eq!((spec.billionths, spec.seed), (10_000_000, 7));
        let spec = parse("torn=512,error=eio,range=1M-2M,once,after=3");
        assert_eq!(
            spec.act,
            FaultAct::Torn {
                keep: Some(512),
                answer: Err(Fault::Io)
            }
        );
        assert_eq!(
            (spec.from, spec.to, spec.count, spec.after),
            (1 << 20, 2 << 20, 1, 3)
        );
        assert_eq!(parse("lost").op, Some(Op::Write));
        assert_eq!(parse("lost,op=flush,range=-4k").to, 4_096);
    }

    #[test]
    fn a_rule_survives_being_written_and_read() {
        for text in [
            "error=enospc",
            "error=eio,op=write,range=4k-,every=100,count=7",
            "delay=5ms,probability=0.000000001,seed=7",
            "delay=1us,error=eshutdown,op=read,after=9",
            "torn",
            "torn=1000,error=eio,once",
            "lost,op=write-zeroes",
        ] {
            let spec = parse(text);
            assert_eq!(parse(&spec.to_string()), spec, "{text} -> {spec}");
        }
    }

    #[test]
    fn rules_that_make_no_sense_are_refused_with_a_way_out() {
        for (text, way_out) in [
            ("", "needs an action"),
            ("op=write", "needs an action"),
            ("lost,error=eio", "one action"),
            ("torn,delay=1ms", "one action"),
            ("error=ebadf", "the choices are eio"),
            ("error", "error=..."),
            ("error=eio,op=trim", "discard"),
            ("error=eio,every=0", "1 for each"),
            ("error=eio,range=5", "FROM-TO"),
            ("error=eio,range=5-5", "empty"),
            ("torn,op=read", "op=write"),
            ("lost,op=any", "op=write"),
            ("lost,op=read", "op=write"),
            ("delay=2h", "ns, us, ms or s"),
            ("delay=4000s", "an hour"),
            ("error=eio,seed=3", "probability="),
            ("error=eio,colour=red", "every="),
            ("lost=1", "with a value"),
        ] {
            let error = text.parse::<FaultSpec>().expect_err(text).to_string();
            assert!(error.contains(way_out), "{text}: {error}");
        }
    }
}
