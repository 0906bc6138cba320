//! Notifications to Weir's clients: another client has set the size of a file that they have open.

use super::callbacks::Callbacks;
use super::compound::Compound;
use super::delegations::PATIENCE;
use super::notices::Notice;
use crate::fs::FileSystem;
use crate::state::ClientId;
use futures_channel::oneshot;
use futures_util::future::{self, FutureExt};
use std::collections::BTreeSet;
use std::pin::pin;
use types::FileId;

impl<F: FileSystem, C: Callbacks> Compound<'_, F, C> {
    /// Notifies all other Weir clients with an open of the file about the new file size, and waits at most [`PATIENCE`]
    /// for their replies. The kernel of such a client may have the old size cached, and ignores sizes in FUSE replies.
    /// So the client first corrects the size in its kernel's cache, and then replies to the callback.
    pub(super) async fn announce_size(&self, file: FileId) {
        let clients = self.state(|state| state.own_clients_beside(self.client(), file));
        if clients.is_empty() {
            return;
        }
        let mut answers = Vec::new();
        self.server.notify(clients.into_iter().map(|client| {
            let (answered, answer) = oneshot::channel();
            answers.push(answer);
            Notice::Resized { client, file, answered }
        }));
        let answers = pin!(future::join_all(answers).map(drop));
        let pause = pin!(self.server.callbacks.pause(PATIENCE));
        future::select(answers, pause).await;
    }
}

impl crate::state::State {
    /// Returns the Weir clients other than `client` that have the file open and a usable backchannel.
    fn own_clients_beside(&self, client: ClientId, file: FileId) -> BTreeSet<ClientId> {
        let others = self.openers_beside(client, file);
        others.filter(|other| self.is_own(*other) && self.is_callable(*other)).collect()
    }
}
