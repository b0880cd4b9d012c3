//! The list of all metrics: name, kind, labels and help.
//!
//! To add a metric, declare it here and set its value in [`super::page`]. The lint below and the reference follow
//! automatically.

/// A metric with all its label values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Its labels, separated by commas.
    pub(crate) labels: &'static str,
    pub(crate) help: &'static str,
}

/// Prometheus' kinds of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    /// The kind's name in the exposition format.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

macro_rules! families {
    ($($ident:ident: $kind:ident $name:literal [$labels:literal] $help:literal;)*) => {
        $(pub(super) const $ident: Family =
            Family { name: $name, kind: Kind::$kind, labels: $labels, help: $help };)*

        /// All families, in the order of the page.
        pub(crate) const FAMILIES: &[Family] = &[$($ident),*];
    };
}

families! {
    BUILD_INFO: Gauge "tidegate_build_info" ["version"]
                "Always 1; its label is the daemon's version.";
    UPTIME: Gauge "tidegate_uptime_seconds" [""]
                "Time since the daemon started.";
    PROBLEMS: Gauge "tidegate_problems" [""]
        "Disks that should be attached and are not.";
    NBD_REFUSED: Counter "tidegate_nbd_refused_total" [""]
                "NBD clients that ended without a disk: they broke the protocol, gave up, named an unknown export, or exceeded a limit.";
    LOG_LOST: Counter "tidegate_log_lines_lost_total" [""]
                "Log lines that were lost because the reader was too slow.";
    CERTIFICATE_LEFT: Gauge "tidegate_tls_certificate_left_days" ["listener, file"]
        "Days until the certificate that a TLS listener shows expires; negative once it has.";
    DATASTORE_UP: Gauge "tidegate_datastore_up" ["datastore, kind"]
        "1 while the datastore can be used, 0 while it cannot.";
    DATASTORE_DISKS: Gauge "tidegate_datastore_disks" ["datastore, kind"]
        "Disks that have data on the datastore, also if that is only a member.";
    DATASTORE_CAPACITY: Gauge "tidegate_datastore_capacity_bytes" ["datastore, kind"]
        "Size of the file system that the datastore is on.";
    DATASTORE_FREE: Gauge "tidegate_datastore_free_bytes" ["datastore, kind"]
        "Space that is free there.";
    DATASTORE_ENGAGED: Gauge "tidegate_datastore_control_engaged" ["datastore"]
                "1 while the datastore is congested and shares are applied, 0 while it is not.";
    DATASTORE_THRESHOLD: Gauge "tidegate_datastore_congestion_threshold_seconds" ["datastore"]
                "The latency above which the datastore counts as congested; absent if there is none.";
    DATASTORE_LATENCY: Gauge "tidegate_datastore_latency_seconds" ["datastore"]
                "The datastore's mean latency on all hosts, normalised to 4 KiB.";
    DATASTORE_WINDOW: Gauge "tidegate_datastore_window_ios" ["datastore"]
        "How much this host may have in flight to the datastore, in random reads of 4 KiB.";
    DATASTORE_HOSTS: Gauge "tidegate_datastore_hosts" ["datastore"]
                "Hosts that use the datastore and are alive, including this one.";
    DATASTORE_TROUBLE: Gauge "tidegate_datastore_control_trouble" ["datastore"]
                "1 while the slot file cannot be used, 0 while it can or there is none.";
    DISK_SIZE: Gauge "tidegate_disk_size_bytes" ["disk, datastore"]
        "Bytes that a guest sees.";
    DISK_ALLOCATED: Gauge "tidegate_disk_allocated_bytes" ["disk, datastore"]
        "Bytes that the disk's images take on their datastores.";
    DISK_SNAPSHOTS: Gauge "tidegate_disk_snapshots" ["disk, datastore"]
        "Snapshots of the disk; absent for a disk that has had none since it was attached.";
    DISK_OLDEST_SNAPSHOT: Gauge "tidegate_disk_oldest_snapshot_timestamp_seconds" ["disk, datastore"]
        "When its oldest snapshot was taken, in seconds since 1970; absent without snapshots.";
    DISK_MEMBER_STATE: Gauge "tidegate_disk_member_state" ["disk, datastore, member, state"]
        "1 for the current state of a member of the disk's layout, 0 for the others; `datastore` is the member's.";
    DISK_REBUILD: Gauge "tidegate_disk_rebuild_bytes" ["disk, datastore, member"]
        "Bytes that are left to copy to a member while it is rebuilt.";
    POOL_BYTES: Gauge "tidegate_pool_bytes" ["pool"]
        "Bytes of a pool of this host that disks can use.";
    POOL_USED: Gauge "tidegate_pool_used_bytes" ["pool"]
        "Bytes of it that disks have.";
    POOL_RESERVED: Gauge "tidegate_pool_reserved_bytes" ["pool"]
        "Bytes of it that thick disks have reserved and not taken yet.";
    POOL_AVAILABLE: Gauge "tidegate_pool_available_bytes" ["pool"]
        "Bytes that a thin disk could still take.";
    POOL_DISKS: Gauge "tidegate_pool_disks" ["pool"]
        "Disks on it.";
    POOL_GROUP_BYTES: Gauge "tidegate_pool_group_bytes" ["pool, group, tier"]
        "Bytes of a group of a pool that disks can use.";
    POOL_GROUP_USED: Gauge "tidegate_pool_group_used_bytes" ["pool, group, tier"]
        "Bytes of it that disks have.";
    POOL_MEMBER_CURRENT: Gauge "tidegate_pool_member_current" ["pool, group, member"]
        "1 while the member has the pool's current catalog, 0 while it has not, or is away.";
    DISK_POOL_GRANTED: Gauge "tidegate_disk_pool_granted_bytes" ["disk, datastore"]
        "Bytes of its pool that an attached disk has.";
    DISK_POOL_MAPPED: Gauge "tidegate_disk_pool_mapped_bytes" ["disk, datastore"]
        "Bytes of these that have data, of the disk and its snapshots.";
    DISK_POOL_WAITING: Gauge "tidegate_disk_pool_waiting_writes" ["disk, datastore"]
        "Writes of the disk that wait for space.";
    DISK_POOL_REFUSED: Gauge "tidegate_disk_pool_refused" ["disk, datastore"]
        "1 while the pool has no space for the disk, so that its writes to new space fail.";
    CACHE_BYTES: Gauge "tidegate_cache_bytes" ["cache"]
        "Bytes of a flash cache of this host that disks can use.";
    CACHE_FREE: Gauge "tidegate_cache_free_bytes" ["cache"]
        "Bytes of it that no disk has.";
    CACHE_BEHIND: Gauge "tidegate_cache_device_behind_disks" ["cache, device"]
        "Attached disks for which a device does not have everything: it is being filled, or is away.";
    CACHE_BUDGET: Gauge "tidegate_cache_budget_daily_bytes" ["cache"]
        "Bytes that may be written to each of its devices in a day; absent without a budget.";
    CACHE_BUDGET_LEFT: Gauge "tidegate_cache_budget_left_bytes" ["cache"]
        "Bytes that may be written to each device now; absent without a budget.";
    CACHE_BUDGET_SPENT: Gauge "tidegate_cache_budget_spent_state" ["cache"]
        "1 while the budget is used up and nothing enters the cache; absent without a budget.";
    CACHE_WRITTEN: Counter "tidegate_cache_written_bytes_total" ["cache"]
        "Bytes written to its devices since the daemon was started, also for disks that have left it.";
    CACHE_JOURNAL: Counter "tidegate_cache_journal_bytes_total" ["cache"]
        "Of these, bytes of the journals, which have no data of guests.";
    CACHE_CORRUPT: Counter "tidegate_cache_corrupt_blocks_total" ["cache"]
        "Blocks of 4 KiB that were read from its devices and were not as they were written, each time.";
    DISK_CACHE_SIZE: Gauge "tidegate_disk_cache_bytes" ["disk, datastore, cache"]
        "Bytes that fit into the disk's part of its flash cache.";
    DISK_CACHE_FREE: Gauge "tidegate_disk_cache_free_bytes" ["disk, datastore, cache"]
        "Bytes of that part that are free.";
    DISK_CACHE_DIRTY: Gauge "tidegate_disk_cache_dirty_bytes" ["disk, datastore, cache"]
        "Bytes that the disk does not have durably, at most: with write-back only the cache has them, else they are not flushed.";
    DISK_CACHE_UNREADABLE: Gauge "tidegate_disk_cache_unreadable_bytes" ["disk, datastore, cache"]
        "Dirty pages that cannot be brought to the disk, in bytes: flash does not return what was written, and reads of them fail.";
    DISK_CACHE_DIRTY_AGE: Gauge "tidegate_disk_cache_dirty_age_seconds" ["disk, datastore, cache"]
        "For how long the disk has lacked the oldest of these bytes, since it was attached; 0 if there are none.";
    DISK_CACHE_TO_CLEAN: Gauge "tidegate_disk_cache_time_to_clean_seconds" ["disk, datastore, cache"]
        "How long it takes to bring these bytes to the disk, at the last pace; absent until something was cleaned, and while pages cannot be read.";
    DISK_CACHE_HITS: Counter "tidegate_disk_cache_hits_total" ["disk, datastore, cache"]
        "Reads of pages of 64 KiB that the flash cache answered.";
    DISK_CACHE_MISSES: Counter "tidegate_disk_cache_misses_total" ["disk, datastore, cache"]
        "Reads of such pages that went to the disk.";
    DISK_CACHE_FILLS: Counter "tidegate_disk_cache_fills_total" ["disk, datastore, cache"]
        "Pages that reads brought into the flash cache.";
    DISK_CACHE_FAULTS: Counter "tidegate_disk_cache_read_faults_total" ["disk, datastore, cache"]
        "Reads of flash that failed.";
    DISK_CACHE_CORRUPT: Counter "tidegate_disk_cache_corrupt_blocks_total" ["disk, datastore, cache"]
        "Blocks of 4 KiB that were read from flash and were not as they were written, each time.";
    DISK_CACHE_WRITTEN: Counter "tidegate_disk_cache_written_bytes_total" ["disk, datastore, cache"]
        "Bytes written to flash for the disk, on all devices of the cache.";
    DISK_CACHE_JOURNAL: Counter "tidegate_disk_cache_journal_bytes_total" ["disk, datastore, cache"]
        "Of these, bytes of the journal, which have no data of guests.";
    DISK_SHARES: Gauge "tidegate_disk_shares" ["disk, datastore"]
        "The disk's relative weight.";
    DISK_RESERVATION: Gauge "tidegate_disk_reservation_iops" ["disk, datastore"]
        "The disk's IOPS floor.";
    DISK_LIMIT: Gauge "tidegate_disk_limit_iops" ["disk, datastore"]
        "The disk's IOPS ceiling; absent if it has none.";
    DISK_LIMIT_BYTES: Gauge "tidegate_disk_limit_bytes_per_second" ["disk, datastore"]
        "The disk's bandwidth ceiling; absent if it has none.";
    DISK_ENTITLEMENT: Gauge "tidegate_disk_entitlement_iops" ["disk, datastore"]
        "Units a second that the disk's part of the datastore brings; absent while the datastore is not congested.";
    DISK_COST: Counter "tidegate_disk_cost_total" ["disk, datastore"]
                "The cost of the disk's I/Os, in random reads of 4 KiB. Shares divide this cost.";
    DISK_UNITS: Counter "tidegate_disk_units_total" ["disk, datastore"]
                "Units that the disk began. Reservations and limits count these units.";
    DISK_HELD: Counter "tidegate_disk_held_seconds_total" ["disk, datastore, reason"]
                "Time that I/Os waited in the scheduler, summed over the I/Os. Reasons: other disks' shares (`shares`), a full window of the host (`window`), a limit of the disk (`limit`, `bandwidth`) or of its group (`group-limit`).";
    DISK_BURST: Gauge "tidegate_disk_burst_left_units" ["disk, datastore"]
        "Units that are left of the disk's burst.";
    DISK_CLIENTS: Gauge "tidegate_disk_clients" ["disk, datastore, kind"]
        "Guests and clients that are connected.";
    DISK_PROBLEMS: Gauge "tidegate_disk_problems" ["disk, datastore"]
                "1 while the attached disk has a problem that `tidegate disk show` reports, such as failing flushes or a lost lease; else 0.";
    DISK_NONSENSE: Counter "tidegate_disk_nonsense_requests_total" ["disk, datastore"]
                "Invalid requests of guests (vhost-user), each answered with an error.";
    DISK_BROKEN: Counter "tidegate_disk_broken_queues_total" ["disk, datastore"]
                "Queues of guests (vhost-user) that were stopped because their rings were invalid.";
    DISK_COMPLETIONS: Counter "tidegate_disk_ring_completions_total" ["disk, datastore"]
                "Requests of guests (vhost-user) that were completed.";
    DISK_INTERRUPTS: Counter "tidegate_disk_interrupts_total" ["disk, datastore"]
                "Interrupts that were sent to guests (vhost-user) for completions; `coalesce` and `tidegate disk set --coalesce` say how many completions have one.";
    UPSTREAM_LOST: Counter "tidegate_disk_upstream_losses_total" ["disk, datastore, cause"]
                "Lost connections to the disk's upstream. Causes: the upstream broke the protocol (`violation`), was silent for too long (`silence`), or closed the connection (`end`).";
    UPSTREAM_ATTEMPTS: Counter "tidegate_disk_upstream_attempts_total" ["disk, datastore, outcome"]
                "Attempts to connect to the disk's upstream again, successful (`returned`) or not (`refused`).";
    DISK_OPS: Counter "tidegate_disk_ops_total" ["disk, datastore, op"]
        "I/Os that were answered, errors included.";
    DISK_BYTES: Counter "tidegate_disk_bytes_total" ["disk, datastore, op"]
        "Bytes of the I/Os that succeeded.";
    DISK_ERRORS: Counter "tidegate_disk_errors_total" ["disk, datastore, op"]
        "I/Os that were answered with an error.";
    DISK_INFLIGHT: Gauge "tidegate_disk_inflight" ["disk, datastore"]
        "I/Os that guests and clients have outstanding.";
    DISK_TOUCHED: Gauge "tidegate_disk_touched_bytes" ["disk, datastore"]
        "Bytes of the pages in use, estimated from a sample; absent before the first I/O.";
    DISK_CACHE_MISS: Gauge "tidegate_disk_cache_miss_ratio" ["disk, datastore, cache_percent"]
        "The part of reads and writes that a flash cache of this size would miss, in percent of the pages in use; absent for caches below 16 MiB, and until the estimate can be relied on.";
    DISK_DURATION: Histogram "tidegate_disk_io_duration_seconds" ["disk, datastore, op, stage"]
                "Latency of I/Os, by stage.";
    THREAD_BUSY: Counter "tidegate_iothread_busy_seconds_total" ["thread"]
        "Time that the I/O thread spent on requests.";
    THREAD_POLLING: Counter "tidegate_iothread_polling_seconds_total" ["thread"]
                "Time that the I/O thread polled and found no requests.";
    THREAD_AGE: Counter "tidegate_iothread_seconds_total" ["thread"]
                "Age of the I/O thread: the sum of its busy, polling and sleeping time. Divide a time by it to get a ratio.";
    THREAD_TURNS: Counter "tidegate_iothread_turns_total" ["thread"]
                "Turns of the I/O thread's loop.";
    THREAD_WAKEUPS: Counter "tidegate_iothread_wakeups_total" ["thread"]
                "Wake-ups of the I/O thread from sleep.";
    THREAD_SLEEPING: Counter "tidegate_iothread_sleeping_seconds_total" ["thread"]
        "Time that the I/O thread slept.";
    THREAD_STOLEN: Counter "tidegate_iothread_stolen_seconds_total" ["thread"]
        "Time in which the I/O thread could run and others had its CPU; it is a part of the other times.";
    THREAD_UNASSIGNED: Counter "tidegate_iothread_unassigned_seconds_total" ["thread"]
        "Busy time that belongs to no disk, such as messages and background work.";
    THREAD_REQUESTS: Counter "tidegate_iothread_requests_total" ["thread"]
        "Requests that the I/O thread has taken.";
    THREAD_STALLS: Counter "tidegate_iothread_stalls_total" ["thread"]
        "Turns of the I/O thread that took longer than a millisecond.";
    THREAD_LONGEST: Gauge "tidegate_iothread_longest_turn_seconds" ["thread"]
        "The I/O thread's longest turn so far.";
    THREAD_MOVES: Counter "tidegate_iothread_moves_total" ["thread, direction"]
        "Disks that came from another I/O thread (`in`) or went to another one (`out`).";
    THREAD_CAUSES: Counter "tidegate_iothread_wakeup_causes_total" ["thread, cause"]
        "Wake-ups by cause: a guest's kick (`kick`), the completion of an I/O (`completion`), a message of another thread (`message`), or a deadline (`timer`).";
    THREAD_DELAY: Histogram "tidegate_iothread_queueing_delay_seconds" ["thread"]
        "How long requests may have waited until the I/O thread saw them, at most.";
    DISK_THREAD_BUSY: Counter "tidegate_disk_iothread_busy_seconds_total" ["disk, datastore"]
        "Time that I/O threads spent on the disk's requests.";
    DISK_KICKS: Counter "tidegate_disk_kicks_total" ["disk, datastore"]
        "Kicks of the disk's guest (vhost-user) that arrived.";
    DISK_CALLS: Counter "tidegate_disk_calls_total" ["disk, datastore"]
        "Interrupts sent to the disk's guest (vhost-user).";
    DISK_QUEUEING: Histogram "tidegate_disk_queueing_delay_seconds" ["disk, datastore"]
        "How long requests waited in the disk's rings after its I/O thread first saw them.";
    DENSE: Gauge "tidegate_dense_mode_state" [""]
        "1 while dense mode is on, 0 while it is off.";
    THREAD_STRAYS: Counter "tidegate_iothread_stray_completions_total" ["thread"]
                "Completions that matched no I/O. Any value above zero is a bug: report it.";
    THREADS_ACTIVE: Gauge "tidegate_active_iothreads" [""]
                "I/O threads that take disks.";
    MONITOR_MOVES: Counter "tidegate_monitor_moves_total" [""]
                "Disks that the policy of I/O threads moved.";
    MONITOR_CHANGES: Counter "tidegate_monitor_thread_changes_total" ["change"]
                "I/O threads that the policy activated or parked.";
    MONITOR_TRIALS: Counter "tidegate_monitor_trials_total" ["outcome"]
                "Changes that the policy tried: kept, undone, or void (without a verdict, since the load changed).";
    MONITOR_FAILURES: Counter "tidegate_monitor_failures_total" [""]
                "Decisions of the policy that could not be carried out.";
    MONITOR_FINDINGS: Counter "tidegate_monitor_findings_total" [""]
                "How often requests were found to wait for an I/O thread that could not be relieved.";
    MONITOR_TICKS: Counter "tidegate_monitor_ticks_total" [""]
                "How often the policy looked at the I/O threads.";
    MONITOR_CPU: Counter "tidegate_monitor_cpu_seconds_total" [""]
                "CPU time of the policy's thread.";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allowed endings of names that are not counters: Prometheus' base units, and words for things that are counted.
    const ENDINGS: [&str; 21] = [
        "_iothreads",
        "_days",
        "_engaged",
        "_trouble",
        "_hosts",
        "_ios",
        "_units",
        "_seconds",
        "_bytes",
        "_info",
        "_iops",
        "_shares",
        "_per_second",
        "_disks",
        "_snapshots",
        "_writes",
        "_current",
        "_refused",
        "_clients",
        "_inflight",
        "_ratio",
    ];

    #[test]
    fn names_follow_the_rules() {
        for family in FAMILIES {
            let name = family.name;
            assert!(name.starts_with("tidegate_"), "{name}");
            assert!(
                name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                "{name}"
            );
            assert_eq!(
                name.ends_with("_total"),
                family.kind == Kind::Counter,
                "{name}"
            );
            if family.kind != Kind::Counter {
                let known = ENDINGS.iter().any(|ending| name.ends_with(ending));
                assert!(
                    known
                        || ["_problems", "_up", "_state"]
                            .iter()
                            .any(|ending| name.ends_with(ending)),
                    "{name}"
                );
            }
            assert!(
                family.help.ends_with('.') && !family.help.contains('\n'),
                "{name}"
            );
        }
        for (nth, family) in FAMILIES.iter().enumerate() {
            assert!(
                FAMILIES[..nth]
                    .iter()
                    .all(|other| other.name != family.name),
                "{}",
                family.name
            );
        }
    }
}
