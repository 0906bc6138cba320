//! Tests of extended attributes (RFC 8276) and of the operations of NFSv4.2 (RFC 7862).

use super::*;
use crate::testing::bench::Bench;
use types::Cred;

fn set(option: setxattr_option4, key: &str, value: &[u8]) -> Arg {
    Arg::OP_SETXATTR(SETXATTR4args { sxa_option: option, sxa_key: text(key), sxa_value: Bytes::copy_from_slice(value) })
}

fn get(key: &str) -> Arg {
    Arg::OP_GETXATTR(GETXATTR4args { gxa_name: text(key) })
}

#[test]
fn extended_attributes_are_set_listed_and_removed() {
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
fn seek_allocate_and_deallocate_apply_to_ranges() {
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
fn io_advise_needs_an_open_with_any_access() {
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

fn pieces(result: &Res) -> (bool, Vec<read_plus_content>) {
    match result {
        Res::OP_READ_PLUS(READ_PLUS4res::NFS4_OK(ok)) => (ok.rpr_eof, ok.rpr_contents.clone()),
        other => panic!("{other:?}"),
    }
}

/// Creates a file of 24 KiB: a hole of 8 KiB, 5 KiB of data, and a hole up to the end.
fn with_holes(peer: &Peer, name: &str) -> (stateid4, Bytes) {
    let (stateid, handle) = file(peer, name);
    peer.ok(write(&handle, stateid, 8192, &[7; 5120]));
    peer.ok(setattr(&handle, stateid, size(24576)));
    (stateid, handle)
}

#[test]
fn read_plus_reports_a_leading_hole_instead_of_zeros() {
    use read_plus_content::*;
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    peer.cache.set(false);
    let (stateid, handle) = with_holes(&peer, "a");
    let read = |rpa_offset, rpa_count| {
        let args = READ_PLUS4args { rpa_stateid: stateid, rpa_offset, rpa_count };
        pieces(&peer.ok(vec![putfh(&handle), Arg::OP_READ_PLUS(args)])[1])
    };
    let hole = |di_offset, di_length| NFS4_CONTENT_HOLE(data_info4 { di_offset, di_length });
    let data = |d_offset, len: usize| NFS4_CONTENT_DATA(data4 { d_offset, d_data: vec![7; len].into() });
    assert_eq!(read(100, 1000), (false, vec![hole(100, 1000)]));
    assert_eq!(read(0, 8192 + 5), (false, vec![hole(0, 8192), data(8192, 5)]));
    assert_eq!(read(8192, 5120), (false, vec![data(8192, 5120)]));
    assert_eq!(read(16384, 1 << 20), (true, vec![hole(16384, 8192)]));
    assert_eq!(read(24576, 5), (true, vec![]));
    assert_eq!(read(0, 0), (false, vec![]));
    let args = READ_PLUS4args { rpa_stateid: stateid, rpa_offset: 0, rpa_count: u32::MAX };
    peer.cache.set(true);
    assert_eq!(peer.fails(vec![putfh(&handle), Arg::OP_READ_PLUS(args)]), NFS4ERR_REP_TOO_BIG_TO_CACHE);
}

#[test]
fn copy_keeps_the_holes_of_the_source() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    peer.cache.set(false);
    let (from, source) = with_holes(&peer, "a");
    let (to, target) = file(&peer, "b");
    peer.ok(write(&target, to, 0, &[9; 4096]));
    let args = COPY4args {
        ca_src_stateid: from,
        ca_dst_stateid: to,
        ca_consecutive: true,
        ca_synchronous: false,
        ..COPY4args::default()
    };
    let copy = |args: COPY4args| vec![putfh(&source), Arg::OP_SAVEFH, putfh(&target), Arg::OP_COPY(args)];
    let ok = |wr_count| {
        Res::OP_COPY(COPY4res::NFS4_OK(COPY4resok {
            cr_response: write_response4 {
                wr_callback_id: vec![],
                wr_count,
                wr_committed: UNSTABLE4,
                wr_writeverf: *b"memory!!",
            },
            cr_requirements: copy_requirements4 { cr_consecutive: true, cr_synchronous: true },
        }))
    };
    assert_eq!(peer.ok(copy(args.clone()))[3], ok(24576), "to the end of the source");
    let read_all = |handle: &Bytes, stateid| match &peer.ok(read(handle, stateid, 0, 1 << 16))[1] {
        Res::OP_READ(READ4res::NFS4_OK(ok)) => ok.data.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(read_all(&source, from), read_all(&target, to));
    assert_eq!(bench.server.counters().copied_bytes, 8192, "of data, in whole blocks");
    let part = COPY4args { ca_src_offset: 8190, ca_dst_offset: 24576, ca_count: 4, ..args.clone() };
    assert_eq!(peer.ok(copy(part))[3], ok(4));
    assert_eq!(&read_all(&target, to)[24576..], &[0, 0, 7, 7]);
    let beyond = COPY4args { ca_src_offset: 24577, ..args.clone() };
    assert_eq!(peer.fails(copy(beyond)), NFS4ERR_INVAL);
    let too_much = COPY4args { ca_count: 24577, ..args.clone() };
    assert_eq!(peer.fails(copy(too_much)), NFS4ERR_INVAL);
    let far = COPY4args { ca_dst_offset: u64::MAX, ca_count: 1, ..args.clone() };
    assert_eq!(peer.fails(copy(far)), NFS4ERR_FBIG);
    let elsewhere = COPY4args { ca_source_server: vec![netloc4::NL4_NAME(text("another"))], ..args.clone() };
    assert_eq!(peer.fails(copy(elsewhere)), NFS4ERR_NOTSUPP);
    let itself = vec![putfh(&target), Arg::OP_SAVEFH, Arg::OP_COPY(args.clone())];
    assert_eq!(peer.fails(itself), NFS4ERR_INVAL);
    let unknown = COPY4args { ca_src_stateid: stateid4 { seqid: 1, other: [9; 12] }, ..args };
    assert_eq!(peer.fails(copy(unknown)), NFS4ERR_BAD_STATEID);
}

#[test]
fn layoutstats_and_layouterror_need_a_layout_stateid() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let (stateid, handle) = file(&peer, "a");
    let get = Arg::OP_LAYOUTGET(layoutget(stateid, LAYOUTIOMODE4_RW));
    let held = layout(&peer.ok(vec![putfh(&handle), get])[1]).logr_stateid;
    let stats = |lsa_stateid| {
        let args = LAYOUTSTATS4args { lsa_stateid, lsa_length: u64::MAX, ..LAYOUTSTATS4args::default() };
        vec![putfh(&handle), Arg::OP_LAYOUTSTATS(args)]
    };
    peer.ok(stats(held));
    assert_eq!(peer.fails(stats(stateid)), NFS4ERR_BAD_STATEID);
    let error = device_error4 { de_deviceid: [1; 16], de_status: NFS4ERR_NXIO, de_opnum: OP_WRITE };
    let faults = |lea_stateid| {
        let lea_errors = vec![error; 2];
        vec![
            putfh(&handle),
            Arg::OP_LAYOUTERROR(LAYOUTERROR4args { lea_offset: 0, lea_length: 1, lea_stateid, lea_errors }),
        ]
    };
    peer.ok(faults(held));
    assert_eq!(peer.fails(faults(stateid)), NFS4ERR_BAD_STATEID);
}
