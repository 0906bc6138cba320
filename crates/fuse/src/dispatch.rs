//! Requests on their way: carried out at once as far as that goes, then whenever what they wait for is there.
//!
//! A request is first worked on by the thread that read it. Many end there, such as a write that the window has room for.
//! One that has to wait costs no switch to another thread before its answer comes: it is handed to the runtime by whoever
//! wakes it, which is the task that read the answer from the network.

use crate::Errno;
use crate::fs::FileSystem;
use crate::reply::Reply;
use crate::request::{Op, Request};
use crate::transport::Transport;
use futures_util::future::{BoxFuture, FutureExt};
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use tokio::runtime::Handle;

const EINTR: Errno = Errno(4);
const EIO: Errno = Errno(5);
const EAGAIN: Errno = Errno(11);

/// Takes requests from a transport and sees to it that each is answered once.
pub(crate) struct Dispatcher {
    fs: Arc<FileSystem>,
    transport: Arc<dyn Transport>,
    runtime: Handle,
    /// Requests that are not answered yet, by number.
    waiting: Mutex<HashMap<u64, Arc<Task>>>,
}

/// A request being worked on.
struct Task {
    dispatcher: Arc<Dispatcher>,
    ticket: u64,
    unique: u64,
    /// Whether it may be left undone when its asker got a signal.
    may_be_given_up: bool,
    /// What is left to be done; `None` when it is answered.
    work: Mutex<Option<BoxFuture<'static, Reply>>>,
}

impl Dispatcher {
    /// A dispatcher whose requests wait in `runtime`.
    pub(crate) fn new(fs: Arc<FileSystem>, transport: Arc<dyn Transport>, runtime: Handle) -> Self {
        Dispatcher { fs, transport, runtime, waiting: Mutex::default() }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, Arc<Task>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on a request as far as that goes without waiting.
    pub(crate) fn accept(self: &Arc<Self>, request: Request, ticket: u64) {
        let unique = request.header.unique;
        match &request.op {
            Op::Interrupt { unique: whom } => return self.interrupt(ticket, unique, *whom),
            Op::Forget { nlookup } => return self.fs.forget(&[(request.header.node, *nlookup)]),
            Op::BatchForget { nodes } => return self.fs.forget(nodes),
            _ => {}
        }
        let may_be_given_up = request.op.may_be_given_up();
        let work = AssertUnwindSafe(self.fs.clone().carry_out(request)).catch_unwind();
        let work = work.map(|outcome| outcome.unwrap_or(Reply::Failed(EIO))).boxed();
        let work = Mutex::new(Some(work));
        let task = Arc::new(Task { dispatcher: self.clone(), ticket, unique, may_be_given_up, work });
        let waker = Waker::from(task.clone());
        let _runtime = self.runtime.enter();
        // Before it is worked on: it may end at any moment afterwards.
        self.waiting().insert(unique, task.clone());
        let _ = task.poll(&mut Context::from_waker(&waker));
    }

    /// Gives a request up whose asker got a signal; one that may not be given up ends by itself. For one that was not seen
    /// yet the kernel has to say it again; it does not for one that is answered.
    fn interrupt(&self, ticket: u64, unique: u64, whom: u64) {
        let task = self.waiting().get(&whom).cloned();
        let Some(task) = task else { return self.transport.answer(ticket, unique, Reply::Failed(EAGAIN)) };
        let given_up = task.may_be_given_up && task.work().take().is_some();
        if given_up {
            self.waiting().remove(&whom);
            self.transport.answer(task.ticket, whom, Reply::Failed(EINTR));
        }
        self.transport.answer(ticket, unique, Reply::None);
    }
}

impl Task {
    fn work(&self) -> MutexGuard<'_, Option<BoxFuture<'static, Reply>>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let reply = {
            let mut work = self.work();
            // Answered, or given up.
            let Some(future) = work.as_mut() else { return Poll::Ready(()) };
            let Poll::Ready(reply) = future.poll_unpin(context) else { return Poll::Pending };
            *work = None;
            reply
        };
        self.dispatcher.waiting().remove(&self.unique);
        self.dispatcher.transport.answer(self.ticket, self.unique, reply);
        Poll::Ready(())
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let runtime = self.dispatcher.runtime.clone();
        runtime.spawn(std::future::poll_fn(move |context| self.poll(context)));
    }
}
