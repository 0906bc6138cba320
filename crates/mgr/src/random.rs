//! A buffer of random numbers for requests. One system call fills the buffer for many requests, because a system call
//! takes as much time as all other work for one request.

use std::sync::{Mutex, PoisonError};

/// Number of random numbers that one system call adds to the buffer.
const MANY: usize = 64;

/// Buffered random numbers from the operating system. No number is returned twice.
#[derive(Debug, Default)]
pub(crate) struct Random(Mutex<Vec<u64>>);

impl Random {
    /// Returns the next random number.
    ///
    /// # Errors
    /// The operating system returned no random numbers.
    pub(crate) fn next(&self) -> Result<u64, getrandom::Error> {
        let mut numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if numbers.is_empty() {
            let mut bytes = [0; MANY * 8];
            getrandom::fill(&mut bytes)?;
            let (words, _) = bytes.as_chunks::<8>();
            numbers.extend(words.iter().map(|word| u64::from_ne_bytes(*word)));
        }
        match numbers.pop() {
            Some(number) => Ok(number),
            None => getrandom::u64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn random_numbers_do_not_repeat() {
        let random = Random::default();
        let numbers: HashSet<u64> = (0..10 * MANY).map(|_| random.next().unwrap()).collect();
        assert_eq!(numbers.len(), 10 * MANY);
    }
}
