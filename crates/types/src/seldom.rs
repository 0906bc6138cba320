//! Rate limiter for log messages: a peer that repeats the same mistake must not fill the log.

use crate::Machine;
use std::collections::BTreeMap;

/// Seconds after which a message with the same reason about the same machine may be logged again.
const AGAIN: u64 = 10;
/// Maximum number of pairs of reason and machine that the limiter tracks. Further machines share one entry per
/// reason.
const APART: usize = 1024;

/// A rate limiter: the times of recent log messages, by reason and machine.
#[derive(Clone, Debug, Default)]
pub struct Seldom(BTreeMap<(&'static str, Machine), Said>);

#[derive(Clone, Copy, Debug)]
struct Said {
    at: u64,
    left_out: u64,
}

impl Seldom {
    /// Returns an empty limiter.
    pub const fn new() -> Self {
        Seldom(BTreeMap::new())
    }

    /// Decides whether to log this message about a machine now; `now` is in seconds of any running clock. Returns how
    /// often the message was suppressed since it was last logged, or `None` to suppress it.
    pub fn is_time(&mut self, reason: &'static str, machine: Machine, now: u64) -> Option<u64> {
        let mut key = (reason, machine);
        if self.0.len() >= APART && !self.0.contains_key(&key) {
            // Remove entries without a recent message. Entries with suppressed messages that were not yet counted in
            // the log stay longer.
            let quiet = |said: &Said| now.abs_diff(said.at) >= if said.left_out > 0 { 30 * AGAIN } else { AGAIN };
            self.0.retain(|_, said| !quiet(said));
            if self.0.len() >= APART {
                key = (reason, Machine::UNKNOWN);
            }
        }
        let Some(said) = self.0.get_mut(&key) else {
            self.0.insert(key, Said { at: now, left_out: 0 });
            return Some(0);
        };
        if now.abs_diff(said.at) < AGAIN {
            said.left_out += 1;
            return None;
        }
        Some(std::mem::replace(said, Said { at: now, left_out: 0 }).left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Machine = Machine::Local(1);

    #[test]
    fn a_repeated_reason_is_logged_again_later_with_the_omitted_count() {
        let mut seldom = Seldom::default();
        assert_eq!(seldom.is_time("a", ONE, 100), Some(0));
        assert_eq!(seldom.is_time("a", Machine::Local(2), 100), Some(0));
        assert_eq!(seldom.is_time("b", ONE, 100), Some(0));
        assert_eq!([101, 105, 109].map(|now| seldom.is_time("a", ONE, now)), [None; 3]);
        assert_eq!(seldom.is_time("a", ONE, 110), Some(3));
        assert_eq!(seldom.is_time("a", ONE, 130), Some(0));
    }

    #[test]
    fn memory_is_bounded_for_many_machines() {
        let mut seldom = Seldom::default();
        let said = (0..100_000).filter(|n| seldom.is_time("a", Machine::Local(*n), 7).is_some()).count();
        assert!(said <= APART + 1, "{said}");
        assert!(seldom.0.len() <= APART + 1);
        // After the entries of earlier machines have expired, the limiter tracks further machines one by one again.
        assert_eq!(seldom.is_time("a", Machine::Local(200_000), 99), Some(0));
    }
}
