//! Property tests of all generated NFSv4 types: round trips and damaged bytes.

use super::arbitrary::{Arbitrary, Seed, Visit};
use super::generated::arbitrary::visit_all;
use std::fmt::Debug;
use xdr::{Malformed, Reader, Xdr};

const ROUNDS: u64 = 40;

struct RoundTrip(usize);

impl Visit for RoundTrip {
    fn one<T: Xdr + Arbitrary + PartialEq + Clone + Debug>(&mut self, name: &'static str) {
        self.0 += 1;
        for seed in 0..ROUNDS {
            let value = T::arbitrary(&mut Seed(seed));
            let bytes = value.to_bytes();
            assert_eq!(bytes.len() % 4, 0, "{name}, seed {seed}: not a multiple of four");
            assert_eq!(T::from_bytes(&bytes).as_ref(), Ok(&value), "{name}, seed {seed}");
        }
    }
}

#[test]
fn every_type_round_trips() {
    let mut visit = RoundTrip(0);
    visit_all(&mut visit);
    assert!(visit.0 > 300, "only {} types", visit.0);
}

struct Truncated;

impl Visit for Truncated {
    fn one<T: Xdr + Arbitrary + PartialEq + Clone + Debug>(&mut self, name: &'static str) {
        for seed in 0..8 {
            let bytes = T::arbitrary(&mut Seed(seed)).to_bytes();
            for end in (0..bytes.len()).step_by(1 + bytes.len() / 64) {
                let short = T::from_bytes(&bytes.slice(..end));
                assert_eq!(short, Err(Malformed::Short), "{name}, seed {seed}, cut at {end} of {}", bytes.len());
            }
        }
    }
}

#[test]
fn every_type_refuses_a_truncated_message() {
    visit_all(&mut Truncated);
}

struct Damaged;

impl Visit for Damaged {
    fn one<T: Xdr + Arbitrary + PartialEq + Clone + Debug>(&mut self, name: &'static str) {
        for seed in 0..ROUNDS {
            let mut noise = Seed(seed ^ 0xdead_beef);
            let mut bytes = T::arbitrary(&mut Seed(seed)).to_bytes().to_vec();
            for _ in 0..=noise.below(3) {
                if !bytes.is_empty() {
                    let at = noise.below(bytes.len());
                    bytes[at] = noise.pick(&[0, 1, 0x7f, 0x80, 0xff, noise.0 as u8]);
                }
            }
            let mut input = Reader::new(bytes.clone().into());
            // Damaged bytes may still be a valid encoding. Then the encoding of the decoded value must have as many
            // bytes as the decoder has read, and must decode to the same value.
            if let Ok(value) = T::decode(&mut input) {
                let read = bytes.len() - input.remaining();
                let again = value.to_bytes();
                assert_eq!(again.len(), read, "{name}, seed {seed}");
                assert_eq!(T::from_bytes(&again), Ok(value), "{name}, seed {seed}");
            }
        }
    }
}

#[test]
fn damaged_messages_cause_no_panic() {
    visit_all(&mut Damaged);
}
