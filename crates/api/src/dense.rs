//! Dense mode: its setting, and its state with the three conditions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// When the host trades latency for fewer wake-ups and interrupts.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum DenseMode {
    /// Never.
    Off,
    /// While all three conditions hold: at least as many virtual machines as CPUs, at least twice as many vCPUs, and a
    /// utilisation of at least 50 %.
    #[default]
    Auto,
    /// Always.
    On,
}

impl DenseMode {
    /// The setting's word.
    pub const fn word(self) -> &'static str {
        match self {
            DenseMode::Off => "off",
            DenseMode::Auto => "auto",
            DenseMode::On => "on",
        }
    }
}

/// Dense mode's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DenseStatus {
    /// The setting.
    pub mode: DenseMode,
    /// Whether it is on.
    pub on: bool,
    /// The conditions at the last sample; absent in the first minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<DenseConditions>,
}

/// The three conditions. All must hold for `auto` to be on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DenseConditions {
    /// Virtual machines, and online CPUs.
    pub vms: DenseCondition,
    /// vCPUs, and twice the online CPUs.
    pub vcpus: DenseCondition,
    /// The host's utilisation in the last minute, in percent of its CPUs: neither idle nor waiting for I/O.
    pub utilisation_percent: DenseCondition,
    /// Virtual machines whose vCPUs are not known; each counts as one vCPU.
    pub assumed_vms: u32,
}

/// A number, and the one from which on its condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DenseCondition {
    /// The number.
    pub value: f64,
    /// From here on the condition holds.
    pub threshold: f64,
    /// Whether it holds.
    pub holds: bool,
}

impl DenseConditions {
    /// The conditions by name, in their order.
    pub fn named(&self) -> [(&'static str, DenseCondition); 3] {
        [
            ("vms", self.vms),
            ("vcpus", self.vcpus),
            ("utilisation", self.utilisation_percent),
        ]
    }

    /// The conditions in words: `16 of 8 VMs, 30 of 16 vCPUs, 45 % of 50 % of the CPUs: does not hold`.
    pub fn words(&self) -> String {
        let mark = |condition: DenseCondition| if condition.holds { "yes" } else { "no" };
        let (vms, vcpus, cpu) = (self.vms, self.vcpus, self.utilisation_percent);
        let assumed = match self.assumed_vms {
            0 => String::new(),
            1 => ", 1 VM assumed to have one".to_owned(),
            many => format!(", {many} VMs assumed to have one each"),
        };
        format!(
            "{} VMs, needed {} ({}); {} vCPUs, needed {} ({}{assumed}); CPUs {:.1} % in use, needed {:.1} % ({})",
            vms.value,
            vms.threshold,
            mark(vms),
            vcpus.value,
            vcpus.threshold,
            mark(vcpus),
            cpu.value,
            cpu.threshold,
            mark(cpu)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_say_which_condition_holds() {
        let condition = |value, threshold| DenseCondition {
            value,
            threshold,
            holds: value >= threshold,
        };
        let conditions = DenseConditions {
            vms: condition(16.0, 8.0),
            vcpus: condition(15.0, 16.0),
            utilisation_percent: condition(50.0, 50.0),
            assumed_vms: 2,
        };
        assert_eq!(
            conditions.words(),
            "16 VMs, needed 8 (yes); 15 vCPUs, needed 16 (no, 2 VMs assumed to have one each); CPUs 50.0 % in use, needed \
             50.0 % (yes)"
        );
        let [vms, vcpus, utilisation] = conditions.named().map(|(_, one)| one.holds);
        assert_eq!([vms, vcpus, utilisation], [true, false, true]);
    }
}
