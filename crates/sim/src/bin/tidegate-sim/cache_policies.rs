//! `tidegate-sim --cache-policies`: compares cache policies, and writes the tables of the manual.

use std::path::Path;
use tidegate_sim::cache_policies::evaluate::each_block;
use tidegate_sim::cache_policies::requests::load;
use tidegate_sim::cache_policies::tables::{MANUAL, by_size, manual, replaced};

const USAGE: &str = "\
tidegate-sim --cache-policies [--check] [--each-block] [--trace FILE]...

Without --trace: writes the tables in docs/flash-cache.md. --check only says whether they are as they should be.
--trace: prints the table of this trace: a packed one, one of the trace filter, or one of CloudPhysics.
--each-block: with --trace, counts each 4 KiB block as a request of its own.
";

/// Runs it with the arguments after the flag. Says whether the tables are as they should be.
pub(crate) fn run(args: &[String]) -> Result<bool, String> {
    let mut check = false;
    let mut by_block = false;
    let mut traces = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--check" => check = true,
            "--each-block" => by_block = true,
            "--trace" => traces.push(args.next().ok_or(USAGE)?),
            _ => return Err(format!("{arg} is unknown\n\n{USAGE}")),
        }
    }
    for trace in &traces {
        let mut requests = load(Path::new(trace))?;
        if by_block {
            requests = each_block(&requests);
        }
        println!("{trace}\n\n{}", by_size(&requests)?);
    }
    if !traces.is_empty() {
        return Ok(true);
    }
    let old = std::fs::read_to_string(MANUAL)
        .map_err(|error| format!("{MANUAL} cannot be read: {error}"))?;
    let new = replaced(&old, &manual(Path::new("."))?)?;
    if old == new {
        return Ok(true);
    }
    if check {
        eprintln!("{MANUAL} is stale: run `cargo xtask cache-policies`");
        return Ok(false);
    }
    std::fs::write(MANUAL, new).map_err(|error| format!("{MANUAL} cannot be written: {error}"))?;
    println!("{MANUAL} is written");
    Ok(true)
}
