//! The client's side of the backchannel: parses CB_COMPOUND, executes CB_SEQUENCE, and passes the other operations on
//! as events (RFC 8881 §2.10.6, §20).

use crate::client::slots::Ticket;
use crate::state::Principal;
use crate::state::reply_cache::{Fingerprint, ReplyCache, Verdict};
use bytes::Bytes;
use wire::nfs4::compound::{CbArgsHeader, Ops, OpsWriter, cb_opnum};
use wire::nfs4::*;
use xdr::{Malformed, Reader, Segments, Xdr};

/// The largest number of events in one callback; servers send one.
const EVENTS_MAX: usize = 64;

/// A request of the server to the client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// CB_LAYOUTRECALL (§20.3). Answer NFS4_OK if a LAYOUTRETURN will follow, NFS4ERR_NOMATCHING_LAYOUT if the client
    /// holds no such layout, NFS4ERR_DELAY if a reply that the callback refers to has not arrived yet.
    LayoutRecall(CB_LAYOUTRECALL4args),
    /// CB_RECALL (§20.2): recalls a delegation. Answer NFS4_OK if a DELEGRETURN will follow, NFS4ERR_BAD_STATEID if the
    /// client holds no such delegation.
    Recall(CB_RECALL4args),
    /// CB_RECALL_ANY (§20.6): asks the client to return state that it can spare. Answer NFS4_OK.
    RecallAny(CB_RECALL_ANY4args),
    /// CB_RECALL_SLOT (§20.8): pass `rsa_target_highest_slotid` to `Session::recall_slots`. Answer NFS4_OK.
    RecallSlot(slotid4),
    /// CB_NOTIFY_LOCK (§20.11): a lock that was denied may be free now. Answer NFS4_OK.
    LockFree(CB_NOTIFY_LOCK4args),
    /// CB_NOTIFY (§20.4) that lists no changes, in no standard: another client has set the size of this file, and waits
    /// for the answer NFS4_OK.
    Resized(nfs_fh4),
    /// CB_NOTIFY_DEVICEID (§20.12). Answer NFS4_OK.
    Devices(Vec<DeviceChange>),
}

/// A change of a device, reported in CB_NOTIFY_DEVICEID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceChange {
    /// The layout type that it belongs to.
    pub kind: layouttype4,
    /// The device.
    pub device: deviceid4,
    /// The change.
    pub how: DeviceChangeKind,
}

/// The kind of change of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceChangeKind {
    /// The device has another address; `immediate` forbids further I/O to the old address.
    Changed {
        /// `ndc_immediate`.
        immediate: bool,
    },
    /// The device is deleted; no layout refers to it.
    Deleted,
}

/// A callback whose events await the client's decision.
#[derive(Debug)]
pub struct Pending {
    /// The events in order; [`Callbacks::answer`] takes one status for each.
    pub events: Vec<Event>,
    /// The client's requests whose replies the events presuppose (§2.10.6.3). While one of them is outstanding, wait or
    /// answer NFS4ERR_DELAY to all events.
    pub referring: Vec<referring_call_list4>,
    ticket: Ticket,
    tag: Bytes,
    sequence: CB_SEQUENCE4resok,
    numbers: Vec<nfs_cb_opnum4>,
    /// The operation after the events that ends the callback with an error, if any.
    end: Option<(nfs_cb_opnum4, nfsstat4)>,
}

/// The action for a CB_COMPOUND.
#[derive(Debug)]
pub enum Incoming {
    /// Send this `CB_COMPOUND4res`.
    Reply(Segments),
    /// Decide on the events, then send the result of [`Callbacks::answer`].
    Pending(Pending),
}

/// The replier's half of the backchannel of one session.
#[derive(Clone, Debug)]
pub struct Callbacks {
    session: sessionid4,
    slots: ReplyCache,
    operations: u32,
}

impl Callbacks {
    /// Creates the backchannel of a session with its negotiated attributes.
    pub fn new(session: sessionid4, back: &channel_attrs4) -> Self {
        let slots = ReplyCache::new(back.ca_maxrequests, back.ca_maxresponsesize_cached);
        Callbacks { session, slots, operations: back.ca_maxoperations }
    }

    /// Processes the arguments of CB_COMPOUND.
    ///
    /// # Errors
    /// The bytes do not begin like a CB_COMPOUND (GARBAGE_ARGS of RPC).
    pub fn receive(&mut self, args: Bytes) -> Result<Incoming, Malformed> {
        let mut input = Reader::new(args);
        let header = CbArgsHeader::decode(&mut input)?;
        if !matches!(header.minorversion, 1 | 2) {
            let reply = OpsWriter::new().into_res(NFS4ERR_MINOR_VERS_MISMATCH, header.tag);
            return Ok(Incoming::Reply(reply));
        }
        let tag = header.tag.clone();
        Ok(self.sequence(header, input).unwrap_or_else(|(op, status)| Incoming::Reply(failure(op, status, tag))))
    }

    /// Executes CB_SEQUENCE; an error is the whole reply.
    fn sequence(&mut self, header: CbArgsHeader, input: Reader) -> Result<Incoming, (nfs_cb_opnum4, nfsstat4)> {
        let of_sequence = |status| (OP_CB_SEQUENCE, status);
        let mut ops = Ops::new(header.numops, input);
        match ops.next_number() {
            Ok(Some(number)) if number == OP_CB_SEQUENCE as u32 => {}
            Ok(Some(number)) => {
                let op = cb_opnum(number).unwrap_or(OP_CB_ILLEGAL);
                let status = if op == OP_CB_ILLEGAL { NFS4ERR_OP_ILLEGAL } else { NFS4ERR_OP_NOT_IN_SESSION };
                return Err((op, status));
            }
            _ => return Ok(Incoming::Reply(OpsWriter::new().into_res(NFS4_OK, header.tag))),
        }
        let args: CB_SEQUENCE4args = ops.body().map_err(|_| of_sequence(NFS4ERR_BADXDR))?;
        if args.csa_sessionid != self.session {
            return Err(of_sequence(NFS4ERR_BADSESSION));
        }
        let (slot, number, highest) = (args.csa_slotid, args.csa_sequenceid, args.csa_highest_slotid);
        let request = Fingerprint::new(Principal::None, &ops.input().clone().rest());
        if self.slots.judge(slot, number, highest, request).map_err(of_sequence)? == Verdict::New
            && header.numops > self.operations
        {
            return Err(of_sequence(NFS4ERR_TOO_MANY_OPS));
        }
        let verdict = self.slots.begin(slot, number, highest, args.csa_cachethis, request).map_err(of_sequence)?;
        let sequence = CB_SEQUENCE4resok {
            csr_sessionid: self.session,
            csr_sequenceid: number,
            csr_slotid: slot,
            csr_highest_slotid: self.slots.highest(),
            csr_target_highest_slotid: self.slots.target(),
        };
        match verdict {
            Verdict::Replay(bytes) => return Ok(Incoming::Reply(bytes.into())),
            Verdict::Uncached => return Ok(Incoming::Reply(uncached(sequence, ops, header.tag))),
            Verdict::New => {}
        }
        let ticket = Ticket { slot, sequence: number };
        let referring = args.csa_referring_call_lists;
        let mut pending = Pending {
            events: Vec::new(),
            referring,
            ticket,
            tag: header.tag,
            sequence,
            numbers: Vec::new(),
            end: None,
        };
        pending.read(&mut ops);
        if pending.events.is_empty() {
            return Ok(Incoming::Reply(self.answer(pending, &[])));
        }
        Ok(Incoming::Pending(pending))
    }

    /// Returns whether a callback came on this session.
    pub fn has_received(&self, pending: &Pending) -> bool {
        pending.sequence.csr_sessionid == self.session
    }

    /// Returns the reply (`CB_COMPOUND4res`) to a callback, with one status for each event; a missing status counts as
    /// NFS4ERR_SERVERFAULT. The reply ends after the first status other than NFS4_OK.
    pub fn answer(&mut self, pending: Pending, statuses: &[nfsstat4]) -> Segments {
        let mut out = OpsWriter::new();
        out.op(OP_CB_SEQUENCE, &CB_SEQUENCE4res::NFS4_OK(pending.sequence));
        let given = statuses.iter().copied().chain(std::iter::repeat(NFS4ERR_SERVERFAULT));
        let events = pending.numbers.into_iter().zip(given);
        let mut last = NFS4_OK;
        for (op, status) in events.chain(pending.end) {
            out.op(op, &status);
            last = status;
            if status != NFS4_OK {
                break;
            }
        }
        let reply = out.into_res(last, pending.tag);
        self.slots.finish(pending.ticket.slot, pending.ticket.sequence, Some(&reply.to_bytes()));
        reply
    }
}

/// Returns a reply with a single failure.
fn failure(op: nfs_cb_opnum4, status: nfsstat4, tag: Bytes) -> Segments {
    let mut out = OpsWriter::new();
    out.op(op, &status);
    out.into_res(status, tag)
}

/// Returns the reply to a retry whose first reply was not kept (§2.10.6.1.3).
fn uncached(sequence: CB_SEQUENCE4resok, mut ops: Ops, tag: Bytes) -> Segments {
    let mut out = OpsWriter::new();
    out.op(OP_CB_SEQUENCE, &CB_SEQUENCE4res::NFS4_OK(sequence));
    let op = ops.next_number().ok().flatten().and_then(cb_opnum).unwrap_or(OP_CB_ILLEGAL);
    out.op(op, &NFS4ERR_RETRY_UNCACHED_REP);
    out.into_res(NFS4ERR_RETRY_UNCACHED_REP, tag)
}

impl Pending {
    /// Reads operations up to the first that the client cannot execute.
    fn read(&mut self, ops: &mut Ops) {
        while self.end.is_none() {
            let number = match ops.next_number() {
                Ok(Some(number)) => number,
                Ok(None) => return,
                // The announced operation is missing.
                Err(_) => {
                    self.end = Some((OP_CB_ILLEGAL, NFS4ERR_BADXDR));
                    return;
                }
            };
            let op = cb_opnum(number).unwrap_or(OP_CB_ILLEGAL);
            match event(op, ops) {
                Ok(_) if self.events.len() == EVENTS_MAX => self.end = Some((op, NFS4ERR_RESOURCE)),
                Ok(event) => {
                    self.events.push(event);
                    self.numbers.push(op);
                }
                Err(status) => self.end = Some((op, status)),
            }
        }
    }
}

/// Reads one operation.
fn event(op: nfs_cb_opnum4, ops: &mut Ops) -> Result<Event, nfsstat4> {
    let bad = |_| NFS4ERR_BADXDR;
    match op {
        OP_CB_LAYOUTRECALL => ops.body().map(Event::LayoutRecall).map_err(bad),
        OP_CB_RECALL => ops.body().map(Event::Recall).map_err(bad),
        OP_CB_RECALL_ANY => ops.body().map(Event::RecallAny).map_err(bad),
        OP_CB_RECALL_SLOT => {
            ops.body::<CB_RECALL_SLOT4args>().map(|a| Event::RecallSlot(a.rsa_target_highest_slotid)).map_err(bad)
        }
        OP_CB_NOTIFY_LOCK => ops.body().map(Event::LockFree).map_err(bad),
        OP_CB_NOTIFY => {
            let args: CB_NOTIFY4args = ops.body().map_err(bad)?;
            // This client asks for no notifications of directories.
            if args.cna_changes.is_empty() { Ok(Event::Resized(args.cna_fh)) } else { Err(NFS4ERR_NOTSUPP) }
        }
        OP_CB_NOTIFY_DEVICEID => {
            let args: CB_NOTIFY_DEVICEID4args = ops.body().map_err(bad)?;
            let mut changes = Vec::new();
            for notify in &args.cnda_changes {
                device_changes(notify, &mut changes).map_err(bad)?;
            }
            Ok(Event::Devices(changes))
        }
        OP_CB_SEQUENCE => Err(NFS4ERR_SEQUENCE_POS),
        OP_CB_ILLEGAL => Err(NFS4ERR_OP_ILLEGAL),
        _ => Err(NFS4ERR_NOTSUPP),
    }
}

/// Reads the values of one `notify4`: one for each bit of its mask, in order (§20.12).
fn device_changes(notify: &notify4, changes: &mut Vec<DeviceChange>) -> Result<(), Malformed> {
    let mut input = Reader::new(notify.notify_vals.clone());
    let has = |kind: notify_deviceid_type4| notify.notify_mask.first().is_some_and(|w| w & 1 << kind as u32 != 0);
    if has(NOTIFY_DEVICEID4_CHANGE) {
        let change = notify_deviceid_change4::decode(&mut input)?;
        let how = DeviceChangeKind::Changed { immediate: change.ndc_immediate };
        changes.push(DeviceChange { kind: change.ndc_layouttype, device: change.ndc_deviceid, how });
    }
    if has(NOTIFY_DEVICEID4_DELETE) {
        let gone = notify_deviceid_delete4::decode(&mut input)?;
        let (kind, device) = (gone.ndd_layouttype, gone.ndd_deviceid);
        changes.push(DeviceChange { kind, device, how: DeviceChangeKind::Deleted });
    }
    input.finish()
}
