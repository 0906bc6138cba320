//! Fuzz target for valid and damaged dumps of a metadata store: the decoder returns only records in key order and
//! within the length limits.
#![cfg_attr(fuzzing, no_main)]

use meta::dump::{Decoder, Encoder};
use types::limits;

/// Decodes `data` as a dump. If the whole dump is valid, encodes its records again and checks that the new dump is
/// valid.
pub fn run(data: &[u8]) {
    let Ok(mut dump) = Decoder::new(data) else { return };
    let (mut encoder, mut again) = Encoder::new(dump.head());
    let mut last: Option<Vec<u8>> = None;
    loop {
        let records = match dump.next_block() {
            Ok(Some(records)) => records,
            Ok(None) => break,
            Err(_) => return,
        };
        for (key, value) in records {
            assert!(key.len() <= limits::KEY_MAX && value.len() <= limits::VALUE_MAX);
            assert!(last.as_ref().is_none_or(|last| *last < key));
            again.extend(encoder.add(&key, &value).into_iter().flat_map(|(bytes, _)| bytes));
            last = Some(key);
        }
    }
    again.extend(encoder.end().0);
    let mut again = Decoder::new(&again[..]).expect("a dump that was written");
    while again.next_block().expect("a dump that was written").is_some() {}
    assert_eq!(again.records(), dump.records());
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
