//! Callbacks that a separate task sends: delegation recalls, and notifications of free locks and of new file sizes.

use super::callbacks::Callbacks;
use super::{Server, counters, lock};
use crate::fs::FileSystem;
use crate::state::ClientId;
use crate::state::delegations::DelegationRecall;
use bytes::Bytes;
use futures_channel::oneshot;
use futures_util::future;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::VecDeque;
use std::task::{Poll, Waker};
use std::time::Duration;
use types::FileId;
use wire::nfs4::*;

/// Largest number of callbacks from the queue that are in flight (sent, but not answered yet). Unresponsive clients
/// delay callbacks to other clients only if this number of callbacks to unresponsive clients is in flight.
const AT_ONCE: usize = 256;
/// The pause before the server repeats a CB_RECALL that the client did not answer or answered with an error.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// A callback that waits in the queue.
#[derive(Debug)]
pub(super) enum Notice {
    /// CB_RECALL. The server repeats the callback until the client answers NFS4_OK or the delegation is no longer
    /// recalled.
    Recall(DelegationRecall),
    /// CB_NOTIFY_LOCK. The server sends this callback only once, because a client that misses the callback retries the
    /// lock by itself.
    LockFree {
        /// The client that receives the callback.
        client: ClientId,
        /// The file of the lock.
        file: FileId,
        /// The lock-owner that waits for the lock.
        owner: Bytes,
    },
    /// CB_NOTIFY without changes, which is Weir's own message: another client has set the size of a file that this
    /// client has open. The server sends this callback only once.
    Resized {
        /// The client that receives the callback.
        client: ClientId,
        /// The file with a new size.
        file: FileId,
        /// The server drops this sender when the callback ends, with or without a reply. The request that set the size
        /// then continues.
        answered: oneshot::Sender<()>,
    },
}

/// The queue of callbacks that the server has not sent yet, oldest first.
#[derive(Debug, Default)]
pub(super) struct Notices {
    queue: VecDeque<Notice>,
    /// The waker of the task that sends the callbacks ([`Server::deliver`]).
    teller: Option<Waker>,
}

impl<F: FileSystem, C: Callbacks> Server<F, C> {
    /// Appends callbacks to the queue, and wakes the task that sends them.
    pub(super) fn notify(&self, notices: impl IntoIterator<Item = Notice>) {
        let teller = {
            let mut all = lock(&self.notices);
            let before = all.queue.len();
            all.queue.extend(notices);
            if all.queue.len() > before { all.teller.take() } else { None }
        };
        teller.into_iter().for_each(Waker::wake);
    }

    /// Sends the queued callbacks; never returns. The caller runs one task with this function, concurrently with the
    /// requests.
    pub async fn deliver(&self) {
        let mut sending = FuturesUnordered::new();
        future::poll_fn(|task| {
            loop {
                {
                    let mut all = lock(&self.notices);
                    all.teller = Some(task.waker().clone());
                    while sending.len() < AT_ONCE
                        && let Some(notice) = all.queue.pop_front()
                    {
                        sending.push(self.tell(notice));
                    }
                }
                if !matches!(sending.poll_next_unpin(task), Poll::Ready(Some(()))) {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    async fn tell(&self, notice: Notice) {
        match notice {
            Notice::Recall(recall) => self.tell_recall(recall).await,
            Notice::LockFree { client, file, owner } => {
                let arguments = CB_NOTIFY_LOCK4args {
                    cnla_fh: self.handle_for(client.0, file),
                    cnla_lock_owner: state_owner4 { clientid: client.0, owner },
                };
                self.call_back(client, OP_CB_NOTIFY_LOCK, &arguments).await;
            }
            Notice::Resized { client, file, answered } => {
                let cna_fh = self.handle_for(client.0, file);
                let arguments = CB_NOTIFY4args { cna_fh, ..CB_NOTIFY4args::default() };
                self.call_back(client, OP_CB_NOTIFY, &arguments).await;
                drop(answered);
            }
        }
    }

    /// Sends CB_RECALL until the client answers NFS4_OK or the delegation is no longer recalled. BAD_STATEID does not
    /// end the recall, because the client may not have received the reply that granted the delegation (RFC 8881
    /// §2.10.6.3).
    async fn tell_recall(&self, recall: DelegationRecall) {
        let fh = self.handle_for(recall.client.0, recall.file);
        let arguments = CB_RECALL4args { stateid: recall.stateid, truncate: false, fh };
        while lock(&self.state).is_recalled(&recall) {
            counters::add(&self.counters.recalls, 1);
            let answered = self.call_back(recall.client, OP_CB_RECALL, &arguments).await;
            if answered.is_some_and(|answered| answered.status == NFS4_OK) {
                return;
            }
            self.callbacks.pause(ASK_AGAIN).await;
        }
    }
}
