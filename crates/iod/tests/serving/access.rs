//! Access control of an iod: sessions, tickets, capabilities, rights and fences.

use types::{FileId, Fsid, Generation, IodId, ObjectId, Status, StoreId};
use wire::native::*;

use crate::cluster::{ALL, Client, FSID, Fault, IOD, SESSION, Server, cap, cap_of, cluster_key, key, now};

/// Calls every procedure whose arguments contain a capability for an object; returns the result of each call.
fn everything(client: &mut Client, cap: &Capability) -> Vec<(Procedure, Result<(), Fault>)> {
    let cap = || cap.clone();
    let mut out = Vec::new();
    let read = ReadArgs { cap: cap(), extents: vec![Extent { offset: 0, len: 1 }] };
    out.push((Procedure::Read, client.call::<ReadReply>(Procedure::Read, &read).map(drop)));
    let mut write = client.write_args(1, false, &[(0, b"x")]);
    write.head.cap = cap();
    out.push((Procedure::Write, client.call::<WriteReply>(Procedure::Write, &write).map(drop)));
    let object = ObjectArgs { cap: cap() };
    out.push((Procedure::Commit, client.call::<CommitReply>(Procedure::Commit, &object).map(drop)));
    out.push((Procedure::Size, client.call::<SizeReply>(Procedure::Size, &object).map(drop)));
    let truncate = TruncateArgs { cap: cap(), size: 1 };
    out.push((Procedure::Truncate, client.call::<TruncateReply>(Procedure::Truncate, &truncate).map(drop)));
    let punch = PunchArgs { cap: cap(), offset: 0, len: 1 };
    out.push((Procedure::Punch, client.call::<Nothing>(Procedure::Punch, &punch).map(drop)));
    let reserve = ReserveArgs { cap: cap(), offset: 0, len: 1 };
    out.push((Procedure::Reserve, client.call::<Nothing>(Procedure::Reserve, &reserve).map(drop)));
    let seek = SeekArgs { cap: cap(), offset: 0, what: SeekWhat::Data };
    out.push((Procedure::Seek, client.call::<SeekReply>(Procedure::Seek, &seek).map(drop)));
    out.push((Procedure::Lend, client.call::<LendReply>(Procedure::Lend, &object).map(drop)));
    let fence = FenceArgs { cap: cap(), generation: Generation(1) };
    out.push((Procedure::Fence, client.call::<Nothing>(Procedure::Fence, &fence).map(drop)));
    out.push((Procedure::Remove, client.call::<Nothing>(Procedure::Remove, &object).map(drop)));
    out
}

fn sign(change: impl FnOnce(&mut (Fsid, ObjectId, Generation, Rights, u64, u64))) -> Capability {
    let mut parts = (FSID, ObjectId::stream_0(FileId(1)), Generation(1), ALL, now() + 1000, SESSION);
    change(&mut parts);
    let (fsid, object, generation, rights, expires, session) = parts;
    key().sign_capability(fsid, object, generation, rights, expires, session)
}

#[test]
fn every_procedure_refuses_invalid_capabilities() {
    let server = Server::new();
    let mut client = server.local_client(true);
    client.write(1, 0, b"secret").unwrap();
    let mut forged = cap(1, ALL);
    forged.mac[0] ^= 1;
    let mut stretched = cap(2, ALL);
    stretched.object = ObjectId::stream_0(FileId(1));
    let of_other_key = Key::new([9; 32]).of_iod(IOD).sign_capability(
        FSID,
        ObjectId::stream_0(FileId(1)),
        Generation(1),
        ALL,
        now() + 1000,
        SESSION,
    );
    let of_other_iod = cluster_key().of_iod(IodId([6; 16]));
    let of_other_iod =
        of_other_iod.sign_capability(FSID, ObjectId::stream_0(FileId(1)), Generation(1), ALL, now() + 1000, SESSION);
    let cases = [
        (forged, Status::CapRefused),
        (stretched, Status::CapRefused),
        (of_other_key, Status::CapRefused),
        (of_other_iod, Status::CapRefused),
        (sign(|p| p.0 = Fsid([0; 16])), Status::CapRefused),
        (sign(|p| p.3 = Rights(0)), Status::CapRefused),
        (sign(|p| p.4 = now()), Status::CapExpired),
        (sign(|p| p.5 = SESSION + 1), Status::CapRefused),
        (sign(|p| p.1 = STORE_OBJECT), Status::CapRefused),
    ];
    for (cap, status) in &cases {
        for (procedure, result) in everything(&mut client, cap) {
            assert_eq!(result.unwrap_err().status(), *status, "{procedure:?} {cap:?}");
        }
    }
    assert_eq!(server.counter("refused.expired"), 11);
    assert_eq!(server.counter("refused.capability"), 11 * (cases.len() as u64 - 1));
    assert_eq!(client.read(1, 0, 100).unwrap(), b"secret");
}

#[test]
fn each_procedure_needs_its_right() {
    let server = Server::new();
    let mut client = server.local_client(true);
    client.write(1, 0, b"data").unwrap();
    for rights in 0..8 {
        for (procedure, result) in everything(&mut client, &cap(1, Rights(rights))) {
            let needed = match procedure {
                Procedure::Read | Procedure::Size | Procedure::Seek | Procedure::Lend => Rights::READ,
                Procedure::Remove | Procedure::Fence => Rights::ADMIN,
                _ => Rights::WRITE,
            };
            if Rights(rights).contains(needed) {
                result.unwrap_or_else(|e| panic!("{procedure:?} with {rights}: {e:?}"));
            } else {
                assert_eq!(result.unwrap_err().status(), Status::CapRefused, "{procedure:?} with {rights}");
            }
        }
    }
    let list = |cap| ListArgs { cap, after: None, max: 5 };
    let not_whole = client.call::<ListReply>(Procedure::List, &list(cap(1, ALL)));
    assert_eq!(not_whole.unwrap_err().status(), Status::CapRefused);
    let not_admin = client.call::<ListReply>(Procedure::List, &list(cap(0, Rights::READ | Rights::WRITE)));
    assert_eq!(not_admin.unwrap_err().status(), Status::CapRefused);
    client.call::<ListReply>(Procedure::List, &list(cap(0, Rights::ADMIN))).unwrap();
}

#[test]
fn claims_need_the_right_to_administer_the_whole_store() {
    let server = Server::new();
    let mut client = server.local_client(true);
    let claim = Claim { store: StoreId([1; 16]), epoch: 1, mark: 2, numbers: 3 };
    let args = |cap| ClaimArgs {
        cap,
        claiming: Some(Claiming { expected: 0, next: 1, claim }),
        now: now(),
        least_epoch: 0,
        highest: false,
    };
    for cap in [cap(1, ALL), cap(0, Rights::READ | Rights::WRITE)] {
        let refused = client.call::<ClaimReply>(Procedure::Claim, &args(cap)).unwrap_err();
        assert_eq!(refused.status(), Status::CapRefused);
    }
    let reply = client.call::<ClaimReply>(Procedure::Claim, &args(cap(0, Rights::ADMIN))).unwrap();
    assert_eq!(reply, ClaimReply { taken: true, remembered: Some(claim), highest: None });
}

/// After a restart, the iod may run on an outdated copy of its disk. The mgr does not claim such an iod, so the iod
/// must not serve its objects.
#[test]
fn a_restarted_iod_delays_requests_until_it_is_claimed() {
    let mut server = Server::new();
    let claim = Claim { store: StoreId([1; 16]), epoch: 1, mark: 2, numbers: 3 };
    let args = |expected| {
        let claiming = Some(Claiming { expected, next: 1, claim });
        ClaimArgs { cap: cap(0, Rights::ADMIN), claiming, now: now(), least_epoch: 0, highest: false }
    };
    let size = |client: &mut Client| {
        client.call::<SizeReply>(Procedure::Size, &ObjectArgs { cap: cap(1, ALL) }).map_err(|fault| fault.status())
    };
    assert!(size(&mut server.client()).is_ok(), "no store uses it yet");
    server.client().call::<ClaimReply>(Procedure::Claim, &args(0)).unwrap();
    assert!(size(&mut server.client()).is_ok());
    server.restart();
    let mut client = server.client();
    assert_eq!(size(&mut client), Err(Status::Delay));
    let served = server.running().volume().clone();
    let read = served
        .read_object(ObjectId::stream_0(FileId(1)), Generation(1), 0, 10)
        .map(drop)
        .map_err(|failure| failure.status);
    assert_eq!(read, Err(Status::Delay));
    assert!(!client.call::<ClaimReply>(Procedure::Claim, &args(1)).unwrap().taken, "of a store with another mark");
    assert_eq!(size(&mut client), Err(Status::Delay));
    assert!(client.call::<ClaimReply>(Procedure::Claim, &args(2)).unwrap().taken);
    assert!(size(&mut client).is_ok());
    assert!(served.read_object(ObjectId::stream_0(FileId(1)), Generation(1), 0, 10).is_ok());
}

#[test]
fn only_null_is_served_before_hello() {
    let server = Server::new();
    let mut client = Client::new(server.tcp());
    client.send(Procedure::Null, &Nothing);
    assert_eq!(client.receive().unwrap().len(), 24, "a void result");
    for (procedure, result) in everything(&mut client, &cap(1, ALL)) {
        assert_eq!(result.unwrap_err().status(), Status::NoSession, "{procedure:?}");
    }
    assert_eq!(client.stats().unwrap_err().status(), Status::NoSession);
    assert_eq!(client.list(0, 1).unwrap_err().status(), Status::NoSession);
    assert_eq!(server.counter("refused.no_session"), 13);
    client.hello(true).unwrap();
    client.write(1, 0, b"now").unwrap();
}

const ORIGIN: Origin = Origin { owner: [1; 16], incarnation: 0 };

fn made_up(proof: Proof) -> ProveArgs {
    ProveArgs { origin: ORIGIN, proof }
}

#[test]
fn invalid_tickets_open_no_session() {
    let server = Server::new();
    let good = key().ticket(FSID, SESSION, now() + 1000);
    let hello = |ticket: &Ticket| HelloArgs::new(ticket, [8; 32], false);
    let with = |change: fn(&mut HelloArgs)| {
        let mut args = hello(&good);
        change(&mut args);
        args
    };
    let mut client = Client::new(server.tcp());
    for (args, status) in [
        (hello(&key().ticket(FSID, SESSION, now())), Status::CapExpired),
        (hello(&key().ticket(Fsid([1; 16]), SESSION, now() + 9)), Status::CapRefused),
        (with(|args| (args.min_version, args.max_version) = (5, 9)), Status::BadVersion),
        (with(|args| (args.min_version, args.max_version) = (1, 2)), Status::BadVersion),
        (with(|args| args.max_payload = 0), Status::Inval),
    ] {
        let reply = client.call::<HelloReply>(Procedure::Hello, &args);
        assert_eq!(reply.unwrap_err().status(), status, "{args:?}");
        assert_eq!(
            client.call::<ProveReply>(Procedure::Prove, &made_up(Proof([0; 32]))).unwrap_err().status(),
            Status::Inval
        );
        assert_eq!(client.stats().unwrap_err().status(), Status::NoSession);
    }
    let args = with(|args| args.max_payload = 4096);
    let reply = client.call::<HelloReply>(Procedure::Hello, &args).unwrap();
    assert_eq!((reply.max_payload, reply.checksums), (4096, false));
    client.call::<ProveReply>(Procedure::Prove, &good.check(&args, &reply, ORIGIN).unwrap()).unwrap();
    let data = vec![1; 4097];
    assert_eq!(client.write(1, 0, &data).unwrap_err().status(), Status::TooBig);
    client.write(1, 0, &data[1..]).unwrap();
    assert_eq!(client.read_list(1, &[(0, 4000), (0, 97)]).unwrap_err().status(), Status::TooBig);
}

#[test]
fn without_the_ticket_secret_neither_client_nor_iod_can_authenticate() {
    let server = Server::new();
    let good = key().ticket(FSID, SESSION, now() + 1000);
    let args = HelloArgs::new(&good, [8; 32], false);
    // A peer without the secret of a ticket can send the public fields of HELLO, but no valid proof. The iod refuses
    // an invented proof, a copy of the iod's proof, and the proof of another connection. The client refuses replies to
    // HELLO that do not match its ticket.
    let mut other = Client::new(server.tcp());
    let reply: HelloReply = other.call(Procedure::Hello, &args).unwrap();
    let of_other = good.check(&args, &reply, ORIGIN).unwrap();
    let foreign: [Ticket; 3] = [
        cluster_key().of_iod(IodId([6; 16])).ticket(FSID, SESSION, args.expires),
        key().ticket(FSID, SESSION + 1, args.expires),
        key().ticket(FSID, SESSION, args.expires + 1),
    ];
    let proofs: [fn(&HelloReply, Proof) -> Proof; 3] =
        [|_, _| Proof([0; 32]), |reply, _| reply.proof, |_, of_other| of_other];
    for proof in proofs {
        let mut client = Client::new(server.tcp());
        let reply: HelloReply = client.call(Procedure::Hello, &args).unwrap();
        let refused = client.call::<ProveReply>(Procedure::Prove, &made_up(proof(&reply, of_other.proof))).unwrap_err();
        assert_eq!(refused.status(), Status::CapRefused);
        assert_eq!(client.write(1, 0, b"x").unwrap_err().status(), Status::NoSession);
        // After a wrong proof, the iod refuses even the right proof, because a client may send PROVE only once on a
        // connection.
        let genuine = good.check(&args, &reply, ORIGIN).unwrap();
        assert_eq!(client.call::<ProveReply>(Procedure::Prove, &genuine).unwrap_err().status(), Status::Inval);
        assert_eq!(client.stats().unwrap_err().status(), Status::NoSession);
        foreign.iter().for_each(|ticket| assert_eq!(ticket.check(&args, &reply, ORIGIN), Err(Status::CapRefused)));
    }
    // The proof of the iod covers every field of its reply to HELLO, so the client detects each changed field.
    let changes: [fn(&mut HelloReply); 5] = [
        |reply| reply.iod.0[0] ^= 1,
        |reply| reply.verifier.0[0] ^= 1,
        |reply| reply.checksums ^= true,
        |reply| reply.max_extents = 7,
        |reply| reply.proof.0[31] ^= 1,
    ];
    for change in changes {
        let mut changed = reply.clone();
        change(&mut changed);
        assert_eq!(good.check(&args, &changed, ORIGIN), Err(Status::CapRefused), "{changed:?}");
    }
    other.call::<ProveReply>(Procedure::Prove, &of_other).unwrap();
    other.write(1, 0, b"genuine").unwrap();
}

#[test]
fn an_unauthenticated_connection_replaces_no_other_connection() {
    let server = Server::new();
    let mut old = server.client();
    old.write(1, 0, b"mine").unwrap();
    let mut client = Client::new(server.tcp());
    let ticket = key().ticket(FSID, SESSION, now() + 1000);
    let newer = Origin { owner: ORIGIN.owner, incarnation: 9 };
    client.call::<HelloReply>(Procedure::Hello, &HelloArgs::new(&ticket, [8; 32], false)).unwrap();
    let newer = ProveArgs { origin: newer, proof: Proof([7; 32]) };
    client.call::<ProveReply>(Procedure::Prove, &newer).unwrap_err();
    assert_eq!(old.read(1, 0, 9).unwrap(), b"mine");
}

#[test]
fn rights_of_earlier_epochs_end_with_a_claim() {
    let server = Server::new();
    let (mut mgr, mut client) = (server.local_client(true), server.client());
    client.write(1, 0, b"before").unwrap();
    // The sessions of the test clients belong to epoch 0 of the mgr. The CLAIM of the mgr makes the sessions of all
    // epochs before 3 invalid.
    let claim = Claim { store: StoreId([1; 16]), epoch: 3, mark: 2, numbers: 3 };
    let claiming = Some(Claiming { expected: 0, next: 100, claim });
    let args = ClaimArgs { cap: mgr.cap(0, Rights::ADMIN), claiming, now: now(), least_epoch: 3, highest: false };
    assert!(mgr.call::<ClaimReply>(Procedure::Claim, &args).unwrap().taken);
    assert_eq!(client.read(1, 0, 9).unwrap_err().status(), Status::Fenced);
    let mut late = Client::new(server.tcp());
    assert_eq!(late.hello(true).unwrap_err().status(), Status::CapExpired);
    let session = 3 << 32 | 5;
    let ticket = key().ticket(FSID, session, now() + 1000);
    let mut next = Client::new(server.tcp());
    next.hello_with(&ticket, ORIGIN, false).unwrap();
    let cap =
        key().sign_capability(FSID, ObjectId::stream_0(FileId(1)), Generation(1), Rights::READ, now() + 1000, session);
    let read = ReadArgs { cap, extents: vec![Extent { offset: 0, len: 9 }] };
    assert_eq!(&next.call::<ReadReply>(Procedure::Read, &read).unwrap().data[..], b"before");
}

#[test]
fn fences_hold_and_survive_a_restart() {
    let mut server = Server::new();
    let mut client = server.local_client(true);
    client.write(1, 0, b"old").unwrap();
    client.fence(1, 5).unwrap();
    client.fence(2, 5).unwrap();
    for restarted in [false, true] {
        if restarted {
            server.restart();
            client = server.local_client(true);
        }
        for object in [1, 2] {
            for (procedure, result) in everything(&mut client, &cap_of(object, 4, ALL)) {
                assert_eq!(result.unwrap_err().status(), Status::Fenced, "{procedure:?} on {object}");
            }
        }
        let read = ReadArgs { cap: cap_of(1, 5, ALL), extents: vec![Extent { offset: 0, len: 9 }] };
        assert_eq!(client.call::<ReadReply>(Procedure::Read, &read).unwrap().data, "old");
    }
    assert_eq!(server.counter("refused.fenced"), 22);
    // FENCE with an older generation does not lower the generation of the object. FENCE accepts a capability whose
    // generation is newer than that of the object.
    let args = FenceArgs { cap: cap_of(1, 7, ALL), generation: Generation(3) };
    client.call::<Nothing>(Procedure::Fence, &args).unwrap();
    let read = ReadArgs { cap: cap_of(1, 4, ALL), extents: vec![] };
    assert_eq!(client.call::<ReadReply>(Procedure::Read, &read).unwrap_err().status(), Status::Fenced);
    assert_eq!(client.list(0, 10).unwrap().entries.iter().map(|e| e.generation.0).collect::<Vec<_>>(), [5, 5]);
}
