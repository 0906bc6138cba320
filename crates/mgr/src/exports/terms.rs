//! The durable record of the exports' terms: if they have changed since the last start, the rights that clients got
//! before are ended.

use super::Exports;
use std::fmt::Write;
use types::Status;
use wire::native::Key;

/// The key of the record in the registry.
const KEY: &[u8] = b"mgr/export-terms";

impl Exports {
    /// Returns a number derived from the clients and terms of all exports; different terms give a different number.
    fn terms(&self, key: &Key) -> [u8; 16] {
        let mut text = String::from("exports");
        for rule in &self.rules {
            // Writing to a string never fails.
            let _ = write!(text, "{:?} {:?} {} {:?};", rule.path, rule.clients, rule.privileged_ports, rule.terms);
        }
        key.derived_id(text.as_bytes())
    }

    /// Returns whether the terms differ from the recorded ones.
    ///
    /// # Errors
    /// The store could not be read.
    pub(crate) fn have_changed(&self, key: &Key) -> Result<bool, Status> {
        let recorded = self.namespace.registry(KEY)?;
        Ok(recorded.is_none_or(|recorded| recorded[..] != self.terms(key)))
    }

    /// Records the current terms.
    ///
    /// # Errors
    /// The store could not be written.
    pub(crate) async fn record_terms(&self, key: &Key) -> Result<(), Status> {
        let terms = self.terms(key).to_vec().into();
        self.namespace.registry_put(net::clock::now().into(), KEY, Some(&terms)).await
    }
}
