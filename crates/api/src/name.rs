//! Names of disks and datastores. A name is also a path component, an NBD export name and a shell word.
//!
//! # Always true
//! - 1 to 63 characters of `A-Z a-z 0-9 . _ -`, the first a letter or digit. So a name is never `.` or `..`, never
//!   hidden and never an option.
//! - A name never needs quoting or escaping, and its socket's path stays within the kernel's limit.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A checked name of a disk or a datastore.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// Why a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' cannot be a name: {why}; use 1 to 63 letters, digits, '.', '_' or '-', beginning with a letter or digit"
)]
pub struct NameError {
    text: String,
    why: &'static str,
}

impl Name {
    /// The longest name: with the usual root its socket's path is well within the 107 bytes that `sockaddr_un` holds.
    pub const MAX_LEN: usize = 63;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Name, NameError> {
        let refuse = |why| {
            Err(NameError {
                text: text.chars().take(80).collect(),
                why,
            })
        };
        let Some(first) = text.chars().next() else {
            return refuse("it is empty");
        };
        if text.len() > Name::MAX_LEN {
            return refuse("it is too long");
        }
        if !first.is_ascii_alphanumeric() {
            return refuse("its first character is neither a letter nor a digit");
        }
        if !text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
        {
            return refuse("it has a character that is not allowed in a name");
        }
        Ok(Name(text.to_owned()))
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;
    fn try_from(text: String) -> Result<Name, NameError> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl utoipa::PartialSchema for Name {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::schema::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .description(Some("A name of a disk or datastore"))
            .pattern(Some("^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"))
            .into()
    }
}

impl utoipa::ToSchema for Name {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_pass() {
        for text in ["a", "disk0", "db-1.example_com", "0"] {
            assert_eq!(text.parse::<Name>().unwrap().as_str(), text);
        }
    }

    #[test]
    fn names_that_could_leave_their_directory_or_look_like_options_are_refused() {
        let long = "a".repeat(64);
        for text in [
            "", ".", "..", ".hidden", "-rf", "a/b", "a b", "a\0", "é", "a\n", &long,
        ] {
            assert!(text.parse::<Name>().is_err(), "{text:?}");
        }
    }
}
