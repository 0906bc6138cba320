//! Rate limiting of log messages about peers.

use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;
use types::{Machine, Seldom};

static SAID: Mutex<Seldom> = Mutex::new(Seldom::new());

/// Returns whether to log this reason for a peer on this machine now: `Some` is the number of messages left out since
/// the last one.
pub fn seldom(reason: &'static str, machine: Machine) -> Option<u64> {
    let now = crate::clock::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    SAID.lock().unwrap_or_else(PoisonError::into_inner).is_time(reason, machine, now)
}
