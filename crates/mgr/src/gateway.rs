//! The RPC service on the mgr's port: it dispatches requests to the NFS server and to the admin program.

use crate::backchannel::Backchannel;
use crate::background::scrub;
use crate::caller::Seen;
use crate::check::Checks;
use crate::clock::now;
use crate::dumps::Dumps;
use crate::fs::NfsServer;
use crate::local_socket_hint::LocalSocket;
use crate::random::Random;
use crate::refused_clients::{RefusedClients, RefusedRequest};
use crate::{caller, status};
use net::Address;
use net::rpc::{CallContext, Refusal, Service};
use nfs::exports::View;
use nfs::server::{Call, reply_bound};
use nfs::state::ConnectionId;
use std::sync::Arc;
use tokio::time::Instant;
use types::{FileId, limits};
use wire::admin::{
    self, CheckArgs, CheckReply, DumpArgs, DumpReply, LocalSocketArgs, PlacementArgs, ScrubArgs, ScrubReply, Status,
};
use wire::nfs4::NFS4_PROGRAM;
use wire::rpc::{AUTH_REJECTEDCRED, AUTH_TOOWEAK, CallHeader};
use xdr::{Reader, Segments, Xdr};

/// Version and procedures of the NFS program (RFC 8881 §16).
const NFS_V4: u32 = 4;
const NFSPROC4_NULL: u32 = 0;
const NFSPROC4_COMPOUND: u32 = 1;

/// The error text for callers that may neither check nor dump the file system.
const NOT_ALLOWED: &str = "only the superuser and the owner of the root directory may check or dump a file system, from where exports let \
     them; root on the machine of the mgr always may";

/// The service that executes every RPC request to the mgr and returns the reply.
pub(crate) struct Gateway {
    pub(crate) server: Arc<NfsServer>,
    pub(crate) backchannel: Backchannel,
    pub(crate) network: net::Counters,
    pub(crate) started: Instant,
    pub(crate) checks: Checks,
    pub(crate) dumps: Dumps,
    pub(crate) mismatches: RefusedClients,
    pub(crate) local_socket: LocalSocket,
    pub(crate) random: Random,
}

impl Gateway {
    async fn nfs(&self, context: CallContext, body: Reader) -> Result<Segments, Refusal> {
        match (context.header.version, context.header.procedure) {
            (NFS_V4, NFSPROC4_NULL) => Ok(Segments::default()),
            (NFS_V4, NFSPROC4_COMPOUND) => {
                let peer = &context.peer;
                let (principal, cred) =
                    caller::identity(peer, &context.header.cred).ok_or(Refusal::Auth(AUTH_TOOWEAK))?;
                let (seen, exports) = (Seen::of(peer), &self.server.fs().0.exports);
                let view = exports.view(seen);
                // The mgr keeps no state for clients that see no export, so it refuses them before the NFS server sees
                // the request.
                if view == View::NONE && exports.are_for_privileged_ports(seen) {
                    self.mismatches.log(RefusedRequest::Port, peer.peer(), Instant::now());
                    return Err(Refusal::Auth(AUTH_TOOWEAK));
                } else if view == View::NONE {
                    return Err(Refusal::Auth(AUTH_REJECTEDCRED));
                }
                self.backchannel.seen(&context.peer);
                self.server.fs().0.waited(context.arrived);
                if let Some(request) = RefusedRequest::by(body.clone()) {
                    self.mismatches.log(request, context.peer.peer(), Instant::now());
                }
                let random = self.random.next().map_err(|e| {
                    tracing::error!("the operating system returned no random numbers: {e}");
                    Refusal::SystemErr
                })?;
                let call = Call {
                    connection: ConnectionId(context.peer.id()),
                    principal,
                    origin: peer.machine(),
                    cred,
                    view,
                    body: body.rest(),
                    message_len: context.message_len,
                    now: now(),
                    random,
                };
                Ok(self.server.compound(call).await?)
            }
            (NFS_V4, _) => Err(Refusal::ProcUnavail),
            (version, _) => {
                self.mismatches.log(RefusedRequest::Version(version), context.peer.peer(), Instant::now());
                Err(Refusal::ProgMismatch { low: NFS_V4, high: NFS_V4 })
            }
        }
    }

    /// Returns whether the caller may check all files. Over the Unix socket, the superuser of this host may do so,
    /// whatever the exports allow. All other callers must be the superuser or the owner of the root directory, and must
    /// see an export of the root directory.
    fn may_check(&self, context: &CallContext) -> bool {
        if matches!(context.peer.peer(), Address::Unix(_)) && context.peer.peer_user() == Some(0) {
            return true;
        }
        let Some((_, cred)) = caller::identity(&context.peer, &context.header.cred) else { return false };
        let exports = &self.server.fs().0.exports;
        // A caller that does not see the export of the root directory may not check the file system. The squash setting
        // of this export applies to the caller.
        let Some(rule) = exports.of_everything(exports.view(Seen::of(&context.peer))) else { return false };
        let cred = rule.terms.squash.apply(&cred).unwrap_or(cred);
        let owner = self.server.fs().0.namespace.getattr(FileId::ROOT).map(|root| root.uid);
        cred.is_root() || owner == Ok(cred.uid)
    }

    /// Returns whether the caller may see the status of the file system. Clients that see an export may, and so may
    /// root of this host.
    fn may_look(&self, context: &CallContext) -> bool {
        self.may_check(context) || self.server.fs().0.exports.view(Seen::of(&context.peer)) != View::NONE
    }

    async fn admin(&self, context: &CallContext, mut body: Reader) -> Result<Segments, Refusal> {
        match (context.header.version, context.header.procedure) {
            (admin::VERSION, admin::NULL) => Ok(Segments::default()),
            (admin::VERSION, admin::STATUS) => match self.may_look(context) {
                true => Ok(status::of(self).to_bytes().into()),
                false => Ok(status::for_strangers().to_bytes().into()),
            },
            (admin::VERSION, admin::CHECK) => {
                let args = CheckArgs::decode(&mut body).map_err(|_| Refusal::GarbageArgs)?;
                body.finish().map_err(|_| Refusal::GarbageArgs)?;
                let reply = match self.may_check(context) {
                    true => self.checks.call(&self.server, args).await,
                    false => CheckReply { refused: Some(NOT_ALLOWED.to_owned()), ..CheckReply::default() },
                };
                Ok(reply.to_bytes().into())
            }
            (admin::VERSION, admin::SCRUB) => {
                let args = ScrubArgs::decode(&mut body).map_err(|_| Refusal::GarbageArgs)?;
                body.finish().map_err(|_| Refusal::GarbageArgs)?;
                let reply = match self.may_check(context) {
                    true => scrub::answer(&self.server.fs().0, args).await.map_err(|e| {
                        tracing::error!("cannot report the state of the scrub: {e}");
                        Refusal::SystemErr
                    })?,
                    false => ScrubReply { refused: Some(NOT_ALLOWED.to_owned()), ..ScrubReply::default() },
                };
                Ok(reply.to_bytes().into())
            }
            (admin::VERSION, admin::DUMP) => {
                let args = DumpArgs::decode(&mut body).map_err(|_| Refusal::GarbageArgs)?;
                body.finish().map_err(|_| Refusal::GarbageArgs)?;
                let reply = match self.may_check(context) {
                    true => self.dumps.call(&self.server.fs().0, args).await,
                    false => DumpReply { refused: Some(NOT_ALLOWED.to_owned()), ..DumpReply::default() },
                };
                Ok(reply.to_bytes().into())
            }
            (admin::VERSION, admin::LOCAL_SOCKET) => {
                let args = LocalSocketArgs::decode(&mut body).map_err(|_| Refusal::GarbageArgs)?;
                body.finish().map_err(|_| Refusal::GarbageArgs)?;
                let exports = &self.server.fs().0.exports;
                Ok(self.local_socket.answer(&args, &context.peer, exports).to_bytes().into())
            }
            (admin::VERSION, admin::LOCAL_SOCKET_TO_ADMINISTER) => {
                let args = LocalSocketArgs::decode(&mut body).map_err(|_| Refusal::GarbageArgs)?;
                body.finish().map_err(|_| Refusal::GarbageArgs)?;
                Ok(self.local_socket.answer_to_administer(&args, context.peer.peer()).to_bytes().into())
            }
            (admin::VERSION, admin::PLACEMENT) => {
                let args = PlacementArgs::decode(&mut body).map_err(|_| Refusal::GarbageArgs)?;
                body.finish().map_err(|_| Refusal::GarbageArgs)?;
                let placement = if self.may_look(context) {
                    status::placement(self, FileId(args.inode))
                } else {
                    Status::default()
                };
                Ok(placement.to_bytes().into())
            }
            (admin::VERSION, _) => Err(Refusal::ProcUnavail),
            _ => Err(Refusal::ProgMismatch { low: admin::VERSION, high: admin::VERSION }),
        }
    }
}

impl Service for Gateway {
    async fn call(&self, context: CallContext, body: Reader) -> Result<Segments, Refusal> {
        match context.header.program {
            NFS4_PROGRAM => self.nfs(context, body).await,
            admin::PROGRAM => self.admin(&context, body).await,
            _ => Err(Refusal::ProgUnavail),
        }
    }

    fn reply_bound(&self, header: &CallHeader, body: &Reader) -> usize {
        match (header.program, header.procedure) {
            (NFS4_PROGRAM, NFSPROC4_COMPOUND) => reply_bound(&body.clone().rest()),
            (admin::PROGRAM, admin::LOCAL_SOCKET | admin::LOCAL_SOCKET_TO_ADMINISTER) => limits::REPLY_SMALL,
            // A reply of the admin program lists daemons, counters or findings, so let it be as long as one RPC record.
            (admin::PROGRAM, _) => limits::RECORD_MAX,
            _ => limits::REPLY_SMALL,
        }
    }

    fn disconnected(&self, connection: u64) {
        self.backchannel.lost(connection);
        self.server.connection_lost(ConnectionId(connection));
    }
}
