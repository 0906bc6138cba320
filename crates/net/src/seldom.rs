//! Rate limiting of log messages about peers, so that a misbehaving peer does not flood the log.

use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;
use types::{Machine, Seldom};

static SAID: Mutex<Seldom> = Mutex::new(Seldom::new());

/// Returns `None` if the caller must not log a message of this kind (`reason`) about this machine now. Otherwise
/// returns how many such messages were suppressed since the last one was logged.
pub fn seldom(reason: &'static str, machine: Machine) -> Option<u64> {
    let now = crate::clock::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    SAID.lock().unwrap_or_else(PoisonError::into_inner).is_time(reason, machine, now)
}
