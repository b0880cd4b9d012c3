//! Small values as text and numbers: new UUIDs, hexadecimal, words for a shell, floats for display.

use std::path::Path;

use tidegate_api::descriptor::Uuid;

use crate::os_error::{self, Outcome};

/// A new random identity.
pub(crate) fn new_uuid() -> Outcome<Uuid> {
    let mut bytes = [0; 16];
    // Reads of up to 256 bytes are never partial once the kernel's entropy pool is ready.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| os_error::io("cannot make a uuid", &e.into()))?;
    Ok(Uuid::from_random(bytes))
}

/// Formats bytes in hexadecimal, as for the identity of a host or a run.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Quotes a path for a shell.
pub(crate) fn quoted(path: &Path) -> String {
    shell(&path.display().to_string())
}

/// Quotes words for a shell.
pub(crate) fn shell(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=,:@%".contains(c);
    match text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Converts to a float for display: beyond 2^53 the last digits do not matter.
#[expect(clippy::cast_precision_loss, reason = "for showing only")]
pub(crate) fn float(number: u64) -> f64 {
    number as f64
}
