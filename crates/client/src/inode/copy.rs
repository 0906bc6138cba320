//! Server-side copy of a range of another file into this file (COPY, RFC 7862 §15.2).

use super::Inode;
use super::opens::TRIES;
use crate::{Error, Result};
use bytes::Bytes;
use std::sync::Arc;
use types::{ByteRange, Status, Verifier};

/// Maximum number of attempts to copy. The client repeats a copy if a server restarted before the copy was durable.
const ROUNDS: u32 = 4;

/// Returns the part of a range that lies inside a file of this size.
fn inside(range: ByteRange, size: u64) -> ByteRange {
    ByteRange { offset: range.offset, len: range.len.min(size.saturating_sub(range.offset)) }
}

impl Inode {
    /// Copies a range, see [`crate::File::copy_range`]. `keys` are the opens of this file and of the source file.
    pub(crate) async fn copy_range(
        self: &Arc<Self>,
        keys: (u64, u64),
        target: u64,
        source: &Arc<Inode>,
        range: ByteRange,
    ) -> Result<u64> {
        // First make the writes to both files durable. The mgr copies only bytes that servers have received, and a
        // write that is sent late must not overwrite the copy.
        source.fsync(keys.1).await?;
        self.fsync(keys.0).await?;
        let mut range = inside(range, source.size_now().await?);
        for _ in 0..ROUNDS {
            let mut done = 0;
            let mut verifiers: Vec<Verifier> = Vec::new();
            while done < range.len {
                let part = ByteRange { offset: range.offset + done, len: range.len - done };
                let (count, verifier) = match self.mgr_copy(target + done, source, part).await {
                    Err(error) if error.is(Status::Inval) => {
                        // Another client may have truncated the source file, so request its current size.
                        let shorter = inside(range, source.learn_attrs().await?.size);
                        if shorter.len >= range.len {
                            return Err(error);
                        }
                        range = shorter;
                        continue;
                    }
                    outcome => outcome?,
                };
                if count == 0 {
                    break;
                }
                done += count.min(part.len);
                verifiers.push(verifier);
            }
            let kept = match verifiers.is_empty() {
                true => true,
                false => {
                    let committed = self.opened(true)?.commit().await?;
                    verifiers.iter().all(|verifier| *verifier == committed)
                }
            };
            if kept {
                let mut state = self.state();
                if done > 0 {
                    state.size.extend_to(target + done, self.mount.next_stamp());
                }
                return Ok(done);
            }
        }
        Err(Error::status(
            Status::Io,
            "copying: in every attempt a server restarted before the bytes were durable; copy again",
        ))
    }

    /// Asks the mgr to copy a range with one COPY; returns the number of copied bytes and the verifier.
    async fn mgr_copy(&self, target: u64, source: &Inode, range: ByteRange) -> Result<(u64, Verifier)> {
        let mut tries = TRIES;
        loop {
            let (to, from) = (self.opened(true)?, source.opened(false)?);
            match to.copy(target, &from, range).await {
                Err(error) if error.is_state_lost() => {
                    tries = tries.checked_sub(1).ok_or(error)?;
                    // The mgr has lost the stateid of the source file or of this file, and the client does not know
                    // which. So the client sends a small READ or WRITE under each stateid; if the mgr does not know the
                    // stateid, the client opens the file again.
                    source.mgr_read(range.offset, 1).await?;
                    // This WRITE is empty and belongs to no batch (`u64::MAX`), so the client never gives it up.
                    self.mgr_write(u64::MAX, target, Bytes::new(), false).await?;
                }
                outcome => return outcome,
            }
        }
    }
}
