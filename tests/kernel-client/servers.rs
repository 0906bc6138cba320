//! Test clusters whose servers guests can reach, and access to the status of the mgr.

use crate::guest::HOST;
use crate::lab::Lab;
use crate::relay::Relay;
use serde_json::Value;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Starts a new file system in `home` with `iods` iods; `options` are additional options for the mgr. Guests connect
/// to the mgr through its proxy, and to the iods without a proxy.
pub fn start(home: &Path, iods: usize, options: &[&str]) -> Lab {
    start_with_lease(home, iods, 20, options)
}

/// Starts a file system like [`start`], with a lease of `lease_secs` seconds; the lease of [`start`] is 20 seconds.
pub fn start_with_lease(home: &Path, iods: usize, lease_secs: u32, options: &[&str]) -> Lab {
    let ways: Vec<_> = (0..iods).map(|_| free_port()).map(|port| (port, port)).collect();
    start_at(home, lease_secs, options, &ways)
}

/// Starts a file system like [`start`], with a relay between the guests and each server. Returns the relay of the mgr
/// first, and then the relays of the iods.
pub fn start_behind_relays(home: &Path, iods: usize, options: &[&str], seed: u64) -> (Lab, Vec<Relay>) {
    start_behind_relays_with_lease(home, iods, 20, options, seed)
}

/// Starts a file system like [`start_behind_relays`], with a lease of `lease_secs` seconds instead of 20 seconds.
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

/// Starts an mgr, and one iod for each pair of ports in `ways`. The first port is that of the iod's NFS service. The
/// second port is the port that the iod advertises to guests, for example the port of a relay.
fn start_at(home: &Path, lease_secs: u32, options: &[&str], ways: &[(u16, u16)]) -> Lab {
    let lease = lease_secs.to_string();
    let options = [&["--lease-secs", &lease], options].concat();
    Lab::start_each_with(home, ways.len(), &options, |i| {
        let (listen, told) = (format!("127.0.0.1:{}", ways[i].0), format!("{HOST}:{}", ways[i].1));
        vec!["--nfs-listen".into(), listen, "--nfs-advertise".into(), told]
    })
}

/// Returns a number from the status of the mgr.
pub fn number(lab: &Lab, group: &str, name: &str) -> u64 {
    look(lab, group, name).unwrap_or_else(|| panic!("no {name} in {group}"))
}

/// Returns a counter from the status of the mgr. Returns 0 if the status omits this counter, because the counted event
/// has never occurred.
pub fn counted(lab: &Lab, group: &str, name: &str) -> u64 {
    look(lab, group, name).unwrap_or(0)
}

fn look(lab: &Lab, group: &str, name: &str) -> Option<u64> {
    let status = status(lab);
    let group = status.iter().find(|g| g["group"] == group).unwrap_or_else(|| panic!("no group {group}: {status:?}"));
    group["values"][name].as_u64()
}

/// Returns a counter of each iod from the status of the mgr.
pub fn of_iods(lab: &Lab, name: &str) -> Vec<u64> {
    let status = status(lab);
    let iods = status.iter().filter(|g| g["group"] == "iod");
    iods.map(|g| g["values"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {g}"))).collect()
}

/// Returns the number of iods to which the mgr is connected.
pub fn iods_up(lab: &Lab) -> usize {
    status(lab).iter().filter(|g| g["group"] == "iod" && g["values"]["state"] == "up").count()
}

fn status(lab: &Lab) -> Vec<Value> {
    // Ignore the exit code of `weir status`, because the cluster may be degraded in these tests.
    let output = lab.weir(["status", "--json"]).output().expect("the binary starts");
    serde_json::from_slice(&output.stdout).expect("groups")
}

/// Waits until `holds` returns `true`. Panics if this takes longer than 120 seconds.
pub fn until(mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < end, "it does not come to be");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns a port that is free now. The port is below 32768, so the kernel never assigns it to a socket that requests
/// any free port. Each call in a process returns a new port, because a port that an earlier call returned stays free
/// until a server binds it.
pub fn free_port() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id() as u16;
    let ports = || 16_000 + first.wrapping_add(TAKEN.fetch_add(1, Relaxed)) % 16_000;
    std::iter::repeat_with(ports)
        .take(16_000)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a port")
}
