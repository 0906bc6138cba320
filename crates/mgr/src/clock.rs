//! The time of day as a `Timestamp`, for the namespace and the NFS server.

use types::Timestamp;

/// Returns the current time.
pub(crate) fn now() -> Timestamp {
    net::clock::now().into()
}
