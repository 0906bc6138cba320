//! File sizes that other clients set or extend, on a write-back mount. With write-back, the kernel keeps the size of
//! a regular file itself, and answers `lseek(SEEK_END)` with this size.

use crate::Errno;
use crate::abi;
use crate::coherence::Coherence;
use crate::coherence::kernel_size::KernelSizes;
use crate::coherence::write_back::segment_bytes;
use crate::opens::OpenFile;
use crate::reply::Body;
use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use types::{Attrs, ByteRange};

/// Files for which this mount executes requests that set the size. During such a request the kernel has the inode
/// locked, so the mount does not correct the kernel's size. Otherwise two mounts that set the size of one file would
/// wait for each other.
#[derive(Debug, Default)]
pub(super) struct Resizing(Mutex<HashMap<u64, SizeRequests>>);

/// The requests that are setting the size of one file.
#[derive(Clone, Copy, Debug, Default)]
struct SizeRequests {
    requests: usize,
    /// Whether another client has set the size of the file during one of these requests. [`Request::has_missed`]
    /// returns and clears this flag.
    missed: bool,
}

/// Guard of a request that is setting the size of a file. Dropping the guard records that the request has ended.
pub(crate) struct Request<'a>(&'a Resizing, u64);

impl Resizing {
    fn table(&self) -> MutexGuard<'_, HashMap<u64, SizeRequests>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a request begins to set the size of a file.
    fn begin(&self, number: u64) -> Request<'_> {
        self.table().entry(number).or_default().requests += 1;
        Request(self, number)
    }

    /// Records that another client has set the size of a file. Returns whether a request of this mount is setting the
    /// size too. If so, that request then queries the size from the mgr again.
    fn is_set_elsewhere(&self, number: u64) -> bool {
        self.table().get_mut(&number).map(|under| under.missed = true).is_some()
    }
}

impl Request<'_> {
    /// Returns whether another client has set the size since this mount's request began, or since the last call of
    /// this function.
    fn has_missed(&self) -> bool {
        self.0.table().get_mut(&self.1).is_some_and(|under| std::mem::take(&mut under.missed))
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let mut table = self.0.table();
        if let Some(under) = table.get_mut(&self.1) {
            under.requests -= 1;
            if under.requests == 0 {
                table.remove(&self.1);
            }
        }
    }
}

impl Coherence {
    /// Records that a request begins to set the size of a file. Returns `None` without write-back.
    pub(crate) fn size_change_begins(&self, number: u64) -> Option<Request<'_>> {
        self.write_back.is_on().then(|| self.resizing.begin(number))
    }

    /// Ends a request that has set the size of a file; the mgr replied with `attrs`. Returns the attributes for the
    /// reply to the kernel.
    ///
    /// # Errors
    /// The error of a GETATTR request to the mgr.
    pub(crate) async fn size_changed(&self, request: Option<Request<'_>>, attrs: Attrs) -> Result<Attrs, Errno> {
        let Some(request) = request else { return Ok(attrs) };
        let (number, mut attrs) = (request.1, attrs);
        while request.has_missed() {
            attrs = self.mount.getattr(&self.nodes.get(number)?).await?;
        }
        Ok(attrs)
    }

    /// Ends a request that has set the size of a file and whose reply to the kernel contains no attributes.
    pub(crate) fn size_changed_unseen(&self, request: Option<Request<'_>>) {
        if let Some(request) = request
            && request.has_missed()
            && let Some(coherence) = self.shared()
        {
            let number = request.1;
            // The kernel has the inode locked until it receives the reply to its request, so correct the size in the
            // background.
            tokio::spawn(async move { coherence.follow_size(number).await });
        }
    }

    /// Makes the kernel cache the size of a file after another client has set the size.
    pub(super) async fn follow_size(&self, number: u64) {
        if !self.write_back.is_on() || !self.cache.is_known(number) || self.resizing.is_set_elsewhere(number) {
            return;
        }
        self.recent_attrs.changed();
        let Ok(attrs) = self.present_attrs(number).await else { return };
        if self.write_back.is_shared(number) {
            let _ = self.correct_for_data(number, &attrs).await;
        } else {
            // No kernel request causes this correction of the size, so pass the thread id 0.
            self.correct_if_needed(0, number, &attrs).await;
        }
    }

    /// Raises the size that the kernel has cached, for `lseek(SEEK_END)`. The kernel has the inode locked while it
    /// waits for attributes from the mount, so a thread of the mount process cannot set the size by a truncate, which
    /// needs the inode lock too. Instead the mount stores the last byte of the file in the page cache
    /// (`FUSE_NOTIFY_STORE`), which extends the cached size.
    pub(super) async fn raise_size(&self, open: &OpenFile, size: u64) {
        let number = open.file.node().id.0;
        let cached_size = self.ask_of_self(number, KernelSizes::size).await;
        let (Some(transport), Some(cached_size)) =
            (self.transport(), cached_size.filter(|cached_size| *cached_size < size))
        else {
            return;
        };
        let read = open.file.read_at(size - 1, 1).await;
        let last = read.ok().and_then(|read| read.segments.iter().flat_map(segment_bytes).next()).unwrap_or(0);
        // The notification has node id, offset, size and padding (`struct fuse_notify_store_out`), and then the last
        // byte of the file.
        let mut body = Body::with_capacity(25).u64(number).u64(size - 1).u32(1).u32(0).into_vec();
        body.push(last);
        let stored = tokio::task::spawn_blocking(move || transport.notify(abi::notify::STORE, &body)).await;
        if let Ok(Err(error)) | Err(error) = stored.map_err(io::Error::other) {
            tracing::debug!(node = number, "cannot raise the size that the kernel has cached: {error}");
        }
        self.write_back.reaches(number, size);
        self.size_may_change(number);
        // After the old end of the file, the kernel's pages contain zeros instead of the other client's bytes, so drop
        // them.
        self.drop_pages_of(number, ByteRange { offset: cached_size, len: size - cached_size }).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_sees_sizes_that_other_requests_set_meanwhile() {
        let resizing = Resizing::default();
        assert!(!resizing.is_set_elsewhere(5), "no request is setting the size");
        let first = resizing.begin(5);
        assert!(!first.has_missed());
        assert!(resizing.is_set_elsewhere(5) && !resizing.is_set_elsewhere(6));
        assert!(first.has_missed() && !first.has_missed());
        let second = resizing.begin(5);
        drop(first);
        assert!(resizing.is_set_elsewhere(5) && second.has_missed());
        drop(second);
        assert!(!resizing.is_set_elsewhere(5) && resizing.table().is_empty());
    }
}
