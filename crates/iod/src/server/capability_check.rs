//! The check of tickets, capabilities and filehandles: whether the mgr signed them for this iod, and whether they are
//! still valid.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed};

use net::clock::unix_now;
use types::{Fsid, IodId, Status};
use wire::native::{Capability, DataHandle, HelloArgs, IodKey, Key, MGR_SESSION, Rights, STORE_OBJECT, Ticket};

/// The secret of the iod, and the data from the mgr's last CLAIM, which together decide whether a ticket, capability
/// or filehandle is valid.
pub(super) struct CapabilityCheck {
    key: IodKey,
    fsid: Fsid,
    /// Number of seconds by which the mgr's clock is ahead of this host's clock.
    ahead: AtomicI64,
    /// The oldest epoch of the mgr whose sessions are valid.
    least_epoch: AtomicU32,
}

impl CapabilityCheck {
    /// Makes the [`CapabilityCheck`] of an iod for one file system. `key` is the secret of the cluster.
    pub(super) fn new(key: &Key, fsid: Fsid, iod: IodId) -> Self {
        CapabilityCheck { key: key.of_iod(iod), fsid, ahead: AtomicI64::new(0), least_epoch: AtomicU32::new(0) }
    }

    /// Stores the time and the least valid epoch from a CLAIM. `now` is the time on the mgr's clock. Sessions of mgr
    /// epochs before `least_epoch` become invalid.
    pub(super) fn claimed(&self, now: u64, least_epoch: u32) {
        self.ahead.store(now.wrapping_sub(unix_now()).cast_signed(), Relaxed);
        // Two CLAIMs may arrive out of order, so keep the larger of both epochs.
        self.least_epoch.fetch_max(least_epoch, Relaxed);
    }

    /// Returns the time on the mgr's clock, in Unix seconds. The iod compares the expiry of tickets, capabilities and
    /// filehandles with this time.
    pub(super) fn now(&self) -> u64 {
        unix_now().saturating_add_signed(self.ahead.load(Relaxed))
    }

    /// Returns whether the mgr assigned this session number in a valid epoch. The high half of a client's session
    /// number is the epoch of the mgr.
    fn is_of_now(&self, session: u64) -> bool {
        session == MGR_SESSION || (session >> 32) as u32 >= self.least_epoch.load(Relaxed)
    }

    /// Returns the ticket that a HELLO describes, with the secret that the iod derives from it. The peer has yet to
    /// prove by PROVE that it knows this secret.
    ///
    /// # Errors
    /// `CapRefused` for a ticket of another file system, `CapExpired` for a ticket that has expired or is of an invalid
    /// epoch.
    pub(super) fn ticket(&self, args: &HelloArgs) -> Result<Ticket, Status> {
        if args.fsid != self.fsid {
            return Err(Status::CapRefused);
        }
        if self.now() >= args.expires || !self.is_of_now(args.session) {
            return Err(Status::CapExpired);
        }
        Ok(self.key.ticket(self.fsid, args.session, args.expires))
    }

    /// Checks that a capability for one object grants the rights `needed` to this session.
    ///
    /// # Errors
    /// The errors of [`Capability::verify`]; `Fenced` for a capability of an epoch that is no longer valid.
    pub(super) fn object(&self, cap: &Capability, session: u64, needed: Rights) -> Result<(), Status> {
        self.capability(cap, session, needed)?;
        if cap.object == STORE_OBJECT { Err(Status::CapRefused) } else { Ok(()) }
    }

    /// Checks that a capability grants ADMIN on the whole store ([`STORE_OBJECT`]) to this session.
    ///
    /// # Errors
    /// The errors of [`Capability::verify`].
    pub(super) fn store(&self, cap: &Capability, session: u64) -> Result<(), Status> {
        self.capability(cap, session, Rights::ADMIN)?;
        if cap.object == STORE_OBJECT { Ok(()) } else { Err(Status::CapRefused) }
    }

    fn capability(&self, cap: &Capability, session: u64, needed: Rights) -> Result<(), Status> {
        cap.verify(&self.key, self.fsid, self.now(), session, needed)?;
        if self.is_of_now(session) { Ok(()) } else { Err(Status::Fenced) }
    }

    /// Checks a filehandle that an NFS client sent to this data server.
    ///
    /// # Errors
    /// `BadHandle` for a handle that is forged or belongs to another iod. `Fenced` for a handle that has expired or is
    /// of an invalid epoch; the client then requests a new handle from the mgr.
    pub(super) fn data_handle(&self, handle: &DataHandle) -> Result<(), Status> {
        let in_force = handle.verify(&self.key, self.fsid, self.now());
        in_force.map_err(|e| if e == Status::CapExpired { Status::Fenced } else { e })?;
        if self.is_of_now(handle.session) { Ok(()) } else { Err(Status::Fenced) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{FileId, Generation, ObjectId};
    use wire::native::{Holder, Striping};

    const FSID: Fsid = Fsid([1; 16]);
    const IOD: IodId = IodId([2; 16]);

    fn judge() -> (CapabilityCheck, IodKey) {
        let key = Key::new([3; 32]);
        (CapabilityCheck::new(&key, FSID, IOD), key.of_iod(IOD))
    }

    fn cap(key: &IodKey, expires: u64, session: u64) -> Capability {
        key.sign_capability(FSID, ObjectId::stream_0(FileId(9)), Generation(1), Rights::READ, expires, session)
    }

    fn handle(key: &IodKey, expires: u64, session: u64) -> DataHandle {
        let (striping, holder) = (Striping { unit: 64, count: 1, index: 0 }, Holder { grant: 1, session, expires });
        DataHandle::sign(key, FSID, (ObjectId::stream_0(FileId(9)), Generation(1)), Rights::READ, striping, holder)
    }

    #[test]
    fn rights_expire_by_the_clock_of_the_mgr() {
        let (judge, key) = judge();
        let here = unix_now();
        for mgr in [here - 100_000, here, here + 100_000] {
            judge.claimed(mgr, 0);
            let session = 5 << 32 | 1;
            for (expires, good) in [(mgr - 10, false), (mgr + 100, true)] {
                let refused = |status| if good { Ok(()) } else { Err(status) };
                assert_eq!(
                    judge.object(&cap(&key, expires, session), session, Rights::READ),
                    refused(Status::CapExpired)
                );
                assert_eq!(judge.data_handle(&handle(&key, expires, session)), refused(Status::Fenced));
                let hello = HelloArgs::new(&key.ticket(FSID, session, expires), [0; 32], true);
                assert_eq!(judge.ticket(&hello).map(drop), refused(Status::CapExpired));
            }
        }
    }

    #[test]
    fn rights_of_earlier_epochs_are_refused_except_those_of_the_mgr() {
        let (judge, key) = judge();
        let later = unix_now() + 1000;
        for least in [0, 4, 5, 6, 4] {
            judge.claimed(unix_now(), least);
            let least = if least == 4 && judge.least_epoch.load(Relaxed) == 6 { 6 } else { least };
            for session in [MGR_SESSION, wire::native::PULL_SESSION, 4 << 32, 5 << 32 | 7, 6 << 32] {
                let good = session == MGR_SESSION || session >> 32 >= u64::from(least);
                let expected = if good { Ok(()) } else { Err(Status::Fenced) };
                assert_eq!(
                    judge.object(&cap(&key, later, session), session, Rights::READ),
                    expected,
                    "{least} {session:x}"
                );
                assert_eq!(judge.data_handle(&handle(&key, later, session)), expected, "{least} {session:x}");
            }
        }
    }

    #[test]
    fn rights_for_another_iod_are_refused() {
        let (judge, _) = judge();
        let (later, session) = (unix_now() + 1000, 1 << 32);
        let other = Key::new([3; 32]).of_iod(IodId([4; 16]));
        assert_eq!(judge.object(&cap(&other, later, session), session, Rights::READ), Err(Status::CapRefused));
        assert_eq!(judge.data_handle(&handle(&other, later, session)), Err(Status::BadHandle));
    }
}
