//! Fuzz target for the index of log files: the decoded runs are encoded and decoded again without a change, and a shard
//! registers the runs.
#![cfg_attr(fuzzing, no_main)]

use log_index::{SHARD_LEN, Shard, decode, encode};
use types::ByteRange;

/// Decodes `data` as runs, and registers the runs of the first shard.
pub fn run(data: &[u8]) {
    let Ok(runs) = decode(data, 16) else { return };
    assert_eq!(decode(&encode(runs.iter().copied()), 16).as_ref(), Ok(&runs));
    let all = ByteRange { offset: 0, len: SHARD_LEN };
    let first: Vec<_> = runs.iter().flat_map(|run| run.clip(all)).collect();
    let written: u64 = first.iter().map(|run| run.bytes()).sum();
    let mut shard = Shard::default();
    shard.register(first);
    let kept: u64 = shard.runs_in(all).map(|run| run.bytes()).sum();
    assert!(kept <= written.min(SHARD_LEN), "a shard has {kept} bytes, and {written} were written");
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
