//! Robustness tests of the decoders: the crate's fuzz target runs on damaged records, damaged bodies and random bytes,
//! and must not panic.

use bytes::Bytes;
use layout::DistributionId::SimpleStripe;
use layout::kinds::native::{Body, Device, Local, Record, log};
use proptest::prelude::*;
use types::{FileId, Generation, IodId, ObjectId};
use xdr::Xdr;

#[path = "../../../fuzz/fuzz_targets/layout.rs"]
mod fuzzed;
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

fn good() -> [Bytes; 6] {
    let record = Record { distribution: SimpleStripe, stripe_unit: 4096, mirrors: 1, stream: 0, iods: vec![1, 2, 3] };
    let body = Body {
        distribution: SimpleStripe,
        stripe_unit: 64,
        devices: vec![IodId([1; 16]), IodId([2; 16])],
        object: ObjectId::new(FileId(77), 5),
        generation: Generation(100_000),
        whole: 1 << 33,
        capability: Bytes::from_static(b"capability"),
        authenticators: vec![[5; 32], [6; 32]],
        secs: 600,
        index_authenticators: Vec::new(),
    };
    let of_log_file = Body { index_authenticators: vec![[7; 32], [8; 32]], ..body.clone() };
    let local = Local { boot_id: "boot".into(), path: Bytes::from_static(b"/run/x") };
    let ticket = Bytes::from_static(b"ticket");
    let device = Device { iod: IodId([3; 16]), tcp: vec!["host:1".into()], local: Some(local), ticket };
    let log = log::Record { base: record.clone() };
    let text = Bytes::from_static(b" 64KiB ");
    [record.to_bytes(), log.to_bytes(), body.to_bytes(), of_log_file.to_bytes(), device.to_bytes(), text]
}

#[test]
fn damaged_bodies_cause_no_panic() {
    for bytes in good() {
        fuzzed::run(&bytes);
        for seed in 0..2000 {
            fuzzed::run(&mutate::mutate(&bytes, seed));
        }
    }
}

proptest! {
    #[test]
    fn noise(data in prop::collection::vec(any::<u8>(), 0..300)) {
        fuzzed::run(&data);
    }

    #[test]
    fn policy_like_text_causes_no_panic(text in "[ 0-9KMGTiBb+.a-z-]{0,12}") {
        fuzzed::run(text.as_bytes());
    }
}
