//! `tidegate disk set`: the settings of a disk; those of its data path also while it is in use.

use clap::{ArgGroup, Args};
use tidegate_api::cache::DiskFlashSet;
use tidegate_api::descriptor::OnLoss;
use tidegate_api::disk::DiskSet;
use tidegate_api::io::{Coalesce, IoClass};
use tidegate_api::name::Name;
use tidegate_api::or_default::OrDefault;
use tidegate_api::routes;
use tidegate_api::units::Span;

use super::create::stack;
use super::flash::FlashFlags;
use super::policy::{PolicyFlags, notice_of_group};
use crate::failure::Failure;
use crate::session::Session;
use crate::{complete, job};

/// Change a disk
///
/// Filters, I/O control, the flash cache, and how its I/O thread serves it change at once, also while the disk is attached and busy: no I/O fails or is
/// lost. The other settings need a detached disk.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("changes").required(true).multiple(true).args([
        "filters", "no_filters", "cache", "cache_mode", "cache_min", "cache_max", "single_device_ok", "no_single_device_ok", "read_only", "read_write", "serial", "queues", "seg_max", "member_timeout", "on_loss", "io_class", "io_weight", "coalesce", "vcpus",
        "shares", "reservation", "limit", "burst_iops", "burst_seconds", "limit_bandwidth", "latency_target", "group",
    ]),
    after_help = "\
Examples:
  tidegate disk set web1 --filter stats --filter fault:delay=10ms
  tidegate disk set web1 --no-filters
  tidegate disk set db1 --shares high --limit 2000iops --limit-bandwidth unlimited
  tidegate disk set db1 --reservation 500iops --burst-iops 6000iops --burst-seconds 30
  tidegate disk set db1 --group shop --latency-target 5ms
  tidegate disk set db1 --member-timeout 30s --on-loss wait
  tidegate disk set db1 --io-class latency --io-weight 20 --coalesce off
  tidegate disk set db1 --io-weight default --coalesce default --vcpus 4
  tidegate disk set iso1 --read-only
  tidegate disk set db1 --cache nvme0 --cache-max 20G
  tidegate disk set db1 --cache-mode write-back

--filter gives the whole stack; `tidegate filter add` and `filter remove` change one filter of it."
)]
pub(crate) struct Set {
    /// The disk
    #[arg(add = complete::disks())]
    name: Name,

    /// A filter of the new stack, top first; can be given several times
    #[arg(short, long = "filter", value_name = "FILTER")]
    filters: Vec<String>,

    /// Remove all filters
    #[arg(long, conflicts_with = "filters")]
    no_filters: bool,

    #[command(flatten)]
    flash: FlashFlags,

    /// Refuse writes
    #[arg(long, conflicts_with = "read_write")]
    read_only: bool,

    /// Accept writes again
    #[arg(long)]
    read_write: bool,

    /// The serial number that a guest sees; empty: made from the disk's uuid
    #[arg(long, value_name = "TEXT")]
    serial: Option<String>,

    /// The number of queues that a vhost-user guest can use
    #[arg(long, value_name = "N")]
    queues: Option<u16>,

    /// The number of data segments in one request of a vhost-user guest, 1 to 126
    ///
    /// A guest with rings of N descriptors and without indirect descriptors needs N - 2 or less: see docs/front-ends.md.
    #[arg(long, value_name = "N")]
    seg_max: Option<u16>,

    /// How long a member of a mirror may leave I/O unanswered before the mirror goes on without it, 1s to 1h, or default: 10s
    #[arg(long, value_name = "TIME")]
    member_timeout: Option<OrDefault<Span>>,

    /// What a mirror does with guests' I/O after it has lost every member that has all bytes: fail or wait
    #[arg(long, value_name = "WHAT", add = complete::losses())]
    on_loss: Option<OnLoss>,

    /// How soon its requests are taken where others compete for its I/O thread: normal or latency
    #[arg(long, value_name = "CLASS", add = complete::io_classes())]
    io_class: Option<IoClass>,

    /// Its weight among the disks of its I/O thread, 1 to 100, or default: 10
    #[arg(long, value_name = "WEIGHT")]
    io_weight: Option<OrDefault<u32>>,

    /// How its completions are coalesced: off, static:COMPLETIONS,TIME such as static:16,64us, adaptive, or default: as in
    /// tidegate.toml
    #[arg(long, value_name = "HOW", add = complete::coalescing())]
    coalesce: Option<OrDefault<Coalesce>>,

    /// The vCPUs of the virtual machine that uses it, 1 to 4096, or default: they are counted
    ///
    /// They are counted by the names of the front end's threads. Dense mode takes a virtual machine whose vCPUs are neither
    /// declared nor counted to have one.
    #[arg(long, value_name = "N")]
    vcpus: Option<OrDefault<u32>>,

    #[command(flatten)]
    policy: PolicyFlags,
}

impl Set {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let name = self.name.clone();
        let (set, flash) = self.orders();
        let client = session.client()?;
        let disk = match set == DiskSet::default() && flash.is_some() {
            true => client.look(routes::DISK, &[name.as_str()])?,
            false => client.order(routes::DISK_SET, &[name.as_str()], &set)?,
        };
        if let Some(flash) = flash {
            let job = client.order(routes::DISK_FLASH, &[name.as_str()], &flash)?;
            return job::follow_unless(
                session,
                &client,
                job,
                false,
                &format!("disk {name} changed"),
            );
        }
        if let Some(Some(group)) = set.policy.as_ref().and_then(|policy| policy.group.as_ref()) {
            notice_of_group(session, &client, group);
        }
        session.console.done(&disk, &format!("disk {name} changed"))
    }

    fn orders(self) -> (DiskSet, Option<DiskFlashSet>) {
        let set = DiskSet {
            cache: self.flash.guest_mode(),
            read_only: match (self.read_only, self.read_write) {
                (true, _) => Some(true),
                (_, true) => Some(false),
                _ => None,
            },
            serial: self.serial,
            queues: self.queues,
            seg_max: self.seg_max,
            filters: stack(self.filters, self.no_filters),
            member_timeout_ms: self
                .member_timeout
                .map(|time| time.map(|Span(nanos)| nanos.div_ceil(1_000_000))),
            on_loss: self.on_loss,
            io_class: self.io_class,
            io_weight: self.io_weight,
            coalesce: self.coalesce,
            vcpus: self.vcpus,
            unpromised: self.policy.unpromised(),
            policy: self.policy.changes(),
        };
        (set, self.flash.changes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        set: Set,
    }

    fn sent(words: &[&str]) -> String {
        let line = Line::try_parse_from(["set", "web1"].iter().chain(words));
        serde_json::to_string(&line.unwrap_or_else(|e| panic!("{e}")).set.orders().0).unwrap()
    }

    #[test]
    fn only_what_was_said_is_sent() {
        assert_eq!(sent(&["--read-only"]), r#"{"read_only":true}"#);
        assert_eq!(sent(&["--read-write"]), r#"{"read_only":false}"#);
        assert_eq!(sent(&["--no-filters"]), r#"{"filters":[]}"#);
        assert_eq!(sent(&["--filter", "stats"]), r#"{"filters":["stats"]}"#);
        assert_eq!(sent(&["--shares", "low"]), r#"{"policy":{"shares":500}}"#);
        assert_eq!(
            sent(&["--member-timeout", "30s", "--on-loss", "wait"]),
            r#"{"member_timeout_ms":30000,"on_loss":"wait"}"#
        );
        assert_eq!(
            sent(&["--io-class", "latency", "--coalesce", "static:16,64us"]),
            r#"{"io_class":"latency","coalesce":"static:16,64us"}"#
        );
    }

    #[test]
    fn taking_a_limit_away_is_not_the_same_as_leaving_it() {
        assert_eq!(
            sent(&["--limit", "unlimited"]),
            r#"{"policy":{"limit_iops":null}}"#
        );
        assert_eq!(
            sent(&["--limit", "10iops"]),
            r#"{"policy":{"limit_iops":10}}"#
        );
    }

    #[test]
    fn none_takes_away_what_may_be_absent() {
        for (flag, json) in [
            ("--burst-iops", r#"{"policy":{"burst_iops":null}}"#),
            (
                "--latency-target",
                r#"{"policy":{"latency_target_us":null}}"#,
            ),
            ("--group", r#"{"policy":{"group":null}}"#),
        ] {
            assert_eq!(sent(&[flag, "none"]), json);
        }
        assert_eq!(
            sent(&["--reservation", "5iops", "--best-effort"]),
            r#"{"policy":{"reservation_iops":5},"unpromised":"best-effort"}"#
        );
    }

    #[test]
    fn one_word_brings_a_default_back() {
        for (flag, json) in [
            ("--member-timeout", r#"{"member_timeout_ms":"default"}"#),
            ("--io-weight", r#"{"io_weight":"default"}"#),
            ("--coalesce", r#"{"coalesce":"default"}"#),
            ("--vcpus", r#"{"vcpus":"default"}"#),
        ] {
            assert_eq!(sent(&[flag, "default"]), json);
            let none = Line::try_parse_from(["set", "web1", flag, "none"]);
            assert_eq!(none.err().unwrap().exit_code(), 2, "{flag}");
        }
        assert_eq!(sent(&["--vcpus", "4"]), r#"{"vcpus":4}"#);
    }

    #[test]
    fn a_flash_cache_is_changed_apart_from_the_rest() {
        let line = |words: &[&str]| {
            let line = Line::try_parse_from(["set", "web1"].iter().chain(words));
            line.unwrap_or_else(|e| panic!("{e}")).set.orders()
        };
        let (set, flash) = line(&["--cache", "nvme0", "--cache-mode", "write-back"]);
        assert_eq!(set, DiskSet::default());
        let flash = serde_json::to_string(&flash).unwrap();
        assert_eq!(flash, r#"{"cache":"nvme0","mode":"write-back"}"#);
        let (set, flash) = line(&["--cache", "write-through"]);
        assert_eq!((set.cache.is_some(), flash), (true, None));
        let (_, flash) = line(&["--cache", "none"]);
        assert_eq!(serde_json::to_string(&flash).unwrap(), r#"{"cache":null}"#);
        for (flag, order) in [
            ("--single-device-ok", r#"{"single_device":"accept"}"#),
            ("--no-single-device-ok", r#"{"single_device":"refuse"}"#),
        ] {
            let (_, flash) = line(&[flag]);
            assert_eq!(serde_json::to_string(&flash).unwrap(), order);
        }
    }

    #[test]
    fn changing_nothing_or_both_ways_is_a_usage_error() {
        for words in [
            &["set", "web1"][..],
            &["set", "web1", "--read-only", "--read-write"],
            &["set", "web1", "--single-device-ok", "--no-single-device-ok"],
        ] {
            let error = Line::try_parse_from(words).err().unwrap();
            assert_eq!(error.exit_code(), 2, "{error}");
        }
    }
}
