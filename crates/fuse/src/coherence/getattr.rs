//! GETATTR: the kernel asks for attributes before each read and write of a shared file. What is stale in its cache is
//! dropped or corrected before the answer.

use crate::Errno;
use crate::caller_syscall::{self, Call};
use crate::coherence::Coherence;
use crate::coherence::open_pages::Asks;
use crate::opens::OpenFile;
use std::time::Duration;
use types::{Attrs, ByteRange};

/// How long the kernel's request may have been in flight.
const UNDER_WAY: Duration = Duration::from_millis(50);

/// The state of a file before the mount asks for its attributes.
pub(crate) struct Before {
    /// Whether the file is shared and written to the page cache.
    shared: bool,
    /// Whether the kernel had to forget its pages.
    stale: bool,
    /// Whether the file is open here, shared, and on a mount that writes back.
    of_write_back: bool,
}

/// The system call of the thread for which the kernel asks for attributes.
#[derive(Default)]
enum Caller {
    /// A read or a write, with the written bytes if they are known.
    MovesData(Option<ByteRange>),
    /// `lseek` from the end of the file.
    SeeksTheEnd,
    /// Another call, or a call that the mount cannot read.
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
    /// Records that the kernel asks for the attributes of a file, until the returned value is dropped. Returns `None` if
    /// the file is not open.
    pub(crate) fn getattr_begins(&self, number: u64) -> Option<Asks> {
        self.pages.attributes_are_asked(number)
    }

    /// Returns the delegation under which the kernel may read an open file from its pages, and whether its pages are
    /// from before that delegation.
    fn delegation(open: Option<&OpenFile>) -> Option<(u64, bool)> {
        let open = open.filter(|open| open.pages.is_cached())?;
        let delegation = open.file.delegation()?;
        Some((delegation, !open.pages.are_pages_of(delegation)))
    }

    /// Returns the attributes for a kernel that is about to read an open file from its pages
    /// ([`crate::abi::init::AUTO_INVAL_DATA`]), and their lifetime, if the mount knows them. This mount then holds a
    /// delegation of the file and does not write back, so the pages are valid and no request to the mgr is necessary.
    pub(crate) async fn attributes_for_reading(&self, number: u64, open: &OpenFile) -> Option<(Attrs, Duration)> {
        let (_, older) = Coherence::delegation(Some(open))?;
        if older || self.write_back.is_on() {
            return None;
        }
        if !self.cache.has_size(number, open.file.attrs().size) {
            // If the kernel dropped the answer to this request, it would read up to its cached size.
            Box::pin(self.show_size(number)).await;
        }
        // The answer has the modification time that the kernel knows, even if this mount has written since: with a new
        // time, the kernel would drop its pages. A program that asks for the time receives the new one, because an
        // answer with the old time has no lifetime.
        let (attrs, told) = (open.file.attrs(), self.cache.told_time(number)?);
        let valid = if told == attrs.mtime { self.attrs_valid } else { Duration::ZERO };
        Some((Attrs { mtime: told, ..attrs }, valid))
    }

    /// Makes the kernel forget pages that are stale, before the mount asks for the attributes of a file.
    pub(crate) async fn before_getattr(&self, number: u64, open: Option<&OpenFile>) -> Before {
        let delegation = Coherence::delegation(open);
        let shared = self.write_back.is_shared(number);
        let read = self.pages.are_read(number) && (self.write_back.is_on() || open.is_some());
        let lingers = self.pages.do_linger(number);
        let older = delegation.is_some_and(|(_, older)| older);
        let stale = shared || older || (read || lingers) && self.is_shared(number);
        if stale {
            // The kernel asks for attributes before each read and write, which then start without old pages.
            Box::pin(self.forget_pages(number)).await;
            if let (Some(open), Some((number, _))) = (open, delegation) {
                open.pages.pages_begin_under(number);
            }
        }
        let of_write_back = open.is_some() && self.write_back.is_on() && self.is_shared(number);
        Before { shared, stale, of_write_back }
    }

    /// Makes the kernel cache the attributes that the mount has got for its GETATTR, as far as the answer alone does not
    /// achieve that.
    ///
    /// # Errors
    /// EIO: the kernel cannot be corrected, and a read or write of a shared file waits for that.
    pub(crate) async fn after_getattr(
        &self,
        thread: u32,
        number: u64,
        open: Option<&OpenFile>,
        (before, attrs): (Before, &Attrs),
    ) -> Result<(), Errno> {
        let forgot = || self.is_shared(number) && self.pages.were_forgotten(number, UNDER_WAY);
        if !self.write_back.is_on() && (before.stale || forgot()) {
            // The kernel drops the answer to this request, as it had to forget pages after it asked.
            Box::pin(self.show_size(number)).await;
        }
        let by_program = before.shared && self.kernel_sizes.set_by(thread).is_none();
        let of_write_back = open.filter(|_| before.of_write_back);
        let caller = match by_program || of_write_back.is_some() {
            true => Box::pin(caller_syscall::look(thread, Caller::of)).await,
            false => Caller::Other,
        };
        // A caller that has the inode locked cannot wait for the correction of the kernel's attributes. A caller that
        // is about to read or write has not.
        match (caller, of_write_back) {
            (Caller::SeeksTheEnd, Some(open)) => Box::pin(self.raise_size(open, attrs.size)).await,
            (Caller::MovesData(range), _) if by_program => {
                self.write_back.thread_writes(number, thread, range);
                Box::pin(self.agree_to_move_data(number, attrs)).await?;
            }
            _ => self.agree(thread, number, attrs).await,
        }
        Ok(())
    }
}
