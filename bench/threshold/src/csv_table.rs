//! CSV table with the results of all runs of the `threshold` benchmark.

use crate::rig::Run;
use std::fmt::Write;

/// The results of every run, one run per line.
#[derive(Default)]
pub struct CsvTable {
    lines: String,
}

impl CsvTable {
    /// Adds the line of one run: experiment, threshold or access method, length of the requests, round, and results.
    pub fn add(&mut self, experiment: &str, way: &str, bytes: u64, round: u32, run: &Run) {
        let _ = writeln!(
            self.lines,
            "{experiment},\"{way}\",{bytes},{round},{:.6},{},{},{},{},{},{},{:.3},{}",
            run.seconds,
            run.operations,
            run.written_bytes + run.read_bytes,
            run.counters.written_direct,
            run.counters.written_via_mgr,
            run.rpcs(),
            run.iod_writes,
            run.busy,
            run.write_thresholds.first().map(u64::to_string).unwrap_or_default(),
        );
    }

    /// Returns the CSV text, including the header line.
    pub fn text(&self) -> String {
        let head = "experiment,way,request_bytes,round,seconds,operations,bytes,bytes_straight,bytes_via_mgr,client_rpcs,iod_writes,daemons_cpu,threshold_at_end";
        format!("{head}\n{}", self.lines)
    }
}
