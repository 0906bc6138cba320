//! The client's side of the backchannel: CB_COMPOUND read, CB_SEQUENCE obeyed, the rest handed on as events
//! (RFC 8881 §2.10.6, §20).

use crate::client::slots::Ticket;
use crate::state::Principal;
use crate::state::slots::{Fingerprint, SlotTable, Verdict};
use bytes::Bytes;
use wire::nfs4::compound::{CbArgsHeader, Ops, OpsWriter, cb_opnum};
use wire::nfs4::*;
use xdr::{Malformed, Reader, Segments, Xdr};

/// Most events in one callback; servers send one.
const EVENTS_MAX: usize = 64;

/// What a server wants of us.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// CB_LAYOUTRECALL (§20.3). Answer NFS4_OK when a LAYOUTRETURN will follow, NFS4ERR_NOMATCHING_LAYOUT when nothing
    /// of it is held, NFS4ERR_DELAY when a reply that it refers to has not come yet.
    LayoutRecall(CB_LAYOUTRECALL4args),
    /// CB_RECALL (§20.2): a delegation is asked back. Answer NFS4_OK when a DELEGRETURN will follow, NFS4ERR_BAD_STATEID when none such
    /// is held.
    Recall(CB_RECALL4args),
    /// CB_RECALL_ANY (§20.6): give back what can be spared. Answer NFS4_OK.
    RecallAny(CB_RECALL_ANY4args),
    /// CB_RECALL_SLOT (§20.8): give `rsa_target_highest_slotid` to `Session::recall_slots`. Answer NFS4_OK.
    RecallSlot(slotid4),
    /// CB_NOTIFY_LOCK (§20.11): a lock that was refused may be had now. Answer NFS4_OK.
    LockFree(CB_NOTIFY_LOCK4args),
    /// CB_NOTIFY_DEVICEID (§20.12). Answer NFS4_OK.
    Devices(Vec<DeviceChange>),
}

/// A device of which the server speaks in CB_NOTIFY_DEVICEID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceChange {
    /// The layout type that it belongs to.
    pub kind: layouttype4,
    /// Which.
    pub device: deviceid4,
    /// What happened.
    pub how: DeviceChangeKind,
}

/// What happened to a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceChangeKind {
    /// It has another address; `immediate` forbids I/O to the old one from now on.
    Changed {
        /// `ndc_immediate`.
        immediate: bool,
    },
    /// It is gone; no layout refers to it.
    Deleted,
}

/// A callback that waits for its events to be answered.
#[derive(Debug)]
pub struct Pending {
    /// What the server wants, in order; [`Callbacks::answer`] takes one status for each.
    pub events: Vec<Event>,
    /// Requests of ours whose replies the events presuppose (§2.10.6.3): answer NFS4ERR_DELAY to all, or wait, while
    /// one of them is outstanding.
    pub referring: Vec<referring_call_list4>,
    ticket: Ticket,
    tag: Bytes,
    sequence: CB_SEQUENCE4resok,
    numbers: Vec<nfs_cb_opnum4>,
    /// The operation after the events that ends the callback with an error, if any.
    end: Option<(nfs_cb_opnum4, nfsstat4)>,
}

/// What is to be done with a CB_COMPOUND.
#[derive(Debug)]
pub enum Incoming {
    /// Send this `CB_COMPOUND4res`.
    Reply(Segments),
    /// Decide on the events, then send what [`Callbacks::answer`] makes of the decisions.
    Pending(Pending),
}

/// The replier's half of the backchannel of one session.
#[derive(Clone, Debug)]
pub struct Callbacks {
    session: sessionid4,
    slots: SlotTable,
    operations: u32,
}

impl Callbacks {
    /// For a session and what was agreed for its backchannel.
    pub fn new(session: sessionid4, back: &channel_attrs4) -> Self {
        let slots = SlotTable::new(back.ca_maxrequests, back.ca_maxresponsesize_cached);
        Callbacks { session, slots, operations: back.ca_maxoperations }
    }

    /// Takes in the arguments of CB_COMPOUND.
    ///
    /// # Errors
    /// They do not even begin like a CB_COMPOUND (GARBAGE_ARGS of RPC).
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

    /// Handles CB_SEQUENCE; the error is the whole reply.
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

    /// The reply (`CB_COMPOUND4res`) to a callback, with a status for each of its events; those that are missing count
    /// as NFS4ERR_SERVERFAULT. Nothing behind the first that is not NFS4_OK is answered.
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

/// A reply that is nothing but one failure.
fn failure(op: nfs_cb_opnum4, status: nfsstat4, tag: Bytes) -> Segments {
    let mut out = OpsWriter::new();
    out.op(op, &status);
    out.into_res(status, tag)
}

/// The reply to a retry whose first reply was not kept (§2.10.6.1.3).
fn uncached(sequence: CB_SEQUENCE4resok, mut ops: Ops, tag: Bytes) -> Segments {
    let mut out = OpsWriter::new();
    out.op(OP_CB_SEQUENCE, &CB_SEQUENCE4res::NFS4_OK(sequence));
    let op = ops.next_number().ok().flatten().and_then(cb_opnum).unwrap_or(OP_CB_ILLEGAL);
    out.op(op, &NFS4ERR_RETRY_UNCACHED_REP);
    out.into_res(NFS4ERR_RETRY_UNCACHED_REP, tag)
}

impl Pending {
    /// Reads operations up to the first that cannot be carried out.
    fn read(&mut self, ops: &mut Ops) {
        while self.end.is_none() {
            let number = match ops.next_number() {
                Ok(Some(number)) => number,
                Ok(None) => return,
                // The announced operation is not there.
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

/// The values of one `notify4`: one for each bit of its mask, in their order (§20.12).
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
