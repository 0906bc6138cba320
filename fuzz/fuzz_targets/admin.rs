//! Fuzz target for messages of the admin program: each decoded message is encoded and decoded again without a change.
#![cfg_attr(fuzzing, no_main)]

use bytes::Bytes;
use std::fmt::Debug;
use wire::admin::{
    CheckArgs, CheckReply, DumpArgs, DumpReply, LocalSocketArgs, LocalSocketReply, ScrubArgs, ScrubReply, Status,
};
use xdr::Xdr;

/// Decodes `data` with every decoder of the admin program.
pub fn run(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    value::<Status>(&bytes);
    value::<CheckArgs>(&bytes);
    value::<CheckReply>(&bytes);
    value::<ScrubArgs>(&bytes);
    value::<ScrubReply>(&bytes);
    value::<DumpArgs>(&bytes);
    value::<DumpReply>(&bytes);
    value::<LocalSocketArgs>(&bytes);
    value::<LocalSocketReply>(&bytes);
}

fn value<T: Xdr + PartialEq + Debug>(data: &Bytes) {
    if let Ok(value) = T::from_bytes(data) {
        assert_eq!(T::from_bytes(&value.to_bytes()), Ok(value));
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
