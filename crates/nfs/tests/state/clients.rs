//! Tests of client records: the nine cases of RFC 8881 §18.35.4, and every short history of one client owner against a
//! model.

use crate::helpers::*;
use nfs::state::clients::ExchangedId;
use nfs::state::{ClientId, Effect, Principal, Result, State};
use wire::nfs4::nfsstat4::*;
use wire::nfs4::*;

const UPDATE: u32 = EXCHGID4_FLAG_UPD_CONFIRMED_REC_A;

fn exchange(state: &mut State, verifier: u8, principal: Principal, flags: u32) -> Result<ExchangedId> {
    state.exchange_id(&exchange_args("owner", verifier, flags), principal, at(0))
}

fn create(state: &mut State, id: ExchangedId, principal: Principal) -> Result<CREATE_SESSION4resok> {
    state.create_session(&create_args(id.client, id.sequence), principal, CONNECTION, 0, at(0))
}

fn confirmed(state: &mut State) -> ExchangedId {
    let id = exchange(state, 1, ALICE, 0).unwrap();
    create(state, id, ALICE).unwrap();
    id
}

fn ids(state: &State) -> Vec<(ClientId, bool)> {
    let mut ids: Vec<_> = state.clients().map(|c| (c.id, c.confirmed)).collect();
    ids.sort();
    ids
}

#[test]
fn case_1_new_owner() {
    let mut state = new_state();
    let id = exchange(&mut state, 1, ALICE, 0).unwrap();
    assert_eq!((id.sequence, id.flags), (1, ROLES));
    assert_eq!(id.client.0 >> 32, 7, "the boot epoch is the high half");
    assert_eq!(ids(&state), [(id.client, false)]);
}

#[test]
fn case_2_non_update_of_a_confirmed_record() {
    let mut state = new_state();
    let first = confirmed(&mut state);
    let again = exchange(&mut state, 1, ALICE, 0).unwrap();
    assert_eq!((again.client, again.flags), (first.client, ROLES | EXCHGID4_FLAG_CONFIRMED_R));
    assert_eq!(again.sequence, first.sequence + 1, "the next CREATE_SESSION");
    assert!(create(&mut state, again, ALICE).is_ok());
}

#[test]
fn case_3_client_collision() {
    let mut state = new_state();
    let first = confirmed(&mut state);
    assert_eq!(exchange(&mut state, 1, BOB, 0), Err(NFS4ERR_CLID_INUSE));
    assert_eq!(ids(&state), [(first.client, true)]);
    let session = state.client(first.client).unwrap().sessions[0];
    state.destroy_session(session, CONNECTION).unwrap();
    let other = exchange(&mut state, 1, BOB, 0).unwrap();
    assert_eq!(ids(&state), [(other.client, false)]);
    assert!(create(&mut state, other, BOB).is_ok());
}

#[test]
fn case_3_client_collision_after_the_lease() {
    let mut state = new_state();
    confirmed(&mut state);
    let args = exchange_args("owner", 1, 0);
    assert_eq!(state.exchange_id(&args, BOB, at(90)), Err(NFS4ERR_CLID_INUSE));
    assert!(state.exchange_id(&args, BOB, at(91)).is_ok());
}

#[test]
fn case_4_replacement_of_an_unconfirmed_record() {
    let mut state = new_state();
    let first = exchange(&mut state, 1, ALICE, 0).unwrap();
    let second = exchange(&mut state, 1, ALICE, 0).unwrap();
    assert_ne!(first.client, second.client);
    assert_eq!(ids(&state), [(second.client, false)]);
    assert_eq!(create(&mut state, first, ALICE), Err(NFS4ERR_STALE_CLIENTID));
    assert!(create(&mut state, second, ALICE).is_ok());
}

#[test]
fn case_5_client_restart_keeps_the_old_state_until_it_is_confirmed() {
    let mut state = new_state();
    let old = confirmed(&mut state);
    let session = state.client(old.client).unwrap().sessions[0];
    // Linux purges old state with a verifier of all ones, then with the real verifier, each with EXCHANGE_ID and
    // CREATE_SESSION.
    let purge = exchange(&mut state, 0xff, ALICE, 0).unwrap();
    assert_eq!(ids(&state), [(old.client, true), (purge.client, false)]);
    assert!(state.session(session).is_some());
    state.take_effects();
    create(&mut state, purge, ALICE).unwrap();
    assert_eq!(ids(&state), [(purge.client, true)]);
    assert!(state.session(session).is_none());
    let effects = state.take_effects();
    assert!(effects.contains(&Effect::SessionGone(session)), "{effects:?}");
    assert_eq!(effects.last(), Some(&Effect::Forget("owner".into())), "until RECLAIM_COMPLETE");
    let real = exchange(&mut state, 1, ALICE, 0).unwrap();
    create(&mut state, real, ALICE).unwrap();
    assert_eq!(ids(&state), [(real.client, true)]);
}

#[test]
fn case_6_update() {
    let mut state = new_state();
    let first = confirmed(&mut state);
    let update = exchange(&mut state, 1, ALICE, UPDATE).unwrap();
    assert_eq!((update.client, update.flags), (first.client, ROLES | EXCHGID4_FLAG_CONFIRMED_R));
}

#[test]
fn case_7_update_without_a_confirmed_record() {
    let mut state = new_state();
    assert_eq!(exchange(&mut state, 1, ALICE, UPDATE), Err(NFS4ERR_NOENT));
    let first = exchange(&mut state, 1, ALICE, 0).unwrap();
    assert_eq!(exchange(&mut state, 1, ALICE, UPDATE), Err(NFS4ERR_NOENT));
    assert_eq!(ids(&state), [(first.client, false)], "the unconfirmed record stays");
}

#[test]
fn case_8_update_with_the_wrong_verifier() {
    let mut state = new_state();
    confirmed(&mut state);
    assert_eq!(exchange(&mut state, 2, ALICE, UPDATE), Err(NFS4ERR_NOT_SAME));
    assert_eq!(exchange(&mut state, 2, BOB, UPDATE), Err(NFS4ERR_NOT_SAME));
}

#[test]
fn case_9_update_by_the_wrong_principal() {
    let mut state = new_state();
    confirmed(&mut state);
    assert_eq!(exchange(&mut state, 1, BOB, UPDATE), Err(NFS4ERR_PERM));
}

#[test]
fn unknown_flags_and_state_protection_are_refused() {
    let mut state = new_state();
    assert_eq!(exchange(&mut state, 1, ALICE, EXCHGID4_FLAG_CONFIRMED_R), Err(NFS4ERR_INVAL));
    assert_eq!(exchange(&mut state, 1, ALICE, 8), Err(NFS4ERR_INVAL));
    assert!(exchange(&mut state, 1, ALICE, 0x101).is_ok(), "what Linux asks an mgr");
    assert!(exchange(&mut state, 1, ALICE, 0x40101).is_ok(), "what Linux asks a data server");
    let mut args = exchange_args("owner", 1, 0);
    args.eia_state_protect = state_protect4_a::SP4_MACH_CRED(state_protect_ops4::default());
    assert_eq!(state.exchange_id(&args, ALICE, at(0)), Err(NFS4ERR_INVAL));
}

#[test]
fn create_session_replays_its_reply_on_a_retry() {
    let mut state = new_state();
    let id = exchange(&mut state, 1, ALICE, 0).unwrap();
    let mut args = create_args(id.client, 0);
    let mut send = |args: &CREATE_SESSION4args, principal| state.create_session(args, principal, CONNECTION, 9, at(0));
    assert_eq!(send(&args, ALICE), Err(NFS4ERR_SEQ_MISORDERED), "the made-up result before the first");
    args.csa_sequence = 2;
    assert_eq!(send(&args, ALICE), Err(NFS4ERR_SEQ_MISORDERED));
    args.csa_sequence = 1;
    assert_eq!(send(&args, BOB), Err(NFS4ERR_CLID_INUSE));
    let first = send(&args, ALICE).unwrap();
    assert_eq!(send(&args, ALICE), Ok(first.clone()), "a retry makes no second session");
    args.csa_sequence = 2;
    assert_ne!(send(&args, ALICE).unwrap().csr_sessionid, first.csr_sessionid);
    args.csa_sequence = 1;
    assert_eq!(send(&args, ALICE), Err(NFS4ERR_SEQ_MISORDERED));
    args.csa_clientid += 1;
    assert_eq!(send(&args, ALICE), Err(NFS4ERR_STALE_CLIENTID));
    assert_eq!(state.counts().sessions, 2);
}

#[test]
fn destroy_clientid_and_reclaim_complete() {
    let mut state = new_state();
    let (client, session) = connect(&mut state, "owner", at(0));
    assert_eq!(state.destroy_clientid(client, ALICE), Err(NFS4ERR_CLIENTID_BUSY));
    assert_eq!(state.reclaim_complete(client, true), Ok(()), "one file system is not all");
    assert_eq!(state.reclaim_complete(client, false), Ok(()));
    assert_eq!(state.reclaim_complete(client, false), Err(NFS4ERR_COMPLETE_ALREADY));
    state.destroy_session(session, CONNECTION).unwrap();
    assert_eq!(state.destroy_clientid(client, ALICE), Ok(()));
    assert!(state.take_effects().contains(&Effect::Forget("owner".into())));
    assert_eq!(state.destroy_clientid(client, ALICE), Err(NFS4ERR_STALE_CLIENTID));
    assert_eq!(state.reclaim_complete(client, false), Err(NFS4ERR_STALE_CLIENTID));
}

/// A client record in the model.
#[derive(Clone, Debug, PartialEq)]
struct Record {
    id: ClientId,
    verifier: u8,
    principal: Principal,
    confirmed: bool,
    sessions: u32,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Exchange {
        verifier: u8,
        principal: Principal,
        update: bool,
    },
    /// CREATE_SESSION with the client id of the latest successful EXCHANGE_ID.
    Create(Principal),
    /// DESTROY_SESSION of the oldest session of the confirmed record.
    DestroySession,
    DestroyClient,
}

#[derive(Clone)]
struct World {
    state: State,
    records: Vec<Record>,
    last: Option<ExchangedId>,
}

impl World {
    fn record(&mut self, confirmed: bool) -> Option<&mut Record> {
        self.records.iter_mut().find(|r| r.confirmed == confirmed)
    }

    /// Applies EXCHANGE_ID to the model by the cases of §18.35.4. Returns the expected client id (`None` for a new id)
    /// or the expected error.
    fn expected(&mut self, verifier: u8, principal: Principal, update: bool) -> Result<Option<ClientId>> {
        let confirmed = self.record(true).cloned();
        let answer = match (update, &confirmed) {
            (true, None) => Err(NFS4ERR_NOENT),
            (true, Some(r)) if r.verifier != verifier => Err(NFS4ERR_NOT_SAME),
            (true, Some(r)) if r.principal != principal => Err(NFS4ERR_PERM),
            (true, Some(r)) => return Ok(Some(r.id)),
            (false, Some(r)) if r.principal != principal && r.sessions > 0 => Err(NFS4ERR_CLID_INUSE),
            (false, Some(r)) if r.principal != principal => {
                self.records.clear();
                Ok(None)
            }
            (false, Some(r)) if r.verifier == verifier => Ok(Some(r.id)),
            (false, _) => Ok(None),
        };
        if answer.is_ok() {
            self.records.retain(|r| r.confirmed);
        }
        answer
    }

    fn apply(&mut self, call: Call) {
        match call {
            Call::Exchange { verifier, principal, update } => {
                let got = exchange(&mut self.state, verifier, principal, if update { UPDATE } else { 0 });
                let known: Vec<_> = self.records.iter().map(|r| r.id).collect();
                match (self.expected(verifier, principal, update), got) {
                    (Err(expected), got) => assert_eq!(got, Err(expected)),
                    (Ok(Some(id)), got) => {
                        let got = got.unwrap();
                        assert_eq!((got.client, got.flags), (id, ROLES | EXCHGID4_FLAG_CONFIRMED_R));
                        self.last = Some(got);
                    }
                    (Ok(None), got) => {
                        let got = got.unwrap();
                        assert!(!known.contains(&got.client), "an id came back");
                        let id = got.client;
                        self.records.push(Record { id, verifier, principal, confirmed: false, sessions: 0 });
                        self.last = Some(got);
                    }
                }
            }
            Call::Create(principal) => {
                let Some(id) = self.last else { return };
                let got = create(&mut self.state, id, principal);
                match self.records.iter().position(|r| r.id == id.client) {
                    None => assert_eq!(got, Err(NFS4ERR_STALE_CLIENTID)),
                    // Only the creator of a client id may confirm it. Any principal may then add sessions (§18.36.4).
                    Some(at) if !self.records[at].confirmed && self.records[at].principal != principal => {
                        assert_eq!(got, Err(NFS4ERR_CLID_INUSE));
                    }
                    Some(at) => {
                        assert!(got.is_ok());
                        let mut record = self.records.remove(at);
                        if !record.confirmed {
                            self.records.clear();
                            record.confirmed = true;
                        }
                        record.sessions += 1;
                        self.records.push(record);
                        self.last = Some(ExchangedId { sequence: id.sequence + 1, ..id });
                    }
                }
            }
            Call::DestroySession => {
                let Some(record) = self.record(true).filter(|r| r.sessions > 0) else { return };
                record.sessions -= 1;
                let id = record.id;
                let session = self.state.client(id).unwrap().sessions[0];
                assert_eq!(self.state.destroy_session(session, CONNECTION), Ok(()));
            }
            Call::DestroyClient => {
                let Some(id) = self.last.map(|l| l.client) else { return };
                let got = self.state.destroy_clientid(id, ALICE);
                match self.records.iter().position(|r| r.id == id) {
                    None => assert_eq!(got, Err(NFS4ERR_STALE_CLIENTID)),
                    Some(at) if self.records[at].principal != ALICE => assert_eq!(got, Err(NFS4ERR_WRONG_CRED)),
                    Some(at) if self.records[at].sessions > 0 => assert_eq!(got, Err(NFS4ERR_CLIENTID_BUSY)),
                    Some(at) => {
                        assert_eq!(got, Ok(()));
                        self.records.remove(at);
                    }
                }
            }
        }
        let mut expected: Vec<_> = self.records.iter().map(|r| (r.id, r.confirmed)).collect();
        expected.sort();
        assert_eq!(ids(&self.state), expected);
        let sessions: u32 = self.records.iter().map(|r| r.sessions).sum();
        assert_eq!(self.state.counts().sessions, sessions as usize);
    }
}

#[test]
fn one_owner_matches_the_model_in_every_short_history() {
    let mut calls = vec![Call::Create(ALICE), Call::Create(BOB), Call::DestroySession, Call::DestroyClient];
    for verifier in [1, 2] {
        for principal in [ALICE, BOB] {
            for update in [false, true] {
                calls.push(Call::Exchange { verifier, principal, update });
            }
        }
    }
    let world = World { state: new_state(), records: Vec::new(), last: None };
    walk(&world, &calls, 5, World::apply);
}
