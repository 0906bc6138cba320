//! Status answers of the admin program: what decodes is written and read again unchanged.
#![cfg_attr(fuzzing, no_main)]

use bytes::Bytes;
use wire::admin::Status;
use xdr::Xdr;

/// Feeds `data` to the decoder.
pub fn run(data: &[u8]) {
    if let Ok(status) = Status::from_bytes(&Bytes::copy_from_slice(data)) {
        assert_eq!(Status::from_bytes(&status.to_bytes()), Ok(status));
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
