//! Test cases of what may limit a disk, with the expected cause and parts of the sentence.

use super::timeline::{Beat, Timeline, Worked};
use super::*;
use tidegate_core::filter::stats::Pulse;
use tidegate_core::units::Time;

const SPAN: Span = Span::from_secs(10);

/// A disk with 1,000 I/Os a second and 4 outstanding, whose time is all spent in a fast datastore.
fn well() -> Facts {
    Facts {
        covers: SPAN,
        measured: true,
        ios: 10_000,
        bytes: 10_000 * 4096,
        units: 10_000,
        outstanding: 4,
        outstanding_mean: 4.0,
        thread: ThreadLoad {
            thread: 1,
            busy_ratio: 0.2,
            polling_ratio: 0.1,
            sleeping_ratio: 0.7,
        },
        level: Some(Level {
            threshold: Some(Span::from_millis(5)),
            latency: Span::from_micros(980),
            ..Level::default()
        }),
        ..Facts::default()
    }
    .with_parts(0.01, 0.01, 0.98)
}

impl Facts {
    /// One millisecond per I/O, divided into these parts.
    fn with_parts(mut self, queue: f64, filters: f64, datastore: f64) -> Facts {
        let all = float(self.ios) * 1e6;
        self.queue = queue * all;
        self.filters = filters * all;
        self.datastore = datastore * all;
        self
    }

    /// This many milliseconds of waiting per I/O, for this reason.
    fn waiting(mut self, hold: Hold, ms: f64) -> Facts {
        self.held[hold.index()] = ms * 1e6 * float(self.ios.max(1));
        self
    }

    fn at(mut self, change: impl FnOnce(&mut Level)) -> Facts {
        if let Some(level) = &mut self.level {
            change(level);
        }
        self
    }
}

fn terms() -> Terms {
    Terms {
        shares: 500,
        reservation: 200,
        limit: Some(1_000),
        bandwidth: Some(200 << 20),
        burst: 30_000,
        group: Some("gold".to_owned()),
    }
}

fn told(facts: &Facts, terms: &Terms) -> Explanation {
    let about = About {
        disk: &"web1".parse().unwrap(),
        datastore: &"fast".parse().unwrap(),
        terms,
    };
    explain(about, facts, SPAN)
}

#[test]
fn each_case_has_its_cause_and_says_its_numbers() {
    let congested = |facts: Facts| Facts {
        engaged_ratio: 1.0,
        ..facts.at(|level| {
            level.engaged = true;
            level.latency = Span::from_millis(6);
        })
    };
    let nobody = Facts {
        ios: 0,
        outstanding: 0,
        outstanding_mean: 0.0,
        ..well()
    }
    .with_parts(0.0, 0.0, 0.0);
    let cases: Vec<(&str, Facts, Cause, &[&str])> = vec![
        (
            "at its limit",
            well().waiting(Hold::Limit, 3.0),
            Cause::Limit,
            &["limit of 1000 units", "started 1000 a second", "3ms (75%)"],
        ),
        (
            "at its bandwidth limit",
            well().waiting(Hold::Bandwidth, 1.0),
            Cause::Bandwidth,
            &["200MiB/s", "4.1 MB a second", "1ms (50%)"],
        ),
        (
            "at its group's limit",
            well().waiting(Hold::GroupLimit, 4.0),
            Cause::GroupLimit,
            &["group gold", "1000 units a second", "4ms (80%)"],
        ),
        (
            "at its shares of a congested datastore",
            congested(well().waiting(Hold::Shares, 2.0).waiting(Hold::Window, 1.0)),
            Cause::Shares,
            &[
                "congested (latency 6ms, threshold 5ms)",
                "500 shares",
                "3ms (75%)",
            ],
        ),
        (
            "the host's window is full though nothing is congested",
            well().waiting(Hold::Window, 1.0),
            Cause::Shares,
            &["the host's window", "1ms (50%)"],
        ),
        (
            "a slow datastore",
            Facts {
                datastore: 48e6 * 10_000.0,
                ..well()
            },
            Cause::Datastore,
            &["48ms", "100%", "from 5ms on"],
        ),
        (
            "a slow datastore where nobody said what is slow",
            Facts {
                datastore: 48e6 * 10_000.0,
                level: None,
                ..well()
            },
            Cause::Datastore,
            &["48ms", "from 10ms on"],
        ),
        (
            "a guest that asks now and then",
            Facts {
                outstanding_mean: 0.3,
                ..well()
            },
            Cause::Guest,
            &["0.3 I/Os outstanding", "1000 a second", "after 1ms each"],
        ),
        (
            "a guest that asks for nothing",
            nobody.clone(),
            Cause::Idle,
            &["10 s"],
        ),
        (
            "an I/O that came just now",
            Facts {
                outstanding: 1,
                outstanding_mean: 0.01,
                ..nobody.clone()
            },
            Cause::Idle,
            &["10 s"],
        ),
        (
            "a datastore that does not answer",
            Facts {
                outstanding: 3,
                outstanding_mean: 3.0,
                ..nobody.clone()
            },
            Cause::Stuck,
            &["no I/O has completed for 10 s", "3 are outstanding"],
        ),
        (
            "a daemon that stood still for longer than its lease",
            Facts {
                outstanding: 32,
                outstanding_mean: 32.0,
                ..nobody.clone()
            }
            .with(LeaseState::Waits),
            Cause::Lease,
            &["not renewed in time", "32 are outstanding"],
        ),
        (
            "a disk that another host has taken, though reads go on",
            well().with(LeaseState::Lost),
            Cause::Lease,
            &["another host"],
        ),
        (
            "a request that its limit keeps for longer than one looks",
            Facts {
                outstanding: 1,
                outstanding_mean: 1.0,
                ..nobody.clone()
            }
            .waiting(Hold::Limit, 10_000.0),
            Cause::Limit,
            &["limit of 1000", "1 is outstanding"],
        ),
        (
            "an I/O thread without time",
            Facts {
                thread: ThreadLoad {
                    busy_ratio: 0.98,
                    ..well().thread
                },
                ..well()
            },
            Cause::IoThread,
            &["I/O thread 1", "98%"],
        ),
        (
            "requests that lie in the guest's queue",
            well().with_parts(0.6, 0.0, 0.4),
            Cause::IoThread,
            &["600us (60%)"],
        ),
        (
            "held by a filter",
            well().with_parts(0.01, 0.89, 0.1),
            Cause::Filters,
            &["890us (89%)"],
        ),
        (
            "nothing wrong",
            well(),
            Cause::Nothing,
            &["1000 I/Os a second", "98%", "4 outstanding"],
        ),
        (
            "without a stats filter, yet held back",
            Facts {
                measured: false,
                ..well()
            }
            .with_parts(0.0, 0.0, 1.0)
            .waiting(Hold::Limit, 1.0),
            Cause::Limit,
            &["1ms (50%)"],
        ),
        (
            "nothing to go by",
            Facts {
                measured: false,
                level: None,
                ..nobody
            },
            Cause::Unmeasured,
            &["stats filter"],
        ),
    ];
    for (case, facts, cause, says) in cases {
        let told = told(&facts, &terms());
        assert_eq!(told.cause, cause, "{case}: {told:?}");
        for words in says {
            assert!(
                told.because.contains(words),
                "{case}: no '{words}' in: {}",
                told.because
            );
        }
        assert!(!told.remedy.is_empty(), "{case}");
        let sum: f64 = told.parts.iter().map(|part| part.ratio).sum();
        assert!(
            told.parts.is_empty() || (sum - 1.0).abs() < 1e-9,
            "{case}: the parts make {sum}"
        );
    }
}

#[test]
fn a_wait_that_nobody_would_feel_is_not_the_cause() {
    let told = told(&well().waiting(Hold::Limit, 0.1), &terms());
    assert_eq!(told.cause, Cause::Nothing);
}

#[test]
fn what_else_is_worth_knowing_is_noted() {
    let facts = Facts {
        errors: 3,
        engaged_ratio: 0.4,
        covers: Span::from_secs(4),
        ..well()
    }
    .at(|level| {
        (level.unmet, level.external, level.alone) = (true, true, true);
        (level.mute, level.trouble, level.burst_left) = (true, true, 5_000);
    });
    let notes = told(&facts, &terms()).notes;
    for words in [
        "only the last 4 s",
        "3 of its I/Os failed",
        "congested for 40% of the time",
        "reservation of 200 units a second is not met",
        "something other than our hosts",
        "slots cannot be read",
        "slot cannot be written",
        "slot file",
        "its burst has 5000 of 30000 units left",
    ] {
        assert!(
            notes.iter().any(|note| note.contains(words)),
            "no '{words}' in {notes:#?}"
        );
    }
    assert!(
        told(&well().at(|level| level.burst_left = 30_000), &terms())
            .notes
            .is_empty()
    );
}

#[test]
fn what_has_befallen_its_image_is_noted_first() {
    let harmed = Facts {
        errors: 3,
        ..well()
    }
    .harmed(Some(Harm::FlushesFail));
    let notes = told(&harmed, &terms()).notes;
    assert!(notes[0].contains("its flushes fail"), "{notes:#?}");
    assert!(notes[1].contains("3 of its I/Os failed"), "{notes:#?}");
}

#[test]
fn observed_waits_are_no_waits() {
    let beat = |at, ios: u64, held: u64| Beat {
        at: Time::ZERO + at,
        pulse: Some(Pulse {
            ios,
            latency_ns: ios * 1_000_000,
            sampled_ns: [ios, 0, ios / 2, ios / 2],
            ..Pulse::default()
        }),
        used: Some(Used {
            ios,
            held_ns: [0, 0, held, 0, 0],
            ..Used::default()
        }),
        level: Some(Level {
            mode: Mode::Observe,
            ..Level::default()
        }),
        thread: Worked {
            age: at,
            busy: Span::from_nanos(at.as_nanos() / 2),
            ..Worked::default()
        },
    };
    let course = Timeline::new(Time::ZERO);
    let stretch = course.over(SPAN, &beat(SPAN, 1_000, 5_000_000_000));
    let facts = Facts::of(&stretch);
    assert_eq!((facts.turn(), facts.would_hold), (0.0, 5e9));
    assert_eq!((facts.filters, facts.datastore), (5e8, 5e8));
    assert_eq!(facts.thread.busy_ratio, 0.5);
    let notes = told(&facts, &terms()).notes;
    assert!(notes[0].contains("would have waited 5ms for"), "{notes:?}");
}

#[test]
fn what_waited_for_its_turn_is_not_the_filters_time() {
    let to = Beat {
        at: Time::ZERO + SPAN,
        pulse: Some(Pulse {
            ios: 1_000,
            latency_ns: 10_000_000_000,
            // One sixteenth was sampled.
            sampled_ns: [625_000_000, 62_500_000, 437_500_000, 125_000_000],
            ..Pulse::default()
        }),
        used: Some(Used {
            ios: 1_000,
            units: 1_000,
            held_ns: [0, 0, 6_000_000_000, 0, 0],
            ..Used::default()
        }),
        level: Some(Level::default()),
        ..Beat::default()
    };
    let facts = Facts::of(&Timeline::new(Time::ZERO).over(SPAN, &to));
    assert_eq!((facts.queue, facts.filters), (1e9, 1e9));
    assert_eq!((facts.turn(), facts.datastore), (6e9, 2e9));
    assert_eq!(told(&facts, &terms()).cause, Cause::Limit);
}

#[test]
fn times_have_two_digits_that_matter() {
    for (ns, text) in [
        (400.0, "400ns"),
        (85_200.0, "85us"),
        (1_250_000.0, "1.2ms"),
        (3_000_000.0, "3ms"),
        (2_100_000_000.0, "2.1s"),
    ] {
        assert_eq!(time(ns), text);
    }
}
