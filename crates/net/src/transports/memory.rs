//! The interface of a simulated network, which replaces TCP within one thread.
//!
//! A simulator that calls [`install`] handles every TCP connect and listen of its thread from then on. It decides about
//! delay, loss and order. No byte leaves the thread.

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
    /// Connects to a host and port for the current task group ([`crate::task::Group::current`]).
    fn connect(&self, host: &str, port: u16) -> BoxFuture<'static, io::Result<Arc<dyn Pipe>>>;

    /// Listens at a host and port.
    fn bind(&self, host: &str, port: u16) -> io::Result<Arc<dyn Port>>;

    /// Returns a number that is unique among the connections of this network.
    fn connection_id(&self) -> u64;
}

/// One end of a connection: ordered bytes in both directions. Dropping it ends the connection.
pub trait Pipe: Debug + Send + Sync {
    /// Returns the peer's address.
    fn peer(&self) -> Address;

    /// Returns at most `max` arrived bytes; empty at the end of the stream.
    fn poll_read(&self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Bytes>>;

    /// Sends as much of `parts` as fits; `WouldBlock` if nothing fits.
    fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Waits until data can be sent.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Closes both directions, so that reads and writes in progress return.
    fn shutdown(&self);
}

/// A listening port; dropping it stops listening.
pub trait Port: Debug + Send + Sync {
    /// Waits for a connection.
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Arc<dyn Pipe>>>;
}

thread_local! {
    static NETWORK: RefCell<Option<Arc<dyn Network>>> = const { RefCell::new(None) };
}

/// Makes `network` handle the connections of this thread; `None` restores TCP.
pub fn install(network: Option<Arc<dyn Network>>) {
    NETWORK.set(network);
}

/// Returns the network installed in this thread.
pub(crate) fn installed() -> Option<Arc<dyn Network>> {
    NETWORK.with_borrow(Clone::clone)
}
