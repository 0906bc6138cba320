//! Tests of LOCK, LOCKT and LOCKU, of lock reclaims after a restart, and of locks of clients with an expired lease.

use super::*;
use crate::exports::Place;
use crate::fs::{ClientRecord, FileSystem, LayoutGone};
use crate::testing::bench::{Bench, LEASE, linux_channels};
use crate::testing::memory::Memory;
use futures_util::FutureExt;
use futures_util::task::noop_waker;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

fn owner(name: &str) -> lock_owner4 {
    lock_owner4 { clientid: 0, owner: text(name) }
}

fn new_lock(open_stateid: stateid4, name: &str, locktype: nfs_lock_type4, offset: u64, length: u64) -> LOCK4args {
    let locker =
        locker4::TRUE(open_to_lock_owner4 { open_seqid: 9, open_stateid, lock_seqid: 9, lock_owner: owner(name) });
    LOCK4args { locktype, reclaim: false, offset, length, locker }
}

fn more(lock_stateid: stateid4, locktype: nfs_lock_type4, offset: u64, length: u64) -> LOCK4args {
    let locker = locker4::FALSE(exist_lock_owner4 { lock_stateid, lock_seqid: 9 });
    LOCK4args { locktype, reclaim: false, offset, length, locker }
}

fn on(handle: &Bytes, args: LOCK4args) -> Vec<Arg> {
    vec![putfh(handle), Arg::OP_LOCK(args)]
}

fn test(handle: &Bytes, locktype: nfs_lock_type4, offset: u64, length: u64) -> Vec<Arg> {
    vec![putfh(handle), Arg::OP_LOCKT(LOCKT4args { locktype, offset, length, owner: owner("me") })]
}

fn unlock(handle: &Bytes, lock_stateid: stateid4, offset: u64, length: u64) -> Vec<Arg> {
    let args = LOCKU4args { locktype: READ_LT, seqid: 7, lock_stateid, offset, length };
    vec![putfh(handle), Arg::OP_LOCKU(args)]
}

/// Returns the lock stateid in the last result, which must be a successful LOCK or LOCKU.
fn locked(results: &[Res]) -> stateid4 {
    match results.last() {
        Some(Res::OP_LOCK(LOCK4res::NFS4_OK(ok))) => ok.lock_stateid,
        Some(Res::OP_LOCKU(LOCKU4res::NFS4_OK(stateid))) => *stateid,
        other => panic!("not locked: {other:?}"),
    }
}

/// Returns the conflicting lock in the last result, which must be a LOCK or LOCKT with DENIED.
fn in_the_way((status, results): (nfsstat4, Vec<Res>)) -> LOCK4denied {
    assert_eq!(status, NFS4ERR_DENIED, "{results:?}");
    match results.into_iter().last() {
        Some(Res::OP_LOCK(LOCK4res::NFS4ERR_DENIED(by)) | Res::OP_LOCKT(LOCKT4res::NFS4ERR_DENIED(by))) => by,
        other => panic!("{other:?}"),
    }
}

fn tested(peer: &Peer, stateids: &[stateid4]) -> Vec<nfsstat4> {
    let args = TEST_STATEID4args { ts_stateids: stateids.to_vec() };
    match &peer.ok(vec![Arg::OP_TEST_STATEID(args)])[0] {
        Res::OP_TEST_STATEID(TEST_STATEID4res::NFS4_OK(ok)) => ok.tsr_status_codes.clone(),
        other => panic!("{other:?}"),
    }
}

fn free(fsa_stateid: stateid4) -> Vec<Arg> {
    vec![Arg::OP_FREE_STATEID(FREE_STATEID4args { fsa_stateid })]
}

/// Sends a SEQUENCE without other operations, and returns the status flags.
fn flags(peer: &Peer) -> u32 {
    match &peer.send(vec![peer.next_sequence()]).resarray[..] {
        [Res::OP_SEQUENCE(SEQUENCE4res::NFS4_OK(ok))] => ok.sr_status_flags,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lock_is_granted_tested_denied_and_released() {
    let bench = Bench::default();
    let (one, two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let (mine, handle) = file(&one, "a");
    let (theirs, _) = file(&two, "a");
    let first = locked(&one.ok(on(&handle, new_lock(mine, "x", WRITE_LT, 10, 10))));
    assert_eq!(first.seqid, 1);
    let by = in_the_way(two.run(on(&handle, new_lock(theirs, "x", READ_LT, 0, u64::MAX))));
    let expected = lock_owner4 { clientid: one.client, owner: text("x") };
    assert_eq!(by, LOCK4denied { offset: 10, length: 10, locktype: WRITE_LT, owner: expected });
    assert_eq!(in_the_way(two.run(test(&handle, READW_LT, 19, 1))), by);
    two.ok(test(&handle, WRITE_LT, 20, u64::MAX));
    // The lock-owner `x` of the first client locks more bytes: once with its lock stateid, once with its open stateid.
    // LOCKT finds the lock that reaches to the end of the file.
    let second = locked(&one.ok(on(&handle, more(first, READ_LT, 15, u64::MAX))));
    assert_eq!((second.other, second.seqid), (first.other, 2));
    assert_eq!(one.fails(on(&handle, more(first, READ_LT, 15, 1))), NFS4ERR_OLD_STATEID);
    let third = locked(&one.ok(on(&handle, new_lock(mine, "x", READ_LT, 0, 5))));
    assert_eq!((third.other, third.seqid), (first.other, 3));
    let by = in_the_way(two.run(test(&handle, WRITE_LT, 1 << 40, 1)));
    assert_eq!((by.offset, by.length, by.locktype), (15, u64::MAX, READ_LT));
    // Two clients can hold read locks on the same bytes, and READ and WRITE ignore locks of other clients.
    locked(&two.ok(on(&handle, new_lock(theirs, "x", READ_LT, 15, 5))));
    two.ok(write(&handle, theirs, 10, b"not kept away"));
    one.ok(read(&handle, third, 10, 3));
    one.ok(write(&handle, third, 10, b"with the stateid of locks"));
    assert_eq!(one.fails(free(third)), NFS4ERR_LOCKS_HELD);
    let fourth = locked(&one.ok(unlock(&handle, third, 0, u64::MAX)));
    assert_eq!(fourth.seqid, 4);
    assert_eq!(tested(&one, &[third, fourth]), [NFS4ERR_OLD_STATEID, NFS4_OK]);
    one.ok(free(fourth));
    assert_eq!(one.fails(unlock(&handle, fourth, 0, 1)), NFS4ERR_BAD_STATEID);
    assert_eq!(bench.server.inspect(|state| state.counts().locks), 1);
    two.ok(close(&handle, theirs));
    assert_eq!(bench.server.inspect(|state| state.counts().locks), 0);
}

#[test]
fn invalid_lock_requests_are_refused() {
    let bench = Bench::default();
    let (peer, other) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let (open_stateid, handle) = file(&peer, "a");
    for (offset, length) in [(0, 0), (5, u64::MAX - 4), (u64::MAX, 1)] {
        assert_eq!(peer.fails(on(&handle, new_lock(open_stateid, "x", READ_LT, offset, length))), NFS4ERR_INVAL);
        assert_eq!(peer.fails(test(&handle, READ_LT, offset, length)), NFS4ERR_INVAL);
        assert_eq!(peer.fails(unlock(&handle, open_stateid, offset, length)), NFS4ERR_INVAL);
    }
    assert_eq!(peer.fails(vec![Arg::OP_LOCK(new_lock(open_stateid, "x", READ_LT, 0, 1))]), NFS4ERR_NOFILEHANDLE);
    let lock = new_lock(open_stateid, "x", READ_LT, 0, 1);
    assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, Arg::OP_LOCK(lock.clone())]), NFS4ERR_ISDIR);
    assert_eq!(other.fails(on(&handle, lock.clone())), NFS4ERR_BAD_STATEID);
    assert_eq!(peer.fails(on(&handle, new_lock(ANONYMOUS, "x", READ_LT, 0, 1))), NFS4ERR_BAD_STATEID);
    assert_eq!(peer.fails(unlock(&handle, open_stateid, 0, 1)), NFS4ERR_BAD_STATEID);
    assert_eq!(peer.fails(on(&handle, LOCK4args { reclaim: true, ..lock })), NFS4ERR_NO_GRACE);
    let reading = OPEN4args { claim: open_claim4::CLAIM_FH, ..open("", OPEN4_SHARE_ACCESS_READ, PLAIN) };
    let reading = OPEN4args { owner: owner("reader"), ..reading };
    let reading = opened(&peer.ok(vec![putfh(&handle), Arg::OP_OPEN(reading)])[1]).stateid;
    assert_eq!(peer.fails(on(&handle, new_lock(reading, "x", WRITE_LT, 0, 1))), NFS4ERR_OPENMODE);
    let lock = locked(&peer.ok(on(&handle, new_lock(reading, "x", READ_LT, 0, 1))));
    assert_eq!(peer.fails(write(&handle, lock, 0, b"x")), NFS4ERR_OPENMODE, "as the open that it is under");
}

#[test]
fn the_current_stateid_may_be_a_lock_stateid() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let unlock = LOCKU4args { locktype: WRITE_LT, seqid: 0, lock_stateid: CURRENT, offset: 0, length: u64::MAX };
    let write = WRITE4args { stateid: CURRENT, offset: 0, stable: UNSTABLE4, data: text("x") };
    peer.ok(vec![
        Arg::OP_PUTROOTFH,
        Arg::OP_OPEN(open("a", OPEN4_SHARE_ACCESS_BOTH, unchecked(0o644))),
        Arg::OP_LOCK(new_lock(CURRENT, "x", WRITE_LT, 0, 1)),
        Arg::OP_WRITE(write),
        Arg::OP_LAYOUTGET(layoutget(CURRENT, LAYOUTIOMODE4_RW)),
    ]);
    let (stateid, handle) = file(&peer, "a");
    peer.ok(vec![putfh(&handle), Arg::OP_LOCK(new_lock(stateid, "x", WRITE_LT, 0, 1)), Arg::OP_LOCKU(unlock)]);
    assert_eq!(bench.server.inspect(|state| state.counts().locks), 0);
}

#[test]
fn a_conflicting_owner_too_long_for_the_reply_is_rep_too_big() {
    let bench = Bench::default();
    let (one, mut two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let (mine, handle) = file(&one, "a");
    one.ok(on(&handle, new_lock(mine, &"x".repeat(1024), WRITE_LT, 0, 1)));
    let (mut fore, back) = linux_channels();
    fore.ca_maxresponsesize = 1000;
    two.new_session(2, fore, back).unwrap();
    let (theirs, _) = file(&two, "a");
    assert_eq!(two.fails(on(&handle, new_lock(theirs, "x", READ_LT, 0, 1))), NFS4ERR_REP_TOO_BIG);
}

/// Two clients open a file; client `one` locks it, and then the lease of `one` expires. Returns filehandle, open and
/// lock stateid of `one`, and open stateid of `two`.
fn away<'a>(one: &Peer<'a>, two: &Peer<'a>) -> (Bytes, stateid4, stateid4, stateid4) {
    let (mine, handle) = file(one, "a");
    let lock = locked(&one.ok(on(&handle, new_lock(mine, "x", WRITE_LT, 0, u64::MAX))));
    let (theirs, _) = file(two, "a");
    for _ in 0..3 {
        one.bench.pass(LEASE / 2);
        two.ok(vec![Arg::OP_PUTROOTFH]);
    }
    assert_eq!(one.bench.server.inspect(|state| state.counts().lapsed), 1);
    (handle, mine, lock, theirs)
}

#[test]
fn a_lapsed_client_resumes_if_no_client_wanted_its_locks() {
    let bench = Bench::default();
    let (one, two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let (handle, mine, lock, theirs) = away(&one, &two);
    assert_eq!(bench.server.fs().owners(), vec![text("client 2")]);
    assert_eq!(flags(&one), 0);
    assert_eq!(bench.server.fs().owners().len(), 2, "it may reclaim again");
    one.ok(write(&handle, lock, 0, b"x"));
    in_the_way(two.run(on(&handle, new_lock(theirs, "y", READ_LT, 0, 1))));
    one.ok(close(&handle, mine));
}

/// Returns the status of a client's next SEQUENCE, after the server has removed the client's record.
fn refused(peer: &Peer) -> nfsstat4 {
    peer.send(vec![peer.next_sequence()]).status
}

#[test]
fn a_lapsed_client_loses_all_state_when_one_lock_is_wanted() {
    let bench = Bench::default();
    let (one, two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let (kept, other) = file(&one, "other");
    one.ok(on(&other, new_lock(kept, "x", WRITE_LT, 0, 5)));
    one.ok(vec![putfh(&other), Arg::OP_LAYOUTGET(layoutget(kept, LAYOUTIOMODE4_RW))]);
    let (handle, _, _, theirs) = away(&one, &two);
    one.bench.server.fs().calls();
    two.ok(on(&handle, new_lock(theirs, "y", WRITE_LT, 7, 1)));
    assert_eq!(refused(&one), NFS4ERR_BADSESSION);
    assert_eq!(bench.server.fs().owners(), vec![text("client 2")]);
    assert_eq!(bench.server.inspect(|state| state.counts().locks), 1);
    // The client returns with a new client id and opens its files again. The client's old locks are gone, so the
    // client's LOCK of file `a` conflicts with the lock of client 2.
    let again = Peer::meet(&bench, 1);
    let (mine, _) = file(&again, "other");
    again.ok(write(&other, mine, 0, b"x"));
    let (mine, _) = file(&again, "a");
    in_the_way(again.run(on(&handle, new_lock(mine, "x", READ_LT, 0, u64::MAX))));
    assert_eq!(bench.server.fs().owners().len(), 2);
}

#[test]
fn a_conflicting_open_removes_a_lapsed_client() {
    let bench = Bench::default();
    let (one, two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let (handle, _, _, theirs) = away(&one, &two);
    two.ok(close(&handle, theirs));
    let alone = OPEN4args { share_deny: OPEN4_SHARE_DENY_BOTH, ..open("a", OPEN4_SHARE_ACCESS_BOTH, PLAIN) };
    two.ok(vec![Arg::OP_PUTROOTFH, Arg::OP_OPEN(alone)]);
    assert_eq!(refused(&one), NFS4ERR_BADSESSION);
    assert_eq!(bench.server.inspect(|state| (state.counts().opens, state.counts().locks)), (1, 0));
}

#[test]
fn a_truncation_does_not_wait_for_a_layout_of_a_lapsed_client() {
    let bench = Bench::default();
    let (one, two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let (mine, handle) = file(&one, "b");
    one.ok(vec![putfh(&handle), Arg::OP_LAYOUTGET(layoutget(mine, LAYOUTIOMODE4_RW))]);
    away(&one, &two);
    two.ok(setattr(&handle, ANONYMOUS, size(0)));
    assert!(bench.server.callbacks().taken().is_empty());
    assert_eq!(flags(&one), SEQ4_STATUS_RECALLABLE_STATE_REVOKED);
    one.ok(read(&handle, mine, 0, 1));
}

/// Starts a server with stored records of these client owners, as after a restart.
fn restarted(owners: &[&str]) -> Bench {
    let memory = Memory::new();
    for owner in owners {
        let record = ClientRecord { owner: text(owner), clientid: 1 };
        memory.persist_client(record).now_or_never().unwrap().unwrap();
    }
    Bench::new(memory)
}

fn come_back<'a>(bench: &'a Bench, connection: u64) -> Peer<'a> {
    let mut peer = Peer::stranger(bench, connection);
    peer.introduce(&format!("client {connection}"), [1; 8]);
    let (fore, back) = linux_channels();
    peer.new_session(1, fore, back).unwrap();
    peer
}

fn reclaim(peer: &Peer, handle: &Bytes, share_access: u32, share_deny: u32) -> (nfsstat4, Vec<Res>) {
    let claim = open_claim4::CLAIM_PREVIOUS(OPEN_DELEGATE_NONE);
    let args = OPEN4args { claim, share_deny, ..open("", share_access, PLAIN) };
    peer.run(vec![putfh(handle), Arg::OP_OPEN(args)])
}

fn complete(peer: &Peer) {
    peer.ok(vec![Arg::OP_RECLAIM_COMPLETE(RECLAIM_COMPLETE4args { rca_one_fs: false })]);
}

#[test]
fn locks_are_reclaimed_before_new_locks_are_granted() {
    let bench = restarted(&["client 1", "client 2"]);
    let handle = bench.server.fs().encode_handle(super::mount::made(&bench, "a"), Place::default());
    let (one, two, new) = (come_back(&bench, 1), come_back(&bench, 2), Peer::meet(&bench, 3));
    let both = OPEN4_SHARE_ACCESS_BOTH;
    let mine = opened(&reclaim(&one, &handle, both, 0).1[1]).stateid;
    let theirs = opened(&reclaim(&two, &handle, both, 0).1[1]).stateid;
    assert_eq!(reclaim(&new, &handle, both, 0).0, NFS4ERR_NO_GRACE, "it has no record");
    assert_eq!(reclaim(&two, &handle, OPEN4_SHARE_ACCESS_READ, 3).0, NFS4ERR_RECLAIM_CONFLICT);
    let delegation = open_claim4::CLAIM_PREVIOUS(OPEN_DELEGATE_WRITE);
    let delegation = OPEN4args { claim: delegation, ..open("", both, PLAIN) };
    assert_eq!(one.fails(vec![putfh(&handle), Arg::OP_OPEN(delegation)]), NFS4ERR_RECLAIM_CONFLICT);
    let again = |open, offset| LOCK4args { reclaim: true, ..new_lock(open, "x", WRITE_LT, offset, 10) };
    let lock = locked(&one.ok(on(&handle, again(mine, 0))));
    assert_eq!(two.fails(on(&handle, again(theirs, 9))), NFS4ERR_RECLAIM_CONFLICT);
    two.ok(on(&handle, again(theirs, 10)));
    assert_eq!(one.fails(on(&handle, more(lock, READ_LT, 50, 1))), NFS4ERR_GRACE, "nothing new yet");
    assert_eq!(new.fails(test(&handle, READ_LT, 0, 1)), NFS4ERR_GRACE);
    // The grace period does not prevent unlocking, or writing under an open.
    one.ok(unlock(&handle, lock, 5, 5));
    one.ok(write(&handle, mine, 0, b"x"));
    complete(&one);
    assert_eq!(one.fails(on(&handle, again(mine, 40))), NFS4ERR_NO_GRACE);
    assert_eq!(one.fails(on(&handle, new_lock(mine, "x", READ_LT, 50, 1))), NFS4ERR_GRACE, "the other is not done");
    complete(&two);
    one.ok(on(&handle, new_lock(mine, "x", READ_LT, 50, 1)));
    assert_eq!(in_the_way(new.run(test(&handle, READ_LT, 0, 100))).length, 5);
}

#[test]
fn late_client_records_are_deleted_before_grace_ends() {
    let bench = restarted(&["client 1", "client 2"]);
    let handle = bench.server.fs().encode_handle(super::mount::made(&bench, "a"), Place::default());
    let (one, new) = (come_back(&bench, 1), Peer::meet(&bench, 3));
    let stateid = opened(&reclaim(&one, &handle, OPEN4_SHARE_ACCESS_BOTH, 0).1[1]).stateid;
    bench.pass(LEASE);
    assert_eq!(bench.server.fs().owners(), vec![text("client 3")], "nobody else may reclaim after another restart");
    let late = LOCK4args { reclaim: true, ..new_lock(stateid, "x", WRITE_LT, 0, 1) };
    assert_eq!(one.fails(on(&handle, late)), NFS4ERR_NO_GRACE);
    new.ok(vec![Arg::OP_PUTROOTFH, Arg::OP_OPEN(open("a", OPEN4_SHARE_ACCESS_BOTH, PLAIN))]);
    // The client keeps the open that it reclaimed during the grace period. After the client's RECLAIM_COMPLETE the
    // server stores the client record again, so that the client may reclaim after the next restart.
    one.ok(read(&handle, stateid, 0, 1));
    complete(&one);
    assert_eq!(bench.server.fs().owners().len(), 2);
}

#[test]
fn layoutcommit_can_reclaim_writes_from_before_a_restart() {
    let bench = restarted(&["client 1"]);
    let handle = bench.server.fs().encode_handle(super::mount::made(&bench, "a"), Place::default());
    let (one, new) = (come_back(&bench, 1), Peer::meet(&bench, 3));
    let commit = |loca_reclaim, boot: u8, kind: u8| {
        let mut other = [0; 12];
        (other[3], other[4], other[11]) = (boot, kind, 9);
        vec![
            putfh(&handle),
            Arg::OP_LAYOUTCOMMIT(LAYOUTCOMMIT4args {
                loca_offset: 0,
                loca_length: u64::MAX,
                loca_reclaim,
                loca_stateid: stateid4 { seqid: 3, other },
                loca_last_write_offset: newoffset4::TRUE(99),
                loca_time_modify: newtime4::FALSE,
                loca_layoutupdate: layoutupdate4 { lou_type: LAYOUT_KIND, lou_body: Bytes::new() },
            }),
        ]
    };
    assert_eq!(new.fails(commit(true, 6, 2)), NFS4ERR_NO_GRACE);
    assert_eq!(one.fails(commit(false, 6, 2)), NFS4ERR_GRACE);
    assert_eq!(one.fails(commit(true, 7, 2)), NFS4ERR_RECLAIM_BAD, "of this start");
    assert_eq!(one.fails(commit(true, 6, 1)), NFS4ERR_RECLAIM_BAD, "of an open");
    match &one.ok(commit(true, 6, 2))[1] {
        Res::OP_LAYOUTCOMMIT(LAYOUTCOMMIT4res::NFS4_OK(ok)) => assert_eq!(ok.locr_newsize, newsize4::TRUE(100)),
        other => panic!("{other:?}"),
    }
    complete(&one);
    assert_eq!(one.fails(commit(true, 6, 2)), NFS4ERR_NO_GRACE);
}

#[test]
fn a_waiting_client_gets_a_callback_when_its_lock_is_free() {
    let bench = Bench::default();
    let (one, two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let (mine, handle) = file(&one, "a");
    one.ok(setattr(&handle, mine, SetAttrs { mode: Some(0o666), ..SetAttrs::default() }));
    let access = OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG;
    let theirs = opened(&two.ok(vec![Arg::OP_PUTROOTFH, Arg::OP_OPEN(open("a", access, PLAIN))])[1]).stateid;
    let held = locked(&one.ok(on(&handle, new_lock(mine, "x", WRITE_LT, 0, 10))));
    in_the_way(two.run(on(&handle, new_lock(theirs, "y", WRITEW_LT, 0, 10))));
    let mut teller = std::pin::pin!(bench.server.deliver());
    assert!(teller.as_mut().now_or_never().is_none());
    assert!(bench.server.callbacks().taken().is_empty());
    one.ok(unlock(&handle, held, 0, 10));
    assert!(teller.as_mut().now_or_never().is_none());
    let calls = bench.server.callbacks().taken();
    let [(path, call)] = &calls[..] else { panic!("{calls:?}") };
    assert_eq!(path.connection, two.connection);
    let owner = state_owner4 { clientid: two.client, owner: text("y") };
    let told = CB_NOTIFY_LOCK4args { cnla_fh: handle.clone(), cnla_lock_owner: owner };
    assert_eq!(call.argarray[1], nfs_cb_argop4::OP_CB_NOTIFY_LOCK(told));
    two.ok(on(&handle, new_lock(theirs, "y", WRITEW_LT, 0, 10)));
}

fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(&noop_waker()))
}

/// Client 1 is killed and starts again, while its earlier writes are still in flight to a data server that does not
/// reply.
#[test]
fn state_of_a_restarted_client_is_free_once_its_writes_are_fenced() {
    let bench = Bench::default();
    let (one, two) = (Peer::meet(&bench, 1), Peer::meet(&bench, 2));
    let (mine, handle) = file(&one, "a");
    one.ok(on(&handle, new_lock(mine, "x", WRITE_LT, 0, 10)));
    one.ok(vec![putfh(&handle), Arg::OP_LAYOUTGET(layoutget(mine, LAYOUTIOMODE4_RW))]);
    let (read_only, other) = file(&one, "b");
    one.ok(vec![putfh(&other), Arg::OP_LAYOUTGET(layoutget(read_only, LAYOUTIOMODE4_READ))]);
    let (theirs, _) = file(&two, "a");
    bench.server.fs().set_silent(true);
    let mut again = Peer::stranger(&bench, 3);
    again.introduce("client 1", [9; 8]);
    let (fore, back) = linux_channels();
    let mut coming = pin!(bench.server.compound(again.call(vec![again.create_session(1, fore, back)])));
    assert!(poll(coming.as_mut()).is_pending());
    assert!(bench.server.fs().calls().gone.iter().all(|(_, _, why)| *why == LayoutGone::Forgotten));
    let refused = |ops| {
        let mut asked = pin!(two.start(ops));
        assert!(poll(asked.as_mut()).is_pending());
        let Poll::Ready(reply) = poll(asked.as_mut()) else { panic!("it waits for ever") };
        reply.status
    };
    let lock = || on(&handle, new_lock(theirs, "y", WRITE_LT, 0, 10));
    let open = |name| Arg::OP_OPEN(open(name, OPEN4_SHARE_ACCESS_BOTH, PLAIN));
    assert_eq!(refused(lock()), NFS4ERR_DELAY);
    assert_eq!(refused(vec![Arg::OP_PUTROOTFH, open("a")]), NFS4ERR_DELAY);
    // A file of which the killed client held only a read layout needs no fence, so another client can open it at once.
    two.ok(vec![Arg::OP_PUTROOTFH, open("b")]);
    let mut waiting = pin!(two.start(lock()));
    assert!(poll(waiting.as_mut()).is_pending());
    bench.server.fs().set_silent(false);
    assert!(poll(coming.as_mut()).is_ready());
    let Poll::Ready(reply) = poll(waiting.as_mut()) else { panic!("it waits for ever") };
    assert_eq!(reply.status, NFS4_OK);
    two.ok(vec![Arg::OP_PUTROOTFH, open("a")]);
    let gone: Vec<_> = bench.server.fs().calls().gone.into_iter().map(|(_, _, why)| why).collect();
    assert_eq!(gone, [LayoutGone::Forgotten, LayoutGone::Revoked]);
}
