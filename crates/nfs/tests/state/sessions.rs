//! Tests of sessions in the state tables: negotiation, SEQUENCE, connections, the backchannel, and memory of reply
//! caches.

use crate::helpers::*;
use nfs::state::reply_cache::Fingerprint;
use nfs::state::sessions::{CallbackEnd, Request, Sequence};
use nfs::state::{Config, ConnectionId, Effect, Result, State};
use wire::nfs4::nfsstat4::*;
use wire::nfs4::*;

const OTHER: ConnectionId = ConnectionId(2);

fn unconfirmed(state: &mut State) -> CREATE_SESSION4args {
    let id = state.exchange_id(&exchange_args("owner", 1, 0), ALICE, at(0)).unwrap();
    create_args(id.client, id.sequence)
}

fn create(state: &mut State, args: &CREATE_SESSION4args) -> Result<CREATE_SESSION4resok> {
    state.create_session(args, ALICE, CONNECTION, 0x1122_3344_5566_7788, at(0))
}

fn flags(state: &mut State, session: sessionid4, number: u32) -> u32 {
    let new = new_request(state, &sequence_args(session, 1, number, false), at(0));
    state.finish(new.token, None);
    new.result.sr_status_flags
}

#[test]
fn channel_attributes_that_linux_asks_for_are_granted() {
    let mut state = new_state();
    let mut args = unconfirmed(&mut state);
    args.csa_flags = CREATE_SESSION4_FLAG_PERSIST | CREATE_SESSION4_FLAG_CONN_BACK_CHAN;
    args.csa_fore_chan_attrs = channel(64);
    let got = create(&mut state, &args).unwrap();
    assert_eq!(got.csr_flags, CREATE_SESSION4_FLAG_CONN_BACK_CHAN, "no persistence");
    assert_eq!(got.csr_fore_chan_attrs, channel(64));
    assert_eq!(got.csr_back_chan_attrs, back_channel(), "nothing above what was asked, or the mount fails");
    assert_eq!(got.csr_sequence, args.csa_sequence);
}

#[test]
fn create_session_reduces_channel_attributes_to_the_limits() {
    let mut state = new_state();
    let mut args = unconfirmed(&mut state);
    let huge = channel_attrs4 {
        ca_headerpadsize: 64,
        ca_maxrequestsize: u32::MAX,
        ca_maxresponsesize: u32::MAX,
        ca_maxresponsesize_cached: u32::MAX,
        ca_maxoperations: u32::MAX,
        ca_maxrequests: u32::MAX,
        ca_rdma_ird: vec![1],
    };
    args.csa_fore_chan_attrs = huge.clone();
    args.csa_back_chan_attrs = huge;
    let got = create(&mut state, &args).unwrap();
    let fore = got.csr_fore_chan_attrs;
    assert_eq!(fore.ca_maxrequestsize as usize, types::limits::RECORD_MAX);
    assert_eq!(fore.ca_maxoperations, types::limits::COMPOUND_OPS_MAX);
    assert_eq!(fore.ca_maxrequests, types::limits::SLOTS_MAX);
    assert_eq!(fore.ca_maxresponsesize_cached, types::limits::REPLY_CACHED_MAX);
    assert_eq!((fore.ca_headerpadsize, fore.ca_rdma_ird), (0, vec![]));
    assert_eq!(got.csr_back_chan_attrs.ca_maxrequests, 16);
}

#[test]
fn channels_too_small_to_work_are_refused() {
    type Break = fn(&mut channel_attrs4);
    let broken: [(Break, nfsstat4); 4] = [
        (|c| c.ca_maxrequestsize = 100, NFS4ERR_TOOSMALL),
        (|c| c.ca_maxresponsesize = 0, NFS4ERR_TOOSMALL),
        (|c| c.ca_maxoperations = 1, NFS4ERR_INVAL),
        (|c| c.ca_maxrequests = 0, NFS4ERR_INVAL),
    ];
    for (breaks, error) in broken {
        let mut state = new_state();
        let mut args = unconfirmed(&mut state);
        breaks(&mut args.csa_fore_chan_attrs);
        assert_eq!(create(&mut state, &args), Err(error));
        assert!(state.clients().all(|c| !c.confirmed), "a failed CREATE_SESSION confirms nothing");
        assert_eq!(create(&mut state, &args), Err(error), "asked again");
        args.csa_fore_chan_attrs = channel(2);
        assert!(create(&mut state, &args).is_ok(), "mended, under the same sequence number");
        let mut args = unconfirmed(&mut state);
        breaks(&mut args.csa_back_chan_attrs);
        assert_eq!(create(&mut state, &args), Err(error));
        args.csa_flags = 0;
        assert_eq!(create(&mut state, &args), Err(error), "not wanted, and described all the same");
        args.csa_back_chan_attrs = channel_attrs4::default();
        let without = create(&mut state, &args).unwrap();
        assert_eq!(without.csr_back_chan_attrs, channel_attrs4::default(), "nobody asked for a backchannel");
        let bind = BIND_CONN_TO_SESSION4args {
            bctsa_sessid: without.csr_sessionid,
            bctsa_dir: CDFC4_BACK,
            bctsa_use_conn_in_rdma_mode: false,
        };
        assert_eq!(state.bind_conn_to_session(&bind, OTHER), Err(NFS4ERR_INVAL));
    }
}

#[test]
fn a_request_is_executed_once_and_replayed_byte_for_byte() {
    let mut state = new_state();
    let (client, session) = connect(&mut state, "owner", at(0));
    let args = sequence_args(session, 0, 1, true);
    let new = new_request(&mut state, &args, at(5));
    assert_eq!((new.client, new.max_cached, new.max_response), (client, Some(7584), 1_049_480));
    let result = &new.result;
    assert_eq!((result.sr_sessionid, result.sr_slotid, result.sr_sequenceid), (session, 0, 1));
    assert_eq!((result.sr_highest_slotid, result.sr_target_highest_slotid), (1, 1));
    assert_eq!(sequence(&mut state, &args, at(6)), Err(NFS4ERR_DELAY));
    // The connection breaks while the server executes the request. The server still caches the reply for the retry.
    state.connection_lost(CONNECTION);
    assert!(state.finish(new.token, Some(b"the reply")));
    let again = state.sequence(&args, request(OTHER), at(7));
    assert_eq!(again, Ok(Sequence::Replay("the reply".into())));
    assert_eq!(state.client(client).unwrap().renewed, at(7));
    let next = SEQUENCE4args { sa_sequenceid: 2, sa_cachethis: false, ..args };
    let new = new_request(&mut state, &next, at(8));
    assert_eq!(new.max_cached, None);
    assert!(!state.finish(new.token, Some(&[0; 5000])));
    assert!(matches!(sequence(&mut state, &next, at(9)), Ok(Sequence::Uncached(r)) if r.sr_sequenceid == 2));
}

#[test]
fn a_failed_sequence_changes_no_state() {
    let mut state = new_state();
    let (client, session) = connect(&mut state, "owner", at(0));
    let good = sequence_args(session, 0, 1, true);
    let ok = request(CONNECTION);
    let attempts = [
        (SEQUENCE4args { sa_sessionid: [9; 16], ..good }, ok, NFS4ERR_BADSESSION),
        (SEQUENCE4args { sa_slotid: 2, ..good }, ok, NFS4ERR_BADSLOT),
        (SEQUENCE4args { sa_highest_slotid: 2, ..good }, ok, NFS4ERR_BAD_HIGH_SLOT),
        (SEQUENCE4args { sa_sequenceid: 0, ..good }, ok, NFS4ERR_SEQ_MISORDERED),
        (SEQUENCE4args { sa_sequenceid: 2, ..good }, ok, NFS4ERR_SEQ_MISORDERED),
        (good, Request { size: 1_049_621, ..ok }, NFS4ERR_REQ_TOO_BIG),
        (good, Request { operations: 9, ..ok }, NFS4ERR_TOO_MANY_OPS),
    ];
    for (args, request, error) in attempts {
        assert_eq!(state.sequence(&args, request, at(50)), Err(error));
        assert_eq!(state.client(client).unwrap().renewed, at(0), "an error renews no lease");
    }
    new_request(&mut state, &good, at(50));
    let theirs = Request { fingerprint: Fingerprint::new(BOB, b"operations"), ..ok };
    assert_eq!(state.sequence(&good, theirs, at(51)), Err(NFS4ERR_SEQ_FALSE_RETRY));
}

#[test]
fn destroy_session_needs_a_connection_of_the_session() {
    let mut state = new_state();
    let (_, session) = connect(&mut state, "owner", at(0));
    assert_eq!(state.destroy_session(session, OTHER), Err(NFS4ERR_CONN_NOT_BOUND_TO_SESSION));
    let new = match state.sequence(&sequence_args(session, 0, 1, true), request(OTHER), at(0)) {
        Ok(Sequence::New(new)) => new,
        other => panic!("any connection may carry requests (§2.10.3.1): {other:?}"),
    };
    state.take_effects();
    assert_eq!(state.destroy_session(session, OTHER), Ok(()));
    assert_eq!(state.take_effects(), [Effect::SessionGone(session)]);
    assert!(!state.finish(new.token, Some(b"too late")));
    assert_eq!(state.destroy_session(session, OTHER), Err(NFS4ERR_BADSESSION));
    assert_eq!(sequence(&mut state, &sequence_args(session, 0, 1, true), at(0)), Err(NFS4ERR_BADSESSION));
    let (_, orphan) = connect(&mut state, "another", at(0));
    state.connection_lost(CONNECTION);
    assert_eq!(state.destroy_session(orphan, OTHER), Ok(()), "none of its connections is left");
}

#[test]
fn the_backchannel_uses_the_connections_that_are_bound_to_it() {
    let mut state = new_state();
    let (client, session) = connect(&mut state, "owner", at(0));
    assert_eq!(flags(&mut state, session, 1), 0);
    let call = state.backchannel(client).unwrap();
    assert_eq!((call.connection, call.program, call.session), (CONNECTION, 0x4000_0000, session));
    assert_eq!((call.sequence.csa_slotid, call.sequence.csa_sequenceid, call.sequence.csa_cachethis), (0, 1, false));
    let second = state.backchannel(client).unwrap();
    assert_eq!((second.sequence.csa_slotid, second.sequence.csa_highest_slotid), (1, 1));
    state.callback_done(session, second.slot, CallbackEnd::Answered);
    state.connection_lost(CONNECTION);
    state.callback_done(session, call.slot, CallbackEnd::Lost);
    assert!(!state.has_backchannel(client) && state.backchannel(client).is_none());
    let down = SEQ4_STATUS_CB_PATH_DOWN | SEQ4_STATUS_CB_PATH_DOWN_SESSION;
    assert_eq!(flags(&mut state, session, 2), down);
    let bind = |state: &mut State, dir, connection| {
        let args =
            BIND_CONN_TO_SESSION4args { bctsa_sessid: session, bctsa_dir: dir, bctsa_use_conn_in_rdma_mode: false };
        state.bind_conn_to_session(&args, connection).unwrap().bctsr_dir
    };
    assert_eq!(bind(&mut state, CDFC4_FORE, ConnectionId(3)), CDFS4_FORE);
    assert_eq!(flags(&mut state, session, 3), down);
    assert_eq!(bind(&mut state, CDFC4_BACK_OR_BOTH, OTHER), CDFS4_BOTH);
    assert_eq!(flags(&mut state, session, 4), 0);
    assert_eq!(bind(&mut state, CDFC4_FORE_OR_BOTH, ConnectionId(4)), CDFS4_BOTH);
    assert_eq!(bind(&mut state, CDFC4_BACK, ConnectionId(5)), CDFS4_BACK);
    // The callback on slot 0 got no reply. The next callback has the next sequence number. After SEQ_MISORDERED the
    // server uses the previous sequence number again.
    let retry = state.backchannel(client).unwrap();
    assert_eq!((retry.sequence.csa_slotid, retry.sequence.csa_sequenceid, retry.connection), (0, 2, OTHER));
    state.callback_done(session, retry.slot, CallbackEnd::Misordered);
    let retry = state.backchannel(client).unwrap();
    assert_eq!((retry.sequence.csa_slotid, retry.sequence.csa_sequenceid), (0, 1));
    state.callback_done(session, retry.slot, CallbackEnd::Refused);
    assert_eq!(state.backchannel(client).unwrap().sequence.csa_sequenceid, 1);
}

#[test]
fn bind_conn_to_session_binds_the_requested_channels() {
    // Each case consists of three directions (channels): the direction to which the connection is already bound, the
    // direction that BIND_CONN_TO_SESSION requests, and the direction in the reply (`None`: the reply is INVAL).
    let (fore, back, both) = (Some(CDFS4_FORE), Some(CDFS4_BACK), Some(CDFS4_BOTH));
    for (before, asked, after) in [
        (None, CDFC4_FORE, fore),
        (None, CDFC4_BACK, back),
        (None, CDFC4_FORE_OR_BOTH, both),
        (None, CDFC4_BACK_OR_BOTH, both),
        (Some(CDFC4_FORE), CDFC4_FORE, fore),
        (Some(CDFC4_FORE), CDFC4_BACK, None),
        (Some(CDFC4_FORE), CDFC4_FORE_OR_BOTH, both),
        (Some(CDFC4_BACK), CDFC4_BACK, back),
        (Some(CDFC4_BACK), CDFC4_FORE, None),
        (Some(CDFC4_BACK), CDFC4_BACK_OR_BOTH, both),
        (Some(CDFC4_FORE_OR_BOTH), CDFC4_FORE, None),
        (Some(CDFC4_FORE_OR_BOTH), CDFC4_BACK, None),
        (Some(CDFC4_FORE_OR_BOTH), CDFC4_FORE_OR_BOTH, both),
    ] {
        let mut state = new_state();
        let (_, session) = connect(&mut state, "owner", at(0));
        let bind = |state: &mut State, bctsa_sessid, bctsa_dir| {
            let args = BIND_CONN_TO_SESSION4args { bctsa_sessid, bctsa_dir, bctsa_use_conn_in_rdma_mode: true };
            let bound = state.bind_conn_to_session(&args, OTHER)?;
            assert_eq!((bound.bctsr_sessid, bound.bctsr_use_conn_in_rdma_mode), (bctsa_sessid, true));
            Ok(bound.bctsr_dir)
        };
        if let Some(before) = before {
            bind(&mut state, session, before).unwrap();
        }
        assert_eq!(bind(&mut state, session, asked), after.ok_or(NFS4ERR_INVAL), "{asked:?} after {before:?}");
        assert_eq!(bind(&mut state, [9; 16], asked), Err(NFS4ERR_BADSESSION));
        // A backchannel with two connections still works after one of them breaks.
        state.connection_lost(CONNECTION);
        let carries = before == Some(CDFC4_FORE_OR_BOTH)
            || before == Some(CDFC4_BACK)
            || after.is_some_and(|after| after != CDFS4_FORE);
        assert_eq!(flags(&mut state, session, 1) == 0, carries);
    }
}

#[test]
fn no_fault_is_reported_to_a_client_without_a_backchannel() {
    let mut state = new_state();
    let mut args = unconfirmed(&mut state);
    args.csa_flags = 0;
    let session = create(&mut state, &args).unwrap().csr_sessionid;
    assert_eq!(flags(&mut state, session, 1), 0);
    assert!(!state.has_backchannel(state.session(session).unwrap().client));
}

#[test]
fn a_backchannel_without_a_usable_slot_is_reported_as_a_fault() {
    let mut state = new_state();
    let mut args = unconfirmed(&mut state);
    args.csa_back_chan_attrs.ca_maxrequests = 1;
    let session = create(&mut state, &args).unwrap().csr_sessionid;
    let client = state.session(session).unwrap().client;
    for _ in 0..2 {
        let call = state.backchannel(client).unwrap();
        state.callback_done(session, call.slot, CallbackEnd::Lost);
    }
    assert_eq!(state.backchannel(client), None);
    assert_eq!(flags(&mut state, session, 1), SEQ4_STATUS_CB_PATH_DOWN_SESSION | SEQ4_STATUS_BACKCHANNEL_FAULT);
}

#[test]
fn reply_cache_memory_limits_sessions_and_is_freed_with_them() {
    let config = Config { reply_cache_bytes: 20 * 7584, ..Config::new(7, ROLES, LEASE) };
    let mut state = State::new(config, Vec::new(), at(0));
    let mut args = unconfirmed(&mut state);
    args.csa_fore_chan_attrs = channel(64);
    let mut sessions = Vec::new();
    let mut slots = 0;
    let refused = loop {
        match create(&mut state, &args) {
            Ok(got) => {
                slots += got.csr_fore_chan_attrs.ca_maxrequests;
                sessions.push(got.csr_sessionid);
                args.csa_sequence += 1;
            }
            Err(error) => break error,
        }
    };
    assert_eq!(refused, NFS4ERR_NOSPC);
    assert!(sessions.len() > 4 && slots <= 20, "{} sessions, {slots} slots", sessions.len());
    state.destroy_session(sessions[0], CONNECTION).unwrap();
    args.csa_sequence += 1;
    assert!(create(&mut state, &args).is_ok());
}

#[test]
fn session_ids_differ_even_with_equal_random_bits() {
    let mut state = new_state();
    let mut args = unconfirmed(&mut state);
    let first = create(&mut state, &args).unwrap().csr_sessionid;
    args.csa_sequence += 1;
    let second = create(&mut state, &args).unwrap().csr_sessionid;
    assert_ne!(first, second);
    assert_eq!(first[8..], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
}

#[test]
fn any_principal_may_create_sessions_of_a_confirmed_client_id() {
    let mut state = new_state();
    let mut args = unconfirmed(&mut state);
    args.csa_flags = 0xf;
    assert_eq!(create(&mut state, &args), Err(NFS4ERR_INVAL));
    args.csa_flags = 0;
    assert_eq!(state.create_session(&args, BOB, CONNECTION, 1, at(0)), Err(NFS4ERR_CLID_INUSE), "not confirmed");
    create(&mut state, &args).unwrap();
    args.csa_sequence += 1;
    assert!(state.create_session(&args, BOB, CONNECTION, 1, at(0)).is_ok());
}

#[test]
fn a_reply_too_big_to_cache_is_refused_before_execution() {
    let mut state = new_state();
    let mut args = unconfirmed(&mut state);
    args.csa_fore_chan_attrs.ca_maxresponsesize_cached = 10;
    let session = create(&mut state, &args).unwrap().csr_sessionid;
    let refused = sequence(&mut state, &sequence_args(session, 0, 1, true), at(0));
    assert_eq!(refused, Err(NFS4ERR_REP_TOO_BIG_TO_CACHE));
    new_request(&mut state, &sequence_args(session, 0, 1, false), at(0));
}
