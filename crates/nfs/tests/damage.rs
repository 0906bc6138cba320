//! Test that damaged and random attributes never make the decoder of `fattr4` panic. The test passes the damaged data
//! to the function of the fuzz target.

use nfs::attrs::{Mask, encode, encode_set};
use nfs::values::Values;
use proptest::prelude::*;
use types::{SetAttrs, SetTime, Timestamp};
use wire::nfs4::fattr4;
use xdr::Xdr;

#[path = "../../../fuzz/fuzz_targets/fattr4.rs"]
mod fuzzed;
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

fn good() -> [fattr4; 2] {
    let values = Values {
        size: Some(1 << 40),
        owner: Some(1000),
        fs_layout_types: Some(vec![1, 0x8000_5745]),
        time_modify: Some(Timestamp { secs: -1, nanos: 999_999_999 }),
        mode: Some(0o1777),
        ..Values::default()
    };
    let set = SetAttrs {
        mode: Some(0o644),
        uid: Some(7),
        gid: Some(8),
        size: Some(9),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::To(Timestamp { secs: 5, nanos: 6 })),
    };
    [encode(Mask(u128::MAX), &values), encode_set(&set)]
}

#[test]
fn damaged_attributes_do_not_panic() {
    for attrs in good() {
        let bytes = attrs.to_bytes();
        fuzzed::run(&bytes);
        for seed in 0..3000 {
            fuzzed::run(&mutate::mutate(&bytes, seed));
        }
    }
}

proptest! {
    /// A bitmap of a few attributes, followed by random bytes as the values of these attributes.
    #[test]
    fn random_values_of_announced_attributes_do_not_panic(
        bits in prop::collection::vec(0u32..128, 1..4),
        words in prop::collection::vec(any::<u32>(), 0..24),
    ) {
        let vals: Vec<u8> = words.iter().flat_map(|word| (word >> (word % 32)).to_be_bytes()).collect();
        fuzzed::run(&fattr4 { attrmask: Mask::of(&bits).to_bitmap(), attr_vals: vals.into() }.to_bytes());
    }
}
