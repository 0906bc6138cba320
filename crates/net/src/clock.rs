//! The wall clock of all I/O code, which a simulator can replace.
//!
//! Durations are measured with [`tokio::time::Instant`], which a simulator controls.

use std::cell::Cell;
use std::time::SystemTime;
use tokio::time::Instant;

thread_local! {
    /// The simulated time of day, and the runtime instant at which it was set.
    static SIMULATED: Cell<Option<(SystemTime, Instant)>> = const { Cell::new(None) };
}

/// Returns the time of day.
pub fn now() -> SystemTime {
    match SIMULATED.get() {
        Some((then, since)) => then + since.elapsed(),
        None => SystemTime::now(),
    }
}

/// Returns the seconds since 1970, or 0 before that.
pub fn unix_now() -> u64 {
    now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Sets the time of day of this thread to `start`; it then advances with the clock of the tokio runtime, which may be
/// paused. `None` restores the system's time.
pub fn simulate(start: Option<SystemTime>) {
    SIMULATED.set(start.map(|start| (start, Instant::now())));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simulated_wall_clock_starts_at_the_given_time() {
        let start = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1 << 30);
        simulate(Some(start));
        assert!(now() >= start && unix_now() < 2 << 30);
        simulate(None);
        assert!(now() > start);
    }
}
