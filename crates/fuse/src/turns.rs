//! Whose turn it is to work on a request: the thread that read it, and from the first wake-up that finds it waiting a task.
//!
//! What wakes a request while the thread that read it is still at it only leaves word: that thread looks again. Else a task
//! would be woken, only to wait for that thread, and the answers of near servers come that early.

use std::sync::atomic::{AtomicU8, Ordering};

/// The reader works on it.
const BEGUN: u8 = 0;
/// The reader works on it, and it was woken since that look began.
const WOKEN: u8 = 1;
/// It waits, and nobody works on it.
const WAITS: u8 = 2;
/// A task has it, which is woken by ways of its own.
const HANDED: u8 = 3;

/// The turn of one request.
pub(crate) struct Turns(AtomicU8);

impl Turns {
    /// The reader begins.
    pub(crate) fn begun() -> Self {
        Turns(AtomicU8::new(BEGUN))
    }

    /// What the request waited for may be there; whether the caller has to start the task.
    pub(crate) fn wake(&self) -> bool {
        let next = |turn| match turn {
            BEGUN => Some(WOKEN),
            WAITS => Some(HANDED),
            _ => None,
        };
        self.change(next) == Some(WAITS)
    }

    /// The reader has looked and the request waits; false if it has to look again.
    pub(crate) fn rest(&self) -> bool {
        let next = |turn| Some(if turn == WOKEN { BEGUN } else { WAITS });
        self.change(next) == Some(BEGUN)
    }

    /// The reader does not look again though it should: it has to start the task.
    pub(crate) fn hand_over(&self) {
        self.0.store(HANDED, Ordering::Release);
    }

    /// Makes a change if there is one to be made; what there was before it.
    fn change(&self, next: impl FnMut(u8) -> Option<u8>) -> Option<u8> {
        self.0.try_update(Ordering::AcqRel, Ordering::Acquire, next).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What may happen next.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Event {
        /// Something that is waited for comes, and wakes.
        Wake,
        /// The look that is under way ends, and another begins if one must.
        Look,
        /// The reader has had enough of looking.
        HandOver,
    }

    /// Carries a history out as the dispatcher would. Whatever came must be seen by a look that begins after it, by the reader or by the
    /// task, and there is one of both at most.
    fn live(history: &[Event]) {
        let turns = Turns::begun();
        let (mut reader, mut task, mut unseen) = (true, false, false);
        for event in history {
            match event {
                Event::Wake => {
                    unseen = true;
                    if turns.wake() {
                        assert!(!reader && !task, "{history:?}: two work on it");
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
                // The task has its own wakers, and looks again whenever one of them is called.
                _ => {}
            }
            unseen &= !task;
            assert!(!unseen || reader, "{history:?}: nobody will see it");
        }
    }

    #[test]
    fn nothing_that_comes_is_overlooked_in_any_short_history() {
        let mut histories = vec![Vec::new()];
        for _ in 0..9 {
            histories.iter().for_each(|history| live(history));
            let events = [Event::Wake, Event::Look, Event::HandOver];
            let longer = |history: &Vec<Event>| events.map(|event| [history.as_slice(), &[event]].concat());
            histories = histories.iter().flat_map(longer).collect();
        }
    }
}
