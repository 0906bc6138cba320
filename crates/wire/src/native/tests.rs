//! Tests of the messages of the native data program: golden bytes, round trips, and forged or damaged messages.

use std::fmt::Debug;

use bytes::Bytes;
use proptest::prelude::*;
use types::{ByteRange, FileId, Fsid, Generation, IodId, LOG_STREAMS, ObjectId, StoreId, Verifier};
use xdr::Segments;

use super::*;

/// A SEEK in an object that has lost bytes at its end must treat the lost bytes as data. The test tries all layouts of
/// small objects with every number of lost bytes.
#[test]
fn a_seek_counts_lost_bytes_as_data() {
    for (size, least, bits) in
        (0..6_u64).flat_map(|size| (0..8).flat_map(move |least| (0..1 << size).map(move |bits| (size, least, bits))))
    {
        let stores = |at: &u64| *at < size && bits >> at & 1 == 1;
        let is_data = |at: &u64| stores(at) || (size..least).contains(at);
        for start in 0..10 {
            for what in [SeekWhat::Data, SeekWhat::Hole] {
                let wanted = |at: &u64| if what == SeekWhat::Data { stores(at) } else { !stores(at) };
                // The end of the object counts as a hole, and an iod finds nothing at or beyond the end.
                let end = if what == SeekWhat::Hole { size + 1 } else { size };
                let found = (start..end).find(wanted).filter(|_| start < size);
                let result = SeekResult { what, start, found };
                let expected = (start..20).find(|at| is_data(at) == (what == SeekWhat::Data));
                assert_eq!(result.with_lost(size, least), expected, "{result:?}, {size} bytes of {least}, {bits:b}");
                if !result.depends_on_size(least) {
                    assert_eq!(result.with_lost(least, least), expected, "{result:?}, unknown size, {least}, {bits:b}");
                }
            }
        }
    }
}

fn key() -> IodKey {
    Key::new([7; 32]).of_iod(IOD)
}

const IOD: IodId = IodId([2; 16]);

fn fsid() -> Fsid {
    Fsid(*b"0123456789abcdef")
}

fn cap(rights: Rights) -> Capability {
    key().sign_capability(fsid(), object(0x1122), Generation(3), rights, 1000, 42)
}

/// Returns an object id whose stream number is easy to recognize in golden bytes.
fn object(file: u64) -> ObjectId {
    ObjectId::new(FileId(file), 0x55)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn golden<T: Xdr + PartialEq + Debug>(value: &T, bytes: &str) {
    let encoded = value.to_bytes();
    assert_eq!(hex(&encoded), bytes);
    assert_eq!(&T::from_bytes(&encoded).unwrap(), value);
    for len in 0..encoded.len() {
        assert!(T::from_bytes(&encoded.slice(..len)).is_err(), "accepted only {len} bytes");
    }
}

const CAP: &str = concat!(
    "30313233343536373839616263646566",
    "0000000000001122000000550000000300000003",
    "00000000000003e8000000000000002a",
    "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
);

/// Returns a capability whose MAC is easy to recognize in golden bytes.
fn plain() -> Capability {
    Capability { mac: [0x5a; 32], ..cap(Rights::READ | Rights::WRITE) }
}

/// Returns a ticket whose secret is easy to recognize in golden bytes.
fn ticket() -> Ticket {
    let mut bytes = key().ticket(fsid(), 42, 1000).to_bytes().to_vec();
    bytes[32..].fill(0x5a);
    Ticket::from_bytes(&bytes.into()).unwrap()
}

#[test]
fn messages_have_their_golden_bytes() {
    golden(&plain(), CAP);
    golden(&ticket(), &format!("30313233343536373839616263646566000000000000002a00000000000003e8{}", "5a".repeat(32)));
    golden(
        &ReadArgs { cap: plain(), extents: vec![Extent { offset: 1 << 33, len: 4096 }] },
        &format!("{CAP}00000001000000020000000000001000"),
    );
    golden(
        &ReadReply {
            head: ReadHead {
                size: 9,
                pieces: vec![
                    Piece { kind: PieceKind::Data, len: 3, crc32c: 0x364b_3fb7 },
                    Piece { kind: PieceKind::Hole, len: 6, crc32c: 0 },
                    Piece { kind: PieceKind::Beyond, len: 1, crc32c: 0 },
                ],
            },
            data: Bytes::from_static(b"abc"),
        },
        concat!(
            "000000000000000900000003",
            "0000000000000003364b3fb7",
            "000000010000000600000000",
            "000000020000000100000000",
            "0000000361626300"
        ),
    );
    golden(
        &WriteArgs {
            head: WriteHead {
                cap: plain(),
                stable: true,
                least: 7,
                extents: vec![WriteExtent { offset: 5, len: 2, crc32c: 0xdead_beef }],
            },
            data: Segments::from(Bytes::from_static(b"hi")),
        },
        &format!("{CAP}00000001000000000000000700000001000000000000000500000002deadbeef0000000268690000"),
    );
    golden(
        &WriteReply { verifier: Verifier([1; 8]), stable: false, size: 7 },
        "0101010101010101000000000000000000000007",
    );
}

#[test]
fn reports_of_writes_and_questions_for_lengths_have_their_golden_bytes() {
    golden(
        &WriteReportsReply { number: 3, written: vec![object(9)] },
        "000000000000000300000001000000000000000900000055",
    );
    let answers = vec![
        Length { number: 7, length: Some(FileLength { file: 300, least: 100 }) },
        Length { number: 8, length: None },
    ];
    golden(
        &LengthsArgs { cap: plain(), answers },
        &format!("{CAP}00000002000000000000000700000001000000000000012c0000000000000064000000000000000800000000"),
    );
    let asked = vec![LengthQuestion { number: 7, object: object(9) }];
    golden(&LengthsReply { asked }, "000000010000000000000007000000000000000900000055");
}

#[test]
fn loans_have_their_golden_bytes_and_a_mark() {
    let loan = Loan { begin: 4096, mark: Bytes::from_static(b"head!") };
    golden(&LendReply { loan: Some(loan) }, "000000010000000000001000000000056865616421000000");
    golden(&LendReply { loan: None }, "00000000");
    let long = LendReply { loan: Some(Loan { begin: 0, mark: vec![1; LOAN_MARK_MAX].into() }) };
    assert_eq!(LendReply::from_bytes(&long.to_bytes()).unwrap(), long);
    for len in [0, LOAN_MARK_MAX + 1] {
        let bad = LendReply { loan: Some(Loan { begin: 0, mark: vec![1; len].into() }) };
        LendReply::from_bytes(&bad.to_bytes()).unwrap_err();
    }
}

#[test]
fn claims_have_their_golden_bytes() {
    let claim = Claim { store: StoreId([6; 16]), epoch: 3, mark: 0x99, numbers: 0x1000 };
    let bytes = format!("{}0000000300000000000000990000000000001000", "06".repeat(16));
    let claiming = Claiming { expected: 7, next: 5, claim };
    golden(
        &ClaimArgs { cap: plain(), claiming: Some(claiming), now: 0x65, least_epoch: 4, highest: true },
        &format!("{CAP}0000000100000000000000070000000000000005{bytes}00000000000000650000000400000001"),
    );
    golden(
        &ClaimArgs { cap: plain(), claiming: None, now: 1, least_epoch: 0, highest: false },
        &format!("{CAP}0000000000000000000000010000000000000000"),
    );
    golden(
        &ClaimReply { taken: true, remembered: Some(claim), highest: Some(9) },
        &format!("0000000100000001{bytes}000000010000000000000009"),
    );
    golden(&ClaimReply::default(), "000000000000000000000000");
}

#[test]
fn messages_about_objects_have_their_golden_bytes() {
    golden(&ObjectArgs { cap: plain() }, CAP);
    golden(&CommitReply { verifier: Verifier([1; 8]), size: 7 }, "01010101010101010000000000000007");
    golden(&SizeReply { size: 7, allocated: 8192, changed: true }, "0000000000000007000000000000200000000001");
    golden(&TruncateArgs { cap: plain(), size: 7 }, &format!("{CAP}0000000000000007"));
    golden(&TruncateReply { size: 7 }, "0000000000000007");
    golden(&PunchArgs { cap: plain(), offset: 1, len: 2 }, &format!("{CAP}00000000000000010000000000000002"));
    golden(&ReserveArgs { cap: plain(), offset: 1, len: 2 }, &format!("{CAP}00000000000000010000000000000002"));
    let ticket_bytes = hex(&ticket().to_bytes());
    let source = PullSource { cap: plain(), ticket: ticket(), iod: IOD, addresses: vec!["[::1]:2050".into()] };
    golden(
        &PullArgs { cap: plain(), stable: true, source, extents: vec![PullExtent { from: 1, to: 2, len: 3 }] },
        &format!(
            "{CAP}00000001{CAP}{ticket_bytes}02020202020202020202020202020202\
             000000010000000a5b3a3a315d3a323035300000000000010000000000000001000000000000000200000003"
        ),
    );
    golden(
        &PullReply { verifier: Verifier([1; 8]), stable: false, size: 7, done: 3, stopped: Some("gone".into()) },
        concat!("0101010101010101", "00000000", "0000000000000007", "0000000000000003", "0000000100000004676f6e65"),
    );
    golden(&SeekArgs { cap: plain(), offset: 1, what: SeekWhat::Hole }, &format!("{CAP}000000000000000100000001"));
    golden(&SeekReply { offset: Some(3) }, "000000010000000000000003");
    golden(&SeekReply { offset: None }, "00000000");
    golden(&FenceArgs { cap: plain(), generation: Generation(9) }, &format!("{CAP}00000009"));
    golden(&ScrubArgs { cap: plain(), from: None, budget: 5 }, &format!("{CAP}0000000000000005"));
    let cursor = Some(ScrubCursor { object: object(4), offset: 6 });
    golden(
        &ScrubArgs { cap: plain(), from: cursor, budget: 5 },
        &format!("{CAP}00000001000000000000000400000055000000000000000600000005"),
    );
    golden(
        &ScrubReply {
            next: cursor,
            objects: 1,
            bytes: 2,
            verified: 3,
            rebuilt: 7,
            findings: vec![Finding { object: object(8), damage: Damage::Unreadable, offset: 9, len: 10 }],
        },
        concat!(
            "000000010000000000000004000000550000000000000006",
            "0000000000000001000000000000000200000000000000030000000000000007",
            "00000001000000000000000800000055000000020000000000000009000000000000000a"
        ),
    );
    golden(&ListArgs { cap: plain(), after: None, max: 5 }, &format!("{CAP}0000000000000005"));
    golden(
        &ListArgs { cap: plain(), after: Some(object(4)), max: 5 },
        &format!("{CAP}0000000100000000000000040000005500000005"),
    );
    golden(
        &ListReply {
            entries: vec![ListEntry {
                object: object(4),
                size: 1,
                allocated: 4096,
                generation: Generation(2),
                head: HeadState::Newer,
            }],
            eof: true,
        },
        "000000010000000000000004000000550000000000000001000000000000100000000002\
         0000000300000001",
    );
    golden(
        &StatsReply { capacity: 10, free: 9, counters: vec![Counter { name: "syncs".into(), value: 3 }] },
        "000000000000000a0000000000000009000000010000000573796e63730000000000000000000003",
    );
}

#[test]
fn data_handles_have_their_golden_bytes_and_no_others_pass() {
    let (key, rights) = (key(), Rights::READ | Rights::WRITE);
    let sign = |grant| {
        let (striping, holder) =
            (Striping { unit: 1 << 20, count: 4, index: 2 }, Holder { grant, session: 42, expires: 1000 });
        DataHandle::sign(&key, fsid(), (object(9), Generation(3)), rights, striping, holder)
    };
    let handle = sign(5);
    let bytes = handle.to_bytes();
    let head = concat!(
        "5744480430313233000000000000000900000055000000030010000003004002",
        "0000000000000005",
        "000000000000002a00000000000003e8"
    );
    assert_eq!((hex(&bytes).strip_prefix(head).map(str::len), bytes.len()), (Some(32), DATA_HANDLE_LEN));
    assert_eq!(handle.verify(&key, fsid(), 999), Ok(()));
    assert_eq!(handle.verify(&key, fsid(), 1000), Err(Status::CapExpired));
    assert_ne!(sign(6).mac, handle.mac);
    let others = [Key::new([8; 32]).of_iod(IOD), Key::new([7; 32]).of_iod(IodId([3; 16]))];
    others.iter().for_each(|other| assert_eq!(handle.verify(other, fsid(), 999), Err(Status::BadHandle)));
    assert_eq!(handle.verify(&key, Fsid([1; 16]), 999), Err(Status::BadHandle));
    for at in 4..DATA_HANDLE_LEN {
        let mut forged = bytes.to_vec();
        forged[at] ^= 1;
        let forged = DataHandle::from_bytes(&forged.into()).unwrap();
        assert_eq!(forged.verify(&key, fsid(), 999), Err(Status::BadHandle), "{at}");
    }
    let mut other = bytes.to_vec();
    other[0] ^= 1;
    DataHandle::from_bytes(&other.into()).unwrap_err();
}

fn hello() -> (HelloArgs, HelloReply) {
    let args = HelloArgs {
        fsid: fsid(),
        session: 42,
        expires: 1000,
        nonce: [0xa5; 32],
        min_version: 2,
        max_version: 3,
        checksums: true,
        max_payload: 1 << 20,
    };
    let reply = HelloReply {
        iod: IOD,
        fsid: fsid(),
        verifier: Verifier([3; 8]),
        version: 1,
        checksums: false,
        max_payload: 1 << 20,
        max_extents: 1024,
        nonce: [0xb6; 32],
        proof: Proof([0xc7; 32]),
    };
    (args, reply)
}

fn told() -> ProveReply {
    ProveReply {
        local: Some(Local { host: "h".into(), path: "/s".into() }),
        data_server: vec!["h:1".into()],
        software: "weir".into(),
        proof: Proof([0xd8; 32]),
    }
}

#[test]
fn hello_has_its_golden_bytes() {
    let (args, reply) = hello();
    golden(
        &args,
        &format!(
            "30313233343536373839616263646566000000000000002a00000000000003e8{}00000002000000030000000100100000{}",
            "a5".repeat(32),
            "00".repeat(24)
        ),
    );
    golden(
        &reply,
        &format!(
            "{}{}{}",
            concat!(
                "02020202020202020202020202020202",
                "30313233343536373839616263646566",
                "0303030303030303",
                "00000001000000000010000000000400"
            ),
            "b6".repeat(32),
            "c7".repeat(32)
        ),
    );
    golden(
        &ProveArgs { origin: ORIGIN, proof: Proof([0xc7; 32]) },
        &format!("{}0000000000000007{}", "09".repeat(16), "c7".repeat(32)),
    );
    golden(
        &told(),
        &format!(
            "{}{}",
            "000000010000000168000000000000022f7300000000000100000003683a31000000000477656972",
            "d8".repeat(32)
        ),
    );
}

const ORIGIN: Origin = Origin { owner: [9; 16], incarnation: 7 };

/// A HELLO of revision 1 has the MAC of the ticket where later revisions have the nonce, and an `Origin` at the end.
/// The iod must still decode such a HELLO, so that it can reply which revisions it speaks.
#[test]
fn the_hello_of_revision_1_is_read() {
    let mut old = hello().0;
    (old.min_version, old.max_version) = (1, 1);
    let mut bytes = old.to_bytes().to_vec();
    assert_eq!(bytes.len(), 16 + 8 + 8 + 32 + 4 * 4 + 16 + 8);
    bytes[80..].fill(9);
    assert_eq!(HelloArgs::from_bytes(&bytes.into()).unwrap(), old);
    assert!(!REVISIONS.contains(&1));
}

#[test]
fn proofs_are_those_of_the_ticket_and_of_all_that_was_said() {
    let (args, mut reply) = hello();
    let ticket = key().ticket(fsid(), 42, 1000);
    let transcript = ticket.answer(&args, &mut reply);
    let shown = ticket.check(&args, &reply, ORIGIN).unwrap();
    assert!(ticket.is_proven(&transcript, &shown) && !shown.proof.is(&reply.proof));
    assert_eq!((hex(&reply.proof.0).as_str(), hex(&shown.proof.0).as_str()), (IOD_PROOF, CLIENT_PROOF));
    for bit in 0..shown.to_bytes().len() * 8 {
        let mut bytes = shown.to_bytes().to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(
            !ticket.is_proven(&transcript, &ProveArgs::from_bytes(&bytes.into()).unwrap()),
            "bit {bit} of the proof"
        );
    }
    let mut told = told();
    ticket.seal(&transcript, &mut told);
    assert_eq!(hex(&told.proof.0), TOLD_PROOF);
    assert_eq!(ticket.check_prove_reply(&args, &reply, &told), Ok(()));
    for bit in 0..told.to_bytes().len() * 8 {
        let mut bytes = told.to_bytes().to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(changed) = ProveReply::from_bytes(&bytes.into())
            && changed != told
        {
            assert_eq!(
                ticket.check_prove_reply(&args, &reply, &changed),
                Err(Status::CapRefused),
                "bit {bit} of what is told"
            );
        }
    }
    // Each ticket in the list differs from the right ticket in one property: the iod, the session, the expiry, or the
    // file system.
    let others = [
        Key::new([7; 32]).of_iod(IodId([3; 16])).ticket(fsid(), 42, 1000),
        key().ticket(fsid(), 43, 1000),
        key().ticket(fsid(), 42, 1001),
        key().ticket(Fsid([1; 16]), 42, 1000),
    ];
    for other in others {
        assert_eq!(other.check(&args, &reply, ORIGIN), Err(Status::CapRefused), "{other:?}");
        assert!(!other.is_proven(&transcript, &shown));
        assert_eq!(other.check_prove_reply(&args, &reply, &told), Err(Status::CapRefused));
    }
    // The proof of the iod covers the request and the reply of HELLO, so the client detects each changed bit.
    for bit in 0..args.to_bytes().len() * 8 {
        let mut bytes = args.to_bytes().to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(changed) = HelloArgs::from_bytes(&bytes.into())
            && changed != args
        {
            assert_eq!(ticket.check(&changed, &reply, ORIGIN), Err(Status::CapRefused), "bit {bit} of the call");
        }
    }
    for bit in 0..reply.to_bytes().len() * 8 {
        let mut bytes = reply.to_bytes().to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        // A changed bit in XDR padding does not change the decoded message, so check the proof only of changed
        // messages.
        if let Ok(changed) = HelloReply::from_bytes(&bytes.into())
            && changed != reply
        {
            assert_eq!(ticket.check(&args, &changed, ORIGIN), Err(Status::CapRefused), "bit {bit} of the answer");
        }
    }
}

const IOD_PROOF: &str = "c71dc0bb4d556cd00b9ef859a3af4130cbb8112367f90978bffd66f6626012d3";
const CLIENT_PROOF: &str = "ed8a03011094d0f10935d1d61d59c2e21808554bab3771780360396784b83db9";
const TOLD_PROOF: &str = "899e42731e9949ce5282888e25ec7bcc692d147ed8133e399fd37c989cd737df";

#[test]
fn replies_carry_a_status_first() {
    let ok: Result<TruncateReply, Failure> = Ok(TruncateReply { size: 1 });
    let refused: Result<TruncateReply, Failure> =
        Err(Failure { status: Status::NoSpc, detail: Some("the disk is full".into()) });
    for (reply, bytes) in [
        (ok, "000000000000000000000001"),
        (refused, "0000001c0000000100000010746865206469736b2069732066756c6c"),
        (Err(Status::Fenced.into()), "000007d500000000"),
    ] {
        let mut out = Writer::new();
        encode_reply(&reply, &mut out);
        let body = out.finish().to_bytes();
        assert_eq!(hex(&body), bytes);
        assert_eq!(decode_reply(&mut Reader::new(body)), Ok(reply));
    }
}

#[test]
fn details_are_cut_between_characters_and_unknown_statuses_survive() {
    let long = Failure { status: Status::Io, detail: Some("é".repeat(200)) };
    let mut out = Writer::new();
    encode_reply::<Nothing>(&Err(long), &mut out);
    let back = decode_reply::<Nothing>(&mut Reader::new(out.finish().to_bytes())).unwrap().unwrap_err();
    assert_eq!(back.detail.unwrap(), "é".repeat(128));

    let mut later = Reader::new(Bytes::from_static(&[0, 0, 0x7f, 0xff, 0, 0, 0, 0]));
    let failure = decode_reply::<Nothing>(&mut later).unwrap().unwrap_err();
    assert_eq!(failure.status, Status::ServerFault);
    assert!(failure.to_string().contains("32767"), "{failure}");
}

#[test]
fn checksums_are_the_castagnoli_ones() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    let mut parts = Crc32c::new();
    parts.update(b"1234");
    parts.update(b"");
    parts.update(b"56789");
    assert_eq!(parts.finish(), 0xe306_9283);
}

#[test]
fn procedures_are_numbered_without_gaps() {
    for (number, procedure) in Procedure::ALL.iter().enumerate() {
        assert_eq!(*procedure as usize, number);
        assert_eq!(Procedure::from_number(number as u32), Some(*procedure));
    }
    assert_eq!(Procedure::from_number(Procedure::ALL.len() as u32), None);
    assert_eq!(Procedure::from_number(u32::MAX), None);
}

#[test]
fn capabilities_hold_only_as_signed() {
    let good = cap(Rights::READ | Rights::WRITE);
    let check = |cap: &Capability, needed| cap.verify(&key(), fsid(), 999, 42, needed);
    assert_eq!(check(&good, Rights::READ), Ok(()));
    assert_eq!(check(&good, Rights::READ | Rights::WRITE), Ok(()));
    assert_eq!(check(&good, Rights::ADMIN), Err(Status::CapRefused));
    assert_eq!(good.verify(&key(), fsid(), 1000, 42, Rights::READ), Err(Status::CapExpired));
    assert_eq!(good.verify(&key(), fsid(), 999, 43, Rights::READ), Err(Status::CapRefused));
    assert_eq!(good.verify(&key(), Fsid([0; 16]), 999, 42, Rights::READ), Err(Status::CapRefused));
    let others = [Key::new([8; 32]).of_iod(IOD), Key::new([7; 32]).of_iod(IodId([3; 16]))];
    for other in others {
        assert_eq!(good.verify(&other, fsid(), 999, 42, Rights::READ), Err(Status::CapRefused));
    }

    // The MAC covers all fields of a capability, so the iod detects each changed bit.
    let bytes = good.to_bytes();
    for bit in 0..bytes.len() * 8 {
        let mut forged = bytes.to_vec();
        forged[bit / 8] ^= 1 << (bit % 8);
        let forged = Capability::from_bytes(&forged.into()).unwrap();
        assert_eq!(check(&forged, Rights::READ), Err(Status::CapRefused), "bit {bit}");
    }
}

#[test]
fn messages_about_the_index_have_their_golden_bytes() {
    let runs = Bytes::from_static(b"runs");
    golden(
        &RegisterArgs { cap: plain(), log: 1, sequence: 2, durable: 3, runs: runs.clone() },
        &format!("{CAP}00000001000000000000000200000000000000030000000472756e73"),
    );
    golden(&RegisterReply { verifier: Verifier([1; 8]), pending: 7 }, "010101010101010100000007");
    let range = ByteRange { offset: 1, len: 2 };
    golden(
        &LookupArgs { cap: plain(), range, only_durable: true },
        &format!("{CAP}0000000000000001000000000000000200000001"),
    );
    golden(&LookupReply { covered: 1, end: 2, runs }, "000000000000000100000000000000020000000472756e73");
    golden(&OpenLogReply { log: 9 }, "00000009");
}

#[test]
fn a_capability_for_the_index_is_valid_for_every_log_of_the_file() {
    let sign = |object| key().sign_capability(fsid(), object, Generation(3), Rights::READ, 1000, 42);
    let check = |cap: &Capability| cap.verify(&key(), fsid(), 999, 42, Rights::READ);
    let file = FileId(7);
    let index = sign(ObjectId::index(file));
    for log in [0, 1, (1 << 21) - 1] {
        assert_eq!(check(&Capability { object: ObjectId::log(file, log), ..index.clone() }), Ok(()));
    }
    let others = [ObjectId::stream_0(file), ObjectId::new(file, LOG_STREAMS - 1), ObjectId::log(FileId(8), 1)];
    for other in others {
        assert_eq!(check(&Capability { object: other, ..index.clone() }), Err(Status::CapRefused));
        let of_other = sign(ObjectId { file, ..other });
        let in_place = Capability { object: ObjectId::index(file), ..of_other };
        assert_eq!(check(&in_place).is_ok(), other.is_of_logs(), "{other}");
    }
}

#[test]
fn authenticators_stay_the_same_across_versions_and_are_never_shown() {
    let cap = cap(Rights::READ);
    let ticket = key().ticket(fsid(), 42, 1000);
    assert_eq!(hex(&cap.mac), CAPABILITY_MAC);
    assert_eq!(hex(&ticket.to_bytes()[32..]), TICKET_SECRET);
    assert_eq!(format!("{:?}{:?}{:?}", key(), Key::new([7; 32]), Proof([1; 32])), "[secret][secret][proof]");
    assert!(!format!("{cap:?}{ticket:?}").contains("mac") && !format!("{ticket:?}").contains("secret"));
}

const CAPABILITY_MAC: &str = "934ec62486376f724e822c88070695b95e590b0308b903578417d5c109dea1ab";
const TICKET_SECRET: &str = "c602a355353d18bec80c24de049fcb7f956ee27eb1ee6905abc9a19488d02729";

#[test]
fn over_long_and_contradictory_messages_are_refused() {
    let extents = vec![Extent { offset: 0, len: 1 }; limits::EXTENTS_MAX + 1];
    let args = ReadArgs { cap: plain(), extents };
    assert!(matches!(ReadArgs::from_bytes(&args.to_bytes()), Err(Malformed::TooLong { .. })));

    let head = WriteHead {
        cap: plain(),
        stable: false,
        least: 0,
        extents: vec![WriteExtent { offset: 0, len: 5, crc32c: 0 }],
    };
    let args = WriteArgs { head, data: Segments::from(Bytes::from_static(b"four")) };
    assert!(matches!(WriteArgs::from_bytes(&args.to_bytes()), Err(Malformed::Invalid(_))));
    let mut before_data = Reader::new(args.to_bytes());
    assert!(matches!(WriteHead::decode_before_data(&mut before_data), Err(Malformed::Invalid(_))));

    let empty_piece = ReadHead { size: 0, pieces: vec![Piece { kind: PieceKind::Hole, len: 0, crc32c: 0 }] };
    assert!(matches!(ReadHead::from_bytes(&empty_piece.to_bytes()), Err(Malformed::Invalid(_))));
}

#[test]
fn payloads_are_slices_both_ways() {
    let data = Bytes::from(vec![9u8; 64 << 10]);
    let head = WriteHead {
        cap: plain(),
        stable: false,
        least: 0,
        extents: vec![WriteExtent { offset: 0, len: data.len() as u32, crc32c: 0 }],
    };
    let mut out = Writer::new();
    WriteArgs { head, data: Segments::from(data.clone()) }.encode(&mut out);
    let message = out.finish();
    assert!(message.parts().iter().any(|p| p.as_ptr() == data.as_ptr()), "payload was copied when encoding");

    let message = message.to_bytes();
    let decoded = WriteArgs::from_bytes(&message).unwrap();
    let (mut input, len) = (Reader::new(message.clone()), message.len());
    let (_, data_len) = WriteHead::decode_before_data(&mut input).unwrap();
    assert_eq!((data_len, input.remaining()), (data.len(), data.len()));
    let start = message.as_ptr() as usize;
    assert!((start..start + len).contains(&(decoded.data.parts()[0].as_ptr() as usize)), "payload was copied");
}

prop_compose! {
    fn any_cap()(fsid: [u8; 16], object: u64, generation: u32, rights: u32, expires: u64, session: u64, mac: [u8; 32])
        -> Capability {
        Capability {
            fsid: Fsid(fsid), object: ObjectId::stream_0(FileId(object)), generation: Generation(generation), rights: Rights(rights),
            expires, session, mac,
        }
    }
}

prop_compose! {
    fn any_piece()(kind in 0..3u32, len in 1..9000u32, crc32c: u32) -> Piece {
        let kind = [PieceKind::Data, PieceKind::Hole, PieceKind::Beyond][kind as usize];
        Piece { kind, len, crc32c }
    }
}

proptest! {
    #[test]
    fn signed_capabilities_verify(fs: [u8; 16], object: u64, generation: u32, rights: u32, session: u64, secret: [u8; 32]) {
        let key = Key::new(secret).of_iod(IOD);
        let cap = key.sign_capability(Fsid(fs), ObjectId::stream_0(FileId(object)), Generation(generation), Rights(rights), 10, session);
        let cap = Capability::from_bytes(&cap.to_bytes()).unwrap();
        prop_assert_eq!(cap.verify(&key, Fsid(fs), 9, session, Rights(rights)), Ok(()));
        prop_assert_eq!(cap.verify(&key, Fsid(fs), 10, session, Rights(rights)), Err(Status::CapExpired));
    }

    #[test]
    fn reads_round_trip(cap in any_cap(), extents in prop::collection::vec(any::<(u64, u32)>(), 0..100),
                        size: u64, pieces in prop::collection::vec(any_piece(), 0..50)) {
        let extents = extents.into_iter().map(|(offset, len)| Extent { offset, len }).collect();
        let args = ReadArgs { cap, extents };
        prop_assert_eq!(ReadArgs::from_bytes(&args.to_bytes()).unwrap(), args);
        let head = ReadHead { size, pieces };
        let data = Bytes::from(vec![3; head.data_len() as usize]);
        let reply = ReadReply { head, data };
        prop_assert_eq!(ReadReply::from_bytes(&reply.to_bytes()).unwrap(), reply);
    }

    #[test]
    fn writes_round_trip(cap in any_cap(), stable: bool, parts in prop::collection::vec((any::<u64>(), 0..5000u32), 0..40)) {
        let extents: Vec<_> =
            parts.into_iter().map(|(offset, len)| WriteExtent { offset, len, crc32c: len ^ 7 }).collect();
        let head = WriteHead { cap, stable, least: 7 << 40, extents };
        let data = Segments::from(Bytes::from(vec![5; head.data_len() as usize]));
        let args = WriteArgs { head, data };
        prop_assert_eq!(WriteArgs::from_bytes(&args.to_bytes()).unwrap(), args);
    }

    #[test]
    fn garbage_is_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let bytes = Bytes::from(bytes);
        let _ = HelloArgs::from_bytes(&bytes);
        let _ = HelloReply::from_bytes(&bytes);
        let _ = ReadArgs::from_bytes(&bytes);
        let _ = WriteArgs::from_bytes(&bytes);
        let _ = decode_reply::<ReadReply>(&mut Reader::new(bytes.clone()));
        let _ = decode_reply::<ListReply>(&mut Reader::new(bytes.clone()));
        let _ = decode_reply::<ScrubReply>(&mut Reader::new(bytes.clone()));
        let _ = LengthsArgs::from_bytes(&bytes);
        let _ = decode_reply::<LengthsReply>(&mut Reader::new(bytes.clone()));
        let _ = decode_reply::<LendReply>(&mut Reader::new(bytes.clone()));
        let _ = decode_reply::<StatsReply>(&mut Reader::new(bytes));
    }
}
