//! A blocking connection to the source iod of a PULL, with a deadline for each call.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use types::Fsid;
use types::limits::{PAYLOAD_MAX, RECORD_MAX};
use wire::native::{
    Capability, Extent, HelloArgs, HelloReply, Origin, PROGRAM, PieceKind, Procedure, ProveReply, PullSource, ReadArgs,
    ReadReply, VERSION, crc32c, decode_reply,
};
use wire::rpc::record::{Mark, mark};
use wire::rpc::{AcceptStat, Auth, CallHeader, Message, ReplyHeader, ReplyStat, decode_message};
use xdr::{Reader, Writer, Xdr};

/// Time limit for a TCP connect to one address of the source iod, so that enough time remains for its other addresses.
const CONNECT: Duration = Duration::from_millis(1500);

/// A connection from a PULL to the source iod. Errors are texts for people, because the PULL stops at each error.
pub(super) struct Source {
    stream: TcpStream,
    xid: u32,
    checksums: bool,
}

impl Source {
    /// Connects to the source iod and authenticates by HELLO and PROVE, before the deadline `until`.
    pub(super) fn connect(at: &PullSource, fsid: Fsid, until: Instant) -> Result<Self, String> {
        let mut problem = "it has no address to be reached at".to_owned();
        for text in &at.addresses {
            // Skip addresses that are not numeric, because a lookup of a host name has no time limit.
            let Ok(address) = text.parse::<SocketAddr>() else { continue };
            match Self::greet(address, at, fsid, until) {
                Ok(source) => return Ok(source),
                Err(why) => problem = format!("{address}: {why}"),
            }
        }
        Err(problem)
    }

    fn greet(address: SocketAddr, at: &PullSource, fsid: Fsid, until: Instant) -> Result<Self, String> {
        let wait = left(until).map_err(|e| e.to_string())?.min(CONNECT);
        let stream = TcpStream::connect_timeout(&address, wait).map_err(|e| e.to_string())?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        let mut source = Source { stream, xid: 0, checksums: false };
        // Use a new random owner, so that PROVE does not make the source iod close another connection of this iod. This
        // connection sends only READs, so the source iod need not order its requests with requests of other
        // connections.
        let mut owner = [0; 16];
        getrandom::fill(&mut owner).map_err(|e| e.to_string())?;
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(|e| e.to_string())?;
        let hello = HelloArgs::new(&at.ticket, nonce, true);
        let reply: HelloReply = source.call(Procedure::Hello, &hello, until)?;
        let origin = Origin { owner, incarnation: 0 };
        let proof = at.ticket.check(&hello, &reply, origin);
        let proof = proof.map_err(|_| "it cannot prove that it is an iod of this cluster")?;
        if (reply.iod, reply.fsid) != (at.iod, fsid) {
            return Err(format!("it is iod {}, not {}", reply.iod, at.iod));
        }
        if (reply.max_payload as usize) < PAYLOAD_MAX {
            return Err("it supports only smaller payloads".into());
        }
        let _: ProveReply = source.call(Procedure::Prove, &proof, until)?;
        source.checksums = reply.checksums;
        Ok(source)
    }

    /// Reads extents of the source object, which together must fit into one payload. In the reply, the pieces (data,
    /// holes, ranges beyond the end) together are as long as the extents.
    pub(super) fn read(&mut self, cap: Capability, extents: Vec<Extent>, until: Instant) -> Result<ReadReply, String> {
        let asked: u64 = extents.iter().map(|extent| u64::from(extent.len)).sum();
        let reply: ReadReply = self.call(Procedure::Read, &ReadArgs { cap, extents }, until)?;
        let told: u64 = reply.head.pieces.iter().map(|piece| u64::from(piece.len)).sum();
        if told != asked {
            return Err("its reply does not cover the requested range".into());
        }
        let mut rest = &reply.data[..];
        for piece in reply.head.pieces.iter().filter(|piece| piece.kind == PieceKind::Data) {
            // `split_at` cannot panic: the decoder has checked that the number of data bytes in the reply is the sum of
            // the lengths of its data pieces.
            let (data, behind) = rest.split_at(piece.len as usize);
            if self.checksums && crc32c(data) != piece.crc32c {
                return Err("its data do not match their checksum".into());
            }
            rest = behind;
        }
        Ok(reply)
    }

    fn call<R: Xdr>(&mut self, procedure: Procedure, args: &impl Xdr, until: Instant) -> Result<R, String> {
        self.xid += 1;
        let (xid, procedure) = (self.xid, procedure as u32);
        let mut out = Writer::new();
        CallHeader { xid, program: PROGRAM, version: VERSION, procedure, cred: Auth::None, verf: Auth::None }
            .encode(&mut out);
        args.encode(&mut out);
        self.send(&mark(out.finish()).to_bytes(), until).map_err(|e| e.to_string())?;
        let mut input = Reader::new(self.receive(until).map_err(|e| e.to_string())?);
        match decode_message(&mut input).map_err(|e| e.to_string())? {
            Message::Reply(ReplyHeader { xid: found, stat }) if found == xid => match stat {
                ReplyStat::Accepted { stat: AcceptStat::Success, .. } => {}
                stat => return Err(format!("it did not execute the call: {stat:?}")),
            },
            _ => return Err("it sent a message that is not the reply".into()),
        }
        let reply = decode_reply(&mut input).map_err(|e| e.to_string())?.map_err(|failure| failure.to_string())?;
        input.finish().map_err(|e| e.to_string())?;
        Ok(reply)
    }

    fn send(&mut self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(Some(left(until)?))?;
            match self.stream.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Receives the next record, which must be a single fragment, because an iod sends each record as one fragment.
    fn receive(&mut self, until: Instant) -> io::Result<Bytes> {
        let mut head = [0; 4];
        self.fill(&mut head, until)?;
        let mark = Mark::from_bytes(head);
        if !mark.last || mark.len > RECORD_MAX {
            return Err(io::Error::other("no record that an iod sends"));
        }
        let mut body = vec![0; mark.len];
        self.fill(&mut body, until)?;
        Ok(body.into())
    }

    fn fill(&mut self, mut buffer: &mut [u8], until: Instant) -> io::Result<()> {
        while !buffer.is_empty() {
            self.stream.set_read_timeout(Some(left(until)?))?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => buffer = &mut buffer[n..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Returns the time until the deadline, or the error `TimedOut` if the deadline has passed.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}
