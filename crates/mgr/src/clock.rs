//! The time of day as a `Timestamp`, for the namespace and the NFS server.

use types::Timestamp;

pub(crate) fn now() -> Timestamp {
    net::clock::now().into()
}
