//! GETATTR returns the attributes of a file; STATX does the same and adds the birth time.

use crate::caller_syscall::{self, Call};
use crate::fs::{Answer, FileSystem};
use crate::opens::OpenFile;
use crate::reply::Reply;
use crate::request::Header;
use std::time::Duration;
use types::{Attrs, ByteRange};

/// How long the kernel's request may have been in flight.
const UNDER_WAY: Duration = Duration::from_millis(50);

/// Executes GETATTR and STATX.
pub(crate) async fn getattr(fs: &FileSystem, header: &Header, fh: Option<u64>) -> Answer {
    if fs.write_back.kernel_sizes.is_expiring(header.pid) {
        let attrs = fs.callers.anybody().getattr(&fs.node(header)?).await?;
        fs.write_back.kernel_sizes.answers(header.pid, attrs.size);
        return Ok(fs.attributes_for(header, &attrs, Duration::ZERO));
    }
    let _asks = fs.opens.attributes_are_asked(header.node);
    let open = fh.and_then(|fh| fs.opens.file(fh).ok());
    if open.is_none()
        && let Some(told) = fs.told_lately(header)
    {
        return Ok(told);
    }
    let delegation = open.as_ref().filter(|open| open.cached).and_then(|open| open.file.delegation());
    let older = delegation.is_some_and(|number| open.as_ref().is_some_and(|open| !open.are_pages_of(number)));
    if let Some(open) = &open
        && delegation.is_some()
        && !older
        && !fs.write_back.is_on()
    {
        if !fs.nodes.believes_size(header.node, open.file.attrs().size) {
            // If the kernel dropped the answer to this request, it would read up to its cached size.
            Box::pin(fs.show_size(header.node)).await;
        }
        if let Some(known) = fs.known_for_reading(header, open) {
            return Ok(known);
        }
    }
    let shared = fs.write_back.is_shared(header.node);
    let read = fs.opens.are_pages_read(header.node) && (fs.write_back.is_on() || open.is_some());
    let lingers = fs.opens.do_pages_linger(header.node);
    let stale = shared || older || (read || lingers) && fs.is_shared(header.node);
    if stale {
        // The kernel asks for attributes before each read and write, which then start without old pages.
        Box::pin(fs.forget_pages(header.node)).await;
        if let (Some(open), Some(number)) = (&open, delegation) {
            open.pages_begin_under(number);
        }
    }
    let of_write_back = open.clone().filter(|_| fs.write_back.is_on() && fs.is_shared(header.node));
    let attrs = match (open, fs.nodes.just_changed(header.node)) {
        (Some(open), _) => open.file.refresh().await?,
        (None, Some(attrs)) => attrs,
        (None, None) => fs.callers.anybody().getattr(&fs.node(header)?).await?,
    };
    let forgot = || fs.is_shared(header.node) && fs.opens.were_pages_forgotten(header.node, UNDER_WAY);
    if !fs.write_back.is_on() && (stale || forgot()) {
        // The kernel drops the answer to this request, as it had to forget pages after it asked.
        Box::pin(fs.show_size(header.node)).await;
    }
    let by_program = shared && fs.write_back.kernel_sizes.set_by(header.pid).is_none();
    let caller = match by_program || of_write_back.is_some() {
        true => Box::pin(caller_syscall::look(header.pid, Caller::of)).await,
        false => Caller::Other,
    };
    // A caller that has the inode locked cannot wait for the correction of the kernel's attributes. A caller that is
    // about to read or write has not.
    match (caller, of_write_back) {
        (Caller::SeeksTheEnd, Some(open)) => Box::pin(fs.raise_size(&open, attrs.size)).await,
        (Caller::MovesData(range), _) if by_program => {
            fs.write_back.thread_writes(header.node, header.pid, range);
            Box::pin(fs.agree_to_move_data(header.node, &attrs)).await?;
        }
        _ => fs.agree(header.pid, header.node, &attrs).await,
    }
    Ok(fs.attributes(header, &attrs))
}

/// The system call of the thread for which the kernel asks for attributes.
#[derive(Default)]
enum Caller {
    /// A read or a write, with the written bytes if they are known.
    MovesData(Option<ByteRange>),
    /// `lseek` from the end of the file.
    SeeksTheEnd,
    /// Another call, or one that cannot be seen.
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

impl FileSystem {
    /// Returns the answer to a kernel that is about to read an open file from its pages
    /// ([`crate::abi::init::AUTO_INVAL_DATA`]). This mount holds a delegation of the file and does not write back, so
    /// the pages are valid and no request to the mgr is necessary. The answer has the modification time that the kernel
    /// knows, even if this mount has written since: with a new time, the kernel would drop its pages. A program that
    /// asks for the time receives the new one, because an answer with the old time has no lifetime.
    fn known_for_reading(&self, header: &Header, open: &OpenFile) -> Option<Reply> {
        let attrs = open.file.attrs();
        let told = self.nodes.told_time(header.node)?;
        let valid = if told == attrs.mtime { self.config.attrs_valid } else { Duration::ZERO };
        Some(crate::reply::attributes(&Attrs { mtime: told, ..attrs }, valid))
    }
}
