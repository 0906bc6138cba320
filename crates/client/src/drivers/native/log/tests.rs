//! Tests of the driver of log files with iods in memory.

use crate::devices::Refused;
use crate::drivers::native::MemoryIods;
use crate::drivers::{Fixture, Found, Layout, NotDone, Payload, Share};
use bytes::Bytes;
use futures_util::future::join_all;
use std::sync::Arc;
use types::{ByteRange, Verifier};
use wire::native::{Procedure, REVISIONS};
use xdr::Segments;

/// The stripe unit of most tests: a unit of a data log has 256 bytes, and a range of a shard has 4096 bytes.
const UNIT: u64 = 64;

fn range(offset: u64, len: u64) -> ByteRange {
    ByteRange { offset, len }
}

fn payload(byte: u8, parts: &[ByteRange]) -> Payload {
    let len: u64 = parts.iter().map(|part| part.len).sum();
    Payload::new(Segments::from(Bytes::from(vec![byte; len as usize])))
}

/// Writes the byte to a range with unstable writes; returns their lanes and verifiers.
async fn write(layout: &Arc<dyn Layout>, wanted: ByteRange, byte: u8) -> Vec<(usize, Verifier)> {
    let mut written = Vec::new();
    for Share { lane, parts } in layout.shares(&[wanted]) {
        let done = layout.write(lane, &parts, &payload(byte, &parts), false).await.unwrap();
        written.push((lane, done.verifier));
    }
    written
}

async fn commit(layout: &Arc<dyn Layout>, written: &[(usize, Verifier)]) {
    for (lane, verifier) in written {
        assert_eq!(layout.commit(*lane).await.unwrap(), *verifier, "lane {lane}");
    }
}

/// Writes the byte to a range, and sends it again until a commit has the verifier of the write.
async fn write_durably(layout: &Arc<dyn Layout>, wanted: ByteRange, byte: u8) {
    for _ in 0..3 {
        let [(lane, verifier)] = write(layout, wanted, byte).await[..] else { panic!("one write") };
        if layout.commit(lane).await.unwrap() == verifier {
            return;
        }
    }
    panic!("the verifier keeps changing");
}

/// Returns 1000 ranges in the first range of a shard whose lengths alternate, so that each is a run of its own.
fn unlike_parts() -> Vec<ByteRange> {
    (0..1000).map(|part| range(part * 4, 1 + part % 2)).collect()
}

/// Reads a range, of which no byte may be lost.
async fn read(layout: &Arc<dyn Layout>, wanted: ByteRange) -> Vec<u8> {
    let mut bytes = vec![0xff; wanted.len as usize];
    for Share { lane, parts } in layout.shares(&[wanted]) {
        let done = layout.read(lane, &parts).await.unwrap();
        assert_eq!(done.lost, []);
        for (at, found) in done.runs {
            let at = (at - wanted.offset) as usize;
            match found {
                Found::Data(data) => bytes[at..at + data.len()].copy_from_slice(&data),
                Found::Nothing(len) => bytes[at..at + len as usize].fill(0),
            }
        }
    }
    bytes
}

#[tokio::test(start_paused = true)]
async fn the_later_of_two_writers_wins() {
    const SIZE: u64 = 12_000;
    for commits_reversed in [false, true] {
        let iods = MemoryIods::with_logs(2, UNIT);
        let other = iods.other_mount();
        let layouts = [iods.grant(0).await, iods.grant_to(&other, 0).await];
        let mut file = vec![0; SIZE as usize];
        let mut written = [Vec::new(), Vec::new()];
        for turn in 0..12_u64 {
            let writer = (turn % 2) as usize;
            let wanted = range(turn * 631 % 5000, 3000 + turn * 401 % 4000);
            file[wanted.offset as usize..wanted.end() as usize].fill(turn as u8 + 1);
            written[writer].extend(write(&layouts[writer], wanted, turn as u8 + 1).await);
            for layout in &layouts {
                assert_eq!(read(layout, range(0, SIZE)).await, file, "after the write {turn}");
            }
        }
        let mut order = [0, 1];
        if commits_reversed {
            order.reverse();
        }
        for writer in order {
            commit(&layouts[writer], &written[writer]).await;
            assert_eq!(read(&layouts[0], range(0, SIZE)).await, file, "after the commit of writer {writer}");
        }
        (0..2).for_each(|lane| iods.restart(lane));
        assert_eq!(read(&layouts[1], range(0, SIZE)).await, file, "after the restart of all iods");
        assert_eq!(iods.requests(Procedure::OpenLog).0, 2, "each writer has one log");
    }
}

#[tokio::test(start_paused = true)]
async fn readers_get_the_durable_bytes_if_an_iod_lost_later_ones() {
    let iods = MemoryIods::with_logs(2, UNIT);
    let (writer, other) = (iods.grant(0).await, iods.other_mount());
    let reader = iods.grant_to(&other, 0).await;
    let all = range(0, 1024);
    let first = write(&writer, all, 1).await;
    commit(&writer, &first).await;
    let second = write(&writer, all, 2).await;
    assert_eq!(read(&reader, all).await, [2; 1024]);
    // Both shards of the log are on both iods; the shard of the index is on iod 0.
    iods.restart(1);
    let now = read(&reader, all).await;
    let count = |byte| now.iter().filter(|now| **now == byte).count();
    assert_eq!((count(1), count(2)), (512, 512), "iod 1 has lost every other unit of the log");
    let [(lane, verifier)] = second[..] else { panic!("one write") };
    assert_ne!(writer.commit(lane).await.unwrap(), verifier, "the iod has lost bytes");

    // The writer commits other bytes, and does not send the lost ones again.
    let elsewhere = write(&writer, range(2048, 10), 3).await;
    commit(&writer, &elsewhere).await;
    let later = read(&reader, all).await;
    assert!(later.iter().all(|byte| [1, 2].contains(byte)), "a commit made a run durable whose bytes are lost");
    iods.restart(0);
    assert_eq!(read(&reader, all).await, [1; 1024], "the second write was never durable");
    assert_eq!(read(&reader, range(2048, 10)).await, [3; 10]);

    write_durably(&writer, all, 2).await;
    (0..2).for_each(|lane| iods.restart(lane));
    assert_eq!(read(&reader, all).await, [2; 1024]);
}

#[tokio::test(start_paused = true)]
async fn a_write_is_sent_again_whichever_iod_restarts() {
    for restarted in 0..3 {
        for before_any_commit in [true, false] {
            let iods = MemoryIods::with_logs(3, UNIT);
            let layout = iods.grant(0).await;
            let wanted = range(4096, 800);
            if !before_any_commit {
                let first = write(&layout, wanted, 1).await;
                commit(&layout, &first).await;
            }
            let [(lane, verifier)] = write(&layout, wanted, 2).await[..] else { panic!("one write") };
            iods.restart(restarted);
            if layout.commit(lane).await.unwrap() != verifier {
                write_durably(&layout, wanted, 2).await;
            }
            (0..3).for_each(|lane| iods.restart(lane));
            assert_eq!(read(&layout, wanted).await, [2; 800], "iod {restarted}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn strided_writes_make_few_runs() {
    let iods = MemoryIods::with_logs(2, UNIT);
    let layout = iods.grant(0).await;
    let parts: Vec<ByteRange> = (0..512).map(|record| range(record * 8, 4)).collect();
    layout.write(0, &parts, &payload(7, &parts), false).await.unwrap();
    let (count, bytes) = iods.requests(Procedure::Register);
    assert_eq!(count, 1);
    assert!(bytes < 400, "512 records need {bytes} bytes, and not one run");
    let expected: Vec<u8> = (0..4096).map(|at| if at % 8 < 4 { 7 } else { 0 }).collect();
    assert_eq!(read(&layout, range(0, 4096)).await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_renewed_layout_commits_the_writes_of_the_earlier_one() {
    let iods = MemoryIods::with_logs(2, UNIT);
    let layout = iods.grant(0).await;
    let written = write(&layout, range(0, 6000), 1).await;
    let renewed = iods.grant(0).await;
    drop(layout);
    commit(&renewed, &written).await;
    (0..2).for_each(|lane| iods.restart(lane));
    assert_eq!(read(&renewed, range(0, 6000)).await, [1; 6000]);
    assert_eq!(iods.requests(Procedure::OpenLog).0, 1, "both layouts use one log");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_lost_all_layouts_commits_its_earlier_writes_and_forgets_committed_files() {
    let iods = MemoryIods::with_logs(2, UNIT);
    let layout = iods.grant(0).await;
    let written = write(&layout, range(0, 100), 1).await;
    drop(layout);
    let drivers = iods.other_mount();
    let (layout, other) = (iods.grant(0).await, iods.grant_to(&drivers, 0).await);
    let newer = write(&other, range(0, 50), 2).await;
    commit(&other, &newer).await;
    commit(&layout, &written).await;
    assert_eq!(iods.requests(Procedure::OpenLog).0, 2, "a log for each client");
    (0..2).for_each(|lane| iods.restart(lane));
    assert_eq!(read(&layout, range(0, 100)).await, [[2; 50], [1; 50]].concat());
    drop(layout);
    let layout = iods.grant(0).await;
    write(&layout, range(0, 100), 3).await;
    assert_eq!(iods.requests(Procedure::OpenLog).0, 3, "the driver had forgotten the log");
}

#[tokio::test(start_paused = true)]
async fn a_write_longer_than_a_unit_of_a_log_is_on_two_iods() {
    let iods = MemoryIods::with_logs(2, 4096);
    let layout = iods.grant(0).await;
    let written = write(&layout, range(500, 20_000), 9).await;
    assert_eq!((written.len(), iods.requests(Procedure::Write).0), (1, 2));
    assert_eq!(read(&layout, range(500, 20_000)).await, [9; 20_000]);
    assert_eq!((iods.requests(Procedure::Lookup).0, iods.requests(Procedure::Read).0), (1, 2));
    commit(&layout, &written).await;
    assert_eq!((iods.requests(Procedure::Commit).0, iods.requests(Procedure::Register).0), (2, 2));
    (0..2).for_each(|lane| iods.restart(lane));
    assert_eq!(read(&layout, range(500, 20_000)).await, [9; 20_000]);
}

#[tokio::test(start_paused = true)]
async fn a_stable_write_needs_no_commit_unless_others_are_unstable() {
    let iods = MemoryIods::with_logs(2, UNIT);
    let layout = iods.grant(0).await;
    let parts = [range(0, 100)];
    let written = layout.write(0, &parts, &payload(1, &parts), true).await.unwrap();
    assert!(written.stable);
    assert_eq!((iods.requests(Procedure::Commit).0, iods.requests(Procedure::Register).0), (0, 1));
    write(&layout, range(200, 100), 2).await;
    let parts = [range(100, 100)];
    let written = layout.write(0, &parts, &payload(3, &parts), true).await.unwrap();
    assert!(written.stable && iods.requests(Procedure::Commit).0 > 0, "{written:?}");
    (0..2).for_each(|lane| iods.restart(lane));
    let expected = [[1; 100], [3; 100], [2; 100]].concat();
    assert_eq!(read(&layout, range(0, 300)).await, expected, "the stable write confirmed the unstable one as well");
    // The driver notices the restart by this write.
    let parts = [range(0, 100)];
    let written = layout.write(0, &parts, &payload(4, &parts), true).await.unwrap();
    assert!(written.stable);
    (0..2).for_each(|lane| iods.restart(lane));
    assert_eq!(read(&layout, range(0, 100)).await, [4; 100]);
}

#[tokio::test(start_paused = true)]
async fn a_read_of_the_base_costs_one_lookup_more_than_that_of_a_striped_file() {
    let iods = MemoryIods::with_logs(2, UNIT);
    let layout = iods.grant(0).await;
    assert_eq!(read(&layout, range(0, 1000)).await, [0; 1000]);
    assert_eq!((iods.requests(Procedure::Lookup).0, iods.requests(Procedure::Read).0), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn writes_at_the_same_time_keep_their_bytes() {
    let iods = MemoryIods::with_logs(2, UNIT);
    let layout = iods.grant(0).await;
    let places: Vec<ByteRange> = (0..100).map(|number| range(number * 77, 77)).collect();
    let writes = places.iter().zip(1..).map(|(place, byte)| write(&layout, *place, byte));
    let written = join_all(writes).await.concat();
    let expected: Vec<u8> = (0..7700).map(|at| (at / 77 + 1) as u8).collect();
    assert_eq!(read(&layout, range(0, 7700)).await, expected);
    commit(&layout, &written).await;
    (0..2).for_each(|lane| iods.restart(lane));
    assert_eq!(read(&layout, range(0, 7700)).await, expected);
    assert_eq!(iods.requests(Procedure::OpenLog).0, 1);
}

#[tokio::test(start_paused = true)]
async fn a_writer_commits_before_a_shard_has_too_many_pending_runs() {
    let iods = MemoryIods::with_logs(1, UNIT);
    let layout = iods.grant(0).await;
    let parts = unlike_parts();
    for _ in 0..17 {
        layout.write(0, &parts, &payload(1, &parts), false).await.unwrap();
    }
    assert_eq!(iods.requests(Procedure::Commit).0, 0);
    let before = iods.requests(Procedure::Register).0;
    layout.write(0, &parts, &payload(2, &parts), false).await.unwrap();
    assert_eq!(iods.requests(Procedure::Commit).0, 1, "the shard has more than 16384 pending runs");
    assert_eq!(iods.requests(Procedure::Register).0, before + 2);
    layout.write(0, &parts, &payload(3, &parts), false).await.unwrap();
    assert_eq!(iods.requests(Procedure::Commit).0, 1);
}

#[tokio::test(start_paused = true)]
async fn a_writer_commits_if_a_shard_takes_no_more_pending_runs() {
    let iods = MemoryIods::with_logs(1, UNIT);
    let parts = unlike_parts();
    let mut mounts = Vec::new();
    for _ in 0..65 {
        let mount = iods.other_mount();
        let layout = iods.grant_to(&mount, 0).await;
        layout.write(0, &parts, &payload(1, &parts), false).await.unwrap();
        mounts.push((mount, layout));
    }
    assert_eq!(iods.requests(Procedure::Commit).0, 0);
    let layout = iods.grant(0).await;
    let refused = layout.write(0, &parts, &payload(2, &parts), false).await;
    assert!(matches!(refused, Err(NotDone::NotAttempted(_))), "no run of this writer can become durable: {refused:?}");
    let before = iods.requests(Procedure::Commit).0;
    mounts[0].1.write(0, &parts, &payload(3, &parts), false).await.unwrap();
    assert_eq!(iods.requests(Procedure::Commit).0, before + 1);
    assert_eq!(read(&layout, range(0, 1)).await, [3]);
}

#[tokio::test(start_paused = true)]
async fn an_iod_of_an_older_revision_gets_no_request_about_logs() {
    let iods = MemoryIods::with_logs(1, UNIT);
    let Refused::Unreachable(error) = iods.refusal(REVISIONS.end() + 1).await else { panic!("the iod got a request") };
    let text = error.to_string();
    for part in [format!("revision {}", REVISIONS.end()), format!("revision {}", REVISIONS.end() + 1)] {
        assert!(text.contains(&part), "{text}");
    }
    assert!(text.contains("upgrade the iod"), "{text}");
    assert_eq!(iods.requests(Procedure::Size).0, 0);
}
