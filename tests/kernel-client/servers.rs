//! Starts file systems whose servers guests can reach, and reads the status of the servers.

use crate::guest::HOST;
use crate::lab::Lab;
use crate::relay::Relay;
use serde_json::Value;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Starts a new file system in `home` with this number of iods, and further options for the mgr. Guests reach the mgr
/// at the port of its proxy, and the iods at their own ports.
pub fn start(home: &Path, iods: usize, options: &[&str]) -> Lab {
    start_with_lease(home, iods, 20, options)
}

/// As [`start`], with another lease than 20 seconds.
pub fn start_with_lease(home: &Path, iods: usize, lease_secs: u32, options: &[&str]) -> Lab {
    let ways: Vec<_> = (0..iods).map(|_| free_port()).map(|port| (port, port)).collect();
    start_at(home, lease_secs, options, &ways)
}

/// As [`start`], with relays between the guests and all servers. Returns the relay of the mgr, then those of the iods.
pub fn start_behind_relays(home: &Path, iods: usize, options: &[&str], seed: u64) -> (Lab, Vec<Relay>) {
    start_behind_relays_with_lease(home, iods, 20, options, seed)
}

/// As [`start_behind_relays`], with another lease than 20 seconds.
pub fn start_behind_relays_with_lease(
    home: &Path,
    iods: usize,
    lease_secs: u32,
    options: &[&str],
    seed: u64,
) -> (Lab, Vec<Relay>) {
    let ports: Vec<u16> = (0..iods).map(|_| free_port()).collect();
    let mut relays: Vec<Relay> = ports.iter().zip(seed..).map(|(port, seed)| Relay::start(*port, seed)).collect();
    let ways: Vec<_> = ports.into_iter().zip(&relays).map(|(port, relay)| (port, relay.port())).collect();
    let lab = start_at(home, lease_secs, options, &ways);
    relays.insert(0, Relay::start(lab.mgr.proxy.address().port(), !seed));
    (lab, relays)
}

/// Starts an iod for each pair of ports: the port where it serves NFS, and the port that it advertises to guests.
fn start_at(home: &Path, lease_secs: u32, options: &[&str], ways: &[(u16, u16)]) -> Lab {
    let lease = lease_secs.to_string();
    let options = [&["--lease-secs", &lease], options].concat();
    Lab::start_each_with(home, ways.len(), &options, |i| {
        let (listen, told) = (format!("127.0.0.1:{}", ways[i].0), format!("{HOST}:{}", ways[i].1));
        vec!["--nfs-listen".into(), listen, "--nfs-advertise".into(), told]
    })
}

/// Returns a number of the mgr's status.
pub fn number(lab: &Lab, group: &str, name: &str) -> u64 {
    look(lab, group, name).unwrap_or_else(|| panic!("no {name} in {group}"))
}

/// Returns a counter of the mgr's status. The status omits counters of events that never happened; their value is 0.
pub fn counted(lab: &Lab, group: &str, name: &str) -> u64 {
    look(lab, group, name).unwrap_or(0)
}

fn look(lab: &Lab, group: &str, name: &str) -> Option<u64> {
    let status = status(lab);
    let group = status.iter().find(|g| g["group"] == group).unwrap_or_else(|| panic!("no group {group}: {status:?}"));
    group["values"][name].as_u64()
}

/// Returns a counter of each iod that the mgr reaches.
pub fn of_iods(lab: &Lab, name: &str) -> Vec<u64> {
    let status = status(lab);
    let iods = status.iter().filter(|g| g["group"] == "iod");
    iods.map(|g| g["values"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {g}"))).collect()
}

/// Returns how many iods the mgr reaches.
pub fn iods_up(lab: &Lab) -> usize {
    status(lab).iter().filter(|g| g["group"] == "iod" && g["values"]["state"] == "up").count()
}

fn status(lab: &Lab) -> Vec<Value> {
    // A degraded cluster is no failure here.
    let output = lab.weir(["status", "--json"]).output().expect("the binary starts");
    serde_json::from_slice(&output.stdout).expect("groups")
}

/// Waits until a condition holds. Panics if it does not hold after 120 seconds.
pub fn until(mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < end, "it does not come to be");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns a port that is free at the moment. The kernel does not assign it to a socket that asks for any port: those
/// ports are from 32768 on. Each port is returned only once in a process, because it stays free until a server binds
/// it.
pub fn free_port() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id() as u16;
    let ports = || 16_000 + first.wrapping_add(TAKEN.fetch_add(1, Relaxed)) % 16_000;
    std::iter::repeat_with(ports)
        .take(16_000)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a port")
}
