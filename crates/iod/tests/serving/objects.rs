//! Tests of all procedures of an iod that read or change an object.

use types::Status;
use wire::native::{Origin, PieceKind, SeekWhat};

use crate::cluster::{Server, flat, pattern};

const MIB: usize = 1 << 20;

#[test]
fn hello_and_prove_report_the_identity_and_limits_of_the_iod() {
    let server = Server::new();
    let mut client = crate::cluster::Client::new(server.tcp());
    let ticket =
        crate::cluster::key().ticket(crate::cluster::FSID, crate::cluster::SESSION, crate::cluster::now() + 1000);
    let (reply, proven) = client.greet(&ticket, Origin { owner: [7; 16], incarnation: 0 }, true).unwrap();
    assert_eq!((reply.iod, reply.fsid), (server.running().iod(), crate::cluster::FSID));
    assert_eq!((reply.version, reply.checksums, reply.max_payload, reply.max_extents), (4, true, 1 << 20, 1024));
    let local = proven.local.unwrap();
    assert_eq!(std::path::Path::new(&local.path), server.running().unix_path().unwrap());
    assert_eq!(local.host, std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim());
    assert!(proven.software.starts_with("weir "));
    assert_eq!(client.hello(true).unwrap_err().status(), Status::Inval);
}

#[test]
fn written_bytes_read_back_over_tcp_and_unix_sockets() {
    let server = Server::new();
    // Payload lengths below and above each length at which the iod begins to use larger buffers or `sendfile`; some
    // lengths are odd.
    let lens = [1, 3, 4096, (16 << 10) - 1, (16 << 10) + 1, 33_333, 65_535, 65_536, 300_001, MIB - 1, MIB];
    let clients = [server.client(), server.client_with(false), server.local_client(true), server.local_client(false)];
    for (way, mut client) in clients.into_iter().enumerate() {
        for (index, len) in lens.into_iter().enumerate() {
            let object = 1000 * (way as u64 + 1) + index as u64;
            let data = pattern(len, object);
            let reply = client.write(object, 7, &data).unwrap();
            assert_eq!((reply.size, reply.stable), (7 + len as u64, false));
            assert_eq!(client.read(object, 7, len as u32).unwrap(), data, "way {way}, {len} bytes");
        }
    }
    assert!(server.counter("bytes.read.sendfile") > 0 && server.counter("bytes.read.copied") > 0);
    assert_eq!(server.counter("checksum_failures"), 0);
    let written: usize = lens.iter().sum();
    assert_eq!(server.counter("bytes.written"), 4 * written as u64);
}

#[test]
fn requests_on_a_missing_object_find_it_empty_and_do_not_create_it() {
    let server = Server::new();
    let mut client = server.client();
    let reply = client.read_list(5, &[(0, 10), (1 << 40, 5)]).unwrap();
    assert_eq!(reply.head.size, 0);
    assert!(reply.head.pieces.iter().all(|p| p.kind == PieceKind::Beyond));
    let size = client.size(5).unwrap();
    assert_eq!((size.size, size.allocated), (0, 0));
    assert_eq!(client.commit(5).unwrap().size, 0);
    assert_eq!(client.truncate(5, 0).unwrap().size, 0);
    client.punch(5, 0, 100).unwrap();
    client.reserve(5, 100, 0).unwrap();
    assert_eq!(client.seek(5, 0, SeekWhat::Data).unwrap(), None);
    client.remove(5).unwrap();
    assert_eq!(client.write(5, 3, b"").unwrap().size, 0);
    assert_eq!(server.counter("objects.created"), 0, "none of these requests creates an object");
    assert!(client.list(0, 10).unwrap().entries.is_empty());
}

#[test]
fn reads_and_seeks_distinguish_holes_from_data() {
    for checksums in [true, false] {
        let server = Server::new();
        let mut client = server.client_with(checksums);
        let data = pattern(64 << 10, 1);
        client.write(9, 0, &data).unwrap();
        client.write(9, 1 << 20, &data).unwrap();
        let reply = client.read_list(9, &[(0, 1 << 20), (1 << 20, 128 << 10)]).unwrap_err();
        assert_eq!(reply.status(), Status::TooBig);
        let reply = client.read_list(9, &[(0, (1 << 20) - 5)]).unwrap();
        let kinds: Vec<_> = reply.head.pieces.iter().map(|p| (p.kind, p.len)).collect();
        assert_eq!(kinds, [(PieceKind::Data, 64 << 10), (PieceKind::Hole, (1 << 20) - 5 - (64 << 10))]);
        let reply = client.read_list(9, &[((1 << 20) - 100, 100 + (65 << 10))]).unwrap();
        let kinds: Vec<_> = reply.head.pieces.iter().map(|p| (p.kind, p.len)).collect();
        assert_eq!(kinds, [(PieceKind::Hole, 100), (PieceKind::Data, 64 << 10), (PieceKind::Beyond, 1 << 10)]);
        assert_eq!(flat(&reply)[100..], data);

        assert_eq!(client.seek(9, 10, SeekWhat::Data).unwrap(), Some(10));
        assert_eq!(client.seek(9, 10, SeekWhat::Hole).unwrap(), Some(64 << 10));
        assert_eq!(client.seek(9, 64 << 10, SeekWhat::Data).unwrap(), Some(1 << 20));
        assert_eq!(client.seek(9, 100 << 10, SeekWhat::Hole).unwrap(), Some(100 << 10));
        assert_eq!(client.seek(9, 1 << 20, SeekWhat::Hole).unwrap(), Some((1 << 20) + (64 << 10)));
        assert_eq!(client.seek(9, (1 << 20) + (64 << 10), SeekWhat::Data).unwrap(), None);

        // PUNCH makes a hole and does not change the size of the object.
        client.punch(9, 4096, 8192).unwrap();
        let reply = client.read_list(9, &[(0, 64 << 10)]).unwrap();
        assert_eq!(reply.head.size, (1 << 20) + (64 << 10));
        let kinds: Vec<_> = reply.head.pieces.iter().map(|p| (p.kind, p.len)).collect();
        assert_eq!(kinds, [(PieceKind::Data, 4096), (PieceKind::Hole, 8192), (PieceKind::Data, (64 << 10) - 12288)]);
        assert_eq!(flat(&reply)[12288..], data[12288..]);
    }
}

#[test]
fn reserved_space_reads_as_zeros_and_a_punch_frees_it() {
    let server = Server::new();
    let mut client = server.client();
    let allocated = |client: &mut crate::cluster::Client| client.size(4).unwrap().allocated;
    client.write(4, 0, b"data").unwrap();
    let before = allocated(&mut client);
    client.reserve(4, 1 << 20, 1 << 20).unwrap();
    let size = client.size(4).unwrap();
    assert_eq!(size.size, 2 << 20);
    assert!(size.allocated >= before + (1 << 20), "{} of {before}", size.allocated);
    assert!(client.read(4, 3 << 19, 1 << 19).unwrap() == vec![0; 1 << 19]);
    assert_eq!(client.read(4, 0, 6).unwrap(), b"data\0\0");
    // RESERVE of a range that is already allocated allocates nothing, and does not shorten the object.
    client.reserve(4, 1 << 20, 4096).unwrap();
    assert_eq!(client.size(4).unwrap(), size);
    client.write(4, 1 << 20, &pattern(4096, 1)).unwrap();
    assert_eq!(allocated(&mut client), size.allocated);
    client.punch(4, 1 << 20, 1 << 20).unwrap();
    assert!(allocated(&mut client) < before + (1 << 19));
    assert_eq!(client.size(4).unwrap().size, 2 << 20);
    assert_eq!(client.reserve(4, u64::MAX, 2).unwrap_err().status(), Status::FBig);
    assert_eq!(client.reserve(4, 0, 1 << 61).unwrap_err().status(), Status::NoSpc);
}

#[test]
fn reads_of_a_dense_object_do_not_search_for_holes() {
    let server = Server::new();
    let mut client = server.client();
    for block in 0..64 {
        client.write(3, block * 4096, &pattern(4096, block)).unwrap();
    }
    for block in (0..64).rev() {
        assert_eq!(client.read(3, block * 4096, 4096).unwrap(), pattern(4096, block));
    }
    assert_eq!(server.counter("objects.hole_seeks"), 0);
}

#[test]
fn an_object_written_backwards_is_searched_for_holes_at_most_once() {
    let server = Server::new();
    let mut client = server.client();
    for block in (0..16).rev() {
        client.write(3, block * 65536, &pattern(65536, block)).unwrap();
    }
    for _ in 0..3 {
        for block in 0..16 {
            assert_eq!(client.read(3, block * 65536, 65536).unwrap(), pattern(65536, block));
        }
    }
    assert!(server.counter("objects.hole_seeks") <= 1);
}

#[test]
fn one_request_reads_or_writes_a_thousand_extents() {
    let server = Server::new();
    for checksums in [true, false] {
        let mut client = server.client_with(checksums);
        let object = 20 + u64::from(checksums);
        let blocks: Vec<Vec<u8>> = (0..1024).map(|i| pattern(1000 + i % 7, i as u64)).collect();
        let parts: Vec<(u64, &[u8])> = blocks.iter().enumerate().map(|(i, b)| (i as u64 * 8192, &b[..])).collect();
        client.write_list(object, true, &parts).unwrap();
        let extents: Vec<(u64, u32)> = parts.iter().map(|(offset, data)| (*offset, data.len() as u32)).collect();
        let reply = client.read_list(object, &extents).unwrap();
        assert_eq!(flat(&reply), blocks.concat());
        assert_eq!(reply.head.pieces.len(), 1024);

        let reversed: Vec<_> = extents.iter().rev().copied().collect();
        let expected: Vec<u8> = blocks.iter().rev().flatten().copied().collect();
        assert_eq!(flat(&client.read_list(object, &reversed).unwrap()), expected);
    }
}

#[test]
fn overlapping_extents_are_written_in_order() {
    let server = Server::new();
    let mut client = server.client();
    client.write_list(4, false, &[(0, b"aaaaaa"), (2, b"bb"), (3, b"c"), (9, b"z"), (6, b"")]).unwrap();
    assert_eq!(client.read(4, 0, 100).unwrap(), b"aabcaa\0\0\0z");
}

#[test]
fn truncate_shortens_and_extends_with_zeros() {
    let server = Server::new();
    let mut client = server.client();
    client.write(6, 0, &pattern(10_000, 6)).unwrap();
    assert_eq!(client.truncate(6, 5_000).unwrap().size, 5_000);
    assert_eq!(client.read(6, 0, 20_000).unwrap(), &pattern(10_000, 6)[..5_000]);
    assert_eq!(client.truncate(6, 10_000).unwrap().size, 10_000);
    let mut expected = pattern(10_000, 6);
    expected[5_000..].fill(0);
    assert_eq!(client.read(6, 0, 20_000).unwrap(), expected);
    assert_eq!(client.size(6).unwrap().size, 10_000);
    assert_eq!(client.truncate(7, 1 << 40).unwrap().size, 1 << 40, "a new object, all hole");
    let size = client.size(7).unwrap();
    assert_eq!(size.size, 1 << 40);
    assert!(size.allocated < 1 << 20);
    assert_eq!(client.seek(7, 0, SeekWhat::Data).unwrap(), None);
    assert_eq!(client.seek(7, 0, SeekWhat::Hole).unwrap(), Some(0));
}

#[test]
fn removed_objects_are_empty_and_may_be_removed_again() {
    let server = Server::new();
    let mut client = server.client();
    client.write(6, 0, b"old").unwrap();
    client.remove(6).unwrap();
    client.remove(6).unwrap();
    assert_eq!(client.size(6).unwrap().size, 0);
    client.write(6, 1, b"new").unwrap();
    assert_eq!(client.read(6, 0, 10).unwrap(), b"\0new");
    assert_eq!(server.counter("objects.removed"), 1);
}

#[test]
fn offsets_beyond_every_limit_are_refused() {
    let server = Server::new();
    let mut client = server.client();
    let far = types::limits::FILE_SIZE_MAX;
    for offset in [far, u64::MAX, u64::MAX - 1] {
        assert_eq!(client.write(8, offset, b"ab").unwrap_err().status(), Status::FBig);
    }
    let list = crate::cluster::cap(8, crate::cluster::ALL);
    let args = wire::native::ReadArgs { cap: list, extents: vec![wire::native::Extent { offset: u64::MAX, len: 2 }] };
    let reply = client.call::<wire::native::ReadReply>(wire::native::Procedure::Read, &args);
    assert_eq!(reply.unwrap_err().status(), Status::Inval);
    assert_eq!(client.truncate(8, far + 1).unwrap_err().status(), Status::FBig);
    assert_eq!(client.punch(8, u64::MAX, 2).unwrap_err().status(), Status::Inval);
    assert_eq!(client.size(8).unwrap().size, 0);
    assert!(client.list(0, 10).unwrap().entries.is_empty());
}

#[test]
fn list_pages_return_every_object_once() {
    let server = Server::new();
    let mut client = server.client();
    let mut ids: Vec<u64> = (1..40).chain([256, 257, 511, 65_536, 65_793, 1 << 24, (1 << 24) + 1, u64::MAX]).collect();
    for id in &ids {
        client.write(*id, 0, &vec![1; (*id % 100) as usize + 1]).unwrap();
    }
    std::fs::write(server.store_dir().join("objects/00/00/notes.txt"), b"not an object").unwrap();
    for max in [1, 7, 1000, 0] {
        let (mut found, mut after) = (Vec::new(), 0);
        loop {
            let reply = client.list(after, max).unwrap();
            assert!(reply.entries.len() <= (max as usize).max(1));
            for entry in &reply.entries {
                assert_eq!((entry.size, entry.generation.0), (entry.object.file.0 % 100 + 1, 1));
                found.push(entry.object.file.0);
            }
            if reply.eof {
                break;
            }
            after = reply.entries.last().unwrap().object.file.0;
        }
        found.sort_unstable();
        ids.sort_unstable();
        assert_eq!(found, ids);
    }
}

#[test]
fn stats_report_counters_and_free_space() {
    let server = Server::new();
    let mut client = server.client();
    client.write(1, 0, b"four").unwrap();
    client.commit(1).unwrap();
    let stats = client.stats().unwrap();
    assert!(stats.capacity >= stats.free && stats.free > 0);
    let get = |name: &str| stats.counters.iter().find(|c| c.name == name).unwrap().value;
    assert_eq!(get("requests.write"), 1);
    assert_eq!(get("requests.commit"), 1);
    assert_eq!(get("requests.hello"), 1);
    assert_eq!(get("bytes.written"), 4);
    assert_eq!(get("syncs.object"), 1);
    assert_eq!(get("connections.open"), 1);
    assert_eq!(get("objects.known"), 1);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = Server::new();
    let mut client = server.client();
    let data = pattern(100_000, 3);
    let mut xids = Vec::new();
    for round in 0..20u64 {
        let args = client.write_args(30, false, &[(round * 100_000, &data)]);
        xids.push((client.send(wire::native::Procedure::Write, &args), round));
        let args = client.write_args(31, false, &[(round, b"x")]);
        xids.push((client.send(wire::native::Procedure::Write, &args), round));
    }
    for (index, (xid, round)) in xids.into_iter().enumerate() {
        let reply: wire::native::WriteReply = client.reply(xid).unwrap();
        let expected = if index % 2 == 0 { (round + 1) * 100_000 } else { round + 1 };
        assert_eq!(reply.size, expected);
    }
}
