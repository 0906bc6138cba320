//! Sockets of either kind, set as Weir sets its own.

use crate::Outcome;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;

/// A connection.
pub trait Stream: Read + Write + Send {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

fn tcp(stream: TcpStream) -> Outcome<Box<dyn Stream>> {
    stream.set_nodelay(true)?;
    // Not on every kernel; an iod goes on without it as well.
    let _ = rustix::net::sockopt::set_tcp_congestion(&stream, "cubic");
    Ok(Box::new(stream))
}

/// Connects to `host:port`, or to a Unix socket when `address` begins with a slash.
pub fn connect(address: &str) -> Outcome<Box<dyn Stream>> {
    match address.starts_with('/') {
        true => Ok(Box::new(UnixStream::connect(PathBuf::from(address))?)),
        false => tcp(TcpStream::connect(address)?),
    }
}

/// Listens at `address`, prints where that is, and gives each connection a thread that runs `answer`; never returns.
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
