//! Tests of LEND (short-circuit reads): which clients receive the file of an object, and how a client notices that a
//! loan is invalid.

use std::fs::{File, Permissions};
use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;

use iod::{Features, Local, Memory, Peer};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use types::Status;
use wire::native::*;
use wire::rpc::record::Mark;

use crate::cluster::{Client, FSID, Fault, Nowhere, Server, cap, cap_of, decoded, key, pattern};

/// A client that can receive file descriptors over a Unix socket.
struct Borrower {
    client: Client,
    stream: UnixStream,
}

/// An object file that the iod has lent, and the data with which the client validates the loan.
struct Borrowed {
    file: File,
    loan: Loan,
}

impl Borrower {
    fn new(server: &Server) -> Self {
        let stream = UnixStream::connect(server.running().unix_path().unwrap()).unwrap();
        let mut client = Client::new(stream.try_clone().unwrap());
        client.hello(false).unwrap();
        Borrower { client, stream }
    }

    fn lend(&mut self, cap: Capability) -> Result<Option<Borrowed>, Fault> {
        let xid = self.client.send(Procedure::Lend, &ObjectArgs { cap });
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut lent = RecvAncillaryBuffer::new(&mut room);
        let mut mark = [0; 4];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        let got = rustix::net::recvmsg(&self.stream, &mut [IoSliceMut::new(&mut mark)], &mut lent, flags).unwrap();
        assert_eq!(got.bytes, 4);
        let files = lent.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => files.map(File::from).collect::<Vec<_>>(),
            _ => panic!("another kind of message"),
        });
        let mut files: Vec<File> = files.collect();
        let mut body = vec![0; Mark::from_bytes(mark).len];
        self.stream.read_exact(&mut body).unwrap();
        let reply = decoded::<LendReply>(body.into(), xid);
        assert_eq!(files.len(), usize::from(matches!(&reply, Ok(LendReply { loan: Some(_) }))), "{reply:?}");
        Ok(reply?.loan.map(|loan| Borrowed { file: files.remove(0), loan }))
    }

    fn borrow(&mut self, object: u64) -> Borrowed {
        self.lend(cap(object, Rights::READ)).unwrap().expect("the object is there")
    }
}

impl Borrowed {
    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let n = self.file.read_at(&mut bytes, self.loan.begin + offset).unwrap();
        bytes.truncate(n);
        bytes
    }

    /// Returns whether the loan is valid: the file begins with the same bytes as when the iod lent it, and the file has
    /// a name.
    fn is_good(&self) -> bool {
        let mut mark = vec![0; self.loan.mark.len()];
        self.file.read_exact_at(&mut mark, 0).unwrap();
        mark == self.loan.mark && self.file.metadata().unwrap().nlink() > 0
    }
}

#[test]
fn a_lent_file_shows_current_bytes_and_cannot_be_written() {
    let server = Server::new();
    let mut borrower = Borrower::new(&server);
    let (mut writer, bytes) = (server.client(), pattern(100_000, 1));
    assert!(borrower.lend(cap(1, Rights::READ)).unwrap().is_none(), "the object does not exist");
    writer.write(1, 0, &bytes).unwrap();
    let lent = borrower.borrow(1);
    assert_eq!(lent.read(0, 200_000), bytes);
    assert_eq!(lent.file.metadata().unwrap().len(), lent.loan.begin + 100_000);
    // Through the descriptor of the lent file, the client sees writes and truncations that the iod executes after the
    // loan.
    writer.write(1, 99_999, b"xyz").unwrap();
    assert_eq!(lent.read(99_998, 9), [bytes[99_998], b'x', b'y', b'z']);
    writer.punch(1, 0, 5).unwrap();
    writer.truncate(1, 7).unwrap();
    assert_eq!(lent.read(0, 100), [&[0; 5], &bytes[5..7]].concat());
    assert!(lent.is_good());
    lent.file.write_at(b"no", 0).unwrap_err();
    lent.file.set_len(0).unwrap_err();
    // After a loan, the connection still serves requests, and the iod lends the file a second time.
    assert_eq!(borrower.client.read(1, 5, 100).unwrap(), bytes[5..7]);
    assert!(borrower.borrow(1).is_good());
    assert_eq!(server.counter("objects.short_circuit"), 2);
}

#[test]
fn a_fence_ends_the_loans_of_the_object() {
    let mut server = Server::new();
    let (mut borrower, mut mgr) = (Borrower::new(&server), server.client());
    mgr.write(1, 0, b"old").unwrap();
    let lent = borrower.borrow(1);
    mgr.fence(1, 1).unwrap();
    assert!(lent.is_good(), "a fence that ends no capability");
    mgr.fence(1, 5).unwrap();
    assert!(!lent.is_good());
    assert_eq!(borrower.lend(cap(1, Rights::READ)).map(drop).unwrap_err().status(), Status::Fenced);
    let newer = borrower.lend(cap_of(1, 5, Rights::READ)).unwrap().unwrap();
    assert!(newer.is_good());
    let ahead = borrower.lend(cap_of(1, 9, Rights::READ)).unwrap().unwrap();
    assert!(ahead.is_good(), "a capability of a generation that no fence has reached yet");
    server.restart();
    assert!(newer.is_good(), "the head is unchanged");
    server.client().fence(1, 6).unwrap();
    assert!(!newer.is_good() && !ahead.is_good(), "a fence must end loans of every generation");
}

#[test]
fn removal_ends_a_loan_even_if_the_object_is_created_again() {
    let server = Server::new();
    let (mut borrower, mut mgr) = (Borrower::new(&server), server.client());
    mgr.write(1, 0, b"first").unwrap();
    let first = borrower.borrow(1);
    mgr.remove(1).unwrap();
    assert!(!first.is_good());
    assert!(borrower.lend(cap(1, Rights::READ)).unwrap().is_none());
    mgr.write(1, 0, b"second").unwrap();
    let second = borrower.borrow(1);
    assert!(second.is_good() && !first.is_good());
    assert_eq!((first.read(0, 9), second.read(0, 9)), (b"first".to_vec(), b"second".to_vec()));
}

#[test]
fn lend_is_refused_over_tcp_or_if_disabled_or_without_a_valid_capability() {
    let refused =
        |client: &mut Client, cap| client.call::<LendReply>(Procedure::Lend, &ObjectArgs { cap }).unwrap_err().status();
    let server = Server::new();
    server.client().write(1, 0, b"bytes").unwrap();
    assert_eq!(refused(&mut server.client(), cap(1, Rights::READ)), Status::NotSupp);
    let mut local = server.local_client(false);
    assert_eq!(refused(&mut local, cap(1, Rights::WRITE)), Status::CapRefused);
    let mut forged = cap(1, Rights::READ);
    forged.mac[31] ^= 1;
    assert_eq!(refused(&mut local, forged), Status::CapRefused);
    let (generation, other) = (types::Generation(1), crate::cluster::SESSION + 1);
    let now = crate::cluster::now();
    let sign = |expires, session| {
        key().sign_capability(
            FSID,
            types::ObjectId::stream_0(types::FileId(1)),
            generation,
            Rights::READ,
            expires,
            session,
        )
    };
    assert_eq!(refused(&mut local, sign(now + 1000, other)), Status::CapRefused);
    assert_eq!(refused(&mut local, sign(now, crate::cluster::SESSION)), Status::CapExpired);
    assert_eq!(server.counter("objects.short_circuit"), 0);

    let off = Server::with(|config| config.short_circuit = false);
    off.client().write(1, 0, b"bytes").unwrap();
    assert_eq!(refused(&mut off.local_client(false), cap(1, Rights::READ)), Status::NotSupp);
}

#[test]
fn lend_is_not_supported_with_block_checksums_or_disks_in_memory() {
    let mut server = Server::new();
    server.running.take().unwrap().stop();
    let dir = server.dir.path().join("summed");
    crate::cluster::format_store(&Local::new(&dir), Features { block_checksums: true });
    server.running = Some(iod::Iod::start(crate::cluster::config(&dir)).unwrap());
    let mut borrower = Borrower::new(&server);
    borrower.client.write(1, 0, b"bytes").unwrap();
    assert_eq!(borrower.lend(cap(1, Rights::READ)).map(drop).unwrap_err().status(), Status::NotSupp);

    let disk = Memory::new("m", 1 << 20);
    crate::cluster::format_store(&disk, Features::default());
    let mut peer = Peer::new(crate::cluster::daemon(&disk));
    let mut client = Client::new(Nowhere);
    let ticket = key().ticket(FSID, crate::cluster::SESSION, crate::cluster::now() + 9);
    let origin = Origin { owner: [1; 16], incarnation: 0 };
    crate::cluster::greet(&ticket, origin, false, &mut client, |client, procedure, args| {
        let message = client.message(procedure as u32, args).to_bytes();
        Ok((peer.record(message).unwrap(), client.xid()))
    })
    .unwrap();
    let write = client.write_args(1, false, &[(0, b"bytes")]);
    let message = client.message(Procedure::Write as u32, &write).to_bytes();
    decoded::<WriteReply>(peer.record(message).unwrap(), client.xid()).unwrap();
    let message = client.message(Procedure::Lend as u32, &ObjectArgs { cap: cap(1, Rights::READ) }).to_bytes();
    let reply = decoded::<LendReply>(peer.record(message).unwrap(), client.xid());
    assert_eq!(reply.unwrap_err().status(), Status::NotSupp);
}

#[test]
fn lend_is_refused_to_users_who_cannot_open_the_files_themselves() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root can be somebody else: nothing is tested");
        return;
    }
    let server = Server::new();
    server.client().write(1, 0, b"bytes").unwrap();
    for dir in [server.dir.path(), &server.store_dir()] {
        std::fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    }
    let outcome = std::thread::scope(|scope| {
        let somebody = scope.spawn(|| {
            let nobody = rustix::process::Uid::from_raw(65534);
            // Calls the `setresuid` system call directly, which changes the user of this thread only.
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            let mut borrower = Borrower::new(&server);
            let lent = borrower.lend(cap(1, Rights::READ)).map(|lent| lent.is_some());
            (lent, borrower.client.read(1, 0, 9).unwrap())
        });
        somebody.join().unwrap()
    });
    assert_eq!(outcome.0.unwrap_err().status(), Status::NotSupp);
    assert_eq!(outcome.1, b"bytes", "the same bytes as by READ");
    assert!(Borrower::new(&server).borrow(1).is_good());
}
