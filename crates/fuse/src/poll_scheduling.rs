//! Poll scheduling: decides which thread polls the future of a request. The thread that read the request, the *reader*,
//! polls the future first. If a wake-up arrives while no thread polls the future, a task of the runtime polls it from
//! then on.
//!
//! If a wake-up arrives during a poll by the reader, the wake-up only changes the state of the request, and the reader
//! polls again. If the wake-up started the task instead, the task would have to wait for the reader. Replies of nearby
//! servers often arrive during a poll by the reader.

use std::sync::atomic::{AtomicU8, Ordering};

/// State: the reader (the thread that read the request) polls the request.
const BEGUN: u8 = 0;
/// State: the reader (the thread that read the request) polls the request, and a wake-up has arrived since this poll
/// began.
const WOKEN: u8 = 1;
/// State: the request waits, and no thread polls it.
const WAITS: u8 = 2;
/// State: a task of the runtime polls the request, and registers its own wakers.
const HANDED: u8 = 3;

/// The polling state of one request: which thread polls its future.
pub(crate) struct PollScheduling(AtomicU8);

impl PollScheduling {
    /// Returns the initial state: the thread that read the request polls it.
    pub(crate) fn begun() -> Self {
        PollScheduling(AtomicU8::new(BEGUN))
    }

    /// Records a wake-up. Returns whether the caller has to start the runtime task that polls the request.
    pub(crate) fn wake(&self) -> bool {
        let next = |turn| match turn {
            BEGUN => Some(WOKEN),
            WAITS => Some(HANDED),
            _ => None,
        };
        self.change(next) == Some(WAITS)
    }

    /// Records that a poll by the thread that read the request returned `Poll::Pending`. Returns false if this thread
    /// has to poll again.
    pub(crate) fn rest(&self) -> bool {
        let next = |turn| Some(if turn == WOKEN { BEGUN } else { WAITS });
        self.change(next) == Some(BEGUN)
    }

    /// Records that the thread that read the request no longer polls the future of the request, even if a wake-up has
    /// arrived. From now on only the runtime task polls the future; the caller starts this task.
    pub(crate) fn hand_over(&self) {
        self.0.store(HANDED, Ordering::Release);
    }

    /// Changes the state if `next` returns a new state. Returns the earlier state if the state changed.
    fn change(&self, next: impl FnMut(u8) -> Option<u8>) -> Option<u8> {
        self.0.try_update(Ordering::AcqRel, Ordering::Acquire, next).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events in the history of a request.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Event {
        /// A result for which the request waits arrives and wakes the request.
        Wake,
        /// The current poll ends, and another poll begins if necessary.
        Look,
        /// The thread that read the request hands the future of the request over to a task of the runtime, which polls
        /// the future from then on.
        HandOver,
    }

    /// Applies the events of a history as the dispatcher does. A poll that begins after a wake-up must see the result
    /// that caused the wake-up. The thread that read the request and the runtime's task must not poll at the same
    /// time.
    fn live(history: &[Event]) {
        let turns = PollScheduling::begun();
        let (mut reader, mut task, mut unseen) = (true, false, false);
        for event in history {
            match event {
                Event::Wake => {
                    unseen = true;
                    if turns.wake() {
                        assert!(!reader && !task, "{history:?}: two threads poll the same operation");
                        task = true;
                    }
                }
                Event::Look if reader => {
                    reader = !turns.rest();
                    assert_eq!(reader, unseen, "{history:?}");
                    unseen = false;
                }
                Event::HandOver if reader => {
                    turns.hand_over();
                    (reader, task) = (false, true);
                }
                // The reader does not poll now. Polls by the task do not change the state, because the task polls again
                // whenever one of its own wakers is called.
                _ => {}
            }
            unseen &= !task;
            assert!(!unseen || reader, "{history:?}: no thread will see the event");
        }
    }

    #[test]
    fn no_wake_up_is_lost_in_any_short_history() {
        let mut histories = vec![Vec::new()];
        for _ in 0..9 {
            histories.iter().for_each(|history| live(history));
            let events = [Event::Wake, Event::Look, Event::HandOver];
            let longer = |history: &Vec<Event>| events.map(|event| [history.as_slice(), &[event]].concat());
            histories = histories.iter().flat_map(longer).collect();
        }
    }
}
