//! A network inside one thread: what a simulator puts in the place of TCP.
//!
//! Whoever calls [`install`] answers every TCP connect and listen of its thread from then on, and decides about delay,
//! loss and order. No byte leaves the thread.

use crate::Address;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::cell::RefCell;
use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::{Context, Poll};

/// A network that exists in one thread only.
pub trait Network: Send + Sync + 'static {
    /// Connects to a host and port on behalf of the group of tasks that asks ([`crate::task::Group::current`]).
    fn connect(&self, host: &str, port: u16) -> BoxFuture<'static, io::Result<Arc<dyn Pipe>>>;

    /// Listens at a host and port.
    fn bind(&self, host: &str, port: u16) -> io::Result<Arc<dyn Port>>;

    /// A number that no other connection of this network has.
    fn connection_id(&self) -> u64;
}

/// One end of a connection: bytes in order, in both directions. It ends when it is dropped.
pub trait Pipe: Debug + Send + Sync {
    /// The peer's address.
    fn peer(&self) -> Address;

    /// Takes at most `max` bytes that have arrived; none at the end of the stream.
    fn poll_read(&self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Bytes>>;

    /// Sends as much of `parts` as there is room for; `WouldBlock` when there is none.
    fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Waits for room.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Ends both directions, so that reads and writes in progress return.
    fn shutdown(&self);
}

/// A listening port; nobody listens there any more when it is dropped.
pub trait Port: Debug + Send + Sync {
    /// Waits for a peer.
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Arc<dyn Pipe>>>;
}

thread_local! {
    static NETWORK: RefCell<Option<Arc<dyn Network>>> = const { RefCell::new(None) };
}

/// Answers this thread's connections by `network` from now on, or by TCP again.
pub fn install(network: Option<Arc<dyn Network>>) {
    NETWORK.set(network);
}

/// The network installed in this thread.
pub(crate) fn installed() -> Option<Arc<dyn Network>> {
    NETWORK.with_borrow(Clone::clone)
}
