//! COMPOUND: one request with its operations, executed one after another (RFC 8881 §2.10.6, §16.2).

use super::callbacks::Callbacks;
use super::delegations::Frozen;
use super::{Server, counters, lock, ops};
use crate::exports::{Place, Terms, View};
use crate::fs::{Ctx, FileSystem, FsInfo, SOON};
use crate::state::reply_cache::Fingerprint;
use crate::state::sessions::{Request, Sequence, Sequenced, SlotToken};
use crate::state::stateids::{self, ANONYMOUS, CURRENT};
use crate::state::{Caller, ClientId, ConnectionId, Effect, Principal, State};
use crate::status;
use bytes::Bytes;
use types::{Cred, FileId, Machine, Renaming, Status, Timestamp, limits};
use wire::nfs4::compound::{ArgsHeader, Ops, OpsWriter, opnum};
use wire::nfs4::*;
use wire::rpc::Auth;
use xdr::{Malformed, Reader, Segments, Writer, Xdr};

/// The header of an accepted RPC reply with an empty verifier, which counts towards the limits of a session.
const RPC_REPLY_HEADER: usize = 24;
/// Bytes that an operation which changes something needs for its result; OPEN has the largest.
const RESULT_ROOM: usize = 160;
/// User and group of callers without credentials.
const NOBODY: u32 = 65534;

/// One COMPOUND as received.
#[derive(Clone, Debug)]
pub struct Call {
    /// The connection that it arrived on.
    pub connection: ConnectionId,
    /// The sender, for the checks of client records.
    pub principal: Principal,
    /// The machine of the sender.
    pub origin: Machine,
    /// The credentials of the caller.
    pub cred: Cred,
    /// The exports that the caller sees.
    pub view: View,
    /// `COMPOUND4args`.
    pub body: Bytes,
    /// Length of the whole RPC message in bytes, header included.
    pub message_len: usize,
    /// The server's clock.
    pub now: Timestamp,
    /// A random number, from which ids of sessions and clients are made.
    pub random: u64,
}

impl Call {
    /// Returns principal and credentials of a call; `None` for an unsupported flavor (AUTH_TOOWEAK).
    pub fn identity(auth: &Auth) -> Option<(Principal, Cred)> {
        match auth {
            Auth::None => Some((Principal::None, Cred { uid: NOBODY, gid: NOBODY, groups: Vec::new() })),
            Auth::Sys(sys) => Some((Principal::Sys(sys.uid), sys.cred())),
            Auth::Other { .. } => None,
        }
    }
}

/// The encoded error of a failed operation.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Refusal {
    pub(super) status: nfsstat4,
    /// The bytes after the status, for the few errors that carry some.
    pub(super) body: Bytes,
}

impl From<nfsstat4> for Refusal {
    fn from(status: nfsstat4) -> Self {
        Refusal { status, body: Bytes::new() }
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        status::to_nfs(status).into()
    }
}

/// The answer of an operation: the body after `NFS4_OK`, or the refusal.
pub(super) type Answer<T> = Result<T, Refusal>;

/// The result of an operation after its status.
pub(super) trait Body {
    /// Appends the result.
    fn put(&self, out: &mut Writer);
}

impl<T: Xdr> Body for T {
    fn put(&self, out: &mut Writer) {
        self.encode(out);
    }
}

/// Empty arguments or results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Void;

impl Xdr for Void {
    fn encode(&self, _: &mut Writer) {}

    fn decode(_: &mut Reader) -> Result<Self, Malformed> {
        Ok(Void)
    }
}

/// A file and the stateid that goes with it (§16.2.3.1).
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Handle {
    pub(super) file: FileId,
    pub(super) stateid: stateid4,
    /// The export through which the client reached the file.
    pub(super) place: Place,
}

/// A COMPOUND in execution: the state that its operations read and change.
pub(super) struct Compound<'a, F: FileSystem, C: Callbacks> {
    pub(super) server: &'a Server<F, C>,
    /// The context for the file system: `cred` and `place` follow the current filehandle.
    pub(super) ctx: Ctx,
    /// The credentials of the sender, before an export squashes them.
    pub(super) caller: Cred,
    /// The terms of the export of the current filehandle.
    pub(super) terms: Terms,
    pub(super) connection: ConnectionId,
    pub(super) principal: Principal,
    pub(super) origin: Machine,
    pub(super) random: u64,
    /// The session, once SEQUENCE has succeeded.
    pub(super) session: Option<sessionid4>,
    /// Current filehandle and stateid.
    pub(super) current: Option<Handle>,
    /// Saved filehandle and stateid.
    pub(super) saved: Option<Handle>,
    /// Files for which the server grants no delegations until the COMPOUND is over.
    pub(super) frozen: Vec<Frozen<'a, F, C>>,
    /// The file last opened by name, and the directory of the name.
    pub(super) opened_in: Option<(FileId, FileId)>,
    /// How the next RENAME treats an existing target name.
    pub(super) renaming: Renaming,
    /// Number of operations after the current one.
    pub(super) left: u32,
    /// Bytes that the body of the next result may take, and the error for a larger one.
    pub(super) room: usize,
    pub(super) beyond: nfsstat4,
}

impl<F: FileSystem, C: Callbacks> Compound<'_, F, C> {
    pub(super) fn fs(&self) -> &F {
        &self.server.fs
    }

    /// Returns the client of the session.
    pub(super) fn client(&self) -> ClientId {
        ClientId(self.ctx.client)
    }

    /// Returns the sender of EXCHANGE_ID or DESTROY_CLIENTID.
    pub(super) fn introduced(&self) -> Caller {
        Caller { principal: self.principal, origin: self.origin, random: (self.random >> 32) as u32 }
    }

    /// Returns the current filehandle.
    pub(super) fn file(&self) -> Answer<FileId> {
        self.current.map(|h| h.file).ok_or(NFS4ERR_NOFILEHANDLE.into())
    }

    /// Returns the saved filehandle.
    pub(super) fn saved_file(&self) -> Answer<FileId> {
        self.saved.map(|h| h.file).ok_or(NFS4ERR_NOFILEHANDLE.into())
    }

    /// Returns the values that hold for every file of the current export.
    pub(super) fn info(&self) -> FsInfo {
        self.fs().info(self.ctx.place)
    }

    /// Changes the current filehandle and with it the effective credentials; resets the current stateid.
    pub(super) fn set_place(&mut self, file: FileId, place: Place) {
        self.enter(place);
        self.current = Some(Handle { file, stateid: ANONYMOUS, place });
    }

    /// Restores the saved filehandle and stateid.
    pub(super) fn restore(&mut self) {
        self.current = self.saved;
        if let Some(saved) = self.saved {
            self.enter(saved.place);
        }
    }

    fn enter(&mut self, place: Place) {
        if place == self.ctx.place {
            return;
        }
        let terms = self.fs().terms(place);
        self.ctx.place = place;
        if terms.squash != self.terms.squash {
            self.ctx.cred = terms.squash.apply(&self.caller).unwrap_or_else(|| self.caller.clone());
        }
        self.terms = terms;
    }

    /// Refuses operations that use a saved and a current filehandle of different exports (XDEV).
    pub(super) fn check_same_export(&self) -> Answer<()> {
        let places = (self.saved.map(|h| h.place.root), self.current.map(|h| h.place.root));
        if places.0 == places.1 { Ok(()) } else { Err(NFS4ERR_XDEV.into()) }
    }

    /// Refuses a change in a read-only export.
    pub(super) fn check_writable(&self) -> Answer<()> {
        if self.terms.read_only { Err(NFS4ERR_ROFS.into()) } else { Ok(()) }
    }

    /// Stores the stateid that an operation returned as the current one.
    pub(super) fn set_stateid(&mut self, stateid: stateid4) {
        if let Some(current) = &mut self.current {
            current.stateid = stateid;
        }
    }

    /// Returns the stateid that an argument denotes. An argument may denote the current stateid, but not if that is a
    /// special one (§16.2.3.1.2). The current stateid denotes its state whatever its sequence number is now (§8.2.3).
    pub(super) fn stateid(&self, asked: stateid4) -> Answer<stateid4> {
        let stateid = self.exact_stateid(asked)?;
        // A layout's sequence number says what the client has seen, and is never 0 (§12.5.3).
        let any_age = asked == CURRENT && !stateids::is_of_layout(&stateid);
        Ok(if any_age { stateid4 { seqid: 0, ..stateid } } else { stateid })
    }

    /// Does the same as [`Compound::stateid`], but the current stateid means that of the saved filehandle (RFC 7862
    /// §15.2.3).
    pub(super) fn saved_stateid(&self, asked: stateid4) -> Answer<stateid4> {
        if asked != CURRENT {
            return Ok(asked);
        }
        let saved = self.saved.map(|h| h.stateid).filter(|s| s.other != ANONYMOUS.other);
        saved.map(|s| stateid4 { seqid: 0, ..s }).ok_or(NFS4ERR_BAD_STATEID.into())
    }

    /// Does the same as [`Compound::stateid`], but keeps the returned sequence number: for CLOSE and OPEN_DOWNGRADE.
    pub(super) fn exact_stateid(&self, asked: stateid4) -> Answer<stateid4> {
        if asked != CURRENT {
            return Ok(asked);
        }
        let current = self.current.map(|h| h.stateid).filter(|s| s.other != ANONYMOUS.other);
        current.ok_or(NFS4ERR_BAD_STATEID.into())
    }

    /// Reads the state tables.
    pub(super) fn state<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(&lock(&self.server.state))
    }

    /// Changes the state tables and carries out the effects.
    pub(super) async fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> Answer<R> {
        let (result, effects) = self.server.change(change);
        self.server.settle(&self.ctx, effects).await?;
        Ok(result)
    }

    /// Records that the client has written to a file, or has committed its writes.
    pub(super) fn flushes(&self, file: FileId) {
        lock(&self.server.state).flushes(self.client(), file, self.ctx.now);
    }

    /// Refuses operations that could conflict with a reclaim during the grace period (§8.4.2.1).
    pub(super) fn check_grace(&self) -> Answer<()> {
        if self.state(State::in_grace) { Err(NFS4ERR_GRACE.into()) } else { Ok(()) }
    }
}

/// Ends a request for the reply cache, even if the request is dropped halfway.
struct Slot<'a, F: FileSystem, C: Callbacks> {
    server: &'a Server<F, C>,
    token: Option<SlotToken>,
}

impl<F: FileSystem, C: Callbacks> Slot<'_, F, C> {
    fn finish(mut self, reply: &Segments) {
        if let Some(token) = self.token.take() {
            let small = reply.len() <= limits::REPLY_CACHED_MAX as usize;
            let bytes = small.then(|| reply.to_bytes());
            lock(&self.server.state).finish(token, bytes.as_deref());
        }
    }
}

impl<F: FileSystem, C: Callbacks> Drop for Slot<'_, F, C> {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            lock(&self.server.state).finish(token, None);
        }
    }
}

/// The outcome of the first operation.
enum Opening {
    /// A request of a session; its results follow.
    Session(Sequenced),
    /// An operation that is sent without SEQUENCE.
    Alone,
    /// The reply is complete.
    Done(Segments),
}

impl<F: FileSystem, C: Callbacks> Server<F, C> {
    /// Executes one COMPOUND and returns `COMPOUND4res`, both without RPC headers.
    ///
    /// The caller must run it to its end even if the connection is lost: the reply is kept for the retry.
    ///
    /// # Errors
    /// The message is not a COMPOUND: GARBAGE_ARGS (RFC 5531 §9).
    pub async fn compound(&self, call: Call) -> Result<Segments, Malformed> {
        counters::add(&self.counters.compounds, 1);
        let mut input = Reader::new(call.body.clone());
        let header = ArgsHeader::decode(&mut input)?;
        let mut results = OpsWriter::new();
        if !matches!(header.minorversion, 1 | 2) {
            return Ok(results.into_res(NFS4ERR_MINOR_VERS_MISMATCH, header.tag));
        }
        let mut input = Ops::new(header.numops, input);
        let Some(first) = input.next_number()? else {
            return Ok(results.into_res(NFS4_OK, header.tag));
        };
        let (opening, effects) = self.open(&call, &header, first, &mut input, &mut results);
        let sequenced = match opening {
            Opening::Done(reply) => return Ok(reply),
            Opening::Alone => None,
            Opening::Session(sequenced) => Some(sequenced),
        };
        let slot = Slot { server: self, token: sequenced.as_ref().map(|s| s.token) };
        // A client that was away gets its record back before it gets new state. If this fails, it only cannot reclaim.
        let _ = self.settle(&Ctx { now: call.now, ..Ctx::default() }, effects).await;
        let terms = self.fs.terms(Place::default());
        let ctx = Ctx {
            cred: terms.squash.apply(&call.cred).unwrap_or_else(|| call.cred.clone()),
            view: call.view,
            place: Place::default(),
            now: call.now,
            client: sequenced.as_ref().map_or(0, |s| s.client.0),
            minor: header.minorversion,
            handle: Bytes::new(),
            soon: header.tag == SOON,
        };
        let mut compound = Compound {
            server: self,
            ctx,
            caller: call.cred,
            terms,
            connection: call.connection,
            principal: call.principal,
            origin: call.origin,
            random: call.random,
            session: sequenced.as_ref().map(|s| s.token.session),
            current: None,
            saved: None,
            frozen: Vec::new(),
            opened_in: None,
            renaming: Renaming::default(),
            left: 0,
            room: 0,
            beyond: NFS4ERR_REP_TOO_BIG,
        };
        let budget = Budget::new(sequenced.as_ref(), header.tag.len());
        let mut next = if sequenced.is_some() { input.next_number() } else { Ok(Some(first)) };
        let mut status = NFS4_OK;
        while status == NFS4_OK
            && let Some(number) = next.transpose()
        {
            status = compound.operation(number, &mut input, &budget, &mut results).await;
            next = input.next_number();
        }
        let reply = results.into_res(status, header.tag);
        slot.finish(&reply);
        Ok(reply)
    }

    /// Handles the first operation: SEQUENCE, or one of the few that are sent without it (§2.10.6).
    fn open(
        &self,
        call: &Call,
        header: &ArgsHeader,
        first: u32,
        input: &mut Ops,
        results: &mut OpsWriter,
    ) -> (Opening, Vec<Effect>) {
        let fail = |op: nfs_opnum4, status: nfsstat4| {
            self.counters.op(op as u32, status);
            let mut results = OpsWriter::new();
            refuse(&mut results, op, &status.into());
            Opening::Done(results.into_res(status, header.tag.clone()))
        };
        let lone = |opening| (opening, Vec::new());
        match opnum(first) {
            Some(OP_SEQUENCE) => {}
            Some(op) if ops::stands_alone(op) => {
                return lone(if header.numops == 1 { Opening::Alone } else { fail(op, NFS4ERR_NOT_ONLY_OP) });
            }
            Some(OP_ILLEGAL) | None => return lone(fail(OP_ILLEGAL, NFS4ERR_OP_ILLEGAL)),
            Some(op) => return lone(fail(op, NFS4ERR_OP_NOT_IN_SESSION)),
        }
        let Ok(arguments) = input.body::<SEQUENCE4args>() else {
            return lone(fail(OP_SEQUENCE, NFS4ERR_BADXDR));
        };
        let request = Request {
            connection: call.connection,
            fingerprint: Fingerprint::new(call.principal, &input.input().clone().rest()),
            size: call.message_len,
            operations: header.numops,
        };
        let (sequence, effects) = self.change(|state| state.sequence(&arguments, request, call.now));
        let opening = match sequence {
            Err(status) => fail(OP_SEQUENCE, status),
            Ok(Sequence::Replay(reply)) => {
                counters::add(&self.counters.replays, 1);
                Opening::Done(reply.into())
            }
            Ok(Sequence::Uncached(result)) => {
                results.op(OP_SEQUENCE, &SEQUENCE4res::NFS4_OK(result));
                let results = std::mem::take(results);
                Opening::Done(uncached(results, input, header.tag.clone()))
            }
            Ok(Sequence::New(sequenced)) => {
                self.counters.op(OP_SEQUENCE as u32, NFS4_OK);
                results.op(OP_SEQUENCE, &SEQUENCE4res::NFS4_OK(sequenced.result));
                Opening::Session(sequenced)
            }
        };
        (opening, effects)
    }
}

/// Returns the answer to a retry whose reply was not kept.
fn uncached(mut results: OpsWriter, input: &mut Ops, tag: Bytes) -> Segments {
    let Ok(Some(number)) = input.next_number() else {
        return results.into_res(NFS4_OK, tag);
    };
    let status = NFS4ERR_RETRY_UNCACHED_REP;
    refuse(&mut results, opnum(number).unwrap_or(OP_ILLEGAL), &status.into());
    results.into_res(status, tag)
}

/// Appends the result of an operation that failed.
fn refuse(results: &mut OpsWriter, op: nfs_opnum4, refusal: &Refusal) {
    results.with(op, |out| {
        refusal.status.encode(out);
        if refusal.body.is_empty() {
            out.fixed(ops::refused(op, refusal.status));
        } else {
            out.raw(&refusal.body);
        }
    });
}

/// The limits on the length of the reply (§2.10.6.4).
struct Budget {
    whole: usize,
    cached: Option<usize>,
}

impl Budget {
    fn new(sequenced: Option<&Sequenced>, tag: usize) -> Self {
        let overhead = RPC_REPLY_HEADER + 12 + tag.next_multiple_of(4);
        let Some(sequenced) = sequenced else {
            return Budget { whole: limits::RECORD_MAX, cached: None };
        };
        Budget {
            whole: (sequenced.max_response as usize).saturating_sub(overhead),
            cached: sequenced.max_cached.map(|max| (max as usize).saturating_sub(overhead)),
        }
    }

    /// Returns the bytes left after `used` bytes, and the error for a longer reply.
    fn left(&self, used: usize) -> (usize, nfsstat4) {
        match self.cached {
            Some(cached) if cached < self.whole => (cached.saturating_sub(used), NFS4ERR_REP_TOO_BIG_TO_CACHE),
            _ => (self.whole.saturating_sub(used), NFS4ERR_REP_TOO_BIG),
        }
    }
}

impl<F: FileSystem, C: Callbacks> Compound<'_, F, C> {
    /// Executes one operation and appends its result.
    async fn operation(
        &mut self,
        number: Result<u32, Malformed>,
        input: &mut Ops,
        budget: &Budget,
        results: &mut OpsWriter,
    ) -> nfsstat4 {
        let (op, mut answer) = match number.map(|number| ops::known(number, self.ctx.minor)) {
            Err(_) => (OP_ILLEGAL, Err(NFS4ERR_BADXDR.into())),
            Ok(None) => (OP_ILLEGAL, Err(NFS4ERR_OP_ILLEGAL.into())),
            Ok(Some(op)) => {
                let (room, beyond) = budget.left(results.len());
                (self.room, self.beyond) = (room.saturating_sub(8), beyond);
                self.left = input.left();
                let enough = !ops::changes(op) || self.room >= RESULT_ROOM;
                let answer = match enough {
                    _ if self.server.is_data_only() && !ops::of_data_server(op) => Err(NFS4ERR_NOTSUPP.into()),
                    _ if self.terms.read_only && self.current.is_some() && ops::writes(op) => Err(NFS4ERR_ROFS.into()),
                    true => ops::run(self, op, input).await,
                    false => Err(beyond.into()),
                };
                (op, answer)
            }
        };
        let len = answer.as_ref().map_or_else(|refusal| refusal.body.len(), Segments::len);
        if len > self.room && len > 0 {
            answer = Err(self.beyond.into());
        }
        let status = match answer {
            Ok(body) => {
                results.with(op, |out| {
                    NFS4_OK.encode(out);
                    body.parts().iter().for_each(|part| out.raw(part));
                });
                NFS4_OK
            }
            Err(refusal) => {
                refuse(results, op, &refusal);
                refusal.status
            }
        };
        tracing::debug!(client = self.ctx.client, operation = ?op, ?status, "request");
        self.server.counters.op(op as u32, status);
        status
    }
}
