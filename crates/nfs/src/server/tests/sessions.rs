//! Tests of the rules of COMPOUND: the order of operations, retries, and the limits of a session.

use super::*;
use crate::testing::bench::{Bench, linux_channels};
use futures_util::FutureExt;
use xdr::Xdr;

#[test]
fn a_retry_gets_the_same_bytes_and_is_not_executed_again() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let ops = vec![
        peer.next_sequence(),
        Arg::OP_PUTROOTFH,
        Arg::OP_OPEN(open("a", OPEN4_SHARE_ACCESS_BOTH, openflag4::OPEN4_CREATE(createhow4::GUARDED4(mode(0o600))))),
        Arg::OP_GETFH,
    ];
    let send = || bench.server.compound(peer.call(ops.clone())).now_or_never().unwrap().unwrap().to_bytes();
    let first = send();
    assert_eq!(COMPOUND4res::from_bytes(&first).unwrap().status, NFS4_OK);
    assert_eq!(send(), first);
    assert_eq!(bench.server.counters().replays, 1);
    // A request with the slot and sequence number of an earlier request but with different operations is a false retry.
    let mut other = ops.clone();
    other.pop();
    assert_eq!(peer.send(other).status, NFS4ERR_SEQ_FALSE_RETRY);
    let mut skipped = ops.clone();
    peer.next_sequence();
    skipped[0] = peer.next_sequence();
    assert_eq!(peer.send(skipped).status, NFS4ERR_SEQ_MISORDERED);
}

#[test]
fn a_retry_of_an_uncached_long_reply_is_refused() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let (stateid, handle) = file(&peer, "a");
    peer.ok(write(&handle, stateid, 0, &[1; 2000]));
    peer.cache.set(false);
    let mut ops = read(&handle, stateid, 0, 2000);
    ops.insert(0, peer.next_sequence());
    assert_eq!(peer.send(ops.clone()).status, NFS4_OK);
    let again = peer.send(ops);
    assert_eq!(again.status, NFS4ERR_RETRY_UNCACHED_REP);
    assert_eq!(again.resarray.len(), 2);
}

#[test]
fn a_lone_sequence_is_replayed_on_retry() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let ops = vec![peer.next_sequence()];
    let first = peer.send(ops.clone());
    assert_eq!(peer.send(ops), first);
    match &first.resarray[..] {
        [Res::OP_SEQUENCE(SEQUENCE4res::NFS4_OK(ok))] => {
            assert_eq!((ok.sr_highest_slotid, ok.sr_target_highest_slotid, ok.sr_status_flags), (63, 63, 0));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn operations_out_of_place_are_refused() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    assert_eq!(peer.send(vec![Arg::OP_PUTROOTFH]).status, NFS4ERR_OP_NOT_IN_SESSION);
    let set = Arg::OP_SETATTR(SETATTR4args { stateid: ANONYMOUS, obj_attributes: mode(0) });
    assert_eq!(peer.send(vec![set]).status, NFS4ERR_OP_NOT_IN_SESSION);
    let destroy = Arg::OP_DESTROY_CLIENTID(DESTROY_CLIENTID4args { dca_clientid: peer.client });
    assert_eq!(peer.send(vec![destroy.clone(), destroy.clone()]).status, NFS4ERR_NOT_ONLY_OP);
    assert_eq!(peer.send(vec![destroy]).status, NFS4ERR_CLIENTID_BUSY);
    assert_eq!(peer.send(vec![Arg::OP_ILLEGAL]).status, NFS4ERR_OP_ILLEGAL);
    assert_eq!(peer.send(vec![]).status, NFS4_OK);
    let session = Arg::OP_DESTROY_SESSION(DESTROY_SESSION4args { dsa_sessionid: peer.session });
    assert_eq!(peer.fails(vec![session.clone(), Arg::OP_PUTROOTFH]), NFS4ERR_NOT_ONLY_OP);
    let bind = Arg::OP_BIND_CONN_TO_SESSION(BIND_CONN_TO_SESSION4args {
        bctsa_sessid: peer.session,
        bctsa_dir: channel_dir_from_client4::CDFC4_FORE_OR_BOTH,
        bctsa_use_conn_in_rdma_mode: true,
    });
    assert_eq!(peer.fails(vec![bind.clone()]), NFS4ERR_NOT_ONLY_OP);
    match &peer.send(vec![bind]).resarray[..] {
        [Res::OP_BIND_CONN_TO_SESSION(BIND_CONN_TO_SESSION4res::NFS4_OK(ok))] => {
            assert_eq!(ok.bctsr_dir, channel_dir_from_server4::CDFS4_BOTH);
            assert!(ok.bctsr_use_conn_in_rdma_mode);
        }
        other => panic!("{other:?}"),
    }
    let (status, results) = peer.run(vec![Arg::OP_PUTROOTFH, Arg::OP_ILLEGAL, Arg::OP_PUTROOTFH]);
    assert_eq!((status, results.len()), (NFS4ERR_OP_ILLEGAL, 2));
    let sequence = peer.next_sequence();
    peer.sequence.set(peer.sequence.get() - 1);
    assert_eq!(peer.fails(vec![sequence]), NFS4ERR_SEQUENCE_POS);
    assert_eq!(peer.fails(vec![Arg::OP_OPENATTR(OPENATTR4args { createdir: true })]), NFS4ERR_NOTSUPP);
    assert_eq!(peer.fails(vec![Arg::OP_RENEW(RENEW4args { clientid: 1 })]), NFS4ERR_NOTSUPP);
    assert_eq!(peer.run(vec![session]).0, NFS4_OK);
    assert_eq!(peer.run(vec![Arg::OP_PUTROOTFH]).0, NFS4ERR_BADSESSION);
}

#[test]
fn operations_of_a_later_minor_version_are_illegal() {
    let bench = Bench::default();
    let mut peer = Peer::meet(&bench, 1);
    let seek = Arg::OP_SEEK(SEEK4args { sa_stateid: ANONYMOUS, sa_offset: 0, sa_what: NFS4_CONTENT_DATA });
    peer.minor = 1;
    let (status, results) = peer.run(vec![Arg::OP_PUTROOTFH, seek]);
    assert_eq!(status, NFS4ERR_OP_ILLEGAL);
    assert_eq!(results[1], Res::OP_ILLEGAL(ILLEGAL4res { status: NFS4ERR_OP_ILLEGAL }));
    for minor in [0, 3, u32::MAX] {
        peer.minor = minor;
        let reply = peer.send(vec![peer.next_sequence(), Arg::OP_PUTROOTFH]);
        assert_eq!((reply.status, reply.resarray.len()), (NFS4ERR_MINOR_VERS_MISMATCH, 0));
        peer.sequence.set(peer.sequence.get() - 1);
    }
}

#[test]
fn operations_before_a_malformed_one_are_answered() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let ops = vec![peer.next_sequence(), Arg::OP_PUTROOTFH, lookup("a long enough name")];
    let body = peer.call(ops).body;
    let cut = body.slice(..body.len() - 8);
    let reply = bench.server.compound(peer.raw(cut)).now_or_never().unwrap().unwrap();
    let reply = COMPOUND4res::from_bytes(&reply.to_bytes()).unwrap();
    assert_eq!((reply.status, reply.resarray.len()), (NFS4ERR_BADXDR, 3));
    assert_eq!(reply.resarray[2], Res::OP_LOOKUP(LOOKUP4res { status: NFS4ERR_BADXDR }));
    // A COMPOUND with fewer operations than its header announces gets BADXDR.
    let body = peer.call(vec![peer.next_sequence(), Arg::OP_PUTROOTFH, Arg::OP_PUTROOTFH]).body;
    let cut = body.slice(..body.len() - 4);
    let reply = bench.server.compound(peer.raw(cut)).now_or_never().unwrap().unwrap();
    assert_eq!(COMPOUND4res::from_bytes(&reply.to_bytes()).unwrap().status, NFS4ERR_BADXDR);
    // Bytes without the header of a COMPOUND fail the whole RPC call, not a single operation.
    for noise in [&b""[..], b"\0\0\0", b"\xff\xff\xff\xff\0\0\0\0"] {
        assert!(bench.server.compound(peer.raw(Bytes::from_static(noise))).now_or_never().unwrap().is_err());
    }
}

#[test]
fn session_limits_are_enforced() {
    let bench = Bench::default();
    let mut peer = Peer::meet(&bench, 1);
    let (stateid, handle) = file(&peer, "a");
    peer.ok(write(&handle, stateid, 0, &vec![1; 100_000]));
    assert_eq!(peer.run(vec![Arg::OP_PUTROOTFH; 8]).0, NFS4ERR_TOO_MANY_OPS);
    peer.sequence.set(peer.sequence.get() - 1);
    // A session of the Linux client caches replies of at most 7584 bytes.
    assert_eq!(peer.fails(read(&handle, stateid, 0, 8000)), NFS4ERR_REP_TOO_BIG_TO_CACHE);
    peer.cache.set(false);
    peer.ok(read(&handle, stateid, 0, 100_000));
    let (mut fore, back) = linux_channels();
    (fore.ca_maxresponsesize, fore.ca_maxrequestsize) = (900, 1024);
    assert!(peer.new_session(2, fore, back).is_ok());
    assert_eq!(peer.fails(read(&handle, stateid, 0, 900)), NFS4ERR_REP_TOO_BIG);
    assert_eq!(peer.run(write(&handle, stateid, 0, &[2; 1000])).0, NFS4ERR_REQ_TOO_BIG);
    peer.sequence.set(peer.sequence.get() - 1);
    // REMOVE does not run if the reply has no space for its result.
    let getattr = Arg::OP_GETATTR(GETATTR4args { attr_request: crate::attrs::OBJECT.to_bitmap() });
    let mut ops = vec![Arg::OP_PUTROOTFH];
    ops.extend(std::iter::repeat_n(getattr, 5));
    ops.push(Arg::OP_REMOVE(REMOVE4args { target: text("a") }));
    assert_eq!(peer.fails(ops), NFS4ERR_REP_TOO_BIG);
    peer.ok(vec![Arg::OP_PUTROOTFH, lookup("a")]);
}

#[test]
fn an_expired_lease_ends_the_session_and_frees_its_state() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let (_, handle) = file(&peer, "a");
    peer.ok(remove("a"));
    let other = Peer::meet(&bench, 2);
    let gone = bench.server.inspect(|state| state.counts().opens);
    assert_eq!(gone, 1);
    // A client with an expired lease keeps its state until its courtesy time is over. The test server's courtesy time
    // is one lease period.
    for _ in 0..5 {
        bench.pass(crate::testing::bench::LEASE / 2);
        other.ok(vec![Arg::OP_PUTROOTFH]);
    }
    assert_eq!(peer.run(vec![Arg::OP_PUTROOTFH]).0, NFS4ERR_BADSESSION);
    assert_eq!(bench.server.fs().calls().reaped.len(), 1);
    assert_eq!(bench.server.fs().owners(), vec![text("client 2")]);
    let stale = other.fails(vec![putfh(&handle), Arg::OP_GETATTR(GETATTR4args { attr_request: vec![2] })]);
    assert_eq!(stale, NFS4ERR_STALE);
}
