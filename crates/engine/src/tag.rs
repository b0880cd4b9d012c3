//! The kinds of operations on an I/O thread's ring, and the number of an image: they lead a completion to its owner.

use crate::sys::ring::Tag;
use tidegate_core::request::DiskId;

/// The inbox's eventfd.
pub(crate) const WAKEUP: u8 = 1;
/// A guest's kick; the owner is a queue.
pub(crate) const KICK: u8 = 2;
/// An image's operation; the owner is an [`ImageId`].
pub(crate) const IMAGE: u8 = 3;
/// Bytes from an NBD client; the owner is a connection.
pub(crate) const RECEIVE: u8 = 4;
/// Bytes to an NBD client; the owner is a connection.
pub(crate) const SEND: u8 = 5;
/// A cancellation; its completion is ignored.
pub(crate) const NOTHING: u8 = 6;
/// The tag of a cancellation.
pub(crate) const IGNORED: Tag = Tag {
    kind: NOTHING,
    owner: 0,
    slot: 0,
};
/// The other end of an NBD client's socket was closed; the owner is a connection.
pub(crate) const HANG_UP: u8 = 7;

/// Bits of an [`ImageId`] that are its disk's number. Maximum number of disks: a million, far more than a host serves.
pub(crate) const DISK_BITS: u32 = 20;
/// The most images of one disk: those of its targets, and as many that were replaced and still have operations in
/// flight. Together with the disk's number they fill the 26 bits of an owner.
pub(crate) const MAX_IMAGES: u32 = 1 << 6;

/// An open image of an I/O thread: a disk, and a number among the disk's images. The first image of a disk has the
/// disk's own number.
///
/// The number is that of the image, not of its target: an image that replaces another has a new one. So a late completion
/// of the old image does not reach the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImageId(u32);

impl ImageId {
    /// The image of this disk with this number, which is below [`MAX_IMAGES`].
    pub(crate) const fn new(disk: DiskId, number: u32) -> ImageId {
        ImageId(number << DISK_BITS | disk.0)
    }

    /// The first image of a disk.
    pub(crate) const fn first(disk: DiskId) -> ImageId {
        ImageId(disk.0)
    }

    /// The inverse of [`ImageId::owner`].
    pub(crate) const fn from_owner(owner: u32) -> ImageId {
        ImageId(owner)
    }

    /// The image as the owner of operations on the ring.
    pub(crate) const fn owner(self) -> u32 {
        self.0
    }

    /// The image's disk.
    pub(crate) const fn disk(self) -> DiskId {
        DiskId(self.0 & ((1 << DISK_BITS) - 1))
    }

    /// Its number among the disk's images.
    pub(crate) const fn number(self) -> u32 {
        self.0 >> DISK_BITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_found_again_by_its_operations() {
        let disk = DiskId((1 << DISK_BITS) - 1);
        for number in [0, 1, MAX_IMAGES - 1] {
            let image = ImageId::from_owner(ImageId::new(disk, number).owner());
            assert_eq!((image.disk(), image.number()), (disk, number));
            assert!(image.owner() < 1 << 26);
        }
        assert_eq!(ImageId::first(disk), ImageId::new(disk, 0));
        assert_eq!(ImageId::first(disk).owner(), disk.0);
    }
}
