//! Fuzz target for messages of the native data program: each decoded message is encoded and decoded again without a
//! change.
#![cfg_attr(fuzzing, no_main)]

use bytes::Bytes;
use std::fmt::Debug;
use wire::native::*;
use xdr::{Malformed, Reader, Writer, Xdr};

/// Decodes `data` with every decoder of arguments and of replies.
pub fn run(data: &[u8]) {
    let data = Bytes::copy_from_slice(data);
    value::<HelloArgs>(&data);
    value::<ReadArgs>(&data);
    value::<WriteArgs>(&data);
    value::<ObjectArgs>(&data);
    value::<TruncateArgs>(&data);
    value::<PunchArgs>(&data);
    value::<ReserveArgs>(&data);
    value::<PullArgs>(&data);
    value::<SeekArgs>(&data);
    value::<FenceArgs>(&data);
    value::<ListArgs>(&data);
    value::<ScrubArgs>(&data);
    value::<WriteReportsArgs>(&data);
    value::<LengthsArgs>(&data);
    value::<ClaimArgs>(&data);
    value::<RegisterArgs>(&data);
    value::<LookupArgs>(&data);
    value::<Ticket>(&data);
    value::<ProveArgs>(&data);
    value::<DataHandle>(&data);
    reply::<HelloReply>(&data);
    reply::<ProveReply>(&data);
    reply::<ReadReply>(&data);
    reply::<WriteReply>(&data);
    reply::<CommitReply>(&data);
    reply::<SizeReply>(&data);
    reply::<TruncateReply>(&data);
    reply::<PullReply>(&data);
    reply::<SeekReply>(&data);
    reply::<ListReply>(&data);
    reply::<StatsReply>(&data);
    reply::<ScrubReply>(&data);
    reply::<WriteReportsReply>(&data);
    reply::<LengthsReply>(&data);
    reply::<LendReply>(&data);
    reply::<ClaimReply>(&data);
    reply::<OpenLogReply>(&data);
    reply::<RegisterReply>(&data);
    reply::<LookupReply>(&data);
    reply::<Nothing>(&data);
    before_data(&data);
}

fn value<T: Xdr + PartialEq + Debug>(data: &Bytes) {
    if let Ok(value) = T::from_bytes(data) {
        assert_eq!(T::from_bytes(&value.to_bytes()), Ok(value));
    }
}

fn reply<T: Xdr + PartialEq + Debug>(data: &Bytes) {
    if let Ok(reply) = decode_reply::<T>(&mut Reader::new(data.clone())) {
        let mut out = Writer::new();
        encode_reply(&reply, &mut out);
        let again = decode_reply::<T>(&mut Reader::new(out.finish().to_bytes())).expect("a reply that was written");
        // Compare only the status of an error, because the encoder may have truncated the explanation.
        match (reply, again) {
            (Err(reply), Err(again)) => assert_eq!(again.status, reply.status),
            (reply, again) => assert_eq!(again, reply),
        }
    }
}

/// An iod decodes the arguments of a WRITE while the payload is still in the socket. This decoder must return the
/// same arguments and payload length as the decoder of the whole message.
fn before_data(data: &Bytes) {
    let whole = WriteArgs::from_bytes(data);
    let head: Result<_, Malformed> = WriteHead::decode_before_data(&mut Reader::new(data.clone()));
    if let (Ok(whole), Ok((head, len))) = (whole, head) {
        assert_eq!((&head, len), (&whole.head, whole.data.len()));
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
