//! The time of day, for everything that does input and output; a simulator puts its own in its place.
//!
//! Spans are measured with [`tokio::time::Instant`], which a simulator drives.

use std::cell::Cell;
use std::time::SystemTime;
use tokio::time::Instant;

thread_local! {
    /// What the time of day was at which moment of the runtime's clock.
    static SIMULATED: Cell<Option<(SystemTime, Instant)>> = const { Cell::new(None) };
}

/// The time of day.
pub fn now() -> SystemTime {
    match SIMULATED.get() {
        Some((then, since)) => then + since.elapsed(),
        None => SystemTime::now(),
    }
}

/// Seconds since 1970, 0 before that.
pub fn unix_now() -> u64 {
    now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// From now on the time of day in this thread is `start` and goes on with the clock of its tokio runtime, which may be
/// paused; `None` gives the thread the system's time again.
pub fn simulate(start: Option<SystemTime>) {
    SIMULATED.set(start.map(|start| (start, Instant::now())));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_day_begins_where_it_was_told() {
        let start = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1 << 30);
        simulate(Some(start));
        assert!(now() >= start && unix_now() < 2 << 30);
        simulate(None);
        assert!(now() > start);
    }
}
