//! The send queue of a connection: written on the spot while the socket takes it, by a task of its own when not.
//!
//! Exactly one writer is active at a time (`writing`). Whoever queues a message while nobody writes becomes the
//! writer; messages queued meanwhile are gathered into its next vectored write.

use crate::Error;
use crate::stream::WriteHalf;
use bytes::{Buf, Bytes};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use xdr::Segments;

/// Most segments of one vectored write.
const SLICES_MAX: usize = 64;
/// Writes that a caller does for others before it hands over to the task.
const TURNS_MAX: usize = 16;

/// Holds a call's place among those in progress until its bytes have left.
pub(crate) type Hold = Arc<OwnedSemaphorePermit>;

#[derive(Debug)]
pub(crate) struct Outbox {
    half: WriteHalf,
    queue: Mutex<Queue>,
    /// What the active writer took from the queue; only the active writer locks it.
    taken: Mutex<VecDeque<Part>>,
    wake: Notify,
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
    pub(crate) fn new(half: WriteHalf, counters: crate::Counters) -> Self {
        Outbox { half, queue: Mutex::default(), taken: Mutex::default(), wake: Notify::new(), counters }
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

    /// Writes what callers could not; ends when the connection is closed.
    pub(crate) async fn run(&self) {
        loop {
            self.wake.notified().await;
            loop {
                if self.lock().closed.is_some() {
                    return;
                }
                let failed = match self.turn() {
                    Ok(Turn::Idle) => break,
                    Ok(Turn::More) => None,
                    Ok(Turn::Blocked) => self.half.writable().await.err(),
                    Err(e) => Some(e),
                };
                if let Some(e) = failed {
                    self.close(Error::broken(e));
                    return;
                }
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
