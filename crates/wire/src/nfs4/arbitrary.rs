//! Pseudo-random values of every generated XDR type, made from a seed for tests.

use bytes::Bytes;
use std::fmt::Debug;
use xdr::Xdr;

/// A splitmix64 random number generator for tests. Its numbers depend only on the seed.
pub struct Seed(pub u64);

/// A type for which tests can generate pseudo-random values.
pub trait Arbitrary {
    /// Returns a pseudo-random value, which depends only on `seed`.
    fn arbitrary(seed: &mut Seed) -> Self;
}

/// A visitor of all generated XDR types, so that one test can cover them all.
pub trait Visit {
    /// Visits one type, whose name in the RFCs is `name`.
    fn one<T: Xdr + Arbitrary + PartialEq + Clone + Debug>(&mut self, name: &'static str);
}

impl Arbitrary for u32 {
    fn arbitrary(seed: &mut Seed) -> Self {
        seed.u32()
    }
}

impl Seed {
    pub fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn u32(&mut self) -> u32 {
        self.u64() as u32
    }

    pub fn i32(&mut self) -> i32 {
        self.u64() as i32
    }

    pub fn i64(&mut self) -> i64 {
        self.u64() as i64
    }

    pub fn bool(&mut self) -> bool {
        self.below(2) == 1
    }

    /// Returns a pseudo-random number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.u64() % end as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// Returns a pseudo-random value that is not in `taken`.
    pub fn except<T: Arbitrary + PartialEq>(&mut self, taken: &[T]) -> T {
        loop {
            let value = T::arbitrary(self);
            if !taken.contains(&value) {
                return value;
            }
        }
    }

    pub fn fixed<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.u64() as u8)
    }

    /// Returns opaque data of pseudo-random length: mostly at most 20 bytes, and in one of sixteen cases up to `max`
    /// bytes, but never more than 5000 bytes.
    pub fn opaque(&mut self, max: usize) -> Bytes {
        let max = if self.below(16) == 0 { max.min(5000) } else { max.min(20) };
        let len = self.below(max + 1);
        (0..len).map(|_| self.u64() as u8).collect()
    }

    /// Returns an array of at most two items, so that values with nested arrays stay small.
    pub fn array<T>(&mut self, max: usize, mut item: impl FnMut(&mut Seed) -> T) -> Vec<T> {
        let len = self.below(max.min(2) + 1);
        (0..len).map(|_| item(self)).collect()
    }
}
