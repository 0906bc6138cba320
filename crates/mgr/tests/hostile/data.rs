//! Sessions with an iod over the native data program, for the well-behaved client and for attackers.

use crate::link::{ANSWERED_WITHIN, Link, Place, STUCK, call, is_timeout};
use crate::mutate::mutate;
use crate::seeded_random::SeededRandom;
use bytes::Bytes;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use types::{FileId, Fsid, Generation, ObjectId};
use wire::native::*;
use wire::rpc::{Message, decode_message};
use xdr::{Reader, Segments, Xdr};

const NATIVE: (u32, u32) = (PROGRAM, VERSION);
const SESSION: u64 = 4711;
/// The owner id and the incarnation number that the test's PROVE requests to iods contain.
const ORIGIN: Origin = Origin { owner: [1; 16], incarnation: 0 };
const ALL: Rights = Rights(7);
const PATIENCE: Duration = ANSWERED_WITHIN;
/// Lowest inode number of the attackers' objects. Files of the file system have smaller inode numbers.
const HOSTILE: u64 = 1 << 40;

/// An iod under attack: its address, its file system and its key.
#[derive(Clone)]
pub struct Target {
    pub place: Place,
    pub fsid: Fsid,
    pub key: IodKey,
    /// The key of an iod of another file system. The iod under attack must refuse capabilities with this key.
    pub foreign: IodKey,
}

fn later() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()) + 10_000
}

impl Target {
    fn cap(&self, object: u64) -> Capability {
        self.key.sign_capability(self.fsid, ObjectId::stream_0(FileId(object)), Generation(1), ALL, later(), SESSION)
    }

    /// Opens a connection to the iod, and sends HELLO and PROVE with a valid ticket.
    fn known(&self) -> io::Result<Data> {
        let link = Link::connect(&self.place, PATIENCE)?;
        let mut data = Data { link, target: self.clone(), xid: 0 };
        let ticket = self.key.ticket(self.fsid, SESSION, later());
        let hello = HelloArgs::new(&ticket, [8; 32], false);
        let reply = data.exchange(Procedure::Hello, hello.to_bytes())?.map_err(io::Error::other)?;
        let reply = HelloReply::from_bytes(&reply.slice(4..)).map_err(io::Error::other)?;
        let proof = ticket.check(&hello, &reply, ORIGIN).map_err(|e| io::Error::other(e.to_string()))?;
        data.exchange(Procedure::Prove, proof.to_bytes())?.map_err(io::Error::other)?;
        Ok(data)
    }
}

/// An authenticated connection to an iod.
pub struct Data {
    link: Link,
    target: Target,
    xid: u32,
}

impl Data {
    pub fn good(target: &Target) -> io::Result<Self> {
        target.known()
    }

    /// Calls a procedure. Returns the encoded results, or the status that the iod returned.
    fn exchange(&mut self, procedure: Procedure, args: Bytes) -> io::Result<Result<Bytes, String>> {
        self.xid += 1;
        self.link.send(call(self.xid, NATIVE, procedure as u32, None, args.into()))?;
        let mut reply = Reader::new(self.link.receive()?);
        let Ok(Message::Reply(_)) = decode_message(&mut reply) else { return Err(io::ErrorKind::InvalidData.into()) };
        let body = reply.rest();
        let status = body.get(..4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
        Ok(if status == Some(0) { Ok(body) } else { Err(format!("status {status:?}")) })
    }

    pub fn write(&mut self, object: u64, offset: u64, data: &[u8]) -> io::Result<()> {
        let args = write(self.target.cap(object), offset, data);
        self.exchange(Procedure::Write, args.to_bytes())?.map(drop).map_err(io::Error::other)
    }

    /// Reads a range of an object. Returns whether the reply ends with the bytes `data`.
    pub fn reads(&mut self, object: u64, offset: u64, data: &[u8]) -> io::Result<bool> {
        let extents = vec![Extent { offset, len: data.len() as u32 }];
        let args = ReadArgs { cap: self.target.cap(object), extents };
        let got = self.exchange(Procedure::Read, args.to_bytes())?;
        Ok(got.map_err(io::Error::other)?.ends_with(data))
    }
}

fn write(cap: Capability, offset: u64, data: &[u8]) -> WriteArgs {
    let extents = vec![WriteExtent { offset, len: data.len() as u32, crc32c: 0 }];
    let data = Segments::from(Bytes::copy_from_slice(data));
    WriteArgs { head: WriteHead { cap, stable: false, least: 0, extents }, data }
}

/// An attacker of an iod, which sends damaged, random and unauthorized requests.
pub struct Attacker {
    target: Target,
    random: SeededRandom,
    known: Option<Data>,
    stranger: Option<Link>,
    /// Number of requests with invalid capabilities that the attacker has sent and that the iod has refused.
    pub bad: u64,
}

impl Attacker {
    pub fn new(target: Target, seed: u64) -> Self {
        Attacker { target, random: SeededRandom::new(seed), known: None, stranger: None, bad: 0 }
    }

    /// Sends one random frame to the iod. Returns a name for the kind of the frame.
    pub fn frame(&mut self) -> &'static str {
        match self.random.below(16) {
            0 => {
                let garbage = self.random.bytes(200);
                self.as_stranger(|link| link.send(garbage));
                "garbage to the iod"
            }
            1 | 2 => {
                let ticket = self.target.key.ticket(self.target.fsid, SESSION, later());
                // The attacker sends no PROVE, because a PROVE with a valid ticket may end other connections with the
                // same owner.
                let hello = HelloArgs::new(&ticket, [8; 32], true);
                let message = call(1, NATIVE, Procedure::Hello as u32, None, hello.to_bytes().into());
                let damaged = mutate(&message, self.random.number());
                self.as_stranger(|link| link.send(damaged));
                "damaged hellos to the iod"
            }
            3..7 => {
                let (procedure, body) = self.request(None);
                let message = call(7, NATIVE, procedure as u32, None, body.into());
                let damaged = mutate(&message, self.random.number());
                // The iod must reply or close the connection within the time limit. The attacker then closes the
                // connection.
                if let Some(mut data) = self.take_known() {
                    let _ = data.link.send(damaged);
                    let _ = data.link.send(call(8, NATIVE, 0, None, Segments::default()));
                    Self::count_timeout(data.link.receive());
                }
                "damaged procedures in sessions"
            }
            7..12 => {
                let (procedure, body) = self.request(None);
                self.known_call(procedure, body);
                "random procedures in sessions"
            }
            _ => {
                let cap = self.bad_cap();
                let (procedure, body) = self.request(Some(cap));
                if let Some(answer) = self.known_call(procedure, body) {
                    assert!(answer.is_err(), "{procedure:?} with a bad capability was executed");
                    self.bad += 1;
                }
                "bad capabilities"
            }
        }
    }

    fn as_stranger(&mut self, send: impl FnOnce(&mut Link) -> io::Result<()>) {
        let mut link = match self.stranger.take() {
            Some(link) if !self.random.once_in(4) => link,
            _ => match Link::connect(&self.target.place, PATIENCE) {
                Ok(link) => link,
                Err(_) => return,
            },
        };
        if send(&mut link).is_ok() {
            self.stranger = Some(link);
        }
    }

    /// Returns the reply, or `None` if the request failed. Increments the counter `STUCK` if the iod did not reply in
    /// time.
    fn count_timeout<T>(outcome: io::Result<T>) -> Option<T> {
        if outcome.as_ref().is_err_and(is_timeout) {
            STUCK.fetch_add(1, Relaxed);
        }
        outcome.ok()
    }

    fn take_known(&mut self) -> Option<Data> {
        self.known.take().or_else(|| self.target.known().ok())
    }

    fn known_call(&mut self, procedure: Procedure, body: Bytes) -> Option<Result<Bytes, String>> {
        let mut data = self.take_known()?;
        let answer = Self::count_timeout(data.exchange(procedure, body))?;
        self.known = Some(data);
        Some(answer)
    }

    fn bad_cap(&mut self) -> Capability {
        let Target { fsid, key, foreign, .. } = &self.target;
        let object = ObjectId::stream_0(FileId(self.random.of(&[1, 2, HOSTILE])));
        let sign = |key: &IodKey, fsid, expires, session| {
            key.sign_capability(fsid, object, Generation(1), ALL, expires, session)
        };
        match self.random.below(5) {
            0 => sign(foreign, *fsid, later(), SESSION),
            1 => sign(key, Fsid([7; 16]), later(), SESSION),
            2 => sign(key, *fsid, 1, SESSION),
            3 => sign(key, *fsid, later(), SESSION + 1),
            _ => {
                let mut forged = sign(key, *fsid, later(), SESSION);
                forged.mac[self.random.below(32)] ^= 1 << self.random.below(8);
                forged
            }
        }
    }

    /// Returns a random procedure with valid XDR arguments. Uses a valid capability for an object of the attackers,
    /// unless `cap` is given.
    fn request(&mut self, cap: Option<Capability>) -> (Procedure, Bytes) {
        let cap = cap.unwrap_or_else(|| self.target.cap(HOSTILE + self.random.below(8) as u64));
        let far = types::limits::FILE_SIZE_MAX;
        let offset = self.random.of(&[0, 1, 4096, 1 << 20, 1 << 40, far, u64::MAX]);
        let len = self.random.of(&[0, 1, 100, 4096, 65_536, 1 << 20, u32::MAX]);
        let data = vec![7; self.random.of(&[0, 1, 100, 4096, 65_536])];
        let object = ObjectArgs { cap: cap.clone() };
        match self.random.below(9) {
            0 => {
                let extents = vec![Extent { offset, len }; self.random.of(&[0, 1, 2, 1024])];
                (Procedure::Read, ReadArgs { cap, extents }.to_bytes())
            }
            1 => (Procedure::Write, write(cap, offset, &data).to_bytes()),
            2 => (Procedure::Commit, object.to_bytes()),
            3 => (Procedure::Size, object.to_bytes()),
            4 => (Procedure::Truncate, TruncateArgs { cap, size: offset }.to_bytes()),
            5 => (Procedure::Punch, PunchArgs { cap, offset, len: len.into() }.to_bytes()),
            6 => (Procedure::Reserve, ReserveArgs { cap, offset, len: len.min(65_536).into() }.to_bytes()),
            7 => (Procedure::Seek, SeekArgs { cap, offset, what: SeekWhat::Hole }.to_bytes()),
            _ => (Procedure::Remove, object.to_bytes()),
        }
    }
}
