//! The wall clock of all code that does I/O; a simulator can replace it.
//!
//! To measure durations, all code uses [`tokio::time::Instant`] instead, which a simulator controls.

use std::cell::Cell;
use std::time::SystemTime;
use tokio::time::Instant;

thread_local! {
    /// The simulated wall-clock time, and the tokio time at which the simulator set it. `None` outside a simulator.
    static SIMULATED: Cell<Option<(SystemTime, Instant)>> = const { Cell::new(None) };
}

/// Returns the wall-clock time.
pub fn now() -> SystemTime {
    match SIMULATED.get() {
        Some((then, since)) => then + since.elapsed(),
        None => SystemTime::now(),
    }
}

/// Returns the wall-clock time as Unix time in seconds; 0 if the clock is before 1970.
pub fn unix_now() -> u64 {
    now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Sets the wall clock of this thread to `start`. From then on the wall clock advances with the clock of the tokio
/// runtime, which a simulator can pause. `None` restores the operating system's clock.
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
