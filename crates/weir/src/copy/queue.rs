//! Work queue of one copy. The threads of the copy share it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// If at least this number of files waits in the queue, the threads read no directories. This limit bounds the memory
/// use of a copy, however many files the tree has.
const FILES_WAITING_MAX: usize = 1 << 16;

/// A queue of tasks that detects when all tasks are done.
///
/// Threads first take tasks that help to copy a started file ([`Task::Help`]), so that this file is complete soon.
/// Then they take directories, so that the total numbers of files and bytes are known early. They take new files
/// last.
pub struct Queue<D, F, H> {
    inner: Mutex<Inner<D, F, H>>,
    change: Condvar,
}

struct Inner<D, F, H> {
    dirs: Vec<D>,
    files: VecDeque<F>,
    helpers: VecDeque<H>,
    /// Number of tasks that were pushed and are not done, including the tasks that threads run now.
    open: usize,
}

/// A task of a copy.
#[derive(PartialEq, Eq, Debug)]
pub enum Task<D, F, H> {
    /// Read a directory, and queue its entries.
    Dir(D),
    /// Copy a file.
    File(F),
    /// Help with the copy of a large file that another thread has started.
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

    /// Adds tasks to the queue and wakes waiting threads.
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

    /// Takes the next task from the queue, or waits for one. Returns `None` when all tasks are done. The caller must
    /// call [`Queue::done`] after each task.
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

    /// Records that a task is done. If the task leads to further tasks, the caller must push these before this call.
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
