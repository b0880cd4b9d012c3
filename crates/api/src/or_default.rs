//! A setting that has a value of its own, or the default: one word for that in flags, REST and the control tree.
//!
//! A descriptor does not mention a setting that has the default.
//!
//! # Always true
//! - `default` reads as the default, and each value as itself; a value is written as it is read

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{DeserializeOwned, Error, IntoDeserializer, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// The word for the default.
pub const DEFAULT: &str = "default";

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrDefault<T> {
    /// As the default is now.
    #[default]
    Default,
    /// This value.
    Value(T),
}

impl<T> OrDefault<T> {
    /// The value; none: the default.
    pub fn value(self) -> Option<T> {
        match self {
            OrDefault::Default => None,
            OrDefault::Value(value) => Some(value),
        }
    }

    /// The same for another type of value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> OrDefault<U> {
        self.value().map(change).into()
    }

    /// Whether it is the default.
    pub fn is_default(&self) -> bool {
        matches!(self, OrDefault::Default)
    }
}

impl<T> From<Option<T>> for OrDefault<T> {
    fn from(value: Option<T>) -> OrDefault<T> {
        value.map_or(OrDefault::Default, OrDefault::Value)
    }
}

impl<T: fmt::Display> fmt::Display for OrDefault<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OrDefault::Default => f.write_str(DEFAULT),
            OrDefault::Value(value) => value.fmt(f),
        }
    }
}

impl<T: FromStr<Err: fmt::Display>> FromStr for OrDefault<T> {
    type Err = String;
    fn from_str(text: &str) -> Result<OrDefault<T>, String> {
        match text.trim() {
            DEFAULT => Ok(OrDefault::Default),
            value => value
                .parse()
                .map(OrDefault::Value)
                .map_err(|e| format!("it is neither {DEFAULT} nor a value: {e}")),
        }
    }
}

impl<T: Serialize> Serialize for OrDefault<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            OrDefault::Default => s.serialize_str(DEFAULT),
            OrDefault::Value(value) => value.serialize(s),
        }
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for OrDefault<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<OrDefault<T>, D::Error> {
        d.deserialize_any(Read(PhantomData))
    }
}

/// Reads a value that is a word or a number, or the word for the default.
struct Read<T>(PhantomData<T>);

impl<T: DeserializeOwned> Read<T> {
    fn value<'a, E: Error>(from: impl IntoDeserializer<'a, E>) -> Result<OrDefault<T>, E> {
        let value = T::deserialize(from.into_deserializer());
        let value = value.map_err(|e| E::custom(format!("{e}, or \"{DEFAULT}\"")))?;
        Ok(OrDefault::Value(value))
    }
}

impl<T: DeserializeOwned> Visitor<'_> for Read<T> {
    type Value = OrDefault<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value or \"{DEFAULT}\"")
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<OrDefault<T>, E> {
        match word {
            DEFAULT => Ok(OrDefault::Default),
            _ => Self::value(word),
        }
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<OrDefault<T>, E> {
        Self::value(number)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<OrDefault<T>, E> {
        Self::value(number)
    }
}

/// The schema of a number or the word for the default.
#[derive(Debug)]
pub struct NumberOrDefault;

impl PartialSchema for NumberOrDefault {
    fn schema() -> RefOr<Schema> {
        let word = ObjectBuilder::new()
            .schema_type(Type::String)
            .enum_values(Some([DEFAULT]));
        let number = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .minimum(Some(0));
        OneOfBuilder::new().item(number).item(word).into()
    }
}

impl ToSchema for NumberOrDefault {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Coalesce;

    #[test]
    fn a_value_and_the_word_read_back_as_they_are_written() {
        for (text, json) in [("default", r#""default""#), ("4", "4")] {
            let setting: OrDefault<u32> = text.parse().unwrap();
            assert_eq!(setting.to_string(), text);
            assert_eq!(serde_json::to_string(&setting).unwrap(), json);
            assert_eq!(
                serde_json::from_str::<OrDefault<u32>>(json).unwrap(),
                setting
            );
        }
        let adaptive = serde_json::from_str(r#""adaptive""#).unwrap();
        assert_eq!(OrDefault::Value(Coalesce::Adaptive), adaptive);
        assert_eq!(OrDefault::<u32>::default().value(), None);
    }

    #[test]
    fn another_word_is_refused_and_the_refusal_names_this_one() {
        for json in ["null", r#""none""#, "-1"] {
            let error = serde_json::from_str::<OrDefault<u32>>(json).unwrap_err();
            assert!(
                error.to_string().contains("or \"default\""),
                "{json}: {error}"
            );
        }
        let error = "none".parse::<OrDefault<u32>>().unwrap_err();
        assert!(error.contains("neither default nor a value"), "{error}");
        let error = serde_json::from_str::<OrDefault<Coalesce>>(r#""none""#).unwrap_err();
        assert!(
            error.to_string().contains("'none' is neither off"),
            "{error}"
        );
    }
}
