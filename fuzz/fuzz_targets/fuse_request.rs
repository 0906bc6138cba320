//! Requests of the kernel's FUSE client: any bytes are a request or an error, and no request claims more than it brought.
#![cfg_attr(fuzzing, no_main)]

use bytes::Bytes;
use fuse::request::{Op, Request};

/// Feeds `data` to the decoder.
pub fn run(data: &[u8]) {
    let Ok(request) = Request::decode(Bytes::copy_from_slice(data)) else { return };
    assert_eq!(request.header.len as usize, data.len());
    let brought = match &request.op {
        Op::Write { data, .. } => data.len(),
        Op::Setxattr { name, value, .. } => name.len() + value.len(),
        Op::Symlink { name, target } => name.len() + target.len(),
        Op::BatchForget { nodes } => nodes.len() * 16,
        _ => 0,
    };
    assert!(brought <= data.len());
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
