//! The settings of a disk on its I/O thread, checked: words become the engine's types.

use tidegate_api::descriptor::Descriptor;
use tidegate_api::io as api;
use tidegate_core::coalesce::{Batch, Coalesce};
use tidegate_core::round_robin::{IoClass, Share, Weight};
use tidegate_core::units::Span;
use tidegate_engine::IoSettings;

/// What a descriptor says. It is in range, because it was checked when it was read.
pub(crate) fn of(descriptor: &Descriptor) -> IoSettings {
    let weight = descriptor.io_weight.and_then(Weight::new);
    IoSettings {
        share: Share {
            class: match descriptor.io_class {
                api::IoClass::Normal => IoClass::Normal,
                api::IoClass::Latency => IoClass::Latency,
            },
            weight: weight.unwrap_or_default(),
        },
        coalesce: descriptor.coalesce.map(coalesce),
    }
}

/// How completions are coalesced.
pub(crate) fn coalesce(how: api::Coalesce) -> Coalesce {
    match how {
        api::Coalesce::Off => Coalesce::Off,
        api::Coalesce::Adaptive => Coalesce::Adaptive,
        api::Coalesce::Static(frames, micros) => {
            let time = Span::from_micros(micros.into());
            Coalesce::Static(Batch::new(frames, time).expect("it was in range when it was read"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_api::io::{IO_WEIGHT, IO_WEIGHTS, MOST_COALESCED};

    #[test]
    fn words_and_core_have_the_same_ranges() {
        assert_eq!(Weight::RANGE, IO_WEIGHTS);
        assert_eq!(Weight::default().get(), IO_WEIGHT);
        let most = (Batch::MOST_FRAMES, Batch::MOST_TIME.as_micros());
        assert_eq!(most, (MOST_COALESCED.0, MOST_COALESCED.1.into()));
        for text in ["off", "adaptive", "static:1024,10000us"] {
            let how: api::Coalesce = text.parse().unwrap();
            assert_eq!(coalesce(how).to_string(), text);
        }
    }
}
