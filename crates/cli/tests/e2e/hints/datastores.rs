//! `tidegate datastore`.

use super::{Row, row};

pub(super) const ROWS: &[Row] = &[
    row(
        "tidegate datastore add a",
        &["datastore a of kind dir needs --path"],
        "--path /srv/disks",
        "mkdir $P/a; tidegate datastore add a --path $P/a",
    ),
    row(
        "tidegate datastore add b --kind memory --path $P",
        &["--path means nothing to a datastore of kind memory"],
        "leave it out",
        "tidegate datastore add b --kind memory",
    ),
    row(
        "tidegate datastore add c --path $P/c",
        &["cannot add datastore c", "$P/c cannot be used: No such file"],
        "mkdir -p $P/c",
        "mkdir -p $P/c; tidegate datastore add c --path $P/c",
    ),
    row(
        "mkdir $P/d; touch $P/d/file; tidegate datastore add d --path $P/d/file",
        &["$P/d/file is not a directory"],
        "name the directory that contains it",
        "tidegate datastore add d --path $P/d",
    ),
    row(
        "touch $P/e-file; tidegate datastore add e --path $P/e-file/e",
        &["Not a directory"],
        "name a path below a directory",
        "mkdir $P/e; tidegate datastore add e --path $P/e",
    ),
    row(
        "tidegate datastore add f --path /proc",
        &["type proc, which cannot hold disks"],
        "give a directory on another file system",
        "mkdir $P/f; tidegate datastore add f --path $P/f",
    ),
    row(
        "mkdir $P/g; tidegate datastore add ds --path $P/g",
        &["there is a datastore ds already, at $P/ds"],
        "tidegate datastore remove ds",
        "tidegate datastore remove ds; tidegate datastore add ds --path $P/g
         tidegate datastore remove ds; tidegate datastore add ds --path $P/ds",
    ),
    row(
        "tidegate datastore add h --path $P/ds",
        &["datastore ds is the same directory, $P/ds"],
        "use ds",
        "tidegate disk create h --size 1M --datastore ds",
    ),
    row(
        "tidegate disk create i1 --size 1M -d ds; tidegate disk create i2 --size 1M -d ds
         cp -r $P/ds $P/i; tidegate datastore add i --path $P/i",
        &["the mark of datastore ds", "names that are taken: h, i1, i2"],
        "remove $P/i/.tidegate/datastore-id from it; and rename their directories",
        "rm $P/i/.tidegate/datastore-id; for disk in h i1 i2; do mv $P/i/$disk $P/i/old-$disk; done
         tidegate datastore add i --path $P/i; tidegate disk show old-i2",
    ),
    row(
        "tidegate datastore add j --kind nbd --uri http://storage.example",
        &["'http://storage.example' is not an NBD URI"],
        "nbd://HOST",
        "tidegate datastore add j --kind nbd --uri nbd://localhost",
    ),
    row(
        "tidegate datastore add k --kind emulated --model floppy",
        &["cannot add datastore k", "floppy"],
        "raid5-8x10k+cache",
        "tidegate datastore add k --kind emulated --model raid5-8x10k+cache",
    ),
    row(
        "tidegate datastore add ../l --path $P",
        &["invalid value '../l'"],
        "--help",
        "mkdir $P/l; tidegate datastore add l --path $P/l",
    ),
    row(
        "tidegate datastore show nope",
        &["there is no datastore nope"],
        "tidegate datastore list",
        "tidegate datastore list | grep ds; tidegate datastore show ds",
    ),
    row(
        "tidegate datastore set ds",
        &["the following required arguments", "Usage: tidegate datastore set <--io-control"],
        "--io-control",
        "tidegate datastore set ds --io-control on",
    ),
    row(
        "tidegate datastore set nope --io-control on",
        &["there is no datastore nope"],
        "tidegate datastore list",
        "tidegate datastore set ds --io-control on",
    ),
    row(
        "tidegate datastore set ds --io-unit 1KiB",
        &["cannot change datastore ds", "an I/O unit of 1024 bytes is not from 4096 to 131072"],
        "--io-unit 4KiB to 128KiB",
        "tidegate datastore set ds --io-unit 4KiB; tidegate datastore set ds --io-unit 128KiB",
    ),
    row(
        "tidegate datastore set ds --io-unit 8G",
        &["an I/O unit of 8589934592 bytes is too large"],
        "use 4KiB to 128KiB",
        "tidegate datastore set ds --io-unit 32KiB",
    ),
    row(
        "tidegate datastore set ds --congestion-threshold 12",
        &["'12'", "the unit is missing"],
        "add ns, us, ms",
        "tidegate datastore set ds --congestion-threshold 12ms",
    ),
    row(
        "tidegate datastore set ds --coordination $P",
        &["the hosts of a datastore of kind dir find each other in its own directory"],
        "leave --coordination out",
        "tidegate datastore set ds --io-control on",
    ),
    row(
        "tidegate datastore set b --coordination $P/common",
        &["$P/common cannot be used"],
        "mkdir -p $P/common",
        "mkdir -p $P/common; tidegate datastore set b --coordination $P/common",
    ),
    row(
        "tidegate disk create m1 --size 1M -d b --attach; tidegate disk create m2 --size 1M -d b --attach
         tidegate datastore set b --no-coordination",
        &["disks on it are attached"],
        "detach them first: m1, m2",
        "tidegate disk detach m1 --yes; tidegate disk detach m2 --yes; tidegate datastore set b --no-coordination",
    ),
    row(
        "tidegate disk attach i1; tidegate disk attach i2; tidegate datastore remove ds",
        &["cannot remove datastore ds", "detached: i1, i2"],
        "tidegate disk detach i1; tidegate disk detach i2",
        "tidegate disk detach i1; tidegate disk detach i2; tidegate datastore remove ds
         tidegate datastore add ds --path $P/ds",
    ),
    row(
        "tidegate datastore remove nope",
        &["there is no datastore nope"],
        "tidegate datastore list",
        "tidegate datastore remove e",
    ),
    row(
        "mv $P/ds $P/away; tidegate disk create n --size 1M -d ds",
        &["datastore ds is not mounted", "$P/ds: No such file"],
        "at $P/ds as before",
        "mv $P/away $P/ds; tidegate disk create n --size 1M -d ds",
    ),
    row(
        "mv $P/ds $P/away; mkdir $P/ds; tidegate disk attach n",
        &["datastore ds is not mounted"],
        "at $P/ds as before",
        "rmdir $P/ds; mv $P/away $P/ds; tidegate disk attach n",
    ),
    row(
        "echo nonsense > $P/root/state/datastores/l.toml; tidegate datastore show l",
        &["$P/root/state/datastores/l.toml is damaged"],
        "repair it by hand or restore a copy",
        "tidegate datastore remove l; tidegate datastore add l --path $P/l; tidegate datastore show l",
    ),
];
