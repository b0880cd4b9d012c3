//! Checks on any descriptor file, shared by the fuzz target and by its replay on stable.

use tidegate_api::descriptor::Descriptor;

/// Reads the bytes; if they are a descriptor, it must be in range and survive being written.
pub(crate) fn exercise(bytes: &[u8]) {
    if let Ok(disk) = Descriptor::read(bytes) {
        disk.check().expect("what was read is in range");
        let again = Descriptor::read(disk.write().as_bytes()).expect("what is written can be read");
        assert_eq!(again, disk);
        assert!(disk.effective_serial().len() <= tidegate_api::descriptor::MAX_SERIAL);
    }
}
