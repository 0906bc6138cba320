//! Abandoned requests, which may still reach an iod: the client makes them harmless before it builds on later ones.

use super::{Inode, State};
use crate::Result;
use crate::drivers::NotDone;
use layout::kinds::native::Update;

impl Inode {
    /// Records a change that was abandoned without an answer. The bytes can take another path once
    /// [`Inode::end_strays`] is done.
    pub(super) fn note_stray(&self, not_done: NotDone) -> NotDone {
        match not_done {
            NotDone::Unanswered(error) => {
                self.state().abandoned = true;
                NotDone::NotAttempted(error)
            }
            other => other,
        }
    }

    /// Returns when no abandoned request can be executed any more. Such a request may wait in a broken connection, and
    /// would overwrite newer bytes with old ones, or write beyond a truncate. The mgr fences the file's earlier
    /// layouts; the next direct request asks for a new one.
    pub(super) async fn end_strays(&self) -> Result<()> {
        let due = |state: &State| state.abandoned.then_some((None, Update { fence: true, ..Update::default() }));
        self.commit_layout("taking back requests that were given up", self.mount.options.retry_timeout, due).await
    }
}
