//! A file system whose servers guests can reach.

use crate::guest::HOST;
use crate::lab::Lab;
use serde_json::Value;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

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

/// A number of the mgr's status.
pub fn number(lab: &Lab, group: &str, name: &str) -> u64 {
    let status = status(lab);
    let group = status.iter().find(|g| g["group"] == group).unwrap_or_else(|| panic!("no group {group}: {status:?}"));
    group["values"][name].as_u64().unwrap_or_else(|| panic!("no {name}: {group}"))
}

/// How many iods the mgr reaches.
pub fn iods_up(lab: &Lab) -> usize {
    status(lab).iter().filter(|g| g["group"] == "iod" && g["values"]["state"] == "up").count()
}

fn status(lab: &Lab) -> Vec<Value> {
    lab.json(["status", "--json"]).remove(0).as_array().expect("groups").clone()
}

/// Waits for something that must come to be.
pub fn until(mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < end, "it does not come to be");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A port that nobody has at the moment.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}
