//! What the mgr has answered for without waiting for its disk, and whether all of it is still there when somebody asks for that.
//!
//! A mount that waits for nothing but fsync ([`crate::Durable::Fsync`]) is told a number by the mgr that changes when the mgr's machine has been without
//! power. While it is the same everything that was answered is kept, whatever was killed. So the number is asked for with each new session and each
//! fsync, and another one means that changes which nobody had settled may be gone.

use super::{Session, Shared, lock};
use crate::compound::{Compound, Results};
use crate::{Durable, Error, Result};
use net::rpc::Connection;
use nfs::client::fattr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::Mutex as AsyncMutex;
use types::Status;
use wire::nfs4::*;

/// What is known of a mount's changes.
#[derive(Default)]
pub(super) struct Settling {
    known: Mutex<Known>,
    /// Held by who settles: others wait for that, and then look whether anything is left.
    turn: AsyncMutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    /// The number that the mgr told last.
    boot: Option<u64>,
    /// Whether anything was changed since it was settled last.
    changed: bool,
    /// Whether what was changed before is being settled.
    settling: bool,
    /// How often changes may have been lost.
    losses: u64,
}

impl Known {
    /// Something is about to be changed, or has been.
    fn change(&mut self) {
        self.changed = true;
    }

    /// Settling begins; whether there is anything to settle.
    fn begin(&mut self) -> bool {
        self.settling = std::mem::take(&mut self.changed);
        self.settling
    }

    /// The mgr has told its number.
    fn told(&mut self, boot: u64) {
        let other = self.boot.replace(boot).is_some_and(|before| before != boot);
        if other && (self.changed || self.settling) {
            // Of what is still there the next one hears.
            (self.changed, self.settling) = (false, false);
            self.losses += 1;
        }
    }

    /// Settling has ended, and all is durable or gone, or nobody knows.
    fn end(&mut self, done: bool) {
        self.changed |= !done && self.settling;
        self.settling = false;
    }
}

fn boot_of(mut results: Results) -> Result<u64> {
    results.done(&[OP_PUTROOTFH])?;
    let told = results.values()?.weir_settled;
    told.ok_or_else(|| Error::protocol("asking what is durable: the mgr does not tell; use durable=close"))
}

fn question() -> Compound {
    let mut compound = Compound::new("asking what is durable");
    compound.void(OP_PUTROOTFH).getattr_of(fattr::SETTLED);
    compound
}

impl Shared {
    /// Whether answers of the mgr need not wait for its disk.
    pub(super) fn is_soon(&self) -> bool {
        self.options.durable == Durable::Fsync
    }

    /// A request is about to be sent; whether its answer need not wait.
    pub(super) fn sends_soon(&self, changes: bool) -> bool {
        let soon = changes && self.is_soon();
        if soon {
            lock(&self.settling.known).change();
        }
        soon
    }

    /// Such a request was answered, or will not be. What was settled since it was sent may have been settled before it was carried out.
    pub(super) fn answered_soon(&self) {
        lock(&self.settling.known).change();
    }

    /// A session begins: the mgr may have been started on a machine that was without power.
    pub(super) async fn begin_settling(&self, connection: &Connection, epoch: u64) -> Result<()> {
        if self.is_soon() {
            let boot = boot_of(self.alone(connection, epoch, question()).await?)?;
            lock(&self.settling.known).told(boot);
        }
        Ok(())
    }
}

impl Session {
    /// Whether answers of the mgr need not wait for its disk.
    pub(crate) fn is_soon(&self) -> bool {
        self.shared.is_soon()
    }

    /// How often changes may have been lost so far.
    pub(crate) fn losses(&self) -> u64 {
        lock(&self.shared.settling.known).losses
    }

    /// Returns when everything is durable that the mgr has answered for.
    ///
    /// # Errors
    /// `Io`: changes may have been lost since `seen` losses, which has all of them afterwards.
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
            let what = "the machine of the mgr was without power: names and small files that were changed in the last second before may be as they were";
            return Err(Error::status(Status::Io, what));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every history of so many steps: a change is known to be lost if the number changed between it and its settling, and only then.
    #[test]
    fn what_was_not_settled_is_missed_when_the_number_changes() {
        const STEPS: u32 = 8;
        for history in 0..4u32.pow(STEPS) {
            let (mut known, mut boot) = (Known::default(), 0u64);
            known.told(boot);
            // By the specification: changes that would be lost, and whether any was.
            let (mut open, mut lost) = (false, false);
            for step in 0..STEPS {
                match history >> (2 * step) & 3 {
                    0 => {
                        known.change();
                        open = true;
                    }
                    // A power cut, heard of with the next session.
                    1 => {
                        boot += 1;
                        lost |= open;
                        open = false;
                        known.told(boot);
                    }
                    // Settled, in peace.
                    2 => {
                        if known.begin() {
                            known.told(boot);
                            known.end(true);
                        }
                        open = false;
                    }
                    // A power cut while it is settled, heard of with a new session and then with the answer.
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
    fn what_could_not_be_settled_is_still_to_be() {
        let mut known = Known::default();
        known.told(1);
        known.change();
        assert!(known.begin());
        known.end(false);
        assert!(known.begin(), "nobody knows");
        known.end(true);
        assert!(!known.begin(), "nothing is left");
    }
}
