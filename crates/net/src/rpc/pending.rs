//! Calls that wait for their answers, and for how long: one alarm for all of them instead of a timer for each.
//!
//! A timer that is set for earlier than anything else has to wake the thread that looks after timers, and nearly every
//! call is answered long before its own. So there is an alarm for the call whose time is over first; when it goes off it
//! is set again for whoever is the first then. A peer that always answers costs one alarm in the time that a call may take.

use crate::Error;
use bytes::Bytes;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Whom an answer is given to.
pub(crate) type Tell = oneshot::Sender<Result<Bytes, Error>>;

/// A call that waits.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) tell: Tell,
    /// When it has waited for too long.
    pub(crate) until: Instant,
    /// How long that was, for the error.
    pub(crate) timeout: Duration,
}

/// Those of one connection, by xid.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    calls: HashMap<u32, Call>,
    /// The earliest time that an alarm is set for; not later than any call's.
    alarm: Option<Instant>,
}

impl Pending {
    /// Enters a call. Answers when an alarm has to be set, if none that is set is early enough.
    pub(crate) fn add(&mut self, xid: u32, call: Call) -> Option<Instant> {
        let until = call.until;
        self.calls.insert(xid, call);
        if self.alarm.is_some_and(|alarm| alarm <= until) {
            return None;
        }
        self.alarm = Some(until);
        self.alarm
    }

    /// Takes a call out, if it still waits.
    pub(crate) fn take(&mut self, xid: u32) -> Option<Call> {
        self.calls.remove(&xid)
    }

    /// Takes all out.
    pub(crate) fn take_all(&mut self) -> Vec<Call> {
        self.calls.drain().map(|(_, call)| call).collect()
    }

    /// The alarm that was set for `at` has gone off: takes out who has waited for too long by now, and tells for when that alarm is
    /// to be set again. One that an earlier one has taken the place of is not.
    pub(crate) fn ring(&mut self, at: Instant, now: Instant) -> (Vec<Call>, Option<Instant>) {
        let late = self.calls.extract_if(|_, call| call.until <= now).map(|(_, call)| call).collect();
        if self.alarm != Some(at) {
            return (late, None);
        }
        self.alarm = self.calls.values().map(|call| call.until).min();
        (late, self.alarm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// What may happen next.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        /// A call that may take so long.
        Call(u64),
        /// The call that came first of those that wait is answered.
        Answer,
        /// So much time passes.
        Pass(u64),
    }

    const EVENTS: [Event; 5] = [Event::Call(1), Event::Call(3), Event::Answer, Event::Pass(1), Event::Pass(2)];

    /// What a caller waits for.
    type Told = oneshot::Receiver<Result<Bytes, Error>>;

    /// Calls by number with the time that they may wait until, and alarms by the time they are set for.
    struct World {
        start: Instant,
        now: u64,
        next: u32,
        pending: Pending,
        waiting: Vec<(u32, u64, Told)>,
        alarms: BTreeSet<(u64, u32)>,
    }

    impl World {
        fn at(&self, time: u64) -> Instant {
            self.start + Duration::from_secs(time)
        }

        fn call(&mut self, time: u64) {
            self.next += 1;
            let (tell, told) = oneshot::channel();
            let (until, timeout) = (self.now + time, Duration::from_secs(time));
            let call = Call { tell, until: self.at(until), timeout };
            if let Some(alarm) = self.pending.add(self.next, call) {
                assert_eq!(alarm, self.at(until));
                self.alarms.insert((until, self.next));
            }
            self.waiting.push((self.next, until, told));
        }

        fn answer(&mut self) {
            if !self.waiting.is_empty() {
                let (xid, _, mut told) = self.waiting.remove(0);
                self.pending.take(xid).unwrap().tell.send(Ok(Bytes::new())).unwrap();
                assert!(told.try_recv().unwrap().is_ok());
                assert!(self.pending.take(xid).is_none(), "answered once");
            }
        }

        /// A second passes, and what is set for it goes off.
        fn tick(&mut self) {
            self.now += 1;
            while let Some((time, name)) = self.alarms.first().copied().filter(|(time, _)| *time <= self.now) {
                self.alarms.remove(&(time, name));
                let (late, again) = self.pending.ring(self.at(time), self.at(self.now));
                for call in late {
                    call.tell.send(Err(Error::Timeout(call.timeout))).unwrap();
                }
                if let Some(again) = again {
                    self.alarms.insert(((again - self.start).as_secs(), name));
                }
            }
            // Whose time is over has been told by now, nobody else.
            let now = self.now;
            self.waiting.retain_mut(|(_, until, told)| match told.try_recv() {
                Ok(Err(Error::Timeout(_))) => {
                    assert_eq!(*until, now);
                    false
                }
                other => {
                    assert!(other.is_err() && *until > now, "at {now}: {other:?} for {until}");
                    true
                }
            });
        }
    }

    fn live(history: &[Event]) {
        let start = Instant::now();
        let pending = Pending::default();
        let mut world = World { start, now: 0, next: 0, pending, waiting: Vec::new(), alarms: BTreeSet::new() };
        for event in history {
            match event {
                Event::Call(time) => world.call(*time),
                Event::Answer => world.answer(),
                Event::Pass(time) => (0..*time).for_each(|_| world.tick()),
            }
        }
        for _ in 0..8 {
            world.tick();
        }
        assert!(world.waiting.is_empty() && world.alarms.is_empty(), "{history:?} leaves an alarm for nobody");
    }

    #[test]
    fn every_call_ends_in_time_in_every_short_history() {
        let mut histories = vec![Vec::new()];
        for _ in 0..7 {
            histories.iter().for_each(|history| live(history));
            let longer = |history: &Vec<Event>| EVENTS.map(|event| [history.as_slice(), &[event]].concat());
            histories = histories.iter().flat_map(longer).collect();
        }
    }

    #[test]
    fn answers_in_time_set_no_further_alarm() {
        let now = Instant::now();
        let mut pending = Pending::default();
        let alarms = (0..100).filter(|n| {
            let (tell, _) = oneshot::channel();
            let timeout = Duration::from_secs(30);
            let set =
                pending.add(*n, Call { tell, until: now + Duration::from_millis(u64::from(*n)) + timeout, timeout });
            pending.take(*n);
            set.is_some()
        });
        assert_eq!(alarms.count(), 1);
    }
}
