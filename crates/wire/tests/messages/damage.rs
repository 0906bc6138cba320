//! Tests that run the fuzz targets of this crate on damaged messages and random bytes. No input may cause a panic.

use crate::frames;
use proptest::prelude::*;

#[path = "../../../../fuzz/fuzz_targets/admin.rs"]
mod admin;
#[path = "../../../../fuzz/mutate.rs"]
mod mutate;
#[path = "../../../../fuzz/fuzz_targets/native.rs"]
mod native;
#[path = "../../../../fuzz/fuzz_targets/nfs4_compound.rs"]
mod nfs4_compound;
#[path = "../../../../fuzz/fuzz_targets/record.rs"]
mod record;
#[path = "../../../../fuzz/fuzz_targets/rpc.rs"]
mod rpc;

const TARGETS: [fn(&[u8]); 5] = [rpc::run, record::run, nfs4_compound::run, native::run, admin::run];

#[test]
fn damaged_frames_cause_no_panic() {
    for frame in frames::ALL {
        let frame = frames::bytes(frame);
        for seed in 0..1500 {
            let damaged = mutate::mutate(&frame, seed);
            TARGETS.iter().for_each(|run| run(&damaged));
        }
    }
}

#[test]
fn truncated_frames_cause_no_panic() {
    for frame in frames::ALL {
        let frame = frames::bytes(frame);
        for end in 0..frame.len() {
            TARGETS.iter().for_each(|run| run(&frame[..end]));
        }
    }
}

proptest! {
    #[test]
    fn noise(data in prop::collection::vec(any::<u8>(), 0..600)) {
        TARGETS.iter().for_each(|run| run(&data));
    }

    /// Random messages that consist of small integers pass more checks of the decoders than random bytes do.
    #[test]
    fn random_small_words_cause_no_panic(
        words in prop::collection::vec(prop_oneof![0u32..4, 0u32..80, any::<u32>()], 0..150),
    ) {
        let data: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        TARGETS.iter().for_each(|run| run(&data));
    }
}
