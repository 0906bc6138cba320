//! Tests of [`Peer`], with which a caller passes RPC records to an iod without a socket, on a simulated disk.

use bytes::{Buf, Bytes};
use iod::{Memory, Peer};
use types::Status;
use wire::native::*;
use wire::rpc::record::mark;
use xdr::Xdr;

use crate::cluster::{
    Client, FSID, Fault, Nowhere, daemon, decoded, format_store, greet, key, now, object_args, pattern,
};

pub fn record<R: Xdr>(peer: &mut Peer, client: &mut Client, procedure: Procedure, args: &impl Xdr) -> Result<R, Fault> {
    let mut request = mark(client.message(procedure as u32, args)).to_bytes();
    request.advance(4);
    decoded(peer.record(request).map_err(|_| Fault::Closed)?, client.xid())
}

pub fn hello(peer: &mut Peer, client: &mut Client) -> HelloReply {
    let ticket = key().ticket(FSID, crate::cluster::SESSION, now() + 1000);
    let origin = Origin { owner: [7; 16], incarnation: 0 };
    let exchange = |peer: &mut Peer, procedure, args: &crate::cluster::Greeting| {
        let mut request = mark(client.message(procedure as u32, args)).to_bytes();
        request.advance(4);
        Ok((peer.record(request).map_err(|_| Fault::Closed)?, client.xid()))
    };
    greet(&ticket, origin, true, peer, exchange).unwrap().0
}

#[test]
fn committed_objects_survive_power_cuts_of_a_disk_in_memory() {
    let disk = Memory::new("disk of a test", 1 << 30);
    format_store(&disk, iod::Features::default());
    let mut client = Client::new(Nowhere);
    client.checksums = true;
    let data = pattern(1 << 20, 1);
    let mut verifiers = Vec::new();
    for life in 0..3u64 {
        let daemon = daemon(&disk);
        let mut peer = Peer::new(daemon.clone());
        let early = record::<Nothing>(&mut peer, &mut client, Procedure::Commit, &object_args(1));
        assert_eq!(early.unwrap_err().status(), Status::NoSession);
        let reply = hello(&mut peer, &mut client);
        verifiers.push(reply.verifier);
        if life > 0 {
            let args = ReadArgs { cap: object_args(1).cap, extents: vec![Extent { offset: 0, len: 1 << 20 }] };
            let reply: ReadReply = record(&mut peer, &mut client, Procedure::Read, &args).unwrap();
            assert!(reply.data == data && reply.head.size == 1 << 20);
        }
        let args = client.write_args(1, true, &[(0, &data)]);
        record::<WriteReply>(&mut peer, &mut client, Procedure::Write, &args).unwrap();
        let args = client.write_args(2, false, &[(0, b"not committed")]);
        record::<WriteReply>(&mut peer, &mut client, Procedure::Write, &args).unwrap();
        peer.record(Bytes::from_static(b"this is no request")).unwrap_err();
        peer.record(Bytes::new()).unwrap_err();
        drop((peer, daemon));
        disk.power_cut(&mut |_| 0);
        assert_eq!(disk.files(), ["FORMAT", "objects/00/00/0000000000000001"]);
    }
    verifiers.dedup();
    assert_eq!(verifiers.len(), 3);
}
