//! Deferred close: the CLOSEs of several files, and the DELEGRETURNs that go with them, share a round trip in the
//! background.

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

/// Maximum number of files that one COMPOUND closes: SEQUENCE, then PUTFH, DELEGRETURN and CLOSE for each.
const TOGETHER: usize = (COMPOUND_OPS_MAX as usize - 1) / 3;
/// How long the CLOSE of a file may be deferred. A file that is removed in this time stays an orphan until the CLOSE.
/// Another client that wants the file does not wait: the recall of its delegation closes all of them at once.
const PATIENCE: Duration = Duration::from_millis(20);

/// How often a failed round trip is tried.
const TRIES: u32 = 2;

/// An open that is no longer used, but that the mgr still knows.
pub(crate) struct Left {
    pub(crate) handle: Bytes,
    pub(crate) stateid: stateid4,
    /// The delegation to return with the CLOSE.
    pub(crate) delegation: Option<stateid4>,
    pub(crate) caller: Caller,
}

/// The state of a delegation that a close returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Queued {
    /// No close returns the delegation.
    Nowhere,
    /// The delegation was queued, and the client no longer returns it.
    Kept,
    /// The client is returning the delegation, or will return it although the file is open again.
    Sent,
}

/// Opens whose CLOSE is deferred.
pub(crate) struct DeferredCloses {
    queue: OrderedMutex<Queue>,
    /// Held while some opens are being closed.
    closing: AsyncMutex<()>,
    /// Notified when the mgr recalls a queued delegation.
    hurry: Notify,
}

#[derive(Default)]
struct Queue {
    left: VecDeque<Left>,
    /// Delegations that are being returned.
    sent: BTreeSet<[u8; 12]>,
    /// Recalled delegations. They are returned even if the file is opened again, because the client has accepted the
    /// recall and the mgr does not repeat it.
    recalled: BTreeSet<[u8; 12]>,
    /// Returned delegations, with the number of OPENs sent by then: the answer to one of them may still grant the
    /// returned delegation.
    gone: BTreeMap<[u8; 12], u64>,
    /// Whether a task is scheduled to close the queued opens.
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

    /// Takes up to [`TOGETHER`] opens of one caller, the oldest first.
    fn some(&self) -> VecDeque<Left> {
        let mut queue = self.queue();
        let Some(first) = queue.left.front() else { return VecDeque::new() };
        let caller = first.caller.clone();
        let alike = queue.left.iter().take(TOGETHER).take_while(|left| left.caller == caller).count();
        let some: VecDeque<Left> = queue.left.drain(..alike).collect();
        queue.sent.extend(some.iter().filter_map(|left| left.delegation).map(|held| held.other));
        some
    }

    /// Handles a recall; returns whether a close returns the delegation, which then happens at once.
    pub(crate) fn recall(&self, stateid: &stateid4) -> bool {
        let mut queue = self.queue();
        let is_this = |left: &Left| left.delegation.is_some_and(|held| held.other == stateid.other);
        let waits = queue.left.iter().any(is_this);
        let goes_back = waits || queue.sent.contains(&stateid.other);
        if goes_back {
            queue.recalled.insert(stateid.other);
        }
        if waits {
            self.hurry.notify_one();
        }
        goes_back
    }

    /// Records that a delegation is being returned or is about to be: an OPEN whose answer grants it does not have it.
    pub(crate) fn goes_back(&self, stateid: stateid4) {
        self.queue().sent.insert(stateid.other);
    }

    /// Records that a delegation is returned or lost. `asked` OPENs were sent by now, and `answered` before the first
    /// unanswered one.
    pub(crate) fn is_gone(&self, other: [u8; 12], (asked, answered): (u64, u64)) {
        let mut queue = self.queue();
        queue.sent.remove(&other);
        queue.recalled.remove(&other);
        queue.gone.retain(|_, by| answered < *by);
        if answered < asked {
            queue.gone.insert(other, asked);
        }
    }

    /// Takes back the delegation of a file that is open again, unless it is being returned. The caller holds the
    /// inode's delegation lock until it has stored the delegation. Otherwise another task might return the delegation
    /// in between, and the file would be written under a returned delegation.
    pub(crate) fn take_back(&self, stateid: stateid4, _locked: &Delegation) -> Queued {
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
    pub(crate) fn leaving(&self) -> &DeferredCloses {
        &self.inodes.leaving
    }

    /// Closes an open soon, together with other opens.
    pub(crate) fn leave(self: &Arc<Self>, left: Left) {
        {
            let mut queue = self.leaving().queue();
            if let Some(held) = left.delegation {
                // From now on the delegation is queued, and an open may take it back.
                queue.sent.remove(&held.other);
            }
            let recalled = left.delegation.is_some_and(|held| queue.recalled.contains(&held.other));
            queue.left.push_back(left);
            if recalled {
                self.leaving().hurry.notify_one();
            }
            if std::mem::replace(&mut queue.expected, true) {
                return;
            }
        }
        let mount = self.clone();
        net::task::spawn_on(&self.runtime, async move {
            tokio::select! {
                () = tokio::time::sleep(PATIENCE) => {}
                () = mount.leaving().hurry.notified() => {}
            }
            // Later opens are left to another task.
            mount.leaving().queue().expected = false;
            mount.close_left().await;
        });
    }

    /// Returns when every open that was queued before is closed, or cannot be.
    pub(crate) async fn close_left(&self) {
        let _closing = self.leaving().closing.lock().await;
        loop {
            let mut some = self.leaving().some();
            if some.is_empty() {
                return;
            }
            let mut failures = 0;
            while !some.is_empty() {
                let Err(error) = self.close_some(&mut some).await else { continue };
                tracing::debug!(files = some.len(), "closing files: {error}");
                // The session has already retried for long: most likely the mgr is gone, and with it all opens.
                failures += 1;
                if failures == TRIES {
                    break;
                }
            }
            for held in some.iter().filter_map(|left| left.delegation) {
                self.leaving().is_gone(held.other, self.opens_asked());
            }
        }
    }

    /// Closes opens in one round trip, at least one, and removes them from `some`; removes none on failure.
    async fn close_some(&self, some: &mut VecDeque<Left>) -> Result<()> {
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
                    self.leaving().is_gone(held.other, self.opens_asked());
                    if let Err(Failed::Nfs(status)) = returned {
                        // The mgr has forgotten or revoked the delegation, and did not execute the remaining
                        // operations.
                        some.push_front(left);
                        if status == NFS4ERR_DELEG_REVOKED {
                            // The mgr reports the revoked delegation until FREE_STATEID acknowledges the revocation.
                            drop(self.session.free_stateid(held).await);
                        }
                        break;
                    }
                }
                found = returned;
            }
            match found.and_then(|_| results.raw::<stateid4>(OP_CLOSE)) {
                Ok(_) => continue,
                // After other operations the session does not retry the request.
                Err(Failed::Nfs(NFS4ERR_DELAY | NFS4ERR_GRACE)) if done > 0 => some.push_front(left),
                // The mgr has revoked the open. FREE_STATEID acknowledges the revocation. If FREE_STATEID fails, the
                // mgr reports the revocation again.
                Err(Failed::Nfs(NFS4ERR_EXPIRED)) => drop(self.session.free_stateid(left.stateid).await),
                Err(failed) => tracing::debug!(?failed, "the mgr had forgotten an open before CLOSE"),
            }
            // The mgr did not execute the remaining operations.
            break;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(delegation: stateid4) -> Left {
        let (handle, stateid, caller) = (Bytes::new(), stateid4::default(), Caller::default());
        Left { handle, stateid, delegation: Some(delegation), caller }
    }

    fn delegation(number: u8) -> stateid4 {
        stateid4 { seqid: 1, other: [number; 12] }
    }

    #[test]
    fn an_open_takes_back_a_queued_delegation() {
        let leaving = DeferredCloses::default();
        leaving.queue().left.push_back(left(delegation(1)));
        assert_eq!(leaving.take_back(delegation(2), &Delegation::None), Queued::Nowhere);
        assert_eq!(leaving.take_back(delegation(1), &Delegation::None), Queued::Kept);
        assert!(!leaving.recall(&delegation(1)), "the open file has the delegation");
        assert!(leaving.some()[0].delegation.is_none());
    }

    #[test]
    fn a_delegation_recalled_while_queued_is_not_taken_back() {
        let leaving = DeferredCloses::default();
        leaving.queue().left.push_back(left(delegation(1)));
        assert!(leaving.recall(&delegation(1)));
        assert_eq!(
            leaving.take_back(delegation(1), &Delegation::None),
            Queued::Sent,
            "the mgr does not repeat the recall"
        );
        assert_eq!(leaving.some()[0].delegation, Some(delegation(1)));
        leaving.is_gone([1; 12], (1, 1));
        assert_eq!(leaving.take_back(delegation(1), &Delegation::None), Queued::Nowhere);
    }

    #[test]
    fn a_delegation_that_a_close_is_about_to_queue_is_returned() {
        let leaving = DeferredCloses::default();
        leaving.goes_back(delegation(1));
        assert_eq!(leaving.take_back(delegation(1), &Delegation::None), Queued::Sent);
        assert!(leaving.recall(&delegation(1)));
        leaving.queue().sent.clear();
        leaving.queue().left.push_back(left(delegation(1)));
        assert_eq!(leaving.take_back(delegation(1), &Delegation::None), Queued::Sent);
    }
}
