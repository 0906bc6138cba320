//! GETATTR: the attributes of a file; and STATX, which is the same with when it was made.

use crate::calls;
use crate::fs::{Answer, FileSystem};
use crate::opens::OpenFile;
use crate::reply::Reply;
use crate::request::Header;
use std::time::Duration;
use types::Attrs;

/// How long the kernel's question may have been under way.
const UNDER_WAY: Duration = Duration::from_millis(50);

/// See the head of this file.
pub(crate) async fn getattr(fs: &FileSystem, header: &Header, fh: Option<u64>) -> Answer {
    if fs.write_back.beliefs.is_expiring(header.pid) {
        let attrs = fs.callers.anybody().getattr(&fs.node(header)?).await?;
        fs.write_back.beliefs.answers(header.pid, attrs.size);
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
        // What is read or written next begins with what there is: the kernel asks for attributes before either.
        Box::pin(fs.forget_pages(header.node)).await;
        if let (Some(open), Some(number)) = (&open, delegation) {
            open.pages_begin_under(number);
        }
    }
    let attrs = match (open, fs.nodes.just_changed(header.node)) {
        (Some(open), _) => open.file.refresh().await?,
        (None, Some(attrs)) => attrs,
        (None, None) => fs.callers.anybody().getattr(&fs.node(header)?).await?,
    };
    let forgot = || fs.is_shared(header.node) && fs.opens.were_pages_forgotten(header.node, UNDER_WAY);
    if !fs.write_back.is_on() && (stale || forgot()) {
        // It takes no notice of the answer to this question: it asked before it was told to forget pages.
        Box::pin(fs.show_size(header.node)).await;
    }
    // Whoever has the inode locked cannot wait for who corrects what the kernel believes; who is about to read or write has not.
    let by_program = shared && fs.write_back.beliefs.set_by(header.pid).is_none();
    let moves = |call: calls::Call| (call.writes() || call.reads()).then(|| call.written_range());
    if by_program && let Some(range) = Box::pin(calls::look(header.pid, moves)).await {
        fs.write_back.thread_writes(header.node, header.pid, range);
        Box::pin(fs.agree_to_move_data(header.node, &attrs)).await?;
    } else {
        fs.agree(header.pid, header.node, &attrs).await;
    }
    Ok(fs.attributes(header, &attrs))
}

impl FileSystem {
    /// The answer to a kernel that is about to read an open file from its pages ([`crate::abi::init::AUTO_INVAL_DATA`]), where this mount holds a delegation
    /// of it and does not write back: then nobody has to be asked, and the pages are good. A time at which this mount has written the kernel is not told here, as it would drop
    /// them; a program that asks for it is told, for which nothing said here is good for long.
    fn known_for_reading(&self, header: &Header, open: &OpenFile) -> Option<Reply> {
        let attrs = open.file.attrs();
        let told = self.nodes.told_time(header.node)?;
        let valid = if told == attrs.mtime { self.config.attrs_valid } else { Duration::ZERO };
        Some(crate::reply::attributes(&Attrs { mtime: told, ..attrs }, valid))
    }
}
