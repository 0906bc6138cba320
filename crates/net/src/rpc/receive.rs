//! Records from a socket: small ones are slices of a shared read buffer, large ones get one buffer of their own.

use crate::buffers::Buffer;
use crate::stream::ReadHalf;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::io;
use types::limits;
use wire::rpc::record::{Mark, Progress};

/// Read at once while records are small; also the most that is copied when a large record begins.
const INBOX: usize = 8 << 10;

/// What ends a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the peer closed it inside a message")]
    Cut,
    #[error("bad record: {0}")]
    Malformed(#[from] xdr::Malformed),
}

#[derive(Debug)]
pub(crate) struct Receiver {
    half: ReadHalf,
    inbox: BytesMut,
    record_max: usize,
    counters: crate::Counters,
}

impl Receiver {
    pub(crate) fn new(half: ReadHalf, record_max: usize, counters: crate::Counters) -> Self {
        Receiver { half, inbox: BytesMut::new(), record_max, counters }
    }

    /// The next record without its marks; `None` when the peer closed the connection between two records.
    pub(crate) async fn record(&mut self) -> Result<Option<Bytes>, ReceiveError> {
        let mut progress = Progress::new(self.record_max, limits::FRAGMENTS_MAX);
        let mut buffer = Buffer::default();
        loop {
            let Some(mark) = self.mark().await? else {
                return if progress.fragments == 0 { Ok(None) } else { Err(ReceiveError::Cut) };
            };
            progress.begin(mark)?;
            if progress.fragments == 1 {
                if mark.last && mark.len <= INBOX {
                    self.fill(mark.len).await?;
                    return Ok(Some(self.inbox.split_to(mark.len).freeze()));
                }
                buffer = Buffer::with_room(mark.len);
            } else if buffer.data().capacity() < progress.bytes {
                let mut larger = Buffer::with_room(progress.bytes);
                larger.data().extend_from_slice(buffer.as_ref());
                buffer = larger;
            }
            self.fragment(buffer.data(), progress.bytes).await?;
            if mark.last {
                return Ok(Some(buffer.freeze()));
            }
        }
    }

    /// The next mark; `None` at the end of the stream.
    async fn mark(&mut self) -> Result<Option<Mark>, ReceiveError> {
        match self.fill(4).await {
            Err(ReceiveError::Cut) if self.inbox.is_empty() => return Ok(None),
            other => other?,
        }
        let mut bytes = [0; 4];
        self.inbox.copy_to_slice(&mut bytes);
        Ok(Some(Mark::from_bytes(bytes)))
    }

    /// Reads until the inbox holds `len` bytes, at most [`INBOX`].
    async fn fill(&mut self, len: usize) -> Result<(), ReceiveError> {
        while self.inbox.len() < len {
            if self.inbox.capacity() < len.max(self.inbox.len() + 512) {
                self.inbox.reserve(INBOX);
            }
            let n = self.half.read(&mut self.inbox).await?;
            if n == 0 {
                return Err(ReceiveError::Cut);
            }
            self.counters.received(n);
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
            let n = self.half.read(&mut data.limit(room)).await?;
            if n == 0 {
                return Err(ReceiveError::Cut);
            }
            self.counters.received(n);
        }
        Ok(())
    }
}
