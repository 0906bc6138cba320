//! Extended attributes and the operations of version 4.2.

use super::*;
use crate::trial::Bench;
use types::Cred;

fn set(option: setxattr_option4, key: &str, value: &[u8]) -> Arg {
    Arg::OP_SETXATTR(SETXATTR4args { sxa_option: option, sxa_key: text(key), sxa_value: Bytes::copy_from_slice(value) })
}

fn get(key: &str) -> Arg {
    Arg::OP_GETXATTR(GETXATTR4args { gxa_name: text(key) })
}

#[test]
fn extended_attributes_are_kept() {
    let bench = Bench::default();
    let mut peer = Peer::meet(&bench, 1);
    let (_, handle) = file(&peer, "a");
    let with = |op| vec![putfh(&handle), op];
    match &peer.ok(with(set(SETXATTR4_CREATE, "k", b"value")))[1] {
        Res::OP_SETXATTR(SETXATTR4res::NFS4_OK(change)) => assert!(change.before < change.after),
        other => panic!("{other:?}"),
    }
    assert_eq!(peer.fails(with(set(SETXATTR4_CREATE, "k", b""))), NFS4ERR_EXIST);
    assert_eq!(peer.fails(with(set(SETXATTR4_REPLACE, "absent", b""))), NFS4ERR_NOXATTR);
    peer.ok(with(set(SETXATTR4_EITHER, "k2", b"2")));
    assert_eq!(peer.ok(with(get("k")))[1], Res::OP_GETXATTR(GETXATTR4res::NFS4_OK(text("value"))));
    assert_eq!(peer.fails(with(get("absent"))), NFS4ERR_NOXATTR);
    let list = |lxa_cookie, lxa_maxcount| with(Arg::OP_LISTXATTRS(LISTXATTRS4args { lxa_cookie, lxa_maxcount }));
    let page = |lxr_cookie, names: &[&str], lxr_eof| {
        let lxr_names = names.iter().map(|n| text(n)).collect();
        Res::OP_LISTXATTRS(LISTXATTRS4res::NFS4_OK(LISTXATTRS4resok { lxr_cookie, lxr_names, lxr_eof }))
    };
    assert_eq!(peer.ok(list(0, 100))[1], page(2, &["k", "k2"], true));
    assert_eq!(peer.ok(list(0, 24))[1], page(1, &["k"], false));
    assert_eq!(peer.ok(list(1, 24))[1], page(2, &["k2"], true));
    assert_eq!(peer.fails(list(0, 20)), NFS4ERR_TOOSMALL);
    assert_eq!(peer.fails(list(3, 100)), NFS4ERR_BAD_COOKIE);
    let drop = || with(Arg::OP_REMOVEXATTR(REMOVEXATTR4args { rxa_name: text("k") }));
    peer.ok(drop());
    assert_eq!(peer.fails(drop()), NFS4ERR_NOXATTR);
    peer.cache.set(false);
    let big = vec![0; types::limits::XATTR_VALUE_MAX + 1];
    assert_eq!(peer.fails(with(set(SETXATTR4_EITHER, "k", &big))), NFS4ERR_XATTR2BIG);
    peer.cred = Cred { uid: 2000, gid: 2000, groups: vec![] };
    assert_eq!(peer.fails(with(set(SETXATTR4_EITHER, "k", b""))), NFS4ERR_ACCESS);
    peer.ok(with(get("k2")));
}

#[test]
fn ranges_are_sought_reserved_and_freed() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let (stateid, handle) = file(&peer, "a");
    peer.ok(write(&handle, stateid, 0, b"0123456789"));
    let seek =
        |sa_offset, sa_what| vec![putfh(&handle), Arg::OP_SEEK(SEEK4args { sa_stateid: stateid, sa_offset, sa_what })];
    let at = |sr_offset, sr_eof| Res::OP_SEEK(SEEK4res::NFS4_OK(seek_res4 { sr_eof, sr_offset }));
    assert_eq!(peer.ok(seek(3, NFS4_CONTENT_DATA))[1], at(3, false));
    assert_eq!(peer.ok(seek(3, NFS4_CONTENT_HOLE))[1], at(10, true));
    assert_eq!(peer.fails(seek(10, NFS4_CONTENT_DATA)), NFS4ERR_NXIO);
    let allocate = |aa_offset, aa_length| {
        vec![putfh(&handle), Arg::OP_ALLOCATE(ALLOCATE4args { aa_stateid: stateid, aa_offset, aa_length })]
    };
    let deallocate = |da_offset, da_length| {
        vec![putfh(&handle), Arg::OP_DEALLOCATE(DEALLOCATE4args { da_stateid: stateid, da_offset, da_length })]
    };
    peer.ok(allocate(10, 90));
    peer.ok(deallocate(1, 8));
    let (data, eof) = match &peer.ok(read(&handle, stateid, 0, 200))[1] {
        Res::OP_READ(READ4res::NFS4_OK(ok)) => (ok.data.clone(), ok.eof),
        other => panic!("{other:?}"),
    };
    assert_eq!((data.len(), &data[..10], eof), (100, &b"0\0\0\0\0\0\0\0\09"[..], true));
    assert_eq!(peer.fails(allocate(u64::MAX, 2)), NFS4ERR_INVAL);
    assert_eq!(peer.fails(allocate(0, 0)), NFS4ERR_INVAL);
    assert_eq!(peer.fails(allocate(0, 1 << 60)), NFS4ERR_FBIG);
    assert_eq!(peer.fails(deallocate(0, u64::MAX)), NFS4ERR_FBIG);
    let reading = Arg::OP_OPEN(open("b", OPEN4_SHARE_ACCESS_READ, unchecked(0o644)));
    let args = ALLOCATE4args { aa_stateid: CURRENT, aa_offset: 0, aa_length: 1 };
    assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, reading, Arg::OP_ALLOCATE(args)]), NFS4ERR_OPENMODE);
}

#[test]
fn advice_needs_an_open_of_any_kind() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let advise = |iaa_stateid| {
        Arg::OP_IO_ADVISE(IO_ADVISE4args { iaa_stateid, iaa_offset: 0, iaa_count: 0, iaa_hints: vec![2] })
    };
    for access in [OPEN4_SHARE_ACCESS_READ, OPEN4_SHARE_ACCESS_WRITE] {
        let mut args = open("a", access, unchecked(0o600));
        args.owner.owner = text(&format!("owner {access}"));
        let results = peer.ok(vec![Arg::OP_PUTROOTFH, Arg::OP_OPEN(args), advise(CURRENT)]);
        let none = IO_ADVISE4resok { ior_hints: vec![] };
        assert_eq!(results[2], Res::OP_IO_ADVISE(IO_ADVISE4res::NFS4_OK(none)));
    }
    let bad = stateid4 { seqid: 1, other: [9; 12] };
    assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, lookup("a"), advise(bad)]), NFS4ERR_BAD_STATEID);
}
