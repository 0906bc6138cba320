//! Helpers of the client tests: server state with one client, and the COMPOUNDs that the tests send.

use bytes::Bytes;
use nfs::client::compound::Compound;
use nfs::client::session::{Identity, Session, SessionWants, exchange_id_args};
use nfs::client::slots::Ticket;
use nfs::state::reply_cache::Fingerprint;
use nfs::state::sessions::Request;
use nfs::state::{Config, ConnectionId, Principal, State};
use std::time::Duration;
use types::Timestamp;
use wire::nfs4::compound::{ArgsHeader, Ops, OpsWriter};
use wire::nfs4::*;
use xdr::{Reader, Xdr};

pub const LEASE: Duration = Duration::from_secs(90);
pub const USER: Principal = Principal::Sys(0);
pub const CONNECTION: ConnectionId = ConnectionId(1);

pub fn at(secs: i64) -> Timestamp {
    Timestamp { secs, nanos: 0 }
}

pub fn new_state() -> State {
    State::new(Config::new(3, EXCHGID4_FLAG_USE_PNFS_MDS, LEASE), Vec::new(), at(0))
}

/// Sends EXCHANGE_ID to the server, and returns the identity that the client derives from the reply.
pub fn identify(state: &mut State, verifier: u8) -> Identity {
    let args = exchange_id_args(Bytes::from_static(b"client"), [verifier; 8], EXCHGID4_FLAG_USE_PNFS_MDS);
    let got = state.exchange_id(&args, USER, at(0)).unwrap();
    Identity::from(&EXCHANGE_ID4resok {
        eir_clientid: got.client.0,
        eir_sequenceid: got.sequence,
        eir_flags: got.flags,
        eir_state_protect: state_protect4_r::SP4_NONE,
        eir_server_owner: server_owner4 { so_minor_id: 0, so_major_id: Bytes::from_static(b"server") },
        eir_server_scope: Bytes::from_static(b"scope"),
        eir_server_impl_id: Vec::new(),
    })
}

/// Creates a session of `slots` slots. Returns the server state and the client's session.
pub fn connect(slots: u32) -> (State, Session) {
    let mut state = new_state();
    let identity = identify(&mut state, 1);
    let wants = SessionWants::new(slots);
    let reply = state.create_session(&wants.args(&identity), USER, CONNECTION, 1, at(0)).unwrap();
    let session = Session::new(&identity, &wants, &reply, at(0), LEASE).unwrap();
    (state, session)
}

/// Encodes a test request: a COMPOUND with PUTFH, whose filehandle is the byte `id`.
pub fn encode(session: &Session, ticket: Ticket, id: u8, once: bool) -> Bytes {
    let compound = Compound::new().putfh(&Bytes::copy_from_slice(&[id]));
    let request = if once { compound.once() } else { compound }.build();
    request.encode(&session.sequence(ticket, request.is_once()), 1, false).to_bytes()
}

/// Decodes a test request of [`encode`]: its SEQUENCE arguments, the properties that the server checks, and its `id`.
pub fn decode(call: &Bytes) -> (SEQUENCE4args, Request, u8) {
    let mut input = Reader::new(call.clone());
    let header = ArgsHeader::decode(&mut input).unwrap();
    let mut ops = Ops::new(header.numops, input);
    assert_eq!(ops.next_number(), Ok(Some(OP_SEQUENCE as u32)));
    let args = ops.body().unwrap();
    let fingerprint = Fingerprint::new(USER, &ops.input().clone().rest());
    assert_eq!(ops.next_number(), Ok(Some(OP_PUTFH as u32)));
    let id = ops.body::<PUTFH4args>().unwrap().object[0];
    ops.finish().unwrap();
    (args, Request { connection: CONNECTION, fingerprint, size: call.len(), operations: header.numops }, id)
}

/// Encodes the reply to a test request after its execution. The reply contains `id`, padded to at least `size` bytes.
pub fn reply(sequence: SEQUENCE4resok, id: u8, size: usize) -> Bytes {
    let mut ops = OpsWriter::new();
    ops.op(OP_SEQUENCE, &SEQUENCE4res::NFS4_OK(sequence)).op(OP_PUTFH, &PUTFH4res { status: NFS4_OK });
    let mut object = vec![id];
    object.resize(size.max(1), 0);
    ops.op(OP_READLINK, &READLINK4res::NFS4_OK(READLINK4resok { link: object.into() }));
    ops.into_res(NFS4_OK, Bytes::new()).to_bytes()
}

/// Encodes the reply to a request whose SEQUENCE failed with `status`.
pub fn refusal(status: nfsstat4) -> Bytes {
    let mut ops = OpsWriter::new();
    ops.op(OP_SEQUENCE, &SEQUENCE4res::Default(status));
    ops.into_res(status, Bytes::new()).to_bytes()
}

/// Encodes the reply to a retry whose first reply was not cached: RETRY_UNCACHED_REP.
pub fn uncached(sequence: SEQUENCE4resok) -> Bytes {
    let mut ops = OpsWriter::new();
    ops.op(OP_SEQUENCE, &SEQUENCE4res::NFS4_OK(sequence)).op(OP_PUTFH, &NFS4ERR_RETRY_UNCACHED_REP);
    ops.into_res(NFS4ERR_RETRY_UNCACHED_REP, Bytes::new()).to_bytes()
}
