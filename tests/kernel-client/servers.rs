//! A file system whose servers guests can reach.

use crate::guest::HOST;
use crate::lab::Lab;
use std::net::TcpListener;
use std::path::Path;

/// A new file system in `home` with so many iods, and further options for the mgr. Guests reach the mgr at the port of its
/// proxy, and the iods where they really are.
pub fn start(home: &Path, iods: usize, options: &[&str]) -> Lab {
    let ports: Vec<u16> = (0..iods).map(|_| free_port()).collect();
    let options = [&["--lease-secs", "20"], options].concat();
    Lab::start_each_with(home, iods, &options, |i| {
        let (listen, told) = (format!("127.0.0.1:{}", ports[i]), format!("{HOST}:{}", ports[i]));
        vec!["--nfs-listen".into(), listen, "--nfs-advertise".into(), told]
    })
}

/// A port that nobody has at the moment.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}
