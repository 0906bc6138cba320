//! Delegations: the right of a client to open, read or change a file without asking the server, and its recall (RFC
//! 8881 §10.2 to §10.4).
//!
//! A client with a delegation counts as having the file open. A conflicting open by another client, or its change of
//! the file's names or attributes, waits until the delegation is returned. A client holds at most one delegation of a
//! file. A client's own opens never conflict with its delegation.

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

/// For how long after a recall only clients that ask for a delegation of the file get one.
const COOLING: Duration = Duration::from_secs(60);
/// Largest number of files for which the server remembers a recall.
const COOLING_MAX: usize = 4096;

/// The time within which a client without a backchannel connection must return a delegation of data. Its process was
/// most likely killed, and other clients wait; after this time the server revokes the delegation.
const UNREACHED: Duration = Duration::from_secs(5);

/// Largest number of lease periods that a client gets to return a delegation while it keeps writing back its dirty
/// data.
const LEASES_MAX: u32 = 8;

/// What a delegation is for (`open_delegation_type4`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Power {
    /// No other client writes or changes the file (OPEN_DELEGATE_READ).
    Read,
    /// No other client has the file open (OPEN_DELEGATE_WRITE).
    Write,
    /// For a directory: no other client creates, moves or removes names in it, or changes its attributes
    /// (GET_DIR_DELEGATION, §10.9). The holder's own changes do not cause a recall. It does not count as an open.
    Names,
}

/// The client's wish for a delegation in an OPEN (`OPEN4_SHARE_ACCESS_WANT_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// No wish.
    None,
    /// A delegation of this kind only.
    Exactly(Power),
    /// Any delegation that fits the open.
    Any,
    /// Any delegation of the data only ([`WANT_DATA`]) that fits the open.
    Data,
}

/// The wish of Weir's clients, among the values of `OPEN4_SHARE_ACCESS_WANT_DELEG_MASK`: a delegation of the data only.
/// Its holder buffers and caches bytes, size and times, and nothing else: other clients change names, modes and
/// extended attributes without a recall. It fits an open for writing only. A client that asks again receives the
/// delegation that it already holds. A read delegation becomes a write delegation if no other client has the file open.
/// See `docs/native-protocol.md`.
pub const WANT_DATA: u32 = 0x8000;

/// Why the server grants no delegation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotGiven {
    /// Other clients use the file, or have just used it.
    Contention,
    /// There are too many delegations, or the server cannot call the client back.
    Resource,
    /// The delegation would not fit the open: a write delegation lets the client read as well.
    Unfit,
}

/// The use of a file that a client is about to make, as far as delegations of other clients conflict with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Opens the file for reading without a deny mode, or reads without an open.
    Look,
    /// Writes, denies access, or changes the size or the modification time.
    Change,
    /// Changes names, or attributes that do not describe the data.
    Describe,
}

impl Use {
    /// Returns the use of an open with these share bits.
    pub fn of_open(access: u32, deny: u32) -> Self {
        if access & OPEN4_SHARE_ACCESS_WRITE == 0 && deny == 0 { Use::Look } else { Use::Change }
    }

    fn conflicts(self, held: &Delegation) -> bool {
        match self {
            Use::Look => held.power == Power::Write,
            Use::Change => true,
            Use::Describe => !held.data,
        }
    }
}

/// One delegation.
#[derive(Clone, Debug)]
struct Delegation {
    client: ClientId,
    file: FileId,
    power: Power,
    /// Whether it covers the data only ([`WANT_DATA`]).
    data: bool,
    /// Whether it lets the client read; false if it came with an open for writing only.
    reads: bool,
    /// The change attribute at the time of the grant; the server compares the client's later values with it (§10.4.3).
    change: u64,
    /// When the server revokes it, if it was recalled and is not returned.
    deadline: Option<Deadline>,
    /// Whether the server has revoked it; the entry stays until the client shows that it knows.
    revoked: bool,
}

impl Delegation {
    /// Returns a delegation of data, names and attributes.
    fn new(client: ClientId, file: FileId, power: Power, change: u64) -> Self {
        Delegation { client, file, power, data: false, reads: true, change, deadline: None, revoked: false }
    }
}

/// When the server revokes a delegation.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    at: Timestamp,
    /// Whether the deadline is early because the client has no backchannel connection. Once it connects again, it gets
    /// a full lease period.
    early: bool,
    /// The latest deadline, however much data the client still has to write.
    last: Timestamp,
}

/// A CB_RECALL that the server sends, and repeats until the client answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DelegationRecall {
    /// The client that receives the recall.
    pub client: ClientId,
    /// The delegated file.
    pub file: FileId,
    /// The stateid of the delegation.
    pub stateid: stateid4,
}

/// The client with a write delegation of a file, which alone knows the file's current attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Writer {
    /// The client.
    pub client: ClientId,
    /// The change attribute that the client received with its delegation.
    pub change: u64,
    /// Whether the delegation covers the data only: such a client does not answer CB_GETATTR, and returns the
    /// delegation instead.
    pub data: bool,
}

/// All delegations.
#[derive(Clone, Debug, Default)]
pub struct Delegations {
    by_other: HashMap<Other, Delegation>,
    /// Number of delegations that cover more than data, revoked ones included.
    whole: usize,
    /// Valid delegations, by file and client.
    by_file: HashMap<FileId, HashMap<ClientId, Other>>,
    /// All delegations of each client, revoked ones included.
    by_client: HashMap<ClientId, BTreeSet<Other>>,
    /// Number of revoked delegations that each client has not yet freed; every SEQUENCE reads it.
    revoked: HashMap<ClientId, usize>,
    /// Files for which the server grants no delegation for the moment, with the number of freezes.
    frozen: HashMap<FileId, u32>,
    /// Files with a recent recall, and until when the recall counts.
    cooling: HashMap<FileId, Timestamp>,
    /// Delegations that are recalled and not yet returned.
    pending: BTreeSet<Other>,
    /// Clients about to lose a delegation: the server stores no record for them until their old records are deleted
    /// from disk.
    doubted: BTreeSet<ClientId>,
}

impl Delegations {
    /// Number of valid delegations.
    pub(crate) fn len(&self) -> usize {
        self.by_other.len() - self.revoked.values().sum::<usize>()
    }

    pub(crate) fn recalls(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn any_revoked(&self, client: ClientId) -> bool {
        self.revoked.contains_key(&client)
    }

    /// Number of delegations of a client, revoked ones included.
    fn of_client(&self, client: ClientId) -> usize {
        self.by_client.get(&client).map_or(0, BTreeSet::len)
    }

    /// Number of delegations of a client that are not revoked.
    pub(crate) fn live(&self, client: ClientId) -> usize {
        self.of_client(client) - self.revoked.get(&client).copied().unwrap_or(0)
    }

    /// Returns whether a client has a delegation of the file that keeps it open.
    pub(crate) fn is_held(&self, file: FileId) -> bool {
        self.on(file).any(|(_, held)| held.power != Power::Names)
    }

    /// The delegation of a client for a file.
    fn of(&self, client: ClientId, file: FileId) -> Option<(Other, &Delegation)> {
        let other = self.by_file.get(&file)?.get(&client)?;
        Some((*other, self.by_other.get(other)?))
    }

    /// Returns whether a client's delegation of a file lets it read.
    pub(crate) fn reads(&self, client: ClientId, file: FileId) -> bool {
        self.of(client, file).is_some_and(|(_, held)| held.reads)
    }

    /// The kind of a client's delegation of a file, if it has one.
    pub(crate) fn power(&self, client: ClientId, file: FileId) -> Option<Power> {
        self.of(client, file).map(|(_, held)| held.power)
    }

    pub(crate) fn client_has(&self, client: ClientId, file: FileId) -> bool {
        self.of(client, file).is_some()
    }

    fn on(&self, file: FileId) -> impl Iterator<Item = (Other, &Delegation)> {
        let others = self.by_file.get(&file).into_iter().flat_map(HashMap::values);
        others.filter_map(|other| Some((*other, self.by_other.get(other)?)))
    }

    /// Returns the conflicting delegations of clients other than `except`, in order.
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

    /// Removes a delegation from the valid ones.
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

    /// Returns whether the client must not reclaim after a restart: the server has revoked, or is about to revoke, a
    /// delegation, and the client does not know yet.
    pub(crate) fn is_distrusted(&self, client: ClientId) -> bool {
        self.any_revoked(client) || self.doubted.contains(&client)
    }

    fn overdue(&self, now: Timestamp) -> impl Iterator<Item = (Other, &Delegation)> {
        let pending = self.pending.iter().filter_map(|other| Some((*other, self.by_other.get(other)?)));
        pending.filter(move |(_, d)| d.deadline.is_some_and(|deadline| deadline.at <= now))
    }

    /// See [`State::flushes`].
    fn flushes(&mut self, client: ClientId, file: FileId, now: Timestamp, lease: Duration) {
        let Some(other) = self.by_file.get(&file).and_then(|holders| holders.get(&client)) else { return };
        if let Some(deadline) = self.by_other.get_mut(other).and_then(|held| held.deadline.as_mut()) {
            deadline.at = deadline.at.max(now.after(lease).min(deadline.last));
        }
    }

    /// Returns the clients that must return a delegation of data; they have only [`UNREACHED`] while they are
    /// disconnected.
    fn to_return_data(&self) -> BTreeSet<ClientId> {
        let pending = self.pending.iter().filter_map(|other| self.by_other.get(other));
        pending.filter(|held| held.data && held.deadline.is_some()).map(|held| held.client).collect()
    }

    /// Adjusts deadlines when a client connects or disconnects: a connected client has a lease period from now on, a
    /// disconnected client only [`UNREACHED`].
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

    /// Begins a recall: the client has one lease period to return the delegation, less if it is disconnected and
    /// presumed dead.
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

/// Returns the kind of delegation that fits the access bits of an open and the wish; `None` if no kind fits.
fn fitting(access: u32, wish: Wish) -> Option<Power> {
    let both = access & OPEN4_SHARE_ACCESS_BOTH == OPEN4_SHARE_ACCESS_BOTH;
    let reads = access & OPEN4_SHARE_ACCESS_READ != 0;
    let writes = access & OPEN4_SHARE_ACCESS_WRITE != 0;
    match wish {
        Wish::Data if writes => Some(Power::Write),
        // The holder of a write delegation reads without asking; an open for writing only does not permit this.
        Wish::Exactly(Power::Write) => both.then_some(Power::Write),
        Wish::Exactly(Power::Names) => None,
        Wish::Exactly(Power::Read) => reads.then_some(Power::Read),
        Wish::None | Wish::Any if both => Some(Power::Write),
        Wish::None | Wish::Any | Wish::Data => reads.then_some(Power::Read),
    }
}

impl State {
    /// Grants a delegation of a file that the client has just opened with these access bits, if possible.
    ///
    /// `change` is the file's change attribute as the client receives it.
    ///
    /// # Errors
    /// Why the server grants none.
    pub fn delegate(
        &mut self,
        client: ClientId,
        file: FileId,
        (access, wish): (u32, Wish),
        change: u64,
        now: Timestamp,
    ) -> std::result::Result<(stateid4, Power), NotGiven> {
        let power = fitting(access, wish).ok_or(NotGiven::Unfit)?;
        if !self.is_callable(client) {
            return Err(NotGiven::Resource);
        }
        let cools = wish == Wish::None && self.delegations.cooling.get(&file).is_some_and(|until| *until > now);
        if cools || self.delegations.frozen.contains_key(&file) || self.is_used_by_others(client, file, power) {
            return Err(NotGiven::Contention);
        }
        let reads = access & OPEN4_SHARE_ACCESS_READ != 0;
        if wish == Wish::Data
            && let Some(held) = self.delegate_again(client, file, power, reads)
        {
            return held;
        }
        // A second delegation of the same file has no value for the client.
        if self.is_full_of_delegations(client) || self.delegations.client_has(client, file) {
            return Err(NotGiven::Resource);
        }
        let given = Delegation { reads, data: wish == Wish::Data, ..Delegation::new(client, file, power, change) };
        Ok((self.add_delegation(given), power))
    }

    /// Answers a client that asks for a delegation of data and already holds a delegation of the file. It receives the
    /// same delegation if that is enough. A read delegation ends so that a write delegation replaces it: the new
    /// stateid distinguishes recalls of the two delegations.
    fn delegate_again(
        &mut self,
        client: ClientId,
        file: FileId,
        power: Power,
        reads: bool,
    ) -> Option<std::result::Result<(stateid4, Power), NotGiven>> {
        let (other, _) = self.delegations.of(client, file)?;
        let held = self.delegations.by_other.get_mut(&other)?;
        if !held.data || held.deadline.is_some() {
            return Some(Err(NotGiven::Contention));
        }
        if power == Power::Write && held.power == Power::Read {
            self.delegations.remove(&other);
            return None;
        }
        held.reads |= reads;
        Some(Ok((stateid4 { seqid: 1, other }, held.power)))
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

    /// Returns whether other clients use the file in a way that this kind of delegation excludes, by opens or by
    /// delegations. A client may have opened the file under its delegation without the server's knowledge.
    fn is_used_by_others(&self, client: ClientId, file: FileId, power: Power) -> bool {
        let open = match power {
            Power::Names => false,
            Power::Read => self.opens.others_write_or_deny(client, file),
            Power::Write => self.opens.others_have(client, file),
        };
        let needs = if power == Power::Read { Use::Look } else { Use::Change };
        open || !self.delegations.in_the_way(file, needs, Some(client)).is_empty()
    }

    /// Grants a delegation of the names in a directory (GET_DIR_DELEGATION, §18.39), if possible. These delegations do
    /// not survive a restart of the server: the client must ask again.
    ///
    /// # Errors
    /// Why the server grants none.
    pub fn delegate_names(
        &mut self,
        client: ClientId,
        dir: FileId,
        now: Timestamp,
    ) -> std::result::Result<stateid4, NotGiven> {
        let held = &self.delegations;
        let full = self.is_full_of_delegations(client) || held.client_has(client, dir);
        if full || !self.is_callable(client) || self.check_grace(client, false).is_err() {
            return Err(NotGiven::Resource);
        }
        // If several clients create names in a directory, each would have to wait for all other clients.
        let recalled = held.on(dir).any(|(_, other)| other.deadline.is_some());
        if recalled || held.frozen.contains_key(&dir) || held.cooling.get(&dir).is_some_and(|until| *until > now) {
            return Err(NotGiven::Contention);
        }
        Ok(self.add_delegation(Delegation::new(client, dir, Power::Names, 0)))
    }

    /// Drops all delegations of the names in a directory that no longer exists.
    pub fn forget_names(&mut self, dir: FileId) {
        let all = self.delegations.on(dir).filter(|(_, held)| held.power == Power::Names);
        let all: Vec<Other> = all.map(|(other, _)| other).collect();
        all.iter().for_each(|other| self.drop_delegation(other));
    }

    /// Reclaims a delegation from before the restart together with the open (CLAIM_PREVIOUS, §18.16.3). The flag says
    /// whether the client must return it at once, because the server cannot call it back.
    ///
    /// # Errors
    /// RECLAIM_CONFLICT: other clients have reclaimed conflicting state.
    pub fn reclaim_delegation(
        &mut self,
        client: ClientId,
        file: FileId,
        (power, access, wish): (Power, u32, Wish),
        change: u64,
        now: Timestamp,
    ) -> Result<(stateid4, bool)> {
        self.check_delegation_reclaim(client, file, power)?;
        if let Some((other, _)) = self.delegations.of(client, file) {
            return Ok((stateid4 { seqid: 1, other }, false));
        }
        let (data, reads) = (wish == Wish::Data, wish != Wish::Data || access & OPEN4_SHARE_ACCESS_READ != 0);
        let stateid = self.add_delegation(Delegation { data, reads, ..Delegation::new(client, file, power, change) });
        let recall = !self.is_callable(client);
        if recall {
            self.delegations.begin_recall(stateid.other, now, self.config.lease, true);
        }
        Ok((stateid, recall))
    }

    /// Checks whether a client may reclaim a delegation. Each open of the file that the client reclaims may name the
    /// delegation again.
    ///
    /// # Errors
    /// RECLAIM_CONFLICT; STALE_CLIENTID: the client no longer exists, perhaps since its request began, and would never
    /// return a delegation.
    pub fn check_delegation_reclaim(&self, client: ClientId, file: FileId, power: Power) -> Result<()> {
        self.clients.get(client).ok_or(NFS4ERR_STALE_CLIENTID)?;
        let conflict = match self.delegations.power(client, file) {
            Some(held) => held != power,
            None => self.is_used_by_others(client, file, power),
        };
        if conflict { Err(NFS4ERR_RECLAIM_CONFLICT) } else { Ok(()) }
    }

    /// Returns the kind of the delegation with this stateid.
    ///
    /// # Errors
    /// BAD_STATEID (special, unknown, of another client or another file, or not of a delegation), OLD_STATEID,
    /// DELEG_REVOKED.
    pub fn find_delegation(&self, client: ClientId, file: FileId, stateid: &stateid4) -> Result<Power> {
        match stateids::form(stateid, self.config.boot_epoch)? {
            Form::Ordinary(Kind::Delegation) => {}
            _ => return Err(NFS4ERR_BAD_STATEID),
        }
        let found = self.delegations.get(client, stateid)?;
        if found.file == file { Ok(found.power) } else { Err(NFS4ERR_BAD_STATEID) }
    }

    /// DELEGRETURN (§18.6): the client has sent to the server everything that it did under the delegation.
    ///
    /// # Errors
    /// The errors of [`State::find_delegation`].
    pub fn return_delegation(&mut self, client: ClientId, file: FileId, stateid: &stateid4) -> Result<Power> {
        let power = self.find_delegation(client, file, stateid)?;
        self.drop_delegation(&stateid.other);
        self.note_record(client);
        Ok(power)
    }

    /// Returns whether a client has a delegation that covers more than data.
    pub fn any_whole_delegation(&self) -> bool {
        self.delegations.whole > 0
    }

    /// Returns whether clients other than `except` have delegations that conflict with a use.
    pub fn is_delegated(&self, file: FileId, what: Use, except: Option<ClientId>) -> bool {
        !self.delegations.in_the_way(file, what, except).is_empty()
    }

    /// Returns the client with a write delegation of the file, unless it is `except`: only this client knows the
    /// attributes (§10.4.3).
    pub fn delegated_writer(&self, file: FileId, except: ClientId) -> Option<Writer> {
        let mut found = self.delegations.on(file).filter(|(_, d)| d.power == Power::Write && d.client != except);
        found.next().map(|(_, d)| Writer { client: d.client, change: d.change, data: d.data })
    }

    /// Begins to recall the delegations that conflict with a use; clients must return them within one lease period.
    /// Revokes delegations of lapsed clients at once.
    ///
    /// Returns the callbacks to send. The caller repeats each until the client answers or [`State::is_recalled`] is
    /// false.
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
            let power = held.map(|held| held.power);
            if self.is_lapsed(client) {
                // Under a full write delegation there may be locks that only the client knows of, so the client loses
                // all its state.
                match held.is_some_and(|held| held.power == Power::Write && !held.data) {
                    true => self.expel(client),
                    false => self.revoke_delegation(&other, now),
                }
            } else if power == Some(Power::Names) && !self.is_heard_of(client, RELIED_ON, now) {
                self.revoke_delegation(&other, now);
            } else if self.delegations.begin_recall(other, now, self.config.lease, self.has_backchannel(client)) {
                recalls.push(DelegationRecall { client, file, stateid: stateid4 { seqid: 1, other } });
            }
        }
        recalls
    }

    /// Notes that a client has written to a file, or committed its writes. If its delegation is recalled, the client
    /// gets another lease period to return it: writing back its dirty data may take longer than one (§10.4.6).
    pub fn flushes(&mut self, client: ClientId, file: FileId, now: Timestamp) {
        if !self.delegations.pending.is_empty() {
            self.delegations.flushes(client, file, now, self.config.lease);
        }
    }

    /// Returns whether the server still waits for the return of a recalled delegation.
    pub fn is_recalled(&self, recall: &DelegationRecall) -> bool {
        self.delegations.pending.contains(&recall.stateid.other)
    }

    /// Stops grants of delegations of a file until [`State::thaw_delegations`]; calls nest.
    pub fn freeze_delegations(&mut self, file: FileId) {
        *self.delegations.frozen.entry(file).or_default() += 1;
    }

    /// Undoes one [`State::freeze_delegations`].
    pub fn thaw_delegations(&mut self, file: FileId) {
        if let Some(count) = self.delegations.frozen.get_mut(&file) {
            *count -= 1;
            if *count == 0 {
                self.delegations.frozen.remove(&file);
            }
        }
    }

    /// Revokes a delegation; its stateid stays so that the client can learn of it. The former holder must no longer
    /// write to the data servers.
    fn revoke_delegation(&mut self, other: &Other, now: Timestamp) {
        let Some(held) = self.delegations.by_other.get(other).filter(|d| !d.revoked) else { return };
        let (client, file, power) = (held.client, held.file, held.power);
        self.delegations.unlist(other);
        if let Some(held) = self.delegations.by_other.get_mut(other) {
            (held.revoked, held.deadline) = (true, None);
        }
        *self.delegations.revoked.entry(client).or_default() += 1;
        match self.is_lapsed(client) {
            true => self.fence_lapsed(client, file),
            false => self.revoke_layouts(client, file, now),
        }
        self.delegation_gone(client, file, power);
    }

    fn drop_delegation(&mut self, other: &Other) {
        if let Some(gone) = self.delegations.remove(other).filter(|d| !d.revoked) {
            self.delegation_gone(gone.client, gone.file, gone.power);
        }
    }

    /// Carries out the consequences of the end of a delegation, which kept the file open.
    fn delegation_gone(&mut self, client: ClientId, file: FileId, power: Power) {
        if !self.opens.client_has(client, file) {
            self.drop_return_on_close(client, file);
        }
        self.effects.push(Effect::DelegationGone(file));
        // Directories are never open, and are freed with their names.
        if power != Power::Names && !self.is_open(file) {
            self.effects.push(Effect::LastClose(file));
        }
    }

    /// FREE_STATEID of a delegation (§18.38), which must be revoked.
    pub(crate) fn free_delegation(&mut self, client: ClientId, stateid: &stateid4) -> Result<()> {
        match self.delegations.get(client, stateid) {
            Err(NFS4ERR_DELEG_REVOKED) => {
                self.drop_delegation(&stateid.other);
                Ok(())
            }
            found => found.and(Err(NFS4ERR_LOCKS_HELD)),
        }
    }

    /// Drops all delegations of a client that no longer exists.
    pub(crate) fn drop_delegations(&mut self, client: ClientId) {
        for other in self.delegations.by_client.get(&client).cloned().unwrap_or_default() {
            self.drop_delegation(&other);
        }
        self.delegations.doubted.remove(&client);
    }

    /// Requests deletion of the records of clients that have not returned a recalled delegation in time. After a
    /// restart they must not reclaim state that other clients have held meanwhile (§8.4.3). [`State::distrusted`] then
    /// revokes the delegation.
    pub(crate) fn expire_delegations(&mut self, now: Timestamp) {
        self.delegations.cooling.retain(|_, until| *until > now);
        // Delegations of names cannot be reclaimed, so the server revokes them at once.
        let names = self.delegations.overdue(now).filter(|(_, held)| held.power == Power::Names);
        let names: Vec<Other> = names.map(|(other, _)| other).collect();
        names.iter().for_each(|other| self.revoke_delegation(other, now));
        for client in self.delegations.to_return_data() {
            let connected = self.has_backchannel(client);
            self.delegations.is_connected(client, connected, now, self.config.lease);
        }
        let late: BTreeSet<_> = self.delegations.overdue(now).map(|(_, d)| d.client).collect();
        for client in late {
            if self.is_lapsed(client) {
                // The durable record of a lapsed client is already deleted, so the client cannot reclaim.
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

    /// Revokes the overdue delegations of a client whose record is deleted from disk.
    pub fn distrusted(&mut self, client: ClientId, now: Timestamp) {
        self.delegations.doubted.remove(&client);
        self.unrecord(client);
        self.revoke_overdue(client, now);
        // The client may have returned everything meanwhile.
        self.note_record(client);
    }
}
