//! Client records of the server: EXCHANGE_ID, their confirmation by CREATE_SESSION, DESTROY_CLIENTID and
//! RECLAIM_COMPLETE.

use crate::state::leases::Lapse;
use crate::state::{Caller, ClientId, Effect, Gone, Principal, Result, State};
use bytes::Bytes;
use std::collections::{BTreeSet, HashMap};
use types::machine::is_share_full;
use types::{Machine, Timestamp, limits};
use wire::nfs4::nfsstat4::*;
use wire::nfs4::{
    CREATE_SESSION4resok, EXCHANGE_ID4args, EXCHGID4_FLAG_BIND_PRINC_STATEID, EXCHGID4_FLAG_CONFIRMED_R,
    EXCHGID4_FLAG_MASK_PNFS, EXCHGID4_FLAG_SUPP_MOVED_MIGR, EXCHGID4_FLAG_SUPP_MOVED_REFER,
    EXCHGID4_FLAG_UPD_CONFIRMED_REC_A, nfs_impl_id4, sessionid4, state_protect4_a, verifier4,
};

/// Flags that a client may set in EXCHANGE_ID (§18.35.3). `EXCHGID4_FLAG_SUPP_FENCE_OPS` is from RFC 7862 §14.1.
const LEGAL_FLAGS: u32 = EXCHGID4_FLAG_SUPP_MOVED_REFER
    | EXCHGID4_FLAG_SUPP_MOVED_MIGR
    | 0x4
    | EXCHGID4_FLAG_BIND_PRINC_STATEID
    | EXCHGID4_FLAG_MASK_PNFS
    | EXCHGID4_FLAG_UPD_CONFIRMED_REC_A;

/// The result of EXCHANGE_ID from the state tables. The server adds server owner, scope and implementation id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExchangedId {
    /// `eir_clientid`: the client id.
    pub client: ClientId,
    /// `eir_sequenceid`: the sequence number that the next CREATE_SESSION must carry.
    pub sequence: u32,
    /// `eir_flags`: the roles of the server, and CONFIRMED_R if the record is confirmed.
    pub flags: u32,
}

/// A client record (§18.35.4), with the client's sessions and lease.
#[derive(Clone, Debug)]
pub struct Client {
    /// The client id.
    pub id: ClientId,
    /// `co_ownerid`: the client owner, which identifies the client across restarts.
    pub owner: Bytes,
    /// `co_verifier`: a value that the client changes at every restart.
    pub verifier: verifier4,
    /// The principal that sent the EXCHANGE_ID.
    pub principal: Principal,
    /// The machine that sent the EXCHANGE_ID.
    pub origin: Machine,
    /// Whether a CREATE_SESSION has confirmed the record.
    pub confirmed: bool,
    /// The implementation id from EXCHANGE_ID (§18.35.3), for display and for `State::is_own`.
    pub implementation: Option<nfs_impl_id4>,
    /// When the client last renewed its lease.
    pub renewed: Timestamp,
    /// The session ids of the client, oldest first.
    pub sessions: Vec<sessionid4>,
    /// Whether the client has sent RECLAIM_COMPLETE for all file systems.
    pub reclaim_complete: bool,
    /// Whether the client's lease has expired, and whether the server may revoke the client's state if a request of
    /// another client conflicts with this state.
    pub(crate) lapse: Lapse,
    /// Whether the durable record of the client is stored, or an [`Effect::Persist`] for this record is pending. The
    /// record permits the client to reclaim after a restart.
    pub(crate) recorded: bool,
    /// The sequence number of the last CREATE_SESSION. The field `cached` holds the result of this CREATE_SESSION, for
    /// a retry (§18.36.4).
    pub(crate) sequence: u32,
    pub(crate) cached: Result<CREATE_SESSION4resok>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Owner {
    confirmed: Option<ClientId>,
    unconfirmed: Option<ClientId>,
}

/// The client records of one machine.
#[derive(Clone, Debug, Default)]
struct MachineClients {
    all: BTreeSet<ClientId>,
    unconfirmed: BTreeSet<ClientId>,
}

/// All client records, confirmed and unconfirmed.
#[derive(Clone, Debug)]
pub struct Clients {
    boot_epoch: u32,
    next: u32,
    by_id: HashMap<ClientId, Client>,
    by_owner: HashMap<Bytes, Owner>,
    by_origin: HashMap<Machine, MachineClients>,
    /// Records that no CREATE_SESSION has confirmed.
    unconfirmed: BTreeSet<ClientId>,
}

impl Clients {
    pub(crate) fn new(boot_epoch: u32) -> Self {
        let (by_id, by_owner, by_origin) = (HashMap::new(), HashMap::new(), HashMap::new());
        Clients { boot_epoch, next: 1, by_id, by_owner, by_origin, unconfirmed: BTreeSet::new() }
    }

    /// Returns the number of client records.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns whether there is no client record.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Returns the client record with this id.
    pub fn get(&self, id: ClientId) -> Option<&Client> {
        self.by_id.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        self.by_id.get_mut(&id)
    }

    /// Returns all client records, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Client> {
        self.by_id.values()
    }

    fn owner(&self, owner: &Bytes) -> Owner {
        self.by_owner.get(owner).copied().unwrap_or_default()
    }

    /// Returns the id of the confirmed record of a client owner.
    pub fn confirmed(&self, owner: &Bytes) -> Option<ClientId> {
        self.owner(owner).confirmed
    }

    /// Returns all clients on the machine of this client, including the client itself.
    pub(crate) fn beside(&self, id: ClientId) -> &BTreeSet<ClientId> {
        static NONE: BTreeSet<ClientId> = BTreeSet::new();
        self.by_id.get(&id).and_then(|client| self.by_origin.get(&client.origin)).map_or(&NONE, |same| &same.all)
    }

    fn of_origin(&self, origin: Machine) -> usize {
        self.by_origin.get(&origin).map_or(0, |same| same.all.len())
    }

    /// Returns an unused client id that other clients cannot guess.
    fn new_id(&mut self, random: u32) -> ClientId {
        loop {
            let low = random.wrapping_add(self.next);
            self.next = self.next.wrapping_add(1);
            let id = ClientId(u64::from(self.boot_epoch) << 32 | u64::from(low));
            if !self.by_id.contains_key(&id) {
                return id;
            }
        }
    }

    /// Adds an unconfirmed record. The client owner must not have an unconfirmed record.
    fn add(&mut self, args: &EXCHANGE_ID4args, caller: Caller, now: Timestamp) -> ClientId {
        let Caller { principal, origin, random } = caller;
        let id = self.new_id(random);
        let same = self.by_origin.entry(origin).or_default();
        same.all.insert(id);
        same.unconfirmed.insert(id);
        let owner = Bytes::copy_from_slice(&args.eia_clientowner.co_ownerid);
        self.by_owner.entry(owner.clone()).or_default().unconfirmed = Some(id);
        let client = Client {
            id,
            owner,
            verifier: args.eia_clientowner.co_verifier,
            principal,
            origin,
            confirmed: false,
            implementation: implementation(args),
            renewed: now,
            sessions: Vec::new(),
            reclaim_complete: false,
            lapse: Lapse::None,
            recorded: false,
            sequence: 0,
            cached: Err(NFS4ERR_SEQ_MISORDERED),
        };
        self.by_id.insert(id, client);
        self.unconfirmed.insert(id);
        id
    }

    /// Removes one unconfirmed record to free space for a new record from the machine `origin`. The method removes a
    /// record of the same machine if there is one, so that a flood of records from one machine evicts only records of
    /// this machine. Otherwise the method removes a record of another machine if `others` is set. Returns whether a
    /// record was removed.
    fn make_room(&mut self, origin: Machine, others: bool) -> bool {
        let own = self.by_origin.get(&origin).and_then(|same| same.unconfirmed.first());
        let one = own.or(self.unconfirmed.first().filter(|_| others)).copied();
        one.and_then(|id| self.remove(id)).is_some()
    }

    /// Marks the record as confirmed. The client owner must not have another confirmed record.
    fn confirm(&mut self, id: ClientId) {
        let Some(client) = self.by_id.get_mut(&id) else { return };
        client.confirmed = true;
        self.unconfirmed.remove(&id);
        if let Some(same) = self.by_origin.get_mut(&client.origin) {
            same.unconfirmed.remove(&id);
        }
        let owner = self.by_owner.entry(client.owner.clone()).or_default();
        *owner = Owner { confirmed: Some(id), unconfirmed: None };
    }

    pub(crate) fn remove(&mut self, id: ClientId) -> Option<Client> {
        let client = self.by_id.remove(&id)?;
        self.unconfirmed.remove(&id);
        if let Some(same) = self.by_origin.get_mut(&client.origin) {
            same.all.remove(&id);
            same.unconfirmed.remove(&id);
            if same.all.is_empty() {
                self.by_origin.remove(&client.origin);
            }
        }
        if let Some(owner) = self.by_owner.get_mut(&client.owner) {
            owner.confirmed = owner.confirmed.filter(|c| *c != id);
            owner.unconfirmed = owner.unconfirmed.filter(|c| *c != id);
            if owner.confirmed.is_none() && owner.unconfirmed.is_none() {
                self.by_owner.remove(&client.owner);
            }
        }
        Some(client)
    }
}

/// Copies the implementation id out of the request, so that the buffer of the request can be freed.
fn implementation(args: &EXCHANGE_ID4args) -> Option<nfs_impl_id4> {
    let told = args.eia_client_impl_id.first()?;
    let own = |text: &Bytes| Bytes::copy_from_slice(text);
    Some(nfs_impl_id4 { nii_domain: own(&told.nii_domain), nii_name: own(&told.nii_name), ..told.clone() })
}

impl State {
    /// EXCHANGE_ID (§18.35): handles the nine cases of §18.35.4.
    ///
    /// # Errors
    /// INVAL (unknown flags, or state protection, which needs RPCSEC_GSS), CLID_INUSE, NOENT, NOT_SAME, PERM, DELAY
    /// (too many client records, in total or from one machine).
    pub fn exchange_id(
        &mut self,
        args: &EXCHANGE_ID4args,
        caller: impl Into<Caller>,
        now: Timestamp,
    ) -> Result<ExchangedId> {
        let caller = caller.into();
        let principal = caller.principal;
        if args.eia_flags & !LEGAL_FLAGS != 0 || args.eia_state_protect != state_protect4_a::SP4_NONE {
            return Err(NFS4ERR_INVAL);
        }
        let records = self.clients.owner(&args.eia_clientowner.co_ownerid);
        let confirmed = records.confirmed.and_then(|id| self.clients.get(id)).map(|c| (c.id, c.verifier, c.principal));
        let verifier = args.eia_clientowner.co_verifier;
        if args.eia_flags & EXCHGID4_FLAG_UPD_CONFIRMED_REC_A != 0 {
            return match confirmed {
                None => Err(NFS4ERR_NOENT),
                Some((_, v, _)) if v != verifier => Err(NFS4ERR_NOT_SAME),
                Some((_, _, p)) if p != principal => Err(NFS4ERR_PERM),
                Some((id, ..)) => {
                    if let Some(client) = self.clients.get_mut(id) {
                        client.implementation = implementation(args);
                    }
                    Ok(self.exchanged(id))
                }
            };
        }
        // A client owner is no secret. A caller with another verifier on another machine may be a different client with
        // the same owner, so the caller may not replace an active client.
        let is_elsewhere = |id| self.clients.get(id).is_some_and(|client| client.origin != caller.origin);
        if let Some((id, v, p)) = confirmed
            && (p != principal || (v != verifier && is_elsewhere(id)))
        {
            let idle = if self.holds(id) { self.is_lapsed(id) } else { self.lease_expired(id, now) };
            if self.has_state(id) && !idle {
                return Err(NFS4ERR_CLID_INUSE);
            }
            self.drop_client(id, Gone::Revoked);
        } else if let Some((id, v, _)) = confirmed
            && v == verifier
        {
            self.drop_unconfirmed(records.unconfirmed);
            return Ok(self.exchanged(id));
        }
        self.drop_unconfirmed(records.unconfirmed);
        let crowded = self.clients.unconfirmed.len() >= limits::UNCONFIRMED_MAX;
        let full = is_share_full(self.clients.of_origin(caller.origin), self.clients.len(), limits::CLIENTS_MAX);
        if (crowded || full) && !self.clients.make_room(caller.origin, !full) {
            return Err(NFS4ERR_DELAY);
        }
        let id = self.clients.add(args, caller, now);
        Ok(self.exchanged(id))
    }

    fn drop_unconfirmed(&mut self, id: Option<ClientId>) {
        if let Some(id) = id {
            self.clients.remove(id);
        }
    }

    fn exchanged(&self, id: ClientId) -> ExchangedId {
        let client = self.clients.get(id);
        let confirmed = if client.is_some_and(|c| c.confirmed) { EXCHGID4_FLAG_CONFIRMED_R } else { 0 };
        let sequence = client.map_or(1, |c| c.sequence.wrapping_add(1));
        ExchangedId { client: id, sequence, flags: self.config.roles | confirmed }
    }

    /// Returns whether a client record has sessions, opens, delegations or layouts.
    pub fn has_state(&self, id: ClientId) -> bool {
        self.clients.get(id).is_some_and(|c| !c.sessions.is_empty()) || self.holds(id)
    }

    /// Returns whether a client holds opens, delegations or layouts. Locks need no check, because each lock belongs to
    /// an open.
    pub(crate) fn holds(&self, id: ClientId) -> bool {
        self.opens.of_client(id) > 0 || self.delegations.live(id) > 0 || self.layouts.of_client(id) > 0
    }

    /// Confirms a client record at its first CREATE_SESSION, and removes the state of the client's previous
    /// incarnation. Writes of that incarnation to data servers may still be in flight, so its layouts end as
    /// [`Gone::Restarted`].
    pub(crate) fn confirm_client(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(id) else { return };
        if client.confirmed {
            return;
        }
        if let Some(old) = self.clients.confirmed(&client.owner) {
            self.drop_client(old, Gone::Restarted);
        }
        self.clients.confirm(id);
    }

    /// Removes a client with all its state; `why` says how the client's layouts end.
    pub(crate) fn drop_client(&mut self, id: ClientId, why: Gone) {
        let Some(client) = self.clients.remove(id) else { return };
        for session in client.sessions {
            self.remove_session(session);
        }
        self.drop_opens(id);
        self.drop_layouts(id, why);
        self.drop_delegations(id);
        if client.confirmed {
            self.effects.push(Effect::Forget(client.owner));
        }
    }

    /// DESTROY_CLIENTID (§18.50): only the principal and the machine that created the record may send DESTROY_CLIENTID.
    ///
    /// # Errors
    /// STALE_CLIENTID, CLIENTID_BUSY, WRONG_CRED.
    pub fn destroy_clientid(&mut self, id: ClientId, caller: impl Into<Caller>) -> Result<()> {
        let caller = caller.into();
        let client = self.clients.get(id).ok_or(NFS4ERR_STALE_CLIENTID)?;
        if (client.principal, client.origin) != (caller.principal, caller.origin) {
            return Err(NFS4ERR_WRONG_CRED);
        }
        if self.has_state(id) {
            return Err(NFS4ERR_CLIENTID_BUSY);
        }
        self.grace.complete(&client.owner);
        self.drop_client(id, Gone::Forgotten);
        Ok(())
    }

    /// RECLAIM_COMPLETE (§18.51). `one_fs` ends the reclaim on a migrated file system; this flag has no effect, because
    /// this server migrates no file systems.
    ///
    /// After RECLAIM_COMPLETE the client may get opens and locks without a reclaim, so the server stores the client
    /// record durably (§8.4.2.1).
    ///
    /// # Errors
    /// COMPLETE_ALREADY, STALE_CLIENTID.
    pub fn reclaim_complete(&mut self, id: ClientId, one_fs: bool) -> Result<()> {
        let client = self.clients.get_mut(id).ok_or(NFS4ERR_STALE_CLIENTID)?;
        if one_fs {
            return Ok(());
        }
        if std::mem::replace(&mut client.reclaim_complete, true) {
            return Err(NFS4ERR_COMPLETE_ALREADY);
        }
        self.grace.complete(&client.owner);
        self.note_record(id);
        Ok(())
    }

    /// Returns whether a client is Weir's client, not a kernel client. Weir's client looks up a name just before it
    /// opens the file by its filehandle. The kernel client opens filehandles from old lookups, and needs ESTALE to
    /// notice that the name refers to another file now.
    pub(crate) fn is_own(&self, id: ClientId) -> bool {
        let told = self.clients.get(id).and_then(|client| client.implementation.as_ref());
        told.is_some_and(|told| told.nii_domain == crate::client::session::DOMAIN)
    }

    /// Returns the client record with this id.
    pub fn client(&self, id: ClientId) -> Option<&Client> {
        self.clients.get(id)
    }

    /// Returns all client records, in no particular order.
    pub fn clients(&self) -> impl Iterator<Item = &Client> {
        self.clients.iter()
    }
}
