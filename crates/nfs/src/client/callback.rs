//! The backchannel on the client (RFC 8881 §2.10.6, §20): decodes CB_COMPOUND, executes CB_SEQUENCE, and returns the
//! other operations to the caller as events.

use crate::client::slots::Ticket;
use crate::state::Principal;
use crate::state::reply_cache::{Fingerprint, ReplyCache, Verdict};
use bytes::Bytes;
use wire::nfs4::compound::{CbArgsHeader, Ops, OpsWriter, cb_opnum};
use wire::nfs4::*;
use xdr::{Malformed, Reader, Segments, Xdr};

/// The largest number of recalls and notifications that the client accepts in one CB_COMPOUND. A CB_COMPOUND with a
/// larger number ends with NFS4ERR_RESOURCE. Weir's server sends one recall or notification in each CB_COMPOUND.
const EVENTS_MAX: usize = 64;

/// A callback operation that the server sent. The caller of this module executes the operation and returns a status for
/// it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// CB_LAYOUTRECALL (§20.3) recalls layouts. Answer NFS4_OK if the client will send LAYOUTRETURN, and
    /// NFS4ERR_NOMATCHING_LAYOUT if the client holds no such layout. Answer NFS4ERR_DELAY if the callback refers to a
    /// request (referring call) whose reply the client has not received yet.
    LayoutRecall(CB_LAYOUTRECALL4args),
    /// CB_RECALL (§20.2) recalls a delegation. Answer NFS4_OK if the client will send DELEGRETURN, and
    /// NFS4ERR_BAD_STATEID if the client holds no such delegation.
    Recall(CB_RECALL4args),
    /// CB_RECALL_ANY (§20.6) asks the client to return layouts or delegations that the client does not use. Answer
    /// NFS4_OK.
    RecallAny(CB_RECALL_ANY4args),
    /// CB_RECALL_SLOT (§20.8) with `rsa_target_highest_slotid`, which the caller must pass to `Session::recall_slots`.
    /// Answer NFS4_OK.
    RecallSlot(slotid4),
    /// CB_NOTIFY_LOCK (§20.11): a byte-range lock that the server denied to this client may be free now. Answer
    /// NFS4_OK.
    LockFree(CB_NOTIFY_LOCK4args),
    /// CB_NOTIFY (§20.4) with an empty list of changes, which is Weir's own message: another client has set the size
    /// of this file. Before the server replies to the other client, it waits a limited time for this client to answer
    /// NFS4_OK.
    Resized(nfs_fh4),
    /// CB_NOTIFY_DEVICEID (§20.12): device addresses have changed. Answer NFS4_OK.
    Devices(Vec<DeviceChange>),
}

/// A change of one device (data server address) that CB_NOTIFY_DEVICEID reports (§20.12).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceChange {
    /// The layout type of the device.
    pub kind: layouttype4,
    /// The id of the changed device.
    pub device: deviceid4,
    /// Whether the device has a new address or is deleted.
    pub how: DeviceChangeKind,
}

/// Whether a device has a new address or is deleted (`notify_deviceid_type4`, §20.12).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceChangeKind {
    /// The device has a new address. If `immediate` is set, the client must stop using the old address at once.
    Changed {
        /// `ndc_immediate`: the client must stop I/O to the old address at once.
        immediate: bool,
    },
    /// The server deleted the device; no layout refers to the device any more.
    Deleted,
}

/// A received CB_COMPOUND for whose events the client has not returned statuses yet.
#[derive(Debug)]
pub struct Pending {
    /// The events in the order of the CB_COMPOUND; [`Callbacks::answer`] takes one status for each event.
    pub events: Vec<Event>,
    /// Referring calls (§2.10.6.3): requests of this client that the server executed before the callback. While the
    /// client waits for the reply to one of these requests, the client must delay its reply to the callback or answer
    /// NFS4ERR_DELAY.
    pub referring: Vec<referring_call_list4>,
    ticket: Ticket,
    tag: Bytes,
    sequence: CB_SEQUENCE4resok,
    numbers: Vec<nfs_cb_opnum4>,
    /// The first operation of the callback that the client cannot execute, and the error status of this operation,
    /// with which the reply ends. `None` if the client can execute all operations.
    end: Option<(nfs_cb_opnum4, nfsstat4)>,
}

/// What the client must do with a received CB_COMPOUND.
#[derive(Debug)]
pub enum Incoming {
    /// Send this reply (`CB_COMPOUND4res`) to the server at once.
    Reply(Segments),
    /// Execute the events, then send the reply that [`Callbacks::answer`] returns.
    Pending(Pending),
}

/// The backchannel of one session on the client: the slots and the reply cache for the server's callbacks.
#[derive(Clone, Debug)]
pub struct Callbacks {
    session: sessionid4,
    slots: ReplyCache,
    operations: u32,
}

impl Callbacks {
    /// Creates the backchannel of a session from the channel attributes that CREATE_SESSION negotiated.
    pub fn new(session: sessionid4, back: &channel_attrs4) -> Self {
        let slots = ReplyCache::new(back.ca_maxrequests, back.ca_maxresponsesize_cached);
        Callbacks { session, slots, operations: back.ca_maxoperations }
    }

    /// Decodes a CB_COMPOUND (`CB_COMPOUND4args`) and executes its CB_SEQUENCE.
    ///
    /// # Errors
    /// The header of the CB_COMPOUND is malformed; the caller replies with the RPC error GARBAGE_ARGS.
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

    /// Executes CB_SEQUENCE. On an error, the whole reply is one failed operation with the operation number and the
    /// status from the error.
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

    /// Returns whether the callback arrived on this session.
    pub fn has_received(&self, pending: &Pending) -> bool {
        pending.sequence.csr_sessionid == self.session
    }

    /// Returns the reply (`CB_COMPOUND4res`) to a callback, with one status for each operation of the callback; a
    /// missing status counts as NFS4ERR_SERVERFAULT. The reply ends after the first status other than NFS4_OK.
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

/// Returns a `CB_COMPOUND4res` that contains one failed operation.
fn failure(op: nfs_cb_opnum4, status: nfsstat4, tag: Bytes) -> Segments {
    let mut out = OpsWriter::new();
    out.op(op, &status);
    out.into_res(status, tag)
}

/// Returns the reply to a retry of a callback whose first reply the client did not cache: NFS4ERR_RETRY_UNCACHED_REP
/// (§2.10.6.1.3).
fn uncached(sequence: CB_SEQUENCE4resok, mut ops: Ops, tag: Bytes) -> Segments {
    let mut out = OpsWriter::new();
    out.op(OP_CB_SEQUENCE, &CB_SEQUENCE4res::NFS4_OK(sequence));
    let op = ops.next_number().ok().flatten().and_then(cb_opnum).unwrap_or(OP_CB_ILLEGAL);
    out.op(op, &NFS4ERR_RETRY_UNCACHED_REP);
    out.into_res(NFS4ERR_RETRY_UNCACHED_REP, tag)
}

impl Pending {
    /// Decodes operations into events, up to the first operation that the client cannot execute.
    fn read(&mut self, ops: &mut Ops) {
        while self.end.is_none() {
            let number = match ops.next_number() {
                Ok(Some(number)) => number,
                Ok(None) => return,
                // The message has fewer operations than its header announces, so the callback ends with BADXDR.
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

/// Decodes one callback operation after CB_SEQUENCE.
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
            // A CB_NOTIFY with changes is an error, because this client never requests notifications of directory
            // changes.
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

/// Decodes one `notify4` of CB_NOTIFY_DEVICEID: one value for each bit of its mask, in the order of the bits (§20.12).
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
