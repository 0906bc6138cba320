//! GETATTR: the kernel requests attributes before each read and write of a file that other clients use. Before the
//! mount replies, it makes the kernel drop or correct stale cached data.

use crate::Errno;
use crate::caller_syscall::{self, Call};
use crate::coherence::Coherence;
use crate::coherence::open_pages::GetattrGuard;
use crate::opens::OpenFile;
use std::time::Duration;
use types::{Attrs, ByteRange};

/// How long the kernel may take to receive and apply a reply.
const UNDER_WAY: Duration = Duration::from_millis(50);

/// The state of a file before the mount requests its attributes from the mgr.
pub(crate) struct Before {
    /// Whether other clients use the file while the kernel writes the file through the page cache.
    shared: bool,
    /// Whether the mount made the kernel drop its cached pages of the file.
    stale: bool,
    /// True if write-back is on, the file is open on this mount, and other clients use the file.
    of_write_back: bool,
}

/// The system call of the thread for which the kernel requests attributes.
#[derive(Default)]
enum Caller {
    /// A read or a write, with the written byte range if the mount knows it.
    MovesData(Option<ByteRange>),
    /// An lseek(2) relative to the end of the file.
    SeeksTheEnd,
    /// Any other system call, or a call that the mount cannot read.
    #[default]
    Other,
}

impl Caller {
    fn of(call: Call) -> Self {
        match call.seeks_the_end() {
            true => Caller::SeeksTheEnd,
            false if call.writes() || call.reads() => Caller::MovesData(call.written_range()),
            false => Caller::Other,
        }
    }
}

impl Coherence {
    /// Records that the kernel requests the attributes of a file. Dropping the returned guard records that the mount
    /// has replied. Returns `None` if the file is not open.
    pub(crate) fn getattr_begins(&self, number: u64) -> Option<GetattrGuard> {
        self.pages.begin_getattr(number)
    }

    /// Returns the delegation under which the kernel may read an open file from its pages, and whether the kernel may
    /// have read some of these pages before the mount got this delegation.
    fn delegation(open: Option<&OpenFile>) -> Option<(u64, bool)> {
        let open = open.filter(|open| open.pages.is_cached())?;
        let delegation = open.file.delegation()?;
        Some((delegation, !open.pages.are_pages_of(delegation)))
    }

    /// Returns the attributes and their lifetime for the reply to a GETATTR that the kernel sends before it reads its
    /// cached pages of an open file ([`crate::abi::init::AUTO_INVAL_DATA`]). Under a delegation these pages are valid,
    /// so no request to the mgr is necessary. Returns `None` with write-back, or if the pages may be older than the
    /// delegation; the caller then requests the attributes from the mgr.
    pub(crate) async fn attributes_for_reading(&self, number: u64, open: &OpenFile) -> Option<(Attrs, Duration)> {
        let (_, older) = Coherence::delegation(Some(open))?;
        if older || self.write_back.is_on() {
            return None;
        }
        if !self.cache.has_size(number, open.file.attrs().size) {
            // The kernel may discard the reply to this GETATTR, and then reads only up to its old cached size. So first
            // make the kernel cache the new size.
            Box::pin(self.show_size(number)).await;
        }
        // The reply contains the modification time that the kernel has cached, even if this mount has written the file
        // after that time. If the kernel received another time, it would drop its pages. The old time gets no
        // lifetime, so that a program that requests the time receives the new time.
        let (attrs, sent) = (open.file.attrs(), self.cache.sent_mtime(number)?);
        let valid = if sent == attrs.mtime { self.attrs_valid } else { Duration::ZERO };
        Some((Attrs { mtime: sent, ..attrs }, valid))
    }

    /// Makes the kernel drop stale pages before the mount requests the attributes of a file from the mgr.
    pub(crate) async fn before_getattr(&self, number: u64, open: Option<&OpenFile>) -> Before {
        let delegation = Coherence::delegation(open);
        let shared = self.write_back.is_shared(number);
        let read = self.pages.are_read(number) && (self.write_back.is_on() || open.is_some());
        let lingers = self.pages.keeps_shared_pages(number);
        let older = delegation.is_some_and(|(_, older)| older);
        let stale = shared || older || (read || lingers) && self.is_shared(number);
        if stale {
            // The kernel requests attributes before each read and write, so each read and write begins without stale
            // pages.
            Box::pin(self.drop_pages(number)).await;
            if let (Some(open), Some((number, _))) = (open, delegation) {
                open.pages.pages_begin_under(number);
            }
        }
        let of_write_back = open.is_some() && self.write_back.is_on() && self.is_shared(number);
        Before { shared, stale, of_write_back }
    }

    /// Makes the kernel cache the attributes that the mount fetched for a GETATTR, where the reply alone does not
    /// achieve this.
    ///
    /// # Errors
    /// EIO: the kernel's attributes cannot be corrected, and a read or write of a file that other clients use depends
    /// on them.
    pub(crate) async fn after_getattr(
        &self,
        thread: u32,
        number: u64,
        open: Option<&OpenFile>,
        (before, attrs): (Before, &Attrs),
    ) -> Result<(), Errno> {
        let forgot = || self.is_shared(number) && self.pages.had_recent_invalidation(number, UNDER_WAY);
        if !self.write_back.is_on() && (before.stale || forgot()) {
            // The kernel has dropped pages since it sent this GETATTR, so the kernel discards the reply. Make the
            // kernel request the size again.
            Box::pin(self.show_size(number)).await;
        }
        let by_program = before.shared && self.kernel_sizes.set_by(thread).is_none();
        let of_write_back = open.filter(|_| before.of_write_back);
        let caller = match by_program || of_write_back.is_some() {
            true => Box::pin(caller_syscall::look(thread, Caller::of)).await,
            false => Caller::Other,
        };
        // A caller that has the inode locked cannot wait for the correction of the kernel's attributes, because the
        // correction waits for this lock. A caller that is about to read or write does not have the inode locked, so
        // this caller can wait.
        match (caller, of_write_back) {
            (Caller::SeeksTheEnd, Some(open)) => Box::pin(self.raise_size(open, attrs.size)).await,
            (Caller::MovesData(range), _) if by_program => {
                self.write_back.thread_writes(number, thread, range);
                Box::pin(self.correct_for_data(number, attrs)).await?;
            }
            _ => self.correct_for_reply(thread, number, attrs).await,
        }
        Ok(())
    }
}
