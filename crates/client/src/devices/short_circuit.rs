//! The connection on which a local iod lends files for short-circuit reads. It is separate from the connection for
//! other requests because the iod passes file descriptors along with its replies.

use super::{Iod, IodConnection};
use crate::short_circuit::{Loan, LoanReply};
use bytes::Bytes;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::Mutex;
use types::{IodId, Status};
use wire::native::{
    Capability, Failure, HelloArgs, HelloReply, LendReply, ObjectArgs, Origin, PROGRAM, Procedure, ProveReply, Ticket,
    VERSION, decode_reply,
};
use wire::rpc::record::{Mark, mark};
use wire::rpc::{AcceptStat, Auth, CallHeader, Message, ReplyHeader, ReplyStat, decode_message};
use xdr::{Reader, Writer, Xdr};

/// The longest reply that the client accepts, in bytes. The reply to HELLO is the longest: it contains all addresses of
/// the iod.
const REPLY_MAX: usize = 8 << 10;
/// The client does not use a ticket that expires within this many seconds.
const TICKET_SPARE: u64 = 10;

/// The companion connection to one iod, on which the client requests loans. All other requests to the iod use the main
/// connection.
pub(super) struct Lender {
    iod: IodId,
    path: PathBuf,
    /// The owner and incarnation of the main connection to the iod, which the companion connection shares. When this
    /// mount connects to the iod with a higher incarnation, the iod closes both connections.
    origin: Origin,
    patience: Duration,
    /// The socket, which the client connects when it requests the first loan. The lock allows one request at a time.
    socket: Arc<Mutex<Option<Socket>>>,
}

/// An established connection: HELLO has succeeded.
struct Socket {
    stream: UnixStream,
    xid: u32,
}

/// Why a request for a loan failed.
enum Problem {
    /// The iod answered with a failure; the connection is intact.
    Answer(Failure),
    /// The iod does not implement the procedure LEND.
    NotKnown,
    /// The client cannot use the lent file, for example because the file system supports no non-blocking reads. The
    /// client then requests no more loans from this iod.
    OfNoUse(io::Error),
    /// The connection is broken.
    Broken(io::Error),
}

impl Problem {
    /// Returns whether the failure is permanent: every later request for a loan from this iod would fail too.
    fn stays(&self) -> bool {
        match self {
            Problem::Answer(failure) => failure.status == Status::NotSupp,
            Problem::NotKnown | Problem::OfNoUse(_) => true,
            Problem::Broken(_) => false,
        }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Problem::Answer(failure) => write!(f, "{failure}"),
            Problem::NotKnown => write!(f, "the iod lends nothing"),
            Problem::OfNoUse(error) | Problem::Broken(error) => write!(f, "{error}"),
        }
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Problem::Broken(error)
    }
}

fn nonsense(what: impl std::fmt::Display) -> Problem {
    Problem::Broken(io::Error::other(format!("the iod sent an unexpected answer: {what}")))
}

impl Iod {
    /// Returns whether the iod may lend files; false until the client has connected to it.
    pub(crate) fn may_lend(&self) -> bool {
        self.lends.load(Relaxed)
    }

    /// Requests the loan of the object that a capability names.
    pub(crate) async fn borrow(&self, cap: &Capability) -> LoanReply<Loan> {
        let line = self.link.lock().await.line.clone().filter(|line| !line.connection.is_closed());
        let Some(IodConnection { connection, lender, .. }) = line else { return LoanReply::NotNow };
        let Some(lender) = lender else { return LoanReply::Never };
        let socket = tokio::time::timeout(lender.patience, lender.socket.clone().lock_owned()).await;
        // If the socket stays locked, another task waits for the reply of an iod that may be stopped (SIGSTOP). Then
        // request no loan now.
        let Ok(socket) = socket else { return LoanReply::NotNow };
        let Some(ticket) = self.ticket(socket.is_none()).await else { return LoanReply::NotNow };
        self.shared.tally.native(Procedure::Lend);
        let (wanted, expires) = (cap.clone(), cap.expires);
        let asked = tokio::task::spawn_blocking(move || {
            let mut socket = socket;
            let lent = lender.lend(&mut socket, ticket, wanted)?;
            let Some((file, loan)) = lent else { return Ok(None) };
            let is_there = move || !connection.is_closed();
            Loan::new(file, loan, expires, is_there).map(Some).map_err(Problem::OfNoUse)
        });
        match asked.await {
            Ok(Ok(Some(loan))) => LoanReply::Granted(loan),
            Ok(Ok(None)) => LoanReply::NotNow,
            Ok(Err(problem)) => {
                tracing::debug!(iod = %self.id, "the iod lent no file: {problem}");
                if !problem.stays() {
                    return LoanReply::NotNow;
                }
                self.lends.store(false, Relaxed);
                LoanReply::Never
            }
            // The runtime is shutting down and has cancelled the blocking task, so there is no loan.
            Err(_) => LoanReply::NotNow,
        }
    }

    /// Returns a ticket for opening a session with the iod, or `Some(None)` if `needed` is false. If the cached ticket
    /// expires soon, requests a new ticket from the mgr. Returns `None` if the client cannot get a valid ticket.
    async fn ticket(&self, needed: bool) -> Option<Option<Ticket>> {
        if !needed {
            return Some(None);
        }
        let mut link = self.link.lock().await;
        for fresh in [false, true] {
            let device = self.device(&mut link, fresh).await.ok()?;
            let ticket = Ticket::from_bytes(&device.ticket).ok()?;
            if ticket.expires > net::clock::unix_now() + TICKET_SPARE {
                return Some(Some(ticket));
            }
        }
        None
    }
}

impl Lender {
    /// Creates the companion connection on which an iod lends files, without connecting yet. The Unix socket of the iod
    /// is at `path`; `origin` is the owner and incarnation of the main connection to the iod.
    pub(super) fn new(iod: IodId, path: PathBuf, origin: Origin, patience: Duration) -> Self {
        Lender { iod, path, origin, patience, socket: Arc::default() }
    }

    /// Requests the loan of a file and waits for the reply. If there is no connection, opens one with `ticket`.
    fn lend(
        &self,
        socket: &mut Option<Socket>,
        ticket: Option<Ticket>,
        cap: Capability,
    ) -> Result<Option<(OwnedFd, wire::native::Loan)>, Problem> {
        let mut open = match (socket.take(), ticket) {
            (Some(open), _) => open,
            (None, Some(ticket)) => self.connect(ticket)?,
            (None, None) => return Err(nonsense("no ticket")),
        };
        let answer = open.call::<LendReply>(Procedure::Lend, &ObjectArgs { cap });
        if !matches!(answer, Err(Problem::Broken(_))) {
            *socket = Some(open);
        }
        match answer? {
            (LendReply { loan: Some(loan) }, Some(file)) => Ok(Some((file, loan))),
            (LendReply { loan: None }, None) => Ok(None),
            _ => Err(nonsense("a loan without a descriptor, or the other way round")),
        }
    }

    fn connect(&self, ticket: Ticket) -> Result<Socket, Problem> {
        let stream = reach(&self.path)?;
        stream.set_read_timeout(Some(self.patience))?;
        stream.set_write_timeout(Some(self.patience))?;
        let mut socket = Socket { stream, xid: 0 };
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(io::Error::other)?;
        let hello = HelloArgs::new(&ticket, nonce, false);
        let (reply, _) = socket.call::<HelloReply>(Procedure::Hello, &hello)?;
        if reply.iod != self.iod {
            return Err(nonsense(format!("that of iod {}", reply.iod)));
        }
        let proof = ticket.check(&hello, &reply, self.origin).map_err(|_| nonsense("no proof that it is this iod"))?;
        socket.call::<ProveReply>(Procedure::Prove, &proof)?;
        Ok(socket)
    }
}

/// Connects to the Unix socket at `path`, if [`net::local`] trusts the owner of the socket. Connects without blocking,
/// because an iod may be stopped (SIGSTOP).
fn reach(path: &Path) -> io::Result<UnixStream> {
    net::local::check_path(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    net::local::check_peer(&socket)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

impl Socket {
    /// Sends a call and waits for the reply. Returns the result, and the file descriptor that arrived with it, if any.
    fn call<T: Xdr>(&mut self, procedure: Procedure, args: &impl Xdr) -> Result<(T, Option<OwnedFd>), Problem> {
        self.xid = self.xid.wrapping_add(1);
        let (xid, procedure) = (self.xid, procedure as u32);
        let mut out = Writer::new();
        CallHeader { xid, program: PROGRAM, version: VERSION, procedure, cred: Auth::None, verf: Auth::None }
            .encode(&mut out);
        args.encode(&mut out);
        self.stream.write_all(&mark(out.finish()).to_bytes())?;
        let (record, file) = self.receive()?;
        let mut input = Reader::new(record);
        match decode_message(&mut input).map_err(nonsense)? {
            Message::Reply(ReplyHeader { xid: of, .. }) if of != xid => return Err(nonsense("that of another call")),
            Message::Reply(ReplyHeader { stat: ReplyStat::Accepted { stat, .. }, .. }) => match stat {
                AcceptStat::Success => {}
                AcceptStat::ProcUnavail => return Err(Problem::NotKnown),
                stat => return Err(nonsense(format!("{stat:?}"))),
            },
            _ => return Err(nonsense("no reply")),
        }
        let result = decode_reply(&mut input).map_err(nonsense)?.map_err(Problem::Answer)?;
        input.finish().map_err(nonsense)?;
        Ok((result, file))
    }

    /// Receives one record and the file descriptor that arrived with it, if any. Each record must be a single fragment,
    /// as iods send it.
    fn receive(&self) -> Result<(Bytes, Option<OwnedFd>), Problem> {
        let (mut head, mut file) = ([0; 4], None);
        self.fill(&mut head, &mut file)?;
        let mark = Mark::from_bytes(head);
        if !mark.last || mark.len > REPLY_MAX {
            return Err(nonsense(format!("{mark:?}")));
        }
        let mut body = vec![0; mark.len];
        self.fill(&mut body, &mut file)?;
        Ok((body.into(), file))
    }

    /// Fills a buffer from the socket; stores the last file descriptor that arrives with the bytes in `file`.
    fn fill(&self, mut buffer: &mut [u8], file: &mut Option<OwnedFd>) -> io::Result<()> {
        while !buffer.is_empty() {
            let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut with = RecvAncillaryBuffer::new(&mut room);
            let parts = &mut [IoSliceMut::new(buffer)];
            let got = match rustix::net::recvmsg(&self.stream, parts, &mut with, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => continue,
                got => got?.bytes,
            };
            for message in with.drain() {
                if let RecvAncillaryMessage::ScmRights(files) = message {
                    *file = files.last().or(file.take());
                }
            }
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            buffer = &mut buffer[got..];
        }
        Ok(())
    }
}
