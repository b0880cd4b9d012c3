//! Hints of the verbs beside `disk` and `datastore`.

use super::{Row, row};

pub(super) const ROWS: &[Row] = &[
    row(
        "tidegate explain nope",
        &["there is no disk nope"],
        "tidegate disk list",
        "tidegate disk create a --size 1M -d ds --attach; tidegate explain a",
    ),
    row(
        "tidegate explain a --last 5",
        &["'5'", "the unit is missing"],
        "add ns, us, ms, s",
        "tidegate explain a --last 5s",
    ),
    row(
        "tidegate disk detach a; tidegate explain a",
        &["disk a is not attached"],
        "tidegate disk attach a",
        "tidegate disk attach a; tidegate explain a",
    ),
    row(
        "tidegate job show 99",
        &["there is no job 99"],
        "tidegate job list",
        "truncate -s 1M $P/a.img; tidegate disk import $P/a.img b -d ds; tidegate job list | grep '^1 '; tidegate job show 1",
    ),
    row(
        "tidegate job cancel 99",
        &["there is no job 99"],
        "tidegate job list",
        "tidegate job cancel 1",
    ),
    row(
        "tidegate filter add nope stats",
        &["there is no disk nope"],
        "tidegate disk list",
        "tidegate filter add a stats",
    ),
    row(
        "tidegate filter add a trace:path=$P/absent/a.trace",
        &["$P/absent/a.trace", "No such file"],
        "create what is missing",
        "mkdir $P/absent; tidegate filter add a trace:path=$P/absent/a.trace",
    ),
    row(
        "tidegate filter remove a fault",
        &["there is no filter 'fault' on this disk"],
        "its filters are stats",
        "tidegate filter remove a trace",
    ),
    row(
        "tidegate group show nope",
        &["there is no group nope"],
        "tidegate group set NAME --limit 20000iops",
        "tidegate group set nope --limit 20000iops; tidegate group show nope",
    ),
    row(
        "tidegate group set nope --limit 0",
        &["cannot change group nope"],
        "`unlimited`",
        "tidegate group set nope --limit unlimited",
    ),
    row(
        "tidegate disk list --socket $P/root/run/nbd.sock",
        &[
            "cannot reach the daemon at $P/root/run/nbd.sock",
            "NBD is spoken there",
        ],
        "run/tidegate.sock below the daemon's root",
        "tidegate disk list --socket $P/root/run/tidegate.sock",
    ),
    row(
        "tidegate serve-one $P/absent.img --nbd $P/one.sock",
        &["$P/absent.img", "No such file"],
        "correct the path",
        "truncate -s 1M $P/absent.img; (exec $TIDEGATE serve-one $P/absent.img --nbd $P/one.sock) & server=$!
         until nbdinfo \"nbd+unix:///?socket=$P/one.sock\"; do kill -0 $server; done; kill $server; wait $server",
    ),
    row(
        "qemu-img create -q -f qcow2 $P/one.qcow2 1M; tidegate serve-one $P/one.qcow2 --nbd $P/one.sock",
        &["cannot serve $P/one.qcow2", "it is a qcow2 image"],
        "qemu-img convert -f qcow2 -O raw $P/one.qcow2 NEWFILE.img",
        "qemu-img convert -f qcow2 -O raw $P/one.qcow2 $P/one.img; (exec $TIDEGATE serve-one $P/one.img --nbd $P/one.sock) & server=$!
         until nbdinfo \"nbd+unix:///?socket=$P/one.sock\"; do kill -0 $server; done; kill $server; wait $server",
    ),
    row(
        "tidegate check-config $P/absent.toml",
        &[
            "cannot read the configuration $P/absent.toml",
            "No such file",
        ],
        "give the path of a configuration file",
        "touch $P/absent.toml; tidegate check-config $P/absent.toml",
    ),
    row(
        "printf '[api]\\nmode = 0660\\n' > $P/c.toml; tidegate check-config $P/c.toml",
        &["mode = 0660"],
        "mode = \"0660\"",
        "printf '[api]\\nmode = \"0660\"\\n' > $P/c.toml; tidegate check-config $P/c.toml",
    ),
    row(
        "printf '[api]\\nmode = 660\\n' > $P/c.toml; tidegate check-config $P/c.toml",
        &["expected a string"],
        "mode = \"0660\"",
        "printf '[api]\\nmode = \"0660\"\\n' > $P/c.toml; tidegate check-config $P/c.toml",
    ),
    row(
        "printf '[io]\\nthreads = \"2\"\\n' > $P/c.toml; tidegate check-config $P/c.toml",
        &["a number or \"auto\" is expected"],
        "without quotes: threads = 2",
        "printf '[io]\\nthreads = 2\\n' > $P/c.toml; tidegate check-config $P/c.toml",
    ),
    row(
        "printf '[nbd]\\nsockets = \"n.sock\"\\n' > $P/c.toml; tidegate check-config $P/c.toml",
        &["expected a sequence"],
        "sockets = [\"n.sock\"]",
        "printf '[nbd]\\nsockets = [\"n.sock\"]\\n' > $P/c.toml; tidegate check-config $P/c.toml",
    ),
    row(
        "printf '[io]\\npoll = \"20\"\\n' > $P/c.toml; tidegate check-config $P/c.toml",
        &["the unit is missing; add ns, us, ms"],
        "docs/config.md",
        "printf '[io]\\npoll = \"20us\"\\n' > $P/c.toml; tidegate check-config $P/c.toml",
    ),
];
