//! Tests that decode, encode and damage captured messages. A Linux kernel has sent or received these messages; the
//! capture contains one message of each kind.

use bytes::Bytes;
use wire::nfs4::{CB_COMPOUND4args, CB_COMPOUND4res, COMPOUND4args, COMPOUND4res};
use wire::rpc::{Message, decode_message};
use xdr::{Reader, Xdr};

/// Returns the kind and the bytes of each captured message. The test `tests/kernel-client` writes the file of captured
/// messages if `WEIR_GOLDEN` is set.
fn messages() -> Vec<(&'static str, Bytes)> {
    let lines: Vec<&str> = include_str!("../frames/linux-6.1.txt").lines().skip(1).collect();
    let bytes = |hex: &str| {
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(byte).collect::<Bytes>()
    };
    lines.chunks(2).map(|pair| (pair[0].strip_prefix("# ").unwrap(), bytes(pair[1]))).collect()
}

/// Decodes the body of a message and encodes the result; returns `None` if the body cannot be decoded.
fn again(kind: &str, body: &Bytes) -> Option<Bytes> {
    fn both<T: Xdr>(body: &Bytes) -> Option<Bytes> {
        T::from_bytes(body).ok().map(|value| value.to_bytes())
    }
    match kind.split(' ').next().unwrap() {
        "call" => both::<COMPOUND4args>(body),
        "reply" => both::<COMPOUND4res>(body),
        _ if kind.starts_with("callback reply") => both::<CB_COMPOUND4res>(body),
        _ => both::<CB_COMPOUND4args>(body),
    }
}

fn body(message: &Bytes) -> Bytes {
    let mut input = Reader::new(message.clone());
    let head = decode_message(&mut input).unwrap();
    assert!(matches!(head, Message::Call(_) | Message::Reply(_)));
    input.rest()
}

#[test]
fn captured_messages_are_read_and_written_again() {
    let messages = messages();
    assert!(messages.len() > 60);
    for (kind, message) in messages {
        let body = body(&message);
        assert_eq!(again(kind, &body), Some(body), "{kind}");
    }
}

#[test]
fn damaged_messages_are_refused_or_decode_without_loss() {
    for (kind, message) in messages() {
        let body = body(&message);
        for len in 0..body.len() {
            assert_eq!(again(kind, &body.slice(..len)), None, "{kind}: {len} bytes of {}", body.len());
        }
        for bit in 0..body.len() * 8 {
            let mut bad = body.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            // The decoder may accept a changed bit in XDR padding, and the encoder writes zeros there. But the encoded
            // message must have the length of the original message.
            let bad = Bytes::from(bad);
            let read = again(kind, &bad);
            assert!(read.is_none_or(|read| read.len() == bad.len()), "{kind}: bit {bit}");
        }
    }
}
