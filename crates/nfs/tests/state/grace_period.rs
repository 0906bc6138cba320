//! Tests of leases, restarts of the server and the grace period in the state tables.

use crate::helpers::*;
use bytes::Bytes;
use nfs::fs::{ClientRecord, Iomode};
use nfs::spans::{LockKind, Span};
use nfs::state::layouts::{Filter, Segment};
use nfs::state::locks::{Locked, Locker};
use nfs::state::opens::{Access, Permit};
use nfs::state::stateids::ANONYMOUS;
use nfs::state::{ClientId, Config, Effect, Gone, State};
use std::collections::BTreeMap;
use types::{ByteRange, FileId, limits};
use wire::nfs4::nfsstat4::*;
use wire::nfs4::{nfsstat4, sessionid4, stateid4};

const FILE: FileId = FileId(10);

fn restarted(owners: &[&'static str]) -> State {
    let records = owners.iter().map(|o| ClientRecord { owner: Bytes::from_static(o.as_bytes()), clientid: 1 });
    State::new(Config::new(8, ROLES, LEASE), records.collect(), at(0))
}

/// Creates a client with an open for reading and writing, a write lock on the whole file, and a layout of the file.
fn holder(state: &mut State, owner: &'static str) -> (ClientId, sessionid4, stateid4, stateid4) {
    let (client, session) = connect(state, owner, at(0));
    state.reclaim_complete(client, false).unwrap();
    let open = state.open(client, &Bytes::from_static(b"o"), FILE, 3, 0).unwrap().stateid;
    let locker = Locker::Open { stateid: &open, owner: &Bytes::from_static(b"l") };
    let locked = state.lock(client, FILE, locker, (Span::ALL, LockKind::Write), false, at(0));
    let Ok(Locked::Granted(lock)) = locked else { panic!("{locked:?}") };
    let layout = Segment { iomode: Iomode::ReadWrite, range: ByteRange::ALL, return_on_close: false };
    state.grant_layout(client, FILE, 1, &open, layout).unwrap();
    state.take_effects();
    (client, session, open, lock)
}

fn revoked(client: ClientId) -> Effect {
    Effect::LayoutGone { client, file: FILE, iomode: Iomode::ReadWrite, range: ByteRange::ALL, why: Gone::Revoked }
}

fn record(client: ClientId, owner: &'static str) -> Effect {
    Effect::Persist(ClientRecord { owner: owner.into(), clientid: client.0 })
}

/// Lets the lease of `client` expire after 91 s, and confirms the deletion of the client's record.
fn lapse(state: &mut State, client: ClientId, owner: &'static str) {
    state.expire(at(91));
    assert_eq!(state.take_effects(), [Effect::Lapse { client, owner: owner.into() }]);
    state.lapsed(client);
}

/// Sends a SEQUENCE on a session that no longer exists, and returns the status.
fn ended(state: &mut State, session: sessionid4) -> nfsstat4 {
    sequence(state, &sequence_args(session, 0, 1, false), at(92)).err().unwrap_or(NFS4_OK)
}

/// Sends a SEQUENCE, and returns the status flags of the reply.
fn flags(state: &mut State, session: sessionid4, number: u32, now: i64) -> u32 {
    let new = new_request(state, &sequence_args(session, 0, number, false), at(now));
    state.finish(new.token, None);
    new.result.sr_status_flags
}

#[test]
fn a_lapsed_client_keeps_state_that_no_client_requests() {
    let mut state = new_state();
    let (client, session, open, lock) = holder(&mut state, "owner");
    let new = new_request(&mut state, &sequence_args(session, 0, 1, false), at(50));
    assert!(state.expire(at(400)).is_empty(), "a request is being executed");
    assert!(state.take_effects().is_empty());
    state.finish(new.token, None);
    assert!(state.expire(at(140)).is_empty() && state.take_effects().is_empty());
    assert!(state.expire(at(141)).is_empty());
    let gone = [Effect::Lapse { client, owner: "owner".into() }];
    assert_eq!(state.take_effects(), gone);
    // Each call of `expire` requests again that the caller delete the client's record from stable storage, until
    // `lapsed` confirms the deletion.
    state.expire(at(142));
    assert_eq!(state.take_effects(), gone);
    state.lapsed(client);
    state.expire(at(143));
    assert!(state.take_effects().is_empty());
    assert_eq!((state.counts().lapsed, state.counts().opens, state.counts().locks), (1, 1, 1));
    assert_eq!(flags(&mut state, session, 2, 500), 0, "nothing was lost");
    assert_eq!(state.take_effects(), [record(client, "owner")]);
    assert_eq!((state.test_stateid(client, &open), state.test_stateid(client, &lock)), (NFS4_OK, NFS4_OK));
    assert_eq!(state.counts().lapsed, 0);
}

#[test]
fn the_courtesy_time_ends_and_frees_all_state() {
    let mut state = new_state();
    let (client, session, ..) = holder(&mut state, "owner");
    let last = (LEASE + state.config().courtesy).as_secs() as i64;
    assert!(state.expire(at(last + 1)).is_empty(), "the record goes first");
    assert_eq!(state.take_effects(), [Effect::Lapse { client, owner: "owner".into() }]);
    state.lapsed(client);
    assert!(state.expire(at(last)).is_empty());
    let expired = state.expire(at(last + 1));
    assert_eq!(expired.len(), 1);
    assert_eq!((expired[0].client, expired[0].opens, expired[0].layouts, expired[0].confirmed), (client, 1, 1, true));
    let expected =
        [Effect::SessionGone(session), Effect::LastClose(FILE), revoked(client), Effect::Forget("owner".into())];
    assert_eq!(state.take_effects(), expected);
    assert_eq!(state.counts(), Default::default());
    assert_eq!(sequence(&mut state, &sequence_args(session, 0, 2, false), at(last)), Err(NFS4ERR_BADSESSION));
}

#[test]
fn a_client_without_state_is_removed_when_its_lease_expires() {
    let mut state = new_state();
    let (client, session) = connect(&mut state, "owner", at(0));
    assert_eq!(state.expire(at(91))[0].client, client);
    assert_eq!(state.take_effects(), [Effect::SessionGone(session), Effect::Forget("owner".into())]);
}

#[test]
fn the_longest_lapsed_clients_are_removed_above_the_limit() {
    let mut state = new_state();
    let names: Vec<String> = (0..limits::LAPSED_CLIENTS_MAX + 2).map(|i| format!("client {i}")).collect();
    for (i, name) in names.iter().enumerate() {
        let now = at(i64::from(i != 1));
        let mut args = exchange_args("", 1, 0);
        args.eia_clientowner.co_ownerid = Bytes::copy_from_slice(name.as_bytes());
        let id = state.exchange_id(&args, ALICE, now).unwrap();
        state.create_session(&create_args(id.client, id.sequence), ALICE, CONNECTION, 5, now).unwrap();
        state.open(id.client, &Bytes::from_static(b"o"), FILE, 3, 0).unwrap();
    }
    assert!(state.expire(at(200)).is_empty());
    for effect in state.take_effects() {
        if let Effect::Lapse { client, .. } = effect {
            state.lapsed(client);
        }
    }
    let gone: Vec<_> = state.expire(at(200)).into_iter().map(|e| e.owner).collect();
    assert_eq!(gone, ["client 1", "client 0"], "those away for longest");
}

#[test]
fn a_conflicting_lock_removes_a_lapsed_client() {
    let mut state = new_state();
    let (client, session, open, lock) = holder(&mut state, "owner");
    let (other, _) = connect(&mut state, "other", at(91));
    state.reclaim_complete(other, false).unwrap();
    let mine = state.open(other, &Bytes::from_static(b"o"), FILE, 3, 0).unwrap().stateid;
    let owner = Bytes::from_static(b"l");
    let part = (Span { first: 5, last: 6 }, LockKind::Read);
    let ask = |state: &mut State| {
        state.lock(other, FILE, Locker::Open { stateid: &mine, owner: &owner }, part, false, at(91))
    };
    state.take_effects();
    assert!(matches!(ask(&mut state), Ok(Locked::Denied(_))));
    assert!(state.test_lock(other, FILE, &owner, part.0, part.1).is_some());
    state.expire(at(91));
    assert!(matches!(ask(&mut state), Ok(Locked::Denied(_))), "its record is still there");
    assert_eq!(state.take_effects(), [Effect::Lapse { client, owner: "owner".into() }]);
    state.lapsed(client);
    assert_eq!(state.test_lock(other, FILE, &owner, part.0, part.1), None);
    assert!(matches!(ask(&mut state), Ok(Locked::Granted(_))));
    // The client with the expired lease loses its open together with its lock. Otherwise Linux can use the open to
    // write data that the lock protected.
    let effects = state.take_effects();
    assert!(effects.contains(&revoked(client)), "nobody writes there under the old lock any more");
    assert_eq!((state.counts().locks, state.counts().opens, state.counts().clients), (1, 1, 1));
    assert_eq!(ended(&mut state, session), NFS4ERR_BADSESSION);
    for stateid in [open, lock] {
        assert_eq!(state.test_stateid(client, &stateid), NFS4ERR_BAD_STATEID);
    }
    let told: Vec<_> = state.expire(at(92)).into_iter().map(|gone| (gone.client, gone.opens, gone.layouts)).collect();
    assert_eq!(told, [(client, 1, 1)], "for the log");
    assert!(state.expire(at(92)).is_empty());
}

#[test]
fn a_conflicting_share_reservation_removes_a_lapsed_client() {
    let mut state = new_state();
    let (client, session, open, lock) = holder(&mut state, "owner");
    let (other, _) = connect(&mut state, "other", at(91));
    state.reclaim_complete(other, false).unwrap();
    let deny = |state: &mut State| state.open(other, &Bytes::from_static(b"o"), FILE, 1, 2);
    assert_eq!(deny(&mut state), Err(NFS4ERR_SHARE_DENIED));
    state.take_effects();
    lapse(&mut state, client, "owner");
    assert!(deny(&mut state).is_ok());
    let effects = state.take_effects();
    assert!(effects.contains(&Effect::LastClose(FILE)) && effects.contains(&revoked(client)), "{effects:?}");
    assert_eq!((state.counts().locks, state.counts().opens, state.counts().clients), (0, 1, 1));
    let statuses = [open, lock].map(|stateid| state.test_stateid(client, &stateid));
    assert_eq!(statuses, [NFS4ERR_BAD_STATEID; 2]);
    assert_eq!(ended(&mut state, session), NFS4ERR_BADSESSION);
}

#[test]
fn share_denials_of_a_lapsed_client_do_not_block_io() {
    let mut state = new_state();
    let (client, _) = connect(&mut state, "owner", at(0));
    state.open(client, &Bytes::from_static(b"o"), FILE, 1, 2).unwrap();
    let (other, _) = connect(&mut state, "other", at(91));
    let io = |state: &mut State| state.check_io_past_lapsed(other, FILE, &ANONYMOUS, Access::Write);
    assert_eq!(io(&mut state), Err(NFS4ERR_LOCKED));
    lapse(&mut state, client, "owner");
    assert_eq!(io(&mut state), Ok(Permit::Special));
    assert_eq!(state.counts().opens, 0);
}

#[test]
fn layouts_of_a_lapsed_client_are_revoked_without_a_recall() {
    let mut state = new_state();
    let (client, ..) = holder(&mut state, "owner");
    state.revoke_lapsed_layouts(FILE, Filter::ALL, None, at(91));
    assert!(state.take_effects().is_empty());
    lapse(&mut state, client, "owner");
    state.revoke_lapsed_layouts(FILE, Filter::ALL, Some(client), at(91));
    assert!(state.take_effects().is_empty());
    state.revoke_lapsed_layouts(FILE, Filter::ALL, None, at(91));
    assert_eq!(state.take_effects(), [revoked(client)]);
    assert!(!state.conflicting_layouts(FILE, Filter::ALL, None));
}

#[test]
fn a_client_that_returns_during_record_deletion_is_stored_again() {
    let mut state = new_state();
    let (client, session, ..) = holder(&mut state, "owner");
    state.expire(at(91));
    state.take_effects();
    assert_eq!(flags(&mut state, session, 1, 91), 0);
    assert_eq!(state.take_effects(), [record(client, "owner")]);
    state.lapsed(client);
    assert_eq!(state.take_effects(), [record(client, "owner")], "for the first may have been deleted");
}

#[test]
fn an_unconfirmed_client_is_removed_when_its_lease_expires() {
    let mut state = new_state();
    state.exchange_id(&exchange_args("owner", 1, 0), ALICE, at(0)).unwrap();
    assert!(state.expire(at(90)).is_empty());
    assert!(!state.expire(at(91))[0].confirmed);
    assert!(state.take_effects().is_empty(), "there was no record on disk");
}

#[test]
fn without_client_records_there_is_no_grace_period() {
    let mut state = restarted(&[]);
    assert!(!state.in_grace());
    let (client, _) = connect(&mut state, "new", at(0));
    assert_eq!(state.check_grace(client, false), Err(NFS4ERR_GRACE), "RECLAIM_COMPLETE comes first (§18.51.3)");
    state.reclaim_complete(client, false).unwrap();
    assert_eq!(state.check_grace(client, false), Ok(()));
    assert_eq!(state.check_grace(client, true), Err(NFS4ERR_NO_GRACE));
}

#[test]
fn grace_ends_when_all_known_clients_have_reclaimed() {
    let mut state = restarted(&["a", "b"]);
    let (a, _) = connect(&mut state, "a", at(0));
    let (b, _) = connect(&mut state, "b", at(0));
    let (new, _) = connect(&mut state, "new", at(0));
    assert_eq!(state.check_grace(a, true), Ok(()));
    assert_eq!(state.check_grace(new, true), Err(NFS4ERR_NO_GRACE), "it has no record");
    assert_eq!(state.check_grace(a, false), Err(NFS4ERR_GRACE));
    state.reclaim_complete(a, false).unwrap();
    state.reclaim_complete(new, false).unwrap();
    assert_eq!(state.check_grace(a, true), Err(NFS4ERR_NO_GRACE), "it said that it was done");
    assert_eq!(state.check_grace(new, false), Err(NFS4ERR_GRACE), "b may still reclaim");
    assert_eq!(state.check_grace(b, true), Ok(()));
    state.reclaim_complete(b, false).unwrap();
    assert!(!state.in_grace());
    assert_eq!(state.check_grace(new, false), Ok(()));
}

#[test]
fn grace_ends_after_a_lease_once_late_client_records_are_deleted() {
    let mut state = restarted(&["a", "b", "c"]);
    let (b, _) = connect(&mut state, "b", at(60));
    state.expire(at(89));
    assert!(state.take_effects().is_empty());
    state.expire(at(90));
    let late: Vec<Bytes> = vec!["a".into(), "b".into(), "c".into()];
    assert_eq!(state.take_effects(), [Effect::GraceOver(late.clone())]);
    assert!(state.in_grace(), "nothing is given away before the records are gone");
    assert_eq!(state.check_grace(b, true), Ok(()));
    state.expire(at(91));
    assert_eq!(state.take_effects(), [Effect::GraceOver(late.clone())], "tried again");
    state.grace_over(&late);
    assert!(!state.in_grace());
    assert_eq!(state.check_grace(b, true), Err(NFS4ERR_NO_GRACE));
    assert!(state.take_effects().is_empty());
    // Client b sends RECLAIM_COMPLETE after the end of the grace period. The server stores a new client record, so that
    // client b may reclaim its later opens and locks after the next restart of the server.
    state.reclaim_complete(b, false).unwrap();
    assert_eq!(state.take_effects(), [record(b, "b")]);
    state.expire(at(92));
    assert!(state.take_effects().is_empty());
}

#[test]
fn a_reclaim_complete_at_the_end_of_grace_stores_a_record() {
    let mut state = restarted(&["a"]);
    let (a, _) = connect(&mut state, "a", at(60));
    state.expire(at(90));
    state.reclaim_complete(a, false).unwrap();
    assert_eq!(state.take_effects(), [Effect::GraceOver(vec!["a".into()]), record(a, "a")]);
    state.grace_over(&["a".into()]);
    // The old and the new client record have the same key, the client owner. So the deletion of the old record may have
    // removed the new record, and the server stores the new record again.
    assert_eq!(state.take_effects(), [record(a, "a")]);
}

#[test]
fn records_are_persisted_before_the_first_lock() {
    let mut state = new_state();
    let id = state.exchange_id(&exchange_args("owner", 1, 0), ALICE, at(0)).unwrap();
    state.create_session(&create_args(id.client, id.sequence), ALICE, CONNECTION, 0, at(0)).unwrap();
    assert_eq!(state.check_grace(id.client, false), Err(NFS4ERR_GRACE));
    assert!(state.take_effects().is_empty());
    state.reclaim_complete(id.client, false).unwrap();
    assert_eq!(state.take_effects(), [record(id.client, "owner")]);
    assert_eq!(state.reclaim_complete(id.client, false), Err(NFS4ERR_COMPLETE_ALREADY));
    assert!(state.take_effects().is_empty());
}

/// The client records on disk, which survive a restart of the server in the test.
#[derive(Default)]
struct Disk(BTreeMap<Bytes, u64>);

impl Disk {
    /// Stores and deletes client records as the state tables request.
    fn follow(&mut self, state: &mut State) {
        loop {
            let effects = state.take_effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                match effect {
                    Effect::Persist(record) => self.0.extend([(record.owner, record.clientid)]),
                    Effect::Forget(owner) => self.0.retain(|o, _| *o != owner),
                    Effect::Lapse { client, owner } => {
                        self.0.remove(&owner);
                        state.lapsed(client);
                    }
                    Effect::GraceOver(owners) => {
                        self.0.retain(|owner, _| !owners.contains(owner));
                        state.grace_over(&owners);
                    }
                    _ => {}
                }
            }
        }
    }

    fn start(&self, boot: u32) -> State {
        let records = self.0.iter().map(|(owner, id)| ClientRecord { owner: owner.clone(), clientid: *id });
        State::new(Config::new(boot, ROLES, LEASE), records.collect(), at(0))
    }
}

#[test]
fn an_expired_client_cannot_reclaim_after_a_restart() {
    // First edge condition of §8.4.3: a client's lease expires, another client may take the lock, and then the server
    // restarts.
    let (mut state, mut disk) = (new_state(), Disk::default());
    holder(&mut state, "a");
    connect_complete(&mut state, "b");
    disk.follow(&mut state);
    // The helper `holder` discards the effects of its calls, including the request to store a client record. So insert
    // this record into the simulated disk.
    disk.0.insert("a".into(), 1);
    state.expire(at(91));
    disk.follow(&mut state);
    let mut state = disk.start(8);
    let (a, _) = connect(&mut state, "a", at(1));
    assert_eq!(state.check_grace(a, true), Err(NFS4ERR_NO_GRACE));
}

#[test]
fn a_client_that_missed_the_grace_period_cannot_reclaim_later() {
    // Second edge condition of §8.4.3: the server restarts, a client misses the grace period, and the server restarts
    // again.
    let mut disk = Disk::default();
    disk.0.extend([("a".into(), 1), ("b".into(), 2), ("c".into(), 3)]);
    let mut state = disk.start(8);
    connect_complete(&mut state, "b");
    let (c, _) = connect(&mut state, "c", at(1));
    assert_eq!(state.check_grace(c, true), Ok(()));
    disk.follow(&mut state);
    // If the server crashes before the grace period ends, every client may still reclaim after the next start.
    let mut again = disk.start(9);
    let (a, _) = connect(&mut again, "a", at(1));
    assert_eq!(again.check_grace(a, true), Ok(()));
    state.expire(at(90));
    disk.follow(&mut state);
    let mut state = disk.start(9);
    assert_eq!(disk.0.keys().collect::<Vec<_>>(), ["b"]);
    for owner in ["a", "c"] {
        let (client, _) = connect(&mut state, owner, at(1));
        assert_eq!(state.check_grace(client, true), Err(NFS4ERR_NO_GRACE));
    }
    let (b, _) = connect(&mut state, "b", at(1));
    assert_eq!(state.check_grace(b, true), Ok(()));
}

fn connect_complete(state: &mut State, owner: &'static str) -> ClientId {
    let (client, _) = connect(state, owner, at(1));
    state.reclaim_complete(client, false).unwrap();
    client
}

#[test]
fn client_ids_of_two_server_starts_differ() {
    let mut before = new_state();
    let mut after = restarted(&["owner"]);
    let (old, session) = connect(&mut before, "owner", at(0));
    let (new, _) = connect(&mut after, "owner", at(0));
    assert_ne!(old, new);
    assert_eq!(sequence(&mut after, &sequence_args(session, 0, 1, false), at(0)), Err(NFS4ERR_BADSESSION));
    assert_eq!(after.destroy_clientid(old, ALICE), Err(NFS4ERR_STALE_CLIENTID));
}

#[test]
fn reclaims_extend_the_grace_period_to_two_leases_at_most() {
    let records = ["a", "b"].map(|owner| ClientRecord { owner: owner.into(), clientid: 1 });
    let mut state = State::new(Config::new(7, ROLES, LEASE), records.into(), at(0));
    let in_grace = |state: &mut State, secs| {
        state.expire(at(secs));
        state.take_effects().iter().all(|effect| !matches!(effect, Effect::GraceOver(_)))
    };
    assert!(in_grace(&mut state, 80));
    state.reclaimed(at(80));
    assert!(in_grace(&mut state, 102), "the next one is waited for");
    assert!(!in_grace(&mut state, 103));
    for secs in (100..200).step_by(10) {
        state.reclaimed(at(secs));
    }
    assert!(in_grace(&mut state, 179));
    assert!(!in_grace(&mut state, 180), "two leases are enough");
}
