//! Mirrors that get one more member while they are attached.

use super::*;

#[test]
fn a_mirror_gets_a_third_member_while_it_is_written() {
    let place = tempdir();
    let paths = files(place.path(), LayoutSpec::Mirror, 2);
    let new = image(place.path(), "new", LayoutSpec::Mirror.member_size(SIZE, 2));
    let engine = engine(1);
    let disk = attach(&engine, LayoutSpec::Mirror, open_all(&paths));
    verify(&disk, 3);
    let added = disk
        .add_member(Some(open_file(&new)), PATIENCE)
        .expect("it is added");
    assert_eq!((added, disk.members()), (Target(2), 3));
    use MemberState::{InSync, OutOfSync};
    assert_eq!(states(&disk), [InSync, InSync, OutOfSync]);
    verify(&disk, 4);
    disk.order_layout(LayoutOrder::Replace(added))
        .expect("the order is carried out");
    verify(&disk, 5);
    eventually("the new member is rebuilt", || states(&disk) == [InSync; 3]);
    verify(&disk, 6);
    disk.detach(PATIENCE).expect("the disk is detached");
    assert!(data(&paths[0]) == data(&new));
    // The old labels name two members, and the new one three.
    let three: Vec<_> = paths.iter().chain([&new]).cloned().collect();
    let disk = attach(&engine, LayoutSpec::Mirror, open_all(&three));
    assert_eq!(states(&disk), [InSync; 3]);
    disk.detach(PATIENCE).expect("the disk is detached");
    // What has three members is no mirror of two.
    let two = engine.attach_members(
        layout(LayoutSpec::Mirror, SIZE),
        open_all(&three[..2]),
        PATIENCE,
    );
    assert!(two.is_err());
}

#[test]
fn a_member_that_cannot_be_added_leaves_a_disk_as_it_was() {
    let (place, other) = (tempdir(), tempdir());
    let engine = engine(1);
    let size = LayoutSpec::Mirror.member_size(SIZE, 2);
    let full = files(place.path(), LayoutSpec::Mirror, 4);
    let disk = attach(&engine, LayoutSpec::Mirror, open_all(&full));
    let more = disk.add_member(Some(memory::open(size).expect("memory")), PATIENCE);
    assert_eq!(more.err().map(|error| error.kind()), Some(Kind::Invalid));
    let spec = LayoutSpec::MirrorStripe { chunk: 16 << 10 };
    let pairs = files(other.path(), spec, 4);
    let pairs = attach(&engine, spec, open_all(&pairs));
    let more = pairs.add_member(Some(memory::open(size).expect("memory")), PATIENCE);
    assert_eq!(
        more.err().map(|error| error.kind()),
        Some(Kind::Unsupported)
    );
    for disk in [disk, pairs] {
        verify(&disk, 1);
        assert_eq!(disk.members(), 4);
        disk.detach(PATIENCE).expect("the disk is detached");
    }
}
