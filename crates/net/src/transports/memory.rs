//! The interface between this crate and a simulated network, which replaces TCP in one thread.
//!
//! After a simulator has called [`install`], all connections and listeners of this thread belong to the simulated
//! network. The network decides about delays, losses and the order of messages. No byte leaves the thread.

use crate::Address;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::cell::RefCell;
use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::{Context, Poll};

/// A simulated network, for the tasks of one thread.
pub trait Network: Send + Sync + 'static {
    /// Connects the current task group ([`crate::task::Group::current`]) to a host and port.
    fn connect(&self, host: &str, port: u16) -> BoxFuture<'static, io::Result<Arc<dyn Pipe>>>;

    /// Listens at a host and port of the simulated network.
    fn bind(&self, host: &str, port: u16) -> io::Result<Arc<dyn Port>>;

    /// Returns a new connection number, which no other connection of this network has.
    fn connection_id(&self) -> u64;
}

/// One end of a simulated connection, which carries ordered bytes in both directions. Dropping this end closes the
/// connection.
pub trait Pipe: Debug + Send + Sync {
    /// Returns the address of the peer.
    fn peer(&self) -> Address;

    /// Returns at most `max` bytes that have arrived; returns an empty slice at the end of the stream.
    fn poll_read(&self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Bytes>>;

    /// Sends as many bytes of `parts` as the connection accepts; returns `WouldBlock` if the connection accepts no
    /// bytes.
    fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Waits until the connection accepts data.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Closes the connection in both directions, so that waiting reads and writes return.
    fn shutdown(&self);
}

/// A listening port of the simulated network. Dropping the listener closes the port.
pub trait Port: Debug + Send + Sync {
    /// Waits for a connection and accepts it.
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Arc<dyn Pipe>>>;
}

thread_local! {
    static NETWORK: RefCell<Option<Arc<dyn Network>>> = const { RefCell::new(None) };
}

/// Makes `network` execute the connects and listens of this thread. `None` restores TCP.
pub fn install(network: Option<Arc<dyn Network>>) {
    NETWORK.set(network);
}

/// Returns the network that is installed in this thread; `None` outside a simulator.
pub(crate) fn installed() -> Option<Arc<dyn Network>> {
    NETWORK.with_borrow(Clone::clone)
}
