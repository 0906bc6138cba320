//! The transport trait: carries requests from the kernel to the mount, and replies back to the kernel.

use crate::reply::Reply;
use std::io;

/// A channel to and from the kernel. Each request has a *ticket*: a number that tells the transport where it has to put
/// the reply. Any thread may reply at any time, in any order.
pub(crate) trait Transport: Send + Sync {
    /// Sends the reply to a request.
    fn answer(&self, ticket: u64, unique: u64, reply: Reply);

    /// Returns the flags that this transport requests in INIT, in addition to the flags that the mount requests with
    /// every transport ([`crate::abi::init`]).
    fn wants(&self) -> u64 {
        0
    }

    /// Receives the flags that INIT has negotiated, before the mount sends the reply to INIT.
    fn agreed(&self, _flags: u64) {}

    /// Returns whether the kernel may fail to report a signal that arrives while it delivers a request.
    fn may_lose_interrupts(&self) -> bool {
        false
    }

    /// Sends a notification to the kernel ([`crate::abi::notify`]).
    fn notify(&self, code: i32, body: &[u8]) -> io::Result<()>;
}
