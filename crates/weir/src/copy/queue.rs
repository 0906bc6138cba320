//! Work queue of one copy, shared by its threads.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// With more files waiting than this, no further directory is read. This bounds the memory for any tree.
const FILES_WAITING_MAX: usize = 1 << 16;

/// A queue that detects when all tasks ever pushed are done.
///
/// Helpers come first (a started file ends soon), then directories (totals are known early), then files.
pub struct Queue<D, F, H> {
    inner: Mutex<Inner<D, F, H>>,
    change: Condvar,
}

struct Inner<D, F, H> {
    dirs: Vec<D>,
    files: VecDeque<F>,
    helpers: VecDeque<H>,
    /// Tasks pushed and not yet done, including those in progress.
    open: usize,
}

/// One task.
#[derive(PartialEq, Eq, Debug)]
pub enum Task<D, F, H> {
    /// A directory to read.
    Dir(D),
    /// A file to copy.
    File(F),
    /// A further thread for a large file.
    Help(H),
}

impl<D, F, H> Default for Queue<D, F, H> {
    fn default() -> Self {
        let inner = Inner { dirs: Vec::new(), files: VecDeque::new(), helpers: VecDeque::new(), open: 0 };
        Queue { inner: Mutex::new(inner), change: Condvar::new() }
    }
}

impl<D, F, H> Queue<D, F, H> {
    fn lock(&self) -> MutexGuard<'_, Inner<D, F, H>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds tasks.
    pub fn push(&self, tasks: impl IntoIterator<Item = Task<D, F, H>>) {
        let mut inner = self.lock();
        for task in tasks {
            inner.open += 1;
            match task {
                Task::Dir(d) => inner.dirs.push(d),
                Task::File(f) => inner.files.push_back(f),
                Task::Help(h) => inner.helpers.push_back(h),
            }
        }
        self.change.notify_all();
    }

    /// Takes the next task, or waits for one; `None` when all work is done. The caller ends each task with
    /// [`Queue::done`].
    pub fn pop(&self) -> Option<Task<D, F, H>> {
        let mut inner = self.lock();
        loop {
            if let Some(task) = inner.next() {
                return Some(task);
            }
            if inner.open == 0 {
                return None;
            }
            inner = self.change.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends a task; all tasks that follow from it must be pushed before.
    pub fn done(&self) {
        let mut inner = self.lock();
        inner.open -= 1;
        if inner.open == 0 {
            self.change.notify_all();
        }
    }
}

impl<D, F, H> Inner<D, F, H> {
    fn next(&mut self) -> Option<Task<D, F, H>> {
        if let Some(helper) = self.helpers.pop_front() {
            return Some(Task::Help(helper));
        }
        if self.files.len() < FILES_WAITING_MAX
            && let Some(dir) = self.dirs.pop()
        {
            return Some(Task::Dir(dir));
        }
        self.files.pop_front().map(Task::File)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pop_returns_helpers_then_directories_then_files_then_none() {
        let queue: Queue<u8, u8, u8> = Queue::default();
        queue.push([Task::File(1), Task::Dir(2), Task::Help(3)]);
        assert_eq!(queue.pop(), Some(Task::Help(3)));
        assert_eq!(queue.pop(), Some(Task::Dir(2)));
        assert_eq!(queue.pop(), Some(Task::File(1)));
        for _ in 0..3 {
            queue.done();
        }
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn pop_waits_for_tasks_that_a_running_task_may_push() {
        let queue: Queue<u32, u32, u32> = Queue::default();
        queue.push([Task::Dir(6)]);
        let count = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some(task) = queue.pop() {
                        match task {
                            Task::Dir(0) => queue.push([Task::File(0)]),
                            Task::Dir(n) => queue.push([Task::Dir(n - 1), Task::Dir(n - 1)]),
                            _ => drop(count.fetch_add(1, std::sync::atomic::Ordering::Relaxed)),
                        }
                        queue.done();
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 64);
    }
}
