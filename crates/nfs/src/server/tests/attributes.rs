//! Tests of GETATTR, SETATTR, ACCESS, VERIFY and NVERIFY.

use super::*;
use crate::attrs::{Mask, PRIVATE, WRITE_ONLY};
use crate::testing::bench::Bench;
use crate::values::Values;
use types::Cred;

fn getattr(handle: &Bytes, mask: Mask) -> Vec<Arg> {
    vec![putfh(handle), Arg::OP_GETATTR(GETATTR4args { attr_request: mask.to_bitmap() })]
}

fn values(result: &Res) -> Values {
    match result {
        Res::OP_GETATTR(GETATTR4res::NFS4_OK(ok)) => attrs::decode(&ok.obj_attributes).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn getattr_returns_exactly_the_supported_attributes() {
    let bench = Bench::default();
    let mut peer = Peer::meet(&bench, 1);
    let (_, handle) = file(&peer, "a");
    for minor in [1, 2] {
        peer.minor = minor;
        let offered = values(&peer.ok(getattr(&handle, Mask::of(&[0])))[1]).supported_attrs.unwrap();
        // `supported_attrs` does not list Weir's own attributes, which the server sends if a client requests them by
        // number.
        let everything = Mask(u128::MAX).without(WRITE_ONLY).without(PRIVATE);
        let given = peer.ok(getattr(&handle, everything));
        match &given[1] {
            Res::OP_GETATTR(GETATTR4res::NFS4_OK(ok)) => {
                assert_eq!(Mask::from_bitmap(&ok.obj_attributes.attrmask).0, offered.without(WRITE_ONLY));
            }
            other => panic!("{other:?}"),
        }
        let known = values(&given[1]);
        assert_eq!(known.filehandle, Some(handle.clone()));
        assert_eq!(known.fileid, known.mounted_on_fileid);
        assert_eq!(known.mdsthreshold.map(|t| t.len()), Some(1));
    }
    assert_eq!(peer.fails(getattr(&handle, WRITE_ONLY)), NFS4ERR_INVAL);
    // Of Weir's own attributes, the in-memory file system supports only the durability barrier.
    let ours = values(&peer.ok(getattr(&handle, PRIVATE))[1]);
    assert_eq!((ours.weir_settled, ours.weir_queue_delay, ours.weir_policy), (Some(7), None, None));
}

#[test]
fn setattr_checks_attributes_and_permissions() {
    let bench = Bench::default();
    let mut peer = Peer::meet(&bench, 1);
    let (_, handle) = file(&peer, "a");
    let set = SetAttrs { mode: Some(0o640), gid: Some(5), ..SetAttrs::default() };
    let results = peer.ok(setattr(&handle, ANONYMOUS, set));
    let attrsset = attrs::encode_set(&set).attrmask;
    assert_eq!(results[1], Res::OP_SETATTR(SETATTR4res { status: NFS4_OK, attrsset }));
    let after = values(&peer.ok(getattr(&handle, attrs::OBJECT))[1]).attrs().unwrap();
    assert_eq!((after.mode, after.gid), (0o640, 5));
    let bad = |attrmask, attr_vals| {
        let obj_attributes = fattr4 { attrmask, attr_vals };
        vec![putfh(&handle), Arg::OP_SETATTR(SETATTR4args { stateid: ANONYMOUS, obj_attributes })]
    };
    let acl = Mask::of(&[FATTR4_ACL]).to_bitmap();
    let (status, results) = peer.run(bad(acl, Bytes::new()));
    assert_eq!(status, NFS4ERR_ATTRNOTSUPP);
    assert_eq!(results[1], Res::OP_SETATTR(SETATTR4res { status, attrsset: vec![] }));
    let owner = Mask::of(&[FATTR4_OWNER]).to_bitmap();
    assert_eq!(peer.fails(bad(owner, Bytes::from_static(b"\0\0\0\x04root"))), NFS4ERR_BADOWNER);
    peer.cred = Cred { uid: 2000, gid: 2000, groups: vec![] };
    assert_eq!(peer.fails(setattr(&handle, ANONYMOUS, set)), NFS4ERR_PERM);
}

#[test]
fn access_reports_what_the_mode_allows() {
    let bench = Bench::default();
    let mut peer = Peer::meet(&bench, 1);
    let (_, handle) = file(&peer, "a");
    let mut ask = |uid: u32, minor: u32, access: u32| {
        peer.cred = Cred { uid, gid: uid, groups: vec![] };
        peer.minor = minor;
        match &peer.ok(vec![putfh(&handle), Arg::OP_ACCESS(ACCESS4args { access })])[1] {
            Res::OP_ACCESS(ACCESS4res::NFS4_OK(ok)) => (ok.supported, ok.access),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(1000, 1, 0xffff_ffff), (0x3f, 0x1d));
    assert_eq!(ask(2000, 1, 0x3f), (0x3f, 0x01));
    assert_eq!(ask(2000, 2, 0x1ff), (0x1ff, 0x141));
    assert_eq!(ask(0, 1, 0x20), (0x20, 0x20));
}

#[test]
fn verify_and_nverify_compare_readable_attributes() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let (_, handle) = file(&peer, "a");
    let known = values(&peer.ok(getattr(&handle, attrs::OBJECT))[1]);
    let same = attrs::encode(attrs::OBJECT, &known);
    let other = attrs::encode(attrs::OBJECT, &Values { size: Some(77), ..known });
    let verify = |obj_attributes: &fattr4| {
        vec![putfh(&handle), Arg::OP_VERIFY(VERIFY4args { obj_attributes: obj_attributes.clone() })]
    };
    let nverify = |obj_attributes: &fattr4| {
        vec![putfh(&handle), Arg::OP_NVERIFY(NVERIFY4args { obj_attributes: obj_attributes.clone() })]
    };
    peer.ok(verify(&same));
    assert_eq!(peer.fails(verify(&other)), NFS4ERR_NOT_SAME);
    assert_eq!(peer.fails(nverify(&same)), NFS4ERR_SAME);
    peer.ok(nverify(&other));
    let only = |number| fattr4 { attrmask: Mask::of(&[number]).to_bitmap(), attr_vals: Bytes::new() };
    assert_eq!(peer.fails(verify(&only(FATTR4_ACL))), NFS4ERR_ATTRNOTSUPP);
    assert_eq!(peer.fails(verify(&only(FATTR4_RDATTR_ERROR))), NFS4ERR_INVAL);
    assert_eq!(peer.fails(nverify(&only(FATTR4_TIME_MODIFY_SET))), NFS4ERR_INVAL);
}
