//! Tests of the limits of the state tables: floods of client records, and clients that use all resources that the
//! server grants.

use crate::helpers::*;
use bytes::Bytes;
use nfs::state::{Caller, ClientId, State};
use types::{FileId, Machine, limits};
use wire::nfs4::*;

fn introduce(state: &mut State, owner: String) -> Result<ClientId, nfsstat4> {
    introduce_from(state, owner, Machine::Local(0))
}

fn introduce_from(state: &mut State, owner: String, origin: Machine) -> Result<ClientId, nfsstat4> {
    let mut args = exchange_args("", 1, 0);
    args.eia_clientowner.co_ownerid = owner.into();
    state.exchange_id(&args, Caller { principal: ALICE, origin, random: 0 }, at(0)).map(|got| got.client)
}

/// Returns the `n`-th test machine.
fn machine(n: u8) -> Machine {
    Machine::at(std::net::Ipv4Addr::new(10, 0, 0, n).into())
}

fn confirm(state: &mut State, client: ClientId) -> Result<CREATE_SESSION4resok, nfsstat4> {
    let args = CREATE_SESSION4args {
        csa_clientid: client.0,
        csa_sequence: 1,
        csa_flags: 0,
        csa_fore_chan_attrs: channel(64),
        csa_back_chan_attrs: channel(1),
        csa_cb_program: 0,
        csa_sec_parms: vec![],
    };
    let made = state.create_session(&args, ALICE, CONNECTION, 1, at(0));
    state.take_effects();
    made
}

#[test]
fn a_flood_of_exchange_ids_evicts_only_unconfirmed_clients() {
    let mut state = new_state();
    let good = introduce(&mut state, "good".into()).unwrap();
    confirm(&mut state, good).unwrap();
    let first = introduce(&mut state, "first".into()).unwrap();
    for n in 1..limits::UNCONFIRMED_MAX {
        introduce(&mut state, format!("flood {n}")).unwrap();
    }
    assert_eq!(state.counts().clients, 1 + limits::UNCONFIRMED_MAX);
    assert!(state.client(first).is_some(), "there was room for it");
    for n in 0..limits::UNCONFIRMED_MAX {
        introduce(&mut state, format!("more {n}")).unwrap();
        // A new client that sends CREATE_SESSION directly after EXCHANGE_ID succeeds even during the flood of
        // EXCHANGE_IDs.
        if n % 1000 == 0 {
            let newcomer = introduce(&mut state, format!("newcomer {n}")).unwrap();
            confirm(&mut state, newcomer).unwrap();
        }
    }
    assert!(state.client(first).is_none() && state.client(good).is_some());
    assert_eq!(confirm(&mut state, first), Err(NFS4ERR_STALE_CLIENTID));
    let newcomers = limits::UNCONFIRMED_MAX.div_ceil(1000);
    assert!(state.counts().clients <= 1 + newcomers + limits::UNCONFIRMED_MAX);
    assert_eq!(state.counts().sessions, 1 + newcomers);
}

#[test]
fn clients_with_sessions_are_limited_and_each_has_a_slot() {
    let mut state = new_state();
    let mut slots = Vec::new();
    let refused = loop {
        let origin = Machine::Local(slots.len() as u32);
        let client = introduce_from(&mut state, format!("client {}", slots.len()), origin).unwrap();
        match confirm(&mut state, client) {
            Ok(session) => slots.push(session.csr_fore_chan_attrs.ca_maxrequests),
            Err(status) => break status,
        }
    };
    assert_eq!(refused, NFS4ERR_NOSPC);
    assert!(slots.len() >= limits::CONNECTIONS_MAX, "{} sessions", slots.len());
    assert_eq!((slots[0], slots.last().copied()), (64, Some(1)));
    assert!(slots[limits::CONNECTIONS_MAX / 4] >= 16, "a quarter of them leaves plenty: {slots:?}");
    let bytes = slots.iter().map(|n| u64::from(*n) * 7584).sum::<u64>();
    assert!(bytes <= limits::REPLY_CACHE_BYTES);
}

/// The reply caches of one machine's clients cannot use up the memory budget.
#[test]
fn sessions_of_one_machine_leave_memory_for_other_machines() {
    let mut state = new_state();
    for n in 0.. {
        let client = introduce_from(&mut state, format!("flood {n}"), machine(1)).unwrap();
        if confirm(&mut state, client).is_err() {
            break;
        }
    }
    for n in 0..100 {
        let client = introduce_from(&mut state, format!("other {n}"), machine(2)).unwrap();
        confirm(&mut state, client).unwrap();
    }
}

#[test]
fn sessions_of_one_client_are_limited() {
    let mut state = new_state();
    let client = introduce(&mut state, "one".into()).unwrap();
    let mut args = CREATE_SESSION4args {
        csa_clientid: client.0,
        csa_sequence: 0,
        csa_flags: 0,
        csa_fore_chan_attrs: channel(64),
        csa_back_chan_attrs: channel(1),
        csa_cb_program: 0,
        csa_sec_parms: vec![],
    };
    for n in 1..=limits::SESSIONS_PER_CLIENT_MAX {
        args.csa_sequence = n as u32;
        state.create_session(&args, ALICE, CONNECTION, 1, at(0)).unwrap();
    }
    args.csa_sequence += 1;
    assert_eq!(state.create_session(&args, ALICE, CONNECTION, 1, at(0)), Err(NFS4ERR_NOSPC));
}

/// Opens files with more and more clients of one machine, until the server refuses. Returns the number of opens
/// granted.
fn open_all(state: &mut State, origin: Machine, clients: &mut Vec<ClientId>) -> usize {
    let owner = Bytes::from_static(b"owner");
    let before = state.counts().opens;
    loop {
        let client = introduce_from(state, format!("client {}", clients.len()), origin).unwrap();
        confirm(state, client).unwrap();
        clients.push(client);
        for n in 1..=limits::OPENS_PER_CLIENT_MAX as u64 {
            if let Err(status) = state.open(client, &owner, FileId(n), 1, 0) {
                assert_eq!(status, NFS4ERR_DELAY);
                return state.counts().opens - before;
            }
        }
        let one_more = FileId(limits::OPENS_PER_CLIENT_MAX as u64 + 1);
        assert_eq!(state.open(client, &owner, one_more, 1, 0), Err(NFS4ERR_DELAY));
        assert!(state.open(client, &owner, FileId(1), 2, 0).is_ok(), "an open that is there takes no more room");
        state.take_effects();
    }
}

#[test]
fn opens_of_one_client_and_of_one_machine_are_limited() {
    let mut state = new_state();
    let mut clients = Vec::new();
    // Each machine that opens as many files as possible gets half of the opens that remain.
    let mut left = limits::OPENS_MAX;
    for n in 0..6 {
        let taken = open_all(&mut state, machine(n), &mut clients);
        assert!((left / 2..left / 2 + 2).contains(&taken), "machine {n}: {taken} of {left}");
        left -= taken;
        assert_eq!(open_all(&mut state, machine(n), &mut clients), 0, "with another client it gets no more");
    }
    // The server removes clients with an expired lease, and frees their opens.
    state.destroy_session(state.client(clients[0]).unwrap().sessions[0], CONNECTION).unwrap();
    state.expire(at(3600 * 24 * 30));
    for client in clients {
        state.lapsed(client);
    }
    state.expire(at(3600 * 24 * 60));
    assert_eq!(state.counts().opens, 0);
}

#[test]
fn unconfirmed_clients_of_one_machine_evict_only_each_other() {
    let mut state = new_state();
    let mut made = 0;
    // The clients create no sessions, because otherwise the limit on sessions would stop the flood of client records.
    let flood = |state: &mut State, origin, n: usize| introduce_from(state, format!("{origin:?} {n}"), origin);
    for n in 0..2 * limits::UNCONFIRMED_MAX {
        made += usize::from(flood(&mut state, machine(1), n).is_ok());
    }
    assert_eq!((made, state.counts().clients), (2 * limits::UNCONFIRMED_MAX, limits::UNCONFIRMED_MAX));
    let victim = introduce_from(&mut state, "victim".into(), machine(2)).unwrap();
    for n in 0..limits::UNCONFIRMED_MAX {
        flood(&mut state, machine(1), n + made).unwrap();
    }
    assert!(state.client(victim).is_some(), "the flood pushed out its own");
    confirm(&mut state, victim).unwrap();
}

#[test]
fn the_owner_string_alone_does_not_take_over_a_client_record() {
    let mut state = new_state();
    let args = |verifier| exchange_args("owner", verifier, 0);
    let caller = |origin, random| Caller { principal: ALICE, origin, random };
    let first = state.exchange_id(&args(1), caller(machine(1), 77), at(0)).unwrap();
    assert_eq!(first.client.0 & 0xffff_ffff, 78, "what nobody can guess is in the id");
    confirm(&mut state, first.client).unwrap();
    assert_eq!(state.destroy_clientid(first.client, caller(machine(2), 0)), Err(NFS4ERR_WRONG_CRED));
    assert_eq!(state.destroy_clientid(first.client, BOB), Err(NFS4ERR_WRONG_CRED));
    // A client on another machine that uses the same client owner and does not know the verifier gets CLID_INUSE.
    assert_eq!(state.exchange_id(&args(2), caller(machine(2), 0), at(1)), Err(NFS4ERR_CLID_INUSE));
    // The server accepts the client from another machine with its old verifier, and from its own machine with a new
    // verifier.
    assert_eq!(state.exchange_id(&args(1), caller(machine(2), 0), at(1)).map(|got| got.client), Ok(first.client));
    assert!(state.exchange_id(&args(2), caller(machine(1), 0), at(1)).is_ok());
    assert!(state.client(first.client).is_some(), "until the new one is confirmed");
    // After its lease has expired, a client may register again from another machine with a new verifier.
    assert!(state.exchange_id(&args(3), caller(machine(2), 0), at(1000)).is_ok());
}

#[test]
fn a_session_does_not_keep_the_request_message_in_memory() {
    let mut state = new_state();
    let client = introduce(&mut state, "one".into()).unwrap();
    let message = Bytes::from(vec![b'm'; 100_000]);
    let sys = authsys_parms { machinename: message.slice(500..510), ..authsys_parms::default() };
    let gss = gss_cb_handles4 {
        gcbp_service: RPC_GSS_SVC_NONE,
        gcbp_handle_from_server: Bytes::new(),
        gcbp_handle_from_client: Bytes::new(),
    };
    let args = CREATE_SESSION4args {
        csa_clientid: client.0,
        csa_sequence: 1,
        csa_flags: CREATE_SESSION4_FLAG_CONN_BACK_CHAN,
        csa_fore_chan_attrs: channel(64),
        csa_back_chan_attrs: channel(1),
        csa_cb_program: 0,
        csa_sec_parms: std::iter::once(callback_sec_parms4::RPCSEC_GSS(gss))
            .chain(std::iter::repeat_n(callback_sec_parms4::AUTH_SYS(sys), 1000))
            .collect(),
    };
    state.create_session(&args, ALICE, CONNECTION, 1, at(0)).unwrap();
    drop(args);
    assert!(message.is_unique(), "the message is kept as long as the session");
    let path = state.backchannel(client).unwrap();
    let Some(callback_sec_parms4::AUTH_SYS(sys)) = path.security else { panic!("not the first that is offered") };
    assert_eq!(sys.machinename, "mmmmmmmmmm");
}

#[test]
fn delegations_of_one_client_are_limited() {
    use nfs::state::delegations::{Use, Want, WhyNoDelegation};
    let mut state = new_state();
    let (client, _) = connect(&mut state, "a", at(0));
    let owner = Bytes::from_static(b"o");
    let take = |state: &mut State, n: u64| {
        let open = state.open(client, &owner, FileId(n), 1, 0).unwrap().stateid;
        let given = state.delegate(client, FileId(n), (1, Want::Any), 1, at(0));
        state.close(client, FileId(n), &open).unwrap();
        given
    };
    let most = limits::DELEGATIONS_PER_CLIENT_MAX as u64;
    for n in 0..most {
        take(&mut state, n).unwrap();
    }
    assert_eq!(take(&mut state, most), Err(WhyNoDelegation::Resource));
    // A revoked delegation counts towards the limit until the client frees its stateid.
    state.recall_delegations(FileId(0), Use::Write, None, at(0));
    state.distrusted(client, at(90));
    assert_eq!(take(&mut state, most), Err(WhyNoDelegation::Resource));
    assert_eq!(state.counts().delegations, limits::DELEGATIONS_PER_CLIENT_MAX - 1);
}
