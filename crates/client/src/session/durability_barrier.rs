//! The durability barrier for changes that the mgr answers before they are on its disk.
//!
//! A barrier is a request after which all earlier changes are durable. With [`crate::Durable::Fsync`], only fsync waits
//! for durability. The mgr reports a boot number, which changes when the mgr's machine loses power. As long as the boot
//! number stays the same, no answered change is lost, even if a process is killed. The client requests the boot number
//! with each new session and each fsync. If the number has changed, changes since the last completed barrier may be
//! lost.

use super::{NewSession, Session, Shared, lock};
use crate::compound::{Compound, Results};
use crate::{Durable, Error, Result};
use nfs::client::fattr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::Mutex as AsyncMutex;
use types::Status;
use wire::nfs4::*;

/// The state of the durability barrier of a mount.
#[derive(Default)]
pub(super) struct DurabilityBarrier {
    known: Mutex<Known>,
    /// Locked during a barrier. Other callers of [`Session::settle`] wait for the lock, and then check whether any
    /// change still needs a barrier.
    turn: AsyncMutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    /// The last boot number that the mgr reported.
    boot: Option<u64>,
    /// Whether the client has sent a change since the last barrier began.
    changed: bool,
    /// Whether a barrier that covers earlier changes is in progress.
    settling: bool,
    /// The number of possible losses of changes since the mount was created.
    losses: u64,
}

impl Known {
    /// Records that the client is about to send a change, or has received the reply to a change.
    fn change(&mut self) {
        self.changed = true;
    }

    /// Begins a barrier. Returns whether any change needs the barrier.
    fn begin(&mut self) -> bool {
        self.settling = std::mem::take(&mut self.changed);
        self.settling
    }

    /// Records the boot number that the mgr reported. A new boot number means that the mgr's machine has lost power.
    fn told(&mut self, boot: u64) {
        let other = self.boot.replace(boot).is_some_and(|before| before != boot);
        if other && (self.changed || self.settling) {
            // All changes without a completed barrier count as lost. So only later changes need a barrier.
            (self.changed, self.settling) = (false, false);
            self.losses += 1;
        }
    }

    /// Ends a barrier. If the barrier failed (`done` is false), its changes may not be durable, and need a new barrier.
    fn end(&mut self, done: bool) {
        self.changed |= !done && self.settling;
        self.settling = false;
    }
}

fn boot_of(mut results: Results) -> Result<u64> {
    results.done(&[OP_PUTROOTFH])?;
    let told = results.values()?.weir_settled;
    told.ok_or_else(|| {
        Error::protocol("asking what is durable: the mgr does not support durable=fsync; use durable=close")
    })
}

fn question() -> Compound {
    let mut compound = Compound::new("asking what is durable");
    compound.void(OP_PUTROOTFH).getattr_of(fattr::SETTLED);
    compound
}

impl Shared {
    /// Returns whether the mgr may answer changes before they are durable (`durable=fsync`).
    pub(super) fn is_soon(&self) -> bool {
        self.options.durable == Durable::Fsync
    }

    /// Registers a request that the client is about to send. Returns whether the mgr may answer the request before the
    /// changes of the request are durable.
    pub(super) fn sends_soon(&self, changes: bool) -> bool {
        let soon = changes && self.is_soon();
        if soon {
            lock(&self.settling.known).change();
        }
        soon
    }

    /// Records the end of a request that `sends_soon` registered: the client has the reply, or no longer waits for the
    /// reply. A barrier that began while the request was in flight may not make the changes of this request durable, so
    /// these changes need another barrier.
    pub(super) fn answered_soon(&self) {
        lock(&self.settling.known).change();
    }

    /// Requests the boot number at the start of a session, because the mgr's machine may have lost power.
    pub(super) async fn begin_settling(&self, session: &NewSession<'_>) -> Result<()> {
        if self.is_soon() {
            let boot = boot_of(session.call(question()).await?)?;
            lock(&self.settling.known).told(boot);
        }
        Ok(())
    }
}

impl Session {
    /// Returns whether the mgr may answer changes before they are durable (`durable=fsync`).
    pub(crate) fn is_soon(&self) -> bool {
        self.shared.is_soon()
    }

    /// Returns how many times changes may have been lost since the mount was created.
    pub(crate) fn losses(&self) -> u64 {
        lock(&self.shared.settling.known).losses
    }

    /// Waits until every change that the mgr has answered is durable.
    ///
    /// # Errors
    /// `Io` if a power loss of the mgr's machine may have lost changes, and the caller has not received this error for
    /// this power loss yet. `seen` is the number of power losses for which the caller has received an error; the call
    /// updates `seen`.
    pub(crate) async fn settle(&self, seen: &AtomicU64) -> Result<()> {
        let settling = &self.shared.settling;
        let _turn = settling.turn.lock().await;
        if lock(&settling.known).begin() {
            let asked = match self.call(question()).await {
                Ok(results) => boot_of(results),
                Err(error) => Err(error),
            };
            let mut known = lock(&settling.known);
            if let Ok(boot) = asked {
                known.told(boot);
            }
            known.end(asked.is_ok());
            drop(known);
            asked?;
        }
        let losses = self.losses();
        if seen.swap(losses, Relaxed) < losses {
            let what = "the machine of the mgr lost power: changes to names and small files in the last second before may be lost; check them";
            return Err(Error::status(Status::Io, what));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks every sequence of `STEPS` events: changes, power losses of the mgr's machine, and barriers. A barrier
    /// must report a loss if and only if the boot number changed between a change and the end of its barrier.
    #[test]
    fn a_changed_boot_number_reports_the_changes_without_a_barrier_as_lost() {
        const STEPS: u32 = 8;
        for history in 0..4u32.pow(STEPS) {
            let (mut known, mut boot) = (Known::default(), 0u64);
            known.told(boot);
            // The model: `open` is whether some change has no completed barrier yet, and `lost` is whether a power loss
            // of the mgr's machine has lost such a change.
            let (mut open, mut lost) = (false, false);
            for step in 0..STEPS {
                match history >> (2 * step) & 3 {
                    0 => {
                        known.change();
                        open = true;
                    }
                    // A power loss of the mgr's machine, which the client detects at the start of its next session.
                    1 => {
                        boot += 1;
                        lost |= open;
                        open = false;
                        known.told(boot);
                    }
                    // A barrier without a power loss.
                    2 => {
                        if known.begin() {
                            known.told(boot);
                            known.end(true);
                        }
                        open = false;
                    }
                    // A power loss during a barrier. The client receives the new boot number twice: with a new session,
                    // and with the reply to the barrier.
                    _ => {
                        if known.begin() {
                            boot += 1;
                            lost |= open;
                            known.told(boot);
                            known.told(boot);
                            known.end(true);
                        }
                        open = false;
                    }
                }
                assert_eq!(known.losses > 0, lost, "{history:#x} at {step}");
            }
        }
    }

    #[test]
    fn changes_of_a_failed_barrier_need_another_barrier() {
        let mut known = Known::default();
        known.told(1);
        known.change();
        assert!(known.begin());
        known.end(false);
        assert!(known.begin(), "the failed barrier covered nothing");
        known.end(true);
        assert!(!known.begin(), "the barrier covered all changes");
    }
}
