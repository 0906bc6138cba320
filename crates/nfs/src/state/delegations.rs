//! Delegations: who may open, read or change a file without asking, and how that is taken back (RFC 8881 §10.2 to §10.4).
//!
//! Whoever has one counts as having the file open: others that open it in a way that would not go together, or change it
//! by name or attribute, come later, when it is back. A client has at most one delegation of a file. Its own opens never
//! stand in its way.

use crate::names::RELIED_ON;
use crate::state::leases::Lapse;
use crate::state::stateids::{self, Form, Kind};
use crate::state::{ClientId, Effect, Result, State};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;
use types::{FileId, Timestamp, limits};
use wire::nfs4::nfsstat4::*;
use wire::nfs4::{OPEN4_SHARE_ACCESS_BOTH, OPEN4_SHARE_ACCESS_READ, OPEN4_SHARE_ACCESS_WRITE, stateid4};

type Other = [u8; 12];

/// For how long after a recall a file is delegated only to those who ask for it.
const COOLING: Duration = Duration::from_secs(60);
/// Of how many files that is remembered at most.
const COOLING_MAX: usize = 4096;

/// How long a client without a connection for callbacks has to return before a delegation of data is revoked: its process was killed, most likely, and others wait.
const UNREACHED: Duration = Duration::from_secs(5);

/// How many leases a client has at most that goes on writing what it kept of the file.
const LEASES_MAX: u32 = 8;

/// What a delegation is for (`open_delegation_type4`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Power {
    /// Nobody else writes or changes the file (OPEN_DELEGATE_READ).
    Read,
    /// Nobody else has the file open at all (OPEN_DELEGATE_WRITE).
    Write,
    /// Of a directory: nobody else makes, moves or removes names in it, or changes its attributes (GET_DIR_DELEGATION, §10.9). Its client does,
    /// without being asked for it back. It keeps nothing open.
    Names,
}

/// What the client of an OPEN says about delegations (`OPEN4_SHARE_ACCESS_WANT_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// Nothing.
    None,
    /// One of this kind and no other.
    Exactly(Power),
    /// Whichever goes with the open.
    Any,
    /// Whichever goes with the open, of the data alone ([`WANT_DATA`]).
    Data,
}

/// The wish of our own clients, among the values of `OPEN4_SHARE_ACCESS_WANT_DELEG_MASK`: a delegation of the data alone. Its holder buffers and caches
/// bytes, size and times, and relies on nothing else: others change names, modes and extended attributes without a recall. It fits an open for
/// writing alone. A client that asks again receives the delegation that it holds, and one for reading becomes one for writing where nobody else has the
/// file open. See `docs/native-protocol.md`.
pub const WANT_DATA: u32 = 0x8000;

/// Why none is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotGiven {
    /// Others use the file, or have just done so.
    Contention,
    /// There are too many, or the client cannot be called back.
    Resource,
    /// It would not go with the open: a delegation for writing lets the client read as well.
    Unfit,
}

/// What somebody is about to do with a file, as far as the delegations of others stand in its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Looks at it: opens it for reading, denying nobody anything, or reads without an open.
    Look,
    /// Writes, denies, changes the size or the modification time.
    Change,
    /// Changes names, or attributes that say nothing of the data.
    Describe,
}

impl Use {
    /// What an open with these share bits does.
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
    /// Whether it is of the data alone ([`WANT_DATA`]).
    data: bool,
    /// Whether it lets the client read: not if it came with an open for writing alone.
    reads: bool,
    /// The change attribute when it was given: what the client tells later is compared with it (§10.4.3).
    change: u64,
    /// When it is revoked, if it was recalled and is not back.
    deadline: Option<Deadline>,
    /// Taken away; kept until the client shows that it knows.
    revoked: bool,
}

impl Delegation {
    /// One that a client may rely on in everything.
    fn new(client: ClientId, file: FileId, power: Power, change: u64) -> Self {
        Delegation { client, file, power, data: false, reads: true, change, deadline: None, revoked: false }
    }
}

/// When a delegation is revoked.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    at: Timestamp,
    /// Whether that is soon, as the client has no connection for callbacks: once it has one again it has a lease.
    early: bool,
    /// However much its client has still to write.
    last: Timestamp,
}

/// A CB_RECALL to be sent, and sent again until it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DelegationRecall {
    /// To whom.
    pub client: ClientId,
    /// Of which file.
    pub file: FileId,
    /// The delegation.
    pub stateid: stateid4,
}

/// Who has a file alone, so that its attributes have to be asked for there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Writer {
    /// The client.
    pub client: ClientId,
    /// The change attribute that it was told when it got its delegation.
    pub change: u64,
    /// Whether its delegation is of the data alone: such a client answers no CB_GETATTR, and returns the delegation instead.
    pub data: bool,
}

/// All delegations.
#[derive(Clone, Debug, Default)]
pub struct Delegations {
    by_other: HashMap<Other, Delegation>,
    /// How many of them are about more than data, those taken away included.
    whole: usize,
    /// Those that count, by file and client.
    by_file: HashMap<FileId, HashMap<ClientId, Other>>,
    /// All, those taken away included.
    by_client: HashMap<ClientId, BTreeSet<Other>>,
    /// How many revoked ones each client has not yet given up: every SEQUENCE asks.
    revoked: HashMap<ClientId, usize>,
    /// Files of which none is given for the moment, with the number of those who asked for that.
    frozen: HashMap<FileId, u32>,
    /// Files of which one was recalled, and until when that counts.
    cooling: HashMap<FileId, Timestamp>,
    /// Those recalled and not back.
    pending: BTreeSet<Other>,
    /// Clients that are about to lose one: until their records are gone from the disk none is to be stored.
    doubted: BTreeSet<ClientId>,
}

impl Delegations {
    /// Number of delegations that count.
    pub(crate) fn len(&self) -> usize {
        self.by_other.len() - self.revoked.values().sum::<usize>()
    }

    pub(crate) fn recalls(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn any_revoked(&self, client: ClientId) -> bool {
        self.revoked.contains_key(&client)
    }

    /// Number of delegations of a client, those taken away included.
    fn of_client(&self, client: ClientId) -> usize {
        self.by_client.get(&client).map_or(0, BTreeSet::len)
    }

    /// Number of delegations of a client that were not taken away.
    pub(crate) fn live(&self, client: ClientId) -> usize {
        self.of_client(client) - self.revoked.get(&client).copied().unwrap_or(0)
    }

    /// Whether anybody has a delegation of the file that keeps it open.
    pub(crate) fn is_held(&self, file: FileId) -> bool {
        self.on(file).any(|(_, held)| held.power != Power::Names)
    }

    /// The delegation that a client has of a file.
    fn of(&self, client: ClientId, file: FileId) -> Option<(Other, &Delegation)> {
        let other = self.by_file.get(&file)?.get(&client)?;
        Some((*other, self.by_other.get(other)?))
    }

    /// Whether a client's delegation of a file lets it read.
    pub(crate) fn reads(&self, client: ClientId, file: FileId) -> bool {
        self.of(client, file).is_some_and(|(_, held)| held.reads)
    }

    /// What a client's delegation of a file is for, if it has one.
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

    /// Those of others than `except` that stand in the way, in order.
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

    /// It counts no longer.
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

    /// Whether the client must not reclaim after a restart: something was taken from it that it does not know of yet, or is
    /// about to be.
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

    /// Clients that are to return a delegation of data, and have little time if they are disconnected.
    fn to_return_data(&self) -> BTreeSet<ClientId> {
        let pending = self.pending.iter().filter_map(|other| self.by_other.get(other));
        pending.filter(|held| held.data && held.deadline.is_some()).map(|held| held.client).collect()
    }

    /// A client is connected or not: connected again, it has a lease from now on, and disconnected, little time.
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

    /// A recall begins: the client has one lease to give the delegation back, less if it is disconnected and believed dead.
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

/// The kind of delegation that goes with an open for this and with a wish; `None` if no kind does.
fn fitting(access: u32, wish: Wish) -> Option<Power> {
    let both = access & OPEN4_SHARE_ACCESS_BOTH == OPEN4_SHARE_ACCESS_BOTH;
    let reads = access & OPEN4_SHARE_ACCESS_READ != 0;
    let writes = access & OPEN4_SHARE_ACCESS_WRITE != 0;
    match wish {
        Wish::Data if writes => Some(Power::Write),
        // Who has a file alone reads it unasked, which an open for writing alone does not permit.
        Wish::Exactly(Power::Write) => both.then_some(Power::Write),
        Wish::Exactly(Power::Names) => None,
        Wish::Exactly(Power::Read) => reads.then_some(Power::Read),
        Wish::None | Wish::Any if both => Some(Power::Write),
        Wish::None | Wish::Any | Wish::Data => reads.then_some(Power::Read),
    }
}

impl State {
    /// Gives a delegation of a file that the client has just opened with these access bits, if that can be.
    ///
    /// `change` is the file's change attribute as the client is told it.
    ///
    /// # Errors
    /// Why none is given.
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
        // A second one of the same file would be worth nothing to the client.
        if self.is_full_of_delegations(client) || self.delegations.client_has(client, file) {
            return Err(NotGiven::Resource);
        }
        let given = Delegation { reads, data: wish == Wish::Data, ..Delegation::new(client, file, power, change) };
        Ok((self.add_delegation(given), power))
    }

    /// What a client that asks for a delegation of the data receives where it holds one: the same, if that is enough. One for reading ends, so
    /// that one for writing takes its place: a new stateid tells recalls of the two apart.
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

    /// Whether others use the file in a way that a delegation of this kind promises away: by opens, or by delegations,
    /// under which they may have opened it for all that is known here.
    fn is_used_by_others(&self, client: ClientId, file: FileId, power: Power) -> bool {
        let open = match power {
            Power::Names => false,
            Power::Read => self.opens.others_write_or_deny(client, file),
            Power::Write => self.opens.others_have(client, file),
        };
        let needs = if power == Power::Read { Use::Look } else { Use::Change };
        open || !self.delegations.in_the_way(file, needs, Some(client)).is_empty()
    }

    /// Gives a delegation of the names in a directory (GET_DIR_DELEGATION, §18.39), if that can be. There is none of before a restart: who had one has
    /// to ask again.
    ///
    /// # Errors
    /// Why none is given.
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
        // Where several clients make names, each would have to wait for all others.
        let recalled = held.on(dir).any(|(_, other)| other.deadline.is_some());
        if recalled || held.frozen.contains_key(&dir) || held.cooling.get(&dir).is_some_and(|until| *until > now) {
            return Err(NotGiven::Contention);
        }
        Ok(self.add_delegation(Delegation::new(client, dir, Power::Names, 0)))
    }

    /// A directory is gone: nobody has anything of it any more.
    pub fn forget_names(&mut self, dir: FileId) {
        let all = self.delegations.on(dir).filter(|(_, held)| held.power == Power::Names);
        let all: Vec<Other> = all.map(|(other, _)| other).collect();
        all.iter().for_each(|other| self.drop_delegation(other));
    }

    /// Reclaims a delegation of before the restart with the open that is reclaimed (CLAIM_PREVIOUS, §18.16.3). The flag tells
    /// whether the client has to give it back at once, as it cannot be called back.
    ///
    /// # Errors
    /// RECLAIM_CONFLICT: others have reclaimed what does not go with it.
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

    /// Whether a client may reclaim a delegation. Each open of the file that it reclaims may name it once more.
    ///
    /// # Errors
    /// RECLAIM_CONFLICT; STALE_CLIENTID: the client is gone, perhaps since its request began, and would never give anything back.
    pub fn check_delegation_reclaim(&self, client: ClientId, file: FileId, power: Power) -> Result<()> {
        self.clients.get(client).ok_or(NFS4ERR_STALE_CLIENTID)?;
        let conflict = match self.delegations.power(client, file) {
            Some(held) => held != power,
            None => self.is_used_by_others(client, file, power),
        };
        if conflict { Err(NFS4ERR_RECLAIM_CONFLICT) } else { Ok(()) }
    }

    /// The delegation that a stateid stands for.
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

    /// DELEGRETURN (§18.6): the client has given everything back that it did under the delegation.
    ///
    /// # Errors
    /// Those of [`State::find_delegation`].
    pub fn return_delegation(&mut self, client: ClientId, file: FileId, stateid: &stateid4) -> Result<Power> {
        let power = self.find_delegation(client, file, stateid)?;
        self.drop_delegation(&stateid.other);
        self.note_record(client);
        Ok(power)
    }

    /// Whether anybody has a delegation that is about more than data.
    pub fn any_whole_delegation(&self) -> bool {
        self.delegations.whole > 0
    }

    /// Whether others than `except` have delegations that stand in the way of a use.
    pub fn is_delegated(&self, file: FileId, what: Use, except: Option<ClientId>) -> bool {
        !self.delegations.in_the_way(file, what, except).is_empty()
    }

    /// The client that has the file alone, unless it is `except`: its attributes are known only there (§10.4.3).
    pub fn delegated_writer(&self, file: FileId, except: ClientId) -> Option<Writer> {
        let mut found = self.delegations.on(file).filter(|(_, d)| d.power == Power::Write && d.client != except);
        found.next().map(|(_, d)| Writer { client: d.client, change: d.change, data: d.data })
    }

    /// Begins to recall what stands in the way of a use, to be returned within one lease; what lapsed clients have is taken
    /// away at once.
    ///
    /// Returns the callbacks to send, each to be sent until it is answered or [`State::is_recalled`] is false.
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
                // Under a whole one for writing there may be locks that only the client knows of: with it all goes.
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

    /// A client has written to a file, or made durable what it wrote. If its delegation was recalled, it has a lease more to return it: what it
    /// kept may be more than can be written in one (§10.4.6).
    pub fn flushes(&mut self, client: ClientId, file: FileId, now: Timestamp) {
        if !self.delegations.pending.is_empty() {
            self.delegations.flushes(client, file, now, self.config.lease);
        }
    }

    /// Whether a recall is still waited for.
    pub fn is_recalled(&self, recall: &DelegationRecall) -> bool {
        self.delegations.pending.contains(&recall.stateid.other)
    }

    /// Gives no new delegation of a file until [`State::thaw_delegations`]; calls nest.
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

    /// Takes a delegation away; its stateid stays to tell. Whoever had it must not write past this server any more.
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

    /// What follows when a delegation counts no longer: it kept the file open.
    fn delegation_gone(&mut self, client: ClientId, file: FileId, power: Power) {
        if !self.opens.client_has(client, file) {
            self.drop_return_on_close(client, file);
        }
        self.effects.push(Effect::DelegationGone(file));
        // Directories are never open, and end with their names.
        if power != Power::Names && !self.is_open(file) {
            self.effects.push(Effect::LastClose(file));
        }
    }

    /// FREE_STATEID of a delegation (§18.38), which must have been taken away.
    pub(crate) fn free_delegation(&mut self, client: ClientId, stateid: &stateid4) -> Result<()> {
        match self.delegations.get(client, stateid) {
            Err(NFS4ERR_DELEG_REVOKED) => {
                self.drop_delegation(&stateid.other);
                Ok(())
            }
            found => found.and(Err(NFS4ERR_LOCKS_HELD)),
        }
    }

    /// Drops all delegations of a client that is gone.
    pub(crate) fn drop_delegations(&mut self, client: ClientId) {
        for other in self.delegations.by_client.get(&client).cloned().unwrap_or_default() {
            self.drop_delegation(&other);
        }
        self.delegations.doubted.remove(&client);
    }

    /// Has the records of those removed who have not returned in time what was recalled: they must not reclaim after a
    /// restart what others have had meanwhile (§8.4.3). Then [`State::distrusted`] takes it away.
    pub(crate) fn expire_delegations(&mut self, now: Timestamp) {
        self.delegations.cooling.retain(|_, until| *until > now);
        // Nobody reclaims those.
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
                // It has no record any more.
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

    /// The record of a client is gone from the disk: what it should have returned by now is taken away.
    pub fn distrusted(&mut self, client: ClientId, now: Timestamp) {
        self.delegations.doubted.remove(&client);
        self.unrecord(client);
        self.revoke_overdue(client, now);
        // It may have returned everything meanwhile.
        self.note_record(client);
    }
}
