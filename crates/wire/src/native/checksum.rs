//! CRC-32C checksums of payloads (Castagnoli polynomial, as in iSCSI, RFC 7143 §13.1).

use crc_fast::{CrcAlgorithm, Digest};

/// Returns the CRC-32C of `data`.
pub fn crc32c(data: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, data) as u32
}

/// The state of a CRC-32C over data that arrive in several parts.
#[derive(Debug)]
pub struct Crc32c(Digest);

impl Crc32c {
    /// Returns the checksum state of no data, to which the caller adds the parts.
    pub fn new() -> Self {
        Crc32c(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds the next part of the data to the checksum.
    pub fn update(&mut self, part: &[u8]) {
        self.0.update(part);
    }

    /// Returns the CRC-32C of all parts that were added.
    pub fn finish(self) -> u32 {
        self.0.finalize() as u32
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}
