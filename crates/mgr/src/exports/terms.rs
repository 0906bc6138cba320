//! The durable record of the conditions of access to exports. If the conditions changed since the last start, the mgr
//! revokes the rights that clients got before this start.

use super::Exports;
use std::fmt::Write;
use types::Status;
use wire::native::Key;

/// Key of the hash of the conditions of access in the registry of the metadata store.
const KEY: &[u8] = b"mgr/export-terms";

impl Exports {
    /// Returns a keyed hash of the paths and the conditions of access of all exports. Other conditions have another
    /// hash.
    fn terms(&self, key: &Key) -> [u8; 16] {
        let mut text = String::from("exports");
        for rule in &self.rules {
            // Formatting into a `String` never fails.
            let _ = write!(text, "{:?} {:?} {} {:?};", rule.path, rule.clients, rule.privileged_ports, rule.terms);
        }
        key.derived_id(text.as_bytes())
    }

    /// Returns whether the current conditions of access differ from those that the mgr has recorded in the metadata
    /// store.
    ///
    /// # Errors
    /// The status with which the metadata store failed.
    pub(crate) fn have_changed(&self, key: &Key) -> Result<bool, Status> {
        let recorded = self.namespace.registry(KEY)?;
        Ok(recorded.is_none_or(|recorded| recorded[..] != self.terms(key)))
    }

    /// Records the current conditions of access durably in the metadata store.
    ///
    /// # Errors
    /// The status with which the metadata store failed.
    pub(crate) async fn record_terms(&self, key: &Key) -> Result<(), Status> {
        let terms = self.terms(key).to_vec().into();
        self.namespace.registry_put(net::clock::now().into(), KEY, Some(&terms)).await
    }
}
