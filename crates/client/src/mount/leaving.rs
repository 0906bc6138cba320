//! Closing that nobody waits for: the CLOSEs of several files share a round trip.

use super::Inner;
use crate::Result;
use crate::compound::{Caller, Compound, Failed};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Mutex as AsyncMutex;
use types::limits::COMPOUND_OPS_MAX;
use wire::nfs4::*;

/// Most files that one COMPOUND closes: SEQUENCE, then PUTFH and CLOSE for each.
const TOGETHER: usize = (COMPOUND_OPS_MAX as usize - 1) / 2;
/// How long the mgr may be left to think that a file is open. Whoever removes the file meanwhile leaves an orphan that goes
/// with the CLOSE; delegations of it wait.
const PATIENCE: Duration = Duration::from_millis(20);

/// How often a round trip that failed is tried.
const TRIES: u32 = 2;

/// An open that nobody uses any more and the mgr knows of.
pub(crate) struct Left {
    pub(crate) handle: Bytes,
    pub(crate) stateid: stateid4,
    pub(crate) caller: Caller,
}

/// Opens that are to be closed.
#[derive(Default)]
pub(crate) struct Leaving {
    queue: Mutex<Queue>,
    /// Held while some are being closed.
    closing: AsyncMutex<()>,
}

#[derive(Default)]
struct Queue {
    left: VecDeque<Left>,
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
        queue.left.drain(..alike).collect()
    }
}

impl Inner {
    /// Closes an open soon, together with others.
    pub(crate) fn leave(self: &Arc<Self>, left: Left) {
        {
            let mut queue = self.leaving.queue();
            queue.left.push_back(left);
            if std::mem::replace(&mut queue.expected, true) {
                return;
            }
        }
        let mount = self.clone();
        net::task::spawn_on(&self.runtime, async move {
            tokio::time::sleep(PATIENCE).await;
            // What comes from now on is for another task.
            mount.leaving.queue().expected = false;
            mount.close_left().await;
        });
    }

    /// Returns when everything that was left before is closed, or cannot be.
    pub(crate) async fn close_left(&self) {
        let _closing = self.leaving.closing.lock().await;
        loop {
            let mut some = self.leaving.some();
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
        }
    }

    /// Closes some of these in one round trip, one at least, and takes them off; none if that fails.
    async fn close_some(&self, some: &mut VecDeque<Left>) -> Result<()> {
        let Some(first) = some.front() else { return Ok(()) };
        let mut compound = Compound::new("closing files").by(&first.caller).cached();
        for left in &*some {
            let args = CLOSE4args { seqid: 0, open_stateid: left.stateid };
            compound.putfh(&left.handle).op(OP_CLOSE, &args);
        }
        let mut results = self.session.call(compound).await?;
        for done in 0.. {
            let Some(left) = some.pop_front() else { break };
            let found = results.raw::<wire::native::Nothing>(OP_PUTFH);
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
