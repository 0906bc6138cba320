//! Execution of a COMPOUND: one request whose operations run one after another (RFC 8881 §2.10.6, §16.2).

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

/// Length of the header of an accepted RPC reply with an empty verifier, in bytes. The header counts towards the
/// session's limits on reply sizes.
const RPC_REPLY_HEADER: usize = 24;
/// Free reply space, in bytes, that the server requires before it runs an operation that changes state. OPEN has the
/// largest result of these operations.
const RESULT_ROOM: usize = 160;
/// The user id and group id of callers without credentials.
const NOBODY: u32 = 65534;

/// A received COMPOUND, with its sender and its time of arrival.
#[derive(Clone, Debug)]
pub struct Call {
    /// The connection on which the request arrived.
    pub connection: ConnectionId,
    /// The principal of the sender, which must match the principal of the client record.
    pub principal: Principal,
    /// The machine that sent the request.
    pub origin: Machine,
    /// The credentials of the caller.
    pub cred: Cred,
    /// The exports that the caller sees.
    pub view: View,
    /// The arguments of COMPOUND (`COMPOUND4args`), encoded.
    pub body: Bytes,
    /// Length of the whole RPC message in bytes, including the RPC header.
    pub message_len: usize,
    /// The time of arrival, by the server's clock.
    pub now: Timestamp,
    /// A random number, from which the server makes session ids and client ids.
    pub random: u64,
}

impl Call {
    /// Returns principal and credentials of a call; `None` for an unsupported authentication flavor (AUTH_TOOWEAK).
    pub fn identity(auth: &Auth) -> Option<(Principal, Cred)> {
        match auth {
            Auth::None => Some((Principal::None, Cred { uid: NOBODY, gid: NOBODY, groups: Vec::new() })),
            Auth::Sys(sys) => Some((Principal::Sys(sys.uid), sys.cred())),
            Auth::Other { .. } => None,
        }
    }
}

/// The error of a failed operation, encoded for the reply.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Refusal {
    pub(super) status: nfsstat4,
    /// The bytes after the status, for the few errors that have a body (for example the conflicting lock of DENIED).
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

/// The outcome of an operation: the body of a successful result, or the error.
pub(super) type Answer<T> = Result<T, Refusal>;

/// The body of the result of a successful operation, without the status.
pub(super) trait Body {
    /// Encodes the body of the result.
    fn put(&self, out: &mut Writer);
}

impl<T: Xdr> Body for T {
    fn put(&self, out: &mut Writer) {
        self.encode(out);
    }
}

/// The empty arguments or the empty result of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Void;

impl Xdr for Void {
    fn encode(&self, _: &mut Writer) {}

    fn decode(_: &mut Reader) -> Result<Self, Malformed> {
        Ok(Void)
    }
}

/// A filehandle with its stateid, as current or saved filehandle of a COMPOUND (§16.2.3.1).
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Handle {
    pub(super) file: FileId,
    pub(super) stateid: stateid4,
    /// The export through which the client reached the file.
    pub(super) place: Place,
}

/// A COMPOUND in execution: the state that its operations read and change, such as the current filehandle.
pub(super) struct Compound<'a, F: FileSystem, C: Callbacks> {
    pub(super) server: &'a Server<F, C>,
    /// The context of calls to the file system. Every change of the current filehandle sets `place` to the export of
    /// this filehandle, and `cred` to the credentials as that export maps them.
    pub(super) ctx: Ctx,
    /// The credentials of the sender, before the export maps them.
    pub(super) caller: Cred,
    /// The access conditions of the export of the current filehandle.
    pub(super) terms: Terms,
    pub(super) connection: ConnectionId,
    pub(super) principal: Principal,
    pub(super) origin: Machine,
    pub(super) random: u64,
    /// The session id, after SEQUENCE has succeeded.
    pub(super) session: Option<sessionid4>,
    /// The current filehandle and the current stateid.
    pub(super) current: Option<Handle>,
    /// The saved filehandle and the saved stateid.
    pub(super) saved: Option<Handle>,
    /// Guards that prevent new delegations of files until the COMPOUND ends.
    pub(super) frozen: Vec<Frozen<'a, F, C>>,
    /// The file that the last OPEN by name opened, and the directory of the name.
    pub(super) opened_in: Option<(FileId, FileId)>,
    /// The renameat2(2) flags of the next RENAME, from a preceding VERIFY.
    pub(super) renaming: Renaming,
    /// Number of operations in the COMPOUND after the current operation.
    pub(super) left: u32,
    /// Space in the reply, in bytes, for the body of the current operation's result. If the body is larger, the
    /// operation fails with the error in the field `beyond`.
    pub(super) room: usize,
    pub(super) beyond: nfsstat4,
}

impl<F: FileSystem, C: Callbacks> Compound<'_, F, C> {
    pub(super) fn fs(&self) -> &F {
        &self.server.fs
    }

    /// Returns the client id of the session.
    pub(super) fn client(&self) -> ClientId {
        ClientId(self.ctx.client)
    }

    /// Returns the sender of the COMPOUND, for the checks of EXCHANGE_ID and DESTROY_CLIENTID.
    pub(super) fn introduced(&self) -> Caller {
        Caller { principal: self.principal, origin: self.origin, random: (self.random >> 32) as u32 }
    }

    /// Returns the file of the current filehandle.
    ///
    /// # Errors
    /// NOFILEHANDLE.
    pub(super) fn file(&self) -> Answer<FileId> {
        self.current.map(|h| h.file).ok_or(NFS4ERR_NOFILEHANDLE.into())
    }

    /// Returns the file of the saved filehandle.
    ///
    /// # Errors
    /// NOFILEHANDLE.
    pub(super) fn saved_file(&self) -> Answer<FileId> {
        self.saved.map(|h| h.file).ok_or(NFS4ERR_NOFILEHANDLE.into())
    }

    /// Returns the attributes that have one value for all files of the current export.
    pub(super) fn info(&self) -> FsInfo {
        self.fs().info(self.ctx.place)
    }

    /// Sets the current filehandle, resets the current stateid, and applies the export's access conditions (read-only,
    /// mapping of user ids) to the following operations.
    pub(super) fn set_place(&mut self, file: FileId, place: Place) {
        self.enter(place);
        self.current = Some(Handle { file, stateid: ANONYMOUS, place });
    }

    /// Makes the saved filehandle and stateid the current ones (RESTOREFH).
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

    /// Returns XDEV if the saved and the current filehandle belong to different exports.
    pub(super) fn check_same_export(&self) -> Answer<()> {
        let places = (self.saved.map(|h| h.place.root), self.current.map(|h| h.place.root));
        if places.0 == places.1 { Ok(()) } else { Err(NFS4ERR_XDEV.into()) }
    }

    /// Returns ROFS in a read-only export.
    pub(super) fn check_writable(&self) -> Answer<()> {
        if self.terms.read_only { Err(NFS4ERR_ROFS.into()) } else { Ok(()) }
    }

    /// Sets the current stateid to the stateid that an operation returned.
    pub(super) fn set_stateid(&mut self, stateid: stateid4) {
        if let Some(current) = &mut self.current {
            current.stateid = stateid;
        }
    }

    /// Resolves a stateid argument: the special "current" stateid stands for the current stateid. Its sequence number
    /// becomes 0, so that any sequence number is valid (§8.2.3).
    ///
    /// # Errors
    /// BAD_STATEID if the argument is "current" and the current stateid is a special stateid (§16.2.3.1.2).
    pub(super) fn stateid(&self, asked: stateid4) -> Answer<stateid4> {
        let stateid = self.exact_stateid(asked)?;
        // Keep the sequence number of a layout stateid, because this number says which LAYOUTGET replies the client has
        // seen, and is never 0 (§12.5.3).
        let any_age = asked == CURRENT && !stateids::is_of_layout(&stateid);
        Ok(if any_age { stateid4 { seqid: 0, ..stateid } } else { stateid })
    }

    /// Resolves a stateid argument like [`Compound::stateid`], but the "current" stateid stands for the stateid of the
    /// saved filehandle (RFC 7862 §15.2.3).
    pub(super) fn saved_stateid(&self, asked: stateid4) -> Answer<stateid4> {
        if asked != CURRENT {
            return Ok(asked);
        }
        let saved = self.saved.map(|h| h.stateid).filter(|s| s.other != ANONYMOUS.other);
        saved.map(|s| stateid4 { seqid: 0, ..s }).ok_or(NFS4ERR_BAD_STATEID.into())
    }

    /// Resolves a stateid argument like [`Compound::stateid`], but keeps the sequence number, which CLOSE and
    /// OPEN_DOWNGRADE need.
    pub(super) fn exact_stateid(&self, asked: stateid4) -> Answer<stateid4> {
        if asked != CURRENT {
            return Ok(asked);
        }
        let current = self.current.map(|h| h.stateid).filter(|s| s.other != ANONYMOUS.other);
        current.ok_or(NFS4ERR_BAD_STATEID.into())
    }

    /// Reads the state tables: calls the closure `look` with the tables while holding their lock.
    pub(super) fn state<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(&lock(&self.server.state))
    }

    /// Changes the state tables, and carries out the effects (`Effect`) of this change.
    pub(super) async fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> Answer<R> {
        let (result, effects) = self.server.change(change);
        self.server.settle(&self.ctx, effects).await?;
        Ok(result)
    }

    /// Records that the client has sent WRITE or COMMIT for a file. If the client's delegation of the file is recalled,
    /// the client gets more time to return the delegation.
    pub(super) fn flushes(&self, file: FileId) {
        lock(&self.server.state).flushes(self.client(), file, self.ctx.now);
    }

    /// Returns GRACE during the grace period, because the operation could conflict with a reclaim (§8.4.2.1).
    pub(super) fn check_grace(&self) -> Answer<()> {
        if self.state(State::in_grace) { Err(NFS4ERR_GRACE.into()) } else { Ok(()) }
    }
}

/// Guard of a request's slot in the reply cache. The guard frees the slot even if the task of the request is cancelled.
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

/// How the server continues after the first operation of a COMPOUND.
enum Opening {
    /// SEQUENCE accepted the request; the server executes the following operations.
    Session(Sequenced),
    /// The operation runs without a session (RFC 8881 §2.10.6).
    Alone,
    /// The reply is complete: it reports an error, or comes from the reply cache.
    Done(Segments),
}

impl<F: FileSystem, C: Callbacks> Server<F, C> {
    /// Executes one COMPOUND and returns the reply (`COMPOUND4res`). Neither the request nor the reply has an RPC
    /// header.
    ///
    /// The caller must await the result even if the connection is lost, because the reply cache keeps the reply for a
    /// retry.
    ///
    /// # Errors
    /// The message is not a COMPOUND; the caller replies with the RPC error GARBAGE_ARGS (RFC 5531 §9).
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
        // If SEQUENCE renewed an expired lease, store the client record again before the client gets new state. If
        // the file system cannot store the record, the client cannot reclaim its state after a restart of the server,
        // but this request can continue.
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

    /// Handles the first operation: SEQUENCE, or an operation that is permitted without SEQUENCE (§2.10.6).
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

/// Returns the reply to a retry whose first reply was not cached: RETRY_UNCACHED_REP.
fn uncached(mut results: OpsWriter, input: &mut Ops, tag: Bytes) -> Segments {
    let Ok(Some(number)) = input.next_number() else {
        return results.into_res(NFS4_OK, tag);
    };
    let status = NFS4ERR_RETRY_UNCACHED_REP;
    refuse(&mut results, opnum(number).unwrap_or(OP_ILLEGAL), &status.into());
    results.into_res(status, tag)
}

/// Appends the result of a failed operation to the reply.
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

/// The limits on the length of a reply in bytes (§2.10.6.4).
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

    /// Returns the number of bytes by which a reply with `used` bytes of results may grow, and the error for a longer
    /// reply.
    fn left(&self, used: usize) -> (usize, nfsstat4) {
        match self.cached {
            Some(cached) if cached < self.whole => (cached.saturating_sub(used), NFS4ERR_REP_TOO_BIG_TO_CACHE),
            _ => (self.whole.saturating_sub(used), NFS4ERR_REP_TOO_BIG),
        }
    }
}

impl<F: FileSystem, C: Callbacks> Compound<'_, F, C> {
    /// Executes one operation and appends its result to the reply.
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
