//! Questions of an iod to the mgr about the length of a file (LENGTHS).
//!
//! Where an object ends, its file may end too, or may continue with a hole. A client of the files layout that reads
//! across the end of the object relies on the data server to distinguish these two cases (RFC 8881 §18.22.3). So the
//! iod asks the mgr. The mgr fetches the questions with LENGTHS and sends the answers with its next LENGTHS call. The
//! mgr answers without a request to any iod, so the mgr and an iod never wait for each other. The iod does not cache
//! answers: an answer is valid only for readers that asked before the mgr looked up the length.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use types::ObjectId;
use wire::native::{FileLength, LENGTHS_MAX, Length, LengthQuestion};

use crate::lock::lock;

/// The open questions to the mgr about file lengths, and the readers that wait for the answers.
#[derive(Default)]
pub(super) struct FileSizes {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    questions: Questions,
    /// Whether a mgr has called LENGTHS since a reader's wait for an answer last timed out. While this is false,
    /// readers do not wait.
    heard: bool,
    closing: bool,
}

/// The questions that readers wait for, by question number.
#[derive(Clone, Default, Debug)]
struct Questions {
    last: u64,
    open: BTreeMap<u64, Question>,
}

#[derive(Clone, Debug)]
struct Question {
    object: ObjectId,
    /// Whether the iod has sent the question to the mgr.
    handed_out: bool,
    /// Number of readers that wait until the mgr has reported the size of this object's file.
    waiting: usize,
    answer: Option<Option<FileLength>>,
}

impl Questions {
    /// Adds a question and returns its number, or `None` if too many questions are open. Readers of the same object
    /// share a question until the iod has sent the question to the mgr. A reader that arrives after this needs a new
    /// question, because the mgr may have looked up the answer to the sent question before this reader arrived.
    fn ask(&mut self, object: ObjectId) -> Option<u64> {
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

    /// Stores the mgr's answers. Ignores an answer to a question that has no waiting reader or that the iod never sent.
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

    /// Returns all questions without an answer. So if a LENGTHS reply is lost, the next reply repeats the questions of
    /// the lost reply.
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

    /// Records that one reader no longer waits for the answer to a question. Removes the question if no reader waits
    /// for the answer any more.
    fn leave(&mut self, number: u64) {
        if let Some(question) = self.open.get_mut(&number) {
            question.waiting -= 1;
            if question.waiting == 0 {
                self.open.remove(&number);
            }
        }
    }
}

impl FileSizes {
    /// Asks the mgr for the length of an object's file. Returns `None` if the mgr does not know the length, or if the
    /// mgr sends no answer within `patience`.
    pub(super) fn ask(&self, object: ObjectId, patience: Duration) -> Option<FileLength> {
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

    /// Stores the answers of the mgr's LENGTHS call. Then waits up to `patience` for open questions and returns them
    /// for the reply.
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

    /// Ends the waits of all readers and of the mgr's LENGTHS call, because the iod stops.
    pub(super) fn close(&self) {
        lock(&self.state).closing = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use types::FileId;

    fn object_id(file: u64) -> ObjectId {
        ObjectId::stream_0(FileId(file))
    }

    const LONG: Duration = Duration::from_secs(60);
    const NOW: Duration = Duration::ZERO;

    fn long(file: u64) -> FileLength {
        FileLength { file, least: 0 }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Ask(ObjectId),
        /// The mgr looks up the answers to the questions in the iod's last LENGTHS reply.
        LookUp,
        /// The mgr calls LENGTHS with the file lengths that it has looked up. The iod's reply lists the objects whose
        /// file lengths the iod needs next.
        Call,
        /// The mgr restarts and forgets all questions and answers.
        Forget,
        /// The wait of the oldest reader times out.
        Leave,
        /// The answers of all LENGTHS calls so far arrive a second time, as after a retransmission.
        Repeat,
    }

    /// A model of the mgr and of the readers that wait for file lengths. As a file length, the mgr of the model returns
    /// the time of its lookup, so that the test can compare this time with the start of each reader. `waiting` has the
    /// start and the question number of each reader.
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

        /// Checks that the mgr looked up each answer after its reader had asked. Checks that no question without a
        /// waiting reader stays in the table of questions.
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

        /// While the mgr keeps calling LENGTHS, every reader gets an answer.
        fn settle(mut self) {
            for step in [Step::Forget, Step::Call, Step::LookUp, Step::Call] {
                self.step(step);
            }
            assert!(self.waiting.iter().all(|(_, number)| self.questions.answered(*number).is_some()));
        }
    }

    #[test]
    fn no_answer_is_older_than_its_question_in_any_short_history() {
        let steps = [
            Step::Ask(object_id(1)),
            Step::Ask(object_id(2)),
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
    fn the_number_of_questions_is_bounded() {
        let mut questions = Questions::default();
        for object in 0..LENGTHS_MAX as u64 {
            assert!(questions.ask(object_id(object)).is_some());
        }
        assert_eq!((questions.ask(object_id(5000)), questions.ask(object_id(7))), (None, Some(8)));
        assert_eq!(questions.hand_out().len(), LENGTHS_MAX);
        assert_eq!(questions.ask(object_id(7)), None);
    }

    #[test]
    fn no_reader_waits_without_a_mgr_and_close_wakes_all_readers() {
        let lengths = FileSizes::default();
        assert_eq!(lengths.ask(object_id(1), LONG), None);
        assert_eq!(lengths.next(&[], NOW), []);
        // The mgr has called LENGTHS once and does not call again, so the reader's wait times out.
        assert_eq!(lengths.ask(object_id(1), NOW), None);
        assert_eq!(lengths.ask(object_id(1), LONG), None);
        assert_eq!(lengths.next(&[], NOW), []);
        thread::scope(|scope| {
            let asking = scope.spawn(|| lengths.ask(object_id(1), LONG));
            let asked = lengths.next(&[], LONG);
            assert_eq!(asked.len(), 1);
            lengths.next(&[Length { number: asked[0].number, length: Some(long(5)) }], NOW);
            assert_eq!(asking.join().unwrap(), Some(long(5)));
            let asking = scope.spawn(|| lengths.ask(object_id(2), LONG));
            assert_eq!(lengths.next(&[], LONG).len(), 1);
            lengths.close();
            assert_eq!(asking.join().unwrap(), None);
        });
        assert_eq!(lengths.next(&[], LONG), []);
    }
}
