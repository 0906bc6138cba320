//! The pending outcome of a submitted batch: a future on which threads without an executor can also block.

use super::{Broken, Job, Outcome, Queue};
use futures_channel::oneshot;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// The pending outcome of a submitted batch.
///
/// Dropping the future does not cancel the batch, unless the batch still waits for space in the queue.
#[derive(Debug)]
#[must_use = "a batch that found the queue full is handed over only when this is polled"]
pub struct Pending(State);

#[derive(Debug)]
enum State {
    Known(Option<Outcome>),
    Sent(oneshot::Receiver<Outcome>),
    Waiting(Option<Box<Job>>, oneshot::Receiver<Outcome>, Arc<Queue>),
}

impl Pending {
    /// Returns a future that is already complete with `outcome`.
    pub fn known(outcome: Outcome) -> Self {
        Pending(State::Known(Some(outcome)))
    }

    /// Puts `job` into `queue`, at once or as soon as the queue has space. If `job` is in the queue when this function
    /// returns, the caller must wake the thread that commits batches.
    pub(crate) fn queued(job: Job, answer: oneshot::Receiver<Outcome>, queue: &Arc<Queue>) -> Self {
        match queue.push(job, None) {
            Ok(()) => Pending(State::Sent(answer)),
            Err(job) => Pending(State::Waiting(Some(job), answer, queue.clone())),
        }
    }

    /// Blocks the calling thread until the outcome of the batch arrives.
    pub fn wait(mut self) -> Outcome {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            match Pin::new(&mut self).poll(&mut context) {
                Poll::Ready(outcome) => return outcome,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Future for Pending {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let stopped = || Outcome::Unknown(Broken::new("its writer has stopped"));
        if let State::Waiting(job, _, queue) = &mut self.0 {
            let Some(waiting) = job.take() else { return Poll::Ready(stopped()) };
            if let Err(refused) = queue.push(*waiting, Some(context.waker())) {
                *job = Some(refused);
                return Poll::Pending;
            }
            queue.call();
            if let State::Waiting(_, answer, _) = std::mem::replace(&mut self.0, State::Known(None)) {
                self.0 = State::Sent(answer);
            }
        }
        match &mut self.0 {
            State::Sent(answer) => Pin::new(answer).poll(context).map(|got| got.unwrap_or_else(|_| stopped())),
            State::Known(outcome) => Poll::Ready(outcome.take().unwrap_or_else(stopped)),
            State::Waiting(..) => Poll::Pending,
        }
    }
}
