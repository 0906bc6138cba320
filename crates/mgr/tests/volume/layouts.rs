//! Layouts: their content, the visibility of writes on the direct path to other clients, and fencing.

use crate::cluster::{Cluster, create, ctx, pattern, read, set_size, write};
use bytes::Bytes;
use layout::kinds::native::{Body, Device, KIND, Update};
use mgr::Files;
use net::rpc::{Connection, Limits, NoService};
use nfs::fs::{FileSystem, Iomode, LayoutAsk, LayoutGone, Stability};
use std::sync::Arc;
use std::time::Duration;
use types::{ByteRange, FileId, ObjectId, SetAttrs, Status};
use wire::native::{
    Capability, Extent, Failure, HelloArgs, HelloReply, Origin, PROGRAM, Procedure, ProveReply, ReadArgs, ReadReply,
    Ticket, VERSION, WriteArgs, WriteExtent, WriteHead, WriteReply, crc32c, decode_reply,
};
use wire::rpc::Auth;
use xdr::{Segments, Writer, Xdr};

const LONG: Duration = Duration::from_secs(60);
/// The owner id and the incarnation number that the test's PROVE requests to iods contain.
const ORIGIN: Origin = Origin { owner: [1; 16], incarnation: 0 };

pub fn ask(file: FileId, iomode: Iomode) -> LayoutAsk {
    let max_body = types::limits::LAYOUT_BODY_MAX;
    LayoutAsk { file, kind: KIND, iomode, readable: true, range: ByteRange::ALL, min_len: 0, max_body }
}

pub async fn layout(files: &Files, client: u64, file: FileId, iomode: Iomode) -> Body {
    let out = files.layout_get(&ctx(client), ask(file, iomode)).await.unwrap();
    assert_eq!((out.range, out.iomode, out.kind), (ByteRange::ALL, iomode, KIND));
    Body::from_bytes(&out.body).unwrap()
}

pub async fn call<R: Xdr>(connection: &Connection, procedure: Procedure, arguments: &impl Xdr) -> Result<R, Failure> {
    let mut out = Writer::new();
    arguments.encode(&mut out);
    let reply = connection.call(PROGRAM, VERSION, procedure as u32, &Auth::None, out.finish(), LONG).await;
    decode_reply(&mut reply.unwrap().body).unwrap()
}

/// Connects to an iod as a client does, which has only the device address that the mgr returns.
pub async fn connect(files: &Files, client: u64, device: [u8; 16]) -> Connection {
    let body = files.device_info(&ctx(client), device, KIND).await.unwrap();
    let device = Device::from_bytes(&body).unwrap();
    assert_eq!(device.local.unwrap().boot_id.parse::<types::Fsid>().unwrap().0, net::address::boot_id().unwrap());
    let address = device.tcp[0].parse().unwrap();
    let connection =
        Connection::connect(&address, Arc::new(NoService), Limits::default(), net::Counters::default(), LONG);
    let connection = connection.await.unwrap();
    let ticket = Ticket::from_bytes(&device.ticket).unwrap();
    let hello = HelloArgs::new(&ticket, [8; 32], true);
    let reply: HelloReply = call(&connection, Procedure::Hello, &hello).await.unwrap();
    assert_eq!(reply.iod, device.iod);
    call::<ProveReply>(&connection, Procedure::Prove, &ticket.check(&hello, &reply, ORIGIN).unwrap()).await.unwrap();
    connection
}

/// Returns the capability in a layout for the iod with this index.
pub fn capability(body: &Body, index: usize) -> Capability {
    Capability { mac: body.authenticators[index], ..Capability::from_bytes(&body.capability).unwrap() }
}

/// Writes a range of a file on the direct path, to one object after the other.
pub async fn write_direct(files: &Files, client: u64, body: &Body, offset: u64, data: &[u8]) -> Result<(), Failure> {
    let distribution = body.distribution().unwrap();
    for piece in distribution.pieces(ByteRange { offset, len: data.len() as u64 }) {
        let connection = connect(files, client, body.devices[piece.index].0).await;
        let start = (piece.file.offset - offset) as usize;
        let part = &data[start..start + piece.file.len as usize];
        let extent = WriteExtent { offset: piece.object.offset, len: part.len() as u32, crc32c: crc32c(part) };
        let head = WriteHead { cap: capability(body, piece.index), stable: false, least: 0, extents: vec![extent] };
        let data = Segments::from(Bytes::copy_from_slice(part));
        call::<WriteReply>(&connection, Procedure::Write, &WriteArgs { head, data }).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn direct_path_and_mgr_path_access_the_same_bytes() {
    let cluster = Cluster::new(3, "128").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let (direct, proxied) = (pattern(1000, 1), pattern(700, 2));
    let body = layout(&files, 7, file, Iomode::ReadWrite).await;
    assert_eq!((body.stripe_unit, body.object, body.devices.len()), (128, ObjectId::stream_0(file), 3));
    write_direct(&files, 7, &body, 0, &direct).await.unwrap();
    assert_eq!(files.layout_commit(&ctx(7), file, (KIND, Bytes::new()), Some(999), None).await, Ok(Some(1000)));
    assert_eq!(
        files.layout_commit(&ctx(7), file, (KIND, Bytes::new()), Some(9), None).await,
        Ok(None),
        "never shrinks"
    );
    write(&files, file, 500, &proxied, Stability::Unstable).await;
    let mut want = direct.clone();
    want.resize(1200, 0);
    want[500..1200].copy_from_slice(&proxied);
    assert!(read(&files, file, 0, 5000).await.unwrap() == want);
    write_direct(&files, 7, &body, 100, &pattern(50, 3)).await.unwrap();
    want[100..150].copy_from_slice(&pattern(50, 3));
    assert!(read(&files, file, 0, 5000).await.unwrap() == want);
    let counters = cluster.mgr().counters();
    assert_eq!((counters.proxy_write_bytes, counters.proxy_writes, counters.layouts_write), (700, 1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_clients_see_growth_without_a_layoutcommit() {
    let cluster = Cluster::new(2, "64").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let body = layout(&files, 7, file, Iomode::ReadWrite).await;
    write_direct(&files, 7, &body, 0, &pattern(300, 1)).await.unwrap();
    let queries = || cluster.mgr().counters().size_queries;
    assert_eq!(files.getattr(&ctx(7), file).await.unwrap().size, 0);
    assert_eq!(queries(), 0, "the writer itself knows the size");
    let before = files.getattr(&ctx(7), file).await.unwrap();
    let seen = files.getattr(&ctx(8), file).await.unwrap();
    assert_eq!((seen.size, queries()), (300, 1));
    assert!(seen.change > before.change);
    write_direct(&files, 7, &body, 300, &pattern(20, 2)).await.unwrap();
    let out = files.read(&ctx(8), file, 290, 100).await.unwrap();
    assert_eq!((out.data.len(), out.eof), (30, true));
    // A truncation also removes bytes that another client has written without a report.
    write_direct(&files, 7, &body, 320, &pattern(500, 3)).await.unwrap();
    assert_eq!(set_size(&files, file, 400).await.size, 400);
    assert_eq!(files.getattr(&ctx(8), file).await.unwrap().size, 400);
    assert_eq!(set_size(&files, file, 900).await.size, 900);
    assert!(read(&files, file, 400, 500).await.unwrap().iter().all(|b| *b == 0), "bytes beyond a truncation came back");
}

/// Another client may truncate the file during a write, and so remove some of the written bytes. The file then does not
/// end where the writer reports in its LAYOUTCOMMIT.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_after_another_clients_truncate_does_not_set_the_size() {
    let cluster = Cluster::new(2, "64").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let body = layout(&files, 7, file, Iomode::ReadWrite).await;
    write_direct(&files, 7, &body, 0, &pattern(128, 1)).await.unwrap();
    assert_eq!(set_size(&files, file, 0).await.size, 0);
    // The first half of the write arrives at the iods after the truncation. The second half arrived before the
    // truncation, which removed it.
    write_direct(&files, 7, &body, 0, &pattern(64, 1)).await.unwrap();
    let told = Update { durable: true, whole: true, ..Update::default() }.to_bytes();
    files.layout_commit(&ctx(7), file, (KIND, told.clone()), Some(127), None).await.unwrap();
    assert_eq!(files.getattr(&ctx(8), file).await.unwrap().size, 64);
    assert!(read(&files, file, 0, 200).await.unwrap() == pattern(64, 1), "truncated bytes are reported as lost");
    // When the client reports writes after the truncation, the mgr sets the size as the client reports it.
    write_direct(&files, 7, &body, 0, &pattern(300, 2)).await.unwrap();
    files.layout_commit(&ctx(7), file, (KIND, told), Some(299), None).await.unwrap();
    assert!(read(&files, file, 0, 400).await.unwrap() == pattern(300, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_size_after_a_silent_writer_is_learned_from_the_iods() {
    let cluster = Cluster::new(2, "64").await;
    let files = cluster.files();
    let gone = async |file, why| {
        files.layout_gone(&ctx(0), 7, file, Iomode::ReadWrite, ByteRange::ALL, why).await.unwrap();
        files.getattr(&ctx(7), file).await.unwrap().size
    };
    for (i, how) in ["closed", "returned", "forgotten", "revoked"].into_iter().enumerate() {
        let file = create(&files, how).await;
        let body = layout(&files, 7, file, Iomode::ReadWrite).await;
        write_direct(&files, 7, &body, 0, &pattern(100 + i, 1)).await.unwrap();
        let size = match how {
            "closed" => {
                files.closed(&ctx(7), file, true).await.unwrap();
                assert_eq!(files.getattr(&ctx(7), file).await.unwrap().size, 100);
                // A client may have opened the file several times, so it may still write after one CLOSE.
                write_direct(&files, 7, &body, 100, &pattern(50, 2)).await.unwrap();
                assert_eq!(gone(file, LayoutGone::Returned { kind: KIND, body: Bytes::new() }).await, 150);
                continue;
            }
            "returned" => gone(file, LayoutGone::Returned { kind: KIND, body: Bytes::new() }).await,
            "forgotten" => gone(file, LayoutGone::Forgotten).await,
            _ => gone(file, LayoutGone::Revoked).await,
        };
        assert_eq!(size, 100 + i as u64, "{how}");
    }
    // After a writer has reported all its writes, the mgr does not query the iods for the size.
    let file = create(&files, "told").await;
    let body = layout(&files, 7, file, Iomode::ReadWrite).await;
    write_direct(&files, 7, &body, 0, &pattern(10, 1)).await.unwrap();
    let before = cluster.mgr().counters().size_queries;
    let all = Bytes::from(Update { durable: true, ..Update::default() }.to_bytes().to_vec());
    files.layout_commit(&ctx(7), file, (KIND, all), Some(9), None).await.unwrap();
    // If a client sets the size that the file already has, as copy programs do, the iods need not truncate. A smaller
    // size causes a truncation.
    let set = |size| SetAttrs { size: Some(size), mode: Some(0o600), ..SetAttrs::default() };
    assert_eq!(files.setattr(&ctx(7), file, set(10), true).await.unwrap().size, 10);
    assert_eq!(cluster.mgr().counters().truncates, 0);
    assert_eq!(files.setattr(&ctx(7), file, set(9), true).await.unwrap().size, 9);
    assert_eq!(cluster.mgr().counters().truncates, 1);
    files.closed(&ctx(7), file, true).await.unwrap();
    assert_eq!(gone(file, LayoutGone::Returned { kind: KIND, body: Bytes::new() }).await, 9);
    assert_eq!(cluster.mgr().counters().size_queries, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_layout_is_refused_by_the_iods() {
    let cluster = Cluster::new(2, "64").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    write(&files, file, 0, &pattern(256, 1), Stability::Unstable).await;
    let old = layout(&files, 7, file, Iomode::ReadWrite).await;
    write_direct(&files, 7, &old, 0, b"old").await.unwrap();
    files.layout_gone(&ctx(0), 7, file, Iomode::ReadWrite, ByteRange::ALL, LayoutGone::Revoked).await.unwrap();
    let refused = write_direct(&files, 7, &old, 0, b"bad").await.unwrap_err();
    assert_eq!(refused.status, Status::Fenced);
    let new = layout(&files, 7, file, Iomode::ReadWrite).await;
    assert!(new.generation > old.generation);
    write_direct(&files, 7, &new, 0, b"new").await.unwrap();
    assert_eq!(read(&files, file, 0, 3).await.unwrap(), "new");
    assert_eq!(cluster.mgr().counters().layouts_revoked, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_can_fence_its_own_old_layout() {
    let mut cluster = Cluster::new(2, "64").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    let old = layout(&files, 7, file, Iomode::ReadWrite).await;
    write_direct(&files, 7, &old, 0, &pattern(100, 1)).await.unwrap();
    let update = |update: Update| Bytes::from(update.to_bytes().to_vec());
    let fence = update(Update { fence: true, ..Update::default() });
    assert_eq!(files.layout_commit(&ctx(7), file, (KIND, fence), None, None).await.unwrap(), None);
    assert_eq!(write_direct(&files, 7, &old, 0, b"bad").await.unwrap_err().status, Status::Fenced);
    let new = layout(&files, 7, file, Iomode::ReadWrite).await;
    assert_eq!(new.generation.0, old.generation.0 + 1);
    write_direct(&files, 7, &new, 100, &pattern(20, 2)).await.unwrap();
    // The mgr has only fenced the file and has revoked no layout, so it still queries the iods for the size that the
    // writer reached.
    assert_eq!(cluster.mgr().counters().layouts_revoked, 0);
    assert_eq!(files.getattr(&ctx(8), file).await.unwrap().size, 120);
    // A client that lost its layout does not know of later truncations by other clients. So, in its LAYOUTCOMMIT, it
    // asks the mgr to query the iods for the file size.
    set_size(&files, file, 50).await;
    let measure = update(Update { measure: true, ..Update::default() });
    files.layout_commit(&ctx(7), file, (KIND, measure.clone()), Some(119), None).await.unwrap();
    assert_eq!(files.getattr(&ctx(7), file).await.unwrap().size, 50);
    write_direct(&files, 7, &new, 60, &pattern(20, 3)).await.unwrap();
    files.layout_commit(&ctx(7), file, (KIND, measure.clone()), Some(119), None).await.unwrap();
    assert_eq!(files.getattr(&ctx(7), file).await.unwrap().size, 80);
    // While an iod is down, the mgr cannot get the file size from all iods, and the LAYOUTCOMMIT fails.
    cluster.stop_iod(1);
    let told = files.layout_commit(&ctx(7), file, (KIND, measure), Some(119), None).await;
    assert_eq!(told.unwrap_err(), Status::Delay);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capability_is_limited_to_its_layout_and_client() {
    let cluster = Cluster::new(1, "64").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    write(&files, file, 0, b"bytes", Stability::Unstable).await;
    let reader = layout(&files, 7, file, Iomode::Read).await;
    let status = |result: Result<(), Failure>| result.unwrap_err().status;
    assert_eq!(status(write_direct(&files, 7, &reader, 0, b"bad").await), Status::CapRefused);
    let writer = layout(&files, 7, file, Iomode::ReadWrite).await;
    assert_eq!(status(write_direct(&files, 8, &writer, 0, b"bad").await), Status::CapRefused);
    assert_eq!(read(&files, file, 0, 9).await.unwrap(), "bytes");
    let blind = LayoutAsk { readable: false, ..ask(file, Iomode::ReadWrite) };
    let blind = Body::from_bytes(&files.layout_get(&ctx(7), blind).await.unwrap().body).unwrap();
    write_direct(&files, 7, &blind, 0, b"BYTES").await.unwrap();
    let connection = connect(&files, 7, blind.devices[0].0).await;
    for (body, allowed) in [(&blind, false), (&writer, true), (&reader, true)] {
        let cap = Capability::from_bytes(&body.capability).unwrap();
        let arguments = ReadArgs { cap, extents: vec![Extent { offset: 0, len: 5 }] };
        match call::<ReadReply>(&connection, Procedure::Read, &arguments).await {
            Ok(reply) => assert!(allowed && reply.data == "BYTES"),
            Err(failure) => assert!(!allowed && failure.status == Status::CapRefused),
        }
    }

    let get = async |client, ask| files.layout_get(&ctx(client), ask).await.map(drop);
    assert_eq!(get(0, ask(file, Iomode::Read)).await, Err(Status::NoLayout), "session 0 is the mgr's");
    assert_eq!(get(7, LayoutAsk { kind: 1, ..ask(file, Iomode::Read) }).await, Err(Status::NoLayout));
    assert_eq!(get(7, LayoutAsk { max_body: 10, ..ask(file, Iomode::Read) }).await, Err(Status::TooSmall));
    assert_eq!(get(7, ask(FileId::ROOT, Iomode::Read)).await, Err(Status::IsDir));
    assert_eq!(files.device_info(&ctx(7), [9; 16], KIND).await, Err(Status::NoEnt));
    assert_eq!(files.device_info(&ctx(7), reader.devices[0].0, 1).await, Err(Status::NoEnt));
}
