//! Client of the native protocol of iods, with blocking calls, one request in flight and minimal CPU time.

use crate::Outcome;
use crate::parts::small::Reads;
use crate::socket::{Stream, connect};
use bytes::Bytes;
use std::io::Read;
use std::time::{SystemTime, UNIX_EPOCH};
use types::limits::PAYLOAD_MAX;
use types::{FileId, Fsid, Generation, IodId, ObjectId};
use wire::native::{
    Capability, CommitReply, Extent, HelloArgs, HelloReply, Key, Nothing, ObjectArgs, Origin, PROGRAM, PieceKind,
    Procedure, ReadArgs, ReadReply, Rights, VERSION, WriteArgs, WriteExtent, WriteHead, WriteReply, crc32c,
    decode_reply,
};
use wire::rpc::record::mark;
use wire::rpc::{AcceptStat, Auth, CallHeader, Message, ReplyHeader, ReplyStat, decode_message};
use xdr::{Reader as Input, Segments, Writer, Xdr};

/// The file system id of the store.
pub const FSID: Fsid = Fsid(*b"bench of stripes");
/// The only object of the store.
pub const OBJECT: ObjectId = ObjectId::stream_0(FileId(7));
const SESSION: u64 = 1;
/// The owner and the incarnation that the connections use in PROVE.
const ORIGIN: Origin = Origin { owner: [1; 16], incarnation: 0 };
const MARK: usize = 4;
/// Lifetime of tickets and capabilities in seconds.
const VALID: u64 = 86_400;

/// Length in bytes of the encoded extent at the end of a READ record with one extent.
const EXTENT: usize = 12;

/// The id of the iod.
pub const IOD: IodId = IodId(*b"iod of the bench");

/// Returns the secret of the cluster, which has one iod.
pub fn key() -> Key {
    Key::new([0x5a; 32])
}

fn expires() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()) + VALID
}

/// A connection to an iod, with a session.
pub struct Client {
    stream: Box<dyn Stream>,
    checksums: bool,
    cap: Capability,
    /// The encoded record of a READ with one extent. Each read replaces only the transaction id and the extent.
    request: Vec<u8>,
    reply: Vec<u8>,
    xid: u32,
}

impl Client {
    /// Connects to the iod and creates a session (HELLO and PROVE).
    pub fn new(address: &str, checksums: bool) -> Outcome<Client> {
        let expires = expires();
        let rights = Rights::READ | Rights::WRITE;
        let key = key().of_iod(IOD);
        let cap = key.sign_capability(FSID, OBJECT, Generation(1), rights, expires, SESSION);
        let args = ReadArgs { cap: cap.clone(), extents: vec![Extent { offset: 0, len: 0 }] };
        let request = record(0, Procedure::Read, &args);
        let (stream, reply) = (connect(address)?, vec![0; 2 * PAYLOAD_MAX]);
        let mut client = Client { stream, checksums, cap, request, reply, xid: 0 };
        let ticket = key.ticket(FSID, SESSION, expires);
        let hello = HelloArgs::new(&ticket, [8; 32], checksums);
        let agreed: HelloReply = client.call(Procedure::Hello, &hello)?;
        let proof = ticket.check(&hello, &agreed, ORIGIN).map_err(|_| "the iod does not prove itself")?;
        client.call::<Nothing>(Procedure::Prove, &proof)?;
        if agreed.checksums != checksums {
            return Err("the iod does not do as asked with checksums".into());
        }
        Ok(client)
    }

    /// Writes `data` at `offset` of the object (WRITE).
    pub fn write(&mut self, offset: u64, data: Bytes) -> Outcome<()> {
        let crc32c = if self.checksums { crc32c(&data) } else { 0 };
        let extents = vec![WriteExtent { offset, len: data.len() as u32, crc32c }];
        let head = WriteHead { cap: self.cap.clone(), stable: false, least: 0, extents };
        self.call::<WriteReply>(Procedure::Write, &WriteArgs { head, data: Segments::from(data) })?;
        Ok(())
    }

    /// Makes earlier writes of the object durable (COMMIT).
    pub fn commit(&mut self) -> Outcome<()> {
        let args = ObjectArgs { cap: self.cap.clone() };
        self.call::<CommitReply>(Procedure::Commit, &args).map(drop)
    }

    fn call<R: Xdr>(&mut self, procedure: Procedure, args: &impl Xdr) -> Outcome<R> {
        self.xid += 1;
        self.stream.write_all(&record(self.xid, procedure, args))?;
        let len = self.receive()?;
        self.decode(len)
    }

    /// Receives a whole RPC record; returns the length of the record without the record mark.
    fn receive(&mut self) -> Outcome<usize> {
        let (mut have, mut need) = (0, MARK);
        while have < need {
            match self.stream.read(&mut self.reply[have..])? {
                0 => return Err("the iod hung up".into()),
                n => have += n,
            }
            if have >= MARK {
                need = MARK + (u32::from_be_bytes(self.reply[..MARK].try_into()?) & !(1 << 31)) as usize;
            }
        }
        Ok(need - MARK)
    }

    fn decode<R: Xdr>(&self, len: usize) -> Outcome<R> {
        let mut input = Input::new(Bytes::copy_from_slice(&self.reply[MARK..MARK + len]));
        match decode_message(&mut input)? {
            Message::Reply(ReplyHeader { stat: ReplyStat::Accepted { stat: AcceptStat::Success, .. }, .. }) => {
                Ok(decode_reply(&mut input)??)
            }
            other => Err(format!("{other:?} instead of a result").into()),
        }
    }

    /// Returns the position of the data in the reply to a READ; `None` unless the reply is valid and its
    /// only piece ([`wire::native::Piece`]) is data.
    fn simple(&self, len: usize) -> Option<usize> {
        // Before the data, the reply has the RPC header, status, size, number of pieces, the piece and the length of
        // the data: 24 + 4 + 8 + 4 + 12 + 4 bytes.
        const HEAD: usize = 56;
        let body = self.reply.get(MARK..MARK + len)?;
        let word = |at: usize| Some(u32::from_be_bytes(body.get(at..at + 4)?.try_into().ok()?));
        let ok = word(0)? == self.xid && word(4)? == 1 && [8, 12, 16, 20, 24].iter().all(|at| word(*at) == Some(0));
        let one = word(36)? == 1 && word(40)? == PieceKind::Data as u32 && word(44)? == word(52)?;
        let data = body.get(HEAD..HEAD + word(52)? as usize)?;
        let sound = !self.checksums || word(48)? == crc32c(data);
        (ok && one && sound).then_some(MARK + HEAD)
    }
}

impl Reads for Client {
    fn read(&mut self, offset: u64, len: u32) -> Outcome<&[u8]> {
        self.xid += 1;
        let at = self.request.len() - EXTENT;
        self.request[MARK..MARK + 4].copy_from_slice(&self.xid.to_be_bytes());
        self.request[at..at + 8].copy_from_slice(&offset.to_be_bytes());
        self.request[at + 8..].copy_from_slice(&len.to_be_bytes());
        self.stream.write_all(&self.request)?;
        let got = self.receive()?;
        match self.simple(got) {
            Some(start) => Ok(&self.reply[start..start + len as usize]),
            None => Err(format!("not the data asked for: {:?}", self.decode::<ReadReply>(got)?.head).into()),
        }
    }
}

fn record(xid: u32, procedure: Procedure, args: &impl Xdr) -> Vec<u8> {
    let procedure = procedure as u32;
    let header = CallHeader { xid, program: PROGRAM, version: VERSION, procedure, cred: Auth::None, verf: Auth::None };
    let mut out = Writer::new();
    header.encode(&mut out);
    args.encode(&mut out);
    mark(out.finish()).to_bytes().to_vec()
}
