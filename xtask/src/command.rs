//! Commands: run for their effect, for their status, or for their output.

use anyhow::{Context, bail};
use std::path::Path;
use std::process::{Command, Stdio};

/// Shows a command, runs it, and fails when it does.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    println!("  $ {}", shown(command));
    let status = command.stdin(Stdio::null()).status();
    let status = status.with_context(|| format!("{} does not start", shown(command)))?;
    if !status.success() {
        bail!("`{}` ended with {status}", shown(command));
    }
    Ok(())
}

/// Whether a command is there and content, whatever it says.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Runs a command for what it prints.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output();
    let output = output.with_context(|| format!("{} does not start", shown(command)))?;
    if !output.status.success() {
        bail!("`{}` ended with {}", shown(command), output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("{} prints no text", shown(command)))
}

fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut words = vec![program.file_name().unwrap_or_default().to_string_lossy()];
    words.extend(command.get_args().map(|arg| arg.to_string_lossy()));
    words.join(" ")
}
