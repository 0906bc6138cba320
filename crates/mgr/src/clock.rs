//! The time of day, as the namespace and the NFS server take it.

use types::Timestamp;

/// Returns the present time.
pub(crate) fn now() -> Timestamp {
    net::clock::now().into()
}
