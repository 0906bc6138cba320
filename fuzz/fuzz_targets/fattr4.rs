//! Fuzz target for file attributes (`fattr4`): the attributes in replies, and the attributes in SETATTR.
#![cfg_attr(fuzzing, no_main)]

use bytes::Bytes;
use nfs::attrs::{
    Mask, decode, decode_first, decode_new, decode_renaming, decode_set, encode, encode_new, encode_renaming,
    encode_set,
};
use nfs::fs::FsInfo;
use wire::nfs4::{FATTR4_CHANGE, FATTR4_SIZE, fattr4};
use xdr::Xdr;

/// Decodes `data` as attributes of a reply and as attributes to set.
pub fn run(data: &[u8]) {
    let Ok(attrs) = fattr4::from_bytes(&Bytes::copy_from_slice(data)) else { return };
    if let Ok(values) = decode(&attrs) {
        let (mask, _) = Mask::from_bitmap(&attrs.attrmask);
        assert_eq!(decode(&encode(mask, &values)), Ok(values));
    }
    // A client's answer to CB_GETATTR has all requested attributes, and possibly more attributes.
    let asked = Mask::of(&[FATTR4_CHANGE, FATTR4_SIZE]);
    if let (Ok(all), Ok(first)) = (decode(&attrs), decode_first(&attrs, asked)) {
        assert_eq!((first.change, first.size), (all.change, all.size));
    }
    let info = FsInfo {
        lease_secs: 90,
        max_file_size: 1 << 62,
        max_read: 1 << 20,
        max_write: 1 << 20,
        max_link: 1000,
        max_name: 255,
        layout_types: vec![1],
        layout_block: 4096,
        xattrs: true,
        thresholds: true,
    };
    if let Some(Ok(how)) = decode_renaming(&attrs) {
        assert_eq!(decode_renaming(&encode_renaming(how)), Some(Ok(how)));
    }
    for minor in [1, 2] {
        if let Ok((set, unsynced)) = decode_new(&attrs, &info, minor) {
            assert_eq!(decode_new(&encode_new(&set, unsynced), &info, minor), Ok((set, unsynced)));
        }
        if let Ok(set) = decode_set(&attrs, &info, minor) {
            assert_eq!(decode_set(&encode_set(&set), &info, minor), Ok(set));
        }
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
