//! Fuzz target for the index of log files: decoded runs and records are encoded and decoded again without a change, and
//! a shard registers the runs.
#![cfg_attr(fuzzing, no_main)]

use log_index::{Index, LogNumber, Record, decode, encode};
use types::ByteRange;

/// Length of the part of the file in which the shard registers runs: longer runs would only take longer.
const LEN: u64 = 64 << 20;

/// Decodes `data` as runs, registers their first bytes, and decodes `data` as a record.
pub fn run(data: &[u8]) {
    if let Ok(record) = Record::decode(data) {
        assert_eq!(Record::decode(&record.encode()), Ok(record));
    }
    let Ok(runs) = decode(data, 16) else { return };
    assert_eq!(decode(&encode(runs.iter().copied()), 16).as_ref(), Ok(&runs));
    let all = ByteRange { offset: 0, len: LEN };
    let first: Vec<_> = runs.iter().flat_map(|run| run.clip(all)).collect();
    let written: u64 = first.iter().map(|run| run.bytes()).sum();
    let mut index = Index::default();
    index.register(LogNumber(1), 1, first).expect("few runs");
    let pending = index.lookup(all, false, usize::MAX - 1).1;
    let record = index.confirmation(LogNumber(1), 1);
    record.into_iter().for_each(|record| index.apply(record));
    let durable = index.lookup(all, true, usize::MAX - 1).1;
    let bytes = |runs: &[log_index::Run]| runs.iter().map(|run| run.bytes()).sum::<u64>();
    assert_eq!(bytes(&pending), bytes(&durable));
    assert!(bytes(&durable) <= written.min(LEN), "the shard has more bytes than were written");
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
