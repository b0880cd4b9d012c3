//! The trace of the experiment `io-threads`: four kinds of phases, each of which another set-up serves best.
//!
//! Four cores, eight VMs with a vCPU and a disk each. It was fixed before the first run with a policy.
//!
//! | phase | guests | published or measured |
//! |---|---|---|
//! | A compute | all compute; 1,000 requests a second in all, from flash | IOcm: a fixed number of I/O cores is worse than none |
//! | B deep queues | 32 outstanding each, 7 us of service a request, from flash | one I/O thread is the limit |
//! | C depth 1 | one guest with one request outstanding, from memory; the others idle | wake-ups are the cost |
//! | D mixed | three exchange small messages with four outstanding, one has one request outstanding from flash | IOcm: small messages |

use super::costs::Costs;
use super::trace::{Load, Phase, Trace};
use tidegate_core::coalesce::Coalesce;

/// Flash: 80 us on average.
const FLASH: u64 = 80_000;
/// An exit and entry of a vCPU with what it costs the guest: an input, not measured. It is varied.
pub const EXIT: u64 = 2_000;

/// The whole trace: two cycles with other orders, phases of this length.
#[must_use]
pub fn trace(lasts: u64, exit: u64) -> Trace {
    let order = [
        compute, deep, depth_one, mixed, depth_one, compute, mixed, deep,
    ];
    on_four_cores(order.map(|phase| phase(lasts)).to_vec(), exit)
}

/// Each of the four kinds of phases alone, for that long: a constant load.
#[must_use]
pub fn constant(lasts: u64, exit: u64) -> Vec<Trace> {
    let kinds = [compute, deep, depth_one, mixed];
    let alone = kinds.map(|phase| on_four_cores(vec![phase(lasts)], exit));
    alone.to_vec()
}

/// The load of a thread rises from nothing to four deep queues, each of which is a quarter of it: a step to react to.
/// Some monitors never move a disk with less than a fifth of a thread, so those of phase B stay together.
#[must_use]
pub fn step(lasts: u64, exit: u64) -> Trace {
    let idle = phase("idle", lasts, vec![Load::IDLE; 8]);
    let mut step = deep(lasts);
    step.loads[4..].fill(Load::IDLE);
    on_four_cores(vec![idle, step], exit)
}

/// Every core is full: all guests compute, and four of them have deep queues beside that. A thread waits for a core for much of
/// its time, so requests wait for it, too.
#[must_use]
pub fn full_cores(lasts: u64, exit: u64) -> Trace {
    let mut full = compute(lasts);
    full.name = "full cores".to_owned();
    for load in &mut full.loads[..4] {
        load.rate = 0;
        load.outstanding = 32;
        load.service = 7_050;
    }
    on_four_cores(vec![full], exit)
}

/// Small messages at so many a second in all, after those of MQTT clients: from six VMs with two vCPUs and a queue for each,
/// or from one VM with eight. Each vCPU works 5 us for a message.
#[must_use]
pub fn messages(small: bool, rate: u64, lasts: u64, exit: u64) -> Trace {
    let vms = if small { vec![2; 6] } else { vec![8] };
    let load = Load {
        rate: rate / vms.len() as u64,
        ..MESSAGES
    };
    let loads = vec![load; vms.len()];
    Trace {
        cores: 8,
        costs: costs(exit),
        vms,
        phases: vec![phase("messages", lasts, loads)],
        coalesce: Coalesce::Off,
        dense: false,
    }
}

/// A message: 512 bytes, from memory.
const MESSAGES: Load = Load {
    work: 5_000,
    service: 700,
    size: 512,
    ..Load::IDLE
};

fn costs(exit: u64) -> Costs {
    Costs {
        exit,
        ..Costs::MEASURED
    }
}

fn on_four_cores(phases: Vec<Phase>, exit: u64) -> Trace {
    Trace {
        cores: 4,
        costs: costs(exit),
        vms: vec![1; 8],
        phases,
        coalesce: Coalesce::Off,
        dense: false,
    }
}

fn phase(name: &str, lasts: u64, loads: Vec<Load>) -> Phase {
    Phase {
        name: name.to_owned(),
        lasts,
        loads,
    }
}

fn compute(lasts: u64) -> Phase {
    let load = Load {
        compute: true,
        rate: 125,
        work: 1_000,
        latency: FLASH,
        size: 4_096,
        ..Load::IDLE
    };
    phase("A compute", lasts, vec![load; 8])
}

fn deep(lasts: u64) -> Phase {
    let load = Load {
        outstanding: 32,
        work: 1_100,
        service: 7_050,
        latency: FLASH,
        size: 4_096,
        ..Load::IDLE
    };
    phase("B deep queues", lasts, vec![load; 8])
}

fn depth_one(lasts: u64) -> Phase {
    let mut loads = vec![Load::IDLE; 8];
    loads[0] = Load {
        outstanding: 1,
        work: 500,
        service: 100,
        size: 4_096,
        ..Load::IDLE
    };
    phase("C depth 1", lasts, loads)
}

fn mixed(lasts: u64) -> Phase {
    let messages = Load {
        outstanding: 4,
        ..MESSAGES
    };
    let single = Load {
        outstanding: 1,
        work: 1_000,
        latency: FLASH,
        size: 4_096,
        ..Load::IDLE
    };
    let mut loads = vec![messages, messages, messages, single];
    loads.resize(8, Load::IDLE);
    phase("D mixed", lasts, loads)
}
