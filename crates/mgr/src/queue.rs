//! How long requests wait before they are worked on: what clients are told, so that they send small writes elsewhere while it
//! is long.

use std::time::Duration;

/// A new sample moves an average by one part in this many.
const WEIGHT: u32 = 4;
/// What was measured so long ago says nothing any more.
const OLD: Duration = Duration::from_secs(1);
/// How often it is measured how long those wait who want to be worked on. Each time wakes one more thread, which finds nothing to
/// do where nobody waits.
const LOOK: Duration = Duration::from_millis(10);

/// A moving average.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    value: Duration,
    /// When the last sample was taken; the clock may begin anywhere.
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

/// The waits of requests: from when they are read until they are worked on, and before that until a thread has time to read
/// them. The second no request can tell; whoever wants to be worked on like them, and says when that was, can.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    read: Average,
    unread: Average,
    /// When it was looked last how long the second is.
    looked: Option<Duration>,
}

impl Queue {
    /// A request that was read so long ago is about to be worked on. Whether it is time to look how long those wait that are not
    /// read yet.
    pub(crate) fn waited(&mut self, now: Duration, wait: Duration) -> bool {
        self.read.add(now, wait.min(OLD * 60));
        let due = self.looked.is_none_or(|looked| now.saturating_sub(looked) >= LOOK);
        if due {
            self.looked = Some(now);
        }
        due
    }

    /// Who wanted to be worked on waited so long for it.
    pub(crate) fn looked(&mut self, now: Duration, wait: Duration) {
        self.unread.add(now, wait.min(OLD * 60));
    }

    /// How long requests wait at present.
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
    fn it_follows_what_requests_wait() {
        let mut queue = Queue::default();
        assert_eq!(queue.delay(ms(5)), Duration::ZERO);
        queue.waited(ms(5), ms(4));
        assert_eq!(queue.delay(ms(5)), ms(4), "the first is all that is known");
        for n in 0..200 {
            queue.waited(ms(6 + n), ms(20));
        }
        let long = queue.delay(ms(206));
        assert!(long > ms(19) && long <= ms(20), "{long:?}");
        // One that did not wait says little.
        queue.waited(ms(207), Duration::ZERO);
        assert!(queue.delay(ms(207)) >= ms(14));
        queue.looked(ms(208), ms(3));
        assert_eq!(queue.delay(ms(208)), queue.read.value + ms(3));
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let mut queue = Queue::default();
        queue.waited(ms(0), ms(500));
        queue.looked(ms(0), ms(500));
        assert_eq!(queue.delay(ms(999)), ms(1000));
        assert_eq!(queue.delay(ms(1000)), Duration::ZERO);
        queue.waited(ms(5000), ms(1));
        assert_eq!(queue.delay(ms(5000)), ms(1));
    }

    #[test]
    fn it_is_looked_seldom() {
        let mut queue = Queue::default();
        let due: Vec<bool> = (0..6).map(|n| queue.waited(ms(5 * n), ms(1))).collect();
        assert_eq!(due, [true, false, true, false, true, false]);
    }

    #[test]
    fn no_wait_is_too_long_to_be_added() {
        let mut queue = Queue::default();
        for n in 0..100 {
            queue.waited(ms(n), Duration::MAX);
            queue.looked(ms(n), Duration::MAX);
        }
        assert_eq!(queue.delay(ms(100)), OLD * 120);
    }
}
