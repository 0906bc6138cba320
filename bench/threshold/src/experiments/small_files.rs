//! Experiment E2: creation and removal of small files, replayed through the client core, and Debian's postmark on a
//! mount.

use super::sweep::WAYS;
use crate::csv_table::CsvTable;
use crate::report::{Bound, Table, ratios};
use crate::rig::{On, Rig};
use crate::{Outcome, Setup, process};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

pub fn replayed(setup: &Setup, rig: &Rig, csv: &mut CsvTable) -> Outcome<Table> {
    let (files, transactions) = if setup.quick { ("6", "16") } else { ("40", "160") };
    let words = ["--generate", "postmark", "--files", files, "--transactions", transactions];
    let mut sides = vec![("local ext4", On::Dir(&rig.local), &[][..])];
    sides.extend(WAYS.iter().map(|(name, options)| (*name, On::Weir, *options)));
    let mut found = vec![(Vec::new(), Vec::new(), Vec::new()); sides.len()];
    for round in 0..setup.rounds {
        for ((name, on, options), found) in sides.iter().zip(&mut found) {
            let words = [&words, *options].concat();
            let run = if setup.quick { rig.replay(*on, &words) } else { rig.counted(*on, &words) }?;
            found.0.push(run.seconds);
            found.1.push(run.rpcs() as f64);
            found.2.push(run.iod_writes as f64);
            csv.add("E2", name, 0, round, &run);
        }
    }
    let title = "E2: files of 1 to 500 KB made, read, appended to and removed, synced before each close";
    let mut table = Table::new(title, &["seconds", "client RPCs", "iod writes"]);
    for ((name, ..), (seconds, rpcs, writes)) in sides.iter().zip(&found) {
        table.row(*name, &[seconds.clone(), rpcs.clone(), writes.clone()]);
    }
    let seconds = |side: usize| &found[side].0[..];
    table.target(
        "speed of the mgr path over speed of the direct path, replay of Postmark",
        Bound::AtLeast(2.0),
        &ratios(seconds(1), seconds(2)),
    );
    table.target(
        "speed of local ext4 over speed of the mgr path, replay of Postmark",
        Bound::AtLeast(1.0),
        &ratios(seconds(2), seconds(0)),
    );
    table.target(
        "speed with write threshold 64 KiB over speed of the mgr path, replay of Postmark",
        Bound::AtLeast(0.95),
        &ratios(seconds(2), seconds(3)),
    );
    Ok(table)
}

/// The mounts on which the experiment runs postmark: name of the mount, and its mount option. The experiment also runs
/// postmark on the local file system.
const MOUNTS: [(&str, &str); 4] = [
    ("direct path, gathered", "write_threshold=0"),
    ("mgr path", "write_threshold=max"),
    ("write threshold 64 KiB", "write_threshold=64K"),
    ("write threshold auto", "write_threshold=auto"),
];

pub fn postmark(setup: &Setup, rig: &Rig) -> Outcome<Table> {
    let (files, transactions) = if setup.quick { (10, 30) } else { (50, 300) };
    let mut seconds = vec![Vec::new(); MOUNTS.len() + 1];
    for _ in 0..setup.rounds {
        for ((_, options), seconds) in MOUNTS.iter().zip(&mut seconds) {
            let mounted = rig.mount("mnt", options)?;
            seconds.push(one(rig, &mounted.dir, files, transactions)?);
        }
        if let Some(seconds) = seconds.last_mut() {
            seconds.push(one(rig, &rig.local, files, transactions)?);
        }
    }
    let title = format!("E2: postmark on the mount, {files} files of 1 to 500 KB, {transactions} transactions");
    let mut table = Table::new(title, &["seconds"]);
    let names = MOUNTS.iter().map(|(name, _)| *name).chain(["local ext4"]);
    names.zip(&seconds).for_each(|(name, seconds)| table.row(name, std::slice::from_ref(seconds)));
    table.target(
        "speed with write threshold 64 KiB over speed of the faster path, `postmark` on a mount",
        Bound::AtLeast(0.95),
        &{
            let better: Vec<f64> = seconds[0].iter().zip(&seconds[1]).map(|(a, b)| a.min(*b)).collect();
            ratios(&better, &seconds[2])
        },
    );
    table.note("postmark syncs nothing: what it closes is durable on the mount, and in memory on ext4");
    Ok(table)
}

fn one(rig: &Rig, dir: &Path, files: u32, transactions: u32) -> Outcome<f64> {
    let room = dir.join("postmark");
    fs::create_dir(&room)?;
    let config = rig.room.join("postmark.cfg");
    let text = format!(
        "set location {}\nset number {files}\nset transactions {transactions}\nset size 1000 500000\nset write 4096\n\
         set read 4096\nset seed 42\nrun\nquit\n",
        room.display()
    );
    fs::write(&config, text)?;
    let mut command = Command::new("postmark");
    command.arg(config);
    let begun = Instant::now();
    process::run(command)?;
    let seconds = begun.elapsed().as_secs_f64();
    fs::remove_dir(&room)?;
    Ok(seconds)
}
