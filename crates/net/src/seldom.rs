//! What this process says now and then only of what peers do.

use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;
use types::{Machine, Seldom};

static SAID: Mutex<Seldom> = Mutex::new(Seldom::new());

/// Whether to log this of a peer on a machine now: then how often it was left out since it was logged last.
pub fn seldom(reason: &'static str, machine: Machine) -> Option<u64> {
    let now = crate::clock::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    SAID.lock().unwrap_or_else(PoisonError::into_inner).is_time(reason, machine, now)
}
