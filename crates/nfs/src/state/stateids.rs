//! Stateids of the server: their encoding, the special stateids, and the checks of sequence numbers (RFC 8881 §8.2).

use crate::state::{ClientId, Result, State};
use wire::nfs4::nfsstat4::{self, *};
use wire::nfs4::stateid4;

/// The anonymous stateid, for I/O without an open (§8.2.3).
pub const ANONYMOUS: stateid4 = stateid4 { seqid: 0, other: [0; 12] };
/// The READ bypass stateid, for reads that ignore share reservations (§8.2.3).
pub const BYPASS: stateid4 = stateid4 { seqid: u32::MAX, other: [0xff; 12] };
/// The special stateid that stands for the stateid returned by the last operation of the COMPOUND (§8.2.3,
/// §16.2.3.1.2).
pub const CURRENT: stateid4 = stateid4 { seqid: 1, other: [0; 12] };
/// The invalid stateid, which CLOSE returns (§8.2.3, §18.2.4).
pub const INVALID: stateid4 = stateid4 { seqid: u32::MAX, other: [0; 12] };

/// The kind of state that an ordinary stateid names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// An open of a file.
    Open = 1,
    /// The layouts of one client, file and layout type.
    Layout = 2,
    /// The byte-range locks of one lock-owner under one open.
    Lock = 3,
    /// A delegation of a file or directory to one client.
    Delegation = 4,
}

/// The class of a stateid: special, or ordinary with the kind of its state. The bytes of a stateid alone determine its
/// class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// The special stateid [`ANONYMOUS`].
    Anonymous,
    /// The special stateid [`BYPASS`].
    Bypass,
    /// The special stateid [`CURRENT`].
    Current,
    /// A stateid with the boot epoch of this start of the server, which names state of this kind. The state may not
    /// exist, because only the bytes of the stateid were examined.
    Ordinary(Kind),
}

/// Encodes the field `other` of a stateid: boot epoch (4 bytes), kind (1 byte), index (7 bytes). The epoch shows which
/// start of the server issued the stateid.
pub(crate) fn other(boot_epoch: u32, kind: Kind, index: u64) -> [u8; 12] {
    let mut out = [0; 12];
    out[..4].copy_from_slice(&boot_epoch.to_be_bytes());
    out[4..].copy_from_slice(&index.to_be_bytes());
    out[4] = kind as u8;
    out
}

/// Returns the class of `stateid`. Fails with BAD_STATEID for reserved values, and for stateids from an earlier start
/// of this server or from another server.
///
/// NFSv4.1 no longer uses STALE_STATEID for stateids of an earlier start (§15.1.16.5).
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

/// Returns whether a stateid is special on every server: its `other` field is all zeros or all ones (§8.2.3).
pub fn is_special(stateid: &stateid4) -> bool {
    stateid.other == ANONYMOUS.other || stateid.other == BYPASS.other
}

/// Returns whether a stateid has the form of a layout stateid, of any start of the server.
pub fn is_of_layout(stateid: &stateid4) -> bool {
    stateid.other[4] == Kind::Layout as u8
}

/// Returns the boot epoch in a stateid, which identifies the start of the server that issued the stateid.
pub(crate) fn boot_epoch(stateid: &stateid4) -> u32 {
    let mut epoch = [0; 4];
    epoch.copy_from_slice(&stateid.other[..4]);
    u32::from_be_bytes(epoch)
}

/// Returns the sequence number after `seqid`. The result is never 0, because 0 in a request stands for the current
/// sequence number (§8.2.2).
pub fn next_seqid(seqid: u32) -> u32 {
    if seqid == u32::MAX { 1 } else { seqid + 1 }
}

/// Compares the sequence number of a stateid in a request with the current number: 0 matches, an older number is
/// OLD_STATEID, a newer number is BAD_STATEID.
///
/// The comparison is modulo 2^32, which agrees with §8.2.2 for every client with fewer than 2^31 slots.
pub fn check_seqid(asked: u32, current: u32) -> Result<()> {
    match asked.wrapping_sub(current) as i32 {
        _ if asked == 0 => Ok(()),
        0 => Ok(()),
        d if d < 0 => Err(NFS4ERR_OLD_STATEID),
        _ => Err(NFS4ERR_BAD_STATEID),
    }
}

impl State {
    /// TEST_STATEID of one stateid (§18.48): returns the status that an operation with this stateid would get. Special
    /// stateids get BAD_STATEID.
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

    /// FREE_STATEID (§18.38): removes a revoked state, or a lock stateid without a locked byte.
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID, LOCKS_HELD (the state is in use).
    pub fn free_stateid(&mut self, client: ClientId, stateid: &stateid4) -> Result<()> {
        match form(stateid, self.config.boot_epoch)? {
            Form::Ordinary(Kind::Open) => return self.opens.test(client, stateid).and(Err(NFS4ERR_LOCKS_HELD)),
            Form::Ordinary(Kind::Layout) => self.layouts.free(client, stateid)?,
            Form::Ordinary(Kind::Lock) => self.free_lock(client, stateid)?,
            Form::Ordinary(Kind::Delegation) => self.free_delegation(client, stateid)?,
            _ => return Err(NFS4ERR_BAD_STATEID),
        }
        // If the freed stateid was the last revoked stateid of the client, store the client's record again, so that the
        // client may reclaim after a restart (§8.4.3).
        self.note_record(client);
        Ok(())
    }
}
