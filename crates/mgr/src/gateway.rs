//! Everything that is served on the mgr's port: NFS and the admin program.

use crate::backchannel::Backchannel;
use crate::fs::Files;
use crate::room::now;
use crate::status;
use net::rpc::{CallContext, Refusal, Service};
use nfs::server::{Call, Server};
use nfs::state::ConnectionId;
use std::sync::Arc;
use std::time::Instant;
use wire::admin;
use wire::nfs4::NFS4_PROGRAM;
use wire::rpc::AUTH_TOOWEAK;
use xdr::{Reader, Segments, Xdr};

/// The NFS program's version and procedures (RFC 8881 §16).
const NFS_V4: u32 = 4;
const NFSPROC4_NULL: u32 = 0;
const NFSPROC4_COMPOUND: u32 = 1;

/// The NFS server of a mgr.
pub(crate) type NfsServer = Server<Files, Backchannel>;

/// Answers every call to the mgr.
pub(crate) struct Gateway {
    pub(crate) server: Arc<NfsServer>,
    pub(crate) backchannel: Backchannel,
    pub(crate) network: net::Counters,
    pub(crate) started: Instant,
}

impl Gateway {
    async fn nfs(&self, context: CallContext, body: Reader) -> Result<Segments, Refusal> {
        match (context.header.version, context.header.procedure) {
            (NFS_V4, NFSPROC4_NULL) => Ok(Segments::default()),
            (NFS_V4, NFSPROC4_COMPOUND) => {
                let (principal, cred) = Call::identity(&context.header.cred).ok_or(Refusal::Auth(AUTH_TOOWEAK))?;
                self.backchannel.seen(&context.peer);
                let random = getrandom::u64().map_err(|e| {
                    tracing::error!("the system gives no random numbers: {e}");
                    Refusal::SystemErr
                })?;
                let call = Call {
                    connection: ConnectionId(context.peer.id()),
                    principal,
                    cred,
                    body: body.rest(),
                    message_len: context.message_len,
                    now: now(),
                    random,
                };
                Ok(self.server.compound(call).await?)
            }
            (NFS_V4, _) => Err(Refusal::ProcUnavail),
            _ => Err(Refusal::ProgMismatch { low: NFS_V4, high: NFS_V4 }),
        }
    }

    fn admin(&self, context: &CallContext) -> Result<Segments, Refusal> {
        match (context.header.version, context.header.procedure) {
            (admin::VERSION, admin::NULL) => Ok(Segments::default()),
            (admin::VERSION, admin::STATUS) => Ok(status::of(self).to_bytes().into()),
            (admin::VERSION, _) => Err(Refusal::ProcUnavail),
            _ => Err(Refusal::ProgMismatch { low: admin::VERSION, high: admin::VERSION }),
        }
    }
}

impl Service for Gateway {
    async fn call(&self, context: CallContext, body: Reader) -> Result<Segments, Refusal> {
        match context.header.program {
            NFS4_PROGRAM => self.nfs(context, body).await,
            admin::PROGRAM => self.admin(&context),
            _ => Err(Refusal::ProgUnavail),
        }
    }

    fn disconnected(&self, connection: u64) {
        self.backchannel.lost(connection);
        self.server.connection_lost(ConnectionId(connection));
    }
}
