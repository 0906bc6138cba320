//! Tests of an iod with invalid input: damaged payloads, random bytes, incomplete records, and connections without
//! requests.

use std::io::Write;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use types::Status;
use wire::native::*;
use wire::rpc::record::mark;
use wire::rpc::{AcceptStat, ReplyStat};
use xdr::{Segments, Xdr};

use crate::cluster::{ALL, Client, Fault, Server, cap, pattern, wait_until};

#[test]
fn a_payload_with_a_flipped_bit_is_refused_and_not_written() {
    let server = Server::new();
    let mut client = server.client();
    let (old, new) = (pattern(100_000, 1), pattern(100_000, 2));
    client.write(1, 0, &old).unwrap();
    for at in [0, 1, 12_345, 30_000, 99_999] {
        let mut args = client.write_args(1, true, &[(0, &new[..50_000]), (50_000, &new[50_000..])]);
        let mut damaged = args.data.to_bytes().to_vec();
        damaged[at] ^= 0x10;
        args.data = Segments::from(Bytes::from(damaged));
        let reply = client.call::<WriteReply>(Procedure::Write, &args);
        assert_eq!(reply.unwrap_err().status(), Status::BadChecksum, "byte {at}");
        assert_eq!(client.read(1, 0, 100_000).unwrap(), old);
    }
    assert_eq!(server.counter("checksum_failures"), 5);
    // In a session without checksums, the iod does not verify payloads.
    let mut plain = server.client_with(false);
    plain.write(1, 0, &new).unwrap();
    assert_eq!(plain.read(1, 0, 100_000).unwrap(), new);
}

/// Returns the `accept_stat` of a call that the iod did not execute.
fn not_executed<T: std::fmt::Debug>(result: Result<T, Fault>) -> AcceptStat {
    match result {
        Err(Fault::NotExecuted(ReplyStat::Accepted { stat, .. })) => stat,
        other => panic!("{other:?}"),
    }
}

#[test]
fn calls_of_unknown_programs_and_procedures_are_refused_by_rpc() {
    let server = Server::new();
    let mut client = server.client();
    let header = |program, version, procedure| wire::rpc::CallHeader {
        xid: 1,
        program,
        version,
        procedure,
        cred: wire::rpc::Auth::None,
        verf: wire::rpc::Auth::None,
    };
    for (header, stat) in [
        (header(100_003, 1, 0), AcceptStat::ProgUnavail),
        (header(PROGRAM, 2, 0), AcceptStat::ProgMismatch { low: 1, high: 1 }),
        (header(PROGRAM, VERSION, Procedure::ALL.len() as u32), AcceptStat::ProcUnavail),
        (header(PROGRAM, VERSION, u32::MAX), AcceptStat::ProcUnavail),
    ] {
        let mut out = xdr::Writer::new();
        header.encode(&mut out);
        client.stream.write_all(&mark(out.finish()).to_bytes()).unwrap();
        assert_eq!(not_executed(client.reply::<Nothing>(1)), stat);
    }
    client.write(1, 0, b"still talking").unwrap();
}

#[test]
fn garbage_arguments_are_answered_and_end_the_connection() {
    let server = Server::new();
    for procedure in Procedure::ALL.iter().filter(|p| !matches!(p, Procedure::Null | Procedure::Stats)) {
        let mut client = if *procedure == Procedure::Hello { Client::new(server.tcp()) } else { server.client() };
        let xid = client.send(
            *procedure,
            // No procedure has arguments of this length, so the iod cannot decode the call.
            &wire::native::WriteReply { verifier: types::Verifier([1; 8]), stable: true, size: 3 },
        );
        assert_eq!(not_executed(client.reply::<Nothing>(xid)), AcceptStat::GarbageArgs, "{procedure:?}");
        assert!(client.is_closed(), "{procedure:?}");
    }
    server.client().write(1, 0, b"others go on").unwrap();
}

#[test]
fn malformed_records_end_the_connection() {
    let server = Server::new();
    let mut client = server.client();
    let read = client.message(Procedure::Read as u32, &ReadArgs { cap: cap(1, ALL), extents: vec![] }).to_bytes();
    let long_read = [&mark(Segments::from(read.clone())).to_bytes()[..4], &read[..]].concat();
    let mut reply_instead = mark(Segments::from(read)).to_bytes().to_vec();
    reply_instead[11] = 1;
    let mut oversized_non_write = client.message(Procedure::Size as u32, &Nothing).to_bytes().to_vec();
    oversized_non_write.resize(100_000, 0);
    let oversized_non_write = mark(Segments::from(Bytes::from(oversized_non_write))).to_bytes().to_vec();
    drop(client);
    let cases: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xff; 8],
        vec![0x80, 0, 0, 0],
        vec![0x80, 0x20, 0, 0, 0],
        [0, 0, 0, 0].repeat(100),
        [0, 0, 0, 1, 7].repeat(100),
        reply_instead,
        oversized_non_write,
        long_read[..long_read.len() - 4].to_vec(),
    ];
    for (index, bytes) in cases.iter().enumerate() {
        for known in [false, true] {
            let mut client = if known { server.client() } else { Client::new(server.tcp()) };
            // Ignore send errors: the iod may close the connection while the test sends.
            let _ = client.stream.write_all(bytes);
            if index == cases.len() - 1 {
                continue; // the record is incomplete, and the iod waits for the rest
            }
            assert!(client.is_closed() || client.is_closed(), "case {index}");
        }
    }
    server.client().write(1, 0, b"others go on").unwrap();
    assert!(server.counter("connections.broken") > 0);
}

#[test]
fn requests_in_many_fragments_are_put_together() {
    let server = Server::new();
    let mut client = server.client();
    let data = pattern(3_000, 1);
    let args = client.write_args(1, false, &[(0, &data)]);
    let message = client.message(Procedure::Write as u32, &args).to_bytes();
    let xid = u32::from_be_bytes([message[0], message[1], message[2], message[3]]);
    let pieces: Vec<&[u8]> = message.chunks(100).collect();
    for (index, piece) in pieces.iter().enumerate() {
        let last = u32::from(index + 1 == pieces.len()) << 31;
        client.stream.write_all(&(piece.len() as u32 | last).to_be_bytes()).unwrap();
        client.stream.write_all(piece).unwrap();
    }
    client.reply::<WriteReply>(xid).unwrap();
    assert_eq!(client.read(1, 0, 4_000).unwrap(), data);
}

#[test]
fn requests_that_arrive_in_small_pieces_are_put_together() {
    let server = Server::new();
    let mut client = server.client();
    for len in [10, 40_000] {
        let data = pattern(len, 1);
        let args = client.write_args(1, false, &[(0, &data)]);
        let message = client.message(Procedure::Write as u32, &args).to_bytes();
        let xid = u32::from_be_bytes([message[0], message[1], message[2], message[3]]);
        for chunk in mark(Segments::from(message)).to_bytes().chunks(1 + len / 300) {
            client.stream.write_all(chunk).unwrap();
        }
        client.reply::<WriteReply>(xid).unwrap();
        assert_eq!(client.read(1, 0, len as u32).unwrap(), data);
    }
}

#[test]
fn stalled_connections_are_closed_and_other_clients_continue() {
    let server = Server::with(|config| config.stall = Duration::from_millis(100));
    let mut silent = Client::new(server.tcp());
    let mut half = server.client();
    let args = half.write_args(1, false, &[(0, &pattern(500_000, 1))]);
    let record = mark(half.message(Procedure::Write as u32, &args)).to_bytes();
    half.stream.write_all(&record[..200_000]).unwrap();
    // This client sends READs for more bytes than the socket buffers can hold, and does not receive the replies.
    let mut deaf = server.client_with(false);
    deaf.write(2, 0, &pattern(1 << 20, 2)).unwrap();
    let read = ReadArgs { cap: cap(2, ALL), extents: vec![Extent { offset: 0, len: 1 << 20 }] };
    for _ in 0..100 {
        let record = mark(deaf.message(Procedure::Read as u32, &read)).to_bytes();
        if deaf.stream.write_all(&record).is_err() {
            break;
        }
    }
    let mut good = server.client();
    let mut rounds = 0;
    wait_until(|| {
        good.write(3, 0, b"works").unwrap();
        good.truncate(2, (1 << 20) + rounds % 2).unwrap();
        rounds += 1;
        server.counter("connections.broken") == 3
    });
    assert!(silent.is_closed() && half.is_closed());
    // The iod must continue to serve the well-behaved client, and must not count its connection as broken.
    assert_eq!(good.read(3, 0, 9).unwrap(), b"works");
    assert_eq!(server.counter("connections.broken"), 3);
}

#[test]
fn an_authenticated_connection_may_be_idle() {
    let server = Server::with(|config| config.stall = Duration::from_millis(20));
    let mut quiet = server.client();
    let mut other = Client::new(server.tcp());
    // The iod has closed the idle unauthenticated connection. The authenticated connection has been idle for longer,
    // and must stay open.
    assert!(other.is_closed());
    quiet.write(1, 0, b"here I am").unwrap();
}

#[test]
fn an_iod_refuses_connections_above_the_limit() {
    // A machine may use at most half of the connections, so the limit of 4 allows 2 connections.
    let server = Server::with(|config| config.max_connections = 4);
    let mut first = server.client();
    let _second = server.client();
    assert!(Client::new(server.tcp()).is_closed());
    assert_eq!(server.counter("connections.refused"), 1);
    first.write(1, 0, b"fine").unwrap();
    drop(first);
    wait_until(|| Client::new(server.tcp()).hello(true).is_ok());
}

/// The iod replies to each random record or closes the connection, and continues to serve other clients.
#[test]
fn random_records_do_not_stop_the_iod() {
    let server = Server::new();
    let bytes = prop::collection::vec(any::<u8>(), 0..400);
    let flips = prop::collection::vec(any::<(u16, u8)>(), 0..4);
    let mut runner = TestRunner::new(ProptestConfig { cases: 128, failure_persistence: None, ..Default::default() });
    let outcome = runner.run(&(0..14u32, bytes, flips), |(procedure, body, flips)| {
        let mut client = server.client();
        let mut message = client.message(procedure, &Nothing).to_bytes().to_vec();
        let good = ReadArgs { cap: cap(1, ALL), extents: vec![Extent { offset: 0, len: 10 }] }.to_bytes();
        message.extend_from_slice(if body.len().is_multiple_of(2) { &good } else { &body });
        for (at, value) in flips {
            let at = at as usize % message.len();
            message[at] ^= value;
        }
        client.stream.write_all(&mark(Segments::from(Bytes::from(message))).to_bytes()).unwrap();
        let _ = client.receive();
        prop_assert!(server.client().stats().is_ok());
        Ok(())
    });
    outcome.unwrap();
}
