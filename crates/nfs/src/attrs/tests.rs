//! Tests of the attribute table: golden bytes of encodings, the order of rows, and encoding and decoding of random
//! values.

use super::*;
use crate::fs::PolicyText;
use bytes::Bytes;
use proptest::prelude::*;
use types::{Attrs, FileId, FileKind, SetTime, StatFs, Timestamp};

fn info() -> FsInfo {
    FsInfo {
        lease_secs: 90,
        max_file_size: 1 << 62,
        max_read: 1 << 20,
        max_write: 1 << 20,
        max_link: 1000,
        max_name: 255,
        layout_types: vec![1],
        layout_block: 0,
        xattrs: true,
        thresholds: true,
    }
}

/// Returns a `Values` in which every attribute has a value.
fn full() -> Values {
    let time = Timestamp { secs: -3, nanos: 999_999_999 };
    let mut values = Values {
        supported_attrs: Some(supported(&info(), 2)),
        fh_expire_type: Some(0),
        link_support: Some(true),
        symlink_support: Some(true),
        named_attr: Some(false),
        fsid: Some(fsid4 { major: 1, minor: 2 }),
        unique_handles: Some(true),
        rdattr_error: Some(NFS4_OK),
        aclsupport: Some(0),
        cansettime: Some(true),
        case_insensitive: Some(false),
        case_preserving: Some(true),
        chown_restricted: Some(true),
        filehandle: Some(Bytes::from_static(b"handle")),
        homogeneous: Some(true),
        no_trunc: Some(true),
        time_delta: Some(Timestamp { secs: 0, nanos: 1 }),
        mdsthreshold: Some(vec![Threshold {
            kind: 1,
            read_size: Some(65536),
            write_size: None,
            read_iosize: None,
            write_iosize: Some(4096),
        }]),
        suppattr_exclcreat: Some(SETTABLE),
        clone_blksize: Some(0),
        change_attr_type: Some(0),
        open_arguments: Some([1, 0b1011, 1 << 20, 0, 1].map(Mask)),
        weir_policy: Some(PolicyText { server: Bytes::from_static(b"access=page"), own: Bytes::new() }),
        weir_queue_delay: Some(5),
        weir_settled: Some(6),
        weir_writer: Some(true),
        ..Values::default()
    };
    values.set_info(&info());
    values.set_statfs(&StatFs { bytes_total: 5, bytes_free: 4, bytes_avail: 3, files_total: 2, files_free: 1 });
    values.set_attrs(&Attrs {
        id: FileId(77),
        kind: FileKind::Char,
        mode: 0o4755,
        nlink: 3,
        uid: 1000,
        gid: 0,
        size: 1 << 40,
        used: 4096,
        holes: false,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        change: u64::MAX,
        rdev: (8, 1),
    });
    values
}
use crate::fs::Threshold;

#[test]
fn the_attribute_table_is_sorted_and_has_unique_names() {
    for pair in ROWS.windows(2) {
        assert!(pair[0].number < pair[1].number, "{} stands before {}", pair[0].name, pair[1].name);
    }
    let names: std::collections::HashSet<_> = ROWS.iter().map(|r| r.name).collect();
    assert_eq!(names.len(), ROWS.len());
    assert!(ROWS.iter().all(|row| !WRITE_ONLY.has(row.number)));
}

#[test]
fn every_single_attribute_round_trips_with_its_length() {
    for row in ROWS {
        let sent = encode(Mask::of(&[row.number]), &full());
        assert_eq!(Mask::from_bitmap(&sent.attrmask).0, Mask::of(&[row.number]), "{}", row.name);
        let back = decode(&sent).unwrap_or_else(|e| panic!("{}: {e}", row.name));
        assert_eq!(encode(Mask(u128::MAX), &back), sent, "{}", row.name);
        for cut in 0..sent.attr_vals.len() {
            let short = fattr4 { attrmask: sent.attrmask.clone(), attr_vals: sent.attr_vals.slice(..cut) };
            assert!(decode(&short).is_err(), "{} cut to {cut}", row.name);
        }
    }
}

#[test]
fn only_a_create_accepts_the_unsynced_attribute() {
    let set = SetAttrs { mode: Some(0o640), uid: Some(7), ..SetAttrs::default() };
    for unsynced in [false, true] {
        let sent = encode_new(&set, unsynced);
        assert_eq!(decode_new(&sent, &info(), 2), Ok((set, unsynced)));
        for cut in 0..sent.attr_vals.len() {
            let short = fattr4 { attrmask: sent.attrmask.clone(), attr_vals: sent.attr_vals.slice(..cut) };
            assert_eq!(decode_new(&short, &info(), 2), Err(NFS4ERR_BADXDR), "cut to {cut}");
        }
    }
    let sent = encode_new(&set, true);
    assert_eq!(decode_set(&sent, &info(), 2), Err(NFS4ERR_ATTRNOTSUPP));
    let mut values = sent.attr_vals.to_vec();
    let last = values.len() - 1;
    values[last] = 0;
    let not = fattr4 { attrmask: sent.attrmask.clone(), attr_vals: values.clone().into() };
    assert_eq!(decode_new(&not, &info(), 2), Ok((set, false)));
    values[last] = 2;
    let odd = fattr4 { attrmask: sent.attrmask, attr_vals: values.into() };
    assert_eq!(decode_new(&odd, &info(), 2), Err(NFS4ERR_BADXDR));
}

#[test]
fn all_attributes_together_round_trip() {
    let sent = encode(Mask(u128::MAX), &full());
    assert_eq!(decode(&sent).unwrap(), full());
    let attrs = decode(&encode(OBJECT, &full())).unwrap().attrs();
    assert_eq!(attrs, full().attrs());
    assert!(attrs.is_some());
    assert_eq!(decode(&encode(STATFS, &full())).unwrap().statfs(), full().statfs());
}

#[test]
fn a_standard_reply_has_the_bytes_of_the_rfc() {
    let mask = Mask::of(&[FATTR4_TYPE, FATTR4_SIZE, FATTR4_MODE, FATTR4_OWNER]);
    let mut out = Writer::new();
    encode_into(mask, &full(), &mut out);
    #[rustfmt::skip]
    let golden = [
        0, 0, 0, 2, 0, 0, 0, 0x12, 0, 0, 0, 0x12, // bitmap: 1, 4 and 33, 36
        0, 0, 0, 24,
        0, 0, 0, 4, // character device
        0, 0, 1, 0, 0, 0, 0, 0, // size
        0, 0, 0x09, 0xed, // mode
        0, 0, 0, 4, b'1', b'0', b'0', b'0', // owner
    ];
    assert_eq!(out.finish().to_bytes(), &golden[..]);
}

#[test]
fn minor_version_and_features_limit_the_supported_attributes() {
    let one = supported(&info(), 1);
    let two = supported(&info(), 2);
    for number in [FATTR4_CLONE_BLKSIZE, FATTR4_CHANGE_ATTR_TYPE, FATTR4_XATTR_SUPPORT] {
        assert!(two.has(number) && !one.has(number));
    }
    assert!(one.has(FATTR4_MDSTHRESHOLD));
    assert!(!supported(&FsInfo { thresholds: false, ..info() }, 1).has(FATTR4_MDSTHRESHOLD));
    let required = Mask::of(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 19, 75]);
    assert_eq!(one.and(required), required);
}

#[test]
fn invalid_settable_attributes_are_refused_with_their_status() {
    let set = |mask: &[u32], vals: &'static [u8]| {
        let attrs = fattr4 { attrmask: Mask::of(mask).to_bitmap(), attr_vals: Bytes::from_static(vals) };
        decode_set(&attrs, &info(), 1)
    };
    assert_eq!(set(&[FATTR4_ACL], &[]), Err(NFS4ERR_ATTRNOTSUPP));
    assert_eq!(set(&[FATTR4_XATTR_SUPPORT], &[0, 0, 0, 1]), Err(NFS4ERR_ATTRNOTSUPP));
    assert_eq!(set(&[FATTR4_TYPE], &[0, 0, 0, 1]), Err(NFS4ERR_INVAL));
    assert_eq!(set(&[FATTR4_MODE], &[0, 0, 0x10, 0]), Err(NFS4ERR_INVAL));
    assert_eq!(set(&[FATTR4_MODE], &[0, 0, 1]), Err(NFS4ERR_BADXDR));
    assert_eq!(set(&[FATTR4_MODE], &[0, 0, 1, 0xff, 0, 0, 0, 0]), Err(NFS4ERR_BADXDR));
    assert_eq!(set(&[FATTR4_SIZE], &[0xff, 0, 0, 0, 0, 0, 0, 0]), Err(NFS4ERR_FBIG));
    assert_eq!(set(&[FATTR4_OWNER], &[0, 0, 0, 4, b'r', b'o', b'o', b't']), Err(NFS4ERR_BADOWNER));
    assert_eq!(set(&[FATTR4_OWNER], &[0, 0, 0, 0]), Err(NFS4ERR_BADOWNER));
    let nanos = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff];
    let attrs =
        fattr4 { attrmask: Mask::of(&[FATTR4_TIME_MODIFY_SET]).to_bitmap(), attr_vals: Bytes::from(nanos.to_vec()) };
    assert_eq!(decode_set(&attrs, &info(), 1), Err(NFS4ERR_INVAL));
    let beyond = fattr4 { attrmask: vec![0, 0, 0, 0, 1], attr_vals: Bytes::new() };
    assert_eq!(decode_set(&beyond, &info(), 2), Err(NFS4ERR_ATTRNOTSUPP));
    assert_eq!(decode_set(&fattr4 { attrmask: vec![], attr_vals: Bytes::new() }, &info(), 2), Ok(SetAttrs::default()));
}

fn any_time() -> impl Strategy<Value = Option<SetTime>> {
    prop_oneof![
        Just(None),
        Just(Some(SetTime::Now)),
        (any::<i64>(), 0..1_000_000_000u32).prop_map(|(secs, nanos)| Some(SetTime::To(Timestamp { secs, nanos }))),
    ]
}

prop_compose! {
    fn any_set()(
        mode in proptest::option::of(0..0o10000u32),
        uid in any::<Option<u32>>(),
        gid in any::<Option<u32>>(),
        size in proptest::option::of(0..=types::limits::FILE_SIZE_MAX),
        atime in any_time(),
        mtime in any_time(),
    ) -> SetAttrs {
        SetAttrs { mode, uid, gid, size, atime, mtime }
    }
}

proptest! {
    #[test]
    fn set_attributes_round_trip(set in any_set()) {
        let sent = encode_set(&set);
        prop_assert_eq!(Mask::from_bitmap(&sent.attrmask).0, set_mask(&set));
        prop_assert_eq!(decode_set(&sent, &info(), 1), Ok(set));
    }

    #[test]
    fn attribute_masks_round_trip(bits in any::<u128>()) {
        let mask = Mask(bits);
        prop_assert_eq!(Mask::from_bitmap(&mask.to_bitmap()), (mask, false));
        prop_assert_eq!(Mask::of(&mask.numbers().collect::<Vec<_>>()), mask);
    }

    #[test]
    fn random_bytes_cause_no_panic(
        mask in proptest::collection::vec(any::<u32>(), 0..8),
        vals in proptest::collection::vec(any::<u8>(), 0..256),
    ) {
        let attrs = fattr4 { attrmask: mask, attr_vals: vals.into() };
        if let Ok(values) = decode(&attrs) {
            let again = encode(Mask::from_bitmap(&attrs.attrmask).0, &values);
            prop_assert_eq!(decode(&again), Ok(values));
        }
        let _ = decode_set(&attrs, &info(), 2);
    }
}

#[test]
fn unknown_attributes_after_the_requested_ones_are_skipped() {
    let wanted = Mask::of(&[FATTR4_CHANGE, FATTR4_SIZE]);
    let told = encode(wanted.or(Mask::of(&[FATTR4_TIME_MODIFY])), &full());
    let mut more = told.attr_vals.to_vec();
    more.extend([0; 12]);
    let time_deleg_modify = Mask::of(&[85]);
    let attrmask = Mask::from_bitmap(&told.attrmask).0.or(time_deleg_modify).to_bitmap();
    let told = fattr4 { attrmask, attr_vals: more.into() };
    assert!(decode(&told).is_err());
    let values = decode_first(&told, wanted).unwrap();
    assert_eq!((values.change, values.size, values.time_modify), (Some(u64::MAX), Some(1 << 40), None));
    let cut = fattr4 { attr_vals: told.attr_vals.slice(..12), ..told };
    assert!(decode_first(&cut, wanted).is_err());
}
