//! The fold of a log file: the mgr copies its visible bytes to new striped objects.

use super::LogFile;
use crate::proxy::Objects;
use layout::gather::Run;
use nfs::fs::Content;
use types::limits::PAYLOAD_MAX;
use types::{ByteRange, Status};

impl LogFile<'_> {
    /// Copies the bytes of the file durably to the objects `to`, which do not exist yet. Holes stay holes. No client may
    /// write the file during the copy.
    ///
    /// # Errors
    /// `Delay` while an iod is down. `Lost` if durable bytes are missing. After an error, any part of the new objects
    /// may exist.
    pub(crate) async fn move_to(&self, to: &Objects<'_>) -> Result<(), Status> {
        let end = self.end().await;
        if !end.complete {
            return Err(Status::Delay);
        }
        let size = end.reached.max(self.known.size);
        let mut at = 0;
        while let Some(data) = self.seek(at, Content::Data).await?.filter(|data| *data < size) {
            let hole = self.seek(data, Content::Hole).await?.unwrap_or(size).min(size);
            at = data;
            while at < hole {
                let range = ByteRange { offset: at, len: (hole - at).min(PAYLOAD_MAX as u64) };
                let data = self.read(range).await?.to_bytes();
                // A stable write: an iod that restarts during the copy must not lose bytes without an error.
                if !to.write(&[Run { offset: at, data }], true).await?.stable {
                    return Err(Status::Io);
                }
                at += range.len;
            }
        }
        // Each object becomes as long as the file requires. The namespace may know that bytes at the end were written,
        // although a hole has replaced them since.
        to.truncate(size).await
    }
}
