//! Helpers of the tests of the state tables: states with connected clients, requests, and an enumeration of all short
//! sequences of operations.

use bytes::Bytes;
use nfs::state::reply_cache::Fingerprint;
use nfs::state::sessions::{Request, Sequence, Sequenced};
use nfs::state::{ClientId, Config, ConnectionId, Principal, Result, State};
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use types::Timestamp;
use wire::nfs4::*;

pub const LEASE: Duration = Duration::from_secs(90);
pub const ROLES: u32 = EXCHGID4_FLAG_USE_PNFS_MDS;
pub const ALICE: Principal = Principal::Sys(1000);
pub const BOB: Principal = Principal::Sys(1001);
pub const CONNECTION: ConnectionId = ConnectionId(1);

pub fn at(secs: i64) -> Timestamp {
    Timestamp { secs, nanos: 0 }
}

pub fn new_state() -> State {
    State::new(Config::new(7, ROLES, LEASE), Vec::new(), at(0))
}

pub fn exchange_args(owner: &'static str, verifier: u8, flags: u32) -> EXCHANGE_ID4args {
    EXCHANGE_ID4args {
        eia_clientowner: client_owner4 { co_verifier: [verifier; 8], co_ownerid: Bytes::from_static(owner.as_bytes()) },
        eia_flags: flags,
        eia_state_protect: state_protect4_a::SP4_NONE,
        eia_client_impl_id: Vec::new(),
    }
}

pub fn channel(requests: u32) -> channel_attrs4 {
    channel_attrs4 {
        ca_headerpadsize: 0,
        ca_maxrequestsize: 1_049_620,
        ca_maxresponsesize: 1_049_480,
        ca_maxresponsesize_cached: 7584,
        ca_maxoperations: 8,
        ca_maxrequests: requests,
        ca_rdma_ird: Vec::new(),
    }
}

pub fn back_channel() -> channel_attrs4 {
    channel_attrs4 {
        ca_maxrequestsize: 4096,
        ca_maxresponsesize: 4096,
        ca_maxresponsesize_cached: 0,
        ca_maxoperations: 2,
        ..channel(16)
    }
}

pub fn create_args(client: ClientId, sequence: u32) -> CREATE_SESSION4args {
    CREATE_SESSION4args {
        csa_clientid: client.0,
        csa_sequence: sequence,
        csa_flags: CREATE_SESSION4_FLAG_CONN_BACK_CHAN,
        csa_fore_chan_attrs: channel(2),
        csa_back_chan_attrs: back_channel(),
        csa_cb_program: 0x4000_0000,
        csa_sec_parms: vec![callback_sec_parms4::AUTH_NONE],
    }
}

/// Creates a confirmed client with one session on [`CONNECTION`].
pub fn connect(state: &mut State, owner: &'static str, now: Timestamp) -> (ClientId, sessionid4) {
    let id = state.exchange_id(&exchange_args(owner, 1, 0), ALICE, now).unwrap();
    let session = state.create_session(&create_args(id.client, id.sequence), ALICE, CONNECTION, 5, now).unwrap();
    (id.client, session.csr_sessionid)
}

pub fn sequence_args(session: sessionid4, slot: u32, sequence: u32, cache: bool) -> SEQUENCE4args {
    SEQUENCE4args {
        sa_sessionid: session,
        sa_sequenceid: sequence,
        sa_slotid: slot,
        sa_highest_slotid: slot,
        sa_cachethis: cache,
    }
}

pub fn request(connection: ConnectionId) -> Request {
    Request { connection, fingerprint: Fingerprint::new(ALICE, b"operations"), size: 200, operations: 2 }
}

pub fn sequence(state: &mut State, args: &SEQUENCE4args, now: Timestamp) -> Result<Sequence> {
    state.sequence(args, request(CONNECTION), now)
}

/// Sends a SEQUENCE. Panics unless the server accepts the SEQUENCE as the start of a new request.
pub fn new_request(state: &mut State, args: &SEQUENCE4args, now: Timestamp) -> Sequenced {
    match sequence(state, args, now) {
        Ok(Sequence::New(sequenced)) => sequenced,
        other => panic!("not taken as new: {other:?}"),
    }
}

/// Creates clients with one session each, which have sent RECLAIM_COMPLETE.
pub fn clients<const N: usize>() -> (State, [(ClientId, sessionid4); N]) {
    let mut state = new_state();
    let clients = std::array::from_fn(|i| {
        let (client, session) = connect(&mut state, ["a", "b", "c"][i], at(0));
        state.reclaim_complete(client, false).unwrap();
        (client, session)
    });
    state.take_effects();
    (state, clients)
}

/// Renews the lease of a client with a SEQUENCE, and returns the status flags of the reply.
pub fn renew_lease(state: &mut State, session: sessionid4, number: u32, now: Timestamp) -> u32 {
    let new = new_request(state, &sequence_args(session, 0, number, false), now);
    state.finish(new.token, None);
    new.result.sr_status_flags
}

/// Runs every history of at most `depth` calls on copies of `world`. `apply` panics if the state differs from the
/// model; the test then fails with the history.
pub fn walk<W: Clone, C: Copy + Debug>(world: &W, calls: &[C], depth: u32, apply: fn(&mut W, C)) {
    walk_from(world, calls, depth, apply, &mut Vec::new());
}

fn walk_from<W: Clone, C: Copy + Debug>(
    world: &W,
    calls: &[C],
    depth: u32,
    apply: fn(&mut W, C),
    history: &mut Vec<C>,
) {
    for call in calls {
        history.push(*call);
        let mut next = world.clone();
        let outcome = catch_unwind(AssertUnwindSafe(|| apply(&mut next, *call)));
        assert!(outcome.is_ok(), "after {history:?}");
        if depth > 1 {
            walk_from(&next, calls, depth - 1, apply, history);
        }
        history.pop();
    }
}
