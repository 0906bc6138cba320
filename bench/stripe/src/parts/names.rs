//! Part (d): durable creates, stats and unlinks per second with 1, 4 and 16 requests in flight.

use crate::cluster::{Cluster, DaemonHost};
use crate::mover::mount;
use crate::process::run_role;
use crate::report::{Report, Table};
use crate::{Failure, Outcome, Role, Setup};
use client::{CreateOptions, Mount, Node};
use hdrhistogram::Histogram;
use redb::{Database, TableDefinition};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const IN_FLIGHT: [usize; 3] = [1, 4, 16];
/// Duration of the create phase of a round, and duration of the stat phase of a round.
const LONG: Duration = Duration::from_secs(3);
/// Maximum number of files in one round. Without this limit, faster creates would give the stat phase a larger
/// directory.
const FILES_MAX: u64 = 5000;
const KINDS: [&str; 3] = ["create and close", "stat", "unlink"];

/// The parameters of one client process in a round.
#[derive(Serialize, Deserialize)]
pub struct ClientJob {
    url: String,
    dir: String,
    in_flight: usize,
    long: Duration,
}

/// The results of one kind of operation.
#[derive(Serialize, Deserialize)]
pub struct Phase {
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// Flushes of the metadata store per operation.
    flushes: f64,
}

/// The values of all rounds, by column of the table.
#[derive(Default, Clone)]
struct Found([Vec<f64>; 4]);

impl Found {
    fn push(&mut self, phase: &Phase) {
        let values = [phase.per_second, phase.p50_ms, phase.p99_ms, phase.flushes];
        self.0.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
    }
}

/// Runs part (d) of the `stripe` benchmark and adds its table to the report.
pub fn run(setup: &Setup, report: &mut Report) -> Outcome<()> {
    let dir = setup.dir.join("names");
    fs::create_dir(&dir)?;
    let iods = vec![DaemonHost::here(); 4];
    let cluster = Cluster::start(&setup.weir()?, &dir.join("weir"), &DaemonHost::here(), &iods, true)?;
    let mut found = vec![[Found::default(), Found::default(), Found::default()]; IN_FLIGHT.len()];
    let mut floors = [Found::default(), Found::default()];
    for round in 0..setup.rounds {
        let long = setup.brief(LONG);
        floors[0].0[0].push(syncs(&dir.join("log"), long / 3)?);
        floors[1].0[0].push(commits(&dir.join(format!("store-{round}")), long / 3)?);
        for (found, in_flight) in found.iter_mut().zip(IN_FLIGHT) {
            cluster.settle()?;
            let job = ClientJob { url: cluster.url.clone(), dir: format!("d{round}-{in_flight}"), in_flight, long };
            let (phases, _): ([Phase; 3], f64) = run_role(&[], &Role::Names(job))?;
            found.iter_mut().zip(&phases).for_each(|(found, phase)| found.push(phase));
        }
    }
    let mut table = Table::new(
        "(d) files made, looked up and removed by one client in one directory, durable",
        &["per second", "p50 ms", "p99 ms", "flushes each"],
    );
    let [sync, commit] = floors;
    table.row("floor: 4 KiB pwrite and fdatasync, one after the other", &sync.0);
    table.row("floor: redb commit of one record, one after the other", &commit.0);
    for (found, in_flight) in found.iter().zip(IN_FLIGHT) {
        for (found, kind) in found.iter().zip(KINDS) {
            table.row(format!("{kind}, {in_flight} in flight"), &found.0);
        }
    }
    report.tables.push(table);
    Ok(())
}

/// Measures the baseline of creates: durable 4 KiB overwrites of a file per second.
fn syncs(path: &Path, long: Duration) -> Outcome<f64> {
    let file = File::create(path)?;
    let block = [0x5a; 4096];
    (0..256).try_for_each(|i| file.write_all_at(&block, i * 4096))?;
    file.sync_all()?;
    let (start, mut done) = (Instant::now(), 0);
    while start.elapsed() < long {
        file.write_all_at(&block, done % 256 * 4096)?;
        file.sync_data()?;
        done += 1;
    }
    Ok(done as f64 / start.elapsed().as_secs_f64())
}

/// Measures the baseline of a database: durable redb commits per second.
fn commits(path: &Path, long: Duration) -> Outcome<f64> {
    const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("floor");
    let database = Database::create(path)?;
    let (start, mut done) = (Instant::now(), 0u64);
    while start.elapsed() < long {
        let mut writing = database.begin_write()?;
        // Enable redb's quick repair, as the mgr's metadata store does, so that both commit in the same way.
        writing.set_quick_repair(true);
        writing.open_table(TABLE)?.insert(&done.to_be_bytes()[..], &[0x5a; 200][..])?;
        writing.commit()?;
        done += 1;
    }
    Ok(done as f64 / start.elapsed().as_secs_f64())
}

/// Runs one round in a client process: creates files, looks them up, and removes them.
pub fn work(job: &ClientJob) -> Outcome<[Phase; 3]> {
    Runtime::new()?.block_on(async {
        let (mount, _) = mount(&job.url, true).await?;
        let (dir, _) = mount.mkdir(&mount.root(), job.dir.as_bytes(), 0o755).await?;
        let round = Round { mount: mount.clone(), dir, in_flight: job.in_flight };
        let (create, made) = round.phase(Kind::Create, FILES_MAX, job.long).await?;
        let (stat, _) = round.phase(Kind::Stat { made }, u64::MAX, job.long).await?;
        // Remove all files without a time limit.
        let (unlink, _) = round.phase(Kind::Unlink, made, Duration::MAX).await?;
        mount.remove(&mount.root(), job.dir.as_bytes()).await?;
        mount.disconnect().await?;
        Ok([create, stat, unlink])
    })
}

#[derive(Clone, Copy)]
enum Kind {
    Create,
    Stat { made: u64 },
    Unlink,
}

impl Kind {
    async fn carry_out(self, mount: &Mount, dir: &Node, number: u64) -> Outcome<()> {
        let name = |number: u64| format!("file-{number:08}").into_bytes();
        match self {
            Kind::Create => {
                let options = CreateOptions { exclusive: true, ..CreateOptions::default() };
                mount.create(dir, &name(number), options).await?.close().await?;
            }
            // Use a large step, so that consecutive lookups request names that are far apart in the directory.
            Kind::Stat { made } => drop(mount.lookup(dir, &name(number.wrapping_mul(7919) % made)).await?),
            Kind::Unlink => mount.remove(dir, &name(number)).await?,
        }
        Ok(())
    }
}

struct Round {
    mount: Mount,
    dir: Node,
    in_flight: usize,
}

impl Round {
    /// Runs operations of the given kind until `most` operations have begun or the time `long` has passed. Returns the
    /// results and the number of operations.
    async fn phase(&self, kind: Kind, most: u64, long: Duration) -> Outcome<(Phase, u64)> {
        let flushes = flushes(&self.mount).await?;
        let (start, next) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        for _ in 0..self.in_flight {
            let (mount, dir, next) = (self.mount.clone(), self.dir.clone(), next.clone());
            tasks.spawn(async move {
                let mut times = Histogram::<u64>::new(3)?;
                while start.elapsed() < long {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= most {
                        break;
                    }
                    let begun = Instant::now();
                    kind.carry_out(&mount, &dir, number).await?;
                    times.record(begun.elapsed().as_micros() as u64)?;
                }
                Ok::<_, Failure>(times)
            });
        }
        let mut times = Histogram::<u64>::new(3)?;
        while let Some(task) = tasks.join_next().await {
            times.add(task??)?;
        }
        let (seconds, done) = (start.elapsed().as_secs_f64(), times.len());
        let phase = Phase {
            per_second: done as f64 / seconds,
            p50_ms: times.value_at_quantile(0.5) as f64 / 1e3,
            p99_ms: times.value_at_quantile(0.99) as f64 / 1e3,
            flushes: (self::flushes(&self.mount).await? - flushes) as f64 / done as f64,
        };
        Ok((phase, done))
    }
}

/// Returns the number of flushes of the mgr's store so far.
async fn flushes(mount: &Mount) -> Outcome<u64> {
    let status = mount.status().await?;
    Ok(status.group("store").ok_or("the mgr tells nothing of its store")?.get_number("flushes"))
}
