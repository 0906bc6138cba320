//! Leases, restarts and the grace period.

use crate::helpers::*;
use bytes::Bytes;
use nfs::fs::{ClientRecord, Iomode};
use nfs::state::layouts::Segment;
use nfs::state::{Config, Effect, Gone, State};
use types::{ByteRange, FileId};
use wire::nfs4::nfsstat4::*;

const FILE: FileId = FileId(10);

fn restarted(owners: &[&'static str]) -> State {
    let records = owners.iter().map(|o| ClientRecord { owner: Bytes::from_static(o.as_bytes()), clientid: 1 });
    State::new(Config::new(8, ROLES, LEASE), records.collect(), at(0))
}

#[test]
fn a_lease_ends_a_lease_after_the_last_sequence() {
    let mut state = new_state();
    let (client, session) = connect(&mut state, "owner", at(0));
    let open = state.open(client, &Bytes::from_static(b"o"), FILE, 3, 0).unwrap().stateid;
    let layout = Segment { iomode: Iomode::ReadWrite, range: ByteRange::ALL, return_on_close: false };
    state.grant_layout(client, FILE, 1, &open, layout).unwrap();
    let new = new_request(&mut state, &sequence_args(session, 0, 1, false), at(50));
    state.take_effects();
    assert!(state.expire(at(400)).is_empty(), "a request is being executed");
    state.finish(new.token, None);
    assert!(state.expire(at(140)).is_empty());
    let expired = state.expire(at(141));
    assert_eq!(expired.len(), 1);
    assert_eq!((expired[0].client, expired[0].opens, expired[0].layouts, expired[0].confirmed), (client, 1, 1, true));
    let gone =
        Effect::LayoutGone { client, file: FILE, iomode: Iomode::ReadWrite, range: ByteRange::ALL, why: Gone::Revoked };
    let expected = [Effect::SessionGone(session), Effect::LastClose(FILE), gone, Effect::Forget("owner".into())];
    assert_eq!(state.take_effects(), expected);
    assert_eq!(state.counts(), Default::default());
    assert_eq!(sequence(&mut state, &sequence_args(session, 0, 2, false), at(141)), Err(NFS4ERR_BADSESSION));
}

#[test]
fn a_record_that_is_never_confirmed_goes_with_its_lease() {
    let mut state = new_state();
    state.exchange_id(&exchange_args("owner", 1, 0), ALICE, at(0)).unwrap();
    assert!(state.expire(at(90)).is_empty());
    assert!(!state.expire(at(91))[0].confirmed);
    assert!(state.take_effects().is_empty(), "there was no record on disk");
}

#[test]
fn no_records_no_grace() {
    let mut state = restarted(&[]);
    assert!(!state.in_grace(at(0)));
    let (client, _) = connect(&mut state, "new", at(0));
    assert_eq!(state.check_grace(client, false, at(0)), Err(NFS4ERR_GRACE), "RECLAIM_COMPLETE comes first (§18.51.3)");
    state.reclaim_complete(client, false).unwrap();
    assert_eq!(state.check_grace(client, false, at(0)), Ok(()));
    assert_eq!(state.check_grace(client, true, at(0)), Err(NFS4ERR_NO_GRACE));
}

#[test]
fn grace_ends_when_everybody_known_has_reclaimed() {
    let mut state = restarted(&["a", "b"]);
    let (a, _) = connect(&mut state, "a", at(0));
    let (b, _) = connect(&mut state, "b", at(0));
    let (new, _) = connect(&mut state, "new", at(0));
    assert_eq!(state.check_grace(a, true, at(1)), Ok(()));
    assert_eq!(state.check_grace(new, true, at(1)), Err(NFS4ERR_RECLAIM_BAD));
    assert_eq!(state.check_grace(a, false, at(1)), Err(NFS4ERR_GRACE));
    state.reclaim_complete(a, false).unwrap();
    state.reclaim_complete(new, false).unwrap();
    assert_eq!(state.check_grace(a, true, at(1)), Err(NFS4ERR_NO_GRACE), "it said that it was done");
    assert_eq!(state.check_grace(new, false, at(1)), Err(NFS4ERR_GRACE), "b may still reclaim");
    assert_eq!(state.check_grace(b, true, at(1)), Ok(()));
    state.reclaim_complete(b, false).unwrap();
    assert!(!state.in_grace(at(1)));
    assert_eq!(state.check_grace(new, false, at(1)), Ok(()));
}

#[test]
fn grace_ends_after_a_lease_and_forgets_who_never_came() {
    let mut state = restarted(&["a", "b", "c"]);
    connect(&mut state, "b", at(60));
    state.take_effects();
    assert!(state.in_grace(at(89)) && !state.in_grace(at(90)));
    state.expire(at(90));
    assert_eq!(state.take_effects(), [Effect::Forget("a".into()), Effect::Forget("c".into())]);
    state.expire(at(91));
    assert!(state.take_effects().is_empty());
}

#[test]
fn records_are_persisted_when_confirmed() {
    let mut state = new_state();
    let id = state.exchange_id(&exchange_args("owner", 1, 0), ALICE, at(0)).unwrap();
    assert!(state.take_effects().is_empty());
    state.create_session(&create_args(id.client, id.sequence), ALICE, CONNECTION, 0, at(0)).unwrap();
    let record = ClientRecord { owner: "owner".into(), clientid: id.client.0 };
    assert_eq!(state.take_effects(), [Effect::Persist(record)]);
}

#[test]
fn client_ids_of_two_starts_never_meet() {
    let mut before = new_state();
    let mut after = restarted(&["owner"]);
    let (old, session) = connect(&mut before, "owner", at(0));
    let (new, _) = connect(&mut after, "owner", at(0));
    assert_ne!(old, new);
    assert_eq!(sequence(&mut after, &sequence_args(session, 0, 1, false), at(0)), Err(NFS4ERR_BADSESSION));
    assert_eq!(after.destroy_clientid(old), Err(NFS4ERR_STALE_CLIENTID));
}
