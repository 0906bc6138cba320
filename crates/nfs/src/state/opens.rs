//! Opens of the server: share reservations, upgrade, downgrade and close (RFC 8881 §9.7 to §9.9, §18.2, §18.16,
//! §18.18).

use crate::state::delegations::DelegationKind;
use crate::state::stateids::{self, Form, Kind};
use crate::state::{ClientId, Effect, Result, State};
use bytes::Bytes;
use std::collections::{BTreeSet, HashMap};
use types::{FileId, limits};
use wire::nfs4::nfsstat4::*;
use wire::nfs4::{
    OPEN4_SHARE_ACCESS_BOTH, OPEN4_SHARE_ACCESS_READ, OPEN4_SHARE_ACCESS_WRITE, OPEN4_SHARE_DENY_BOTH, stateid4,
};

/// The kind of I/O for which the server checks a stateid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// READ, and other operations that read the file.
    Read,
    /// WRITE, SETATTR of the size, and other operations that change the file's data.
    Write,
}

/// The result of OPEN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenedState {
    /// The stateid of the open.
    pub stateid: stateid4,
    /// Whether the open-owner already had the file open, so that this OPEN upgraded the existing open (§9.9).
    pub upgraded: bool,
}

/// The result of CLOSE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClosedState {
    /// Whether the closed open permitted writing.
    pub wrote: bool,
    /// Whether the client has no other open and no delegation of the file.
    pub last_of_client: bool,
    /// Whether no client has the file open any more; an [`Effect::LastClose`] then follows.
    pub last: bool,
}

/// Why the server permits a READ or WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Permit {
    /// An open or a delegation permits the I/O, so the server checks no permissions.
    Open,
    /// The stateid is special and belongs to no open. The server must check the caller's permissions.
    Special,
}

/// An open of one file by one open-owner (§9.1.1).
#[derive(Clone, Debug)]
pub struct Open {
    /// The client that has the file open.
    pub client: ClientId,
    /// The open-owner, an opaque string of the client.
    pub owner: Bytes,
    /// The open file.
    pub file: FileId,
    /// The `OPEN4_SHARE_ACCESS_*` bits in effect: the union over the OPENs of this open-owner, reduced by
    /// OPEN_DOWNGRADE.
    pub access: u32,
    /// The `OPEN4_SHARE_DENY_*` bits in effect: the union over the OPENs of this open-owner, reduced by OPEN_DOWNGRADE.
    pub deny: u32,
    /// The combinations of access and deny bits of the OPENs of this open-owner: bit `access * 4 + deny` is set for
    /// each combination.
    modes: u16,
    other: [u8; 12],
    seqid: u32,
}

impl Open {
    pub(crate) fn other(&self) -> [u8; 12] {
        self.other
    }

    fn stateid(&self) -> stateid4 {
        stateid4 { seqid: self.seqid, other: self.other }
    }
}

/// The opens of one file, and for each access bit and deny bit the number of opens with this bit.
#[derive(Clone, Debug, Default)]
struct FileOpens {
    opens: BTreeSet<[u8; 12]>,
    access: [u32; 2],
    deny: [u32; 2],
}

fn bits(counts: [u32; 2]) -> u32 {
    u32::from(counts[0] > 0) | u32::from(counts[1] > 0) << 1
}

impl FileOpens {
    fn count(&mut self, access: u32, deny: u32, up: bool) {
        let step = |n: &mut u32| *n = if up { *n + 1 } else { *n - 1 };
        for bit in 0..2 {
            if access & 1 << bit != 0 {
                step(&mut self.access[bit]);
            }
            if deny & 1 << bit != 0 {
                step(&mut self.deny[bit]);
            }
        }
    }
}

type Key = (ClientId, Bytes, FileId);

/// All opens of the server.
#[derive(Clone, Debug, Default)]
pub struct Opens {
    by_other: HashMap<[u8; 12], Open>,
    by_key: HashMap<Key, [u8; 12]>,
    by_file: HashMap<FileId, FileOpens>,
    by_client: HashMap<ClientId, BTreeSet<[u8; 12]>>,
}

impl Opens {
    pub(crate) fn len(&self) -> usize {
        self.by_other.len()
    }

    /// Returns the number of a client's opens.
    pub(crate) fn of_client(&self, client: ClientId) -> usize {
        self.by_client.get(&client).map_or(0, BTreeSet::len)
    }

    /// Checks share reservations (§9.7). Returns SHARE_DENIED if an open denies the new access, or the new deny bits
    /// conflict with the access of an open.
    fn check_share(&self, file: FileId, access: u32, deny: u32) -> Result<()> {
        let Some(held) = self.by_file.get(&file) else { return Ok(()) };
        if access & bits(held.deny) != 0 || deny & bits(held.access) != 0 {
            return Err(NFS4ERR_SHARE_DENIED);
        }
        Ok(())
    }

    /// Returns the client's open with this stateid, and checks the sequence number.
    fn find(&self, client: ClientId, stateid: &stateid4) -> Result<&Open> {
        let open = self.by_other.get(&stateid.other).filter(|o| o.client == client).ok_or(NFS4ERR_BAD_STATEID)?;
        stateids::check_seqid(stateid.seqid, open.seqid)?;
        Ok(open)
    }

    pub(crate) fn test(&self, client: ClientId, stateid: &stateid4) -> Result<()> {
        self.find(client, stateid).map(|_| ())
    }

    /// Sets the share bits of an open, and updates the counts of its file.
    fn set_share(&mut self, other: [u8; 12], access: u32, deny: u32, modes: u16) -> Option<stateid4> {
        let open = self.by_other.get_mut(&other)?;
        let file = self.by_file.get_mut(&open.file)?;
        file.count(open.access, open.deny, false);
        file.count(access, deny, true);
        (open.access, open.deny, open.modes) = (access, deny, modes);
        open.seqid = stateids::next_seqid(open.seqid);
        Some(open.stateid())
    }

    fn add(&mut self, open: Open) {
        let (client, file, other) = (open.client, open.file, open.other);
        self.by_key.insert((client, open.owner.clone(), file), other);
        let opens = self.by_file.entry(file).or_default();
        opens.count(open.access, open.deny, true);
        opens.opens.insert(other);
        self.by_client.entry(client).or_default().insert(other);
        self.by_other.insert(other, open);
    }

    /// Removes an open. The flag in the result says whether the open was the last open of its file.
    fn remove(&mut self, other: &[u8; 12]) -> Option<(Open, bool)> {
        let open = self.by_other.remove(other)?;
        if let Some(ids) = self.by_client.get_mut(&open.client) {
            ids.remove(other);
            if ids.is_empty() {
                self.by_client.remove(&open.client);
            }
        }
        let last = self.unlist(&open);
        Some((open, last))
    }

    /// Removes an open from the indexes. Returns whether the open was the last open of its file.
    fn unlist(&mut self, open: &Open) -> bool {
        self.by_key.remove(&(open.client, open.owner.clone(), open.file));
        let Some(file) = self.by_file.get_mut(&open.file) else { return false };
        file.count(open.access, open.deny, false);
        file.opens.remove(&open.other);
        let last = file.opens.is_empty();
        if last {
            self.by_file.remove(&open.file);
        }
        last
    }

    /// Returns the opens of a file that conflict with these share bits.
    fn in_the_way(&self, file: FileId, access: u32, deny: u32) -> impl Iterator<Item = &Open> {
        let opens = self.by_file.get(&file).into_iter().flat_map(|held| &held.opens);
        let opens = opens.filter_map(|other| self.by_other.get(other));
        opens.filter(move |open| access & open.deny != 0 || deny & open.access != 0)
    }

    /// Returns whether a client other than `client` has the file open.
    pub(crate) fn others_have(&self, client: ClientId, file: FileId) -> bool {
        self.of_others(client, file).next().is_some()
    }

    /// Returns whether a client other than `client` has the file open for writing or with deny bits.
    pub(crate) fn others_write_or_deny(&self, client: ClientId, file: FileId) -> bool {
        self.of_others(client, file).any(|open| open.access & OPEN4_SHARE_ACCESS_WRITE != 0 || open.deny != 0)
    }

    fn of_others(&self, client: ClientId, file: FileId) -> impl Iterator<Item = &Open> {
        let opens = self.by_file.get(&file).into_iter().flat_map(|held| &held.opens);
        opens.filter_map(|other| self.by_other.get(other)).filter(move |open| open.client != client)
    }

    /// Returns whether the client has the file open.
    pub(crate) fn client_has(&self, client: ClientId, file: FileId) -> bool {
        self.by_file
            .get(&file)
            .is_some_and(|f| f.opens.iter().any(|o| self.by_other.get(o).is_some_and(|o| o.client == client)))
    }
}

fn mode_bit(access: u32, deny: u32) -> u16 {
    1 << (access * 4 + deny)
}

impl State {
    /// Returns the clients other than `client` that have the file open, once for each of their opens.
    pub(crate) fn openers_beside(&self, client: ClientId, file: FileId) -> impl Iterator<Item = ClientId> {
        self.opens.of_others(client, file).map(|open| open.client)
    }

    /// Checks whether a client may open `file` with these share bits, without opening it.
    ///
    /// # Errors
    /// INVAL (no access bit, or unknown bits), SHARE_DENIED.
    pub fn check_open(&self, file: FileId, access: u32, deny: u32) -> Result<()> {
        if access == 0 || access > OPEN4_SHARE_ACCESS_BOTH || deny > OPEN4_SHARE_DENY_BOTH {
            return Err(NFS4ERR_INVAL);
        }
        self.opens.check_share(file, access, deny)
    }

    /// OPEN of an existing file: adds an open, or upgrades the open of the same open-owner (§9.9).
    ///
    /// `access` and `deny` are the share bits, without the `WANT` bits. A conflicting open of a client with an expired
    /// lease causes the removal of that client (§8.4.3).
    ///
    /// # Errors
    /// INVAL, SHARE_DENIED, DELAY (the client or its machine has too many opens).
    pub fn open(
        &mut self,
        client: ClientId,
        owner: &Bytes,
        file: FileId,
        access: u32,
        deny: u32,
    ) -> Result<OpenedState> {
        match self.check_open(file, access, deny) {
            Err(NFS4ERR_SHARE_DENIED) if self.take_lapsed_opens(file, access, deny) => {}
            checked => checked?,
        }
        if let Some(other) = self.opens.by_key.get(&(client, owner.clone(), file)).copied()
            && let Some(held) = self.opens.by_other.get(&other)
        {
            let modes = held.modes | mode_bit(access, deny);
            let (access, deny) = (held.access | access, held.deny | deny);
            let stateid = self.opens.set_share(other, access, deny, modes).ok_or(NFS4ERR_SERVERFAULT)?;
            return Ok(OpenedState { stateid, upgraded: true });
        }
        let all = (self.opens.len(), limits::OPENS_MAX);
        let full = self.opens.of_client(client) >= limits::OPENS_PER_CLIENT_MAX;
        if full || self.is_share_full(client, |id| self.opens.of_client(id), all) {
            return Err(NFS4ERR_DELAY);
        }
        let other = self.new_other(Kind::Open);
        let owner = Bytes::copy_from_slice(owner);
        let modes = mode_bit(access, deny);
        let open = Open { client, owner, file, access, deny, modes, other, seqid: 1 };
        let stateid = open.stateid();
        self.opens.add(open);
        Ok(OpenedState { stateid, upgraded: false })
    }

    /// Returns the open with this stateid.
    ///
    /// # Errors
    /// BAD_STATEID (special, unknown, of another client or another file, or not of an open), OLD_STATEID.
    pub fn find_open(&self, client: ClientId, file: FileId, stateid: &stateid4) -> Result<&Open> {
        match stateids::form(stateid, self.config.boot_epoch)? {
            Form::Ordinary(Kind::Open) => {}
            _ => return Err(NFS4ERR_BAD_STATEID),
        }
        let open = self.opens.find(client, stateid)?;
        if open.file == file { Ok(open) } else { Err(NFS4ERR_BAD_STATEID) }
    }

    /// OPEN_DOWNGRADE (§18.18): reduces the share bits to `access` and `deny`, which must be the union of the share
    /// bits of some earlier OPENs of this open.
    ///
    /// # Errors
    /// The errors of [`State::find_open`], INVAL.
    pub fn open_downgrade(
        &mut self,
        client: ClientId,
        file: FileId,
        stateid: &stateid4,
        access: u32,
        deny: u32,
    ) -> Result<stateid4> {
        let open = self.find_open(client, file, stateid)?;
        if access == 0 || access & !open.access != 0 || deny & !open.deny != 0 {
            return Err(NFS4ERR_INVAL);
        }
        let mut kept = 0;
        let mut union = (0, 0);
        for a in 1..=OPEN4_SHARE_ACCESS_BOTH {
            for d in 0..=OPEN4_SHARE_DENY_BOTH {
                if open.modes & mode_bit(a, d) != 0 && a & !access == 0 && d & !deny == 0 {
                    kept |= mode_bit(a, d);
                    union = (union.0 | a, union.1 | d);
                }
            }
        }
        if union != (access, deny) {
            return Err(NFS4ERR_INVAL);
        }
        let other = open.other;
        self.opens.set_share(other, access, deny, kept).ok_or(NFS4ERR_SERVERFAULT)
    }

    /// CLOSE (§18.2): removes an open and releases the locks under it. The client's last CLOSE of the file also removes
    /// layouts with return-on-close, unless the client holds a delegation, which counts as an open.
    ///
    /// # Errors
    /// The errors of [`State::find_open`].
    pub fn close(&mut self, client: ClientId, file: FileId, stateid: &stateid4) -> Result<ClosedState> {
        let other = self.find_open(client, file, stateid)?.other;
        let (open, last) = self.opens.remove(&other).ok_or(NFS4ERR_SERVERFAULT)?;
        self.locks.drop_open(&other);
        self.note_record(client);
        let last = last && !self.delegations.is_held(file);
        let last_of_client = !self.opens.client_has(client, file) && !self.delegations.client_has(client, file);
        if last_of_client {
            self.drop_return_on_close(client, file);
        }
        if last {
            self.effects.push(Effect::LastClose(file));
        }
        Ok(ClosedState { wrote: open.access & OPEN4_SHARE_ACCESS_WRITE != 0, last_of_client, last })
    }

    /// Checks whether READ or WRITE with this stateid is permitted (§8.2.3, §9.1.2).
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID, DELEG_REVOKED. OPENMODE: the open or delegation does not permit this kind of I/O.
    /// LOCKED: the stateid is special, and an open of another client denies the I/O.
    pub fn check_io(&self, client: ClientId, file: FileId, stateid: &stateid4, access: Access) -> Result<Permit> {
        let bit = match access {
            Access::Read => OPEN4_SHARE_ACCESS_READ,
            Access::Write => OPEN4_SHARE_ACCESS_WRITE,
        };
        match stateids::form(stateid, self.config.boot_epoch)? {
            Form::Bypass if access == Access::Read => Ok(Permit::Special),
            Form::Anonymous | Form::Bypass => match self.opens.by_file.get(&file) {
                Some(held) if bits(held.deny) & bit != 0 => Err(NFS4ERR_LOCKED),
                _ => Ok(Permit::Special),
            },
            Form::Ordinary(kind @ (Kind::Open | Kind::Lock)) => {
                let open = match kind {
                    Kind::Lock => self.open_of_lock(client, file, stateid)?,
                    _ => *stateid,
                };
                let open = self.find_open(client, file, &open)?;
                if open.access & bit != 0 { Ok(Permit::Open) } else { Err(NFS4ERR_OPENMODE) }
            }
            Form::Ordinary(Kind::Delegation) => match (self.find_delegation(client, file, stateid)?, access) {
                (DelegationKind::Read, Access::Write) => Err(NFS4ERR_OPENMODE),
                (_, Access::Read) if !self.delegations.reads(client, file) => Err(NFS4ERR_OPENMODE),
                _ => Ok(Permit::Open),
            },
            _ => Err(NFS4ERR_BAD_STATEID),
        }
    }

    /// Returns whether any client has the file open, by an open or by a delegation.
    pub fn is_open(&self, file: FileId) -> bool {
        self.opens.by_file.contains_key(&file) || self.delegations.is_held(file)
    }

    /// Returns whether a client may read the file, under an open or a delegation.
    pub fn may_read(&self, client: ClientId, file: FileId) -> bool {
        self.has_open(client, file, OPEN4_SHARE_ACCESS_READ) || self.delegations.reads(client, file)
    }

    /// Returns whether a client may write the file, under an open or a delegation.
    pub fn may_write(&self, client: ClientId, file: FileId) -> bool {
        let delegated = self.delegations.kind(client, file) == Some(DelegationKind::Write);
        delegated || self.has_open(client, file, OPEN4_SHARE_ACCESS_WRITE)
    }

    fn has_open(&self, client: ClientId, file: FileId, access: u32) -> bool {
        let opens = self.opens.by_file.get(&file).into_iter().flat_map(|f| &f.opens);
        let mut opens = opens.filter_map(|other| self.opens.by_other.get(other));
        opens.any(|open| open.client == client && open.access & access != 0)
    }

    /// Returns the number of opens of a file.
    pub fn open_count(&self, file: FileId) -> usize {
        self.opens.by_file.get(&file).map_or(0, |f| f.opens.len())
    }

    /// Returns the opens of a client, oldest first.
    pub fn opens_of(&self, client: ClientId) -> impl Iterator<Item = &Open> {
        let opens = self.opens.by_client.get(&client).into_iter().flatten();
        opens.filter_map(|o| self.opens.by_other.get(o))
    }

    /// Removes the clients whose opens conflict with these share bits, if the leases of all these clients have expired.
    /// Returns whether no conflict remains.
    fn take_lapsed_opens(&mut self, file: FileId, access: u32, deny: u32) -> bool {
        if self.opens.in_the_way(file, access, deny).any(|open| !self.is_lapsed(open.client)) {
            return false;
        }
        let lapsed: BTreeSet<_> = self.opens.in_the_way(file, access, deny).map(|open| open.client).collect();
        lapsed.into_iter().for_each(|client| self.expel(client));
        true
    }

    /// Checks I/O with a special stateid like [`State::check_io`]. First removes the clients whose opens deny the I/O,
    /// if the leases of all these clients have expired.
    ///
    /// # Errors
    /// The errors of [`State::check_io`].
    pub fn check_io_past_lapsed(
        &mut self,
        client: ClientId,
        file: FileId,
        stateid: &stateid4,
        access: Access,
    ) -> Result<Permit> {
        let bit = match access {
            Access::Read => OPEN4_SHARE_ACCESS_READ,
            Access::Write => OPEN4_SHARE_ACCESS_WRITE,
        };
        self.take_lapsed_opens(file, bit, 0);
        self.check_io(client, file, stateid, access)
    }

    /// Removes all opens of a client, with the locks under them.
    pub(crate) fn drop_opens(&mut self, client: ClientId) {
        for other in self.opens.by_client.get(&client).cloned().unwrap_or_default() {
            self.locks.drop_open(&other);
            if let Some((open, true)) = self.opens.remove(&other)
                && !self.delegations.is_held(open.file)
            {
                self.effects.push(Effect::LastClose(open.file));
            }
        }
        self.locks.forget_client(client);
    }
}
