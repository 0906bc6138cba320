//! `weir tune`: measures a file system and recommends settings.

use crate::failure::{Exit, Failure, Outcome};
use crate::replay::{self, Job, Place};
use crate::session::{Connect, runtime};
use crate::show;
use crate::stop::Stop;
use crate::tune::{Point, best, crossing, verdict};
use chart::{Chart, Curve};
use client::{Options, Settings, Target};
use indicatif::ProgressBar;
use layout::policy::{format_size, parse_size};
use layout::threshold::{ALWAYS_MGR, Rule};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use trace::{Action, Generator, Op, Trace};

/// Measure a file system and recommend settings
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir tune threshold weir://10.0.0.5/scratch")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Measure requests of each size on the mgr path and on the direct path, and recommend a threshold
    ///
    /// The command alternates between the two paths. It sends each write as one request without gathering, and makes
    /// all writes durable at the end. It makes its files in a new directory, and removes the directory at the end.
    Threshold(Threshold),
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir tune threshold weir://10.0.0.5/scratch
  weir tune threshold --read --clients 4 --svg reads.svg weir://10.0.0.5/scratch")]
struct Threshold {
    /// A directory of the file system [default: the directory that WEIR_URL names]
    #[arg(value_name = "URL")]
    on: Option<OsString>,
    /// Measure reads instead of writes
    #[arg(long)]
    read: bool,
    /// Number of clients that send requests at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,
    /// Send sequential requests instead of requests at random offsets
    #[arg(long)]
    sequential: bool,
    /// Shortest request; each following size is twice the previous one
    #[arg(long, value_name = "SIZE", default_value = "256", value_parser = size)]
    from: u32,
    /// Longest request
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = size)]
    to: u32,
    /// Number of requests of each client for one measurement. For long requests the number is lower: 16 MiB in total,
    /// but at least 8 requests
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// Number of measurements of each path for each size
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Draw the curves into this SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write all times to this file, as comma-separated values
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: Connect,
}

/// Minimum length in bytes of the file of a measurement with random offsets.
const FILE: u64 = 32 << 20;
/// Number of requests at the start of each client that the command does not time, because these requests also establish
/// the connections.
const WARM: u32 = 8;

fn size(text: &str) -> Result<u32, String> {
    let size = parse_size(text).filter(|size| (1..=4 << 20).contains(size));
    size.map(|size| size as u32).ok_or_else(|| "not a size up to 4M; write, for example, 64K".to_owned())
}

/// Runs `weir tune`.
pub fn run(args: Args) -> Outcome {
    let What::Threshold(args) = args.what;
    if args.from > args.to {
        return Err(Failure::usage("--from is larger than --to"));
    }
    let target = args.connect.target_or_base(args.on.as_ref())?;
    let runtime = runtime()?;
    let stop = runtime.block_on(async { Stop::listen() })?;
    let measured = args.measure(&target, runtime.handle(), &stop);
    runtime.shutdown_background();
    let found = Found::of(&args, &target, measured?);
    let keep =
        |path: &Path, text: String| std::fs::write(path, text).map_err(|e| Failure::from(e).about(path.display()));
    if let Some(path) = &args.svg {
        keep(path, found.chart().svg().map_err(Failure::new)?)?;
    }
    if let Some(path) = &args.csv {
        keep(path, found.csv())?;
    }
    if args.json {
        show::json(&found)?
    } else {
        found.show(&args)?
    }
    Ok(Exit::Done)
}

impl Threshold {
    fn measure(&self, target: &Target, runtime: &tokio::runtime::Handle, stop: &Stop) -> Result<Vec<Point>, Failure> {
        let sizes: Vec<u32> = std::iter::successors(Some(self.from), |size| size.checked_mul(2))
            .take_while(|size| *size <= self.to)
            .collect();
        let bar = match self.json || !std::io::stderr().is_terminal() {
            true => ProgressBar::hidden(),
            false => ProgressBar::new(2 * u64::from(self.rounds) * sizes.len() as u64),
        };
        let mut points = Vec::new();
        for size in sizes {
            let mut point = Point { size: size.into(), mgr_us: Vec::new(), direct_us: Vec::new() };
            let trace = Arc::new(self.trace(size)?);
            for round in 0..self.rounds {
                // Alternate which path is measured first, so that the order of the measurements favours neither path.
                let ways = [round % 2 == 0, round % 2 != 0];
                for mgr in ways {
                    let job = self.job(trace.clone(), target, runtime, if mgr { ALWAYS_MGR } else { 0 })?;
                    let done = replay::run(&job, stop, ProgressBar::hidden())?;
                    let took = done.latencies.sum(Action::Write)
                        + done.latencies.sum(Action::Read)
                        + done.latencies.sum(Action::Fsync);
                    let each = took.as_secs_f64() * 1e6 / f64::from(self.count(size) * self.clients);
                    if mgr {
                        point.mgr_us.push(each)
                    } else {
                        point.direct_us.push(each)
                    }
                    bar.inc(1);
                }
            }
            points.push(point);
        }
        bar.finish_and_clear();
        Ok(points)
    }

    /// Returns the number of timed requests of `request` bytes that each client sends.
    fn count(&self, request: u32) -> u32 {
        const MOST: u32 = 16 << 20;
        self.count.min((MOST / request).max(8))
    }

    /// Returns a trace in which all clients access one file. The replay does not time the first requests of each
    /// client.
    fn trace(&self, request: u32) -> Result<Trace, Failure> {
        let (clients, read) = (self.clients, self.read);
        let count = self.count(request) + WARM;
        let all = u64::from(count) * u64::from(request) * u64::from(clients);
        let generator = match self.sequential {
            true => Generator::Sequential { size: all, request, clients, read },
            false => Generator::Random { size: FILE.max(u64::from(request)), request, count, clients, read },
        };
        let mut trace = generator.generate(u64::from(request)).map_err(Failure::usage)?;
        if !read {
            // This fsync makes the writes of the untimed requests durable before the timed requests start.
            trace.clients.iter_mut().for_each(|ops| ops.insert(WARM as usize + 1, Op::of(Action::Fsync, 0)));
        }
        Ok(trace)
    }

    fn job(
        &self,
        trace: Arc<Trace>,
        target: &Target,
        runtime: &tokio::runtime::Handle,
        threshold: u64,
    ) -> Result<Job, Failure> {
        let (write_threshold, read_threshold) =
            if self.read { (Some(Rule::Fixed(0)), Some(threshold)) } else { (Some(Rule::Fixed(threshold)), Some(0)) };
        let policy = Settings { write_threshold, read_threshold, ..Settings::default() };
        // Ignore the policy settings of the environment, so that only the measured threshold decides the path of a
        // request.
        let options = Options { policy, environment: Settings::default(), ..self.connect.options()? };
        let place =
            Place::Weir { target: target.clone(), options: Box::new(options), each: true, runtime: runtime.clone() };
        let warm = WARM as usize + if self.read { 1 } else { 2 };
        Ok(Job { trace, copies: 1, place, verify: false, fill: self.read, keep: false, warm })
    }
}

/// The result of measuring the write threshold or the read threshold.
#[derive(Serialize)]
struct Found {
    what: &'static str,
    clients: u32,
    order: &'static str,
    points: Vec<Point>,
    /// The request length in bytes at which both paths take the same time.
    crossing: Option<f64>,
    /// The recommended threshold in bytes. `u64::MAX` means that all requests take the mgr path.
    threshold: u64,
    /// The recommended threshold as the value of an option of `weir mount`.
    option: String,
    command: String,
}

impl Found {
    fn of(args: &Threshold, target: &Target, points: Vec<Point>) -> Found {
        let threshold = best(&points);
        let option = if threshold == ALWAYS_MGR { "max".to_owned() } else { format_size(threshold) };
        let what = if args.read { "read" } else { "write" };
        let command = format!("weir mount -o {what}_threshold={option} {target} DIRECTORY");
        let order = if args.sequential { "sequential" } else { "random" };
        let crossing = crossing(&points, threshold);
        Found { what, clients: args.clients, order, points, crossing, threshold, option, command }
    }

    fn chart(&self) -> Chart {
        let curve = |name: &str, of: fn((f64, f64)) -> f64| Curve {
            name: name.to_owned(),
            points: self.points.iter().map(|point| (point.size as f64, of(point.medians()))).collect(),
        };
        Chart {
            title: format!("time of {} {}s, {} client(s)", self.order, self.what, self.clients),
            up: "us".to_owned(),
            curves: vec![curve("mgr path", |m| m.0), curve("direct path", |m| m.1)],
            marks: self.crossing.map(|at| (at, "crossing".to_owned())).into_iter().collect(),
        }
    }

    fn csv(&self) -> String {
        let mut out = "bytes,way,round,microseconds\n".to_owned();
        for point in &self.points {
            for (way, times) in [("mgr", &point.mgr_us), ("direct", &point.direct_us)] {
                for (round, time) in times.iter().enumerate() {
                    let _ = writeln!(out, "{},{way},{round},{time:.3}", point.size);
                }
            }
        }
        out
    }

    fn show(&self, args: &Threshold) -> Result<(), Failure> {
        show::raw(self.chart().text(64, 16).as_bytes())?;
        show::line(&format!("\n{:>8}{:>16}{:>16}{:>16}", "bytes", "mgr, us", "direct, us", "mgr/direct"))?;
        for point in &self.points {
            let (mgr, direct) = point.medians();
            let size = format_size(point.size);
            show::line(&format!("{size:>8}{mgr:>16.1}{direct:>16.1}{:>16.2}", mgr / direct))?;
        }
        show::line("")?;
        show::line(&match self.crossing {
            Some(at) => format!("The curves cross at {} bytes.", at.round()),
            None => verdict(&self.points),
        })?;
        show::line(&format!(
            "Recommended: {}_threshold={}, medians of {} rounds:",
            self.what, self.option, args.rounds
        ))?;
        show::line(&format!("  {}", self.command))
    }
}
