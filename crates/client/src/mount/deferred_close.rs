//! Deferred close: a background task sends the CLOSEs of several files, with their DELEGRETURNs, in one round trip.

use super::Inner;
use crate::Result;
use crate::compound::{Caller, Compound, Failed};
use crate::inode::{Delegation, append_return};
use crate::lock_order::{AsyncMutex, OrderedGuard, OrderedMutex, Rank};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use types::limits::COMPOUND_OPS_MAX;
use wire::native::Nothing;
use wire::nfs4::*;

/// Maximum number of files that one COMPOUND closes. The COMPOUND has one SEQUENCE, and three operations for each file:
/// PUTFH, DELEGRETURN and CLOSE.
const TOGETHER: usize = (COMPOUND_OPS_MAX as usize - 1) / 3;
/// How long the client defers a CLOSE. If a file is removed while its CLOSE is deferred, the mgr keeps the file as an
/// orphan until the CLOSE. Other clients need not wait for the CLOSE: the recall of a queued delegation makes the
/// client close all queued files at once.
const PATIENCE: Duration = Duration::from_millis(20);

/// How many times the client tries to send a COMPOUND of CLOSEs. After that, the client drops these CLOSEs.
const TRIES: u32 = 2;

/// An open file that the caller has closed, and for which the client has not yet sent the CLOSE to the mgr.
pub(crate) struct DeferredClose {
    pub(crate) handle: Bytes,
    pub(crate) stateid: stateid4,
    /// The delegation of the file, which the client returns in the same COMPOUND as the CLOSE.
    pub(crate) delegation: Option<stateid4>,
    pub(crate) caller: Caller,
}

/// What happens to a queued delegation when a program opens its file again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Queued {
    /// The delegation is not in the queue of deferred closes.
    Nowhere,
    /// The delegation was in the queue of deferred closes. It has been removed from the queue, so the client keeps the
    /// delegation.
    Kept,
    /// The client is returning the delegation, or must still return it, although a program has opened the file again.
    Sent,
}

/// Opens whose CLOSE is deferred.
pub(crate) struct DeferredCloses {
    queue: OrderedMutex<Queue>,
    /// Locked while a task sends the CLOSEs of queued opens.
    closing: AsyncMutex<()>,
    /// Notified when the mgr recalls a delegation in the queue.
    hurry: Notify,
}

#[derive(Default)]
struct Queue {
    left: VecDeque<DeferredClose>,
    /// Delegations that the client is returning, each identified by the `other` field of its stateid.
    sent: BTreeSet<[u8; 12]>,
    /// Recalled delegations. The client returns them even if a program opens the file again: the client has accepted
    /// the recall, so the mgr does not repeat the recall.
    recalled: BTreeSet<[u8; 12]>,
    /// Returned delegations, each with the number of OPENs that the client sent before the return. The reply to one of
    /// these OPENs may still grant the returned delegation.
    gone: BTreeMap<[u8; 12], u64>,
    /// Whether a background task is scheduled that will close the queued opens.
    expected: bool,
}

impl Default for DeferredCloses {
    fn default() -> Self {
        DeferredCloses {
            queue: OrderedMutex::new(Rank::DeferredCloses, Queue::default()),
            closing: AsyncMutex::new(Rank::CloseDeferred, ()),
            hurry: Notify::new(),
        }
    }
}

impl DeferredCloses {
    fn queue(&self) -> OrderedGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Removes up to [`TOGETHER`] opens of one caller from the queue, the oldest first.
    fn some(&self) -> VecDeque<DeferredClose> {
        let mut queue = self.queue();
        let Some(first) = queue.left.front() else { return VecDeque::new() };
        let caller = first.caller.clone();
        let alike = queue.left.iter().take(TOGETHER).take_while(|left| left.caller == caller).count();
        let some: VecDeque<DeferredClose> = queue.left.drain(..alike).collect();
        queue.sent.extend(some.iter().filter_map(|left| left.delegation).map(|held| held.other));
        some
    }

    /// Handles a recall of a delegation. If the delegation is in the queue, makes the client return the delegation at
    /// once. Returns true if the delegation is in the queue, or if the client is already returning it.
    pub(crate) fn recall(&self, stateid: &stateid4) -> bool {
        let mut queue = self.queue();
        let is_this = |left: &DeferredClose| left.delegation.is_some_and(|held| held.other == stateid.other);
        let waits = queue.left.iter().any(is_this);
        let is_returned = waits || queue.sent.contains(&stateid.other);
        if is_returned {
            queue.recalled.insert(stateid.other);
        }
        if waits {
            self.hurry.notify_one();
        }
        is_returned
    }

    /// Records that the client is returning a delegation. If the reply to an OPEN grants this delegation later, the
    /// client does not use it.
    pub(crate) fn begin_return(&self, stateid: stateid4) {
        self.queue().sent.insert(stateid.other);
    }

    /// Records that the client has returned or lost a delegation. `asked` is the number of OPENs that the client has
    /// sent so far. `answered` is the sequence number of the oldest unanswered OPEN.
    pub(crate) fn returned(&self, other: [u8; 12], (asked, answered): (u64, u64)) {
        let mut queue = self.queue();
        queue.sent.remove(&other);
        queue.recalled.remove(&other);
        queue.gone.retain(|_, by| answered < *by);
        if answered < asked {
            queue.gone.insert(other, asked);
        }
    }

    /// Removes a delegation from the queue because the file is open again, unless the client is already returning the
    /// delegation. The caller holds the lock of the inode's delegation until it has stored the delegation. Without this
    /// lock, another task could return the delegation first, and the client would write the file without a valid
    /// delegation.
    pub(crate) fn keep_queued(&self, stateid: stateid4, _locked: &Delegation) -> Queued {
        let mut queue = self.queue();
        let other = &stateid.other;
        if queue.sent.contains(other) || queue.recalled.contains(other) || queue.gone.contains_key(other) {
            return Queued::Sent;
        }
        let mut waiting = queue.left.iter_mut().map(|left| &mut left.delegation);
        let found = waiting.find_map(|held| held.take_if(|held| held.other == stateid.other));
        if found.is_some() { Queued::Kept } else { Queued::Nowhere }
    }
}

impl Inner {
    /// Returns the opens whose CLOSE is deferred.
    pub(crate) fn deferred_closes(&self) -> &DeferredCloses {
        &self.inodes.deferred_closes
    }

    /// Queues an open. A background task later sends the CLOSE of this open together with the CLOSEs of other queued
    /// opens.
    pub(crate) fn defer_close(self: &Arc<Self>, left: DeferredClose) {
        {
            let mut queue = self.deferred_closes().queue();
            if let Some(held) = left.delegation {
                // The delegation is now in the queue. If a program opens the file again, the client may remove the
                // delegation from the queue and keep it instead of returning it.
                queue.sent.remove(&held.other);
            }
            let recalled = left.delegation.is_some_and(|held| queue.recalled.contains(&held.other));
            queue.left.push_back(left);
            if recalled {
                self.deferred_closes().hurry.notify_one();
            }
            if std::mem::replace(&mut queue.expected, true) {
                return;
            }
        }
        let mount = self.clone();
        net::task::spawn_on(&self.runtime, async move {
            tokio::select! {
                () = tokio::time::sleep(PATIENCE) => {}
                () = mount.deferred_closes().hurry.notified() => {}
            }
            // This task may miss opens that are queued after this line, so the next queued open starts a new task.
            mount.deferred_closes().queue().expected = false;
            mount.close_deferred().await;
        });
    }

    /// Sends the CLOSEs of all queued opens. Returns when the mgr has executed the CLOSEs, or after the client has
    /// given up.
    pub(crate) async fn close_deferred(&self) {
        let _closing = self.deferred_closes().closing.lock().await;
        loop {
            let mut some = self.deferred_closes().some();
            if some.is_empty() {
                return;
            }
            let mut failures = 0;
            while !some.is_empty() {
                let Err(error) = self.close_some(&mut some).await else { continue };
                tracing::debug!(files = some.len(), "closing files: {error}");
                // The session has already retried for `retry_timeout`. Most likely the mgr is down and will not
                // remember the opens after its restart. So give up after [`TRIES`] failed COMPOUNDs.
                failures += 1;
                if failures == TRIES {
                    break;
                }
            }
            for held in some.iter().filter_map(|left| left.delegation) {
                self.deferred_closes().returned(held.other, self.opens_asked());
            }
        }
    }

    /// Closes as many opens in the list `some` as one round trip allows, at least one, and removes the closed opens
    /// from the list. After an error, the list is unchanged.
    async fn close_some(&self, some: &mut VecDeque<DeferredClose>) -> Result<()> {
        let Some(first) = some.front() else { return Ok(()) };
        let mut compound = Compound::new("closing files").by(&first.caller).cached();
        for left in &*some {
            let args = CLOSE4args { seqid: 0, open_stateid: left.stateid };
            compound.putfh(&left.handle);
            if let Some(held) = left.delegation {
                append_return(&mut compound, held);
            }
            compound.op(OP_CLOSE, &args);
        }
        let mut results = self.session.call(compound).await?;
        for done in 0.. {
            let Some(mut left) = some.pop_front() else { break };
            let mut found = results.raw::<Nothing>(OP_PUTFH);
            if found.is_ok()
                && let Some(held) = left.delegation
            {
                let returned = results.raw::<Nothing>(OP_DELEGRETURN);
                if !matches!(returned, Err(Failed::Nfs(NFS4ERR_DELAY | NFS4ERR_GRACE))) {
                    left.delegation = None;
                    self.deferred_closes().returned(held.other, self.opens_asked());
                    if let Err(Failed::Nfs(status)) = returned {
                        // DELEGRETURN failed, because the mgr does not know the delegation or has revoked it. So the
                        // mgr did not execute the CLOSE and the operations after it. The next COMPOUND contains these
                        // operations.
                        some.push_front(left);
                        if status == NFS4ERR_DELEG_REVOKED {
                            // The mgr reports a revoked delegation in every reply until FREE_STATEID acknowledges the
                            // revocation.
                            drop(self.session.free_stateid(held).await);
                        }
                        break;
                    }
                }
                found = returned;
            }
            match found.and_then(|_| results.raw::<stateid4>(OP_CLOSE)) {
                Ok(_) => continue,
                // The mgr asked the client to repeat this CLOSE later. The session itself repeats a COMPOUND only if
                // the mgr asks this for the first operation. So put the open back for the next COMPOUND.
                Err(Failed::Nfs(NFS4ERR_DELAY | NFS4ERR_GRACE)) if done > 0 => some.push_front(left),
                // The mgr has revoked the open. FREE_STATEID acknowledges the revocation. If FREE_STATEID fails, the
                // mgr reports the revocation again later.
                Err(Failed::Nfs(NFS4ERR_EXPIRED)) => drop(self.session.free_stateid(left.stateid).await),
                Err(failed) => tracing::debug!(?failed, "the mgr had forgotten an open before CLOSE"),
            }
            // The mgr did not execute the operations after the failed operation. The next COMPOUND contains these
            // operations.
            break;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(delegation: stateid4) -> DeferredClose {
        let (handle, stateid, caller) = (Bytes::new(), stateid4::default(), Caller::default());
        DeferredClose { handle, stateid, delegation: Some(delegation), caller }
    }

    fn delegation(number: u8) -> stateid4 {
        stateid4 { seqid: 1, other: [number; 12] }
    }

    #[test]
    fn an_open_takes_back_a_queued_delegation() {
        let deferred_closes = DeferredCloses::default();
        deferred_closes.queue().left.push_back(left(delegation(1)));
        assert_eq!(deferred_closes.keep_queued(delegation(2), &Delegation::None), Queued::Nowhere);
        assert_eq!(deferred_closes.keep_queued(delegation(1), &Delegation::None), Queued::Kept);
        assert!(!deferred_closes.recall(&delegation(1)), "the open file has the delegation");
        assert!(deferred_closes.some()[0].delegation.is_none());
    }

    #[test]
    fn a_delegation_recalled_while_queued_is_not_taken_back() {
        let deferred_closes = DeferredCloses::default();
        deferred_closes.queue().left.push_back(left(delegation(1)));
        assert!(deferred_closes.recall(&delegation(1)));
        assert_eq!(
            deferred_closes.keep_queued(delegation(1), &Delegation::None),
            Queued::Sent,
            "the mgr does not repeat the recall"
        );
        assert_eq!(deferred_closes.some()[0].delegation, Some(delegation(1)));
        deferred_closes.returned([1; 12], (1, 1));
        assert_eq!(deferred_closes.keep_queued(delegation(1), &Delegation::None), Queued::Nowhere);
    }

    #[test]
    fn a_delegation_that_a_close_is_about_to_queue_is_returned() {
        let deferred_closes = DeferredCloses::default();
        deferred_closes.begin_return(delegation(1));
        assert_eq!(deferred_closes.keep_queued(delegation(1), &Delegation::None), Queued::Sent);
        assert!(deferred_closes.recall(&delegation(1)));
        deferred_closes.queue().sent.clear();
        deferred_closes.queue().left.push_back(left(delegation(1)));
        assert_eq!(deferred_closes.keep_queued(delegation(1), &Delegation::None), Queued::Sent);
    }
}
