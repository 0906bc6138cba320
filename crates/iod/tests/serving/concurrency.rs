//! Tests of concurrent requests from many connections to one iod.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use wire::native::PieceKind;

use crate::cluster::{Server, pattern};

#[test]
fn concurrent_writes_to_one_object_are_all_kept() {
    let server = Server::new();
    const WRITERS: u64 = 8;
    const BLOCK: u64 = 10_007;
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let mut client = if writer % 2 == 0 { server.client() } else { server.local_client(false) };
            scope.spawn(move || {
                for round in 0..30 {
                    let at = (round * WRITERS + writer) * BLOCK;
                    client.write(1, at, &pattern(BLOCK as usize, at)).unwrap();
                    if round % 7 == 0 {
                        client.commit(1).unwrap();
                    }
                    assert_eq!(client.read(1, at, BLOCK as u32).unwrap(), pattern(BLOCK as usize, at));
                }
            });
        }
    });
    let mut client = server.client();
    assert_eq!(client.size(1).unwrap().size, 30 * WRITERS * BLOCK);
    for block in 0..30 * WRITERS {
        assert_eq!(client.read(1, block * BLOCK, BLOCK as u32).unwrap(), pattern(BLOCK as usize, block * BLOCK));
    }
}

#[test]
fn readers_see_only_written_bytes_or_zeros_during_truncate_and_punch() {
    let server = Server::new();
    const LEN: u32 = 256 << 10;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..3 {
            let mut client = server.client_with(reader == 0);
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let reply = client.read_list(1, &[(0, LEN), (100, 5_000)]).unwrap();
                    assert!(reply.data.iter().all(|b| matches!(b, 0 | 0x11 | 0x22)), "a byte that no client wrote");
                    assert!(
                        reply.head.pieces.iter().all(|p| p.kind != PieceKind::Beyond || reply.head.size < LEN.into())
                    );
                }
            });
        }
        let mut writer = server.client();
        for round in 0..150u64 {
            let byte = if round % 2 == 0 { 0x11 } else { 0x22 };
            writer.write(1, 0, &vec![byte; LEN as usize]).unwrap();
            writer.punch(1, 8192 * (round % 16), 8192).unwrap();
            writer.truncate(1, 1000 * (round % 200)).unwrap();
            if round % 50 == 49 {
                writer.remove(1).unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn concurrent_commits_share_directory_syncs() {
    let server = Server::new();
    const OBJECTS: u64 = 40;
    thread::scope(|scope| {
        for thread in 0..4 {
            let mut client = server.client();
            scope.spawn(move || {
                for object in 0..OBJECTS {
                    client.write(1 + thread * OBJECTS + object, 0, &pattern(5000, object)).unwrap();
                    client.commit(1 + thread * OBJECTS + object).unwrap();
                }
            });
        }
    });
    // The iod syncs each object file once. All object files are in one directory: the iod syncs this directory at most
    // once for each object, and each of the two directories above it once.
    assert_eq!(server.counter("syncs.object"), 4 * OBJECTS);
    assert!(server.counter("syncs.directory") <= 4 * OBJECTS + 2);
    let mut client = server.client();
    let before = server.counter("syncs.directory") + server.counter("syncs.object");
    for object in 1..=4 * OBJECTS {
        client.commit(object).unwrap();
    }
    let after = server.counter("syncs.directory") + server.counter("syncs.object");
    assert_eq!(before, after, "nothing is left to sync");
}
