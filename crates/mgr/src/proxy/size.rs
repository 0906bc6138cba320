//! Size and allocated space of a file, as its iods report them for its objects.

use super::Objects;
use crate::iods::RequestError;
use crate::kinds::Stored;
use futures_util::future;
use meta::schema::{Holes, WriteEnd};
use types::{Status, leaves_hole};
use wire::native::{ObjectArgs, Procedure, Rights, SizeReply};

/// The end of a file according to its objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    /// File offset after the last byte that any object is known to hold.
    pub(crate) reached: u64,
    /// Whether every iod of the file has replied. If not, the file may be longer than this end.
    pub(crate) complete: bool,
    /// Allocated space of one copy of the file, in bytes; `None` if an iod of the file has not replied.
    pub(crate) allocated: Option<u64>,
    /// Whether clients have changed bytes without a report to the mgr, according to the iods.
    pub(crate) changed: bool,
}

impl Objects<'_> {
    /// Queries the iod of one object for the size and the allocated space of the object. On failure, returns why the
    /// iod does not reply.
    pub(crate) async fn ask_size(&self, index: usize) -> Result<SizeReply, RequestError> {
        let link = self.link(index).map_err(|_| RequestError::Down)?;
        let arguments = ObjectArgs { cap: self.capability(&link, Rights::READ) };
        link.ask(Procedure::Size, &arguments).await
    }

    /// Returns the end of the file according to its objects on the iods that reply.
    pub(crate) async fn end(&self) -> End {
        let ask = |index| async move {
            let link = self.link(index)?;
            let reply: SizeReply = self.ask(&link, Procedure::Size, Rights::READ, |cap| ObjectArgs { cap }).await?;
            Ok::<_, Status>(reply)
        };
        let answers = future::join_all((0..self.count()).map(ask)).await;
        let complete = answers.iter().all(Result::is_ok);
        let answers: Vec<Option<SizeReply>> = answers.into_iter().map(Result::ok).collect();
        let changed = answers.iter().flatten().any(|reply| reply.changed);
        // Only one copy may have the bytes of an unstable write, so use the size of the longest copy of each object.
        let copies = |column| self.copies(column).filter_map(|index| answers[index].as_ref());
        let longest = |column| copies(column).map(|reply: &SizeReply| reply.size).max().unwrap_or(0);
        let taken = |column| copies(column).map(|reply| reply.allocated).max();
        let allocated = (0..self.distribution.count()).map(taken).sum();
        let sizes: Vec<u64> = (0..self.distribution.count()).map(longest).collect();
        let reached = self.distribution.file_size(&sizes).min(types::limits::FILE_SIZE_MAX);
        End { reached, complete, allocated, changed }
    }

    /// Returns the end of the file according to the object on the iod `number`, and whether this object has a hole. The
    /// end is 0 if this iod has no object of the file.
    pub(crate) async fn end_at(&self, number: u16) -> Result<WriteEnd, Status> {
        let Some(index) = self.index_on(number) else { return Ok(0.into()) };
        let link = self.link(index)?;
        let reply: SizeReply = self.ask(&link, Procedure::Size, Rights::READ, |cap| ObjectArgs { cap }).await?;
        let mut sizes = vec![0; self.distribution.count()];
        sizes[self.column(index)] = reply.size;
        let end = self.distribution.file_size(&sizes).min(types::limits::FILE_SIZE_MAX);
        // An object without holes has at least as much allocated space as it has bytes. The allocated space may be
        // larger, because it includes the object's checksums.
        let holes = if leaves_hole(reply.allocated, reply.size) { Holes::Made } else { Holes::Keep };
        Ok(WriteEnd { end, holes, whole: None })
    }
}
