//! `tidegate disk`, but for image files.

use super::{Row, row};

/// Those that are made or changed.
pub(super) const MADE: &[Row] = &[
    row(
        "tidegate disk create",
        &["<NAME>", "Usage: tidegate disk create <NAME>"],
        "--help",
        "tidegate disk create --help; tidegate disk create a --size 1M",
    ),
    row(
        "tidegate disk create b",
        &["cannot create disk b", "it needs a size"],
        "--size 10G",
        "tidegate disk create b --size 10G",
    ),
    row(
        "tidegate disk create c --size 1Q",
        &["'1Q' is not a size", "unknown unit"],
        "use K, M, G or T",
        "tidegate disk create c --size 1T",
    ),
    row(
        "tidegate disk create d --size 0",
        &["cannot create disk d", "size 0 is not from 1"],
        "give a size such as 10G",
        "tidegate disk create d --size 10G",
    ),
    row(
        "tidegate disk create e --size 1000",
        &["size 1000 is not a whole number of blocks of 512 bytes"],
        "use 512 or 1024",
        "tidegate disk create e --size 1024",
    ),
    row(
        "tidegate disk create f --size 1M --block-size 1024",
        &["block_size 1024 is neither 512 nor 4096"],
        "use one of the two",
        "tidegate disk create f --size 1M --block-size 4096",
    ),
    row(
        "tidegate disk create g --size 1M --block-size 8G",
        &["is too large"],
        "use 512 or 4096",
        "tidegate disk create g --size 1M --block-size 512",
    ),
    row(
        "tidegate disk create g --size 1M",
        &["cannot create disk g", "a disk of that name exists"],
        "tidegate disk delete g",
        "tidegate disk delete g --yes; tidegate disk create g --size 1M",
    ),
    row(
        "mkdir $P/ds/h; tidegate disk create h --size 1M -d ds",
        &["cannot create disk h", "$P/ds/h exists"],
        "move that directory",
        "mv $P/ds/h $P/h; tidegate disk create h --size 1M -d ds",
    ),
    row(
        "tidegate disk create i --size 1M -d nope",
        &["there is no datastore nope"],
        "tidegate datastore list",
        "tidegate disk create i --size 1M -d ds",
    ),
    row(
        "tidegate disk create j --size 1M --queues 0",
        &["queues 0 is not from 1"],
        "--queues 1 to",
        "tidegate disk create j --size 1M --queues 1",
    ),
    row(
        "tidegate disk create k --size 1M --seg-max 500",
        &["seg_max 500 is not from 1 to 126"],
        "--seg-max 1 to 126",
        "tidegate disk create k --size 1M --seg-max 126",
    ),
    row(
        "tidegate disk create l --size 1M --serial 123456789012345678901",
        &["the serial is not up to 20 printable ASCII characters"],
        "shorten it",
        "tidegate disk create l --size 1M --serial 12345678901234567890",
    ),
    row(
        "tidegate disk create m --size 1M --cache none",
        &["invalid value 'none' for '--cache <MODE>'"],
        "write-back",
        "tidegate disk create m --size 1M --cache write-back",
    ),
    row(
        "tidegate disk create n --size 1M --filter stast",
        &[
            "the filters of disk n are invalid",
            "there is no filter `stast`; the filters are null, stats",
        ],
        "NAME or NAME:key=value",
        "tidegate disk create n --size 1M --filter stats",
    ),
    row(
        "tidegate disk create o --size 1M --filter trace:path=o.trace",
        &["the trace file o.trace is not an absolute path"],
        "give an absolute path",
        "tidegate disk create o --size 1M --filter trace:path=$P/o.trace; tidegate disk attach o",
    ),
    row(
        "tidegate disk create p --size 1M $(for n in $(seq 40); do echo --filter null; done)",
        &["40 filters are more than"],
        "leave some out",
        "tidegate disk create p --size 1M --filter null",
    ),
    row(
        "tidegate disk create q --size 1M --shares 5",
        &["5 shares are not from 100 to 10000"],
        "low (500), normal (1000), high (2000)",
        "tidegate disk create q --size 1M --shares 100",
    ),
    row(
        "tidegate disk create r --size 1M --device $P/ds",
        &["$P/ds is not a block device"],
        "`lsblk -p`",
        "tidegate disk create r --size 1M",
    ),
    row(
        "tidegate disk create s --device /dev/absent",
        &[
            "cannot create disk s",
            "/dev/absent cannot be used",
            "No such file",
        ],
        "`lsblk -p`",
        "! tidegate disk show s; tidegate disk create s --size 1M",
    ),
    row(
        "tidegate datastore add ram --kind memory; tidegate disk create t --device /dev/absent -d ram",
        &["only datastores of kind dir have disks on devices"],
        "--datastore",
        "tidegate disk create t --size 1M --datastore ds",
    ),
    row(
        "tidegate disk set a --limit 0",
        &["cannot change disk a", "limit 0 would stop the disk"],
        "--limit unlimited",
        "tidegate disk set a --limit unlimited",
    ),
    row(
        "tidegate disk set a --limit 100mbps",
        &["'100mbps'", "it is a bandwidth"],
        "--limit-bandwidth, such as 100MB/s",
        "tidegate disk set a --limit-bandwidth 100MB/s",
    ),
    row(
        "tidegate disk set a --limit-bandwidth 100mbps",
        &["a small b can mean bits"],
        "write MB/s for bytes, Mbit/s for bits",
        "tidegate disk set a --limit-bandwidth 100Mbit/s",
    ),
    row(
        "tidegate disk set a --limit-bandwidth 500iops",
        &["it is a number of I/Os"],
        "--limit",
        "tidegate disk set a --limit 500iops",
    ),
    row(
        "tidegate disk set a --limit-bandwidth 0B/s",
        &["limit_bandwidth 0 would stop the disk"],
        "--limit-bandwidth unlimited",
        "tidegate disk set a --limit-bandwidth unlimited",
    ),
    row(
        "tidegate disk set a --reservation 600iops",
        &["reservation 600iops is above limit 500iops"],
        "raise the limit (--limit 600iops), or reserve less (--reservation 500iops)",
        "tidegate disk set a --reservation 500iops
         tidegate disk set a --limit 600iops --reservation 600iops",
    ),
    row(
        "tidegate disk set a --limit 5iops",
        &["reservation 600iops is above limit 5iops"],
        "(--reservation 5iops)",
        "tidegate disk set a --limit 5iops --reservation 5iops",
    ),
    row(
        "tidegate disk set a --limit unlimited --reservation 5000000k",
        &["reservation 5000000000iops is too large"],
        "reserve at most 4294967295iops",
        "tidegate disk set a --limit unlimited --reservation 4294967295iops; tidegate disk set a --reservation 0iops",
    ),
    row(
        "tidegate disk set a --burst-iops 100",
        &["burst 100iops needs a limit that it passes"],
        "give --limit too",
        "tidegate disk set a --burst-iops 100 --limit 50",
    ),
    row(
        "tidegate disk set a --burst-iops 10",
        &["burst 10iops is below limit 50iops"],
        "--burst-iops 50iops or more, or --burst-iops none",
        "tidegate disk set a --burst-iops 50iops; tidegate disk set a --burst-iops none",
    ),
    row(
        "tidegate disk set a --burst-seconds 5",
        &["burst_seconds without a burst means nothing"],
        "give --burst-iops too",
        "tidegate disk set a --burst-seconds 5 --burst-iops 100",
    ),
    row(
        "tidegate disk set a --burst-seconds 0",
        &["burst_seconds 0 is not from 1"],
        "--burst-seconds 1 to",
        "tidegate disk set a --burst-seconds 1",
    ),
    row(
        "tidegate disk set a --latency-target 0",
        &["latency_target 0 cannot be kept"],
        "--latency-target none",
        "tidegate disk set a --latency-target none",
    ),
    row(
        "tidegate disk set a --latency-target 5",
        &["'5'", "the unit is missing"],
        "add ns, us, ms",
        "tidegate disk set a --latency-target 5ms",
    ),
    row(
        "tidegate disk set a",
        &[
            "the following required arguments",
            "Usage: tidegate disk set <--filter",
        ],
        "--no-filters",
        "tidegate disk set a --no-filters",
    ),
    row(
        "tidegate disk set nope --shares low",
        &["there is no disk nope"],
        "tidegate disk list",
        "tidegate disk list | grep '^a '; tidegate disk set a --shares low",
    ),
    row(
        "tidegate disk resize a 1000 --yes",
        &[
            "cannot resize disk a",
            "size 1000 is not a whole number of blocks",
        ],
        "use 512 or 1024",
        "tidegate disk resize a 1024 --yes",
    ),
    row(
        "tidegate disk resize a 512",
        &["disk a will lose the data in its last"],
        "add --yes",
        "tidegate disk resize a 512 --yes",
    ),
    row(
        "tidegate disk resize nope 1G",
        &["there is no disk nope"],
        "tidegate disk list",
        "tidegate disk resize a 1G",
    ),
    row(
        "tidegate disk delete a",
        &["disk a of", "there is no terminal to ask on"],
        "add --yes",
        "tidegate disk delete a --yes",
    ),
    row(
        "tidegate disk delete a --yes",
        &["there is no disk a"],
        "tidegate disk list",
        "! tidegate disk list | grep '^a '; tidegate disk delete b --yes",
    ),
];

/// Those that are attached, or are to be.
pub(super) const SERVED: &[Row] = &[
    row(
        "tidegate disk attach nope",
        &["there is no disk nope"],
        "tidegate disk list",
        "tidegate disk create a --size 1M -d ds; tidegate disk list | grep '^a '; tidegate disk attach a",
    ),
    row(
        "tidegate disk attach a --read-only",
        &["disk a is attached for writing"],
        "detach it first, then attach it with --read-only",
        "tidegate disk detach a; tidegate disk attach a --read-only",
    ),
    row(
        "tidegate disk attach a",
        &["disk a is attached read-only"],
        "detach it first, then attach it without --read-only",
        "tidegate disk detach a; tidegate disk attach a",
    ),
    row(
        "tidegate disk set a --serial other",
        &["cannot change disk a", "it is attached"],
        "tidegate disk detach a",
        "tidegate disk detach a; tidegate disk set a --serial other; tidegate disk attach a",
    ),
    row(
        "tidegate disk resize a 512K --yes",
        &[
            "cannot resize disk a",
            "guests do not support a disk that shrinks",
        ],
        "tidegate disk detach a",
        "tidegate disk detach a; tidegate disk resize a 512K --yes; tidegate disk attach a",
    ),
    row(
        "tidegate disk delete a --yes",
        &["cannot delete disk a", "it is attached"],
        "tidegate disk detach a",
        "tidegate disk detach a; tidegate disk delete a --yes",
    ),
    row(
        "tidegate disk create b --size 1M -d ds; rm $P/ds/b/image; tidegate disk attach b",
        &["cannot attach disk b", "No such file"],
        "create what is missing",
        "truncate -s 1M $P/ds/b/image; tidegate disk attach b; tidegate disk detach b",
    ),
    row(
        "truncate -s 4K $P/ds/b/image; tidegate disk attach b",
        &["cannot attach disk b", "has"],
        "tidegate disk resize",
        "tidegate disk resize b 4K --yes; tidegate disk attach b; tidegate disk detach b",
    ),
    row(
        "cp $P/ds/b/disk.toml $P/b.toml; echo nonsense >> $P/ds/b/disk.toml; tidegate disk attach b",
        &["cannot use disk b", "$P/ds/b/disk.toml is damaged"],
        "restore a copy",
        "cp $P/b.toml $P/ds/b/disk.toml; tidegate disk attach b; tidegate disk detach b",
    ),
    row(
        "mv $P/ds/b $P/b; ln -s $P/b $P/ds/b; tidegate disk attach b",
        &["cannot use disk b", "$P/ds/b is a link"],
        "put the directory itself there",
        "rm $P/ds/b; mv $P/b $P/ds/b; tidegate disk attach b; tidegate disk detach b",
    ),
    row(
        "mkdir $P/two; tidegate datastore add two --path $P/two; cp -r $P/ds/b $P/two/b; tidegate disk attach b",
        &[
            "disk b is ambiguous",
            "datastores ds and two both have a disk of that name",
        ],
        "rename one of their directories, or remove one datastore",
        "tidegate datastore remove two; tidegate disk attach b",
    ),
    row(
        "mkdir $P/trace; tidegate disk create c --size 1M -d ds --filter trace:path=$P/trace/c
         rmdir $P/trace; tidegate disk attach c",
        &["cannot attach disk c", "$P/trace/c"],
        "create what is missing",
        "mkdir $P/trace; tidegate disk attach c",
    ),
    row(
        "tidegate disk create d --size 1M -d ds --filter trace:path=$P/absent/d --attach",
        &[
            "disk d was created, but is not attached",
            "$P/absent/d",
            "No such file",
        ],
        "attach it: tidegate disk attach d",
        "mkdir $P/absent; tidegate disk attach d",
    ),
    row(
        "tidegate datastore add ram --kind memory; tidegate disk create e --size 1M -d ram --attach
         tidegate disk resize e 2M",
        &[
            "cannot resize disk e",
            "the size that the disk had when it was attached",
        ],
        "detach it (its data is lost), resize it and attach it again",
        "tidegate disk detach e --yes; tidegate disk resize e 2M; tidegate disk attach e",
    ),
    row(
        "tidegate disk detach e",
                &["disk e is in the daemon's memory and its data will be lost"],
        "add --yes",
        "tidegate disk detach e --yes",
    ),
    row(
        "uri=$(tidegate disk show b -o json | sed -n 's/.*\"nbd_uri\": *\"\\(.*\\)\".*/\\1/p'); mkfifo $P/up
         PATH=/usr/bin:/bin timeout 60 nbdsh -u \"$uri\" -c 'print(\"up\", flush=True); import time; time.sleep(60)' \\
           > $P/up 2> /dev/null &
         echo $! > $P/client; read up < $P/up; tidegate disk detach b",
        &["cannot detach disk b", "it is in use by"],
        "tidegate disk detach b --disconnect",
        "tidegate disk detach b --disconnect; kill $(cat $P/client)",
    ),
    row(
        "tidegate disk detach nope",
        &["there is no disk nope"],
        "tidegate disk list",
        "tidegate disk list | grep '^b '; tidegate disk detach b",
    ),
    row(
        "tidegate disk snippet nope --for qemu",
        &["there is no disk nope"],
        "tidegate disk list",
        "tidegate disk snippet b --for qemu",
    ),
    row(
        "tidegate disk snippet b --for bochs",
        &["invalid value 'bochs'"],
        "possible values: qemu",
        "tidegate disk snippet b --for qemu",
    ),
    row(
        "tidegate disk show nope",
        &["there is no disk nope"],
        "tidegate disk list",
        "tidegate disk show b",
    ),
    row(
        "tidegate disk list --datastore nope",
        &["there is no datastore nope"],
        "tidegate datastore list",
        "tidegate disk list --datastore ds",
    ),
];
