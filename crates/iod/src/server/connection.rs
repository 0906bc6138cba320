//! One connection of an iod, which receives requests as RPC records, executes them one at a time, and sends the replies
//! in order.

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use types::limits::{FRAGMENTS_MAX, RECORD_MAX};
use types::{Machine, Status};
use wire::native::{Failure, PROGRAM, Procedure, RUNS_BYTES_MAX, VERSION, encode_reply};
use wire::rpc::record::{Mark, Progress};
use wire::rpc::{AcceptStat, Auth, CallHeader, Message, RejectStat, ReplyHeader, ReplyStat, decode_message};
use xdr::{Malformed, Reader, Writer, Xdr};

use super::daemon::Daemon;
use super::incarnations::{Change, Replaced};
use super::procedures::{PendingSession, Session};
use super::socket::{Channel, Received};
use super::volume::Volume;
use crate::buffers::Permit;
use crate::counters::Counters;
use crate::store::{ReadPlan, Store};

/// Size of the input buffer in bytes. A whole request with a small payload fits, so one `recv` call can receive it.
const INPUT: usize = 32 << 10;
/// Upper bound of the number of bytes of a WRITE before its payload: RPC header, capability and 1024 extents.
const BEFORE_PAYLOAD: usize = 20 << 10;
/// Upper bound of the number of bytes of the arguments of a REGISTER: the encoded runs, and the other arguments.
const REGISTER_MAX: usize = RUNS_BYTES_MAX + (1 << 10);
/// Longest record in bytes that the iod accepts before the peer has proved by PROVE that it has a ticket.
const STRANGER_MAX: usize = 4 << 10;
/// A reply with at most this many bytes of data uses memory of the connection. A longer reply borrows a buffer from the
/// pool.
pub(super) const SMALL: usize = 16 << 10;
/// Length of a record mark in bytes (RFC 5531 §11).
pub(super) const MARK: usize = 4;

const _: () = assert!(BEFORE_PAYLOAD + MARK < INPUT && STRANGER_MAX < INPUT);

/// A request that the iod has received completely or in part.
struct Record {
    /// The beginning of the record, or the whole record if no byte of it is still in the socket.
    head: Bytes,
    /// Number of bytes of the record that are still in the socket.
    rest: usize,
    /// The memory permit for a record that arrived in several fragments.
    permit: Option<Permit>,
}

/// One connection of the iod: its socket, its session, and its buffers.
pub(super) struct Connection<C> {
    pub(super) daemon: Arc<Daemon>,
    pub(super) socket: C,
    /// The machine of the peer.
    pub(super) machine: Machine,
    pub(super) session: Option<Session>,
    /// The session that HELLO named and that PROVE has not authenticated yet; `None` before HELLO and after PROVE.
    pub(super) pending_session: Option<PendingSession>,
    input: BytesMut,
    pub(super) output: Vec<u8>,
    pub(super) small: Vec<u8>,
    pub(super) plan: ReadPlan,
}

/// The reason why the iod closes a connection.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The peer sent bytes that are not a valid request.
    #[error("{0}")]
    Malformed(#[from] Malformed),
    /// The peer sent a request that the protocol does not allow in the current state of the connection.
    #[error("{0}")]
    Protocol(&'static str),
    /// The same client has opened a newer connection, which replaces this connection.
    #[error("the peer has made a newer connection")]
    Replaced,
    /// The socket returned an error, or the peer stalled for too long.
    #[error("{0}")]
    Socket(#[from] io::Error),
}

impl From<Replaced> for Broken {
    fn from(_: Replaced) -> Self {
        Broken::Replaced
    }
}

impl<C: Channel> Connection<C> {
    /// Makes the state of a new connection from the client machine `machine`.
    pub(super) fn new(daemon: Arc<Daemon>, socket: C, machine: Machine) -> Self {
        Connection {
            daemon,
            socket,
            machine,
            session: None,
            pending_session: None,
            input: BytesMut::new(),
            output: Vec::new(),
            small: Vec::new(),
            plan: ReadPlan::default(),
        }
    }

    /// Serves requests until the peer closes the connection.
    pub(super) fn run(mut self) -> Result<(), Broken> {
        while self.serve_next()? {}
        Ok(())
    }

    /// Serves one request. Returns false if the peer has closed the connection instead of sending a request.
    pub(super) fn serve_next(&mut self) -> Result<bool, Broken> {
        match self.receive()? {
            Some(record) => self.serve(record).map(|()| true),
            None => Ok(false),
        }
    }

    /// Returns the volume of the session; fails with `NoSession` before PROVE has opened a session.
    pub(super) fn volume(&self) -> Result<&Arc<Volume>, Status> {
        self.session.as_ref().map(Session::volume).ok_or(Status::NoSession)
    }

    /// Returns the store of the session; fails with `NoSession` before PROVE has opened a session.
    pub(super) fn store(&self) -> Result<&Store, Status> {
        self.volume().map(|volume| &volume.store)
    }

    /// Returns the counters of the session's volume, or the counters of the daemon before PROVE.
    pub(super) fn counters(&self) -> &Counters {
        self.store().map_or(&self.daemon.counters, Store::counters)
    }

    /// Waits for a record; returns `None` if the peer has closed the connection between two records.
    fn receive(&mut self) -> Result<Option<Record>, Broken> {
        let limit = if self.session.is_some() { RECORD_MAX } else { STRANGER_MAX };
        let mut progress = Progress::new(limit, FRAGMENTS_MAX);
        let patient = self.session.is_some();
        let Some(mark) = self.receive_mark(&mut progress, patient)? else { return Ok(None) };
        if !mark.last {
            return self.assemble(mark, progress).map(Some);
        }
        if mark.len + MARK <= INPUT {
            self.fill(MARK + mark.len)?;
            let head = self.input.split_to(MARK + mark.len).freeze().slice(MARK..);
            return Ok(Some(Record { head, rest: 0, permit: None }));
        }
        self.fill(MARK + BEFORE_PAYLOAD)?;
        let here = self.input.len().min(MARK + mark.len);
        let head = self.input.split_to(here).freeze().slice(MARK..);
        Ok(Some(Record { rest: mark.len - head.len(), head, permit: None }))
    }

    /// Waits for the next record mark and leaves it in the input buffer. If `patient` is true, the peer may wait
    /// without limit before it sends the first byte of the mark.
    fn receive_mark(&mut self, progress: &mut Progress, patient: bool) -> Result<Option<Mark>, Broken> {
        while self.input.len() < MARK {
            self.make_room(MARK);
            match self.socket.receive_more(&mut self.input)? {
                Received::Bytes(_) => {}
                Received::End if self.input.is_empty() => return Ok(None),
                Received::End => return Err(Malformed::Short.into()),
                // An authenticated peer may wait without limit between two requests. So keep the connection open, and
                // only free its buffers.
                Received::Nothing if self.input.is_empty() && patient => self.rest(),
                Received::Nothing => return Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            }
        }
        let mut bytes = [0; MARK];
        bytes.copy_from_slice(&self.input[..MARK]);
        let mark = Mark::from_bytes(bytes);
        progress.begin(mark)?;
        Ok(Some(mark))
    }

    /// Frees the buffers of this connection, because the peer is idle now.
    fn rest(&mut self) {
        self.input = BytesMut::new();
        self.output = Vec::new();
        self.small = Vec::new();
        self.plan = ReadPlan::default();
    }

    /// Receives from the socket until the input buffer has at least `len` bytes.
    fn fill(&mut self, len: usize) -> Result<(), Broken> {
        if self.input.len() >= len {
            return Ok(());
        }
        self.socket.wait_begins();
        while self.input.len() < len {
            self.make_room(len);
            match self.socket.receive_more(&mut self.input)? {
                Received::Bytes(_) => {}
                Received::End => return Err(Malformed::Short.into()),
                Received::Nothing => return Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            }
        }
        self.socket.wait_ends();
        Ok(())
    }

    /// Grows the input buffer to a capacity of at least `len` bytes. Also keeps so much free capacity that one `recv`
    /// call can return many bytes.
    fn make_room(&mut self, len: usize) {
        if self.input.capacity() < len || self.input.capacity() - self.input.len() < STRANGER_MAX {
            let whole = len.max(INPUT);
            self.input.reserve(whole - self.input.len());
        }
    }

    /// Receives all fragments of a record and joins them.
    fn assemble(&mut self, first: Mark, mut progress: Progress) -> Result<Record, Broken> {
        let permit = self.daemon.pool.permit(self.machine);
        let mut whole = Vec::new();
        let mut mark = first;
        self.socket.wait_begins();
        loop {
            let _ = self.input.split_to(MARK);
            let here = self.input.split_to(mark.len.min(self.input.len()));
            whole.extend_from_slice(&here);
            let start = whole.len();
            whole.resize(start + mark.len - here.len(), 0);
            self.socket.receive_exact(&mut whole[start..])?;
            if mark.last {
                self.socket.wait_ends();
                return Ok(Record { head: whole.into(), rest: 0, permit: Some(permit) });
            }
            mark = self.receive_mark(&mut progress, false)?.ok_or(Malformed::Short)?;
        }
    }

    fn serve(&mut self, record: Record) -> Result<(), Broken> {
        let Record { head, rest, permit } = record;
        let small = rest == 0 && head.len() <= INPUT;
        let mut input = Reader::new(head);
        let call = match decode_message(&mut input)? {
            Message::Call(call) => call,
            Message::Reply(_) => return Err(Broken::Protocol("a reply where a call should be")),
            Message::WrongVersion { xid } => {
                let stat = ReplyStat::Denied(RejectStat::RpcMismatch { low: 2, high: 2 });
                self.send_reply(&ReplyHeader { xid, stat }, |_| {})?;
                return Err(Broken::Protocol("another version of RPC"));
            }
        };
        match procedure(&call) {
            Ok(Procedure::Write) => {
                self.counters().request(Procedure::Write);
                tracing::debug!(session = self.session.as_ref().map_or(0, Session::number), procedure = ?Procedure::Write, "request");
                let change = self.change()?;
                let written = self.write(call.xid, input, rest);
                drop(change);
                drop(permit);
                written
            }
            Ok(Procedure::Register) if !small => {
                let input = self.receive_registration(input.rest(), rest)?;
                drop(permit);
                self.execute(call.xid, Procedure::Register, input)
            }
            _ if !small => Err(Broken::Protocol("a record too large for its procedure")),
            Ok(procedure) => {
                // Return the permit for the memory of this record before the procedure borrows a buffer from the pool.
                // If threads waited for a second buffer while they hold one, they could deadlock.
                drop(permit);
                self.execute(call.xid, procedure, input)
            }
            Err(stat) => self.refuse(call.xid, stat),
        }
    }

    /// Executes a procedure other than WRITE, whose arguments are complete.
    fn execute(&mut self, xid: u32, procedure: Procedure, input: Reader) -> Result<(), Broken> {
        self.counters().request(procedure);
        let _change = if procedure.changes() { self.change()? } else { None };
        self.call(xid, procedure, input)
    }

    /// Receives the rest of the arguments of a long REGISTER.
    fn receive_registration(&mut self, first: Bytes, rest: usize) -> Result<Reader, Broken> {
        if first.len() + rest > REGISTER_MAX {
            return Err(Broken::Protocol("a record too large for its procedure"));
        }
        let mut whole = first.to_vec();
        whole.resize(first.len() + rest, 0);
        self.socket.wait_begins();
        self.socket.receive_exact(&mut whole[first.len()..])?;
        self.socket.wait_ends();
        Ok(Reader::new(whole.into()))
    }

    /// Registers that a change of an object is in progress, until the returned value is dropped. Returns `None` before
    /// PROVE, when no request can change an object.
    fn change(&self) -> Result<Option<Change>, Replaced> {
        self.session.as_ref().map(|session| session.membership.change()).transpose()
    }

    /// Sends the RPC reply for a call that the iod did not execute.
    pub(super) fn refuse(&mut self, xid: u32, stat: AcceptStat) -> Result<(), Broken> {
        let stat = ReplyStat::Accepted { verf: Auth::None, stat };
        self.send_reply(&ReplyHeader { xid, stat }, |_| {})
    }

    /// Sends the RPC reply for a call that the iod executed.
    pub(super) fn answer<T: Xdr>(&mut self, xid: u32, result: Result<T, Failure>) -> Result<(), Broken> {
        if let Err(failure) = &result {
            self.counters().failed(failure.status);
        }
        self.send_reply(&ReplyHeader::success(xid), |out| encode_reply(&result, out))
    }

    fn send_reply(&mut self, header: &ReplyHeader, body: impl FnOnce(&mut Writer)) -> Result<(), Broken> {
        self.encode(header, 0, body);
        self.send_output(&[])
    }

    /// Sends the encoded reply in `output`, followed by `data`.
    pub(super) fn send_output(&mut self, data: &[u8]) -> Result<(), Broken> {
        self.socket.wait_begins();
        self.socket.send(&self.output, data, false)?;
        self.socket.wait_ends();
        Ok(())
    }

    /// Encodes the beginning of a reply into `output`. The length in the record mark includes `behind` more bytes,
    /// which the caller sends after `output`.
    pub(super) fn encode(&mut self, header: &ReplyHeader, behind: usize, body: impl FnOnce(&mut Writer)) {
        let mut out = Writer::reusing(std::mem::take(&mut self.output));
        out.u32(0);
        header.encode(&mut out);
        body(&mut out);
        self.output = out.into_buffer();
        let mark = (self.output.len() - MARK + behind) as u32 | 1 << 31;
        self.output[..MARK].copy_from_slice(&mark.to_be_bytes());
    }
}

/// Returns the procedure that the header of a call names.
fn procedure(call: &CallHeader) -> Result<Procedure, AcceptStat> {
    if call.program != PROGRAM {
        return Err(AcceptStat::ProgUnavail);
    }
    if call.version != VERSION {
        return Err(AcceptStat::ProgMismatch { low: VERSION, high: VERSION });
    }
    Procedure::from_number(call.procedure).ok_or(AcceptStat::ProcUnavail)
}
