//! An NFS client for attacks that sends arbitrary COMPOUNDs from any address of this machine.

use crate::link::{Link, call};
use bytes::Bytes;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use wire::nfs4::*;
use wire::rpc::{Message, decode_message};
use xdr::{Reader, Xdr};

/// Program number and version of NFS.
const NFS: (u32, u32) = (NFS4_PROGRAM, 4);
/// Time limit for the reply of the mgr to a request.
const PATIENCE: Duration = Duration::from_secs(20);

static OWNERS: AtomicU64 = AtomicU64::new(1);

/// Connects by TCP from the address `from` to the address `to`.
pub fn connect_from(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new(from, 0)).unwrap();
    connect(&socket, &to).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A client with a session on a connection of its own.
pub struct Peer {
    link: Link,
    uid: u32,
    xid: u32,
    pub client: u64,
    session: sessionid4,
    sequence: u32,
}

impl Peer {
    /// Creates a client with a session. The client claims to be the user `uid`.
    pub fn new(from: Ipv4Addr, to: SocketAddr, uid: u32) -> Peer {
        Peer::over(Link::over(connect_from(from, to)), uid)
    }

    /// Creates a client with a session on an existing connection.
    pub fn over(link: Link, uid: u32) -> Peer {
        let (mut peer, sequence) = Peer::met(link, uid);
        let (fore, back) = nfs::testing::bench::linux_channels();
        let args = CREATE_SESSION4args {
            csa_clientid: peer.client,
            csa_sequence: sequence,
            csa_fore_chan_attrs: fore,
            csa_back_chan_attrs: back,
            csa_cb_program: 0x4000_0000,
            csa_sec_parms: vec![callback_sec_parms4::AUTH_NONE],
            csa_flags: 0,
        };
        let made = peer.raw(vec![nfs_argop4::OP_CREATE_SESSION(args)]);
        let [nfs_resop4::OP_CREATE_SESSION(CREATE_SESSION4res::NFS4_OK(made))] = &made.resarray[..] else {
            panic!("{made:?}")
        };
        peer.session = made.csr_sessionid;
        peer.ops(vec![nfs_argop4::OP_RECLAIM_COMPLETE(RECLAIM_COMPLETE4args { rca_one_fs: false })]);
        peer
    }

    /// Creates a client record with EXCHANGE_ID, without a session.
    pub fn introduce(from: Ipv4Addr, to: SocketAddr, uid: u32) -> Peer {
        Peer::met(Link::over(connect_from(from, to)), uid).0
    }

    fn met(link: Link, uid: u32) -> (Peer, u32) {
        let owner = format!("attacker {} {}", std::process::id(), OWNERS.fetch_add(1, Relaxed));
        let mut peer = Peer { link, uid, xid: 0, client: 0, session: [0; 16], sequence: 0 };
        let args = EXCHANGE_ID4args {
            eia_clientowner: client_owner4 { co_verifier: [1; 8], co_ownerid: owner.into() },
            eia_flags: 0,
            eia_state_protect: state_protect4_a::SP4_NONE,
            eia_client_impl_id: vec![],
        };
        let met = peer.raw(vec![nfs_argop4::OP_EXCHANGE_ID(args)]);
        let [nfs_resop4::OP_EXCHANGE_ID(EXCHANGE_ID4res::NFS4_OK(met))] = &met.resarray[..] else { panic!("{met:?}") };
        peer.client = met.eir_clientid;
        (peer, met.eir_sequenceid)
    }

    /// Sends a COMPOUND with these operations, without a SEQUENCE.
    pub fn raw(&mut self, argarray: Vec<nfs_argop4>) -> COMPOUND4res {
        self.xid += 1;
        let body = COMPOUND4args { tag: Bytes::new(), minorversion: 2, argarray }.to_bytes();
        self.link.send(call(self.xid, NFS, 1, Some(self.uid), body.into())).unwrap();
        loop {
            let mut reply = Reader::new(self.link.receive().unwrap());
            match decode_message(&mut reply).unwrap() {
                Message::Reply(header) if header.xid == self.xid => {
                    return COMPOUND4res::from_bytes(&reply.rest()).unwrap();
                }
                _ => {}
            }
        }
    }

    /// Sends a COMPOUND of a SEQUENCE and these operations. Returns the status of the COMPOUND, and the results without
    /// that of SEQUENCE.
    pub fn ops(&mut self, mut ops: Vec<nfs_argop4>) -> (nfsstat4, Vec<nfs_resop4>) {
        self.sequence += 1;
        let sequence = SEQUENCE4args {
            sa_sessionid: self.session,
            sa_sequenceid: self.sequence,
            sa_slotid: 0,
            sa_highest_slotid: 0,
            sa_cachethis: false,
        };
        ops.insert(0, nfs_argop4::OP_SEQUENCE(sequence));
        let reply = self.raw(ops);
        (reply.status, reply.resarray.into_iter().skip(1).collect())
    }

    /// Sends the operations like [`Peer::ops`], and repeats them while the mgr replies with DELAY or GRACE.
    pub fn patiently(&mut self, ops: Vec<nfs_argop4>) -> (nfsstat4, Vec<nfs_resop4>) {
        loop {
            let (status, results) = self.ops(ops.clone());
            if !matches!(status, NFS4ERR_DELAY | NFS4ERR_GRACE) {
                return (status, results);
            }
        }
    }

    /// Looks up an absolute path and returns its filehandle.
    pub fn walk(&mut self, path: &str) -> Result<Bytes, nfsstat4> {
        let mut ops = vec![nfs_argop4::OP_PUTROOTFH];
        ops.extend(path.split('/').filter(|name| !name.is_empty()).map(lookup));
        ops.push(nfs_argop4::OP_GETFH);
        let (status, mut results) = self.patiently(ops);
        match results.pop() {
            Some(nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(got))) => Ok(got.object),
            _ => Err(status),
        }
    }

    /// Creates a directory and returns its filehandle.
    pub fn mkdir(&mut self, dir: &Bytes, name: &str) -> Bytes {
        let create = make_dir(name);
        let ops = vec![putfh(dir), nfs_argop4::OP_CREATE(create)];
        let (status, _) = self.patiently(ops);
        assert_eq!(status, NFS4_OK, "mkdir {name}");
        self.below(dir, name).unwrap()
    }

    /// Looks up a name in a directory and returns its filehandle.
    pub fn below(&mut self, dir: &Bytes, name: &str) -> Result<Bytes, nfsstat4> {
        let (status, mut results) = self.patiently(vec![putfh(dir), lookup(name), nfs_argop4::OP_GETFH]);
        match results.pop() {
            Some(nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(got))) => Ok(got.object),
            _ => Err(status),
        }
    }

    /// Creates a file with this content and returns its filehandle.
    pub fn file(&mut self, dir: &Bytes, name: &str, content: &'static [u8]) -> Bytes {
        let open = nfs_argop4::OP_OPEN(OPEN4args {
            share_access: OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
            owner: state_owner4 { clientid: 0, owner: text(name) },
            openhow: openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(fattr4::default())),
            claim: open_claim4::CLAIM_NULL(text(name)),
            seqid: 0,
            share_deny: 0,
        });
        let stateid = CURRENT;
        let data = Bytes::from_static(content);
        let write = nfs_argop4::OP_WRITE(WRITE4args { stateid, offset: 0, stable: FILE_SYNC4, data });
        let close = nfs_argop4::OP_CLOSE(CLOSE4args { seqid: 0, open_stateid: CURRENT });
        let (status, results) = self.patiently(vec![putfh(dir), open, nfs_argop4::OP_GETFH, write, close]);
        assert_eq!(status, NFS4_OK, "making {name}: {results:?}");
        match &results[2] {
            nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(got)) => got.object.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// Reads at most 99 bytes from the beginning of a file.
    pub fn read(&mut self, file: &Bytes) -> Result<Bytes, nfsstat4> {
        let read = READ4args { stateid: stateid4::default(), offset: 0, count: 99 };
        let (status, mut results) = self.patiently(vec![putfh(file), nfs_argop4::OP_READ(read)]);
        match results.pop() {
            Some(nfs_resop4::OP_READ(READ4res::NFS4_OK(got))) => Ok(got.data),
            _ => Err(status),
        }
    }

    /// Opens a file for reading by its filehandle. Returns the status of the OPEN.
    pub fn open_to_read(&mut self, file: &Bytes) -> nfsstat4 {
        let open = OPEN4args {
            seqid: 0,
            share_access: OPEN4_SHARE_ACCESS_READ,
            share_deny: OPEN4_SHARE_DENY_NONE,
            owner: state_owner4 { clientid: 0, owner: text("reader") },
            openhow: openflag4::Default(OPEN4_NOCREATE),
            claim: open_claim4::CLAIM_FH,
        };
        self.patiently(vec![putfh(file), nfs_argop4::OP_OPEN(open)]).0
    }

    /// Renames a directory entry. Returns the status of the RENAME.
    pub fn rename(&mut self, from: (&Bytes, &str), to: (&Bytes, &str)) -> nfsstat4 {
        let rename = RENAME4args { oldname: text(from.1), newname: text(to.1) };
        let ops = vec![putfh(from.0), nfs_argop4::OP_SAVEFH, putfh(to.0), nfs_argop4::OP_RENAME(rename)];
        self.patiently(ops).0
    }
}

/// The special stateid that stands for the current stateid (RFC 8881 §16.2.3.1.2).
pub const CURRENT: stateid4 = stateid4 { seqid: 1, other: [0; 12] };

pub fn text(name: &str) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

pub fn putfh(handle: &Bytes) -> nfs_argop4 {
    nfs_argop4::OP_PUTFH(PUTFH4args { object: handle.clone() })
}

pub fn lookup(name: &str) -> nfs_argop4 {
    nfs_argop4::OP_LOOKUP(LOOKUP4args { objname: text(name) })
}

pub fn make_dir(name: &str) -> CREATE4args {
    CREATE4args { objtype: createtype4::NF4DIR, objname: text(name), createattrs: fattr4::default() }
}
