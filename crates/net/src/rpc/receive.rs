//! The record receiver of a connection. A small record is a slice of a shared read buffer; a large record gets a buffer
//! of its own.

use super::Limits;
use super::memory::{Account, Charge};
use crate::buffers::Buffer;
use crate::transports::ReadHalf;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use types::limits;
use wire::rpc::record::{Mark, Progress};

/// Size of the shared read buffer in bytes. The receiver copies at most this many bytes from the read buffer to the
/// buffer of a large record.
const INBOX: usize = 8 << 10;

/// Minimum free space in the shared read buffer for one read. A record with a payload of 4 KiB fits, so one system call
/// can receive it.
const ROOM: usize = 4608;

/// The reason why the receiver of a connection stops.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the peer closed the connection in the middle of a message")]
    Cut,
    #[error("the peer stopped sending before the end of a message")]
    Stalled,
    #[error("bad record: {0}")]
    Malformed(#[from] xdr::Malformed),
}

/// When the connection began to receive the current large record; `None` while no large record is in progress.
pub(crate) type Begun = Arc<Mutex<Option<Instant>>>;

#[derive(Debug)]
pub(crate) struct Receiver {
    half: ReadHalf,
    inbox: BytesMut,
    record_max: usize,
    stall: Duration,
    account: Arc<Account>,
    begun: Begun,
    /// The deadline for the first record to begin; `None` after the first record.
    first: Option<Instant>,
    /// The deadline for the rest of the record that is now arriving.
    deadline: Option<Instant>,
    counters: crate::Counters,
}

/// A received record, without its record marks.
pub(crate) struct Record {
    pub(crate) bytes: Bytes,
    /// The memory reserved for a large record and its largest reply; `None` for a small record.
    pub(crate) charge: Option<Charge>,
}

impl Receiver {
    /// Makes a receiver. `first` is the deadline for the first record to begin; `None` means no deadline.
    pub(crate) fn new(
        half: ReadHalf,
        limits: &Limits,
        account: Arc<Account>,
        begun: Begun,
        first: Option<Instant>,
        counters: crate::Counters,
    ) -> Self {
        let (record_max, stall) = (limits.record_max, limits.stall);
        Receiver { half, inbox: BytesMut::new(), record_max, stall, account, begun, first, deadline: None, counters }
    }

    /// Receives the next record. Returns `None` if the peer closed the connection between two records.
    pub(crate) async fn record(&mut self) -> Result<Option<Record>, ReceiveError> {
        let received = self.receive().await;
        (self.first, self.deadline) = (None, None);
        if received.as_ref().is_err_and(|e| matches!(e, ReceiveError::Stalled)) {
            self.counters.cut();
        }
        received
    }

    async fn receive(&mut self) -> Result<Option<Record>, ReceiveError> {
        let mut progress = Progress::new(self.record_max, limits::FRAGMENTS_MAX);
        let Some(mut mark) = self.mark().await? else { return Ok(None) };
        progress.begin(mark)?;
        if mark.last && mark.len <= INBOX {
            self.fill(mark.len, true).await?;
            return Ok(Some(Record { bytes: self.inbox.split_to(mark.len).freeze(), charge: None }));
        }
        let expected = if mark.last { mark.len } else { self.record_max };
        // Reserve memory for the request and for the largest possible reply together. So a call that already holds
        // memory never waits for more memory.
        let charge = self.account.admit(expected + self.record_max).await;
        let shared = self.begun.clone();
        let begun = Begin::new(&shared);
        // Start the time limit of the record only now, because the peer did not cause the wait for memory.
        self.deadline = Some(begun.at + self.stall);
        let mut buffer = Buffer::with_room(mark.len);
        loop {
            self.fragment(buffer.data(), progress.bytes).await?;
            if mark.last {
                return Ok(Some(Record { bytes: buffer.freeze(), charge }));
            }
            mark = self.mark().await?.ok_or(ReceiveError::Cut)?;
            progress.begin(mark)?;
            if buffer.data().capacity() < progress.bytes {
                let mut larger = Buffer::with_room(progress.bytes);
                larger.data().extend_from_slice(buffer.as_ref());
                buffer = larger;
            }
        }
    }

    /// Receives the next record mark; returns `None` at the end of the stream.
    async fn mark(&mut self) -> Result<Option<Mark>, ReceiveError> {
        match self.fill(4, !self.inbox.is_empty()).await {
            Err(ReceiveError::Cut) if self.inbox.is_empty() => return Ok(None),
            other => other?,
        }
        let mut bytes = [0; 4];
        self.inbox.copy_to_slice(&mut bytes);
        Ok(Some(Mark::from_bytes(bytes)))
    }

    /// Reads until the shared read buffer contains `len` bytes, at most [`INBOX`]. `inside` is true if a record has
    /// already begun.
    async fn fill(&mut self, len: usize, mut inside: bool) -> Result<(), ReceiveError> {
        while self.inbox.len() < len {
            // A peer may be silent without limit between two records, but not inside a record.
            if inside && self.deadline.is_none() {
                self.deadline = Some(Instant::now() + self.stall);
            }
            if self.inbox.capacity() < len.max(self.inbox.len() + ROOM) {
                self.inbox.reserve(INBOX);
            }
            let n = in_time(self.deadline.or(self.first), self.half.read(&mut self.inbox)).await?;
            if n == 0 {
                return Err(ReceiveError::Cut);
            }
            self.counters.received(n);
            inside = true;
        }
        Ok(())
    }

    /// Appends received bytes to `data` until `data` has `len` bytes.
    async fn fragment(&mut self, data: &mut Vec<u8>, len: usize) -> Result<(), ReceiveError> {
        let have = self.inbox.len().min(len - data.len());
        data.extend_from_slice(&self.inbox[..have]);
        self.inbox.advance(have);
        while data.len() < len {
            let room = len - data.len();
            let n = in_time(self.deadline, self.half.read(&mut data.limit(room))).await?;
            if n == 0 {
                return Err(ReceiveError::Cut);
            }
            self.counters.received(n);
        }
        Ok(())
    }
}

/// Awaits `read` until the deadline; returns [`ReceiveError::Stalled`] after the deadline.
async fn in_time(
    deadline: Option<Instant>,
    read: impl Future<Output = io::Result<usize>>,
) -> Result<usize, ReceiveError> {
    match deadline {
        None => Ok(read.await?),
        Some(deadline) => Ok(timeout_at(deadline, read).await.map_err(|_| ReceiveError::Stalled)??),
    }
}

/// A guard that marks a large record as in progress until it is dropped.
struct Begin<'a> {
    begun: &'a Begun,
    at: Instant,
}

impl<'a> Begin<'a> {
    fn new(begun: &'a Begun) -> Self {
        let at = Instant::now();
        *begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
        Begin { begun, at }
    }
}

impl Drop for Begin<'_> {
    fn drop(&mut self) {
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
