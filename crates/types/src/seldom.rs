//! What is said now and then only: a peer that does the same wrong thing again and again must not fill the log.

use crate::Machine;
use std::collections::BTreeMap;

/// Seconds after which the same of the same machine is said once more.
const AGAIN: u64 = 10;
/// Machines and reasons kept apart; those of all further ones count together.
const APART: usize = 1024;

/// What was said lately, by reason and machine.
#[derive(Clone, Debug, Default)]
pub struct Seldom(BTreeMap<(&'static str, Machine), Said>);

#[derive(Clone, Copy, Debug)]
struct Said {
    at: u64,
    left_out: u64,
}

impl Seldom {
    /// Nothing was said.
    pub const fn new() -> Self {
        Seldom(BTreeMap::new())
    }

    /// Whether to say this of a machine now, with `now` in seconds of any clock that does not stand still: then how often it was left out since it was said last.
    pub fn is_time(&mut self, reason: &'static str, machine: Machine, now: u64) -> Option<u64> {
        let mut key = (reason, machine);
        if self.0.len() >= APART && !self.0.contains_key(&key) {
            // Those that were quiet for long, or for very long if something is still to be told of them.
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
    fn the_same_is_said_again_later_with_what_was_left_out() {
        let mut seldom = Seldom::default();
        assert_eq!(seldom.is_time("a", ONE, 100), Some(0));
        assert_eq!(seldom.is_time("a", Machine::Local(2), 100), Some(0));
        assert_eq!(seldom.is_time("b", ONE, 100), Some(0));
        assert_eq!([101, 105, 109].map(|now| seldom.is_time("a", ONE, now)), [None; 3]);
        assert_eq!(seldom.is_time("a", ONE, 110), Some(3));
        assert_eq!(seldom.is_time("a", ONE, 130), Some(0));
    }

    #[test]
    fn many_machines_take_no_more_room() {
        let mut seldom = Seldom::default();
        let said = (0..100_000).filter(|n| seldom.is_time("a", Machine::Local(*n), 7).is_some()).count();
        assert!(said <= APART + 1, "{said}");
        assert!(seldom.0.len() <= APART + 1);
        // Once they are quiet, others are heard.
        assert_eq!(seldom.is_time("a", Machine::Local(200_000), 99), Some(0));
    }
}
