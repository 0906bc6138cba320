//! `weir replay`: replays and times a trace of file operations, or makes a trace.

use crate::failure::{Exit, Failure, Outcome};
use crate::mounted::{read_threshold, write_threshold};
use crate::replay::{self, Done, Job, Line, Place, Sums};
use crate::session::{Connect, runtime};
use crate::show;
use crate::stop::Stop;
use client::{Options, Settings};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use layout::policy::parse_size;
use serde::Serialize;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use trace::{Action, Generator, Trace};

/// Replay a trace of file operations, and time it; make traces
///
/// Each client starts its next operation when the previous one is complete. The replay makes its files in a new directory,
/// and removes it at the end.
#[derive(clap::Args)]
#[command(after_help = "A trace is text: the line \"weir-trace 1\", then one operation a line:
  open FILE | read FILE OFFSET LENGTH | write FILE OFFSET LENGTH | fsync FILE | close FILE | remove FILE
FILE is a number. The operations after \"client N\" are those of client N.

Examples:
  weir replay --generate digitisation --events 50 -o digits.trace
  weir replay digits.trace --on weir://10.0.0.5/tmp --write-threshold 32K
  weir replay digits.trace --on /mnt/ext4 --verify
  weir replay --generate random --request 4K --count 10000 --on weir://10.0.0.5/tmp")]
pub struct Args {
    /// The file with the trace
    #[arg(required_unless_present = "generate", conflicts_with = "generate")]
    trace: Option<PathBuf>,
    /// Where to replay the trace: a directory of a Weir file system (weir://host/directory), or a directory of this
    /// machine, on any file system [default: WEIR_URL]
    #[arg(long, value_name = "DIR-OR-URL")]
    on: Option<OsString>,
    /// Number of clients. The clients of a generated trace of one file share that file. Otherwise each client replays the
    /// whole trace with its own files [default: 1; strided: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: Option<u32>,
    /// Verify the bytes of every read; at the end, read all written data back and verify them
    #[arg(long)]
    verify: bool,
    /// Before the measurement, write the data that the trace reads
    #[arg(long)]
    fill: bool,
    /// Number of operations at the start of each client that the measurement does not count
    #[arg(long, value_name = "N", default_value_t = 0)]
    warm: usize,
    /// Keep the files after the replay
    #[arg(long)]
    keep: bool,
    /// Send each write before it returns, instead of gathering writes (only for URLs)
    #[arg(long)]
    each: bool,
    /// Open files with O_DIRECT (only for directories)
    #[arg(long, conflicts_with = "each")]
    odirect: bool,
    /// Send gathered writes shorter than this on the mgr path, and other writes on the direct path; auto: on the path
    /// that was faster recently (only for URLs)
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = write_threshold)]
    write_threshold: Settings,
    /// Send reads shorter than this on the mgr path, and other reads on the direct path (only for URLs)
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = read_threshold)]
    read_threshold: Settings,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    making: Making,
    #[command(flatten)]
    connect: Connect,
}

/// Options for making a trace instead of reading one from a file.
#[derive(clap::Args)]
struct Making {
    /// Make a trace instead of reading one; without -o, replay it at once
    #[arg(long, value_enum, value_name = "KIND")]
    generate: Option<Kind>,
    /// Write the trace to this file; -: to standard output
    #[arg(short, long, value_name = "FILE", requires = "generate")]
    output: Option<PathBuf>,
    /// Seed of the random numbers of a trace
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// digitisation: number of events, each with 1.3 MB of data
    #[arg(long, default_value_t = 50)]
    events: u32,
    /// digitisation and postmark: omit the usual fsyncs
    #[arg(long)]
    no_fsync: bool,
    /// digitisation and postmark: do the usual fsyncs; this is the default
    #[arg(long, conflicts_with = "no_fsync")]
    fsync: bool,
    /// sequential and random: size of the file [default: 32M]
    #[arg(long, value_parser = size, value_name = "SIZE", default_value = "32M", hide_default_value = true)]
    size: u64,
    /// sequential, random and strided: length of a request
    #[arg(long, value_parser = size, value_name = "SIZE", default_value = "4K")]
    request: u64,
    /// random and strided: number of requests of each client
    #[arg(long, default_value_t = 1000)]
    count: u32,
    /// sequential and random: read instead of writing
    #[arg(long)]
    read: bool,
    /// postmark: number of files at the start
    #[arg(long, default_value_t = 100)]
    files: u32,
    /// postmark: number of transactions
    #[arg(long, default_value_t = 2000)]
    transactions: u32,
}

/// The kind of a generated trace.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Sequential requests from the start to the end of one file
    Sequential,
    /// Requests at random offsets of one file
    Random,
    /// Clients that write the records of one file in an interleaved order
    Strided,
    /// Small files that are made, read, appended to and removed
    Postmark,
    /// Particle physics: 96 % of the requests are shorter than 32 KB and carry 5 % of the bytes
    Digitisation,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text)
        .ok_or_else(|| "not a size; write a number of bytes, or a number with K, M, G or T, such as 64K".to_owned())
}

/// Replays or makes a trace.
pub fn run(args: Args) -> Outcome {
    let (trace, copies) = match args.making.generate {
        Some(kind) => args.making.make(kind, args.clients)?,
        None => (read(args.trace.as_deref().unwrap_or("-".as_ref()))?, args.clients.unwrap_or(1)),
    };
    if let Some(output) = &args.making.output {
        let text = trace::print(&trace);
        if output.as_os_str() == "-" {
            show::raw(text.as_bytes())?;
        } else {
            std::fs::write(output, text).map_err(|e| Failure::from(e).about(output.display()))?;
        }
        return Ok(Exit::Done);
    }
    let runtime = runtime()?;
    let stop = runtime.block_on(async { Stop::listen() })?;
    let place = args.place(runtime.handle().clone())?;
    let native = matches!(place, Place::Weir { .. });
    let (trace, copies) = (Arc::new(trace), copies as usize);
    let job = Job { trace, copies, place, verify: args.verify, fill: args.fill, keep: args.keep, warm: args.warm };
    let outcome = replay::run(&job, &stop, bar(args.json));
    runtime.shutdown_background();
    let done = outcome?;
    let summary = Summary::of(&job, done, native);
    if args.json {
        show::json(&summary)?
    } else {
        summary.show()?
    }
    Ok(Exit::Done)
}

fn read(path: &std::path::Path) -> Result<Trace, Failure> {
    let about = |failure: Failure| failure.about(path.display());
    let text = std::fs::read(path).map_err(|e| about(Failure::from(e)))?;
    trace::parse(&text).map_err(|e| about(Failure::usage(e)))
}

fn bar(json: bool) -> ProgressBar {
    if json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(8));
    match ProgressStyle::with_template("{bar:24} {human_pos}/{human_len} operations, {per_sec} ETA {eta}") {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

impl Making {
    /// Generates a trace. Returns the trace, and the number of copies of the trace to replay at the same time.
    fn make(&self, kind: Kind, clients: Option<u32>) -> Result<(Trace, u32), Failure> {
        let (request, read) = (u32::try_from(self.request).unwrap_or(u32::MAX), self.read);
        let (size, count, fsync) = (self.size, self.count, !self.no_fsync);
        let one = clients.unwrap_or(1);
        let (generator, copies) = match kind {
            Kind::Sequential => (Generator::Sequential { size, request, clients: one, read }, 1),
            Kind::Random => (Generator::Random { size, request, count, clients: one, read }, 1),
            Kind::Strided => (Generator::Strided { request, count, clients: clients.unwrap_or(8) }, 1),
            Kind::Postmark => (Generator::Postmark { files: self.files, transactions: self.transactions, fsync }, one),
            Kind::Digitisation => (Generator::Digitisation { events: self.events, fsync }, one),
        };
        let trace = generator.generate(self.seed).map_err(Failure::usage)?;
        Ok((trace, copies))
    }
}

impl Args {
    fn place(&self, runtime: tokio::runtime::Handle) -> Result<Place, Failure> {
        let local = |on: &&OsString| !on.as_bytes().starts_with(b"weir:");
        if let Some(dir) = self.on.as_ref().filter(local) {
            return match self.each {
                true => {
                    Err(Failure::usage("--each needs a URL: programs that use a local directory have no such setting"))
                }
                false => Ok(Place::Local { dir: dir.into(), odirect: self.odirect }),
            };
        }
        if self.odirect {
            return Err(Failure::usage("--odirect needs a local directory").next("for a URL, use --each"));
        }
        let target = self.connect.target_or_base(self.on.as_ref())?;
        let mut policy = self.write_threshold;
        policy.lay(&self.read_threshold);
        let options = Options { policy, ..self.connect.options()? };
        Ok(Place::Weir { target, options: Box::new(options), each: self.each, runtime })
    }
}

/// The results that `weir replay` prints after the replay.
#[derive(Serialize)]
struct Summary {
    clients: usize,
    operations: u64,
    read_bytes: u64,
    written_bytes: u64,
    seconds: f64,
    verified_bytes: Option<u64>,
    by_operation: Vec<(&'static str, u64)>,
    latencies: Vec<Line>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counters: Option<Sums>,
    /// The write threshold of each client at the end of the replay, in bytes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    write_thresholds: Vec<u64>,
}

impl Summary {
    fn of(job: &Job, done: Done, native: bool) -> Summary {
        let times = |bytes: u64| bytes * job.copies as u64;
        let by_operation: Vec<_> = Action::ALL.map(|action| (action.word(), done.latencies.count(action))).into();
        Summary {
            clients: job.trace.clients.len() * job.copies,
            operations: by_operation.iter().map(|(_, count)| count).sum(),
            read_bytes: times(job.trace.bytes(Action::Read)),
            written_bytes: times(job.trace.bytes(Action::Write)),
            seconds: done.took.as_secs_f64(),
            verified_bytes: done.verified,
            by_operation,
            latencies: done.latencies.lines(),
            counters: native.then_some(done.sums),
            write_thresholds: done.thresholds,
        }
    }

    fn show(&self) -> Result<(), Failure> {
        let per_second = |n: u64| (n as f64 / self.seconds.max(1e-9)) as u64;
        let counts: Vec<String> =
            self.by_operation.iter().filter(|(_, n)| *n > 0).map(|(word, n)| format!("{n} {word}")).collect();
        show::line(&format!(
            "{} operations of {} in {:.3} s, {} a second: {}",
            self.operations,
            if self.clients == 1 { "1 client".to_owned() } else { format!("{} clients", self.clients) },
            self.seconds,
            per_second(self.operations),
            counts.join(", ")
        ))?;
        for (what, bytes) in [("written", self.written_bytes), ("read", self.read_bytes)] {
            if bytes > 0 {
                show::line(&format!("{what:<9}{}, {}/s", show::size(bytes), show::size(per_second(bytes))))?;
            }
        }
        if let Some(bytes) = self.verified_bytes {
            show::line(&format!("verified {}: every byte is the last one written there", show::size(bytes)))?;
        }
        if let Some(counters) = &self.counters {
            let way = |direct, via_mgr| {
                format!("{} on the direct path, {} on the mgr path", show::size(direct), show::size(via_mgr))
            };
            show::line(&format!("writes   {}", way(counters.written_direct, counters.written_via_mgr)))?;
            show::line(&format!("reads    {}", way(counters.read_direct, counters.read_via_mgr)))?;
            if counters.short_circuit_reads > 0 {
                let (requests, bytes) = (counters.short_circuit_reads, show::size(counters.read_short_circuit));
                show::line(&format!("local    {requests} short-circuit reads, {bytes} of the direct path"))?;
            }
            for (what, counts) in [("RPCs", &counters.rpcs), ("NFS", &counters.operations)] {
                let counts: Vec<String> = counts.iter().map(|(name, n)| format!("{n} {name}")).collect();
                show::line(&format!("{what:<9}{}", counts.join(", ")))?;
            }
        }
        show::line(&format!("{:<8}{:>10}{:>10}{:>12}{:>12}{:>12}", "", "up to", "count", "p50", "p99", "longest"))?;
        for line in &self.latencies {
            let up_to = if line.up_to == 0 { String::new() } else { layout::policy::format_size(line.up_to.into()) };
            let [p50, p99, max] = [line.p50_us, line.p99_us, line.max_us].map(short);
            show::line(&format!("{:<8}{up_to:>10}{:>10}{p50:>12}{p99:>12}{max:>12}", line.operation, line.count))?;
        }
        Ok(())
    }
}

/// Formats a time in microseconds as text, in the unit that fits its size.
fn short(micros: f64) -> String {
    format!("{:.1?}", Duration::from_nanos((micros * 1000.0) as u64))
}
