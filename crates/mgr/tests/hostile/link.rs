//! A blocking connection to a daemon. Attackers send arbitrary bytes over it.

use bytes::Bytes;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use wire::rpc::record::{Mark, mark};
use wire::rpc::{Auth, AuthSys, CallHeader};
use xdr::{Segments, Writer};

/// Address of a daemon: TCP, or the path of a Unix socket.
#[derive(Clone, Debug)]
pub enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Time within which a daemon must reply to a request or close the connection.
pub const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// Number of requests to which a daemon neither replied nor closed the connection within [`ANSWERED_WITHIN`].
pub static STUCK: AtomicU64 = AtomicU64::new(0);

/// Returns whether an error is the timeout of a read or write in this process, and not an error from the daemon.
pub fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

trait Stream: Read + Write + Send {
    fn wait_for(&self, time: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn wait_for(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))
    }
}

impl Stream for UnixStream {
    fn wait_for(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))
    }
}

pub struct Link(Box<dyn Stream>);

impl Link {
    /// Connects to a daemon. Reads and writes on the connection time out after `patience`.
    pub fn connect(place: &Place, patience: Duration) -> io::Result<Self> {
        Ok(Link(match place {
            Place::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))?;
                Box::new(stream)
            }
            Place::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))?;
                Box::new(stream)
            }
        }))
    }

    /// Makes a [`Link`] from an existing connection.
    #[allow(dead_code)]
    pub fn over(stream: TcpStream) -> Self {
        Link(Box::new(stream))
    }

    /// Sets the timeout of later reads on the connection.
    pub fn wait_for(&self, time: Duration) -> io::Result<()> {
        self.0.wait_for(time)
    }

    /// Sends bytes as they are, without an RPC record mark.
    pub fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    /// Sends a message as one RPC record.
    pub fn send(&mut self, message: impl Into<Bytes>) -> io::Result<()> {
        self.raw(&mark(Segments::from(message.into())).to_bytes())
    }

    /// Receives the next RPC record.
    pub fn receive(&mut self) -> io::Result<Bytes> {
        let mut head = [0; 4];
        self.0.read_exact(&mut head)?;
        let mark = Mark::from_bytes(head);
        assert!(mark.last && mark.len <= types::limits::RECORD_MAX, "daemons send records of one fragment: {mark:?}");
        let mut body = vec![0; mark.len];
        self.0.read_exact(&mut body)?;
        Ok(body.into())
    }
}

/// Returns the message of an RPC call by the user `uid`, or with AUTH_NONE.
pub fn call(xid: u32, (program, version): (u32, u32), procedure: u32, uid: Option<u32>, body: Segments) -> Bytes {
    let cred = uid.map_or(Auth::None, |uid| Auth::Sys(AuthSys { uid, gid: uid, ..AuthSys::default() }));
    let mut out = Writer::new();
    CallHeader { xid, program, version, procedure, cred, verf: Auth::None }.encode(&mut out);
    let mut message = out.finish();
    message.extend(body);
    message.to_bytes()
}
