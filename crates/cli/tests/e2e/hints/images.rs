//! `tidegate disk import` and `export`.

use super::{Row, row};

pub(super) const ROWS: &[Row] = &[
    row(
        "tidegate disk import $P/absent.img a",
        &["cannot read the image $P/absent.img", "No such file"],
        "correct the path",
        "truncate -s 1M $P/a.img; tidegate disk import $P/a.img a -d ds",
    ),
    row(
        "tidegate disk import $P/a.img a -d ds",
        &["as disk a", "a disk of that name exists"],
        "tidegate disk delete a",
        "tidegate disk delete a --yes; tidegate disk import $P/a.img a -d ds",
    ),
    row(
        "tidegate disk import $P/ds b -d ds",
        &["it is a directory"],
        "give a plain file",
        "tidegate disk import $P/a.img b -d ds",
    ),
    row(
        "mkfifo $P/fifo; tidegate disk import $P/fifo c -d ds",
        &["it is a pipe"],
        "`tidegate disk import - NAME`",
        "cat $P/a.img | tidegate disk import - c -d ds",
    ),
    row(
        "gzip -k $P/a.img; tidegate disk import $P/a.img.gz d -d ds",
        &["it is a gzip file"],
        "gzip -dk $P/a.img.gz",
        "rm $P/a.img; gzip -dk $P/a.img.gz; tidegate disk import $P/a.img d -d ds",
    ),
    row(
        "tidegate disk import $P/a.img e -d ds --format qcow2",
        &["cannot read the qcow2 image $P/a.img", "does not begin like a qcow2 image"],
        "omit --format, so that the format is detected, or use --format raw",
        "tidegate disk import $P/a.img e -d ds --format raw; tidegate disk import $P/a.img e2 -d ds",
    ),
    row(
        "tidegate disk export a $P/a.qcow2; tidegate disk import $P/a.qcow2 f -d ds --format vmdk",
        &["it is a qcow2 image"],
        "--format qcow2",
        "tidegate disk import $P/a.qcow2 f -d ds --format qcow2",
    ),
    row(
        "head -c 200 $P/a.qcow2 > $P/cut.qcow2; tidegate disk import $P/cut.qcow2 g -d ds",
        &["cannot read the image $P/cut.qcow2", "it may be truncated"],
        "get the file again from its source",
        "tidegate disk import $P/a.qcow2 g -d ds",
    ),
    row(
        "tidegate disk import $P/a.img h -d ds --format floppy",
        &["'floppy'"],
        "raw",
        "tidegate disk import $P/a.img h -d ds --format raw",
    ),
    row(
        "tidegate disk import $P/a.img i -d nope",
        &["there is no datastore nope"],
        "tidegate datastore list",
        "tidegate disk import $P/a.img i -d ds",
    ),
    row(
        "tidegate datastore add ram --kind memory; tidegate disk import $P/a.img j -d ram",
        &["the datastore is of kind memory, which has no image files"],
        "nbdcopy FROM TO",
        "tidegate disk create j --size 1M -d ram --attach
         uri=$(tidegate disk show j -o json | sed -n 's/.*\"nbd_uri\": *\"\\(.*\\)\".*/\\1/p')
         nbdcopy $P/a.img \"$uri\"",
    ),
    row(
        "tidegate disk import $P/a.img k -d ds --device /dev/absent",
        &["/dev/absent cannot be used"],
        "lsblk -p",
        "! tidegate disk import $P/a.img k -d ds --device /dev/absent --yes 2> $P/told; grep lsblk $P/told",
    ),
    row(
        "tidegate disk import $P/a.img k -d ds --device $P/a.img --yes",
        &["it is not a block device"],
        "`lsblk -p`",
        "tidegate disk import $P/a.img k -d ds",
    ),
    row(
        "tidegate disk import $P/a.img l -d ds --spool-dir $P",
        &["--spool-dir is for standard input"],
        "omit --spool-dir",
        "tidegate disk import $P/a.img l -d ds",
    ),
    row(
        "tidegate disk import - m -d ds --no-wait < $P/a.img",
        &["--no-wait cannot be used with `-`"],
        "omit --no-wait",
        "tidegate disk import - m -d ds < $P/a.img",
    ),
    row(
        "tidegate disk import - n -d ds < /dev/null",
        &["cannot import standard input: it is empty"],
        "see why the command before the pipe wrote nothing",
        "tidegate disk import - n -d ds < $P/a.img",
    ),
    row(
        "tidegate disk import /dev/stdin o -d ds < $P/a.img",
        &["/dev/stdin is another file for the daemon"],
        "write `-` for it",
        "cat $P/a.img | tidegate disk import - o -d ds",
    ),
    row(
        "tidegate disk attach a; tidegate disk import $P/ds/a/image p -d ds",
        &["it is the image of disk a"],
        "tidegate disk detach a",
        "tidegate disk detach a; tidegate disk import $P/ds/a/image p -d ds",
    ),
    row(
        "truncate -s 1000 $P/odd.img; rm -rf $P/away; mv $P/ds $P/away; tidegate disk import $P/odd.img q -d ds",
        &["datastore ds is not mounted"],
        "at $P/ds as before",
        "mv $P/away $P/ds; tidegate disk import $P/odd.img q -d ds",
    ),
    row(
        "tidegate disk export nope $P/out.img",
        &["there is no disk nope"],
        "tidegate disk list",
        "tidegate disk export a $P/out.img",
    ),
    row(
        "before=$(tidegate job list -o json | grep -c '\"id\"'); tidegate disk export a $P/out.img || {
           test \"$before\" = \"$(tidegate job list -o json | grep -c '\"id\"')\" && exit 1; exit 0; }",
        &["cannot export disk a to $P/out.img", "it exists"],
        "add --replace",
        "tidegate disk export a $P/out.img --replace",
    ),
    row(
        "tidegate disk export a $P/absent/a.img",
        &["cannot export disk a to $P/absent/a.img", "there is no directory $P/absent"],
        "mkdir -p $P/absent",
        "mkdir -p $P/absent; tidegate disk export a $P/absent/a.img",
    ),
    row(
        "tidegate disk export a $P/absent",
        &["it exists"],
        "choose another file",
        "tidegate disk export a $P/absent/b.img",
    ),
    row(
        "tidegate disk export a $P/absent --replace",
        &["a directory is there"],
        "name the image file",
        "tidegate disk export a $P/absent/disk.img --replace",
    ),
    row(
        "tidegate disk export a /dev/absent",
        &["no block device is there"],
        "`lsblk -p`",
        "tidegate disk export a $P/dev.img",
    ),
    row(
        "tidegate disk export a $P/a.vmdk",
        &["its name ends in .vmdk"],
        "name a file that ends in .qcow2 or .img, or give --format",
        "tidegate disk export a $P/a.vmdk --format raw; tidegate disk export a $P/named.qcow2",
    ),
    row(
        "tidegate disk export a $P/b --format vmdk",
        &["vmdk can be read, but not written"],
        "or give --format",
        "tidegate disk export a $P/b --format qcow2",
    ),
    row(
        "tidegate disk export a $P/ds/b/image --replace",
        &["cannot export disk a", "$P/ds/b is a disk's directory"],
        "choose another file",
        "tidegate disk export a $P/other.img",
    ),
    row(
        "ln $P/ds/b/image $P/link.img; tidegate disk export a $P/link.img --replace",
        &["it is the image of disk b"],
        "choose another file",
        "tidegate disk export a $P/third.img",
    ),
    row(
        "tidegate disk attach a; tidegate disk export a $P/live.img",
        &["it is attached"],
        "nbdcopy",
        "uri=$(tidegate disk show a -o json | sed -n 's/.*\"nbd_uri\": *\"\\(.*\\)\".*/\\1/p')
         nbdcopy \"$uri\" $P/live.img; tidegate disk detach a; tidegate disk export a $P/still.img",
    ),
    row(
        "tidegate disk export j $P/j.img",
        &["the datastore is of kind memory, which has no image files"],
        "`tidegate disk show NAME`",
        "uri=$(tidegate disk show j -o json | sed -n 's/.*\"nbd_uri\": *\"\\(.*\\)\".*/\\1/p'); nbdcopy \"$uri\" $P/j.img",
    ),
    row(
        "truncate -s 4K $P/ds/c/image; tidegate disk export c $P/c.img",
        &["disk c is incomplete", "its image has only 4096"],
        "tidegate disk resize c 4096 --yes",
        "tidegate disk resize c 4096 --yes; tidegate disk export c $P/c.img",
    ),
];
