//! Listening ports of the simulated network and their accept queues.

use super::{Host, Net};
use net::memory::{Pipe, Port};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// The accept queue of a port: connections that the server has not accepted yet.
#[derive(Debug, Default)]
pub(super) struct AcceptQueue(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    arrived: VecDeque<Arc<dyn Pipe>>,
    waker: Option<Waker>,
}

impl AcceptQueue {
    pub(super) fn arrive(&self, peer: Arc<dyn Pipe>) {
        let waker = {
            let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            inner.arrived.push_back(peer);
            inner.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A port at which a server listens. Dropping this value closes the port.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) net: Net,
    pub(super) at: (Host, u16),
    pub(super) queue: Arc<AcceptQueue>,
}

impl Port for Listening {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Arc<dyn Pipe>>> {
        let mut inner = self.queue.0.lock().unwrap_or_else(PoisonError::into_inner);
        match inner.arrived.pop_front() {
            Some(peer) => Poll::Ready(Ok(peer)),
            None => {
                inner.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut state = self.net.state();
        if state.ports.get(&self.at).is_some_and(|queue| Arc::ptr_eq(queue, &self.queue)) {
            state.ports.remove(&self.at);
        }
    }
}
