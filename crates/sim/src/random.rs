//! Random numbers of a simulated run, all derived from one seed: the random number streams of the simulator, and the
//! system's random bytes.
//!
//! Hash maps, the owners and verifiers of clients, and all other users of the system's random bytes call `getrandom`.
//! This file replaces that function in all programs that link this crate. In a thread with a seed, `getrandom` returns
//! bytes that follow from the seed.

use std::cell::Cell;

/// A stream of pseudorandom numbers (splitmix64), not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Returns the random number stream of a seed for one purpose. The streams of a seed for different purposes are
    /// independent.
    pub fn new(seed: u64, purpose: &str) -> Self {
        let mut rng = Rng(seed ^ 0x5eed_5eed);
        for byte in purpose.bytes() {
            rng.0 = rng.draw() ^ u64::from(byte);
        }
        rng
    }

    /// Returns the next random number of the stream.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number from `low` to `high`, including both.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// Returns `true` with a probability of `chance` percent.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Returns a random item of the list `of`, which must not be empty.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

thread_local! {
    static SYSTEM: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Makes the system's random bytes in this thread follow from `seed` from now on. Hash maps that the thread made before
/// this call keep their hash keys.
pub fn seed_thread(seed: u64) {
    SYSTEM.set(Some(Rng::new(seed, "system").draw()));
}

/// Fills `out` with bytes that follow from the seed of this thread. Uses the system's random bytes if the thread has no
/// seed.
fn fill(out: &mut [u8]) -> isize {
    let Some(state) = SYSTEM.get() else {
        let mut done = 0;
        while done < out.len() {
            match rustix::rand::getrandom(&mut out[done..], rustix::rand::GetRandomFlags::empty()) {
                Ok(n) => done += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return -1,
            }
        }
        return out.len() as isize;
    };
    let mut rng = Rng(state);
    for chunk in out.chunks_mut(8) {
        chunk.copy_from_slice(&rng.draw().to_le_bytes()[..chunk.len()]);
    }
    SYSTEM.set(Some(rng.0));
    out.len() as isize
}

/// Replaces `getrandom(2)` in the whole program.
///
/// # Safety
/// `buffer` must be valid for writes of `len` bytes, as for the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut u8, len: usize, _flags: u32) -> isize {
    if len == 0 {
        return 0;
    }
    // SAFETY: the caller guarantees that `buffer` is valid for writes of `len` bytes. The memory may be uninitialised,
    // so it is zeroed before a slice of it exists.
    let out = unsafe {
        buffer.write_bytes(0, len);
        std::slice::from_raw_parts_mut(buffer, len)
    };
    fill(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{BuildHasher, RandomState};

    fn seen(seed: u64) -> (u64, u64, u64) {
        let work = move || {
            seed_thread(seed);
            let hashed = RandomState::new().hash_one(1);
            (hashed, getrandom::u64().unwrap(), getrandom::u64().unwrap())
        };
        std::thread::spawn(work).join().unwrap()
    }

    #[test]
    fn random_bytes_of_the_system_follow_the_seed_of_the_thread() {
        let (first, again, other) = (seen(5), seen(5), seen(6));
        assert_eq!(first, again);
        assert!(first.0 != other.0 && first.1 != other.1 && first.1 != first.2);
        assert_ne!(getrandom::u64().unwrap(), getrandom::u64().unwrap());
    }

    #[test]
    fn numbers_stay_in_their_bounds() {
        let mut rng = Rng::new(1, "x");
        let mut seen = [false; 7];
        for _ in 0..1000 {
            seen[rng.below(7) as usize] = true;
            assert!((3..=5).contains(&rng.between(3, 5)));
        }
        assert!(seen.iter().all(|seen| *seen));
        assert_ne!(Rng::new(1, "x").draw(), Rng::new(1, "y").draw());
        assert_eq!(rng.below(0), 0);
    }
}
