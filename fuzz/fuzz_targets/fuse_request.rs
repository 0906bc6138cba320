//! Fuzz target for FUSE requests of the kernel: any bytes decode to a request or an error, and no request has more data
//! than the input.
#![cfg_attr(fuzzing, no_main)]

use bytes::Bytes;
use fuse::abi::{IN_HEADER, uring::FIXED};
use fuse::request::{Op, Request};

/// Decodes `data` as a FUSE request.
pub fn run(data: &[u8]) {
    run_parts(data);
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

/// Decodes `data` as a request whose header, arguments and payload arrive separately, as in an entry of an io_uring
/// queue.
fn run_parts(data: &[u8]) {
    let Some((header, rest)) = data.split_at_checked(IN_HEADER) else { return };
    let (fixed, payload) = rest.split_at(rest.len().min(FIXED));
    let mut room = [0; FIXED];
    room[..fixed.len()].copy_from_slice(fixed);
    for payload in [payload, fixed.get(8..).unwrap_or_default()] {
        let Ok(request) = Request::decode_parts(header, &room, Bytes::copy_from_slice(payload)) else { continue };
        let Op::Write { data, .. } = &request.op else { continue };
        assert!(data.len() <= payload.len());
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
