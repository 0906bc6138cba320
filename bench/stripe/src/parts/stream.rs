//! Part (a): CPU seconds per GB of a stream between local files in 1 MiB requests, compared with a bare socket.

use crate::bulk::PIECE;
use crate::cluster::{Cluster, DaemonHost};
use crate::mover::TransferJob;
use crate::process::{self, Daemon, cpu_of_all};
use crate::report::{Bound, Report, Table, ratios};
use crate::{Moved, Outcome, Role, Setup};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const IODS: usize = 4;
/// Length in bytes of the stream that each round writes and reads.
const LEN: u64 = 1 << 30;

/// One of the compared ways to transfer the file, and its results.
struct Way {
    name: &'static str,
    by: By,
    write: Found,
    read: Found,
}

#[derive(Clone, Copy)]
enum By {
    Bare,
    Api { checksums: bool },
    Command,
}

/// Results of all rounds for one way to transfer the file, either for writes or for reads.
#[derive(Default)]
struct Found {
    /// CPU seconds per GB of client and servers.
    cpu: Vec<f64>,
    /// CPU seconds per GB of the client alone.
    client: Vec<f64>,
    /// Throughput in GB per second.
    rate: Vec<f64>,
}

/// The servers that the benchmark reaches over one socket type (TCP or Unix), and the local files for comparison.
struct Scene<'a> {
    setup: &'a Setup,
    cluster: Cluster,
    bare: (Daemon, String),
    stored: PathBuf,
    source: &'a Path,
    copy: PathBuf,
    len: u64,
}

/// Runs part (a) of the `stripe` benchmark over Unix sockets and over TCP, and adds its table to the report.
pub fn run(setup: &Setup, report: &mut Report) -> Outcome<()> {
    let dir = setup.dir.join("stream");
    fs::create_dir(&dir)?;
    let (source, len) = (dir.join("source"), setup.amount(LEN));
    make(&source, len)?;
    let mut table = Table::new(
        format!("(a) a stream of {} MiB between local files in pieces of 1 MiB, four iods, durable", len >> 20),
        &["write CPU s/GB", "client's", "GB/s", "read CPU s/GB", "client's", "GB/s"],
    );
    for (kind, unix) in [("Unix", true), ("TCP", false)] {
        let home = dir.join(kind);
        fs::create_dir(&home)?;
        let iods = vec![DaemonHost::here(); IODS];
        let cluster = Cluster::start(&setup.weir()?, &home.join("weir"), &DaemonHost::here(), &iods, unix)?;
        let socket = home.join("bare.sock").into_os_string().into_string().map_err(|_| "a path that is no text")?;
        let address = if unix { socket } else { "127.0.0.1:0".to_owned() };
        let stored = home.join("bare");
        let bare = Daemon::in_role(&[], &Role::Streams { address, file: stored.clone() })?;
        let scene = Scene { setup, cluster, bare, stored, source: &source, copy: home.join("copy"), len };
        let mut ways = [
            Way::new("bare socket", By::Bare),
            Way::new("client, checksums", By::Api { checksums: true }),
            Way::new("client, none", By::Api { checksums: false }),
            Way::new("weir cp", By::Command),
        ];
        for round in 0..setup.rounds {
            for way in &mut ways {
                scene.round(way, round)?;
            }
        }
        add(&mut table, kind, &ways);
    }
    report.tables.push(table);
    Ok(())
}

fn add(table: &mut Table, kind: &str, ways: &[Way; 4]) {
    let bare = &ways[0];
    for way in ways {
        let cells = [&way.write, &way.read].map(|f| [f.cpu.clone(), f.client.clone(), f.rate.clone()]);
        table.row(format!("{kind}, {}", way.name), cells.as_flattened());
    }
    for way in &ways[1..] {
        let write = ratios(&way.write.cpu, &bare.write.cpu);
        table.target(format!("{kind}, {}: write CPU / bare", way.name), Bound::AtMost(2.0), &write);
        let read = ratios(&way.read.cpu, &bare.read.cpu);
        table.target(format!("{kind}, {}: read CPU / bare", way.name), Bound::AtMost(1.6), &read);
    }
}

/// Makes a file of random bytes. The bytes are then in the page cache.
fn make(path: &Path, len: u64) -> Outcome<()> {
    let (mut file, mut piece) = (File::create(path)?, vec![0; PIECE]);
    for _ in (0..len).step_by(PIECE) {
        getrandom::fill(&mut piece)?;
        file.write_all(&piece)?;
    }
    Ok(file.sync_all()?)
}

fn same(a: &Path, b: &Path) -> Outcome<bool> {
    let (mut a, mut b) = (File::open(a)?, File::open(b)?);
    let (mut left, mut right) = (vec![0; PIECE], vec![0; PIECE]);
    loop {
        let n = a.read(&mut left)?;
        if n == 0 {
            return Ok(b.read(&mut right)? == 0);
        }
        if b.read_exact(&mut right[..n]).is_err() || left[..n] != right[..n] {
            return Ok(false);
        }
    }
}

impl Way {
    fn new(name: &'static str, by: By) -> Self {
        Way { name, by, write: Found::default(), read: Found::default() }
    }
}

impl Found {
    fn push(&mut self, len: u64, cpu: f64, client: f64, moved: &Moved) {
        let gb = len as f64 / 1e9;
        self.cpu.push((cpu + client) / gb);
        self.client.push(client / gb);
        self.rate.push(gb / moved.seconds);
    }
}

impl Scene<'_> {
    /// Runs one round: writes the file, reads the file back, compares the bytes, and removes the file.
    fn round(&self, way: &mut Way, round: u32) -> Outcome<()> {
        let url = format!("{}{}-{round}", self.cluster.url, way.name.replace([' ', ','], "-"));
        self.measure(&mut way.write, || self.write(way.by, &url))?;
        self.measure(&mut way.read, || self.read(way.by, &url))?;
        if !same(self.source, &self.copy)? {
            return Err(format!("{}: other bytes came back than were sent", way.name).into());
        }
        fs::remove_file(&self.copy)?;
        match way.by {
            By::Bare => fs::remove_file(&self.stored)?,
            _ => drop(process::run(self.weir(&["rm", &url])?)?),
        }
        Ok(())
    }

    fn measure(&self, found: &mut Found, work: impl FnOnce() -> Outcome<(Moved, f64)>) -> Outcome<()> {
        self.cluster.settle()?;
        let servers: Vec<u32> = self.cluster.pids().into_iter().chain([self.bare.0.pid()]).collect();
        let before = cpu_of_all(&servers)?;
        let (moved, client) = work()?;
        found.push(self.len, cpu_of_all(&servers)? - before, client, &moved);
        Ok(())
    }

    fn job(&self, url: &str, local: &Path, checksums: bool) -> TransferJob {
        TransferJob { url: url.to_owned(), local: Some(local.to_owned()), len: self.len, checksums }
    }

    fn write(&self, by: By, url: &str) -> Outcome<(Moved, f64)> {
        let source = Some(self.source.to_owned());
        match by {
            By::Bare => process::run_role(&[], &Role::BarePut(self.bare.1.clone(), source, self.len)),
            By::Api { checksums } => process::run_role(&[], &Role::Put(self.job(url, self.source, checksums))),
            By::Command => self.command(&["cp", self.text(self.source)?, url]),
        }
    }

    fn read(&self, by: By, url: &str) -> Outcome<(Moved, f64)> {
        let copy = Some(self.copy.clone());
        match by {
            By::Bare => process::run_role(&[], &Role::BareGet(self.bare.1.clone(), copy, self.len)),
            By::Api { checksums } => process::run_role(&[], &Role::Get(self.job(url, &self.copy, checksums))),
            By::Command => self.command(&["cp", url, self.text(&self.copy)?]),
        }
    }

    fn text<'a>(&self, path: &'a Path) -> Outcome<&'a str> {
        Ok(path.to_str().ok_or("a path that is no text")?)
    }

    fn weir(&self, words: &[&str]) -> Outcome<Command> {
        let mut command = Command::new(self.setup.weir()?);
        command.args(words);
        Ok(command)
    }

    fn command(&self, words: &[&str]) -> Outcome<(Moved, f64)> {
        let start = Instant::now();
        let (_, cpu) = process::run(self.weir(words)?)?;
        Ok((Moved::since(start), cpu))
    }
}
