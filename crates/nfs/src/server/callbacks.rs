//! The trait [`Callbacks`]: how the server calls clients on the backchannel and waits.

use crate::state::ConnectionId;
use bytes::Bytes;
use std::future::Future;
use std::time::Duration;
use wire::nfs4::callback_sec_parms4;
use xdr::Segments;

/// The callback got no answer: the connection was lost, or the answer took too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the client did not answer the callback")]
pub struct Lost;

/// The connection, program and authentication of a callback.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallbackPath {
    /// The connection to send it on.
    pub connection: ConnectionId,
    /// RPC program; its version is 1 and the procedure `CB_COMPOUND`.
    pub program: u32,
    /// The authentication that the client wants; AUTH_NONE if the server supports none of the client's list.
    pub security: Option<callback_sec_parms4>,
}

/// Calls to clients, and pauses while the server waits for them.
pub trait Callbacks: Send + Sync + 'static {
    /// Sends the arguments of CB_COMPOUND and waits for its results for a bounded time; both are without RPC headers.
    fn call(&self, path: CallbackPath, arguments: Segments) -> impl Future<Output = Result<Bytes, Lost>> + Send;

    /// Waits for about this time.
    fn pause(&self, time: Duration) -> impl Future<Output = ()> + Send;
}
