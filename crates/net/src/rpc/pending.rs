//! The table of calls that wait for replies, with one timer for all calls of a connection.
//!
//! One timer for each call is expensive, because each timer may wake the timer thread, although nearly every reply
//! arrives long before the timeout. So the table sets one alarm, for the earliest deadline. When the alarm fires, the
//! table sets the alarm to the earliest deadline of the calls that still wait. If the peer always replies, the alarm
//! fires once in each timeout period.

use crate::Error;
use bytes::Bytes;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The channel that passes the reply to the waiting caller.
pub(crate) type ReplySender = oneshot::Sender<Result<Bytes, Error>>;

/// A call that waits for its reply.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) reply_sender: ReplySender,
    /// When the call times out.
    pub(crate) until: Instant,
    /// The timeout that the caller requested, for the error message.
    pub(crate) timeout: Duration,
}

/// The calls of one connection that wait for replies, by xid.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    calls: HashMap<u32, Call>,
    /// The earliest time for which an alarm is set. No waiting call has a deadline before this time.
    alarm: Option<Instant>,
}

impl Pending {
    /// Adds a call that waits for its reply. Returns the time for which the caller must set a new alarm; `None` if an
    /// existing alarm is early enough.
    pub(crate) fn add(&mut self, xid: u32, call: Call) -> Option<Instant> {
        let until = call.until;
        self.calls.insert(xid, call);
        if self.alarm.is_some_and(|alarm| alarm <= until) {
            return None;
        }
        self.alarm = Some(until);
        self.alarm
    }

    /// Removes and returns the call with this xid; `None` if no such call waits.
    pub(crate) fn take(&mut self, xid: u32) -> Option<Call> {
        self.calls.remove(&xid)
    }

    /// Removes and returns all waiting calls.
    pub(crate) fn take_all(&mut self) -> Vec<Call> {
        self.calls.drain().map(|(_, call)| call).collect()
    }

    /// Handles the alarm that was set for the time `at`. Removes and returns the calls whose deadline has passed.
    /// Also returns the time for which the caller must set this alarm again; `None` if no call waits or an earlier
    /// alarm has replaced this alarm.
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

    /// One event in the random sequence of events that the test applies to the table of waiting calls.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        /// The client makes a call with this timeout in seconds.
        Call(u64),
        /// The peer replies to the oldest waiting call.
        Answer,
        /// The clock advances by this many seconds.
        Pass(u64),
    }

    const EVENTS: [Event; 5] = [Event::Call(1), Event::Call(3), Event::Answer, Event::Pass(1), Event::Pass(2)];

    /// The channel over which a caller receives its reply.
    type ReplyReceiver = oneshot::Receiver<Result<Bytes, Error>>;

    /// The table under test (`pending`), and beside it the expected state: the waiting calls with their xids and
    /// deadlines, and the alarms that are set.
    struct Model {
        start: Instant,
        now: u64,
        next: u32,
        pending: Pending,
        waiting: Vec<(u32, u64, ReplyReceiver)>,
        alarms: BTreeSet<(u64, u32)>,
    }

    impl Model {
        fn at(&self, time: u64) -> Instant {
            self.start + Duration::from_secs(time)
        }

        fn call(&mut self, time: u64) {
            self.next += 1;
            let (reply_sender, receiver) = oneshot::channel();
            let (until, timeout) = (self.now + time, Duration::from_secs(time));
            let call = Call { reply_sender, until: self.at(until), timeout };
            if let Some(alarm) = self.pending.add(self.next, call) {
                assert_eq!(alarm, self.at(until));
                self.alarms.insert((until, self.next));
            }
            self.waiting.push((self.next, until, receiver));
        }

        fn answer(&mut self) {
            if !self.waiting.is_empty() {
                let (xid, _, mut receiver) = self.waiting.remove(0);
                self.pending.take(xid).unwrap().reply_sender.send(Ok(Bytes::new())).unwrap();
                assert!(receiver.try_recv().unwrap().is_ok());
                assert!(self.pending.take(xid).is_none(), "answered once");
            }
        }

        /// Advances the clock by one second and fires the alarms whose time has come.
        fn tick(&mut self) {
            self.now += 1;
            while let Some((time, name)) = self.alarms.first().copied().filter(|(time, _)| *time <= self.now) {
                self.alarms.remove(&(time, name));
                let (late, again) = self.pending.ring(self.at(time), self.at(self.now));
                for call in late {
                    call.reply_sender.send(Err(Error::Timeout(call.timeout))).unwrap();
                }
                if let Some(again) = again {
                    self.alarms.insert(((again - self.start).as_secs(), name));
                }
            }
            // The calls that have timed out must be exactly the calls whose deadline has passed.
            let now = self.now;
            self.waiting.retain_mut(|(_, until, receiver)| match receiver.try_recv() {
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
        let mut model = Model { start, now: 0, next: 0, pending, waiting: Vec::new(), alarms: BTreeSet::new() };
        for event in history {
            match event {
                Event::Call(time) => model.call(*time),
                Event::Answer => model.answer(),
                Event::Pass(time) => (0..*time).for_each(|_| model.tick()),
            }
        }
        for _ in 0..8 {
            model.tick();
        }
        assert!(model.waiting.is_empty() && model.alarms.is_empty(), "{history:?} leaves an alarm for nobody");
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
    fn replies_in_time_set_no_further_timer() {
        let now = Instant::now();
        let mut pending = Pending::default();
        let alarms = (0..100).filter(|n| {
            let (reply_sender, _) = oneshot::channel();
            let timeout = Duration::from_secs(30);
            let set = pending
                .add(*n, Call { reply_sender, until: now + Duration::from_millis(u64::from(*n)) + timeout, timeout });
            pending.take(*n);
            set.is_some()
        });
        assert_eq!(alarms.count(), 1);
    }
}
