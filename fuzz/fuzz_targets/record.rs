//! Fuzz target for record marks (RFC 5531 section 11): the limits of record length and fragment number hold for any
//! marks.
#![cfg_attr(fuzzing, no_main)]

use wire::rpc::record::{Mark, Progress};

const BYTES_MAX: usize = 4096;
const FRAGMENTS_MAX: usize = 8;

/// Reads `data` as a stream of record fragments.
pub fn run(mut data: &[u8]) {
    let mut progress = Progress::new(BYTES_MAX, FRAGMENTS_MAX);
    while let Some((head, rest)) = data.split_first_chunk() {
        let mark = Mark::from_bytes(*head);
        if progress.begin(mark).is_err() {
            return;
        }
        assert!(progress.bytes <= BYTES_MAX && progress.fragments <= FRAGMENTS_MAX);
        let Some(rest) = rest.get(mark.len..) else { return };
        data = rest;
        if mark.last {
            progress = Progress::new(BYTES_MAX, FRAGMENTS_MAX);
        }
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
