//! Tests of READ, WRITE, COMMIT and SETATTR of the size.

use super::*;
use crate::memory::SIZE_MAX;
use crate::trial::Bench;
use types::Cred;

fn bytes(result: &Res) -> (Bytes, bool) {
    match result {
        Res::OP_READ(READ4res::NFS4_OK(ok)) => (ok.data.clone(), ok.eof),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_written_is_read_and_counted() {
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
fn i_o_fails_each_in_its_way() {
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
