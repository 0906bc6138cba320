//! Rows of the `mount` benchmark in the order in which they run, with the target of each row.

use crate::Outcome;
use crate::floor::{self, Server};
use crate::work::{self, Done, WorkDir};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The unit in which a row reports CPU time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Seconds of CPU time per 10^9 bytes.
    PerByte,
    /// Microseconds of CPU time per operation.
    PerOperation,
}

impl Unit {
    /// Returns the name of the unit, as the tables show it.
    pub fn name(self) -> &'static str {
        match self {
            Unit::PerByte => "CPU s/GB",
            Unit::PerOperation => "CPU us",
        }
    }
}

/// A row of the benchmark: a workload in a directory, which the benchmark measures.
pub struct Row {
    pub name: &'static str,
    pub unit: Unit,
    /// The earlier row whose files this row reads or removes. If the user selects only this row, the benchmark also
    /// runs the earlier row.
    pub behind: Option<&'static str>,
    /// Runs the row of the benchmark in a directory that contains the files of earlier rows.
    pub work: fn(&WorkDir) -> Outcome<Done>,
    /// Runs the workload of the row over a bare socket, as the baseline (floor) of the row; `None` if the workload has
    /// no equivalent on a bare socket.
    pub floor: Option<fn(&Server, &WorkDir) -> Outcome<Done>>,
    /// Makes as many changes durable over a bare socket as the row makes in a file system; `None` if the row makes no
    /// durable changes.
    pub durable: Option<fn(&Server, &WorkDir) -> Outcome<Done>>,
    /// The lowest CPU time that was measured with mounts of file systems other than Weir, in the unit of the row.
    pub best: Option<f64>,
    /// Target for Weir: the largest ratio of its CPU time to the CPU time of bare sockets.
    pub cpu_over_floor: Option<f64>,
    /// Target for Weir: the smallest ratio of its rate to the rate of bare sockets.
    pub rate_of_floor: Option<f64>,
    /// Target for Weir: the smallest ratio of its rate to the rate of the local file system.
    pub rate_of_local: Option<f64>,
}

const fn row(name: &'static str, unit: Unit, best: Option<f64>, work: fn(&WorkDir) -> Outcome<Done>) -> Row {
    Row {
        name,
        unit,
        behind: None,
        work,
        floor: None,
        durable: None,
        best,
        cpu_over_floor: None,
        rate_of_floor: None,
        rate_of_local: None,
    }
}

use Unit::{PerByte, PerOperation};

const STREAM: &str = "1 MiB write, one fsync";
const RECORDS: &str = "8 writers, 47 KB records";
const CREATE: &str = "create, write 2 KB, close";

/// All rows of the benchmark. A row that reads files comes after the row that writes these files.
pub const ROWS: [Row; 14] = [
    Row {
        floor: Some(floor::write_stream),
        cpu_over_floor: Some(3.0),
        ..row(STREAM, PerByte, Some(1.1), work::write_stream)
    },
    Row {
        behind: Some(STREAM),
        floor: Some(floor::read_stream),
        cpu_over_floor: Some(2.3),
        ..row("1 MiB read", PerByte, Some(0.55), work::read_stream)
    },
    Row { rate_of_local: Some(0.5), ..row("4 KiB write in order, no fsync", PerOperation, None, work::write_pages) },
    row("4 KiB write in order, one fsync", PerOperation, Some(16.0), work::write_pages_synced),
    row("4 KiB O_APPEND write, one fsync", PerOperation, None, work::append_pages),
    row("64 B write in order, one fsync", PerOperation, Some(10.0), work::write_lines),
    row("4 KiB random write, one fsync", PerOperation, Some(32.0), work::write_randomly),
    Row {
        behind: Some(STREAM),
        floor: Some(floor::read_randomly),
        rate_of_floor: Some(0.5),
        ..row("4 KiB random read", PerOperation, Some(38.0), work::read_randomly)
    },
    row(RECORDS, PerByte, Some(2.7), work::write_records),
    Row { behind: Some(RECORDS), ..row("8 readers, 47 KB reads", PerByte, Some(0.93), work::read_records) },
    Row { durable: Some(floor::change), ..row(CREATE, PerOperation, Some(96.0), work::create) },
    Row { behind: Some(CREATE), ..row("stat", PerOperation, None, work::stat) },
    Row { behind: Some(CREATE), ..row("open, read 2 KB, close", PerOperation, None, work::read_small) },
    Row {
        behind: Some(CREATE),
        durable: Some(floor::change),
        ..row("unlink", PerOperation, Some(102.0), work::unlink)
    },
];

static STOPPED: AtomicBool = AtomicBool::new(false);

/// Returns whether this program has received SIGINT or SIGTERM.
pub fn was_stopped() -> bool {
    STOPPED.load(Relaxed)
}

/// Makes SIGINT and SIGTERM stop the program after the current row, so that it can unmount everything.
pub fn listen_for_stop() -> Outcome<()> {
    extern "C" fn stop(_signal: libc::c_int) {
        STOPPED.store(true, Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let handler = stop as extern "C" fn(libc::c_int);
        // SAFETY: the signal handler only stores to an atomic, which is async-signal-safe.
        if unsafe { libc::signal(signal, handler as libc::sighandler_t) } == libc::SIG_ERR {
            return Err(std::io::Error::last_os_error().into());
        }
    }
    Ok(())
}
