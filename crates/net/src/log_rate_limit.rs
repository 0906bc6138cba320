//! Rate limiting of log messages about peers, so that a misbehaving peer does not flood the log.

use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;
use types::{LogRateLimit, Machine};

static LIMITER: Mutex<LogRateLimit> = Mutex::new(LogRateLimit::new());

/// Returns `None` if the caller must not log a message of this kind (`reason`) about this machine now. Otherwise
/// returns how many such messages were suppressed since the last one was logged.
pub fn may_log(reason: &'static str, machine: Machine) -> Option<u64> {
    let now = crate::clock::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    LIMITER.lock().unwrap_or_else(PoisonError::into_inner).may_log(reason, machine, now)
}
