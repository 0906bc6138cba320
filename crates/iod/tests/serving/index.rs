//! Tests of the procedures for log files: OPEN_LOG, REGISTER, LOOKUP and REMOVE_LOGS.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use bytes::Bytes;
use iod::{Memory, Peer};
use log_index::{LogNumber, Run, Source};
use types::limits::FILE_SIZE_MAX;
use types::{ByteRange, FileId, Generation, LOG_STREAMS, ObjectId, Status};
use wire::native::*;
use xdr::{Segments, Xdr};

use crate::cluster::{ALL, Client, FSID, Fault, Nowhere, SESSION, Server, daemon, format_store, key, now, pattern};
use crate::peer;

const FILE: FileId = FileId(7);
const OTHER: FileId = FileId(8);

fn cap(object: ObjectId, generation: u32, rights: Rights) -> Capability {
    key().sign_capability(FSID, object, Generation(generation), rights, now() + 1000, SESSION)
}

fn index_cap(file: FileId) -> Capability {
    cap(ObjectId::index(file), 1, ALL)
}

fn run(offset: u64, len: u64, log: u32, position: u64) -> Run {
    let source = if log == 0 { Source::Base } else { Source::Log { log: LogNumber(log), position } };
    Run::single(ByteRange { offset, len }, source).unwrap()
}

fn register_args(cap: Capability, log: u32, sequence: u64, durable: u64, runs: &[Run]) -> RegisterArgs {
    RegisterArgs { cap, log, sequence, durable, runs: log_index::encode(runs.iter().copied()).into() }
}

fn lookup_args(cap: Capability, only_durable: bool) -> LookupArgs {
    LookupArgs { cap, range: ByteRange { offset: 0, len: FILE_SIZE_MAX }, only_durable }
}

fn register(client: &mut Client, args: &RegisterArgs) -> Result<RegisterReply, Fault> {
    client.call(Procedure::Register, args)
}

/// Registers one durable run of a log with the index of [`FILE`].
fn put(client: &mut Client, log: u32, sequence: u64, runs: &[Run]) -> Result<RegisterReply, Fault> {
    register(client, &register_args(index_cap(FILE), log, sequence, sequence, runs))
}

/// Returns the log and the position of each byte of a file that is in a log.
fn bytes_of(reply: &LookupReply) -> BTreeMap<u64, (u32, u64)> {
    let mut bytes = BTreeMap::new();
    let whole = ByteRange { offset: 0, len: FILE_SIZE_MAX };
    for run in log_index::decode(&reply.runs, 1 << 16).unwrap() {
        for extent in run.extents_in(whole) {
            for byte in 0..extent.file.len {
                let Source::Log { log, position } = extent.source.after(byte) else { panic!("a run in the base") };
                assert!(bytes.insert(extent.file.offset + byte, (log.0, position)).is_none(), "runs overlap");
            }
        }
    }
    bytes
}

fn lookup(client: &mut Client, file: FileId, only_durable: bool) -> Result<BTreeMap<u64, (u32, u64)>, Fault> {
    client.call(Procedure::Lookup, &lookup_args(index_cap(file), only_durable)).map(|reply| bytes_of(&reply))
}

fn open_log(client: &mut Client) -> Result<u32, Fault> {
    client.call::<OpenLogReply>(Procedure::OpenLog, &ObjectArgs { cap: index_cap(FILE) }).map(|reply| reply.log)
}

fn remove_logs(client: &mut Client, cap: Capability) -> Result<Nothing, Fault> {
    client.call(Procedure::RemoveLogs, &ObjectArgs { cap })
}

fn write_log(client: &mut Client, log: u32, data: &[u8]) -> Result<WriteReply, Fault> {
    let mut cap = cap(ObjectId::index(FILE), 1, Rights::WRITE);
    cap.object = ObjectId::log(FILE, log);
    let extents = vec![WriteExtent { offset: 0, len: data.len() as u32, crc32c: crc32c(data) }];
    let head = WriteHead { cap, stable: true, least: 0, extents };
    client.call(Procedure::Write, &WriteArgs { head, data: Segments::from(Bytes::copy_from_slice(data)) })
}

fn status<T: std::fmt::Debug>(result: Result<T, Fault>) -> Status {
    result.unwrap_err().status()
}

/// Returns the path of the object file of an index.
fn path(server: &Server, file: FileId) -> PathBuf {
    server.store_dir().join(format!("objects/00/00/{:016x}-ffffffff", file.0))
}

#[test]
fn only_capabilities_for_the_index_are_accepted() {
    let server = Server::new();
    let mut client = server.client();
    let index = ObjectId::index(FILE);
    for object in [ObjectId::stream_0(FILE), ObjectId::log(FILE, 1), ObjectId::new(FILE, LOG_STREAMS - 1)] {
        let cap = cap(object, 1, ALL);
        let args = register_args(cap.clone(), 1, 1, 0, &[run(0, 1, 1, 0)]);
        assert_eq!(status(register(&mut client, &args)), Status::CapRefused);
        let looked = client.call::<LookupReply>(Procedure::Lookup, &lookup_args(cap.clone(), false));
        assert_eq!(status(looked), Status::CapRefused);
        let opened = client.call::<OpenLogReply>(Procedure::OpenLog, &ObjectArgs { cap: cap.clone() });
        assert_eq!(status(opened), Status::CapRefused);
        assert_eq!(status(remove_logs(&mut client, cap)), Status::CapRefused);
    }
    let (reader, writer) = (cap(index, 1, Rights::READ), cap(index, 1, Rights::WRITE));
    let args = register_args(reader.clone(), 1, 1, 0, &[run(0, 1, 1, 0)]);
    assert_eq!(status(register(&mut client, &args)), Status::CapRefused);
    let looked = client.call::<LookupReply>(Procedure::Lookup, &lookup_args(writer.clone(), false));
    assert_eq!(status(looked), Status::CapRefused);
    assert_eq!(status(remove_logs(&mut client, writer.clone())), Status::CapRefused);
    client.call::<LookupReply>(Procedure::Lookup, &lookup_args(reader, false)).unwrap();
    client.call::<OpenLogReply>(Procedure::OpenLog, &ObjectArgs { cap: writer }).unwrap();
    // The capability for the index is valid for the data logs, but no client may change the bytes of the index itself.
    write_log(&mut client, 5, b"logged").unwrap();
    let truncated = client.call::<TruncateReply>(Procedure::Truncate, &TruncateArgs { cap: index_cap(FILE), size: 0 });
    assert_eq!(status(truncated), Status::CapRefused);
    let punch = PunchArgs { cap: index_cap(FILE), offset: 4096, len: 100 };
    assert_eq!(status(client.call::<Nothing>(Procedure::Punch, &punch)), Status::CapRefused);
    let mut write = client.write_args(1, true, &[(0, b"x")]);
    write.head.cap = index_cap(FILE);
    assert_eq!(status(client.call::<WriteReply>(Procedure::Write, &write)), Status::CapRefused);
}

#[test]
fn runs_are_checked_before_they_are_registered() {
    let server = Server::new();
    let mut client = server.client();
    let far = log_index::LOGS_MAX;
    let good = run(0, 5, 1, 0);
    for (log, run) in [(far, good), (1, run(0, 5, far, 0)), (1, run(0, 5, u32::MAX, 0))] {
        let args = register_args(index_cap(FILE), log, 1, 1, &[good, run]);
        assert_eq!(status(register(&mut client, &args)), Status::Inval);
    }
    let garbage = RegisterArgs { runs: Bytes::from_static(&[0xff; 9]), ..register_args(index_cap(FILE), 1, 1, 1, &[]) };
    assert_eq!(status(register(&mut client, &garbage)), Status::Inval);
    let many: Vec<Run> = (0..4097).map(|i| run(i * 10, 5, 1, i * 20)).collect();
    assert_eq!(status(put(&mut client, 1, 1, &many)), Status::Inval);
    assert_eq!(lookup(&mut client, FILE, false).unwrap(), BTreeMap::new());
    // A REGISTER of this length exceeds the input buffer of the connection.
    let long: Vec<Run> = (0..4096).map(|i| run(i << 40, 5 + i % 2, 1, (i * 7 % 4096) << 40)).collect();
    let args = register_args(index_cap(FILE), 1, 1, 1, &long);
    assert!((40 << 10..RUNS_BYTES_MAX).contains(&args.runs.len()), "{}", args.runs.len());
    assert_eq!(register(&mut client, &args).unwrap().pending, 0);
    let (mut found, mut range) = (0, ByteRange { offset: 0, len: FILE_SIZE_MAX });
    while !range.is_empty() {
        let args = LookupArgs { cap: index_cap(FILE), range, only_durable: true };
        let reply: LookupReply = client.call(Procedure::Lookup, &args).unwrap();
        assert!(reply.covered > 0 && reply.covered <= range.len);
        found += log_index::decode(&reply.runs, 2048).unwrap().len();
        range = ByteRange { offset: range.offset + reply.covered, len: range.len - reply.covered };
    }
    assert_eq!(found, long.len());
}

#[test]
fn the_later_registration_wins_whichever_session_made_it() {
    let server = Server::new();
    let (mut first, mut second) = (server.client(), server.client());
    let (a, b) = (open_log(&mut first).unwrap(), open_log(&mut second).unwrap());
    assert!(a != 0 && b != 0 && a != b);
    let mut expected = BTreeMap::new();
    for turn in 0..20u64 {
        let (client, log) = if turn % 2 == 0 { (&mut first, a) } else { (&mut second, b) };
        let (offset, len) = (turn * 7 % 40, 10 + turn % 5);
        let runs = [run(offset, len, log, turn * 100)];
        let durable = if turn % 3 == 0 { turn + 1 } else { 0 };
        register(client, &register_args(index_cap(FILE), log, turn + 1, durable, &runs)).unwrap();
        expected.extend((0..len).map(|byte| (offset + byte, (log, turn * 100 + byte))));
        assert_eq!(lookup(&mut first, FILE, false).unwrap(), expected);
        assert_eq!(lookup(&mut second, FILE, false).unwrap(), expected);
    }
    register(&mut first, &register_args(index_cap(FILE), a, 30, 30, &[])).unwrap();
    let last = register(&mut second, &register_args(index_cap(FILE), b, 30, 30, &[])).unwrap();
    assert_eq!(last.pending, 0);
    assert_eq!(lookup(&mut first, FILE, true).unwrap(), expected);
    assert_eq!(server.counter("index.registrations"), 22);
}

#[test]
fn a_fence_refuses_late_registrations_and_lookups() {
    let server = Server::new();
    let mut client = server.client();
    put(&mut client, 1, 1, &[run(0, 5, 1, 0)]).unwrap();
    let newer = |generation| cap(ObjectId::index(FILE), generation, ALL);
    let fence = FenceArgs { cap: newer(2), generation: Generation(2) };
    client.call::<Nothing>(Procedure::Fence, &fence).unwrap();
    // Neither a request that writes a record nor one that only changes memory passes the fence.
    for durable in [0, 2] {
        let args = register_args(index_cap(FILE), 1, 2, durable, &[run(0, 5, 1, 100)]);
        assert_eq!(status(register(&mut client, &args)), Status::Fenced);
    }
    assert_eq!(status(register(&mut client, &register_args(index_cap(FILE), 1, 2, 2, &[]))), Status::Fenced);
    assert_eq!(status(lookup(&mut client, FILE, false)), Status::Fenced);
    assert_eq!(status(open_log(&mut client)), Status::Fenced);
    let reply: LookupReply = client.call(Procedure::Lookup, &lookup_args(newer(2), false)).unwrap();
    assert_eq!(bytes_of(&reply)[&4], (1, 4));
    register(&mut client, &register_args(newer(2), 1, 2, 2, &[run(0, 5, 1, 100)])).unwrap();
    // A fence of a file without an index also lasts.
    let cap = cap(ObjectId::index(OTHER), 3, ALL);
    client.call::<Nothing>(Procedure::Fence, &FenceArgs { cap, generation: Generation(3) }).unwrap();
    assert_eq!(status(lookup(&mut client, OTHER, false)), Status::Fenced);
    assert_eq!(server.counter("refused.fenced"), 6);
}

#[test]
fn removed_logs_do_not_come_back_by_a_late_writer() {
    let server = Server::new();
    let mut client = server.client();
    let data = pattern(1000, 1);
    for log in [1, 2, 70] {
        write_log(&mut client, log, &data).unwrap();
    }
    client.write(FILE.0, 0, b"base").unwrap();
    put(&mut client, 1, 1, &[run(0, 5, 1, 0)]).unwrap();
    let listed = |client: &mut Client| client.list(0, 100).unwrap().entries.len();
    assert_eq!(listed(&mut client), 5);
    let gone = cap(ObjectId::index(FILE), GENERATION_GONE.0, ALL);
    for _ in 0..2 {
        remove_logs(&mut client, gone.clone()).unwrap();
        assert_eq!(listed(&mut client), 1);
        for log in [1, 3] {
            assert_eq!(status(write_log(&mut client, log, &data)), Status::Fenced);
        }
        assert_eq!(status(put(&mut client, 1, 2, &[run(0, 5, 1, 0)])), Status::Fenced);
        assert_eq!(status(lookup(&mut client, FILE, false)), Status::Fenced);
        let read = ReadArgs {
            cap: Capability { object: ObjectId::log(FILE, 1), ..index_cap(FILE) },
            extents: vec![Extent { offset: 0, len: 10 }],
        };
        assert_eq!(status(client.call::<ReadReply>(Procedure::Read, &read)), Status::Fenced, "not a hole");
    }
    assert_eq!(listed(&mut client), 1);
    assert_eq!(client.read(FILE.0, 0, 10).unwrap(), b"base");
    remove_logs(&mut client, index_cap(OTHER)).unwrap();
}

#[test]
fn damage_of_one_index_does_not_affect_other_files() {
    let mut server = Server::new();
    let mut client = server.client();
    let mut ends = vec![];
    for sequence in 1..=4 {
        put(&mut client, 1, sequence, &[run(sequence * 10, 5, 1, sequence * 100)]).unwrap();
        ends.push(std::fs::metadata(path(&server, FILE)).unwrap().len());
    }
    register(&mut client, &register_args(index_cap(OTHER), 1, 1, 1, &[run(0, 5, 1, 0)])).unwrap();
    drop(client);
    // Damage the last record as a power cut may do: the records before it stay.
    let whole = std::fs::read(path(&server, FILE)).unwrap();
    let spoil = |server: &Server, at: u64| {
        let file = std::fs::File::options().write(true).open(path(server, FILE)).unwrap();
        file.write_all_at(&[!whole[at as usize]], at).unwrap();
    };
    spoil(&server, ends[3] - 1);
    server.restart();
    let mut client = server.client();
    let found = lookup(&mut client, FILE, true).unwrap();
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), (10..15).chain(20..25).chain(30..35).collect::<Vec<_>>());
    for sequence in 4..=6 {
        put(&mut client, 1, sequence, &[run(sequence * 10, 5, 1, sequence * 100)]).unwrap();
    }
    assert_eq!(lookup(&mut client, FILE, true).unwrap().len(), 30);
    drop(client);
    spoil(&server, ends[1] - 1);
    server.restart();
    let mut client = server.client();
    for _ in 0..2 {
        let Fault::Refused(failure) = lookup(&mut client, FILE, true).unwrap_err() else { panic!("no reply") };
        assert_eq!(failure.status, Status::Corrupt);
        let detail = failure.detail.unwrap();
        assert!(detail.starts_with("the index of file 7 on this iod is damaged at byte "), "{detail}");
    }
    assert_eq!(status(put(&mut client, 1, 9, &[run(0, 1, 1, 0)])), Status::Corrupt);
    assert_eq!(status(open_log(&mut client)), Status::Corrupt);
    assert_eq!(lookup(&mut client, OTHER, true).unwrap().len(), 5);
    register(&mut client, &register_args(index_cap(OTHER), 1, 2, 2, &[run(5, 5, 1, 5)])).unwrap();
    assert_eq!(lookup(&mut client, OTHER, true).unwrap().len(), 10);
    write_log(&mut client, 1, b"the data logs of the file are usable").unwrap();
    let fence = FenceArgs { cap: cap(ObjectId::index(FILE), 1, ALL), generation: Generation(1) };
    client.call::<Nothing>(Procedure::Fence, &fence).unwrap();
    remove_logs(&mut client, index_cap(FILE)).unwrap();
    assert!(!path(&server, FILE).exists());
}

#[test]
fn a_restart_changes_the_verifier_and_drops_pending_registrations() {
    let mut server = Server::new();
    let mut client = server.client();
    let log = open_log(&mut client).unwrap();
    let durable = put(&mut client, log, 1, &[run(0, 5, log, 0)]).unwrap();
    let args = register_args(index_cap(FILE), log, 2, 0, &[run(3, 5, log, 5)]);
    let pending = register(&mut client, &args).unwrap();
    assert_eq!((durable.verifier, durable.pending, pending.pending), (pending.verifier, 0, 1));
    assert_eq!(lookup(&mut client, FILE, false).unwrap().len(), 8);
    assert_eq!(lookup(&mut client, FILE, true).unwrap().len(), 5);
    drop(client);
    server.restart();
    let mut client = server.client();
    assert_eq!(lookup(&mut client, FILE, false).unwrap().len(), 5);
    assert!(open_log(&mut client).unwrap() > log);
    let again = register(&mut client, &RegisterArgs { durable: 2, ..args }).unwrap();
    assert_ne!(again.verifier, pending.verifier);
    assert_eq!(lookup(&mut client, FILE, true).unwrap().len(), 8);
}

#[test]
fn a_full_disk_refuses_a_registration_and_the_index_stays_usable() {
    fn call<R: Xdr>(peer: &mut Peer, client: &mut Client, procedure: Procedure, args: &impl Xdr) -> Result<R, Fault> {
        peer::record(peer, client, procedure, args)
    }
    let disk = Memory::new("disk of a test", 8 << 20);
    format_store(&disk, iod::Features::default());
    let mut client = Client::new(Nowhere);
    client.checksums = true;
    let mut connection = Peer::new(daemon(&disk));
    peer::hello(&mut connection, &mut client);
    let args = |sequence: u64| {
        let runs: Vec<Run> = (0..1000).map(|i| run(sequence << 32 | i << 16, 5, 1, i << 17 | sequence)).collect();
        register_args(index_cap(FILE), 1, sequence, sequence, &runs)
    };
    call::<RegisterReply>(&mut connection, &mut client, Procedure::Register, &args(1)).unwrap();
    let data = pattern(1 << 19, 1);
    for i in 0.. {
        let write = client.write_args(1, false, &[(i << 19, &data)]);
        if let Err(fault) = call::<WriteReply>(&mut connection, &mut client, Procedure::Write, &write) {
            assert_eq!(fault.status(), Status::NoSpc);
            break;
        }
    }
    let full = (2..200).find_map(|sequence| {
        let result = call::<RegisterReply>(&mut connection, &mut client, Procedure::Register, &args(sequence));
        result.err().map(|fault| (sequence, fault.status()))
    });
    let (sequence, status) = full.expect("the disk is full");
    assert_eq!(status, Status::NoSpc);
    let lookup = LookupArgs {
        cap: index_cap(FILE),
        range: ByteRange { offset: sequence << 32, len: 1 << 32 },
        only_durable: true,
    };
    let found: LookupReply = call(&mut connection, &mut client, Procedure::Lookup, &lookup).unwrap();
    assert!(found.runs.is_empty(), "a refused registration is durable");
    call::<Nothing>(&mut connection, &mut client, Procedure::Remove, &crate::cluster::object_args(1)).unwrap();
    call::<RegisterReply>(&mut connection, &mut client, Procedure::Register, &args(sequence)).unwrap();
    drop(connection);
    disk.power_cut(&mut |_| 0);
    let mut connection = Peer::new(daemon(&disk));
    peer::hello(&mut connection, &mut client);
    let found: LookupReply = call(&mut connection, &mut client, Procedure::Lookup, &lookup).unwrap();
    assert_eq!(log_index::decode(&found.runs, 2048).unwrap().len(), 1000);
}
