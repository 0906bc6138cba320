//! The trait [`Callbacks`]: the transport of callbacks to clients, and the timer of the server.

use crate::state::ConnectionId;
use bytes::Bytes;
use std::future::Future;
use std::time::Duration;
use wire::nfs4::callback_sec_parms4;
use xdr::Segments;

/// The callback got no reply, because the connection was lost or a timeout passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the client did not answer the callback")]
pub struct Lost;

/// How to reach a client for a callback: connection, RPC program and authentication.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallbackPath {
    /// The connection on which to send the callback.
    pub connection: ConnectionId,
    /// The RPC program number of the client's callback service. The version is 1 and the procedure `CB_COMPOUND`.
    pub program: u32,
    /// The authentication of the callback; AUTH_NONE if the server supports none of the methods that the client
    /// offered.
    pub security: Option<callback_sec_parms4>,
}

/// What the server needs from its runtime environment: the transport of callbacks to clients, and a timer.
pub trait Callbacks: Send + Sync + 'static {
    /// Sends a CB_COMPOUND and waits for the reply, up to a timeout. Arguments and results are without RPC headers.
    fn call(&self, path: CallbackPath, arguments: Segments) -> impl Future<Output = Result<Bytes, Lost>> + Send;

    /// Sleeps for about `time`, with random jitter.
    fn pause(&self, time: Duration) -> impl Future<Output = ()> + Send;
}
