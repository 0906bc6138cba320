//! Fuzz target for records of the metadata store, and for the deltas that merge into records, with arbitrary bytes.
#![cfg_attr(fuzzing, no_main)]

use bytes::Bytes;
use meta::schema::{
    CookieKey, Core, Counts, Delta, Dentry, FormatRecord, Intent, NextId, Record, Tail, bucket, cookie_of, id_of,
    intent_of, xattr_name,
};
use meta::{Doomed, Unused, merge};
use std::fmt::Debug;
use types::FileId;

/// Decodes `data` after its first byte with every decoder. For functions that take two records, the first byte is the
/// length of the first of these records.
pub fn run(data: &[u8]) {
    let Some((cut, data)) = data.split_first() else { return };
    let bytes = Bytes::copy_from_slice(data);
    value::<Dentry>(&bytes);
    value::<FormatRecord>(&bytes);
    value::<Counts>(&bytes);
    value::<NextId>(&bytes);
    value::<Doomed>(&bytes);
    value::<Unused>(&bytes);
    value::<Intent>(&bytes);
    value::<Core>(&bytes);
    value::<Tail>(&bytes);
    FormatRecord::version_of(data);
    if let Ok(delta) = Delta::from_bytes(bytes) {
        assert_eq!(Delta::from_bytes(delta.to_bytes()), Ok(delta));
    }
    let (first, second) = data.split_at(data.len().min(usize::from(*cut)));
    if let Some(after) = merge(Some(first), second) {
        match (tail(first), tail(&after)) {
            (Ok(before), Ok(after)) => assert_eq!(after.change, before.change + 1),
            (before, after) => assert_eq!(before, after),
        }
    }
    if let Some(key) = data.first_chunk() {
        let cookies = bucket(&CookieKey(*key), data);
        assert!(cookies.start > 2 && cookies.end <= 1 << 63);
    }
    let _ = (cookie_of(data), id_of(data), intent_of(data), xattr_name(data));
    if let (Ok(core), Ok(tail)) = (core(first), tail(second)) {
        core.attrs(FileId(1), &tail);
    }
}

fn core(data: &[u8]) -> Result<Core, types::Status> {
    Core::from_value(Bytes::copy_from_slice(data))
}

fn tail(data: &[u8]) -> Result<Tail, types::Status> {
    Tail::from_value(Bytes::copy_from_slice(data))
}

fn value<T: Record + PartialEq + Debug>(data: &Bytes) {
    if let Ok(value) = T::from_value(data.clone()) {
        assert_eq!(T::from_value(value.to_value()), Ok(value));
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
