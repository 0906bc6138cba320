//! What carries requests from the kernel and replies back to it.

use crate::dispatch::Dispatcher;
use crate::reply::Reply;
use std::io;
use std::sync::Arc;

/// A way to and from the kernel. A request comes with a *ticket*, a number of the transport's own by which it finds the
/// place for the reply; replies may come at any time, from any thread, in any order.
pub(crate) trait Transport: Send + Sync {
    /// Hands requests to the dispatcher until the file system is unmounted.
    fn serve(self: Arc<Self>, dispatcher: Arc<Dispatcher>) -> io::Result<()>;

    /// Replies to a request.
    fn answer(&self, ticket: u64, unique: u64, reply: Reply);

    /// What it asks for in INIT besides what all do ([`crate::abi::init`]).
    fn wants(&self) -> u64 {
        0
    }

    /// What the answer to INIT, which follows, agrees to.
    fn agreed(&self, _flags: u64) {}

    /// Whether the kernel may not tell of a signal that came while it handed a request over.
    fn may_lose_interrupts(&self) -> bool {
        false
    }

    /// Tells the kernel something that it did not ask for ([`crate::abi::notify`]).
    fn notify(&self, code: i32, body: &[u8]) -> io::Result<()>;
}
