//! Requests that were given up and may still reach an iod: nothing may be built on top of them before that cannot be.

use super::{Inode, State};
use crate::Result;
use crate::drivers::NotDone;
use layout::kinds::native::Update;

impl Inode {
    /// Takes note of a change that was given up without an answer; the bytes can go another way once
    /// [`Inode::end_strays`] is done.
    pub(super) fn note_stray(&self, not_done: NotDone) -> NotDone {
        match not_done {
            NotDone::Unanswered(error) => {
                self.state().stray = true;
                NotDone::NotAttempted(error)
            }
            other => other,
        }
    }

    /// Returns when no request that was given up is carried out any more: it may wait in a connection that broke, and
    /// would put old bytes on top of newer ones, or behind a cut. The mgr makes worthless what layouts of the file allowed
    /// so far; the next direct request asks for a new one.
    pub(super) async fn end_strays(&self) -> Result<()> {
        let due = |state: &State| state.stray.then_some((None, Update { fence: true, ..Update::default() }));
        self.commit_layout("taking back requests that were given up", self.mount.options.retry_timeout, due).await
    }
}
