//! Rate limiter for log messages, so that a peer that repeats the same mistake does not fill the log.

use crate::Machine;
use std::collections::BTreeMap;

/// Number of seconds for which the limiter suppresses further messages with the same reason about the same machine.
const INTERVAL: u64 = 10;
/// Maximum number of pairs (reason, machine) that each have an entry in the limiter. For further pairs with the same
/// reason, all machines share one entry.
const ENTRIES_MAX: usize = 1024;

/// A rate limiter. It stores the time of the last log message for each pair (reason, machine).
#[derive(Clone, Debug, Default)]
pub struct LogRateLimit(BTreeMap<(&'static str, Machine), Logged>);

#[derive(Clone, Copy, Debug)]
struct Logged {
    at: u64,
    left_out: u64,
}

impl LogRateLimit {
    /// Returns an empty limiter.
    pub const fn new() -> Self {
        LogRateLimit(BTreeMap::new())
    }

    /// Decides whether to log a message about a machine now. `now` is in seconds of any clock that does not stop.
    /// Returns `None` if the caller must suppress the message. Otherwise returns how many messages with this reason the
    /// caller has suppressed since the last logged one.
    pub fn may_log(&mut self, reason: &'static str, machine: Machine, now: u64) -> Option<u64> {
        let mut key = (reason, machine);
        if self.0.len() >= ENTRIES_MAX && !self.0.contains_key(&key) {
            // Remove entries without a recent message. An entry stays longer if it counts suppressed messages that no
            // logged message has reported yet.
            let quiet =
                |logged: &Logged| now.abs_diff(logged.at) >= if logged.left_out > 0 { 30 * INTERVAL } else { INTERVAL };
            self.0.retain(|_, logged| !quiet(logged));
            if self.0.len() >= ENTRIES_MAX {
                key = (reason, Machine::UNKNOWN);
            }
        }
        let Some(logged) = self.0.get_mut(&key) else {
            self.0.insert(key, Logged { at: now, left_out: 0 });
            return Some(0);
        };
        if now.abs_diff(logged.at) < INTERVAL {
            logged.left_out += 1;
            return None;
        }
        Some(std::mem::replace(logged, Logged { at: now, left_out: 0 }).left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Machine = Machine::Local(1);

    #[test]
    fn a_repeated_reason_is_logged_again_later_with_the_omitted_count() {
        let mut limiter = LogRateLimit::default();
        assert_eq!(limiter.may_log("a", ONE, 100), Some(0));
        assert_eq!(limiter.may_log("a", Machine::Local(2), 100), Some(0));
        assert_eq!(limiter.may_log("b", ONE, 100), Some(0));
        assert_eq!([101, 105, 109].map(|now| limiter.may_log("a", ONE, now)), [None; 3]);
        assert_eq!(limiter.may_log("a", ONE, 110), Some(3));
        assert_eq!(limiter.may_log("a", ONE, 130), Some(0));
    }

    #[test]
    fn memory_is_bounded_for_many_machines() {
        let mut limiter = LogRateLimit::default();
        let logged = (0..100_000).filter(|n| limiter.may_log("a", Machine::Local(*n), 7).is_some()).count();
        assert!(logged <= ENTRIES_MAX + 1, "{logged}");
        assert!(limiter.0.len() <= ENTRIES_MAX + 1);
        // When old entries have expired, the limiter has space for an entry for each new machine again.
        assert_eq!(limiter.may_log("a", Machine::Local(200_000), 99), Some(0));
    }
}
