//! Tests of scrubs on a store whose simulated disk is damaged.

use std::sync::Arc;

use rustix::io::Errno;
use types::limits::PAYLOAD_MAX;
use wire::native::{Damage, Finding, ScrubCursor, ScrubReply};

use super::{FSID, commit, object_id, write};
use crate::disks::{Disk, Memory, Operation};
use crate::store::head::HEAD_LEN;
use crate::store::shards::Shards;
use crate::store::{Features, Store};

fn formatted(sums: bool) -> Memory {
    let disk = Memory::new("m", 1 << 30);
    Store::format_with(&disk, FSID, Features { block_checksums: sums }).unwrap();
    disk
}

fn open(disk: &Memory) -> Store {
    Store::open_on(Arc::new(disk.clone())).unwrap()
}

/// Scrubs the whole store with calls of `budget` bytes each. Returns the combined reply and the number of calls.
fn scrub(store: &Store, budget: u32) -> (ScrubReply, usize) {
    let mut buffer = vec![0; PAYLOAD_MAX];
    let mut all = ScrubReply::default();
    let mut calls = 0;
    let mut from: Option<ScrubCursor> = None;
    loop {
        let reply = store.scrub(from, budget, &mut buffer).unwrap();
        calls += 1;
        all.objects += reply.objects;
        all.bytes += reply.bytes;
        all.verified += reply.verified;
        all.rebuilt += reply.rebuilt;
        all.findings.extend(reply.findings);
        from = reply.next;
        if from.is_none() {
            return (all, calls);
        }
    }
}

fn path(file: u64) -> String {
    Shards::path(object_id(file))
}

fn finding(object: u64, damage: Damage, offset: u64, len: u64) -> Finding {
    Finding { object: object_id(object), damage, offset, len }
}

fn fill(store: &Store) {
    for id in 1..=20 {
        write(store, id * 100, 0, &vec![id as u8; 10_000]).unwrap();
        write(store, id * 100, 1 << 20, &vec![id as u8; 100_000]).unwrap();
        commit(store, id * 100).unwrap();
    }
}

#[test]
fn a_scrub_in_steps_of_any_size_reads_a_whole_undamaged_store() {
    for sums in [false, true] {
        let disk = formatted(sums);
        let store = open(&disk);
        fill(&store);
        let (whole, once) = scrub(&store, u32::MAX);
        assert_eq!((whole.objects, whole.findings.len(), whole.rebuilt), (20, 0, 0));
        // A scrub counts the whole last page of an object, because the simulated disk stores whole pages.
        assert!(whole.bytes >= 20 * 110_000 && whole.bytes <= 20 * 120_000, "{}", whole.bytes);
        assert_eq!(whole.verified, if sums { whole.bytes } else { 0 });
        for budget in [1, 4096, 50_000, 1 << 20] {
            let (parts, calls) = scrub(&store, budget);
            assert_eq!(parts, whole, "steps of {budget}");
            assert!(calls > once);
        }
    }
}

#[test]
fn a_scrub_reports_the_place_of_damage() {
    let disk = formatted(true);
    let store = open(&disk);
    fill(&store);
    for at in [5, 5000, 9_999, (1 << 20) + 70_000] {
        assert!(disk.spoil(&path(300), HEAD_LEN + at, 1));
    }
    assert!(disk.spoil(&path(700), 17, 1));
    disk.open(&path(800)).unwrap().set_len(HEAD_LEN + 12).unwrap();
    drop(store);
    let store = open(&disk);
    let mut found = scrub(&store, 1 << 20).0.findings;
    found.sort_by_key(|f| (f.object, f.offset));
    let block = ((1 << 20) + 70_000) / 4096 * 4096;
    assert_eq!(
        found,
        [
            finding(300, Damage::Checksum, 0, 12_288),
            finding(300, Damage::Checksum, block, 4096),
            finding(700, Damage::Object, 0, 0),
            finding(800, Damage::Object, 0, 0),
        ]
    );
    assert_eq!(store.counters().get("scrub.findings"), 4);
}

#[test]
fn unreadable_bytes_are_found_without_checksums() {
    let disk = formatted(false);
    let store = open(&disk);
    fill(&store);
    let bad = path(500);
    disk.inject(move |operation, path| (operation == Operation::Read && path == bad).then(|| Errno::IO.into()));
    let found = scrub(&store, u32::MAX).0.findings;
    let all = (1 << 20) + 100_000;
    assert_eq!(found, [finding(500, Damage::Unreadable, 0, all)]);
    disk.heal();
    assert!(scrub(&store, 1 << 20).0.findings.is_empty());
}

#[test]
fn many_findings_arrive_in_several_replies() {
    let disk = formatted(true);
    let store = open(&disk);
    write(&store, 1, 0, &vec![1; 1 << 20]).unwrap();
    write(&store, 1, 1 << 20, &vec![1; 1 << 20]).unwrap();
    commit(&store, 1).unwrap();
    for block in (0..512).step_by(2) {
        assert!(disk.spoil(&path(1), HEAD_LEN + block * 4096, 1));
    }
    let (all, calls) = scrub(&store, u32::MAX);
    assert_eq!(all.findings.len(), 256);
    assert!(calls > 1);
}

#[test]
fn blocks_without_a_checksum_after_a_crash_get_one_and_are_counted() {
    let disk = formatted(true);
    let store = open(&disk);
    fill(&store);
    // The power cut keeps all written bytes, although no client has committed them. So the blocks have no checksum.
    write(&store, 100, 0, &[9; 8192]).unwrap();
    drop(store);
    disk.power_cut(&mut |bound| bound - 1);
    let store = open(&disk);
    let (first, _) = scrub(&store, 1 << 20);
    assert_eq!((first.rebuilt, first.findings.len()), (2, 0));
    let (second, _) = scrub(&store, 1 << 20);
    assert_eq!((second.rebuilt, second.findings.len()), (0, 0));
    assert_eq!(store.counters().get("sums.rebuilt"), 2);
    assert!(disk.spoil(&path(100), HEAD_LEN + 1, 1));
    assert_eq!(scrub(&store, 1 << 20).0.findings, [finding(100, Damage::Checksum, 0, 4096)]);
}

#[test]
fn a_scrub_skips_a_removed_object() {
    let disk = formatted(true);
    let store = open(&disk);
    fill(&store);
    let mut buffer = vec![0; PAYLOAD_MAX];
    let first = store.scrub(None, 50_000, &mut buffer).unwrap();
    let cursor = first.next.unwrap();
    store.object(cursor.object).remove(&store, super::ONE).unwrap();
    let (mut next, mut objects) = (Some(cursor), first.objects);
    while next.is_some() {
        let reply = store.scrub(next, 1 << 24, &mut buffer).unwrap();
        (next, objects) = (reply.next, objects + reply.objects);
    }
    assert_eq!(objects, 19);
}
