//! Tests of the opens of a file: every short history of opens, failures, error reports, locks and lost locks, compared
//! with a model.

use super::*;
use crate::explorer::walk;
use std::collections::{BTreeMap, BTreeSet};

/// The lock-owner of all locks in the tests (`OWNER`), and the number of bytes that calls can lock (`UNITS`).
const OWNER: u64 = 7;
const UNITS: u64 = 3;

#[derive(Clone, Copy, Debug)]
enum Call {
    /// The client opens the file for reading, or for reading and writing.
    Open {
        key: u64,
        write: bool,
    },
    Close(u64),
    /// The client loses written bytes; each open for writing has to report this error.
    Fail,
    /// A write, `fsync` or close of an open file returns the pending write error, and clears the error.
    Take(u64),
    Lock {
        key: u64,
        first: u64,
        last: u64,
        kind: LockKind,
    },
    Unlock {
        first: u64,
        last: u64,
    },
    /// The mgr loses the locks under an open.
    Lose(u64),
    /// The mgr restarts, and the client reclaims the locks under an open.
    Reclaim(u64),
    /// The owner unlocks after it has lost locks, and gets the error about the loss.
    Acknowledge,
}

#[derive(Clone, Default)]
struct Model {
    opens: OpenStates,
    issued: u8,
    /// For each open, whether it is for writing, and the number of the failure that it has yet to report.
    model: BTreeMap<u64, (bool, Option<u8>)>,
    failures: u8,
    /// For each locked byte, the open under which it is locked, and the kind of the lock.
    locked: BTreeMap<u64, (u64, LockKind)>,
    /// The opens for which the mgr has issued a lock stateid.
    stateids: BTreeSet<u64>,
    /// The opens whose locks were lost, and whose lock-owner has not yet received the error.
    lost: BTreeSet<u64>,
}

fn span(first: u64, last: u64) -> Span {
    Span { first, last }
}

fn error(number: u8) -> Error {
    Error::usage(format!("failure {number}"))
}

fn text(result: Result<()>) -> Option<String> {
    result.err().map(|error| error.to_string())
}

impl Model {
    fn stateid(&mut self) -> stateid4 {
        self.issued += 1;
        stateid4 { seqid: 1, other: [self.issued; 12] }
    }

    fn apply(&mut self, call: Call) -> bool {
        let possible = self.execute(call);
        if possible {
            self.check();
        }
        possible
    }

    fn execute(&mut self, call: Call) -> bool {
        match call {
            Call::Open { key, write } => {
                if self.model.contains_key(&key) {
                    return false;
                }
                let stateid = self.stateid();
                self.opens.add(Open::new(key, None, stateid, (true, write)));
                self.model.insert(key, (write, None));
            }
            Call::Close(key) => {
                let was_open = self.model.remove(&key).is_some();
                assert_eq!(self.opens.remove(key).is_some(), was_open);
                self.locked.retain(|_, (under, _)| *under != key);
                self.stateids.remove(&key);
                self.lost.remove(&key);
                return was_open;
            }
            Call::Fail => {
                self.failures += 1;
                self.opens.fail(&error(self.failures));
                for (_, pending) in self.model.values_mut().filter(|(write, _)| *write) {
                    pending.get_or_insert(self.failures);
                }
            }
            Call::Take(key) => {
                let expected = self.model.get_mut(&key).and_then(|(_, pending)| pending.take());
                let expected = expected.map(|number| error(number).to_string());
                assert_eq!(text(self.opens.see_error(key)), expected, "a flush keeps the error");
                assert_eq!(text(self.opens.take_error(key)), expected);
                assert_eq!(text(self.opens.take_error(key)), None, "the error is reported once");
            }
            Call::Lock { key, first, last, kind } => return self.lock(key, span(first, last), kind),
            Call::Unlock { first, last } => {
                let Some(lock) = self.opens.holder(OWNER) else {
                    assert!(self.locked.is_empty());
                    return false;
                };
                assert!(self.opens.unlocked(OWNER, lock, span(first, last)));
                self.locked.retain(|byte, _| !(first..=last).contains(byte));
            }
            Call::Lose(key) => self.lose(key),
            Call::Reclaim(key) => self.reclaim(key),
            Call::Acknowledge => {
                let reported = self.opens.acknowledge_loss(OWNER).is_err();
                assert_eq!(reported, !std::mem::take(&mut self.lost).is_empty());
                assert!(self.opens.acknowledge_loss(OWNER).is_ok(), "a loss is reported once");
                return reported;
            }
        }
        true
    }

    fn lock(&mut self, key: u64, span: Span, kind: LockKind) -> bool {
        let allowed = self.model.get(&key).is_some_and(|(write, _)| *write || kind == LockKind::Read);
        assert_eq!(self.opens.may_lock(key, kind), allowed);
        let Some((open, known)) = self.opens.lock_stateids(key, OWNER).filter(|_| allowed) else { return false };
        let lock = known.unwrap_or_else(|| self.stateid());
        assert!(!self.opens.clone().locked(key, stateid4 { other: [0; 12], ..open }, lock, (OWNER, span, kind)));
        assert!(self.opens.locked(key, open, lock, (OWNER, span, kind)));
        self.locked.extend((span.first..=span.last).map(|byte| (byte, (key, kind))));
        self.stateids.insert(key);
        true
    }

    fn lose(&mut self, key: u64) {
        let under = |(_, (open, _)): &(&u64, &(u64, LockKind))| *open == key;
        let exclusive = self.locked.iter().filter(under).any(|(_, (_, kind))| *kind == LockKind::Write);
        if self.locked.iter().any(|lock| under(&lock)) {
            self.lost.insert(key);
        }
        assert!(!self.opens.lose_locks(key, Some(OWNER + 1), &error(0)), "locks of another owner");
        assert_eq!(self.opens.lose_locks(key, Some(OWNER), &error(0)), exclusive);
        self.locked.retain(|_, (open, _)| *open != key);
        self.stateids.remove(&key);
    }

    fn reclaim(&mut self, key: u64) {
        let new = self.stateid();
        self.opens.reopened(key, new);
        let (stateid, wanted) = self.opens.locks_to_reclaim(key);
        assert_eq!(stateid, self.model.contains_key(&key).then_some(new));
        let bytes = wanted.iter().flat_map(|(owner, span, kind)| {
            assert_eq!(*owner, OWNER);
            (span.first..=span.last).map(|byte| (byte, (key, *kind)))
        });
        let expected = self.locked.clone().into_iter().filter(|(_, (open, _))| *open == key);
        assert_eq!(bytes.collect::<BTreeMap<_, _>>(), expected.collect());
        self.stateids.remove(&key);
        if !wanted.is_empty() {
            let lock = self.stateid();
            self.opens.reclaimed(key, OWNER, lock);
            self.stateids.insert(key);
            assert!(self.opens.knows_lock(lock));
        }
    }

    fn check(&self) {
        assert_eq!(self.opens.all().len(), self.model.len());
        assert_eq!(self.opens.may_write(), self.model.values().any(|(write, _)| *write));
        assert_eq!(self.opens.may_read(), !self.model.is_empty());
        let mut locked = BTreeMap::new();
        for key in self.model.keys() {
            for (held, kind) in self.opens.locks_in(*key, OWNER, span(0, UNITS - 1)).unwrap() {
                for byte in held.first..=held.last {
                    assert_eq!(locked.insert(byte, (*key, kind)), None, "the locks of an owner are one set");
                }
            }
            assert_eq!(self.opens.get(*key).unwrap().has_locks(), self.stateids.contains(key));
            assert_eq!(self.opens.locks_under(*key).len(), usize::from(self.stateids.contains(key)));
            assert_eq!(self.opens.locks_kept(*key, Some(OWNER)).is_err(), self.lost.contains(key));
            assert_eq!(self.opens.locks_kept(*key, None).is_err(), self.lost.contains(key));
            assert!(self.opens.locks_kept(*key, Some(OWNER + 1)).is_ok());
        }
        assert_eq!(locked, self.locked);
        assert_eq!(self.opens.stateids().len(), self.model.len() + self.stateids.len());
        self.check_io();
    }

    /// I/O uses the delegation stateid if there is one, otherwise a lock stateid, otherwise the stateid of an open with
    /// the right access mode.
    fn check_io(&self) {
        let delegation = stateid4 { seqid: 1, other: [255; 12] };
        for write in [false, true] {
            let found = self.opens.suitable(write, None).map(|(stateid, _)| stateid);
            let allowed = if write { self.opens.may_write() } else { !self.model.is_empty() };
            assert_eq!(found.is_some(), allowed);
            let with = self.opens.suitable(write, Some(delegation)).map(|(stateid, _)| stateid);
            assert_eq!(with, if write && allowed { Some(delegation) } else { found });
            let Some(found) = found else { continue };
            let fits = |key: &u64| !write || self.model[key].0;
            let has_lock = self.locked.values().any(|(key, _)| fits(key));
            assert_eq!(self.opens.knows_lock(found), has_lock);
            if !has_lock {
                assert!(self.opens.by_stateid(found).is_some_and(|open| fits(&open.key)));
            }
        }
    }
}

#[test]
fn each_open_that_can_write_reports_an_error_once() {
    let mut calls = vec![Call::Fail];
    for key in [1, 2] {
        calls.extend([Call::Open { key, write: true }, Call::Open { key, write: false }]);
        calls.extend([Call::Close(key), Call::Take(key)]);
    }
    let count = walk(&Model::default(), &calls, 6, Model::apply);
    assert!(count > 10_000, "{count} histories");
}

#[test]
fn locks_under_two_opens_match_the_model() {
    let mut calls = vec![Call::Unlock { first: 0, last: 1 }, Call::Acknowledge];
    for (key, kind) in [(1, LockKind::Write), (2, LockKind::Read)] {
        calls.extend([Call::Open { key, write: key == 1 }, Call::Close(key), Call::Lose(key), Call::Reclaim(key)]);
        calls.extend([Call::Lock { key, first: 0, last: 0, kind }, Call::Lock { key, first: 0, last: 2, kind }]);
    }
    let count = walk(&Model::default(), &calls, 5, Model::apply);
    assert!(count > 10_000, "{count} histories");
}
