//! What the mgr must know before a client is told that its bytes and their attributes are durable.
//!
//! A client of the files layout says nothing to the mgr about bytes that a data server has answered with FILE_SYNC: not
//! even that the file is longer now (RFC 8881 §18.32.3). So the data server does, and answers the client when the mgr has said
//! that it knows. The mgr asks for such news and waits for them (NEWS); a thousand writes may be told by one answer.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use types::FileId;
use wire::native::{NEWS_MAX, NewsReply};

use crate::lock::lock;

/// Objects of which is remembered what the mgr knows. What is forgotten is told again.
const REMEMBERED_MAX: usize = 1 << 16;

/// News on their way.
#[derive(Default)]
pub(super) struct News {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of the last item.
    last: u64,
    /// Number of the last item that was handed out.
    told: u64,
    /// The mgr knows of all items up to this one.
    known: u64,
    /// Items that it does not know of.
    waiting: BTreeMap<u64, (FileId, Written)>,
    /// What it knows of objects, and whether they were written since without making news.
    remembered: HashMap<FileId, (Written, bool)>,
    closing: bool,
}

/// How an object was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Written {
    /// The layout under which it was.
    pub(super) grant: u64,
    /// The size of the object since.
    pub(super) size: u64,
}

impl News {
    /// Tells the mgr that an object was written, and waits until it knows; answers whether it does.
    ///
    /// Under one layout this is news once, and whenever the object has grown.
    pub(super) fn tell(&self, object: FileId, written: Written, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut state = lock(&self.state);
        if let Some((old, changed)) = state.remembered.get_mut(&object)
            && old.grant == written.grant
            && old.size >= written.size
        {
            *changed = true;
            return true;
        }
        state.last += 1;
        let number = state.last;
        state.waiting.insert(number, (object, written));
        self.changed.notify_all();
        while state.known < number && !state.closing {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // It stays among the news: it is true all the same.
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.known >= number
    }

    /// Takes note that the mgr knows all up to `known`, and waits for what it does not.
    pub(super) fn next(&self, known: u64, patience: Duration) -> NewsReply {
        let until = Instant::now() + patience;
        let mut state = lock(&self.state);
        if known == 0 {
            // Another mgr, or one that has lost its memory.
            state.remembered.clear();
        } else if known <= state.told && known > state.known {
            state.learn(known);
            self.changed.notify_all();
        }
        while state.waiting.is_empty() && !state.closing {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.hand_out()
    }

    /// Whether an object was written since the mgr was last told of it; told once.
    pub(super) fn take_changed(&self, object: FileId) -> bool {
        lock(&self.state).remembered.get_mut(&object).is_some_and(|(_, changed)| std::mem::take(changed))
    }

    /// Nobody waits any more.
    pub(super) fn close(&self) {
        lock(&self.state).closing = true;
        self.changed.notify_all();
    }
}

impl State {
    fn learn(&mut self, known: u64) {
        let rest = self.waiting.split_off(&(known + 1));
        if self.remembered.len() > REMEMBERED_MAX {
            self.remembered.clear();
        }
        for (object, written) in std::mem::replace(&mut self.waiting, rest).into_values() {
            let (remembered, _) = self.remembered.entry(object).or_insert((written, false));
            if remembered.grant != written.grant || remembered.size < written.size {
                *remembered = written;
            }
        }
        self.known = known;
    }

    fn hand_out(&mut self) -> NewsReply {
        let batch: Vec<(u64, FileId)> =
            self.waiting.iter().take(NEWS_MAX).map(|(number, (object, _))| (*number, *object)).collect();
        let number = batch.last().map_or(self.known, |(number, _)| *number);
        self.told = self.told.max(number);
        let mut written: Vec<FileId> = batch.into_iter().map(|(_, object)| object).collect();
        written.sort();
        written.dedup();
        NewsReply { number, written }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const LONG: Duration = Duration::from_secs(60);
    const NOW: Duration = Duration::ZERO;

    fn written(grant: u64, size: u64) -> Written {
        Written { grant, size }
    }

    #[test]
    fn a_writer_waits_until_the_mgr_knows() {
        let news = News::default();
        thread::scope(|scope| {
            let writer = scope.spawn(|| news.tell(FileId(7), written(1, 100), LONG));
            let first = news.next(0, LONG);
            assert_eq!(first.written, [FileId(7)]);
            // An answer that was lost comes again.
            assert_eq!(news.next(0, LONG), first);
            assert!(!writer.is_finished());
            assert_eq!(news.next(first.number, NOW).written, []);
            assert!(writer.join().unwrap());
        });
        // What it knows is no news.
        assert!(news.tell(FileId(7), written(1, 100), NOW) && news.tell(FileId(7), written(1, 50), NOW));
        assert!(news.take_changed(FileId(7)) && !news.take_changed(FileId(7)) && !news.take_changed(FileId(8)));
        // Another layout, more bytes, or another mgr.
        assert!(!news.tell(FileId(7), written(2, 100), NOW));
        assert!(!news.tell(FileId(7), written(1, 101), NOW));
        let second = news.next(1, NOW);
        assert_eq!(second.written, [FileId(7)]);
        news.next(second.number, NOW);
        assert!(news.tell(FileId(7), written(1, 101), NOW));
        news.next(0, NOW);
        assert!(!news.tell(FileId(7), written(1, 101), NOW));
    }

    #[test]
    fn numbers_that_were_never_told_mean_nothing_and_closing_lets_everybody_go() {
        let news = News::default();
        assert!(!news.tell(FileId(1), written(1, 1), NOW));
        news.next(9, NOW);
        assert_eq!(news.next(0, NOW).written, [FileId(1)]);
        thread::scope(|scope| {
            let writer = scope.spawn(|| news.tell(FileId(2), written(1, 1), LONG));
            while lock(&news.state).waiting.len() < 2 {
                thread::yield_now();
            }
            news.close();
            assert!(!writer.join().unwrap());
        });
        assert_eq!(news.next(1, LONG).written, [FileId(2)]);
        assert_eq!(news.next(2, LONG).written, []);
    }
}
