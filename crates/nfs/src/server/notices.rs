//! Callbacks to clients that run beside the requests: recalls of delegations, and notifications of free locks and of new
//! file sizes.

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

/// Number of callbacks in flight; clients that do not answer delay other callbacks only beyond that number.
const AT_ONCE: usize = 256;
/// The pause before the server repeats a recall to a client that could not be reached or did not understand it.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// A callback to send.
#[derive(Debug)]
pub(super) enum Notice {
    /// CB_RECALL, repeated until the client answers or the delegation is gone.
    Recall(DelegationRecall),
    /// CB_NOTIFY_LOCK, sent once: a client that does not receive it retries the lock by itself.
    LockFree {
        /// The client that receives it.
        client: ClientId,
        /// The file.
        file: FileId,
        /// The lock-owner that waits.
        owner: Bytes,
    },
    /// CB_NOTIFY that lists no changes, sent once to one of Weir's clients: the size of a file that it has open was set.
    Resized {
        /// The client that receives it.
        client: ClientId,
        /// The file.
        file: FileId,
        /// Dropped when the client has answered, or does not answer.
        answered: oneshot::Sender<()>,
    },
}

/// Callbacks to send, oldest first. There is at most one for each delegation and each awaited lock.
#[derive(Debug, Default)]
pub(super) struct Notices {
    queue: VecDeque<Notice>,
    /// The task that sends them.
    teller: Option<Waker>,
}

impl<F: FileSystem, C: Callbacks> Server<F, C> {
    /// Queues callbacks.
    pub(super) fn notify(&self, notices: impl IntoIterator<Item = Notice>) {
        let teller = {
            let mut all = lock(&self.notices);
            let before = all.queue.len();
            all.queue.extend(notices);
            if all.queue.len() > before { all.teller.take() } else { None }
        };
        teller.into_iter().for_each(Waker::wake);
    }

    /// Sends queued callbacks forever. Run it once, beside the requests.
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

    /// Sends a recall until the client has understood it or the delegation is no longer recalled. A client that does
    /// not know the delegation may not have seen the reply that granted it (RFC 8881 §2.10.6.3).
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
