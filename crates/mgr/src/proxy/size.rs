//! What the objects tell of the size of their file.

use super::Objects;
use crate::iods::Asked;
use futures_util::future;
use meta::schema::{Holes, Reach};
use types::{Status, leaves_hole};
use wire::native::{ObjectArgs, Procedure, Rights, SizeReply};

/// How far the objects of a file reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    /// One past the last byte of the file that any object is known to hold.
    pub(crate) reached: u64,
    /// Whether every iod has answered: else the file may be longer.
    pub(crate) complete: bool,
    /// How many bytes of storage one copy takes, in whole; unknown while an iod does not answer.
    pub(crate) allocated: Option<u64>,
    /// Whether clients have changed bytes of which nobody has told.
    pub(crate) changed: bool,
}

impl Objects<'_> {
    /// Size and room of one object, or why its iod does not tell.
    pub(crate) async fn ask_size(&self, index: usize) -> Result<SizeReply, Asked> {
        let link = self.link(index).map_err(|_| Asked::Away)?;
        let arguments = ObjectArgs { cap: self.capability(&link, Rights::READ) };
        link.ask(Procedure::Size, &arguments).await
    }

    /// How far the objects reach, as far as their iods can be asked.
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
        // What any copy has may have been written.
        let copies = |column| self.copies(column).filter_map(|index| answers[index].as_ref());
        let longest = |column| copies(column).map(|reply: &SizeReply| reply.size).max().unwrap_or(0);
        let taken = |column| copies(column).map(|reply| reply.allocated).max();
        let allocated = (0..self.distribution.count()).map(taken).sum();
        let sizes: Vec<u64> = (0..self.distribution.count()).map(longest).collect();
        let reached = self.distribution.file_size(&sizes).min(types::limits::FILE_SIZE_MAX);
        End { reached, complete, allocated, changed }
    }

    /// How far the object on this iod alone makes the file reach, and whether it has a hole; 0 when the file has none there.
    pub(crate) async fn end_at(&self, number: u16) -> Result<Reach, Status> {
        let Some(index) = self.record.iods.iter().position(|iod| *iod == number) else { return Ok(0.into()) };
        let link = self.link(index)?;
        let reply: SizeReply = self.ask(&link, Procedure::Size, Rights::READ, |cap| ObjectArgs { cap }).await?;
        let mut sizes = vec![0; self.distribution.count()];
        sizes[self.column(index)] = reply.size;
        let end = self.distribution.file_size(&sizes).min(types::limits::FILE_SIZE_MAX);
        // Less than the whole blocks of its bytes, whatever the iod keeps besides.
        let holes = if leaves_hole(reply.allocated, reply.size) { Holes::Made } else { Holes::Keep };
        Ok(Reach { end, holes, whole: None })
    }
}
