//! Log files on the mgr path, with clients that write data logs and register them.

use crate::check::{Native, check, wait_settled};
use crate::cluster::{Cluster, create, ctx, pattern, read, remove, set_size, until, write};
use crate::layouts::{call, connect, layout};
use crate::swap_layout::{clean, gone, later};
use bytes::Bytes;
use layout::Part;
use layout::kinds::log::{LogPlaces, shards};
use layout::kinds::native::{Body, KIND, Update};
use log_index::{LogNumber, Run, Source, encode};
use mgr::Files;
use net::rpc::Connection;
use nfs::fs::{Content, FileSystem, Iomode, LayoutGone, Stability, XattrHow};
use types::{ByteRange, FileId, ObjectId, SetAttrs, Status};
use wire::native::{
    Capability, CommitReply, Failure, ObjectArgs, OpenLogReply, Procedure, RegisterArgs, RegisterReply, WriteArgs,
    WriteExtent, WriteHead, WriteReply, crc32c,
};
use xdr::{Segments, Xdr};

/// Starts a cluster whose new files are log files over all iods, with stripe units of 64 bytes.
async fn log_cluster(iods: usize) -> Cluster {
    let mut cluster = Cluster::stopped(iods, "64").await;
    cluster.config.lease_secs = 1;
    cluster.start_mgr().await;
    set_kind(&cluster.files(), "log").await;
    cluster
}

async fn set_kind(files: &Files, value: &'static str) {
    let name = Bytes::from(Part::Layout.xattr());
    files.setxattr(&ctx(1), FileId::ROOT, &name, Bytes::from_static(value.as_bytes()), XattrHow::Either).await.unwrap();
}

/// A client that writes a file through a data log of its own.
struct Writer {
    client: u64,
    file: FileId,
    body: Body,
    connections: Vec<Connection>,
    log: u32,
    sequence: u64,
    position: u64,
}

impl Writer {
    async fn open(files: &Files, client: u64, file: FileId) -> Writer {
        let body = layout(files, client, file, Iomode::ReadWrite).await;
        let mut connections = Vec::new();
        for device in &body.devices {
            connections.push(connect(files, client, device.0).await);
        }
        let mut writer = Writer { client, file, body, connections, log: 0, sequence: 0, position: 0 };
        let cap = writer.cap(0, ObjectId::index(file));
        let reply = call::<OpenLogReply>(&writer.connections[0], Procedure::OpenLog, &ObjectArgs { cap }).await;
        writer.log = reply.unwrap().log;
        writer
    }

    fn count(&self) -> usize {
        self.connections.len()
    }

    /// Returns the client's capability for the index or for a data log on an iod of the file.
    fn cap(&self, index: usize, object: ObjectId) -> Capability {
        let cap = Capability::from_bytes(&self.body.capability).unwrap();
        Capability { object, mac: self.body.index_authenticators[index], ..cap }
    }

    fn log_object(&self) -> ObjectId {
        ObjectId::log(self.file, self.log)
    }

    /// Appends bytes to the data log, without a registration. Returns the run of these bytes.
    async fn append(&mut self, offset: u64, data: &[u8]) -> Result<Run, Failure> {
        let (start, len) = (self.position, data.len() as u64);
        let places = LogPlaces::new(self.log, self.body.stripe_unit, self.count()).unwrap();
        for piece in places.pieces(ByteRange { offset: start, len }) {
            let from = (piece.file.offset - start) as usize;
            let part = Bytes::copy_from_slice(&data[from..from + piece.file.len as usize]);
            let extent = WriteExtent { offset: piece.object.offset, len: part.len() as u32, crc32c: crc32c(&part) };
            let cap = self.cap(piece.index, self.log_object());
            let head = WriteHead { cap, stable: false, least: 0, extents: vec![extent] };
            let arguments = WriteArgs { head, data: Segments::from(part) };
            call::<WriteReply>(&self.connections[piece.index], Procedure::Write, &arguments).await?;
        }
        self.position += len;
        let source = Source::Log { log: LogNumber(self.log), position: start };
        Ok(Run::single(ByteRange { offset, len }, source).unwrap())
    }

    async fn register(&mut self, run: Option<Run>, durable: bool) -> Result<(), Failure> {
        self.sequence += 1;
        let concerned = run.map(|run| {
            let shards = shards(self.body.stripe_unit, self.count()).unwrap();
            let mut indices: Vec<usize> = shards.pieces(run.bounds()).map(|piece| piece.index).collect();
            indices.sort_unstable();
            indices.dedup();
            indices
        });
        for index in concerned.unwrap_or_else(|| (0..self.count()).collect()) {
            let cap = self.cap(index, ObjectId::index(self.file));
            let (sequence, runs) = (self.sequence, Bytes::from(encode(run)));
            let arguments =
                RegisterArgs { cap, log: self.log, sequence, durable: if durable { sequence } else { 0 }, runs };
            call::<RegisterReply>(&self.connections[index], Procedure::Register, &arguments).await?;
        }
        Ok(())
    }

    /// Writes bytes to the data log and registers them. The bytes are not durable.
    async fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        let run = self.append(offset, data).await?;
        self.register(Some(run), false).await
    }

    /// Makes all writes of the client durable, and reports the end of the file to the mgr.
    async fn sync(&mut self, files: &Files, end: u64) {
        for index in 0..self.count() {
            let arguments = ObjectArgs { cap: self.cap(index, self.log_object()) };
            call::<CommitReply>(&self.connections[index], Procedure::Commit, &arguments).await.unwrap();
        }
        self.register(None, true).await.unwrap();
        let told = Update { durable: true, ..Update::default() }.to_bytes();
        files.layout_commit(&ctx(self.client), self.file, (KIND, told), Some(end - 1), None).await.unwrap();
    }

    async fn close(self, files: &Files) {
        let why = LayoutGone::Returned { kind: KIND, body: Bytes::new() };
        gone(files, self.client, self.file, Iomode::ReadWrite, why).await;
    }
}

fn put(want: &mut Vec<u8>, offset: usize, data: &[u8]) {
    want.resize(want.len().max(offset + data.len()), 0);
    want[offset..offset + data.len()].copy_from_slice(data);
}

async fn content(files: &Files, file: FileId) -> Vec<u8> {
    read(files, file, 0, 1 << 20).await.unwrap().to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_later_write_wins_whether_through_a_log_or_the_mgr() {
    for iods in 1..4 {
        let mut cluster = log_cluster(iods).await;
        let files = cluster.files();
        let file = create(&files, "f").await;
        let mut writer = Writer::open(&files, 7, file).await;
        let mut want = Vec::new();
        for (round, offset) in [0, 9000, 4000, 4090].into_iter().enumerate() {
            let data = pattern(5000, round as u8);
            writer.write(offset, &data).await.unwrap();
            put(&mut want, offset as usize, &data);
        }
        writer.sync(&files, want.len() as u64).await;
        assert!(content(&files, file).await == want, "{iods} iods");
        for (offset, stable) in [(100, Stability::Unstable), (8190, Stability::FileSync), (4000, Stability::DataSync)] {
            let data = pattern(700, offset as u8);
            write(&files, file, offset, &data, stable).await;
            put(&mut want, offset as usize, &data);
            assert!(content(&files, file).await == want, "a write through the mgr, {iods} iods");
            let data = pattern(300, !offset as u8);
            writer.write(offset + 200, &data).await.unwrap();
            put(&mut want, offset as usize + 200, &data);
            assert!(content(&files, file).await == want, "a later write through the log, {iods} iods");
        }
        writer.sync(&files, want.len() as u64).await;
        files.commit(&ctx(1), file, ByteRange::ALL).await.unwrap();
        writer.close(&files).await;
        drop(files);
        // All iods and the mgr restart: everything was durable.
        for iod in 0..iods {
            cluster.stop_iod(iod);
            cluster.start_iod(iod);
        }
        cluster.restart_mgr().await;
        cluster.wait_up(iods).await;
        let files = cluster.files();
        assert!(content(&files, file).await == want, "after a restart, {iods} iods");
        wait_settled(&cluster).await;
        assert_eq!(check(&cluster, false).await, []);
        assert_eq!(remove(&files, "f").await, file);
        files.reap(&ctx(1), file).await.unwrap();
        until("no object is left", || cluster.objects() == 0).await;
    }
}

/// A random number generator (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_requests_through_the_mgr_and_two_logs_agree_with_a_model() {
    let cluster = log_cluster(3).await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let mut writers = [Writer::open(&files, 7, file).await, Writer::open(&files, 8, file).await];
    let (mut random, mut want) = (Random(0x1099), Vec::<u8>::new());
    for step in 0..300u64 {
        let (offset, len) = (random.below(16_000), 1 + random.below(3000));
        let data = pattern(len as usize, step as u8);
        match random.below(10) {
            0..4 => {
                let writer = &mut writers[random.below(2) as usize];
                writer.write(offset, &data).await.unwrap();
                put(&mut want, offset as usize, &data);
                writer.sync(&files, offset + len).await;
            }
            4..7 => {
                let stable = if random.below(2) == 0 { Stability::Unstable } else { Stability::FileSync };
                write(&files, file, offset, &data, stable).await;
                put(&mut want, offset as usize, &data);
            }
            7 => {
                set_size(&files, file, offset).await;
                want.resize(offset as usize, 0);
            }
            8 => {
                files.deallocate(&ctx(1), file, ByteRange { offset, len }).await.unwrap();
                let end = want.len();
                want[(offset as usize).min(end)..((offset + len) as usize).min(end)].fill(0);
            }
            _ => drop(files.commit(&ctx(1), file, ByteRange::ALL).await.unwrap()),
        }
        let part = want.get(offset as usize..).unwrap_or_default();
        let part = &part[..part.len().min(len as usize)];
        assert!(read(&files, file, offset, len as u32).await.unwrap() == part, "step {step}");
        if step % 10 == 0 {
            assert!(content(&files, file).await == want, "step {step}");
        }
        check_seek(&files, file, &want, random.below(want.len().max(1) as u64)).await;
    }
}

/// Checks that all bytes that SEEK skips as holes are zeros, and that it finds a hole or data at `offset`.
async fn check_seek(files: &Files, file: FileId, want: &[u8], offset: u64) {
    if offset >= want.len() as u64 {
        return;
    }
    let data = match files.seek(&ctx(1), file, offset, Content::Data).await {
        Err(Status::NxIo) => want.len() as u64,
        found => found.unwrap().offset,
    };
    let hole = files.seek(&ctx(1), file, offset, Content::Hole).await.unwrap().offset;
    assert!(want[offset as usize..data as usize].iter().all(|byte| *byte == 0), "data at {offset} is skipped");
    assert!(hole == want.len() as u64 || want[hole as usize] == 0, "a hole at {hole} that has data");
    assert!(hole == offset || data == offset);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holes_and_data_are_found_in_logs_and_in_the_base() {
    let cluster = log_cluster(2).await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let mut writer = Writer::open(&files, 7, file).await;
    writer.write(1 << 20, &pattern(100, 1)).await.unwrap();
    writer.sync(&files, (1 << 20) + 100).await;
    set_size(&files, file, 8 << 20).await;
    let seek = async |offset, what| files.seek(&ctx(1), file, offset, what).await.map(|found| found.offset);
    assert_eq!(seek(5, Content::Data).await, Ok(1 << 20));
    assert_eq!(seek(1 << 20, Content::Hole).await, Ok((1 << 20) + 100));
    assert_eq!(seek((1 << 20) + 100, Content::Data).await, Err(Status::NxIo));
    files.deallocate(&ctx(1), file, ByteRange { offset: 1 << 20, len: 100 }).await.unwrap();
    assert_eq!(seek(5, Content::Data).await, Err(Status::NxIo), "the run is punched out");
    assert!(read(&files, file, 1 << 20, 100).await.unwrap().iter().all(|byte| *byte == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_allocated_space_of_a_file_with_holes_includes_its_logs() {
    let cluster = log_cluster(2).await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let mut writer = Writer::open(&files, 7, file).await;
    writer.write(1 << 20, &pattern(256 << 10, 1)).await.unwrap();
    writer.sync(&files, (1 << 20) + (256 << 10)).await;
    let told = Update { durable: true, holes: true, ..Update::default() }.to_bytes();
    files.layout_commit(&ctx(7), file, (KIND, told), None, None).await.unwrap();
    let mut attrs = files.getattr(&ctx(7), file).await.unwrap();
    files.correct_space(&mut [&mut attrs]).await;
    let logs = 256 << 10;
    assert!(attrs.holes && (logs..2 * logs).contains(&attrs.used), "{attrs:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncation_removes_the_bytes_of_logs_for_good() {
    let cluster = log_cluster(3).await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let mut writer = Writer::open(&files, 7, file).await;
    writer.write(0, &pattern(20_000, 1)).await.unwrap();
    writer.sync(&files, 20_000).await;
    set_size(&files, file, 777).await;
    set_size(&files, file, 20_000).await;
    let mut want = pattern(20_000, 1);
    want[777..].fill(0);
    assert!(content(&files, file).await == want, "bytes beyond a truncation came back");
    // The end of the file is that of the logs also for bytes that no client has reported.
    writer.write(20_000, &pattern(5, 2)).await.unwrap();
    assert_eq!(files.getattr(&ctx(8), file).await.unwrap().size, 20_005);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_an_iod_is_down_nothing_is_cut_or_punched() {
    let mut cluster = log_cluster(2).await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let mut writer = Writer::open(&files, 7, file).await;
    writer.write(0, &pattern(6000, 1)).await.unwrap();
    writer.sync(&files, 6000).await;
    writer.close(&files).await;
    wait_settled(&cluster).await;
    cluster.stop_iod(1);
    until("the loss is noticed", || cluster.up() == 1).await;
    let cut = SetAttrs { size: Some(10), ..SetAttrs::default() };
    assert_eq!(files.setattr(&ctx(1), file, cut, true).await.map(drop), Err(Status::Delay));
    let range = ByteRange { offset: 0, len: 32 };
    assert_eq!(files.deallocate(&ctx(1), file, range).await.map(drop), Err(Status::Delay));
    cluster.start_iod(1);
    cluster.wait_up(2).await;
    assert!(content(&files, file).await == pattern(6000, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_client_of_a_removed_file_leaves_no_object() {
    let cluster = log_cluster(2).await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let mut writer = Writer::open(&files, 7, file).await;
    writer.write(0, &pattern(3000, 1)).await.unwrap();
    writer.sync(&files, 3000).await;
    assert!(cluster.objects() > 0);
    remove(&files, "f").await;
    files.reap(&ctx(1), file).await.unwrap();
    until("no object is left", || cluster.objects() == 0).await;
    assert_eq!(writer.write(0, b"late").await.unwrap_err().status, Status::Fenced);
    assert_eq!((check(&cluster, false).await, cluster.objects()), (vec![], 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_finds_and_removes_a_log_without_owner() {
    let cluster = log_cluster(1).await;
    let files = cluster.files();
    set_kind(&files, "stripe").await;
    let (kept, dead) = (create(&files, "kept").await, create(&files, "dead").await);
    for file in [kept, dead] {
        write(&files, file, 0, b"bytes", Stability::FileSync).await;
        files.closed(&ctx(1), file, true).await.unwrap();
    }
    remove(&files, "dead").await;
    files.reap(&ctx(1), dead).await.unwrap();
    wait_settled(&cluster).await;
    until("the objects are deleted", || cluster.objects() == 1).await;
    let native = Native::connect(&cluster, 0).await;
    for file in [kept, dead] {
        native.make(ObjectId::log(file, 3)).await;
    }
    let codes = |found: Vec<wire::admin::Finding>| {
        let mut codes: Vec<_> = found.into_iter().map(|finding| (finding.inode, finding.code)).collect();
        codes.sort();
        codes
    };
    let found = codes(check(&cluster, true).await);
    let text = |code: &str| code.to_owned();
    let want = [(Some(kept.0), text("object-replaced")), (Some(dead.0), text("object-stray"))];
    assert_eq!(found, want);
    until("the log without a file is removed", || cluster.objects() == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fold_keeps_the_bytes_and_removes_the_logs() {
    let cluster = log_cluster(2).await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let mut want = Vec::new();
    let mut writer = Writer::open(&files, 7, file).await;
    for (round, offset) in [0, 3000, 200_000].into_iter().enumerate() {
        let data = pattern(4000, round as u8);
        writer.write(offset, &data).await.unwrap();
        put(&mut want, offset as usize, &data);
    }
    writer.sync(&files, want.len() as u64).await;
    write(&files, file, 100_000, &pattern(500, 9), Stability::Unstable).await;
    put(&mut want, 100_000, &pattern(500, 9));
    // The last bytes that were written are a hole now.
    files.deallocate(&ctx(1), file, ByteRange { offset: 203_000, len: 1000 }).await.unwrap();
    want[203_000..].fill(0);
    let log = writer.log_object();
    writer.close(&files).await;
    let hole = async || files.seek(&ctx(1), file, 50_000, Content::Hole).await.unwrap().offset;
    assert_eq!(hole().await, 50_000);
    assert_eq!(cluster.mgr().fold(FileId(file.0 + 100)).await, Err(Status::Stale));
    let mut late = Writer::open(&files, 8, file).await;
    let why = LayoutGone::Returned { kind: KIND, body: Bytes::new() };
    gone(&files, 8, file, Iomode::ReadWrite, why).await;
    cluster.mgr().fold(file).await.unwrap();
    assert_eq!(late.register(None, true).await.unwrap_err().status, Status::Fenced);
    assert!(content(&files, file).await == want);
    assert_eq!(hole().await, 50_000, "a hole stays a hole");
    let body = layout(&files, 9, file, Iomode::Read).await;
    assert_eq!((body.object.stream, body.index_authenticators.len()), (1, 0));
    let why = LayoutGone::Returned { kind: KIND, body: Bytes::new() };
    gone(&files, 9, file, Iomode::Read, why).await;
    clean(&cluster, 2).await;
    assert!((0..2).all(|iod| !later(&cluster, iod, log).exists()));
    assert!(content(&files, file).await == want);
    assert_eq!(late.append(0, b"late").await.unwrap_err().status, Status::Fenced);
    assert_eq!(cluster.mgr().fold(file).await, Err(Status::Inval), "the file is striped");
    let moved = cluster.mgr().swap_layout(file, crate::swap_layout::numbers(&cluster, file).await).await;
    assert_eq!(moved, Ok(()), "a striped file moves as always");
    assert!(content(&files, file).await == want);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_iod_changes_the_verifier_of_unstable_writes() {
    let mut cluster = log_cluster(2).await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let mut writer = Writer::open(&files, 7, file).await;
    writer.write(0, &pattern(8192, 1)).await.unwrap();
    writer.sync(&files, 8192).await;
    let commit = async || files.commit(&ctx(1), file, ByteRange::ALL).await.unwrap();
    let quiet = write(&files, file, 0, &pattern(10, 2), Stability::Unstable).await;
    assert_eq!(commit().await, quiet.verifier, "no iod restarted");
    // The bytes of this write are in the second stripe unit, on the iod with index 1. Its registration is on the iod
    // with index 0.
    let lost = write(&files, file, 64 + 10, &pattern(10, 3), Stability::Unstable).await;
    for iod in 0..2 {
        let before =
            if iod == 0 { lost } else { write(&files, file, 64 + 10, &pattern(10, 3), Stability::Unstable).await };
        // Read, so that the mgr holds no gathered bytes.
        assert!(read(&files, file, 74, 10).await.unwrap() == pattern(10, 3));
        cluster.stop_iod(iod);
        cluster.start_iod(iod);
        until("the restart is noticed", || cluster.up() == 2).await;
        let verifier = loop {
            match files.commit(&ctx(1), file, ByteRange::ALL).await {
                Err(Status::Delay) => tokio::task::yield_now().await,
                verifier => break verifier.unwrap(),
            }
        };
        assert_ne!(verifier, before.verifier, "iod {iod}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_refuses_late_registrations_also_on_an_iod_that_was_down() {
    let mut cluster = log_cluster(2).await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let mut old = Writer::open(&files, 7, file).await;
    old.write(0, &pattern(9000, 1)).await.unwrap();
    old.sync(&files, 9000).await;
    files.layout_gone(&ctx(0), 7, file, Iomode::ReadWrite, ByteRange::ALL, LayoutGone::Revoked).await.unwrap();
    let run = old.append(0, b"late").await.unwrap();
    assert_eq!(old.register(Some(run), true).await.unwrap_err().status, Status::Fenced);
    assert!(content(&files, file).await == pattern(9000, 1));
    let new = Writer::open(&files, 7, file).await;
    assert!(new.body.generation > old.body.generation && new.log != old.log);
    let iod = cluster.iods.iter().position(|iod| iod.as_ref().unwrap().iod() == new.body.devices[0]).unwrap();
    cluster.stop_iod(iod);
    let revoked = files.layout_gone(&ctx(0), 7, file, Iomode::ReadWrite, ByteRange::ALL, LayoutGone::Revoked).await;
    assert!(matches!(revoked, Ok(()) | Err(Status::Delay)));
    cluster.start_iod(iod);
    cluster.wait_up(2).await;
    let connection = connect(&files, 7, new.body.devices[0].0).await;
    let mut late = Writer { connections: vec![connection], ..new };
    late.body.devices.truncate(1);
    let run = Run::single(ByteRange { offset: 0, len: 4 }, Source::Base).unwrap();
    assert_eq!(late.register(Some(run), true).await.unwrap_err().status, Status::Fenced);
    assert!(content(&files, file).await == pattern(9000, 1));
    wait_settled(&cluster).await;
    assert_eq!(check(&cluster, false).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_a_log_lost_show_the_older_bytes_or_an_error() {
    let mut cluster = log_cluster(2).await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let mut first = Writer::open(&files, 7, file).await;
    first.write(0, &pattern(100, 1)).await.unwrap();
    first.sync(&files, 100).await;
    // The shard of the first bytes is on the iod with index 0; the log of an odd number begins on that with index 1.
    let mut second = Writer::open(&files, 8, file).await;
    if second.log % 2 == 0 {
        second = Writer::open(&files, 8, file).await;
    }
    second.write(10, &pattern(50, 2)).await.unwrap();
    second.write(80, &pattern(5, 3)).await.unwrap();
    let mut want = pattern(100, 1);
    put(&mut want, 10, &pattern(50, 2));
    put(&mut want, 80, &pattern(5, 3));
    assert!(content(&files, file).await == want);
    let iod = cluster.iods.iter().position(|iod| iod.as_ref().unwrap().iod() == second.body.devices[1]).unwrap();
    let path = later(&cluster, iod, second.log_object());
    cluster.stop_iod(iod);
    std::fs::remove_file(&path).unwrap();
    cluster.start_iod(iod);
    until("the restart is noticed", || cluster.up() == 2).await;
    let again = async || loop {
        match read(&files, file, 0, 200).await {
            Err(Status::Delay) => tokio::task::yield_now().await,
            other => break other,
        }
    };
    // The first data log may lie on the same iod, and has lost nothing.
    assert!(again().await.unwrap() == pattern(100, 1), "the pending writes are lost, and the older bytes are there");
    // A client confirms its registrations although the bytes are gone.
    let connection = &second.connections[0];
    let (cap, sequence) = (second.cap(0, ObjectId::index(file)), second.sequence);
    let arguments =
        RegisterArgs { cap, log: second.log, sequence: sequence + 1, durable: sequence, runs: Bytes::new() };
    call::<RegisterReply>(connection, Procedure::Register, &arguments).await.unwrap();
    assert_eq!(again().await, Err(Status::Lost));
    assert!(read(&files, file, 60, 20).await.unwrap() == pattern(100, 1)[60..80]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_over_logs_and_out_of_a_log_file_are_left_to_the_client() {
    let cluster = log_cluster(2).await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    set_kind(&files, "stripe").await;
    let other = create(&files, "g").await;
    write(&files, other, 0, &pattern(3000, 5), Stability::FileSync).await;
    let mut writer = Writer::open(&files, 7, file).await;
    writer.write(0, &pattern(5000, 1)).await.unwrap();
    writer.sync(&files, 5000).await;
    let range = ByteRange { offset: 100, len: 2000 };
    // The copy would not be durable, but the bytes in the log are.
    assert_eq!(files.copy(&ctx(1), other, range, file, 1000).await.unwrap(), None);
    let mut want = pattern(5000, 1);
    assert!(content(&files, file).await == want);
    let copied = files.copy(&ctx(1), other, range, file, 6000).await.unwrap().unwrap();
    assert_eq!(copied.count, 2000);
    put(&mut want, 6000, &pattern(3000, 5)[100..2100]);
    assert!(content(&files, file).await == want);
    assert_eq!(files.commit(&ctx(1), file, ByteRange::ALL).await.unwrap(), copied.verifier);
    assert_eq!(files.copy(&ctx(1), file, range, other, 0).await.unwrap(), None);
    assert!(content(&files, other).await == pattern(3000, 5), "no outdated byte of the base is copied");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inline_file_becomes_a_log_file_when_a_client_writes_it() {
    let mut cluster = Cluster::stopped(2, "64").await;
    cluster.config.inline_max = "4096".into();
    cluster.start_mgr().await;
    let files = cluster.files();
    set_kind(&files, "log").await;
    let file = create(&files, "f").await;
    write(&files, file, 0, &pattern(300, 1), Stability::FileSync).await;
    assert_eq!((cluster.objects(), cluster.mgr().counters().inline_writes), (0, 1));
    let mut writer = Writer::open(&files, 7, file).await;
    assert_eq!(writer.body.index_authenticators.len(), 2);
    writer.write(200, &pattern(300, 2)).await.unwrap();
    writer.sync(&files, 500).await;
    let mut want = pattern(300, 1);
    put(&mut want, 200, &pattern(300, 2));
    assert!(content(&files, file).await == want);
    set_kind(&files, "stripe").await;
    let striped = create(&files, "g").await;
    assert_eq!(layout(&files, 7, striped, Iomode::ReadWrite).await.index_authenticators.len(), 0);
}
