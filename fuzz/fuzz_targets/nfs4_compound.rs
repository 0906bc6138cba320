//! Fuzz target for calls and replies of COMPOUND and CB_COMPOUND: each decoded message is encoded and decoded again
//! without a change.
#![cfg_attr(fuzzing, no_main)]

use bytes::Bytes;
use std::fmt::Debug;
use wire::nfs4::compound::{ArgsHeader, CbArgsHeader, Ops, ResHeader};
use wire::nfs4::{nfs_argop4, nfs_cb_argop4, nfs_cb_resop4, nfs_resop4};
use xdr::{Reader, Xdr};

/// Decodes `data` as a call and as a reply of COMPOUND and of CB_COMPOUND.
pub fn run(data: &[u8]) {
    let data = Bytes::copy_from_slice(data);
    let mut input = Reader::new(data.clone());
    if let Ok(header) = ArgsHeader::decode(&mut input) {
        walk::<nfs_argop4>(header.numops, input);
    }
    let mut input = Reader::new(data.clone());
    if let Ok(header) = CbArgsHeader::decode(&mut input) {
        walk::<nfs_cb_argop4>(header.numops, input);
    }
    let mut input = Reader::new(data);
    if let Ok(header) = ResHeader::decode(&mut input) {
        walk::<nfs_resop4>(header.numres, input.clone());
        walk::<nfs_cb_resop4>(header.numres, input);
    }
}

/// Decodes one operation after the other: the operation number and then the body.
fn walk<T: Xdr + PartialEq + Debug>(count: u32, input: Reader) {
    let mut ops = Ops::new(count, input);
    loop {
        let at_number = ops.input().clone();
        if !matches!(ops.next_number(), Ok(Some(_))) {
            return;
        }
        *ops.input() = at_number;
        let Ok(op) = ops.body::<T>() else { return };
        assert_eq!(T::from_bytes(&op.to_bytes()), Ok(op));
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
