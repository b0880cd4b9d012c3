//! `tidegate disk create`.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use tidegate_api::descriptor::{CacheMode, MemberPlace};
use tidegate_api::disk::{Allocation, Disk, DiskAttach, DiskCreate};
use tidegate_api::io::{Coalesce, IoClass};
use tidegate_api::name::Name;
use tidegate_api::or_default::OrDefault;
use tidegate_api::routes;
use tidegate_api::units::Size;

use super::policy::{PolicyFlags, notice_of_group};
use crate::failure::Failure;
use crate::session::Session;
use crate::{complete, figures};

/// Create a disk
///
/// Guests and clients can use the disk when it is attached: `--attach`, or `tidegate disk attach NAME` later.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate disk create web1 --size 10G --attach
  tidegate disk create db1 --datastore fast --size 200G --thick --shares high --reservation 500iops
  tidegate disk create drill --size 1G --filter stats --filter fault:error=eio,probability=0.01
  tidegate disk create raw1 --device /dev/nvme0n1p3
  tidegate disk create db2 --size 100G --layout mirror --on ssd1 --on ssd2
  tidegate disk create scratch --size 100G --layout stripe:chunk=256K --on ssd1 --on ssd2 --on ssd3
  tidegate disk create big --size 1T --layout mirror+stripe --on a --on b --on c --on d

A layout is plain, mirror, stripe[:chunk=SIZE] or mirror+stripe[:chunk=SIZE]; docs/layouts.md says which to choose.
A filter is NAME or NAME:key=value,...; the first one is the top, the guest's end.")]
pub(crate) struct Create {
    /// The disk's name, unique on this host; also its NBD export name
    name: Name,

    /// The disk's size; optional with --device and with an upstream's export
    #[arg(long)]
    size: Option<Size>,

    /// The disk's datastore; default: the only datastore, or `local`
    #[arg(short, long, value_name = "NAME", add = complete::datastores())]
    datastore: Option<Name>,

    /// How the disk's bytes lie on several datastores: mirror, stripe[:chunk=SIZE] or mirror+stripe[:chunk=SIZE]; default: plain
    ///
    /// The size is rounded up to whole rows of the layout.
    #[arg(long, value_name = "LAYOUT", requires = "members", add = complete::layouts())]
    layout: Option<String>,

    /// The datastore of a member of the layout; given once for each member, in order
    ///
    /// A member on a block device is DATASTORE:device=PATH, one on an NBD server's export is DATASTORE:export=NAME.
    #[arg(
        long = "on",
        value_name = "DATASTORE",
        conflicts_with_all = ["datastore", "device", "export"],
        add = complete::datastores()
    )]
    members: Vec<MemberPlace>,

    /// A filter of the disk's stack, top first; can be given several times; default: stats
    #[arg(short, long = "filter", value_name = "FILTER")]
    filters: Vec<String>,

    /// Use no filters
    #[arg(long, conflicts_with = "filters")]
    no_filters: bool,

    /// Allocate all its space now
    #[arg(long)]
    thick: bool,

    /// Attach it at once
    #[arg(long)]
    attach: bool,

    /// The block size that a guest sees: 512 or 4096 bytes
    #[arg(long, value_name = "SIZE")]
    block_size: Option<Size>,

    /// The cache mode that a guest sees: write-back (the guest flushes) or write-through (each write is durable)
    #[arg(long, value_name = "MODE")]
    cache: Option<CacheMode>,

    /// Refuse writes
    #[arg(long)]
    read_only: bool,

    /// The serial number that a guest sees; default: made from its uuid
    #[arg(long, value_name = "TEXT")]
    serial: Option<String>,

    /// The number of queues that a vhost-user guest can use; default: 16
    #[arg(long, value_name = "N")]
    queues: Option<u16>,

    /// The number of data segments in one request of a vhost-user guest, 1 to 126; default: 126
    ///
    /// A guest with rings of N descriptors and without indirect descriptors needs N - 2 or less: see docs/front-ends.md.
    #[arg(long, value_name = "N")]
    seg_max: Option<u16>,

    /// How soon its requests are taken where others compete for its I/O thread: normal or latency; default: normal
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
    #[arg(long, value_name = "N")]
    vcpus: Option<OrDefault<u32>>,

    /// A block device as the disk's image; its data stays
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    device: Option<PathBuf>,

    /// The upstream's export (datastores of kind nbd); default: the disk's name
    #[arg(long, value_name = "EXPORT")]
    export: Option<String>,

    #[command(flatten)]
    policy: PolicyFlags,
}

impl Create {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let attach = self.attach;
        let order = self.order()?;
        let client = session.client()?;
        let disk = client.order(routes::DISK_CREATE, &[], &order)?;
        if let Some(group) = &order.policy.group {
            notice_of_group(session, &client, group);
        }
        let name = disk.name.as_str();
        if let Some(notice) = notice_of_size(order.size_bytes, &disk) {
            session.console.say(&notice);
        }
        if attach {
            let attached = client.order(routes::DISK_ATTACH, &[name], &DiskAttach::default());
            let disk = attached.map_err(|failure| {
                let stands = format!("disk {name} was created, but is not attached");
                failure.after(stands, &format!("attach it: tidegate disk attach {name}"))
            })?;
            let next = format!("use it: tidegate disk snippet {name} --for qemu");
            return session
                .console
                .done(&disk, &format!("disk {name} created and attached; {next}"));
        }
        let size = figures::bytes(disk.size_bytes);
        let next = format!("attach it: tidegate disk attach {name}");
        session.console.done(
            &disk,
            &format!("disk {name} of {size} created on {}; {next}", places(&disk)),
        )
    }

    fn order(self) -> Result<DiskCreate, Failure> {
        let device = match self.device {
            None => None,
            Some(path) => Some(std::path::absolute(&path).map_err(|e| {
                Failure::io(
                    format!("cannot use {} as a disk's image", path.display()),
                    &e,
                )
            })?),
        };
        let block_size_bytes = match self.block_size {
            None => None,
            Some(Size(bytes)) => Some(u32::try_from(bytes).map_err(|_| {
                Failure::usage(
                    format!("a block of {bytes} bytes is too large"),
                    "use 512 or 4096",
                )
            })?),
        };
        Ok(DiskCreate {
            name: self.name,
            datastore: self.datastore,
            size_bytes: self.size.map(|Size(bytes)| bytes),
            block_size_bytes,
            cache: self.cache.unwrap_or_default(),
            read_only: self.read_only,
            serial: self.serial,
            queues: self.queues,
            seg_max: self.seg_max,
            filters: stack(self.filters, self.no_filters),
            io_class: self.io_class.unwrap_or_default(),
            io_weight: self.io_weight.unwrap_or_default(),
            coalesce: self.coalesce.unwrap_or_default(),
            vcpus: self.vcpus.unwrap_or_default(),
            unpromised: self.policy.unpromised(),
            policy: self.policy.whole(),
            allocation: if self.thick {
                Allocation::Thick
            } else {
                Allocation::Thin
            },
            device,
            export: self.export,
            layout: self.layout,
            members: self
                .members
                .into_iter()
                .map(absolute)
                .collect::<Result<_, _>>()?,
        })
    }
}

/// A member whose device has an absolute path.
pub(super) fn absolute(mut member: MemberPlace) -> Result<MemberPlace, Failure> {
    if let Some(path) = &member.device {
        let path = std::path::absolute(path).map_err(|e| {
            Failure::io(
                format!("cannot use {} as a member's image", path.display()),
                &e,
            )
        })?;
        member.device = Some(path);
    }
    Ok(member)
}

/// The datastores that a disk is on.
fn places(disk: &Disk) -> String {
    if disk.members.is_empty() {
        return disk.datastore.to_string();
    }
    let members = disk.members.iter();
    let names: Vec<_> = members.map(|member| member.datastore.as_str()).collect();
    format!("{} as {}", names.join(", "), disk.layout)
}

/// A notice that a disk is larger than requested, if it is.
pub(super) fn notice_of_size(asked: Option<u64>, disk: &Disk) -> Option<String> {
    let asked = asked.filter(|asked| disk.size_bytes > *asked)?;
    Some(format!(
        "the size of disk {} was rounded up from {asked} to {} bytes: whole rows of {}",
        disk.name, disk.size_bytes, disk.layout
    ))
}

/// The stack that `--filter` and `--no-filters` ask for; none: as it is by default.
pub(super) fn stack(filters: Vec<String>, no_filters: bool) -> Option<Vec<String>> {
    (no_filters || !filters.is_empty()).then_some(filters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        create: Create,
    }

    fn order(words: &[&str]) -> DiskCreate {
        let line = Line::try_parse_from(["create", "web1"].iter().chain(words));
        line.unwrap_or_else(|e| panic!("{e}"))
            .create
            .order()
            .unwrap()
    }

    #[test]
    fn what_is_not_said_is_left_to_the_daemon() {
        assert_eq!(
            order(&["--size", "10G"]),
            DiskCreate::new("web1".parse().unwrap(), 10 << 30)
        );
    }

    #[test]
    fn members_keep_their_order_and_their_devices_get_absolute_paths() {
        let words = [
            "--layout",
            "mirror",
            "--on",
            "a",
            "--on",
            "b:device=sdb",
            "--on",
            "c:export=x",
        ];
        let order = order(&words);
        assert_eq!(order.layout.as_deref(), Some("mirror"));
        let device = std::env::current_dir().unwrap().join("sdb");
        let on: Vec<_> = order.members.iter().map(ToString::to_string).collect();
        let device = format!("b:device={}", device.display());
        assert_eq!(on, ["a", device.as_str(), "c:export=x"]);
    }

    #[test]
    fn a_layout_needs_members_and_members_replace_the_datastore() {
        for words in [
            &["--layout", "mirror"][..],
            &["--on", "a", "--datastore", "b"],
            &["--on", "a", "--device", "/dev/sdb"],
            &["--on", "a:size=3"],
        ] {
            let words = ["create", "web1", "--size", "1G"].iter().chain(words);
            assert!(Line::try_parse_from(words).is_err());
        }
    }

    #[test]
    fn filters_keep_their_order_and_none_is_not_the_same_as_unsaid() {
        let two = order(&["--size", "1G", "--filter", "stats", "--filter", "null"]);
        assert_eq!(
            two.filters,
            Some(vec!["stats".to_owned(), "null".to_owned()])
        );
        assert_eq!(
            order(&["--size", "1G", "--no-filters"]).filters,
            Some(vec![])
        );
        assert_eq!(order(&["--size", "1G"]).filters, None);
    }

    #[test]
    fn policy_words_become_numbers() {
        let words = [
            "--shares",
            "high",
            "--reservation",
            "500iops",
            "--limit",
            "5k",
            "--limit-bandwidth",
            "200MiB/s",
        ];
        let policy = order(&words).policy;
        assert_eq!(policy.shares, 2000);
        assert_eq!(policy.reservation_iops, 500);
        assert_eq!(policy.limit_iops, Some(5000));
        assert_eq!(policy.limit_bytes_per_s, Some(200 << 20));
    }

    #[test]
    fn a_burst_a_target_and_a_group_become_numbers_and_names() {
        let words = [
            "--limit",
            "5000",
            "--burst-iops",
            "15000",
            "--burst-seconds",
            "10",
            "--limit-bw",
            "1MiB/s",
            "--latency-target",
            "5ms",
            "--group",
            "shop",
            "--best-effort",
        ];
        let order = order(&words);
        let policy = order.policy;
        assert_eq!(
            (policy.burst_iops, policy.burst_seconds),
            (Some(15_000), Some(10))
        );
        assert_eq!(policy.limit_bytes_per_s, Some(1 << 20));
        assert_eq!(policy.latency_target_us, Some(5_000));
        assert_eq!(policy.group, Some("shop".parse().unwrap()));
        assert_eq!(order.unpromised, tidegate_api::disk::Unpromised::BestEffort);
    }

    #[test]
    fn unlimited_has_two_spellings() {
        assert_eq!(order(&["--limit", "unlimited"]).policy.limit_iops, None);
        assert_eq!(order(&["--limit", "-1"]).policy.limit_iops, None);
    }

    #[test]
    fn nonsense_is_refused_with_what_would_do() {
        for (words, says) in [
            (["--size", "10X"], "10G, 512MiB"),
            (["--shares", "huge"], "low"),
            (["--cache", "none"], "write-back"),
            (["--queues", "70000"], "70000"),
        ] {
            let error = Line::try_parse_from(["create", "web1"].iter().chain(&words))
                .err()
                .unwrap();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(says), "{error}");
        }
        assert!(Line::try_parse_from(["create", "../web1"]).is_err());
    }
}
