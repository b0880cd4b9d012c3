//! The label at the beginning of a flash device: which cache it belongs to.
//!
//! The daemon writes it when a cache is created, and reads it before a disk uses the device. After it, two blocks in turn
//! say which generation of the host's record the device has seen. The first chunk of a device has nothing else.
//!
//! # Picture
//! ```text
//!   label       10  cache 16, device 1, devices 1, serial 4, chunk 8, size 8
//!   generation  10  cache 16, generation 8
//! ```

use crate::block::{BLOCK, Reader, Unreadable, Writer};

const MAGIC: [u8; 8] = *b"TGFLASH1";
const GENERATION_MAGIC: [u8; 8] = *b"TGFLASHG";
const VERSION: u16 = 1;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLabel {
    /// The cache's identity.
    pub cache: [u8; 16],
    /// Which of its devices it is, from 0.
    pub device: u8,
    /// How many places for devices it had when the label was written.
    pub devices: u8,
    /// Which device in this place it is: 0 is the first one, and each that takes its place has a higher number.
    pub serial: u32,
    /// Bytes of a chunk.
    pub chunk: u64,
    /// Bytes of the device that the cache uses.
    pub size: u64,
}

impl DeviceLabel {
    /// Whether it names the same device of the same cache, whatever places the cache had when it was written.
    pub fn is_same(&self, other: &DeviceLabel) -> bool {
        let DeviceLabel { devices, .. } = *other;
        DeviceLabel { devices, ..*self } == *other
    }

    /// The block at the beginning of the device.
    pub fn encode(&self) -> [u8; BLOCK] {
        let mut out = Writer::new(MAGIC, VERSION);
        out.put(&self.cache);
        out.put(&[self.device, self.devices]);
        out.put(&self.serial.to_le_bytes());
        out.put(&self.chunk.to_le_bytes());
        out.put(&self.size.to_le_bytes());
        out.finish()
    }

    /// Reads such a block.
    ///
    /// # Errors
    /// It is empty, something else, of another version, or damaged.
    pub fn decode(bytes: &[u8]) -> Result<DeviceLabel, Unreadable> {
        let mut from = Reader::open(bytes, MAGIC, VERSION)?;
        let cache = from.take();
        let [device, devices] = from.take();
        let serial = u32::from_le_bytes(from.take());
        let label = DeviceLabel {
            cache,
            device,
            devices,
            serial,
            chunk: u64::from_le_bytes(from.take()),
            size: u64::from_le_bytes(from.take()),
        };
        let is_sound = device < devices && devices <= 2;
        is_sound.then_some(label).ok_or(Unreadable::Torn)
    }
}

/// Which generation of the host's record of a cache a device has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenRecord {
    /// The cache's identity.
    pub cache: [u8; 16],
    /// The generation.
    pub generation: u64,
}

impl SeenRecord {
    /// The block.
    pub fn encode(&self) -> [u8; BLOCK] {
        let mut out = Writer::new(GENERATION_MAGIC, VERSION);
        out.put(&self.cache);
        out.put(&self.generation.to_le_bytes());
        out.finish()
    }

    /// Reads such a block.
    ///
    /// # Errors
    /// It is empty, something else, of another version, or damaged.
    pub fn decode(bytes: &[u8]) -> Result<SeenRecord, Unreadable> {
        let mut from = Reader::open(bytes, GENERATION_MAGIC, VERSION)?;
        Ok(SeenRecord {
            cache: from.take(),
            generation: u64::from_le_bytes(from.take()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABEL: DeviceLabel = DeviceLabel {
        cache: [7; 16],
        device: 1,
        devices: 2,
        serial: 0x0102_0304,
        chunk: 1 << 20,
        size: 64 << 20,
    };

    #[test]
    fn a_label_is_read_as_it_was_written() {
        assert_eq!(DeviceLabel::decode(&LABEL.encode()), Ok(LABEL));
        let seen = SeenRecord {
            cache: [7; 16],
            generation: 9,
        };
        assert_eq!(SeenRecord::decode(&seen.encode()), Ok(seen));
        assert!(SeenRecord::decode(&LABEL.encode()).is_err());
    }

    #[test]
    fn what_is_no_label_is_refused() {
        assert_eq!(DeviceLabel::decode(&[0; BLOCK]), Err(Unreadable::Empty));
        assert_eq!(
            DeviceLabel::decode(&[0xdd; BLOCK]),
            Err(Unreadable::Foreign)
        );
        for at in [8, 10, 26, 100, BLOCK - 1] {
            let mut bytes = LABEL.encode();
            bytes[at] ^= 1;
            assert!(DeviceLabel::decode(&bytes).is_err(), "byte {at}");
        }
        let third = DeviceLabel { device: 2, ..LABEL };
        assert_eq!(DeviceLabel::decode(&third.encode()), Err(Unreadable::Torn));
    }
}
