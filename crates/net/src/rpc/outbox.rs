//! The send queue of a connection. Callers write to the socket themselves while the socket accepts data; a task
//! writes the remaining data.
//!
//! The queue holds each message as one or more parts, which are byte slices. At most one writer is active at a time
//! (`writing`). A caller that queues a message while no writer is active becomes the writer. Messages that other
//! callers queue during a write are sent by the writer's next vectored write.

use super::memory::Charge;
use crate::Error;
use crate::transports::WriteHalf;
use bytes::{Buf, Bytes};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::{Instant, timeout_at};
use xdr::Segments;

/// Maximum number of segments in one vectored write.
const SLICES_MAX: usize = 64;
/// Maximum number of writes by one caller. After these writes, the caller leaves the rest of the queue to the writing
/// task.
const TURNS_MAX: usize = 16;

/// The slot of a call in progress, and the memory reserved for the call.
#[derive(Debug)]
pub(crate) struct CallSlot {
    pub(crate) _permit: OwnedSemaphorePermit,
    pub(crate) charge: Option<Charge>,
}

/// A reference that keeps the slot and the memory of a call until the message is sent.
pub(crate) type Hold = Arc<CallSlot>;

#[derive(Debug)]
pub(crate) struct Outbox {
    half: WriteHalf,
    queue: Mutex<Queue>,
    /// The parts of messages that the active writer has moved out of the queue. Only the active writer takes this
    /// lock.
    taken: Mutex<VecDeque<Part>>,
    wake: Notify,
    /// Time limit for the peer to accept all bytes of the oldest message part in the queue.
    stall: Duration,
    /// Number of parts of messages that were sent completely.
    left: AtomicU64,
    /// When the oldest data in the queue began to wait for the socket; `None` while no data wait.
    blocked: Mutex<Option<Instant>>,
    counters: crate::Counters,
}

#[derive(Debug, Default)]
struct Queue {
    parts: VecDeque<Part>,
    writing: bool,
    closed: Option<Error>,
}

#[derive(Debug)]
struct Part {
    bytes: Bytes,
    /// Keeps the slot and the memory of the call until this part is sent. Only the last part of a message has this
    /// reference.
    _hold: Option<Hold>,
}

enum Turn {
    /// The queue is empty. The caller is no longer the active writer of the connection.
    Idle,
    /// The write sent some data, and the queue may contain more. The caller is still the active writer.
    More,
    /// The socket accepts no data now. The caller is still the active writer.
    Blocked,
}

impl Outbox {
    pub(crate) fn new(half: WriteHalf, stall: Duration, counters: crate::Counters) -> Self {
        Outbox {
            half,
            queue: Mutex::default(),
            taken: Mutex::default(),
            wake: Notify::new(),
            stall,
            left: AtomicU64::new(0),
            blocked: Mutex::default(),
            counters,
        }
    }

    /// Returns when the oldest data in the queue began to wait for the socket; `None` while no data wait.
    pub(crate) fn blocked(&self) -> Option<Instant> {
        *self.blocked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a record, and writes as much as the socket accepts at once.
    ///
    /// Never waits. The number of queued messages is bounded, because each message belongs to a call, and the number of
    /// calls in progress is limited.
    pub(crate) fn send(&self, record: Segments, hold: Option<Hold>) -> Result<(), Error> {
        {
            let mut queue = self.lock();
            if let Some(error) = &queue.closed {
                return Err(error.clone());
            }
            let mut hold = hold;
            let last = record.parts().len().saturating_sub(1);
            for (i, bytes) in record.parts().iter().enumerate() {
                let _hold = if i == last { hold.take() } else { None };
                queue.parts.push_back(Part { bytes: bytes.clone(), _hold });
            }
            if queue.writing {
                return Ok(());
            }
            queue.writing = true;
        }
        for _ in 0..TURNS_MAX {
            match self.turn() {
                Ok(Turn::Idle) => return Ok(()),
                Ok(Turn::More) => {}
                Ok(Turn::Blocked) => break,
                Err(e) => {
                    let error = Error::broken(e);
                    self.close(error.clone());
                    return Err(error);
                }
            }
        }
        self.wake.notify_one();
        Ok(())
    }

    /// Writes the data that callers of `send` could not write at once. Returns when the connection is closed, for
    /// instance because the peer did not accept data in time.
    pub(crate) async fn run(&self) {
        loop {
            self.wake.notified().await;
            self.drain().await;
            *self.blocked.lock().unwrap_or_else(PoisonError::into_inner) = None;
            if self.lock().closed.is_some() {
                // The connection is closed. If this task was the active writer, discard the data that it has not sent.
                let dropped = std::mem::take(&mut *self.taken.lock().unwrap_or_else(PoisonError::into_inner));
                return drop(dropped);
            }
        }
    }

    /// Writes until the queue is empty or the connection is closed.
    async fn drain(&self) {
        let mut first = None;
        while self.lock().closed.is_none() {
            let failed = match self.turn() {
                Ok(Turn::Idle) => return,
                Ok(Turn::More) => None,
                Ok(Turn::Blocked) => self.room(&mut first).await.err(),
                Err(e) => Some(e),
            };
            if let Some(e) = failed {
                return self.close(Error::broken(e));
            }
        }
    }

    /// Waits until the socket accepts data. Fails if the oldest part in the queue waits for longer than `stall`.
    /// `first` holds the sequence number of this part, and the time when this part began to wait.
    async fn room(&self, first: &mut Option<(u64, Instant)>) -> io::Result<()> {
        let left = self.left.load(Relaxed);
        let since = match *first {
            Some((number, since)) if number == left => since,
            _ => {
                let now = Instant::now();
                *first = Some((left, now));
                *self.blocked.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
                now
            }
        };
        match timeout_at(since + self.stall, self.half.writable()).await {
            Ok(ready) => ready,
            Err(_) => {
                self.counters.cut();
                Err(io::Error::new(io::ErrorKind::TimedOut, "the peer stopped receiving"))
            }
        }
    }

    /// Sends queued data by one vectored write. Only the active writer may call this.
    fn turn(&self) -> io::Result<Turn> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.is_empty() {
            let mut queue = self.lock();
            if queue.parts.is_empty() {
                queue.writing = false;
                return Ok(Turn::Idle);
            }
            std::mem::swap(&mut *taken, &mut queue.parts);
        }
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let count = taken.len().min(SLICES_MAX);
        for (slice, part) in slices.iter_mut().zip(&*taken) {
            *slice = IoSlice::new(&part.bytes);
        }
        let mut written = match self.half.try_write_vectored(&slices[..count]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Turn::Blocked),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(Turn::More),
            Err(e) => return Err(e),
        };
        self.counters.sent(written);
        while let Some(front) = taken.front_mut() {
            if written < front.bytes.len() {
                front.bytes.advance(written);
                break;
            }
            written -= front.bytes.len();
            taken.pop_front();
            self.left.fetch_add(1, Relaxed);
        }
        Ok(Turn::More)
    }

    /// Closes the queue with the reason `error`: refuses further messages, discards queued messages, and shuts down
    /// the socket in both directions.
    ///
    /// Only the first call has an effect.
    pub(crate) fn close(&self, error: Error) {
        let dropped = {
            let mut queue = self.lock();
            if queue.closed.is_some() {
                return;
            }
            queue.closed = Some(error);
            std::mem::take(&mut queue.parts)
        };
        drop(dropped);
        self.half.shutdown();
        self.wake.notify_one();
    }

    /// Returns the reason why the queue is closed; `None` while it is open.
    pub(crate) fn closed(&self) -> Option<Error> {
        self.lock().closed.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
