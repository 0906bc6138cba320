//! Delegations: the right of a client to open, read or change a file without a request to the server, and the recall of
//! this right (RFC 8881 §10.2 to §10.4).
//!
//! A file delegation counts as an open of the file. A conflicting request of another client (an open, or a change of
//! names or attributes) waits until the holder returns the delegation. A client holds at most one delegation of a file.
//! A client's own opens never conflict with its delegation.

use crate::name_delegations::RELIED_ON;
use crate::state::leases::Lapse;
use crate::state::stateids::{self, Form, Kind};
use crate::state::{ClientId, Effect, Result, State};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;
use types::{FileId, Timestamp, limits};
use wire::nfs4::nfsstat4::*;
use wire::nfs4::{OPEN4_SHARE_ACCESS_BOTH, OPEN4_SHARE_ACCESS_READ, OPEN4_SHARE_ACCESS_WRITE, stateid4};

type Other = [u8; 12];

/// The recall cooldown: for this time after the start of a recall, the server grants no directory delegation of the
/// recalled directory, and a delegation of the recalled file only if the OPEN asks for one.
const COOLING: Duration = Duration::from_secs(60);
/// Largest number of files with a recall cooldown.
const COOLING_MAX: usize = 4096;

/// How long a client without a backchannel connection has to return a data delegation ([`WANT_DATA`]) before the server
/// revokes the delegation. The time is short, because the client was most likely killed, and other clients wait for the
/// file.
const UNREACHED: Duration = Duration::from_secs(5);

/// Largest number of lease periods that a client has to return a delegation, while it keeps writing back dirty data.
const LEASES_MAX: u32 = 8;

/// The kind of a delegation: read, write, or directory (`open_delegation_type4`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum DelegationKind {
    /// Read delegation: no other client writes or changes the file (OPEN_DELEGATE_READ).
    Read,
    /// Write delegation: no other client has the file open (OPEN_DELEGATE_WRITE).
    Write,
    /// Directory delegation: no other client creates, renames or removes names in the directory, or changes the
    /// attributes of the directory (GET_DIR_DELEGATION, §10.9). The holder's own changes cause no recall. A directory
    /// delegation does not count as an open.
    Names,
}

/// The want of a client for a delegation in OPEN (`OPEN4_SHARE_ACCESS_WANT_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// No want (WANT_NO_PREFERENCE).
    None,
    /// The client wants a delegation of exactly this kind.
    Exactly(DelegationKind),
    /// The client wants any delegation that fits the open.
    Any,
    /// The client wants a data delegation ([`WANT_DATA`]) that fits the open.
    Data,
}

/// Weir's own value of `OPEN4_SHARE_ACCESS_WANT_DELEG_MASK`: the client wants a data delegation ("delegation of the
/// data" in `docs/native-protocol.md`). The holder of a data delegation caches only bytes, size and times, so other
/// clients change names, modes and extended attributes without a recall. A client can also get a data delegation with
/// an open only for writing.
///
/// A client that wants a data delegation of the same file again receives the data delegation that it already holds. For
/// an open for writing, a write delegation replaces a read delegation if no other client has the file open.
pub const WANT_DATA: u32 = 0x8000;

/// Why the server grants no delegation with an open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhyNoDelegation {
    /// Other clients use the file, or a recall cooldown is in effect.
    Contention,
    /// A limit on the number of delegations is reached, or the server cannot call the client back.
    Resource,
    /// The wanted kind does not fit the open, for example a write delegation for an open that permits no reads.
    Unfit,
}

/// How a request is about to use a file; this use determines which delegations of other clients conflict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Opens the file for reading without a deny mode, or reads the file. Conflicts with write delegations.
    Read,
    /// Writes the file, denies access to it, or changes its size or modification time. Conflicts with every delegation.
    Write,
    /// Changes names of the file, or attributes such as mode and owner. Conflicts with every delegation except data
    /// delegations ([`WANT_DATA`]), which do not cover names, mode and owner.
    Metadata,
}

impl Use {
    /// Returns how an OPEN with these share bits uses the file: as a read, if it asks only for reading and denies
    /// nothing, otherwise as a write.
    pub fn of_open(access: u32, deny: u32) -> Self {
        if access & OPEN4_SHARE_ACCESS_WRITE == 0 && deny == 0 { Use::Read } else { Use::Write }
    }

    fn conflicts(self, held: &Delegation) -> bool {
        match self {
            Use::Read => held.kind == DelegationKind::Write,
            Use::Write => true,
            Use::Metadata => !held.data,
        }
    }
}

/// A delegation of one file to one client.
#[derive(Clone, Debug)]
struct Delegation {
    client: ClientId,
    file: FileId,
    kind: DelegationKind,
    /// Whether this is a data delegation ([`WANT_DATA`]).
    data: bool,
    /// Whether the holder may read under the delegation; false if the server granted the delegation with an open for
    /// writing only.
    reads: bool,
    /// The file's change attribute at the time of the grant. The server compares the change attribute from CB_GETATTR
    /// with this value (§10.4.3).
    change: u64,
    /// When the server revokes the delegation; `None` if the server has not recalled the delegation.
    deadline: Option<Deadline>,
    /// Whether the server has revoked the delegation. The entry stays until the client frees the stateid
    /// (FREE_STATEID).
    revoked: bool,
}

impl Delegation {
    /// Returns a new delegation that is not a data delegation ([`WANT_DATA`]) and that permits reading.
    fn new(client: ClientId, file: FileId, kind: DelegationKind, change: u64) -> Self {
        Delegation { client, file, kind, data: false, reads: true, change, deadline: None, revoked: false }
    }
}

/// When the server revokes a recalled delegation.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    at: Timestamp,
    /// Whether the deadline is earlier than usual because the client has no backchannel connection. When the client
    /// connects again, the server sets the deadline to one lease period from then.
    early: bool,
    /// The time to which the server extends `at` at most, while the client keeps writing back dirty data.
    last: Timestamp,
}

/// A CB_RECALL to a client, which the server repeats until the client answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DelegationRecall {
    /// The client that holds the delegation.
    pub client: ClientId,
    /// The delegated file.
    pub file: FileId,
    /// The stateid of the delegation.
    pub stateid: stateid4,
}

/// The holder of a write delegation, which alone knows the current attributes of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Writer {
    /// The client that holds the write delegation.
    pub client: ClientId,
    /// The file's change attribute when the server granted the delegation.
    pub change: u64,
    /// Whether this is a data delegation ([`WANT_DATA`]). The holder of a data delegation does not answer CB_GETATTR,
    /// so the server must recall the delegation to learn the attributes.
    pub data: bool,
}

/// All delegations of the server.
#[derive(Clone, Debug, Default)]
pub struct Delegations {
    by_other: HashMap<Other, Delegation>,
    /// Number of delegations that are not data delegations ([`WANT_DATA`]), including revoked ones.
    whole: usize,
    /// The stateids (`other`) of valid delegations, by file and client.
    by_file: HashMap<FileId, HashMap<ClientId, Other>>,
    /// The stateids (`other`) of each client's delegations, including revoked ones.
    by_client: HashMap<ClientId, BTreeSet<Other>>,
    /// Number of revoked delegations that each client has not freed. Every SEQUENCE reads this number for its status
    /// flags.
    revoked: HashMap<ClientId, usize>,
    /// Files for which the server grants no delegation for now, each with the number of [`State::freeze_delegations`]
    /// in effect.
    frozen: HashMap<FileId, u32>,
    /// Files with a recall cooldown, and when the cooldown ends.
    cooling: HashMap<FileId, Timestamp>,
    /// Delegations that are recalled and not returned.
    pending: BTreeSet<Other>,
    /// Clients that have not returned a delegation in time, while the server deletes their records from disk. Until the
    /// deletion is complete, the server must not store new records for these clients.
    doubted: BTreeSet<ClientId>,
    /// Number of write delegations that were returned or revoked since the server started.
    returned_writes: u64,
}

impl Delegations {
    /// Returns the number of valid delegations.
    pub(crate) fn len(&self) -> usize {
        self.by_other.len() - self.revoked.values().sum::<usize>()
    }

    pub(crate) fn recalls(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn any_revoked(&self, client: ClientId) -> bool {
        self.revoked.contains_key(&client)
    }

    /// Returns the number of a client's delegations, including revoked ones.
    fn of_client(&self, client: ClientId) -> usize {
        self.by_client.get(&client).map_or(0, BTreeSet::len)
    }

    /// Returns the number of a client's valid delegations.
    pub(crate) fn live(&self, client: ClientId) -> usize {
        self.of_client(client) - self.revoked.get(&client).copied().unwrap_or(0)
    }

    /// Returns whether a client holds a read or write delegation. Under such a delegation, programs on the client may
    /// have the file open without an OPEN, so the server must not free the file.
    pub(crate) fn is_held(&self, file: FileId) -> bool {
        self.on(file).any(|(_, held)| held.kind != DelegationKind::Names)
    }

    /// Returns a client's valid delegation of a file.
    fn of(&self, client: ClientId, file: FileId) -> Option<(Other, &Delegation)> {
        let other = self.by_file.get(&file)?.get(&client)?;
        Some((*other, self.by_other.get(other)?))
    }

    /// Returns whether a client may read the file under a delegation.
    pub(crate) fn reads(&self, client: ClientId, file: FileId) -> bool {
        self.of(client, file).is_some_and(|(_, held)| held.reads)
    }

    /// Returns the kind of a client's valid delegation of the file.
    pub(crate) fn kind(&self, client: ClientId, file: FileId) -> Option<DelegationKind> {
        self.of(client, file).map(|(_, held)| held.kind)
    }

    pub(crate) fn client_has(&self, client: ClientId, file: FileId) -> bool {
        self.of(client, file).is_some()
    }

    fn on(&self, file: FileId) -> impl Iterator<Item = (Other, &Delegation)> {
        let others = self.by_file.get(&file).into_iter().flat_map(HashMap::values);
        others.filter_map(|other| Some((*other, self.by_other.get(other)?)))
    }

    /// Returns the delegations of a file that conflict with a use, except those of the client `except`, in a stable
    /// order.
    fn in_the_way(&self, file: FileId, what: Use, except: Option<ClientId>) -> Vec<(Other, ClientId)> {
        let wanted = |d: &Delegation| Some(d.client) != except && what.conflicts(d);
        let mut found: Vec<_> = self.on(file).filter(|(_, d)| wanted(d)).map(|(other, d)| (other, d.client)).collect();
        found.sort_unstable();
        found
    }

    fn get(&self, client: ClientId, stateid: &stateid4) -> Result<&Delegation> {
        let found = self.by_other.get(&stateid.other).filter(|d| d.client == client).ok_or(NFS4ERR_BAD_STATEID)?;
        if found.revoked {
            return Err(NFS4ERR_DELEG_REVOKED);
        }
        stateids::check_seqid(stateid.seqid, 1)?;
        Ok(found)
    }

    pub(crate) fn test(&self, client: ClientId, stateid: &stateid4) -> Result<()> {
        self.get(client, stateid).map(|_| ())
    }

    fn add(&mut self, other: Other, delegation: Delegation) {
        self.whole += usize::from(!delegation.data);
        self.by_file.entry(delegation.file).or_default().insert(delegation.client, other);
        self.by_client.entry(delegation.client).or_default().insert(other);
        self.by_other.insert(other, delegation);
    }

    /// Removes a delegation from the table `by_file` of valid delegations, and from the recalls in progress.
    fn unlist(&mut self, other: &Other) {
        self.pending.remove(other);
        let Some(delegation) = self.by_other.get(other) else { return };
        let Some(holders) = self.by_file.get_mut(&delegation.file) else { return };
        holders.remove(&delegation.client);
        if holders.is_empty() {
            self.by_file.remove(&delegation.file);
        }
    }

    fn remove(&mut self, other: &Other) -> Option<Delegation> {
        if self.by_other.get(other).is_some_and(|d| !d.revoked) {
            self.unlist(other);
        }
        let delegation = self.by_other.remove(other)?;
        self.whole -= usize::from(!delegation.data);
        if let Some(ids) = self.by_client.get_mut(&delegation.client) {
            ids.remove(other);
            if ids.is_empty() {
                self.by_client.remove(&delegation.client);
            }
        }
        if delegation.revoked
            && let Some(count) = self.revoked.get_mut(&delegation.client)
        {
            *count -= 1;
            if *count == 0 {
                self.revoked.remove(&delegation.client);
            }
        }
        Some(delegation)
    }

    /// Returns whether the server has revoked a delegation of the client, or is about to revoke a delegation. The
    /// client may not know of the loss, so the client must not reclaim state after a restart of the server.
    pub(crate) fn is_distrusted(&self, client: ClientId) -> bool {
        self.any_revoked(client) || self.doubted.contains(&client)
    }

    fn overdue(&self, now: Timestamp) -> impl Iterator<Item = (Other, &Delegation)> {
        let pending = self.pending.iter().filter_map(|other| Some((*other, self.by_other.get(other)?)));
        pending.filter(move |(_, d)| d.deadline.is_some_and(|deadline| deadline.at <= now))
    }

    /// Gives the client another lease period to return its recalled delegation, up to the time `last` of the deadline.
    /// [`State::flushes`] explains the reason.
    fn flushes(&mut self, client: ClientId, file: FileId, now: Timestamp, lease: Duration) {
        let Some(other) = self.by_file.get(&file).and_then(|holders| holders.get(&client)) else { return };
        if let Some(deadline) = self.by_other.get_mut(other).and_then(|held| held.deadline.as_mut()) {
            deadline.at = deadline.at.max(now.after(lease).min(deadline.last));
        }
    }

    /// Returns the clients that have not returned a recalled data delegation ([`WANT_DATA`]).
    fn to_return_data(&self) -> BTreeSet<ClientId> {
        let pending = self.pending.iter().filter_map(|other| self.by_other.get(other));
        pending.filter(|held| held.data && held.deadline.is_some()).map(|held| held.client).collect()
    }

    /// Adjusts the deadlines of a client's recalled data delegations ([`WANT_DATA`]) when its backchannel connects or
    /// disconnects. A client that connects gets a full lease period to return the delegation; a client that disconnects
    /// gets at most the short time [`UNREACHED`].
    fn is_connected(&mut self, client: ClientId, connected: bool, now: Timestamp, lease: Duration) {
        for other in &self.pending {
            let held = self.by_other.get_mut(other).filter(|held| held.client == client && held.data);
            let deadline = held.and_then(|held| held.deadline.as_mut());
            if let Some(deadline) = deadline.filter(|deadline| deadline.early == connected) {
                deadline.early = !connected;
                deadline.at = match connected {
                    true => now.after(lease).min(deadline.last),
                    false => deadline.at.min(now.after(UNREACHED)),
                };
            }
        }
    }

    /// Begins a recall: the client has one lease period to return the delegation. For a data delegation, a client
    /// without a backchannel connection has at most the short time [`UNREACHED`]. Returns false if the recall has
    /// already begun.
    fn begin_recall(&mut self, other: Other, now: Timestamp, lease: Duration, connected: bool) -> bool {
        let Some(delegation) = self.by_other.get_mut(&other) else { return false };
        let file = delegation.file;
        if delegation.deadline.is_some() {
            return false;
        }
        let early = delegation.data && !connected;
        let at = now.after(if early { lease.min(UNREACHED) } else { lease });
        delegation.deadline = Some(Deadline { at, early, last: now.after(lease * LEASES_MAX) });
        self.pending.insert(other);
        if self.cooling.len() < COOLING_MAX || self.cooling.contains_key(&file) {
            self.cooling.insert(file, now.after(COOLING));
        }
        true
    }
}

/// Returns the kind of delegation that fits the access bits of an open and the client's want; `None` if no kind fits.
fn fitting(access: u32, want: Want) -> Option<DelegationKind> {
    let both = access & OPEN4_SHARE_ACCESS_BOTH == OPEN4_SHARE_ACCESS_BOTH;
    let reads = access & OPEN4_SHARE_ACCESS_READ != 0;
    let writes = access & OPEN4_SHARE_ACCESS_WRITE != 0;
    match want {
        Want::Data if writes => Some(DelegationKind::Write),
        // The holder of a write delegation may also read, which an open for writing only does not permit.
        Want::Exactly(DelegationKind::Write) => both.then_some(DelegationKind::Write),
        Want::Exactly(DelegationKind::Names) => None,
        Want::Exactly(DelegationKind::Read) => reads.then_some(DelegationKind::Read),
        Want::None | Want::Any if both => Some(DelegationKind::Write),
        Want::None | Want::Any | Want::Data => reads.then_some(DelegationKind::Read),
    }
}

impl State {
    /// Grants a delegation of a file that the client has just opened with these access bits, if possible.
    ///
    /// `change` is the file's change attribute that the OPEN reply contains.
    ///
    /// # Errors
    /// The reason why the server grants no delegation.
    pub fn delegate(
        &mut self,
        client: ClientId,
        file: FileId,
        (access, want): (u32, Want),
        change: u64,
        now: Timestamp,
    ) -> std::result::Result<(stateid4, DelegationKind), WhyNoDelegation> {
        let kind = fitting(access, want).ok_or(WhyNoDelegation::Unfit)?;
        if !self.is_callable(client) {
            return Err(WhyNoDelegation::Resource);
        }
        let cools = want == Want::None && self.delegations.cooling.get(&file).is_some_and(|until| *until > now);
        if cools || self.delegations.frozen.contains_key(&file) || self.is_used_by_others(client, file, kind) {
            return Err(WhyNoDelegation::Contention);
        }
        let reads = access & OPEN4_SHARE_ACCESS_READ != 0;
        if want == Want::Data
            && let Some(held) = self.delegate_again(client, file, kind, reads)
        {
            return held;
        }
        // A client has no use for a second delegation of a file, so the server grants only one.
        if self.is_full_of_delegations(client) || self.delegations.client_has(client, file) {
            return Err(WhyNoDelegation::Resource);
        }
        let given = Delegation { reads, data: want == Want::Data, ..Delegation::new(client, file, kind, change) };
        Ok((self.add_delegation(given), kind))
    }

    /// Handles the OPEN of a client that wants a data delegation ([`WANT_DATA`]) and may already hold a delegation of
    /// the file. Returns a held data delegation if it suffices for the open, and an error if the held delegation is
    /// recalled or is not a data delegation. Returns `None` if the caller must grant a new delegation: the client holds
    /// none, or it holds a read delegation, which this call removes, and can get a write delegation. A new stateid then
    /// distinguishes recalls of the write delegation from recalls of the read delegation.
    fn delegate_again(
        &mut self,
        client: ClientId,
        file: FileId,
        kind: DelegationKind,
        reads: bool,
    ) -> Option<std::result::Result<(stateid4, DelegationKind), WhyNoDelegation>> {
        let (other, _) = self.delegations.of(client, file)?;
        let held = self.delegations.by_other.get_mut(&other)?;
        if !held.data || held.deadline.is_some() {
            return Some(Err(WhyNoDelegation::Contention));
        }
        if kind == DelegationKind::Write && held.kind == DelegationKind::Read {
            self.delegations.remove(&other);
            return None;
        }
        held.reads |= reads;
        Some(Ok((stateid4 { seqid: 1, other }, held.kind)))
    }

    fn is_full_of_delegations(&self, client: ClientId) -> bool {
        let all = (self.delegations.by_other.len(), limits::DELEGATIONS_MAX);
        self.delegations.of_client(client) >= limits::DELEGATIONS_PER_CLIENT_MAX
            || self.is_share_full(client, |id| self.delegations.of_client(id), all)
    }

    fn add_delegation(&mut self, given: Delegation) -> stateid4 {
        let other = self.new_other(Kind::Delegation);
        self.delegations.add(other, given);
        stateid4 { seqid: 1, other }
    }

    /// Returns whether opens or delegations of other clients exclude this kind of delegation. A delegation of another
    /// client counts as an open, because the holder may have opened the file without an OPEN.
    fn is_used_by_others(&self, client: ClientId, file: FileId, kind: DelegationKind) -> bool {
        let open = match kind {
            DelegationKind::Names => false,
            DelegationKind::Read => self.opens.others_write_or_deny(client, file),
            DelegationKind::Write => self.opens.others_have(client, file),
        };
        let needs = if kind == DelegationKind::Read { Use::Read } else { Use::Write };
        open || !self.delegations.in_the_way(file, needs, Some(client)).is_empty()
    }

    /// Grants a directory delegation (GET_DIR_DELEGATION, §18.39), if possible. Directory delegations do not survive a
    /// restart of the server; the client must request them again.
    ///
    /// # Errors
    /// The reason why the server grants no delegation.
    pub fn delegate_names(
        &mut self,
        client: ClientId,
        dir: FileId,
        now: Timestamp,
    ) -> std::result::Result<stateid4, WhyNoDelegation> {
        let held = &self.delegations;
        let full = self.is_full_of_delegations(client) || held.client_has(client, dir);
        if full || !self.is_callable(client) || self.check_grace(client, false).is_err() {
            return Err(WhyNoDelegation::Resource);
        }
        // Grant no delegation during a recall or in the recall cooldown (the time after a recall). Otherwise clients
        // that create names in one directory would get delegations and wait for each other's recalls all the time.
        let recalled = held.on(dir).any(|(_, other)| other.deadline.is_some());
        if recalled || held.frozen.contains_key(&dir) || held.cooling.get(&dir).is_some_and(|until| *until > now) {
            return Err(WhyNoDelegation::Contention);
        }
        Ok(self.add_delegation(Delegation::new(client, dir, DelegationKind::Names, 0)))
    }

    /// Removes all delegations of a directory that no longer exists.
    pub fn forget_names(&mut self, dir: FileId) {
        let all = self.delegations.on(dir).filter(|(_, held)| held.kind == DelegationKind::Names);
        let all: Vec<Other> = all.map(|(other, _)| other).collect();
        all.iter().for_each(|other| self.drop_delegation(other));
    }

    /// Reclaims a delegation from before a restart of the server, together with the open (CLAIM_PREVIOUS, §18.16.3).
    /// The flag in the result is set if the client must return the delegation at once, because the server cannot call
    /// the client back.
    ///
    /// # Errors
    /// RECLAIM_CONFLICT: other clients have reclaimed conflicting state.
    pub fn reclaim_delegation(
        &mut self,
        client: ClientId,
        file: FileId,
        (kind, access, want): (DelegationKind, u32, Want),
        change: u64,
        now: Timestamp,
    ) -> Result<(stateid4, bool)> {
        self.check_delegation_reclaim(client, file, kind)?;
        if let Some((other, _)) = self.delegations.of(client, file) {
            return Ok((stateid4 { seqid: 1, other }, false));
        }
        let (data, reads) = (want == Want::Data, want != Want::Data || access & OPEN4_SHARE_ACCESS_READ != 0);
        let stateid = self.add_delegation(Delegation { data, reads, ..Delegation::new(client, file, kind, change) });
        let recall = !self.is_callable(client);
        if recall {
            self.delegations.begin_recall(stateid.other, now, self.config.lease, true);
        }
        Ok((stateid, recall))
    }

    /// Checks whether a client may reclaim a delegation. A client that reclaims several opens of the file may reclaim
    /// the same delegation with each of these opens.
    ///
    /// # Errors
    /// RECLAIM_CONFLICT: the client holds a delegation of another kind, or other clients use the file in a
    /// conflicting way. STALE_CLIENTID: the client record no longer exists, so no client can return the delegation.
    pub fn check_delegation_reclaim(&self, client: ClientId, file: FileId, kind: DelegationKind) -> Result<()> {
        self.clients.get(client).ok_or(NFS4ERR_STALE_CLIENTID)?;
        let conflict = match self.delegations.kind(client, file) {
            Some(held) => held != kind,
            None => self.is_used_by_others(client, file, kind),
        };
        if conflict { Err(NFS4ERR_RECLAIM_CONFLICT) } else { Ok(()) }
    }

    /// Returns the kind of the delegation with this stateid.
    ///
    /// # Errors
    /// BAD_STATEID (special, unknown, of another client or another file, or not of a delegation), OLD_STATEID,
    /// DELEG_REVOKED.
    pub fn find_delegation(&self, client: ClientId, file: FileId, stateid: &stateid4) -> Result<DelegationKind> {
        match stateids::form(stateid, self.config.boot_epoch)? {
            Form::Ordinary(Kind::Delegation) => {}
            _ => return Err(NFS4ERR_BAD_STATEID),
        }
        let found = self.delegations.get(client, stateid)?;
        if found.file == file { Ok(found.kind) } else { Err(NFS4ERR_BAD_STATEID) }
    }

    /// DELEGRETURN (§18.6). The client has already sent all changes that it made under the delegation.
    ///
    /// # Errors
    /// The errors of [`State::find_delegation`].
    pub fn return_delegation(&mut self, client: ClientId, file: FileId, stateid: &stateid4) -> Result<DelegationKind> {
        let kind = self.find_delegation(client, file, stateid)?;
        self.drop_delegation(&stateid.other);
        self.note_record(client);
        Ok(kind)
    }

    /// Returns whether any client has a delegation other than a data delegation ([`WANT_DATA`]).
    pub fn any_whole_delegation(&self) -> bool {
        self.delegations.whole > 0
    }

    /// Returns whether a delegation conflicts with a use of the file. Delegations of the client `except` do not count.
    pub fn is_delegated(&self, file: FileId, what: Use, except: Option<ClientId>) -> bool {
        !self.delegations.in_the_way(file, what, except).is_empty()
    }

    /// Returns the holder of a write delegation of the file, unless the holder is the client `except`. Only the holder
    /// knows the current attributes (§10.4.3).
    pub fn delegated_writer(&self, file: FileId, except: ClientId) -> Option<Writer> {
        let mut found =
            self.delegations.on(file).filter(|(_, d)| d.kind == DelegationKind::Write && d.client != except);
        found.next().map(|(_, d)| Writer { client: d.client, change: d.change, data: d.data })
    }

    /// Begins to recall the delegations that conflict with a use of the file. Each holder has one lease period to
    /// return its delegation. Delegations of clients with an expired lease are revoked at once.
    ///
    /// Returns the callbacks to send. The caller repeats each callback until the client answers or
    /// [`State::is_recalled`] is false.
    pub fn recall_delegations(
        &mut self,
        file: FileId,
        what: Use,
        except: Option<ClientId>,
        now: Timestamp,
    ) -> Vec<DelegationRecall> {
        let mut recalls = Vec::new();
        for (other, client) in self.delegations.in_the_way(file, what, except) {
            let held = self.delegations.by_other.get(&other);
            let kind = held.map(|held| held.kind);
            if self.is_lapsed(client) {
                // A holder of a write delegation, except a data delegation (`WANT_DATA`), may have granted byte-range
                // locks to its programs without the server. So if its lease has expired, remove all its state.
                match held.is_some_and(|held| held.kind == DelegationKind::Write && !held.data) {
                    true => self.expel(client),
                    false => self.revoke_delegation(&other, now),
                }
            } else if kind == Some(DelegationKind::Names) && !self.is_heard_of(client, RELIED_ON, now) {
                self.revoke_delegation(&other, now);
            } else if self.delegations.begin_recall(other, now, self.config.lease, self.has_backchannel(client)) {
                recalls.push(DelegationRecall { client, file, stateid: stateid4 { seqid: 1, other } });
            }
        }
        recalls
    }

    /// Records that a client has written to a file or has sent COMMIT. If the client's delegation of the file is
    /// recalled, the client gets another lease period, because writing back dirty data may take long (§10.4.6).
    pub fn flushes(&mut self, client: ClientId, file: FileId, now: Timestamp) {
        if !self.delegations.pending.is_empty() {
            self.delegations.flushes(client, file, now, self.config.lease);
        }
    }

    /// Returns whether the holder has not returned the recalled delegation yet.
    pub fn is_recalled(&self, recall: &DelegationRecall) -> bool {
        self.delegations.pending.contains(&recall.stateid.other)
    }

    /// Stops grants of delegations of a file until a matching [`State::thaw_delegations`]. Calls nest.
    pub fn freeze_delegations(&mut self, file: FileId) {
        *self.delegations.frozen.entry(file).or_default() += 1;
    }

    /// Ends one [`State::freeze_delegations`] of the file.
    pub fn thaw_delegations(&mut self, file: FileId) {
        if let Some(count) = self.delegations.frozen.get_mut(&file) {
            *count -= 1;
            if *count == 0 {
                self.delegations.frozen.remove(&file);
            }
        }
    }

    /// Revokes a delegation, and revokes or fences the holder's layouts of the file. The stateid remains as revoked, so
    /// that the client can learn of the revocation (TEST_STATEID).
    fn revoke_delegation(&mut self, other: &Other, now: Timestamp) {
        let Some(held) = self.delegations.by_other.get(other).filter(|d| !d.revoked) else { return };
        let (client, file, kind) = (held.client, held.file, held.kind);
        self.delegations.unlist(other);
        if let Some(held) = self.delegations.by_other.get_mut(other) {
            (held.revoked, held.deadline) = (true, None);
        }
        *self.delegations.revoked.entry(client).or_default() += 1;
        match self.is_lapsed(client) {
            true => self.fence_lapsed(client, file),
            false => self.revoke_layouts(client, file, now),
        }
        self.delegation_gone(client, file, kind);
    }

    fn drop_delegation(&mut self, other: &Other) {
        if let Some(gone) = self.delegations.remove(other).filter(|d| !d.revoked) {
            self.delegation_gone(gone.client, gone.file, gone.kind);
        }
    }

    /// Updates the tables after a delegation was returned or revoked. A file delegation counts as an open, so the end
    /// of a delegation may have the effect of the last CLOSE of the file.
    fn delegation_gone(&mut self, client: ClientId, file: FileId, kind: DelegationKind) {
        if !self.opens.client_has(client, file) {
            self.drop_return_on_close(client, file);
        }
        self.delegations.returned_writes += u64::from(kind == DelegationKind::Write);
        self.effects.push(Effect::DelegationGone(file));
        // A directory delegation does not count as an open, so its end is never the last close.
        if kind != DelegationKind::Names && !self.is_open(file) {
            self.effects.push(Effect::LastClose(file));
        }
    }

    /// Returns how many write delegations were returned or revoked since the server started.
    pub(crate) fn returned_write_delegations(&self) -> u64 {
        self.delegations.returned_writes
    }

    /// FREE_STATEID of a delegation (§18.38); only a revoked delegation can be freed.
    pub(crate) fn free_delegation(&mut self, client: ClientId, stateid: &stateid4) -> Result<()> {
        match self.delegations.get(client, stateid) {
            Err(NFS4ERR_DELEG_REVOKED) => {
                self.drop_delegation(&stateid.other);
                Ok(())
            }
            found => found.and(Err(NFS4ERR_LOCKS_HELD)),
        }
    }

    /// Removes all delegations of a client whose record is removed.
    pub(crate) fn drop_delegations(&mut self, client: ClientId) {
        for other in self.delegations.by_client.get(&client).cloned().unwrap_or_default() {
            self.drop_delegation(&other);
        }
        self.delegations.doubted.remove(&client);
    }

    /// Handles overdue recalls of delegations. For each client that has not returned a delegation in time, the method
    /// requests deletion of the client's durable record, and [`State::distrusted`] then revokes the delegation. So the
    /// client cannot reclaim, after a restart, state that other clients have held since the revocation (§8.4.3).
    pub(crate) fn expire_delegations(&mut self, now: Timestamp) {
        self.delegations.cooling.retain(|_, until| *until > now);
        // A directory delegation cannot be reclaimed, so the server revokes the delegation without deleting the
        // client's record.
        let names = self.delegations.overdue(now).filter(|(_, held)| held.kind == DelegationKind::Names);
        let names: Vec<Other> = names.map(|(other, _)| other).collect();
        names.iter().for_each(|other| self.revoke_delegation(other, now));
        for client in self.delegations.to_return_data() {
            let connected = self.has_backchannel(client);
            self.delegations.is_connected(client, connected, now, self.config.lease);
        }
        let late: BTreeSet<_> = self.delegations.overdue(now).map(|(_, d)| d.client).collect();
        for client in late {
            if self.is_lapsed(client) {
                // The server has already deleted the durable record of a client with an expired lease, so revoke the
                // delegation now.
                self.revoke_overdue(client, now);
            } else if let Some(record) = self.clients.get_mut(client).filter(|c| c.lapse == Lapse::None) {
                record.recorded = false;
                self.delegations.doubted.insert(client);
                self.effects.push(Effect::Distrust { client, owner: record.owner.clone() });
            }
        }
    }

    fn revoke_overdue(&mut self, client: ClientId, now: Timestamp) {
        let late: Vec<_> =
            self.delegations.overdue(now).filter(|(_, d)| d.client == client).map(|(other, _)| other).collect();
        late.iter().for_each(|other| self.revoke_delegation(other, now));
    }

    /// Revokes the overdue delegations of a client, after the server has deleted the client's record from disk.
    pub fn distrusted(&mut self, client: ClientId, now: Timestamp) {
        self.delegations.doubted.remove(&client);
        self.unrecord(client);
        self.revoke_overdue(client, now);
        // Store the client's record again if the client returned all recalled delegations while the server deleted the
        // record.
        self.note_record(client);
    }
}
