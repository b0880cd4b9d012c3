//! A host's name in slots and leases: 64 bytes of printable text.
//!
//! # Always true
//! - [`Name::chars`] returns only printable ASCII, whatever the bytes on the datastore.

/// The most bytes of a host's name.
pub const LONGEST: usize = 64;

/// The display name of a host, cut after [`LONGEST`] bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name(pub(super) [u8; LONGEST]);

impl Default for Name {
    fn default() -> Name {
        Name([0; LONGEST])
    }
}

impl Name {
    /// The name with this text.
    pub fn new(text: &str) -> Name {
        let mut bytes = [0; LONGEST];
        for (to, from) in bytes.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        Name(bytes)
    }

    /// The name for logs and terminals, in printable ASCII only.
    pub fn chars(&self) -> impl Iterator<Item = char> {
        let written = self.0.into_iter().take_while(|&byte| byte != 0);
        written.map(|byte| match byte {
            b' '..=b'~' => char::from(byte),
            _ => '?',
        })
    }
}

impl core::fmt::Debug for Name {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.chars().try_for_each(|char| write!(f, "{char}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    #[test]
    fn a_name_is_cut_and_says_nothing_that_cannot_be_printed() {
        let shown = |text: &str| Name::new(text).chars().collect::<String>();
        assert_eq!(shown("pve1"), "pve1");
        assert_eq!(shown("a\u{1b}[31m"), "a?[31m");
        assert_eq!(shown(&"x".repeat(100)).len(), 64);
        assert_eq!(Name::default(), Name::new(""));
    }
}
