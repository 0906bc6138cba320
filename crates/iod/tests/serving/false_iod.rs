//! A false iod for tests of clients: a server that replies to every request with success and records the requests.

use bytes::Bytes;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use types::{Fsid, IodId, Verifier};
use wire::native::{HelloReply, Procedure, Proof};
use wire::rpc::record::{Mark, mark};
use wire::rpc::{Message, ReplyHeader, decode_message};
use xdr::{Reader, Writer, Xdr};

/// The procedures that clients have called, with the encoded arguments of each call.
pub type Heard = Arc<Mutex<Vec<(u32, Bytes)>>>;

/// A reply to HELLO with all public data of an iod, but with an invalid proof.
pub fn known_to_all(iod: IodId, fsid: Fsid) -> HelloReply {
    HelloReply {
        iod,
        fsid,
        verifier: Verifier([1; 8]),
        version: 2,
        checksums: true,
        max_payload: 1 << 20,
        max_extents: 1024,
        nonce: [9; 32],
        proof: Proof([7; 32]),
    }
}

/// Serves the connections of a listener in new threads, until the listener is shut down. Replies to HELLO with
/// `answer`.
pub fn listen(listener: TcpListener, answer: HelloReply) -> Heard {
    let heard = Heard::default();
    let told = heard.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (told, answer) = (told.clone(), answer.clone());
            std::thread::spawn(move || serve(stream, &told, &answer));
        }
    });
    heard
}

fn serve(mut stream: TcpStream, heard: &Mutex<Vec<(u32, Bytes)>>, answer: &HelloReply) -> Option<()> {
    loop {
        let mut head = [0; 4];
        stream.read_exact(&mut head).ok()?;
        let mut body = vec![0; Mark::from_bytes(head).len];
        stream.read_exact(&mut body).ok()?;
        let mut input = Reader::new(body.into());
        let Ok(Message::Call(call)) = decode_message(&mut input) else { return None };
        heard.lock().unwrap().push((call.procedure, input.rest()));
        let mut out = Writer::new();
        ReplyHeader::success(call.xid).encode(&mut out);
        out.u32(0);
        if call.procedure == Procedure::Hello as u32 {
            answer.encode(&mut out);
        }
        stream.write_all(&mark(out.finish()).to_bytes()).ok()?;
    }
}
