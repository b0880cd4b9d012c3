//! Events: congestion, missed reservations, other hosts, expiring certificates.
//!
//! The daemon numbers them in the order in which it hears of them, logs each once, keeps the latest, and streams them.
//!
//! # Always true
//! - Numbers grow by one; they begin anew with the daemon.
//!
//! # Units
//! Every key ends in its unit.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::name::Name;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its number.
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// Where; none when it concerns the whole host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datastore: Option<Name>,
    /// What, and its particulars.
    #[serde(flatten)]
    pub happening: Happening,
    /// The same as a sentence.
    pub text: String,
}

/// What can happen. New ones may be added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Happening {
    /// The datastore is congested: shares and windows hold from now on.
    Engaged {
        /// Its latency.
        latency_us: f64,
        /// The threshold that it passed.
        threshold_us: f64,
    },
    /// It is congested no longer.
    Disengaged,
    /// A disk asked all the time and got less than its reservation, for a second.
    ReservationUnmet {
        /// Which; none when it has gone meanwhile.
        #[serde(default)]
        disk: Option<Name>,
    },
    /// All reservations together are more than the datastore does: each is met in proportion.
    ReservationsShrunk {
        /// What part of them is met.
        percent: u32,
    },
    /// A disk's burst is nearly spent, or is.
    BurstLow {
        /// Which; none when it has gone meanwhile.
        #[serde(default)]
        disk: Option<Name>,
        /// What part of it is left at most: 20 or 0.
        percent: u64,
    },
    /// Another host serves this datastore.
    HostSeen {
        /// Its identity.
        host: String,
        /// What people call it, if it says so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// It does so no longer.
    HostLost {
        /// Its identity.
        host: String,
        /// What people call it, if it says so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// It said so; else it fell silent.
        left: bool,
    },
    /// Load that none of our hosts causes is there, or gone.
    ExternalLoad {
        /// Which of the two.
        on: bool,
    },
    /// The other hosts cannot be heard, or can be again.
    Alone {
        /// Which of the two.
        on: bool,
    },
    /// The other hosts cannot hear us, or can again.
    Mute {
        /// Which of the two.
        on: bool,
    },
    /// The automatic threshold has moved by a tenth.
    ThresholdMoved {
        /// Where it is.
        threshold_us: f64,
    },
    /// What is set for the whole datastore has a generation that cannot be: it is not believed.
    GenerationRefused {
        /// The generation.
        generation: u64,
    },
    /// Somebody else sits in this host's slot: it takes another.
    Displaced,
    /// This daemon stood still for so long that others took it for dead; it joins anew.
    Paused {
        /// How long.
        for_s: f64,
    },
    /// The slot file cannot be used.
    Trouble {
        /// Why.
        why: String,
    },
    /// It can be used again.
    TroubleOver,
    /// A certificate that a TLS listener shows has expired, will soon, or is not valid yet.
    Certificate {
        /// Where it is shown.
        listener: String,
        /// The file that it was read from.
        file: String,
        /// How it stands.
        state: CertificateState,
        /// Whole days until its end, rounded down: negative once it has expired.
        days_left: i64,
    },
    /// More happened than was kept until it could be told.
    Missed {
        /// How many were lost.
        count: u64,
    },
}

/// How a certificate stands that cannot be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CertificateState {
    /// It will expire soon.
    Expiring,
    /// It has expired.
    Expired,
    /// It is not valid yet.
    NotYetValid,
}

impl Happening {
    /// Its word, as on the wire.
    pub const fn word(&self) -> &'static str {
        match self {
            Happening::Engaged { .. } => "engaged",
            Happening::Disengaged => "disengaged",
            Happening::ReservationUnmet { .. } => "reservation-unmet",
            Happening::ReservationsShrunk { .. } => "reservations-shrunk",
            Happening::BurstLow { .. } => "burst-low",
            Happening::HostSeen { .. } => "host-seen",
            Happening::HostLost { .. } => "host-lost",
            Happening::ExternalLoad { .. } => "external-load",
            Happening::Alone { .. } => "alone",
            Happening::Mute { .. } => "mute",
            Happening::ThresholdMoved { .. } => "threshold-moved",
            Happening::GenerationRefused { .. } => "generation-refused",
            Happening::Displaced => "displaced",
            Happening::Paused { .. } => "paused",
            Happening::Trouble { .. } => "trouble",
            Happening::TroubleOver => "trouble-over",
            Happening::Certificate { .. } => "certificate",
            Happening::Missed { .. } => "missed",
        }
    }
}

/// The events that the daemon keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    /// In the order of their numbers.
    pub events: Vec<Event>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_flat_object_with_its_word() {
        let event = Event {
            number: 7,
            at_ms: 1,
            datastore: Some("fast".parse().expect("a name")),
            happening: Happening::HostLost {
                host: "h".to_owned(),
                name: Some("pve1".to_owned()),
                left: false,
            },
            text: "lost".to_owned(),
        };
        let json = serde_json::to_value(&event).expect("plain data");
        assert_eq!(json["event"], event.happening.word());
        assert_eq!(json["left"], false);
        let back: Event = serde_json::from_value(json).expect("the same type");
        assert_eq!(back, event);
    }

    #[test]
    fn every_word_is_that_of_the_wire() {
        let all = [
            Happening::Disengaged,
            Happening::Engaged {
                latency_us: 1.0,
                threshold_us: 1.0,
            },
            Happening::ReservationUnmet { disk: None },
            Happening::ReservationsShrunk { percent: 1 },
            Happening::BurstLow {
                disk: None,
                percent: 20,
            },
            Happening::HostSeen {
                host: String::new(),
                name: None,
            },
            Happening::ExternalLoad { on: true },
            Happening::Alone { on: true },
            Happening::Mute { on: true },
            Happening::ThresholdMoved { threshold_us: 1.0 },
            Happening::GenerationRefused { generation: 1 },
            Happening::Displaced,
            Happening::Paused { for_s: 1.0 },
            Happening::Trouble { why: String::new() },
            Happening::TroubleOver,
            Happening::Certificate {
                listener: String::new(),
                file: String::new(),
                state: CertificateState::Expired,
                days_left: -1,
            },
            Happening::Missed { count: 1 },
        ];
        for happening in all {
            let json = serde_json::to_value(&happening).expect("plain data");
            assert_eq!(json["event"], happening.word());
        }
    }
}
