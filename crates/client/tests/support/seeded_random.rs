//! A random number generator whose seed the test prints, so that a failed run can be repeated.

/// A random number generator (SplitMix64).
pub struct SeededRandom(pub u64);

impl SeededRandom {
    /// Returns a random number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// Returns the seed from `WEIR_TEST_SEED`, or a new seed, and prints it.
pub fn seed() -> u64 {
    let given = std::env::var("WEIR_TEST_SEED").ok().map(|seed| seed.parse().expect("WEIR_TEST_SEED is not a number"));
    let seed = given.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64);
    println!("WEIR_TEST_SEED={seed}");
    seed
}
