//! The send queue of a connection: written on the spot while the socket takes it, by a task of its own when not.
//!
//! Exactly one writer is active at a time (`writing`). Whoever queues a message while nobody writes becomes the
//! writer; messages queued meanwhile are gathered into its next vectored write.

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

/// Most segments of one vectored write.
const SLICES_MAX: usize = 64;
/// Writes that a caller does for others before it hands over to the task.
const TURNS_MAX: usize = 16;

/// A call's place among those in progress, and the memory counted for it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) _permit: OwnedSemaphorePermit,
    pub(crate) charge: Option<Charge>,
}

/// Holds a call's place until its bytes have left.
pub(crate) type Hold = Arc<Place>;

#[derive(Debug)]
pub(crate) struct Outbox {
    half: WriteHalf,
    queue: Mutex<Queue>,
    /// What the active writer took from the queue; only the active writer locks it.
    taken: Mutex<VecDeque<Part>>,
    wake: Notify,
    /// How long a part may stay first in line while the peer takes nothing of it, or too little.
    stall: Duration,
    /// Parts that have left.
    left: AtomicU64,
    /// Since when the part that is first in line waits for the socket.
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
    /// On the last part of a message.
    _hold: Option<Hold>,
}

enum Turn {
    /// Nothing is left, nobody is the writer any more.
    Idle,
    /// More is left; the caller is still the writer.
    More,
    /// The socket takes nothing now; the caller is still the writer.
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

    /// Since when the peer has not taken what is first in line; `None` while nothing waits for it.
    pub(crate) fn blocked(&self) -> Option<Instant> {
        *self.blocked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a whole record and writes as much as the socket takes at once.
    ///
    /// Never waits: the number of messages is bounded by the holds that callers have to get first.
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

    /// Writes what callers could not; ends when the connection is closed, by the peer's slowness too.
    pub(crate) async fn run(&self) {
        loop {
            self.wake.notified().await;
            self.drain().await;
            *self.blocked.lock().unwrap_or_else(PoisonError::into_inner) = None;
            if self.lock().closed.is_some() {
                // Nobody else is left who would write or drop them.
                let dropped = std::mem::take(&mut *self.taken.lock().unwrap_or_else(PoisonError::into_inner));
                return drop(dropped);
            }
        }
    }

    /// Writes until nothing is left or the connection is closed.
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

    /// Waits for room in the socket; `first` is the part that is first in line, by number, and since when it waits.
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
                Err(io::Error::new(io::ErrorKind::TimedOut, "the peer did not take what was sent to it"))
            }
        }
    }

    /// One vectored write by the active writer.
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

    /// Refuses further messages with `error`, drops the queued ones and ends both directions of the socket.
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

    /// Why the connection is closed, `None` while it is open.
    pub(crate) fn closed(&self) -> Option<Error> {
        self.lock().closed.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
