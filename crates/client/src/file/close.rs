//! Closing a file: makes all writes durable; then reports the size, sets attributes, returns the layout, closes and
//! renames in as few round trips as possible.

use super::Open;
use crate::compound::{Compound, Failed, Results};
use crate::inode::{StatusOnly, append_return};
use crate::mount::names::{append_rename, take_rename};
use crate::mount::{DeferredClose, Node};
use crate::{Error, Result};
use bytes::Bytes;
use types::{Attrs, Renaming, SetAttrs, Status};
use wire::nfs4::*;

/// The operations that a close still has to execute at the mgr. Usually one COMPOUND executes all of them.
struct RemainingSteps {
    /// Whether the next COMPOUND contains the size report (LAYOUTCOMMIT) that is due, if any.
    report: bool,
    /// Whether all written bytes are durable, the client has dropped none of them, and this was the last open of the
    /// file on this client.
    durable: bool,
    give_back: bool,
    changes: SetAttrs,
    /// The stateid of the open that the client still has to close.
    close: Option<stateid4>,
    attrs: bool,
    rename: Option<(Node, Bytes)>,
}

impl Open {
    /// Closes the file, see [`crate::File::close`].
    pub(super) async fn close(self) -> Result<()> {
        self.end(SetAttrs::default(), None, false).await.map(|_| ())
    }

    /// Closes the file with a deferred CLOSE, see [`crate::File::leave`].
    pub(super) async fn leave(self) -> Result<()> {
        let written = self.durable().await;
        let mere = if written.is_ok() { self.inode.remove_mere_open(self.key).await } else { None };
        let Some((stateid, delegation)) = mere else {
            // Box the future of the full close: it is large, and most closes only defer the CLOSE.
            return Box::pin(self.end_after(written, SetAttrs::default(), None, false)).await.map(|_| ());
        };
        let (id, mount) = (self.inode.node.id, self.inode.mount.clone());
        let (handle, caller) = (self.inode.node.handle.clone(), self.origin.caller.clone());
        mount.defer_close(DeferredClose { handle, stateid, delegation, caller });
        drop(self);
        mount.forget(id);
        Ok(())
    }

    /// Makes all writes durable. Also fails if a lock of this open is lost.
    async fn durable(&self) -> Result<()> {
        self.ahead.end().await;
        self.inode.end_appending(self.key).await;
        let written = if self.origin.flags.write { self.inode.fsync_data(self.key).await } else { Ok(()) };
        // Make the creation of the file durable even if the client failed to write the bytes.
        let made = self.inode.close_making().await;
        written.and(made).and(self.inode.all_locks_kept(self.key))
    }

    /// Closes the file with final attributes and name, see [`crate::File::finish`].
    pub(super) async fn finish(self, changes: SetAttrs, rename_to: Option<(&Node, &[u8])>) -> Result<Attrs> {
        let rename_to = rename_to.map(|(dir, name)| (dir.clone(), Bytes::copy_from_slice(name)));
        if rename_to.is_some() && self.origin.name.is_none() {
            let refusal = Error::usage("a close can rename only a file that was created by name");
            return self.end(SetAttrs::default(), None, false).await.and(Err(refusal));
        }
        let attrs = self.end(changes, rename_to, true).await?;
        attrs.ok_or_else(|| Error::protocol("closing a file: the mgr's answer lacks the attributes"))
    }

    async fn end(self, changes: SetAttrs, rename: Option<(Node, Bytes)>, attrs: bool) -> Result<Option<Attrs>> {
        let written = self.durable().await;
        self.end_after(written, changes, rename, attrs).await
    }

    async fn end_after(
        self,
        written: Result<()>,
        changes: SetAttrs,
        rename: Option<(Node, Bytes)>,
        attrs: bool,
    ) -> Result<Option<Attrs>> {
        let inode = self.inode.clone();
        let reporting = inode.reporting().await;
        let (stateid, last) = self.inode.remove_open(self.key);
        let durable = last && written.is_ok() && self.inode.is_sure();
        let mut rest =
            RemainingSteps { report: true, durable, give_back: last, changes, close: stateid, attrs, rename };
        if written.is_err() {
            // Writes of the file failed. Do not set the attributes or the name that the caller passed to this close,
            // because `weir cp` marks a complete file with them.
            rest = RemainingSteps { changes: SetAttrs::default(), attrs: false, rename: None, ..rest };
        }
        let outcome = self.work_off(rest).await;
        let (id, mount) = (self.inode.node.id, self.inode.mount.clone());
        drop(reporting);
        drop((self, inode));
        mount.forget(id);
        written.and(outcome)
    }

    async fn work_off(&self, mut rest: RemainingSteps) -> Result<Option<Attrs>> {
        let mut attrs = None;
        let mut outcome = Ok(());
        // Each iteration completes at least one remaining operation of the close. Most closes need one iteration, with
        // one COMPOUND.
        while rest.is_left() {
            if let Err(error) = self.round(&mut rest, &mut attrs).await {
                outcome = outcome.and(Err(error));
                // After an error, execute only CLOSE and the return of the layout and the delegation, so that the mgr
                // does not keep the open.
                rest = RemainingSteps::closing(rest.give_back, rest.close);
            }
        }
        outcome.map(|()| attrs)
    }

    /// Sends one COMPOUND with all remaining operations of the close. An operation also counts as complete if the mgr
    /// no longer knows the open, layout, delegation or file.
    async fn round(&self, rest: &mut RemainingSteps, attrs: &mut Option<Attrs>) -> Result<()> {
        let (inode, before) = (&self.inode, rest.steps());
        if rest.report && inode.cannot_report().await {
            return self.report_again(rest, NFS4ERR_BADLAYOUT).await;
        }
        let mut compound = Compound::new("closing a file").by(&self.origin.caller).cached();
        compound.putfh(&inode.node.handle);
        let last = (rest.give_back, rest.changes.is_empty() && rest.rename.is_none());
        let mut closing = inode.append_layout_close(&mut compound, rest.report.then_some(rest.durable), last).await;
        if !rest.changes.is_empty() {
            let obj_attributes = nfs::attrs::encode_set(&rest.changes);
            compound.op(OP_SETATTR, &SETATTR4args { stateid: stateid4 { seqid: 0, other: [0; 12] }, obj_attributes });
        }
        if let Some(args) = &closing.returned {
            compound.op(OP_LAYOUTRETURN, args);
        }
        let delegation = if rest.give_back { inode.leave() } else { None };
        if let Some(stateid) = delegation {
            append_return(&mut compound, stateid);
        }
        if let Some(stateid) = &rest.close {
            compound.op(OP_CLOSE, &CLOSE4args { seqid: 0, open_stateid: *stateid });
        }
        if let Some((dir, name)) = &rest.rename
            && let Some(from) = &self.origin.name
        {
            compound.make_once();
            append_rename(&mut compound, (&from.dir, &from.name), (dir, name), Renaming::Replace);
        }
        if rest.attrs {
            compound.putfh(&inode.node.handle).getattr();
        }
        let removal = self.origin.name.as_ref().filter(|_| rest.rename.is_some());
        let removal = removal.and_then(|from| inode.mount.removes(&from.dir, &from.name));
        let making = rest.rename.as_ref().map(|(dir, name)| inode.mount.makes(dir, name));
        let sent = inode.mount.session.call(compound).await;
        closing.ended(inode);
        if let (Some(making), Ok(_)) = (making, &sent) {
            making.answered();
        }
        if sent.is_err() {
            // Without a reply, repeat neither CLOSE nor DELEGRETURN: the end of the session has the same effect.
            (rest.close, rest.give_back) = (None, false);
        }
        let mut results = sent?;
        results.done(&[OP_PUTFH])?;
        if let Some(end) = closing.committed {
            match results.raw::<LAYOUTCOMMIT4resok>(OP_LAYOUTCOMMIT) {
                Ok(_) => inode.reported(end),
                Err(Failed::Nfs(NFS4ERR_STALE)) => {
                    rest.report = false;
                    inode.gone();
                    return Ok(());
                }
                Err(Failed::Nfs(status)) => return self.report_again(rest, status).await,
                Err(failed) => return Err(results.error(&failed)),
            }
        }
        rest.report = false;
        let renames = rest.rename.is_some();
        let booked = self.book(rest, (closing.returned.is_some(), delegation), &mut results, attrs).await;
        if renames && rest.rename.is_none() {
            inode.mount.removed(removal);
        }
        match booked {
            // The mgr answered one operation with NFS4ERR_DELAY. The next COMPOUND begins with this operation.
            Err(error) if error.is(Status::Delay) && rest.steps() < before => Ok(()),
            booked => booked,
        }
    }

    async fn book(
        &self,
        rest: &mut RemainingSteps,
        (returned, delegation): (bool, Option<stateid4>),
        results: &mut Results,
        attrs: &mut Option<Attrs>,
    ) -> Result<()> {
        if !rest.changes.is_empty() {
            results.take::<StatusOnly>(OP_SETATTR)?;
            rest.changes = SetAttrs::default();
        }
        // If LAYOUTRETURN fails, the mgr does not execute DELEGRETURN, so the next COMPOUND returns the delegation.
        rest.give_back = returned && delegation.is_some();
        if returned {
            match results.raw::<layoutreturn_stateid>(OP_LAYOUTRETURN) {
                Ok(_) => {}
                // The mgr does not know the layout any more. It did not execute the operations after LAYOUTRETURN; the
                // next COMPOUND contains them.
                Err(Failed::Nfs(_)) => return Ok(()),
                Err(failed) => return Err(results.error(&failed)),
            }
        }
        rest.give_back = false;
        if let Some(stateid) = delegation
            && !self.inode.returned(stateid, results).await?
        {
            return Ok(());
        }
        if let Some(open) = rest.close.take() {
            match results.raw::<stateid4>(OP_CLOSE) {
                Ok(_) => {}
                // The mgr delayed the CLOSE, so send CLOSE again in the next COMPOUND.
                Err(Failed::Nfs(NFS4ERR_DELAY | NFS4ERR_GRACE)) => {
                    rest.close = Some(open);
                    return Ok(());
                }
                // The mgr revoked the open; the client must acknowledge this with FREE_STATEID.
                Err(Failed::Nfs(NFS4ERR_EXPIRED)) => return self.inode.mount.session.free_stateid(open).await,
                // The mgr does not know the open any more, for example after a restart, so the file is closed.
                Err(Failed::Nfs(status)) => {
                    tracing::debug!(file = %self.inode.node.id, ?status, "the mgr had forgotten the open before CLOSE");
                    return Ok(());
                }
                Err(failed) => return Err(results.error(&failed)),
            }
        }
        if rest.rename.is_some() {
            take_rename(results, Renaming::Replace)?;
            rest.rename = None;
        }
        if rest.attrs {
            results.done(&[OP_PUTFH])?;
            *attrs = Some(results.attrs()?);
            rest.attrs = false;
        }
        Ok(())
    }

    /// Reports the size again under a new layout, because the mgr refused LAYOUTCOMMIT under the old layout stateid.
    async fn report_again(&self, rest: &mut RemainingSteps, status: nfsstat4) -> Result<()> {
        tracing::debug!(file = %self.inode.node.id, ?status, "the mgr refused LAYOUTCOMMIT: sending it again under a new layout");
        self.inode.forget_layout().await;
        if let Some(stateid) = &rest.close {
            self.inode.add_open(self.key, self.origin.caller.clone(), *stateid, self.origin.flags);
        }
        let reported = self.inode.report().await;
        // While the client reported the size, the mgr may have restarted, and the client may have reclaimed the open
        // under a new stateid. So close the open with its current stateid.
        rest.close = self.inode.remove_open(self.key).0.or(rest.close.take());
        rest.report = false;
        match reported {
            Err(error) if error.is(Status::Stale) => {
                self.inode.gone();
                Ok(())
            }
            reported => reported,
        }
    }
}

impl RemainingSteps {
    fn closing(give_back: bool, close: Option<stateid4>) -> Self {
        RemainingSteps {
            report: false,
            durable: false,
            give_back,
            changes: SetAttrs::default(),
            close,
            attrs: false,
            rename: None,
        }
    }

    /// Returns the number of remaining operations of the close.
    fn steps(&self) -> usize {
        let steps = [self.report, self.give_back, self.close.is_some(), self.attrs, self.rename.is_some()];
        steps.into_iter().filter(|left| *left).count() + usize::from(!self.changes.is_empty())
    }

    fn is_left(&self) -> bool {
        self.close.is_some() || self.attrs || self.rename.is_some() || !self.changes.is_empty()
    }
}
