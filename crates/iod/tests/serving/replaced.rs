//! Tests of connections that replace older connections of the same client: the iod executes no further request of the
//! old connections.

use std::sync::mpsc;
use std::thread;

use bytes::{Buf, Bytes};
use iod::{Memory, Operation, Peer};
use types::Status;
use wire::native::*;
use wire::rpc::record::mark;
use xdr::Xdr;

use crate::cluster::{
    Client, FSID, Fault, Nowhere, SESSION, Server, daemon, decoded, format_store, greet, key, now, pattern, wait_until,
};

fn origin(incarnation: u64) -> Origin {
    Origin { owner: [5; 16], incarnation }
}

fn connected(server: &Server, incarnation: u64) -> Client {
    let mut client = Client::new(server.tcp());
    client.hello_from(origin(incarnation), true).unwrap();
    client
}

#[test]
fn a_newer_connection_closes_the_older_ones_and_no_others() {
    let server = Server::new();
    let (mut old, mut beside, mut other) = (connected(&server, 1), connected(&server, 1), server.client());
    old.write(1, 0, b"old").unwrap();
    beside.write(1, 3, b"beside").unwrap();
    let mut new = connected(&server, 2);
    assert!(old.is_closed() && beside.is_closed());
    assert_eq!(new.read(1, 0, 9).unwrap(), b"oldbeside");
    other.write(2, 0, b"other").unwrap();
    let late = Client::new(server.tcp()).hello_from(origin(1), true).unwrap_err();
    assert_eq!(late.status(), Status::Delay);
    new.write(1, 0, b"new").unwrap();
}

#[test]
fn a_partly_received_request_of_a_replaced_connection_is_dropped() {
    let server = Server::new();
    let mut old = connected(&server, 1);
    old.write(1, 0, &pattern(1000, 1)).unwrap();
    let data = pattern(500_000, 2);
    let args = old.write_args(1, false, &[(0, &data)]);
    let request = mark(old.message(Procedure::Write as u32, &args)).to_bytes();
    let before = server.counter("requests.write");
    old.stream.write_all(&request[..request.len() - 1]).unwrap();
    wait_until(|| server.counter("requests.write") > before);
    let mut new = connected(&server, 2);
    assert_eq!(new.read(1, 0, 1000).unwrap(), pattern(1000, 1));
    assert_eq!(new.size(1).unwrap().size, 1000);
    assert!(old.is_closed());
}

fn record<R: Xdr>(peer: &mut Peer, client: &mut Client, procedure: Procedure, args: &impl Xdr) -> Result<R, Fault> {
    let mut request = mark(client.message(procedure as u32, args)).to_bytes();
    request.advance(4);
    decoded(peer.record(request).map_err(|_| Fault::Closed)?, client.xid())
}

fn exchange(
    peer: &mut Peer,
    client: &mut Client,
    procedure: Procedure,
    args: &impl Xdr,
) -> Result<(Bytes, u32), Fault> {
    let mut request = mark(client.message(procedure as u32, args)).to_bytes();
    request.advance(4);
    Ok((peer.record(request).map_err(|_| Fault::Closed)?, client.xid()))
}

fn hello(peer: &mut Peer, client: &mut Client, incarnation: u64) {
    let ticket = key().ticket(FSID, SESSION, now() + 1000);
    greet(&ticket, origin(incarnation), false, peer, |peer, procedure, args| exchange(peer, client, procedure, args))
        .unwrap();
}

#[test]
fn hello_waits_for_running_writes_and_stops_new_ones_of_old_connections() {
    let disk = Memory::new("disk of a test", 1 << 20);
    format_store(&disk, iod::Features::default());
    let daemon = daemon(&disk);
    let mut client = Client::new(Nowhere);
    let mut peers = [Peer::new(daemon.clone()), Peer::new(daemon.clone()), Peer::new(daemon.clone())];
    let [slow, waiting, new] = &mut peers;
    for peer in [&mut *slow, &mut *waiting] {
        hello(peer, &mut client, 1);
    }
    let args = client.write_args(1, false, &[(0, b"first")]);
    record::<WriteReply>(slow, &mut client, Procedure::Write, &args).unwrap();
    // From now on, each write to the disk waits until the test releases the write.
    let (go_on, hold) = mpsc::channel::<()>();
    let (began, begin) = mpsc::channel();
    disk.inject(move |operation, _| {
        if operation == Operation::Write {
            let _ = began.send(());
            let _ = hold.recv();
        }
        None
    });
    let args = client.write_args(1, false, &[(0, b"slow!")]);
    let mut request: Bytes = mark(client.message(Procedure::Write as u32, &args)).to_bytes();
    request.advance(4);
    let (told, news) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| slow.record(request));
        begin.recv().unwrap();
        scope.spawn(|| {
            hello(new, &mut Client::new(Nowhere), 2);
            told.send(()).unwrap();
        });
        // After the new connection has sent PROVE, the iod begins no change on the old connections.
        wait_until(|| {
            let mut client = Client::new(Nowhere);
            // The iod refuses this write to object 0 without access to the disk, whose writes are blocked. Once a new
            // connection has replaced this connection, the iod closes this connection instead of replying.
            let args = client.write_args(0, false, &[]);
            matches!(record::<WriteReply>(waiting, &mut client, Procedure::Write, &args), Err(Fault::Closed))
        });
        news.try_recv().unwrap_err();
        drop(go_on);
        news.recv().unwrap();
    });
    disk.heal();
    let args = client.write_args(1, false, &[(0, b"newer")]);
    record::<WriteReply>(new, &mut client, Procedure::Write, &args).unwrap();
    for peer in [slow, waiting] {
        let args = client.write_args(1, false, &[(0, b"older")]);
        assert!(matches!(record::<WriteReply>(peer, &mut client, Procedure::Write, &args), Err(Fault::Closed)));
    }
    let cap = crate::cluster::object_args(1).cap;
    let args = ReadArgs { cap, extents: vec![Extent { offset: 0, len: 5 }] };
    assert_eq!(record::<ReadReply>(new, &mut client, Procedure::Read, &args).unwrap().data, b"newer"[..]);
}
