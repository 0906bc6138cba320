//! Records from a socket: small ones are slices of a shared read buffer, large ones get one buffer of their own.

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

/// Read at once while records are small; also the most that is copied when a large record begins.
const INBOX: usize = 8 << 10;

/// Room for a payload of 4 KiB and what is around it: with less a small record would come in two calls.
const ROOM: usize = 4608;

/// What ends a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the peer closed it inside a message")]
    Cut,
    #[error("the peer did not send the rest of a message, or none at all")]
    Stalled,
    #[error("bad record: {0}")]
    Malformed(#[from] xdr::Malformed),
}

/// Since when a large record is being received.
pub(crate) type Begun = Arc<Mutex<Option<Instant>>>;

#[derive(Debug)]
pub(crate) struct Receiver {
    half: ReadHalf,
    inbox: BytesMut,
    record_max: usize,
    stall: Duration,
    account: Arc<Account>,
    begun: Begun,
    /// When the first record must have begun; `None` once one has come.
    first: Option<Instant>,
    /// When the record that has begun must be here.
    deadline: Option<Instant>,
    counters: crate::Counters,
}

/// A record without its marks.
pub(crate) struct Record {
    pub(crate) bytes: Bytes,
    /// The memory counted for it and the largest reply to it, when it is a large one.
    pub(crate) charge: Option<Charge>,
}

impl Receiver {
    /// `first` is when the first record must have come, if there is such a time.
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

    /// The next record; `None` when the peer closed the connection between two.
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
        // Room for the largest reply as well: who has begun to hold memory never waits for more.
        let charge = self.account.admit(expected + self.record_max).await;
        let shared = self.begun.clone();
        let begun = Begin::new(&shared);
        // The wait was ours, not the peer's.
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

    /// The next mark; `None` at the end of the stream.
    async fn mark(&mut self) -> Result<Option<Mark>, ReceiveError> {
        match self.fill(4, !self.inbox.is_empty()).await {
            Err(ReceiveError::Cut) if self.inbox.is_empty() => return Ok(None),
            other => other?,
        }
        let mut bytes = [0; 4];
        self.inbox.copy_to_slice(&mut bytes);
        Ok(Some(Mark::from_bytes(bytes)))
    }

    /// Reads until the inbox holds `len` bytes, at most [`INBOX`]; `inside` a record or before it.
    async fn fill(&mut self, len: usize, mut inside: bool) -> Result<(), ReceiveError> {
        while self.inbox.len() < len {
            // Between records a peer may be silent for ever, inside one it may not.
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

    /// Appends to `data` until it holds `len` bytes.
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

/// What `read` gives, if it does before the deadline.
async fn in_time(
    deadline: Option<Instant>,
    read: impl Future<Output = io::Result<usize>>,
) -> Result<usize, ReceiveError> {
    match deadline {
        None => Ok(read.await?),
        Some(deadline) => Ok(timeout_at(deadline, read).await.map_err(|_| ReceiveError::Stalled)??),
    }
}

/// Says that a large record is being received until dropped.
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
