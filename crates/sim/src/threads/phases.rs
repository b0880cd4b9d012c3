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
    Trace {
        cores: 4,
        costs: Costs {
            exit,
            ..Costs::MEASURED
        },
        vms: vec![1; 8],
        phases: order.map(|phase| phase(lasts)).to_vec(),
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
        work: 5_000,
        service: 700,
        size: 512,
        ..Load::IDLE
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
