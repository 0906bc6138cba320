//! The bounded queue of batches that wait for a store's writer. The writer removes batches from the queue in commit
//! groups: batches that the writer commits together.

use super::{Batch, Outcome};
use futures_channel::oneshot;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;
use types::limits;

/// A submitted batch, and the channel on which the writer sends the outcome of the batch.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) batch: Batch,
    pub(crate) answer: oneshot::Sender<Outcome>,
}

/// The queue of batches that wait for the writer.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    called: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    jobs: VecDeque<(usize, Job)>,
    bytes: usize,
    waiting: Vec<Waker>,
    /// Waker of the task that waits in [`Queue::ready`]; the queue wakes the task when a job arrives.
    watching: Option<Waker>,
    /// Whether a thread has woken the writer's thread, which has not run since then.
    called: bool,
    closed: bool,
}

impl Inner {
    /// Removes the jobs of the next commit group. Also returns the wakers of tasks that wait for space in the queue,
    /// which the caller must wake.
    fn take(&mut self) -> (Vec<Job>, Vec<Waker>) {
        let mut group = Vec::new();
        let mut bytes = 0;
        while group.len() < limits::META_GROUP_BATCHES && bytes < limits::META_GROUP_BYTES {
            let Some((len, job)) = self.jobs.pop_front() else { break };
            bytes += len;
            group.push(job);
        }
        self.bytes -= bytes;
        (group, std::mem::take(&mut self.waiting))
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A poisoned lock is harmless: no code panics while it holds the lock, and after each statement the queue is
        // consistent.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job. If the queue is full, returns the job, and wakes `waker` as soon as the queue has space.
    ///
    /// A closed queue drops the job, so the sender of the job learns that no outcome will come. The writer's thread
    /// does not see the job until [`Self::call`] wakes the thread.
    pub(crate) fn push(&self, job: Job, waker: Option<&Waker>) -> Result<(), Box<Job>> {
        let mut inner = self.lock();
        if inner.closed {
            return Ok(());
        }
        if inner.jobs.len() >= limits::META_QUEUE_BATCHES || inner.bytes >= limits::META_QUEUE_BYTES {
            inner.waiting.extend(waker.cloned());
            return Err(Box::new(job));
        }
        let len = job.batch.len();
        inner.bytes += len;
        inner.jobs.push_back((len, job));
        let watching = inner.watching.take();
        drop(inner);
        if let Some(watching) = watching {
            watching.wake();
        }
        Ok(())
    }

    /// Wakes the writer's thread, which then takes jobs from the queue.
    pub(crate) fn call(&self) {
        let mut inner = self.lock();
        let first = !std::mem::replace(&mut inner.called, true);
        drop(inner);
        if first {
            self.called.notify_one();
        }
    }

    /// Blocks the writer's thread until [`Self::call`] wakes it, the queue is closed, or the time `longest` has passed.
    pub(crate) fn called(&self, longest: Option<Duration>) {
        let mut inner = self.lock();
        while !inner.called && !inner.closed {
            let Some(longest) = longest else {
                inner = self.called.wait(inner).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            inner = self.called.wait_timeout(inner, longest).unwrap_or_else(PoisonError::into_inner).0;
            break;
        }
        inner.called = false;
    }

    /// Returns whether the queue has no jobs.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().jobs.is_empty()
    }

    /// Removes the jobs of the next commit group from the queue; the result may be empty. Returns `None` when the queue
    /// is closed and empty.
    pub(crate) fn take(&self) -> Option<Vec<Job>> {
        let mut inner = self.lock();
        if inner.jobs.is_empty() && inner.closed {
            return None;
        }
        let (group, waiting) = inner.take();
        drop(inner);
        waiting.into_iter().for_each(Waker::wake);
        Some(group)
    }

    /// Completes when the queue has jobs or is closed. Only one task at a time may await this future.
    pub(crate) async fn ready(&self) {
        let poll = |context: &mut std::task::Context<'_>| {
            let mut inner = self.lock();
            if inner.closed || !inner.jobs.is_empty() {
                return Poll::Ready(());
            }
            inner.watching = Some(context.waker().clone());
            Poll::Pending
        };
        poll_fn(poll).await;
    }

    /// Closes the queue for new jobs. The writer can still take the jobs that are in the queue.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        let waiting = std::mem::take(&mut inner.waiting);
        let watching = inner.watching.take();
        drop(inner);
        waiting.into_iter().chain(watching).for_each(Waker::wake);
        self.called.notify_all();
    }

    /// Closes the queue and drops its jobs, because the writer has ended.
    pub(crate) fn abandon(&self) {
        self.close();
        let mut inner = self.lock();
        inner.bytes = 0;
        let jobs = std::mem::take(&mut inner.jobs);
        drop(inner);
        drop(jobs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Pending, RequestId};
    use std::sync::Arc;

    fn submit(queue: &Arc<Queue>, id: u64) -> Pending {
        let (answer, pending) = oneshot::channel();
        Pending::queued(Job { batch: Batch { id: RequestId(id), ..Batch::default() }, answer }, pending, queue)
    }

    #[test]
    fn a_full_queue_delays_answers_and_keeps_their_order() {
        let queue = Arc::new(Queue::default());
        let mut sent: Vec<Pending> = (0..limits::META_QUEUE_BATCHES as u64).map(|id| submit(&queue, id)).collect();
        let late = submit(&queue, 1_000_000);
        let waiter = std::thread::spawn(move || late.wait());
        let mut next = 0;
        let mut last = None;
        while last != Some(1_000_000) {
            // Several calls of `Queue::call` wake the writer's thread only once. So the writer waits in `called` only
            // when the queue is empty.
            if queue.is_empty() {
                queue.called(None);
            }
            let group = queue.take().expect("open");
            assert!(group.len() <= limits::META_GROUP_BATCHES);
            for job in group {
                last = Some(job.batch.id.0);
                assert!(last == Some(next) || last == Some(1_000_000));
                next += 1;
                job.answer.send(Outcome::Conflict(0)).ok();
            }
        }
        assert!(matches!(waiter.join(), Ok(Outcome::Conflict(0))));
        assert!(sent.drain(..).all(|pending| matches!(pending.wait(), Outcome::Conflict(0))));
    }

    #[test]
    fn a_closed_queue_answers_unknown() {
        let queue = Arc::new(Queue::default());
        let inside = submit(&queue, 1);
        queue.close();
        assert!(matches!(submit(&queue, 2).wait(), Outcome::Unknown(_)));
        queue.called(None);
        assert_eq!(queue.take().map(|jobs| jobs.len()), Some(1));
        assert!(queue.take().is_none());
        assert!(matches!(inside.wait(), Outcome::Unknown(_)));
    }
}
