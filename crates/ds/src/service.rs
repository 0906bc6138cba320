//! The RPC service on the TCP port of a data server: NFSv4.1 and NFSv4.2.

use crate::DataServer;
use bytes::Bytes;
use net::rpc::{CallContext, Refusal, Service};
use nfs::exports::View;
use nfs::server::{Call, CallbackPath, Callbacks, Lost, reply_bound};
use nfs::state::ConnectionId;
use std::sync::Arc;
use std::time::Duration;
use types::limits;
use wire::nfs4::NFS4_PROGRAM;
use wire::rpc::{AUTH_TOOWEAK, CallHeader};
use xdr::{Reader, Segments};

/// Version number of the NFS program (RFC 8881 §16).
const NFS_V4: u32 = 4;
const NFSPROC4_NULL: u32 = 0;
const NFSPROC4_COMPOUND: u32 = 1;

/// The callback path of a data server. A data server grants no delegations or layouts, so it never needs a callback,
/// and every call fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoCallbacks;

impl Callbacks for NoCallbacks {
    async fn call(&self, _: CallbackPath, _: Segments) -> Result<Bytes, Lost> {
        Err(Lost)
    }

    async fn pause(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// The RPC dispatcher: passes NFS calls to the NFS server and refuses calls of other programs.
pub(crate) struct Gateway {
    pub(crate) server: Arc<DataServer>,
}

impl Service for Gateway {
    async fn call(&self, context: CallContext, body: Reader) -> Result<Segments, Refusal> {
        let header = &context.header;
        match (header.program, header.version, header.procedure) {
            (NFS4_PROGRAM, NFS_V4, NFSPROC4_NULL) => Ok(Segments::default()),
            (NFS4_PROGRAM, NFS_V4, NFSPROC4_COMPOUND) => {
                let (principal, cred) = Call::identity(&header.cred).ok_or(Refusal::Auth(AUTH_TOOWEAK))?;
                let random = getrandom::u64().map_err(|_| Refusal::SystemErr)?;
                let (connection, message_len) = (ConnectionId(context.peer.id()), context.message_len);
                let (body, now) = (body.rest(), crate::now());
                let origin = context.peer.machine();
                let view = View::ALL;
                let call = Call { connection, principal, origin, cred, view, body, message_len, now, random };
                Ok(self.server.compound(call).await?)
            }
            (NFS4_PROGRAM, NFS_V4, _) => Err(Refusal::ProcUnavail),
            (NFS4_PROGRAM, ..) => Err(Refusal::ProgMismatch { low: NFS_V4, high: NFS_V4 }),
            _ => Err(Refusal::ProgUnavail),
        }
    }

    fn reply_bound(&self, header: &CallHeader, body: &Reader) -> usize {
        match (header.program, header.procedure) {
            (NFS4_PROGRAM, NFSPROC4_COMPOUND) => reply_bound(&body.clone().rest()),
            _ => limits::REPLY_SMALL,
        }
    }

    fn disconnected(&self, connection: u64) {
        self.server.connection_lost(ConnectionId(connection));
    }
}
