//! The queue delay of the mgr: how long requests wait before the mgr executes them.
//!
//! The mgr sends the queue delay to clients in its replies. While the delay is long, clients send small writes to the
//! iods instead of the mgr.

use std::time::Duration;

/// Divisor of the moving average: a new sample moves the average by a quarter of their difference.
const WEIGHT: u32 = 4;
/// If the last sample of an average is at least this old, the average counts as zero.
const OLD: Duration = Duration::from_secs(1);
/// Shortest interval between two probe tasks, which measure how long a new task waits for a thread. Each probe task
/// wakes one more thread, which is needless if no request waits.
const LOOK: Duration = Duration::from_millis(10);

/// A moving average of durations.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    value: Duration,
    /// Time of the last sample, as the duration since an instant that all callers share.
    at: Option<Duration>,
}

impl Average {
    fn add(&mut self, now: Duration, sample: Duration) {
        let fresh = self.at.is_some_and(|at| now.saturating_sub(at) < OLD);
        self.value = if fresh { (self.value * (WEIGHT - 1) + sample) / WEIGHT } else { sample };
        self.at = Some(now);
    }

    fn at(&self, now: Duration) -> Duration {
        self.at.filter(|at| now.saturating_sub(*at) < OLD).map_or(Duration::ZERO, |_| self.value)
    }
}

/// The waiting times of requests. `read` is the time from when a thread reads a request until the mgr executes it.
/// `unread` is the time before a thread reads a request. No request can measure `unread`, so a probe task measures how
/// long it waits for a thread.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    read: Average,
    unread: Average,
    /// When the last probe task was started.
    looked: Option<Duration>,
}

impl Queue {
    /// Records how long a request has waited since a thread read it. Returns whether the caller should start a probe
    /// task.
    pub(crate) fn waited(&mut self, now: Duration, wait: Duration) -> bool {
        self.read.add(now, wait.min(OLD * 60));
        let due = self.looked.is_none_or(|looked| now.saturating_sub(looked) >= LOOK);
        if due {
            self.looked = Some(now);
        }
        due
    }

    /// Records how long a probe task has waited for a thread.
    pub(crate) fn looked(&mut self, now: Duration, wait: Duration) {
        self.unread.add(now, wait.min(OLD * 60));
    }

    /// Returns how long a request waits now: the average wait for a thread that reads the request, plus the average
    /// wait from then until the mgr executes the request.
    pub(crate) fn delay(&self, now: Duration) -> Duration {
        self.read.at(now) + self.unread.at(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn the_delay_follows_the_waits_of_requests() {
        let mut queue = Queue::default();
        assert_eq!(queue.delay(ms(5)), Duration::ZERO);
        queue.waited(ms(5), ms(4));
        assert_eq!(queue.delay(ms(5)), ms(4), "the first is all that is known");
        for n in 0..200 {
            queue.waited(ms(6 + n), ms(20));
        }
        let long = queue.delay(ms(206));
        assert!(long > ms(19) && long <= ms(20), "{long:?}");
        // One request that does not wait changes the average only a little.
        queue.waited(ms(207), Duration::ZERO);
        assert!(queue.delay(ms(207)) >= ms(14));
        queue.looked(ms(208), ms(3));
        assert_eq!(queue.delay(ms(208)), queue.read.value + ms(3));
    }

    #[test]
    fn old_waits_are_forgotten() {
        let mut queue = Queue::default();
        queue.waited(ms(0), ms(500));
        queue.looked(ms(0), ms(500));
        assert_eq!(queue.delay(ms(999)), ms(1000));
        assert_eq!(queue.delay(ms(1000)), Duration::ZERO);
        queue.waited(ms(5000), ms(1));
        assert_eq!(queue.delay(ms(5000)), ms(1));
    }

    #[test]
    fn the_delay_is_computed_at_most_every_ten_milliseconds() {
        let mut queue = Queue::default();
        let due: Vec<bool> = (0..6).map(|n| queue.waited(ms(5 * n), ms(1))).collect();
        assert_eq!(due, [true, false, true, false, true, false]);
    }

    #[test]
    fn the_longest_wait_does_not_overflow() {
        let mut queue = Queue::default();
        for n in 0..100 {
            queue.waited(ms(n), Duration::MAX);
            queue.looked(ms(n), Duration::MAX);
        }
        assert_eq!(queue.delay(ms(100)), OLD * 120);
    }
}
