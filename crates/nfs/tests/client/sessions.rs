//! Tests of the client's session: replies to CREATE_SESSION, errors of SEQUENCE, and status flags.

use crate::helpers::*;
use bytes::Bytes;
use nfs::client::compound::{Compound, Failed, Results};
use nfs::client::recovery::{self, Continuity, Next, Redo, Task, tasks};
use nfs::client::session::{Outcome, Session, SessionWants, Unusable};
use nfs::client::slots::{Slots, Ticket};
use nfs::state::sessions::Sequence;
use std::time::Duration;
use wire::nfs4::compound::OpsWriter;
use wire::nfs4::*;
use xdr::{Reader, Segments, Xdr};

#[test]
fn create_session_replies_are_checked() {
    let mut state = new_state();
    let identity = identify(&mut state, 1);
    let wants = SessionWants::new(8);
    let good = state.create_session(&wants.args(&identity), USER, CONNECTION, 1, at(0)).unwrap();
    let new = |reply: &CREATE_SESSION4resok| Session::new(&identity, &wants, reply, at(0), LEASE).map(|s| s.id());
    assert_eq!(new(&good), Ok(good.csr_sessionid));
    type Break = fn(&mut CREATE_SESSION4resok);
    let cases: [(Break, Unusable); 7] = [
        (|r| r.csr_sequence += 1, Unusable::WrongSequence),
        (|r| r.csr_fore_chan_attrs.ca_maxrequestsize += 1, Unusable::Grown("ca_maxrequestsize")),
        (|r| r.csr_back_chan_attrs.ca_maxresponsesize_cached = 1, Unusable::Grown("ca_maxresponsesize_cached")),
        (|r| r.csr_fore_chan_attrs.ca_maxoperations = 7, Unusable::TooSmall("ca_maxoperations")),
        (|r| r.csr_fore_chan_attrs.ca_maxrequests = 0, Unusable::TooSmall("ca_maxrequests")),
        (|r| r.csr_fore_chan_attrs.ca_maxresponsesize = 1 << 20, Unusable::TooSmall("ca_maxresponsesize")),
        (|r| r.csr_fore_chan_attrs.ca_maxrequestsize = 0, Unusable::TooSmall("ca_maxrequestsize")),
    ];
    for (breaks, error) in cases {
        let mut reply = good.clone();
        breaks(&mut reply);
        assert_eq!(new(&reply), Err(error));
    }
    let mut without = good.clone();
    without.csr_flags = 0;
    let session = Session::new(&identity, &wants, &without, at(0), LEASE).unwrap();
    assert_eq!(session.back(), None);
}

/// Creates a session of `slots` slots, and lets the SEQUENCE of one request fail with `status`. Returns the session,
/// the slot and sequence number of the request, and what the client must do next.
fn refused_with(slots: u32, status: nfsstat4) -> (Session, Ticket, Outcome) {
    let (_, mut session) = connect(slots);
    let ticket = session.acquire().unwrap();
    let outcome = session.replied(ticket, refusal(status), at(1));
    (session, ticket, outcome)
}

#[test]
fn each_sequence_error_has_its_outcome() {
    let (mut session, ticket, outcome) = refused_with(1, NFS4ERR_DELAY);
    assert!(matches!(outcome, Outcome::Wait));
    assert!(session.acquire().is_none(), "the slot is still in use");
    session.give_up(ticket, false);
    assert_eq!(session.acquire(), Some(ticket));
    let (session, _, outcome) = refused_with(1, NFS4ERR_CONN_NOT_BOUND_TO_SESSION);
    assert!(matches!(outcome, Outcome::Bind));
    assert_eq!(session.slots().used(), 1);
    for status in [NFS4ERR_BADSESSION, NFS4ERR_DEADSESSION] {
        assert!(matches!(refused_with(1, status).2, Outcome::SessionLost));
    }
    let (mut session, ticket, outcome) = refused_with(1, NFS4ERR_SEQ_FALSE_RETRY);
    assert!(matches!(outcome, Outcome::Again));
    assert_eq!(session.acquire(), Some(Ticket { sequence: 2, ..ticket }), "that number is spent");
    assert!(matches!(refused_with(1, NFS4ERR_SEQ_MISORDERED).2, Outcome::SessionLost), "its only slot is of no use");
    let (mut session, _, outcome) = refused_with(2, NFS4ERR_SEQ_MISORDERED);
    assert!(matches!(outcome, Outcome::Again));
    assert_eq!(session.acquire(), Some(Ticket { slot: 1, sequence: 1 }));
    let (_, mut session) = connect(4);
    let tickets = [(); 3].map(|()| session.acquire().unwrap());
    assert!(matches!(session.replied(tickets[2], refusal(NFS4ERR_BADSLOT), at(1)), Outcome::Again));
    assert!(session.acquire().is_none(), "slots 2 and 3 are not accepted");
    assert!(matches!(refused_with(1, NFS4ERR_BADSLOT).2, Outcome::SessionLost));
    for status in [NFS4ERR_REQ_TOO_BIG, NFS4ERR_TOO_MANY_OPS, NFS4ERR_SERVERFAULT] {
        let (mut session, ticket, outcome) = refused_with(1, status);
        assert!(matches!(outcome, Outcome::Refused(s) if s == status));
        assert_eq!(session.acquire(), Some(ticket), "nothing was executed");
    }
}

#[test]
fn malformed_replies_are_distinguished_from_errors() {
    let (mut state, session) = connect(1);
    let mut base = session.clone();
    let ticket = base.acquire().unwrap();
    let (args, judged, _) = decode(&encode(&base, ticket, 1, true));
    let Ok(Sequence::New(new)) = state.sequence(&args, judged, at(0)) else { panic!("not new") };
    let outcome = |bytes: Bytes| base.clone().replied(ticket, bytes, at(1));
    let mut other = new.result;
    other.sr_sequenceid += 1;
    let mut no_sequence = OpsWriter::new();
    no_sequence.op(OP_PUTFH, &PUTFH4res { status: NFS4_OK });
    let cut = reply(new.result, 1, 1);
    let nonsense = [
        Bytes::new(),
        reply(other, 1, 1),
        no_sequence.into_res(NFS4_OK, Bytes::new()).to_bytes(),
        cut.slice(..20),
        cut.slice(..40),
    ];
    for bytes in nonsense {
        assert!(matches!(outcome(bytes.clone()), Outcome::Malformed(_)), "{bytes:?}");
    }
    let empty = OpsWriter::new().into_res(NFS4ERR_MINOR_VERS_MISMATCH, Bytes::new()).to_bytes();
    assert!(matches!(outcome(empty), Outcome::Refused(NFS4ERR_MINOR_VERS_MISMATCH)));
    assert!(matches!(outcome(reply(new.result, 1, 1)), Outcome::Done { status: NFS4_OK, flags: 0, .. }));
}

#[test]
fn the_lease_is_renewed_from_the_time_of_sending() {
    let (_, mut session) = connect(1);
    assert_eq!(session.renewal_due(), at(60));
    let ticket = session.acquire().unwrap();
    let mut result = SEQUENCE4resok { sr_sessionid: session.id(), sr_sequenceid: 1, ..Default::default() };
    assert!(matches!(session.replied(ticket, reply(result, 1, 1), at(30)), Outcome::Done { .. }));
    assert_eq!(session.renewal_due(), at(90));
    let ticket = session.acquire().unwrap();
    result.sr_sequenceid = 2;
    result.sr_status_flags = SEQ4_STATUS_EXPIRED_ALL_STATE_REVOKED;
    session.replied(ticket, reply(result, 1, 1), at(50));
    assert_eq!(session.renewal_due(), at(90), "not renewed (§18.46.3)");
    assert!(!session.lease_over(at(119)) && session.lease_over(at(120)));
    let heard = |session: &Session, secs| session.is_heard_of(Duration::from_secs(5), at(secs));
    assert!(heard(&session, 30) && heard(&session, 34) && !heard(&session, 35));
    assert!(!heard(&session, 29), "the clock was set back");
    session.set_lease(Duration::from_secs(15));
    assert_eq!(session.renewal_due(), at(40));
    assert!(!session.lease_over(at(44)) && session.lease_over(at(45)));
}

#[test]
fn the_number_of_usable_slots_follows_the_grants_of_the_server() {
    let (_, mut session) = connect(4);
    let answer = |session: &mut Session, ticket: Ticket, highest, target| {
        let result = SEQUENCE4resok {
            sr_sessionid: session.id(),
            sr_sequenceid: ticket.sequence,
            sr_slotid: ticket.slot,
            sr_highest_slotid: highest,
            sr_target_highest_slotid: target,
            sr_status_flags: 0,
        };
        assert!(matches!(session.replied(ticket, reply(result, 1, 1), at(0)), Outcome::Done { .. }));
    };
    let first = session.acquire().unwrap();
    let second = session.acquire().unwrap();
    assert_eq!(session.sequence(first, true).sa_highest_slotid, 1);
    answer(&mut session, second, 3, 0);
    assert!(session.acquire().is_none());
    answer(&mut session, first, 3, 3);
    let again: Vec<_> = std::iter::from_fn(|| session.acquire()).map(|t| (t.slot, t.sequence)).collect();
    assert_eq!(again, [(0, 2), (1, 2), (2, 1), (3, 1)], "numbers go on");
    session.recall_slots(0);
    assert_eq!(session.slots().usable(), 1);
    assert!(session.is_outstanding(&referring_call4 { rc_slotid: 1, rc_sequenceid: 2 }));
    assert!(!session.is_outstanding(&referring_call4 { rc_slotid: 1, rc_sequenceid: 1 }));
    assert!(!session.is_outstanding(&referring_call4 { rc_slotid: 9, rc_sequenceid: 1 }));
    let huge = again.into_iter().map(|(slot, sequence)| Ticket { slot, sequence });
    for ticket in huge {
        answer(&mut session, ticket, 1000, 1000);
    }
    assert_eq!(std::iter::from_fn(|| session.acquire()).count(), 4, "never more than was wished for");
}

#[test]
fn slots_granted_again_start_at_sequence_one() {
    let mut slots = Slots::new(2);
    let (first, second) = (slots.acquire().unwrap(), slots.acquire().unwrap());
    slots.grant(0, 0, 2);
    slots.done(second);
    slots.done(first);
    slots.grant(1, 1, 2);
    assert_eq!(slots.acquire(), Some(Ticket { slot: 0, sequence: 2 }));
    assert_eq!(slots.acquire(), Some(Ticket { slot: 1, sequence: 1 }));
    slots.done(Ticket { slot: 1, sequence: 7 });
    assert_eq!(slots.used(), 2, "a ticket of another time changes nothing");
}

#[test]
fn a_compound_is_encoded_as_specified_without_copying_its_payload() {
    let (_, mut session) = connect(1);
    let ticket = session.acquire().unwrap();
    let data = Bytes::from(vec![7; 5000]);
    let args = WRITE4args { stateid: stateid4::default(), offset: 9, stable: UNSTABLE4, data: data.clone() };
    let request =
        Compound::new().putfh(&Bytes::from_static(b"handle")).op(OP_WRITE, &args).void(OP_GETFH).once().build();
    assert_eq!(request.numbers(), [OP_PUTFH, OP_WRITE, OP_GETFH]);
    let sequence = session.sequence(ticket, request.is_once());
    let call: Segments = request.encode(&sequence, 2, false);
    assert!(call.parts().iter().any(|p| p.as_ptr() == data.as_ptr()), "the payload was copied");
    let whole = COMPOUND4args::from_bytes(&call.to_bytes()).unwrap();
    assert_eq!((whole.minorversion, whole.tag.len()), (2, 0));
    let expected = [
        nfs_argop4::OP_SEQUENCE(sequence),
        nfs_argop4::OP_PUTFH(PUTFH4args { object: Bytes::from_static(b"handle") }),
        nfs_argop4::OP_WRITE(args),
        nfs_argop4::OP_GETFH,
    ];
    assert_eq!(whole.argarray, expected);
    assert!(sequence.sa_cachethis);
}

#[test]
fn results_name_the_failed_operation() {
    let mut out = OpsWriter::new();
    out.op(OP_PUTFH, &PUTFH4res { status: NFS4_OK });
    out.op(OP_GETDEVICEINFO, &GETDEVICEINFO4res::NFS4ERR_TOOSMALL(777));
    let bytes = out.into_res(NFS4ERR_TOOSMALL, Bytes::new()).to_bytes();
    let mut input = Reader::new(bytes);
    let header = wire::nfs4::compound::ResHeader::decode(&mut input).unwrap();
    let results = Results::new(wire::nfs4::compound::Ops::new(header.numres, input));
    let mut good = results.clone();
    good.done(OP_PUTFH).unwrap();
    let failed = good.take::<GETDEVICEINFO4resok>(OP_GETDEVICEINFO).unwrap_err();
    assert_eq!(failed, Failed::Op { op: OP_GETDEVICEINFO, index: 1, status: NFS4ERR_TOOSMALL });
    assert_eq!(good.rest().input().u32(), Ok(777));
    assert!(matches!(good.done(OP_GETFH), Err(Failed::Malformed(_))), "there are no more");
    assert!(matches!(results.clone().done(OP_LOOKUP), Err(Failed::Malformed(_))), "of another operation");
    assert!(matches!(results.finish(), Err(Failed::Malformed(_))), "results are left");
}

#[test]
fn status_flags_map_to_ordered_tasks() {
    assert_eq!(tasks(0), []);
    assert_eq!(tasks(SEQ4_STATUS_CB_PATH_DOWN | SEQ4_STATUS_CB_PATH_DOWN_SESSION), [Task::BindBackchannel]);
    assert_eq!(
        tasks(SEQ4_STATUS_DEVID_DELETED | SEQ4_STATUS_RECALLABLE_STATE_REVOKED | SEQ4_STATUS_BACKCHANNEL_FAULT),
        [Task::ReplaceSession, Task::DropLayouts, Task::RefreshDevices]
    );
    let all = tasks(u32::MAX);
    assert_eq!(all.len(), 7);
    assert!(all.is_sorted());
}

#[test]
fn exchange_id_shows_whether_the_client_state_survived() {
    let mut state = new_state();
    let first = identify(&mut state, 1);
    let wants = SessionWants::new(1);
    state.create_session(&wants.args(&first), USER, CONNECTION, 1, at(0)).unwrap();
    let again = identify(&mut state, 1);
    assert!(again.confirmed);
    assert_eq!(recovery::continuity(&first, &again), Continuity::Kept);
    let mut restarted = new_state();
    let lost = identify(&mut restarted, 1);
    assert!(!lost.confirmed);
    assert_eq!(recovery::continuity(&first, &lost), Continuity::Lost);
    let mut elsewhere = lost;
    elsewhere.scope = Bytes::from_static(b"another");
    assert_eq!(recovery::continuity(&first, &elsewhere), Continuity::Elsewhere);
}

#[test]
fn each_recovery_error_has_its_next_step() {
    assert_eq!(recovery::exchange_id_failed(NFS4ERR_DELAY), Next::Wait);
    assert_eq!(recovery::exchange_id_failed(NFS4ERR_CLID_INUSE), Next::GiveUp);
    assert_eq!(recovery::create_session_failed(NFS4ERR_STALE_CLIENTID), Next::StartOver);
    assert_eq!(recovery::create_session_failed(NFS4ERR_DELAY), Next::Wait);
    assert_eq!(recovery::create_session_failed(NFS4ERR_TOOSMALL), Next::GiveUp);
    assert_eq!(recovery::after_session_lost(true, true), Redo::Send);
    assert_eq!(recovery::after_session_lost(false, true), Redo::Unknown);
    assert_eq!(recovery::after_session_lost(false, false), Redo::Send);
    let pauses: Vec<_> = (0..12).map(recovery::pause).collect();
    assert!(pauses.is_sorted() && pauses[0] == Duration::from_millis(20) && pauses[11] == Duration::from_secs(5));
}
