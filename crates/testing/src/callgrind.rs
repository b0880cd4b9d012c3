//! Instructions per request of a server, counted by callgrind: a figure that varies by less than one percent.
//!
//! The server runs under valgrind twice, for few and for many requests. The difference is the cost of the requests: start
//! and end drop out. Only the program's own instructions count, not the kernel's.

use std::path::Path;

use anyhow::{Context, Result};

use crate::load::{Load, Source};
use crate::server::{Launch, Server};
use crate::tally::Until;
use crate::vhost::{GuestDriver, Vm, VmOptions, Wait};

const FEW: u64 = 20_000;
const MANY: u64 = 120_000;
const DEPTH: u16 = 32;

/// Instructions that a server of one vhost-user socket spends per request.
///
/// # Errors
/// valgrind, the server or the guest fails.
pub fn per_request(scratch: &Path, launch: &Launch) -> Result<f64> {
    per_request_after(scratch, launch, 0)
}

/// The same after so many requests that do not count: a cache has what they read.
///
/// # Errors
/// As [`per_request`].
pub fn per_request_after(scratch: &Path, launch: &Launch, warm_up: u64) -> Result<f64> {
    per_request_of(scratch, launch, DEPTH, [warm_up + FEW, warm_up + MANY])
}

/// The same with so many requests in flight, from the difference of two runs of so many requests.
///
/// # Errors
/// As [`per_request`].
pub fn per_request_of(
    scratch: &Path,
    launch: &Launch,
    depth: u16,
    [few, many]: [u64; 2],
) -> Result<f64> {
    let counts = [
        count(scratch, launch, depth, few)?,
        count(scratch, launch, depth, many)?,
    ];
    Ok(counts[1].saturating_sub(counts[0]) as f64 / (many - few) as f64)
}

fn count(scratch: &Path, launch: &Launch, depth: u16, requests: u64) -> Result<u64> {
    let out = scratch.join("callgrind.out");
    let under = under_callgrind(launch, &out);
    let server = Server::start(&under, scratch)?;
    let vm = Vm::connect(VmOptions::new(&launch.sockets[0], depth))?;
    let mut sources = [Source::new(Load::random_reads(depth, vm.config().size))];
    let mut driver = GuestDriver::new(vec![vm], Wait::Sleep);
    driver.run(&mut sources, Until::Count(requests), &mut |_| {})?;
    drop(driver);
    server.stop()?;
    let text = std::fs::read_to_string(&out)
        .with_context(|| format!("callgrind wrote no {}", out.display()))?;
    total(&text).context("callgrind's output has no total")
}

fn under_callgrind(launch: &Launch, out: &Path) -> Launch {
    let mut under = launch.clone();
    // valgrind does not let other threads run while one waits in a system call of which it does not know that it waits.
    under.program = "env".into();
    let mut words = vec![
        "TIDEGATE_NAP=1".into(),
        "valgrind".into(),
        "--tool=callgrind".into(),
        format!("--callgrind-out-file={}", out.display()).into(),
    ];
    words.push(launch.program.clone().into_os_string());
    words.append(&mut under.arguments);
    under.arguments = words;
    under
}

fn total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| {
        line.strip_prefix("totals:")
            .or_else(|| line.strip_prefix("summary:"))
    })?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read() {
        assert_eq!(total("events: Ir\nsummary: 12345 6\n"), Some(12_345));
        assert_eq!(total("events: Ir\n"), None);
    }
}
