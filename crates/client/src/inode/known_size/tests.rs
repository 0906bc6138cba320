//! Tests of the known size: every short history of writes, reports and size requests of this client and of truncates by
//! another client, with replies that arrive late.

use super::*;
use crate::explorer::walk;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
enum Call {
    /// The client writes bytes up to this file offset.
    Write(u64),
    /// The mgr executes a size report.
    Report,
    /// The client receives the reply to the size report.
    Reported,
    /// The client truncates the file.
    Truncate(u64),
    /// Another client sets the size of the file.
    OtherSets(u64),
    /// The client requests the size of the file.
    Ask,
    /// The mgr executes the oldest size request.
    Execute,
    /// The client receives the reply to the oldest size request.
    Answer,
    /// The client may have missed changes by other clients.
    Doubt,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    stamp: u64,
    /// Number of changes of the file, by any client, before this client sent the size request.
    changes: u64,
    answer: Option<u64>,
}

#[derive(Clone, Debug)]
struct Model {
    known: KnownSize,
    shared: bool,
    now: Instant,
    stamp: u64,
    changes: u64,
    /// The size of the file at the mgr.
    mgr: u64,
    /// The file offset just after the last byte that the mgr does not know of.
    own_end: u64,
    /// The end offset in a size report that the mgr has executed, and whose reply the client has not received.
    report: Option<u64>,
    questions: VecDeque<Question>,
    /// The size that the client must see while no other client changes the file.
    expected: u64,
    other_changed: bool,
    /// For each version of the contents, the size of the file and the number of changes by this client.
    versions: BTreeMap<Version, (u64, u64)>,
    local_changes: u64,
}

impl Model {
    fn new(shared: bool) -> Self {
        Model {
            known: KnownSize::new(0),
            shared,
            now: Instant::now(),
            stamp: 0,
            changes: 0,
            mgr: 0,
            own_end: 0,
            report: None,
            questions: VecDeque::new(),
            expected: 0,
            other_changed: false,
            versions: BTreeMap::new(),
            local_changes: 0,
        }
    }

    fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
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
            Call::Write(end) => {
                let stamp = self.next_stamp();
                self.known.extend_to(end, stamp);
                self.own_end = self.own_end.max(end);
                self.expected = self.expected.max(end);
                self.changed_here();
            }
            Call::Report => {
                if self.own_end == 0 || self.report.is_some() {
                    return false;
                }
                self.report = Some(self.own_end);
                self.mgr = self.mgr.max(self.own_end);
                self.changes += 1;
            }
            Call::Reported => {
                let Some(end) = self.report.take() else { return false };
                if end == self.own_end {
                    self.own_end = 0;
                    let stamp = self.next_stamp();
                    self.known.reported(end, stamp);
                }
            }
            Call::Truncate(size) => {
                if self.own_end > 0 {
                    return false;
                }
                (self.mgr, self.expected) = (size, size);
                let stamp = self.next_stamp();
                self.known.set(size, stamp);
                self.changed_here();
            }
            Call::OtherSets(size) => {
                self.mgr = size;
                self.changes += 1;
                self.other_changed = true;
            }
            Call::Ask => {
                let question = Question { stamp: self.stamp, changes: self.changes, answer: None };
                self.questions.push_back(question);
                return self.questions.len() <= 2;
            }
            Call::Execute => {
                let mgr = self.mgr;
                let Some(question) = self.questions.iter_mut().find(|q| q.answer.is_none()) else { return false };
                question.answer = Some(mgr);
            }
            Call::Answer => return self.answer(),
            Call::Doubt => {
                self.known.doubt();
                assert_eq!(self.known.version(), None);
            }
        }
        true
    }

    fn changed_here(&mut self) {
        self.changes += 1;
        self.local_changes += 1;
    }

    fn answer(&mut self) -> bool {
        let Some(question) = self.questions.front().copied() else { return false };
        let Some(answer) = question.answer else { return false };
        self.questions.pop_front();
        let before = self.known.get();
        let known = if self.shared {
            self.known.learn_shared(answer, question.stamp, self.own_end)
        } else {
            self.known.learn(answer, question.stamp, self.own_end, self.now)
        };
        assert_eq!(known, self.known.get());
        let is_stale = !self.shared && self.stamp > question.stamp;
        if is_stale {
            assert!(self.known.is_doubtful() && known == before, "an answer that a change overtook is not used");
        } else if question.changes == self.changes {
            assert_eq!(known, self.mgr.max(self.own_end), "a fresh answer counts");
            assert!(self.shared || !self.known.is_doubtful());
        }
        true
    }

    fn check(&mut self) {
        let size = self.known.get();
        assert!(size >= self.own_end, "the size is below the client's own bytes");
        if !self.other_changed {
            assert_eq!(size, self.expected, "no other client changed the size");
        }
        // The client caches no bytes of a shared file, so it does not use the version of the contents.
        if let Some(version) = self.known.version().filter(|_| !self.shared) {
            let content = (size, self.local_changes);
            assert_eq!(*self.versions.entry(version).or_insert(content), content, "the version must change");
        }
    }
}

#[test]
fn the_size_of_an_unshared_file_matches_the_model() {
    let mut calls = vec![Call::Write(1), Call::Write(3), Call::Report, Call::Reported, Call::Truncate(2)];
    calls.extend([Call::OtherSets(0), Call::OtherSets(4), Call::Ask, Call::Execute, Call::Answer, Call::Doubt]);
    let count = walk(&Model::new(false), &calls, 6, Model::apply);
    assert!(count > 100_000, "{count} histories");
}

#[test]
fn the_size_of_a_shared_file_includes_reports_that_an_answer_misses() {
    let calls = [Call::Write(1), Call::Write(3), Call::Report, Call::Reported, Call::Ask, Call::Execute, Call::Answer];
    let count = walk(&Model::new(true), &calls, 9, Model::apply);
    assert!(count > 100_000, "{count} histories");
    walk(&Model::new(true), &[&calls[..], &[Call::OtherSets(0), Call::OtherSets(4)]].concat(), 6, Model::apply);
}

#[test]
fn many_reports_are_remembered_up_to_a_limit() {
    let mut known = KnownSize::new(0);
    (0..100).for_each(|i| known.reported(1000 - i, i + 1));
    assert_eq!(known.reported.len(), REPORTS);
    assert_eq!(known.learn_shared(0, 98, 0), 902);
    assert_eq!(known.learn_shared(0, 99, 0), 901);
    assert_eq!(known.learn_shared(0, 100, 0), 0);
}

#[test]
fn the_size_is_requested_once_while_it_is_valid() {
    let mut known = KnownSize::new(0);
    let (start, valid) = (Instant::now(), Duration::from_secs(1));
    assert!(known.begin_asking(start, valid));
    assert!(!known.begin_asking(start, valid), "a request is on its way");
    known.end_asking(Some(5), 0, 0, start);
    assert_eq!(known.get(), 5);
    assert!(!known.begin_asking(start + valid / 2, valid));
    known.forget_when();
    assert!(known.begin_asking(start + valid / 2, valid), "another client has set the size");
    known.extend_to(9, 1);
    known.end_asking(Some(5), 0, 0, start + valid);
    assert_eq!(known.get(), 9, "the write came later");
    assert!(known.begin_asking(start + valid * 2, valid));
    known.end_asking(None, 1, 0, start + valid * 2);
    assert!(known.begin_asking(start + valid * 3, valid));
}
