//! Stateids: their encoding, the special values, and the rules of their sequence numbers (RFC 8881 §8.2).

use crate::state::{ClientId, Result, State};
use wire::nfs4::nfsstat4::{self, *};
use wire::nfs4::stateid4;

/// The anonymous stateid: I/O without an open (§8.2.3).
pub const ANONYMOUS: stateid4 = stateid4 { seqid: 0, other: [0; 12] };
/// The READ bypass stateid: reads that ignore share reservations (§8.2.3).
pub const BYPASS: stateid4 = stateid4 { seqid: u32::MAX, other: [0xff; 12] };
/// Denotes the stateid that the last operation of the COMPOUND returned (§8.2.3, §16.2.3.1.2).
pub const CURRENT: stateid4 = stateid4 { seqid: 1, other: [0; 12] };
/// Never valid; CLOSE returns it (§8.2.3, §18.2.4).
pub const INVALID: stateid4 = stateid4 { seqid: u32::MAX, other: [0; 12] };

/// The kind of state that a stateid names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// An open.
    Open = 1,
    /// The layouts of one client and file.
    Layout = 2,
    /// The byte-range locks of one lock-owner under one open.
    Lock = 3,
    /// A delegation.
    Delegation = 4,
}

/// The class of a stateid, determined by its form alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// [`ANONYMOUS`].
    Anonymous,
    /// [`BYPASS`].
    Bypass,
    /// [`CURRENT`].
    Current,
    /// A stateid that this server could have issued since its start.
    Ordinary(Kind),
}

/// Encodes `other`: boot epoch (4 bytes), kind (1), index (7). By the epoch the server distinguishes a stateid from
/// before a restart from a forged one.
pub(crate) fn other(boot_epoch: u32, kind: Kind, index: u64) -> [u8; 12] {
    let mut out = [0; 12];
    out[..4].copy_from_slice(&boot_epoch.to_be_bytes());
    out[4..].copy_from_slice(&index.to_be_bytes());
    out[4] = kind as u8;
    out
}

/// Returns the class of `stateid`; BAD_STATEID for reserved combinations and for stateids of an earlier start or
/// another server.
///
/// Stateids of an earlier start give BAD_STATEID and not STALE_STATEID, which NFSv4.1 no longer uses (§15.1.16.5).
pub fn form(stateid: &stateid4, boot_epoch: u32) -> Result<Form> {
    if *stateid == ANONYMOUS {
        return Ok(Form::Anonymous);
    }
    if *stateid == BYPASS {
        return Ok(Form::Bypass);
    }
    if *stateid == CURRENT {
        return Ok(Form::Current);
    }
    if self::boot_epoch(stateid) != boot_epoch {
        return Err(NFS4ERR_BAD_STATEID);
    }
    match stateid.other[4] {
        1 => Ok(Form::Ordinary(Kind::Open)),
        2 => Ok(Form::Ordinary(Kind::Layout)),
        3 => Ok(Form::Ordinary(Kind::Lock)),
        4 => Ok(Form::Ordinary(Kind::Delegation)),
        _ => Err(NFS4ERR_BAD_STATEID),
    }
}

/// Returns whether a stateid is reserved and names no state of a file on any server: its `other` is all zeros or all
/// ones (§8.2.3).
pub fn is_special(stateid: &stateid4) -> bool {
    stateid.other == ANONYMOUS.other || stateid.other == BYPASS.other
}

/// Returns whether a stateid has the form of a layout stateid, from any start.
pub fn is_of_layout(stateid: &stateid4) -> bool {
    stateid.other[4] == Kind::Layout as u8
}

/// Returns the boot epoch of the server start that issued a stateid.
pub(crate) fn boot_epoch(stateid: &stateid4) -> u32 {
    let mut epoch = [0; 4];
    epoch.copy_from_slice(&stateid.other[..4]);
    u32::from_be_bytes(epoch)
}

/// Returns the sequence number after `seqid`. It skips 0, which means "current" in requests (§8.2.2).
pub fn next_seqid(seqid: u32) -> u32 {
    if seqid == u32::MAX { 1 } else { seqid + 1 }
}

/// Compares the sequence number of a request with the current one: 0 matches, older is OLD_STATEID, newer BAD_STATEID.
///
/// It compares modulo 2^32, which agrees with §8.2.2 for every client with fewer than 2^31 slots.
pub fn check_seqid(asked: u32, current: u32) -> Result<()> {
    match asked.wrapping_sub(current) as i32 {
        _ if asked == 0 => Ok(()),
        0 => Ok(()),
        d if d < 0 => Err(NFS4ERR_OLD_STATEID),
        _ => Err(NFS4ERR_BAD_STATEID),
    }
}

impl State {
    /// TEST_STATEID of one stateid: returns the status that using it would give (§18.48). Special stateids give
    /// BAD_STATEID.
    pub fn test_stateid(&self, client: ClientId, stateid: &stateid4) -> nfsstat4 {
        let result = match form(stateid, self.config.boot_epoch) {
            Ok(Form::Ordinary(Kind::Open)) => self.opens.test(client, stateid),
            Ok(Form::Ordinary(Kind::Layout)) => self.layouts.test(client, stateid),
            Ok(Form::Ordinary(Kind::Lock)) => self.locks.test(client, stateid),
            Ok(Form::Ordinary(Kind::Delegation)) => self.delegations.test(client, stateid),
            _ => Err(NFS4ERR_BAD_STATEID),
        };
        result.err().unwrap_or(NFS4_OK)
    }

    /// FREE_STATEID (§18.38): drops revoked state and locks that cover no byte; LOCKS_HELD for state in use.
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID, LOCKS_HELD.
    pub fn free_stateid(&mut self, client: ClientId, stateid: &stateid4) -> Result<()> {
        match form(stateid, self.config.boot_epoch)? {
            Form::Ordinary(Kind::Open) => return self.opens.test(client, stateid).and(Err(NFS4ERR_LOCKS_HELD)),
            Form::Ordinary(Kind::Layout) => self.layouts.free(client, stateid)?,
            Form::Ordinary(Kind::Lock) => self.free_lock(client, stateid)?,
            Form::Ordinary(Kind::Delegation) => self.free_delegation(client, stateid)?,
            _ => return Err(NFS4ERR_BAD_STATEID),
        }
        // Acknowledging the last revocation lets the client reclaim again (§8.4.3).
        self.note_record(client);
        Ok(())
    }
}
