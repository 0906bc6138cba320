//! I/O on the mgr path under an open of the file. The client opens the file again if the mgr does not know the open.
//!
//! The mgr may lose the client's state while the client prepares or sends a request. The mgr then refuses the request
//! because its stateid is old, even if the client has opened the file again meanwhile. The mgr executes nothing of
//! such a request.

use super::delegation::revoked_error;
use super::locks::lost_error;
use super::{Inode, Open};
use crate::compound::{Caller, Compound};
use crate::drivers::Written;
use crate::via_mgr::Opened;
use crate::{Error, Result};
use bytes::Bytes;
use types::ByteRange;
use wire::nfs4::*;

/// Maximum number of times that the client repeats a request under a new stateid.
pub(super) const TRIES: u32 = 8;

impl Inode {
    /// Returns a stateid for a read, or for a write if `write`, and the credentials of the open that it belongs to. If
    /// the client holds locks, returns a lock stateid, so that the mgr refuses I/O under revoked locks (RFC 8881
    /// §8.2.5).
    fn suitable(&self, write: bool) -> Result<(stateid4, Caller)> {
        let found = self.state().opens.suitable(write, self.delegation_of_io());
        found.ok_or_else(|| Error::usage("the file is no longer open for this operation"))
    }

    /// Returns an open for requests to the mgr: a current stateid for reading, or for writing if `write`, the
    /// filehandle and the credentials.
    pub(super) fn opened(&self, write: bool) -> Result<Opened<'_>> {
        let (stateid, caller) = self.suitable(write)?;
        let (session, tally, handle) = (&self.mount.session, &self.mount.tally, &self.node.handle);
        Ok(Opened { session, tally, handle, stateid, caller })
    }

    /// Reads up to `len` bytes through the mgr. Returns the bytes, and whether the read reached the end of the file.
    pub(super) async fn mgr_read(&self, offset: u64, len: usize) -> Result<(Bytes, bool)> {
        let mut tries = TRIES;
        loop {
            let opened = self.opened(false)?;
            match opened.read(offset, len).await {
                Err(error) if error.is_state_lost() => self.open_again(opened.stateid, &mut tries, error).await?,
                outcome => return outcome,
            }
        }
    }

    /// Writes all of `data`, at most one payload, through the mgr. Fails if the client has given up the batch of the
    /// bytes.
    pub(super) async fn mgr_write(&self, batch: u64, offset: u64, data: Bytes, stable: bool) -> Result<Written> {
        let mut tries = TRIES;
        loop {
            // Before each attempt to write, check whether the client gave up the batch: the client may have learned
            // that it lost locks while it opened the file again.
            self.check_given_up(batch)?;
            let opened = self.opened(true)?;
            match opened.write(offset, data.clone(), stable).await {
                Err(error) if error.is_state_lost() => self.open_again(opened.stateid, &mut tries, error).await?,
                outcome => {
                    if stable && outcome.as_ref().is_ok_and(|written| written.stable) {
                        self.made_durably();
                    }
                    return outcome;
                }
            }
        }
    }

    /// Punches a hole through the mgr.
    pub(super) async fn mgr_punch(&self, range: ByteRange) -> Result<()> {
        let mut tries = TRIES;
        loop {
            let opened = self.opened(true)?;
            match opened.punch(range).await {
                Err(error) if error.is_state_lost() => self.open_again(opened.stateid, &mut tries, error).await?,
                outcome => return outcome,
            }
        }
    }

    /// Reserves space for a range through the mgr.
    pub(super) async fn mgr_allocate(&self, range: ByteRange) -> Result<()> {
        let mut tries = TRIES;
        loop {
            let opened = self.opened(true)?;
            match opened.allocate(range).await {
                Err(error) if error.is_state_lost() => self.open_again(opened.stateid, &mut tries, error).await?,
                outcome => return outcome,
            }
        }
    }

    /// Seeks data or a hole through the mgr.
    pub(super) async fn mgr_seek(&self, offset: u64, what: data_content4) -> Result<Option<u64>> {
        let mut tries = TRIES;
        loop {
            let opened = self.opened(false)?;
            match opened.seek(offset, what).await {
                Err(error) if error.is_state_lost() => self.open_again(opened.stateid, &mut tries, error).await?,
                outcome => return outcome,
            }
        }
    }

    /// Opens the file again at the mgr, after the mgr refused the stateid of an open with `error`. If the stateid
    /// belongs to a lock or a delegation, records the loss of the lock or delegation instead. Fails with `error` when
    /// `tries` is 0.
    pub(super) async fn open_again(&self, stateid: stateid4, tries: &mut u32, error: Error) -> Result<()> {
        *tries = tries.checked_sub(1).ok_or_else(|| error.clone())?;
        // Box the future that opens the file again, so that the caller's future stays small: the mgr rarely loses a
        // stateid.
        self.reopening.hold(Box::pin(self.replace_stateid(stateid, error)).as_mut()).await
    }

    async fn replace_stateid(&self, stateid: stateid4, error: Error) -> Result<()> {
        if self.delegation_of_io().is_some_and(|held| held.other == stateid.other) {
            self.delegation_revoked(stateid);
            self.mount.session.free_stateid(stateid).await?;
            return Err(revoked_error());
        }
        if self.knows_lock(stateid) {
            return self.lock_refused(stateid).await.and(Err(lost_error()));
        }
        let open = self.state().opens.by_stateid(stateid).cloned();
        // The open was closed, or got another stateid after the client prepared the request: the caller sends the
        // request again.
        let Some(open) = open else { return Ok(()) };
        tracing::debug!(file = %self.node.id, "{error}; opening it again");
        // When the mgr drops an open, it also drops the locks under the open. The mgr may keep revoked stateids until
        // FREE_STATEID, so free the stateids of the open and of its locks.
        let locks = self.locks_under(open.key);
        self.lose_locks(open.key, None);
        for gone in locks.into_iter().chain([open.stateid]) {
            self.mount.session.free_stateid(gone).await?;
        }
        let mut compound = Compound::new("opening a file again").by(&open.caller).cached();
        compound
            .putfh(&self.node.handle)
            .op(OP_OPEN, &open.args(open_claim4::CLAIM_FH, OPEN4_SHARE_ACCESS_WANT_NO_DELEG));
        let mut results = self.mount.session.call(compound).await?;
        results.done(&[OP_PUTFH])?;
        let opened: OPEN4resok = results.take(OP_OPEN)?;
        self.reopened(open.key, opened.stateid);
        Ok(())
    }
}

impl Open {
    /// Returns the OPEN arguments that open the file again in the same mode, with the delegation wish `wish`
    /// (`OPEN4_SHARE_ACCESS_WANT_*`).
    pub(crate) fn args(&self, claim: open_claim4, wish: u32) -> OPEN4args {
        let access =
            if self.write { OPEN4_SHARE_ACCESS_WRITE } else { 0 } | if self.read { OPEN4_SHARE_ACCESS_READ } else { 0 };
        OPEN4args {
            seqid: 0,
            share_access: access | wish,
            share_deny: OPEN4_SHARE_DENY_NONE,
            owner: open_owner4 { clientid: 0, owner: Bytes::copy_from_slice(&self.key.to_be_bytes()) },
            openhow: openflag4::Default(OPEN4_NOCREATE),
            claim,
        }
    }
}
