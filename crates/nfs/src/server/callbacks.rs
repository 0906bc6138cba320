//! The door to the backchannel: calls to clients, and waiting.

use crate::state::ConnectionId;
use bytes::Bytes;
use std::future::Future;
use std::time::Duration;
use wire::nfs4::callback_sec_parms4;
use xdr::Segments;

/// The callback was not answered: the connection is gone, or took too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the client did not answer the callback")]
pub struct Lost;

/// Where a callback goes and under which name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallbackPath {
    /// The connection to send it on.
    pub connection: ConnectionId,
    /// RPC program; its version is 1 and the procedure `CB_COMPOUND`.
    pub program: u32,
    /// How the client wants it authenticated; AUTH_NONE without a wish that can be met.
    pub security: Option<callback_sec_parms4>,
}

/// The way to clients, and the passing of time while the server waits for them.
pub trait Callbacks: Send + Sync + 'static {
    /// Sends the arguments of CB_COMPOUND and waits for its results, without RPC headers both, for a bounded time.
    fn call(&self, path: CallbackPath, arguments: Segments) -> impl Future<Output = Result<Bytes, Lost>> + Send;

    /// Waits for about so long.
    fn pause(&self, time: Duration) -> impl Future<Output = ()> + Send;
}
