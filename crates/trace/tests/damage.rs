//! Runs the fuzz target of this crate over damaged traces and random input: no input may cause a panic.

use proptest::prelude::*;
use trace::{Generator, print};

#[path = "../../../fuzz/fuzz_targets/trace.rs"]
mod fuzzed;
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

#[test]
fn damaged_traces_do_not_panic() {
    let made = [
        Generator::Strided { request: 4096, count: 3, clients: 2 },
        Generator::Postmark { files: 2, transactions: 4, fsync: true },
        Generator::Digitisation { events: 1, fsync: true },
    ];
    for generator in made {
        let text = print(&generator.generate(1).unwrap());
        fuzzed::run(text.as_bytes());
        for seed in 0..1000 {
            fuzzed::run(&mutate::mutate(text.as_bytes(), seed));
        }
    }
}

proptest! {
    #[test]
    fn noise(data in prop::collection::vec(any::<u8>(), 0..300)) {
        fuzzed::run(&data);
        fuzzed::run(&[b"weir-trace 1\n", &data[..]].concat());
    }

    #[test]
    fn words(text in "((open|read|write|fsync|close|remove|client)( [0-9]{1,20}){0,4}\n){0,20}") {
        fuzzed::run(format!("weir-trace 1\n{text}").as_bytes());
    }
}
