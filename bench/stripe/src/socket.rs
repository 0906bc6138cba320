//! TCP and Unix sockets with the same options as Weir's sockets.

use crate::Outcome;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;

/// A connection over a TCP or Unix socket.
pub trait Stream: Read + Write + Send {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

fn tcp(stream: TcpStream) -> Outcome<Box<dyn Stream>> {
    stream.set_nodelay(true)?;
    // Ignore an error: not every kernel has this congestion control algorithm, and an iod also continues without it.
    let _ = rustix::net::sockopt::set_tcp_congestion(&stream, "cubic");
    Ok(Box::new(stream))
}

/// Connects to `host:port`, or to a Unix socket if `address` begins with a slash.
pub fn connect(address: &str) -> Outcome<Box<dyn Stream>> {
    match address.starts_with('/') {
        true => Ok(Box::new(UnixStream::connect(PathBuf::from(address))?)),
        false => tcp(TcpStream::connect(address)?),
    }
}

/// Listens at `address`, prints the bound address, and runs `answer` in a thread for each connection. Returns only with
/// an error.
pub fn serve(address: &str, answer: impl Fn(Box<dyn Stream>) -> Outcome<()> + Copy + Send + 'static) -> Outcome<()> {
    let spawn = |stream: Box<dyn Stream>| {
        thread::spawn(move || {
            if let Err(error) = answer(stream) {
                eprintln!("bare server: {error}");
            }
        });
    };
    if address.starts_with('/') {
        let listener = UnixListener::bind(address)?;
        println!("{address}");
        loop {
            spawn(Box::new(listener.accept()?.0));
        }
    }
    let listener = TcpListener::bind(address)?;
    println!("{}", listener.local_addr()?);
    loop {
        spawn(tcp(listener.accept()?.0)?);
    }
}
