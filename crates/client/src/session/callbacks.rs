//! The callback service of the client: receives the mgr's recalls and notifications (RFC 8881 §20), and passes them to
//! the mount through [`HeldState`].

use super::{Epoch, HeldState, lock};
use bytes::Bytes;
use net::rpc::{CallContext, Refusal, Service};
use nfs::client::callback::{Callbacks as Channel, Event, Incoming, Pending};
use nfs::client::session::Session;
use std::sync::{Arc, Mutex, PoisonError};
use wire::nfs4::*;
use xdr::{Reader, Segments};

/// Procedure numbers of the callback program: CB_NULL and CB_COMPOUND (RFC 8881 §20).
const CB_NULL: u32 = 0;
const CB_COMPOUND: u32 = 1;

/// The callback service of a client.
pub(super) struct Callbacks {
    held: Arc<dyn HeldState>,
    table: Arc<Mutex<Epoch>>,
    channel: Mutex<Option<Channel>>,
}

impl Callbacks {
    pub(super) fn new(held: Arc<dyn HeldState>, table: Arc<Mutex<Epoch>>) -> Self {
        Callbacks { held, table, channel: Mutex::default() }
    }

    /// From now on, answers callbacks on the callback channel of the new session `session`.
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
            // A newer session has replaced the session of this callback, so return an RPC error (SYSTEM_ERR) instead of
            // an NFS status.
            false => Err(Refusal::SystemErr),
        })?
    }

    fn with_channel<T>(&self, act: impl FnOnce(&mut Channel) -> T) -> Result<T, Refusal> {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        channel.as_mut().map(act).ok_or(Refusal::SystemErr)
    }

    async fn decide(&self, pending: &Pending) -> Vec<nfsstat4> {
        // Delay a recall while the client waits for the replies to its referring calls (RFC 8881 §2.10.6.3): one of
        // these replies may grant the recalled state, and the client cannot return state that it has not received.
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
            if let Event::Resized(handle) = event {
                self.held.resized(handle).await;
            }
            statuses.push(self.handle(event));
        }
        statuses
    }

    fn handle(&self, event: &Event) -> nfsstat4 {
        match event {
            Event::LayoutRecall(args) => self.held.recall_layouts(args),
            Event::Recall(args) => self.held.recall_delegation(args),
            Event::LockFree(args) => {
                self.held.lock_is_free(&args.cnla_fh);
                NFS4_OK
            }
            Event::RecallSlot(target) => {
                if let Some(session) = &mut lock(&self.table).session {
                    session.recall_slots(*target);
                }
                NFS4_OK
            }
            // Ignore CB_RECALL_ANY, because the client holds no state that it could give up. Ignore CB_NOTIFY_DEVICEID,
            // because the client requests a device address again whenever a connection to the device fails.
            Event::RecallAny(_) | Event::Devices(_) => NFS4_OK,
            Event::Resized(_) => NFS4_OK,
        }
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
