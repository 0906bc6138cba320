//! Part (b): the throughput of one client over 1, 2, 4 and 8 iods, each behind its own link.

use crate::bulk::PIECE;
use crate::cluster::{Cluster, DaemonHost};
use crate::links::{Network, RATE};
use crate::mover::TransferJob;
use crate::process::{Daemon, run_role};
use crate::report::{Bound, Report, Table};
use crate::{Moved, Outcome, Role, Setup};
use std::fs;

const COUNTS: [usize; 4] = [1, 2, 4, 8];
/// Duration of a stream in seconds at the full rate of the links, long enough that the bytes in socket buffers are
/// negligible.
const SECONDS: u64 = 7;

/// A measured cluster: its number of iods, and the MB/s of each round.
struct Width {
    iods: usize,
    cluster: Cluster,
    write: Vec<f64>,
    read: Vec<f64>,
}

/// Runs part (b) of the `stripe` benchmark and adds its table to the report. Without root it prints a message and
/// measures nothing.
pub fn run(setup: &Setup, report: &mut Report) -> Outcome<()> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("stripe: part b is left out: network namespaces need root");
        return Ok(());
    }
    let dir = setup.dir.join("scaling");
    fs::create_dir(&dir)?;
    let mut network = Network::make()?;
    let (client, mgr) = (network.add(false)?, network.add(false)?);
    let iods = (0..COUNTS[COUNTS.len() - 1]).map(|_| network.add(true)).collect::<Outcome<Vec<DaemonHost>>>()?;
    let floor = Role::Streams { address: format!("{}:0", iods[0].host), file: dir.join("bare") };
    let (_floor, address) = Daemon::in_role(&iods[0].prefix, &floor)?;
    let mut widths = Vec::new();
    for count in COUNTS {
        let (home, iods) = (dir.join(format!("weir-{count}")), &iods[..count]);
        let cluster = Cluster::start(&setup.weir()?, &home, &mgr, iods, false)?;
        widths.push(Width { iods: count, cluster, write: Vec::new(), read: Vec::new() });
    }
    let mut bare = (Vec::new(), Vec::new());
    for round in 0..setup.rounds {
        let len = setup.amount(SECONDS * RATE) / PIECE as u64 * PIECE as u64;
        bare.0.push(rate(&client, len, &Role::BarePut(address.clone(), None, len))?);
        bare.1.push(rate(&client, len, &Role::BareGet(address.clone(), None, len))?);
        for width in &mut widths {
            width.cluster.settle()?;
            width.round(&client, len * width.iods as u64, round)?;
        }
    }
    report.tables.push(table(&bare, &widths));
    Ok(())
}

fn rate(client: &DaemonHost, len: u64, role: &Role) -> Outcome<f64> {
    let (moved, _): (Moved, f64) = run_role(&client.prefix, role)?;
    Ok(len as f64 / 1e6 / moved.seconds)
}

impl Width {
    fn round(&mut self, client: &DaemonHost, len: u64, round: u32) -> Outcome<()> {
        let url = format!("{}file-{round}", self.cluster.url);
        let job = || TransferJob { url: url.clone(), local: None, len, checksums: true };
        self.write.push(rate(client, len, &Role::Put(job()))?);
        self.read.push(rate(client, len, &Role::Get(job()))?);
        // Remove the file, because the next round needs the disk space.
        run_role::<()>(&client.prefix, &Role::Remove(url)).map(drop)
    }
}

fn table(bare: &(Vec<f64>, Vec<f64>), widths: &[Width]) -> Table {
    let mut table = Table::new(
        format!(
            "(b) one client, each iod behind a link of {} MB/s with headers, {SECONDS} s per stream",
            RATE / 1_000_000
        ),
        &["write MB/s", "of linear", "read MB/s", "of linear"],
    );
    table.row("floor: bare TCP, one link", &[bare.0.clone(), Vec::new(), bare.1.clone(), Vec::new()]);
    let linear = |values: &[f64], one: &[f64], iods: usize| {
        values.iter().zip(one).map(|(value, one)| value / one / iods as f64).collect::<Vec<_>>()
    };
    for width in widths {
        let write = linear(&width.write, &widths[0].write, width.iods);
        let read = linear(&width.read, &widths[0].read, width.iods);
        let plural = if width.iods == 1 { "" } else { "s" };
        let cells = [width.write.clone(), write.clone(), width.read.clone(), read.clone()];
        table.row(format!("{} iod{plural}", width.iods), &cells);
        if width.iods > 1 {
            table.target(format!("{} iods, write: share of linear", width.iods), Bound::AtLeast(0.9), &write);
            table.target(format!("{} iods, read: share of linear", width.iods), Bound::AtLeast(0.9), &read);
        }
    }
    for (what, one, floor) in [("write", &widths[0].write, &bare.0), ("read", &widths[0].read, &bare.1)] {
        let share = crate::report::ratios(one, floor);
        if let Some(share) = crate::report::Number::of(&share) {
            table.note(format!("one iod, {what}: {share} of the floor"));
        }
    }
    table
}
