//! The callback service of the client: handles recalls of layouts and delegations by the mgr (RFC 8881 §20.2, §20.3).

use super::{Epoch, lock};
use crate::mount::Inodes;
use bytes::Bytes;
use layout::kinds::KindId;
use net::rpc::{CallContext, Refusal, Service};
use nfs::client::callback::{Callbacks as Channel, Event, Incoming, Pending};
use nfs::client::session::Session;
use std::sync::{Arc, Mutex, PoisonError};
use wire::nfs4::*;
use xdr::{Reader, Segments};

/// CB_NULL and CB_COMPOUND (RFC 8881 §20).
const CB_NULL: u32 = 0;
const CB_COMPOUND: u32 = 1;

/// The state of the callback service.
pub(super) struct Callbacks {
    inodes: Arc<Inodes>,
    table: Arc<Mutex<Epoch>>,
    channel: Mutex<Option<Channel>>,
}

impl Callbacks {
    pub(super) fn new(inodes: Arc<Inodes>, table: Arc<Mutex<Epoch>>) -> Self {
        Callbacks { inodes, table, channel: Mutex::default() }
    }

    /// Switches to the callback channel of a new session.
    pub(super) fn begin_session(&self, session: &Session) {
        let channel = session.back().map(|back| Channel::new(session.id(), back));
        *self.channel.lock().unwrap_or_else(PoisonError::into_inner) = channel;
    }

    async fn compound(&self, body: Reader) -> Result<Segments, Refusal> {
        let received = self.with_channel(|channel| channel.receive(body.rest()))??;
        let pending = match received {
            Incoming::Reply(reply) => return Ok(reply),
            Incoming::Pending(pending) => pending,
        };
        let statuses = self.decide(&pending).await;
        self.with_channel(|channel| match channel.has_received(&pending) {
            true => Ok(channel.answer(pending, &statuses)),
            // Its session is gone.
            false => Err(Refusal::SystemErr),
        })?
    }

    fn with_channel<T>(&self, act: impl FnOnce(&mut Channel) -> T) -> Result<T, Refusal> {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        channel.as_mut().map(act).ok_or(Refusal::SystemErr)
    }

    async fn decide(&self, pending: &Pending) -> Vec<nfsstat4> {
        // The client cannot return a layout whose grant it has not received yet (§2.10.6.3).
        let outstanding = {
            let table = lock(&self.table);
            let calls = pending.referring.iter().flat_map(|list| &list.rcl_referring_calls);
            table.session.as_ref().is_some_and(|session| calls.into_iter().any(|call| session.is_outstanding(call)))
        };
        if outstanding {
            return vec![NFS4ERR_DELAY; pending.events.len()];
        }
        let mut statuses = Vec::with_capacity(pending.events.len());
        for event in &pending.events {
            if let Event::Resized(handle) = event
                && let Some(inode) = self.inodes.by_handle(handle)
            {
                inode.resized().await;
            }
            statuses.push(self.handle(event));
        }
        statuses
    }

    fn handle(&self, event: &Event) -> nfsstat4 {
        match event {
            Event::LayoutRecall(args) => self.recall(args),
            Event::Recall(args) => self.recall_delegation(args),
            Event::LockFree(args) => {
                if let Some(inode) = self.inodes.by_handle(&args.cnla_fh) {
                    inode.lock_is_free();
                }
                NFS4_OK
            }
            Event::RecallSlot(target) => {
                if let Some(session) = &mut lock(&self.table).session {
                    session.recall_slots(*target);
                }
                NFS4_OK
            }
            // The client holds nothing that it could spare, and asks for addresses again whenever one fails.
            Event::RecallAny(_) | Event::Devices(_) => NFS4_OK,
            Event::Resized(_) => NFS4_OK,
        }
    }

    /// Begins to return a delegation. One that this client does not know may be in an answer that is still on its way:
    /// the mgr then recalls it again. If no answer is on its way, the opening program was gone when the answer arrived,
    /// and the delegation is returned at once.
    fn recall_delegation(&self, args: &CB_RECALL4args) -> nfsstat4 {
        let CB_RECALL4args { stateid, fh, .. } = args;
        // Checked first: a later answer does not grant what is recalled already, and an earlier one is found below.
        let all_answered = self.inodes.names.are_opens_answered();
        let leaves = || self.inodes.leaving.recall(stateid);
        let is_known = self.inodes.names.recall(stateid)
            || leaves()
            || self.inodes.by_handle(fh).is_some_and(|inode| inode.recall_delegation(*stateid))
            // A close may have moved it there since.
            || leaves();
        match is_known {
            false if !all_answered => return NFS4ERR_BAD_STATEID,
            false => self.inodes.names.give_back_unknown(fh, *stateid),
            true => {}
        }
        NFS4_OK
    }

    /// Begins to return layouts.
    fn recall(&self, args: &CB_LAYOUTRECALL4args) -> nfsstat4 {
        if KindId::from_number(args.clora_type).is_none() {
            return NFS4ERR_NOMATCHING_LAYOUT;
        }
        let recalled = match &args.clora_recall {
            layoutrecall4::LAYOUTRECALL4_FILE(file) => {
                let inode = self.inodes.by_handle(&file.lor_fh);
                inode.inspect(|inode| inode.recall_layout(args.clora_type, file.lor_stateid)).is_some()
            }
            layoutrecall4::LAYOUTRECALL4_FSID(_) | layoutrecall4::LAYOUTRECALL4_ALL => {
                self.inodes.all().iter().filter(|inode| inode.recall_any_layout()).count() > 0
            }
        };
        if recalled { NFS4_OK } else { NFS4ERR_NOMATCHING_LAYOUT }
    }
}

impl Service for Callbacks {
    async fn call(&self, context: CallContext, body: Reader) -> Result<Segments, Refusal> {
        match (context.header.program, context.header.procedure) {
            (NFS4_CALLBACK, CB_NULL) => Ok(Segments::from(Bytes::new())),
            (NFS4_CALLBACK, CB_COMPOUND) => self.compound(body).await,
            (NFS4_CALLBACK, _) => Err(Refusal::ProcUnavail),
            _ => Err(Refusal::ProgUnavail),
        }
    }
}
