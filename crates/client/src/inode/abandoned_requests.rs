//! Abandoned write requests, which got no reply and may still reach an iod: the client has the mgr fence them before it
//! relies on later writes.

use super::{Inode, State};
use crate::Result;
use crate::drivers::NotDone;
use layout::kinds::native::Update;

impl Inode {
    /// If `not_done` says that an iod did not reply to a request that changes the file, records that the client
    /// abandons this request. After [`Inode::end_strays`], the client may send the bytes of the request on the mgr
    /// path.
    pub(super) fn note_stray(&self, not_done: NotDone) -> NotDone {
        match not_done {
            NotDone::Unanswered(error) => {
                self.state().abandoned = true;
                NotDone::NotAttempted(error)
            }
            other => other,
        }
    }

    /// Waits until no abandoned request can be executed any more: the mgr fences the file's earlier layouts. Without
    /// the fence, an abandoned request that is still in the network could later overwrite newer bytes, or write beyond
    /// a truncate. The client requests a new layout before its next request on the direct path.
    pub(super) async fn end_strays(&self) -> Result<()> {
        let due = |state: &State| state.abandoned.then_some((None, Update { fence: true, ..Update::default() }));
        self.commit_layout("taking back requests that were given up", self.mount.options.retry_timeout, due).await
    }
}
