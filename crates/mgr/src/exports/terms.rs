//! The durable record of the terms (conditions of access) of exports. If the terms changed since the last start, the
//! mgr revokes the rights that clients got before this start.

use super::Exports;
use std::fmt::Write;
use types::Status;
use wire::native::Key;

/// Key of the record of terms in the registry of the metadata store.
const KEY: &[u8] = b"mgr/export-terms";

impl Exports {
    /// Returns a keyed hash of the clients and terms of all exports. Different terms give a different hash.
    fn terms(&self, key: &Key) -> [u8; 16] {
        let mut text = String::from("exports");
        for rule in &self.rules {
            // Formatting into a `String` never fails.
            let _ = write!(text, "{:?} {:?} {} {:?};", rule.path, rule.clients, rule.privileged_ports, rule.terms);
        }
        key.derived_id(text.as_bytes())
    }

    /// Returns whether the current terms differ from the recorded terms.
    ///
    /// # Errors
    /// The status with which the metadata store failed.
    pub(crate) fn have_changed(&self, key: &Key) -> Result<bool, Status> {
        let recorded = self.namespace.registry(KEY)?;
        Ok(recorded.is_none_or(|recorded| recorded[..] != self.terms(key)))
    }

    /// Records the current terms durably.
    ///
    /// # Errors
    /// The status with which the metadata store failed.
    pub(crate) async fn record_terms(&self, key: &Key) -> Result<(), Status> {
        let terms = self.terms(key).to_vec().into();
        self.namespace.registry_put(net::clock::now().into(), KEY, Some(&terms)).await
    }
}
