//! What only the mgr knows: how long the file of an object is.
//!
//! Where an object ends the file may end, too, or go on with a hole, and a client of the files layout that reads over that place believes
//! what it is told (RFC 8881 §18.22.3). The mgr asks for such questions and answers them with its next call (LENGTHS). It answers from
//! what it knows, without asking any iod, so that nobody waits in a circle. Nothing is remembered: an answer is good for those
//! alone who had asked before it was looked up.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use types::FileId;
use wire::native::{FileLength, LENGTHS_MAX, Length, LengthQuestion};

use crate::lock::lock;

/// Questions and who waits for their answers.
#[derive(Default)]
pub(super) struct Lengths {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    questions: Questions,
    /// Whether a mgr was heard since one was waited for in vain. Without one nobody waits.
    heard: bool,
    closing: bool,
}

/// The questions that somebody waits for, by number.
#[derive(Clone, Default, Debug)]
struct Questions {
    last: u64,
    open: BTreeMap<u64, Question>,
}

#[derive(Clone, Debug)]
struct Question {
    object: FileId,
    /// Whether the mgr has been told of it.
    handed_out: bool,
    /// How many wait for the answer.
    waiting: usize,
    answer: Option<Option<FileLength>>,
}

impl Questions {
    /// Asks; the number of the question. One that the mgr has not seen yet is shared; of one that it has the answer may be older
    /// than this. None when there are too many.
    fn ask(&mut self, object: FileId) -> Option<u64> {
        let shared = self.open.iter_mut().find(|(_, question)| question.object == object && !question.handed_out);
        if let Some((number, question)) = shared {
            question.waiting += 1;
            return Some(*number);
        }
        if self.open.len() >= LENGTHS_MAX {
            return None;
        }
        self.last += 1;
        self.open.insert(self.last, Question { object, handed_out: false, waiting: 1, answer: None });
        Some(self.last)
    }

    /// What the mgr says. An answer to what nobody waits for any more, or to what was never handed out, means nothing.
    fn answer(&mut self, answers: &[Length]) {
        for Length { number, length } in answers {
            if let Some(question) = self.open.get_mut(number).filter(|question| question.handed_out) {
                question.answer.get_or_insert(*length);
            }
        }
    }

    fn is_any_unanswered(&self) -> bool {
        self.open.values().any(|question| question.answer.is_none())
    }

    /// All without an answer, those of a reply that was lost once more.
    fn hand_out(&mut self) -> Vec<LengthQuestion> {
        let unanswered = self.open.iter_mut().filter(|(_, question)| question.answer.is_none());
        unanswered
            .map(|(number, question)| {
                question.handed_out = true;
                LengthQuestion { number: *number, object: question.object }
            })
            .collect()
    }

    fn answered(&self, number: u64) -> Option<Option<FileLength>> {
        self.open.get(&number).and_then(|question| question.answer)
    }

    /// One of those who wait goes, with or without an answer.
    fn leave(&mut self, number: u64) {
        if let Some(question) = self.open.get_mut(&number) {
            question.waiting -= 1;
            if question.waiting == 0 {
                self.open.remove(&number);
            }
        }
    }
}

impl Lengths {
    /// Asks the mgr how long the file of an object is; none when it does not know, or does not answer in time.
    pub(super) fn ask(&self, object: FileId, patience: Duration) -> Option<FileLength> {
        let until = Instant::now() + patience;
        let mut state = lock(&self.state);
        if !state.heard || state.closing {
            return None;
        }
        let number = state.questions.ask(object)?;
        self.changed.notify_all();
        while state.questions.answered(number).is_none() && !state.closing {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.heard = false;
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let answer = state.questions.answered(number).flatten();
        state.questions.leave(number);
        answer
    }

    /// Takes the mgr's answers, and waits for further questions.
    pub(super) fn next(&self, answers: &[Length], patience: Duration) -> Vec<LengthQuestion> {
        let until = Instant::now() + patience;
        let mut state = lock(&self.state);
        state.heard = true;
        state.questions.answer(answers);
        self.changed.notify_all();
        while !state.questions.is_any_unanswered() && !state.closing {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.questions.hand_out()
    }

    /// Nobody waits any more.
    pub(super) fn close(&self) {
        lock(&self.state).closing = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const LONG: Duration = Duration::from_secs(60);
    const NOW: Duration = Duration::ZERO;

    fn long(file: u64) -> FileLength {
        FileLength { file, least: 0 }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Ask(FileId),
        /// The mgr looks up what it was asked last.
        LookUp,
        /// It calls with the answers that it has, and gets the reply.
        Call,
        /// It starts again: neither questions nor answers are left.
        Forget,
        /// The first who waits has no patience any more.
        Leave,
        /// What was answered long ago comes once more.
        Repeat,
    }

    /// A mgr that answers with the time, and those who asked, each with the time and the number of the question.
    #[derive(Clone, Default)]
    struct World {
        questions: Questions,
        now: u64,
        asked: Vec<LengthQuestion>,
        answers: Vec<Length>,
        sent: Vec<Length>,
        waiting: Vec<(u64, u64)>,
    }

    impl World {
        fn step(&mut self, step: Step) {
            self.now += 1;
            match step {
                Step::Ask(object) => self.waiting.push((self.now, self.questions.ask(object).unwrap())),
                Step::LookUp => {
                    let now = self.now;
                    self.answers.extend(
                        self.asked.drain(..).map(|asked| Length { number: asked.number, length: Some(long(now)) }),
                    );
                }
                Step::Call => {
                    self.questions.answer(&self.answers);
                    self.sent.append(&mut self.answers);
                    self.asked = self.questions.hand_out();
                }
                Step::Forget => {
                    self.asked.clear();
                    self.answers.clear();
                }
                Step::Leave if !self.waiting.is_empty() => self.questions.leave(self.waiting.remove(0).1),
                Step::Leave => {}
                Step::Repeat => self.questions.answer(&self.sent.clone()),
            }
            self.check();
        }

        /// Whoever gets an answer had asked before it was looked up, and nothing is kept that nobody waits for.
        fn check(&self) {
            for (since, number) in &self.waiting {
                match self.questions.answered(*number) {
                    Some(looked_up) => assert!(looked_up.unwrap().file > *since),
                    None => assert!(self.questions.is_any_unanswered()),
                }
            }
            let kept: usize = self.questions.open.values().map(|question| question.waiting).sum();
            assert_eq!(kept, self.waiting.len());
        }

        /// The mgr, when it is well, answers everybody.
        fn settle(mut self) {
            for step in [Step::Forget, Step::Call, Step::LookUp, Step::Call] {
                self.step(step);
            }
            assert!(self.waiting.iter().all(|(_, number)| self.questions.answered(*number).is_some()));
        }
    }

    #[test]
    fn no_history_has_an_answer_older_than_its_question() {
        let steps = [
            Step::Ask(FileId(1)),
            Step::Ask(FileId(2)),
            Step::LookUp,
            Step::Call,
            Step::Forget,
            Step::Leave,
            Step::Repeat,
        ];
        fn walk(world: &World, steps: &[Step], left: usize) {
            world.clone().settle();
            for step in steps.iter().filter(|_| left > 0) {
                let mut next = world.clone();
                next.step(*step);
                walk(&next, steps, left - 1);
            }
        }
        walk(&World::default(), &steps, 6);
    }

    #[test]
    fn questions_are_bounded() {
        let mut questions = Questions::default();
        for object in 0..LENGTHS_MAX as u64 {
            assert!(questions.ask(FileId(object)).is_some());
        }
        assert_eq!((questions.ask(FileId(5000)), questions.ask(FileId(7))), (None, Some(8)));
        assert_eq!(questions.hand_out().len(), LENGTHS_MAX);
        assert_eq!(questions.ask(FileId(7)), None);
    }

    #[test]
    fn nobody_waits_without_a_mgr_and_closing_lets_everybody_go() {
        let lengths = Lengths::default();
        assert_eq!(lengths.ask(FileId(1), LONG), None);
        assert_eq!(lengths.next(&[], NOW), []);
        // It was heard once, and is silent.
        assert_eq!(lengths.ask(FileId(1), NOW), None);
        assert_eq!(lengths.ask(FileId(1), LONG), None);
        assert_eq!(lengths.next(&[], NOW), []);
        thread::scope(|scope| {
            let asking = scope.spawn(|| lengths.ask(FileId(1), LONG));
            let asked = lengths.next(&[], LONG);
            assert_eq!(asked.len(), 1);
            lengths.next(&[Length { number: asked[0].number, length: Some(long(5)) }], NOW);
            assert_eq!(asking.join().unwrap(), Some(long(5)));
            let asking = scope.spawn(|| lengths.ask(FileId(2), LONG));
            assert_eq!(lengths.next(&[], LONG).len(), 1);
            lengths.close();
            assert_eq!(asking.join().unwrap(), None);
        });
        assert_eq!(lengths.next(&[], LONG), []);
    }
}
