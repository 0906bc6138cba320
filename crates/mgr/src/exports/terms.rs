//! Whether exports let others in than at the start before, or on other terms: what clients were given then is worth nothing any more.

use super::Exports;
use std::fmt::Write;
use types::Status;
use wire::native::Key;

/// The key of the record in the registry.
const KEY: &[u8] = b"mgr/export-terms";

impl Exports {
    /// A number for who may do what in these exports; other ones have another number.
    fn terms(&self, key: &Key) -> [u8; 16] {
        let mut text = String::from("exports");
        for rule in &self.rules {
            // Writing to a string never fails.
            let _ = write!(text, "{:?} {:?} {} {:?};", rule.path, rule.clients, rule.privileged_ports, rule.terms);
        }
        key.derived_id(text.as_bytes())
    }

    /// Whether they are other ones than those on record.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn have_changed(&self, key: &Key) -> Result<bool, Status> {
        let recorded = self.namespace.registry(KEY)?;
        Ok(recorded.is_none_or(|recorded| recorded[..] != self.terms(key)))
    }

    /// Has them on record as they are.
    ///
    /// # Errors
    /// The store cannot be written.
    pub(crate) async fn record_terms(&self, key: &Key) -> Result<(), Status> {
        let terms = self.terms(key).to_vec().into();
        self.namespace.registry_put(net::clock::now().into(), KEY, Some(&terms)).await
    }
}
