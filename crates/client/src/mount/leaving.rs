//! Deferred close: the CLOSEs of several files, and the DELEGRETURNs that go with them, share a round trip that nobody waits for.

use super::Inner;
use crate::Result;
use crate::compound::{Caller, Compound, Failed};
use crate::inode::{Delegation, append_return};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, Notify};
use types::limits::COMPOUND_OPS_MAX;
use wire::native::Nothing;
use wire::nfs4::*;

/// Most files that one COMPOUND closes: SEQUENCE, then PUTFH, DELEGRETURN and CLOSE for each.
const TOGETHER: usize = (COMPOUND_OPS_MAX as usize - 1) / 3;
/// How long the mgr may be left to think that a file is open. A file that is removed meanwhile is an orphan that goes with the CLOSE. A client that
/// wants the file does not wait: its recall has all of them closed at once.
const PATIENCE: Duration = Duration::from_millis(20);

/// How often a round trip that failed is tried.
const TRIES: u32 = 2;

/// An open that nobody uses any more and the mgr knows of.
pub(crate) struct Left {
    pub(crate) handle: Bytes,
    pub(crate) stateid: stateid4,
    /// The delegation that goes back with it.
    pub(crate) delegation: Option<stateid4>,
    pub(crate) caller: Caller,
}

/// Where a delegation is that a close gives back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Queued {
    /// No close gives it back.
    Nowhere,
    /// It waited, and does not go back any more.
    Kept,
    /// It is on its way, or will be though the file is open again.
    Sent,
}

/// Opens that are to be closed.
#[derive(Default)]
pub(crate) struct Leaving {
    queue: Mutex<Queue>,
    /// Held while some are being closed.
    closing: AsyncMutex<()>,
    /// Told when the mgr recalls a delegation that waits here.
    hurry: Notify,
}

#[derive(Default)]
struct Queue {
    left: VecDeque<Left>,
    /// Delegations that are on their way back.
    sent: BTreeSet<[u8; 12]>,
    /// Those that the mgr has recalled: they go back whatever is opened meanwhile, as the mgr was told so and does not ask again.
    recalled: BTreeSet<[u8; 12]>,
    /// Those that are back, with the number of opens that had been sent by then: the answer to one of them may give what is gone.
    gone: BTreeMap<[u8; 12], u64>,
    /// Whether a task will look for them.
    expected: bool,
}

impl Leaving {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Up to [`TOGETHER`] of one caller, the oldest first.
    fn some(&self) -> VecDeque<Left> {
        let mut queue = self.queue();
        let Some(first) = queue.left.front() else { return VecDeque::new() };
        let caller = first.caller.clone();
        let alike = queue.left.iter().take(TOGETHER).take_while(|left| left.caller == caller).count();
        let some: VecDeque<Left> = queue.left.drain(..alike).collect();
        queue.sent.extend(some.iter().filter_map(|left| left.delegation).map(|held| held.other));
        some
    }

    /// The mgr recalls a delegation: whether a close gives it back, which then happens at once.
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

    /// A delegation is on its way back, or about to be: an OPEN that is answered with it meanwhile does not have it.
    pub(crate) fn goes_back(&self, stateid: stateid4) {
        self.queue().sent.insert(stateid.other);
    }

    /// A delegation is back, or lost. So many opens were sent by now, and so many before the first that is not answered.
    pub(crate) fn is_gone(&self, other: [u8; 12], (asked, answered): (u64, u64)) {
        let mut queue = self.queue();
        queue.sent.remove(&other);
        queue.recalled.remove(&other);
        queue.gone.retain(|_, by| answered < *by);
        if answered < asked {
            queue.gone.insert(other, asked);
        }
    }

    /// The file is open again under this delegation, which stays if it is not on its way back. The caller holds the
    /// inode's delegation lock until it has stored the delegation: else another task may return it in between, and the file is written under a delegation
    /// that the mgr has back.
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
    /// Opens that are to be closed.
    pub(crate) fn leaving(&self) -> &Leaving {
        &self.inodes.leaving
    }

    /// Closes an open soon, together with others.
    pub(crate) fn leave(self: &Arc<Self>, left: Left) {
        {
            let mut queue = self.leaving().queue();
            if let Some(held) = left.delegation {
                // It waits here now, where an open may take it back.
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
            // What comes from now on is for another task.
            mount.leaving().queue().expected = false;
            mount.close_left().await;
        });
    }

    /// Returns when everything that was left before is closed, or cannot be.
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
                // It was tried for long already: most likely the mgr is gone, and with it whatever was open.
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

    /// Closes some of these in one round trip, one at least, and takes them off; none if that fails.
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
                        // The mgr has forgotten it, or taken it away: the rest was not carried out.
                        some.push_front(left);
                        if status == NFS4ERR_DELEG_REVOKED {
                            // As below: the mgr says so again if it does not hear of it now.
                            drop(self.session.free_stateid(held).await);
                        }
                        break;
                    }
                }
                found = returned;
            }
            match found.and_then(|_| results.raw::<stateid4>(OP_CLOSE)) {
                Ok(_) => continue,
                // Behind others it is not tried again by the session.
                Err(Failed::Nfs(NFS4ERR_DELAY | NFS4ERR_GRACE)) if done > 0 => some.push_front(left),
                // Taken away, which the mgr wants to be known; it says so again if it does not hear of it now.
                Err(Failed::Nfs(NFS4ERR_EXPIRED)) => drop(self.session.free_stateid(left.stateid).await),
                Err(failed) => tracing::debug!(?failed, "an open was gone before it was closed"),
            }
            // The rest was not carried out.
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
    fn an_open_takes_back_what_waits() {
        let leaving = Leaving::default();
        leaving.queue().left.push_back(left(delegation(1)));
        assert_eq!(leaving.take_back(delegation(2), &Delegation::None), Queued::Nowhere);
        assert_eq!(leaving.take_back(delegation(1), &Delegation::None), Queued::Kept);
        assert!(!leaving.recall(&delegation(1)), "the file that is open has it");
        assert!(leaving.some()[0].delegation.is_none());
    }

    #[test]
    fn what_was_recalled_while_it_waits_is_not_taken_back() {
        let leaving = Leaving::default();
        leaving.queue().left.push_back(left(delegation(1)));
        assert!(leaving.recall(&delegation(1)));
        assert_eq!(leaving.take_back(delegation(1), &Delegation::None), Queued::Sent, "the mgr does not ask again");
        assert_eq!(leaving.some()[0].delegation, Some(delegation(1)));
        leaving.is_gone([1; 12], (1, 1));
        assert_eq!(leaving.take_back(delegation(1), &Delegation::None), Queued::Nowhere);
    }

    #[test]
    fn what_a_close_is_about_to_leave_goes_back() {
        let leaving = Leaving::default();
        leaving.goes_back(delegation(1));
        assert_eq!(leaving.take_back(delegation(1), &Delegation::None), Queued::Sent);
        assert!(leaving.recall(&delegation(1)));
        leaving.queue().sent.clear();
        leaving.queue().left.push_back(left(delegation(1)));
        assert_eq!(leaving.take_back(delegation(1), &Delegation::None), Queued::Sent);
    }
}
