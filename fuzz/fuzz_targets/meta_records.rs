//! Records of the metadata store and the deltas that merge into them, as a damaged disk may give them back.
#![cfg_attr(fuzzing, no_main)]

use bytes::Bytes;
use meta::schema::{Core, Counts, Delta, Dentry, FormatRecord, NextId, Record, Tail};
use meta::{Doomed, merge};
use std::fmt::Debug;
use types::FileId;

/// Feeds `data` without its first byte to every decoder; cut in two where that byte says, to those that take two records.
pub fn run(data: &[u8]) {
    let Some((cut, data)) = data.split_first() else { return };
    let bytes = Bytes::copy_from_slice(data);
    value::<Dentry>(&bytes);
    value::<FormatRecord>(&bytes);
    value::<Counts>(&bytes);
    value::<NextId>(&bytes);
    value::<Doomed>(&bytes);
    value::<Core>(&bytes);
    value::<Tail>(&bytes);
    FormatRecord::version_of(data);
    if let Ok(delta) = Delta::from_bytes(bytes) {
        assert_eq!(Delta::from_bytes(delta.to_bytes()), Ok(delta));
    }
    let (first, second) = data.split_at(data.len().min(usize::from(*cut)));
    merge(Some(first), second);
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
