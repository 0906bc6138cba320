//! The transports that carry FUSE requests: the device `/dev/fuse`, and io_uring.

pub(crate) mod device;
pub(crate) mod uring;
