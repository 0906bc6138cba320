//! Runs the fuzz target of FUSE requests over damaged requests: no input may cause a panic.

use fuse::abi::{IN_HEADER, opcode};
use fuse::request::fixed_size;

#[path = "../../../fuzz/fuzz_targets/fuse_request.rs"]
mod fuse_request;
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

/// Returns a request with zeros in all fields but length and opcode, and two names.
fn request(code: u32) -> Vec<u8> {
    let names = b"a\0b\0";
    let len = IN_HEADER + fixed_size(code) + names.len();
    let mut out = vec![0; len - names.len()];
    out[..4].copy_from_slice(&(len as u32).to_ne_bytes());
    out[4..8].copy_from_slice(&code.to_ne_bytes());
    out.extend_from_slice(names);
    out
}

#[test]
fn damaged_requests_do_not_panic() {
    for code in 1..=opcode::SYNCFS {
        let whole = request(code);
        for seed in 0..2000 {
            let mut damaged = mutate::mutate(&whole, seed);
            fuse_request::run(&damaged);
            // The decoder refuses a message whose length field is wrong. So also test the damaged message with its
            // actual length in this field.
            let len = (damaged.len() as u32).to_ne_bytes();
            if let Some(head) = damaged.get_mut(..4) {
                head.copy_from_slice(&len);
            }
            fuse_request::run(&damaged);
        }
    }
}
