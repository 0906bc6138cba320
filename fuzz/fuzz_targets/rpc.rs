//! Fuzz target for headers of ONC RPC messages: each decoded message is encoded and decoded again without a change.
#![cfg_attr(fuzzing, no_main)]

use bytes::Bytes;
use wire::rpc::{Message, decode_message};
use xdr::{Reader, Writer};

/// Decodes `data` as an RPC header.
pub fn run(data: &[u8]) {
    let Ok(message) = decode_message(&mut Reader::new(Bytes::copy_from_slice(data))) else { return };
    let mut out = Writer::new();
    match &message {
        Message::Call(call) => call.encode(&mut out),
        Message::Reply(reply) => reply.encode(&mut out),
        Message::WrongVersion { .. } => return,
    }
    assert_eq!(decode_message(&mut Reader::new(out.finish().to_bytes())), Ok(message));
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
