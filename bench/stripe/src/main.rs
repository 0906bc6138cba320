//! The experiments of striping: what it costs and what it brings.

mod bare;
mod machine;
mod native;
mod parts;
mod process;
mod report;
mod socket;

use clap::{Parser, ValueEnum};
use report::Report;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// What striping costs and brings
///
/// Everything is a comparison within one run, its sides taking turns. Nothing fails when a target is missed: the tables
/// say so.
#[derive(Parser)]
#[command(name = "stripe", max_term_width = 100)]
struct Cli {
    /// Which parts; all without it
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Rounds of each part
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Small amounts: shows that everything works, the numbers mean little
    #[arg(long)]
    quick: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Where stores and files are made [default: beside this program]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Be a part of an experiment that needs a process of its own
    #[arg(long, hide = true)]
    role: Option<String>,
}

/// The experiments.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// 4 KiB reads from one iod against a minimal server
    C,
}

/// What this program can be besides the experiments: a part of one in a process of its own.
#[derive(Serialize, Deserialize)]
enum Role {
    /// Serves a new object store in `dir`.
    Iod { dir: PathBuf },
    /// Serves small reads of a file, with nothing that is not necessary.
    Reads { address: String, file: PathBuf },
}

/// What all experiments share.
struct Setup {
    rounds: u32,
    quick: bool,
    /// Where to make stores and files.
    dir: PathBuf,
}

/// What everything here returns.
type Outcome<T> = Result<T, Box<dyn Error>>;

impl Setup {
    /// The duration, or a tenth of it when only a quick look is wanted.
    fn brief(&self, duration: Duration) -> Duration {
        if self.quick { duration / 10 } else { duration }
    }
}

impl Role {
    fn play(self) -> Outcome<()> {
        match self {
            Role::Iod { dir } => parts::small::serve_iod(&dir),
            Role::Reads { address, file } => bare::serve_reads(&address, &file),
        }
    }
}

fn run(cli: Cli) -> Outcome<()> {
    if let Some(role) = &cli.role {
        return serde_json::from_str::<Role>(role)?.play();
    }
    let own = std::env::current_exe()?;
    let beside = own.parent().ok_or("this program is in no folder")?;
    let room = tempfile::Builder::new().prefix("stripe-").tempdir_in(cli.dir.as_deref().unwrap_or(beside))?;
    let setup = Setup { rounds: cli.rounds, quick: cli.quick, dir: room.path().canonicalize()? };
    let mut report = Report { machine: machine::facts(&setup.dir), tables: Vec::new() };
    let wanted = |part| cli.parts.is_empty() || cli.parts.contains(&part);
    if wanted(Part::C) {
        parts::small::run(&setup, &mut report)?;
    }
    if cli.json {
        println!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    report.machine.iter().for_each(|(name, value)| println!("{name}: {value}"));
    report.tables.iter().for_each(|table| print!("{table}"));
    Ok(())
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stripe: {error}");
            ExitCode::FAILURE
        }
    }
}
