//! Callbacks of the mgr: layouts asked back (RFC 8881 §20.3), answered over the connection of the session.

use crate::inode::Inode;
use crate::mount::Inodes;
use bytes::Bytes;
use layout::kinds::KindId;
use net::rpc::{CallContext, Refusal, Service};
use std::sync::{Arc, Mutex, PoisonError};
use wire::nfs4::compound::{CbArgsHeader, Ops, OpsWriter, cb_opnum};
use wire::nfs4::*;
use xdr::{Reader, Segments, Xdr};

/// CB_NULL and CB_COMPOUND (RFC 8881 §20).
const CB_NULL: u32 = 0;
const CB_COMPOUND: u32 = 1;

/// Answers callbacks.
pub(super) struct Callbacks {
    inodes: Arc<Inodes>,
    session: Mutex<sessionid4>,
}

impl Callbacks {
    pub(super) fn new(inodes: Arc<Inodes>) -> Self {
        Callbacks { inodes, session: Mutex::new([0; 16]) }
    }

    /// Callbacks come in this session from now on.
    pub(super) fn begin_session(&self, session: sessionid4) {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = session;
    }

    fn compound(&self, mut body: Reader) -> Result<Segments, Refusal> {
        let header = CbArgsHeader::decode(&mut body)?;
        let mut ops = Ops::new(header.numops, body);
        let mut out = OpsWriter::new();
        let mut status = NFS4_OK;
        let mut first = true;
        while status == NFS4_OK
            && let Some(number) = ops.next_number()?
        {
            status = match cb_opnum(number) {
                Some(OP_CB_SEQUENCE) if first => self.sequence(&ops.body()?, &mut out),
                _ if first => refuse(&mut out, OP_CB_SEQUENCE, NFS4ERR_OP_NOT_IN_SESSION),
                Some(OP_CB_LAYOUTRECALL) => {
                    let status = self.recall(&ops.body()?);
                    refuse(&mut out, OP_CB_LAYOUTRECALL, status)
                }
                Some(op) => refuse(&mut out, op, NFS4ERR_NOTSUPP),
                None => refuse(&mut out, OP_CB_ILLEGAL, NFS4ERR_OP_ILLEGAL),
            };
            first = false;
        }
        Ok(out.into_res(status, header.tag))
    }

    fn sequence(&self, args: &CB_SEQUENCE4args, out: &mut OpsWriter) -> nfsstat4 {
        if args.csa_sessionid != *self.session.lock().unwrap_or_else(PoisonError::into_inner) {
            return refuse(out, OP_CB_SEQUENCE, NFS4ERR_BADSESSION);
        }
        let got = CB_SEQUENCE4resok {
            csr_sessionid: args.csa_sessionid,
            csr_sequenceid: args.csa_sequenceid,
            csr_slotid: args.csa_slotid,
            csr_highest_slotid: args.csa_highest_slotid,
            csr_target_highest_slotid: args.csa_highest_slotid,
        };
        out.op(OP_CB_SEQUENCE, &CB_SEQUENCE4res::NFS4_OK(got));
        NFS4_OK
    }

    /// Begins to give layouts back. Doing this twice is as good as once, so that replays need no memory.
    fn recall(&self, args: &CB_LAYOUTRECALL4args) -> nfsstat4 {
        if KindId::from_number(args.clora_type).is_none() {
            return NFS4ERR_NOMATCHING_LAYOUT;
        }
        let wanted: Vec<Arc<Inode>> = match &args.clora_recall {
            layoutrecall4::LAYOUTRECALL4_FILE(file) => self.inodes.by_handle(&file.lor_fh).into_iter().collect(),
            layoutrecall4::LAYOUTRECALL4_FSID(_) | layoutrecall4::LAYOUTRECALL4_ALL => self.inodes.all(),
        };
        if wanted.is_empty() {
            return NFS4ERR_NOMATCHING_LAYOUT;
        }
        for inode in wanted {
            tokio::spawn(async move {
                if let Err(error) = inode.give_back().await {
                    // Whoever writes to the file learns of it; here only the layout matters.
                    tracing::debug!(file = %inode.node.id, "giving back a layout: {error}");
                    inode.fail(error);
                }
            });
        }
        NFS4_OK
    }
}

/// Appends a result that is a status and nothing else.
fn refuse(out: &mut OpsWriter, op: nfs_cb_opnum4, status: nfsstat4) -> nfsstat4 {
    out.op(op, &status);
    status
}

impl Service for Callbacks {
    async fn call(&self, context: CallContext, body: Reader) -> Result<Segments, Refusal> {
        match (context.header.program, context.header.procedure) {
            (NFS4_CALLBACK, CB_NULL) => Ok(Segments::from(Bytes::new())),
            (NFS4_CALLBACK, CB_COMPOUND) => self.compound(body),
            (NFS4_CALLBACK, _) => Err(Refusal::ProcUnavail),
            _ => Err(Refusal::ProgUnavail),
        }
    }
}
