//! Poll scheduling: the thread that read a request polls it first; after a wake-up that finds it waiting, a task polls
//! it.
//!
//! A wake-up that arrives while the first thread still polls the request only leaves a mark, and that thread polls
//! again. Otherwise the wake-up would start a task that only waits for that thread, and answers of near servers arrive
//! that early.

use std::sync::atomic::{AtomicU8, Ordering};

/// The reader polls the request.
const BEGUN: u8 = 0;
/// The reader polls it, and a wake-up has arrived since that poll began.
const WOKEN: u8 = 1;
/// The request waits, and no thread polls it.
const WAITS: u8 = 2;
/// A task has it, and has wakers of its own.
const HANDED: u8 = 3;

/// The polling state of one request.
pub(crate) struct PollScheduling(AtomicU8);

impl PollScheduling {
    /// Creates the state in which the reader begins to poll.
    pub(crate) fn begun() -> Self {
        PollScheduling(AtomicU8::new(BEGUN))
    }

    /// Records a wake-up. Returns whether the caller has to start the task.
    pub(crate) fn wake(&self) -> bool {
        let next = |turn| match turn {
            BEGUN => Some(WOKEN),
            WAITS => Some(HANDED),
            _ => None,
        };
        self.change(next) == Some(WAITS)
    }

    /// Records that the reader's poll returned pending. Returns false if the reader has to poll again.
    pub(crate) fn rest(&self) -> bool {
        let next = |turn| Some(if turn == WOKEN { BEGUN } else { WAITS });
        self.change(next) == Some(BEGUN)
    }

    /// Records that the reader does not poll again though it should, and has to start the task.
    pub(crate) fn hand_over(&self) {
        self.0.store(HANDED, Ordering::Release);
    }

    /// Makes a transition if one applies. Returns the state before it.
    fn change(&self, next: impl FnMut(u8) -> Option<u8>) -> Option<u8> {
        self.0.try_update(Ordering::AcqRel, Ordering::Acquire, next).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events that may happen next.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Event {
        /// A result arrives and wakes the request.
        Wake,
        /// The present poll ends, and another begins if necessary.
        Look,
        /// The reader stops polling.
        HandOver,
    }

    /// Executes a history as the dispatcher would. A poll by the reader or the task that begins after a wake-up has to
    /// see its result, and at most one of both polls at a time.
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
                // The task has its own wakers, and polls again whenever one of them is called.
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
