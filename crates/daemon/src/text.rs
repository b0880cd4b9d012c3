//! Small values as text and numbers: fresh UUIDs, hexadecimal, words for a shell, floats for display.

use std::path::Path;

use tidegate_api::descriptor::Uuid;

use crate::os_error::{self, Outcome};

/// A fresh identity.
pub(crate) fn new_uuid() -> Outcome<Uuid> {
    let mut bytes = [0; 16];
    // At most 256 bytes are never cut short, once the kernel has gathered its first entropy.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| os_error::io("cannot make a uuid", &e.into()))?;
    Ok(Uuid::from_random(bytes))
}

/// Bytes in hexadecimal, as the identity of a host or a run is written.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A path as a shell takes it.
pub(crate) fn quoted(path: &Path) -> String {
    shell(&path.display().to_string())
}

/// Words as a shell takes them.
pub(crate) fn shell(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=,:@%".contains(c);
    match text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// As a float, for showing: beyond 2^53 the last digits do not matter to anybody.
#[expect(clippy::cast_precision_loss, reason = "for showing only")]
pub(crate) fn float(number: u64) -> f64 {
    number as f64
}
