//! Slow links: network namespaces around one bridge. Each node has a link to the bridge, with a token bucket at both
//! ends.
//!
//! All network devices are in namespaces whose names contain the id of this process. The kernel removes the devices
//! with the namespaces.

use crate::Outcome;
use crate::cluster::DaemonHost;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// Rate of a limited link in bytes per second, including packet headers: the limit for sent bytes, and the limit for
/// received bytes.
pub const RATE: u64 = 25_000_000;
const PREFIX: &str = "weir-bench-";

/// A network of nodes, each in its own network namespace; dropping the value removes the network.
pub struct Network {
    nodes: u8,
}

impl Network {
    /// Makes a network without nodes; needs root.
    pub fn make() -> Outcome<Network> {
        sweep(|owner| !Path::new("/proc").join(owner.to_string()).exists());
        let network = Network { nodes: 0 };
        let switch = namespace("switch");
        ip(&["netns", "add", &switch])?;
        ip(&["-n", &switch, "link", "add", "switch", "type", "bridge"])?;
        ip(&["-n", &switch, "link", "set", "switch", "up"])?;
        Ok(network)
    }

    /// Adds a node; with `limited`, its link has the rate [`RATE`].
    pub fn add(&mut self, limited: bool) -> Outcome<DaemonHost> {
        self.nodes += 1;
        let (switch, node, port) =
            (namespace("switch"), namespace(&self.nodes.to_string()), format!("p{}", self.nodes));
        let host = format!("10.213.0.{}", self.nodes);
        ip(&["netns", "add", &node])?;
        ip(&["-n", &switch, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &node])?;
        ip(&["-n", &switch, "link", "set", &port, "master", "switch", "up"])?;
        ip(&["-n", &node, "addr", "add", &format!("{host}/24"), "dev", "eth0"])?;
        ip(&["-n", &node, "link", "set", "eth0", "up"])?;
        ip(&["-n", &node, "link", "set", "lo", "up"])?;
        if limited {
            // The token bucket holds the largest segment that the kernel forwards as a whole (GSO). The queue holds
            // the bytes that the link transfers in 50 ms, like the queue of a switch.
            let rate = format!("{}bit", RATE * 8);
            let bucket = ["root", "tbf", "rate", &rate, "burst", "128kb", "latency", "50ms"];
            tc(&[&["-n", &switch, "qdisc", "add", "dev", &port], &bucket[..]].concat())?;
            tc(&[&["-n", &node, "qdisc", "add", "dev", "eth0"], &bucket[..]].concat())?;
        }
        let prefix = ["ip", "netns", "exec", &node].map(OsString::from).to_vec();
        Ok(DaemonHost::at(prefix, &host))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        sweep_own();
    }
}

/// Removes the namespaces of this process.
pub fn sweep_own() {
    sweep(|owner| owner == std::process::id());
}

/// Removes the namespaces of all processes for which `whose` returns true. Prints errors, because no caller can handle
/// them.
fn sweep(whose: impl Fn(u32) -> bool) {
    let Ok(output) = Command::new("ip").args(["netns", "list"]).output() else { return };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let name = line.split(' ').next().unwrap_or_default();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse().ok());
        if owner.is_some_and(&whose)
            && let Err(error) = ip(&["netns", "del", name])
        {
            eprintln!("stripe: {error}");
        }
    }
}

fn namespace(name: &str) -> String {
    format!("{PREFIX}{}-{name}", std::process::id())
}

fn ip(args: &[&str]) -> Outcome<()> {
    run("ip", args)
}

fn tc(args: &[&str]) -> Outcome<()> {
    run("tc", args)
}

fn run(program: &str, args: &[&str]) -> Outcome<()> {
    let output = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim()).into())
}
