//! Tests of READ, WRITE, COMMIT, and SETATTR of the file size.

use super::*;
use crate::testing::bench::Bench;
use crate::testing::memory::SIZE_MAX;
use futures_util::FutureExt;
use types::Cred;

fn bytes(result: &Res) -> (Bytes, bool) {
    match result {
        Res::OP_READ(READ4res::NFS4_OK(ok)) => (ok.data.clone(), ok.eof),
        other => panic!("{other:?}"),
    }
}

#[test]
fn written_bytes_are_read_back_and_counted() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let (stateid, handle) = file(&peer, "a");
    for (stable, offset) in [(UNSTABLE4, 0), (DATA_SYNC4, 3), (FILE_SYNC4, 6)] {
        let args = WRITE4args { stateid, offset, stable, data: text("abc") };
        let results = peer.ok(vec![putfh(&handle), Arg::OP_WRITE(args)]);
        let ok = WRITE4resok { count: 3, committed: stable, writeverf: *b"memory!!" };
        assert_eq!(results[1], Res::OP_WRITE(WRITE4res::NFS4_OK(ok)));
    }
    assert_eq!(bytes(&peer.ok(read(&handle, stateid, 0, 9))[1]), (text("abcabcabc"), true));
    assert_eq!(bytes(&peer.ok(read(&handle, stateid, 1, 3))[1]), (text("bca"), false));
    assert_eq!(bytes(&peer.ok(read(&handle, stateid, 100, 3))[1]), (Bytes::new(), true));
    assert_eq!(bytes(&peer.ok(read(&handle, stateid, u64::MAX, 3))[1]), (Bytes::new(), true));
    peer.ok(write(&handle, stateid, 5, b""));
    let commit = Arg::OP_COMMIT(COMMIT4args { offset: 0, count: 0 });
    let results = peer.ok(vec![putfh(&handle), commit]);
    let ok = COMMIT4resok { writeverf: *b"memory!!" };
    assert_eq!(results[1], Res::OP_COMMIT(COMMIT4res::NFS4_OK(ok)));
    let counters = bench.server.counters();
    assert_eq!((counters.write_bytes, counters.read_bytes), (9, 12));
    assert_eq!(counters.op(OP_WRITE as u32).ok, 4);
    assert_eq!(counters.op(OP_WRITE as u32).name(), "OP_WRITE");
}

#[test]
fn setting_the_size_notifies_weir_clients_that_have_the_file_open() {
    let bench = Bench::default();
    let (one, two, kernel) = (Peer::meet_own(&bench, 1), Peer::meet_own(&bench, 2), Peer::meet(&bench, 3));
    let mut teller = std::pin::pin!(bench.server.deliver());
    let (mine, handle) = file(&one, "a");
    one.ok(setattr(&handle, mine, SetAttrs { mode: Some(0o666), ..size(9) }));
    let access = OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG;
    let open_a = |peer: &Peer| opened(&peer.ok(vec![Arg::OP_PUTROOTFH, Arg::OP_OPEN(open("a", access, PLAIN))])[1]);
    let (theirs, of_kernel) = (open_a(&two).stateid, open_a(&kernel).stateid);
    let mut told_by = |peer: &Peer, stateid, set| {
        let mut setting = std::pin::pin!(peer.start(setattr(&handle, stateid, set)));
        let waits = setting.as_mut().now_or_never().is_none();
        assert!(teller.as_mut().now_or_never().is_none());
        let calls = bench.server.callbacks().taken();
        if waits {
            assert_eq!(setting.now_or_never().expect("all have answered").status, NFS4_OK);
        }
        calls.into_iter().map(|(path, call)| (path.connection, call.argarray[1].clone())).collect::<Vec<_>>()
    };
    let notice = nfs_cb_argop4::OP_CB_NOTIFY(CB_NOTIFY4args { cna_fh: handle.clone(), ..CB_NOTIFY4args::default() });
    assert_eq!(told_by(&one, mine, size(5)), [(two.connection, notice.clone())]);
    assert_eq!(told_by(&two, theirs, size(6)), [(one.connection, notice.clone())]);
    let both = [(one.connection, notice.clone()), (two.connection, notice)];
    assert_eq!(told_by(&kernel, of_kernel, size(7)), both);
    let mode = SetAttrs { mode: Some(0o600), ..SetAttrs::default() };
    assert_eq!(told_by(&one, mine, mode), [], "the size is as before");
    two.ok(close(&handle, theirs));
    assert_eq!(told_by(&one, mine, size(8)), [], "no other client of Weir's has it open");
}

/// The second client never replies to CB_NOTIFY. When the test polls the SETATTR again, the SETATTR stops waiting for
/// the reply, because every timer of the test server expires at the second poll.
#[test]
fn setattr_does_not_wait_for_unresponsive_clients() {
    let bench = Bench::default();
    let (one, two) = (Peer::meet_own(&bench, 1), Peer::meet_own(&bench, 2));
    let (mine, handle) = file(&one, "a");
    one.ok(setattr(&handle, mine, SetAttrs { mode: Some(0o666), ..SetAttrs::default() }));
    let access = OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG;
    two.ok(vec![Arg::OP_PUTROOTFH, Arg::OP_OPEN(open("a", access, PLAIN))]);
    bench.server.callbacks().hang();
    let mut setting = std::pin::pin!(one.start(setattr(&handle, mine, size(5))));
    assert!(setting.as_mut().now_or_never().is_none());
    let mut teller = std::pin::pin!(bench.server.deliver());
    assert!(teller.as_mut().now_or_never().is_none());
    assert_eq!(bench.server.callbacks().taken().len(), 1);
    assert_eq!(setting.now_or_never().expect("the pause is over").status, NFS4_OK);
}

#[test]
fn invalid_io_requests_are_refused() {
    let bench = Bench::default();
    let mut peer = Peer::meet(&bench, 1);
    let (stateid, handle) = file(&peer, "a");
    assert_eq!(peer.fails(write(&handle, stateid, SIZE_MAX, b"x")), NFS4ERR_FBIG);
    assert_eq!(peer.fails(write(&handle, stateid, u64::MAX, b"x")), NFS4ERR_FBIG);
    assert_eq!(peer.fails(setattr(&handle, stateid, size(SIZE_MAX + 1))), NFS4ERR_FBIG);
    let commit = Arg::OP_COMMIT(COMMIT4args { offset: u64::MAX, count: 1 });
    assert_eq!(peer.fails(vec![putfh(&handle), commit]), NFS4ERR_INVAL);
    let commit = Arg::OP_COMMIT(COMMIT4args { offset: 0, count: 1 });
    assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, commit]), NFS4ERR_ISDIR);
    let root = Arg::OP_READ(READ4args { stateid: ANONYMOUS, offset: 0, count: 1 });
    assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, root]), NFS4ERR_ISDIR);
    let mut ops = setattr(&handle, ANONYMOUS, size(1));
    ops[0] = Arg::OP_PUTROOTFH;
    assert_eq!(peer.fails(ops), NFS4ERR_ISDIR);
    let nobody = stateid4 { seqid: 1, other: [9; 12] };
    assert_eq!(peer.fails(read(&handle, nobody, 0, 1)), NFS4ERR_BAD_STATEID);
    assert_eq!(peer.fails(setattr(&handle, nobody, size(1))), NFS4ERR_BAD_STATEID);
    peer.cred = Cred { uid: 2000, gid: 2000, groups: vec![] };
    peer.ok(read(&handle, ANONYMOUS, 0, 1));
    assert_eq!(peer.fails(write(&handle, ANONYMOUS, 0, b"x")), NFS4ERR_ACCESS);
    assert_eq!(peer.fails(setattr(&handle, ANONYMOUS, size(0))), NFS4ERR_ACCESS);
}
