//! Shell completion of names, numbers and paths from the running daemon: disks, datastores, caches, pools, members, devices,
//! I/O threads, the control tree.
//!
//! No daemon, no names, and no message: a shell's prompt is no place for either. The root is the usual one or
//! `TIDEGATE_ROOT`: an unfinished line is not parsed. It is only searched for a disk's name.

use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter, CompletionCandidate};
use tidegate_api::cache::{Cache, CacheDevice};
use tidegate_api::disk::Disk;
use tidegate_api::layout::Member;
use tidegate_api::routes;

use crate::client::Client;
use crate::{daemon, figures};

/// Completes names of disks.
pub(crate) fn disks() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let list = client().and_then(|client| client.glance(routes::DISKS).ok());
        let disks = list.map(|list| list.disks).unwrap_or_default();
        let candidate = |disk: Disk| {
            let attached = match (disk.attached, disk.detaching) {
                (true, _) => "attached",
                (false, true) => "detaching",
                (false, false) => "detached",
            };
            let size = figures::bytes(disk.size_bytes);
            CompletionCandidate::new(disk.name.to_string()).help(Some(
                format!("{size} on {}, {attached}", disk.datastore).into(),
            ))
        };
        // What is left of a disk elsewhere has the disk's name, and cannot be used.
        let current = disks.into_iter().filter(|disk| !disk.is_outdated());
        current.map(candidate).collect()
    })
}

/// Completes disks, and snapshots once there is an `@`.
pub(crate) fn snapshots() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &std::ffi::OsStr| {
        let typed = typed.to_string_lossy();
        let Some((disk, _)) = typed.split_once('@') else {
            let list = client().and_then(|client| client.glance(routes::DISKS).ok());
            let disks = list.map(|list| list.disks).unwrap_or_default().into_iter();
            let names = disks.map(|disk| disk.name.to_string());
            let begun = names.filter(|name| name.starts_with(&*typed));
            return begun.map(CompletionCandidate::new).collect();
        };
        let all = snapshots_of(disk).into_iter();
        let named = all.map(|(name, help)| (format!("{disk}@{name}"), help));
        named
            .filter(|(name, _)| name.starts_with(&*typed))
            .map(|(name, help)| CompletionCandidate::new(name).help(Some(help.into())))
            .collect()
    })
}

/// Completes snapshots of the disk that a line names.
pub(crate) fn snapshots_of_disk() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let line: Vec<_> = std::env::args().collect();
        let disk = disk_before_last(&line).unwrap_or_default();
        let all = snapshots_of(disk).into_iter();
        let candidate =
            |(name, help): (String, String)| CompletionCandidate::new(name).help(Some(help.into()));
        all.map(candidate).collect()
    })
}

/// The word after the verb of `disk snapshot`, if it names a disk.
fn disk_before_last(line: &[String]) -> Option<&str> {
    let at = line.iter().position(|word| word == "snapshot")?;
    let disk = line.get(at + 2)?;
    (!disk.starts_with('-') && !disk.contains('@')).then_some(disk)
}

/// The snapshots of a disk, each with its size.
fn snapshots_of(disk: &str) -> Vec<(String, String)> {
    if disk.is_empty() {
        return Vec::new();
    }
    let list = client().and_then(|client| client.glance_at(routes::SNAPSHOTS, &[disk]).ok());
    let snapshots = list.map(|list| list.snapshots).unwrap_or_default();
    let pair = |it: tidegate_api::snapshot::Snapshot| {
        let size = figures::bytes_or_dash(it.size_bytes);
        (
            it.name.to_string(),
            format!("{size}, {} clones", it.clones.len()),
        )
    };
    snapshots.into_iter().map(pair).collect()
}

/// Completes names of datastores.
pub(crate) fn datastores() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let list = client().and_then(|client| client.glance(routes::DATASTORES).ok());
        let datastores = list.map(|list| list.datastores).unwrap_or_default();
        let candidate = |datastore: tidegate_api::datastore::Datastore| {
            CompletionCandidate::new(datastore.name.to_string())
                .help(Some(datastore.settings.kind().into()))
        };
        datastores.into_iter().map(candidate).collect()
    })
}

/// Completes names of flash caches.
pub(crate) fn caches() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let list = client().and_then(|client| client.glance(routes::CACHES).ok());
        let caches = list.map(|list| list.caches).unwrap_or_default();
        let candidate = |cache: Cache| {
            let free = figures::bytes(cache.free_bytes);
            let size = figures::bytes(cache.size_bytes);
            CompletionCandidate::new(cache.name.to_string())
                .help(Some(format!("{free} of {size} free").into()))
        };
        caches.into_iter().map(candidate).collect()
    })
}

/// Completes names of pools.
pub(crate) fn pools() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let list = client().and_then(|client| client.glance(routes::POOLS).ok());
        let pools = list.map(|list| list.pools).unwrap_or_default();
        let candidate = |pool: tidegate_api::pool::Pool| {
            let free = figures::bytes(pool.available_bytes);
            CompletionCandidate::new(pool.name.to_string())
                .help(Some(format!("{free} available").into()))
        };
        pools.into_iter().map(candidate).collect()
    })
}

/// Completes numbers of devices of the flash cache that a line names.
pub(crate) fn cache_devices() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let list = client().and_then(|client| client.glance(routes::CACHES).ok());
        let caches = list.map(|list| list.caches).unwrap_or_default();
        let line: Vec<_> = std::env::args().collect();
        devices_of(&caches, &line)
            .iter()
            .map(|device| {
                CompletionCandidate::new(device.device.to_string())
                    .help(Some(device.path.display().to_string().into()))
            })
            .collect()
    })
}

/// The devices of the cache that a line names.
fn devices_of<'a>(caches: &'a [Cache], line: &[String]) -> &'a [CacheDevice] {
    let named = |cache: &&Cache| line.iter().any(|word| word == cache.name.as_str());
    caches
        .iter()
        .find(named)
        .map_or(&[], |cache| cache.devices.as_slice())
}

/// Completes modes of a flash cache.
pub(crate) fn flash_modes() -> ArgValueCandidates {
    let all = [
        (
            "write-through",
            "writes are answered once the disk has them",
        ),
        ("write-back", "writes are answered once flash has them"),
        ("write-around", "only reads bring pages into the cache"),
        ("off", "the cache is not used"),
    ];
    ArgValueCandidates::new(move || {
        let candidate = |(mode, help): &(&str, &'static str)| {
            CompletionCandidate::new(*mode).help(Some((*help).into()))
        };
        all.iter().map(candidate).collect()
    })
}

/// Completes numbers of members.
pub(crate) fn members() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let list = client().and_then(|client| client.glance(routes::DISKS).ok());
        let disks = list.map(|list| list.disks).unwrap_or_default();
        let line: Vec<_> = std::env::args().collect();
        let members = members_of(&disks, &line).iter();
        let candidate = |member: &Member| {
            CompletionCandidate::new(member.member.to_string()).help(Some(
                format!("on {}, {}", member.datastore, member.state.as_str()).into(),
            ))
        };
        members.map(candidate).collect()
    })
}

/// The members of the disk that a line names.
fn members_of<'a>(disks: &'a [Disk], line: &[String]) -> &'a [Member] {
    let named = |disk: &&Disk| line.iter().any(|word| word == disk.name.as_str());
    let mut with_members = disks.iter().filter(|disk| !disk.members.is_empty());
    with_members
        .find(named)
        .map_or(&[], |disk| disk.members.as_slice())
}

/// Completes what a mirror does after the loss of its members.
pub(crate) fn losses() -> ArgValueCandidates {
    let all = [
        ("fail", "guests' I/O fails"),
        ("wait", "it waits until a member that has all bytes is back"),
    ];
    ArgValueCandidates::new(move || candidates(&all))
}

/// Completes classes of disks on their I/O threads.
pub(crate) fn io_classes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        candidates(&[
            ("normal", "its requests are taken in order"),
            (
                "latency",
                "they come first in every second turn of its I/O thread",
            ),
        ])
    })
}

/// Completes how completions are coalesced.
pub(crate) fn coalescing() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        candidates(&[
            ("adaptive", "as long as that pays"),
            (
                "off",
                "the guest is interrupted each time completions are there",
            ),
            ("static:16,64us", "after 16 completions, or 64 us"),
            ("default", "as in tidegate.toml"),
        ])
    })
}

fn candidates(all: &[(&'static str, &'static str)]) -> Vec<CompletionCandidate> {
    let candidate = |&(what, help): &(&'static str, &'static str)| {
        CompletionCandidate::new(what).help(Some(help.into()))
    };
    all.iter().map(candidate).collect()
}

/// Completes layouts.
pub(crate) fn layouts() -> ArgValueCandidates {
    let all = [
        ("mirror", "every member has all bytes"),
        ("stripe", "chunks of 256 KiB on the members in turn"),
        (
            "stripe:chunk=64K",
            "chunks of 64 KiB on the members in turn",
        ),
        ("mirror+stripe", "a stripe over mirrors of two members"),
    ];
    ArgValueCandidates::new(move || {
        let candidate = |(layout, help): (&str, &str)| {
            CompletionCandidate::new(layout).help(Some(help.to_owned().into()))
        };
        all.into_iter().map(candidate).collect()
    })
}

/// Completes names of groups.
pub(crate) fn groups() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let list = client().and_then(|client| client.glance(routes::GROUPS).ok());
        let groups = list.map(|list| list.groups).unwrap_or_default();
        let candidate = |group: tidegate_api::group::Group| {
            CompletionCandidate::new(group.name.to_string())
                .help(Some(format!("{} attached disks", group.disks.len()).into()))
        };
        groups.into_iter().map(candidate).collect()
    })
}

/// Completes numbers of I/O threads.
pub(crate) fn threads() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let list = client().and_then(|client| client.glance(routes::THREADS).ok());
        let threads = list.map(|list| list.threads).unwrap_or_default();
        let candidate = |it: tidegate_api::thread::Thread| {
            let help = format!("{}, {} disks", it.state.as_str(), it.disks.len());
            CompletionCandidate::new(it.thread.to_string()).help(Some(help.into()))
        };
        threads.into_iter().map(candidate).collect()
    })
}

/// Completes paths of the control tree, one part at a time.
pub(crate) fn tree() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &std::ffi::OsStr| {
        let typed = format!("/{}", typed.to_string_lossy().trim_start_matches('/'));
        let directory = typed.rfind('/').map_or("/", |slash| &typed[..=slash]);
        let path = directory.trim_matches('/');
        let node = client().and_then(|client| client.glance_at(routes::TREE, &[path]).ok());
        let entries = node
            .map(|node| node.entries)
            .unwrap_or_default()
            .into_iter();
        let paths = entries.map(|entry| format!("{directory}{}", entry.shown_name()));
        paths
            .filter(|path| path.starts_with(&typed))
            .map(CompletionCandidate::new)
            .collect()
    })
}

fn client() -> Option<Client> {
    Client::new(daemon::api_socket(None).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_of_a_snapshot_is_the_word_after_the_verb() {
        let disk = |line: &str| {
            let line: Vec<_> = line.split(' ').map(str::to_owned).collect();
            disk_before_last(&line).map(str::to_owned)
        };
        assert_eq!(
            disk("tidegate disk snapshot delete vm1 "),
            Some("vm1".to_owned())
        );
        assert_eq!(disk("tidegate disk snapshot delete vm1@a "), None);
        assert_eq!(disk("tidegate disk snapshot delete"), None);
        assert_eq!(disk("tidegate disk snapshot rollback --yes"), None);
    }

    #[test]
    fn devices_are_those_of_the_cache_on_the_line() {
        let cache = |name: &str, paths: &[&str]| -> Cache {
            let devices: Vec<_> = (0..)
                .zip(paths)
                .map(|(device, path)| serde_json::json!({"device": device, "path": path}))
                .collect();
            serde_json::from_value(serde_json::json!({
                "name": name, "uuid": "", "devices": devices, "size_bytes": 0, "free_bytes": 0, "chunk_bytes": 0,
                "dirty_bytes": 0, "flash_written_bytes_total": 0, "budget_is_spent": false, "disks": [],
            }))
            .unwrap()
        };
        let caches = [cache("one", &["/a"]), cache("two", &["/b", "/c"])];
        let devices = |line: &str| {
            let line: Vec<_> = line.split(' ').map(str::to_owned).collect();
            let devices = devices_of(&caches, &line).iter();
            devices.map(|device| device.device).collect::<Vec<_>>()
        };
        assert_eq!(devices("tidegate cache device replace two"), [0, 1]);
        assert_eq!(devices("tidegate cache device replace one"), [0]);
        assert!(devices("tidegate cache device replace").is_empty());
    }
}
